//! The traffic that kube-proxy's rules treat as coming from the cluster's own Pods.
//!
//! kube-proxy masquerades other traffic to a `ClusterIP` (`--cluster-cidr`, `--detect-local-mode`). The rules of every
//! Service contain the setting. A single rule that differs from all others is ignored.

use std::{collections::BTreeMap, net::IpAddr};

use super::{AddressRange, Family, NFTABLES_TABLE, Rule, Ruleset, Step, Table, Writer};

/// How the rules recognise a Pod's traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LocalTraffic {
    /// By its source address.
    Range(AddressRange),
    /// By the incoming interface; a trailing `+` or `*` matches any rest.
    Interface(Box<str>),
    /// The rules do not distinguish Pods from other sources.
    #[default]
    Unmarked,
}

impl LocalTraffic {
    /// An address and an interface that the rules treat as a Pod's.
    pub fn example(&self, family: Family) -> (IpAddr, Option<&str>) {
        match self {
            Self::Range(range) => (inside(*range), None),
            Self::Interface(name) => (nowhere(family, &[]), Some(name.trim_end_matches(['+', '*']))),
            Self::Unmarked => (nowhere(family, &[]), None),
        }
    }
}

impl Ruleset {
    /// The setting of most rules in this family.
    pub fn local_traffic(&self, family: Family) -> LocalTraffic {
        let mut votes = BTreeMap::<LocalTraffic, usize>::new();
        for table in self.tables.iter().filter(|table| table.family == family && is_kube(table)) {
            for chain in table.chains.iter().filter(|chain| chain.base.is_none()) {
                for vote in chain.rules.iter().filter_map(vote) {
                    *votes.entry(vote).or_default() += 1;
                }
            }
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(vote, _)| vote).unwrap_or_default()
    }
}

fn is_kube(table: &Table) -> bool {
    match table.writer {
        Writer::Nftables => table.name.as_ref() == NFTABLES_TABLE,
        _ => table.name.as_ref() == "nat",
    }
}

/// The setting of a rule that handles traffic from outside the Pods and names a Service's address or a set of them.
fn vote(rule: &Rule) -> Option<LocalTraffic> {
    let names_service = rule
        .steps
        .iter()
        .any(|step| matches!(step, Step::Destination { .. } | Step::InSet { .. } | Step::InIpset { .. }));
    let vote = rule.steps.iter().find_map(|step| match step {
        Step::Source { ranges, negated: true } => match ranges.as_ref() {
            [range] if range.as_host().is_none() => Some(LocalTraffic::Range(*range)),
            _ => None,
        },
        Step::Interface { name, negated: true } => Some(LocalTraffic::Interface(name.clone())),
        _ => None,
    });
    vote.filter(|_| names_service)
}

/// The second last address of a range, which is rarely in use.
fn inside(range: AddressRange) -> IpAddr {
    let before = match range.last {
        IpAddr::V4(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V6(bits.into())),
    };
    before.filter(|ip| range.contains(*ip)).unwrap_or(range.last)
}

/// An address outside these ranges, if one of a few reserved addresses is outside.
pub(crate) fn nowhere(family: Family, ranges: &[AddressRange]) -> IpAddr {
    let of = |text: &str| text.parse::<IpAddr>().ok();
    let candidates = match family {
        Family::Ipv4 => [of("203.0.113.254"), of("198.18.255.254"), of("100.127.255.254"), of("9.9.9.9")],
        Family::Ipv6 => {
            [of("2001:db8:ffff::fffe"), of("3fff:fff::fffe"), of("fdff:ffff:ffff::fffe"), of("2001:2::fffe")]
        }
    };
    let free = |ip: &IpAddr| !ranges.iter().any(|range| range.contains(*ip));
    let mut known = candidates.into_iter().flatten();
    let first = known.clone().next();
    known.find(free).or(first).unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
}
