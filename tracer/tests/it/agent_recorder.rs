//! The flight recorder: bounds, failures of the disk, and a writer that is killed.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use viptrace::{
    agent::{FlightRecorder, RecorderFigures, config::Config},
    kernel::decode::Decoder,
    recording::{DamageKind, Header, Player, Recorded, Records, Tape, Tapes},
    session::{Detail, Pipeline, WallStep},
    time::Timestamp,
};

use crate::agent_support::PATIENCE;
use crate::recording_support::{Corpus, Random, Traffic, cluster, corpus, header, lines, replayed};

/// A pipeline with a flight recorder, without a kernel.
struct Writer {
    recorder: FlightRecorder,
    recorded: Recorded,
    decoder: Decoder,
    header: Header,
    now: Timestamp,
    start: Instant,
    passed: Duration,
    notices: Vec<String>,
    /// The verdicts so far, a line each.
    judged: Vec<String>,
}

impl Writer {
    fn new(folder: &Path, yaml: &str) -> Self {
        Self::of(&corpus("debian-6.12"), folder, yaml)
    }

    fn of(corpus: &Corpus, folder: &Path, yaml: &str) -> Self {
        let text = format!("version: 1\nrecorder: {{folder: '{}', {yaml}}}\n", folder.display());
        let header = header(corpus);
        let mut recorded = Recorded::new(Pipeline::new(header.settings(Detail::All), cluster()));
        recorded.node_read(Arc::default(), header.started, header.started);
        Self {
            recorder: FlightRecorder::new(Config::parse(&text).unwrap().recorder),
            recorded,
            decoder: Decoder::new(Arc::new(header.layout()), header.clock_offset_ns),
            now: header.started,
            header,
            start: Instant::now(),
            passed: Duration::ZERO,
            notices: Vec::new(),
            judged: Vec::new(),
        }
    }

    /// A turn after this time.
    fn turn(&mut self, time: Duration) {
        self.passed += time;
        self.now = self.now.saturating_add(time);
        self.judged.extend(lines(&self.recorded.advance(self.now)));
        let at = self.start + self.passed;
        let notices = self.recorder.turn(&mut self.recorded, &self.header, self.now, at);
        self.notices.extend(notices.into_iter().map(|(_, text)| text));
    }

    fn observe(&mut self, batch: &[Vec<u8>]) {
        let mut records = Records::default();
        let mut sightings = Vec::new();
        for record in batch {
            let sighting = self.decoder.decode(record).unwrap();
            self.now = self.now.max(sighting.time);
            sightings.push(sighting);
            assert!(records.push(record));
        }
        self.recorded.observe(sightings, &mut records);
    }

    /// Ends the last segment, waits for the others, and returns the last figures.
    fn end(mut self) -> RecorderFigures {
        let end = viptrace::recording::End { ended: self.now, gaps: Vec::new() };
        self.recorder.finish(&mut self.recorded, end, PATIENCE);
        self.recorder.wait(Instant::now() + PATIENCE);
        self.recorder.figures().clone()
    }

    /// Turns, without time, until the figures are so: a thread closes segments.
    fn until(&mut self, so: impl Fn(&RecorderFigures) -> bool) {
        let begun = Instant::now();
        while !so(self.recorder.figures()) {
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.recorder.figures());
            self.turn(Duration::ZERO);
            std::thread::yield_now();
        }
    }

    /// Observes traffic until this number of segments failed. Returns the number of events.
    fn until_failed(&mut self, traffic: &mut Traffic, failures: u64) -> u64 {
        let mut observed = 0;
        while self.recorder.figures().failures < failures {
            let batch: Vec<Vec<u8>> = traffic.take(4000).collect();
            observed += batch.len() as u64;
            self.observe(&batch);
            self.turn(Duration::from_millis(10));
            assert!(observed < 4_000_000, "the disk does not become full");
        }
        observed
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// The number of sightings in a segment, which has no partial block.
fn sightings(path: &Path) -> u64 {
    let mut player = Player::open(File::open(path).unwrap(), Detail::All).unwrap();
    replayed(&mut player);
    assert_eq!(player.damage().1, 0, "a partial block was not cut off");
    player.pipeline().counters().sightings
}

#[test]
fn segments_close_by_age_and_each_replays() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(folder.path(), "segment_age: 10s");
    let mut traffic = Traffic::new(&corpus("debian-6.12"), 3, 200.0);
    for count in [1700, 400, 900] {
        writer.turn(Duration::from_secs(11));
        writer.observe(&traffic.by_ref().take(count).collect::<Vec<_>>());
    }
    writer.turn(Duration::from_secs(9));
    assert_eq!(writer.end().dropped_events, 0, "each event is in the segment that was open when it came");
    let found = files(folder.path());
    assert_eq!(found.len(), 3, "{found:?}");
    for (number, path) in found.iter().enumerate() {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(&format!("{:08}-2026", number + 1)), "{name}");
        let mut player = Player::open(File::open(path).unwrap(), Detail::All).unwrap();
        let (verdicts, end) = replayed(&mut player);
        assert!(!verdicts.is_empty() && end.is_some() && player.damage().1 == 0, "{name}");
        assert!(!player.missing().beginning);
        // A segment ends in the middle of flows. They are judged as they are.
        assert_eq!(player.pipeline().counters().open, 0, "{name}");
    }
}

/// The verdicts of the traces in a folder, one after the other, and the traces.
fn of_folder(folder: &Path) -> (Vec<String>, Vec<Tape>) {
    let found = Tapes::find(&[folder.to_owned()], Detail::All).unwrap();
    assert_eq!(found.skipped, []);
    let (mut said, mut tapes) = (Vec::new(), found.tapes);
    for tape in &mut tapes {
        while let Some((judgements, _)) = tape.step().unwrap() {
            said.extend(lines(&judgements));
        }
    }
    (said, tapes)
}

/// Segments of traffic, begun in the middle of flows. Returns the verdicts of the trace itself.
fn segments_of_traffic(folder: &Path) -> Vec<String> {
    let mut writer = Writer::new(folder, "segment_age: 10s");
    let mut traffic = Traffic::new(&corpus("debian-6.12"), 3, 200.0);
    for count in [1700, 400, 900] {
        for _ in 0..11 {
            writer.turn(Duration::from_secs(1));
        }
        writer.observe(&traffic.by_ref().take(count).collect::<Vec<_>>());
    }
    for _ in 0..9 {
        writer.turn(Duration::from_secs(1));
    }
    let mut said = std::mem::take(&mut writer.judged);
    said.extend(lines(&writer.recorded.finish(writer.now)));
    while writer.recorded.pipeline().has_backlog() {
        said.extend(lines(&writer.recorded.judge(writer.now)));
    }
    said.extend(lines(&writer.recorded.node_read(Arc::default(), writer.now, writer.now)));
    writer.end();
    said
}

#[test]
fn the_segments_of_a_trace_are_one_recording() {
    let folder = tempfile::tempdir().unwrap();
    let live = segments_of_traffic(folder.path());
    let paths = files(folder.path());
    assert!(paths.len() >= 3, "{paths:?}");
    // Neither names nor places matter.
    fs::create_dir(folder.path().join("later")).unwrap();
    fs::rename(&paths[0], folder.path().join("later/z.viptrace")).unwrap();
    fs::write(folder.path().join("notes.txt"), "no recording").unwrap();
    let (said, tapes) = of_folder(folder.path());
    assert_eq!((tapes.len(), tapes[0].files()), (1, paths.len()));
    assert_eq!(tapes[0].uncovered(), []);
    assert!(tapes[0].end().is_some() && said.len() > 100);
    let differing = said.iter().zip(&live).find(|(one, other)| one != other);
    assert_eq!(differing, None);
    assert_eq!(said.len(), live.len());
}

#[test]
fn a_missing_segment_is_a_gap_and_its_flows_are_not_called_healthy() {
    let folder = tempfile::tempdir().unwrap();
    let live = segments_of_traffic(folder.path());
    fs::remove_file(&files(folder.path())[1]).unwrap();
    let (said, tapes) = of_folder(folder.path());
    let [(from, to)] = *tapes[0].uncovered() else { panic!("{:?}", tapes[0].uncovered()) };
    assert!((Duration::from_secs(9)..Duration::from_secs(13)).contains(&to.since(from)), "{from} {to}");
    assert_eq!(tapes[0].player().unwrap().pipeline().lost_events(), 1);
    assert!(said.len() < live.len());
}

/// A trace's clock is never stepped. A person looks for a segment by the wall clock.
#[test]
fn segments_have_the_time_of_the_wall_clock_and_stay_in_order_when_it_is_set_back() {
    const HOUR_NS: i64 = 3_600_000_000_000;
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(folder.path(), "segment_age: 10m");
    let step = |writer: &mut Writer, ahead_ns| {
        writer.recorded.set_wall_clock(WallStep { at: writer.now, ahead_ns });
        writer.turn(Duration::from_secs(5));
    };
    writer.turn(Duration::ZERO);
    // Less than a minute: the name is still right.
    step(&mut writer, -30_000_000_000);
    assert_eq!(files(folder.path()).len(), 1);
    step(&mut writer, -HOUR_NS);
    let second = writer.now.saturating_sub(Duration::from_hours(1));
    step(&mut writer, 24 * HOUR_NS);
    writer.turn(Duration::from_mins(10));
    let third = writer.now.saturating_add(Duration::from_hours(24));
    let first = writer.header.started;
    writer.end();
    let name = |number: u32, time: Timestamp| {
        let digits = time.to_the_millisecond().replace(['-', ':', '.'], "");
        format!("0000000{number}-{digits}.viptrace")
    };
    let names: Vec<String> = files(folder.path())
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, [name(1, first), name(2, second), name(3, third)]);
}

#[test]
fn no_segment_is_written_after_the_highest_number() {
    let folder = tempfile::tempdir().unwrap();
    let last = folder.path().join(format!("{}-20260102T100000000Z.viptrace", u64::MAX));
    fs::write(&last, "").unwrap();
    let mut writer = Writer::new(folder.path(), "");
    writer.turn(Duration::ZERO);
    assert_eq!(writer.recorder.figures().failures, 1);
    assert!(writer.notices[0].contains("a segment has the highest number"), "{:?}", writer.notices);
    assert_eq!(files(folder.path()), [last]);
}

#[test]
fn what_a_killed_agent_left_of_a_new_segment_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["00000007-20260101T000000000Z.viptrace.new", "mine.new"] {
        File::create(folder.path().join(name)).unwrap();
    }
    let mut writer = Writer::new(folder.path(), "segment_age: 10s");
    writer.turn(Duration::ZERO);
    writer.end();
    let found = files(folder.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().any(|path| path.ends_with("mine.new")));
}

#[test]
fn the_oldest_segments_are_deleted_first_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=6 {
        let mut file = File::create(folder.path().join(format!("{number:08}-2026.viptrace"))).unwrap();
        file.write_all(&vec![0; 1 << 20]).unwrap();
    }
    for name in ["incident.viptrace", "00000001.viptrace", "1-x.viptrace", "00000001-x"] {
        File::create(folder.path().join(name)).unwrap();
    }
    let mut writer = Writer::new(folder.path(), "max_bytes: 5M, segment_bytes: 1M, max_age: 1h");
    writer.turn(Duration::ZERO);
    assert_eq!(writer.recorder.figures().deleted, 2, "{:?}", writer.notices);
    writer.end();
    let names: Vec<String> = files(folder.path())
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let segments: Vec<&str> =
        names.iter().filter(|name| name.contains("-2026")).map(|name| &name[..8]).collect();
    assert_eq!(segments, ["00000003", "00000004", "00000005", "00000006", "00000007"]);
    assert_eq!(names.len(), 5 + 4);
}

/// To the wall clock, a file that was last written in 1970 is as old as one of today after a jump of decades.
#[test]
fn a_wall_clock_that_jumps_deletes_no_segment_and_old_ones_go_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let long_ago = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    // One of an earlier run, and one of this.
    let earlier = folder.path().join("00000001-20260101T100000000Z.viptrace");
    fs::write(&earlier, "an earlier run").unwrap();
    long_ago(&earlier);
    let mut writer = Writer::new(folder.path(), "max_age: 1h, segment_age: 10m");
    writer.turn(Duration::ZERO);
    writer.turn(Duration::from_mins(11));
    writer.recorder.wait(Instant::now() + PATIENCE);
    long_ago(&files(folder.path())[1]);
    writer.turn(Duration::from_mins(8));
    assert_eq!(files(folder.path()).len(), 3);
    assert_eq!(writer.recorder.figures().deleted, 0, "{:?}", writer.notices);
    for (minutes, deleted) in [(42, 1), (11, 2)] {
        writer.turn(Duration::from_mins(minutes));
        assert_eq!(writer.recorder.figures().deleted, deleted, "{:?}", writer.notices);
    }
    assert!(!earlier.exists());
}

#[test]
fn a_disk_that_comes_back_is_used_again_and_the_gap_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    fs::write(&store, "not a folder").unwrap();
    let mut writer = Writer::new(&store, "");
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus("debian-6.12"), 3, 200.0).take(300).collect();
    writer.turn(Duration::ZERO);
    assert_eq!((writer.recorder.figures().up, writer.recorder.figures().failures), (Some(false), 1));
    writer.observe(&traffic[..100]);
    writer.turn(Duration::from_secs(4));
    assert_eq!(writer.recorder.figures().failures, 1, "it is not tried before the pause is over");
    writer.turn(Duration::from_secs(2));
    assert_eq!(writer.recorder.figures().failures, 2);
    assert!(writer.notices[1].contains("for the next 10 s"), "{:?}", writer.notices);
    fs::remove_file(&store).unwrap();
    writer.turn(Duration::from_secs(11));
    assert_eq!(writer.recorder.figures().up, Some(true));
    assert!(writer.notices[2].contains("can be written again"), "{:?}", writer.notices);
    assert_eq!(writer.recorder.figures().dropped_events, 100);
    writer.observe(&traffic[100..]);
    writer.turn(Duration::from_secs(1));
    assert_eq!(writer.end().dropped_events, 100);
    assert_eq!(files(&store).len(), 1);
}

/// Runs an ignored test of this file in a process that the command and then the shell prepare. Returns whether this
/// machine permits the preparation.
fn in_process_of_its_own(test: &str, store: &Path, command: &[&str], preparation: &str) -> bool {
    let script = format!("{preparation} || exit 99; exec \"$0\" --exact agent_recorder::{test} --ignored");
    let program = std::env::current_exe().unwrap();
    let mut arguments = command.iter().map(OsStr::new).chain(["bash", "-c", &script].map(OsStr::new));
    let output = Command::new(arguments.next().unwrap())
        .args(arguments)
        .arg(program)
        .env("VIPTRACE_TEST_STORE", store)
        .output()
        .unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    if output.status.code() == Some(99) {
        // The harness captures `eprintln!`.
        writeln!(std::io::stderr(), "skipped: agent_recorder::{test}: {}", said.trim()).unwrap();
        return false;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    true
}

/// The store of a test in a process of its own.
fn store() -> PathBuf {
    PathBuf::from(std::env::var_os("VIPTRACE_TEST_STORE").unwrap())
}

/// A file that may not grow (`RLIMIT_FSIZE`) stands in for a file system with little room.
#[test]
fn a_segment_that_cannot_be_continued_ends_with_its_last_block() {
    let folder = tempfile::tempdir().unwrap();
    let limit = "ulimit -f 300 && trap '' XFSZ";
    assert!(in_process_of_its_own("little_room", &folder.path().join("store"), &[], limit));
}

/// Runs in a process whose files cannot grow beyond 300 KiB.
#[test]
#[ignore = "a part of a_segment_that_cannot_be_continued_ends_with_its_last_block, in a process of its own"]
fn little_room() {
    let store = store();
    let mut writer = Writer::new(&store, "segment_age: 10m");
    let mut traffic = Traffic::new(&corpus("debian-6.12"), 3, 2000.0);
    writer.turn(Duration::ZERO);
    let observed = writer.until_failed(&mut traffic, 1);
    assert!(writer.notices[0].contains("the segment ends at"), "{:?}", writer.notices);
    let path = files(&store).remove(0);
    let stored = sightings(&path);
    assert!(stored > 0);
    writer.until(|figures| figures.dropped_events >= observed - stored);
    assert_eq!(stored + writer.recorder.figures().dropped_events, observed);
    // The next segment is begun after the pause. It begins and fails as well, so the next pause is longer.
    writer.turn(Duration::from_secs(6));
    assert_eq!(writer.recorder.figures().up, Some(true), "{:?}", writer.notices);
    writer.until_failed(&mut traffic, 2);
    let last = |writer: &Writer| writer.notices.last().unwrap().clone();
    assert!(last(&writer).contains("for the next 10 s"), "{:?}", writer.notices);
    // A segment that ends by its age shows that there is room again.
    writer.turn(Duration::from_secs(11));
    writer.turn(Duration::from_mins(11));
    assert_eq!((writer.recorder.figures().failures, files(&store).len()), (2, 4));
    writer.until_failed(&mut traffic, 3);
    assert!(last(&writer).contains("for the next 5 s"), "{:?}", writer.notices);
}

/// Runs a test with a file system of its own over the store, which only its process has.
fn mounted(test: &str, options: &str) {
    const OWN_MOUNTS: [&str; 4] = ["unshare", "--user", "--map-root-user", "--mount"];
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let permitted = Command::new(OWN_MOUNTS[0]).args(&OWN_MOUNTS[1..]).arg("true").output();
    match permitted {
        Ok(output) if output.status.success() => {}
        refused => {
            writeln!(std::io::stderr(), "skipped: agent_recorder::{test}: {refused:?}").unwrap();
            return;
        }
    }
    let mount = format!("mount -t tmpfs -o {options} store \"$VIPTRACE_TEST_STORE\"");
    in_process_of_its_own(test, store, &OWN_MOUNTS, &mount);
}

#[test]
fn a_full_disk_costs_events_that_are_counted_and_is_used_again() {
    mounted("full_disk", "size=512k");
}

/// Runs where the store has 512 KiB.
#[test]
#[ignore = "a part of a_full_disk_costs_events_that_are_counted_and_is_used_again, in a process of its own"]
fn full_disk() {
    let store = store();
    let mut writer = Writer::new(&store, "segment_age: 10m");
    let mut traffic = Traffic::new(&corpus("debian-6.12"), 3, 2000.0);
    writer.turn(Duration::ZERO);
    let mut observed = writer.until_failed(&mut traffic, 1);
    assert!(writer.notices[0].contains("No space left on device"), "{:?}", writer.notices);
    let stored = sightings(&files(&store)[0]);
    // Nothing fits: not even a header.
    fs::write(store.join("filler"), vec![0; 512 << 10]).unwrap_err();
    writer.turn(Duration::from_secs(6));
    assert_eq!((writer.recorder.figures().up, writer.recorder.figures().failures), (Some(false), 2));
    assert_eq!(files(&store).len(), 2, "a segment without a header was left");
    fs::remove_file(store.join("filler")).unwrap();
    fs::remove_file(&files(&store)[0]).unwrap();
    writer.turn(Duration::from_secs(11));
    assert_eq!(writer.recorder.figures().up, Some(true), "{:?}", writer.notices);
    let batch: Vec<Vec<u8>> = traffic.by_ref().take(500).collect();
    observed += 500;
    writer.observe(&batch);
    let dropped = writer.end().dropped_events;
    assert_eq!(sightings(&files(&store)[0]), 500);
    assert_eq!(stored + 500 + dropped, observed);
}

#[test]
fn a_read_only_disk_is_reported_and_costs_every_event() {
    mounted("read_only_disk", "ro");
}

/// Runs where the store cannot be written.
#[test]
#[ignore = "a part of a_read_only_disk_is_reported_and_costs_every_event, in a process of its own"]
fn read_only_disk() {
    let mut writer = Writer::new(&store(), "");
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus("debian-6.12"), 3, 200.0).take(300).collect();
    for batch in traffic.chunks(100) {
        writer.turn(Duration::from_secs(1));
        writer.observe(batch);
    }
    assert_eq!(writer.recorder.figures().failures, 1);
    assert!(writer.notices[0].contains("Read-only file system"), "{:?}", writer.notices);
    let figures = writer.end();
    assert_eq!((figures.up, figures.dropped_events), (Some(false), 300));
}

/// Writes segments until it is killed. Prints of each segment the bytes that it has passed to the kernel, and `closed`
/// when the whole is on the disk.
#[test]
#[ignore = "a part of the tests that kill a writer, in a process of its own"]
fn writer() {
    let corpus = corpus("debian-6.12");
    let count = std::env::var("VIPTRACE_TEST_RECORDS").unwrap().parse().unwrap();
    let mut writer = Writer::of(&corpus, &store(), "segment_age: 10s, max_bytes: 1G");
    let mut traffic = Records::default();
    for record in Traffic::new(&corpus, 3, 200.0).take(count) {
        assert!(traffic.push(&record));
    }
    let mut last = (String::new(), 0);
    loop {
        // The pipeline is not the subject: the records go to the file only.
        while writer.recorded.recorder().is_some_and(|recorder| recorder.backlog_bytes() > 1 << 20) {
            std::thread::yield_now();
        }
        writer.recorded.observe([], &mut traffic.clone());
        writer.turn(Duration::from_secs(1));
        let name = writer.recorder.figures().open.clone().unwrap();
        if name != last.0 && !last.0.is_empty() {
            writer.recorder.wait(Instant::now() + PATIENCE);
            println!("{} closed", last.0);
        }
        let bytes = writer.recorded.recorder().map_or(0, |recorder| recorder.written_bytes());
        if last != (name.clone(), bytes) {
            println!("{name} {bytes}");
            last = (name, bytes);
        }
    }
}

/// What a writer reported of a segment before it was killed.
#[derive(Debug, Default)]
struct Reported {
    bytes: u64,
    closed: bool,
}

/// Runs a writer with this many records a turn, and kills it at a random moment.
fn killed(folder: &Path, records: u64, random: &mut Random) -> BTreeMap<String, Reported> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent_recorder::writer", "--ignored", "--nocapture"])
        .envs([
            ("VIPTRACE_TEST_STORE", folder.as_os_str()),
            ("VIPTRACE_TEST_RECORDS", records.to_string().as_ref()),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut segments: BTreeMap<String, Reported> = BTreeMap::new();
    let mut note = |line: String| {
        let mut words = line.rsplit(' ');
        let (Some(state), Some(name)) = (words.next(), words.next()) else { return };
        if !name.ends_with(".viptrace") {
            return;
        }
        let segment = segments.entry(name.to_owned()).or_default();
        match state {
            "closed" => segment.closed = true,
            bytes => segment.bytes = bytes.parse().unwrap(),
        }
    };
    lines.by_ref().take(4 + random.below(6) as usize).for_each(&mut note);
    let moment = Instant::now() + Duration::from_micros(random.below(60_000));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    lines.for_each(note);
    segments
}

/// Kills a writer at random moments and reads back every block that it had passed to the kernel.
fn kill(times: u64) {
    let seed = std::env::var("VIPTRACE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos().into();
    let mut random = Random(seed.unwrap_or_else(now));
    println!("VIPTRACE_TEST_SEED={}", random.0);
    let (mut blocks, mut closed) = (0, 0);
    for number in 0..times {
        let folder = tempfile::tempdir().unwrap();
        // A segment is one block, or several.
        let records = if number % 4 == 0 { 4000 } else { 300 };
        let mut segments = killed(folder.path(), records, &mut random);
        for path in files(folder.path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let reported = segments.remove(name).unwrap_or_default();
            let size = fs::metadata(&path).unwrap().len();
            assert!(size >= reported.bytes, "{name}: {size} bytes, {reported:?}");
            // The file of a segment that has no header yet is empty or cut off.
            let Ok(mut player) = Player::open(File::open(&path).unwrap(), Detail::Faults) else {
                assert!(reported.bytes == 0 && !reported.closed, "{name}: {reported:?}");
                continue;
            };
            let (_, end) = replayed(&mut player);
            for damage in player.damage().0 {
                assert_eq!(damage.kind, DamageKind::Truncated, "{name}");
                assert!(
                    damage.offset >= reported.bytes && !reported.closed,
                    "{name}: {damage:?}, {reported:?}"
                );
            }
            assert!(end.is_some() || !reported.closed, "{name} has no end");
            blocks += u64::from(reported.bytes > 4096);
            closed += u64::from(reported.closed);
        }
        assert!(segments.is_empty(), "segments are missing: {segments:?}");
    }
    println!("{times} kills: {blocks} open segments had blocks, {closed} segments were closed");
    assert!(blocks + closed >= times / 2 && closed > 0, "{blocks} blocks, {closed} segments");
}

#[test]
fn a_kill_loses_no_closed_block() {
    kill(25);
}

#[test]
#[ignore = "takes several minutes"]
fn a_thousand_kills_lose_no_closed_block() {
    kill(1000);
}
