//! Whether the rules explain a decision that the kernel took: the check of the walk against the kernel.

use std::net::SocketAddr;

use super::{Packet, Reader, Scene, steps::translation, stops::is_kube_proxys, words};
use crate::{
    net::Tuple,
    rules::{End, Origin},
};

/// The rules' answer to a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// The packet can take this way.
    Possible,
    /// It cannot; these are the endpoints to which it can go. Empty: it is not translated, refused or dropped.
    Impossible { endpoints: Vec<SocketAddr> },
    /// The walk could not judge all rules.
    Unknown,
}

impl Scene<'_> {
    /// Whether the packet of this tuple can be sent to this endpoint, or with `None`, to none.
    pub fn predicts(&self, tuple: Tuple, endpoint: Option<SocketAddr>) -> Prediction {
        let packet = self.of_tuple(tuple);
        let fate = self.fate(&packet, tuple.src.port());
        let of_end = |end: End| match end {
            End::Endpoint(endpoint) => Some(endpoint),
            _ => None,
        };
        let ways = fate.branches.iter().map(|branch| of_end(branch.end));
        let ends: Vec<_> = ways.chain(fate.sticky.iter().map(|sticky| of_end(sticky.end))).collect();
        if ends.contains(&endpoint) {
            return Prediction::Possible;
        }
        let lost = fate.branches.iter().any(|branch| branch.seen.is_cut() || branch.seen.is_lost());
        if fate.cut || lost {
            return Prediction::Unknown;
        }
        let mut endpoints: Vec<_> = ends.into_iter().flatten().collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        Prediction::Impossible { endpoints }
    }

    /// The rule that sends the packet of this tuple to this endpoint, if it is not kube-proxy's, and no rule of kube-proxy does so
    /// too: a hostPort's, as of CNI's portmap plugin, or Docker's.
    pub(crate) fn foreign_translation(&self, tuple: Tuple, endpoint: SocketAddr) -> Option<String> {
        let fate = self.fate(&self.of_tuple(tuple), tuple.src.port());
        let reader = Reader { rules: self.rules };
        let mut found = None;
        for branch in fate.branches.iter().filter(|branch| branch.seen.assumed().is_none()) {
            let notes = branch.seen.to_vec();
            let Some((at, _)) = translation(self.rules, &notes).filter(|(_, to)| *to == endpoint) else {
                continue;
            };
            let rule = reader.rule_at(&notes, at)?;
            if is_kube_proxys(&rule) {
                return None;
            }
            found.get_or_insert_with(|| words::decider(&rule));
        }
        found
    }

    /// The first packet of this tuple.
    fn of_tuple(&self, tuple: Tuple) -> Packet {
        let is_own = |ip| self.rules.addresses.as_ref().is_some_and(|own| own.contains(&ip));
        let own_source = tuple.src.ip().is_loopback() || is_own(tuple.src.ip());
        Packet {
            origin: if own_source { Origin::Node } else { Origin::Outside },
            source: tuple.src.ip(),
            pod: None,
            is_presumed: false,
            other_node: None,
            interface: None,
            destination: tuple.dst.socket(),
            protocol: tuple.protocol,
            service: None,
            remark: None,
            is_of_service: false,
            local: tuple.dst.ip().is_loopback() || is_own(tuple.dst.ip()),
        }
    }
}
