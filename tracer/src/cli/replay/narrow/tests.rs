//! A query gives what the whole recording gives, and reads less.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use proptest::{prelude::*, sample::Index};

use super::{
    super::{EARLIER, played},
    note, part,
};
use crate::{
    cli::{
        selection::{FlowAddresses, Selection, Span},
        target::Target,
    },
    incident::{Moment, Timeline},
    recording::{Reading, fixtures::recordings, tests::copy},
    session::Detail,
    time::Timestamp,
    verdict::Verdict,
};
use support::{Live, Traffic, corpus, header};

#[path = "../../../../tests/it/recording_support.rs"]
mod support;

const ALWAYS: Span = Span { from: Timestamp::MIN, to: Timestamp::MAX };

/// A verdict, and the class of the earlier one that it replaces.
type Row = (Verdict, String);

/// Everything that the query shows, in the order of time, and how much of the file it read if not all.
fn query(path: &Path, selection: &Selection, span: Span, by_index: bool) -> (Vec<Row>, Option<Reading>) {
    let mut timeline = Timeline::open(&[path.to_owned()]).unwrap();
    timeline.set_detail(Detail::All);
    let played = played(&timeline, span).unwrap();
    if played.from > Timestamp::MIN {
        timeline.skip_until(played.from);
    }
    if by_index {
        timeline.narrow(part(&timeline, selection, played).unwrap().0);
    }
    let mut rows = Vec::new();
    while let Some(Moment { judgements, now, .. }) = timeline.step().unwrap() {
        if now > played.to {
            break;
        }
        for judged in selection.select(judgements, span).wanted.judged {
            let before = judged.before.map(|before| before.class);
            rows.push((judged.verdict, format!("{before:?} {:?}", judged.connect_time)));
        }
    }
    rows.sort_by_key(|(verdict, _)| (verdict.time, verdict.flow.client, verdict.flow.started));
    (rows, timeline.reading())
}

/// The queries for the flow of a verdict.
fn queries(verdict: &Verdict) -> Vec<Selection> {
    let flow = &verdict.flow;
    let address = |ip, port| Some(Target::Address { ip, port });
    let mut queries = vec![
        Selection { flow: Some(FlowAddresses { client: flow.client, to: None }), ..Selection::default() },
        Selection { flow: Some(FlowAddresses { client: flow.client, to: flow.vip }), ..Selection::default() },
        Selection { client: address(flow.client.ip(), None), ..Selection::default() },
        Selection { client: address(flow.client.ip(), Some(flow.client.port())), ..Selection::default() },
    ];
    for end in [flow.vip, flow.endpoint].into_iter().flatten() {
        queries.push(Selection::of(address(end.ip(), None)));
        queries.push(Selection::of(address(end.ip(), Some(end.port()))));
    }
    for pod in [&flow.client_pod, &flow.endpoint_pod].into_iter().flatten() {
        let (namespace, name) = pod.split_once('/').unwrap();
        let pod = Some(Target::Pod { namespace: namespace.to_owned(), name: name.to_owned() });
        queries.push(Selection { client: pod.clone(), ..Selection::default() });
        queries.push(Selection::of(pod));
    }
    if let Some(service) = &verdict.service {
        let (namespace, name) = (service.namespace.to_string(), service.name.to_string());
        queries.push(Selection::of(Some(Target::Service { namespace, name })));
    }
    queries
}

/// How many blocks queries unpacked and passed, and how many queries read everything.
#[derive(Debug, Default)]
struct Read {
    unpacked: u64,
    passed: u64,
    wholes: u64,
}

/// Compares each query with the whole recording.
fn compare(path: &Path, selections: impl IntoIterator<Item = Selection>, read: &mut Read) {
    let (whole, _) = query(path, &Selection::default(), ALWAYS, false);
    for selection in selections {
        let expected: Vec<&Row> =
            whole.iter().filter(|(verdict, _)| selection.wants(verdict, ALWAYS)).collect();
        let (rows, reading) = query(path, &selection, ALWAYS, true);
        let found: Vec<&Row> = rows.iter().collect();
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{}: {selection:?}", path.display());
        }
        assert_eq!(found.len(), expected.len(), "{}: {selection:?}", path.display());
        let Some(reading) = reading else {
            read.wholes += 1;
            continue;
        };
        assert!(!reading.is_index_unusable, "{}", path.display());
        read.unpacked += reading.unpacked;
        read.passed += reading.passed;
    }
}

#[test]
fn a_query_of_every_fixture_gives_what_the_whole_recording_gives() {
    let folder = tempfile::tempdir().unwrap();
    let mut read = Read::default();
    for path in recordings() {
        let indexed = folder.path().join(path.file_name().unwrap());
        copy(File::open(&path).unwrap(), &indexed, 4);
        let (whole, _) = query(&indexed, &Selection::default(), ALWAYS, false);
        let (original, _) = query(&path, &Selection::default(), ALWAYS, false);
        assert_eq!(whole, original, "{}", path.display());
        let mut selections: Vec<Selection> = Vec::new();
        for selection in whole.iter().flat_map(|(verdict, _)| queries(verdict)) {
            if !selections.contains(&selection) && selections.len() < 12 {
                selections.push(selection);
            }
        }
        compare(&indexed, selections, &mut read);
    }
    // Most verdicts rest on their own flow, some on those of other Services.
    assert!(read.passed > read.unpacked / 4 && read.wholes > 0, "{read:?}");
}

/// A recording of this traffic in blocks of so many records.
fn traffic(folder: &Path, seed: u64, events: usize, per_second: f64, block_records: usize) -> PathBuf {
    let corpus = corpus("debian-6.12");
    let live_path = folder.join("live.viptrace");
    let mut live = Live::new(&header(&corpus), Detail::All, &live_path);
    let mut traffic = Traffic::new(&corpus, seed, per_second);
    let mut left = events;
    while left > 0 {
        let batch: Vec<_> = traffic.by_ref().take(left.min(150)).collect();
        left -= batch.len();
        live.turn(batch.iter().map(Vec::as_slice));
        live.lines.clear();
        if live.recorded.pipeline().wants_node() && seed.is_multiple_of(2) {
            live.read_node();
        }
        if seed.is_multiple_of(5) && left % 7 == 3 {
            live.lose(2, Duration::from_millis(5));
        }
        live.catch_up();
    }
    live.pass(Duration::from_secs(10));
    live.end();
    let path = folder.join("indexed.viptrace");
    copy(File::open(&live_path).unwrap(), &path, block_records);
    path
}

#[test]
fn the_note_names_no_more_bytes_than_there_are() {
    let reading = Reading { bytes: 100, total_bytes: 700, unpacked: 1, passed: 2, ..Reading::default() };
    assert!(
        note(reading).is_some_and(|text| text.starts_with("1 of 3 blocks and 100 of 700 bytes were read"))
    );
    let reading = Reading { bytes: 800, ..reading };
    assert!(note(reading).is_some_and(|text| text.starts_with("1 of 3 blocks were read")));
    assert_eq!(note(Reading { passed: 0, ..reading }), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_query_of_traffic_gives_what_the_whole_recording_gives(
        seed in any::<u64>(),
        events in 300..3000_usize,
        per_second in prop::sample::select(vec![3.0, 80.0, 2000.0]),
        block_records in 20..400_usize,
        chosen in prop::collection::vec(any::<Index>(), 3),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = traffic(folder.path(), seed, events, per_second, block_records);
        let (whole, _) = query(&path, &Selection::default(), ALWAYS, false);
        let chosen: Vec<_> = chosen.iter().flat_map(|index| queries(&index.get(&whole).0)).collect();
        compare(&path, chosen, &mut Read::default());
    }
}

/// The bytes of the file up to its first index frame are of other frames.
fn first_index(bytes: &[u8]) -> usize {
    let magic = b"\xf1VTBLK\r\n\x02\0\0\0";
    bytes.windows(magic.len()).position(|window| window == magic).unwrap()
}

#[test]
fn a_query_reads_only_what_can_have_its_flows() {
    let folder = tempfile::tempdir().unwrap();
    let path = traffic(folder.path(), 7, 20_000, 2000.0, 200);
    let (whole, _) = query(&path, &Selection::default(), ALWAYS, false);
    let middle = &whole[whole.len() / 2].0.flow;
    let of_flow =
        Selection { flow: Some(FlowAddresses { client: middle.client, to: None }), ..Selection::default() };
    let expected: Vec<Row> =
        whole.iter().filter(|(verdict, _)| of_flow.wants(verdict, ALWAYS)).cloned().collect();
    let (rows, reading) = query(&path, &of_flow, ALWAYS, true);
    assert_eq!(rows, expected);
    let reading = reading.unwrap();
    assert_eq!(reading.total_bytes, fs::metadata(&path).unwrap().len());
    assert!(reading.unpacked * 4 < reading.passed, "{reading:?}");
    assert!(reading.bytes * 2 < reading.total_bytes, "{reading:?}");
    // What the filters name by mistake is unpacked once. The flow's own blocks are needed again.
    assert!((1..reading.unpacked).contains(&reading.barren), "{reading:?}");

    // Of a host that is not there, nothing but the items.
    let nobody = Selection::of(Some(Target::Address { ip: "192.0.2.77".parse().unwrap(), port: None }));
    let (rows, reading) = query(&path, &nobody, ALWAYS, true);
    let reading = reading.unwrap();
    assert!(rows.is_empty() && reading.unpacked * 50 < reading.passed, "{reading:?}");

    // Without its index the file gives the same, and is read whole.
    let bytes = fs::read(&path).unwrap();
    let cut = folder.path().join("cut.viptrace");
    fs::write(&cut, &bytes[..first_index(&bytes)]).unwrap();
    let (_, reading) = query(&cut, &of_flow, ALWAYS, true);
    assert_eq!(reading, None);
}

#[test]
fn a_query_of_a_time_reads_what_is_of_it() {
    let folder = tempfile::tempdir().unwrap();
    // An hour and a half.
    let path = traffic(folder.path(), 3, 12_000, 0.4, 100);
    let (whole, _) = query(&path, &Selection::default(), ALWAYS, false);
    let (first, last) = (whole.first().unwrap().0.time, whole.last().unwrap().0.time);
    let length = last.since(first);
    assert!(length > EARLIER * 3, "{length:?}");
    let span = Span { from: last.saturating_sub(length / 4), to: last.saturating_sub(length / 5) };
    let (expected, _) = query(&path, &Selection::default(), span, false);
    let (rows, reading) = query(&path, &Selection::default(), span, true);
    assert_eq!(rows, expected);
    assert!(!rows.is_empty());
    let reading = reading.unwrap();
    assert!(reading.unpacked < reading.passed && reading.bytes < reading.total_bytes, "{reading:?}");
    let of_client = Selection {
        client: Some(Target::Address { ip: rows[0].0.flow.client.ip(), port: None }),
        ..Selection::default()
    };
    let expected: Vec<Row> =
        expected.into_iter().filter(|(verdict, _)| of_client.wants(verdict, span)).collect();
    assert_eq!(query(&path, &of_client, span, true).0, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A query of a damaged file gives what the file still has, or what it had: it does not notice damage in what it does
    /// not read.
    #[test]
    fn damage_never_gives_another_answer(
        at in any::<Index>(),
        in_index: bool,
        bit in 0..8_u8,
        is_cut: bool,
        chosen in any::<Index>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = traffic(folder.path(), 5, 1500, 500.0, 100);
        let mut bytes = fs::read(&path).unwrap();
        let (whole, _) = query(&path, &Selection::default(), ALWAYS, false);
        let flow = &chosen.get(&whole).0.flow;
        let selection =
            Selection { flow: Some(FlowAddresses { client: flow.client, to: None }), ..Selection::default() };
        let from = if in_index { first_index(&bytes) } else { 0 };
        let place = from + at.index(bytes.len() - from);
        if is_cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= 1 << bit;
        }
        let damaged = folder.path().join("damaged.viptrace");
        fs::write(&damaged, &bytes).unwrap();
        if Timeline::open(std::slice::from_ref(&damaged)).is_ok_and(|timeline| timeline.tracks().len() == 1) {
            let of_flow = |rows: Vec<Row>| -> Vec<Row> {
                rows.into_iter().filter(|(verdict, _)| selection.wants(verdict, ALWAYS)).collect()
            };
            let before = of_flow(whole);
            let after = of_flow(query(&damaged, &Selection::default(), ALWAYS, false).0);
            let (rows, _) = query(&damaged, &selection, ALWAYS, true);
            prop_assert!(rows == after || (!is_cut && rows == before), "{rows:?}");
            if in_index && !is_cut {
                prop_assert_eq!(rows, before);
            }
        }
    }
}
