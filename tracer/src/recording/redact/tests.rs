//! Every recording of a real kernel, redacted: the same classes, and none of its names and addresses.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    io::Cursor,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::*;
use crate::{
    recording::{Player, Step, create, fixtures::recordings, item::put_piece},
    session::Detail,
};

fn redacted(bytes: Vec<u8>) -> (Vec<u8>, Redacted) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redacted.viptrace");
    let redaction = Redaction::open(Cursor::new(bytes)).unwrap();
    let redacted = redaction.write(create(&path, false).unwrap(), &mut Substitutes::default()).unwrap();
    (fs::read(path).unwrap(), redacted)
}

#[test]
fn the_boot_of_the_node_is_another_one_alike_in_all_copies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/two-nodes/node1.viptrace");
    let boot = |bytes: &[u8]| Reader::open(Cursor::new(bytes)).unwrap().1.boot.unwrap();
    let bytes = fs::read(path).unwrap();
    let (own, copy) = (boot(&bytes), boot(&redacted(bytes.clone()).0));
    assert!(own != copy && copy.len() == 36, "{own} {copy}");
    let folder = tempfile::tempdir().unwrap();
    let mut substitutes = Substitutes::default();
    let copies: Vec<_> = ["a", "b"]
        .map(|name| {
            let path = folder.path().join(name);
            let redaction = Redaction::open(Cursor::new(bytes.clone())).unwrap();
            redaction.write(create(&path, false).unwrap(), &mut substitutes).unwrap();
            fs::read(path).unwrap()
        })
        .into();
    assert_eq!(boot(&copies[0]), boot(&copies[1]));
}

#[test]
fn of_the_kernel_only_the_version_stays() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/two-nodes/node1.viptrace");
    let (_, header) = Reader::open(Cursor::new(fs::read(path).unwrap())).unwrap();
    for (own, copy) in [
        ("6.12.117+deb12-cloud-amd64", "6.12.117"),
        ("6.8.0-1021-acme-payments", "6.8.0"),
        ("5.14.0.7.acme", "5.14.0"),
        ("acme", ""),
    ] {
        let header = Header { kernel_release: own.to_owned(), ..header.clone() };
        assert_eq!(redacted_header(&header, &mut Names::default()).kernel_release, copy);
    }
}

/// The changes at the beginning of each file, as text.
fn changes(bytes: Vec<u8>) -> Vec<Value> {
    let (mut reader, _) = Reader::open(Cursor::new(bytes)).unwrap();
    let (mut found, mut block, mut assembler) = (Vec::new(), Block::default(), Assembler::default());
    while reader.next_block(&mut block).unwrap() {
        let mut items = block.items.as_slice();
        while let Some(item) = assembler.next(&mut items) {
            let item = item.unwrap();
            if matches!(item, Item::Changes(_)) {
                found.push(serde_json::from_slice(&item.encode().unwrap().1).unwrap());
            }
        }
    }
    found
}

#[test]
fn the_changes_of_the_hour_before_stay_with_other_names() {
    let saved = serde_json::json!({
        "changes": [
            {
                "time": "2026-01-02T10:00:01.000000000Z", "kind": "endpoint_removed", "subject": {"Service": {"namespace": "shop", "name": "cart"}},
                "text": "endpoint 10.244.1.7 left Service shop/cart",
            },
            {
                "time": "2026-01-02T10:00:02.000000000Z", "after": "2026-01-02T10:00:01.500000000Z", "kind": "pod_deleted",
                "subject": {"Pod": {"namespace": "shop", "name": "cart-0"}},
                "text": "the deletion of Pod shop/cart-0 was requested",
            },
            {"time": "2026-01-02T10:00:03.000000000Z", "kind": "node_changed", "subject": {"Node": "worker-1"}, "text": "Node worker-1 became not ready"},
            {
                "time": "2026-01-02T10:00:04.000000000Z", "kind": "sysctl", "subject": "ThisNode",
                "text": "net.ipv4.vs.conn_reuse_mode changed from 1 to 0",
            },
        ],
        "readings": {"version": {"time": "2026-01-02T09:00:00.000000000Z", "value": "v1.30.5"}, "mtus": {"acme0": {"time": "2026-01-02T09:00:00.000000000Z", "value": 1450}}},
        "wall_ahead_ns": 5,
    });
    let parsed: crate::session::SavedChanges = serde_json::from_value(saved.clone()).unwrap();
    let mut names = Names::default();
    let Some(item @ Item::Changes(_)) = redacted_item(&Item::Changes(Box::new(parsed)), &mut names) else {
        panic!("they are left out")
    };
    let copy: Value = serde_json::from_slice(&item.encode().unwrap().1).unwrap();
    let text = |at: usize| copy["changes"][at]["text"].as_str().unwrap();
    let ip = names.addresses.of("10.244.1.7".parse().unwrap());
    assert_eq!(text(0), format!("endpoint {ip} left Service namespace-1/service-1"));
    assert_eq!(text(1), "the deletion of Pod namespace-1/pod-1 was requested");
    assert_eq!(text(2), "Node node-1 became not ready");
    assert_eq!(text(3), saved["changes"][3]["text"]);
    for (at, own) in saved["changes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&copy["changes"][at]["time"], &copy["changes"][at]["kind"]),
            (&own["time"], &own["kind"])
        );
    }
    assert_eq!(copy["readings"]["version"]["value"], "v1.30.5");
    assert_eq!(copy["readings"]["mtus"]["interface-1"]["value"], 1450);
    assert_eq!(copy["wall_ahead_ns"], 5);
}

#[test]
fn no_recording_loses_its_changes() {
    let mut seen = 0;
    let two = ["node1", "node2"].map(|node| format!("../tests/fixtures/two-nodes/{node}.viptrace"));
    for path in recordings().into_iter().chain(two.map(PathBuf::from)) {
        let bytes = fs::read(&path).unwrap();
        let (own, copy) = (changes(bytes.clone()), changes(redacted(bytes).0));
        let times = |all: &[Value]| -> Vec<Value> {
            let each = all.iter().flat_map(|saved| saved["changes"].as_array().unwrap());
            each.map(|change| change["time"].clone()).collect()
        };
        assert_eq!((own.len(), times(&own)), (copy.len(), times(&copy)), "{}", path.display());
        seen += times(&own).len();
    }
    assert!(seen > 0);
}

#[test]
fn the_words_of_changes_stay() {
    let mut names = Names::default();
    names.namespace("shop");
    names.service("cart");
    for text in [
        "5 endpoints joined Service kubernetes, serving, terminating",
        "endpoint 127.0.0.1 of Service kubernetes became not ready",
        "Service kubernetes was deleted and created again",
        "Service kubernetes changed its session affinity from none to ClientIP for 10800 s; its externalTrafficPolicy from \
         Cluster to Local; and 2 other fields",
        "a container of Pod kube-system restarted 3 times",
        "Node kube-system no longer has port",
        "Node kube-system was cordoned",
        "the kubelet of Node kube-system changed from v1.30.5 to v1.31.0",
        "viptrace watches the API server again, after 12.5 s",
        "kube-proxy was started again: its process 17 is now 18",
        "a change was queued for kube-proxy's rules, which it had not written 1 h 3 min later",
        "kube-proxy's feature gate ProxyTerminatingEndpoints changed to true",
        "kube-proxy's rules are no longer in the kernel",
        "the conntrack table is only 12 % full (3 of 25 entries)",
        "nf_conntrack_max changed from 100 to 200",
        "the wall clock was set forward by 5.0 s",
    ] {
        assert_eq!(names.text(text), text);
    }
}

/// The number of verdicts of each class in a recording that lacks nothing.
fn classes(bytes: Vec<u8>) -> BTreeMap<String, usize> {
    let (classes, player) = replayed(bytes);
    assert_eq!((player.missing(), player.damage().1), (&crate::recording::Missing::default(), 0));
    classes
}

fn replayed(bytes: Vec<u8>) -> (BTreeMap<String, usize>, Player<Cursor<Vec<u8>>>) {
    let mut player = Player::open(Cursor::new(bytes), Detail::All).unwrap();
    let mut classes = BTreeMap::new();
    let mut take = |judgements: crate::session::Judgements| {
        for judged in judgements.judged {
            *classes
                .entry(format!("{} {:?}", judged.verdict.class, judged.verdict.confidence))
                .or_default() += 1;
        }
    };
    while let Some(step) = player.step().unwrap() {
        if let Step::Judged { judgements, .. } = step {
            take(judgements);
        }
    }
    std::iter::from_fn(|| player.cut_off()).for_each(&mut take);
    (classes, player)
}

#[test]
fn a_redacted_copy_of_a_damaged_recording_has_the_same_classes_and_losses() {
    let mut noted = 0;
    for path in recordings().iter().step_by(5) {
        let bytes = fs::read(path).unwrap();
        for place in [bytes.len() / 3, bytes.len() / 2, bytes.len() * 4 / 5] {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x10;
            // In a small file this is the header.
            if Player::open(Cursor::new(bytes.as_slice()), Detail::Faults).is_err() {
                continue;
            }
            let (own, player) = replayed(bytes.clone());
            let (copy, counts) = redacted(bytes);
            let (redacted, of_copy) = replayed(copy);
            let place = format!("{} at {place}", path.file_name().unwrap().to_string_lossy());
            assert_eq!(redacted, own, "{place}");
            // Damage behind the last whole block takes no time away from the flows.
            assert!(of_copy.missing().in_original <= counts.damaged, "{place}");
            noted += of_copy.missing().in_original;
            assert_eq!(of_copy.missing().dropped, player.missing().dropped, "{place}");
            let lost = |player: &Player<_>| {
                let pipeline = player.pipeline();
                (pipeline.lost_events(), pipeline.uncounted_losses())
            };
            assert_eq!(lost(&of_copy), lost(&player), "{place}");
        }
    }
    assert!(noted > 10, "{noted}");
}

/// The text of the header and of each item, without the numbers around them, whose bytes can be any; and the records.
fn contents(bytes: Vec<u8>) -> (String, Vec<Vec<u8>>, Vec<Value>) {
    let (mut reader, header) = Reader::open(Cursor::new(bytes)).unwrap();
    let mut values = vec![serde_json::to_value(&header).unwrap()];
    let (mut text, mut records) = (serde_json::to_vec(&header).unwrap(), Vec::new());
    let (mut block, mut assembler) = (Block::default(), Assembler::default());
    while reader.next_block(&mut block).unwrap() {
        records.extend(block.records.iter().map(<[u8]>::to_vec));
        let mut items = block.items.as_slice();
        while let Some(item) = assembler.next(&mut items) {
            let (_, body) = item.unwrap().encode().unwrap();
            if let Ok(value) = serde_json::from_slice(&body) {
                text.push(b'\n');
                text.extend_from_slice(&body);
                values.push(value);
            }
        }
    }
    (String::from_utf8_lossy(&text).into_owned(), records, values)
}

/// The names and addresses in a value: each text in a field that has names.
fn originals(value: &Value, field: &str, names: &mut BTreeSet<String>, ips: &mut BTreeSet<IpAddr>) {
    match value {
        Value::String(text) => {
            let ip = text.split('/').next().unwrap_or_default();
            let ip = ip.parse().or_else(|_| text.parse().map(|end: std::net::SocketAddr| end.ip()));
            if let Ok(ip) = ip {
                ips.insert(ip);
            }
            let is_name = matches!(
                field,
                "namespace"
                    | "node"
                    | "zone"
                    | "uid"
                    | "node_name"
                    | "labels"
                    | "selector"
                    | "external_name"
                    | "key"
            );
            if is_name {
                names.insert(text.clone());
            }
        }
        Value::Array(values) => values.iter().for_each(|value| originals(value, field, names, ips)),
        Value::Object(fields) => {
            for (own, value) in fields {
                if own == "name" && fields.contains_key("namespace") {
                    names.extend(value.as_str().map(str::to_owned));
                }
                let of = if matches!(field, "labels" | "selector") { field } else { own };
                originals(value, of, names, ips);
            }
        }
        _ => {}
    }
}

/// The texts that stay, because viptrace or its reader knows them.
const ALLOWED: [&str; 7] = ["", "default", "kube-system", "kubernetes", "kube-dns", "kube-proxy", "true"];

/// Whether `word` is in `text`. A new IPv6 address can have any hexadecimal digits between two colons, or between two dots in
/// the name of a chain, which ends with the address after two underscores.
fn has(text: &str, word: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(|c| c.is_ascii_alphanumeric() || c == '-');
    let is_hexadecimal = word.len() <= 4 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let groups = |c: char| c.is_ascii_hexdigit() || c == '.';
        let is_in_chain = before == Some('.') && text[..at].trim_end_matches(groups).ends_with("__");
        let is_in_address = is_hexadecimal && (before == Some(':') || is_in_chain);
        !is_part(before) && !is_part(text[at + word.len()..].chars().next()) && !is_in_address
    })
}

#[test]
fn a_group_of_an_address_is_no_name() {
    assert!(!has("service-8/tcp/grpc__fdd5.5a9e.7e27.db.8624.24d6.6e41.17a/9090", "db"));
    assert!(!has("[fdd5:5a9e:7e27:db::1]:80", "db"));
    for leak in ["grpc.db.shop.svc", "db.shop", "shop/db", "grpc__10.0.0.1/db", "service-8__db.8624"] {
        assert!(has(leak, "db"), "{leak}");
    }
}

/// A redacted recording, as somebody searches it for an address.
struct Copy {
    text: String,
    four: HashSet<[u8; 4]>,
    sixteen: HashSet<[u8; 16]>,
}

impl Copy {
    fn of(bytes: Vec<u8>) -> Self {
        let (text, records, _) = contents(bytes);
        // Times and identities, before these bytes, are numbers, which can be any.
        let copied = || records.iter().filter_map(|record| record.get(32..));
        Self {
            text,
            four: copied().flat_map(|bytes| bytes.array_windows().copied()).collect(),
            sixteen: copied().flat_map(|bytes| bytes.array_windows().copied()).collect(),
        }
    }

    /// Whether this address, which should have another one in its place, is anywhere in the copy.
    fn has(&self, ip: IpAddr) -> bool {
        let (stays, is_in_records) = match ip {
            IpAddr::V4(ip) => (
                ip.is_loopback() || ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast(),
                self.four.contains(&ip.octets()),
            ),
            IpAddr::V6(ip) => (
                ip.is_loopback() || ip.is_unspecified() || ip.is_multicast(),
                self.sixteen.contains(&ip.octets()),
            ),
        };
        !stays && (is_in_records || has(&self.text, &ip.to_string()))
    }
}

#[test]
fn a_redacted_recording_has_the_same_classes_and_no_name() {
    let mut seen = BTreeSet::new();
    for path in recordings() {
        let bytes = fs::read(&path).unwrap();
        let (other, counts) = redacted(bytes.clone());
        let place = path.file_name().unwrap().to_string_lossy();
        assert_eq!(
            (counts.unknown, counts.unreadable, counts.undecodable, counts.damaged),
            (0, 0, 0, 0),
            "{place}: {counts:?}"
        );
        assert_eq!(classes(other.clone()), classes(bytes.clone()), "{place}");

        let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::new());
        let (_, _, values) = contents(bytes.clone());
        for value in &values {
            originals(value, "", &mut names, &mut ips);
        }
        let mut copy = Copy::of(other);
        for name in names.iter().filter(|name| !ALLOWED.contains(&name.as_str())) {
            // Also a word of messages: "client error (Connect)".
            assert!(name == "client" || !has(&copy.text, name), "{place} has {name}");
            seen.insert(name.clone());
        }
        // By chance, one key in hundreds maps one range to another of the recording's own: what stays stays with each key.
        let mut left: Vec<_> = ips.into_iter().filter(|ip| copy.has(*ip)).collect();
        for _ in 0..4 {
            if left.is_empty() {
                break;
            }
            copy = Copy::of(redacted(bytes.clone()).0);
            left.retain(|ip| copy.has(*ip));
        }
        assert!(left.is_empty(), "{place} has {left:?} with each of five keys");
    }
    for name in ["shop", "cart", "worker-1", "zone-a", "12f03645-0bdb-4841-b9b5-f7409393d9c8"] {
        assert!(seen.contains(name), "{name}: {seen:?}");
    }
}

#[test]
fn unknown_items_are_left_out_and_counted() {
    use bytes::BufMut as _;

    use crate::recording::{
        frame::{Frame, FrameKind},
        records::Packer,
    };

    let path = recordings().remove(0);
    let mut bytes = fs::read(path).unwrap();
    let mut items = Vec::new();
    put_piece(&mut items, 100, b"secret-of-shop", false);
    put_piece(&mut items, 6, b"{\"no\": \"update\"}", false);
    let mut payload = Vec::new();
    payload.put_u32_le(u32::try_from(items.len()).unwrap());
    payload.extend(items);
    Packer::default().finish(&mut payload);
    let compressed = zstd::bulk::compress(&payload, 1).unwrap();
    let frame = Frame::around(FrameKind::Items, 1000, &compressed, u32::try_from(payload.len()).unwrap());
    bytes.extend(frame.encode());
    bytes.extend(compressed);
    let (other, counts) = redacted(bytes);
    assert_eq!((counts.unknown, counts.unreadable, counts.damaged), (1, 1, 1));
    assert!(!has(&contents(other).0, "secret-of-shop"));
}

#[test]
fn texts_keep_their_words_and_lose_their_names() {
    let mut names = Names::default();
    assert_eq!(names.namespace("shop"), "namespace-1");
    assert_eq!(names.service("cart"), "service-1");
    let text = names
        .text("tcp connect error: secret.example.com:6443 of shop/cart: Connection refused (os error 111)");
    assert_eq!(
        text,
        "tcp connect error: word-1:6443 of namespace-1/service-1: Connection refused (os error 111)"
    );
    let text = names
        .text("nothing answers on 127.0.0.1:10249, no chain KUBE-SERVICES at 2026-11-21T17:40:57.506966360Z");
    assert!(text.starts_with("nothing answers on 127.0.0.1:10249, no chain KUBE-SERVICES at "), "{text}");
    assert!(!names.text("10.244.1.11:80").contains("10.244.1.11"));
}

#[test]
fn an_address_of_ipv6_within_a_longer_word_is_replaced() {
    let mut names = Names::default();
    for text in [
        "http://[2001:470:1234:5678::10]:10249/metrics",
        "[2001:470:1234:5678::10]:443/TCP",
        "2001:470:1234:5678::10-2001:470:1234:5678::99",
        "-d 2001:470:1234:5678::10/128",
        "addr=2001:470:1234:5678::10,",
        "lladdr 52:54:00:12:34:56",
        "2001:470:1234:5678::10: no route",
    ] {
        let other = names.text(text);
        assert!(
            !other.contains("1234") && !other.contains("5678") && !other.contains("52:54"),
            "{text}: {other}"
        );
    }
    assert!(names.text("http://[2001:470:1234:5678::10]:10249/metrics").ends_with("]:10249/metrics"));
    // Its mapping is that of the whole address.
    assert!(names.text("[2001:470:1234:5678::10]:443/TCP").contains(&names.text("2001:470:1234:5678::10")));
    assert_eq!(names.text("at 12:34:56: [::1]:10249"), "at 12:34:56: [::1]:10249");
}

#[test]
fn rules_keep_their_form() {
    let mut names = Names::default();
    assert_eq!(names.rule("KUBE-SERVICES"), "KUBE-SERVICES");
    let chain = names.rule("KUBE-SVC-NPX46M4PTMTKRN6Y");
    assert!(
        chain.starts_with("KUBE-SVC-") && chain.len() == 25 && !chain.contains("NPX46M4PTMTKRN6Y"),
        "{chain}"
    );
    let (endpoint, service) = (
        names.rule("endpoint-CMZFK4QB-shop/cart/tcp/http__10.244.1.11/8080"),
        names.rule("service-242WI43H-shop/cart/tcp/http"),
    );
    assert!(endpoint.starts_with("endpoint-") && endpoint.ends_with("/8080"), "{endpoint}");
    assert!(endpoint.contains("-namespace-1/service-1/tcp/http__10."), "{endpoint}");
    assert!(
        service.ends_with("-namespace-1/service-1/tcp/http") && !service.contains("242WI43H"),
        "{service}"
    );
    assert_eq!(names.rule("my-company"), "chain-1");
    assert_eq!((names.interface("eth0"), names.interface("acme0")), ("eth0".into(), "interface-1".into()));
}
