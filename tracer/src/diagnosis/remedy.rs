//! What to do about a Service without a usable endpoint, by the reason: the same for a trace and for a check.

use super::finding::Finding;
use crate::{
    class::{Action, action},
    cluster::NoEndpointsReason,
    text::word,
};

impl Finding {
    /// Replaces the usual actions of C20 by those for the reason.
    pub(super) fn remedied(self, reason: &NoEndpointsReason) -> Self {
        let finding = self.now(remedy(reason));
        if let NoEndpointsReason::PodsNotReady { pods, .. } = reason
            && let Some(pod) = pods.first()
        {
            return finding.fill("POD", word(&pod.key.name));
        }
        finding
    }
}

/// The actions for the reason: what shows it, and what repairs it.
const fn remedy(reason: &NoEndpointsReason) -> &'static [Action] {
    match reason {
        NoEndpointsReason::SelectorMatchesNothing { .. } => {
            &[action::COMPARE_SELECTOR, action::CORRECT_SELECTOR]
        }
        NoEndpointsReason::ScaledToZero { .. } => &[action::FIND_SCALER],
        NoEndpointsReason::PodsNotReady { .. } => &[action::DESCRIBE_POD, action::MAKE_READY],
        NoEndpointsReason::NotInSlices { .. } => &[action::READ_SLICE_CONTROLLER],
        NoEndpointsReason::NoSelector => &[action::FIND_SLICE_WRITER],
        NoEndpointsReason::PortName { .. } => &[action::COMPARE_PORT_NAMES, action::CORRECT_PORT_NAMES],
        NoEndpointsReason::AddressFamily { .. } => &[action::COMPARE_FAMILIES],
        NoEndpointsReason::EndpointsNotReady { .. }
        | NoEndpointsReason::OnlyTerminating { .. }
        | NoEndpointsReason::Unexplained => &[action::SHOW_SLICES],
    }
}
