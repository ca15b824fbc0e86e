//! What an entry of the knowledge base says.

use crate::{Domain, Severity};

/// What kind of outcome a class is, in the order in which a summary lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Fault,
    Unknown,
    Normal,
    Ok,
}

/// What is known of a class in general; a finding adds what was seen.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub kind: Kind,
    /// A few words, for headings and counts.
    pub title: &'static str,
    /// Who has to act. The first holds unless the finding says otherwise; it may say only what is listed here.
    pub domains: &'static [Domain],
    /// Unless the finding says otherwise.
    pub severity: Severity,
}

impl Entry {
    pub(crate) const fn fault(title: &'static str, domains: &'static [Domain], severity: Severity) -> Self {
        Self { kind: Kind::Fault, title, domains, severity }
    }

    pub(crate) const fn normal(title: &'static str) -> Self {
        Self { kind: Kind::Normal, title, domains: &[Domain::Normal], severity: Severity::None }
    }
}
