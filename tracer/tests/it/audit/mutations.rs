//! Every single edit of a healthy capture is found and named. Edits that affect no connection are listed with the
//! reason.

use std::{collections::BTreeMap, net::IpAddr};

use serde_json::Value;
use viptrace::{
    diagnosis::audit::{Aspect, Audit, Context, Expected, audit},
    node::ProxyMode,
    rules::Ruleset,
};

use super::captures::{IpvsCapture, cluster, context, iptables_of, lines, nftables_of, read};

/// An edit and its subject.
pub(crate) struct Mutation {
    pub(crate) what: String,
    /// The edited line or object, which must contain the Service or place that the audit names.
    pub(crate) subject: String,
    pub(crate) rules: Ruleset,
}

/// Runs all mutations; `harmless` returns the reason why one affects no connection. Returns the number of edits found.
fn all_are_found(
    context: &Context,
    mutations: Vec<Mutation>,
    about: &Subjects,
    harmless: impl Fn(&str) -> Option<&'static str>,
) {
    let history = cluster("cluster");
    let expected = Expected::new(&history, context);
    let (mut found, mut without, mut failures) = (0, BTreeMap::<&str, usize>::new(), Vec::new());
    let total = mutations.len();
    for mutation in mutations {
        let audit = audit(&expected, &mutation.rules, context);
        if audit.discrepancies.is_empty() {
            match harmless(&mutation.what) {
                Some(reason) => *without.entry(reason).or_default() += 1,
                None => failures.push(format!("NOT FOUND: {}", mutation.what)),
            }
        } else if about.names(&audit, &mutation.subject) {
            found += 1;
        } else {
            failures.push(format!(
                "NOT NAMED: {}\n    {}",
                mutation.what,
                lines(&audit).replace('\n', "\n    ")
            ));
        }
    }
    println!("{}: {found} of {total} edits found and named; without effect: {without:?}", context.mode);
    assert!(failures.is_empty(), "{} of {total}:\n{}", failures.len(), failures.join("\n"));
    assert!(found >= 40, "{found} of {total}");
    assert!(without.values().sum::<usize>() * 8 <= total, "too many edits without effect: {without:?}");
}

/// The Service of an address, a chain's hash or a port.
#[derive(Default)]
struct Subjects(BTreeMap<String, Vec<String>>);

impl Subjects {
    fn new(context: &Context) -> Self {
        let history = cluster("cluster");
        let mut about = Self::default();
        let expected = Expected::new(&history, context);
        for port in &expected.ports {
            let service = port.service.key.to_string();
            let mut add = |token: String| about.0.entry(token).or_default().push(service.clone());
            add(viptrace::diagnosis::audit::names::iptables_hash(&port.service.key, &port.port));
            add(service.clone());
            for known in &port.frontends {
                if let Some(ip) = known.frontend.address {
                    add(ip.to_string());
                }
                add(format!("{}", known.frontend.port));
            }
            for endpoint in port.endpoints.cluster.iter().chain(port.endpoints.local.iter()) {
                add(viptrace::diagnosis::audit::names::iptables_endpoint(
                    &port.service.key,
                    &port.port,
                    *endpoint,
                ));
                add(endpoint.ip().to_string());
            }
        }
        about
    }

    /// Whether a discrepancy names the subject: its Service, or the edited chain, set or server.
    fn names(&self, audit: &Audit, subject: &str) -> bool {
        let services =
            self.0.iter().filter(|(token, _)| subject.contains(token.as_str())).flat_map(|(_, of)| of);
        let services = services.collect::<Vec<_>>();
        audit.discrepancies.iter().any(|d| {
            d.service.as_deref().is_some_and(|service| services.iter().any(|known| *known == service))
                || subject.contains(d.place.as_ref())
                // A base chain has its hook, and the frame names it.
                || d.aspect == Aspect::Frame
                    && d.text.split_once(' ').is_some_and(|(hook, _)| {
                        subject.contains(&format!("\"hook\":\"{}\"", hook.to_lowercase()))
                    })
                || d.frontends
                    .iter()
                    .filter_map(|known| known.address)
                    .any(|ip| subject.contains(&ip.to_string()))
        })
    }
}

/// The text without each line, and with each replacement that changes a line.
fn edit_lines(
    text: &str,
    is_rule: impl Fn(&str) -> bool,
    replacements: &[(&str, &str)],
    mut read: impl FnMut(&str) -> Ruleset,
) -> Vec<Mutation> {
    let lines = text.lines().collect::<Vec<_>>();
    let mut found = Vec::new();
    for (position, line) in lines.iter().enumerate().filter(|(_, line)| is_rule(line)) {
        let mut edited = |what: String, with: Option<&str>| {
            let mut lines = lines.clone();
            match with {
                Some(with) => lines[position] = with,
                None => {
                    lines.remove(position);
                }
            }
            let subject = format!("{line} {}", with.unwrap_or_default());
            found.push(Mutation { what, subject, rules: read(&lines.join("\n")) });
        };
        edited(format!("without: {line}"), None);
        for (from, to) in replacements {
            if line.contains(from) {
                let with = line.replacen(from, to, 1);
                edited(format!("{from} -> {to} in: {line}"), Some(&with));
            }
        }
    }
    found
}

#[test]
fn iptables() {
    let context = context("worker-1", ProxyMode::Iptables);
    let text = read("kube-proxy/worker-1/iptables/iptables-save.txt");
    let replacements = [
        ("--probability 0.3333", "--probability 0.4333"),
        ("--probability 0.5000", "--probability 0.6000"),
        ("-m statistic --mode random --probability 0.50000000000 ", ""),
        ("--to-destination 10.244.1.", "--to-destination 10.244.9."),
        (":8080", ":8081"),
        (":53\"", ":53 \""),
        ("-j KUBE-SEP-JS5ZM5E6CLZJ4JLZ", "-j KUBE-SEP-4O5AICOKW2EZK2IV"),
        ("-j KUBE-SEP-HSQSPC2QE3PEOFCC", "-j KUBE-SEP-TT5YOMUIKX2UIH4F"),
        ("-j KUBE-SVC-I5LIAMPLWKMBJ54B", "-j KUBE-SVC-OTVU7MV6PRR7MW2X"),
        ("-j KUBE-SVC-", "-j KUBE-GONE-"),
        ("-j KUBE-EXT-", "-j KUBE-SVC-"),
        ("! -s 10.244.0.0/16", "! -s 10.245.0.0/16"),
        ("! -s 10.244.0.0/16 ", ""),
        ("-s 10.244.0.0/16 -m", "-s 10.245.0.0/16 -m"),
        ("-s 198.51.100.0/24", "-s 198.51.100.0/25"),
        ("-s 198.51.100.0/24", "-s 198.51.0.0/16"),
        ("-s 198.51.100.0/24 ", ""),
        ("--dport 80 ", "--dport 81 "),
        ("--dport 443 ", "--dport 444 "),
        ("--dport 30080 ", "--dport 30081 "),
        ("-d 10.96.10.10/32", "-d 10.96.10.11/32"),
        ("-d 203.0.113.80/32", "-d 203.0.113.81/32"),
        ("-p udp -m comment", "-p tcp -m comment"),
        ("--seconds 10800", "--seconds 600"),
        ("--set --name KUBE-SEP-DUZJHDIRJY76XHT4", "--set --name KUBE-SEP-GEGUCVVV2S77QOFJ"),
        ("-j REJECT --reject-with icmp-port-unreachable", "-j DROP"),
        ("-j REJECT --reject-with icmp-port-unreachable", "-j ACCEPT"),
        (
            "no local endpoints\" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j DROP",
            "\" -p tcp --dport 30080 -j REJECT",
        ),
        ("--dport 6379 -j DROP", "--dport 6379 -j REJECT"),
        (
            "/32 -m comment --comment \"shop/cart:http\" -j KUBE-MARK-MASQ",
            "/31 -m comment --comment x -j RETURN",
        ),
        ("-j MASQUERADE --random-fully", "-j RETURN"),
        ("--set-xmark 0x4000/0x4000", "--set-xmark 0x8000/0x8000"),
    ];
    let replacements = replacements.iter().filter(|(from, _)| *from != ":53\"").copied().collect::<Vec<_>>();
    let mut mutations = edit_lines(&text, |line| line.contains("-A "), &replacements, iptables_of);
    for extra in [
        "-A KUBE-SERVICES -d 10.96.99.99/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-I5LIAMPLWKMBJ54B",
        "-A KUBE-NODEPORTS -p tcp -m tcp --dport 31999 -j KUBE-EXT-OTVU7MV6PRR7MW2X",
        "-A KUBE-SERVICES -d 10.96.10.20/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-I5LIAMPLWKMBJ54B",
    ] {
        let at = text.rfind("COMMIT").unwrap();
        let rules = iptables_of(&format!("{}{extra}\n{}", &text[..at], &text[at..]));
        mutations.push(Mutation { what: format!("with: {extra}"), subject: extra.into(), rules });
    }
    all_are_found(&context, mutations, &Subjects::new(&context), |what| {
        let has = |part: &str| what.contains(part);
        Some(match () {
            () if has("KUBE-FIREWALL") => "KUBE-FIREWALL is the kubelet's",
            () if has("other traffic to") => "the rule has no target",
            () if has("--set-xmark 0x4000/0x0") => "clears the mark after its last use",
            () if has("/32 -> ")
                || has(":8080 -> :8081 in") && has("->") && has("--comment \"shop/cart:http ->") =>
            {
                "only a comment"
            }
            () if has(":8081 in") && has("->") && !has("--to-destination") => "only a comment",
            () => return None,
        })
    });
}

/// The JSON listing with one value changed or removed.
fn nft_mutations(listing: &Value) -> Vec<Mutation> {
    let mut found = Vec::new();
    let items = listing["nftables"].as_array().unwrap();
    for (position, item) in items.iter().enumerate() {
        let mut edited = |what: &str, with: Option<Value>| {
            let mut listing = listing.clone();
            let items = listing["nftables"].as_array_mut().unwrap();
            let subject = format!("{item} {}", with.as_ref().map(ToString::to_string).unwrap_or_default());
            match with {
                Some(with) => items[position] = with,
                None => {
                    items.remove(position);
                }
            }
            let what = format!("{what}: {item}");
            found.push(Mutation { what, subject, rules: nftables_of(&listing.to_string()) });
        };
        let kind = item.as_object().unwrap().keys().next().unwrap().as_str();
        if item[kind]["family"] != "ip" {
            continue;
        }
        match kind {
            "rule" => {
                edited("without the rule", None);
                for (index, expression) in item["rule"]["expr"].as_array().unwrap().iter().enumerate() {
                    let mut change = |what: &str, at: &str, to: Value| {
                        let mut item = item.clone();
                        *item["rule"]["expr"][index].pointer_mut(at).unwrap() = to;
                        edited(what, Some(item));
                    };
                    if expression.pointer("/dnat/addr").is_some_and(Value::is_string) {
                        change("another address", "/dnat/addr", "10.244.9.9".into());
                        change("another port", "/dnat/port", 1234.into());
                    }
                    if expression.pointer("/match/right/prefix").is_some() {
                        change("another prefix", "/match/right/prefix/addr", "10.99.0.0".into());
                        change("a longer prefix", "/match/right/prefix/len", 25.into());
                    }
                    if expression.pointer("/match/right").is_some_and(Value::is_string) {
                        change("another value", "/match/right", "10.99.0.1".into());
                    }
                    if let Some(set) = expression.pointer("/vmap/data/set") {
                        let mut fewer = set.as_array().unwrap().clone();
                        fewer.pop();
                        change("one choice fewer", "/vmap/data/set", fewer.into());
                        change(
                            "one number more",
                            "/vmap/key/numgen/mod",
                            (set.as_array().unwrap().len() + 1).into(),
                        );
                        let other = "endpoint-4R3MTBZY-shop/frontend/tcp/http__10.244.2.21/8080";
                        if !set.to_string().contains(other) {
                            change("another choice", "/vmap/data/set/0/1/goto/target", other.into());
                        }
                    }
                    if expression.pointer("/jump/target").is_some_and(|to| to != "mark-for-masquerade") {
                        change("another chain", "/jump/target", "nothing".into());
                    }
                }
            }
            "map" | "set" => {
                let elements = item[kind]["elem"].as_array().cloned().unwrap_or_default();
                for index in 0..elements.len() {
                    let mut fewer = elements.clone();
                    let gone = fewer.remove(index);
                    let mut item = item.clone();
                    item[kind]["elem"] = fewer.into();
                    item[kind]["comment"] = gone.to_string().into();
                    edited(&format!("without the element {gone}"), Some(item));
                }
                for index in 0..elements.len() {
                    let Some(verdict) = elements[index].get(1) else { continue };
                    let mut item = item.clone();
                    item[kind]["elem"][index][1] = if verdict.get("drop").is_some() {
                        serde_json::json!({"goto": {"target": "reject-chain"}})
                    } else {
                        serde_json::json!({"drop": null})
                    };
                    edited("another verdict", Some(item));
                }
                if item[kind].get("timeout").is_some() {
                    let mut item = item.clone();
                    item[kind]["timeout"] = 60.into();
                    edited("another timeout", Some(item));
                }
            }
            "chain" if item[kind].get("hook").is_some() => edited("without the base chain", None),
            _ => {}
        }
    }
    found
}

#[test]
fn nftables() {
    let context = context("worker-1", ProxyMode::Nftables);
    let listing: Value =
        serde_json::from_str(&read("kube-proxy/worker-1/nftables/nft-ruleset.json")).unwrap();
    let mutations = nft_mutations(&listing);
    all_are_found(&context, mutations, &Subjects::new(&context), |what| {
        let has = |part: &str| what.contains(part);
        Some(match () {
            () if has("\"^\"") => "clears the mark after its last use",
            // nft lists a chain's rules after the chain: here the chain reappears without its hook.
            () => return None,
        })
    });
}

#[test]
fn ipvs() {
    let context = context("worker-1", ProxyMode::Ipvs);
    let capture = IpvsCapture::worker_1();
    let servers = edit_lines(
        &capture.servers,
        |line| line.starts_with("-A") || line.starts_with("-a"),
        &[
            ("-w 1", "-w 0"),
            ("-w 1", "-w 3"),
            ("-r 10.244.1.", "-r 10.244.9."),
            ("-r 10.244.2.", "-r 10.244.8."),
            (" -m ", " -g "),
            (" -p 10800", ""),
            (" -p 10800", " -p 60"),
        ],
        |text| IpvsCapture { servers: text.to_owned(), ..IpvsCapture::worker_1() }.rules(),
    );
    let mut mutations = servers;
    for extra in [
        "-a -t 10.96.10.50:443 -r 10.244.9.9:8443 -m -w 1",
        "-A -t 10.96.99.99:80 -s rr",
        "-a -t 10.96.10.20:80 -r 10.244.9.9:80 -m -w 1",
    ] {
        let servers = format!("{}\n{extra}\n", capture.servers);
        let rules = IpvsCapture { servers, ..IpvsCapture::worker_1() }.rules();
        mutations.push(Mutation { what: format!("with: {extra}"), subject: extra.into(), rules });
    }
    mutations.extend(edit_lines(
        &capture.ipset,
        |line| line.starts_with("add"),
        &[("/24", "/25"), ("/24", "/16"), ("10.96.10.10,", "10.96.10.11,"), ("TCP 30443", "TCP 30444")],
        |text| IpvsCapture { ipset: text.to_owned(), ..IpvsCapture::worker_1() }.rules(),
    ));
    mutations.extend(edit_lines(
        &capture.iptables,
        |line| line.contains("-A "),
        &[("--set-xmark 0x4000/0x4000", "--set-xmark 0x8000/0x8000"), ("! -s 10.244.0.0/16 ", "")],
        |text| IpvsCapture { iptables: text.to_owned(), ..IpvsCapture::worker_1() }.rules(),
    ));
    // The addresses that kube-proxy added to kube-ipvs0, and the node's other addresses with servers.
    let served = |address: &IpAddr| capture.servers.contains(&format!("{address}:"));
    for address in capture.addresses.iter().filter(|address| served(address)) {
        let addresses = capture.addresses.iter().copied().filter(|known| known != address).collect();
        let rules = IpvsCapture { addresses, ..IpvsCapture::worker_1() }.rules();
        let what = format!("without the address {address}");
        mutations.push(Mutation { what: what.clone(), subject: what, rules });
    }
    all_are_found(&context, mutations, &Subjects::new(&context), |what| {
        let has = |part: &str| what.contains(part);
        Some(match () {
            () if has("KUBE-NODE-PORT-TCP 30080") => "the set for Local policies is evaluated first",
            () if has("-w 1 -> -w 3") => "the only real server gets every connection, whatever its weight",
            () if has("KUBE-IPVS-OUT-FILTER") => "affects only answers to a load balancer's health checks",
            () if has("10.244.1.71") => "the endpoint is not ready",
            () if has("-j ACCEPT") => "ends the NAT chain after its last rule",
            () if has("--set-xmark 0x4000/0x0") => "clears the mark after its last use",
            () if has("HEALTH-CHECK-NODE-PORT") || has("KUBE-EXTERNAL-IP-LOCAL") => "the set is empty",
            () if has("-s 127.0.0.0/8 -j RETURN") => {
                "affects only the node's traffic to itself over 127.0.0.1"
            }
            () if has("without the address 192.0.2.11") || has("without the address 10.0.2.15") => {
                "an address of the node, which is known to be local"
            }
            () => return None,
        })
    });
}
