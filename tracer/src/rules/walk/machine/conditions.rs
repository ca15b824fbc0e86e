//! Evaluates a rule's conditions for the packet, and builds the keys for sets and maps.

use super::{Run, State};
use crate::rules::{Datum, Dimension, Field, Origin, Set, Side, Step, Table, walk::Unknown};

impl Run<'_, '_, '_> {
    pub(super) fn holds(&mut self, table: &Table, condition: &Step, state: &State) -> bool {
        match condition {
            Step::Source { ranges, negated } => {
                ranges.iter().any(|range| range.contains(state.source)) != *negated
            }
            Step::Destination { ranges, negated } => {
                ranges.iter().any(|range| range.contains(state.destination.ip())) != *negated
            }
            Step::Protocol { protocol, negated } => (*protocol == self.probe.protocol) != *negated,
            Step::Port { first, last, negated } => {
                (*first..=*last).contains(&state.destination.port()) != *negated
            }
            Step::SourceLocal { negated } => (self.probe.origin == Origin::Node) != *negated,
            Step::DestinationLocal { negated } => {
                self.walker.is_local(self.probe, state.destination) != *negated
            }
            Step::State { new, translated, negated } => {
                (*new || (*translated && state.translated)) != *negated
            }
            Step::Mark { value, mask, negated } => (state.mark & mask == *value) != *negated,
            Step::Interface { name, negated } => {
                let of = self.probe.interface.unwrap_or_default();
                let same = match name.strip_suffix(['+', '*']) {
                    Some(start) => of.starts_with(start),
                    None => of == name.as_ref(),
                };
                same != *negated
            }
            Step::InSet { set, fields, negated } => {
                let Some(set) = table.set(set) else {
                    self.note(Unknown::Set(set.clone()));
                    return false;
                };
                self.fill(state, fields);
                set.find(&self.key).is_some() != *negated
            }
            Step::InIpset { set, sides, negated } => {
                let Some(set) = self.walker.rules.sets.iter().find(|known| known.name == *set) else {
                    self.note(Unknown::Ipset(set.clone()));
                    return false;
                };
                self.fill_sides(state, set, sides);
                set.find(&self.key).is_some() != *negated
            }
            Step::Unknown(what) => {
                self.note(Unknown::Condition(what.clone()));
                false
            }
            _ => true,
        }
    }

    pub(super) fn fill(&mut self, state: &State, fields: &[Field]) {
        self.key.clear();
        self.key.extend(fields.iter().map(|field| match field {
            Field::Source => Datum::Address(state.source),
            Field::Destination => Datum::Address(state.destination.ip()),
            Field::Protocol => Datum::Protocol(self.probe.protocol),
            Field::Port => Datum::Port(state.destination.port()),
        }));
    }

    pub(super) fn fill_sides(&mut self, state: &State, set: &Set, sides: &[Side]) {
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
