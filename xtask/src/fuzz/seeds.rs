//! The inputs with which fuzzing begins, made from the captures, objects, records and recordings in the tests' folder.
//!
//! Owns the input format of each target; the first lines of each target describe it. A bad seed only costs time and
//! never makes a target unsound.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{Target, captures};
use crate::place::make_empty;

/// Longer files are not seeds: a target would run them only a few times a second.
const MAX_FILE_BYTES: u64 = 128 << 10;

/// Replaces the contents of `folder` with the seeds of a target. Returns their number.
pub(super) fn write(target: &Target, tests: &Path, folder: &Path) -> Result<usize> {
    let &Target { name: target, max_bytes, .. } = target;
    let mut seeds = of(target, tests)?;
    // libFuzzer would truncate longer seeds.
    seeds.retain(|seed| seed.len() as u64 <= max_bytes);
    if seeds.is_empty() {
        bail!("there are no seeds for the fuzz target {target} below {}", tests.display());
    }
    make_empty(folder)?;
    for (number, seed) in seeds.iter().enumerate() {
        let path = folder.join(format!("{number:04}"));
        fs::write(&path, seed).with_context(|| format!("could not write {}", path.display()))?;
    }
    Ok(seeds.len())
}

fn of(target: &str, tests: &Path) -> Result<BTreeSet<Vec<u8>>> {
    let files = files(&tests.join("fixtures"))?;
    let corpus = tests.join("corpus");
    let list = match target {
        "btf" => vec![read(corpus.join("small-kernel.btf"))?],
        "check" => check(&files, tests)?,
        "config" => made::CONFIGS.map(Vec::from).into(),
        "decode" => {
            let records =
                [records(&corpus.join("debian-6.1.records"))?, records(&corpus.join("debian-6.12.records"))?];
            let strides = [0_u32, 8].map(u32::to_le_bytes);
            let records = records.concat();
            strides
                .iter()
                .flat_map(|stride| records.iter().map(|record| [stride, record.as_slice()].concat()))
                .collect()
        }
        "entries" => {
            let dump = read(corpus.join("datagrams.ctnetlink"))?;
            [0, 30].map(|timeout| [&[timeout], dump.as_slice()].concat()).into()
        }
        "netlink" => netlink::seeds().into(),
        "objects" => objects(&files)?,
        "pcap" => captures::seeds(),
        "recording" => with_ending(&files, ".viptrace").map(read).collect::<Result<_>>()?,
        "replay" => replay(&files, &corpus)?,
        "rules" => rules(&files)?,
        "stream" => stream::seeds(),
        "tape" => tape(&files, &corpus)?,
        "texts" => texts(&files)?,
        other => bail!("there are no seeds for the fuzz target {other}"),
    };
    Ok(list.into_iter().collect())
}

/// The names of captured files, each with its format.
const RULES: [(&str, u8); 7] = [
    ("iptables-save.txt", 0),
    ("ip6tables-save.txt", 0),
    ("nft-ruleset.json", 1),
    ("nft-ruleset.txt", 1),
    ("ipvsadm-save.txt", 2),
    ("ipvsadm-list.txt", 2),
    ("ipset-save.txt", 3),
];

fn rules(files: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for (name, format) in RULES {
        for path in with_ending(files, name) {
            seeds.push([&[format], compact(path)?.as_slice()].concat());
        }
    }
    Ok(seeds)
}

/// Every file of a node alone, and each whole node: its rules and settings with the cluster's objects.
fn check(files: &[PathBuf], tests: &Path) -> Result<Vec<Vec<u8>>> {
    let part = |path: &Path| -> Result<Vec<u8>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(["=== ".as_bytes(), name.as_bytes(), b"\n", &compact(path)?].concat())
    };
    let mut seeds = vec![made::CHECK_TEXTS.into()];
    for path in files
        .iter()
        .filter(|path| is_of(path, "incidents") || is_of(path, "worker-1") || is_of(path, "cluster"))
    {
        seeds.push(part(path)?);
    }
    let objects = ["services.json", "endpointslices.json", "nodes.json"];
    let node = tests.join("fixtures/kube-proxy/worker-1");
    for mode in ["iptables", "nftables", "ipvs"] {
        let mut whole = made::SAVED_CHECK.as_bytes().to_vec();
        for name in objects {
            whole.extend(part(&tests.join("fixtures/cluster").join(name))?);
        }
        let rules = RULES.iter().map(|(name, _)| *name).filter(|name| !name.ends_with("list.txt"));
        for name in rules.chain(["proxyMode.txt", "config.yaml", "sysctl.txt", "ip-addr.json"]) {
            let path = node.join(mode).join(name);
            // Of two listings of the same rules, only the shorter one.
            let other = mode != "nftables" && name.starts_with("nft-") || name == "nft-ruleset.json";
            if path.is_file() && !other {
                whole.extend(part(&path)?);
            }
        }
        seeds.push(whole);
    }
    Ok(seeds)
}

/// Each object of each list.
fn objects(files: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for path in with_ending(files, ".json") {
        let Ok(value) = serde_json::from_slice::<Value>(&read(path)?) else { continue };
        let items = value.get("items").and_then(Value::as_array);
        seeds.extend(items.into_iter().flatten().map(|item| item.to_string().into_bytes()));
    }
    Ok(seeds)
}

fn texts(files: &[PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    let mut put = |kind: u8, text: &[u8]| seeds.push([&[kind], text].concat());
    for target in made::TARGETS {
        put(0, target.as_bytes());
    }
    for name in ["proxyMode.txt", "healthz.txt", "livez.txt"] {
        for path in with_ending(files, name) {
            put(
                1,
                &[b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n", read(path)?.as_slice()].concat(),
            );
        }
    }
    for text in made::PROC_FILES {
        put(2, text.as_bytes());
    }
    put(3, made::SAVED_CHECK.as_bytes());
    put(4, made::MANIFEST.as_bytes());
    for path in files.iter().filter(|path| !is_of(path, "recordings")) {
        let text = compact(path)?;
        let text = text.get(..text.len().min(4096)).unwrap_or_default();
        for name in ["x", &path.file_name().unwrap_or_default().to_string_lossy()] {
            put(5, &[name.as_bytes(), b"\n", text].concat());
        }
    }
    Ok(seeds)
}

/// Kinds of pieces; see `tests/fuzz/targets/pieces.rs`.
const ITEM: u8 = 0;
const RECORD: u8 = 1;
const PACKED: u8 = 2;
const END_OF_BLOCK: u8 = 3;
const HEADER: u8 = 4;
/// Kinds of items; see `tracer/src/recording/mod.rs`.
const ADVANCE: u8 = 2;
const FINISH: u8 = 5;
const NODE: u8 = 7;
const OBJECT: u8 = 8;

/// The offset from a corpus record's time to Unix time, in nanoseconds: see the target's header.
const CLOCK_OFFSET_NS: u64 = 1_796_083_200_000_000_000;

/// Recordings split into pieces, and the corpus's records after a snapshot of the node.
fn replay(files: &[PathBuf], corpus: &Path) -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for (detail, path) in [0, 1].into_iter().cycle().zip(with_ending(files, ".viptrace")) {
        let bytes = read(path)?;
        let pieces =
            unframed(&bytes).with_context(|| format!("could not split {} into pieces", path.display()))?;
        seeds.push([&[detail], pieces.as_slice()].concat());
    }
    let reading = read(corpus.join("node-reading.json"))?;
    for detail in [0, 1] {
        let mut pieces = vec![detail];
        put(&mut pieces, ITEM, &[&[NODE], reading.as_slice()].concat());
        for record in records(&corpus.join("debian-6.12.records"))? {
            put(&mut pieces, RECORD, &record);
        }
        // A time long after all records, so that flows get a verdict; then the end of the trace.
        let late = (CLOCK_OFFSET_NS + 3_600_000_000_000).to_le_bytes();
        for kind in [ADVANCE, FINISH] {
            put(&mut pieces, ITEM, &[&[kind], late.as_slice()].concat());
        }
        put(&mut pieces, ITEM, &[&[NODE], reading.as_slice()].concat());
        put(&mut pieces, END_OF_BLOCK, &[1]);
        seeds.push(pieces);
    }
    Ok(seeds)
}

/// Each of these recordings alone, damaged, cut off, and beside the next one.
fn tape(files: &[PathBuf], corpus: &Path) -> Result<Vec<Vec<u8>>> {
    /// Kinds of pieces; see `tests/fuzz/targets/tape.rs`.
    const PIECES: u8 = 0;
    const DAMAGE: u8 = 2;
    const CUT: u8 = 3;
    const AT: [u8; 4] = 3_000_u32.to_le_bytes();
    let recordings = replay(files, corpus)?;
    let mut seeds = Vec::new();
    let nexts = recordings.iter().cycle().skip(1);
    for (number, (recording, next)) in recordings.iter().zip(nexts).enumerate() {
        // Without the flags.
        let [one, other] = [recording, next].map(|recording| recording.get(1..).unwrap_or_default());
        let mut seed = Vec::new();
        put(&mut seed, PIECES, one);
        match number % 4 {
            0 => put(&mut seed, DAMAGE, &[AT.as_slice(), &[0xaa; 8]].concat()),
            1 => put(&mut seed, CUT, &AT),
            2 => put(&mut seed, PIECES, one),
            _ => put(&mut seed, PIECES, other),
        }
        seeds.push(seed);
    }
    Ok(seeds)
}

fn put(pieces: &mut Vec<u8>, kind: u8, piece: &[u8]) {
    let [low, middle, high, _] = u32::try_from(piece.len()).unwrap_or(0).to_le_bytes();
    pieces.extend([kind, low, middle, high]);
    pieces.extend(piece);
}

/// The pieces of a whole recording. `None` if `file` is not a recording.
fn unframed(mut file: &[u8]) -> Option<Vec<u8>> {
    const FILE_MAGIC_BYTES: usize = 16;
    const FRAME_HEADER_BYTES: usize = 32;
    const MAX_PAYLOAD_BYTES: usize = 16 << 20;
    let mut pieces = Vec::new();
    file = file.get(FILE_MAGIC_BYTES..)?;
    while let Some((header, rest)) = file.split_at_checked(FRAME_HEADER_BYTES) {
        let (kind, compressed_bytes) = (word(header, 8)?, word(header, 16)?);
        let (compressed, rest) = rest.split_at_checked(compressed_bytes as usize)?;
        let payload = zstd::bulk::decompress(compressed, MAX_PAYLOAD_BYTES).ok()?;
        if kind == 0 {
            put(&mut pieces, HEADER, &payload);
        } else {
            let (mut items, packed) = payload.get(4..)?.split_at_checked(word(&payload, 0)? as usize)?;
            while let Some(item) = item(&mut items) {
                // Most of the cluster's objects add time and no coverage.
                let names = |name: &str| item.windows(name.len()).any(|bytes| bytes == name.as_bytes());
                if item.first() != Some(&OBJECT) || ["cart", "checkout", "worker-1"].into_iter().any(names) {
                    put(&mut pieces, ITEM, &item);
                }
            }
            put(&mut pieces, PACKED, packed);
            put(&mut pieces, END_OF_BLOCK, &[1]);
        }
        file = rest;
    }
    Some(pieces)
}

/// Kind and body of the next item.
fn item(items: &mut &[u8]) -> Option<Vec<u8>> {
    let mut take = |count: usize| items.split_off(..count);
    let kind = take(1)?;
    let mut length = 0_usize;
    for shift in (0..35).step_by(7) {
        let byte = *take(1)?.first()?;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some([kind, take(length)?].concat())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The lines `record HEX` of a corpus.
fn records(path: &Path) -> Result<Vec<Vec<u8>>> {
    let text = fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
    let record = |line: &str| {
        let hex = line.strip_prefix("record ")?;
        (0..hex.len() / 2).map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect()
    };
    Ok(text.lines().filter_map(record).collect())
}

fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    fs::read(path).with_context(|| format!("could not read {}", path.display()))
}

/// JSON without its spaces, kube-proxy's own metrics, and the beginning of any other file.
fn compact(path: &Path) -> Result<Vec<u8>> {
    const MAX_TEXT_BYTES: usize = 16 << 10;
    let bytes = read(path)?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    match serde_json::from_slice::<Value>(&bytes) {
        Ok(value) if is_json => return Ok(value.to_string().into_bytes()),
        _ => {}
    }
    let text = String::from_utf8_lossy(&bytes);
    let is_metric = |line: &&str| line.contains("kubeproxy_") || line.contains("kubernetes_build_info");
    let mut text = if path.ends_with("metrics.txt") {
        text.lines().filter(is_metric).flat_map(|line| [line, "\n"]).collect()
    } else {
        text.into_owned()
    };
    text.truncate(
        (0..=MAX_TEXT_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0),
    );
    Ok(text.into_bytes())
}

/// Whether the path has a folder of this name.
fn is_of(path: &Path, folder: &str) -> bool {
    path.components().any(|part| part.as_os_str() == folder)
}

fn with_ending<'a>(files: &'a [PathBuf], ending: &'a str) -> impl Iterator<Item = &'a PathBuf> {
    files.iter().filter(move |path| path.to_string_lossy().ends_with(ending))
}

/// All files below a folder that are not too long, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("could not list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("could not list {}", folder.display()))?;
            let meta = entry
                .metadata()
                .with_context(|| format!("could not read the metadata of {}", entry.path().display()))?;
            if meta.is_dir() {
                folders.push(entry.path());
            } else if meta.len() <= MAX_FILE_BYTES {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Netlink replies of the kernel that no fixture has: from IPVS and from conntrack's counters.
mod netlink {
    /// See `tests/fuzz/targets/netlink.rs`.
    const FAMILY: u16 = 0x1f;

    pub(super) fn seeds() -> [Vec<u8>; 3] {
        let v4 = |last: u8| [&[10, 96, 10, last], [0; 12].as_slice()].concat();
        let v6 = |last: u8| [&[0xfd], [0; 14].as_slice(), &[last]].concat();
        let (inet, inet6) = (2_u16.to_ne_bytes(), 10_u16.to_ne_bytes());
        let services = [service(&inet, 6, &v4(10), 1), service(&inet6, 17, &v6(10), 0)].concat();
        let real = [real(&inet, &v4(1)), real(&inet6, &v6(2)), message(3, &[0; 4])].concat();
        let cpu = [2, 4, 8, 9, 10, 11, 12, 13, 14, 15]
            .map(|column: u16| attribute(column, &u32::from(column).to_be_bytes()))
            .concat();
        let row = message(0x0104, &[&[0; 4], cpu.as_slice()].concat());
        [
            [&[0], (services.len() as u16).to_le_bytes().as_slice(), &services, &real].concat(),
            [&[0], (services.len() as u16).to_le_bytes().as_slice(), &services].concat(),
            [&[1], row.as_slice(), &row, &message(3, &[0; 4])].concat(),
        ]
    }

    fn service(family: &[u8], protocol: u8, address: &[u8], flags: u32) -> Vec<u8> {
        let attributes = [
            attribute(1, family),
            attribute(2, &[protocol, 0]),
            attribute(3, address),
            attribute(4, &80_u16.to_be_bytes()),
            attribute(6, b"rr\0"),
            attribute(7, &[flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat()),
            attribute(8, &10_800_u32.to_ne_bytes()),
        ];
        message(FAMILY, &[&[1, 1, 0, 0], attribute(1, &attributes.concat()).as_slice()].concat())
    }

    fn real(family: &[u8], address: &[u8]) -> Vec<u8> {
        let attributes = [
            attribute(1, address),
            attribute(2, &8080_u16.to_be_bytes()),
            attribute(3, &0_u32.to_ne_bytes()),
            attribute(4, &1_u32.to_ne_bytes()),
            attribute(11, family),
        ];
        message(FAMILY, &[&[5, 1, 0, 0], attribute(2, &attributes.concat()).as_slice()].concat())
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (body.len() + 16) as u32;
        [length.to_ne_bytes().as_slice(), &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (value.len() + 4) as u16;
        let mut bytes = [length.to_ne_bytes().as_slice(), &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

/// Both ends of the agent's socket (docs/agent.md).
mod stream {
    pub(super) fn seeds() -> Vec<Vec<u8>> {
        let requests = [
            "verdicts",
            r#"verdicts","heartbeat":true,"unknown":""#,
            "counts",
            "segments",
            r#"segment","name":"00000001-20260102T030405006Z.viptrace"#,
        ];
        let requests = requests.map(|want| format!("{{\"viptrace\":1,\"want\":\"{want}\"}}\n").into_bytes());
        let hello = frame(1, br#"{"viptrace":1,"version":"0.1.0","node":"worker-1","heartbeat":10}"#);
        let record =
            frame(2, br#"{"class":"C20","service":{"namespace":"shop","name":"cart","port":"http"}}"#);
        let lost = frame(4, br#"{"lost":7}"#);
        let verdicts = [hello.as_slice(), &record, &lost, &record, &frame(7, &[]), &frame(6, &[])].concat();
        let segment = [hello.as_slice(), &frame(3, &[0xf1; 40]), &frame(6, &[])].concat();
        let refused = [hello.as_slice(), &frame(5, b"there is no segment with this name")].concat();
        requests.into_iter().chain([verdicts, segment, refused]).collect()
    }

    fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind], (body.len() as u32).to_le_bytes().as_slice(), body].concat()
    }
}

/// Texts that no fixture has.
mod made {
    /// Every section of the agent's configuration, one that is refused, and the values that have a syntax of their own.
    pub(super) const CONFIGS: [&str; 3] = [
        "version: 1\nnode: worker-1\ncluster: {kubeconfig: /k, context: c}\ngrace: 500ms\nhooks: full\nsample: 1/50\n\
         max_flows: 512\nbuffer: 4M\noutput: json\ndrain: 20s\nkernel_stats: true\n\
         metrics:\n  listen: '[::]:9478'\n  max_series: 1000\n  endpoints: false\n  keep: 5m\n  authorization: token\n\
         \x20 tls: {certificate: /c.pem, key: /c.key}\nhealth: {listen: null}\n\
         recorder: {folder: /r, max_bytes: 1G, max_age: 7h, segment_bytes: 64M, segment_age: 10m}\n\
         stream: {socket: /run/a.sock, max_readers: 4, queue: 16}\n\
         otlp:\n  endpoint: https://collector.example:4318/base\n  ca: /ca.pem\n  headers: {x-tenant: a}\n\
         \x20 logs: true\n  metrics: false\n  interval: 1m\n  timeout: 5s\n  queue: 64\nlog: {level: warn, per_minute: 6}\n",
        "version: 1\nmetrics:\n  authorization: token\n",
        "# a comment\nversion: 1\ncluster: {folder: /lists}\nmetrics: {listen: null}\nbuffer: 4096\n",
    ];
    pub(super) const TARGETS: [&str; 9] = [
        "shop/cart",
        "cart\nshop",
        "svc/shop/cart",
        "pod/shop/cart-7d.x",
        "po/cart-0\nshop",
        "10.96.0.10",
        "10.96.0.10:53",
        "2001:db8::1",
        "[2001:db8::1]:80",
    ];
    pub(super) const PROC_FILES: [&str; 3] = [
        "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n\
         00000a0f  00000001 00000002 00000000 00000003 00000004 00000000 00000005 00000000 00000006 00000007 00000008 00000000  00000000 00000000 00000000 00000009\n",
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.244.1.0\n        /24 link UNICAST\n     |-- 10.244.1.1\n        /32 host LOCAL\n\0\
         fd000000000000000000000000000010 02 40 00 80 kube-ipvs0\n",
        "Inter-|   Receive\n face |bytes    packets\n    lo:  1 2 0\nkube-ipvs0: 0 0 0\ncilium_host: 0 0\n",
    ];
    pub(super) const SAVED_CHECK: &str = r#"{"node":"worker-2","state":"broken","findings":[{"class":"C20","level":"fault","root_cause":"no_endpoints","service":{"namespace":"shop","name":"checkout"}},{"class":"C16","level":"warning","root_cause":"conntrack"}],"facts":{"kube-proxy mode":"ipvs","sysctl: net.ipv4.ip_forward":"0","rules: shop/cart:http 10.96.10.10:80/TCP":"refused"}}
"#;
    pub(super) const MANIFEST: &str = r#"{"kind":"viptrace-capture","format":1,"viptrace":"0.1.0","taken":"2026-11-20T23:25:05.5Z","taken_ns":1795217105500000000,"node":"worker-1","files":[{"name":"sysctl.txt","source":"/proc/sys","bytes":25}],"gaps":[{"name":"ipset-save.txt","why":"not installed"}]}"#;
    /// The files that only a live capture has.
    pub(super) const CHECK_TEXTS: &str = "=== proxyMode.txt\niptables\n=== nf_conntrack.stat.txt\nentries drop insert_failed early_drop\n0f 1 2 3\n\
         === nf_conntrack.stat.later.txt\nentries drop insert_failed early_drop\n0f 2 2 3\n\
         === netstat.txt\nTcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 0 7\n\
         === netstat.later.txt\nTcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 0 9\n\
         === nf_conntrack.namespaces.txt\n4026531840 12 262144 init\n4026532001 9 262144 shop/cart-1\n\
         === kube-proxy.process.json\n{\"complete\":true,\"program\":\"kube-proxy\",\"arguments\":[\"--proxy-mode=ipvs\",\"--hostname-override\",\"worker-1\"],\"pid\":7,\"cpus\":2}\n\
         === version.json\n{\"serverVersion\":{\"gitVersion\":\"v1.33.1\"}}\n\
         === sysctl.txt\nnet.ipv4.ip_forward = 0\nnet.netfilter.nf_conntrack_max = 262144\nnet.netfilter.nf_conntrack_count = 262144\n\
         === daemonsets.json\n{\"items\":[{\"metadata\":{\"name\":\"kube-proxy\"},\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"image\":\"registry.k8s.io/kube-proxy:v1.33.1\"}]}}},\"status\":{\"desiredNumberScheduled\":2,\"numberReady\":1}}]}\n\
         === events.json\n{\"items\":[{\"involvedObject\":{\"name\":\"kube-proxy-x\"},\"reason\":\"BackOff\",\"message\":\"m\",\"type\":\"Warning\",\"count\":7,\"lastTimestamp\":\"2026-11-20T23:25:05Z\"}]}\n";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds_that_replace_older_ones() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
        let here = tempfile::tempdir().unwrap();
        for target in super::super::TARGETS {
            let folder = here.path().join(target.name);
            fs::create_dir_all(folder.join("left over")).unwrap();
            let count = write(target, &tests, &folder).unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), count, "{}", target.name);
            for seed in fs::read_dir(&folder).unwrap() {
                let bytes = seed.unwrap().metadata().unwrap().len();
                assert!((1..=target.max_bytes).contains(&bytes), "{}: {bytes} bytes", target.name);
            }
        }
    }

    #[test]
    fn a_recording_is_split_into_pieces() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/recordings/debian-6.12-healthy-tcp.viptrace");
        let pieces = unframed(&fs::read(path).unwrap()).unwrap();
        let mut kinds = BTreeSet::new();
        let mut rest = pieces.as_slice();
        while let Some(([kind, length @ ..], behind)) = rest.split_first_chunk::<4>() {
            kinds.insert(*kind);
            let [low, middle, high] = *length;
            rest = behind.get(u32::from_le_bytes([low, middle, high, 0]) as usize..).unwrap();
        }
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [ITEM, PACKED, END_OF_BLOCK, HEADER]);
        assert_eq!(unframed(b"something else"), None);
    }
}
