//! Whether the rules explain a decision that the kernel took: the check of the walk against the kernel.

use std::net::SocketAddr;

use super::{Packet, Scene};
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
        let is_own = |ip| self.rules.addresses.as_ref().is_some_and(|own| own.contains(&ip));
        let own_source = tuple.src.ip().is_loopback() || is_own(tuple.src.ip());
        let packet = Packet {
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
        };
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
}
