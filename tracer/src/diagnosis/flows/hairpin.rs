//! C31: a Pod that reaches itself through its Service. (`resets` has answers that bypass the node's NAT.)

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence, action},
    sighting::Status,
};

/// C31.
/// Mechanism: NAT chose the client itself. Its packets return only if the source is masqueraded (otherwise the Pod's
/// stack sees its own address as the source and drops the packet as a martian), and if the bridge sends a packet out of
/// its incoming port (hairpin mode).
/// For: the endpoint is the client, and nothing answered. The reply tuple shows which of the two is missing, unless the
/// packet ended before its source was decided: a bridge without hairpin mode drops it there.
/// Against: a Pod that does not listen and a Pod that the packet does not reach look the same here.
pub(super) fn itself(case: &Case<'_>) -> Finding {
    let entry = case.decision.map(|decision| decision.ct);
    let masqueraded = entry.is_some_and(|ct| ct.masqueraded());
    let source_decided = entry.is_some_and(|ct| ct.status.has(Status::SRC_NAT_DONE));
    let (lacks, look, unseen) = if masqueraded {
        (
            "the source is masqueraded, so the bridge does not send them back: hairpin mode is off",
            action::SHOW_HAIRPIN_MODE,
            "the bridge port's hairpin mode",
        )
    } else if source_decided {
        (
            "their source is not masqueraded, so the Pod drops them as its own",
            action::SHOW_MASQUERADE,
            "the rule that should mark it for masquerading",
        )
    } else {
        (
            "they end before their source is decided, as on a bridge port without hairpin mode",
            action::SHOW_HAIRPIN_MODE,
            "the bridge port's hairpin mode, and whether a rule would masquerade the source",
        )
    };
    case.finding(
        Class::C31,
        format_args!(
            "{} connected to {} and NAT chose the client itself: its packets do not return; {lacks}",
            case.endpoint_name(),
            case.name()
        ),
    )
    .confidence(Confidence::Medium)
    .unobserved(unseen)
    .now(&[look])
}
