//! kube-proxy's rules: a captured dump restored into the node, whole or with a fault cut into it. It owns the
//! text of the dump and knows nothing of what a fault means.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
};

use anyhow::{Context, Result};

use crate::{command, netns::Netns};

/// What a host's own firewall has in the filter table.
const HOST_FIREWALL: &str = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";

/// One `iptables-save` dump.
#[derive(Clone, Debug)]
pub struct Rules {
    text: String,
}

impl Rules {
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("reading the captured rules {}", path.display()))?;
        Ok(Self { text })
    }

    /// Without any rule or chain of kube-proxy's: as after a flush that nobody repaired. What other software has in
    /// the tables stays, here a rule of the host's firewall: with no rule left that asks for connection states or
    /// NAT, the kernel would stop tracking connections in this namespace.
    #[must_use]
    pub fn without_kube_proxy(&self) -> Self {
        let cut = self.without(|line| line.contains("KUBE-"));
        let mut lines = Vec::new();
        let mut table = "";
        for line in cut.text.lines() {
            if line.starts_with('*') {
                table = line;
            }
            if line == "COMMIT" && table == "*filter" {
                lines.push(HOST_FIREWALL);
            }
            lines.push(line);
        }
        Self { text: lines.join("\n") + "\n" }
    }

    /// Without the rules that lead to one Service address, whatever they would do with it.
    #[must_use]
    pub fn without_service(&self, vip: SocketAddrV4) -> Self {
        let address = format!("-d {}/32 ", vip.ip());
        let port = format!("--dport {} ", vip.port());
        self.without(|line| {
            line.contains("-A KUBE-SERVICES ") && line.contains(&address) && line.contains(&port)
        })
    }

    /// Without the rules that contain `text`.
    #[must_use]
    pub fn without_line(&self, text: &str) -> Self {
        self.without(|line| line.contains("-A ") && line.contains(text))
    }

    /// With a Service of one endpoint, or none, as kube-proxy writes it. The chains' names are hashes in a real one.
    #[must_use]
    pub fn with_service(
        &self,
        name: &str,
        protocol: &str,
        vip: SocketAddrV4,
        endpoint: Option<SocketAddrV4>,
    ) -> Self {
        let matched = format!("-d {}/32 -p {protocol} -m comment --comment \"{name}", vip.ip());
        let port = format!("-m {protocol} --dport {}", vip.port());
        let (service, sep) = ("KUBE-SVC-LABSIGNALAAAAAAA", "KUBE-SEP-LABSIGNALAAAAAAA");
        let (mut nat, mut filter) = (Vec::new(), Vec::new());
        if let Some(endpoint) = endpoint {
            nat.push(format!(":{service} - [0:0]"));
            nat.push(format!(":{sep} - [0:0]"));
            nat.push(format!("-A KUBE-SERVICES {matched} cluster IP\" {port} -j {service}"));
            nat.push(format!("-A {service} -m comment --comment \"{name} -> {endpoint}\" -j {sep}"));
            nat.push(format!(
                "-A {sep} -p {protocol} -m comment --comment \"{name}\" -m {protocol} -j DNAT --to-destination {endpoint}"
            ));
        } else {
            filter.push(format!(
                "-A KUBE-SERVICES {matched} has no endpoints\" {port} -j REJECT --reject-with icmp-port-unreachable"
            ));
        }
        let mut lines = Vec::new();
        let mut table = "";
        for line in self.text.lines() {
            if line.starts_with('*') {
                table = line;
            }
            if line == "COMMIT" {
                let added = if table == "*nat" { &nat } else { &filter };
                if table != "*mangle" {
                    lines.extend(added.iter().map(String::as_str));
                }
            }
            lines.push(line);
        }
        Self { text: lines.join("\n") + "\n" }
    }

    /// The same rules, with every endpoint address `from` replaced by `to` where packets are sent to it.
    #[must_use]
    pub fn with_endpoint_moved(&self, from: Ipv4Addr, to: Ipv4Addr) -> Self {
        let (from, to) = (format!("--to-destination {from}:"), format!("--to-destination {to}:"));
        Self { text: self.text.replace(&from, &to) }
    }

    fn without(&self, unwanted: impl Fn(&str) -> bool) -> Self {
        let lines: Vec<&str> = self.text.lines().filter(|line| !unwanted(line)).collect();
        Self { text: lines.join("\n") + "\n" }
    }

    /// Replaces all rules of the node by these. Counters in the dump are not taken over.
    pub fn restore(&self, node: &Netns) -> Result<()> {
        let text = self.text.clone();
        node.run(move || command::run_with_input("iptables-restore", &[], &text))?.map(drop)
    }
}

/// Forgets every conntrack entry of the namespace.
pub fn flush_conntrack(node: &Netns) -> Result<()> {
    node.command("conntrack", &["-F"]).map(drop)
}

/// How many entries the conntrack table of the node's namespace holds.
pub fn conntrack_count(node: &Netns) -> Result<u32> {
    let path = "/proc/sys/net/netfilter/nf_conntrack_count";
    let text = node.run(move || fs::read_to_string(path))?.with_context(|| format!("reading {path}"))?;
    text.trim().parse().with_context(|| format!("{path} says {text:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn captured() -> Rules {
        Rules::read(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fixtures/kube-proxy/worker-1/iptables/iptables-save.txt"),
        )
        .unwrap()
    }

    #[test]
    fn a_flush_leaves_the_tables_and_their_own_chains() {
        let rules = captured().without_kube_proxy();
        assert!(!rules.text.contains("KUBE-"));
        assert_eq!(rules.text.matches("COMMIT").count(), 3);
        assert!(rules.text.contains(":PREROUTING ACCEPT"));
    }

    #[test]
    fn cutting_one_service_leaves_its_neighbours() {
        let whole = captured();
        let cut = whole.without_service("10.96.10.10:80".parse().unwrap());
        assert_eq!(whole.text.lines().count(), cut.text.lines().count() + 1);
        assert!(!cut.text.contains("-j KUBE-SVC-I5LIAMPLWKMBJ54B\n"));
        assert!(cut.text.contains("-j KUBE-SVC-P7F5AIWM5RLILK6Y\n"));
    }
}
