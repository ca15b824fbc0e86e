//! Further effects on a forwarded connection: masquerade, hairpin, session affinity.

use std::net::SocketAddr;

use super::{Comparison, Fault, Tried, lacks_set};
use crate::{
    cluster::Via,
    diagnosis::audit::{Aspect, Audit, ExpectedFrontend, ExpectedPort, Kind},
    node::ProxyMode,
    rules::{End, LocalTraffic, Name, Origin, Writer, frontends, walk::Branch},
};

impl Comparison<'_> {
    pub(super) fn masquerade(&mut self, tried: Tried<'_>, audit: &mut Audit) {
        let Tried { index, port, known, probe, fate } = tried;
        if self.frame.no_masquerade {
            return;
        }
        if lacks_set(fate, audit) {
            return;
        }
        let seen_as = self.sources.seen_as(probe.origin, probe.source);
        let wanted = self.masqueraded(port, known, seen_as);
        let wanted = wanted.filter(|_| !self.leaves_pods_unmasqueraded(tried, seen_as));
        let first = match self.writer {
            Writer::Ipvs => self.marking_set(port, known),
            _ => fate.chain().cloned().unwrap_or_else(|| self.place_of(port, known, probe.destination.ip())),
        };
        let forwarded = || fate.branches.iter().filter(|branch| matches!(branch.end, End::Endpoint(_)));
        // A connection of an endpoint to itself is masqueraded in any case.
        let is_looped = |branch: &&Branch| matches!(branch.end, End::Endpoint(to) if to.ip() == probe.source);
        // A packet that is translated to an address of this node goes to INPUT, past the chains that masquerade. IPVS sends it
        // again through OUTPUT and POSTROUTING.
        let stays = |branch: &&Branch| match branch.end {
            End::Endpoint(to) => self.writer != Writer::Ipvs && self.walker.is_local(probe, to),
            _ => false,
        };
        let others = || forwarded().filter(|branch| !is_looped(branch) && !stays(branch));
        if let Some(wanted) = wanted {
            let wrong = others().filter(|branch| branch.masquerade != wanted).collect::<Vec<_>>();
            let all = wrong.len() == others().count();
            let (kind, what) = if wanted {
                (Kind::Missing, "are not masqueraded: the answer takes another path, or has another address")
            } else {
                (Kind::Wrong, "are masqueraded: the endpoint does not see the client's address")
            };
            let from = probe.origin.as_str();
            let mut add = |endpoint: Option<SocketAddr>, place: Name, text: String| {
                let fault = Fault { port: index, kind, aspect: Aspect::Masquerade, endpoint, place, text };
                self.found.add(fault, known.frontend, probe.origin);
            };
            if all && !wrong.is_empty() {
                add(None, first, format!("new connections from {from} {what}"));
            } else {
                for branch in wrong {
                    let End::Endpoint(endpoint) = branch.end else { continue };
                    let place = branch.trail.last().cloned().unwrap_or_else(|| first.clone());
                    add(Some(endpoint), place, format!("new connections from {from} to {endpoint} {what}"));
                }
            }
        }
        for branch in forwarded().filter(|branch| branch.hairpin == Some(false)) {
            let End::Endpoint(endpoint) = branch.end else { continue };
            let needed = match self.context.mode {
                ProxyMode::Iptables => true,
                ProxyMode::Nftables => !self.hairpin_set || port.endpoints.here.contains(&endpoint),
                ProxyMode::Ipvs => port.endpoints.here.contains(&endpoint),
            };
            if needed {
                let place = match self.writer {
                    Writer::Ipvs => frontends::ipset_name("LOOP-BACK", self.family).into(),
                    _ if self.hairpin_set => "hairpin-connections".into(),
                    _ => branch
                        .trail
                        .last()
                        .cloned()
                        .unwrap_or_else(|| self.place_of(port, known, probe.destination.ip())),
                };
                let text = format!(
                    "a connection of {endpoint} to its own Service is not masqueraded and gets no answer"
                );
                let fault = Fault {
                    port: index,
                    kind: Kind::Missing,
                    aspect: Aspect::Hairpin,
                    endpoint: Some(endpoint),
                    place,
                    text,
                };
                self.found.add(fault, known.frontend, probe.origin);
            }
        }
    }

    /// Whether a connection should be masqueraded; `None` if unknown. `seen_as`: the origin as which the rules treat it.
    pub(super) fn masqueraded(
        &self,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        seen_as: Origin,
    ) -> Option<bool> {
        let unmarked = self.sources.traffic == LocalTraffic::Unmarked;
        match (known.via, port.is_local(known.via), seen_as) {
            (Via::ClusterIp, ..) if self.masquerades_all => Some(true),
            // IPVS mode masquerades only the node's connections that have a Service's address as their source.
            (Via::ClusterIp, ..) if unmarked => Some(false),
            (Via::ClusterIp, _, seen_as) => Some(seen_as != Origin::Pod),
            (_, false, _) => Some(true),
            (_, true, _) if self.context.mode == ProxyMode::Ipvs => Some(false),
            (_, true, Origin::Pod) => (!unmarked).then_some(false),
            (_, true, seen_as) => Some(seen_as == Origin::Node),
        }
    }

    pub(super) fn affinity(&mut self, tried: Tried<'_>) {
        let Tried { index, port, known, probe, fate } = tried;
        let wanted = port.affinity().map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
        let add = |kind, endpoint, place: Option<Name>, text: String, expected: &Self| {
            let place = place.unwrap_or_else(|| expected.place_of(port, known, probe.destination.ip()));
            Fault { port: index, kind, aspect: Aspect::Affinity, endpoint, place, text }
        };
        let mut faults = Vec::new();
        for branch in &fate.branches {
            let End::Endpoint(endpoint) = branch.end else { continue };
            let place = branch.trail.last().cloned();
            let Some(wanted) = wanted else {
                if branch.remembers.is_some() || fate.sticky.iter().any(|sticky| sticky.end == branch.end) {
                    let text =
                        format!("clients stay at {endpoint}, although the Service has no session affinity");
                    faults.push(add(Kind::Wrong, Some(endpoint), place, text, self));
                }
                continue;
            };
            let Some(list) = &branch.remembers else {
                let text = format!(
                    "a client of {endpoint} is not recorded: its next connection may reach another endpoint"
                );
                faults.push(add(Kind::Missing, Some(endpoint), place, text, self));
                continue;
            };
            match fate.sticky.iter().find(|sticky| sticky.list == *list && sticky.end == branch.end) {
                None => {
                    let text = format!("a client that {endpoint} served before does not return to it");
                    let place = fate.chain().cloned();
                    faults.push(add(Kind::Missing, Some(endpoint), place, text, self));
                }
                // IPVS's list has the time in ticks of unknown length.
                Some(sticky) if sticky.seconds.is_some_and(|s| s != wanted && s != u32::MAX) => {
                    let text = format!(
                        "clients stay at {endpoint} for {} s instead of {wanted} s",
                        sticky.seconds.unwrap_or_default()
                    );
                    faults.push(add(Kind::Wrong, Some(endpoint), fate.chain().cloned(), text, self));
                }
                Some(_) => {}
            }
        }
        // Returning clients are sent to an endpoint that receives no new clients (C24).
        for sticky in &fate.sticky {
            let served = fate.branches.iter().any(|branch| branch.end == sticky.end);
            if let End::Endpoint(endpoint) = sticky.end
                && !served
            {
                let text = format!(
                    "clients that {endpoint} served before are still sent there, which {}",
                    port.what_is(endpoint)
                );
                let place = sticky.trail.last().cloned();
                faults.push(add(Kind::Stale, Some(endpoint), place, text, self));
            }
        }
        for fault in faults {
            self.found.add(fault, known.frontend, probe.origin);
        }
    }
}
