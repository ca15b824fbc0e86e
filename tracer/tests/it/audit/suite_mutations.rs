//! A check reports each deletion of one rule, element or server in the cases of kube-proxy's own tests.
//!
//! A sample of a large case. The deletions that a check does not report are listed by kind, each with the reason.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use viptrace::{
    diagnosis::{
        audit::{Context, Expected},
        triage::{CheckReport, Facts, Level},
    },
    net::Family,
    node::{
        ProxyMode,
        capture::{Capture, Kind},
    },
    rules::AddressRange,
};

use super::suite::{capture, check};

/// The most deletions of one file.
const MAX_DELETIONS: usize = 80;

/// The text without one of its parts, and the part.
struct Deletion {
    what: String,
    text: String,
}

/// The deletions of a list: kube-proxy's own rules, elements and servers.
fn deletions(kind: Kind, text: &str) -> Vec<Deletion> {
    let all = match kind {
        Kind::NftRulesetJson => of_json(text),
        _ => of_lines(text),
    };
    // Every position by turns, in an order that depends on nothing but the number of parts.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|position| (position.wrapping_mul(2_654_435_761) % 1_000_003, *position));
    let chosen: BTreeSet<usize> = order.into_iter().take(MAX_DELETIONS).collect();
    all.into_iter().enumerate().filter(|(at, _)| chosen.contains(at)).map(|(_, deletion)| deletion).collect()
}

fn of_lines(text: &str) -> Vec<Deletion> {
    let lines: Vec<&str> = text.lines().collect();
    let is_part = |line: &str| {
        let line =
            line.strip_prefix('[').and_then(|line| line.split_once("] ")).map_or(line, |(_, rule)| rule);
        line.starts_with("-A ") || line.starts_with("-a ") || line.starts_with("add ")
    };
    let parts = lines.iter().enumerate().filter(|(_, line)| is_part(line));
    let deleted = |at: usize| {
        let rest = lines.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, line)| *line);
        rest.collect::<Vec<_>>().join("\n") + "\n"
    };
    parts.map(|(at, line)| Deletion { what: (*line).to_owned(), text: deleted(at) }).collect()
}

fn of_json(text: &str) -> Vec<Deletion> {
    let listing: Value = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    let items = listing["nftables"].as_array().unwrap();
    for (at, item) in items.iter().enumerate() {
        if item["rule"]["table"] == "kube-proxy" {
            let mut listing = listing.clone();
            listing["nftables"].as_array_mut().unwrap().remove(at);
            found.push(Deletion { what: item.to_string(), text: listing.to_string() });
        }
        for kind in ["map", "set"] {
            let elements = item[kind]["elem"].as_array().map_or(0, Vec::len);
            for element in 0..elements {
                let mut listing = listing.clone();
                let gone = listing["nftables"][at][kind]["elem"].as_array_mut().unwrap().remove(element);
                let (family, name) = (&item[kind]["family"], &item[kind]["name"]);
                found.push(Deletion { what: format!("{family} {name} {gone}"), text: listing.to_string() });
            }
        }
    }
    found
}

/// Everything above a note, in words.
fn reported(report: &CheckReport) -> BTreeSet<String> {
    let findings = report.findings.iter().filter(|finding| finding.level != Level::Note);
    findings
        .flat_map(|finding| {
            let evidence = finding.evidence.iter().map(|evidence| evidence.content.clone());
            let class = finding.class;
            evidence.chain([finding.root_cause.clone()]).map(move |text| format!("{class} {text}"))
        })
        .collect()
}

const KINDS: [Kind; 5] =
    [Kind::IptablesSave, Kind::Ip6tablesSave, Kind::IpsetSave, Kind::IpvsSave, Kind::NftRulesetJson];

/// A deletion that no finding reports, in its case.
struct Missed<'c> {
    what: &'c str,
    family: Option<Family>,
    capture: &'c Capture,
    expected: &'c Expected,
}

impl Missed<'_> {
    fn has(&self, part: &str) -> bool {
        self.what.contains(part)
    }

    fn unserved_family(&self) -> bool {
        self.family.is_some_and(|family| !self.expected.has(family))
    }

    /// Whether it names an address, or a node port, of a Service port that has no usable endpoint.
    fn without_endpoint(&self) -> bool {
        let ports = self.expected.ports.iter().filter(|port| !port.endpoints.any);
        let frontends = ports.flat_map(|port| &port.frontends).map(|known| known.frontend);
        let words: Vec<&str> = self.what.split([' ', ',', ':', '/', '"', '[', ']']).collect();
        frontends.into_iter().any(|frontend| {
            let port = frontend.port.to_string();
            words.contains(&port.as_str()) && frontend.address.is_none_or(|ip| self.has(&ip.to_string()))
        })
    }

    /// Whether no Service of the family has a usable endpoint, so that nothing is masqueraded.
    fn nothing_forwarded(&self) -> bool {
        let mut of_family = self.expected.ports.iter().filter(|port| Some(port.family) == self.family);
        let of_masquerading = self.has("KUBE-MARK-MASQ") || self.has("KUBE-POSTROUTING");
        of_masquerading && of_family.all(|port| !port.endpoints.any)
    }

    /// Whether it names a load balancer's address that admits only Pods, which the Local policy exempts.
    fn only_pods(&self) -> bool {
        let pods = AddressRange::parse("10.0.0.0/8").unwrap();
        let frontends = self.expected.ports.iter().flat_map(|port| &port.frontends);
        frontends.filter(|known| !known.ranges.is_empty()).any(|known| {
            let within = |range: &AddressRange| pods.contains(range.first) && pods.contains(range.last);
            let named = known.frontend.address.is_some_and(|ip| self.has(&ip.to_string()));
            named && known.ranges.iter().all(within)
        })
    }

    /// Whether it names only ipsets without elements.
    fn empty_set(&self) -> bool {
        let sets = self.capture.text(Kind::IpsetSave).unwrap_or_default();
        let named = self.what.split_once("--match-set ").and_then(|(_, rest)| rest.split(' ').next());
        named.is_some_and(|set| !sets.contains(&format!("add {set} ")))
    }

    /// Whether it is an element of a set for node ports whose Service is under the Local policy.
    fn local_node_port(&self) -> bool {
        let sets = self.capture.text(Kind::IpsetSave).unwrap_or_default();
        let local = self.what.replace("NODE-PORT-", "NODE-PORT-LOCAL-");
        self.has("NODE-PORT-") && !self.has("LOCAL") && sets.lines().any(|line| line == local)
    }
}

/// Why a deletion changes no connection.
type Reason = (&'static str, for<'c> fn(&Missed<'c>) -> bool);

/// The kinds of deletions that a check does not report; docs/limits.md has those that are rules of kube-proxy with an effect.
const UNREPORTED: [Reason; 14] = [
    ("no Service has an address of the family", |missed| missed.unserved_family()),
    ("the Service has no usable endpoint: its connections are refused or dropped all the same", |missed| {
        missed.without_endpoint()
    }),
    ("no Service of the family has a usable endpoint", |missed| missed.nothing_forwarded()),
    ("the source ranges admit only Pods, which the Local policy exempts", |missed| {
        missed.has("no-endpoint-services") && missed.only_pods()
    }),
    ("the health check's port is on no address of a Service", |missed| {
        missed.has("-A KUBE-IPVS-FILTER") && missed.has("HEALTH-CHECK-NODE-PORT")
    }),
    ("the ipset is empty", |missed| missed.empty_set()),
    ("the set for Local policies is evaluated first", |missed| missed.local_node_port()),
    ("drops connections to addresses that no Service has", |missed| {
        missed.has("Drop traffic to unallocated ClusterIPs")
    }),
    ("ends ipvs mode's NAT chain before its last rules", |missed| {
        missed.has("-A KUBE-SERVICES") && missed.has("-j ACCEPT") && missed.has("--match-set")
    }),
    ("ends ipvs mode's NAT chain for 127.0.0.0/8 and ::1", |missed| {
        missed.has("-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN")
            || missed.has("-A KUBE-SERVICES -s ::1/128 -j RETURN")
    }),
    ("the chain is empty in IPv6", |missed| {
        missed.family == Some(Family::Ipv6) && missed.has("-j KUBE-FIREWALL")
    }),
    ("only counts", |missed| missed.has("--nfacct-name") || missed.has("other traffic to")),
    ("masqueradeAll masquerades hairpins too", |missed| {
        let config = missed.capture.text(Kind::ProxyConfig).unwrap_or_default();
        missed.has("add KUBE-LOOP-BACK") && config.contains("masqueradeAll: true")
    }),
    ("the rule of the external IP with the same address comes first", |missed| {
        let rules = missed.capture.text(Kind::IptablesSave).unwrap_or_default();
        rules.contains("-d 1.2.3.4/32 -p tcp -m comment --comment \"namespace/svc0:8080 external IP\"")
            && (missed.has("7S3BOWXDKQS3LONZ") || missed.has("1.2.3.4"))
    }),
];

fn family_of(kind: Kind, what: &str) -> Option<Family> {
    let is_v6 = match kind {
        Kind::Ip6tablesSave => true,
        Kind::NftRulesetJson => what.contains("\"ip6\""),
        Kind::IptablesSave => false,
        _ => return None,
    };
    Some(if is_v6 { Family::Ipv6 } else { Family::Ipv4 })
}

fn all_are_found(mode: ProxyMode, names: &[&str]) {
    let (mut found, mut total) = (0_usize, 0_usize);
    let (mut unreported, mut failures) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for name in names {
        let healthy = of_release(capture(name));
        let facts = Facts::read(&healthy);
        let context = Context::new("test-node", mode, facts.taken.unwrap_or_default());
        let expected = Expected::new(facts.history.as_ref().unwrap(), &context);
        let before = reported(&check(&healthy));
        for kind in KINDS {
            let Some(text) = healthy.text(kind).map(str::to_owned) else { continue };
            for Deletion { what, text } in deletions(kind, &text) {
                total += 1;
                if !reported(&check(&with(&healthy, kind, text))).is_subset(&before) {
                    found += 1;
                    continue;
                }
                let family = family_of(kind, &what);
                let missed = Missed { what: &what, family, capture: &healthy, expected: &expected };
                match UNREPORTED.iter().find(|(_, is_it)| is_it(&missed)) {
                    Some((reason, _)) => *unreported.entry(reason).or_default() += 1,
                    None => failures.push(format!("{name} {kind:?}: {what}")),
                }
            }
        }
    }
    println!("{mode}: {found} of {total} deletions found; the others: {unreported:#?}");
    assert!(failures.is_empty(), "{} of {total} not found:\n{}", failures.len(), failures.join("\n"));
    assert!(found * 100 >= total * 70, "{found} of {total}: {unreported:#?}");
}

/// The release of the suite, before which some rules are not always written.
fn of_release(mut capture: Capture) -> Capture {
    let metrics = "kubernetes_build_info{git_version=\"v1.36.2\"} 1\n";
    capture.put(Kind::ProxyMetrics, "metrics", metrics.to_owned());
    capture
}

fn with(healthy: &Capture, kind: Kind, text: String) -> Capture {
    let mut broken = healthy.clone();
    broken.artifacts.iter_mut().find(|artifact| artifact.kind == kind).unwrap().text = text;
    broken
}

#[test]
fn iptables() {
    let cases = ["B2-iptables", "B3-ipv6-only", "B3-no-endpoints", "B6-iptables"];
    all_are_found(ProxyMode::Iptables, &cases);
}

#[test]
fn nftables() {
    let cases = ["B2-nftables", "B5", "B6-nftables", "B7", "B7-endpoints"];
    all_are_found(ProxyMode::Nftables, &cases);
}

#[test]
fn ipvs() {
    all_are_found(ProxyMode::Ipvs, &["B1", "B4", "B8"]);
}
