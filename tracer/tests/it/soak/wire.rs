//! From the script of one connection to its sightings among others': namespaces, sockets, CPUs and times of its own.
//!
//! Owns what a node observes of a connection, depending on where its ends are, and the later states of its conntrack
//! entries.

use std::time::Duration;

use viptrace::{
    class::Class,
    net::{Netns, Protocol, Tuple},
    node::ProxyMode,
    sighting::{
        Conntrack, ConntrackFact, EntryNote, Fact, Hook, IpvsFact, IpvsFlags, Sighting, SocketEvent, Status,
        TcpState,
    },
    time::Timestamp,
};

use crate::{
    flow_support::{CLIENT_NS, NODE, SERVER_NS, Script, at},
    recording_support::Random,
};

/// Where the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Pod,
    Host,
    /// On another machine: its socket is not observed.
    Outside,
}

/// The cause of a flow, and the classes that it may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(super) cause: &'static str,
    /// The first is the expected one. Each is right: they differ in evidence that not every trace has.
    pub(crate) classes: &'static [Class],
    /// Right only until the flow goes on.
    pub(super) meanwhile: &'static [Class],
    /// No verdict is right too: the flow concerns no Service.
    pub(super) or_none: bool,
}

impl Truth {
    pub(super) const fn of(cause: &'static str, classes: &'static [Class]) -> Self {
        Self { cause, classes, meanwhile: &[], or_none: false }
    }

    /// Whether the class is right for now.
    pub(super) fn allows(&self, class: Class) -> bool {
        self.classes.contains(&class) || self.meanwhile.contains(&class)
    }
}

/// A conntrack entry as a later reading of the kernel's memory finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) ct: Conntrack,
    answered: Option<Timestamp>,
    gone: Option<Timestamp>,
}

impl Entry {
    /// Its state at `now`, if it still exists.
    pub(super) fn read(&self, now: Timestamp) -> Option<Conntrack> {
        if self.gone.is_some_and(|gone| gone <= now) {
            return None;
        }
        let answered = self.answered.is_some_and(|answered| answered <= now);
        let seen = if answered { Status::SEEN_REPLY | Status::ASSURED } else { 0 };
        let status = Status(self.ct.status.0 | Status::CONFIRMED | seen);
        Some(Conntrack { status, ..self.ct })
    }
}

/// One flow of the soak.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) truth: Truth,
    /// As its verdict names it: from the client to the address that it used.
    pub(super) orig: Tuple,
    pub(super) begins: Timestamp,
    pub(super) sightings: Vec<Sighting>,
    /// The times of sightings that are lost.
    pub(super) lost: Vec<Timestamp>,
    pub(super) entries: Vec<Entry>,
    /// The times at which a datagram keeps its entry alive, for the listing of old ones.
    pub(super) datagrams: Vec<Timestamp>,
}

/// A script with what it does not contain.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) script: Script,
    pub(super) client: Client,
    /// Whether the endpoint is on this node.
    pub(super) here: bool,
    /// When the other end answers, if no event of the script shows it.
    pub(super) answered: Option<u64>,
    /// iptables translates it, also in ipvs mode.
    pub(super) by_rules: bool,
    pub(super) number: u64,
}

impl Draft {
    /// Changes the script.
    pub(super) fn with(mut self, change: impl FnOnce(Script) -> Script) -> Self {
        self.script = change(self.script);
        self
    }

    pub(super) fn answered(mut self, ms: u64) -> Self {
        self.answered = Some(ms);
        self
    }

    /// The flow as this node observes it.
    pub(super) fn observed(self, mode: ProxyMode, random: &mut Random, truth: Truth) -> Planned {
        let Self { script, client, here, answered, by_rules, number } = self;
        let orig = script.orig();
        let begins = script.out.iter().map(|sighting| sighting.time).min().unwrap_or(at(0));
        let mut sightings = script.out;
        if mode == ProxyMode::Ipvs && !by_rules {
            by_ipvs(&mut sightings);
        }
        let entries = entries(&sightings, orig, answered);
        let client_ns = match client {
            Client::Host => NODE,
            _ => Netns(CLIENT_NS.0 + 1 + (number % 4_000) as u32),
        };
        sightings.retain(|sighting| match sighting.netns {
            CLIENT_NS => client != Client::Outside,
            SERVER_NS => here,
            _ => true,
        });
        let mut late = Duration::ZERO;
        for sighting in &mut sightings {
            late += Duration::from_micros(random.below(15));
            sighting.time = sighting.time.saturating_add(late);
            sighting.cpu = random.below(8) as u16;
            match sighting.netns {
                CLIENT_NS => sighting.netns = client_ns,
                SERVER_NS => sighting.netns = Netns(SERVER_NS.0 + 10_000 + (number % 4_000) as u32),
                _ => {}
            }
            match &mut sighting.fact {
                Fact::Socket(socket) => socket.sk += number << 24,
                Fact::Packet(packet) => packet.skb += random.below(1 << 20) << 8,
                _ => {}
            }
            if !orig.dst.is_ipv4() {
                in_v6(sighting);
            }
        }
        Planned { truth, orig, begins, sightings, lost: Vec::new(), entries, datagrams: Vec::new() }
    }
}

/// ICMP of the other family: its hook and codes.
fn in_v6(sighting: &mut Sighting) {
    if sighting.hook == Hook::SendUnreach
        && let Fact::Packet(packet) = &mut sighting.fact
    {
        sighting.hook = Hook::SendUnreach6;
        packet.icmp_code = packet.icmp_code.map(|code| if code == 3 { 4 } else { 1 });
    }
}

/// IPVS translates after the NAT hooks: it changes the reply tuple and sets no DNAT bit, and reports its choice.
fn by_ipvs(sightings: &mut Vec<Sighting>) {
    let mut chosen = Vec::new();
    for (index, sighting) in sightings.iter_mut().enumerate() {
        match &mut sighting.fact {
            Fact::Conntrack(fact) if sighting.netns == NODE => {
                fact.ct.status.0 &= !Status::DST_NAT;
                let endpoint = fact.ct.endpoint().filter(|_| sighting.hook == Hook::Confirm);
                let midstream = fact.note.is_midstream() == Some(true);
                if let Some(destination) = endpoint.filter(|_| !midstream) {
                    let fact = IpvsFact { tuple: fact.ct.orig, destination, flags: IpvsFlags(0) };
                    chosen.push((
                        index,
                        Sighting { hook: Hook::IpVsConnNew, fact: Fact::Ipvs(fact), ..*sighting },
                    ));
                }
            }
            Fact::Packet(packet) => {
                if let Some(ct) = &mut packet.ct {
                    ct.status.0 &= !Status::DST_NAT;
                }
            }
            _ => {}
        }
    }
    for (index, sighting) in chosen.into_iter().rev() {
        sightings.insert(index, sighting);
    }
}

/// The later states of the entries that the node confirmed.
fn entries(sightings: &[Sighting], orig: Tuple, answered: Option<u64>) -> Vec<Entry> {
    let established = |sighting: &&Sighting| {
        matches!(&sighting.fact, Fact::Socket(socket)
            if matches!(socket.event, SocketEvent::State { new: TcpState::Established, .. }))
    };
    let answered = sightings.iter().find(established).map(|it| it.time).or(answered.map(at));
    let of = |hooks: &'static [Hook]| {
        sightings.iter().filter(move |it| hooks.contains(&it.hook) && it.netns == NODE).filter_map(|it| {
            match &it.fact {
                Fact::Conntrack(fact) if fact.ct.orig == orig => Some((it.time, fact.ct)),
                _ => None,
            }
        })
    };
    let gone =
        |id: u64| of(&[Hook::Delete, Hook::KillAcct]).find(|(_, ct)| ct.id == id).map(|(time, _)| time);
    of(&[Hook::Confirm]).map(|(_, ct)| Entry { ct, answered, gone: gone(ct.id) }).collect()
}

/// The entry as ctnetlink lists it.
pub(super) fn listed(ct: Conntrack, now: Timestamp, last_packet: Timestamp) -> Sighting {
    let note = EntryNote { last_packet: Some(last_packet), ..EntryNote::default() };
    let fact = Fact::Conntrack(ConntrackFact { ct: Conntrack { id: 0, ..ct }, task: None, note });
    Sighting { time: now, cpu: 0, hook: Hook::EntryReread, netns: NODE, fact }
}

/// The entry as the kernel's memory has it.
pub(super) fn reread(ct: Conntrack, now: Timestamp) -> Sighting {
    let fact = Fact::Conntrack(ConntrackFact { ct, task: None, note: EntryNote::default() });
    Sighting { time: now, cpu: 0, hook: Hook::EntryReread, netns: NODE, fact }
}

/// Whether conntrack follows sockets' states for it.
pub(super) const fn has_sockets(protocol: Protocol) -> bool {
    protocol.0 == Protocol::TCP.0
}
