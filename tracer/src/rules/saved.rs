//! The form of rules in recordings. Indexes are not stored; they are rebuilt when the rules are read.

use serde::Deserialize;

use super::{Chain, Family, Name, Set, Writer};

/// A [`super::Table`] as it is read, without its indexes.
#[derive(Deserialize)]
pub(super) struct Table {
    writer: Writer,
    family: Family,
    name: Name,
    chains: Vec<Chain>,
    sets: Vec<Set>,
}

impl From<Table> for super::Table {
    fn from(saved: Table) -> Self {
        let mut table = Self::new(saved.writer, saved.family, &saved.name);
        for chain in saved.chains {
            // Merges a chain that a damaged recording contains twice.
            if let Some(made) = table.chain_mut(&chain.name) {
                made.base = chain.base.or(made.base);
            }
            for rule in chain.rules {
                table.add_rule(&chain.name, rule);
            }
        }
        for set in saved.sets {
            table.add_set(set);
        }
        table.seal();
        table
    }
}

/// Serialises a map whose keys are not strings as a list of pairs.
pub(super) mod elements {
    use foldhash::HashMap;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::rules::{Key, Verdict};

    type Elements = HashMap<Key, Option<Verdict>>;

    pub(in crate::rules) fn serialize<S: Serializer>(
        elements: &Elements,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(elements)
    }

    pub(in crate::rules) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Elements, D::Error> {
        Vec::<(Key, Option<Verdict>)>::deserialize(deserializer).map(|pairs| pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        net::Family,
        rules::{Ruleset, Writer, iptables},
    };

    #[test]
    fn saved_rules_read_back() {
        let text = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n\
                    -A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A\nCOMMIT\n";
        let hint = iptables::Hint { family: Some(Family::Ipv4), writer: Some(Writer::IptablesNft) };
        let rules = iptables::parse(text, hint);
        let json = serde_json::to_vec(&rules).unwrap();
        let again: Ruleset = serde_json::from_slice(&json).unwrap();
        let chain = |rules: &Ruleset| {
            rules
                .table(Writer::IptablesNft, Family::Ipv4, "nat")
                .unwrap()
                .chain("KUBE-SERVICES")
                .unwrap()
                .rules
                .clone()
        };
        assert_eq!(chain(&rules), chain(&again));
        assert_eq!(chain(&again).len(), 1);
    }

    /// Rules with every kind of step and verdict, as recordings have them. Without the blanks at the start of lines.
    const EVERY_KIND: &str = include_str!("../../tests/data/every-kind-of-rule.json");

    #[test]
    fn the_form_of_every_kind_of_rule_is_stable() {
        let wanted: String = EVERY_KIND.lines().map(str::trim_start).collect();
        let rules: Ruleset = serde_json::from_str(&wanted).unwrap();
        let written = serde_json::to_string(&rules).unwrap();
        assert_eq!(written, wanted);
    }
}
