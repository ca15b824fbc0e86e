//! A proxy in the client's Pod takes the connection, as a service mesh's sidecar does (N13): kube-proxy's rules are not
//! asked.

use std::net::SocketAddr;

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence},
    flow::{Decision, Outcome},
};

/// Unknown, if no rule explains the failure.
/// Mechanism: rules in the Pod's own namespace redirect what its programs send to a proxy that listens there, and that proxy
/// connects to an endpoint by itself (Istio: REDIRECT to port 15001 in OUTPUT; Linkerd: 4140).
/// For: the namespace of the client redirected the packet to its loopback address, and that of kube-proxy's rules never had
/// it. Against: nothing in this trace shows the proxy's own connection.
pub(super) fn failed(case: &Case<'_>) -> Option<Finding> {
    let redirection = redirection(case)?;
    let what = match case.outcome {
        Outcome::Refused | Outcome::Rejected => "refused",
        Outcome::Reset(_) => "ended with a RST",
        Outcome::Silent => "fell silent on",
        Outcome::Dropped | Outcome::Unreachable => "was not reached by the packets of",
        _ => "did not answer",
    };
    let finding = case
        .finding(
            Class::Unknown,
            format_args!(
                "a proxy in the client's own Pod ({}, as a service mesh's sidecar) {what} a connection to {}",
                redirection.proxy,
                case.name()
            ),
        )
        .confidence(Confidence::Low)
        .unobserved(
            "why: the proxy's log (`kubectl logs POD -c istio-proxy`, or linkerd-proxy; in Istio's ambient mode that of \
             ztunnel on the node), and whether it is ready",
        );
    Some(redirection.named_in(finding))
}

/// The same of a connection that the proxy answered: ok.
pub(super) fn answered(case: &Case<'_>) -> Option<Finding> {
    let redirection = redirection(case).filter(|_| case.was_answered() && !case.failed())?;
    let finding = case
        .finding(
            Class::Ok,
            format_args!(
                "{} was answered by a proxy in the client's own Pod ({}), as a service mesh's sidecar does",
                case.name(),
                redirection.proxy
            ),
        )
        .unobserved("the proxy's own connection: it goes to the endpoint's address and has no verdict");
    Some(redirection.named_in(finding))
}

/// The decision to send a connection to the loopback address of the namespace that it came from.
struct Redirection<'a> {
    decision: &'a Decision,
    proxy: SocketAddr,
}

impl Redirection<'_> {
    fn named_in(&self, finding: Finding) -> Finding {
        finding.kernel(
            Some(self.decision.time),
            format_args!(
                "rules in netns {}, which is not the node's, redirected it to {}; kube-proxy's were not asked",
                self.decision.netns.0, self.proxy
            ),
        )
    }
}

/// `None` where the namespace of this node's rules is unknown: a proxy of the whole node would look the same.
fn redirection<'a>(case: &Case<'a>) -> Option<Redirection<'a>> {
    let flow = case.flow;
    if case.decision.is_some() || case.endpoint.is_some() {
        return None;
    }
    flow.decisions.iter().find_map(|decision| {
        let proxy = decision.endpoint().filter(|endpoint| endpoint.ip().is_loopback())?;
        let is_clients = decision.netns == flow.netns && case.is_elsewhere(decision.netns);
        (is_clients && decision.ct.orig == flow.orig).then_some(Redirection { decision, proxy })
    })
}

/// The decision of rules in the endpoint's own namespace to send the connection to another port of the Pod, where a proxy listens
/// for its program (Istio: REDIRECT to port 15006 in PREROUTING; Linkerd: 4143).
pub(super) fn before_endpoint<'a>(case: &Case<'a>) -> Option<(&'a Decision, SocketAddr)> {
    let endpoint = case.endpoint?;
    case.flow.decisions.iter().find_map(|decision| {
        let proxy = decision.endpoint().filter(|proxy| *proxy != endpoint)?;
        let is_in_pod = proxy.ip() == endpoint.ip() || proxy.ip().is_loopback();
        (is_in_pod && decision.ct.orig.dst.socket() == endpoint).then_some((decision, proxy))
    })
}

/// Whether such a proxy took the connection.
pub(super) fn is_redirected(case: &Case<'_>) -> bool {
    redirection(case).is_some()
}
