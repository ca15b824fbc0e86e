//! The files of one trace in any order, with parts of them damaged or missing: every whole block is played, and what is
//! missing is named.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    num::NonZeroU8,
    ops::Range,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::recording::{
    Addresses, CLOSE_LIMIT, Recorder, create,
    frame::{FRAME_HEADER_BYTES, Frame, FrameKind},
    records::{Records, unpack},
    tests::copy,
};

const RECORDING: &str = "debian-6.12-c6-stale-endpoint-answers.viptrace";
/// So that each segment has several blocks.
const BLOCK_RECORDS: usize = 16;
const SEGMENT: Duration = Duration::from_secs(3);

#[test]
fn unusable_files_are_counted_and_parts_are_none() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..MAX_NAMED + 6 {
        fs::write(folder.path().join(format!("{number}.viptrace")), FILE_MAGIC).unwrap();
    }
    fs::write(folder.path().join(format!("1.viptrace.{PART}")), FILE_MAGIC).unwrap();
    let found = Tapes::find(&[folder.path().to_owned()], Detail::All).unwrap();
    assert_eq!((found.skipped.len(), found.skipped_more, found.others), (MAX_NAMED, 6, 1));
    assert!(found.tapes.is_empty());
}

/// One file of a trace.
struct Segment {
    bytes: Vec<u8>,
    frames: Vec<WholeFrame>,
}

struct WholeFrame {
    kind: FrameKind,
    place: Range<usize>,
    records: u64,
}

/// One trace in several files, as the flight recorder writes it.
fn segments() -> &'static [Segment] {
    static SEGMENTS: OnceLock<Vec<Segment>> = OnceLock::new();
    SEGMENTS.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/recordings").join(RECORDING);
        let mut player = Player::open(File::open(path).unwrap(), Detail::All).unwrap();
        let addresses = Addresses::from_unix_secs(1);
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut until = Timestamp::MIN;
        while player.step().unwrap().is_some() {
            let now = player.now();
            if player.has_started() && now >= until {
                if let Some(before) = player.recorded().take_recorder() {
                    assert_eq!(
                        before.finish(End { ended: now, gaps: Vec::new() }, CLOSE_LIMIT).failure,
                        None
                    );
                }
                let path = folder.path().join(paths.len().to_string());
                let header = Header { started: now, ..player.header().clone() };
                let file = create(&path, false).unwrap();
                player.recorded().begin(Recorder::begin(&path, file, &header, addresses.clone()).unwrap());
                paths.push(path);
                until = now.saturating_add(SEGMENT);
            }
        }
        let now = player.now();
        assert!(player.recorded().end(End { ended: now, gaps: Vec::new() }, CLOSE_LIMIT).is_some());
        let segments: Vec<_> = paths
            .iter()
            .map(|path| {
                let small = path.with_extension("small");
                copy(File::open(path).unwrap(), &small, BLOCK_RECORDS);
                Segment::new(fs::read(small).unwrap())
            })
            .collect();
        assert!(segments.len() >= 3 && segments.iter().any(|segment| segment.frames.len() > 4));
        segments
    })
}

impl Segment {
    fn new(bytes: Vec<u8>) -> Self {
        let (mut frames, mut at) = (Vec::new(), FILE_MAGIC.len());
        while let Some(frame) = Frame::decode(&bytes[at..]) {
            let place = at..at + FRAME_HEADER_BYTES + frame.compressed_bytes as usize;
            let compressed = &bytes[at + FRAME_HEADER_BYTES..place.end];
            let payload = zstd::bulk::decompress(compressed, frame.payload_bytes as usize).unwrap();
            let mut records = Records::default();
            if frame.kind == FrameKind::Items {
                let items = u32::from_le_bytes(*payload.first_chunk().unwrap()) as usize;
                unpack(&payload[4 + items..], &mut records).unwrap();
            }
            at = place.end;
            frames.push(WholeFrame { kind: frame.kind, place, records: records.len() as u64 });
        }
        assert_eq!(at, bytes.len());
        Self { bytes, frames }
    }

    fn records(&self) -> u64 {
        self.frames.iter().map(|frame| frame.records).sum()
    }
}

/// The damage to a segment.
#[derive(Clone, Debug)]
enum Harm {
    None,
    Gone,
    /// Another file has the same contents.
    Copied,
    CutAt(Index),
    /// Bytes are changed by exclusive or.
    Changed(Vec<(Index, NonZeroU8)>),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        3 => Just(Harm::None),
        1 => Just(Harm::Gone),
        1 => Just(Harm::Copied),
        2 => any::<Index>().prop_map(Harm::CutAt),
        3 => vec((any::<Index>(), any::<NonZeroU8>()), 1..4).prop_map(Harm::Changed),
    ]
}

/// What a harmed segment still has.
struct Left {
    bytes: Vec<u8>,
    /// Whether its header is whole.
    is_usable: bool,
    /// The records of its whole blocks.
    records: u64,
    /// A part of it is not whole.
    is_damaged: bool,
}

fn harmed(segment: &Segment, harm: &Harm) -> Left {
    let mut bytes = segment.bytes.clone();
    match harm {
        Harm::None | Harm::Gone | Harm::Copied => {}
        Harm::CutAt(at) => bytes.truncate(at.index(bytes.len())),
        Harm::Changed(places) => {
            for (at, change) in places {
                let at = at.index(bytes.len());
                bytes[at] ^= change.get();
            }
        }
    }
    let is_whole =
        |frame: &&WholeFrame| bytes.get(frame.place.clone()) == segment.bytes.get(frame.place.clone());
    let whole: Vec<_> = segment.frames.iter().filter(is_whole).collect();
    // A cut between two blocks leaves whole blocks only.
    let end = segment.frames.iter().map(|frame| frame.place.end).find(|end| *end == bytes.len());
    let is_damaged = bytes.get(..FILE_MAGIC.len()) != segment.bytes.get(..FILE_MAGIC.len())
        || end.is_none_or(|end| whole.last().is_none_or(|last| last.place.end < end))
        || segment.frames.iter().take(whole.len()).zip(&whole).any(|(one, other)| one.place != other.place);
    Left {
        is_usable: whole.iter().any(|frame| frame.kind == FrameKind::Header),
        records: whole.iter().map(|frame| frame.records).sum(),
        is_damaged,
        bytes,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_whole_block_is_played_and_what_is_missing_is_named(
        harms in vec(harm(), segments().len()),
        order in vec(any::<u64>(), segments().len() * 2),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        let (mut records, mut unusable, mut damaged) = (0, BTreeSet::new(), BTreeSet::new());
        let mut copies = 0;
        for (number, (segment, harm)) in segments().iter().zip(&harms).enumerate() {
            if matches!(harm, Harm::Gone) {
                continue;
            }
            let path = folder.path().join(number.to_string());
            let left = harmed(segment, harm);
            fs::write(&path, &left.bytes).unwrap();
            if matches!(harm, Harm::Copied) {
                copies += 1;
                let copy = path.with_extension("copy");
                fs::write(&copy, &left.bytes).unwrap();
                files.push(copy);
            }
            if left.is_usable {
                records += left.records;
                if left.is_damaged {
                    damaged.insert(path.clone());
                }
            } else {
                unusable.insert(path.clone());
            }
            files.push(path);
        }
        // In any order.
        let mut keyed: Vec<_> = order.into_iter().zip(files).collect();
        keyed.sort_by_key(|(key, _)| *key);
        let files: Vec<_> = keyed.into_iter().map(|(_, path)| path).collect();

        let mut found = Tapes::find(&files, Detail::Faults).unwrap();
        let skipped: BTreeSet<_> = found.skipped.iter().map(|file| file.path.clone()).collect();
        prop_assert!(skipped.is_superset(&unusable));
        prop_assert_eq!(skipped.len(), unusable.len());
        prop_assert_eq!(found.copies.len(), copies);
        prop_assert!(found.tapes.len() <= 1);
        let Some(mut tape) = found.tapes.pop() else {
            prop_assert_eq!(records, 0);
            return Ok(());
        };
        while tape.step().unwrap().is_some() {}
        let played = tape.player().unwrap().pipeline().counters().sightings;
        prop_assert_eq!(played, records);
        let (parts, _) = tape.damage();
        let named: BTreeSet<_> = parts.iter().map(|(path, _)| path.with_extension("")).collect();
        prop_assert_eq!(&named, &damaged);

        // Segments between two whole ones.
        let whole = |number: usize| matches!(harms[number], Harm::None | Harm::Copied);
        let mut gaps = 0;
        let mut before = None;
        for number in (0..harms.len()).filter(|number| whole(*number)) {
            if before.is_some_and(|before| before + 1 < number) {
                gaps += 1;
            }
            before = Some(number);
        }
        let is_only_gone = harms.iter().all(|harm| matches!(harm, Harm::None | Harm::Copied | Harm::Gone));
        if is_only_gone {
            prop_assert_eq!(tape.uncovered().len(), gaps);
        }
        let lost = segments().iter().map(Segment::records).sum::<u64>() - records;
        let is_end_there = whole(harms.len() - 1) && tape.end().is_some();
        prop_assert!(
            lost == 0 || !named.is_empty() || !skipped.is_empty() || !tape.uncovered().is_empty()
                || !is_end_there || matches!(harms[0], Harm::Gone | Harm::CutAt(_)),
            "{} records are missing, and nothing says so", lost
        );
    }
}
