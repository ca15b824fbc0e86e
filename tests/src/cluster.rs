//! The cluster that the lab's node belongs to: the `kubectl get -o json` lists that a scenario starts from. It reads
//! the few fields that a topology and an expectation need, and does not change the objects.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::dataplane::Family;

/// The lists of one cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub services: Vec<Value>,
    pub endpoint_slices: Vec<Value>,
    pub pods: Vec<Value>,
    pub nodes: Vec<Value>,
    pub folder: PathBuf,
}

#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub name: String,
    /// One for each family of the node, IPv4 first.
    pub networks: Vec<NodeNetwork>,
}

impl NodeInfo {
    pub fn network(&self, family: Family) -> Result<&NodeNetwork> {
        let found = self.networks.iter().find(|network| Family::of(network.address) == family);
        found.with_context(|| format!("Node {} has no {}", self.name, family.as_str()))
    }
}

/// A node's address and its Pod network, in one family.
#[derive(Clone, Copy, Debug)]
pub struct NodeNetwork {
    pub address: IpAddr,
    pub pods: PodNetwork,
}

/// A node's part of the Pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    pub base: IpAddr,
    pub prefix: u8,
}

impl PodNetwork {
    /// The bridge's own address: the first of the range, as the bridge CNI plugin assigns it.
    pub fn gateway(self) -> IpAddr {
        match self.base {
            IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits().saturating_add(1)).into(),
            IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits().saturating_add(1)).into(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct PodInfo {
    /// `namespace/name`.
    pub key: String,
    pub node: String,
    /// One for each family of the Pod.
    pub addresses: Vec<IpAddr>,
}

fn list(folder: &Path, file: &str) -> Result<Vec<Value>> {
    let path = folder.join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut list: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let Value::Array(mut items) = list["items"].take() else {
        bail!("{} has no list of items", path.display());
    };
    // A list states the kind of its items once; a single object needs it.
    let kind = list["kind"].as_str().and_then(|kind| kind.strip_suffix("List")).unwrap_or_default();
    for item in &mut items {
        item["apiVersion"] = list["apiVersion"].clone();
        item["kind"] = Value::from(kind);
    }
    Ok(items)
}

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// `namespace/name` of an object.
pub fn key(object: &Value) -> String {
    format!(
        "{}/{}",
        text(object, "/metadata/namespace").unwrap_or_default(),
        text(object, "/metadata/name").unwrap_or_default()
    )
}

impl Cluster {
    pub fn read(folder: &Path) -> Result<Self> {
        Ok(Self {
            services: list(folder, "services.json")?,
            endpoint_slices: list(folder, "endpointslices.json")?,
            pods: list(folder, "pods.json")?,
            nodes: list(folder, "nodes.json")?,
            folder: folder.to_owned(),
        })
    }

    pub fn node_infos(&self) -> Result<Vec<NodeInfo>> {
        self.nodes
            .iter()
            .map(|node| {
                let name = text(node, "/metadata/name").context("a Node without a name")?;
                let networks: Vec<NodeNetwork> =
                    Family::ALL.into_iter().filter_map(|family| network(node, family)).collect();
                if networks.is_empty() {
                    bail!("Node {name} lacks an InternalIP with a podCIDR of the same family");
                }
                Ok(NodeInfo { name: name.to_owned(), networks })
            })
            .collect()
    }

    /// Pods with their own network. Pods on the host's network share the node's.
    pub fn pod_infos(&self) -> Vec<PodInfo> {
        self.pods
            .iter()
            .filter(|pod| pod.pointer("/spec/hostNetwork") != Some(&Value::Bool(true)))
            .filter_map(|pod| {
                let addresses = pod.pointer("/status/podIPs")?.as_array()?;
                let addresses = addresses.iter().filter_map(|address| text(address, "/ip")?.parse().ok());
                Some(PodInfo {
                    key: key(pod),
                    node: text(pod, "/spec/nodeName")?.to_owned(),
                    addresses: addresses.collect(),
                })
            })
            .collect()
    }

    /// The Service `namespace/name`.
    pub fn service(&self, service: &str) -> Result<Value> {
        let found = self.services.iter().find(|object| key(object) == service).cloned();
        found.with_context(|| format!("the cluster has no Service {service}"))
    }

    /// The IPv4 `clusterIP` and port of a Service port, `service` as `namespace/name`.
    pub fn vip(&self, service: &str, port: &str) -> Result<SocketAddr> {
        self.vip_of(service, port, Family::V4)
    }

    /// The `clusterIP` and port of one family.
    pub fn vip_of(&self, service: &str, port: &str, family: Family) -> Result<SocketAddr> {
        let find = || {
            let object = self.services.iter().find(|object| key(object) == service)?;
            let ports = object.pointer("/spec/ports")?.as_array()?;
            let number = ports.iter().find(|candidate| candidate["name"] == port)?["port"].as_u64()?;
            let addresses = object.pointer("/spec/clusterIPs")?.as_array()?;
            let mut addresses = addresses.iter().filter_map(|address| address.as_str()?.parse().ok());
            let address = addresses.find(|address| Family::of(*address) == family)?;
            Some(SocketAddr::new(address, u16::try_from(number).ok()?))
        };
        find().with_context(|| {
            format!(
                "the cluster has no Service {service} with an {} ClusterIP and port {port}",
                family.as_str()
            )
        })
    }

    /// The `EndpointSlice` of a Service in this family.
    pub fn slice_of(&self, service: &str, family: Family) -> Result<Value> {
        let (namespace, name) = service.split_once('/').context("a Service is named namespace/name")?;
        self.endpoint_slices
            .iter()
            .find(|slice| {
                text(slice, "/metadata/namespace") == Some(namespace)
                    && text(slice, "/addressType") == Some(family.as_str())
                    && slice.pointer("/metadata/labels/kubernetes.io~1service-name").and_then(Value::as_str)
                        == Some(name)
            })
            .cloned()
            .with_context(|| {
                format!("the cluster has no {} EndpointSlice of Service {service}", family.as_str())
            })
    }

    /// The same `EndpointSlice` without the endpoint at `address`.
    pub fn slice_without(&self, service: &str, address: IpAddr) -> Result<Value> {
        let mut slice = self.slice_of(service, Family::of(address))?;
        let gone = address.to_string();
        if let Some(endpoints) = slice["endpoints"].as_array_mut() {
            endpoints.retain(|endpoint| endpoint["addresses"][0] != gone.as_str());
        }
        Ok(slice)
    }
}

/// A Node's address and Pod network in one family; `None` if it has none.
fn network(node: &Value, family: Family) -> Option<NodeNetwork> {
    let addresses = node.pointer("/status/addresses")?.as_array()?;
    let internal = addresses.iter().filter(|address| address["type"] == "InternalIP");
    let mut internal = internal.filter_map(|address| text(address, "/address")?.parse().ok());
    let address = internal.find(|address| Family::of(*address) == family)?;
    let ranges = node.pointer("/spec/podCIDRs")?.as_array()?;
    let mut ranges = ranges.iter().filter_map(|range| {
        let (base, prefix) = range.as_str()?.split_once('/')?;
        Some(PodNetwork { base: base.parse().ok()?, prefix: prefix.parse().ok()? })
    });
    let pods = ranges.find(|range| Family::of(range.base) == family)?;
    Some(NodeNetwork { address, pods })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured() -> Cluster {
        Cluster::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dualstack/cluster")).unwrap()
    }

    #[test]
    fn nodes_and_pods_have_what_a_topology_needs() {
        let cluster = captured();
        let nodes = cluster.node_infos().unwrap();
        assert_eq!(nodes[0].name, "worker-1");
        let gateway = |family| nodes[0].network(family).unwrap().pods.gateway().to_string();
        assert_eq!(gateway(Family::V4), "10.244.1.1");
        assert_eq!(gateway(Family::V6), "fd00:10:244:1::1");
        let pods = cluster.pod_infos();
        assert!(pods.iter().any(|pod| pod.key == "shop/cart-3" && pod.node == "worker-2"));
        assert!(
            !pods.iter().any(|pod| pod.key.starts_with("kube-system/kube-proxy")),
            "on the host's network"
        );
    }

    #[test]
    fn vips_are_found_by_port_name() {
        let cluster = captured();
        assert_eq!(cluster.vip("shop/payments", "grpc").unwrap().to_string(), "10.96.10.40:443");
        let ipv6 = cluster.vip_of("shop/payments", "grpc", Family::V6).unwrap();
        assert_eq!(ipv6.to_string(), "[fd00:96::b92]:443");
        let error = cluster.vip("shop/db", "pg").unwrap_err();
        assert!(error.to_string().contains("no Service shop/db with an IPv4 ClusterIP"), "{error}");
    }

    #[test]
    fn an_endpoint_can_be_taken_out_of_its_slice() {
        let cluster = captured();
        let slice = cluster.slice_without("shop/cart", "fd00:10:244:1::12".parse().unwrap()).unwrap();
        assert_eq!(slice["kind"], "EndpointSlice");
        assert_eq!(slice["addressType"], "IPv6");
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
    }
}
