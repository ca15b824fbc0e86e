//! A folder of recordings and segments, some of them damaged, as one incident: which files are one trace, their clocks, the
//! story, and the counts of events.
//!
//! The input is a sequence of `u8 kind, u24 length (little-endian), bytes`. By kind:
//!
//! | kind | piece |
//! |---|---|
//! | 0 | a file: its pieces, see `pieces` |
//! | 1 | a file: its bytes |
//! | 2 | damage to the last file: a u32 offset, taken modulo its length, and the bytes that are written there |
//! | 3 | cuts the last file off at a u32 offset, taken modulo its length |
#![no_main]

mod corpus;
mod pieces;

use std::{cell::RefCell, fs, io::Cursor};

use libfuzzer_sys::fuzz_target;
use viptrace::{
    incident::{Beside, Story, Timeline},
    recording::{EventCounter, EventCounts, Sightings},
    report::{Paint, story},
    session::Ending,
    time::Timestamp,
};

const MAX_FILES: usize = 4;

thread_local! {
    static FOLDER: RefCell<tempfile::TempDir> = RefCell::new(tempfile::tempdir().unwrap());
}

fuzz_target!(|input: &[u8]| {
    let files = files(input);
    for file in &files {
        count(file);
    }
    FOLDER.with_borrow(|folder| {
        let folder = folder.path();
        for number in 0..MAX_FILES {
            let path = folder.join(format!("{number}.viptrace"));
            match files.get(number) {
                Some(file) => fs::write(path, file).unwrap(),
                // It was there for an earlier input.
                None => drop(fs::remove_file(path)),
            }
        }
        if let Ok(timeline) = Timeline::open(&[folder.to_owned()]) {
            assert!(timeline.tracks().len() + timeline.skipped.len() <= files.len());
            play(timeline);
        }
    });
});

fn files(input: &[u8]) -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> = Vec::new();
    pieces::for_each(input, |kind, piece| {
        let has_room = files.len() < MAX_FILES;
        match (kind % 4, files.last_mut()) {
            (0, _) if has_room => files.push(pieces::file(piece)),
            (1, _) if has_room => files.push(piece.to_vec()),
            (2, Some(last)) if !last.is_empty() => {
                let Some((offset, damage)) = piece.split_first_chunk::<4>() else { return };
                let offset = u32::from_le_bytes(*offset) as usize % last.len();
                last.iter_mut().skip(offset).zip(damage).for_each(|(byte, damage)| *byte = *damage);
            }
            (3, Some(last)) if !last.is_empty() => {
                let Some(offset) = piece.first_chunk::<4>() else { return };
                last.truncate(u32::from_le_bytes(*offset) as usize % last.len());
            }
            _ => {}
        }
    });
    files
}

/// Counts the events, which are at least the sightings.
fn count(file: &[u8]) {
    let mut counter = EventCounter::new(Timestamp::MIN, Timestamp::MAX);
    let mut counts = EventCounts::default();
    let counted = counter.count(Cursor::new(file), &mut counts).is_ok();
    counter.finish(&mut counts);
    let Ok(mut sightings) = Sightings::open(Cursor::new(file)) else {
        assert!(!counted);
        return;
    };
    while let Ok(Some(_)) = sightings.next_sighting() {}
}

fn play(mut timeline: Timeline) {
    let mut story = Story::with_records();
    while let Ok(Some(moment)) = timeline.step() {
        let Some(player) = timeline.tracks()[moment.track].tape().player() else { continue };
        let beside = Beside { pipeline: player.pipeline(), timeline: &timeline, track: moment.track };
        moment.judgements.judged.iter().for_each(|judged| story.add(judged, beside));
        moment.judgements.folded.iter().for_each(|folded| story.add_folded(folded));
    }
    let mut endings = Vec::new();
    for (track, one) in timeline.tracks().iter().enumerate() {
        let Some(player) = one.tape().player() else { continue };
        let pipeline = player.pipeline();
        story.note_changes(Beside { pipeline, timeline: &timeline, track });
        let ending = Ending::new(pipeline, one.header().started, one.tape().now(), Vec::new());
        endings.push((one.name().to_owned(), ending));
    }
    let nodes: Vec<String> = endings.iter().map(|(name, _)| name.clone()).collect();
    let text = story::render(&story, &nodes, &Ending::of_nodes(endings), Paint(false));
    assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
}
