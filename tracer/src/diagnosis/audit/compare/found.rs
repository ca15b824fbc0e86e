//! Collects faults: each once, with all affected frontends and sides.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use super::{
    super::{Aspect, Audit, Discrepancy, ExpectedPort, Kind, SyncState},
    ByFault,
};
use crate::{
    net::Family,
    rules::{Frontend, Name, Origin, Rule, Ruleset, Step, Verdict, Writer},
};

/// A fault of at least this percentage and number of all Service ports belongs to a shared part.
const COMMON_PERCENT: usize = 60;
const MIN_COMMON: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Index into the expected ports.
    pub(super) port: usize,
    pub(super) kind: Kind,
    pub(super) aspect: Aspect,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) place: Name,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct Found {
    faults: Vec<(Fault, BTreeSet<Frontend>, BTreeSet<Origin>)>,
    known: ByFault,
    /// The number of Service ports checked.
    pub(super) checked: usize,
    /// The number of those that have endpoints.
    pub(super) forwarded: BTreeSet<usize>,
}

impl Found {
    pub(super) fn add(&mut self, fault: Fault, frontend: Frontend, origin: Origin) {
        let key = (fault.port, fault.kind, fault.aspect, fault.endpoint);
        let position = *self.known.entry(key).or_insert_with(|| {
            self.faults.push((fault, BTreeSet::new(), BTreeSet::new()));
            self.faults.len() - 1
        });
        if let Some((_, frontends, origins)) = self.faults.get_mut(position) {
            frontends.insert(frontend);
            origins.insert(origin);
        }
    }

    /// Adds the faults of other Service ports.
    pub(super) fn absorb(&mut self, other: Self) {
        let before = self.faults.len();
        self.faults.extend(other.faults);
        self.known.extend(other.known.into_iter().map(|(key, position)| (key, before + position)));
        self.checked += other.checked;
        self.forwarded.extend(other.forwarded);
    }

    pub(super) fn report(
        self,
        ports: &[ExpectedPort],
        family: Family,
        writer: Writer,
        rules: &Ruleset,
        audit: &mut Audit,
    ) {
        let mut shared = BTreeMap::<(Kind, Aspect), BTreeSet<usize>>::new();
        for (fault, ..) in &self.faults {
            shared.entry((fault.kind, fault.aspect)).or_default().insert(fault.port);
        }
        let common = |fault: &Fault| {
            let count = shared.get(&(fault.kind, fault.aspect)).map_or(0, BTreeSet::len);
            let of = match fault.aspect {
                Aspect::Masquerade | Aspect::Hairpin | Aspect::Share | Aspect::Affinity => {
                    self.forwarded.len()
                }
                _ => self.checked,
            };
            let shareable =
                !matches!(fault.aspect, Aspect::Endpoint | Aspect::Frontend | Aspect::SourceRanges);
            shareable && count >= MIN_COMMON && count.saturating_mul(100) > of.saturating_mul(COMMON_PERCENT)
        };
        let mut folded = BTreeSet::new();
        for (fault, frontends, origins) in &self.faults {
            let port = ports.get(fault.port);
            let mut discrepancy = Discrepancy {
                kind: fault.kind,
                aspect: fault.aspect,
                family,
                service: port.map(|port| port.service.key.to_string().into()),
                port: port.map(|port| port.port.label()),
                frontends: frontends.iter().copied().collect(),
                origins: origins.iter().copied().collect(),
                endpoint: fault.endpoint,
                place: fault.place.clone(),
                writer: Some(writer),
                text: fault.text.clone(),
                since: port.and_then(|port| since(port, fault)),
                sync: SyncState::Unknown,
            };
            if common(fault) {
                if !folded.insert((fault.kind, fault.aspect)) {
                    continue;
                }
                let count = shared.get(&(fault.kind, fault.aspect)).map_or(0, BTreeSet::len);
                discrepancy.text = format!("{count} of {} Service ports: {}", self.checked, fault.text);
                discrepancy.since = None;
                discrepancy.service = None;
                discrepancy.port = None;
                discrepancy.endpoint = None;
                discrepancy.frontends = Vec::new();
                if let Some(place) = shared_place(fault.aspect, family, writer, rules) {
                    discrepancy.place = place;
                }
            }
            audit.discrepancies.push(discrepancy);
        }
    }
}

/// How long the API has required the expected state.
fn since(port: &ExpectedPort, fault: &Fault) -> Option<crate::time::Timestamp> {
    let left = fault.endpoint.and_then(|endpoint| port.left.get(&endpoint).copied());
    left.or(port.changed)
}

/// The shared part if masquerading is wrong: the chain that masquerades, the one that marks, or the rule that asks for
/// Pods. `None` if none of them is.
fn shared_place(aspect: Aspect, family: Family, writer: Writer, rules: &Ruleset) -> Option<Name> {
    if !matches!(aspect, Aspect::Masquerade | Aspect::Hairpin) {
        return None;
    }
    let (table, marking, masquerading) = match writer {
        Writer::Nftables => ("kube-proxy", "mark-for-masquerade", "masquerading"),
        _ => ("nat", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"),
    };
    let table = rules.table_of(family, table)?;
    let steps = |name: &str| {
        let chain = table.chain(name);
        chain.into_iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps).collect::<Vec<_>>()
    };
    let asked = steps(masquerading).iter().find_map(|step| match step {
        Step::Mark { mask, .. } => Some(*mask),
        _ => None,
    });
    // The rules for hairpins masquerade the connections of a set.
    let masquerades = |rule: &Rule| {
        let of_set = |step: &Step| matches!(step, Step::InSet(_) | Step::InIpset(_));
        rule.steps.contains(&Step::Do(Verdict::Masquerade)) && !rule.steps.iter().any(of_set)
    };
    let mut rules = table.chain(masquerading).into_iter().flat_map(|chain| &chain.rules);
    let Some(mask) = asked.filter(|_| rules.any(masquerades)) else {
        return Some(masquerading.into());
    };
    let sets = |step: &&Step| matches!(step, Step::SetMark { toggle, .. } if toggle & mask != 0);
    if table.chain(marking).is_some() && !steps(marking).iter().any(sets) {
        return Some(marking.into());
    }
    // Since 1.35 nftables mode marks the connections to all ClusterIPs by one rule.
    (table.set("hairpin-connections").is_some() && aspect == Aspect::Masquerade).then(|| "services".into())
}
