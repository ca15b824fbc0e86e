//! A node as Kubernetes sets it up, with its neighbours: this node's Pods on a bridge in the host's namespace, every
//! other node behind a routed link in its own namespace, all from the cluster's lists. It sets links, addresses, routes
//! and the sysctls of a node. Module `rules` writes the rules.
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
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, atomic::AtomicU16},
};

use anyhow::{Context, Result, bail};

use crate::{
    cluster::{Cluster, NodeInfo, NodeNetwork, PodInfo},
    command,
    dataplane::Family,
    netns::Netns,
};

/// Modules that a node has loaded before its first Pod. The kernel requests most others itself.
const MODULES: [&str; 6] = ["nf_conntrack", "nf_nat", "br_netfilter", "veth", "bridge", "xt_conntrack"];

/// A namespace and an address in it from which traffic can be sent.
#[derive(Clone, Debug)]
pub struct Place {
    pub netns: Netns,
    pub address: IpAddr,
    /// The next source port. No two attempts of a run share one.
    pub(crate) next_port: Arc<AtomicU16>,
}

impl Place {
    fn new(netns: Netns, address: IpAddr) -> Self {
        Self { netns, address, next_port: Arc::new(AtomicU16::new(FIRST_PORT)) }
    }
}

/// The range of source ports.
pub(crate) const FIRST_PORT: u16 = 20_000;
pub(crate) const LAST_PORT: u16 = 60_999;

/// The number of the first Pod that is started later, in the name of its link.
const FIRST_STARTED: usize = 1_000;

#[derive(Clone, Debug)]
pub struct Pod {
    /// `namespace/name`.
    pub key: String,
    /// The Pod at its first address.
    pub place: Place,
    /// The Pod at each of its addresses, the first included.
    places: Vec<Place>,
    /// Whether it runs on the node that is traced.
    pub local: bool,
    /// The node's end of its link, if `local`.
    pub link: String,
    /// The namespace of its node.
    pub node: Netns,
}

impl Pod {
    /// The Pod at its address of this family.
    pub fn at(&self, family: Family) -> Result<&Place> {
        find(&self.places, family)
            .with_context(|| format!("Pod {} has no {} address", self.key, family.as_str()))
    }

    /// Removes a Pod of [`Topology::start_pod`]: its address answers no longer.
    pub fn stop(self) -> Result<()> {
        let mut commands = vec![format!("link del {}", self.link)];
        commands.extend(self.places.iter().map(|place| format!("neigh flush to {} dev cni0", place.address)));
        self.node.ip_batch(&commands)?;
        self.place.netns.remove()
    }
}

fn find(places: &[Place], family: Family) -> Option<&Place> {
    places.iter().find(|place| Family::of(place.address) == family)
}

#[derive(Debug)]
pub struct Topology {
    pub host: Netns,
    pub node: NodeInfo,
    /// The node as a client of its Pods: the bridge's addresses, the source of kubelet's probes.
    gateways: Vec<Place>,
    /// The node at its own addresses.
    nodes: Vec<Place>,
    /// A host outside the nodes: the fabric's gateway.
    outside: Vec<Place>,
    pub fabric: Netns,
    pods: BTreeMap<String, Pod>,
}

impl Topology {
    /// Builds everything in the calling thread's namespace, which becomes the node `name`.
    pub fn build(cluster: &Cluster, name: &str) -> Result<Self> {
        for module in MODULES {
            command::run("modprobe", &[module])?;
        }
        let nodes = cluster.node_infos()?;
        let node = nodes.iter().find(|node| node.name == name).cloned();
        let node = node.with_context(|| format!("the cluster has no Node {name}"))?;
        let host = Netns::current("host")?;
        prepare(&host)?;
        set_bridge_filter(&host, "1")?;
        let fabric = build_fabric(&nodes, &node)?;

        let mut pods = BTreeMap::new();
        let pod_infos = cluster.pod_infos();
        for member in &nodes {
            let netns = if member.name == name {
                attach_to_fabric(&host, &fabric, member)?;
                host.clone()
            } else {
                let netns = Netns::create(&format!("node-{}", member.name))?;
                prepare(&netns)?;
                attach_to_fabric(&netns, &fabric, member)?;
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
        let places = |netns: &Netns, address: fn(&NodeNetwork) -> IpAddr| -> Vec<Place> {
            node.networks.iter().map(|network| Place::new(netns.clone(), address(network))).collect()
        };
        let gateways = places(&host, |network| network.pods.gateway());
        let own = places(&host, |network| network.address);
        let outside = places(&fabric, |network| fabric_gateway(network.address));
        Ok(Self { host, node, gateways, nodes: own, outside, fabric, pods })
    }

    /// The node as a client of its Pods, as for kubelet's probes.
    pub fn gateway(&self, family: Family) -> Result<&Place> {
        find(&self.gateways, family).with_context(|| format!("the bridge has no {} address", family.as_str()))
    }

    /// The node at its own address.
    pub fn node_at(&self, family: Family) -> Result<&Place> {
        find(&self.nodes, family).with_context(|| format!("the node has no {} address", family.as_str()))
    }

    /// A host outside the nodes, with an address that the caller must assign.
    pub fn outside_at(&self, address: IpAddr) -> Place {
        Place::new(self.fabric.clone(), address)
    }

    /// A host outside the cluster.
    pub fn outside(&self, family: Family) -> Result<&Place> {
        find(&self.outside, family).with_context(|| format!("the fabric has no {} address", family.as_str()))
    }

    /// The Pod `namespace/name`.
    pub fn pod(&self, key: &str) -> Result<&Pod> {
        self.pods.get(key).with_context(|| format!("the topology has no Pod {key}"))
    }

    /// Starts a further Pod on this node, `namespace/name`, at an address that no other has. `number` is not that of another
    /// Pod which is started.
    pub fn start_pod(&self, key: &str, address: IpAddr, number: usize) -> Result<Pod> {
        let info = PodInfo { key: key.to_owned(), node: self.node.name.clone(), addresses: vec![address] };
        build_pod(&self.host, &self.node, FIRST_STARTED + number, &info, true)
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }
}

/// Sets up a namespace before its first link.
fn prepare(netns: &Netns) -> Result<()> {
    netns.sysctl("net.ipv4.ip_forward", "1")?;
    // kube-proxy sets this in iptables mode with localhostNodePorts.
    netns.sysctl("net.ipv4.conf.all.route_localnet", "1")?;
    // A scenario's unacknowledged segments must not be retransmitted into the following scenarios.
    netns.sysctl("net.ipv4.tcp_orphan_retries", "1")?;
    netns.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    make_ipv6_quiet(netns)?;
    netns.ip_batch(&["link set lo up".to_owned()])
}

/// Makes addresses usable at once and sends no router solicitations, because dozens of links come up.
fn make_ipv6_quiet(netns: &Netns) -> Result<()> {
    for setting in ["accept_dad", "accept_ra", "router_solicitations"] {
        netns.sysctl(&format!("net.ipv6.conf.default.{setting}"), "0")?;
    }
    Ok(())
}

/// Sets whether iptables sees bridged packets, in both families.
fn set_bridge_filter(netns: &Netns, value: &str) -> Result<()> {
    netns.sysctl("net.bridge.bridge-nf-call-iptables", value)?;
    netns.sysctl("net.bridge.bridge-nf-call-ip6tables", value)
}

/// The default route's prefix, which names the family.
const fn default_route(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "0.0.0.0/0" } else { "::/0" }
}

/// The network between the nodes and their default gateway, which drops packets without a route.
fn build_fabric(nodes: &[NodeInfo], node: &NodeInfo) -> Result<Netns> {
    let fabric = Netns::create("fabric")?;
    prepare(&fabric)?;
    let mut commands = vec!["link add fab0 type bridge".to_owned()];
    for network in &node.networks {
        let gateway = fabric_gateway(network.address);
        commands.push(format!("address add {gateway}/{} dev fab0", fabric_prefix(gateway)));
    }
    commands.push("link set fab0 up".to_owned());
    for network in &node.networks {
        commands.push(format!("route add blackhole {}", default_route(network.address)));
    }
    for NodeNetwork { address, pods } in nodes.iter().flat_map(|member| &member.networks) {
        commands.push(format!("route add {}/{} via {address}", pods.base, pods.prefix));
    }
    fabric.ip_batch(&commands)?;
    // Only the node that is traced filters what its bridge forwards.
    set_bridge_filter(&fabric, "0")?;
    Ok(fabric)
}

/// The nodes' network: a /24 or a /64.
const fn fabric_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

/// The address in the nodes' network that ends in 254.
fn fabric_gateway(node: IpAddr) -> IpAddr {
    match node {
        IpAddr::V4(node) => Ipv4Addr::from_bits((node.to_bits() & !0xff) | 0xfe).into(),
        IpAddr::V6(node) => Ipv6Addr::from_bits((node.to_bits() & !0xffff) | 0xfe).into(),
    }
}

fn attach_to_fabric(netns: &Netns, fabric: &Netns, member: &NodeInfo) -> Result<()> {
    let port = format!("to-{}", member.name.chars().take(12).collect::<String>());
    // Created from the side of a node in its own namespace, because the host's namespace has no name to move a link to.
    let mut commands = vec![format!("link add eth0 type veth peer name {port} netns {}", fabric.name())];
    for network in &member.networks {
        commands.push(format!("address add {}/{} dev eth0", network.address, fabric_prefix(network.address)));
    }
    commands.push("link set eth0 up".to_owned());
    netns.ip_batch(&commands)?;
    fabric.ip_batch(&[format!("link set {port} master fab0"), format!("link set {port} up")])?;
    let routes = member.networks.iter().map(|network| {
        format!("route add {} via {}", default_route(network.address), fabric_gateway(network.address))
    });
    netns.ip_batch(&routes.collect::<Vec<_>>())
}

/// Locally administered.
const BRIDGE_ADDRESS: &str = "02:00:00:00:00:01";

fn build_bridge(netns: &Netns, member: &NodeInfo, nodes: &[NodeInfo]) -> Result<()> {
    // With an address of its own, as CNI's bridge plugin gives it: otherwise the bridge takes the lowest one of its ports,
    // and each Pod that starts or ends may change it, which forgets every neighbour on both sides.
    let mut commands = vec![format!("link add cni0 address {BRIDGE_ADDRESS} type bridge")];
    for NodeNetwork { pods, .. } in &member.networks {
        commands.push(format!("address add {}/{} dev cni0", pods.gateway(), pods.prefix));
    }
    commands.push("link set cni0 up".to_owned());
    let others = nodes.iter().filter(|other| other.name != member.name);
    for NodeNetwork { address, pods } in others.flat_map(|other| &other.networks) {
        commands.push(format!("route add {}/{} via {address}", pods.base, pods.prefix));
    }
    netns.ip_batch(&commands)
}

fn build_pod(node: &Netns, member: &NodeInfo, index: usize, info: &PodInfo, local: bool) -> Result<Pod> {
    let netns = Netns::create(&format!("pod-{}", info.key.replace('/', "-")))?;
    let link = format!("veth{index}");
    make_ipv6_quiet(&netns)?;
    node.ip_batch(&[
        format!("link add {link} type veth peer name eth0 netns {}", netns.name()),
        format!("link set {link} master cni0"),
        format!("link set {link} type bridge_slave hairpin on"),
        format!("link set {link} up"),
    ])?;
    let mut commands = vec!["link set lo up".to_owned()];
    let mut routes = Vec::new();
    let mut places = Vec::new();
    for address in &info.addresses {
        let pods = member.network(Family::of(*address))?.pods;
        commands.push(format!("address add {address}/{} dev eth0", pods.prefix));
        routes.push(format!("route add {} via {}", default_route(*address), pods.gateway()));
        places.push(Place::new(netns.clone(), *address));
    }
    commands.push("link set eth0 up".to_owned());
    commands.append(&mut routes);
    netns.ip_batch(&commands)?;
    let place = places.first().cloned().with_context(|| format!("Pod {} has no address", info.key))?;
    Ok(Pod { key: info.key.clone(), place, places, local, link, node: node.clone() })
}
