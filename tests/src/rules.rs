//! kube-proxy's rules: a captured dump, complete or with a fault cut into it, is restored into the node. It edits the
//! text of the dump and loads each mode's rules into the kernel. It knows nothing of what a fault means.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result};

use crate::{
    command,
    dataplane::{Family, Mode},
    ipvs,
    netns::Netns,
    published::{self, Published},
    traffic::Transport,
};

/// A rule of the host's own firewall in the filter table.
const HOST_FIREWALL: &str = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
/// The same rule for a host that writes nftables.
const HOST_FIREWALL_NFT: &str = "table inet host-firewall {\n\tchain forward {\n\t\ttype filter hook forward priority \
    filter; policy accept;\n\t\tct state established,related accept\n\t}\n}\n";
/// Every nftables table that this module writes.
const NFT_TABLES: [&str; 3] = ["ip kube-proxy", "ip6 kube-proxy", "inet host-firewall"];
/// The iptables tables that a dump can hold.
const XTABLES: [&str; 3] = ["mangle", "nat", "filter"];

/// All rules that kube-proxy wrote on a node in one mode.
#[derive(Clone, Debug)]
pub struct Rules {
    mode: Mode,
    text: Text,
}

#[derive(Clone, Debug)]
enum Text {
    /// `iptables-save` and `ip6tables-save`.
    Xtables { ipv4: String, ipv6: String },
    /// `nft list ruleset`, and commands to run after it is loaded.
    Nft { ruleset: String, changes: String },
    /// Virtual servers, sets and the rules that name them.
    Ipvs(ipvs::Capture),
}

/// Replaces the source address in a rule of an endpoint's chain.
fn with_own_source(line: &str, from: IpAddr, to: IpAddr) -> String {
    if line.contains("-A KUBE-SEP-") {
        line.replace(&format!("-s {from}/"), &format!("-s {to}/"))
    } else {
        line.to_owned()
    }
}

impl Rules {
    /// Reads the rules in the folder `capture` of a kube-proxy in this mode.
    pub fn read(capture: &Path, mode: Mode) -> Result<Self> {
        let read = |name: &str| {
            let path = capture.join(name);
            fs::read_to_string(&path)
                .with_context(|| format!("reading the captured rules {}", path.display()))
        };
        let text = match mode {
            Mode::Iptables | Mode::IptablesLegacy => {
                let read = |name| read(name).map(|text| without_accounting(&text));
                Text::Xtables { ipv4: read("iptables-save.txt")?, ipv6: read("ip6tables-save.txt")? }
            }
            Mode::Nftables => Text::Nft { ruleset: read("nft-ruleset.txt")?, changes: String::new() },
            Mode::Ipvs => Text::Ipvs(ipvs::Capture::read(capture)?),
        };
        Ok(Self { mode, text })
    }

    /// The mode that wrote the rules.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Removes every rule and chain of kube-proxy, as a flush does that is not repaired. A rule of the host's firewall
    /// stays: without any rule that matches connection states or does NAT, the kernel would stop tracking connections
    /// in this namespace.
    #[must_use]
    pub fn without_kube_proxy(&self) -> Self {
        let text = match &self.text {
            Text::Xtables { ipv4, ipv6 } => {
                Text::Xtables { ipv4: with_host_firewall_only(ipv4), ipv6: with_host_firewall_only(ipv6) }
            }
            Text::Ipvs(capture) => {
                Text::Ipvs(ipvs::Capture::without_servers(with_host_firewall_only(&capture.rules)))
            }
            Text::Nft { .. } => Text::Nft { ruleset: HOST_FIREWALL_NFT.to_owned(), changes: String::new() },
        };
        Self { mode: self.mode, text }
    }

    /// Removes the rules of one Service address and TCP port.
    #[must_use]
    pub fn without_service(&self, vip: SocketAddr) -> Self {
        let mut cut = self.clone();
        match &mut cut.text {
            Text::Xtables { ipv4, ipv6 } => {
                let prefix = Family::of(vip.ip()).host_prefix();
                let address = format!("-d {}/{prefix} ", vip.ip());
                let port = format!("--dport {} ", vip.port());
                for text in [ipv4, ipv6] {
                    *text = without(text, |line| {
                        line.contains("-A KUBE-SERVICES ") && line.contains(&address) && line.contains(&port)
                    });
                }
            }
            Text::Ipvs(capture) => *capture = capture.without_virtual_server(vip),
            Text::Nft { changes, .. } => {
                let table = nft_table(vip.ip());
                let (ip, key) = (vip.ip(), format!("{} . tcp . {}", vip.ip(), vip.port()));
                changes.extend([
                    format!("delete element {table} service-ips {{ {key} }}\n"),
                    format!("delete element {table} cluster-ips {{ {ip} }}\n"),
                ]);
            }
        }
        cut
    }

    /// Removes the iptables rules that contain `text`.
    #[must_use]
    pub fn without_line(&self, unwanted: &str) -> Self {
        let mut cut = self.clone();
        if let Text::Xtables { ipv4, ipv6 } = &mut cut.text {
            for text in [ipv4, ipv6] {
                *text = without(text, |line| line.contains("-A ") && line.contains(unwanted));
            }
        }
        cut
    }

    /// Adds a Service, as kube-proxy writes it on the node with this address.
    #[must_use]
    pub fn with_published(&self, service: &Published, node: IpAddr) -> Self {
        let mut with = self.clone();
        match &mut with.text {
            Text::Xtables { ipv4, ipv6 } => {
                let text = if service.family == Family::V4 { ipv4 } else { ipv6 };
                let added = published::xtables_additions(service);
                *text = with_rules(&with_rules(text, "*nat", &added.nat), "*filter", &added.filter);
            }
            Text::Nft { changes, .. } => changes.push_str(&published::changes(service)),
            Text::Ipvs(capture) => {
                let added = published::Additions::of(service, node);
                let text = if service.family == Family::V4 {
                    &mut capture.rules
                } else {
                    if capture.rules_of_ipv6.is_empty() {
                        capture.rules_of_ipv6 = published::rules_of_ipv6(&capture.rules);
                    }
                    &mut capture.rules_of_ipv6
                };
                *text = with_rules(text, "*nat", &added.rules);
                capture.add(&added.sets, &added.virtual_servers, &added.addresses);
            }
        }
        with
    }

    /// Replaces the endpoint address `from` by `to` in the rules that send packets to it, and in those that masquerade
    /// the endpoint's connections to itself.
    #[must_use]
    pub fn with_endpoint_moved(&self, from: IpAddr, to: IpAddr) -> Self {
        if let Text::Ipvs(capture) = &self.text {
            return Self { mode: self.mode, text: Text::Ipvs(capture.with_endpoint_moved(from, to)) };
        }
        // The port is left out: whether an address has brackets before a port depends on its family.
        let at = |address: IpAddr| SocketAddr::new(address, 0).to_string().trim_end_matches('0').to_owned();
        let (target, new_target) = (at(from), at(to));
        let mut moved = self.clone();
        match &mut moved.text {
            Text::Xtables { ipv4, ipv6 } => {
                for text in [ipv4, ipv6] {
                    *text = text
                        .replace(
                            &format!("--to-destination {target}"),
                            &format!("--to-destination {new_target}"),
                        )
                        .lines()
                        .map(|line| with_own_source(line, from, to) + "\n")
                        .collect();
                }
            }
            Text::Ipvs(_) => {}
            Text::Nft { ruleset, .. } => {
                *ruleset = ruleset
                    .replace(&format!("dnat to {target}"), &format!("dnat to {new_target}"))
                    .replace(&format!("saddr {from} jump mark-"), &format!("saddr {to} jump mark-"));
            }
        }
        moved
    }

    /// Adds a host firewall rule that drops packets forwarded to this address and port. An endpoint's address is
    /// matched after NAT.
    #[must_use]
    pub fn with_drop_to(&self, target: SocketAddr, transport: Transport) -> Self {
        self.with_firewall_to(target, transport, ["DROP", "drop"])
    }

    /// The same for a rule that resets TCP connections.
    #[must_use]
    pub fn with_reset_to(&self, target: SocketAddr) -> Self {
        self.with_firewall_to(
            target,
            Transport::Tcp,
            ["REJECT --reject-with tcp-reset", "reject with tcp reset"],
        )
    }

    /// Adds a host firewall rule with this verdict: in the language of iptables, and of nft.
    fn with_firewall_to(&self, target: SocketAddr, transport: Transport, verdict: [&str; 2]) -> Self {
        let [for_iptables, for_nft] = verdict;
        let mut firewalled = self.clone();
        let protocol = transport.as_str().to_ascii_lowercase();
        match &mut firewalled.text {
            Text::Xtables { ipv4, ipv6 } => {
                let text = if target.is_ipv4() { ipv4 } else { ipv6 };
                let rule = format!(
                    "-A FORWARD -d {}/{} -p {protocol} -m {protocol} --dport {} -j {for_iptables}",
                    target.ip(),
                    Family::of(target.ip()).host_prefix(),
                    target.port()
                );
                *text = with_filter_rule(text, &rule);
            }
            // After IPVS a packet leaves through LOCAL_OUT and is not forwarded.
            Text::Ipvs(capture) => {
                let (ip, port) = (target.ip(), target.port());
                let rule = format!("-A OUTPUT -d {ip} -p {protocol} --dport {port} -j {for_iptables}");
                capture.rules = with_filter_rule(&capture.rules, &rule);
            }
            Text::Nft { ruleset, .. } => {
                let family = if target.is_ipv4() { "ip" } else { "ip6" };
                let table = format!(
                    "table inet host-firewall {{\n\tchain forward {{\n\t\ttype filter hook forward priority filter; \
                     policy accept;\n\t\t{family} daddr {} {protocol} dport {} {for_nft}\n\t}}\n}}\n",
                    target.ip(),
                    target.port()
                );
                ruleset.push_str(&table);
            }
        }
        firewalled
    }

    /// Replaces all rules of this mode on the node. Counters in the dump are not restored.
    pub fn restore(&self, node: &Netns) -> Result<()> {
        match &self.text {
            Text::Ipvs(capture) => capture.restore(node)?,
            Text::Xtables { ipv4, ipv6 } => {
                let backend = if self.mode == Mode::IptablesLegacy { "-legacy" } else { "-nft" };
                for (tool, text) in [("iptables", ipv4), ("ip6tables", ipv6)] {
                    let text = text.clone();
                    let tool = format!("{tool}{backend}-restore");
                    node.run(move || command::run_with_input(&tool, &[], &text))??;
                }
            }
            Text::Nft { ruleset, changes } => {
                // Deleting a table that does not exist is an error, so the table is created first.
                let fresh = NFT_TABLES.map(|table| format!("table {table}\ndelete table {table}\n")).concat();
                let script = format!("{fresh}{ruleset}\n{changes}");
                node.run(move || command::run_with_input("nft", &["-f", "-"], &script))??;
            }
        }
        Ok(())
    }

    /// Removes everything that this mode can have written, so that the node looks as if it never ran.
    pub fn clear(&self, node: &Netns) -> Result<()> {
        match self.mode {
            Mode::Iptables | Mode::Nftables => node.command("nft", &["flush", "ruleset"]).map(drop),
            Mode::IptablesLegacy => clear_legacy(node),
            Mode::Ipvs => ipvs::clear(node),
        }
    }

    /// Converts the dump to the other iptables backend.
    #[must_use]
    pub fn in_backend(&self, mode: Mode) -> Self {
        Self { mode, text: self.text.clone() }
    }
}

/// Empties the legacy tables and unloads their modules, so that nothing of them is left.
fn clear_legacy(node: &Netns) -> Result<()> {
    for family in ["iptables", "ip6tables"] {
        let empty = XTABLES.map(|table| format!("*{table}\nCOMMIT\n")).concat();
        let tool = format!("{family}-legacy-restore");
        node.run(move || command::run_with_input(&tool, &[], &empty))??;
    }
    let modules = [
        "iptable_mangle",
        "iptable_nat",
        "iptable_filter",
        "ip6table_mangle",
        "ip6table_nat",
        "ip6table_filter",
    ];
    node.command("modprobe", &[&["-r"], &modules[..]].concat()).map(drop)
}

/// kube-proxy 1.36 counts some packets in objects that it creates outside its rules; the rules work without them.
fn without_accounting(text: &str) -> String {
    let mut words = text.to_owned();
    for name in ["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"] {
        words = words.replace(&format!(" -m nfacct --nfacct-name  {name}"), "");
    }
    words
}

fn nft_table(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip kube-proxy" } else { "ip6 kube-proxy" }
}

fn without(text: &str, unwanted: impl Fn(&str) -> bool) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !unwanted(line)).collect();
    lines.join("\n") + "\n"
}

fn with_host_firewall_only(text: &str) -> String {
    with_filter_rule(&without(text, |line| line.contains("KUBE-")), HOST_FIREWALL)
}

/// Adds a rule at the beginning of the filter table.
fn with_filter_rule(text: &str, rule: &str) -> String {
    with_rules(text, "*filter", &[rule.to_owned()])
}

/// Adds rules and chains before the other rules of this table.
fn with_rules(text: &str, table: &str, rules: &[String]) -> String {
    let mut lines = Vec::new();
    let mut pending = false;
    for line in text.lines() {
        if line.starts_with('*') {
            pending = line == table;
        }
        if pending && (line.starts_with("-A") || line.starts_with('[') || line == "COMMIT") {
            lines.extend(rules.iter().map(String::as_str));
            pending = false;
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

/// Deletes every conntrack entry of the namespace.
pub fn flush_conntrack(node: &Netns) -> Result<()> {
    node.command("conntrack", &["-F"]).map(drop)
}

/// The number of entries in the conntrack table of the node's namespace.
pub fn conntrack_count(node: &Netns) -> Result<u32> {
    let path = "/proc/sys/net/netfilter/nf_conntrack_count";
    let text = node.run(move || fs::read_to_string(path))?.with_context(|| format!("reading {path}"))?;
    text.trim().parse().with_context(|| format!("{path} holds {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(mode: Mode) -> Rules {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dualstack/kube-proxy/worker-1");
        Rules::read(&folder.join(mode.capture()), mode).unwrap()
    }

    fn xtables(rules: &Rules) -> (&str, &str) {
        match &rules.text {
            Text::Xtables { ipv4, ipv6 } => (ipv4, ipv6),
            Text::Nft { .. } | Text::Ipvs(_) => panic!("not of iptables"),
        }
    }

    #[test]
    fn a_flush_leaves_the_tables_and_their_own_chains() {
        let rules = captured(Mode::Iptables).without_kube_proxy();
        for text in [xtables(&rules).0, xtables(&rules).1] {
            assert!(!text.contains("KUBE-"));
            assert_eq!(text.matches("COMMIT").count(), 3);
            assert_eq!(text.matches(HOST_FIREWALL).count(), 1);
            assert!(text.contains(":PREROUTING ACCEPT"));
        }
    }

    #[test]
    fn cutting_one_service_leaves_its_neighbours() {
        for (vip, cut_chain) in [("10.96.10.10:80", 0), ("[fd00:96::8e9f]:80", 1)] {
            let whole = captured(Mode::Iptables);
            let cut = whole.without_service(vip.parse().unwrap());
            let lines = |rules: &Rules| {
                let (ipv4, ipv6) = xtables(rules);
                [ipv4.lines().count(), ipv6.lines().count()]
            };
            let mut expected = lines(&whole);
            expected[cut_chain] -= 1;
            assert_eq!(lines(&cut), expected, "{vip}");
        }
    }

    #[test]
    fn an_endpoint_is_moved_in_both_modes_and_families() {
        for mode in [Mode::Iptables, Mode::Nftables] {
            for (from, to) in [("10.244.1.12", "10.244.1.99"), ("fd00:10:244:1::12", "fd00:10:244:1::99")] {
                let moved = captured(mode).with_endpoint_moved(from.parse().unwrap(), to.parse().unwrap());
                let text = match &moved.text {
                    Text::Xtables { ipv4, ipv6 } => format!("{ipv4}{ipv6}"),
                    Text::Nft { ruleset, .. } => ruleset.clone(),
                    Text::Ipvs(_) => panic!("not of netfilter"),
                };
                let to: IpAddr = to.parse().unwrap();
                let destination = SocketAddr::new(to, 8080).to_string();
                assert!(text.contains(&destination), "{mode} {destination}");
                let itself = [format!("-s {to}/"), format!("saddr {to} jump mark-for-masquerade")];
                assert!(itself.iter().any(|rule| text.contains(rule)), "{mode} {to}");
            }
        }
    }
}
