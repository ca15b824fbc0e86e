//! The knowledge base: one entry for each fault class, each normal look-alike and each check without a class.
//!
//! Owns the general knowledge about a class: its title, domain, severity, actions and their risks. A separate small
//! library, so that the lab can name classes without building the tracer. Judges nothing.

#![expect(non_upper_case_globals, reason = "an entry is named as its class is")]

pub mod action;
mod config;
mod conntrack;
mod entry;
mod normal;
mod other;
#[cfg(test)]
mod pages;
mod path;
mod rating;
mod sync;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

pub use entry::{Action, Entry, Kind, Scenario, Seen};
pub use rating::{Confidence, Domain, Safety, Severity};

/// The page of a class: its own, or that of the class that it is a variant of.
macro_rules! page {
    ($class:ident in $of:ident) => {
        page!($of)
    };
    ($class:ident) => {
        include_str!(concat!("../pages/", stringify!($class), ".md"))
    };
}

/// The name of that page.
macro_rules! page_name {
    ($class:ident in $of:ident) => {
        stringify!($of)
    };
    ($class:ident) => {
        stringify!($class)
    };
}

/// Declares [`Class`] in its order, and the file of each entry.
macro_rules! classes {
    ($($file:ident { $($(#[$attribute:meta])* $class:ident $(in $of:ident)?,)* })*) => {
        /// A fault (`C…`), a normal look-alike (`N…`), a check that has no class (`K…`), `ok` or `unknown`.
        ///
        /// Displayed as its id, parsed without regard to case, and ordered by number: C2 before C10.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString, IntoStaticStr, VariantArray,
            Serialize, Deserialize, JsonSchema,
        )]
        #[strum(ascii_case_insensitive, const_into_str)]
        pub enum Class {
            $($($(#[$attribute])* $class,)*)*
        }

        impl Class {
            /// The entry of the knowledge base.
            pub const fn entry(self) -> &'static Entry {
                match self {
                    $($(Self::$class => &$file::$class,)*)*
                }
            }

            /// The page in markdown: mechanism, recognition, look-alikes, actions.
            pub const fn page(self) -> &'static str {
                match self {
                    $($(Self::$class => page!($class $(in $of)?),)*)*
                }
            }

            /// The name of its page in `docs/classes`: its id, or that of the class that it is a variant of.
            const fn page_name(self) -> &'static str {
                match self {
                    $($(Self::$class => page_name!($class $(in $of)?),)*)*
                }
            }
        }
    };
}

classes! {
    sync {
        C1, C2, C3, C4, C5, C5b, C5c, C5d, C5e, C6, C7,
        C8, C9, C10,
    }
    conntrack {
        C11, C12, C13, C14, C15, C16, C17, C17a in C17, C18,
        C18b, C19,
    }
    config {
        C20, C21, C22, C23, C24, C25, C26, C27,
    }
    path {
        C28, C29, C30, C31, C32, C33, C34, C35,
    }
    other {
        K1, K3, K10, K11,
    }
    normal {
        N1, N2, N3, N4, N5, N6, N7, N8, N9, N10, N11,
        N12, N13, N14, N15, N16, N17, N18, N19, N20,
        #[serde(rename = "ok")]
        #[strum(serialize = "ok")]
        Ok in ok,
    }
    other {
        #[serde(rename = "unknown")]
        #[strum(serialize = "unknown")]
        Unknown in unknown,
    }
}

impl Class {
    /// Every class, in its order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The classes that have a page of their own.
    pub fn with_pages() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|class| class.page_name() == class.id())
    }

    /// The spelling in records.
    pub const fn id(self) -> &'static str {
        self.into_str()
    }

    pub const fn kind(self) -> Kind {
        self.entry().kind
    }

    /// A few words, for headings and counts.
    pub const fn title(self) -> &'static str {
        self.entry().title
    }

    /// The class's first domain, which a finding can change.
    pub const fn domain(self) -> Domain {
        self.entry().domains[0]
    }

    /// Whether a person has to act.
    pub const fn is_fault(self) -> bool {
        matches!(self.kind(), Kind::Fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_read_and_ordered() {
        for class in Class::ALL {
            assert_eq!(class.id().parse(), Ok(*class));
            assert_eq!(class.id().to_lowercase().parse(), Ok(*class));
            assert_eq!(class.to_string(), class.id());
        }
        assert!(Class::C2 < Class::C10 && Class::C5 < Class::C5b && Class::C5b < Class::C6);
        assert_eq!((Class::Ok.id(), Class::Unknown.id(), Class::C5b.id()), ("ok", "unknown", "C5b"));
        assert!("C99".parse::<Class>().is_err() && "".parse::<Class>().is_err());
    }

    #[test]
    fn every_class_has_a_scenario_or_the_reason_why_not() {
        for class in Class::ALL {
            match class.entry().scenario {
                Scenario::Lab(names) => assert!(!names.is_empty(), "{class}"),
                Scenario::None(reason) => assert!(reason.len() > 20, "{class}: {reason}"),
            }
        }
    }

    #[test]
    fn every_class_has_a_rule_or_the_reason_why_not() {
        for class in Class::ALL {
            let Entry { seen, no_rule, .. } = class.entry();
            assert_eq!(*seen == Seen::Neither, no_rule.len() > 20, "{class}: {seen:?}, {no_rule:?}");
        }
    }

    #[test]
    fn what_only_reads_comes_first() {
        for class in Class::ALL {
            let entry = class.entry();
            let usual = entry.now.iter().filter(|action| action.when.is_empty());
            let ratings: Vec<Safety> = usual.map(|action| action.safety).collect();
            assert!(ratings.is_sorted(), "{class}: {ratings:?}");
            assert!(!class.is_fault() || !entry.now.is_empty(), "{class} says nothing to do");
        }
    }

    #[test]
    fn commands_stand_between_backticks() {
        const PROGRAMS: [&str; 12] = [
            "kubectl ",
            "viptrace ",
            "iptables-",
            "nft ",
            "ipvsadm ",
            "conntrack -",
            "sysctl -",
            "modprobe ",
            "journalctl ",
            "curl ",
            "dmesg ",
            "ip route",
        ];
        for class in Class::ALL {
            for action in class.entry().now.iter().chain(class.entry().later) {
                assert_eq!(action.text.matches('`').count() % 2, 0, "{class}: {}", action.text);
                let prose: String = action.text.split('`').step_by(2).collect::<Vec<_>>().join("…");
                let bare = PROGRAMS.iter().find(|program| prose.contains(**program));
                assert_eq!(bare, None, "{class}: {}", action.text);
            }
        }
    }

    /// An action is rated where it is written; the same text elsewhere has the same rating.
    #[test]
    fn a_text_has_one_rating() {
        let all = Class::ALL.iter().flat_map(|class| class.entry().now.iter().chain(class.entry().later));
        let mut rated = std::collections::BTreeMap::new();
        for action in all {
            let safety = *rated.entry(action.text).or_insert(action.safety);
            assert_eq!(safety, action.safety, "{}", action.text);
        }
    }

    #[test]
    fn the_kind_follows_the_id() {
        for class in Class::ALL {
            match class.id().as_bytes() {
                [b'C', ..] => assert_eq!(class.kind(), Kind::Fault, "{class}"),
                [b'N', ..] => assert_eq!(class.kind(), Kind::Normal, "{class}"),
                _ => {}
            }
            assert_eq!(
                class.domain() == Domain::Normal,
                matches!(class.kind(), Kind::Normal | Kind::Ok),
                "{class}"
            );
        }
    }
}
