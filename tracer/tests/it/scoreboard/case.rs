//! A case, and the parts that cases of both verbs share.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use viptrace::{
    class::{Class, Kind, Seen},
    node::ProxyMode,
};

use super::board::{Place, Source, Verb};

pub(super) const MODES: &[ProxyMode] = &ProxyMode::ALL;

/// A class, and for a finding about one Service its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) class: Class,
    about: String,
}

impl Name {
    pub(super) fn of(class: Class, service: &str) -> Self {
        Self { class, about: service.to_owned() }
    }

    /// The reverse of its text.
    pub(super) fn read(text: &str) -> Self {
        let (class, service) = text.split_once(' ').unwrap_or((text, ""));
        Self::of(class.parse().unwrap(), service)
    }
}

impl From<Class> for Name {
    fn from(class: Class) -> Self {
        Self::of(class, "")
    }
}

/// `C20 shop/cart`, or `C2`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class.id())?;
        if self.about.is_empty() { Ok(()) } else { write!(f, " {}", self.about) }
    }
}

/// Returns true for a rule and a class that the judgement leaves out.
pub(super) type Omits<'o> = &'o dyn Fn(&str, Class) -> bool;

/// A flow or a node that can be judged again.
pub(super) trait Judged {
    fn found(&self, omits: Omits<'_>) -> Vec<Name>;
}

/// A cause, built in each mode that it is possible in.
pub(super) struct Case<S> {
    pub(super) name: &'static str,
    pub(super) class: Class,
    /// The Service that is named, in a check.
    about: &'static str,
    /// Classes that are true as well, and are found beside it.
    and: &'static [(Class, &'static str)],
    pub(super) modes: &'static [ProxyMode],
    build: fn(ProxyMode) -> S,
}

/// In every mode.
pub(super) const fn case<S>(class: Class, name: &'static str, build: fn(ProxyMode) -> S) -> Case<S> {
    case_in(MODES, class, name, build)
}

pub(super) const fn case_in<S>(
    modes: &'static [ProxyMode],
    class: Class,
    name: &'static str,
    build: fn(ProxyMode) -> S,
) -> Case<S> {
    Case { name, class, about: "", and: &[], modes, build }
}

impl<S> Case<S> {
    pub(super) fn build(&self, mode: ProxyMode) -> S {
        (self.build)(mode)
    }

    pub(super) fn about(self, service: &'static str) -> Self {
        Self { about: service, ..self }
    }

    pub(super) fn and(self, others: &'static [(Class, &'static str)]) -> Self {
        Self { and: others, ..self }
    }
}

/// Cases with one symptom.
pub(super) struct Group<S> {
    pub(super) symptom: &'static str,
    pub(super) cases: Vec<Case<S>>,
}

/// A case in one mode, judged.
pub(super) struct Subject {
    pub(super) verb: Verb,
    pub(super) case: String,
    mode: ProxyMode,
    /// The case's own cause comes first.
    pub(super) caused: Vec<Name>,
    pub(super) found: Vec<Name>,
    /// The rules and classes whose findings were made: without any other one the judgement is the same.
    pub(super) used: BTreeSet<(String, Class)>,
    pub(super) judged: Box<dyn Judged + Send + Sync>,
}

impl Subject {
    pub(super) fn place(&self) -> Place {
        Place { source: Source::Constructed, verb: self.verb, mode: self.mode.to_string(), kernel: None }
    }
}

/// Judges every case, the groups at the same time.
pub(super) fn subjects<S: Judged + Send + Sync + 'static>(verb: Verb, groups: &[Group<S>]) -> Vec<Subject> {
    let of_groups = at_once(groups, |group| {
        let cases = group.cases.iter().flat_map(|case| case.modes.iter().map(move |mode| (case, *mode)));
        cases.map(|(case, mode)| subject(verb, group.symptom, case, mode)).collect::<Vec<_>>()
    });
    of_groups.into_iter().flatten().collect()
}

fn subject<S: Judged + Send + Sync + 'static>(
    verb: Verb,
    symptom: &str,
    case: &Case<S>,
    mode: ProxyMode,
) -> Subject {
    let caused = [(case.class, case.about)].into_iter().chain(case.and.iter().copied());
    let judged = Box::new(case.build(mode));
    let used = RefCell::new(BTreeSet::new());
    let found = judged.found(&|rule, class| {
        used.borrow_mut().insert((rule.to_owned(), class));
        false
    });
    Subject {
        verb,
        case: format!("{symptom}: {} ({mode})", case.name),
        mode,
        caused: caused.map(|(class, service)| Name::of(class, service)).collect(),
        found: found_as(case.class, found),
        used: used.into_inner(),
        judged,
    }
}

/// The results in their order, computed on every CPU.
pub(super) fn at_once<T: Sync, R: Send>(items: &[T], compute: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, items.get(index)?)))
        {
            done.push((index, compute(item)));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// The classes that count as found: a look-alike that no record names was recognised if there is at most one record, and
/// no fault.
fn found_as(caused: Class, found: Vec<Name>) -> Vec<Name> {
    let unnamed = caused.entry().seen == Seen::Neither && caused.kind() == Kind::Normal;
    let healthy = |name: &Name| matches!(name.class.kind(), Kind::Normal | Kind::Ok);
    if unnamed && found.len() < 2 && found.iter().all(healthy) { vec![caused.into()] } else { found }
}

#[test]
fn a_look_alike_without_a_record_of_its_own_is_found_by_silence() {
    let found = |caused, found: &[Class]| {
        let found = found_as(caused, found.iter().map(|class| Name::from(*class)).collect());
        found.iter().map(|name| name.class).collect::<Vec<_>>()
    };
    assert_eq!(found(Class::N3, &[Class::Ok]), [Class::N3]);
    assert_eq!(found(Class::N13, &[]), [Class::N13]);
    assert_eq!(found(Class::N3, &[Class::C28]), [Class::C28]);
    assert_eq!(found(Class::N3, &[Class::Ok, Class::Ok]), [Class::Ok, Class::Ok]);
    assert_eq!(found(Class::N4, &[Class::Ok]), [Class::Ok]);
}
