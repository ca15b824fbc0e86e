//! The causes, and the classes found for them.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Write as _},
    net::SocketAddr,
    time::Duration,
};

use viptrace::{
    class::{Class, Confidence},
    net::Tuple,
    time::Timestamp,
    verdict::Verdict,
};

use super::wire::{Planned, Truth};

/// One flow's truth and verdicts.
#[derive(Debug)]
struct Case {
    truth: Truth,
    orig: Tuple,
    begins: Timestamp,
    /// The times of its events that were lost.
    lost: Vec<Timestamp>,
    found: Option<Verdict>,
    /// Faults that a verdict named before the last one.
    before: Vec<Class>,
}

/// All flows of a soak.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    cases: Vec<Case>,
    by_ends: HashMap<(SocketAddr, SocketAddr), Vec<usize>>,
    /// Verdicts on no planned flow.
    strays: Vec<Verdict>,
}

/// A flow's first sighting may lie this far before its planned beginning: times are shifted a little.
const EARLY: Duration = Duration::from_millis(50);

impl Tally {
    pub(crate) fn of(flows: &[Planned]) -> Self {
        let mut tally = Self::default();
        for planned in flows {
            let ends = (planned.orig.src.socket(), planned.orig.dst.socket());
            tally.by_ends.entry(ends).or_default().push(tally.cases.len());
            tally.cases.push(Case {
                truth: planned.truth,
                orig: planned.orig,
                begins: planned.begins,
                lost: planned.lost.clone(),
                found: None,
                before: Vec::new(),
            });
        }
        tally
    }

    pub(crate) fn take(&mut self, verdict: Verdict) {
        let flow = &verdict.flow;
        let asked = flow.vip.or(flow.endpoint);
        let started = flow.started.saturating_add(EARLY);
        let known = asked.and_then(|asked| self.by_ends.get(&(flow.client, asked)));
        let latest = known.and_then(|known| {
            known.iter().rev().find(|index| self.cases[**index].begins <= started).copied()
        });
        let Some(index) = latest else {
            self.strays.push(verdict);
            return;
        };
        let case = &mut self.cases[index];
        if let Some(before) = case.found.replace(verdict).filter(Verdict::is_fault) {
            case.before.push(before.class);
        }
    }

    pub(crate) fn flows(&self) -> usize {
        self.cases.len()
    }

    /// Verdicts that differ from what was caused.
    pub(crate) fn confusions(&self) -> Vec<String> {
        self.wrong(|case| match &case.found {
            Some(verdict) => case.truth.classes.contains(&verdict.class),
            None => case.truth.or_none,
        })
    }

    /// Verdicts that name a fault that was not caused.
    pub(crate) fn inventions(&self) -> Vec<String> {
        self.wrong(|case| {
            let found = case.found.as_ref();
            found.is_none_or(|verdict| !verdict.is_fault() || case.truth.allows(verdict.class))
        })
    }

    /// Verdicts that were given without an event of their flow and do not admit it.
    pub(crate) fn too_certain(&self) -> Vec<String> {
        self.wrong(|case| {
            let Some(verdict) = &case.found else { return true };
            let within = |lost: &Timestamp| (verdict.flow.started..=verdict.time).contains(lost);
            let lacks = case.lost.iter().any(within);
            // Of a flow whose beginning was lost long before, no loss is known.
            let admits = verdict.unseen.iter().any(|what| what.contains("lost"));
            let healthy = matches!(verdict.class, Class::Ok | Class::N8) && verdict.lost_events > 0;
            !lacks || admits && !healthy && verdict.confidence != Confidence::High
        })
    }

    /// A line for each kind of verdict that is not right, and an example.
    fn wrong(&self, is_right: impl Fn(&Case) -> bool) -> Vec<String> {
        let mut kinds: BTreeMap<String, (u64, String)> = BTreeMap::new();
        let mut note = |what: String, example: &dyn fmt::Debug| {
            kinds.entry(what).or_insert_with(|| (0, format!("{example:#?}"))).0 += 1;
        };
        for case in &self.cases {
            let caused = format!("{} {:?}", case.truth.cause, case.truth.classes);
            if !is_right(case) {
                let found = case.found.as_ref();
                let class = found.map_or("none".to_owned(), |it| format!("{} ({})", it.class, it.confidence));
                note(format!("{caused} -> {class}"), &(case.orig, case.begins, &case.lost, found));
            }
            for class in case.before.iter().filter(|class| !case.truth.allows(**class)) {
                note(format!("{caused} -> {class}, later withdrawn"), case);
            }
        }
        for stray in self.strays.iter().filter(|stray| stray.is_fault()) {
            note(format!("nothing -> {}", stray.class), stray);
        }
        kinds.into_iter().map(|(what, (count, example))| format!("{count} x {what}\n{example}")).collect()
    }
}

impl fmt::Display for Tally {
    /// The number of flows of each cause, and the classes found.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut causes: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
        for case in &self.cases {
            let class = case.found.as_ref().map_or("none".to_owned(), |found| found.class.to_string());
            *causes.entry(case.truth.cause).or_default().entry(class).or_default() += 1;
        }
        for (cause, found) in causes {
            let mut line = format!("{:6}  {cause:42}", found.values().sum::<u64>());
            for (class, count) in found {
                write!(line, " {class} {count}")?;
            }
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{:6}  verdicts on no planned flow", self.strays.len())
    }
}
