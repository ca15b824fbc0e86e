//! Recordings replayed as an incident: a part of a long one.

use std::path::Path;

use viptrace::{
    incident::Timeline,
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
    let before = |minutes| end.saturating_sub(std::time::Duration::from_mins(minutes));
    let (all, observed) = replayed(&path, None, before(5));
    let (late, observed_late) = replayed(&path, Some(before(10)), before(5));
    assert!(observed >= 60_000 && observed_late * 2 < observed, "{observed_late} of {observed} sightings");
    assert!(all.len() > 100, "{}", all.len());
    assert_eq!(all, late);
    let timeline = Timeline::open(&[path]).unwrap();
    assert!(end.since(timeline.last_time()) < std::time::Duration::from_secs(30), "{}", timeline.last_time());
}
