//! Shared by the tests and the benchmark of recordings: traffic built from a real kernel's records, and a live trace's
//! pipeline without the kernel.
//!
//! The traffic varies as on a node: clients, ports, endpoints, times, addresses of kernel objects, hashes.

#![allow(dead_code, reason = "the tests and the benchmark each use a part")]

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use viptrace::{
    cluster::{Cluster, LOOK_BACK, Source},
    flow::{Limits, Lost},
    kernel::decode::Decoder,
    net::Netns,
    node::{
        Snapshot,
        capture::{Capture, Kind},
    },
    recording::{
        Addresses, BYTE_ORDER, CLOSE_LIMIT, End, FORMAT, Header, Player, RECORD_LAYOUT, Recorded, Recorder,
        Records, Step, create,
    },
    session::{Detail, Judgements, Pipeline},
    time::Timestamp,
};

/// 2026-12-01, long after the fixture cluster was listed.
pub(crate) const CLOCK_OFFSET_NS: u64 = 1_796_083_200_000_000_000;
const NODE: Netns = Netns(4_026_531_840);

pub(crate) fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// A kernel's records from `tests/corpus`.
#[derive(Debug)]
pub(crate) struct Corpus {
    pub(crate) offsets: BTreeMap<String, u32>,
    pub(crate) reasons: BTreeMap<u32, Arc<str>>,
    pub(crate) records: Vec<Vec<u8>>,
}

pub(crate) fn corpus(kernel: &str) -> Corpus {
    let text = fs::read_to_string(tests_folder().join(format!("corpus/{kernel}.records"))).unwrap();
    let (mut offsets, mut reasons, mut records) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["offset", name, bytes] => {
                offsets.insert((*name).to_owned(), bytes.parse().unwrap());
            }
            ["drop-reason", name, number] => {
                reasons.insert(number.parse().unwrap(), Arc::from(*name));
            }
            ["record", hex] => records.push(unhex(hex)),
            other => panic!("{other:?}"),
        }
    }
    Corpus { offsets, reasons, records }
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Those of the corpora's RSTs (`enum sk_rst_reason`, `include/net/rstreason.h`, Linux 6.12).
const RESET_REASONS: [(u32, &str); 1] = [(1, "NO_SOCKET")];

pub(crate) fn header(corpus: &Corpus) -> Header {
    Header {
        format: FORMAT,
        record_layout: RECORD_LAYOUT,
        viptrace: "0.0.0-test".to_owned(),
        byte_order: BYTE_ORDER.to_owned(),
        kernel_release: "6.12-test".to_owned(),
        node_name: Some("worker-1".to_owned()),
        boot: None,
        node_netns: Some(NODE),
        target: None,
        started: Timestamp::from_unix_ns(CLOCK_OFFSET_NS),
        clock_offset_ns: CLOCK_OFFSET_NS,
        grace_ns: 5_000_000_000,
        grace_follows_node: true,
        limits: Limits::default(),
        hooks: Vec::new(),
        hook_set: None,
        offsets: corpus.offsets.clone(),
        drop_reasons: corpus.reasons.clone(),
        reset_reasons: RESET_REASONS.map(|(number, name)| (number, Arc::from(name))).into(),
    }
}

pub(crate) fn cluster() -> Cluster {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tests_folder().join("fixtures/cluster");
    runtime.block_on(Source::Folder(folder).open(LOOK_BACK)).unwrap().cluster
}

/// The node, with a real kube-proxy's rules.
pub(crate) fn node(at: Timestamp) -> Snapshot {
    let mut capture = Capture { taken: Some(at), ..Capture::default() };
    let saved = include_str!("../data/iptables-save.txt");
    for (kind, text) in [
        (Kind::ProxyMode, "iptables"),
        (Kind::ProxyMetrics, "kubernetes_build_info{git_version=\"v1.30.5\"} 1\n"),
        (Kind::Interfaces, "[{\"ifname\": \"cilium_host\"}]"),
        (Kind::Addresses, "192.0.2.11\n"),
        (Kind::IptablesSave, saved),
        (Kind::IpvsSave, "damaged"),
    ] {
        capture.put(kind, kind.file_name(), text.to_owned());
    }
    Snapshot::read(&capture)
}

/// `splitmix64`: the same traffic in every run.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Exponentially distributed with this mean.
    fn exponential(&mut self, mean_ns: f64) -> u64 {
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a random time")]
        let value = (-((self.next() >> 11) as f64 / (1_u64 << 53) as f64).max(1e-12).ln() * mean_ns) as u64;
        value
    }
}

/// Endless traffic, in the order of the ring buffer.
#[derive(Debug)]
pub(crate) struct Traffic {
    records: Vec<Vec<u8>>,
    random: Random,
    waiting: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    number: u64,
    next_flow_ns: u64,
    mean_gap_ns: f64,
    /// The last records of entries in the table, for their deletion.
    table: VecDeque<Vec<u8>>,
    entries: Vec<u64>,
    sockets: Vec<u64>,
    /// Of a hundred connections.
    failing: u64,
    flows: u64,
    /// Every so many flows one is of [`RARE_CLIENT`]; never with 0.
    pub(crate) rare_every: u64,
    /// The client of the last flow.
    pub(crate) last: (Ipv4Addr, u16),
}

pub(crate) const RARE_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 57);

const CONFIRM: usize = 0;
const CLIENT_OPEN: usize = 1;
const SERVER_OPEN: usize = 2;
const CLIENT_CLOSE: usize = 3;
const SERVER_CLOSE: usize = 4;
const DELETE: usize = 9;
/// A refused connection, and one to a Service without endpoints.
const REFUSED: std::ops::RangeInclusive<usize> = 5..=11;
const UNREACHABLE: [usize; 3] = [12, 13, 17];

const CT_HEAD: usize = 56;
const SOCK_HEAD: usize = 72;

impl Traffic {
    /// Makes this many connections a second; one in a hundred fails.
    pub(crate) fn new(corpus: &Corpus, seed: u64, flows_per_second: f64) -> Self {
        let mut random = Random(seed);
        let pool = |random: &mut Random, count: usize, size: u64| -> Vec<u64> {
            (0..count).map(|_| 0xff40_aa6c_0000_0000 + random.below(1 << 31) / size * size).collect()
        };
        Self {
            records: corpus.records.clone(),
            waiting: BinaryHeap::new(),
            number: 0,
            next_flow_ns: 1_000_000_000,
            mean_gap_ns: 1e9 / flows_per_second,
            table: VecDeque::new(),
            entries: pool(&mut random, 65_536, 256),
            sockets: pool(&mut random, 8192, 2240),
            failing: 1,
            flows: 0,
            rare_every: 0,
            last: (Ipv4Addr::UNSPECIFIED, 0),
            random,
        }
    }

    /// The same, with this many failures in a hundred connections.
    pub(crate) fn failing(self, of_a_hundred: u64) -> Self {
        Self { failing: of_a_hundred, ..self }
    }

    fn push(&mut self, at_ns: u64, mut record: Vec<u8>, cpu: u16) {
        record[..8].copy_from_slice(&at_ns.to_le_bytes());
        record[12..14].copy_from_slice(&cpu.to_le_bytes());
        self.number += 1;
        self.waiting.push(Reverse((at_ns, self.number, record)));
    }

    fn pick(pool: &mut [u64], random: &mut Random) -> u64 {
        let at = random.below(pool.len() as u64) as usize;
        pool[at]
    }

    fn flow(&mut self) {
        let start = self.next_flow_ns;
        self.next_flow_ns += self.random.exponential(self.mean_gap_ns);
        let random = &mut self.random;
        let cpu = random.below(8) as u16;
        let mut client = Ipv4Addr::new(10, 244, 1, [100, 101, 20, 31][random.below(4) as usize]);
        self.flows += 1;
        if self.rare_every > 0 && self.flows.is_multiple_of(self.rare_every) {
            client = RARE_CLIENT;
        }
        // As the kernel chooses ports: even ones for connect(), by a keyed hash.
        let port = (32_768 + random.below(14_116) * 2) as u16;
        self.last = (client, port);
        if random.below(100) < self.failing {
            return self.failure(start, client, port, cpu);
        }
        let random = &mut self.random;
        // The Service's last two endpoints: a third one would be stale.
        let endpoint = [[10, 244, 1, 11], [10, 244, 2, 13]][random.below(2) as usize];
        let local = endpoint[2] == 1;
        let entry = Self::pick(&mut self.entries, random);
        let (client_sk, server_sk) =
            (Self::pick(&mut self.sockets, random), Self::pick(&mut self.sockets, random));
        let client_netns = 0xf000_0116 + (u32::from(client.octets()[3]) << 8);
        let server_netns = 0xf000_014e + (u32::from(endpoint[3]) << 8);

        let mut confirm = self.records[CONFIRM].clone();
        entry_ends(&mut confirm, client, port, endpoint.into());
        confirm[16..24].copy_from_slice(&entry.to_le_bytes());
        confirm[32..36].copy_from_slice(&(2000 + random.below(40) as u32).to_le_bytes());
        confirm[CT_HEAD + 72..CT_HEAD + 76].copy_from_slice(&(random.next() as u32).to_le_bytes());
        let mut gone = self.records[DELETE].clone();
        entry_ends(&mut gone, client, port, endpoint.into());
        gone[16..24].copy_from_slice(&entry.to_le_bytes());
        for (at, marker) in [(16, true), (24, false), (72, true), (80, false)] {
            let word = if marker {
                random.below(32_768) << 1 | 1
            } else {
                Self::pick(&mut self.entries, random) + 16
            };
            gone[CT_HEAD + at..CT_HEAD + at + 8].copy_from_slice(&word.to_le_bytes());
        }
        gone[CT_HEAD + 8..CT_HEAD + 12].copy_from_slice(&((start / 4_000_000) as u32).to_le_bytes());

        let hash = random.next() as u32;
        let node = Self::pick(&mut self.entries, random);
        let mut open = self.records[CLIENT_OPEN].clone();
        let mut close = self.records[CLIENT_CLOSE].clone();
        for record in [&mut open, &mut close] {
            socket(record, client_sk, hash, client_netns);
            record[SOCK_HEAD + 4..SOCK_HEAD + 8].copy_from_slice(&client.octets());
            record[SOCK_HEAD + 84..SOCK_HEAD + 88].copy_from_slice(&client.octets());
        }
        open[SOCK_HEAD + 14..SOCK_HEAD + 16].copy_from_slice(&port.to_le_bytes());
        open[SOCK_HEAD + 32..SOCK_HEAD + 40].copy_from_slice(&node.to_le_bytes());
        close[52..54].copy_from_slice(&port.to_be_bytes());
        close[SOCK_HEAD + 32..SOCK_HEAD + 40]
            .copy_from_slice(&(Self::pick(&mut self.entries, random) + 24).to_le_bytes());
        close[32..40].copy_from_slice(&(200 + random.below(300)).to_le_bytes());
        close[40..48].copy_from_slice(&(500 + random.exponential(4000.0)).to_le_bytes());

        let handshake = 60_000 + random.exponential(if local { 40_000.0 } else { 300_000.0 });
        let lifetime = 300_000 + random.exponential(8_000_000.0);
        let closing = 20_000 + random.exponential(60_000.0);
        let sent = u64::from_le_bytes(close[32..40].try_into().unwrap());
        let got = u64::from_le_bytes(close[40..48].try_into().unwrap());
        let (server_hash, server_cpu) = (random.next() as u32, random.below(8) as u16);
        let server_node = Self::pick(&mut self.entries, random);
        self.push(start, confirm, cpu);
        self.push(start + handshake, open, cpu);
        self.push(start + handshake + lifetime, close, cpu);
        if local {
            for (record, at) in
                [(SERVER_OPEN, handshake + 15_000), (SERVER_CLOSE, handshake + lifetime + closing)]
            {
                let mut record = self.records[record].clone();
                socket(&mut record, server_sk, server_hash, server_netns);
                for (place, address) in
                    [(0, client.octets()), (4, endpoint), (68, client.octets()), (84, endpoint)]
                {
                    record[SOCK_HEAD + place..SOCK_HEAD + place + 4].copy_from_slice(&address);
                }
                record[SOCK_HEAD + 12..SOCK_HEAD + 14].copy_from_slice(&port.to_be_bytes());
                if at > handshake + 15_000 {
                    record[32..40].copy_from_slice(&got.to_le_bytes());
                    record[40..48].copy_from_slice(&sent.to_le_bytes());
                } else {
                    record[SOCK_HEAD + 32..SOCK_HEAD + 40].copy_from_slice(&server_node.to_le_bytes());
                }
                self.push(start + at, record, server_cpu);
            }
        }
        // Entries outlive their connections by minutes: an entry that ends now began long ago.
        self.table.push_back(gone);
        if self.table.len() > 20_000
            && let Some(old) = self.table.pop_front()
        {
            let at = start + self.random.exponential(1_000_000.0);
            self.push(at, old, cpu);
        }
    }

    fn failure(&mut self, start: u64, client: Ipv4Addr, port: u16, cpu: u16) {
        let chosen: Vec<usize> =
            if self.random.below(2) == 0 { REFUSED.collect() } else { UNREACHABLE.to_vec() };
        let entry = Self::pick(&mut self.entries, &mut self.random);
        let sk = Self::pick(&mut self.sockets, &mut self.random);
        let first = u64::from_le_bytes(self.records[chosen[0]][..8].try_into().unwrap());
        for index in chosen {
            let mut record = self.records[index].clone();
            let time = u64::from_le_bytes(record[..8].try_into().unwrap());
            match record[15] {
                1 => {
                    let endpoint: [u8; 4] = record[CT_HEAD + 88..CT_HEAD + 92].try_into().unwrap();
                    entry_ends(&mut record, client, port, endpoint.into());
                    record[16..24].copy_from_slice(&entry.to_le_bytes());
                }
                2 => {
                    record[48 + 12..48 + 16].copy_from_slice(&client.octets());
                    record[48 + 20..48 + 22].copy_from_slice(&port.to_be_bytes());
                    if record[24..32] != [0; 8] {
                        record[24..32].copy_from_slice(&entry.to_le_bytes());
                        record[112 + 32..112 + 36].copy_from_slice(&client.octets());
                        record[112 + 48..112 + 50].copy_from_slice(&port.to_be_bytes());
                        record[112 + 108..112 + 112].copy_from_slice(&client.octets());
                        record[112 + 124..112 + 126].copy_from_slice(&port.to_be_bytes());
                    }
                }
                3 => {
                    socket(&mut record, sk, port.into(), 0xf000_0116 + (u32::from(client.octets()[3]) << 8));
                    record[SOCK_HEAD + 4..SOCK_HEAD + 8].copy_from_slice(&client.octets());
                    if record[SOCK_HEAD + 14..SOCK_HEAD + 16] == [0; 2] {
                        record[52..54].copy_from_slice(&port.to_be_bytes());
                    } else {
                        record[SOCK_HEAD + 14..SOCK_HEAD + 16].copy_from_slice(&port.to_le_bytes());
                    }
                }
                _ => {}
            }
            self.push(start + (time - first).min(1_000_000_000), record, cpu);
        }
    }
}

fn entry_ends(record: &mut [u8], client: Ipv4Addr, port: u16, endpoint: Ipv4Addr) {
    for (at, address) in [(32, client), (88, endpoint), (108, client)] {
        record[CT_HEAD + at..CT_HEAD + at + 4].copy_from_slice(&address.octets());
    }
    for at in [48, 124] {
        record[CT_HEAD + at..CT_HEAD + at + 2].copy_from_slice(&port.to_be_bytes());
    }
}

fn socket(record: &mut [u8], sk: u64, hash: u32, netns: u32) {
    record[8..12].copy_from_slice(&netns.to_le_bytes());
    record[16..24].copy_from_slice(&sk.to_le_bytes());
    record[SOCK_HEAD + 8..SOCK_HEAD + 12].copy_from_slice(&hash.to_le_bytes());
}

impl Iterator for Traffic {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        while self.waiting.peek().is_none_or(|Reverse((at, ..))| *at >= self.next_flow_ns) {
            self.flow();
        }
        self.waiting.pop().map(|Reverse((.., record))| record)
    }
}

/// A live trace without a kernel: its inputs and its output.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) recorded: Recorded,
    pub(crate) decoder: Decoder,
    pub(crate) lines: Vec<String>,
    pub(crate) now: Timestamp,
    records: Records,
}

impl Live {
    /// Records into `path`.
    pub(crate) fn new(header: &Header, detail: Detail, path: &Path) -> Self {
        let mut recorded = Recorded::new(Pipeline::new(header.settings(detail), cluster()));
        let before = header.started;
        recorded.node_read(Arc::default(), before, before);
        let file = create(path, false).unwrap();
        recorded.begin(Recorder::begin(path, file, header, Addresses::default()).unwrap());
        Self {
            recorded,
            decoder: Decoder::new(Arc::new(header.layout()), header.clock_offset_ns),
            lines: Vec::new(),
            now: header.started,
            records: Records::default(),
        }
    }

    /// One turn of the event loop, at the time of the last of these records.
    pub(crate) fn turn<'r>(&mut self, records: impl IntoIterator<Item = &'r [u8]>) {
        let mut sightings = Vec::new();
        for record in records {
            let sighting = self.decoder.decode(record).unwrap();
            self.now = self.now.max(sighting.time);
            sightings.push(sighting);
            assert!(self.records.push(record));
        }
        self.recorded.observe(sightings, &mut self.records);
        self.pass(Duration::from_millis(1));
    }

    /// Advances the time.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time);
        let judgements = self.recorded.advance(self.now);
        self.lines.extend(lines(&judgements));
    }

    pub(crate) fn read_node(&mut self) {
        let asked = self.now;
        self.now = self.now.saturating_add(Duration::from_millis(3));
        let judgements = self.recorded.node_read(Arc::new(node(asked)), asked, self.now);
        self.lines.extend(lines(&judgements));
    }

    pub(crate) fn lose(&mut self, count: u64, within: Duration) {
        let (from, to) = (self.now, self.now.saturating_add(within));
        self.recorded.lost(Lost::of_unknown_hook(count, from, to));
    }

    /// Waits for the recorder. A live trace never does.
    pub(crate) fn catch_up(&mut self) {
        while self.recorded.recorder().is_some_and(|recorder| recorder.backlog_bytes() > 8 << 20) {
            std::thread::yield_now();
        }
    }

    fn judge_all(&mut self) {
        while self.recorded.pipeline().has_backlog() {
            let judgements = self.recorded.judge(self.now);
            self.lines.extend(lines(&judgements));
        }
    }

    /// Ends the trace. Returns its output and the result of the recording.
    pub(crate) fn end(mut self) -> (Vec<String>, viptrace::recording::Finished) {
        let judgements = self.recorded.finish(self.now);
        self.lines.extend(lines(&judgements));
        self.judge_all();
        if self.recorded.pipeline().wants_node() {
            self.read_node();
        }
        self.judge_all();
        let end = End { ended: self.now, gaps: vec!["nothing but a test".to_owned()] };
        (self.lines, self.recorded.end(end, CLOSE_LIMIT).unwrap())
    }
}

/// The lines that a user would see.
pub(crate) fn lines(judgements: &Judgements) -> Vec<String> {
    let judged = judgements.judged.iter().map(|judged| {
        format!(
            "{} {:?} {:?}",
            serde_json::to_string(&judged.verdict).unwrap(),
            judged.before.as_ref().map(|before| &before.class),
            judged.connect_time
        )
    });
    let mut folded: Vec<String> = judgements.folded.iter().map(|folded| format!("{folded:?}")).collect();
    folded.sort();
    judged.chain(folded).collect()
}

/// The output of a replay, and the trace's end if the recording has it.
pub(crate) fn replayed<R: std::io::Read + std::io::Seek>(
    player: &mut Player<R>,
) -> (Vec<String>, Option<End>) {
    let (mut said, mut end) = (Vec::new(), None);
    while let Some(step) = player.step().unwrap() {
        match step {
            Step::Judged { judgements, .. } => said.extend(lines(&judgements)),
            Step::Ended(ended) => end = Some(ended),
        }
    }
    said.extend(std::iter::from_fn(|| player.cut_off()).flat_map(|judgements| lines(&judgements)));
    (said, end)
}
