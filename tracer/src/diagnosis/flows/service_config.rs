//! The Service differs from the client's assumption: wrong port (C5c), a label that makes kube-proxy leave it out (C5d), a
//! Local policy without a local endpoint (C21, C22), no address at all (C27); and hints that narrow its endpoints (C25).

use std::{fmt, net::SocketAddr};

use super::{Case, Context, Finding, text::length};
use crate::{
    class::{Class, Confidence, Severity, action},
    cluster::{Key, Usable, Via},
    diagnosis::left_out::LeftOut,
    flow::{Decision, Flow, Outcome},
    net::{Family, Protocol},
    node::{ProxyMode, Release, RuleEffect},
    time::Timestamp,
    verdict::EvidenceType,
};

/// Whether it failed and nothing answered it: what answers at such an address is another program.
fn failed_unanswered(flow: &Flow) -> bool {
    !flow.outcome().is_success() && flow.outcome() != Outcome::Pending && !flow.was_answered()
}

/// kube-proxy's `/healthz`.
const HEALTHZ_PORT: u16 = 10256;

/// C5c.
/// Mechanism: kube-proxy translates only the ports that the Service lists. In iptables mode the packet leaves
/// untranslated and nothing answers, nftables and ipvs refuse it.
/// For: the address belongs to a Service, the Service does not have the port, and the connection failed.
pub(super) fn unknown_port(flow: &Flow, ctx: &Context<'_>, service: &Key) -> Option<Finding> {
    let translated = flow.decision(ctx.node_netns).and_then(Decision::endpoint);
    if !failed_unanswered(flow) || translated.is_some() {
        return None;
    }
    let port = flow.orig.dst.port();
    let asked = ctx.cluster.service(service, flow.first_seen);
    if asked.is_some_and(|asked| {
        let is_balanced = asked.load_balancer_ips.contains(&flow.orig.dst.ip());
        is_balanced && (port == HEALTHZ_PORT || asked.health_check_node_port == Some(port))
    }) {
        // A load balancer (Google's) checks kube-proxy itself at the address that it balances.
        return None;
    }
    let ip = flow.orig.dst.ip();
    let unlisted = format_args!("{ip} is an address of {service}, which does not list port {port}");
    let Some(ProbedPorts { program, first, last }) = probed_ports(flow) else {
        let what = format_args!("{service} has no port {port}/{}", flow.orig.protocol);
        return Some(ctx.finding(Class::C5c, what).api(None, unlisted));
    };
    // The same words for every port of one run.
    let what =
        format_args!("{service} has none of the ports {first} to {last}/UDP, to which {program} sends");
    Some(
        ctx.finding(Class::C5c, what)
            .confidence(Confidence::Medium)
            .severity(Severity::Low)
            .api(None, unlisted)
            .unobserved(format_args!(
                "the sender's intention: a client that wants port {port} looks like {program}"
            ))
            .now(&[action::PROBE_ENDPOINT]),
    )
}

/// The ports of a program that finds the hops of a way: each of its datagrams goes to the next one, and none is meant for a
/// server.
pub(super) struct ProbedPorts {
    program: &'static str,
    first: u16,
    last: u16,
}

/// Three for each of 30 hops, from 33434 on (`DEF_START_PORT` of traceroute), and up to 64 from 44444 on (`base_port` and
/// `HIS_ARRAY_SIZE` of iputils' tracepath).
const PROBED_PORTS: [ProbedPorts; 2] = [
    ProbedPorts { program: "traceroute", first: 33_434, last: 33_534 },
    ProbedPorts { program: "tracepath", first: 44_444, last: 44_508 },
];

impl fmt::Display for ProbedPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The ports of such a program that this datagram's is one of.
pub(super) fn probed_ports(flow: &Flow) -> Option<&'static ProbedPorts> {
    let port = flow.orig.dst.port();
    let is_probed = |ports: &&ProbedPorts| (ports.first..=ports.last).contains(&port);
    PROBED_PORTS.iter().find(is_probed).filter(|_| flow.orig.protocol == Protocol::UDP)
}

/// C5c, an address that no Service has.
/// Mechanism: an unallocated address of the Service CIDR. In iptables mode the packet leaves by the default route; nftables
/// mode drops it if it knows the CIDR (`cluster-ips-check`, `pkg/proxy/nftables/proxier.go`).
/// For: the address lies between the cluster IPs of other Services, no Pod, Node or interface has it, and the connection
/// failed.
/// Against: with several Service CIDRs, addresses between them belong to others.
pub(super) fn unallocated(flow: &Flow, ctx: &Context<'_>) -> Option<Finding> {
    let (ip, at) = (flow.orig.dst.ip(), flow.first_seen);
    let translated = flow.decision(ctx.node_netns).and_then(Decision::endpoint);
    if !failed_unanswered(flow) || translated.is_some() {
        return None;
    }
    let is_anothers = ctx.node.is_own_address(ip) == Some(true)
        || ctx.cluster.pod_by_ip(ip, at).is_some()
        || ctx.cluster.node_by_ip(ip, at).is_some();
    let range = ctx.cluster.service_range(ip).filter(|range| range.contains(ip) && !is_anothers)?;
    Some(
        ctx.finding(Class::C5c, format_args!("no Service has the address {ip}, which lies among the cluster IPs"))
            .confidence(Confidence::Medium)
            .severity(Severity::Low)
            .api(None, format_args!("the cluster IPs of other Services span {range}, and none is {ip}"))
            .unobserved("whether the address is of the Service CIDR: `kubectl get servicecidrs`, or the API server's flag")
            .now(&[action::FIND_OLD_ADDRESS]),
    )
}

/// The Service was deleted, or gave up the address: C6 if a rule still translated it, otherwise C5c; C27 if it has no
/// address now.
pub(super) fn gone(flow: &Flow, ctx: &Context<'_>, service: &Key, since: Timestamp) -> Option<Finding> {
    let decision = flow.decision(ctx.node_netns);
    let decided = decision.map_or(flow.first_seen, |decision| decision.time);
    if decided <= since.at_latest().saturating_add(ctx.grace) {
        return None;
    }
    let ago = length(decided.since(since));
    let past = format!("{} was an address of {service} until then", flow.orig.dst.ip());
    if let Some(endpoint) = decision.and_then(Decision::endpoint) {
        return Some(
            ctx.finding(
                Class::C6,
                format_args!(
                    "the rules still send {} to {endpoint}, {ago} after {service} gave up the address",
                    flow.orig.dst
                ),
            )
            .confidence(Confidence::Medium)
            .severity(Severity::Medium)
            .api(Some(since), past)
            .unobserved("why kube-proxy did not delete the rule: its log and metrics")
            .fill_rules_of(endpoint, ctx.node.mode),
        );
    }
    failed_unanswered(flow).then(|| {
        let asks = format!("the client uses an address that {service} gave up {ago} before");
        let now = ctx.cluster.service(service, flow.first_seen);
        let finding = match now.and_then(|now| now.without_address()) {
            Some(why) => ctx.finding(Class::C27, format_args!("{asks}: {why}")),
            None => ctx.finding(Class::C5c, asks),
        };
        finding
            .severity(Severity::Low)
            .api(Some(since), past)
            .now(&[action::FIND_OLD_ADDRESS])
            // Without the event of NAT's choice, an address that the rules still have looks the same (C6).
            .if_nothing_was_lost()
    })
}

/// C25.
/// Mechanism: hints in the `EndpointSlices` keep a node's traffic at the endpoints of its zone, or its own: the other
/// endpoints do not compensate for a fault of those few. This is by design, so it is evidence for the fault and never a
/// fault itself.
/// For: the flow failed at one of the endpoints that hints leave to this node, and they exclude other ready ones.
/// Against: under a Local policy hints are not used.
pub(super) fn with_hints(case: &Case<'_>, finding: Finding) -> Finding {
    let hinted = || {
        let endpoint = case.endpoint.filter(|_| case.failed() && !case.vip.is_local())?;
        let node = case.ctx.node_name?;
        let follows_nodes = Release::follows_node_hints(case.ctx.node.release());
        let hinted = case.ctx.cluster.hinted(&case.vip, node, follows_nodes, case.decided)?;
        hinted.endpoints.contains(&endpoint).then_some(hinted)
    };
    let Some(hinted) = hinted() else { return finding };
    let asked_by = hinted.asked_by.map(|wish| format!(" ({wish})")).unwrap_or_default();
    finding
        .api(
            None,
            format_args!(
                "by design, topology hints{asked_by} leave {} of the {} ready endpoints of {} to this node's traffic, this \
                 one among them",
                hinted.endpoints.len(),
                hinted.of,
                case.name()
            ),
        )
        .related(&[Class::C25])
}

/// C24, as evidence.
/// Mechanism: session affinity sends a client to the endpoint of its last connection, for `timeoutSeconds`. If that
/// endpoint is ready in the API and does not serve, this client fails while others succeed, and a retry does not help.
/// For: the flow failed at a listed endpoint of such a Service, which has others.
pub(super) fn with_affinity(case: &Case<'_>, finding: Finding) -> Finding {
    let Some(affinity) = case.vip.service.affinity else { return finding };
    let is_backends = matches!(finding.class, Class::C28 | Class::C29);
    // Under a Local policy the rules leave no other choice than this node's endpoints.
    let choice = |usable: Usable| if case.vip.is_local() { usable.local.unwrap_or(0) } else { usable.count };
    if !is_backends || !case.failed() || case.usable().is_none_or(|usable| choice(usable) < 2) {
        return finding;
    }
    finding
        .api(
            None,
            format_args!(
                "sessionAffinity ClientIP keeps this client at the endpoint for {} after each connection, although {} has {}",
                length(affinity),
                case.name(),
                case.usable_count()
            ),
        )
        .related(&[Class::C24])
}

/// C5d.
/// Mechanism: the label `service.kubernetes.io/service-proxy-name` makes kube-proxy ignore the Service, and so does
/// `service.kubernetes.io/headless` in older releases.
/// For: the label, and no translation. Against: nothing here; the other proxy may be at fault.
pub(super) fn left_out(case: &Case<'_>) -> Option<Finding> {
    if case.endpoint.is_some() {
        return None;
    }
    let left_out = LeftOut::of(case.vip.service, case.ctx.node.release())?;
    let is_unserved = case.failed() && !case.was_answered();
    if !(is_unserved || case.outcome == Outcome::Pending && case.untranslated()) {
        return None;
    }
    let finding = match left_out {
        LeftOut::ToProxy(proxy) => case
            .finding(
                Class::C5d,
                format_args!(
                    "kube-proxy leaves {} to the proxy \"{proxy}\", which did not serve it on this node",
                    case.name()
                ),
            )
            .api(
                None,
                format_args!("the Service has the label service.kubernetes.io/service-proxy-name={proxy}"),
            ),
        LeftOut::Headless { .. } => case
            .finding(
                Class::C5d,
                format_args!("kube-proxy ignores {}, which is labelled as headless", case.name()),
            )
            .api(
                None,
                "the Service has the label service.kubernetes.io/headless, and a ClusterIP nevertheless",
            )
            .now(&[action::REMOVE_HEADLESS_LABEL, action::SHOW_SERVICE]),
    };
    Some(match left_out.unknown() {
        Some(what) => finding.confidence(Confidence::Medium).unobserved(what),
        None => finding,
    })
}

/// C23.
/// Mechanism: kube-proxy admits only `loadBalancerSourceRanges` at a load balancer's IP. In iptables mode KUBE-FW does
/// not translate other sources, and KUBE-PROXY-FIREWALL drops them; in nftables mode a `firewall-` chain drops them
/// before NAT.
/// For: a load balancer IP, a source outside its ranges, and a rule's drop before any endpoint was chosen.
/// Against: an unobserved drop may have another cause. The ranges do not apply to node ports.
pub(super) fn source_ranges(case: &Case<'_>) -> Option<Finding> {
    if case.vip.via != Via::LoadBalancerIp || case.endpoint.is_some() {
        return None;
    }
    let (ranges, source) = (case.vip.source_ranges().collect::<Vec<_>>(), case.flow.orig.src.ip());
    if ranges.is_empty() || ranges.iter().any(|range| range.contains(source)) {
        return None;
    }
    let drop = case.rule_drop();
    let vanished = matches!(case.outcome, Outcome::Stalled | Outcome::Dropped | Outcome::Abandoned);
    let stopped = vanished || (case.failed() && drop.is_some());
    if !stopped {
        return None;
    }
    let listed: Vec<String> = ranges.iter().take(8).map(ToString::to_string).collect();
    let more = if ranges.len() > listed.len() { ", …" } else { "" };
    let mut finding = case
        .finding(
            Class::C23,
            format_args!(
                "{source} is in none of the loadBalancerSourceRanges of {}: its packets are dropped",
                case.name()
            ),
        )
        .confidence(if drop.is_some() { Confidence::High } else { Confidence::Medium })
        .api(None, format_args!("the Service admits {}{more}", listed.join(", ")));
    if drop.is_none() {
        finding = finding.unobserved("the rule's drop: the packets may have been lost elsewhere");
    }
    Some(finding.with_effect(case, RuleEffect::Drops))
}

/// C26.
/// Mechanism: kube-proxy serves node ports only at the addresses that `nodePortAddresses` admits; at the others the
/// packet goes to the node itself, which has no such port.
/// For: this node's own address, and a node port that its rules serve at another of its addresses and not at this one.
pub(super) fn node_port_not_here(case: &Case<'_>) -> Option<Finding> {
    let asked = case.vip.addr;
    if case.vip.via != Via::NodePort || case.endpoint.is_some() || !case.failed() {
        return None;
    }
    let node = case.ctx.node;
    let missing = node.rule(asked, case.vip.port.protocol) == Some(RuleEffect::Missing);
    if lacks_family(case) && !asked.ip().is_loopback() {
        let family = Family::of(asked.ip());
        let what = format!(
            "node port {} of {} is not served at {}: the Service has no {family} address",
            asked.port(),
            case.name(),
            asked.ip()
        );
        return Some(case.finding(Class::C26, what).api(None, format!("{} is not of {family}", case.name())));
    }
    if node.is_own_address(asked.ip()) != Some(true) {
        return None;
    }
    if asked.ip().is_loopback() {
        return at_loopback(case, missing);
    }
    let other = node.serves_node_port_at(asked.port(), case.vip.port.protocol).filter(|_| missing)?;
    Some(
        case.finding(
            Class::C26,
            format_args!(
                "node port {} of {} is not served at {}: nodePortAddresses leave that address out",
                asked.port(),
                case.name(),
                asked.ip()
            ),
        )
        .node(
            node.read_at(),
            format_args!("the rules serve port {} at {other} and not at {}", asked.port(), asked.ip()),
        )
        .first(action::USE_OTHER_ADDRESS)
        .fill("OTHER_ADDRESS", SocketAddr::new(other, asked.port()).to_string()),
    )
}

/// Whether the client connected to a node port in a family in which the Service has no address: kube-proxy writes no rule
/// of that family for it.
pub(super) fn lacks_family(case: &Case<'_>) -> bool {
    let family = Family::of(case.vip.addr.ip());
    let mut addresses = case.vip.service.cluster_ips.iter();
    case.vip.via == Via::NodePort && !addresses.any(|ip| Family::of(*ip) == family)
}

/// C26 at loopback.
/// Mechanism: kube-proxy serves node ports at loopback only in iptables mode, over IPv4, with `localhostNodePorts` (its
/// default), for which it sets `route_localnet`; nftables and ipvs modes do not (`pkg/proxy/nftables/proxier.go`:
/// `localhost NodePorts are not supported`; the alpha gate `KubeProxyNFTablesLocalhostNodePorts` of 1.37 adds a proxy
/// process).
/// For: the mode, or the rules that serve the port elsewhere and not here.
fn at_loopback(case: &Case<'_>, missing: bool) -> Option<Finding> {
    let (asked, node) = (case.vip.addr, case.ctx.node);
    let by_mode = node.mode.is_some_and(|mode| mode != ProxyMode::Iptables) || asked.is_ipv6();
    if !by_mode && !missing {
        return None;
    }
    let why = match node.mode {
        Some(mode) if by_mode && asked.is_ipv4() => {
            format!("{mode} mode does not serve node ports at loopback")
        }
        _ if asked.is_ipv6() => "kube-proxy does not serve node ports at ::1".to_owned(),
        _ => "kube-proxy's rules do not serve it there (localhostNodePorts, nodePortAddresses)".to_owned(),
    };
    let what =
        format!("node port {} of {} is not served at {}: {why}", asked.port(), case.name(), asked.ip());
    let mut finding = case
        .finding(Class::C26, what)
        .confidence(if missing { Confidence::High } else { Confidence::Medium })
        .node(node.read_at(), why);
    if let Some(other) = node.serves_node_port_at(asked.port(), case.vip.port.protocol) {
        let other = SocketAddr::new(other, asked.port());
        finding = finding.first(action::USE_OTHER_ADDRESS).fill("OTHER_ADDRESS", other.to_string());
    }
    Some(finding)
}

/// The releases of kube-proxy in iptables mode that drop what a Local policy leaves without an endpoint; older ones refuse
/// it inside the cluster: `FilterEndpoints` of `pkg/proxy/topology.go` removes the endpoints of other nodes, and the port
/// counts as one without endpoints (kubernetes/kubernetes#106497).
const DROPS_SINCE: Release = Release(1, 24);

/// C21 (external), C22 (internal).
/// Mechanism: under a Local policy kube-proxy drops packets that arrive on a node without a local endpoint: a timeout,
/// not a refusal (kubernetes/kubernetes#121371). Releases before 1.24 refuse them inside the cluster.
/// For: a rule's drop or refusal before any endpoint was chosen, a Local policy, and no endpoint on this node.
/// Against: a load balancer that respects the health check port never sends here. Another node's port is that node's: no rule
/// of kube-proxy concerns it here.
pub(super) fn no_local_endpoint(case: &Case<'_>) -> Option<Finding> {
    if !case.vip.is_local() || case.endpoint.is_some() || !case.failed() || case.other_nodes_port().is_some()
    {
        return None;
    }
    let local = case.usable().and_then(|usable| usable.local);
    if local.is_some_and(|local| local > 0) {
        return None;
    }
    if case.has_no_local_endpoint() && case.refused_before_choice().is_some() {
        return Some(refused_by_policy(case));
    }
    let drop = case.rule_drop()?;
    let mut finding = of_local_policy(case, "its packets are dropped").confidence(
        if local == Some(0) && drop.reason.is_some() { Confidence::High } else { Confidence::Medium },
    );
    if drop.reason.is_none() {
        finding = finding.unobserved("the drop's reason: this kernel gives none");
    }
    if local.is_none() {
        finding = finding.unobserved("the endpoints on this node: its name is unknown");
    }
    if is_exempt(case) {
        finding.at_most(Confidence::Medium);
        finding = finding
            .against(
                EvidenceType::Api,
                None,
                "kube-proxy exempts this node and its Pods from externalTrafficPolicy: another rule may have dropped it",
            )
            .related(&[Class::C30]);
    }
    Some(finding.with_late_loss(case).with_effect(case, RuleEffect::Drops))
}

/// Whether the external policy should not concern this client: it is this node or a Pod on it, and no rule that was read
/// drops its connections. (Some releases in nftables mode drop the node's own.)
fn is_exempt(case: &Case<'_>) -> bool {
    let client = case.flow.orig.src.ip();
    let effects = || case.ctx.node.effects(case.vip.addr, case.vip.port.protocol, client);
    case.vip.via != Via::ClusterIp
        && case.is_client_here() == Some(true)
        && !effects().iter().any(|effect| effect.rule == RuleEffect::Drops)
}

/// For: kube-proxy's release refuses by design.
/// Against: a newer one drops, so that a rule of a time without any endpoint looks the same (C4).
fn refused_by_policy(case: &Case<'_>) -> Finding {
    let node = case.ctx.node;
    let finding = of_local_policy(case, "its packets are refused")
        .with_late_loss(case)
        .with_effect(case, RuleEffect::Refuses);
    if node.release().is_some_and(|release| release < DROPS_SINCE) {
        return finding;
    }
    finding
        .confidence(Confidence::Medium)
        .against(
            EvidenceType::Node,
            node.read_at(),
            "kube-proxy drops such packets since 1.24: the rule may be left from a time without any endpoint (C4)",
        )
        .related(&[Class::C4])
}

/// C21 in iptables mode of kube-proxy 1.20 to 1.24, where the packet is neither translated nor dropped.
/// Mechanism: the chain `KUBE-XLB-` jumps to KUBE-MARK-DROP (`pkg/proxy/iptables/proxier.go`), and the kubelet's
/// KUBE-FIREWALL drops marked packets in INPUT and OUTPUT only (`syncNetworkUtil` of
/// `pkg/kubelet/kubelet_network_linux.go`). A load balancer's address is none of the node's, so that its packets are
/// forwarded as they came.
/// For: a null binding, the external policy Local, no endpoint on this node, and rules that translate the address for other
/// clients and not for this one.
/// Against: an answer, which shows that the load balancer itself served the connection.
pub(super) fn forwarded_by_policy(case: &Case<'_>) -> Option<Finding> {
    let is_untranslated = case.failed()
        && case.untranslated()
        && !case.is_ipvs()
        && !case.flow.was_answered()
        && case.rule_drop().is_none()
        && case.other_nodes_port().is_none();
    if !is_untranslated || case.vip.via == Via::ClusterIp || !case.has_no_local_endpoint() {
        return None;
    }
    let usable = case.usable().filter(|usable| usable.count > 0)?;
    if case.within_grace(usable.since) {
        return None;
    }
    let (node, asked, client) = (case.ctx.node, case.vip.addr, case.flow.orig.src.ip());
    let protocol = case.vip.port.protocol;
    let for_client = node.effects(asked, protocol, client);
    let is_for_others = node.rule(asked, protocol) == Some(RuleEffect::Forwards);
    if !is_for_others || for_client.iter().any(|effect| effect.rule == RuleEffect::Forwards) {
        return None;
    }
    Some(of_local_policy(case, "its rules leave the packets untranslated").node(
        node.read_at(),
        format_args!("the rules for {asked} translate connections of other clients, and not of {client}"),
    ))
}

/// The class of a Local policy without an endpoint on this node, and the `effect` on the packets.
fn of_local_policy(case: &Case<'_>, effect: &str) -> Finding {
    let external = case.vip.via != Via::ClusterIp;
    let (class, policy) =
        if external { (Class::C21, "externalTrafficPolicy") } else { (Class::C22, "internalTrafficPolicy") };
    let finding = case
        .finding(
            class,
            format_args!("{policy} is Local and {} has no endpoint on this node: {effect}", case.name()),
        )
        .api(None, format_args!("{} in the cluster, none of them on this node", case.usable_count()));
    if !external {
        return finding;
    }
    finding
        .unobserved(
            "whether the client is a load balancer that checks this node (N2): its checks have a rhythm",
        )
        .related(&[Class::N2])
}
