//! A small cluster for tests: real objects with their history.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use viptrace::cluster::{
    History, Key, Kind, Via,
    model::{
        AddressType, Change, Conditions, Endpoint, EndpointSlice, Object, Pod, PodRef, Service, ServiceType,
        SlicePort, Trimmed,
    },
    trim::trim,
};

use crate::flow_support::{CLIENT, EP, VIP, addr, at};

pub(crate) const READY: Conditions = Conditions { ready: true, serving: true, terminating: false };
pub(crate) const NOT_READY: Conditions = Conditions { ready: false, serving: false, terminating: false };
pub(crate) const TERMINATING: Conditions = Conditions { ready: false, serving: true, terminating: true };

fn trimmed(kind: Kind, value: &Value) -> Object {
    let mut odd = Vec::new();
    let trimmed = trim(kind, value, &mut odd).unwrap();
    assert!(odd.is_empty(), "{odd:?}");
    trimmed.object
}

/// `shop/NAME`, which sends port 80 of every protocol to port 8080 of its Pods.
pub(crate) fn service(name: &str, ip: &str) -> Service {
    let ports = [("http", "TCP"), ("udp", "UDP"), ("sctp", "SCTP")]
        .map(|(name, protocol)| json!({"name": name, "port": 80, "protocol": protocol, "targetPort": 8080}));
    let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "selector": {"app": name}, "ports": ports});
    let metadata = json!({"name": name, "namespace": "shop", "uid": name});
    match trimmed(Kind::Service, &json!({"metadata": metadata, "spec": spec})) {
        Object::Service(service) => Arc::unwrap_or_clone(service),
        other => panic!("{other:?}"),
    }
}

/// A running Pod of the Service in its name (`shop/NAME-N`), on worker-1, with a readiness probe.
pub(crate) fn pod(name: &str, ip: IpAddr) -> Pod {
    let app = name.split('-').next();
    let probe = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 10, "timeoutSeconds": 1});
    let value = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": app}},
        "spec": {"nodeName": "worker-1", "containers": [{"name": "c", "readinessProbe": probe}]},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]},
    });
    match trimmed(Kind::Pod, &value) {
        Object::Pod(pod) => Arc::unwrap_or_clone(pod),
        other => panic!("{other:?}"),
    }
}

pub(crate) const NODES: [(&str, &str); 2] = [("worker-1", "192.168.1.2"), ("worker-2", "192.168.1.3")];

/// A Node that is ready, in its own zone.
pub(crate) fn node(name: &str, ip: &str) -> Object {
    let labels = json!({"topology.kubernetes.io/zone": format!("zone-of-{name}")});
    let status = json!({
        "addresses": [{"type": "InternalIP", "address": ip}], "conditions": [{"type": "Ready", "status": "True"}],
    });
    let metadata = json!({"name": name, "uid": name, "labels": labels});
    trimmed(Kind::Node, &json!({"metadata": metadata, "status": status}))
}

/// An endpoint on worker-1.
pub(crate) fn endpoint(ip: IpAddr, pod: &str, conditions: Conditions) -> Endpoint {
    Endpoint {
        addresses: vec![ip].into(),
        conditions,
        node: Some("worker-1".into()),
        pod: Some(PodRef { key: Key::new("shop", pod), uid: pod.into() }),
        zone: None,
        for_zones: Arc::default(),
        for_nodes: Arc::default(),
    }
}

/// The slice of a Service with these endpoints, in the family and with the port of `like`.
pub(crate) fn slice(service: &Service, like: SocketAddr, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let port = like.port();
    let ports = service.ports.iter();
    EndpointSlice {
        key: service.key.clone(),
        uid: "s".into(),
        service: Some(service.key.clone()),
        address_type: AddressType::of(like.ip()),
        ports: ports.map(|it| SlicePort { name: it.name.clone(), protocol: it.protocol, port }).collect(),
        endpoints,
        generation: None,
    }
}

/// The lists of an API server that has had these objects since the start of the test's day, and no others of these
/// kinds.
pub(crate) fn listed(objects: impl IntoIterator<Item = Object>, kinds: &[Kind]) -> History {
    let mut history = History::new(Duration::from_mins(75));
    let created = Some(at(0).saturating_sub(Duration::from_hours(24)));
    for object in objects.into_iter().filter(|object| kinds.contains(&object.kind())) {
        history.apply_listed(at(0), Trimmed { object, created, changed: Some(at(0)), version: None });
    }
    for kind in kinds {
        history.mark_known(*kind);
    }
    history
}

/// A change that puts this version of the object.
pub(crate) fn put(object: Object) -> Change {
    Change::Put(Trimmed { object, created: None, changed: None, version: None })
}

/// The namespace `shop` with the Service cart, on the Nodes worker-1, where the trace runs, and worker-2.
///
/// The initial state holds from the start of the test's day; the methods add later changes.
pub(crate) struct Shop {
    pub(crate) cart: Service,
    pub(crate) pods: BTreeMap<IpAddr, Pod>,
    /// The kinds that can be listed.
    pub(crate) known: Vec<Kind>,
    /// The versions of cart's endpoints, each with the time from which it holds.
    endpoints: Vec<(u64, BTreeMap<SocketAddr, Endpoint>)>,
    changes: Vec<(u64, Change)>,
}

impl Shop {
    /// cart on `VIP` with one ready endpoint `EP`, and a client Pod.
    pub(crate) fn new() -> Self {
        Self::with_endpoints(&[EP])
    }

    /// cart with other endpoints, all of them ready.
    pub(crate) fn with_endpoints(endpoints: &[&str]) -> Self {
        let client = addr(CLIENT).ip();
        let mut shop = Self {
            cart: service("cart", &addr(VIP).ip().to_string()),
            pods: BTreeMap::from([(client, pod("client", client))]),
            known: Kind::ALL.to_vec(),
            endpoints: vec![(0, BTreeMap::new())],
            changes: Vec::new(),
        };
        for endpoint in endpoints {
            shop.ready(endpoint, 0);
        }
        shop
    }

    /// Clients reach cart at this address and port, which is of this kind.
    pub(crate) fn reached_by(&mut self, via: Via, address: &str) {
        let (ip, number) = (addr(address).ip(), addr(address).port());
        for port in &mut self.cart.ports {
            match via {
                Via::NodePort => port.node_port = Some(number),
                _ => port.port = number,
            }
        }
        match via {
            Via::ClusterIp => self.cart.cluster_ips = vec![ip],
            Via::ExternalIp => self.cart.external_ips = vec![ip],
            Via::LoadBalancerIp => {
                self.cart.r#type = ServiceType::LoadBalancer;
                self.cart.load_balancer_ips = vec![ip];
            }
            Via::NodePort => self.cart.r#type = ServiceType::NodePort,
        }
    }

    pub(crate) fn ready(&mut self, endpoint: &str, ms: u64) {
        self.becomes(endpoint, READY, ms);
    }

    /// The slices list the endpoint in this condition. It has its own Pod, unless it is on a Node's network.
    pub(crate) fn becomes(&mut self, address: &str, conditions: Conditions, ms: u64) {
        let address = addr(address);
        let name = format!("cart-{}", self.pods.len() - 1);
        let is_on_node = NODES.iter().any(|(_, ip)| *ip == address.ip().to_string());
        if !is_on_node {
            self.pods.entry(address.ip()).or_insert_with(|| pod(&name, address.ip()));
        }
        let name = self.pods.get(&address.ip()).map_or(name, |pod| pod.key.name.to_string());
        let listed = self.endpoints_from(ms).entry(address);
        listed.or_insert_with(|| endpoint(address.ip(), &name, conditions)).conditions = conditions;
    }

    /// The slices no longer list the endpoint.
    pub(crate) fn leaves(&mut self, endpoint: &str, ms: u64) {
        assert!(self.endpoints_from(ms).remove(&addr(endpoint)).is_some(), "{endpoint} is listed");
    }

    fn endpoints_from(&mut self, ms: u64) -> &mut BTreeMap<SocketAddr, Endpoint> {
        let (begun, last) = self.endpoints.last().unwrap().clone();
        assert!(begun <= ms, "changes come in the order of their times");
        if begun < ms {
            self.endpoints.push((ms, last));
        }
        &mut self.endpoints.last_mut().unwrap().1
    }

    /// This endpoint is on that node.
    pub(crate) fn on_node(&mut self, endpoint: &str, node: &str) {
        let address = addr(endpoint);
        for listed in self.endpoints.iter_mut().filter_map(|(_, listed)| listed.get_mut(&address)) {
            listed.node = Some(node.into());
        }
        self.pods.get_mut(&address.ip()).unwrap().node = Some(node.into());
    }

    /// All endpoints are on worker-2.
    pub(crate) fn serves_elsewhere(&mut self) {
        for (address, endpoint) in self.endpoints.iter_mut().flat_map(|(_, listed)| listed) {
            endpoint.node = Some("worker-2".into());
            self.pods.get_mut(&address.ip()).unwrap().node.clone_from(&endpoint.node);
        }
    }

    /// The Pod at the endpoint's address is gone, and `other/newcomer` gets the address.
    pub(crate) fn newcomer(&mut self, endpoint: &str, ms: u64) {
        let ip = addr(endpoint).ip();
        self.changes.push((ms, Change::Delete(Kind::Pod, self.pods[&ip].key.clone())));
        let newcomer = Pod { key: Key::new("other", "newcomer"), ..pod("newcomer", ip) };
        self.put(ms, Object::Pod(newcomer.into()));
    }

    /// The Pod of this endpoint is gone.
    pub(crate) fn pod_ends(&mut self, endpoint: &str, ms: u64) {
        let key = self.pods[&addr(endpoint).ip()].key.clone();
        self.changes.push((ms, Change::Delete(Kind::Pod, key)));
    }

    /// The Pod of this endpoint is deleted at `ms`: it has its grace from then on.
    pub(crate) fn pod_is_deleted(&mut self, endpoint: &str, ms: u64) {
        let mut pod = self.pods[&addr(endpoint).ip()].clone();
        pod.deletion = Some(at(ms).saturating_add(pod.termination_grace));
        self.put(ms, Object::Pod(pod.into()));
    }

    /// Puts any other object.
    pub(crate) fn put(&mut self, ms: u64, object: Object) {
        self.changes.push((ms, put(object)));
    }

    pub(crate) fn history(&self) -> History {
        let mut objects = vec![Object::Service(self.cart.clone().into()), self.slice(&self.endpoints[0].1)];
        objects.extend(NODES.map(|(name, ip)| node(name, ip)));
        objects.extend(self.pods.values().map(|pod| Object::Pod(pod.clone().into())));
        let mut history = listed(objects, &self.known);
        let later = self.endpoints[1..].iter().map(|(ms, endpoints)| (*ms, put(self.slice(endpoints))));
        let mut changes: Vec<_> = later.chain(self.changes.iter().cloned()).collect();
        changes.sort_by_key(|(ms, _)| *ms);
        for (ms, change) in changes {
            history.apply(at(ms), change);
        }
        history
    }

    fn slice(&self, now: &BTreeMap<SocketAddr, Endpoint>) -> Object {
        let like = self.endpoints.iter().find_map(|(_, listed)| listed.keys().next());
        let like = like.copied().unwrap_or(addr(EP));
        let is_alike =
            |address: &SocketAddr| (address.is_ipv4(), address.port()) == (like.is_ipv4(), like.port());
        assert!(now.keys().all(is_alike), "the shop has one slice");
        Object::EndpointSlice(slice(&self.cart, like, now.values().cloned().collect()).into())
    }
}
