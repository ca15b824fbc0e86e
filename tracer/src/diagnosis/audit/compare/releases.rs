//! Results that only some releases of kube-proxy have.
//!
//! Owns the differences between releases. Where the rules themselves show the release, they decide, because
//! distributions patch kube-proxy; otherwise its release does, and an unknown one may be any.

use super::{Comparison, Tried};
use crate::{
    cluster::Via,
    diagnosis::audit::Expectation,
    node::{ProxyMode, Release},
    rules::{End, Origin, walk::Branch},
};

impl Comparison<'_> {
    /// The results that other releases of kube-proxy expect instead of `wanted`, if this one may be among them.
    pub(super) fn of_other_releases(&self, tried: Tried<'_>, wanted: &Expectation) -> Vec<Expectation> {
        let Tried { port, known, probe, .. } = tried;
        let sorted = port.other_endpoints.iter();
        let mut others: Vec<Expectation> = sorted
            .map(|endpoints| self.wanted_of(port, endpoints, known, probe.origin, probe.source))
            .collect();
        if self.refuses_without_local_endpoint(tried, wanted) {
            others.push(Expectation::Refused);
        }
        others
    }

    /// Until 1.23 iptables mode removes the endpoints of other nodes before it counts them, so that a ClusterIP without
    /// an endpoint on this node refuses (`FilterEndpoints` in `pkg/proxy/topology.go`). 1.24 marks its connections for
    /// KUBE-FIREWALL (kubernetes/kubernetes#106497), and 1.25 drops them.
    fn refuses_without_local_endpoint(&self, tried: Tried<'_>, wanted: &Expectation) -> bool {
        let mode = self.context.mode;
        tried.known.via == Via::ClusterIp
            && *wanted == Expectation::Dropped
            && mode == ProxyMode::Iptables
            && self.context.may_precede(Release(1, 24))
    }

    /// The weight of connections that the rules mark for KUBE-FIREWALL and do not stop. Until 1.24 iptables mode marks
    /// what it should drop, and a routed packet to an address that is not the node's passes no chain that drops the mark:
    /// it goes on untranslated (`syncProxyRules` in `pkg/proxy/iptables/proxier.go`; kubernetes/kubernetes#110289 drops
    /// it in KUBE-PROXY-FIREWALL and KUBE-EXTERNAL-SERVICES).
    pub(super) fn marked_for_drop(&self, tried: Tried<'_>) -> f64 {
        let is_routed = tried.probe.origin != Origin::Node && !tried.probe.local;
        let Some(mark) = self.drop_mark.filter(|_| is_routed) else { return 0.0 };
        let branches = tried.fate.branches.iter();
        branches.filter(|branch| branch.end == End::Passed && branch.mark & mark != 0).map(|b| b.weight).sum()
    }

    /// Until 1.23 iptables mode sends connections to an external IP directly to KUBE-SVC, and masquerades only those that
    /// do not come from Pods (`JumpIfNotLocal` in `syncProxyRules`, `pkg/proxy/iptables/proxier.go`). KUBE-EXT, which
    /// masquerades all, is newer (kubernetes/kubernetes#109060).
    pub(super) fn leaves_pods_unmasqueraded(&self, tried: Tried<'_>, seen_as: Origin) -> bool {
        let passes_ext = |branch: &Branch| branch.trail.iter().any(|name| name.starts_with("KUBE-EXT-"));
        self.context.mode == ProxyMode::Iptables
            && tried.known.via == Via::ExternalIp
            && seen_as == Origin::Pod
            && !tried.fate.branches.iter().any(passes_ext)
    }
}
