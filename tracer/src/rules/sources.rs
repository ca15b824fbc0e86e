//! Which traffic kube-proxy takes for that of the cluster's own Pods, as its rules say it.
//!
//! kube-proxy masquerades what comes to a `ClusterIP` from elsewhere (`--cluster-cidr`, `--detect-local-mode`). The setting
//! stands in the rules of every Service; one rule that differs from all others is not believed.

use std::{collections::BTreeMap, net::IpAddr};

use super::{AddressRange, Family, NFTABLES_TABLE, Rule, Ruleset, Step, Table, Writer};

/// How the rules know a Pod's traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LocalTraffic {
    /// By its source.
    Range(AddressRange),
    /// By the interface it comes from; a trailing `+` or `*` stands for any rest.
    Interface(Box<str>),
    /// The rules do not tell Pods from others.
    #[default]
    Unmarked,
}

impl LocalTraffic {
    /// An address of a Pod by this rule, and an interface.
    pub fn example(&self, family: Family) -> (IpAddr, Option<&str>) {
        match self {
            Self::Range(range) => (inside(*range), None),
            Self::Interface(name) => (nowhere(family, &[]), Some(name.trim_end_matches(['+', '*']))),
            Self::Unmarked => (nowhere(family, &[]), None),
        }
    }
}

impl Ruleset {
    /// What most of the rules say, in this family.
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

/// A rule that does something with what does not come from Pods, and names a Service's address or a set of them.
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

/// The last but one address of a range: seldom anybody's.
fn inside(range: AddressRange) -> IpAddr {
    let before = match range.last {
        IpAddr::V4(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V6(bits.into())),
    };
    before.filter(|ip| range.contains(*ip)).unwrap_or(range.last)
}

/// An address that lies in none of these ranges, if one of a few reserved ones does not.
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
