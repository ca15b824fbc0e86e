//! Recordings: a replay prints exactly what the live trace printed, and damage affects only the damaged part.

use std::{
    fs,
    io::Cursor,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use proptest::{collection::vec, prelude::*, sample::Index};
use viptrace::{
    cluster::{
        self, Update,
        model::{Change, Endpoint, EndpointSlice, Object, Trimmed},
        watch::Event,
    },
    error::Hint as _,
    flow::Suppressed,
    incident::Timeline,
    kernel::decode::{Decoder, Mask},
    net::Netns,
    node::{
        ProxyMode, Snapshot,
        capture::{Capture, Kind},
        interfaces::Dataplane,
    },
    recording::{Addresses, DamageKind, Dropped, End, Header, NodeReading, Player, Recorder},
    rules::Ruleset,
    session::Detail,
    time::Timestamp,
};

use crate::recording_support::{Live, Traffic, corpus, header, lines, node, replayed};

const KERNELS: [&str; 2] = ["debian-6.1", "debian-6.12"];

fn temporary() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.viptrace");
    (folder, path)
}

fn replay(bytes: Vec<u8>, detail: Detail) -> (Vec<String>, Option<End>, Player<Cursor<Vec<u8>>>) {
    let mut player = Player::open(Cursor::new(bytes), detail).unwrap();
    let (lines, end) = replayed(&mut player);
    (lines, end, player)
}

/// A trace with every kind of event: losses, suppressed events, a lost API server, readings of the node, pruning, steps of
/// the wall clock, changes of endpoints and of kube-proxy.
fn eventful(path: &Path, detail: Detail, records: usize) -> Vec<String> {
    traced(path, detail, 7, records, (0..13).cycle())
}

/// An endpoint of a Service leaves, or comes back.
fn change_endpoints(live: &mut Live) {
    let received = live.now;
    let history = &live.recorded.pipeline().cluster().history;
    let services: Vec<_> = history.services().map(|service| service.key.clone()).collect();
    let slices = services.iter().flat_map(|service| history.slices_at(service, received));
    let mut slice = EndpointSlice::clone(slices.into_iter().next().unwrap());
    match slice.endpoints.len() {
        0 | 1 => {
            let again = slice.endpoints[0].clone();
            let addresses = vec![IpAddr::from([10, 244, 9, 9])];
            slice.endpoints.push(Endpoint { addresses: addresses.into(), ..again });
        }
        _ => drop(slice.endpoints.pop()),
    }
    let object = Object::EndpointSlice(slice.into());
    let event = Event::Changed(Change::Put(Trimmed { object, created: None, changed: None, version: None }));
    live.recorded.absorb(Update { kind: cluster::Kind::EndpointSlice, received, event });
}

/// kube-proxy is restarted, and has failed to write its rules.
fn changed_node(began: Timestamp) -> Arc<Snapshot> {
    let mut changed = node(began);
    changed.report.started = Some(began.saturating_sub(Duration::from_millis(700)));
    changed.report.failed_syncs = began.as_unix_ns() % 5;
    Arc::new(changed)
}

/// This many records of traffic, with an event after each hundred of them.
fn traced(
    path: &Path,
    detail: Detail,
    seed: u64,
    records: usize,
    happenings: impl Iterator<Item = u8>,
) -> Vec<String> {
    let corpus = corpus("debian-6.12");
    let traffic: Vec<_> = Traffic::new(&corpus, seed, 300.0).take(records).collect();
    let mut live = Live::new(&header(&corpus), detail, path);
    for (batch, happening) in traffic.chunks(100).zip(happenings) {
        live.turn(batch.iter().map(Vec::as_slice));
        let received = live.now;
        let update = |event| Update { kind: cluster::Kind::Pod, received, event };
        match happening {
            1 => live.lose(3, Duration::from_millis(2)),
            2 => live.recorded.absorb(update(Event::Lost("connection refused".to_owned()))),
            3 => live.pass(Duration::from_secs(2)),
            4 => live.recorded.absorb(update(Event::Heard)),
            5 => live.recorded.prune(received),
            6 => live.recorded.suppressed(Suppressed {
                client: Some(IpAddr::from([10, 244, 1, 100])),
                service: Some(IpAddr::from([10, 96, 0, 20])),
                netns: Netns(1),
                from: received.saturating_sub(Duration::from_secs(1)),
                to: received,
                count: 9,
            }),
            // Forward and back by up to an hour.
            7 => live.recorded.measure_wall_clock(
                received,
                (received.as_unix_ns() / 1_000 % 80).cast_signed() * 90_000_000_000 - 3_600_000_000_000,
            ),
            8 => live.recorded.measure_wall_clock(received, -3_600_000_000_000),
            10 => change_endpoints(&mut live),
            11 => {
                let judgements = live.recorded.node_read(changed_node(received), received, received);
                live.lines.extend(lines(&judgements));
            }
            12 => live.recorded.node_state(changed_node(received), received, received),
            _ if live.recorded.pipeline().wants_node() => live.read_node(),
            _ => {}
        }
    }
    live.pass(Duration::from_secs(10));
    let (lines, finished) = live.end();
    assert_eq!(finished.records, records as u64);
    assert_eq!((finished.dropped, finished.failure), (Dropped::default(), None));
    lines
}

#[test]
fn a_replay_prints_what_the_live_trace_printed() {
    for detail in [Detail::All, Detail::Faults] {
        let (_folder, path) = temporary();
        let live = eventful(&path, detail, 5000);
        let (lines, end, player) = replay(fs::read(&path).unwrap(), detail);
        assert!(live.len() > if detail == Detail::All { 900 } else { 20 }, "{}", live.len());
        assert!(live.iter().any(|line| line.contains("\"C20\"")));
        assert!(live.iter().any(|line| line.contains("lost")), "a loss is told of");
        for kind in ["api_lost", "api_back", "kube_proxy_started", "clock_stepped"] {
            assert!(live.iter().any(|line| line.contains(kind)), "{kind} is listed");
        }
        assert_eq!(lines, live);
        assert_eq!(end.unwrap().gaps, ["nothing but a test"]);
        assert_eq!(player.damage().1, 0);
        assert_eq!(player.missing(), &viptrace::recording::Missing::default());
        assert!(player.pipeline().lost_events() > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_event_is_replayed_exactly(seed in any::<u64>(), all in any::<bool>(), happenings in vec(0..13_u8, 1..12)) {
        let detail = if all { Detail::All } else { Detail::Faults };
        let (_folder, path) = temporary();
        let live = traced(&path, detail, seed, happenings.len() * 100, happenings.into_iter());
        let (lines, end, player) = replay(fs::read(&path).unwrap(), detail);
        prop_assert_eq!(lines, live);
        prop_assert!(end.is_some());
        prop_assert_eq!(player.damage().1, 0);
        prop_assert_eq!(player.missing(), &viptrace::recording::Missing::default());
    }
}

/// A segment of a flight recorder begins in the middle of a trace.
#[test]
fn a_later_recording_lists_the_changes_before_it() {
    let (folder, first) = temporary();
    let second = folder.path().join("second.viptrace");
    let corpus = corpus("debian-6.12");
    let header = header(&corpus);
    let mut live = Live::new(&header, Detail::Faults, &first);
    live.pass(Duration::from_mins(1));
    for kind in cluster::Kind::ALL {
        let update = |event| Update { kind, received: live.now, event };
        live.recorded.absorb(update(Event::Heard));
        live.recorded.absorb(update(Event::Lost("connection refused".to_owned())));
    }
    live.recorded.measure_wall_clock(live.now, 3_600_000_000_000);
    change_endpoints(&mut live);
    let judgements = live.recorded.node_read(changed_node(live.now), live.now, live.now);
    live.lines.extend(lines(&judgements));
    live.pass(Duration::from_secs(10));
    live.lines.clear();
    let header = Header { started: live.now, ..header };
    let file = viptrace::recording::create(&second, false).unwrap();
    live.recorded.begin(Recorder::begin(&second, file, &header, Addresses::default()).unwrap());
    let offset = live.now.as_unix_ns() - header.clock_offset_ns;
    for mut record in Traffic::new(&corpus, 3, 300.0).take(1_500) {
        let time = u64::from_le_bytes(record[..8].try_into().unwrap()) + offset;
        record[..8].copy_from_slice(&time.to_le_bytes());
        live.turn([record.as_slice()]);
    }
    live.pass(Duration::from_secs(10));
    let (lines, _) = live.end();
    for kind in ["api_lost", "kube_proxy_started", "clock_stepped"] {
        assert!(lines.iter().any(|line| line.contains(kind)), "{kind}: {lines:#?}");
    }
    let story = std::process::Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["replay", second.to_str().unwrap(), "-o", "story"])
        .output()
        .unwrap();
    let said = String::from_utf8(story.stderr).unwrap();
    assert!(said.contains("the wall clock was 1 h 0 min ahead of that of the trace"), "{said}");
    let (again, end, player) = replay(fs::read(&second).unwrap(), Detail::Faults);
    assert_eq!(again, lines);
    assert!(end.is_some() && player.damage().1 == 0);
}

#[test]
fn real_kernels_records_replay_alike() {
    for kernel in KERNELS {
        let corpus = corpus(kernel);
        let (_folder, path) = temporary();
        let mut live = Live::new(&header(&corpus), Detail::All, &path);
        for batch in corpus.records.chunks(3) {
            live.turn(batch.iter().map(Vec::as_slice));
        }
        live.pass(Duration::from_mins(1));
        let (live, _) = live.end();
        assert!(live.len() >= 5, "{live:?}");
        let (lines, ..) = replay(fs::read(&path).unwrap(), Detail::All);
        assert_eq!(lines, live, "{kernel}");
    }
}

/// A recording of several blocks, the positions of its frames, and its replay.
struct Sample {
    bytes: Vec<u8>,
    frames: Vec<usize>,
    lines: Vec<String>,
}

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let (_folder, path) = temporary();
        let lines = eventful(&path, Detail::Faults, 40_000);
        let bytes = fs::read(&path).unwrap();
        let magic = b"\xf1VTBLK\r\n";
        let frames: Vec<_> =
            bytes.windows(8).enumerate().filter(|(_, window)| window == magic).map(|(at, _)| at).collect();
        assert!(frames.len() >= 4, "{frames:?}");
        Sample { bytes, frames, lines }
    })
}

#[test]
fn a_file_cut_anywhere_gives_its_intact_blocks_and_its_end() {
    let Sample { bytes, frames, lines } = sample();
    let inside = |frame: usize| frames[frame] + 40;
    let index = *frames.last().unwrap();
    for (cut, whole_blocks) in [(inside(3), true), (inside(2), true), (index - 1, true), (frames[2], false)] {
        let (said, end, player) = replay(bytes[..cut].to_vec(), Detail::Faults);
        assert_eq!(end, None, "cut at {cut}");
        let (damage, count) = player.damage();
        if whole_blocks {
            let last = *frames.iter().rfind(|at| **at < cut).unwrap() as u64;
            assert_eq!((damage[0].kind, damage[0].offset, count), (DamageKind::Truncated, last, 1));
        } else {
            assert_eq!(count, 0, "cut between two blocks");
        }
        assert!(!said.is_empty() && said.len() < lines.len() + 300);
        assert!(player.pipeline().counters().sightings > 0);
    }

    // Only the index, which adds nothing to what is there.
    let (said, end, player) = replay(bytes[..bytes.len() - 1].to_vec(), Detail::Faults);
    assert!(end.is_some() && said == *lines);
    let (damage, count) = player.damage();
    assert_eq!((damage[0].kind, damage[0].offset, count), (DamageKind::Truncated, index as u64, 1));
}

#[test]
fn a_damaged_block_affects_only_itself() {
    let Sample { bytes, frames, .. } = sample();
    let mut spoilt = bytes.clone();
    spoilt[frames[2] + 100] ^= 1;
    let (_, end, player) = replay(spoilt, Detail::Faults);
    assert!(end.is_some());
    let (damage, count) = player.damage();
    assert_eq!(count, 1);
    assert_eq!((damage[0].kind, damage[0].offset), (DamageKind::Checksum, frames[2] as u64));
    assert_eq!((damage[0].skipped, damage[0].blocks), ((frames[3] - frames[2]) as u64, 1));
    assert!(player.pipeline().lost_events() > 0, "what was in it is lost");

    // A missing block, and one with inserted bytes before it.
    let gone = [&bytes[..frames[2]], &bytes[frames[3]..]].concat();
    let (_, _, player) = replay(gone, Detail::Faults);
    let (damage, _) = player.damage();
    assert_eq!((damage[0].kind, damage[0].blocks), (DamageKind::Gone, 1));
    let more = [&bytes[..frames[2]], b"\xf1VTBLK\r\n and other garbage", &bytes[frames[2]..]].concat();
    let (lines, _, player) = replay(more, Detail::Faults);
    let (damage, count) = player.damage();
    assert_eq!((damage[0].kind, damage[0].skipped, damage[0].blocks, count), (DamageKind::NoBlock, 26, 0, 1));
    assert!(!lines.is_empty());
}

#[test]
fn a_recording_appended_to_another_is_distinguished() {
    let Sample { bytes, lines, .. } = sample();
    let twice = [bytes.as_slice(), bytes.as_slice()].concat();
    let (said, _, player) = replay(twice, Detail::Faults);
    assert_eq!(&said, lines);
    assert_eq!(player.damage().0[0].offset, bytes.len() as u64);
}

#[test]
fn a_damaged_header_is_replaced_or_reported() {
    let Sample { bytes, frames, .. } = sample();
    let mut spoilt = bytes.clone();
    spoilt[frames[0] + 50] ^= 1;
    let error = Player::open(Cursor::new(spoilt), Detail::All).unwrap_err();
    assert!(error.to_string().contains("header"), "{error}");
    for other in
        [b"".to_vec(), b"not a recording at all".to_vec(), vec![0; 5 << 20], b"\xf1VTBLK\r\n".repeat(9)]
    {
        let error = Player::open(Cursor::new(other), Detail::All).unwrap_err();
        assert!(error.to_string().contains("not a recording"), "{error}");
    }
    // Even without its first bytes.
    let (said, ..) = replay(bytes[16..].to_vec(), Detail::Faults);
    assert_eq!(said.len(), sample().lines.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_change_causes_a_panic(
        places in vec((any::<Index>(), any::<u8>()), 1..20),
        cut in any::<Index>(),
    ) {
        let mut bytes = sample().bytes.clone();
        for (at, byte) in places {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()));
        if let Ok(mut player) = Player::open(Cursor::new(bytes), Detail::Faults) {
            let _ = replayed(&mut player);
        }
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_trace() {
    let corpus = corpus("debian-6.12");
    let header = header(&corpus);
    // Writing to it fails as on a full disk; opening it does not.
    let full = Path::new("/dev/full");
    let file = fs::OpenOptions::new().write(true).open(full).unwrap();
    let error = Recorder::begin(full, file, &header, Addresses::default()).unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
}

#[test]
fn an_existing_file_is_kept() {
    use std::os::unix::fs::PermissionsExt as _;

    let (_folder, path) = temporary();
    fs::write(&path, "precious").unwrap();
    let error = viptrace::recording::create(&path, false).unwrap_err();
    assert!(error.hint().unwrap().contains("--force"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    drop(viptrace::recording::create(&path, true).unwrap());
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (0, 0o600));
}

/// The offset of the copy of `struct nf_conn` or `struct sock_common`, by the record's kind.
fn copy_at(record: &[u8]) -> usize {
    match record[15] {
        1 => 56,
        2 | 5 => 112,
        3 => 72,
        _ => record.len(),
    }
}

/// Random bytes for random positions in a copy.
fn some_noise() -> impl Strategy<Value = Vec<(Index, u8)>> {
    prop_oneof![vec((any::<Index>(), any::<u8>()), 0..4), vec((any::<Index>(), any::<u8>()), 300)]
}

proptest! {
    #[test]
    fn omitted_bytes_are_not_read(which in any::<Index>(), noise in some_noise(), missing in 0..80_usize) {
        for kernel in KERNELS {
            let corpus = corpus(kernel);
            let mut header = header(&corpus);
            // A kernel may lack a field.
            let lacking = header.offsets.keys().nth(missing).cloned();
            header.offsets.retain(|name, _| Some(name) != lacking.as_ref());
            let layout = Arc::new(header.layout());
            let mut record = corpus.records[which.index(corpus.records.len())].clone();
            // With the copy of a packet, which is before that of its entry.
            let at = if matches!(record[15], 2 | 5) { 48 } else { copy_at(&record) };
            for (place, byte) in &noise {
                if at < record.len() {
                    let place = at + place.index(record.len() - at);
                    record[place] = *byte;
                }
            }
            let mut masked = record.clone();
            Mask::new(&layout).apply(&mut masked);
            let decoder = Decoder::new(layout, 0);
            prop_assert_eq!(decoder.decode(&masked), decoder.decode(&record));
        }
    }
}

#[test]
fn only_the_used_fields_of_a_kernel_structure_are_recorded() {
    for kernel in KERNELS {
        let corpus = corpus(kernel);
        let mask = Mask::new(&header(&corpus).layout());
        for record in &corpus.records {
            let at = copy_at(record);
            let mut masked = record.clone();
            masked[at..].fill(u8::MAX);
            let family = at + corpus.offsets["OFF_SK_FAMILY"] as usize;
            if record[15] == 3 {
                masked[family..family + 2].copy_from_slice(&record[family..family + 2]);
            }
            mask.apply(&mut masked);
            let before = match record[15] {
                2 | 5 => 24..48,
                // Up to the port that a socket had.
                3 => 0..52,
                _ => 0..at,
            };
            assert_eq!(masked[before.clone()], record[before]);
            let kept = masked[at..].iter().map(|byte| usize::from(*byte == u8::MAX)).sum::<usize>();
            // Two tuples, a zone and a status; two addresses and two ports, and the family.
            let expected = match record[15] {
                1 | 2 => 2 * 39 + 2 + 4,
                3 if record[family] == 10 => 2 * 16 + 2 * 2,
                3 => 2 * 4 + 2 * 2,
                _ => continue,
            };
            assert_eq!(kept, expected, "{kernel}: {record:x?}");
        }
    }
}

/// Rules in every form, few of each.
const IPTABLES: &str = "*nat
:PREROUTING ACCEPT [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
:KUBE-SEP-B - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.10.10/32 -p tcp -m comment --comment \"shop/cart:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SVC-A -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-B
-A KUBE-SVC-A -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-SEP-B -p tcp -m tcp -j DNAT --to-destination 10.244.1.11:8080
COMMIT
";
const NFTABLES: &str = "table ip kube-proxy {
\tmap service-ips {
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\telements = { 10.96.10.10 . tcp . 80 : goto service-A, 10.96.10.20 . tcp . 80 : drop }
\t}
\tset affinity {
\t\ttype ipv4_addr
\t\tflags dynamic,timeout
\t\ttimeout 3h
\t}
\tchain services {
\t\tip daddr . meta l4proto . th dport vmap @service-ips
\t}
\tchain service-A {
\t\tnumgen random mod 2 vmap { 0 : goto endpoint-B, 1 : goto endpoint-B }
\t}
\tchain endpoint-B {
\t\tip saddr 10.244.1.11 jump mark-for-masquerade
\t\tmeta l4proto tcp dnat to 10.244.1.11:8080
\t}
}
";
const IPSET: &str = "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536
add KUBE-CLUSTER-IP 10.96.10.10,tcp:80
";
const IPVS: &str = "-A -t 10.96.10.10:80 -s rr -p 10800\n-a -t 10.96.10.10:80 -r 10.244.1.11:8080 -m -w 1\n";

/// The corpus has a reading of a node as the first version wrote it, of these lists; fuzzing begins with it.
#[test]
fn a_reading_of_the_first_version_is_read() {
    let path = crate::recording_support::tests_folder().join("corpus/node-reading.json");
    let text = fs::read(&path).unwrap();
    let kept: NodeReading = serde_json::from_slice(&text).unwrap();
    let at = Timestamp::from_unix_secs(1_796_083_200);
    let mut capture = Capture { taken: Some(at), ..Capture::default() };
    for (kind, text) in [
        (Kind::IptablesSave, IPTABLES),
        (Kind::NftRuleset, NFTABLES),
        (Kind::IpsetSave, IPSET),
        (Kind::IpvsSave, IPVS),
    ] {
        capture.put(kind, kind.file_name(), text.to_owned());
    }
    let expected = Snapshot::read(&capture);
    assert_eq!((expected.rules.skipped, expected.gaps.as_slice()), (0, [].as_slice()));

    let read = &kept.snapshot;
    assert_eq!((kept.began, kept.now, read.read_at()), (at, at, Some(at)));
    assert_eq!(
        (read.mode, read.version.as_deref(), read.other_dataplane),
        (Some(ProxyMode::Iptables), Some("v1.30.5"), Some(Dataplane::Cilium))
    );
    assert_eq!(read.is_own_address("192.0.2.11".parse().unwrap()), Some(true));
    assert_eq!(read.gap_lines().collect::<Vec<_>>(), ["a gap"]);
    assert_eq!((read.proxy_rules, read.listings.ipvs), (expected.proxy_rules, expected.listings.ipvs));
    // The elements of a set have no order.
    let sorted = |snapshot: &Snapshot| {
        let rules = Ruleset { addresses: None, ..snapshot.rules.clone() };
        let mut bytes = serde_json::to_vec(&rules).unwrap();
        bytes.sort_unstable();
        bytes
    };
    assert_eq!(sorted(read), sorted(&expected));
}

/// More flows end at once than one turn judges, and the node is read between two turns: the replay judges each flow where the
/// trace did.
#[test]
fn a_replay_keeps_the_pace_of_a_busy_trace() {
    let (_folder, path) = temporary();
    let corpus = corpus("debian-6.12");
    let mut live = Live::new(&header(&corpus), Detail::All, &path);
    let records: Vec<Vec<u8>> = Traffic::new(&corpus, 11, 5_000.0).failing(90).take(30_000).collect();
    live.turn(records.iter().map(Vec::as_slice));
    live.pass(Duration::from_secs(30));
    assert!(live.recorded.pipeline().has_backlog(), "{} lines in the first turns", live.lines.len());
    live.read_node();
    live.pass(Duration::from_secs(1));
    let (expected, _) = live.end();

    let mut timeline = Timeline::open(&[path]).unwrap();
    timeline.set_detail(Detail::All);
    let mut found = Vec::new();
    while let Some(moment) = timeline.step().unwrap() {
        found.extend(lines(&moment.judgements));
    }
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.iter().zip(&expected).find(|(found, expected)| found != expected), None);
}
