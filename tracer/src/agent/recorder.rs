//! The flight recorder: the last hours of events on disk, in segments.
//!
//! Owns the folder: when a segment begins and closes, which segments are deleted, and the pauses after a failure. A
//! segment is a recording of its own. Each block is written with one `write(2)`, so that a killed process loses at most
//! the open block; `fsync(2)` runs when a segment closes. A segment's name has the wall clock's time, by which people look for
//! it, and a number, because a clock that steps back must not make a new segment the oldest.

mod ages;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::config::{Level, RecorderConfig};
use crate::{
    error::sentence,
    platform,
    recording::{self, Addresses, CLOSE_LIMIT, End, Finished, Header, Recorded, Recorder},
    time::Timestamp,
};
use ages::Ages;

/// The pause after the first failure, doubled after each further one, up to [`MAX_PAUSE`]. A segment that ends as it
/// should makes it short again. One that only begins does not: a nearly full disk has room for a header.
const PAUSE: Duration = Duration::from_secs(5);
const MAX_PAUSE: Duration = Duration::from_mins(5);
/// A segment begins with the cluster's objects: a younger one is closed only at twice its size.
const MIN_AGE: Duration = Duration::from_secs(10);
/// How often the bounds are checked between two segments.
const CHECK: Duration = Duration::from_secs(30);
/// A wall clock that was set back by more than this begins another segment: the name of the open one is later than what it
/// would have from now on. Below the tolerance of those who choose segments by their time.
const STEP_BACK: Duration = Duration::from_mins(1);
/// The end of a segment's name.
const SUFFIX: &str = ".viptrace";
/// The extension of its name until it has its header: a killed process leaves no segment without one.
const UNFINISHED: &str = "viptrace.new";
/// Digits of a segment's number.
const DIGITS: usize = 8;

/// The state of the recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderFigures {
    /// Whether a segment is open; `None` without a folder.
    pub up: Option<bool>,
    /// Segments that could not be begun or continued.
    pub failures: u64,
    /// Events that no segment has.
    pub dropped_events: u64,
    /// Stored segments, and their size.
    pub segments: u64,
    pub bytes: u64,
    /// Segments deleted to stay within the bounds.
    pub deleted: u64,
    /// The file name of the open segment.
    pub open: Option<String>,
}

/// A stored segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// When it was last written: RFC 3339, UTC.
    pub(crate) modified: Timestamp,
    /// Whether it is still being written.
    pub(crate) open: bool,
}

impl Segment {
    /// Whether the name is one that an agent gives a segment. It cannot lead to another folder.
    pub(crate) fn has_own_name(&self) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        number(&self.name).is_some() && self.name.bytes().all(is_plain)
    }

    /// When it began, as its name says; `None` if the name does not.
    pub(crate) fn began(&self) -> Option<Timestamp> {
        let (_, time) = self.name.strip_suffix(SUFFIX)?.split_once('-')?;
        let (day, time) = time.strip_suffix('Z')?.split_once('T')?;
        let part = |text: &str, range| text.get(range).map(str::to_owned);
        let (year, month, day) = (part(day, 0..4)?, part(day, 4..6)?, part(day, 6..8)?);
        let (hour, minute, second) = (part(time, 0..2)?, part(time, 2..4)?, part(time, 4..6)?);
        Timestamp::parse(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}.{:0<9}Z", time.get(6..)?))
    }

    /// Whether it may have something of the time from `from` to `to`, if clocks differ by `apart` at most.
    pub(crate) fn overlaps(&self, from: Timestamp, to: Timestamp, apart: Duration) -> bool {
        let began = self.began().unwrap_or(Timestamp::MIN);
        // A clock that was set back while it was written does not show its end.
        let has_end = !self.open && self.modified.saturating_add(apart) >= began;
        let is_late = has_end && self.modified.saturating_add(apart) < from;
        !is_late && began.saturating_sub(apart) <= to
    }
}

/// The open segment.
#[derive(Debug)]
struct Open {
    name: String,
    began: Instant,
    /// The wall clock's time in its name.
    named: Timestamp,
    /// Events observed before it.
    events_before: u64,
}

/// The result of a closed segment, and the number of events that were observed while it was open.
type Closed = (Finished, u64);

/// A message for the log.
pub type Notice = (Level, String);

/// Keeps segments of everything that a pipeline observes.
#[derive(Debug)]
pub struct FlightRecorder {
    config: RecorderConfig,
    /// One numbering for all segments.
    addresses: Addresses,
    open: Option<Open>,
    /// When a segment is tried again, and the pause after it fails.
    retry_at: Option<Instant>,
    pause: Duration,
    checked: Option<Instant>,
    /// Of the segments in the folder.
    ages: Ages,
    /// Events observed at the last call.
    events: u64,
    /// Segments that threads are closing.
    closing: usize,
    closed: (Sender<Closed>, Receiver<Closed>),
    figures: RecorderFigures,
}

impl FlightRecorder {
    pub fn new(config: RecorderConfig) -> Self {
        let figures =
            RecorderFigures { up: config.folder.is_some().then_some(false), ..RecorderFigures::default() };
        Self {
            config,
            addresses: Addresses::default(),
            open: None,
            retry_at: None,
            pause: PAUSE,
            checked: None,
            ages: Ages::default(),
            events: 0,
            closing: 0,
            closed: mpsc::channel(),
            figures,
        }
    }

    pub fn figures(&self) -> &RecorderFigures {
        &self.figures
    }

    /// Takes a reloaded configuration. Another folder begins another segment.
    pub fn set(&mut self, config: RecorderConfig, recorded: &mut Recorded, now: Timestamp) {
        self.count_events(recorded);
        if self.config.folder != config.folder {
            self.close_open(recorded, now);
            (self.retry_at, self.pause) = (None, PAUSE);
            self.ages = Ages::default();
            (self.figures.segments, self.figures.bytes, self.figures.open) = (0, 0, None);
        }
        self.config = config;
        self.figures.up = self.config.folder.is_some().then_some(self.open.is_some());
        self.checked = None;
    }

    /// Begins, closes and deletes segments. `header` describes the trace, `now` is the time until which it has observed, on the
    /// trace's clock, `at` is the monotonic clock. Returns messages for the log.
    ///
    /// Lists the folder, deletes files, and creates a file with its header. Everything else that waits for the disk runs
    /// on the segment's threads.
    pub fn turn(
        &mut self,
        recorded: &mut Recorded,
        header: &Header,
        now: Timestamp,
        at: Instant,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        while let Ok(closed) = self.closed.1.try_recv() {
            self.is_closed(&closed);
        }
        self.count_events(recorded);
        let Some(folder) = self.config.folder.clone() else { return notices };
        let wall = recorded.pipeline().unix_then(now);
        if let Some(failure) = recorded.failure() {
            let why =
                format!("the segment ends at {}: {}", failure.covered.to_the_millisecond(), failure.error);
            self.failed(&why, at, &mut notices);
            self.close_open(recorded, now);
        } else if self.is_complete(recorded, at, wall) {
            self.pause = PAUSE;
            self.close_open(recorded, now);
        }
        if self.open.is_none() && self.retry_at.is_none_or(|due| at >= due) {
            self.tidy(&folder, at, &mut notices);
            match begin(&folder, recorded, header, (now, wall), &self.addresses) {
                Ok(name) => {
                    if self.retry_at.take().is_some() {
                        notices.push((Level::Info, format!("{} can be written again", folder.display())));
                    }
                    self.open = Some(Open { name, began: at, named: wall, events_before: self.events });
                }
                Err(error) => {
                    self.failed(&sentence(&error), at, &mut notices);
                }
            }
        }
        if self.checked.is_none_or(|checked| at.duration_since(checked) >= CHECK) {
            self.checked = Some(at);
            self.tidy(&folder, at, &mut notices);
        }
        self.figures.up = Some(self.open.is_some());
        self.figures.open = self.open.as_ref().map(|open| open.name.clone());
        notices
    }

    /// Ends the last segment and waits until it is on the disk, for `limit` at most.
    pub fn finish(&mut self, recorded: &mut Recorded, end: End, limit: Duration) -> Option<Finished> {
        self.count_events(recorded);
        let finished = recorded.end(end, limit);
        if let (Some(open), Some(finished)) = (self.open.take(), &finished) {
            let observed = self.events.saturating_sub(open.events_before);
            self.figures.dropped_events += observed.saturating_sub(finished.records);
        }
        finished
    }

    /// Waits, until `limit` at the latest, for the segments that were closed before the last one.
    pub fn wait(&mut self, limit: Instant) {
        while self.closing > 0 {
            match self.closed.1.recv_timeout(limit.saturating_duration_since(Instant::now())) {
                Ok(closed) => self.is_closed(&closed),
                Err(_) => return,
            }
        }
    }

    fn is_closed(&mut self, (finished, observed): &Closed) {
        self.closing -= 1;
        self.figures.dropped_events += observed.saturating_sub(finished.records);
    }

    /// Counts the events since the last call. Without an open segment none has them.
    fn count_events(&mut self, recorded: &Recorded) {
        let events = recorded.pipeline().counters().sightings;
        if self.open.is_none() && self.config.folder.is_some() {
            self.figures.dropped_events += events.saturating_sub(self.events);
        }
        self.events = events;
    }

    /// Whether the open segment has its size or its age, or the wall clock was set back to before its name.
    fn is_complete(&self, recorded: &mut Recorded, at: Instant, wall: Timestamp) -> bool {
        let (Some(open), Some(file)) = (&self.open, recorded.recorder()) else { return false };
        let age = at.duration_since(open.began);
        let (bytes, full) = (file.written_bytes(), self.config.segment_bytes.get());
        age >= self.config.segment_age.get()
            || wall.saturating_add(STEP_BACK) < open.named
            || bytes >= full && (age >= MIN_AGE || bytes >= full.saturating_mul(2))
    }

    /// Closes the open segment on a thread of its own, because the disk may be slow.
    fn close_open(&mut self, recorded: &mut Recorded, now: Timestamp) {
        let (Some(open), Some(file)) = (self.open.take(), recorded.take_recorder()) else { return };
        let observed = self.events.saturating_sub(open.events_before);
        let result = self.closed.0.clone();
        let end = End { ended: now, gaps: vec!["the flight recorder began another segment".to_owned()] };
        let close = move || {
            let finished = file.finish(end, CLOSE_LIMIT);
            // The agent may have ended.
            let _ = result.send((finished, observed));
        };
        // Without a thread the recorder is dropped here, which closes the file as well.
        let thread = thread::Builder::new().name("closer".to_owned()).spawn(close);
        self.closing += usize::from(thread.is_ok());
    }

    fn failed(&mut self, why: &str, at: Instant, notices: &mut Vec<Notice>) {
        self.figures.failures += 1;
        let pause = self.pause;
        self.retry_at = Some(at + pause);
        self.pause = (pause * 2).min(MAX_PAUSE);
        notices
            .push((Level::Error, format!("nothing is recorded for the next {} s: {why}", pause.as_secs())));
    }

    /// Deletes the oldest segments beyond the bounds, and counts the others.
    fn tidy(&mut self, folder: &Path, at: Instant, notices: &mut Vec<Notice>) {
        let Ok(mut segments) = segments(folder, self.open.as_ref().map(|open| open.name.as_str())) else {
            return;
        };
        // The open segment may grow to its full size.
        let room = self.config.max_bytes.get() - self.config.segment_bytes.get();
        let max_age = self.config.max_age.get();
        self.ages.see(&segments, self.config.segment_age.get(), at);
        let mut total: u64 =
            segments.iter().filter(|segment| !segment.open).map(|segment| segment.bytes).sum();
        segments.retain(|segment| {
            if segment.open || (total <= room && self.ages.age(segment, at) <= max_age) {
                return true;
            }
            match fs::remove_file(folder.join(&segment.name)) {
                Ok(()) => self.figures.deleted += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    notices
                        .push((Level::Warn, format!("cannot delete {}: {}", segment.name, sentence(&error))));
                    return true;
                }
            }
            total = total.saturating_sub(segment.bytes);
            false
        });
        self.figures.segments = segments.len() as u64;
        self.figures.bytes = segments.iter().map(|segment| segment.bytes).sum();
    }
}

/// Creates the next segment and begins it, at a time on the trace's clock and on the wall clock.
fn begin(
    folder: &Path,
    recorded: &mut Recorded,
    header: &Header,
    (now, wall): (Timestamp, Timestamp),
    addresses: &Addresses,
) -> Result<String, recording::CreateError> {
    let path = next_path(folder, wall)
        .map_err(|error| recording::CreateError::Create { path: folder.to_owned(), error })?;
    let unfinished = path.with_extension(UNFINISHED);
    let created = recording::create(&unfinished, true)?;
    let header = Header { started: now.max(header.started), ..header.clone() };
    let begun = Recorder::begin(&path, created, &header, addresses.clone()).and_then(|file| {
        let renamed = fs::rename(&unfinished, &path);
        renamed.map(|()| file).map_err(|error| recording::CreateError::Begin { path: path.clone(), error })
    });
    match begun {
        Ok(file) => recorded.begin(file),
        Err(error) => {
            // A file without a header is no recording.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
    }
    Ok(path.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// The path of the next segment: after the highest number, with the wall clock's time.
fn next_path(folder: &Path, wall: Timestamp) -> io::Result<PathBuf> {
    if !folder.is_dir() {
        platform::private_folder(&mut fs::DirBuilder::new()).recursive(true).create(folder)?;
    }
    remove_unfinished(folder)?;
    let last = segments(folder, None)?.last().and_then(|segment| number(&segment.name)).unwrap_or_default();
    let time: String = wall.to_the_millisecond().chars().filter(|c| !matches!(c, '-' | ':' | '.')).collect();
    let next = last.checked_add(1).ok_or_else(|| io::Error::other("a segment has the highest number"))?;
    Ok(folder.join(format!("{next:0DIGITS$}-{time}{SUFFIX}")))
}

/// Removes what a process left that was killed while it began a segment.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().and_then(|name| name.strip_suffix(".new")).is_some_and(|name| number(name).is_some())
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The number in a segment's name; `None` for any other file.
fn number(name: &str) -> Option<u64> {
    let (digits, _) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let is_number = digits.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// The segments in a folder, the oldest first. Other files are left out.
pub(crate) fn segments(folder: &Path, open: Option<&str>) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Some(number) = number(&name) else { continue };
        // A segment may have been deleted meanwhile.
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_file() {
            continue;
        }
        let modified = meta.modified().ok().and_then(Timestamp::from_system_time).unwrap_or_default();
        let open = open == Some(name.as_str());
        found.push((number, Segment { name, bytes: meta.len(), modified, open }));
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, segment)| segment).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(name: &str, modified: &str, open: bool) -> Segment {
        let modified = Timestamp::parse(&format!("2026-01-02T{modified}.000000000Z")).unwrap();
        Segment { name: name.to_owned(), bytes: 1, modified, open }
    }

    #[test]
    fn the_name_of_a_segment_says_when_it_began() {
        let folder = tempfile::tempdir().unwrap();
        let began = Timestamp::parse("2026-01-02T10:00:00.123000000Z").unwrap();
        let path = next_path(folder.path(), began).unwrap();
        let segment = segment(path.file_name().unwrap().to_str().unwrap(), "11:00:00", false);
        assert_eq!((segment.began(), segment.has_own_name()), (Some(began), true), "{}", segment.name);
        for name in [
            "",
            "00000001-.viptrace",
            "00000001-2026.viptrace",
            "00000001-20260102T100000123.viptrace",
            "00000001-é0260102T100000123Z.viptrace",
            "00000001-20260102T1000001234567890Z.viptrace",
        ] {
            assert_eq!(Segment { name: name.to_owned(), ..segment.clone() }.began(), None, "{name}");
        }
        for name in
            ["1-x.viptrace", "00000001-../x.viptrace", "00000001-a b.viptrace", "00000001-x", "../x.viptrace"]
        {
            assert!(!Segment { name: name.to_owned(), ..segment.clone() }.has_own_name(), "{name}");
        }
    }

    #[test]
    fn segments_are_chosen_by_their_time() {
        let at = |time: &str| Timestamp::parse(&format!("2026-01-02T{time}.000000000Z")).unwrap();
        let name = "00000001-20260102T100000000Z.viptrace";
        let apart = Duration::from_mins(2);
        let closed = segment(name, "11:00:00", false);
        for (from, to, expected) in [
            ("10:30:00", "10:31:00", true),
            ("11:01:59", "12:00:00", true),
            ("11:02:01", "12:00:00", false),
            ("09:00:00", "09:58:00", true),
            ("09:00:00", "09:57:59", false),
        ] {
            assert_eq!(closed.overlaps(at(from), at(to), apart), expected, "{from} to {to}");
        }
        assert!(closed.overlaps(Timestamp::MIN, Timestamp::MAX, apart));
        // The clock was set back by an hour while it was written.
        let stepped = segment(name, "09:30:00", false);
        assert!(stepped.overlaps(at("10:20:00"), at("10:30:00"), apart));
        let open = Segment { open: true, ..closed };
        assert!(open.overlaps(at("12:00:00"), at("13:00:00"), apart), "it may be written now");
    }
}
