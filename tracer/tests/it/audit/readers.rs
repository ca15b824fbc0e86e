//! Each parser reads what each writer writes, and no input makes a parser fail.

#![expect(clippy::format_push_string, reason = "texts are built line by line")]

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use proptest::prelude::*;
use viptrace::{
    diagnosis::path::{From, Question, Scene, To},
    net::{Family, Protocol},
    node::routes::Routes,
    report::{Paint, path},
    rules::{
        AddressRange, Addresses, Datum, Destination, Field, InIpset, Look, Origin, Probe, Rule, Ruleset,
        Side, Step, Verdict, VirtualServer, ipset, iptables, ipvs, nftables,
        walk::{Devices, End, Fate, Unknown, Walker, Witness},
    },
};

use super::captures::{IpvsCapture, read};

fn address(family: Family) -> BoxedStrategy<IpAddr> {
    match family {
        Family::Ipv4 => any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())).boxed(),
        // Without addresses that map IPv4, which have another text form.
        Family::Ipv6 => {
            any::<u64>().prop_map(|low| IpAddr::V6(((0xfd00_u128 << 112) | u128::from(low)).into())).boxed()
        }
    }
}

fn range(family: Family) -> impl Strategy<Value = AddressRange> {
    let bits: u8 = if family == Family::Ipv4 { 32 } else { 128 };
    (address(family), 1..=bits).prop_map(|(ip, length)| AddressRange::of(ip, length).unwrap())
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::TCP), Just(Protocol::UDP), Just(Protocol::SCTP)]
}

/// Conditions that iptables and nftables share.
fn condition(family: Family) -> BoxedStrategy<Step> {
    prop_oneof![
        (range(family), any::<bool>())
            .prop_map(|(range, negated)| Step::Source(Addresses::new([range], negated))),
        (range(family), any::<bool>())
            .prop_map(|(range, negated)| Step::Destination(Addresses::new([range], negated))),
        (protocol(), any::<bool>()).prop_map(|(protocol, negated)| Step::Protocol { protocol, negated }),
        (any::<u16>(), any::<bool>()).prop_map(|(port, negated)| Step::Port {
            first: port,
            last: port,
            negated
        }),
        any::<bool>().prop_map(|negated| Step::SourceLocal { negated }),
        any::<bool>().prop_map(|negated| Step::DestinationLocal { negated }),
        any::<bool>().prop_map(|negated| Step::State {
            new: true,
            translated: false,
            established: false,
            untracked: false,
            negated
        }),
        (any::<u32>(), any::<u32>(), any::<bool>()).prop_map(|(value, mask, negated)| Step::Mark {
            value,
            mask,
            negated
        }),
    ]
    .boxed()
}

fn end(family: Family) -> BoxedStrategy<Step> {
    let dnat = (address(family), 1..=u16::MAX)
        .prop_map(|(ip, port)| Verdict::Dnat(SocketAddr::from((ip, port)).into()));
    prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Reject),
        Just(Verdict::Return),
        Just(Verdict::Masquerade),
        "KUBE-[A-Z]{3}-[A-Z2-7]{16}".prop_map(|name| Verdict::Jump(name.into())),
        dnat,
    ]
    .prop_map(Step::Do)
    .boxed()
}

fn rules(family: Family) -> impl Strategy<Value = Vec<Vec<Step>>> {
    let rule = (prop::collection::vec(condition(family), 0..4), end(family)).prop_map(|(mut steps, end)| {
        steps.push(end);
        steps
    });
    prop::collection::vec(rule, 0..20)
}

// Writers.

fn not(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

fn in_iptables(step: &Step) -> String {
    let name = |protocol: &Protocol| protocol.to_string().to_ascii_lowercase();
    match step {
        Step::Source(of) => format!("{}-s {}", not(of.is_negated()), of.one().unwrap()),
        Step::Destination(of) => format!("{}-d {}", not(of.is_negated()), of.one().unwrap()),
        Step::Protocol { protocol, negated } => format!("{}-p {}", not(*negated), name(protocol)),
        Step::Port { first, negated, .. } => format!("-m tcp {}--dport {first}", not(*negated)),
        Step::SourceLocal { negated } => format!("-m addrtype {}--src-type LOCAL", not(*negated)),
        Step::DestinationLocal { negated } => format!("-m addrtype {}--dst-type LOCAL", not(*negated)),
        Step::State { negated, .. } => format!("-m conntrack {}--ctstate NEW", not(*negated)),
        Step::Mark { value, mask, negated } => {
            format!("-m mark {}--mark {value:#x}/{mask:#x}", not(*negated))
        }
        Step::Chance(chance) => format!("-m statistic --mode random --probability {chance:.11}"),
        Step::Do(Verdict::Accept) => "-j ACCEPT".into(),
        Step::Do(Verdict::Drop) => "-j DROP".into(),
        Step::Do(Verdict::Reject) => "-j REJECT --reject-with icmp-port-unreachable".into(),
        Step::Do(Verdict::Return) => "-j RETURN".into(),
        Step::Do(Verdict::Masquerade) => "-j MASQUERADE --random-fully".into(),
        Step::Do(Verdict::Jump(to)) => format!("-j {to}"),
        Step::Do(Verdict::Dnat(to)) => format!("-j DNAT --to-destination {}", to.get()),
        other => panic!("{other:?}"),
    }
}

fn in_nft_text(step: &Step, family: Family) -> String {
    let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
    let op = |negated: bool| if negated { "!= " } else { "" };
    match step {
        Step::Source(of) => format!("{ip} saddr {}{}", op(of.is_negated()), of.one().unwrap()),
        Step::Destination(of) => {
            format!("{ip} daddr {}{}", op(of.is_negated()), of.one().unwrap())
        }
        Step::Protocol { protocol, negated } => {
            format!("meta l4proto {}{}", op(*negated), protocol.to_string().to_ascii_lowercase())
        }
        Step::Port { first, negated, .. } => format!("th dport {}{first}", op(*negated)),
        Step::SourceLocal { negated } => format!("fib saddr type {}local", op(*negated)),
        Step::DestinationLocal { negated } => format!("fib daddr type {}local", op(*negated)),
        Step::State { negated, .. } => format!("ct state {}new", op(*negated)),
        Step::Mark { value, mask, negated } => {
            format!("meta mark & {mask:#010x} {} {value:#010x}", if *negated { "!=" } else { "==" })
        }
        Step::Do(Verdict::Accept) => "accept".into(),
        Step::Do(Verdict::Drop) => "drop".into(),
        Step::Do(Verdict::Reject) => "reject".into(),
        Step::Do(Verdict::Return) => "return".into(),
        Step::Do(Verdict::Masquerade) => "masquerade fully-random".into(),
        Step::Do(Verdict::Jump(to)) => format!("jump {to}"),
        Step::Do(Verdict::Dnat(to)) => format!("dnat to {}", to.get()),
        other => panic!("{other:?}"),
    }
}

fn in_nft_json(step: &Step, family: Family) -> serde_json::Value {
    use serde_json::json;
    let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
    let range = |range: &AddressRange| match range.to_string().split_once('/') {
        Some((addr, length)) => json!({"prefix": {"addr": addr, "len": length.parse::<u8>().unwrap()}}),
        None => json!(range.to_string()),
    };
    let op = |negated: bool| if negated { "!=" } else { "==" };
    let matches = |left, right, negated| json!({"match": {"op": op(negated), "left": left, "right": right}});
    let field = |field: &str| json!({"payload": {"protocol": ip, "field": field}});
    match step {
        Step::Source(of) => matches(field("saddr"), range(&of.one().unwrap()), of.is_negated()),
        Step::Destination(of) => matches(field("daddr"), range(&of.one().unwrap()), of.is_negated()),
        Step::Protocol { protocol, negated } => matches(
            json!({"meta": {"key": "l4proto"}}),
            json!(protocol.to_string().to_ascii_lowercase()),
            *negated,
        ),
        Step::Port { first, negated, .. } => {
            matches(json!({"payload": {"protocol": "th", "field": "dport"}}), json!(first), *negated)
        }
        Step::SourceLocal { negated } => {
            matches(json!({"fib": {"result": "type", "flags": ["saddr"]}}), json!("local"), *negated)
        }
        Step::DestinationLocal { negated } => {
            matches(json!({"fib": {"result": "type", "flags": ["daddr"]}}), json!("local"), *negated)
        }
        Step::State { negated, .. } => matches(json!({"ct": {"key": "state"}}), json!("new"), *negated),
        Step::Mark { value, mask, negated } => {
            matches(json!({"&": [{"meta": {"key": "mark"}}, mask]}), json!(value), *negated)
        }
        Step::Do(Verdict::Accept) => json!({"accept": null}),
        Step::Do(Verdict::Drop) => json!({"drop": null}),
        Step::Do(Verdict::Reject) => json!({"reject": {"type": "icmp", "expr": "port-unreachable"}}),
        Step::Do(Verdict::Return) => json!({"return": null}),
        Step::Do(Verdict::Masquerade) => json!({"masquerade": {"flags": "fully-random"}}),
        Step::Do(Verdict::Jump(to)) => json!({"jump": {"target": to.to_string()}}),
        Step::Do(Verdict::Dnat(to)) => {
            json!({"dnat": {"addr": to.get().ip().to_string(), "port": to.get().port()}})
        }
        other => panic!("{other:?}"),
    }
}

fn steps(ruleset: &Ruleset, table: &str, chain: &str) -> Vec<Vec<Step>> {
    let table = ruleset.tables.iter().find(|found| found.name.as_ref() == table).unwrap();
    table.chain(chain).unwrap().rules.iter().map(|rule: &Rule| rule.steps.to_vec()).collect()
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)]
}

/// The routes are not known.
struct Nowhere;

impl Devices for Nowhere {
    fn device_to(&self, _: IpAddr) -> Option<&str> {
        None
    }
}

/// The journey of one packet through damaged rules, from each place.
fn journeys(rules: &Ruleset) {
    let routes = Routes::default();
    let scene = Scene::new(rules, &routes);
    for (family, sources) in [
        (Family::Ipv4, ["10.244.1.100", "198.51.100.7"]),
        (Family::Ipv6, ["fd00:10:244:1::100", "2001:db8::7"]),
    ] {
        for frontend in rules.frontends(family).into_keys().take(4) {
            for source in sources {
                let source = source.parse().unwrap();
                let question = Question {
                    from: From::Address(source),
                    to: To::Address((frontend.address.unwrap_or(source), frontend.port).into()),
                    protocol: Some(frontend.protocol),
                    family: None,
                };
                let Ok(journey) = scene.journey(&question) else { continue };
                let sum: f64 = journey.ways.iter().map(|way| way.share).sum();
                assert!((sum - 1.0).abs() < 1e-6 || !journey.unjudged.is_empty(), "{journey:?}");
                assert!(!path::text(&journey, Paint(true)).is_empty());
            }
        }
    }
}

/// Queries everything, so that a panic in a query shows as well.
fn query_everything(rules: &Ruleset) {
    journeys(rules);
    for family in Family::ALL {
        let walker = Walker::new(rules, family);
        let traffic = rules.local_traffic(family);
        let (source, interface) = traffic.example(family);
        let interface = interface.map(ToOwned::to_owned);
        for frontend in rules.frontends(family).into_keys().take(50) {
            let address = frontend.address.unwrap_or(source);
            for origin in Origin::ALL {
                let destination = (address, frontend.port).into();
                let local = frontend.address.is_none();
                let interface = interface.as_deref();
                let protocol = frontend.protocol;
                let probe = Probe { origin, source, interface, destination, protocol, local, hairpin: true };
                let fate = walker.walk(&probe);
                let sum: f64 = fate.branches.iter().map(|branch| branch.weight).sum();
                assert!((sum - 1.0).abs() < 1e-6 || fate.cut, "{sum}: {fate:?}");
                let witness = Witness {
                    devices: Nowhere,
                    source_port: None,
                    is_reply: false,
                    ipvs_is_untracked: false,
                };
                let fate = Walker::whole(rules, family).observe(&probe, &witness);
                let known = fate.branches.iter().filter(|branch| branch.seen.assumed().is_none());
                let sum: f64 = known.map(|branch| branch.weight).sum();
                assert!((sum - 1.0).abs() < 1e-6 || fate.cut, "{sum}: {fate:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn iptables_rules_read_back(
        (family, written) in family().prop_flat_map(|family| (Just(family), rules(family))),
        counters: bool,
    ) {
        let mut text = String::from("*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n");
        for rule in &written {
            let count = if counters { "[1:60] " } else { "" };
            let words = rule.iter().map(in_iptables).collect::<Vec<_>>().join(" ");
            text.push_str(&format!("{count}-A KUBE-SERVICES {words}\n"));
        }
        text.push_str("COMMIT\n");
        let hint = iptables::Hint { family: Some(family), writer: None };
        let found = iptables::parse(&text, hint);
        prop_assert_eq!(found.skipped, 0);
        prop_assert_eq!(steps(&found, "nat", "KUBE-SERVICES"), written);
    }

    #[test]
    fn nft_rules_read_back(
        (family, written) in family().prop_flat_map(|family| (Just(family), rules(family))),
    ) {
        let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
        let mut text = format!("table {ip} kube-proxy {{\n\tchain services {{\n");
        let mut json = vec![
            serde_json::json!({"table": {"family": ip, "name": "kube-proxy"}}),
            serde_json::json!({"chain": {"family": ip, "table": "kube-proxy", "name": "services"}}),
        ];
        for rule in &written {
            let words = rule.iter().map(|step| in_nft_text(step, family)).collect::<Vec<_>>().join(" ");
            text.push_str(&format!("\t\t{words}\n"));
            let expr = rule.iter().map(|step| in_nft_json(step, family)).collect::<Vec<_>>();
            json.push(serde_json::json!({"rule": {"family": ip, "table": "kube-proxy", "chain": "services", "expr": expr}}));
        }
        text.push_str("\t}\n}\n");
        let found = nftables::parse(&text).unwrap();
        prop_assert_eq!(steps(&found, "kube-proxy", "services"), written.clone());
        let json = serde_json::json!({"nftables": json}).to_string();
        let found = nftables::parse(&json).unwrap();
        prop_assert_eq!(steps(&found, "kube-proxy", "services"), written);
    }

    #[test]
    fn ipvs_servers_read_back(
        servers in family().prop_flat_map(|family| prop::collection::vec(
            (protocol(), address(family), 1..=u16::MAX, prop::option::of(1_u32..100_000),
             prop::collection::vec((address(family), 1..=u16::MAX, 0_u32..100, any::<bool>()), 0..5)), 0..8)),
    ) {
        let mut known = BTreeSet::new();
        let servers = servers.into_iter().filter(|(p, ip, port, ..)| known.insert((*p, *ip, *port)));
        let servers = servers.map(|(protocol, ip, port, persistent, destinations)| VirtualServer {
            protocol,
            address: (ip, port).into(),
            scheduler: "rr".into(),
            persistent,
            destinations: destinations.into_iter().map(|(ip, port, weight, masquerade)| {
                Destination { address: (ip, port).into(), weight, masquerade }
            }).collect(),
        }).collect::<Vec<_>>();
        let (mut saved, mut listed) = (String::new(), String::from("IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n"));
        for server in &servers {
            let option = match server.protocol { Protocol::TCP => "-t", Protocol::UDP => "-u", _ => "--sctp-service" };
            let persistent = server.persistent.map(|s| format!(" -p {s}")).unwrap_or_default();
            saved.push_str(&format!("-A {option} {} -s rr{persistent}\n", server.address));
            let persistent = server.persistent.map(|s| format!(" persistent {s}")).unwrap_or_default();
            listed.push_str(&format!("{}  {} rr{persistent}\n", server.protocol, server.address));
            for real in &server.destinations {
                let forward = if real.masquerade { ("-m", "Masq") } else { ("-g", "Route") };
                saved.push_str(&format!("-a {option} {} -r {} {} -w {}\n", server.address, real.address, forward.0, real.weight));
                listed.push_str(&format!("  -> {}  {}  {}  0  0\n", real.address, forward.1, real.weight));
            }
        }
        prop_assert_eq!(ipvs::parse(&saved), servers.clone());
        prop_assert_eq!(ipvs::parse(&listed), servers);
    }

    #[test]
    fn ipsets_read_back(
        (family, elements) in family().prop_flat_map(|family| (Just(family), prop::collection::vec(
            (address(family), protocol(), any::<u16>(), range(family)), 0..20))),
    ) {
        let inet = if family == Family::Ipv4 { "inet" } else { "inet6" };
        let mut text = format!("create A hash:ip,port,net family {inet} hashsize 1024 maxelem 65536\n");
        for (ip, protocol, port, range) in &elements {
            let protocol = protocol.to_string().to_ascii_lowercase();
            text.push_str(&format!("add A {ip},{protocol}:{port},{range}\n"));
        }
        let found = ipset::parse(&text);
        prop_assert_eq!(found.skipped, 0);
        let read = found.sets[0].iter().map(|(key, _)| key.to_vec()).collect::<BTreeSet<_>>();
        let written = elements.iter().map(|(ip, protocol, port, range)| {
            let net = range.as_host().map_or(Datum::Range(*range), Datum::Address);
            vec![Datum::Address(*ip), Datum::Protocol(*protocol), Datum::Port(*port), net]
        }).collect::<BTreeSet<_>>();
        prop_assert_eq!(read, written);
    }

    #[test]
    fn rules_in_a_recording_read_back(which in 0..5_usize, edits in edits()) {
        let rules = match which {
            0 => iptables::parse(&damage(&read("kube-proxy/worker-1/iptables/iptables-save.txt"), &edits), iptables::Hint::default()),
            1 => nftables::parse(&damage(&read("kube-proxy/worker-1/nftables/nft-ruleset.json"), &edits)).unwrap_or_default(),
            2 => nftables::parse(&damage(&read("kube-proxy/worker-1/nftables/nft-ruleset.txt"), &edits)).unwrap_or_default(),
            3 => ipset::parse(&damage(&read("kube-proxy/worker-1/ipvs/ipset-save.txt"), &edits)),
            _ => IpvsCapture::worker_1().rules(),
        };
        let again: Ruleset = serde_json::from_slice(&serde_json::to_vec(&rules).unwrap()).unwrap();
        prop_assert_eq!(kept(&again), kept(&rules));
        query_everything(&again);
    }

    #[test]
    fn damaged_iptables_rules_are_read(edits in edits()) {
        let text = damage(&read("kube-proxy/worker-1/iptables/iptables-save.txt"), &edits);
        query_everything(&iptables::parse(&text, iptables::Hint::default()));
    }

    #[test]
    fn damaged_nft_listings_are_read(edits in edits(), json: bool) {
        let name = if json { "nft-ruleset.json" } else { "nft-ruleset.txt" };
        let text = damage(&read(&format!("kube-proxy/worker-1/nftables/{name}")), &edits);
        if let Ok(rules) = nftables::parse(&text) {
            query_everything(&rules);
        }
    }

    #[test]
    fn damaged_ipvs_lists_are_read(edits in edits(), which in 0..3_usize) {
        let mut capture = IpvsCapture::worker_1();
        let text = [&mut capture.iptables, &mut capture.ipset, &mut capture.servers].into_iter().nth(which).unwrap();
        *text = damage(text, &edits);
        query_everything(&capture.rules());
    }
}

/// All of it, with unordered parts sorted.
fn kept(rules: &Ruleset) -> serde_json::Value {
    fn sort(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(fields) => {
                if let Some(serde_json::Value::Array(elements)) = fields.get_mut("elements") {
                    elements.sort_by_key(ToString::to_string);
                }
                fields.values_mut().for_each(sort);
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(sort),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(rules).unwrap();
    sort(&mut value);
    value
}

/// Positions and edits.
fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0..6_u8, any::<u8>()), 1..12)
}

fn damage(text: &str, edits: &[(prop::sample::Index, u8, u8)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (index, kind, byte) in edits {
        if bytes.is_empty() {
            break;
        }
        let at = index.index(bytes.len());
        match kind {
            0 => bytes[at] = *byte,
            1 => bytes.truncate(at),
            2 => bytes.insert(at, *byte),
            3 => {
                bytes.remove(at);
            }
            // Replaces it with another part of the text.
            4 => {
                let from = usize::from(*byte) * 37 % bytes.len();
                let part = bytes[from..(from + 40).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let end = (at + usize::from(*byte)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn ipvs_as_the_kernel_lists_it() {
    let text = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> \
        RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  0A600A0A:0050 rr  persistent 2700000 FFFFFFFF\n  -> \
        0AF4010B:1F90      Masq    1      0          0\nUDP  [fd00:0000:0000:0000:0000:0000:0000:0010]:0035 rr\n  -> \
        [fd00:0000:0000:0000:0000:0000:0000:0011]:0035      Masq    0      0          0\n";
    let servers = ipvs::parse(text);
    assert_eq!(servers[0].address, "10.96.10.10:80".parse().unwrap());
    assert_eq!(servers[0].persistent, Some(ipvs::UNKNOWN_SECONDS));
    assert_eq!(servers[0].destinations[0].address, "10.244.1.11:8080".parse().unwrap());
    assert_eq!(servers[1].address, "[fd00::10]:53".parse().unwrap());
    assert_eq!(servers[1].destinations[0].weight, 0);
}

#[test]
fn ipset_sides_are_those_of_the_type() {
    let rules = iptables::parse(
        "*nat\n-A KUBE-SERVICES -m set --match-set KUBE-LOOP-BACK dst,dst,src -j RETURN\nCOMMIT\n",
        iptables::Hint::default(),
    );
    let sides = [Side::Destination, Side::Destination, Side::Source].into();
    let expected = Step::InIpset(InIpset { set: "KUBE-LOOP-BACK".into(), sides, negated: false }.into());
    assert_eq!(steps(&rules, "nat", "KUBE-SERVICES"), [vec![expected, Step::Do(Verdict::Return)]]);
}

#[test]
fn maps_of_nft_are_looked_up_by_their_fields() {
    let rules = nftables::parse(&read("kube-proxy/worker-1/nftables/nft-ruleset.json")).unwrap();
    let services = steps(&rules, "kube-proxy", "services");
    let fields = [Field::Destination, Field::Protocol, Field::Port].into();
    assert_eq!(services[0], [Step::Look(Look { fields, map: "service-ips".into() }.into())]);
}

/// The fate of a Pod's connection to the address that the rules below translate.
fn fate(rules: &Ruleset) -> Fate {
    let probe = Probe {
        origin: Origin::Pod,
        source: "10.244.1.90".parse().unwrap(),
        interface: None,
        destination: "10.96.0.1:80".parse().unwrap(),
        protocol: Protocol::TCP,
        local: false,
        hairpin: true,
    };
    Walker::new(rules, Family::Ipv4).walk(&probe)
}

#[test]
fn chains_that_call_themselves_end_with_a_note() {
    let iptables = "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
        -A KUBE-SERVICES -d 10.96.0.1/32 -g KUBE-SVC-A\n-A KUBE-SVC-A -g KUBE-SVC-A\nCOMMIT\n";
    let nft = "table ip kube-proxy {\n\tmap m {\n\t\ttype ipv4_addr : verdict\n\t\telements = { 10.96.0.1 : goto a }\n\t}\n\
        \tchain a {\n\t\ttype nat hook prerouting priority -100; policy accept;\n\t\tip daddr vmap @m\n\t}\n}\n";
    let iptables = iptables::parse(iptables, iptables::Hint::default());
    for rules in [iptables, nftables::parse(nft).unwrap()] {
        let fate = fate(&rules);
        let [branch] = fate.branches.as_slice() else { panic!("{fate:?}") };
        assert_eq!(branch.end, End::Passed);
        assert!(fate.unknown.iter().any(|unknown| matches!(unknown, Unknown::Endless(_))), "{fate:?}");
    }
}

/// Whether the endpoint could reach itself is asked beside the probe's own way.
#[test]
fn a_rule_that_drops_only_looped_connections_drops_no_other() {
    let rules = iptables::parse(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
        -A PREROUTING -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.12:8080\n\
        -A POSTROUTING -j KUBE-POSTROUTING\n\
        -A KUBE-POSTROUTING -s 10.244.1.12/32 -d 10.244.1.12/32 -j DROP\nCOMMIT\n",
        iptables::Hint::default(),
    );
    let fate = fate(&rules);
    let [branch] = fate.branches.as_slice() else { panic!("{fate:?}") };
    assert_eq!(branch.end, End::Endpoint("10.244.1.12:8080".parse().unwrap()));
    assert_eq!(branch.hairpin, Some(false));
}

#[test]
fn paths_that_double_in_each_chain_are_given_up() {
    let mut text = String::from(
        "table ip kube-proxy {\n\tchain c0 {\n\t\ttype nat hook prerouting priority -100; policy accept;\n",
    );
    for next in 1..40 {
        text.push_str(&format!("\t\tnumgen random mod 2 vmap {{ 0 : goto c{next}, 1 : goto c{next} }}\n\t}}\n\tchain c{next} {{\n"));
    }
    text.push_str("\t\tdrop\n\t}\n}\n");
    let fate = fate(&nftables::parse(&text).unwrap());
    assert!(fate.cut);
    assert!(fate.branches.len() < 70_000, "{}", fate.branches.len());
}

#[test]
fn many_real_servers_find_their_virtual_servers() {
    let address = |number: u32| format!("10.{}.{}.{}:80", number >> 16, number >> 8 & 255, number & 255);
    let mut text = String::new();
    for number in 0..40_000 {
        text.push_str(&format!("-A -t {} -s rr\n", address(number)));
    }
    for number in 0..40_000 {
        text.push_str(&format!("-a -t {} -r 10.244.1.1:80 -m -w 1\n", address(number)));
    }
    let begun = std::time::Instant::now();
    let servers = ipvs::parse(&text);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(servers.len(), 40_000);
    assert!(servers.iter().all(|server| server.destinations.len() == 1));
}
