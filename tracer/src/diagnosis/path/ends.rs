//! The two ends of a question: a Pod, a Service, an address or the node itself, resolved to a packet.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::Scene;
use crate::{
    cluster::{
        Address, Key, Kind,
        model::{Pod, Service, ServicePort},
    },
    error::Hint,
    net::{Family, Protocol},
    rules::{LocalTraffic, Origin, walk::Devices as _},
    text::list,
    time::Timestamp,
};

/// The sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    Node,
    Address(IpAddr),
    Pod(Key),
}

/// The destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    Address(SocketAddr),
    Service { key: Key, port: Option<String> },
    Pod { key: Key, port: u16 },
}

/// The first packet of a connection that nobody sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub from: From,
    pub to: To,
    /// `None`: the protocol of the Service's port, or TCP.
    pub protocol: Option<Protocol>,
    /// `None`: the family of the addresses, IPv4 if there are both.
    pub family: Option<Family>,
}

/// Why there is no such packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPacket {
    #[error("{what} is not known: the {kind} were not listed")]
    NotListed { what: String, kind: &'static str },
    #[error("there is no {kind} {key} in this cluster")]
    Absent { kind: &'static str, key: Key },
    #[error("{what} has no {family} address")]
    NoAddress { what: String, family: Family },
    #[error("{what} has no address")]
    NoAddressYet { what: String },
    #[error("{key} has no address of its own: {why}")]
    Headless { key: Key, why: &'static str },
    #[error("{key} has no port {port}: it has {}", list(.has))]
    NoPort { key: Key, port: String, has: Vec<Arc<str>> },
    #[error("{key} has several ports: {}", list(.has))]
    SeveralPorts { key: Key, has: Vec<Arc<str>> },
    #[error("{from} and {to} are addresses of different families")]
    TwoFamilies { from: IpAddr, to: IpAddr },
    #[error("{to} is not an {family} address")]
    OtherFamily { to: IpAddr, family: Family },
    #[error("this node's {family} address is not known")]
    NodeUnknown { family: Family },
}

impl Hint for NoPacket {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotListed { .. } => "give the address instead, or --kubeconfig FILE".to_owned(),
            Self::Absent { kind, .. } => {
                format!("`kubectl get {}s -A` lists them", kind.to_ascii_lowercase())
            }
            Self::SeveralPorts { key, has } => match has.first() {
                Some(port) => format!("name one of them: {key}:{port}"),
                None => return None,
            },
            Self::NodeUnknown { .. } => "name an address of the node as FROM".to_owned(),
            Self::Headless { key, .. } => format!(
                "give the address of a Pod: `kubectl -n {} get endpointslices -l kubernetes.io/service-name={}` lists them",
                crate::text::word(&key.namespace),
                crate::text::word(&key.name)
            ),
            _ => return None,
        })
    }
}

/// The packet to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) origin: Origin,
    pub(super) source: IpAddr,
    /// The Pod that sends it.
    pub(super) pod: Option<Key>,
    /// It has a Pod's address, and only the rules' range of all Pods shows it.
    pub(super) is_presumed: bool,
    /// The node of that Pod, if it is not this one.
    pub(super) other_node: Option<String>,
    /// The device through which it arrives; `None` if unknown.
    pub(super) interface: Option<String>,
    pub(super) destination: SocketAddr,
    pub(super) protocol: Protocol,
    /// The Service port that the destination belongs to.
    pub(super) service: Option<String>,
    /// The objects' facts about a destination that is no Service's.
    pub(super) remark: Option<String>,
    /// It has the address of a Service, or had it.
    pub(super) is_of_service: bool,
    /// The destination is an address of the node.
    pub(super) local: bool,
}

fn has_family(ip: IpAddr, family: Option<Family>) -> bool {
    family.is_none_or(|family| Family::of(ip) == family)
}

impl Scene<'_> {
    pub(super) fn packet(&self, question: &Question) -> Result<Packet, NoPacket> {
        let wanted = question.family.or(match &question.from {
            From::Address(ip) => Some(Family::of(*ip)),
            From::Node | From::Pod(_) => None,
        });
        let (destination, protocol, service) = self.destination(&question.to, question.protocol, wanted)?;
        let family = Family::of(destination.ip());
        if let Some(wanted) = question.family
            && wanted != family
        {
            return Err(NoPacket::OtherFamily { to: destination.ip(), family: wanted });
        }
        let mut packet = self.source(&question.from, destination.ip(), family)?;
        packet.destination = destination;
        packet.protocol = protocol;
        packet.is_of_service = service.is_some();
        if service.is_none() {
            (packet.remark, packet.is_of_service) = self.remark(destination, protocol);
        }
        packet.service = service;
        packet.local = destination.ip().is_loopback() || self.is_own(destination.ip());
        Ok(packet)
    }

    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.rules.addresses.as_ref().is_some_and(|own| own.contains(&ip))
            || self.rules.addresses.is_none()
                && self.own_node().is_some_and(|node| node.addresses.contains(&ip))
    }

    fn destination(
        &self,
        to: &To,
        protocol: Option<Protocol>,
        family: Option<Family>,
    ) -> Result<(SocketAddr, Protocol, Option<String>), NoPacket> {
        match to {
            To::Address(addr) => {
                let of = |protocol| match self.history?.address(*addr, protocol, Timestamp::MAX) {
                    Address::Vip(vip) => Some((protocol, vip.to_string())),
                    _ => None,
                };
                let candidates = [Protocol::TCP, Protocol::UDP, Protocol::SCTP];
                let found = match protocol {
                    Some(protocol) => of(protocol),
                    None => candidates.into_iter().find_map(of),
                };
                let protocol = protocol.or(found.as_ref().map(|(protocol, _)| *protocol));
                Ok((*addr, protocol.unwrap_or(Protocol::TCP), found.map(|(_, service)| service)))
            }
            To::Pod { key, port } => {
                let pod = self.pod(key)?;
                let ip = address_of(&pod.ips, family, || format!("Pod {key}"))?;
                Ok((SocketAddr::new(ip, *port), protocol.unwrap_or(Protocol::TCP), None))
            }
            To::Service { key, port } => {
                let service = self.service(key)?;
                if let Some(why) = service.without_address() {
                    return Err(NoPacket::Headless { key: key.clone(), why });
                }
                let found = port_of(service, port.as_deref(), protocol)?;
                let ip = address_of(&service.cluster_ips, family, || format!("Service {key}"))?;
                let label = format!("{key}:{}", found.label());
                Ok((SocketAddr::new(ip, found.port), found.protocol, Some(label)))
            }
        }
    }

    /// What the objects know about an address that is no Service port's, and whether it is a Service's.
    fn remark(&self, addr: SocketAddr, protocol: Protocol) -> (Option<String>, bool) {
        let Some(history) = self.history else { return (None, false) };
        let ip = addr.ip();
        match history.address(addr, protocol, Timestamp::MAX) {
            Address::UnknownPort(service) => {
                let has = list(&service.ports.iter().map(ServicePort::label).collect::<Vec<_>>());
                let remark = format!(
                    "Service {} has this address, but no port {}/{protocol}: it has {has}",
                    service.key,
                    addr.port()
                );
                return (Some(remark), true);
            }
            Address::Gone { service, .. } => {
                return (Some(format!("Service {} no longer has this address", service.key)), true);
            }
            Address::Vip(_) | Address::Other => {}
        }
        let knows_all = [Kind::Service, Kind::Pod, Kind::Node].iter().all(|kind| history.knows(*kind));
        let remark = if let Some(node) = history.node_by_ip(ip, Timestamp::MAX) {
            format!("{ip} is the address of Node {}, and no Service has this node port", node.key)
        } else if let Some(pod) = history.pod_by_ip(ip, Timestamp::MAX) {
            format!("{ip} is the address of Pod {}", pod.key)
        } else if knows_all {
            format!("no Service, Pod or Node of the cluster has the address {ip}")
        } else {
            return (None, false);
        };
        (Some(remark), false)
    }

    pub(super) fn source(&self, from: &From, to: IpAddr, family: Family) -> Result<Packet, NoPacket> {
        let packet = |origin, source| Packet {
            origin,
            source,
            pod: None,
            is_presumed: false,
            other_node: None,
            interface: None,
            destination: SocketAddr::new(to, 0),
            protocol: Protocol::TCP,
            service: None,
            remark: None,
            is_of_service: false,
            local: false,
        };
        match from {
            From::Node => Ok(packet(Origin::Node, self.node_address(to, family)?)),
            From::Pod(key) => {
                let pod = self.pod(key)?;
                let source = address_of(&pod.ips, Some(family), || format!("Pod {key}"))?;
                Ok(self.of_pod(pod, packet(Origin::Outside, source)))
            }
            From::Address(source) if Family::of(*source) != family => {
                Err(NoPacket::TwoFamilies { from: *source, to })
            }
            From::Address(source) if source.is_loopback() || self.is_own(*source) => {
                Ok(packet(Origin::Node, *source))
            }
            From::Address(source) => {
                let mut packet = packet(Origin::Outside, *source);
                packet.interface = self.routes.device_to(*source).map(ToOwned::to_owned);
                if let Some(pod) = self.history.and_then(|history| history.pod_by_ip(*source, Timestamp::MAX))
                {
                    return Ok(self.of_pod(pod, packet));
                }
                if self.has_pod_address(*source) {
                    packet.origin = Origin::Pod;
                    packet.is_presumed = self.own_node().is_none_or(|node| node.pod_cidrs.is_empty());
                }
                Ok(packet)
            }
        }
    }

    /// Whether the address is one of this node's Pods, for all that is known.
    fn has_pod_address(&self, ip: IpAddr) -> bool {
        let cidrs = self.own_node().map(|node| node.pod_cidrs.as_slice()).unwrap_or_default();
        if !cidrs.is_empty() {
            return cidrs
                .iter()
                .filter_map(|text| crate::net::Cidr::parse(text))
                .any(|cidr| cidr.contains(ip));
        }
        let traffic = self.rules.local_traffic(Family::of(ip));
        matches!(traffic, LocalTraffic::Range(range) if range.contains(ip))
    }

    fn of_pod(&self, pod: &Pod, mut packet: Packet) -> Packet {
        packet.pod = Some(pod.key.clone());
        let here = match (pod.node.as_deref(), self.node) {
            (Some(own), Some(node)) => own == node,
            // Without the node's name, its Pods are those in its ranges.
            _ => self.has_pod_address(packet.source) || self.is_own(packet.source),
        };
        packet.origin = match (here, pod.host_network) {
            (true, true) => Origin::Node,
            (true, false) => Origin::Pod,
            (false, _) => Origin::Outside,
        };
        if !here {
            packet.other_node = Some(pod.node.as_deref().unwrap_or("another node").to_owned());
        }
        if packet.origin != Origin::Node {
            packet.interface = self.routes.device_to(packet.source).map(ToOwned::to_owned);
        }
        packet
    }

    /// The address from which the node itself sends to `to`: that of the device, or the node's own.
    fn node_address(&self, to: IpAddr, family: Family) -> Result<IpAddr, NoPacket> {
        let of_family = |ip: &IpAddr| Family::of(*ip) == family;
        if to.is_loopback() || self.is_own(to) {
            return Ok(to);
        }
        let device = self.routes.device_to(to).and_then(|device| self.interfaces?.get(device));
        let of_device =
            device.and_then(|device| device.addresses.iter().map(|(ip, _)| *ip).find(|ip| of_family(ip)));
        let of_node = || self.own_node().and_then(|node| node.addresses.iter().copied().find(of_family));
        let any = || self.rules.addresses.iter().flatten().copied().find(of_family);
        of_device.or_else(of_node).or_else(any).ok_or(NoPacket::NodeUnknown { family })
    }

    fn pod(&self, key: &Key) -> Result<&Pod, NoPacket> {
        let listed = self.history.filter(|history| history.knows(Kind::Pod));
        let history =
            listed.ok_or_else(|| NoPacket::NotListed { what: format!("Pod {key}"), kind: "Pods" })?;
        let found = history.pod(key, Timestamp::MAX).map(|pod| &**pod);
        found.ok_or_else(|| NoPacket::Absent { kind: "Pod", key: key.clone() })
    }

    fn service(&self, key: &Key) -> Result<&Service, NoPacket> {
        let listed = self.history.filter(|history| history.knows(Kind::Service));
        let history =
            listed.ok_or_else(|| NoPacket::NotListed { what: format!("Service {key}"), kind: "Services" })?;
        let found = history.service(key, Timestamp::MAX).map(|service| &**service);
        found.ok_or_else(|| NoPacket::Absent { kind: "Service", key: key.clone() })
    }
}

fn address_of(ips: &[IpAddr], family: Option<Family>, what: impl Fn() -> String) -> Result<IpAddr, NoPacket> {
    match (ips.iter().copied().find(|ip| has_family(*ip, family)), family) {
        (Some(ip), _) => Ok(ip),
        (None, Some(family)) => Err(NoPacket::NoAddress { what: what(), family }),
        (None, None) => Err(NoPacket::NoAddressYet { what: what() }),
    }
}

/// The port of this name or number, or the only one.
fn port_of<'s>(
    service: &'s Service,
    wanted: Option<&str>,
    protocol: Option<Protocol>,
) -> Result<&'s ServicePort, NoPacket> {
    let of_protocol = |port: &&ServicePort| protocol.is_none_or(|protocol| port.protocol == protocol);
    let ports = || service.ports.iter().filter(of_protocol);
    let has = || service.ports.iter().map(ServicePort::label).collect::<Vec<_>>();
    let key = || service.key.clone();
    let Some(wanted) = wanted else {
        let mut all = ports();
        return match (all.next(), all.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => {
                Err(NoPacket::SeveralPorts { key: key(), has: ports().map(ServicePort::label).collect() })
            }
            (None, _) => {
                let port = protocol.map_or("of any kind".to_owned(), |protocol| protocol.to_string());
                Err(NoPacket::NoPort { key: key(), port, has: has() })
            }
        };
    };
    let named = ports().find(|port| port.name.as_ref() == wanted);
    let numbered = || ports().find(|port| wanted.parse() == Ok(port.port));
    named.or_else(numbered).ok_or_else(|| {
        let port = protocol.map_or_else(|| wanted.to_owned(), |protocol| format!("{wanted} of {protocol}"));
        NoPacket::NoPort { key: key(), port, has: has() }
    })
}
