//! The audit of a node's rules, without traffic: compares the rules on the node with those that kube-proxy should have
//! written.
//!
//! [`Expected`] has the rules that kube-proxy should write for the Services and `EndpointSlices` of one time on one
//! node. [`audit`] sends new connections to each frontend through the rules that were read ([`crate::rules`]) and
//! compares their destinations, so it works for every mode and every version of kube-proxy. It then searches for rules
//! that no Service needs. It reports each difference and its state by kube-proxy's own times; the triage finds the
//! cause. Pure: no I/O, and no clock but the time that the caller passes.

use std::{fmt, net::SocketAddr, sync::Arc};

use crate::{
    net::Family,
    node::ProxyMode,
    rules::{Frontend, Name, Origin, Ruleset, Writer},
    time::Timestamp,
};

mod compare;
mod context;
pub(crate) mod expected;
mod frame;
mod guards;
mod judge;
mod leftovers;
pub mod names;
mod sources;
mod topology;

pub(crate) use compare::drops_own_connections;
pub use context::{Context, DetectLocal, NodePorts, Settings, SyncStatus};
pub(crate) use expected::ExpectedFrontend;
pub use expected::{Expectation, Expected, ExpectedPort};

/// The state of a difference by kube-proxy's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SyncState {
    /// The change is younger than the grace.
    InFlight,
    /// kube-proxy queued an update after the change and did not write it within the grace (C4).
    Failing,
    /// kube-proxy has neither queued nor written anything since the change: it does not receive changes (C2).
    Unheard,
    /// kube-proxy has written its rules since the change, and they differ from the expected ones: another program
    /// changed them (C5e), or they are only partly updated.
    Overwritten,
    /// kube-proxy's times, or the time of the change, are unknown.
    Unknown,
}

impl SyncState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in flight",
            Self::Failing => "queued and not written",
            Self::Unheard => "not received by kube-proxy",
            Self::Overwritten => "changed after kube-proxy wrote it",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for SyncState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It should exist and does not.
    Missing,
    /// It was correct at an earlier time.
    Stale,
    /// It exists and should not.
    Surplus,
    /// It exists, but in a wrong form.
    Wrong,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Stale => "stale",
            Self::Surplus => "surplus",
            Self::Wrong => "wrong",
        }
    }
}

/// The part of the rules that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aspect {
    /// All of kube-proxy's rules, or the jump to a part of them.
    Frame,
    /// Packets that conntrack classifies as invalid.
    InvalidPackets,
    /// Another writer than the one of kube-proxy's mode.
    Writer,
    /// Whether new connections are forwarded if there are endpoints.
    Reach,
    /// Whether they are refused if there is no endpoint.
    Refusal,
    /// Whether they are dropped if a Local policy leaves no endpoint for connections from inside the cluster.
    InternalPolicy,
    /// The same for connections from outside.
    ExternalPolicy,
    /// One endpoint.
    Endpoint,
    /// The distribution of connections.
    Share,
    Masquerade,
    /// An endpoint's connection to itself through the Service.
    Hairpin,
    Affinity,
    SourceRanges,
    /// A port that the Service does not have.
    UnlistedPort,
    /// An address, port or element without a Service.
    Frontend,
    /// A rule that no new connection passes: a guard, a health check, the clearing of the mark.
    Guard,
}

impl Aspect {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::InvalidPackets => "invalid packets",
            Self::Writer => "writer",
            Self::Reach => "reach",
            Self::Refusal => "refusal",
            Self::InternalPolicy => "internal policy",
            Self::ExternalPolicy => "external policy",
            Self::Endpoint => "endpoint",
            Self::Share => "share",
            Self::Masquerade => "masquerade",
            Self::Hairpin => "hairpin",
            Self::Affinity => "affinity",
            Self::SourceRanges => "source ranges",
            Self::UnlistedPort => "unlisted port",
            Self::Frontend => "frontend",
            Self::Guard => "guard",
        }
    }
}

/// One difference between the actual and the expected effect of the rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Discrepancy {
    pub kind: Kind,
    pub aspect: Aspect,
    pub family: Family,
    /// `namespace/name`, if it concerns one Service.
    pub service: Option<Arc<str>>,
    /// The port's name, or its number if it has none.
    pub port: Option<Arc<str>>,
    /// All affected frontends, each once.
    pub frontends: Vec<Frontend>,
    pub origins: Vec<Origin>,
    pub endpoint: Option<SocketAddr>,
    /// The name of the chain, map, set or server.
    pub place: Name,
    /// The writer of the rules; `None` if there are none.
    pub writer: Option<Writer>,
    /// The actual and the expected state, in one sentence without a full stop.
    pub text: String,
    /// How long the API has required the expected state; `None` if unknown.
    pub since: Option<Timestamp>,
    pub sync: SyncState,
}

/// The result of the audit.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// The worst first: the frame, then by Service.
    pub discrepancies: Vec<Discrepancy>,
    /// Deviations from kube-proxy's rules that affect no connection: unreachable chains, real servers that drain.
    pub harmless: Vec<Harmless>,
    /// The parts that could not be judged, each with the reason.
    pub gaps: Vec<String>,
    pub checked: Checked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Harmless {
    pub place: Name,
    pub writer: Writer,
    pub why: &'static str,
}

/// The extent of the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub service_ports: usize,
    pub frontends: usize,
    /// Connections sent through the rules.
    pub walks: usize,
    /// Rules, elements and servers read.
    pub rules: usize,
}

/// Faults of these settings' rules are found only where the rules of the Services differ from each other.
const UNKNOWN_SETTINGS: &str = "masquerading and the addresses of node ports: kube-proxy's configuration (detectLocalMode, \
                                masqueradeAll, nodePortAddresses) is not known, so its settings were taken from the rules";

/// Compares the rules on the node with the expected ones.
pub fn audit(expected: &Expected, rules: &Ruleset, context: &Context) -> Audit {
    let mut audit = Audit::default();
    audit.checked.rules = rules.size();
    audit.checked.service_ports = expected.ports.len();
    let judged = |family: &Family| expected.has(*family) || rules.has_proxy_rules(*family);
    for family in Family::ALL.into_iter().filter(judged) {
        // Missing rules of a list that was not read are no missing rules.
        let is_unread = context.unread.contains(&family) && !rules.has_proxy_rules(family);
        if context.mode == ProxyMode::Iptables && is_unread {
            audit.gaps.push(format!("{family}: the iptables rules of this family were not read"));
            continue;
        }
        family_audit(expected, rules, context, family, &mut audit);
    }
    let is_unknown = |family: Family| context.local_traffic(family).is_none();
    if Family::ALL.into_iter().any(|family| expected.has(family) && is_unknown(family)) {
        audit.gaps.push(UNKNOWN_SETTINGS.to_owned());
    }
    if rules.skipped > 0 {
        let first = rules.oddities.first().map(|oddity| format!(", first: {oddity}")).unwrap_or_default();
        audit.gaps.push(format!("{} parts of the rules were not understood{first}", rules.skipped));
    }
    for discrepancy in &mut audit.discrepancies {
        discrepancy.sync = judge::sync_state(discrepancy, context);
    }
    audit.discrepancies.sort_by(|a, b| {
        (a.aspect > Aspect::Writer, &a.service, &a.port, a.family, a.aspect, a.kind, a.endpoint).cmp(&(
            b.aspect > Aspect::Writer,
            &b.service,
            &b.port,
            b.family,
            b.aspect,
            b.kind,
            b.endpoint,
        ))
    });
    audit
}

fn family_audit(expected: &Expected, rules: &Ruleset, context: &Context, family: Family, audit: &mut Audit) {
    let writers = rules.writers(family);
    let own = judge::writer_of(expected, rules, context.mode, family, &writers);
    leftovers::other_writers(expected, rules, context, family, (&writers, own), audit);
    let Some(writer) = own else {
        // A cluster of one family has no Service of the other; its rules may be missing.
        if expected.has(family) {
            audit.discrepancies.push(frame::absent(expected, context, family, &writers));
        }
        return;
    };
    // If several writers have rules, those that kube-proxy still writes are judged.
    let of_writer;
    let only = if rules.is_only_of(writer) {
        rules
    } else {
        of_writer = rules.of(writer);
        &of_writer
    };
    let frame = frame::check(only, context, family, writer, audit);
    if !frame.is_unread {
        guards::check(expected, only, context, family, writer, audit);
    }
    compare::compare(expected, only, context, family, writer, &frame, audit);
    leftovers::surplus(expected, only, context, family, writer, audit);
    leftovers::unreached(only, family, writer, audit);
}
