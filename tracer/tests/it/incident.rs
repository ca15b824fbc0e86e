//! Recordings replayed as an incident: a part of a long one, and two of one node.

use std::{path::Path, time::Duration};

use viptrace::{
    incident::Timeline,
    recording::Header,
    session::{Detail, Judgements},
    time::Timestamp,
};

use crate::recording_support::{Live, Traffic, corpus, header};

/// A recording of some 40 minutes. Returns the time of its end.
fn long_recording(path: &Path) -> Timestamp {
    let corpus = corpus("debian-6.12");
    let mut live = Live::new(&header(&corpus), Detail::All, path);
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus, 3, 5.0).take(60_000).collect();
    for batch in traffic.chunks(50) {
        live.turn(batch.iter().map(Vec::as_slice));
        live.catch_up();
    }
    let end = live.now;
    live.end();
    end
}

/// The flows that began since `from`, a line each, and the number of sightings that were observed.
fn replayed(path: &Path, skip_until: Option<Timestamp>, from: Timestamp) -> (Vec<String>, u64) {
    let mut timeline = Timeline::open(&[path.to_owned()]).unwrap();
    if let Some(time) = skip_until {
        timeline.skip_until(time);
    }
    let mut lines = Vec::new();
    while let Some(moment) = timeline.step().unwrap() {
        let Judgements { judged, .. } = moment.judgements;
        let recent = judged.iter().filter(|judged| judged.verdict.flow.started >= from);
        lines.extend(recent.map(|judged| serde_json::to_string(&judged.verdict).unwrap()));
    }
    let sightings = timeline.tracks()[0].tape().player().unwrap().pipeline().counters().sightings;
    (lines, sightings)
}

#[test]
fn the_last_minutes_of_a_recording_are_judged_without_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.viptrace");
    let end = long_recording(&path);
    let before = |minutes| end.saturating_sub(Duration::from_mins(minutes));
    let (all, observed) = replayed(&path, None, before(5));
    let (late, observed_late) = replayed(&path, Some(before(10)), before(5));
    assert!(observed >= 60_000 && observed_late * 2 < observed, "{observed_late} of {observed} sightings");
    assert!(all.len() > 100, "{}", all.len());
    assert_eq!(all, late);
    let timeline = Timeline::open(&[path]).unwrap();
    assert!(end.since(timeline.last_time()) < Duration::from_secs(30), "{}", timeline.last_time());
}

/// A recording of two seconds on a node since this boot. The clock's distance from Unix time was measured with this error.
fn recording_since(boot: &str, path: &Path, error_ns: u64, skipped: usize) {
    let corpus = corpus("debian-6.12");
    let mut header = Header { boot: Some(boot.into()), ..header(&corpus) };
    header.clock_offset_ns += error_ns;
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus, 3, 50.0).skip(skipped).take(1_000).collect();
    let mut live = Live::new(&header, Detail::All, path);
    for batch in traffic.chunks(50) {
        live.turn(batch.iter().map(Vec::as_slice));
    }
    live.end();
}

/// As of a trace beside an agent.
#[test]
fn two_recordings_of_the_same_flows_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one", "two", "other"].map(|name| folder.path().join(name).with_extension("viptrace"));
    recording_since("first", &paths[0], 0, 0);
    recording_since("first", &paths[1], 1_000, 100);
    recording_since("second", &paths[2], 0, 0);
    let overlapping = |paths: &[&Path]| {
        let paths: Vec<_> = paths.iter().map(|path| path.to_path_buf()).collect();
        Timeline::open(&paths).unwrap().overlapping().len()
    };
    assert_eq!(overlapping(&[&paths[0], &paths[1]]), 1);
    assert_eq!(overlapping(&[&paths[0], &paths[2]]), 0);
}
