//! Without any one rule, or any one class of a rule, the board shows a miss.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use viptrace::{class::Class, diagnosis::flows};

use super::{board::Mutation, constructed::Traced, traces};

/// What the cases have in common: a verdict or a report, judged with and without a rule.
trait Judged {
    fn found(&self, omits: &dyn Fn(&str, Class) -> bool) -> Vec<Class>;
}

impl Judged for Traced {
    fn found(&self, omits: &dyn Fn(&str, Class) -> bool) -> Vec<Class> {
        self.found(&omits)
    }
}

struct Subject {
    class: Class,
    judged: Box<dyn Judged>,
    /// The rules and classes whose findings the judgement used: without another one it is the same.
    used: BTreeSet<(String, Class)>,
    found: Vec<Class>,
}

impl Subject {
    fn new(class: Class, judged: Box<dyn Judged>) -> Self {
        let used = RefCell::default();
        let found = judged.found(&|rule, class| {
            RefCell::<BTreeSet<_>>::borrow_mut(&used).insert((rule.to_owned(), class));
            false
        });
        Self { class, judged, used: used.into_inner(), found }
    }
}

/// How often each class was caused, how often it is missed, and what is found instead.
#[derive(Default)]
struct Lost {
    of: usize,
    missed: usize,
    became: BTreeMap<&'static str, usize>,
}

fn without(rule: &str, of: Option<Class>, subjects: &[Subject]) -> Vec<String> {
    let omits = |name: &str, class: Class| name == rule && of.is_none_or(|of| of == class);
    let mut lost = BTreeMap::<Class, Lost>::new();
    for subject in subjects {
        let entry = lost.entry(subject.class).or_default();
        entry.of += 1;
        if !subject.used.iter().any(|(name, class)| omits(name, *class)) {
            continue;
        }
        let now = subject.judged.found(&omits);
        let had = |found: &[Class]| found.contains(&subject.class);
        if had(&subject.found) && !had(&now) {
            entry.missed += 1;
            let instead = now.first().map_or("none", |class| class.id());
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

/// Each rule, and each of its classes where it gives several.
fn parts(
    rules: impl Iterator<Item = (&'static str, &'static [Class])>,
) -> impl Iterator<Item = (String, &'static str, Option<Class>)> {
    rules.flat_map(|(rule, gives)| {
        let whole = [(rule.to_owned(), rule, None)];
        // Without a rule a flow is `unknown` too.
        let several = gives.iter().filter(|class| gives.len() > 1 && **class != Class::Unknown);
        let each = several.map(move |class| (format!("{rule} ({class})"), rule, Some(*class)));
        whole.into_iter().chain(each).collect::<Vec<_>>()
    })
}

pub(super) fn run() -> Vec<Mutation> {
    let mut subjects = Vec::new();
    for case in traces().into_iter().flat_map(|group| group.cases) {
        for mode in case.modes {
            subjects.push(Subject::new(case.class, Box::new((case.build)(*mode))));
        }
    }
    parts(flows::rules())
        .map(|(rule, name, class)| Mutation { rule, missed: without(name, class, &subjects) })
        .collect()
}
