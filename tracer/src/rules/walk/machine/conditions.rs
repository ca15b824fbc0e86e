//! Evaluates a rule's conditions for the packet, and builds the keys for sets and maps.

use std::net::{IpAddr, SocketAddr};

use super::{Run, State};
use crate::{
    net::Protocol,
    rules::{
        Datum, Dimension, Field, HookPoint, Origin, Set, Side, Step, Table, text,
        walk::{Observer, Unknown},
    },
};

impl<O: Observer> Run<'_, '_, '_, O> {
    /// Whether the condition holds. `None` if this cannot be judged, which is noted.
    pub(super) fn holds(&mut self, table: &Table, condition: &Step, state: &State<O::Trail>) -> Option<bool> {
        Some(match condition {
            Step::Source(from) => from.contains(state.source),
            Step::Destination(to) => to.contains(state.destination.ip()),
            Step::Protocol { protocol, negated } => (*protocol == self.probe.protocol) != *negated,
            Step::Port { first, last, negated } => {
                (*first..=*last).contains(&state.destination.port()) != *negated
            }
            Step::SourceLocal { negated } => (self.probe.origin == Origin::Node) != *negated,
            Step::DestinationLocal { negated } => {
                self.walker.is_local(self.probe, state.destination) != *negated
            }
            Step::State { new, translated, established, untracked, negated } => {
                let listed = if state.is_untracked() {
                    *untracked
                } else if O::WHOLE && self.observer.is_reply() {
                    *established || *translated
                } else {
                    *new || (*translated && state.translated)
                };
                listed != *negated
            }
            Step::Mark { value, mask, negated } => {
                let Some(is) = state.marks.packet.is(*value, *mask) else {
                    return self.not_known(condition, table);
                };
                is != *negated
            }
            Step::Interface { name, negated } if !O::WHOLE => {
                is_device(name, self.probe.interface.unwrap_or_default()) != *negated
            }
            Step::Interface { name, negated } => {
                let Some(device) = self.device_in(state) else {
                    return self.not_known(condition, table);
                };
                is_device(name, device) != *negated
            }
            Step::InSet(of) => {
                let Some(set) = table.set(&of.set) else {
                    return self.unknown(Unknown::Set(of.set.clone()));
                };
                self.fill(state, &of.fields);
                self.is_in(set)? != of.negated
            }
            Step::InIpset(of) => {
                let Some(set) = self.walker.rules.ipset(&of.set) else {
                    return self.unknown(Unknown::Ipset(of.set.clone()));
                };
                if !self.fill_sides(state, set, &of.sides) {
                    return self.not_known(condition, table);
                }
                self.is_in(set)? != of.negated
            }
            step if !O::WHOLE && step.is_foreign() => {
                return self.not_known(step, table);
            }
            Step::Devices { out, names, negated } => {
                let device = if *out { self.device_out(state) } else { self.device_in(state) };
                let Some(device) = device else {
                    return self.not_known(condition, table);
                };
                names.iter().any(|name| is_device(name, device)) != *negated
            }
            Step::Ports { source, ranges, negated } => {
                let port = if *source { self.observer.source_port() } else { Some(state.destination.port()) };
                let Some(port) = port else {
                    return self.not_known(condition, table);
                };
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)) != *negated
            }
            Step::Protocols { protocols, negated } => protocols.contains(&self.probe.protocol) != *negated,
            Step::OfFamily { family, negated } => (*family == self.walker.family) != *negated,
            Step::AddressType { source, kind, negated } => {
                let address = if *source { state.source } else { state.destination.ip() };
                is_of_type(address, kind)? != *negated
            }
            // The first packet has SYN alone, its answer SYN and ACK.
            Step::TcpFlags { mask, set, negated } => {
                let flags = if self.observer.is_reply() { 0x12 } else { 0x02 };
                (flags & mask == *set && self.probe.protocol == Protocol::TCP) != *negated
            }
            // A packet that conntrack ignores has no entry with a mark (connmark_mt in net/netfilter/xt_connmark.c).
            Step::ConnMark { value, mask, negated } => {
                let Some(connection) = state.marks.connection else { return Some(false) };
                let Some(is) = connection.is(*value, *mask) else {
                    return self.not_known(condition, table);
                };
                is != *negated
            }
            Step::Unknown(what) => return self.unknown(Unknown::Condition(what.clone())),
            _ => true,
        })
    }

    /// The device through which the packet arrived: none on the way out of the node. `None` if unknown.
    fn device_in(&self, state: &State<O::Trail>) -> Option<&str> {
        match (state.hook, self.probe.origin) {
            (HookPoint::Prerouting | HookPoint::Input, Origin::Node) => Some(LOOPBACK),
            (HookPoint::Output, _) | (_, Origin::Node) => Some(""),
            _ => self.probe.interface,
        }
    }

    /// The device through which the packet leaves: none before it is routed, or on the way in. `None` if unknown.
    fn device_out(&self, state: &State<O::Trail>) -> Option<&str> {
        let to = match state.hook {
            HookPoint::Prerouting | HookPoint::Input => return Some(""),
            // A translation in OUTPUT changes the route, and not the device that the hook's later chains see (`nf_hook_state`).
            HookPoint::Output => state.sent_to,
            _ => state.destination.ip(),
        };
        let is_local = self.walker.is_local(self.probe, SocketAddr::new(to, state.destination.port()));
        if is_local { Some(LOOPBACK) } else { self.observer.device_to(to) }
    }

    /// Notes a condition for which a fact is missing.
    fn not_known(&mut self, condition: &Step, table: &Table) -> Option<bool> {
        self.unknown(Unknown::Condition(text::step(condition, table).into()))
    }

    fn unknown(&mut self, what: Unknown) -> Option<bool> {
        self.note(what);
        None
    }

    /// Whether the set has the key that was filled in.
    fn is_in(&mut self, set: &Set) -> Option<bool> {
        match set.find(&self.key) {
            Some(_) => Some(true),
            // One of the elements that were not understood may be this one.
            None if O::WHOLE && set.partial => self.unknown(Unknown::PartOfSet(set.name.clone())),
            None => Some(false),
        }
    }

    pub(super) fn fill(&mut self, state: &State<O::Trail>, fields: &[Field]) {
        self.key.clear();
        self.key.extend(fields.iter().map(|field| match field {
            Field::Source => Datum::Address(state.source),
            Field::Destination => Datum::Address(state.destination.ip()),
            Field::Protocol => Datum::Protocol(self.probe.protocol),
            Field::Port => Datum::Port(state.destination.port()),
        }));
    }

    /// Returns whether the packet's parts are known.
    pub(super) fn fill_sides(&mut self, state: &State<O::Trail>, set: &Set, sides: &[Side]) -> bool {
        self.key.clear();
        let port_of = |side: &Side| match side {
            Side::Source => self.observer.source_port(),
            Side::Destination => Some(state.destination.port()),
        };
        for (dimension, side) in set.dimensions.iter().zip(sides) {
            match dimension {
                Dimension::Address => self.key.push(Datum::Address(match side {
                    Side::Source => state.source,
                    Side::Destination => state.destination.ip(),
                })),
                Dimension::ProtocolPort => {
                    let Some(port) = port_of(side) else { return false };
                    self.key.push(Datum::Protocol(self.probe.protocol));
                    self.key.push(Datum::Port(port));
                }
                Dimension::Port => {
                    let Some(port) = port_of(side) else { return false };
                    self.key.push(Datum::Port(port));
                }
            }
        }
        true
    }
}

/// The device of packets from the node to itself.
const LOOPBACK: &str = "lo";

/// Whether a rule's name of an interface, which may end in a wildcard, means this one.
pub(super) fn is_device(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix(['+', '*']) {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// Whether the address is of a type of `addrtype` or `fib` other than `local`. `None` if only the routes show it.
fn is_of_type(address: IpAddr, kind: &str) -> Option<bool> {
    let is_multicast = address.is_multicast();
    let is_broadcast = address == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    match kind {
        "multicast" => Some(is_multicast),
        // The broadcast address of a network serves no connection.
        "broadcast" => Some(is_broadcast),
        "anycast" => Some(false),
        _ => None,
    }
}
