//! The printed forms of the knowledge base: a list of its classes, and each class as a record.

use std::{borrow::Cow, fmt::Write as _};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    called::{self, as_typed},
    class::{Action, Class, Domain, Kind, Safety, Scenario, Seen, Severity},
    report::{Paint, printer::Style},
};

/// One class of the knowledge base. Absent facts are `null` or empty, never left out.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Explanation {
    pub id: Class,
    pub kind: Kind,
    pub title: &'static str,
    /// The possible domains. The first applies unless the record has another one of them.
    pub domains: &'static [Domain],
    /// The default, which a record can change.
    pub severity: Severity,
    /// The verbs that can report it.
    pub seen: Seen,
    /// Why no rule returns it; `null` if one does.
    pub no_rule: Option<&'static str>,
    /// The actions for now, with the ones that only read first.
    pub now: Vec<Advice>,
    /// The actions that prevent a recurrence.
    pub later: Vec<Advice>,
    /// When to escalate to the owner of the cluster.
    pub escalate: &'static [&'static str],
    /// Upstream issues, enhancement proposals and kernel commits.
    pub references: &'static [&'static str],
    /// Scenarios of the lab that cause it, or why there is none.
    pub scenario: Scenario,
    /// The page, in markdown.
    pub page: Cow<'static, str>,
}

/// One action. Upper-case words are placeholders.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Advice {
    /// The case to which it applies; `null` for the usual one.
    pub when: Option<&'static str>,
    pub text: String,
    pub safety: Safety,
}

impl From<&Action> for Advice {
    fn from(action: &Action) -> Self {
        let when = Some(action.when).filter(|when| !when.is_empty());
        Self { when, text: as_typed(&action.plain()).into_owned(), safety: action.safety }
    }
}

impl From<Class> for Explanation {
    fn from(class: Class) -> Self {
        let entry = class.entry();
        let advice = |actions: &[Action]| actions.iter().map(Advice::from).collect();
        Self {
            id: class,
            kind: entry.kind,
            title: entry.title,
            domains: entry.domains,
            severity: entry.severity,
            seen: entry.seen,
            no_rule: Some(entry.no_rule).filter(|reason| !reason.is_empty()),
            now: advice(entry.now),
            later: advice(entry.later),
            escalate: entry.escalate,
            references: entry.references,
            scenario: entry.scenario,
            page: as_typed(class.page()),
        }
    }
}

/// All classes, the faults by their domain.
pub(crate) fn list(paint: Paint) -> String {
    let mut out = String::new();
    let mut group = |heading: &str, is_its: &dyn Fn(Class) -> bool| {
        let classes = Class::ALL.iter().filter(|class| is_its(**class)).collect::<Vec<_>>();
        if !classes.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}", paint.text(Style::Heading, heading));
            for class in classes {
                let _ = writeln!(out, "  {class:<8} {}", class.title());
            }
            out.push('\n');
        }
    };
    let is_fault = |class: Class| class.is_fault();
    for domain in Domain::ALL {
        group(domain.as_str(), &|class| is_fault(class) && class.domain() == *domain);
    }
    group("normal look-alikes", &|class| class.kind() == Kind::Normal);
    group("other", &|class| matches!(class.kind(), Kind::Ok | Kind::Unknown));
    let name = called::name();
    let _ = writeln!(out, "`{name} explain CLASS` prints the page of one, such as `{name} explain C6`");
    out
}
