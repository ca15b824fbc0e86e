//! The meaning of an address: a Service port, a Service without that port, or no Service.
//!
//! Owns the look-up of VIPs, and finds a Service port again at another moment. Must not read endpoints.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::History;
use crate::{
    cluster::{
        model::{AddressType, Key, Service, ServicePort, Via, is_same},
        timeline::At,
    },
    net::{Cidr, Protocol},
    time::Timestamp,
};

/// The meaning of an address and port at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Address<'a> {
    Vip(Vip<'a>),
    /// The address of a Service, but not one of its ports (C5c).
    UnknownPort(&'a Service),
    /// A Service's address until `since`, when the Service was deleted or gave up the address.
    Gone {
        service: &'a Service,
        since: Timestamp,
    },
    Other,
}

/// An address that a client connects to, and its Service port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vip<'a> {
    pub addr: SocketAddr,
    pub via: Via,
    pub service: &'a Service,
    pub port: &'a ServicePort,
}

impl<'a> Vip<'a> {
    /// Whether the Service's traffic policy admits only endpoints on the node at which the traffic arrives.
    pub fn is_local(&self) -> bool {
        self.service.is_local(self.via)
    }

    /// `loadBalancerSourceRanges` of the address's family: kube-proxy of each family ignores the others. An empty list
    /// admits every client. The ranges apply to load balancer IPs.
    pub fn source_ranges(&self) -> impl Iterator<Item = &'a Cidr> {
        let is_ipv4 = self.addr.is_ipv4();
        self.service.source_ranges.iter().filter(move |range| range.base.is_ipv4() == is_ipv4)
    }

    pub(super) const fn family(&self) -> AddressType {
        AddressType::of(self.addr.ip())
    }
}

/// `namespace/service:port`, the port as [`ServicePort::label`] has it, without a copy.
impl fmt::Display for Vip<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.service.key)?;
        match &*self.port.name {
            "" => write!(f, "{}", self.port.port),
            name => f.write_str(name),
        }
    }
}

impl History {
    /// The meaning of a connection to `addr`.
    pub fn address(&self, addr: SocketAddr, protocol: Protocol, at: Timestamp) -> Address<'_> {
        match self.lookup(addr, protocol, at) {
            // In many clusters a node's own address is also an external or load balancer IP (k3s, externalIPs):
            // connections to ports outside the Service belong to the node.
            Address::UnknownPort(_) | Address::Gone { .. } if self.node_by_ip(addr.ip(), at).is_some() => {
                Address::Other
            }
            meant => meant,
        }
    }

    /// The meaning of a rule for `addr`: `ClusterIP`, external IP, load balancer IP, or a nodePort on the address of a
    /// Node.
    pub fn lookup(&self, addr: SocketAddr, protocol: Protocol, at: Timestamp) -> Address<'_> {
        let (ip, port) = (addr.ip().to_canonical(), addr.port());
        let mut other_port = None;
        let mut gone: Option<(&Service, Timestamp)> = None;
        for line in self.indexes.service_ips.lines(&ip, &self.services) {
            match line.at(at) {
                At::In(service) | At::Assumed(service) => {
                    if let Some(via) = service.via(ip) {
                        if let Some(port) = service.port(port, protocol) {
                            return Address::Vip(Vip { addr, via, service, port });
                        }
                        other_port.get_or_insert(&**service);
                        continue;
                    }
                }
                At::Gone => {}
                At::NotYet => continue,
            }
            let left = line.spans().filter_map(|span| Some((span.value?, span.to?)));
            let last = left.filter(|(service, to)| *to <= at && service.via(ip).is_some()).last();
            if let Some((service, since)) = last
                && gone.is_none_or(|(_, best)| best < since)
            {
                gone = Some((service, since));
            }
        }
        if self.node_by_ip(ip, at).is_some()
            && let Some((service, port)) = self.node_port(port, protocol, at)
        {
            return Address::Vip(Vip { addr, via: Via::NodePort, service, port });
        }
        match (other_port, gone) {
            (Some(service), _) => Address::UnknownPort(service),
            (None, Some((service, since))) => Address::Gone { service, since },
            (None, None) => Address::Other,
        }
    }

    /// The node port at an address of the node itself that no Node lists: a secondary or floating address, or loopback.
    pub fn own_node_port(&self, addr: SocketAddr, protocol: Protocol, at: Timestamp) -> Option<Vip<'_>> {
        let (service, port) = self.node_port(addr.port(), protocol, at)?;
        Some(Vip { addr, via: Via::NodePort, service, port })
    }

    /// The smallest range that contains every cluster IP of this family, if it is no larger than a Service CIDR is
    /// (`/12` at most, `/64` for IPv6): the Service CIDR contains it.
    pub fn service_range(&self, ip: IpAddr) -> Option<Cidr> {
        let is_alike = |other: &&IpAddr| other.is_ipv4() == ip.is_ipv4();
        let ips = || self.services().flat_map(|service| &service.cluster_ips).filter(is_alike);
        let (lowest, highest) = (ips().min()?, ips().max()?);
        let (prefix, least) = match (lowest, highest) {
            (IpAddr::V4(a), IpAddr::V4(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), 12),
            (IpAddr::V6(a), IpAddr::V6(b)) => ((a.to_bits() ^ b.to_bits()).leading_zeros(), 64),
            _ => return None,
        };
        let range = Cidr { base: *lowest, prefix: u8::try_from(prefix).ok()? };
        (prefix >= least).then_some(range)
    }

    /// The Service port that owned this nodePort.
    fn node_port(&self, port: u16, protocol: Protocol, at: Timestamp) -> Option<(&Service, &ServicePort)> {
        self.indexes.node_ports.lines(&(port, protocol), &self.services).find_map(|line| {
            let service = line.at(at).value()?;
            Some((&**service, service.node_port(port, protocol)?))
        })
    }

    /// The Service of this name, which most likely has this address: then no name is searched for.
    fn service_at(&self, ip: IpAddr, key: &Key, at: Timestamp) -> Option<&Arc<Service>> {
        let mut of_address = self.indexes.service_ips.lines(&ip.to_canonical(), &self.services);
        let found = of_address.find_map(|line| line.at(at).value().filter(|service| service.key == *key));
        found.or_else(|| self.service(key, at))
    }

    /// The Service port at `at`, found by its name, number and protocol, or else by its address.
    pub(super) fn vip_at(&self, vip: &Vip<'_>, at: Timestamp) -> Option<Vip<'_>> {
        let Vip { addr, via, service, port: known } = *vip;
        if let Some(service) = self.service_at(addr.ip(), &service.key, at)
            && let Some(port) =
                service.port(known.port, known.protocol).filter(|port| is_same(&port.name, &known.name))
        {
            return Some(Vip { addr, via, service, port });
        }
        match self.lookup(addr, known.protocol, at) {
            Address::Vip(vip) => Some(vip),
            _ => None,
        }
    }
}
