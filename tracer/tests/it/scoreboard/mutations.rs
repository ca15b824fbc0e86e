//! Without any one rule or check, or any one class of it, a case is missed.

use std::collections::BTreeMap;

use viptrace::{
    class::Class,
    diagnosis::{flows, triage},
};

use super::{
    board::{Mutation, Verb},
    case::{Subject, at_once},
};

/// How often a class was caused, how often it is missed, and what is found instead.
#[derive(Default)]
struct Lost {
    of: usize,
    missed: usize,
    became: BTreeMap<String, usize>,
}

/// The classes that are missed without this part of the rules.
fn without(part: &Part, subjects: &[Subject]) -> Vec<String> {
    let omits = |name: &str, class: Class| name == part.rule && part.class.is_none_or(|of| of == class);
    let mut lost = BTreeMap::<Class, Lost>::new();
    for subject in subjects.iter().filter(|subject| subject.verb == part.verb) {
        let Some(cause) = subject.caused.first().filter(|cause| subject.found.contains(cause)) else {
            continue;
        };
        let entry = lost.entry(cause.class).or_default();
        entry.of += 1;
        if !subject.used.iter().any(|(name, class)| omits(name, *class)) {
            continue;
        }
        let now = subject.judged.found(&omits);
        if !now.contains(cause) {
            entry.missed += 1;
            let instead = now.iter().find(|name| !subject.found.contains(name));
            let instead = instead.map_or_else(|| "none".to_owned(), ToString::to_string);
            *entry.became.entry(instead).or_default() += 1;
        }
    }
    let missed = lost.into_iter().filter(|(_, lost)| lost.missed > 0);
    missed
        .map(|(class, lost)| {
            let became: Vec<String> = lost.became.iter().map(|(class, n)| format!("{class} {n}")).collect();
            format!("{class} {} of {} (became {})", lost.missed, lost.of, became.join(", "))
        })
        .collect()
}

/// A rule or check, or one of the classes that it gives.
struct Part {
    verb: Verb,
    rule: &'static str,
    class: Option<Class>,
}

impl Part {
    fn name(&self) -> String {
        let rule = match self.verb {
            Verb::Trace => self.rule.to_owned(),
            Verb::Check => format!("triage::{}", self.rule),
        };
        self.class.map_or_else(|| rule.clone(), |class| format!("{rule} ({class})"))
    }
}

/// Each of these rules, and each class of those that give several.
fn parts(
    verb: Verb,
    rules: impl Iterator<Item = (&'static str, &'static [Class])>,
) -> impl Iterator<Item = Part> {
    rules.flat_map(move |(rule, gives)| {
        // Without a rule a flow is `unknown` too.
        let several = gives.iter().filter(|class| gives.len() > 1 && **class != Class::Unknown);
        let each = several.map(|class| Some(*class));
        [None].into_iter().chain(each).map(move |class| Part { verb, rule, class })
    })
}

pub(super) fn run(subjects: &[Subject]) -> Vec<Mutation> {
    let parts = parts(Verb::Trace, flows::rules()).chain(parts(Verb::Check, triage::checks()));
    at_once(&parts.collect::<Vec<_>>(), |part| Mutation {
        rule: part.name(),
        missed: without(part, subjects),
    })
}
