//! The node in ipvs mode: what kube-proxy once wrote there, put back. It owns virtual servers, sets, the addresses of
//! kube-ipvs0 and IPVS's sysctls, and knows nothing of what a fault means.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{command, kube_proxy::KubeProxy, netns::Netns, rules::Rules, wait, world::Stage};

/// Modules that kube-proxy loads for this mode.
const MODULES: [&str; 5] = ["ip_vs", "ip_vs_rr", "xt_set", "xt_ipvs", "dummy"];

/// What kube-proxy sets (`NewProxier` in `pkg/proxy/ipvs/proxier.go`), and the kernel's default for reuse since 5.9.
const SYSCTLS: [(&str, &str); 4] = [
    ("net.ipv4.vs.conntrack", "1"),
    ("net.ipv4.vs.conn_reuse_mode", "1"),
    ("net.ipv4.vs.expire_nodest_conn", "1"),
    ("net.ipv4.vs.expire_quiescent_template", "1"),
];

/// One capture of a node in ipvs mode.
#[derive(Clone, Debug)]
pub struct Capture {
    rules: Rules,
    sets: String,
    virtual_servers: String,
    addresses: Vec<Ipv4Addr>,
}

impl Capture {
    pub fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let links: Value = serde_json::from_str(&text("ip-addr.json")?).context("reading ip-addr.json")?;
        let of_kube_ipvs0 =
            links.as_array().into_iter().flatten().find(|link| link["ifname"] == "kube-ipvs0");
        let addresses = of_kube_ipvs0
            .and_then(|link| link["addr_info"].as_array())
            .into_iter()
            .flatten()
            .filter_map(|address| address["local"].as_str()?.parse().ok())
            .collect();
        Ok(Self {
            rules: Rules::read(&folder.join("iptables-save.txt"))?,
            sets: sets_for_any_kernel(&text("ipset-save.txt")?),
            virtual_servers: text("ipvsadm-save.txt")?,
            addresses,
        })
    }

    /// Puts everything back as kube-proxy would: sets before the rules that name them.
    fn restore(&self, node: &Netns) -> Result<()> {
        for module in MODULES {
            command::run("modprobe", &[module])?;
        }
        for (name, value) in SYSCTLS {
            node.sysctl(name, value)?;
        }
        let link = ["link add kube-ipvs0 type dummy".to_owned()].into_iter();
        let addresses = self.addresses.iter().map(|ip| format!("address add {ip}/32 dev kube-ipvs0"));
        node.ip_batch(&link.chain(addresses).collect::<Vec<_>>())?;
        let sets = self.sets.clone();
        node.run(move || command::run_with_input("ipset", &["restore"], &sets))??;
        self.rules.restore(node)?;
        let servers = self.virtual_servers.clone();
        node.run(move || command::run_with_input("ipvsadm", &["-R"], &servers))??;
        Ok(())
    }
}

/// The dump without what kernels before 5.12 do not know of a set.
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

/// Takes away what [`Capture::restore`] made, as far as it is there; the rules are the caller's.
fn clear(node: &Netns) -> Result<()> {
    node.command("ipvsadm", &["-C"])?;
    node.command("ipvsadm", &["--set", "900", "120", "300"])?;
    node.command("ipset", &["destroy"])?;
    node.ip_batch(&["link del kube-ipvs0".to_owned()])
}

/// The node is in ipvs mode for this scenario: rules, virtual servers, and a kube-proxy that says so.
pub fn enter(stage: &mut Stage) -> Result<()> {
    let capture = stage.world.capture.with_file_name("ipvs");
    let restored = Capture::read(&capture)?;
    stage.break_with(
        move |world| restored.restore(&world.topology.host),
        |world| {
            // The rules name the sets, so they go first.
            world.rules.restore(&world.topology.host)?;
            clear(&world.topology.host)
        },
    )?;
    stage.kube_proxy.kill();
    stage.kube_proxy = KubeProxy::start(&capture)?;
    Ok(())
}

/// Sets one of IPVS's sysctls for this scenario; the next one that enters the mode sets its own.
pub fn sysctl(stage: &Stage, name: &str, value: &str) -> Result<()> {
    stage.world.topology.host.sysctl(&format!("net.ipv4.vs.{name}"), value)
}

/// Gives a real server weight 0: it keeps its connections and gets no new ones.
pub fn set_weight_0(node: &Netns, virtual_server: SocketAddrV4, real: SocketAddrV4) -> Result<()> {
    let (server, real) = (virtual_server.to_string(), real.to_string());
    node.command("ipvsadm", &["-e", "-t", &server, "-r", &real, "-m", "-w", "0"]).map(drop)
}

/// Takes a real server out of its virtual server.
pub fn remove_real_server(node: &Netns, virtual_server: SocketAddrV4, real: SocketAddrV4) -> Result<()> {
    node.command("ipvsadm", &["-d", "-t", &virtual_server.to_string(), "-r", &real.to_string()]).map(drop)
}

/// How long IPVS keeps idle TCP connections from now on.
pub fn set_tcp_timeout(node: &Netns, seconds: u32) -> Result<()> {
    node.command("ipvsadm", &["--set", &seconds.to_string(), "0", "0"]).map(drop)
}

/// Waits until IPVS has no entry for this client's connection any more.
pub fn wait_until_forgotten(node: &Netns, client: SocketAddrV4, limit: Duration) -> Result<()> {
    let entry = format!("{:08X} {:04X}", client.ip().to_bits(), client.port());
    wait::until("IPVS to forget an idle connection", limit, || {
        let listed = node.run(|| fs::read_to_string("/proc/net/ip_vs_conn"));
        matches!(listed, Ok(Ok(text)) if !text.contains(&entry)).then_some(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_capture_is_read_whole() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kube-proxy/worker-1/ipvs");
        let capture = Capture::read(&folder).unwrap();
        assert_eq!(capture.addresses.len(), 11);
        assert!(capture.virtual_servers.contains("-a -t 10.96.10.10:80 -r 10.244.1.11:8080 -m -w 1"));
    }

    #[test]
    fn sets_lose_what_old_kernels_do_not_know() {
        let saved = "create A hash:ip family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x1\nadd A 10.96.0.1\n";
        let wanted = "create A hash:ip family inet hashsize 1024 maxelem 65536\nadd A 10.96.0.1\n";
        assert_eq!(sets_for_any_kernel(saved), wanted);
    }
}
