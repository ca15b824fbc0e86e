//! The contents of an entry of the knowledge base.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{Domain, Safety, Severity};

/// The kind of a class, in the order of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Fault,
    Unknown,
    Normal,
    Ok,
}

/// The verbs that can report a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// `viptrace trace` and `viptrace replay`, as the verdict on a flow.
    Trace,
    /// `viptrace check`, as a finding about the node.
    Check,
    Both,
    /// None of them: the entry has the reason.
    Neither,
}

impl Seen {
    pub const fn by_trace(self) -> bool {
        matches!(self, Self::Trace | Self::Both)
    }

    pub const fn by_check(self) -> bool {
        matches!(self, Self::Check | Self::Both)
    }
}

/// The proof that a class is recognised on a real kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// Scenarios of the lab that cause it.
    Lab(&'static [&'static str]),
    /// Why no scenario can cause it yet.
    None(&'static str),
}

/// An action.
///
/// The text has placeholders in braces: `{NODE}` is printed as `NODE` until a finding fills it, and `{TOOL=nft}` as
/// `nft`. Commands that a shell runs as printed are in backticks; pages show the backticks, records do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// The case to which it applies; empty for the usual one.
    pub when: &'static str,
    pub text: &'static str,
    pub safety: Safety,
}

impl Action {
    pub(crate) const fn reads(text: &'static str) -> Self {
        Self { when: "", text, safety: Safety::ReadOnly }
    }

    pub(crate) const fn disrupts(text: &'static str) -> Self {
        Self { when: "", text, safety: Safety::Disruptive }
    }

    pub(crate) const fn endangers(text: &'static str) -> Self {
        Self { when: "", text, safety: Safety::Dangerous }
    }

    pub(crate) const fn when(self, when: &'static str) -> Self {
        Self { when, ..self }
    }

    /// The text with its placeholders, and with its commands in backticks.
    pub fn marked(&self) -> String {
        self.mark(|_| None).into_owned()
    }

    /// The text with its commands in backticks; `value` returns the value of a placeholder, quoted for a shell.
    pub fn mark<'v>(&self, value: impl Fn(&str) -> Option<Cow<'v, str>>) -> Cow<'static, str> {
        if !self.text.contains('{') {
            return Cow::Borrowed(self.text);
        }
        let mut out = String::with_capacity(self.text.len() + VALUES_BYTES);
        fill(&mut out, self.text, value, true);
        Cow::Owned(out)
    }

    /// The text with its placeholders.
    pub fn plain(&self) -> String {
        let mut out = String::new();
        self.fill(&mut out, |_| None);
        out
    }

    /// Appends the text; `value` returns the value of a placeholder, quoted for a shell.
    pub fn fill<'v>(&self, out: &mut String, value: impl Fn(&str) -> Option<Cow<'v, str>>) {
        out.reserve(self.text.len());
        fill(out, self.text, value, false);
    }
}

/// The room for the values in one action, which most actions do not exceed.
const VALUES_BYTES: usize = 48;

/// Appends the text with its placeholders filled, with or without its backticks. Searches byte by byte: most pieces are a
/// few words, for which a search by words of the processor costs more.
fn fill<'v>(
    out: &mut String,
    text: &str,
    value: impl Fn(&str) -> Option<Cow<'v, str>>,
    with_backticks: bool,
) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'{' | b'`')) {
        let (before, mark) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = mark.strip_prefix('`') {
            if with_backticks {
                out.push('`');
            }
            rest = after;
            continue;
        }
        let after = mark.strip_prefix('{').unwrap_or_default();
        let inner =
            after.split_once('}').filter(|(inner, _)| inner.starts_with(|c: char| c.is_ascii_uppercase()));
        if let Some((inner, behind)) = inner {
            let (name, default) = inner.split_once('=').unwrap_or((inner, inner));
            match value(name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(default),
            }
            rest = behind;
        } else {
            out.push('{');
            rest = after;
        }
    }
    out.push_str(rest);
}

/// The general knowledge about a class; a finding adds its evidence.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub kind: Kind,
    /// A few words, for headings and counts.
    pub title: &'static str,
    /// The possible domains. The first applies unless the finding sets another one of them.
    pub domains: &'static [Domain],
    /// The default, which a finding can change.
    pub severity: Severity,
    pub seen: Seen,
    /// Why no rule and no check returns it; empty if one does.
    pub no_rule: &'static str,
    /// The actions for now, with the ones that only read first.
    pub now: &'static [Action],
    /// The actions that prevent a recurrence.
    pub later: &'static [Action],
    /// When to escalate to the owner of the cluster: faults that a person at the node cannot repair.
    pub escalate: &'static [&'static str],
    /// Upstream issues, enhancement proposals and kernel commits.
    pub references: &'static [&'static str],
    pub scenario: Scenario,
}

impl Entry {
    pub(crate) const fn fault(title: &'static str, domains: &'static [Domain], severity: Severity) -> Self {
        Self {
            kind: Kind::Fault,
            title,
            domains,
            severity,
            seen: Seen::Neither,
            no_rule: "",
            now: &[],
            later: &[],
            escalate: &[],
            references: &[],
            scenario: Scenario::None(""),
        }
    }

    pub(crate) const fn normal(title: &'static str) -> Self {
        Self { kind: Kind::Normal, ..Self::fault(title, &[Domain::Normal], Severity::None) }
    }

    pub(crate) const fn seen(self, seen: Seen) -> Self {
        Self { seen, ..self }
    }

    pub(crate) const fn no_rule(self, reason: &'static str) -> Self {
        Self { no_rule: reason, ..self }
    }

    pub(crate) const fn now(self, now: &'static [Action]) -> Self {
        Self { now, ..self }
    }

    pub(crate) const fn later(self, later: &'static [Action]) -> Self {
        Self { later, ..self }
    }

    pub(crate) const fn escalate(self, escalate: &'static [&'static str]) -> Self {
        Self { escalate, ..self }
    }

    pub(crate) const fn references(self, references: &'static [&'static str]) -> Self {
        Self { references, ..self }
    }

    pub(crate) const fn lab(self, scenarios: &'static [&'static str]) -> Self {
        Self { scenario: Scenario::Lab(scenarios), ..self }
    }

    pub(crate) const fn no_scenario(self, reason: &'static str) -> Self {
        Self { scenario: Scenario::None(reason), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_and_other_braces_stay() {
        let action = Action::reads("{TOOL=nft} list | awk '{print $1}' on {NODE}, not {");
        assert_eq!(action.plain(), "nft list | awk '{print $1}' on NODE, not {");
        let filled = |action: &Action, name: &str, value: &'static str| {
            let mut out = String::new();
            action.fill(&mut out, |asked| (asked == name).then_some(Cow::Borrowed(value)));
            out
        };
        assert_eq!(filled(&action, "NODE", "worker-1"), "nft list | awk '{print $1}' on worker-1, not {");
        let action = Action::reads("look: `ls {PATH}`");
        assert_eq!(action.marked(), "look: `ls PATH`");
        assert_eq!(filled(&action, "PATH", "'`id`'"), "look: ls '`id`'");
    }
}
