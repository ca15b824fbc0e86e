//! kube-proxy's iptables rules, as `iptables-save` lists them: what stands for one VIP at this moment.
//!
//! A snapshot is taken on suspicion only (a listing takes seconds on large tables) and kept for a few seconds.
//! Current rules do not explain an old flow: NAT was decided on its first packet. In IPVS mode the chains exist but
//! hold no VIPs; in nftables mode there are none: the caller asks only in iptables mode. The audit of a whole node
//! is not done here.

use std::{
    collections::HashMap,
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    node::{
        Limits, Observed,
        command::{self, CommandError},
        now,
    },
    sighting::Protocol,
};

/// How deep a chain is followed from a VIP: KUBE-SERVICES, KUBE-FW, KUBE-EXT, KUBE-SVC, KUBE-SEP, and room.
const MAX_DEPTH: usize = 8;
/// Endpoints named for one VIP.
const MAX_ENDPOINTS: usize = 1024;

/// The nat and filter tables of one family.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Rules by table and chain.
    nat: HashMap<String, Vec<Rule>>,
    filter: HashMap<String, Vec<Rule>>,
}

/// What the rules do with a new connection to a VIP, a node port or an external address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipRule {
    /// nat sends it to this chain, and from there to these endpoints (possibly none).
    Dnat { chain: String, endpoints: Vec<SocketAddr> },
    /// filter refuses it; the comment is kube-proxy's (`ns/svc:port has no endpoints`).
    Reject { comment: String },
    /// filter drops it.
    Drop { comment: String },
    /// No rule names it.
    Missing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Rule {
    destination: Option<IpAddr>,
    protocol: Option<String>,
    port: Option<u16>,
    comment: String,
    target: String,
    to_destination: Option<SocketAddr>,
}

impl Rules {
    /// Parses the output of `iptables-save` or `ip6tables-save`. Lines that are not understood are passed over.
    pub fn parse(text: &str) -> Self {
        let mut rules = Self::default();
        let mut table = "";
        for line in text.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix('*') {
                table = name;
                continue;
            }
            let chains = match table {
                "nat" => &mut rules.nat,
                "filter" => &mut rules.filter,
                _ => continue,
            };
            if let Some(declared) = line.strip_prefix(':') {
                if let Some(chain) = declared.split_ascii_whitespace().next() {
                    chains.entry(chain.to_owned()).or_default();
                }
            } else if let Some((chain, rule)) = parse_rule(line) {
                chains.entry(chain).or_default().push(rule);
            }
        }
        rules
    }

    /// Whether kube-proxy has ever written here: the chain KUBE-SERVICES exists in nat.
    pub fn has_kube_chains(&self) -> bool {
        self.nat.contains_key("KUBE-SERVICES")
    }

    /// Whether packets get to kube-proxy's rules: from Pods and outside (PREROUTING) and from the node (OUTPUT).
    pub fn jumps(&self) -> (bool, bool) {
        let jumps = |from: &str| chain(&self.nat, from).iter().any(|rule| rule.target == "KUBE-SERVICES");
        (jumps("PREROUTING"), jumps("OUTPUT"))
    }

    /// What stands for a new connection to `vip`; a node port is found by its port alone, if no rule names the
    /// address.
    pub fn for_vip(&self, vip: SocketAddr, protocol: Protocol) -> VipRule {
        let protocol = protocol.to_string().to_ascii_lowercase();
        let names = |rule: &&Rule| {
            rule.port == Some(vip.port())
                && rule.protocol.as_deref() == Some(protocol.as_str())
                && rule.destination == Some(vip.ip())
        };
        let names_port = |rule: &&Rule| {
            rule.port == Some(vip.port())
                && rule.protocol.as_deref() == Some(protocol.as_str())
                && rule.destination.is_none()
        };

        // A Local policy has both: a DROP in filter and, in nat, a way to the endpoints for the node's own traffic.
        // The nat rule decides first, so it is what is reported.
        let services = chain(&self.nat, "KUBE-SERVICES");
        let node_ports = chain(&self.nat, "KUBE-NODEPORTS");
        let nat = services.iter().find(names).or_else(|| node_ports.iter().find(names_port));
        if let Some(rule) = nat {
            let mut endpoints = Vec::new();
            self.follow(&rule.target, 0, &mut endpoints);
            return VipRule::Dnat { chain: rule.target.clone(), endpoints };
        }
        for name in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"] {
            let rules = chain(&self.filter, name);
            if let Some(rule) = rules.iter().find(names).or_else(|| rules.iter().find(names_port)) {
                let comment = rule.comment.clone();
                return match rule.target.as_str() {
                    "REJECT" => VipRule::Reject { comment },
                    "DROP" => VipRule::Drop { comment },
                    _ => continue,
                };
            }
        }
        VipRule::Missing
    }

    fn follow(&self, name: &str, depth: usize, endpoints: &mut Vec<SocketAddr>) {
        if depth >= MAX_DEPTH || !name.starts_with("KUBE-") {
            return;
        }
        for rule in chain(&self.nat, name) {
            if endpoints.len() >= MAX_ENDPOINTS {
                return;
            }
            match rule.to_destination {
                Some(endpoint) if rule.target == "DNAT" => {
                    if !endpoints.contains(&endpoint) {
                        endpoints.push(endpoint);
                    }
                }
                _ => self.follow(&rule.target, depth + 1, endpoints),
            }
        }
    }
}

fn chain<'a>(chains: &'a HashMap<String, Vec<Rule>>, name: &str) -> &'a [Rule] {
    chains.get(name).map(Vec::as_slice).unwrap_or_default()
}

/// One `-A CHAIN …` line, with or without the counters of `iptables-save -c`.
fn parse_rule(line: &str) -> Option<(String, Rule)> {
    let line = match line.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.1.trim_start(),
        None => line,
    };
    let mut words = words(line.strip_prefix("-A ")?).into_iter();
    let chain = words.next()?;
    let mut rule = Rule::default();
    let mut negated = false;
    while let Some(word) = words.next() {
        match word.as_str() {
            "!" => {
                negated = true;
                continue;
            }
            "-d" if !negated => rule.destination = words.next().and_then(|text| host(&text)),
            "-p" if !negated => rule.protocol = words.next(),
            "--dport" if !negated => rule.port = words.next().and_then(|text| text.parse().ok()),
            "--comment" => rule.comment = words.next().unwrap_or_default(),
            "-j" | "-g" => rule.target = words.next().unwrap_or_default(),
            "--to-destination" => rule.to_destination = words.next().and_then(|text| text.parse().ok()),
            _ => {}
        }
        negated = false;
    }
    Some((chain, rule))
}

/// An address with a full prefix; a network is no VIP.
fn host(text: &str) -> Option<IpAddr> {
    match text.split_once('/') {
        None => text.parse().ok(),
        Some((address, "32")) => address.parse().ok().filter(IpAddr::is_ipv4),
        Some((address, "128")) => address.parse().ok().filter(IpAddr::is_ipv6),
        Some(_) => None,
    }
}

/// Splits a rule as the shell would: at blanks, with double quotes and backslashes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut begun) = (false, false);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                word.extend(characters.next());
                begun = true;
            }
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            blank if blank.is_ascii_whitespace() && !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            other => {
                word.push(other);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// A snapshot, or the gap's text.
pub type Listing = Result<Arc<Observed<Rules>>, String>;

/// Reads rules when asked and keeps each family's snapshot for a while, so that many suspicious flows cost one
/// listing. A failure is kept as well: a node without `iptables-save` is asked once in that time.
#[derive(Debug)]
pub struct RulesReader {
    limits: Limits,
    max_age: Duration,
    cache: HashMap<&'static str, (Instant, Listing)>,
}

impl Default for RulesReader {
    fn default() -> Self {
        Self::new(Limits { time: Duration::from_secs(5), bytes: 256 << 20 }, Duration::from_secs(5))
    }
}

impl RulesReader {
    pub fn new(limits: Limits, max_age: Duration) -> Self {
        Self { limits, max_age, cache: HashMap::new() }
    }

    /// The rules of the family of `address`. Blocks for the time limit at most: call it off the event loop. The
    /// error is the gap's text.
    pub fn read(&mut self, address: IpAddr) -> Listing {
        let prefix = if address.is_ipv4() { "iptables" } else { "ip6tables" };
        if let Some((taken, result)) = self.cache.get(prefix)
            && taken.elapsed() < self.max_age
        {
            return result.clone();
        }
        let result = list(prefix, self.limits);
        self.cache.insert(prefix, (Instant::now(), result.clone()));
        result
    }
}

/// Lists the rules through whichever backend has kube-proxy's chains. A command is run only where its backend is
/// in the kernel already: elsewhere listing would load kernel modules, and the empty list would prove nothing.
fn list(prefix: &str, limits: Limits) -> Listing {
    let (nf_tables, legacy) = (has_nf_tables(Path::new("/")), has_legacy_tables(prefix));
    let mut first_error: Option<CommandError> = None;
    let mut found: Option<Observed<Rules>> = None;
    for (flavour, present) in [("", nf_tables || legacy), ("-nft", nf_tables), ("-legacy", legacy)] {
        if !present {
            continue;
        }
        match command::run(&format!("{prefix}{flavour}-save"), &[], limits) {
            Ok(output) => {
                let rules = Rules::parse(&String::from_utf8_lossy(&output));
                let rules = Observed { time: now(), value: rules };
                if rules.value.has_kube_chains() {
                    return Ok(Arc::new(rules));
                }
                found.get_or_insert(rules);
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    match (found, first_error) {
        (Some(rules), _) => Ok(Arc::new(rules)),
        (None, Some(error)) => Err(format!("{prefix} rules: {error}")),
        (None, None) => Err(format!(
            "{prefix} rules: neither nf_tables nor legacy tables are known to be in this kernel, so no command was run"
        )),
    }
}

/// Whether `nf_tables` is in the kernel, loaded or built in.
pub(super) fn has_nf_tables(root: &Path) -> bool {
    if root.join("sys/module/nf_tables").exists() {
        return true;
    }
    let Ok(release) = fs::read_to_string(root.join("proc/sys/kernel/osrelease")) else { return false };
    let builtin = root.join("lib/modules").join(release.trim()).join("modules.builtin");
    fs::read_to_string(builtin).is_ok_and(|list| list.contains("/nf_tables.ko"))
        || fs::read_to_string(root.join("proc/kallsyms"))
            .is_ok_and(|symbols| symbols.contains(" nft_do_chain\n"))
}

fn has_legacy_tables(prefix: &str) -> bool {
    let names = if prefix == "iptables" { "ip_tables_names" } else { "ip6_tables_names" };
    fs::read_to_string(Path::new("/proc/net").join(names)).is_ok_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written by kube-proxy v1.30.5 (counters kept), cut down to four Services.
    const SAVED: &str = include_str!("../../tests/data/iptables-save.txt");

    fn for_vip(vip: &str, protocol: Protocol) -> VipRule {
        Rules::parse(SAVED).for_vip(vip.parse().unwrap(), protocol)
    }

    #[test]
    fn a_vip_leads_to_its_endpoints() {
        let expected = VipRule::Dnat {
            chain: "KUBE-SVC-I5LIAMPLWKMBJ54B".into(),
            endpoints: ["10.244.1.11:8080", "10.244.1.12:8080", "10.244.2.13:8080"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
        };
        assert_eq!(for_vip("10.96.10.10:80", Protocol::TCP), expected);
    }

    #[test]
    fn protocol_port_and_address_all_count() {
        for (vip, protocol) in [
            ("10.96.10.10:80", Protocol::UDP),
            ("10.96.10.10:81", Protocol::TCP),
            ("10.96.10.11:80", Protocol::TCP),
            ("[2001:db8::1]:80", Protocol::TCP),
        ] {
            assert_eq!(for_vip(vip, protocol), VipRule::Missing, "{vip}");
        }
    }

    #[test]
    fn a_service_without_endpoints_is_rejected_and_a_local_one_dropped() {
        let refused = VipRule::Reject { comment: "shop/checkout:http has no endpoints".into() };
        assert_eq!(for_vip("10.96.10.20:80", Protocol::TCP), refused);
        let dropped = VipRule::Drop { comment: "shop/cache:redis has no local endpoints".into() };
        assert_eq!(for_vip("10.96.10.60:6379", Protocol::TCP), dropped);
    }

    #[test]
    fn a_node_port_is_found_on_any_address() {
        let VipRule::Dnat { chain, endpoints } = for_vip("192.0.2.11:30443", Protocol::TCP) else {
            panic!("the node port has a rule")
        };
        assert_eq!(chain, "KUBE-EXT-OTVU7MV6PRR7MW2X");
        assert_eq!(endpoints, ["10.244.1.41:8443".parse().unwrap()]);
    }

    #[test]
    fn accounting_matches_of_newer_releases_are_passed_over() {
        // As kube-proxy v1.36 writes node ports: a rule of its own for the loopback network, with two blanks in it.
        let text = "*nat\n-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment \"a/b:c\" -m tcp --dport 30080 \
            -m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-A\n-A KUBE-NODEPORTS -p tcp -m tcp --dport \
            30080 -j KUBE-EXT-A\n-A KUBE-EXT-A -j KUBE-SEP-A\n-A KUBE-SEP-A -p tcp -j DNAT --to-destination \
            10.1.0.1:80\nCOMMIT\n";
        let rule = Rules::parse(text).for_vip("192.0.2.11:30080".parse().unwrap(), Protocol::TCP);
        let endpoints = vec!["10.1.0.1:80".parse().unwrap()];
        assert_eq!(rule, VipRule::Dnat { chain: "KUBE-EXT-A".into(), endpoints });
    }

    #[test]
    fn the_way_into_the_chains_is_seen() {
        let rules = Rules::parse(SAVED);
        assert!(rules.has_kube_chains());
        assert_eq!(rules.jumps(), (true, true));
        let without =
            SAVED.lines().filter(|line| !line.contains("-A PREROUTING")).collect::<Vec<_>>().join("\n");
        assert_eq!(Rules::parse(&without).jumps(), (false, true));
        let empty = Rules::parse("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n");
        assert!(!empty.has_kube_chains());
        assert_eq!(empty.jumps(), (false, false));
    }

    #[test]
    fn ipv6_rules_are_read_alike() {
        let text = "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 2001:db8::10/128 -p tcp -m tcp --dport 80 \
            -j KUBE-SVC-A\n-A KUBE-SVC-A -j KUBE-SEP-A\n-A KUBE-SEP-A -p tcp -j DNAT --to-destination \
            [2001:db8:1::11]:8080\nCOMMIT\n";
        let rule = Rules::parse(text).for_vip("[2001:db8::10]:80".parse().unwrap(), Protocol::TCP);
        let endpoints = vec!["[2001:db8:1::11]:8080".parse().unwrap()];
        assert_eq!(rule, VipRule::Dnat { chain: "KUBE-SVC-A".into(), endpoints });
    }

    #[test]
    fn chains_that_go_round_end() {
        let text = "*nat\n-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp --dport 1 -j KUBE-A\n-A KUBE-A -j KUBE-A\n";
        let rule = Rules::parse(text).for_vip("10.0.0.1:1".parse().unwrap(), Protocol::TCP);
        assert_eq!(rule, VipRule::Dnat { chain: "KUBE-A".into(), endpoints: vec![] });
    }

    #[test]
    fn quoting() {
        assert_eq!(
            words(r#"-m comment --comment "a \"b\" c" -j X"#),
            ["-m", "comment", "--comment", "a \"b\" c", "-j", "X"]
        );
        assert_eq!(words("\"open"), ["open"]);
    }

    #[test]
    fn nf_tables_is_found_loaded_and_built_in() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_nf_tables(root.path()));
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::create_dir_all(root.path().join("lib/modules/6.1.0")).unwrap();
        fs::write(root.path().join("proc/sys/kernel/osrelease"), "6.1.0\n").unwrap();
        fs::write(root.path().join("proc/kallsyms"), "0 t nft_do_chain_ipv4\t[nf_tables]\n").unwrap();
        assert!(!has_nf_tables(root.path()));
        let list = root.path().join("lib/modules/6.1.0/modules.builtin");
        fs::write(list, "kernel/net/netfilter/nf_tables.ko\n").unwrap();
        assert!(has_nf_tables(root.path()));
        fs::create_dir_all(root.path().join("sys/module/nf_tables")).unwrap();
        assert!(has_nf_tables(root.path()));
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "(\\*nat\n|-A KUBE-SERVICES|[ \"\\\\!:\\-\\[\\]a-z0-9/.\n]|-d|-j|--dport){0,200}") {
            let _ = Rules::parse(&text).for_vip("10.0.0.1:80".parse().unwrap(), Protocol::TCP);
        }
    }
}
