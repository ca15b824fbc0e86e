//! Tables, chains and rules of iptables and nftables.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Family, Name, Set, Step, Writer, index,
    names::{Item, NamedList, Texts},
    saved,
    step::Steps,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl HookPoint {
    /// As iptables names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "saved::Table")]
pub struct Table {
    pub writer: Writer,
    pub family: Family,
    pub name: Name,
    pub chains: NamedList<Chain>,
    /// nftables only; iptables has ipsets, which are stored next to the tables.
    pub sets: NamedList<Set>,
    /// Empty once the table is complete.
    #[serde(skip)]
    texts: Texts,
}

impl Table {
    pub fn new(writer: Writer, family: Family, name: &str) -> Self {
        Self {
            writer,
            family,
            name: name.into(),
            chains: NamedList::default(),
            sets: NamedList::default(),
            texts: Texts::default(),
        }
    }

    pub fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.find(name)
    }

    pub fn set(&self, name: &str) -> Option<&Set> {
        self.sets.find(name)
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.chains.position(name)
    }

    /// The chain of this name, which is created if it does not exist.
    pub fn chain_mut(&mut self, name: &str) -> Option<&mut Chain> {
        let texts = &self.texts;
        let make = || Chain { name: texts.get(name), base: None, rules: Vec::new(), index: None };
        self.chains.find_or_add(name, make)
    }

    /// Appends a rule to the chain of this name, which is created if it does not exist. The rule's texts become one with
    /// those of the table.
    pub fn add_rule(&mut self, chain: &str, mut rule: Rule) {
        let mut share = sharing(&self.chains, &mut self.texts);
        rule.steps.iter_mut().for_each(|step| step.visit_names(&mut share));
        rule.comment.iter_mut().for_each(share);
        if let Some(chain) = self.chain_mut(chain) {
            chain.push(rule);
        }
    }

    /// Adds a set, or its elements to the set of the same name.
    pub fn add_set(&mut self, mut set: Set) {
        set.visit_names(&mut sharing(&self.chains, &mut self.texts));
        let name = Arc::clone(&set.name);
        if let Some(known) = self.sets.find_or_add(&name, || Set::new(Arc::clone(&name))) {
            known.absorb(set);
        }
    }

    /// Indexes long chains, and frees the room that only a growing table needs. Call it when the table is complete, and
    /// again after every change.
    pub fn seal(&mut self) {
        for chain in self.chains.iter_mut() {
            chain.rules.shrink_to_fit();
            chain.index = index::Index::of(&chain.rules).map(Box::new);
        }
        self.chains.shrink();
        self.sets.shrink();
        self.texts = Texts::default();
    }
}

/// Replaces a text by that of a chain or of an earlier rule.
fn sharing<'t>(chains: &'t NamedList<Chain>, texts: &'t mut Texts) -> impl FnMut(&mut Name) + 't {
    |text| match chains.find(text) {
        Some(chain) => *text = Arc::clone(&chain.name),
        None => texts.share(text),
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chain {
    pub name: Name,
    /// The hook from which the kernel enters it, if any.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
    #[serde(skip)]
    pub(super) index: Option<Box<index::Index>>,
}

impl Chain {
    /// The bits of the mark that the first of its rules sets which sets any.
    pub(super) fn set_mark(&self) -> Option<u32> {
        let mut steps = self.rules.iter().flat_map(|rule| &rule.steps);
        steps.find_map(|step| match step {
            Step::SetMark { toggle, .. } => Some(*toggle).filter(|mark| *mark != 0),
            _ => None,
        })
    }

    /// A short chain gets room for this rule only: most chains have two rules, those of an endpoint.
    fn push(&mut self, rule: Rule) {
        if self.rules.len() < 4 {
            self.rules.reserve_exact(1);
        }
        self.rules.push(rule);
    }
}

impl Item for Chain {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Item for Set {
    fn name(&self) -> &Name {
        &self.name
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub nat: bool,
    pub hook: HookPoint,
    /// The chains of a hook run in the order of their priorities, lowest first.
    pub priority: i32,
    pub drops: bool,
}

/// One rule: conditions and statements in their order. The rule ends at the first condition that does not hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    pub steps: Box<[Step]>,
    pub comment: Option<Name>,
}

impl Rule {
    /// Allocates exactly the room of the steps: a block that shrinks later leaves a gap behind it.
    pub(super) fn new(steps: Steps, comment: Option<Name>) -> Self {
        let mut exact = Vec::with_capacity(steps.len());
        exact.extend(steps);
        Self { steps: exact.into_boxed_slice(), comment }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::rules::{Name, Ruleset, Step, Verdict, iptables};

    /// Whether every jump of these rules has the name of its chain, and both comments are one.
    fn is_shared(rules: &Ruleset) -> bool {
        let [table] = rules.tables.as_slice() else { panic!("{rules:?}") };
        let all: Vec<_> = table.chains.iter().flat_map(|chain| &chain.rules).collect();
        let comments: Vec<&Name> = all.iter().filter_map(|rule| rule.comment.as_ref()).collect();
        let names_chain = |step: &Step| match step {
            Step::Do(Verdict::Jump(to)) => Arc::ptr_eq(to, &table.chain(to).unwrap().name),
            _ => true,
        };
        let [first, second] = comments[..] else { panic!("{comments:?}") };
        Arc::ptr_eq(first, second) && all.iter().flat_map(|rule| &rule.steps).all(names_chain)
    }

    #[test]
    fn rules_share_their_texts() {
        // The second chain is named before it begins.
        let text = "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SERVICES -j KUBE-SVC-A\n\
                    -A KUBE-SVC-A -m comment --comment \"a/b:c\" -j KUBE-SEP-B\n\
                    -A KUBE-SEP-B -m comment --comment \"a/b:c\" -j KUBE-SVC-A\nCOMMIT\n";
        let rules = iptables::parse(text, iptables::Hint::default());
        assert!(is_shared(&rules));
        let saved = serde_json::to_string(&rules).unwrap();
        assert!(is_shared(&serde_json::from_str(&saved).unwrap()));
    }
}
