//! The flight recorder: bounds, failures of the disk, and a writer that is killed.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use viptrace::{
    agent::{FlightRecorder, config::Config},
    kernel::decode::Decoder,
    recording::{DamageKind, Header, Player, Recorded, Records},
    session::{Detail, Pipeline},
    time::Timestamp,
};

use crate::recording_support::{Corpus, Random, Traffic, cluster, corpus, header, replayed};

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
}

impl Writer {
    fn new(folder: &Path, yaml: &str) -> Self {
        Self::of(&corpus("debian-6.12"), folder, yaml)
    }

    fn of(corpus: &Corpus, folder: &Path, yaml: &str) -> Self {
        let text = format!("version: 1\nrecorder: {{folder: '{}', {yaml}}}\n", folder.display());
        let header = header(corpus);
        let mut recorded = Recorded::new(Pipeline::new(header.settings(Detail::Faults), cluster()));
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
        }
    }

    /// A turn after this time.
    fn turn(&mut self, time: Duration) {
        self.passed += time;
        self.now = self.now.saturating_add(time);
        self.recorded.advance(self.now);
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

    fn end(mut self) {
        let end = viptrace::recording::End { ended: self.now, gaps: Vec::new() };
        self.recorder.finish(&mut self.recorded, end);
    }

    /// Turns, without time, until the figures are so: a thread closes segments.
    fn until(&mut self, so: impl Fn(&viptrace::agent::RecorderFigures) -> bool) {
        let begun = Instant::now();
        while !so(self.recorder.figures()) {
            assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", self.recorder.figures());
            self.turn(Duration::ZERO);
            std::thread::yield_now();
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn segments_close_by_age_and_each_replays() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(folder.path(), "segment_age: 10s");
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus("debian-6.12"), 3, 200.0).take(3000).collect();
    for batch in traffic.chunks(1000) {
        writer.turn(Duration::from_secs(11));
        writer.observe(batch);
    }
    writer.turn(Duration::from_secs(9));
    writer.end();
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

#[test]
fn the_oldest_segments_are_deleted_first_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=6 {
        let mut file = File::create(folder.path().join(format!("{number:08}-2026.viptrace"))).unwrap();
        file.write_all(&vec![0; 1 << 20]).unwrap();
    }
    let old = File::options().write(true).open(folder.path().join("00000004-2026.viptrace")).unwrap();
    old.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    for name in ["incident.viptrace", "00000001.viptrace", "1-x.viptrace", "00000001-x"] {
        File::create(folder.path().join(name)).unwrap();
    }
    let mut writer = Writer::new(folder.path(), "max_bytes: 5M, segment_bytes: 1M, max_age: 1h");
    writer.turn(Duration::ZERO);
    assert_eq!(writer.recorder.figures().deleted, 3, "{:?}", writer.notices);
    writer.end();
    let names: Vec<String> = files(folder.path())
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let segments: Vec<&str> =
        names.iter().filter(|name| name.contains("-2026")).map(|name| &name[..8]).collect();
    assert_eq!(segments, ["00000003", "00000005", "00000006", "00000007"]);
    assert_eq!(names.len(), 4 + 4);
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
    assert_eq!(writer.recorder.figures().dropped_events, 100);
    writer.end();
    assert_eq!(files(&store).len(), 1);
}

/// The limit of the size of a process's files (`RLIMIT_FSIZE`) stands in for a full disk.
#[test]
fn a_segment_that_cannot_be_continued_ends_with_its_last_block() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let script =
        "ulimit -f \"$LIMIT\"; trap '' XFSZ; exec \"$0\" --exact agent_recorder::full_disk --ignored";
    let output = Command::new("bash")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .envs([("VIPTRACE_TEST_STORE", store.to_str().unwrap()), ("LIMIT", "300")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs in a process whose files cannot grow beyond 300 KiB.
#[test]
#[ignore = "a part of a_segment_that_cannot_be_continued_ends_with_its_last_block, in a process of its own"]
fn full_disk() {
    let store = PathBuf::from(std::env::var_os("VIPTRACE_TEST_STORE").unwrap());
    let mut writer = Writer::new(&store, "");
    let mut observed = 0;
    let mut traffic = Traffic::new(&corpus("debian-6.12"), 3, 2000.0);
    writer.turn(Duration::ZERO);
    while writer.recorder.figures().failures == 0 {
        let batch: Vec<Vec<u8>> = traffic.by_ref().take(4000).collect();
        observed += batch.len() as u64;
        writer.observe(&batch);
        writer.turn(Duration::from_millis(10));
        assert!(observed < 4_000_000, "the limit has no effect");
    }
    assert!(writer.notices[0].contains("the segment ends at"), "{:?}", writer.notices);
    let path = files(&store).remove(0);
    let mut player = Player::open(File::open(&path).unwrap(), Detail::All).unwrap();
    replayed(&mut player);
    assert_eq!(player.damage().1, 0, "the partial block was cut off");
    let stored = player.pipeline().counters().sightings;
    assert!(stored > 0);
    writer.until(|figures| figures.dropped_events >= observed - stored);
    assert_eq!(stored + writer.recorder.figures().dropped_events, observed);
    // The next segment is begun after the pause.
    writer.turn(Duration::from_secs(6));
    assert_eq!(writer.recorder.figures().up, Some(true), "{:?}", writer.notices);
}

/// Writes segments until it is killed. Prints the bytes of each segment that it has passed to the kernel.
#[test]
#[ignore = "a part of the tests that kill a writer, in a process of its own"]
fn writer() {
    let folder = PathBuf::from(std::env::var_os("VIPTRACE_TEST_STORE").unwrap());
    let corpus = corpus("debian-6.12");
    let mut writer = Writer::of(&corpus, &folder, "segment_bytes: 1M, max_bytes: 8M");
    let mut traffic = Records::default();
    for record in Traffic::new(&corpus, 3, 200.0).take(4000) {
        assert!(traffic.push(&record));
    }
    let mut last = (String::new(), 0);
    loop {
        // The pipeline is not the subject: the records go to the file only.
        while writer.recorded.recorder().is_some_and(|recorder| recorder.backlog_bytes() > 1 << 20) {
            std::thread::yield_now();
        }
        writer.recorded.observe([], &mut traffic.clone());
        writer.turn(Duration::from_millis(20));
        let Some(name) = writer.recorder.figures().open.clone() else { continue };
        let bytes = writer.recorded.recorder().map_or(0, |recorder| recorder.written_bytes());
        if last != (name.clone(), bytes) {
            println!("{name} {bytes}");
            last = (name, bytes);
        }
    }
}

/// Kills a writer at random moments and reads back every block that it had passed to the kernel.
fn kill(times: u64) {
    let mut random = Random(7);
    let mut blocks = 0;
    for _ in 0..times {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "agent_recorder::writer", "--ignored", "--nocapture"])
            .env("VIPTRACE_TEST_STORE", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut reported: Vec<(String, u64)> = Vec::new();
        let mut note = |line: String| {
            if let Some((name, bytes)) = line.split_once(' ')
                && let Ok(bytes) = bytes.parse()
            {
                reported.push((name.rsplit(' ').next().unwrap().to_owned(), bytes));
            }
        };
        for line in lines.by_ref().take(4 + random.below(12) as usize) {
            note(line);
        }
        let delay = Duration::from_micros(random.below(30_000));
        let begun = Instant::now();
        while begun.elapsed() < delay {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(note);
        for path in files(folder.path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let written = reported.iter().rev().find(|(of, _)| of == name).map_or(0, |(_, bytes)| *bytes);
            let size = fs::metadata(&path).unwrap().len();
            assert!(size >= written, "{name}: {size} of {written} bytes");
            // The file of a segment that has no header yet is empty or cut off.
            let Ok(mut player) = Player::open(File::open(&path).unwrap(), Detail::Faults) else {
                assert_eq!(written, 0, "{name}");
                continue;
            };
            while player.step().unwrap().is_some() {}
            for damage in player.damage().0 {
                assert_eq!(damage.kind, DamageKind::Truncated, "{name}");
                assert!(damage.offset >= written, "{name}: {damage:?}, {written} bytes were written");
            }
            blocks += u64::from(written > 4096);
        }
    }
    assert!(blocks >= times / 2, "{blocks} segments had blocks");
}

#[test]
fn a_kill_loses_no_closed_block() {
    kill(30);
}

#[test]
#[ignore = "takes several minutes"]
fn a_thousand_kills_lose_no_closed_block() {
    kill(1000);
}
