//! Finds the rules of a long chain that can match a packet, by the single destination address or port of each rule.
//!
//! KUBE-SERVICES has a rule for each Service address. The kernel evaluates all of them; an audit of every Service must
//! not. The index keeps the order of rules.

use std::net::IpAddr;

use foldhash::HashMap;

use super::{Rule, Step};

/// Shorter chains have no index.
const LONG: usize = 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    by_destination: HashMap<IpAddr, Vec<u32>>,
    by_port: HashMap<u16, Vec<u32>>,
    rest: Vec<u32>,
}

impl Index {
    /// `None` for a chain too short to need an index.
    pub(super) fn of(rules: &[Rule]) -> Option<Self> {
        if rules.len() < LONG {
            return None;
        }
        let mut index = Self::default();
        for (position, rule) in rules.iter().enumerate() {
            let Ok(position) = u32::try_from(position) else { return None };
            let list = match key(rule) {
                Some(Ok(ip)) => index.by_destination.entry(ip).or_default(),
                Some(Err(port)) => index.by_port.entry(port).or_default(),
                None => &mut index.rest,
            };
            list.push(position);
        }
        Some(index)
    }

    /// The first rule from `from` on that can match a packet to this destination.
    pub(super) fn next(&self, from: usize, destination: IpAddr, port: u16) -> Option<usize> {
        let lists = [self.by_destination.get(&destination), self.by_port.get(&port), Some(&self.rest)];
        let next = lists.into_iter().flatten().filter_map(|list| {
            let after = list.partition_point(|position| (*position as usize) < from);
            list.get(after)
        });
        next.min().map(|position| *position as usize)
    }
}

/// The destination or port without which the rule does nothing. Only conditions before the first statement count.
fn key(rule: &Rule) -> Option<Result<IpAddr, u16>> {
    let mut port = None;
    for step in &rule.steps {
        match step {
            Step::Destination(to) => {
                if let Some(ip) = to.host() {
                    return Some(Ok(ip));
                }
            }
            Step::Port { first, last, negated: false } if first == last => port = Some(*first),
            Step::Source(_)
            | Step::Protocol { .. }
            | Step::Port { .. }
            | Step::SourceLocal { .. }
            | Step::DestinationLocal { .. }
            | Step::State { .. }
            | Step::Mark { .. }
            | Step::Interface { .. }
            | Step::InSet(_)
            | Step::InIpset(_)
            | Step::Devices { .. }
            | Step::Ports { .. }
            | Step::Protocols { .. }
            | Step::OfFamily { .. }
            | Step::TcpFlags { .. }
            | Step::Harmless => {}
            _ => break,
        }
    }
    port.map(Err)
}
