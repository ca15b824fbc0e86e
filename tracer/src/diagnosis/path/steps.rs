//! From the notes of a walk to the steps that a person reads: chains without an effect are left out.

use std::net::SocketAddr;

use super::record::{Step, StepKind};
use crate::rules::{
    Base, Chain, Rule, Ruleset, Step as Part, Table, Verdict,
    mark::Marks,
    text,
    walk::{Note, Place},
};

/// Reads notes with the rules that they name.
pub(super) struct Reader<'a> {
    pub(super) rules: &'a Ruleset,
}

/// A rule at its place.
struct Found<'a> {
    table: &'a Table,
    chain: &'a Chain,
    rule: &'a Rule,
}

impl<'a> Reader<'a> {
    fn chain(&self, table: usize, chain: usize) -> Option<(&'a Table, &'a Chain)> {
        let table = self.rules.table_at(table)?;
        Some((table, table.chains.get(chain)?))
    }

    fn find(&self, place: Place) -> Option<Found<'a>> {
        let (table, chain) = self.chain(place.table, place.chain)?;
        Some(Found { table, chain, rule: chain.rules.get(place.rule)? })
    }

    /// The steps of a way, without visits of chains in which nothing happens.
    pub(super) fn steps(&self, notes: &[Note]) -> Vec<Step> {
        let mut kept: Vec<&Note> = Vec::with_capacity(notes.len());
        // Backwards: a jump is kept if something happens in its chain.
        for note in notes.iter().rev() {
            if self.matters(note, kept.last().copied()) {
                kept.push(note);
            }
        }
        kept.reverse();
        let mut state = State::default();
        kept.into_iter().filter_map(|note| self.step(note, &mut state)).collect()
    }

    fn matters(&self, note: &Note, next: Option<&Note>) -> bool {
        let Some((place, chosen)) = note.applied() else { return !matches!(note, Note::Assumes { .. }) };
        let Some(found) = self.find(place) else { return false };
        let own = |part: &Part| !matches!(part, Part::Do(_)) && part.is_effect();
        if found.rule.steps.iter().any(own) {
            return true;
        }
        match chosen.or_else(|| verdict_of(found.rule)) {
            Some(Verdict::Jump(to) | Verdict::Goto(to)) => match found.table.position(to) {
                None => true,
                Some(target) => next
                    .and_then(Note::place)
                    .is_some_and(|inner| inner.table == place.table && inner.chain == target),
            },
            // A return at the end of a chain skips nothing.
            Some(Verdict::Return) => place.rule + 1 < found.chain.rules.len(),
            _ => true,
        }
    }

    fn step(&self, note: &Note, state: &mut State) -> Option<Step> {
        match note {
            Note::Matches { place, marks } => {
                let found = self.find(*place)?;
                state.enter(found.chain.base);
                let mut effects = statements(found.rule, *marks);
                effects.extend(verdict_of(found.rule).and_then(|own| unshown(own, found.table)));
                Some(state.rule(&found, *place, joined(&effects)))
            }
            Note::Chooses { place, verdict } => {
                let found = self.find(*place)?;
                state.enter(found.chain.base);
                Some(state.rule(&found, *place, Some(chosen(verdict, found.table))))
            }
            Note::Assumes { .. } => None,
            Note::Policy { table, chain } => {
                let (table, chain) = self.chain(*table, *chain)?;
                state.enter(chain.base);
                Some(Step {
                    kind: StepKind::Policy,
                    hook: state.hook(),
                    table: Some(name_of(table)),
                    chain: Some(chain.name.to_string()),
                    rule: None,
                    text: "policy drop".to_owned(),
                    comment: None,
                    effect: Some("no rule of the chain accepts it".to_owned()),
                })
            }
            Note::Routed { local, device } => {
                let text = match (local, device) {
                    (true, _) => "to this node".to_owned(),
                    (false, Some(device)) => format!("out of {device}"),
                    (false, None) => "on, through a device that is not known".to_owned(),
                };
                Some(Step { kind: StepKind::Routing, text, ..state.bare() })
            }
            Note::Server { address, real, masquerade } => {
                let text = match real {
                    Some(real) => format!("virtual server {address} -> {real}"),
                    None => format!("virtual server {address} without a real server for new connections"),
                };
                let effect = match real {
                    None => Some("refused".to_owned()),
                    Some(_) if !masquerade => {
                        Some("dropped: the real server is not reached by NAT (-m)".to_owned())
                    }
                    Some(real) => Some(format!("to {real}")),
                };
                Some(Step { kind: StepKind::Ipvs, text, effect, ..state.bare() })
            }
            Note::Lost { place, why } => {
                let found = self.find(*place)?;
                state.enter(found.chain.base);
                let effect = Some(format!("its further way is not known: {why}"));
                Some(Step { kind: StepKind::Lost, ..state.rule(&found, *place, effect) })
            }
        }
    }

    /// The rule at which this note was made, as a step.
    pub(super) fn rule_at(&self, notes: &[Note], position: usize) -> Option<Step> {
        let mut state = State::default();
        for note in notes.iter().take(position) {
            self.step(note, &mut state);
        }
        let place = notes.get(position)?.place()?;
        let found = self.find(place)?;
        state.enter(found.chain.base);
        Some(state.rule(&found, place, None))
    }

    /// Why the conditions of this rule cannot be judged.
    pub(super) fn why(&self, place: Place) -> String {
        let Some(found) = self.find(place) else { return String::new() };
        let of_part = |part: &Part| match part {
            Part::Unknown(text) => Some(format!("viptrace does not judge `{text}`")),
            Part::InIpset(of) => match self.rules.ipset(&of.set) {
                None => Some(format!("the ipset {} was not captured", of.set)),
                Some(set) if set.partial => Some(format!("a part of the ipset {} is not understood", of.set)),
                Some(_) => None,
            },
            Part::InSet(of) => match found.table.set(&of.set) {
                None => Some(format!("the set {} is missing", of.set)),
                Some(set) if set.partial => Some(format!("a part of the set {} is not understood", of.set)),
                Some(_) => None,
            },
            _ => None,
        };
        let device = |part: &Part| {
            matches!(part, Part::Interface { .. } | Part::Devices { .. })
                .then(|| format!("the device is not known: `{}`", text::step(part, found.table)))
        };
        let parts = || found.rule.steps.iter();
        parts()
            .find_map(of_part)
            .or_else(|| parts().find_map(device))
            .unwrap_or_else(|| "its conditions cannot be judged".to_owned())
    }
}

/// The effects of a rule's statements on a packet that had these marks before them, as far as its text does not show them.
fn statements(rule: &Rule, mut marks: Marks) -> Vec<String> {
    let mut effects = Vec::new();
    for part in &rule.steps {
        marks.apply(part);
        match (part, marks.connection) {
            (Part::SetMark { .. }, _) | (Part::RestoreMark { .. }, Some(_)) => {
                effects.push(format!("mark {}", marks.packet));
            }
            (Part::SetConnMark { .. } | Part::SaveMark { .. }, Some(connection)) => {
                effects.push(format!("mark of the connection {connection}"));
            }
            (Part::RestoreMark { .. } | Part::SetConnMark { .. } | Part::SaveMark { .. }, None) => {
                effects.push("nothing: conntrack ignores the packet".to_owned());
            }
            (Part::Remember(list), _) => effects.push(format!("the client is added to {list}")),
            (Part::NoTrack, _) => effects.push("conntrack and NAT ignore it".to_owned()),
            _ => {}
        }
    }
    effects
}

fn joined(effects: &[String]) -> Option<String> {
    (!effects.is_empty()).then(|| effects.join("; "))
}

/// The effect of a verdict that the text of its rule does not show by itself.
fn chosen(verdict: &Verdict, table: &Table) -> String {
    unshown(verdict, table).unwrap_or_else(|| match verdict {
        Verdict::Dnat(to) => format!("to {}", to.get()),
        verdict => text::verdict(verdict, table),
    })
}

/// The effect of a verdict, as far as its own text does not show it.
fn unshown(verdict: &Verdict, table: &Table) -> Option<String> {
    match verdict {
        Verdict::Masquerade => Some("the source becomes an address of the node".to_owned()),
        Verdict::Drop => Some("dropped".to_owned()),
        Verdict::Reject => Some("refused".to_owned()),
        Verdict::Jump(to) | Verdict::Goto(to) if table.chain(to).is_none() => {
            Some(format!("the chain {to} is not in the list"))
        }
        _ => None,
    }
}

/// Where the packet was translated to on its way, whatever became of it.
pub(super) fn translated(rules: &Ruleset, notes: &[Note]) -> Option<SocketAddr> {
    translation(rules, notes).map(|(_, to)| to)
}

/// The same, with the position of the note of it.
pub(super) fn translation(rules: &Ruleset, notes: &[Note]) -> Option<(usize, SocketAddr)> {
    let reader = Reader { rules };
    let to = |note: &Note| match note {
        Note::Server { real, .. } => *real,
        note => {
            let (place, chosen) = note.applied()?;
            let found = reader.find(place)?;
            match chosen.or_else(|| verdict_of(found.rule)) {
                Some(Verdict::Dnat(to)) => Some(to.get()).filter(|to| to.port() > 0),
                _ => None,
            }
        }
    };
    notes.iter().enumerate().rev().find_map(|(at, note)| Some((at, to(note)?)))
}

/// The verdict that the rule itself has.
fn verdict_of(rule: &Rule) -> Option<&Verdict> {
    match rule.steps.last() {
        Some(Part::Do(verdict)) => Some(verdict),
        _ => None,
    }
}

/// `iptables-nft nat`, `nftables inet firewalld`.
fn name_of(table: &Table) -> String {
    format!("{} {}", table.writer, table.name)
}

/// The hook on the way.
#[derive(Default)]
struct State {
    base: Option<Base>,
}

impl State {
    fn enter(&mut self, base: Option<Base>) {
        self.base = base.or(self.base);
    }

    fn hook(&self) -> String {
        self.base.map_or("", |base| base.hook.as_str()).to_owned()
    }

    /// A step without a rule.
    fn bare(&self) -> Step {
        Step {
            kind: StepKind::Rule,
            hook: self.hook(),
            table: None,
            chain: None,
            rule: None,
            text: String::new(),
            comment: None,
            effect: None,
        }
    }

    fn rule(&self, found: &Found<'_>, place: Place, effect: Option<String>) -> Step {
        Step {
            table: Some(name_of(found.table)),
            chain: Some(found.chain.name.to_string()),
            rule: u32::try_from(place.rule + 1).ok(),
            text: text::rule(found.rule, found.table),
            comment: found.rule.comment.as_deref().map(ToOwned::to_owned),
            effect,
            ..self.bare()
        }
    }
}
