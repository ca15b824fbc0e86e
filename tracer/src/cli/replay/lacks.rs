//! What is missing from recordings, in words.

use std::{fs::File, path::Path};

use crate::{
    recording::{Damage, DamageKind, Player, Tape, UnusableFile},
    text::{count, safe},
    time::Timestamp,
};

/// The maximum number of damaged parts named; the others are counted.
const NAMED: usize = 5;

/// The missing parts of a trace's files, in words. `is_whole`: it reaches to the end of the wanted time, also without its own
/// end.
pub(in crate::cli) fn missing(tape: &Tape, is_whole: bool) -> Vec<String> {
    let mut lacks: Vec<_> = tape.skipped().iter().map(|file| safe(&file.to_string()).into_owned()).collect();
    let Some(player) = tape.player() else { return lacks };
    let (damages, found) = tape.damage();
    for (path, damage) in damages.iter().take(NAMED) {
        lacks.push(format!("{}{}", of_file(path), damage_text(damage)));
    }
    if let Some(more) = found.checked_sub(NAMED as u64).filter(|more| *more > 0) {
        lacks.push(count(more, "more damaged part"));
    }
    let uncovered = tape.uncovered();
    for (from, to) in uncovered.iter().take(NAMED) {
        let (from, to) = (from.to_the_millisecond(), to.to_the_millisecond());
        lacks.push(format!("no file covers the time from {from} to {to}"));
    }
    if let Some(more) = uncovered.len().checked_sub(NAMED).filter(|more| *more > 0) {
        lacks.push(count(more as u64, "more uncovered time"));
    }
    let only = tape.paths().first().filter(|_| tape.files() == 1);
    let place = only.map_or_else(String::new, |path| of_file(path));
    lacks.extend(others(player).into_iter().map(|lack| place.clone() + &lack));
    if is_cut(tape, is_whole) {
        let place = tape.paths().last().map_or_else(String::new, |path| of_file(path));
        lacks.push(place + &cut_off(player.pipeline().unix_then(player.now())));
    }
    lacks
}

/// Before the words about a file.
fn of_file(path: &Path) -> String {
    safe(&format!("{}: ", path.display())).into_owned()
}

/// Whether its end is missing.
fn is_cut(tape: &Tape, is_whole: bool) -> bool {
    tape.end().is_none() && !is_whole
}

/// What to do about a trace's damaged files, and about a missing end.
pub(super) fn remedy(tape: &Tape, is_whole: bool) -> Option<&'static str> {
    let (_, damaged) = tape.damage();
    (tape.player().is_some() && (damaged > 0 || is_cut(tape, is_whole))).then_some(COPY_AGAIN)
}

/// The remedy for files that are not whole.
pub(super) const COPY_AGAIN: &str = "hint: a damaged file, or one that ends early, may be an incomplete copy: compare its size with the \
                                     original's, and copy it again; a trace that was killed has no end";

/// The damaged parts of a file, of which there are `all`.
pub(super) fn damaged_parts(first: &[Damage], all: u64) -> Vec<String> {
    let mut parts: Vec<_> = first.iter().take(NAMED).map(damage_text).collect();
    if let Some(more) = all.checked_sub(NAMED as u64).filter(|more| *more > 0) {
        parts.push(count(more, "more damaged part"));
    }
    parts
}

/// The files that could not be used, and the number of further ones.
pub(in crate::cli) fn unusable(skipped: &[UnusableFile], more: u64) -> Vec<String> {
    let mut files: Vec<_> = skipped.iter().map(|file| safe(&file.to_string()).into_owned()).collect();
    if more > 0 {
        files.push(format!("{} could not be replayed", count(more, "more file")));
    }
    files
}

/// What is missing beside damaged parts.
fn others(player: &Player<File>) -> Vec<String> {
    let mut lacks = Vec::new();
    let missing = player.missing();
    if missing.beginning {
        lacks.push("the cluster's objects from before it began are missing".to_owned());
    }
    if missing.items > 0 {
        let why = missing.first_unreadable.as_deref().unwrap_or_default();
        lacks.push(format!("{} could not be read: {}", count(missing.items, "item"), safe(why)));
    }
    if missing.undecodable > 0 {
        lacks.push(format!("{} could not be decoded", count(missing.undecodable, "event")));
    }
    if missing.in_original > 0 {
        let were = if missing.in_original == 1 { "was" } else { "were" };
        lacks.push(format!(
            "{} {were} already missing or damaged in the recording of which this is a copy",
            count(missing.in_original, "part")
        ));
    }
    let dropped = missing.dropped;
    if dropped.records > 0 || dropped.others > 0 {
        lacks.push(format!(
            "{} and {} from {} to {} could not be recorded: the disk was too slow",
            count(dropped.records, "event"),
            count(dropped.others, "other item"),
            dropped.from.to_the_millisecond(),
            dropped.to.to_the_millisecond()
        ));
    }
    lacks
}

/// A recording without its end.
pub(super) fn cut_off(at: Timestamp) -> String {
    format!("it was cut off at {}", at.to_the_millisecond())
}

fn damage_text(damage: &Damage) -> String {
    let Damage { kind, offset, skipped, blocks } = damage;
    let (what, skipped) = (kind.as_str(), count(*skipped, "byte"));
    match (kind, blocks) {
        (DamageKind::Truncated, _) => format!("at byte {offset}: {what} (the file has {skipped} of it)"),
        (_, 0) => format!("at byte {offset}: {what} ({skipped} skipped)"),
        (_, blocks) => {
            format!("at byte {offset}: {what} ({skipped} skipped, {} lost)", count(*blocks, "block"))
        }
    }
}
