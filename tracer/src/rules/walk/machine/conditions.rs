//! Evaluates a rule's conditions for the packet, and builds the keys for sets and maps.

use std::net::IpAddr;

use super::{Run, State};
use crate::{
    net::Protocol,
    rules::{
        Datum, Dimension, Field, Origin, Set, Side, Step, Table, text,
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
            Step::State { new, translated, established, negated } => {
                let listed = if O::WHOLE && self.observer.is_reply() {
                    *established || *translated
                } else {
                    (*new || (*translated && state.translated)) && !state.untracked
                };
                listed != *negated
            }
            Step::Mark { value, mask, negated } => (state.mark & mask == *value) != *negated,
            Step::Interface { name, negated } => {
                if O::WHOLE && self.probe.interface.is_none() && self.probe.origin != Origin::Node {
                    return self.unknown(Unknown::Condition(text::step(condition, table).into()));
                }
                is_device(name, self.probe.interface.unwrap_or_default()) != *negated
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
                self.fill_sides(state, set, &of.sides);
                self.is_in(set)? != of.negated
            }
            step if !O::WHOLE && step.is_foreign() => {
                return self.unknown(Unknown::Condition(text::step(step, table).into()));
            }
            Step::Devices { out, names, negated } => {
                let device = match (*out, self.probe.origin) {
                    (true, _) => self.observer.device_to(state.destination.ip()),
                    (false, Origin::Node) => Some(""),
                    (false, _) => self.probe.interface,
                };
                let Some(device) = device else {
                    return self.unknown(Unknown::Condition(text::step(condition, table).into()));
                };
                names.iter().any(|name| is_device(name, device)) != *negated
            }
            Step::Ports { source, ranges, negated } => {
                let port = if *source { self.observer.source_port() } else { Some(state.destination.port()) };
                let Some(port) = port else {
                    return self.unknown(Unknown::Condition(text::step(condition, table).into()));
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
            Step::Unknown(what) => return self.unknown(Unknown::Condition(what.clone())),
            _ => true,
        })
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

    pub(super) fn fill_sides(&mut self, state: &State<O::Trail>, set: &Set, sides: &[Side]) {
        self.key.clear();
        for (dimension, side) in set.dimensions.iter().zip(sides) {
            match dimension {
                Dimension::Address => self.key.push(Datum::Address(match side {
                    Side::Source => state.source,
                    Side::Destination => state.destination.ip(),
                })),
                Dimension::ProtocolPort => {
                    self.key.push(Datum::Protocol(self.probe.protocol));
                    self.key.push(Datum::Port(state.destination.port()));
                }
                Dimension::Port => self.key.push(Datum::Port(state.destination.port())),
            }
        }
    }
}

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
