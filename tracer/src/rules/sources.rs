//! The traffic that kube-proxy's rules treat as coming from the cluster's own Pods.
//!
//! kube-proxy masquerades other traffic to a `ClusterIP` (`--cluster-cidr`, `--detect-local-mode`). The rules of every
//! Service contain the setting. A single rule that differs from all others is ignored.

use std::{collections::BTreeMap, net::IpAddr};

use super::{
    AddressRange, Chain, Family, NFTABLES_TABLE, Rule, Ruleset, Side, Step, Table, Verdict, Writer, chains,
    frontends::ipset_name,
};

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
            for chain in table.chains.iter().filter(|chain| is_own(table, chain)) {
                for vote in chain.rules.iter().filter_map(vote) {
                    *votes.entry(vote).or_default() += 1;
                }
            }
        }
        votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(vote, _)| vote).unwrap_or_default()
    }

    /// Whether most of the rules that masquerade connections to a `ClusterIP` apply to every source (`masqueradeAll`).
    pub fn masquerades_all(&self, family: Family) -> bool {
        let (mut of_all, mut of_some) = (0_usize, 0_usize);
        let cluster_ips = ipset_name("CLUSTER-IP", family);
        for table in self.tables.iter().filter(|table| table.family == family && is_kube(table)) {
            let chains = table.chains.iter().filter(|chain| is_own(table, chain));
            for rule in chains.flat_map(|chain| &chain.rules).filter(|rule| marks(rule)) {
                let names_service = rule.steps.iter().any(|step| match step {
                    Step::Destination(to) => !to.is_negated(),
                    Step::InSet(of) => !of.negated,
                    Step::InIpset(of) => {
                        !of.negated
                            && *of.set == *cluster_ips
                            && of.sides.iter().all(|side| *side == Side::Destination)
                    }
                    _ => false,
                });
                if names_service && vote(rule).is_none() {
                    of_all += 1;
                } else if names_service {
                    of_some += 1;
                }
            }
        }
        of_all > of_some
    }
}

/// Whether the rule marks a packet for masquerading.
fn marks(rule: &Rule) -> bool {
    match rule.steps.last() {
        Some(Step::SetMark { .. }) => true,
        Some(Step::Do(Verdict::Jump(to) | Verdict::Goto(to))) => {
            matches!(&**to, "KUBE-MARK-MASQ" | "mark-for-masquerade")
        }
        _ => false,
    }
}

fn is_kube(table: &Table) -> bool {
    match table.writer {
        Writer::Nftables => table.name.as_ref() == NFTABLES_TABLE,
        _ => table.name.as_ref() == "nat",
    }
}

/// Whether kube-proxy writes the chain: rules of other programs, such as Flannel's and Weave's, distinguish Pods too.
fn is_own(table: &Table, chain: &Chain) -> bool {
    chain.base.is_none() && (table.writer == Writer::Nftables || chains::is_kube_proxys(&chain.name))
}

/// The setting of a rule that handles traffic from outside the Pods and names a Service's address or a set of them.
fn vote(rule: &Rule) -> Option<LocalTraffic> {
    let names_service = rule
        .steps
        .iter()
        .any(|step| matches!(step, Step::Destination(_) | Step::InSet(_) | Step::InIpset(_)));
    let vote = rule.steps.iter().find_map(|step| match step {
        Step::Source(from) if from.is_negated() => {
            from.one().filter(|range| range.as_host().is_none()).map(LocalTraffic::Range)
        }
        Step::Interface { name, negated: true } => Some(LocalTraffic::Interface(Box::clone(name))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::iptables::{self, Hint};

    #[test]
    fn only_kube_proxys_rules_show_how_it_recognises_pods() {
        let own = |source: &str| {
            format!(
                "*nat\n-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A\n\
                 -A KUBE-SVC-A {source}-d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
                 -A MESH ! -s 10.32.0.0/12 -d 10.32.0.0/12 -j MASQUERADE\n\
                 -A MESH ! -s 10.32.0.0/12 -d 10.40.0.0/16 -j MASQUERADE\n\
                 -A MESH -d 10.48.0.0/16 -j MARK --set-xmark 0x1/0x1\n\
                 -A MESH -d 10.49.0.0/16 -j MARK --set-xmark 0x1/0x1\nCOMMIT\n"
            )
        };
        let rules = iptables::parse(&own(""), Hint::default());
        assert_eq!(rules.local_traffic(Family::Ipv4), LocalTraffic::Unmarked);
        assert!(rules.masquerades_all(Family::Ipv4));
        let rules = iptables::parse(&own("! -s 10.244.0.0/16 "), Hint::default());
        let range = AddressRange::parse("10.244.0.0/16").unwrap();
        assert_eq!(rules.local_traffic(Family::Ipv4), LocalTraffic::Range(range));
        assert!(!rules.masquerades_all(Family::Ipv4));
    }
}
