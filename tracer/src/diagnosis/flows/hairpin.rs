//! C31: a Pod that reaches itself through its Service. (Answers that go past the node's NAT are `resets`'.)

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence, action},
    sighting::Status,
};

/// C31.
/// Mechanism: NAT chose the client itself. Its packets come back only where the source is masqueraded (else the Pod's
/// stack meets its own address as a stranger's and drops it as a martian), and where the bridge sends a packet out of
/// the port that it came from (hairpin mode).
/// For: the endpoint is the client, nothing answered. Which of the two is missing, the reply tuple tells, unless the
/// packet ended before its source was decided: a bridge without hairpin mode drops it there.
/// Against: nothing seen here tells a Pod that does not listen to itself from one that is not reached.
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
    Finding::new(
        Class::C31,
        format!(
            "{} asked for {} and NAT chose itself: its packets do not come back; {lacks}",
            case.endpoint_name(),
            case.name()
        ),
    )
    .confidence(Confidence::Medium)
    .unobserved(unseen)
    .now(&[look])
}
