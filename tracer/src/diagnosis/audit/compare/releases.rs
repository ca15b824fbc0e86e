//! Results that only some releases of kube-proxy have.
//!
//! Owns the differences between releases. Where the rules themselves show the release, they decide, because
//! distributions patch kube-proxy; otherwise its release does, and an unknown one may be any.

use super::{Comparison, Tried};
use crate::{
    cluster::Via,
    diagnosis::audit::{Expectation, frame},
    net::Family,
    node::{ProxyMode, Release},
    rules::{
        Base, End, HookPoint, NFTABLES_TABLE, Origin, Rule, Ruleset, Step, Table, Writer, frontends::of_rule,
        walk::Branch,
    },
};

/// The priority at which OUTPUT translates (`NF_IP_PRI_NAT_DST`).
const TRANSLATION: i32 = -100;

/// The chains of nftables mode that refuse and drop connections to Services' addresses; the second is of 1.29.
const CHECKS: [&str; 2] = [frame::SERVICE_ENDPOINTS_CHECK, frame::ENDPOINTS_CHECK];

/// What the rules of one family show about their release.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// The bits of the mark of packets that KUBE-FIREWALL drops.
    drop_mark: Option<u32>,
    /// nftables mode refuses and drops the node's own connections before it translates them.
    checks_before_translation: bool,
}

impl Form {
    pub(super) fn of(rules: &Ruleset, family: Family) -> Self {
        let table = rules.table(Writer::Nftables, family, NFTABLES_TABLE);
        Self {
            drop_mark: rules.drop_mark(family),
            checks_before_translation: table.is_some_and(checks_before_translation),
        }
    }
}

/// Whether nftables mode drops the node's own connections to a load balancer that has no endpoint on the node under a
/// Local policy.
pub(crate) fn drops_own_connections(rules: &Ruleset, family: Family) -> bool {
    Form::of(rules, family).checks_before_translation
}

/// Whether the node's own connections pass the check of endpoints before they are translated.
fn checks_before_translation(table: &Table) -> bool {
    let is_early = |base: &Base| base.hook == HookPoint::Output && base.priority < TRANSLATION;
    let mut early = table.chains.iter().filter(|chain| chain.base.as_ref().is_some_and(is_early));
    early.any(|chain| CHECKS.iter().any(|check| frame::has_jump(chain, check)))
}

impl Comparison<'_> {
    /// The results that other releases of kube-proxy expect instead of `wanted`, if this one may be among them.
    pub(super) fn of_other_releases(&self, tried: Tried<'_>, wanted: &Expectation) -> Vec<Expectation> {
        let Tried { port, known, probe, .. } = tried;
        let sorted = port.other_endpoints.iter();
        let mut others: Vec<Expectation> = sorted
            .map(|endpoints| self.wanted_of(port, endpoints, known, probe.origin, probe.source))
            .collect();
        let forwards = matches!(wanted, Expectation::Endpoints(_));
        if self.refuses_without_local_endpoint(tried, wanted) || forwards && self.has_no_fallback(tried) {
            others.push(Expectation::Refused);
        }
        if forwards && (self.drops_before_translation(tried) || self.drops_what_ipvs_resends(tried)) {
            others.push(Expectation::Dropped);
        }
        if forwards && self.leaves_out_own_connections(tried) {
            others.push(Expectation::Any);
        }
        others
    }

    /// Whether `externalTrafficPolicy: Local` leaves no endpoint for connections from outside.
    fn lacks_local_endpoint(Tried { port, known, .. }: Tried<'_>) -> bool {
        known.via != Via::ClusterIp && port.is_local(known.via) && port.endpoints.local.is_empty()
    }

    /// Until 1.20 ipvs mode has no real server for `externalTrafficPolicy: Local` without a local endpoint
    /// (`syncEndpoint` in `pkg/proxy/ipvs/proxier.go`; kubernetes/kubernetes#97081 sends to all endpoints instead).
    fn has_no_fallback(&self, tried: Tried<'_>) -> bool {
        self.context.mode == ProxyMode::Ipvs
            && Self::lacks_local_endpoint(tried)
            && self.context.may_precede(Release(1, 21))
    }

    /// In nftables mode the node's own connections to an address without a local endpoint are dropped if they pass the
    /// check of endpoints before they are translated (`nftablesBaseChains` in `pkg/proxy/nftables/proxier.go`: the
    /// priority of filter-output).
    fn drops_before_translation(&self, tried: Tried<'_>) -> bool {
        let is_early = |branch: &Branch| branch.trail.iter().any(|name| CHECKS.contains(&&**name));
        self.form.checks_before_translation
            && tried.probe.origin == Origin::Node
            && Self::lacks_local_endpoint(tried)
            && tried.fate.branches.iter().all(is_early)
    }

    /// Old releases of iptables mode send to an external IP's endpoints only the connections from off the machine, and the
    /// node's own ones to the external IP itself (`externalTrafficOnlyArgs` in `pkg/proxy/iptables/proxier.go`).
    fn leaves_out_own_connections(&self, Tried { known, probe, fate, .. }: Tried<'_>) -> bool {
        let nat = || self.rules.table_of(self.family, "nat");
        let is_of_others = |rule: &Rule| {
            rule.steps.contains(&Step::SourceLocal { negated: true }) && of_rule(rule) == Some(known.frontend)
        };
        self.context.mode == ProxyMode::Iptables
            && known.via == Via::ExternalIp
            && probe.origin == Origin::Node
            && fate.branches.iter().all(|branch| branch.end == End::Passed)
            && nat()
                .and_then(|nat| nat.chain("KUBE-SERVICES"))
                .is_some_and(|chain| chain.rules.iter().any(is_of_others))
    }

    /// Until kubernetes/kubernetes#110628 ipvs mode marks connections that no source range admits. IPVS resends the
    /// node's own ones through OUTPUT, where KUBE-FIREWALL drops the mark.
    fn drops_what_ipvs_resends(&self, Tried { known, probe, .. }: Tried<'_>) -> bool {
        let nat = self.rules.table_of(self.family, "nat");
        let firewall = nat.and_then(|nat| nat.chain("KUBE-FIREWALL"));
        self.context.mode == ProxyMode::Ipvs
            && probe.origin == Origin::Node
            && !known.admits(probe.source)
            && firewall.is_some_and(|chain| frame::has_jump(chain, "KUBE-MARK-DROP"))
    }

    /// What to add to a report of source ranges that do not hold.
    pub(super) fn why_ranges_fail(&self) -> &'static str {
        let table = self.rules.table(Writer::Nftables, self.family, NFTABLES_TABLE);
        if table.is_some_and(frame::is_of_1_29) {
            "; nftables mode of 1.29 checks them after the translation, and so enforces none \
             (kubernetes/kubernetes#122614)"
        } else {
            ""
        }
    }

    /// Until 1.23 iptables mode removes the endpoints of other nodes before it counts them, so that a `ClusterIP` without
    /// an endpoint on this node refuses (`FilterEndpoints` in `pkg/proxy/topology.go`). 1.24 marks its connections for
    /// KUBE-FIREWALL (kubernetes/kubernetes#106497), and 1.25 drops them.
    fn refuses_without_local_endpoint(&self, tried: Tried<'_>, wanted: &Expectation) -> bool {
        tried.known.via == Via::ClusterIp
            && *wanted == Expectation::Dropped
            && self.context.mode == ProxyMode::Iptables
            && self.context.may_precede(Release(1, 24))
    }

    /// The weight of connections that the rules mark for KUBE-FIREWALL and do not stop. Until 1.24 iptables mode marks
    /// what it should drop, and a routed packet to an address that is not the node's passes no chain that drops the mark:
    /// it goes on untranslated (`syncProxyRules` in `pkg/proxy/iptables/proxier.go`; kubernetes/kubernetes#110289 drops
    /// it in KUBE-PROXY-FIREWALL and KUBE-EXTERNAL-SERVICES).
    pub(super) fn marked_for_drop(&self, tried: Tried<'_>) -> f64 {
        let is_routed = tried.probe.origin != Origin::Node && !tried.probe.local;
        let Some(mark) = self.form.drop_mark.filter(|_| is_routed) else { return 0.0 };
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
            && !tried.port.is_local(Via::ExternalIp)
            && seen_as == Origin::Pod
            && !tried.fate.branches.iter().any(passes_ext)
    }
}
