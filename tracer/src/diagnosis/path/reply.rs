//! The reply's own way: the translation back, the way that it takes, and the rules on it.

use std::net::SocketAddr;

use super::{CLIENT_PORT, Outcome, Packet, Reader, Scene, Way, probe_of_reply, words};
use crate::{
    net::{Family, Protocol},
    rules::{
        End, Fate, Origin, Probe,
        walk::{Devices as _, Notes, Walker},
    },
    text::count,
    time::Timestamp,
};

/// The reply, in words.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) lines: Vec<String>,
    /// The client never gets it from the address that it connected to.
    pub(super) is_lost: bool,
}

impl Scene<'_> {
    pub(super) fn reply(&self, packet: &Packet, ways: &[Way]) -> Reply {
        let mut reply = Reply::default();
        let ends: Vec<(SocketAddr, bool)> = ways
            .iter()
            .filter(|way| way.result == Outcome::Reaches)
            .filter_map(|way| Some((way.endpoint.as_deref()?.parse().ok()?, way.masqueraded)))
            .collect();
        if ends.is_empty() {
            return reply;
        }
        let vip = packet.destination;
        if ends.iter().any(|(_, masqueraded)| *masqueraded) {
            reply.lines.push(format!(
                "masqueraded: the reply returns to this node, where conntrack restores {vip} and the client"
            ));
        }
        let kept: Vec<SocketAddr> =
            ends.iter().filter(|(_, masqueraded)| !masqueraded).map(|(endpoint, _)| *endpoint).collect();
        self.unmasqueraded(packet, &kept, ends.len(), &mut reply);
        self.filtered(packet, &ends, ways, &mut reply);
        reply
    }

    /// A reply to the client's own address has to pass this node, which alone knows the translation.
    fn unmasqueraded(&self, packet: &Packet, kept: &[SocketAddr], all: usize, reply: &mut Reply) {
        let vip = packet.destination;
        let itself = kept.iter().filter(|endpoint| endpoint.ip() == packet.source).count();
        if packet.origin != Origin::Node && itself > 0 {
            reply.lines.push(format!(
                "{}the endpoint is the client itself and sees its own address as the source: it drops the packet (C31)",
                if all == 1 { "" } else { "where it comes back to the sender: " }
            ));
            reply.is_lost |= itself == all;
        }
        let others: Vec<SocketAddr> =
            kept.iter().copied().filter(|endpoint| endpoint.ip() != packet.source).collect();
        if others.is_empty() {
            return;
        }
        if packet.origin != Origin::Outside {
            reply.lines.push(format!("the reply returns to this node, where conntrack restores {vip}"));
            let bridged = |endpoint: &SocketAddr| {
                let device = self.routes.device_to(endpoint.ip());
                device.is_some() && device == packet.interface.as_deref() && !device.is_some_and(is_own_link)
            };
            let sysctl = match Family::of(vip.ip()) {
                Family::Ipv4 => "net/bridge/bridge-nf-call-iptables",
                Family::Ipv6 => "net/bridge/bridge-nf-call-ip6tables",
            };
            let is_off = self.sysctls.is_some_and(|sysctls| sysctls.number(sysctl) == Some(0));
            if packet.origin == Origin::Pod && is_off && others.iter().any(bridged) {
                reply.lines.push(format!(
                    "{} = 0: a reply between two Pods of one bridge bypasses the translation back",
                    sysctl.replace('/', ".")
                ));
                reply.is_lost |= others.iter().all(bridged);
            }
            return;
        }
        let elsewhere: Vec<SocketAddr> =
            others.iter().copied().filter(|endpoint| self.is_pod_here(*endpoint) == Some(false)).collect();
        if let Some(first) = elsewhere.first() {
            let endpoints = if elsewhere.len() == 1 {
                format!("{first} is not on this node and sees")
            } else {
                format!("{} are not on this node and see", count(elsewhere.len(), "endpoint"))
            };
            reply.lines.push(format!(
                "{endpoints} the client's address: the reply does not come back through this node, and the client gets \
                 it from another address than {vip}"
            ));
            reply.is_lost |= elsewhere.len() == all;
        } else {
            reply.lines.push(format!("the reply leaves through this node, where conntrack restores {vip}"));
        }
    }

    /// Whether a Pod of this node has this address. `None` if unknown.
    fn is_pod_here(&self, endpoint: SocketAddr) -> Option<bool> {
        if self.rules.addresses.as_ref().is_some_and(|own| own.contains(&endpoint.ip())) {
            return Some(true);
        }
        let pod = self.history?.pod_by_ip(endpoint.ip(), Timestamp::MAX)?;
        Some(pod.node.as_deref()? == self.node?)
    }

    /// The fate of the endpoint's reply to this client, which is on the node itself or not.
    pub(super) fn fate_of_reply(
        &self,
        walker: &Walker<'_>,
        endpoint: SocketAddr,
        client: SocketAddr,
        protocol: Protocol,
        local: bool,
    ) -> Fate<Notes> {
        let own = self.rules.addresses.as_ref().is_some_and(|own| own.contains(&endpoint.ip()));
        let interface = if own { None } else { self.routes.device_to(endpoint.ip()) };
        let probe = Probe { local, ..probe_of_reply(endpoint, client, protocol, interface, own) };
        walker.observe(&probe, &self.witness(endpoint.port(), true))
    }

    /// The rules that refuse or drop the reply, at one endpoint on this node and one elsewhere.
    fn filtered(&self, packet: &Packet, ends: &[(SocketAddr, bool)], ways: &[Way], reply: &mut Reply) {
        let is_here = |endpoint: SocketAddr| self.is_pod_here(endpoint) == Some(true);
        let here = ends.iter().find(|(endpoint, _)| is_here(*endpoint));
        let there = ends.iter().find(|(endpoint, masqueraded)| {
            !is_here(*endpoint) && (*masqueraded || packet.origin != Origin::Outside)
        });
        let walker = Walker::whole(self.rules, Family::of(packet.destination.ip()));
        let reader = Reader { rules: self.rules };
        for (endpoint, _) in here.into_iter().chain(there) {
            let client = SocketAddr::new(packet.source, CLIENT_PORT);
            let local = packet.origin == Origin::Node;
            let fate = self.fate_of_reply(&walker, *endpoint, client, packet.protocol, local);
            let stopped =
                fate.branches.iter().filter(|branch| matches!(branch.end, End::Dropped | End::Refused));
            for branch in stopped {
                let notes = branch.seen.to_vec();
                let Some(step) = reader.steps(&notes).pop() else { continue };
                let verb = if branch.end == End::Dropped { "dropped" } else { "refused" };
                let by = words::decider(&step);
                let line = match branch.seen.assumed() {
                    None => format!("the reply of {endpoint} is {verb} by {by}"),
                    Some(place) => {
                        format!("the reply of {endpoint} may be {verb} by {by}: {}", reader.why(place))
                    }
                };
                reply.is_lost |= branch.seen.assumed().is_none() && ways.len() == 1;
                if !reply.lines.contains(&line) {
                    reply.lines.push(line);
                }
            }
        }
    }
}

/// Whether a device leads to one Pod only, so that no bridge connects two Pods past the rules.
fn is_own_link(device: &str) -> bool {
    ["cali", "veth", "lxc", "eni", "azv", "gke"].iter().any(|begin| device.starts_with(begin))
}
