//! Events that viptrace did not receive, and the flows that they make uncertain.
//!
//! Owns the intervals of losses and their bounds. A loss of unknown contents concerns every flow of its time; that of one
//! hook the flows of which this hook could report something; events that the kernel suppressed only the flows of one
//! client, or of one Service's address.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{Flow, FlowTable};
use crate::{
    net::{Netns, Protocol},
    sighting::Hook,
    time::Timestamp,
};

/// The number of losses kept apart; older ones are merged.
const MAX_LOSSES: usize = 128;
/// Losses at one hook, one right after the other, are one up to this length.
const MERGED: Duration = Duration::from_secs(1);
/// The number of addresses whose suppressed events are kept apart; those of the address that has been quiet for longest
/// then count as losses of every flow.
const MAX_HOSTS: usize = 4096;
/// The number of intervals kept apart for one address, and the pause that separates two.
const MAX_INTERVALS: usize = 4;
const PAUSE: Duration = Duration::from_secs(10);

/// Events that were lost between the kernel and viptrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The hook that would have reported them. `None` if it is unknown.
    pub hook: Option<Hook>,
    pub count: u64,
    pub from: Timestamp,
    pub to: Timestamp,
}

impl Lost {
    /// Events that any hook can have reported.
    pub const fn of_unknown_hook(count: u64, from: Timestamp, to: Timestamp) -> Self {
        Self { hook: None, count, from, to }
    }
}

/// Events that the kernel suppressed, because there were too many of one client at one Service, or of all clients there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppressed {
    /// `None` if all clients together were too many.
    pub client: Option<IpAddr>,
    /// The Service's address as the events have it: before or behind NAT. `None` for events of a whole namespace.
    pub service: Option<IpAddr>,
    /// The namespace of the events. It distinguishes only loopback addresses: all others mean the same host everywhere
    /// on a node.
    pub netns: Netns,
    pub from: Timestamp,
    pub to: Timestamp,
    pub count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    /// The hook that would have reported the events. `None` if it is unknown, or one of several.
    hook: Option<Hook>,
    count: u64,
    /// False if the number is unknown, and `count` stands for it.
    is_counted: bool,
    from: Timestamp,
    to: Timestamp,
}

impl Loss {
    fn merge(&mut self, other: Self) {
        self.hook = self.hook.filter(|hook| other.hook == Some(*hook));
        self.count = self.count.saturating_add(other.count);
        self.is_counted &= other.is_counted;
        self.from = self.from.min(other.from);
        self.to = self.to.max(other.to);
    }

    fn overlaps(&self, since: Timestamp, until: Timestamp) -> bool {
        self.from <= until && self.to >= since
    }

    /// Whether one of the events can have concerned this flow.
    fn concerns(&self, flow: &Flow) -> bool {
        self.hook.is_none_or(|hook| can_report(hook, flow))
    }
}

/// Whether this hook can report something of this flow that is not known yet.
fn can_report(hook: Hook, flow: &Flow) -> bool {
    let is_tcp = flow.is_tcp();
    let is_ipv4 = flow.orig.src.ip().to_canonical().is_ipv4();
    match hook {
        // Only the trackers of TCP, SCTP and DCCP call `nf_ct_l4proto_log_invalid` (net/netfilter/nf_conntrack_proto_*.c).
        Hook::InvalidLog => flow.orig.protocol != Protocol::UDP,
        Hook::SockEstablished | Hook::SockClosed => is_tcp && !has_closed(flow),
        Hook::TcpReceiveReset | Hook::TcpSendReset | Hook::TcpRetransmit => is_tcp,
        Hook::TcpV4SendReset | Hook::NfSendReset => is_tcp && is_ipv4,
        Hook::TcpV6SendReset | Hook::NfSendReset6 => is_tcp && !is_ipv4,
        Hook::SendUnreach | Hook::IcmpError => is_ipv4,
        Hook::SendUnreach6 | Hook::IcmpError6 => !is_ipv4,
        _ => true,
    }
}

/// Whether the close of each socket that was seen is known: nothing of it follows.
fn has_closed(flow: &Flow) -> bool {
    let ends = [&flow.client, &flow.server];
    let mut seen = ends.iter().filter(|end| end.is_seen()).peekable();
    seen.peek().is_some() && seen.all(|end| end.closed.is_some())
}

/// All losses so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    of_all: VecDeque<Loss>,
    of_hosts: HashMap<Host, VecDeque<Loss>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Host {
    address: IpAddr,
    scope: u32,
}

impl Host {
    fn new(address: IpAddr, netns: Netns) -> Self {
        let address = address.to_canonical();
        Self { address, scope: if address.is_loopback() { netns.0 } else { 0 } }
    }
}

impl Losses {
    fn add(&mut self, loss: Loss) {
        // One after the other at the same hook, as on a busy node, they are one.
        let is_next = |known: &&mut Loss| {
            known.is_counted == loss.is_counted
                && (known.from..=known.to).contains(&loss.from)
                && loss.to.since(known.from) <= MERGED
        };
        let latest = self.of_all.iter_mut().rev().find(|known| known.hook == loss.hook);
        if let Some(known) = latest.filter(is_next) {
            known.merge(loss);
            return;
        }
        if self.of_all.len() >= MAX_LOSSES
            && let Some(oldest) = self.of_all.pop_front()
        {
            let alike = self.of_all.iter().position(|known| known.hook == oldest.hook).unwrap_or(0);
            if let Some(next) = self.of_all.get_mut(alike) {
                next.merge(oldest);
            }
        }
        self.of_all.push_back(loss);
    }

    fn suppress(&mut self, host: Host, loss: Loss) {
        if self.of_hosts.len() >= MAX_HOSTS && !self.of_hosts.contains_key(&host) {
            self.merge_quietest();
        }
        let known = self.of_hosts.entry(host).or_default();
        match known.back_mut() {
            Some(last) if loss.from <= last.to.saturating_add(PAUSE) => last.merge(loss),
            _ => known.push_back(loss),
        }
        if known.len() > MAX_INTERVALS
            && let (Some(oldest), Some(next)) = (known.pop_front(), known.front_mut())
        {
            next.merge(oldest);
        }
    }

    fn merge_quietest(&mut self) {
        let last = |known: &VecDeque<Loss>| known.back().map(|loss| loss.to);
        let quietest = self.of_hosts.iter().min_by_key(|(host, known)| (last(known), **host));
        let Some(host) = quietest.map(|(host, _)| *host) else { return };
        for loss in self.of_hosts.remove(&host).into_iter().flatten() {
            self.add(loss);
        }
    }

    /// Whether no event is missing for any flow.
    pub(super) fn is_empty(&self) -> bool {
        self.of_all.is_empty() && self.of_hosts.is_empty()
    }

    /// Whether the number of the events that are missing between two times is unknown.
    pub(super) fn are_uncounted(&self, since: Timestamp, until: Timestamp) -> bool {
        self.of_all.iter().any(|loss| !loss.is_counted && loss.overlaps(since, until))
    }

    /// The number of events between two times that are missing for this flow: of several flows, and of its own addresses.
    pub(super) fn of(&self, flow: &Flow, since: Timestamp, until: Timestamp) -> (u64, u64) {
        let count = |losses: &VecDeque<Loss>| {
            let missing = losses.iter().filter(|loss| loss.overlaps(since, until) && loss.concerns(flow));
            missing.fold(0, |sum: u64, loss| sum.saturating_add(loss.count))
        };
        if self.of_hosts.is_empty() {
            return (count(&self.of_all), 0);
        }
        let endpoint = flow.endpoint(None).map(|endpoint| endpoint.ip());
        let ends = [flow.orig.src.ip(), flow.orig.dst.ip()].into_iter().chain(endpoint);
        let of_host = |end| self.of_hosts.get(&Host::new(end, flow.netns)).map_or(0, count);
        (count(&self.of_all), ends.map(of_host).fold(0, u64::saturating_add))
    }
}

impl FlowTable {
    /// Events were lost. Flows that were alive then carry the count, if the hook could report something of them.
    pub fn lost(&mut self, Lost { hook, count, from, to }: Lost) {
        if count > 0 {
            self.losses.add(Loss { hook, count, is_counted: true, from, to });
        }
    }

    /// An unknown number of records is missing between `from` and `to`. Flows that were alive then carry one as lost.
    pub fn lost_uncounted(&mut self, from: Timestamp, to: Timestamp) {
        self.losses.add(Loss { hook: None, count: 1, is_counted: false, from, to });
    }

    /// The kernel half suppressed events. The flows of that client, or else of that Service's address, that were alive
    /// then carry the count; without both, all flows do.
    pub fn suppressed(&mut self, suppressed: Suppressed) {
        let Suppressed { client, service, netns, from, to, count } = suppressed;
        if count == 0 {
            return;
        }
        let loss = Loss { hook: None, count, is_counted: true, from, to };
        match client.or(service) {
            Some(address) => self.losses.suppress(Host::new(address, netns), loss),
            None => self.losses.add(loss),
        }
    }
}
