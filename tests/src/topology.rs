//! A node as Kubernetes makes it, with its neighbours: this node's Pods on a bridge in the host's namespace,
//! every other node behind a routed link in a namespace of its own, all from the cluster's lists. It owns
//! links, addresses, routes and the sysctls that a node has; rules are `rules`' business.
//!
//! ```text
//!  pod … pod                         pod … pod
//!      └─┬─┘                             └─┬─┘
//!      cni0   the host's namespace       cni0   namespace node-NAME
//!      eth0 ──────── fab0 (fabric) ──────── eth0
//!                    default route of every node; what it has no route for vanishes
//! ```

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, atomic::AtomicU16},
};

use anyhow::{Context, Result, bail};

use crate::{
    cluster::{Cluster, NodeInfo},
    command,
    netns::Netns,
};

/// Modules that a node has loaded before its first Pod. Most others the kernel asks for itself.
const MODULES: [&str; 6] = ["nf_conntrack", "nf_nat", "br_netfilter", "veth", "bridge", "xt_conntrack"];

/// A namespace and an address in it from which traffic can be sent.
#[derive(Clone, Debug)]
pub struct Place {
    pub netns: Netns,
    pub address: Ipv4Addr,
    /// The next source port, so that no two attempts of a run share one.
    pub(crate) next_port: Arc<AtomicU16>,
}

impl Place {
    fn new(netns: Netns, address: Ipv4Addr) -> Self {
        Self { netns, address, next_port: Arc::new(AtomicU16::new(FIRST_PORT)) }
    }
}

/// Source ports are handed out from here up to `LAST_PORT`.
pub(crate) const FIRST_PORT: u16 = 20_000;
pub(crate) const LAST_PORT: u16 = 60_999;

#[derive(Clone, Debug)]
pub struct Pod {
    /// `namespace/name`.
    pub key: String,
    pub place: Place,
    /// Whether it runs on the node that is traced.
    pub local: bool,
    /// The node-side end of its link, where `local`.
    pub link: String,
    /// The namespace of its node.
    pub node: Netns,
}

#[derive(Debug)]
pub struct Topology {
    pub host: Netns,
    pub node: NodeInfo,
    /// The node itself as a client of its Pods: the bridge's address, as kubelet's probes have.
    pub gateway: Place,
    pub fabric: Netns,
    pods: BTreeMap<String, Pod>,
}

impl Topology {
    /// Builds it in the calling thread's namespace, which becomes the node `name`.
    pub fn build(cluster: &Cluster, name: &str) -> Result<Self> {
        for module in MODULES {
            command::run("modprobe", &[module])?;
        }
        let nodes = cluster.node_infos()?;
        let node = nodes.iter().find(|node| node.name == name).cloned();
        let node = node.with_context(|| format!("the cluster has no Node {name}"))?;
        let host = Netns::current("host")?;
        prepare(&host)?;
        host.sysctl("net.bridge.bridge-nf-call-iptables", "1")?;
        let fabric = build_fabric(&nodes, &node)?;

        let mut pods = BTreeMap::new();
        let pod_infos = cluster.pod_infos();
        for member in &nodes {
            let netns = if member.name == name {
                attach_to_fabric(&host, &fabric, member, &node)?;
                host.clone()
            } else {
                let netns = Netns::create(&format!("node-{}", member.name))?;
                prepare(&netns)?;
                attach_to_fabric(&netns, &fabric, member, &node)?;
                netns
            };
            build_bridge(&netns, member, &nodes)?;
            for (index, info) in pod_infos.iter().filter(|pod| pod.node == member.name).enumerate() {
                let pod = build_pod(&netns, member, index, info, member.name == name)?;
                pods.insert(pod.key.clone(), pod);
            }
        }
        if pods.is_empty() {
            bail!("no Pod of the cluster has an address of its own and a node");
        }
        let gateway = Place::new(host.clone(), node.pod_network.gateway());
        Ok(Self { host, node, gateway, fabric, pods })
    }

    /// The Pod `namespace/name`.
    pub fn pod(&self, key: &str) -> Result<&Pod> {
        self.pods.get(key).with_context(|| format!("the topology has no Pod {key}"))
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }
}

/// What every namespace needs before its first link.
fn prepare(netns: &Netns) -> Result<()> {
    // The lab speaks IPv4; router solicitations and the like would only be noise. A kernel without IPv6 is fine.
    let _without_ipv6 = netns.sysctl("net.ipv6.conf.all.disable_ipv6", "1");
    netns.sysctl("net.ipv4.ip_forward", "1")?;
    netns.ip_batch(&["link set lo up".to_owned()])
}

/// The network between the nodes: their default gateway, which lets everything it does not know vanish.
fn build_fabric(nodes: &[NodeInfo], node: &NodeInfo) -> Result<Netns> {
    let fabric = Netns::create("fabric")?;
    prepare(&fabric)?;
    let mut commands = vec![
        "link add fab0 type bridge".to_owned(),
        format!("address add {}/24 dev fab0", fabric_gateway(node)),
        "link set fab0 up".to_owned(),
        "route add blackhole default".to_owned(),
    ];
    commands.extend(nodes.iter().map(|member| {
        let network = member.pod_network;
        format!("route add {}/{} via {}", network.base, network.prefix, member.address)
    }));
    fabric.ip_batch(&commands)?;
    // Only the node that is traced filters what its bridge forwards.
    fabric.sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    Ok(fabric)
}

/// The last address of the nodes' /24.
fn fabric_gateway(node: &NodeInfo) -> Ipv4Addr {
    Ipv4Addr::from_bits((node.address.to_bits() & 0xffff_ff00) | 0xfe)
}

fn attach_to_fabric(netns: &Netns, fabric: &Netns, member: &NodeInfo, node: &NodeInfo) -> Result<()> {
    let port = format!("to-{}", member.name.chars().take(12).collect::<String>());
    // Made from the fabric's side when the node is a namespace of its own; the host has no name to be moved by.
    netns.ip_batch(&[
        format!("link add eth0 type veth peer name {port} netns {}", fabric.name()),
        format!("address add {}/24 dev eth0", member.address),
        "link set eth0 up".to_owned(),
    ])?;
    fabric.ip_batch(&[format!("link set {port} master fab0"), format!("link set {port} up")])?;
    netns.ip_batch(&[format!("route add default via {}", fabric_gateway(node))])
}

fn build_bridge(netns: &Netns, member: &NodeInfo, nodes: &[NodeInfo]) -> Result<()> {
    let network = member.pod_network;
    let mut commands = vec![
        "link add cni0 type bridge".to_owned(),
        format!("address add {}/{} dev cni0", network.gateway(), network.prefix),
        "link set cni0 up".to_owned(),
    ];
    commands.extend(nodes.iter().filter(|other| other.name != member.name).map(|other| {
        let network = other.pod_network;
        format!("route add {}/{} via {}", network.base, network.prefix, other.address)
    }));
    netns.ip_batch(&commands)
}

fn build_pod(
    node: &Netns,
    member: &NodeInfo,
    index: usize,
    info: &crate::cluster::PodInfo,
    local: bool,
) -> Result<Pod> {
    let netns = Netns::create(&format!("pod-{}", info.key.replace('/', "-")))?;
    let link = format!("veth{index}");
    let network = member.pod_network;
    node.ip_batch(&[
        format!("link add {link} type veth peer name eth0 netns {}", netns.name()),
        format!("link set {link} master cni0"),
        format!("link set {link} type bridge_slave hairpin on"),
        format!("link set {link} up"),
    ])?;
    let _without_ipv6 = netns.sysctl("net.ipv6.conf.all.disable_ipv6", "1");
    netns.ip_batch(&[
        "link set lo up".to_owned(),
        format!("address add {}/{} dev eth0", info.address, network.prefix),
        "link set eth0 up".to_owned(),
        format!("route add default via {}", network.gateway()),
    ])?;
    Ok(Pod { key: info.key.clone(), place: Place::new(netns, info.address), local, link, node: node.clone() })
}
