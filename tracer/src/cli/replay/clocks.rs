//! What is known about the distances of the nodes' clocks, in words.

use std::time::Duration;

use crate::{
    incident::{Timeline, Track, clock::Compared},
    text::{count, length, measured, safe},
};

/// How far a trace's clock is from the common one, as the flows that both observed show it.
pub(super) fn clock_note(timeline: &Timeline, index: usize) -> Option<String> {
    let (track, reference) = (timeline.tracks().get(index)?, timeline.reference()?);
    let Compared::Known(distance) = timeline.compared(index)? else { return None };
    let ahead_ns = distance.ahead_ns(track.header().started);
    let direction = if ahead_ns < 0 { "behind" } else { "ahead of" };
    let drift = match distance.drift_ppm() {
        Some((ppm, within)) => format!("it drifts by {ppm:.1} ppm (±{within:.1})"),
        None => "these do not show whether it drifts".to_owned(),
    };
    let contrary = match distance.contrary {
        0 => String::new(),
        contrary => format!("; {} that contradict them", count(contrary, "other flow")),
    };
    Some(format!(
        "the clock of {} is {} {direction} that of {} (±{}), by {} that both observed{contrary}; {drift}; times are \
         those of {}",
        safe(track.name()),
        apart(ahead_ns),
        safe(reference.name()),
        measured(Duration::from_nanos(distance.within_ns())),
        count(distance.flows, "flow"),
        safe(reference.name()),
    ))
}

/// A distance of clocks, which is known to less than a second.
fn apart(ns: i64) -> String {
    let ns = ns.unsigned_abs();
    match ns / 1_000_000_000 {
        0 => measured(Duration::from_nanos(ns)),
        1..1000 => format!("{:.3} s", Duration::from_nanos(ns).as_secs_f64()),
        secs => length(Duration::from_secs(secs)).to_string(),
    }
}

/// A warning for each trace whose clock could not be compared.
pub(super) fn unaligned(timeline: &Timeline) -> Vec<String> {
    let Some(reference) = timeline.reference() else { return Vec::new() };
    let warning = |(index, track): (usize, &Track)| {
        let why = match timeline.compared(index)? {
            Compared::Known(_) => return None,
            Compared::NoFlow => "no flow was observed by both",
            Compared::OneWay => "the flows that both observed went one way only, without an answer",
            Compared::Contrary => "the flows that both seem to have observed contradict each other",
        };
        Some(format!(
            "the clock of {} cannot be compared with that of {}: {why}; its times are taken as they are",
            with_files(track),
            with_files(reference)
        ))
    };
    timeline.tracks().iter().enumerate().filter_map(warning).collect()
}

/// The name of a trace with its only file, or the first of its files.
pub(super) fn with_files(track: &Track) -> String {
    let tape = track.tape();
    let first = tape.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
    let files = match tape.files() {
        0 | 1 => first,
        files => format!("{}, the first is {first}", count(files as u64, "file")),
    };
    safe(&format!("{} ({files})", track.name())).into_owned()
}
