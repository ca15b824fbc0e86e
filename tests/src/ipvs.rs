//! The node in ipvs mode: restores what kube-proxy wrote there. It handles virtual servers, sets, the addresses of
//! kube-ipvs0 and IPVS's sysctls, and knows nothing of what a fault means.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    command,
    dataplane::{Family, Mode},
    netns::Netns,
    wait,
    world::{Stage, World},
};

/// The longest wait for the kernel to free deleted rules.
const LIMIT: Duration = Duration::from_secs(10);
/// The interface that holds the virtual servers' addresses; it stays down.
const LINK: &str = "kube-ipvs0";
/// `IP_VS_TCP_S_ESTABLISHED` in `tcp_timeouts` of `net/netfilter/ipvs/ip_vs_proto_tcp.c`.
const KERNEL_TCP_TIMEOUT_SECS: u32 = 900;
/// Modules that kube-proxy loads for this mode.
const MODULES: [&str; 5] = ["ip_vs", "ip_vs_rr", "xt_set", "xt_ipvs", "dummy"];

/// The values that kube-proxy sets (`NewProxier` in `pkg/proxy/ipvs/proxier.go`), and the kernel's default for reuse
/// since 5.9.
const SYSCTLS: [(&str, &str); 4] = [
    ("net.ipv4.vs.conntrack", "1"),
    ("net.ipv4.vs.conn_reuse_mode", "1"),
    ("net.ipv4.vs.expire_nodest_conn", "1"),
    ("net.ipv4.vs.expire_quiescent_template", "1"),
];

/// One capture of a node in ipvs mode.
#[derive(Clone, Debug)]
pub struct Capture {
    /// `iptables-save` output; its rules name the sets.
    pub rules: String,
    /// The IPv6 rules; empty if kube-proxy had no IPv6 Service.
    pub rules_of_ipv6: String,
    sets: String,
    virtual_servers: String,
    addresses: Vec<IpAddr>,
}

impl Capture {
    pub fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let links: Value = serde_json::from_str(&text("ip-addr.json")?).context("reading ip-addr.json")?;
        let of_kube_ipvs0 = links.as_array().into_iter().flatten().find(|link| link["ifname"] == LINK);
        let addresses = of_kube_ipvs0
            .and_then(|link| link["addr_info"].as_array())
            .into_iter()
            .flatten()
            .filter_map(|address| address["local"].as_str()?.parse().ok())
            .collect();
        Ok(Self {
            rules: text("iptables-save.txt")?,
            rules_of_ipv6: String::new(),
            sets: sets_for_any_kernel(&text("ipset-save.txt")?),
            virtual_servers: text("ipvsadm-save.txt")?,
            addresses,
        })
    }

    /// The node with only these rules of kube-proxy.
    #[must_use]
    pub fn without_servers(rules: String) -> Self {
        let nothing = String::new;
        Self {
            rules,
            rules_of_ipv6: nothing(),
            sets: nothing(),
            virtual_servers: nothing(),
            addresses: Vec::new(),
        }
    }

    /// Adds set members, virtual servers and addresses.
    pub fn add(&mut self, sets: &[String], virtual_servers: &[String], addresses: &[IpAddr]) {
        for (text, lines) in [(&mut self.sets, sets), (&mut self.virtual_servers, virtual_servers)] {
            for line in lines {
                text.push_str(line);
                text.push('\n');
            }
        }
        self.addresses.extend(addresses);
    }

    /// Removes one virtual server; its address stays on the node.
    #[must_use]
    pub fn without_virtual_server(&self, vip: SocketAddr) -> Self {
        let server = format!(" -t {vip} ");
        let mut cut = self.clone();
        cut.virtual_servers.clear();
        for line in self.virtual_servers.lines().filter(|line| !line.contains(&server)) {
            cut.virtual_servers.push_str(line);
            cut.virtual_servers.push('\n');
        }
        cut
    }

    /// Moves every real server at one address to another and drops duplicates.
    #[must_use]
    pub fn with_endpoint_moved(&self, from: IpAddr, to: IpAddr) -> Self {
        let moved = self.virtual_servers.replace(&format!(" -r {from}:"), &format!(" -r {to}:"));
        let mut lines: Vec<&str> = Vec::new();
        for line in moved.lines() {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        Self { virtual_servers: lines.join("\n") + "\n", ..self.clone() }
    }

    /// Replaces the node's state with this one as kube-proxy would: sets before the rules that name them.
    pub fn restore(&self, node: &Netns) -> Result<()> {
        for module in MODULES {
            command::run("modprobe", &[module])?;
        }
        clear(node)?;
        for (name, value) in SYSCTLS {
            node.sysctl(name, value)?;
        }
        let link = [format!("link add {LINK} type dummy")].into_iter();
        let addresses = self
            .addresses
            .iter()
            .map(|&ip| format!("address add {ip}/{} dev {LINK}", Family::of(ip).host_prefix()));
        node.ip_batch(&link.chain(addresses).collect::<Vec<_>>())?;
        for (tool, arguments, text) in [
            ("ipset", &["restore"][..], &self.sets),
            ("iptables-nft-restore", &[], &self.rules),
            ("ip6tables-nft-restore", &[], &self.rules_of_ipv6),
            ("ipvsadm", &["-R"], &self.virtual_servers),
        ] {
            let text = text.clone();
            node.run(move || command::run_with_input(tool, arguments, &text))??;
        }
        Ok(())
    }
}

/// Removes all state of this mode from the node.
pub fn clear(node: &Netns) -> Result<()> {
    node.command("nft", &["flush", "ruleset"])?;
    node.command("ipvsadm", &["-C"])?;
    // The kernel frees the deleted rules, which refer to the sets, a moment later (`nf_tables_trans_destroy_work`).
    let mut refused = None;
    let destroyed = wait::until("the sets to be destroyed", LIMIT, || {
        refused = node.command("ipset", &["destroy"]).err();
        refused.is_none().then_some(())
    });
    destroyed.map_err(|late| match refused {
        Some(refused) => refused.context(late),
        None => late,
    })?;
    let there = node.run(|| Path::new("/proc/sys/net/ipv4/conf").join(LINK).exists())?;
    if there { node.ip_batch(&[format!("link del {LINK}")]) } else { Ok(()) }
}

/// Removes the set options that kernels before 5.12 do not know.
fn sets_for_any_kernel(saved: &str) -> String {
    let mut lines = Vec::new();
    for line in saved.lines() {
        let mut kept = Vec::new();
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            if matches!(word, "bucketsize" | "initval") {
                words.next();
            } else {
                kept.push(word);
            }
        }
        lines.push(kept.join(" "));
    }
    lines.join("\n") + "\n"
}

/// Sets one of IPVS's sysctls for this scenario.
pub fn sysctl(stage: &mut Stage, name: &str, value: &str) -> Result<()> {
    let name = format!("net.ipv4.vs.{name}");
    let usual = SYSCTLS.iter().find(|(known, _)| *known == name).map(|(_, usual)| *usual);
    let usual = usual.with_context(|| format!("{name} is not a sysctl that kube-proxy sets"))?;
    let (set, reset) = (name.clone(), name);
    let value = value.to_owned();
    stage.break_with(
        move |world| world.topology.host.sysctl(&set, &value),
        move |world| world.topology.host.sysctl(&reset, usual),
    )
}

/// Sets how long IPVS keeps idle TCP connections in this scenario.
pub fn set_tcp_timeout(stage: &mut Stage, seconds: u32) -> Result<()> {
    let set = |seconds: u32| {
        move |world: &World| {
            world.topology.host.command("ipvsadm", &["--set", &seconds.to_string(), "0", "0"]).map(drop)
        }
    };
    stage.break_with(set(seconds), set(KERNEL_TCP_TIMEOUT_SECS))
}

/// Lets this scenario change virtual servers; all of them are restored at its end.
pub fn breaking(stage: &mut Stage) -> Result<()> {
    stage.break_with(|_| Ok(()), |world| world.rules(Mode::Ipvs)?.restore(&world.topology.host))
}

/// Gives a real server weight 0: it keeps its connections and gets no new ones.
pub fn set_weight_0(node: &Netns, virtual_server: SocketAddr, real: SocketAddr) -> Result<()> {
    let (server, real) = (virtual_server.to_string(), real.to_string());
    node.command("ipvsadm", &["-e", "-t", &server, "-r", &real, "-m", "-w", "0"]).map(drop)
}

/// Removes a real server from its virtual server.
pub fn remove_real_server(node: &Netns, virtual_server: SocketAddr, real: SocketAddr) -> Result<()> {
    node.command("ipvsadm", &["-d", "-t", &virtual_server.to_string(), "-r", &real.to_string()]).map(drop)
}

/// Waits until IPVS has no entry for this client's connection.
pub fn wait_until_deleted(node: &Netns, client: SocketAddr, limit: Duration) -> Result<()> {
    let IpAddr::V4(ip) = client.ip() else { bail!("the lab reads only IPv4 entries of IPVS: {client}") };
    let entry = format!("{:08X} {:04X}", ip.to_bits(), client.port());
    wait::until("IPVS to delete an idle connection", limit, || {
        let listed = node.run(|| fs::read_to_string("/proc/net/ip_vs_conn"));
        matches!(listed, Ok(Ok(text)) if !text.contains(&entry)).then_some(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_capture_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kube-proxy/worker-1/ipvs");
        let capture = Capture::read(&folder).unwrap();
        assert_eq!(capture.addresses.len(), 11);
        assert!(capture.virtual_servers.contains("-a -t 10.96.10.10:80 -r 10.244.1.11:8080 -m -w 1"));
    }

    #[test]
    fn sets_lose_options_that_old_kernels_do_not_know() {
        let saved = "create A hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x1\n\
                     add A 10.96.0.1\n";
        let wanted = "create A hash:ip family inet hashsize 1024 maxelem 65536\nadd A 10.96.0.1\n";
        assert_eq!(sets_for_any_kernel(saved), wanted);
    }
}
