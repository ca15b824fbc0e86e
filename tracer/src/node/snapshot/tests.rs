//! The facts in a node's texts, and the facts that the texts leave unknown.
use super::*;
use crate::{
    net::{Family, Protocol},
    node::interfaces::names_to_text,
};

const SAVED: &str = include_str!("../../../tests/data/iptables-save.txt");

fn capture(texts: &[(Kind, &str)]) -> Capture {
    let mut capture = Capture { taken: Some(Timestamp::from_unix_secs(1)), ..Capture::default() };
    for (kind, text) in texts {
        capture.put(*kind, kind.file_name(), (*text).to_owned());
    }
    capture
}

fn read(texts: &[(Kind, &str)]) -> Snapshot {
    Snapshot::read(&capture(texts))
}

fn rule(snapshot: &Snapshot, vip: &str, protocol: Protocol) -> Option<RuleEffect> {
    snapshot.rule(vip.parse().unwrap(), protocol)
}

#[test]
fn a_vip_leads_to_its_endpoints() {
    let snapshot = read(&[(Kind::IptablesSave, SAVED)]);
    let found = snapshot.vip_rule("10.96.10.10:80".parse().unwrap(), Protocol::TCP).unwrap();
    assert_eq!(found.rule, RuleEffect::Forwards);
    assert_eq!(found.chain.as_deref(), Some("KUBE-SVC-I5LIAMPLWKMBJ54B"));
    let endpoints = ["10.244.1.11:8080", "10.244.1.12:8080", "10.244.2.13:8080"].map(|e| e.parse().unwrap());
    assert_eq!(found.endpoints.iter().map(|(endpoint, _)| *endpoint).collect::<Vec<_>>(), endpoints);
    assert!(found.endpoints.iter().all(|(_, share)| (share - 1.0 / 3.0).abs() < 1e-6), "{found:?}");
}

#[test]
fn protocol_port_and_address_all_count() {
    let snapshot = read(&[(Kind::IptablesSave, SAVED)]);
    assert_eq!(rule(&snapshot, "10.96.10.10:80", Protocol::UDP), Some(RuleEffect::Missing));
    assert_eq!(rule(&snapshot, "10.96.10.10:81", Protocol::TCP), Some(RuleEffect::Missing));
    assert_eq!(rule(&snapshot, "10.96.10.11:80", Protocol::TCP), Some(RuleEffect::Missing));
    // No IPv6 list was read.
    assert_eq!(rule(&snapshot, "[2001:db8::1]:80", Protocol::TCP), None);
}

#[test]
fn a_service_without_endpoints_is_refused_and_a_local_one_dropped() {
    let snapshot = read(&[(Kind::IptablesSave, SAVED)]);
    assert_eq!(rule(&snapshot, "10.96.10.20:80", Protocol::TCP), Some(RuleEffect::Refuses));
    assert_eq!(rule(&snapshot, "10.96.10.60:6379", Protocol::TCP), Some(RuleEffect::Drops));
}

#[test]
fn a_node_port_is_found_on_the_nodes_address() {
    let snapshot = read(&[(Kind::IptablesSave, SAVED), (Kind::Addresses, "192.0.2.11\n")]);
    let found = snapshot.vip_rule("192.0.2.11:30443".parse().unwrap(), Protocol::TCP).unwrap();
    assert_eq!(found.chain.as_deref(), Some("KUBE-EXT-OTVU7MV6PRR7MW2X"));
    assert_eq!(found.endpoints, [("10.244.1.41:8443".parse().unwrap(), 1.0)]);
}

#[test]
fn absence_counts_where_what_the_mode_writes_was_read() {
    let vip = "10.96.10.10:80";
    let mode = |mode| (Kind::ProxyMode, mode);
    let iptables = read(&[mode("iptables"), (Kind::IptablesSave, SAVED)]);
    assert_eq!(rule(&iptables, vip, Protocol::TCP), Some(RuleEffect::Forwards));
    assert_eq!(iptables.proxy_rules, ProxyRules { v4: Presence::Present, v6: Presence::Unknown });
    let empty = (Kind::IptablesSave, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n");
    assert_eq!(read(&[mode("iptables"), empty]).proxy_rules.any(), Presence::Absent);
    // If the mode is unknown, every list must be empty.
    assert_eq!(read(&[empty]).proxy_rules.any(), Presence::Unknown);
    assert_eq!(rule(&read(&[empty]), vip, Protocol::TCP), None);
    let all = read(&[empty, (Kind::NftRuleset, "table ip nat\n"), (Kind::IpvsSave, "")]);
    assert_eq!((all.proxy_rules.v4, all.proxy_rules.v6), (Presence::Absent, Presence::Unknown));
    // The iptables rules alone do not show nftables mode's rules.
    let nftables = read(&[mode("nftables"), (Kind::IptablesSave, SAVED)]);
    assert_eq!(rule(&nftables, vip, Protocol::TCP), None);
    assert_eq!(nftables.has_rules_of(ProxyMode::Nftables), Presence::Unknown);
    assert_eq!(nftables.has_rules_of(ProxyMode::Iptables), Presence::Present);
    assert_eq!((nftables.proxy_rules.v4, nftables.knows_rules(Family::Ipv4)), (Presence::Present, false));
    // A missing part of the kernel has no rules.
    let mut without = capture(&[mode("ipvs"), (Kind::IptablesSave, SAVED)]);
    without.miss(Kind::IpvsSave, Reason::NotInKernel { part: "IPVS".to_owned() });
    let without = Snapshot::read(&without);
    assert_eq!(without.has_rules_of(ProxyMode::Ipvs), Presence::Absent);
    assert!(without.knows_rules(Family::Ipv4));
}

#[test]
fn chains_that_nothing_leads_to_are_no_rules() {
    let without = SAVED.lines().filter(|line| !line.contains("-A PREROUTING"));
    let without = without.filter(|line| !line.contains("-A OUTPUT")).collect::<Vec<_>>().join("\n");
    let without = without.replace("-A POSTROUTING", "-A NOWHERE").replace("-A FORWARD", "-A NOWHERE");
    let without = without.replace("-A INPUT", "-A NOWHERE");
    let snapshot = read(&[(Kind::ProxyMode, "iptables"), (Kind::IptablesSave, &without)]);
    assert_eq!(snapshot.proxy_rules.v4, Presence::Absent);
}

#[test]
fn a_list_that_failed_proves_nothing() {
    let empty = (Kind::IptablesNftSave, "*nat\nCOMMIT\n");
    let mut partly = capture(&[(Kind::ProxyMode, "iptables"), empty]);
    let absent = |part: &str| Reason::NotInKernel { part: part.to_owned() };
    partly.miss(Kind::IptablesLegacySave, absent("ip_tables"));
    partly.miss(Kind::NftRulesetJson, absent("nf_tables"));
    let snapshot = Snapshot::read(&partly);
    assert_eq!(snapshot.proxy_rules.v4, Presence::Absent);
    let expected = (Listing::Read, Listing::NotInKernel, Listing::NotTried);
    let Listings { iptables_v4, nftables, ipvs, .. } = snapshot.listings;
    assert_eq!((iptables_v4, nftables, ipvs), expected);
    partly.gaps.clear();
    partly.miss(Kind::IptablesLegacySave, Reason::CommandMissing { command: "iptables-legacy-save".into() });
    let snapshot = Snapshot::read(&partly);
    assert_eq!(
        (snapshot.listings.iptables_v4, snapshot.proxy_rules.v4),
        (Listing::Failed, Presence::Unknown)
    );
}

#[test]
fn a_text_that_cannot_be_parsed_is_a_gap_with_its_line() {
    let cut = SAVED.lines().take(40).collect::<Vec<_>>().join("\n");
    for (kind, text, line) in [
        (Kind::IptablesSave, cut.as_str(), 40),
        (Kind::IptablesSave, "\nno rules here\n", 2),
        (Kind::NftRulesetJson, "{\"nftables\": [\n{\"table\": }]}", 2),
        (Kind::NftRuleset, "table ip kube-proxy {\n\tchain services {\n", 2),
        (Kind::IpvsSave, "not a list\n", 1),
        (Kind::IpsetSave, "\n\nnot a list\n", 3),
        (Kind::Process, "{\n\n}", 3),
        (Kind::ProxyConfig, "kind: KubeProxyConfiguration\nmode: [\n", 2),
        (Kind::ProxyMode, "userspace", 1),
        (Kind::Sysctls, "nonsense\n", 1),
        (Kind::Interfaces, "[\n{\"ifname\"", 2),
    ] {
        let snapshot = read(&[(kind, text)]);
        let [Gap { kind: found, reason: Reason::Unparsable { place, line: at, .. } }] =
            snapshot.gaps.as_slice()
        else {
            panic!("{kind:?}: {:?}", snapshot.gaps)
        };
        assert_eq!((*found, place.as_str(), *at), (kind, kind.file_name(), line), "{:?}", snapshot.gaps);
        assert!(
            snapshot.gaps.first().unwrap().to_string().contains(&format!("is unreadable at line {line}: "))
        );
        let rules = !matches!(
            kind,
            Kind::Process | Kind::ProxyConfig | Kind::ProxyMode | Kind::Sysctls | Kind::Interfaces
        );
        assert_eq!(snapshot.has_damaged_rules(), rules, "{kind:?}");
    }
    // The text form of the same list is sufficient.
    let both = read(&[(Kind::NftRulesetJson, "{"), (Kind::NftRuleset, "table ip kube-proxy {\n}\n")]);
    assert!(!both.has_damaged_rules() && both.has_rules_of(ProxyMode::Nftables) == Presence::Present);
}

#[test]
fn one_mode_is_what_the_best_source_says() {
    let log = "I1120 23:25:04.1 1 server.go:1] \"Using ipvs Proxier\"\n";
    let config = "kind: KubeProxyConfiguration\nmode: nftables\n";
    let mode = |texts: &[(Kind, &str)]| read(texts).mode.map(ProxyMode::as_str);
    let all = [
        (Kind::ProxyMode, "iptables"),
        (Kind::ProxyLog, log),
        (Kind::ProxyConfig, config),
        (Kind::IptablesSave, SAVED),
    ];
    assert_eq!(mode(&all), Some("iptables"));
    assert_eq!(mode(&all[1..]), Some("ipvs"));
    assert_eq!(mode(&all[2..]), Some("nftables"));
    assert_eq!(mode(&all[3..]), Some("iptables"));
    let device = names_to_text("kube-ipvs0: 0 0\n", std::path::Path::new("/nowhere"));
    assert_eq!(mode(&[(Kind::Interfaces, &device)]), Some("ipvs"));
    // Rules of two modes show neither.
    assert_eq!(mode(&[(Kind::Interfaces, &device), (Kind::IptablesSave, SAVED)]), None);
}

#[test]
fn a_port_that_answers_proves_that_kube_proxy_runs() {
    let list = |complete| format!("{{\"complete\": {complete}}}");
    let (whole, part) = (list(true), list(false));
    assert_eq!(read(&[(Kind::Process, &whole)]).running, Some(false));
    let unknown = read(&[(Kind::Process, &part)]);
    assert!(unknown.running.is_none() && unknown.gaps.iter().any(|gap| gap.kind == Kind::Process));
    assert_eq!(read(&[(Kind::Process, &whole), (Kind::ProxyMode, "ipvs")]).running, Some(true));
    let mut refused = capture(&[(Kind::Process, &part)]);
    refused.miss(
        Kind::ProxyMode,
        Reason::Refused { place: "http://127.0.0.1:10249/proxyMode".into(), status: 404 },
    );
    assert_eq!(Snapshot::read(&refused).running, Some(true));
}

#[test]
fn another_dataplane_serves_where_kube_proxy_does_not() {
    let cilium = names_to_text("cilium_host: 0 0\n", std::path::Path::new("/nowhere"));
    let gone = [(Kind::Interfaces, cilium.as_str()), (Kind::Process, "{\"complete\": true}")];
    assert_eq!(read(&gone).served_elsewhere(), Some(Dataplane::Cilium));
    let mut standing = gone.to_vec();
    standing.push((Kind::IptablesSave, SAVED));
    assert_eq!(read(&standing).served_elsewhere(), None);
    let mut running = gone.to_vec();
    running.push((Kind::ProxyMode, "iptables"));
    assert_eq!(
        (read(&running).served_elsewhere(), read(&running).other_dataplane),
        (None, Some(Dataplane::Cilium))
    );
}

#[test]
fn a_recorded_snapshot_answers_as_before() {
    let texts = [
        (Kind::ProxyLog, "I1120 23:25:04.1 1 server.go:1] \"Version info\" version=\"v1.33.1\"\n"),
        (Kind::Process, "{\"complete\": true}"),
        (
            Kind::Sysctls,
            "net.netfilter.nf_conntrack_count = 1\nnet.netfilter.nf_conntrack_max = 2\nnet.ipv4.vs.conntrack = 1\n",
        ),
        (Kind::Interfaces, "[{\"ifname\": \"cilium_host\"}]"),
        (Kind::Addresses, "192.0.2.11\n"),
        (Kind::IptablesSave, SAVED),
        (Kind::IpvsSave, "damaged"),
    ];
    let before = read(&texts);
    let again: Snapshot = serde_json::from_slice(&serde_json::to_vec(&before).unwrap()).unwrap();
    let answers = |snapshot: &Snapshot| {
        let Snapshot { mode, running, other_dataplane, proxy_rules, ipvs_settings, listings, .. } = snapshot;
        (*mode, *running, *other_dataplane, *proxy_rules, *ipvs_settings, *listings)
    };
    assert_eq!(answers(&again), answers(&before));
    assert_eq!(
        (&again.version, &again.gaps, again.read_at()),
        (&before.version, &before.gaps, before.read_at())
    );
    assert_eq!(
        (again.conntrack_use, &again.rules.addresses),
        (before.conntrack_use, &before.rules.addresses)
    );
    let vip = "10.96.10.10:80".parse().unwrap();
    let pod = "10.244.1.90".parse().unwrap();
    assert_eq!(again.effects(vip, Protocol::TCP, pod), before.effects(vip, Protocol::TCP, pod));
}

#[test]
fn a_recording_of_the_first_version_is_read() {
    let state = |mode: &str, proxy_rules: &str| {
        let text = format!(
            r#"{{"state": {{"kube_proxy_mode": {mode}, "kube_proxy_running": {{"time": "2026-12-01T00:00:00.000000000Z", "value": true}},
            "other_dataplane": {{"time": "2026-12-01T00:00:00.000000000Z", "value": "Calico's eBPF dataplane"}},
            "proxy_rules": {proxy_rules}, "gaps": ["kube-proxy's health: nothing answers"]}}, "rules": null}}"#
        );
        serde_json::from_str::<Snapshot>(&text).unwrap()
    };
    let observed = |value: &str| format!(r#"{{"time": "2026-12-01T00:00:00.000000000Z", "value": {value}}}"#);
    let none = state("null", &observed("false"));
    assert_eq!((none.mode, none.proxy_rules.any(), none.rules_time), (None, Presence::Absent, None));
    assert_eq!(none.other_dataplane, Some(Dataplane::CalicoEbpf));
    assert_eq!(none.gap_lines().collect::<Vec<_>>(), ["kube-proxy's health: nothing answers"]);
    let some = state(&observed("\"Ipvs\""), &observed("true"));
    assert_eq!((some.mode, some.proxy_rules.any()), (Some(ProxyMode::Ipvs), Presence::Present));
    assert_eq!(state("null", "null").proxy_rules.any(), Presence::Unknown);
}
