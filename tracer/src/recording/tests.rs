//! Hostile recordings: intact frames with right checksums around contents that viptrace never writes.
use std::{io::Cursor, path::Path, sync::OnceLock};

use bytes::BufMut as _;
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    DamageKind, Header, Player, Step,
    frame::{FILE_MAGIC, Frame, FrameKind},
    item::{Item, MAX_BODY_BYTES, put_piece},
    records::Packer,
};
use crate::{session::Detail, time::Timestamp};

fn framed(kind: FrameKind, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let compressed = zstd::bulk::compress(payload, 1).unwrap();
    let frame = Frame::around(kind, sequence, &compressed, u32::try_from(payload.len()).unwrap());
    [frame.encode().as_slice(), &compressed].concat()
}

fn file(payloads: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = FILE_MAGIC.to_vec();
    bytes.extend(framed(FrameKind::Header, 0, &serde_json::to_vec(&header()).unwrap()));
    for (index, payload) in payloads.iter().enumerate() {
        bytes.extend(framed(FrameKind::Items, u32::try_from(index + 1).unwrap(), payload));
    }
    bytes
}

/// Offsets and records.
type Corpus = (Vec<(String, u32)>, Vec<Vec<u8>>);

fn corpus() -> &'static Corpus {
    static CORPUS: OnceLock<Corpus> = OnceLock::new();
    CORPUS.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/debian-6.12.records");
        let text = std::fs::read_to_string(path).unwrap();
        let (mut offsets, mut records) = (Vec::new(), Vec::new());
        for line in text.lines() {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["offset", name, bytes] => offsets.push(((*name).to_owned(), bytes.parse().unwrap())),
                ["record", hex] => {
                    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
                    records.push(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect());
                }
                _ => {}
            }
        }
        (offsets, records)
    })
}

fn header() -> Header {
    Header {
        format: super::FORMAT,
        record_layout: super::RECORD_LAYOUT,
        viptrace: "0".to_owned(),
        byte_order: super::BYTE_ORDER.to_owned(),
        kernel_release: String::new(),
        node_name: None,
        boot: None,
        node_netns: None,
        target: None,
        started: Timestamp::MIN,
        clock_offset_ns: 0,
        grace_ns: 0,
        grace_follows_node: false,
        limits: crate::flow::Limits::default(),
        hooks: Vec::new(),
        offsets: corpus().0.iter().cloned().collect(),
        drop_reasons: [].into(),
        reset_reasons: [].into(),
    }
}

/// A block of these records, with items that report all of them and times between.
fn payload(records: &[Vec<u8>], items: &[Item]) -> Vec<u8> {
    let mut packer = Packer::default();
    let mut body = Vec::new();
    for (index, record) in records.iter().enumerate() {
        assert!(packer.push(record));
        for item in [Some(&Item::Records(1)), items.get(index)].into_iter().flatten() {
            let (kind, bytes) = item.encode().unwrap();
            put_piece(&mut body, kind, &bytes, false);
        }
    }
    let mut payload = Vec::new();
    payload.put_u32_le(u32::try_from(body.len()).unwrap());
    payload.extend(body);
    packer.finish(&mut payload);
    payload
}

/// Plays to the end and returns the number of steps.
fn play(bytes: Vec<u8>) -> usize {
    let Ok(mut player) = Player::open(Cursor::new(bytes), Detail::Faults) else { return 0 };
    let mut steps = 0;
    while player.step().unwrap().is_some() {
        steps += 1;
    }
    while player.cut_off().is_some() {}
    steps
}

fn any_item() -> impl Strategy<Value = Item> {
    let times = prop_oneof![any::<u64>(), 16_000_000_000..30_000_000_000_u64, Just(0), Just(u64::MAX)];
    let time = times.prop_map(Timestamp::from_unix_ns);
    (0..5_u8, time.clone(), time, any::<u64>()).prop_map(|(kind, time, other, count)| match kind {
        0 => Item::Advance(time),
        1 => Item::Lost(super::item::Lost { count, from: time, to: other }),
        2 => Item::Prune(time),
        3 => Item::Finish(time),
        _ => Item::Dropped(super::Dropped { records: count, others: count, from: time, to: other }),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_times_and_counts_are_played(items in vec(any_item(), 0..40)) {
        play(file(&[payload(&corpus().1, &items)]));
    }

    #[test]
    fn changed_contents_never_panic(
        items in vec(any_item(), 0..40),
        places in vec((any::<Index>(), any::<u8>()), 1..10),
        cut in prop::option::of(any::<Index>()),
    ) {
        let mut spoilt = payload(&corpus().1, &items);
        for (at, byte) in places {
            let at = at.index(spoilt.len());
            spoilt[at] = byte;
        }
        if let Some(cut) = cut {
            spoilt.truncate(cut.index(spoilt.len()));
        }
        play(file(&[payload(&corpus().1, &[]), spoilt, payload(&corpus().1, &items)]));
    }

    #[test]
    fn changed_records_never_panic(
        places in vec((any::<Index>(), any::<Index>(), any::<u8>()), 1..40),
        items in vec(any_item(), 0..40),
    ) {
        let mut records = corpus().1.clone();
        for (which, at, byte) in places {
            let record = which.index(records.len());
            let at = at.index(records[record].len());
            records[record][at] = byte;
        }
        play(file(&[payload(&records, &items)]));
    }

    #[test]
    fn changed_json_never_panics(
        kind in 6..12_u8,
        text in "(\\{|\\}|\\[|\\]|\"|:|,|null|-?[0-9]{1,20}\
            |Service|key|versions|namespace|history|status|kinds|[a-z]{1,8}){0,30}",
    ) {
        let mut body = Vec::new();
        put_piece(&mut body, kind, text.as_bytes(), false);
        let mut payload = Vec::new();
        payload.put_u32_le(u32::try_from(body.len()).unwrap());
        payload.extend(body);
        Packer::default().finish(&mut payload);
        play(file(&[payload]));
    }
}

#[test]
fn a_huge_payload_is_refused_before_it_is_unpacked() {
    // The contents of this frame unpack to more than its header states.
    let bomb = zstd::bulk::compress(&vec![0; 15 << 20], 1).unwrap();
    let mut frame = Frame::around(FrameKind::Items, 1, &bomb, 100);
    let mut bytes = file(&[]);
    let at = bytes.len() as u64;
    bytes.extend(frame.encode());
    bytes.extend(&bomb);
    frame.sequence = 2;
    frame.payload_bytes = 15 << 20;
    bytes.extend(frame.encode());
    bytes.extend(&bomb);
    let mut player = Player::open(Cursor::new(bytes), Detail::All).unwrap();
    assert!(player.step().unwrap().is_none());
    let (damage, _) = player.damage();
    assert_eq!((damage[0].kind, damage[0].offset), (DamageKind::Contents, at));
    // Fifteen MiB of zeros are not items, either.
    assert_eq!(damage[1].kind, DamageKind::Contents);
}

#[test]
fn an_item_that_never_ends_is_given_up() {
    let piece = vec![b' '; 1 << 20];
    let blocks = MAX_BODY_BYTES / piece.len() + 2;
    let mut body = Vec::new();
    put_piece(&mut body, 6, &piece, true);
    let mut payload = Vec::new();
    payload.put_u32_le(u32::try_from(body.len()).unwrap());
    payload.extend(body);
    Packer::default().finish(&mut payload);
    let mut player = Player::open(Cursor::new(file(&vec![payload; blocks])), Detail::All).unwrap();
    while let Some(step) = player.step().unwrap() {
        assert!(!matches!(step, Step::Ended(_)));
    }
    assert_eq!(player.missing().items, 1);
    assert!(player.missing().first_unreadable.as_ref().unwrap().contains("longer than"));
}

#[test]
fn overlapping_frames_are_read_in_bounded_time() {
    // Each frame claims all following bytes: reading again from each would take quadratic time.
    let mut bytes = file(&[]);
    for sequence in 0..20_000 {
        let frame = Frame {
            kind: FrameKind::Items,
            sequence,
            compressed_bytes: 1 << 20,
            payload_bytes: 100,
            checksum: 1,
        };
        bytes.extend(frame.encode());
    }
    bytes.extend(vec![0; 2 << 20]);
    let begun = std::time::Instant::now();
    assert_eq!(play(bytes), 0);
    assert!(begun.elapsed() < std::time::Duration::from_mins(1));
}
