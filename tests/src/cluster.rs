//! The cluster whose node the lab plays: the `kubectl get -o json` lists that a scenario starts from. It owns
//! the few fields that a topology and an expectation need, and leaves the objects as they are.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

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
    pub address: Ipv4Addr,
    pub pod_network: PodNetwork,
}

/// A node's part of the Pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    pub base: Ipv4Addr,
    pub prefix: u8,
}

impl PodNetwork {
    /// The bridge's own address: the first of the range, as the bridge CNI plugin takes it.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base.to_bits().saturating_add(1))
    }
}

#[derive(Clone, Debug)]
pub struct PodInfo {
    /// `namespace/name`.
    pub key: String,
    pub node: String,
    pub address: Ipv4Addr,
}

fn list(folder: &Path, file: &str) -> Result<Vec<Value>> {
    let path = folder.join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut list: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    let Value::Array(mut items) = list["items"].take() else {
        bail!("{} has no list of items", path.display());
    };
    // Items of a list leave out what the list says once; an object on its own needs it.
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
                let info = || {
                    let addresses = node.pointer("/status/addresses")?.as_array()?;
                    let internal = addresses.iter().find(|address| address["type"] == "InternalIP")?;
                    let (base, prefix) = text(node, "/spec/podCIDR")?.split_once('/')?;
                    Some(NodeInfo {
                        name: name.to_owned(),
                        address: text(internal, "/address")?.parse().ok()?,
                        pod_network: PodNetwork { base: base.parse().ok()?, prefix: prefix.parse().ok()? },
                    })
                };
                info().with_context(|| format!("Node {name} lacks an IPv4 InternalIP or a podCIDR"))
            })
            .collect()
    }

    /// Pods with a network of their own; those on the host's network are the node itself.
    pub fn pod_infos(&self) -> Vec<PodInfo> {
        self.pods
            .iter()
            .filter(|pod| pod.pointer("/spec/hostNetwork") != Some(&Value::Bool(true)))
            .filter_map(|pod| {
                Some(PodInfo {
                    key: key(pod),
                    node: text(pod, "/spec/nodeName")?.to_owned(),
                    address: text(pod, "/status/podIP")?.parse().ok()?,
                })
            })
            .collect()
    }

    /// The `clusterIP` and port of a Service port, `service` as `namespace/name`.
    pub fn vip(&self, service: &str, port: &str) -> Result<SocketAddrV4> {
        let find = || {
            let object = self.services.iter().find(|object| key(object) == service)?;
            let ports = object.pointer("/spec/ports")?.as_array()?;
            let number = ports.iter().find(|candidate| candidate["name"] == port)?["port"].as_u64()?;
            let address = text(object, "/spec/clusterIP")?.parse().ok()?;
            Some(SocketAddrV4::new(address, u16::try_from(number).ok()?))
        };
        find()
            .with_context(|| format!("the cluster has no Service {service} with a ClusterIP and port {port}"))
    }

    /// The `EndpointSlice` of a Service, to be changed and applied again.
    pub fn slice_of(&self, service: &str) -> Result<Value> {
        let (namespace, name) = service.split_once('/').context("a Service is named namespace/name")?;
        self.endpoint_slices
            .iter()
            .find(|slice| {
                text(slice, "/metadata/namespace") == Some(namespace)
                    && slice.pointer("/metadata/labels/kubernetes.io~1service-name").and_then(Value::as_str)
                        == Some(name)
            })
            .cloned()
            .with_context(|| format!("the cluster has no EndpointSlice of Service {service}"))
    }

    /// The same `EndpointSlice` without the endpoint at `address`.
    pub fn slice_without(&self, service: &str, address: Ipv4Addr) -> Result<Value> {
        let mut slice = self.slice_of(service)?;
        let gone = address.to_string();
        if let Some(endpoints) = slice["endpoints"].as_array_mut() {
            endpoints.retain(|endpoint| endpoint["addresses"][0] != gone.as_str());
        }
        Ok(slice)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn captured() -> Cluster {
        Cluster::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/cluster")).unwrap()
    }

    #[test]
    fn nodes_and_pods_have_what_a_topology_needs() {
        let cluster = captured();
        let nodes = cluster.node_infos().unwrap();
        assert_eq!(nodes[0].name, "worker-1");
        assert_eq!(nodes[0].pod_network.gateway(), Ipv4Addr::new(10, 244, 1, 1));
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
        let error = cluster.vip("shop/db", "pg").unwrap_err();
        assert!(error.to_string().contains("no Service shop/db with a ClusterIP"), "{error}");
    }

    #[test]
    fn an_endpoint_can_be_taken_out_of_its_slice() {
        let cluster = captured();
        let slice = cluster.slice_without("shop/cart", Ipv4Addr::new(10, 244, 1, 12)).unwrap();
        assert_eq!(slice["kind"], "EndpointSlice");
        assert_eq!(slice["endpoints"].as_array().unwrap().len(), 2);
    }
}
