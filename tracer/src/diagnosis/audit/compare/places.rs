//! The place in kube-proxy's rules for each thing: the name of the chain, map, set or server.

use std::net::{IpAddr, SocketAddr};

use super::Comparison;
use crate::{
    cluster::Via,
    diagnosis::audit::{ExpectedFrontend, ExpectedPort, names},
    net::Protocol,
    rules::{Datum, NFTABLES_TABLE, Name, Origin, Writer, frontends},
};

impl Comparison<'_> {
    /// The rule or element that names the frontend; a node port is tried at the address `at`.
    pub(super) fn place_of(&self, port: &ExpectedPort, known: &ExpectedFrontend, at: IpAddr) -> Name {
        let node_port = known.frontend.address.is_none();
        match self.writer {
            Writer::Nftables if node_port => {
                let table = self.rules.table(Writer::Nftables, self.family, NFTABLES_TABLE);
                let listed = table.is_some_and(|table| {
                    table.set("nodeport-ips").is_none_or(|set| set.find(&[Datum::Address(at)]).is_some())
                });
                if listed { "service-nodeports".into() } else { "nodeport-ips".into() }
            }
            Writer::Nftables => "service-ips".into(),
            Writer::Ipvs => format!("virtual server {}", SocketAddr::new(at, known.frontend.port)).into(),
            _ => {
                let hash = names::iptables_hash(&port.service.key, &port.port);
                let kind = match known.via {
                    Via::ClusterIp if port.is_local(known.via) => "SVL",
                    Via::ClusterIp => "SVC",
                    Via::LoadBalancerIp if !known.ranges.is_empty() => "FW",
                    _ => "EXT",
                };
                format!("KUBE-{kind}-{hash}").into()
            }
        }
    }

    /// The ipset with which IPVS mode selects packets to masquerade.
    pub(super) fn marking_set(&self, port: &ExpectedPort, known: &ExpectedFrontend) -> Name {
        let local = if port.is_local(known.via) { "-LOCAL" } else { "" };
        let name = match (known.via, known.frontend.protocol) {
            (Via::ClusterIp, _) => "CLUSTER-IP".to_owned(),
            (Via::ExternalIp, _) => format!("EXTERNAL-IP{local}"),
            (Via::LoadBalancerIp, _) => format!("LOAD-BALANCER{local}"),
            (Via::NodePort, Protocol::UDP) => format!("NODE-PORT{local}-UDP"),
            (Via::NodePort, Protocol::SCTP) => format!("NODE-PORT{local}-SCTP-HASH"),
            (Via::NodePort, _) => format!("NODE-PORT{local}-TCP"),
        };
        frontends::ipset_name(&name, self.family).into()
    }

    pub(super) fn endpoint_place(
        &self,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        origin: Origin,
        endpoint: SocketAddr,
    ) -> Name {
        let (key, of) = (&port.service.key, &port.port);
        match self.writer {
            Writer::Nftables => {
                let name = names::nftables_endpoint(key, of, endpoint);
                let table = self.rules.table(Writer::Nftables, self.family, NFTABLES_TABLE);
                if table.is_some_and(|table| table.chain(&name).is_some()) {
                    return name.into();
                }
                let local =
                    port.is_local(known.via) && (known.via == Via::ClusterIp || origin == Origin::Outside);
                format!("{}-{}", if local { "local" } else { "service" }, names::nftables_base(key, of))
                    .into()
            }
            Writer::Ipvs => format!("real server {endpoint}").into(),
            _ => names::iptables_endpoint(key, of, endpoint).into(),
        }
    }

    pub(super) fn firewall_place(&self, port: &ExpectedPort) -> Name {
        let (key, of) = (&port.service.key, &port.port);
        match self.writer {
            Writer::Nftables => format!("firewall-{}", names::nftables_base(key, of)).into(),
            Writer::Ipvs => frontends::ipset_name("LOAD-BALANCER-SOURCE-CIDR", self.family).into(),
            _ => format!("KUBE-FW-{}", names::iptables_hash(key, of)).into(),
        }
    }

    pub(super) fn refusal_place(
        &self,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        at: IpAddr,
        dropped: bool,
    ) -> Name {
        match (self.writer, known.via) {
            _ if !known.ranges.is_empty() && dropped => self.firewall_place(port),
            (Writer::Nftables, Via::NodePort) => "no-endpoint-nodeports".into(),
            (Writer::Nftables, _) => "no-endpoint-services".into(),
            (Writer::Ipvs, _) => self.place_of(port, known, at),
            (_, Via::ClusterIp) => "KUBE-SERVICES".into(),
            _ => "KUBE-EXTERNAL-SERVICES".into(),
        }
    }
}
