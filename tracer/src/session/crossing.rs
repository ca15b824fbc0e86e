//! A flow as one node observed it, by the addresses that it has between the nodes.
//!
//! Owns which of a flow's events are before or after an event of the same flow on another node. A recording of the other
//! node has the same addresses, so that the two clocks can be compared without trusting either. Must not judge.

use std::net::SocketAddr;

use crate::{
    flow::Flow,
    net::{Protocol, Tuple},
    time::Timestamp,
};

/// The end of a flow that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's, or the node that translated the Service's address.
    Sender {
        /// When the other side's answer was there: it follows the arrival.
        answered: Option<Timestamp>,
    },
    /// The endpoint's.
    Receiver {
        /// When the client's answer to the answer was there.
        established: Option<Timestamp>,
    },
}

/// A flow that may cross from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    pub protocol: Protocol,
    /// From the client, or from the node that masquerades it.
    pub from: SocketAddr,
    /// The endpoint.
    pub to: SocketAddr,
    /// The first packet with these addresses.
    pub first: Timestamp,
    pub side: Side,
}

impl Crossing {
    /// On a clock that shows so many nanoseconds more.
    #[must_use]
    pub(crate) fn shifted(self, ns: i64) -> Self {
        let shift = |time: Option<Timestamp>| time.map(|time| time.shifted(ns));
        let side = match self.side {
            Side::Sender { answered } => Side::Sender { answered: shift(answered) },
            Side::Receiver { established } => Side::Receiver { established: shift(established) },
        };
        Self { first: self.first.shifted(ns), side, ..self }
    }

    /// `None` for a flow within this node, and for one whose beginning was not observed.
    pub(super) fn of(flow: &Flow) -> Option<Self> {
        let Tuple { protocol, src, dst } = flow.orig;
        let (src, dst) = (src.socket(), dst.socket());
        let crossing = |from, to, first, side| Some(Self { protocol, from, to, first, side });
        let reset = flow.client.reset_received().map(|reset| reset.time);
        let answered = [flow.client.established, reset].into_iter().flatten().min();
        let sender = Side::Sender { answered };
        if flow.partial || (flow.client.is_seen() && flow.server.is_seen()) {
            return None;
        }
        let translated = flow.decisions.iter().filter(|decision| decision.endpoint().is_some());
        let mut ends = translated.map(|it| (it.ct.reply.dst.socket(), it.ct.reply.src.socket(), it.time));
        if let Some((from, to, first)) = ends.next() {
            // A repeated SYN may have gone elsewhere: then the answer is not known to be this one's.
            let is_one = ends.all(|(.., other, _)| other == to);
            return if flow.server.is_seen() || !is_one { None } else { crossing(from, to, first, sender) };
        }
        if let Some(chosen) = flow.chosen_by_ipvs(None) {
            let is_here = flow.server.is_seen();
            return if is_here { None } else { crossing(src, chosen.destination, chosen.time, sender) };
        }
        if flow.client.is_seen() {
            return crossing(src, dst, flow.first_seen, sender);
        }
        crossing(src, dst, flow.first_seen, Side::Receiver { established: flow.server.established })
    }
}
