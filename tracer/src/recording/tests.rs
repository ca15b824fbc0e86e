//! Hostile recordings: intact frames with right checksums around contents that viptrace never writes. And private ones:
//! what is never written.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Cursor, Read, Seek},
    path::Path,
    sync::{Arc, OnceLock},
};

use bytes::BufMut as _;
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    Addresses, CLOSE_LIMIT, DamageKind, End, Header, Player, Recorder, Records, Step, create,
    frame::{FILE_MAGIC, Frame, FrameKind},
    item::{Assembler, Item, MAX_BODY_BYTES, put_piece},
    reader::{Block, Reader},
    records::Packer,
    writer::Blocks,
};
use crate::{
    flow::Lost,
    kernel::decode::{Decoder, Mask},
    session::Detail,
    time::Timestamp,
};

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
        let text = fs::read_to_string(path).unwrap();
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
        hook_set: None,
    }
}

/// A block of these records, with items that report all of them and times between.
fn payload(records: &[Vec<u8>], items: &[Item]) -> Vec<u8> {
    let mut packer = Packer::default();
    let mut body = Vec::new();
    for (index, record) in records.iter().enumerate() {
        assert!(packer.push(record));
        for item in [Some(&Item::Records(1, None)), items.get(index)].into_iter().flatten() {
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
        1 => Item::Lost(Lost::of_unknown_hook(count, time, other)),
        2 => Item::Prune(time),
        3 => Item::Finish(time),
        _ => Item::Dropped(super::Dropped {
            records: count,
            others: count,
            from: time,
            to: other,
            in_original: count % 2 == 1,
        }),
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

/// A file system that hangs: nothing reads the pipe, which has room for 64 KiB.
#[test]
fn the_end_waits_for_the_disk_no_longer_than_it_may() {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    let mut recorder = Recorder::begin("pipe".as_ref(), file, &header(), Addresses::default()).unwrap();
    let mut noise = 1_u64;
    let mut next = || {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.to_le_bytes()
    };
    let mut batch = Records::default();
    for _ in 0..10_000 {
        let record: Vec<u8> = std::iter::repeat_with(&mut next).take(6).flatten().collect();
        assert!(batch.push(&record));
    }
    recorder.records(&mut batch);
    let begun = std::time::Instant::now();
    let limit = std::time::Duration::from_millis(300);
    let finished = recorder.finish(End::default(), limit);
    assert!(begun.elapsed() < CLOSE_LIMIT / 2, "{:?}", begun.elapsed());
    let failure = finished.failure.unwrap();
    assert_eq!(failure.error, "the file system did not answer within 0.3 s");
    // The writer's thread ends with an error.
    drop(reader);
}

/// The records in the file of a recorder that was given these.
fn written(records: &[Vec<u8>], addresses: &Addresses) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.viptrace");
    let file = create(&path, false).unwrap();
    let mut recorder = Recorder::begin(&path, file, &header(), addresses.clone()).unwrap();
    let mut batch = Records::default();
    for record in records {
        assert!(batch.push(record));
    }
    recorder.records(&mut batch);
    assert_eq!(recorder.finish(End::default(), CLOSE_LIMIT).records, records.len() as u64);
    let (mut reader, _) = Reader::open(File::open(&path).unwrap()).unwrap();
    let (mut block, mut read) = (Block::default(), Vec::new());
    while reader.next_block(&mut block).unwrap() {
        read.extend(block.records.iter().map(<[u8]>::to_vec));
    }
    read
}

/// The beginning of a packet, up to its payload: a network and a transport header.
fn packet_headers() -> impl Strategy<Value = Vec<u8>> {
    let transport =
        prop::sample::select(vec![(6_u8, 20_usize), (17, 8), (132, 12), (1, 4), (58, 4), (0, 0), (47, 0)]);
    (any::<[u8; 40]>(), any::<[u8; 20]>(), 5..9_usize, transport, any::<bool>(), any::<bool>()).prop_map(
        |(mut network, own, words, (protocol, bytes), is_ipv6, is_fragment)| {
            let mut head = if is_ipv6 {
                (network[0], network[6]) = (0x60, protocol);
                network.to_vec()
            } else {
                (network[0], network[9]) = (0x40 | words as u8, protocol);
                (network[6], network[7]) = (0, u8::from(is_fragment) * 9);
                network[..words * 4].to_vec()
            };
            if is_ipv6 || !is_fragment {
                head.extend(&own[..bytes]);
            }
            head.truncate(64);
            head
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the payload is, the recording is the same.
    #[test]
    fn a_payload_never_enters_a_recording(
        heads in vec((packet_headers(), any::<[u8; 64]>(), any::<[u8; 64]>(), any::<Index>()), 1..40),
    ) {
        use tracer_ebpf::{Hook, Kind, PACKET_HEAD_BYTES};

        let places: Vec<_> = Hook::ALL
.iter().copied()
            .flat_map(|hook| hook.spec().records.iter().map(move |kind| (hook, *kind)))
            .filter(|(_, kind)| matches!(kind, Kind::Packet | Kind::Invalid))
            .collect();
        let record = |head: &[u8], payload: &[u8], place: &Index| {
            let (hook, kind) = places[place.index(places.len())];
            let mut record = vec![0; kind.record_bytes()];
            (record[14], record[15]) = (hook as u8, kind as u8);
            let packet = &mut record[48..48 + PACKET_HEAD_BYTES];
            packet[..head.len()].copy_from_slice(head);
            packet[head.len()..].copy_from_slice(&payload[head.len()..]);
            record
        };
        let addresses = Addresses::from_unix_secs(1);
        let first: Vec<_> = heads.iter().map(|(head, payload, _, place)| record(head, payload, place)).collect();
        let second: Vec<_> = heads.iter().map(|(head, _, payload, place)| record(head, payload, place)).collect();
        let read = written(&first, &addresses);
        prop_assert_eq!(&read, &written(&second, &addresses));
        for (written, (head, payload, ..)) in read.iter().zip(&heads) {
            for window in payload[head.len()..].windows(6) {
                prop_assert!(!written.windows(6).any(|bytes| bytes == window));
            }
        }
    }
}

#[test]
fn no_kernel_address_enters_a_recording() {
    let records = &corpus().1;
    let addresses = Addresses::from_unix_secs(1);
    let (first, again) = (written(records, &addresses), written(records, &addresses));
    assert_eq!(first, again, "the segments of one agent have one numbering");
    let identity = |record: &Vec<u8>| {
        let at = match record[15] {
            1 | 3 => 16,
            2 | 5 => 24,
            _ => return None,
        };
        Some(u64::from_le_bytes(record[at..at + 8].try_into().unwrap()))
    };
    // Parts of the kernel's memory, of 4 GiB each.
    let regions: BTreeSet<u64> = records.iter().filter_map(identity).map(|address| address >> 32).collect();
    let regions: BTreeSet<u64> = regions.into_iter().filter(|region| *region != 0).collect();
    assert!(regions.iter().all(|region| region >> 24 == 0xff) && !regions.is_empty());
    for (record, other) in records.iter().zip(&first) {
        assert_eq!(identity(record) == Some(0), identity(other) == Some(0));
        for (another, its) in records.iter().zip(&first) {
            let (was_same, is_same) =
                (identity(another) == identity(record), identity(its) == identity(other));
            assert_eq!(was_same, is_same, "the same object, or another");
        }
        for bytes in other.windows(8) {
            let region = u64::from_le_bytes(bytes.try_into().unwrap()) >> 32;
            assert!(!regions.contains(&region), "{bytes:x?}");
        }
    }
}

/// Copies a recording into a file with an index, in blocks of at most so many records.
pub(crate) fn copy(from: impl Read + Seek, to: &Path, block_records: usize) {
    let (mut reader, header) = Reader::open(from).unwrap();
    let layout = Arc::new(header.layout());
    let (mask, decoder) = (Mask::new(&layout), Decoder::new(layout, header.clock_offset_ns));
    let json = serde_json::to_vec(&Header { format: super::FORMAT, ..header.clone() }).unwrap();
    let file = File::create(to).unwrap();
    let mut blocks = Blocks::begin(file, json, header.started, mask, decoder, Addresses::default()).unwrap();
    blocks.set_block_records(block_records);
    let (mut block, mut assembler) = (Block::default(), Assembler::default());
    while reader.next_block(&mut block).unwrap() {
        let (mut items, mut next) = (block.items.as_slice(), 0);
        while let Some(item) = assembler.next(&mut items) {
            let Item::Records(count, _) = item.as_ref().unwrap() else {
                blocks.item(&item.unwrap());
                continue;
            };
            let mut batch = Records::default();
            for record in block.records.range(next..next + *count as usize) {
                assert!(batch.push(record));
            }
            next += *count as usize;
            blocks.records(&mut batch);
        }
    }
    assert_eq!(blocks.close().failure, None);
}
