//! C30: a rule of a program other than kube-proxy stopped the packet. Which rule it is, a walk of the node's rules shows.

use std::{net::SocketAddr, time::Duration};

use super::{Case, Finding, case::may_have_broken, text::length};
use crate::{
    class::{Class, Confidence},
    diagnosis::path::{Crossing, Scene, Stop, Stops},
    flow::{Dropped, Flow, Outcome, Refusal, RefusalKind, SocketEnd, Stage},
    net::{Family, Netns},
    node::{routes::Routes, snapshot::Listing},
    sighting::Hook,
    time::Timestamp,
};

/// Rules that were read later than this after the packet are said to be of another moment.
const SAME_MOMENT: Duration = Duration::from_secs(10);

/// Mechanism: a network policy or host firewall rejects, after NAT or with a code that kube-proxy never uses (9, 10, 13
/// of ICMP, 1, 5, 6 of `ICMPv6`: administratively prohibited; a forged RST if endpoints exist).
/// For: the rejection and its place, and the rule to which the packet comes. Against: rules that changed since.
pub(super) fn prohibited(case: &Case<'_>) -> Option<Finding> {
    let refusal = case.trouble()?.refusal?;
    let elsewhere = case.is_elsewhere(refusal.netns);
    // No rule of kube-proxy concerns another node's port here.
    let is_others = refusal.stage == Stage::Before && case.other_nodes_port().is_some();
    let foreign = is_others
        || is_foreign(case.flow, &refusal)
            && (refusal.kind != RefusalKind::Reset
                || refusal.stage == Stage::After
                || case.has_usable() == Some(true));
    if case.outcome != Outcome::Rejected || !(foreign || elsewhere) {
        return None;
    }
    let place = if elsewhere {
        format!("in netns {}, which is not the node's", refusal.netns.0)
    } else {
        "on this node".to_owned()
    };
    let hook = match refusal.nf_hook {
        Some(1) => Some("INPUT"),
        Some(2) => Some("FORWARD"),
        Some(3) => Some("OUTPUT"),
        _ => None,
    };
    let what = format!("a rule {place} that is not kube-proxy's refuses {}", case.name());
    let packet = Packet {
        stage: refusal.stage,
        endpoint: refusal.endpoint,
        netns: refusal.netns,
        last: refusal.occurrences.last,
        fate: Fate::Refused(hook),
    };
    Some(packet.finding(case, &what, packet.stops(case).as_ref()))
}

/// Whether kube-proxy never refuses like this.
fn is_foreign(flow: &Flow, refusal: &Refusal) -> bool {
    let by_code = match refusal.kind {
        RefusalKind::Unreachable { code } if flow.orig.dst.is_ipv4() => matches!(code, Some(9 | 10 | 13)),
        RefusalKind::Unreachable { code } => matches!(code, Some(1 | 5 | 6)),
        RefusalKind::Reset => true,
        RefusalKind::NoDestination => false,
    };
    by_code || refusal.stage == Stage::After
}

/// Drops of programs that are no netfilter rules: those of tc at an interface, and of a cgroup.
const PROGRAMS: [(&str, &str); 3] = [
    ("TC_INGRESS", "a tc program at the incoming interface"),
    ("TC_EGRESS", "a tc program at the outgoing interface"),
    ("BPF_CGROUP_EGRESS", "an eBPF program of the sender's cgroup"),
];

/// The program that dropped it, if none of netfilter's rules did.
fn program(drop: &Dropped) -> Option<&'static str> {
    PROGRAMS.iter().find(|(reason, _)| drop.is(reason)).map(|(_, program)| *program)
}

fn dropped_by_program(case: &Case<'_>, program: &str, what: &str) -> Finding {
    case.finding(Class::C30, format_args!("{program} drops {what}"))
        .confidence(Confidence::High)
        .unobserved("which program it is: `bpftool net show`, `bpftool cgroup tree`")
}

/// Mechanism: a policy drops the packet after kube-proxy chose a current endpoint, or before it could choose one.
/// For: `NETFILTER_DROP`, and the rule to which the packet comes; or the drop of a tc or cgroup program. Against: an INVALID
/// packet dropped by KUBE-FORWARD looks the same (C18b).
pub(super) fn dropped(case: &Case<'_>) -> Option<Finding> {
    if !matches!(case.outcome, Outcome::Dropped | Outcome::Stalled) {
        return None;
    }
    let drops = &case.trouble()?.drops;
    let by_program = drops.iter().filter(|drop| drop.opening).find_map(program);
    if let Some(program) = by_program {
        let what = format!("packets of connections to {}", case.name());
        return Some(dropped_by_program(case, program, &what));
    }
    let drop = case.rule_drop().filter(|drop| drop.opening)?;
    let packet = Packet::of(drop);
    let stops = packet.stops(case);
    if case.endpoint.is_some() {
        let endpoint = case.endpoint_name();
        let after = if drop.stage == Stage::Before { "" } else { ", after NAT" };
        let before = if case.was_answered() { "; it answered earlier ones" } else { "" };
        let what = format!("a rule drops packets to endpoint {endpoint} of {}{after}{before}", case.name());
        return Some(packet.finding(case, &what, stops.as_ref()));
    }
    // Before NAT, kube-proxy's own rules drop too: only a rule that was found is another program's.
    let found = stops.as_ref().is_some_and(|stops| stops.is_foreign() && !stops.is_open);
    if drop.stage != Stage::Before || !found {
        return None;
    }
    let what = format!("a rule that is not kube-proxy's drops packets to {}, before NAT", case.name());
    Some(packet.finding(case, &what, stops.as_ref()))
}

/// Mechanism: as [`dropped`], on a kernel that gives no reason for drops (before 5.17).
/// For: packets dropped before their entry was confirmed, and a rule of another program that certainly stops them.
/// Against: the rule may be younger than the drop.
pub(super) fn dropped_without_reason(case: &Case<'_>) -> Option<Finding> {
    if case.ctx.drop_reasons || !case.failed() {
        return None;
    }
    let drop = case.trouble()?.drops.iter().find(|drop| is_without_reason(drop))?;
    let packet = Packet::of(drop);
    let stops = packet.stops(case)?;
    stops.only().filter(|only| !only.is_kube_proxys)?;
    let what = match case.endpoint {
        Some(_) => format!("a rule drops packets to endpoint {} of {}", case.endpoint_name(), case.name()),
        None => format!("a rule that is not kube-proxy's drops packets to {}, before NAT", case.name()),
    };
    let finding = packet.finding(case, &what, Some(&stops)).confidence(Confidence::Medium);
    Some(finding.unobserved("why the packets were dropped: this kernel gives no reason"))
}

/// Whether a first packet was dropped before its entry was confirmed, on a kernel without drop reasons.
fn is_without_reason(drop: &Dropped) -> bool {
    drop.reason.is_none() && drop.unconfirmed && drop.opening && drop.stage != Stage::Reply
}

/// Mechanism: a rule hands the packets to a program (`NFQUEUE`; kindnet's network policies), whose verdict is to drop them:
/// `nf_reinject` frees the packet without a reason (`net/netfilter/nfnetlink_queue.c`).
/// For: a first packet to the endpoint that was dropped without a reason before its entry was confirmed, on a kernel that gives
/// reasons, and the rule with the queue on its way. Against: other drops without a reason look the same.
pub(super) fn queued(case: &Case<'_>) -> Option<Finding> {
    case.endpoint?;
    if !matches!(case.outcome, Outcome::Dropped | Outcome::Stalled) {
        return None;
    }
    let drop = case.trouble()?.drops.iter().find(|drop| is_without_verdict(drop))?;
    let queue = Packet::of(drop).stops(case)?.queue?;
    let endpoint = case.endpoint_name();
    Some(
        case.finding(
            Class::C30,
            format_args!("the program behind {queue} drops packets to {endpoint} of {}", case.name()),
        )
        .confidence(Confidence::Medium)
        .node(
            case.ctx.node.rules_time,
            format_args!("{queue} hands this packet to a program for its verdict"),
        )
        .unobserved("the program's reason: its log, and the policies that it enforces"),
    )
}

/// Whether a first packet was dropped after NAT without a reason, as a queue's program drops.
fn is_without_verdict(drop: &Dropped) -> bool {
    drop.is("NOT_SPECIFIED") && drop.unconfirmed && drop.opening && drop.stage == Stage::After
}

/// Mechanism: a policy drops the endpoint's answer. A datagram counts as answered once its answer reaches this node.
/// For: `NETFILTER_DROP` of an answer whose entry is confirmed. Against: an INVALID answer (C18b), which the kernel reports.
pub(super) fn answer_dropped(case: &Case<'_>) -> Option<Finding> {
    let is_open = if case.flow.is_tcp() {
        matches!(case.outcome, Outcome::Dropped | Outcome::Stalled)
    } else {
        !matches!(case.outcome, Outcome::Rejected | Outcome::Refused | Outcome::Unreachable)
    };
    let trouble = case.trouble()?;
    // A datagram has no window to be out of, so only a report counts.
    let may_be_invalid = trouble.invalid.iter().any(|invalid| invalid.reply)
        || case.flow.is_tcp() && !case.has_hook(Hook::InvalidLog);
    let drop = trouble.drops.iter().find(|drop| is_answer(drop))?;
    case.endpoint?;
    if !is_open || may_be_invalid {
        return None;
    }
    let packet = Packet { endpoint: case.endpoint, ..Packet::of(drop) };
    let what = format!("a rule drops the answers of endpoint {} of {}", case.endpoint_name(), case.name());
    Some(packet.finding(case, &what, packet.stops(case).as_ref()))
}

/// Mechanism: a rule that came later, or an accept rule that went, drops the packets of a connection that worked.
/// For: the connection fell silent, and a rule or a program dropped what an end repeated. Against: packets that conntrack
/// calls invalid are dropped alike (C18b).
pub(super) fn connection_dropped(case: &Case<'_>) -> Option<Finding> {
    if case.outcome != Outcome::Silent {
        return None;
    }
    case.endpoint?;
    let trouble = case.trouble()?;
    let drop = trouble.drops.iter().find(|drop| is_of_repeated(case.flow, drop))?;
    let is_answer = drop.stage == Stage::Reply;
    let whose = if is_answer { "the answers of" } else { "the packets to" };
    let whose = format!("{whose} {} of an open connection to {}", case.endpoint_name(), case.name());
    if let Some(program) = program(drop) {
        return Some(dropped_by_program(case, program, &whose));
    }
    let may_be_invalid = trouble.invalid.iter().any(|invalid| invalid.reply == is_answer);
    if may_be_invalid || !drop.is("NETFILTER_DROP") {
        return None;
    }
    let packet = Packet { endpoint: case.endpoint, ..Packet::of(drop) };
    let mut finding = packet.finding(case, &format!("a rule drops {whose}"), packet.stops(case).as_ref());
    if !case.has_hook(Hook::InvalidLog) {
        finding = finding
            .unobserved("whether conntrack called the packets invalid (C18b): this trace has no hook there")
            .related(&[Class::C18b]);
    }
    Some(finding)
}

/// Whether this drop met what an end of an answered connection repeats.
fn is_of_repeated(flow: &Flow, drop: &Dropped) -> bool {
    let is_met = |end: &SocketEnd| {
        let repeats = end.retransmits();
        repeats.is_seen() && drop.occurrences.last >= repeats.first
    };
    // A client whose answers are dropped repeats its request.
    let is_repeated = || match drop.stage {
        // Before NAT: a program at an interface, or a rule in PREROUTING. A close without an entry is untranslated too (N5).
        Stage::Before => is_met(&flow.client) && !flow.client.retransmitted_only_its_end(),
        Stage::After => is_met(&flow.client),
        Stage::Reply => is_met(&flow.server) || is_met(&flow.client),
    };
    let is_by_rule = drop.is("NETFILTER_DROP") || program(drop).is_some();
    // A packet that was dropped long before the silence passed when it was repeated.
    is_by_rule && !drop.opening && is_repeated() && may_have_broken(flow, drop.occurrences.last)
}

/// Whether a rule dropped an answer that its conntrack entry would have translated back.
fn is_answer(drop: &Dropped) -> bool {
    drop.stage == Stage::Reply && drop.is("NETFILTER_DROP") && !drop.unconfirmed
}

/// Whether a rule stopped a packet of this flow that failed, so that the node's rules show the cause.
pub(super) fn is_stopped(flow: &Flow) -> bool {
    let Some(trouble) = &flow.trouble else { return false };
    let is_failed = || !flow.outcome().is_success();
    // A rule that refuses a packet also drops it.
    if let Some(refusal) = trouble.refusal {
        return is_foreign(flow, &refusal) && is_failed();
    }
    let drops = &trouble.drops;
    let by_rule = |drop: &Dropped| {
        is_without_reason(drop)
            || is_without_verdict(drop)
            || drop.is("NETFILTER_DROP") && drop.opening && drop.stage != Stage::Reply
    };
    let is_silent = || flow.outcome() == Outcome::Silent;
    drops.iter().any(by_rule) && is_failed()
        || drops.iter().any(|drop| is_of_repeated(flow, drop)) && is_silent()
        || drops.iter().any(is_answer) && (!flow.is_tcp() || is_failed())
}

/// A packet that a rule stopped.
#[derive(Clone, Copy)]
struct Packet {
    stage: Stage,
    endpoint: Option<SocketAddr>,
    netns: Netns,
    last: Timestamp,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Dropped,
    /// With the hook, if the kernel reported it.
    Refused(Option<&'static str>),
}

impl Packet {
    fn of(drop: &Dropped) -> Self {
        let Dropped { stage, endpoint, netns, occurrences, .. } = *drop;
        Self { stage, endpoint, netns, last: occurrences.last, fate: Fate::Dropped }
    }

    /// The rules that stop it; `None` if this node's rules do not concern it or were not read.
    fn stops(&self, case: &Case<'_>) -> Option<Stops> {
        let node = case.ctx.node;
        node.rules_time?;
        if case.is_elsewhere(self.netns) {
            return None;
        }
        let unknown = Routes::default();
        let mut scene = Scene::new(&node.rules, node.routes.as_ref().unwrap_or(&unknown));
        scene.history = Some(case.ctx.cluster);
        scene.node = case.ctx.node_name;
        scene.ipvs_is_untracked =
            node.ipvs_settings.is_some_and(|settings| settings.conntrack == Some(false));
        let (is_refused, hook) = match self.fate {
            Fate::Dropped => (false, None),
            Fate::Refused(hook) => (true, hook),
        };
        scene.stops(&Crossing {
            orig: case.flow.orig,
            endpoint: self.endpoint.or(case.endpoint),
            is_reply: self.stage == Stage::Reply,
            is_refused,
            hook,
        })
    }

    fn finding(&self, case: &Case<'_>, what: &str, stops: Option<&Stops>) -> Finding {
        let node = case.ctx.node;
        let later = node.rules_time.map(|read| read.since(self.last)).unwrap_or_default();
        let only = stops.and_then(Stops::only).filter(|only| !only.is_kube_proxys);
        let what = only.map_or_else(|| what.to_owned(), |only| format!("{what}: {}", only.name));
        let is_sure = only.is_some() && later <= SAME_MOMENT;
        let confidence = if is_sure { Confidence::High } else { Confidence::Medium };
        let mut finding = case.finding(Class::C30, what).confidence(confidence);
        if self.fate == Fate::Dropped && only.is_none() {
            // An entry that could not be inserted drops its packet with the same reason (C17).
            finding = finding.if_nothing_was_lost();
        }
        let Some(stops) = stops else {
            return finding.unobserved(if case.is_elsewhere(self.netns) {
                "which chain or table stopped it: the rules of that network namespace were not read"
            } else {
                "which chain or table stopped it: this node's rules were not read"
            });
        };
        let verb = if self.fate == Fate::Dropped { "drops" } else { "refuses" };
        let mut finding = stops.by.iter().fold(finding, |finding, stop| {
            let Stop { name, text, depends_on, .. } = stop;
            let rule = if text.is_empty() { String::new() } else { format!(": `{text}`") };
            let condition =
                depends_on.as_ref().map(|why| format!("; it depends on whether {why}")).unwrap_or_default();
            finding.node(node.rules_time, format_args!("{name} {verb} this packet{rule}{condition}"))
        });
        if stops.more > 0 {
            finding = finding.unobserved(format_args!("{} further rules that can stop it", stops.more));
        }
        if stops.by.is_empty() {
            finding = finding.unobserved(format_args!(
                "which rule it is: no rule that was read on this node {verb} this packet. A rule that was removed since, a \
                 rule of a bridge or netdev table, or an eBPF program at a netfilter hook can"
            ));
        }
        if stops.is_open {
            finding = finding
                .unobserved("the packet's whole way: a rule hands it to something that cannot be judged");
        }
        let unread = unread(case);
        if only.is_none() && !unread.is_empty() {
            finding = finding.unobserved(format_args!("rules that were not read: {}", unread.join(", ")));
        }
        if later > SAME_MOMENT {
            let later = length(later);
            finding =
                finding.unobserved(format_args!("whether the rules changed: they were read {later} later"));
        }
        finding
    }
}

/// The lists of rules that could contain the rule and were not read.
fn unread(case: &Case<'_>) -> Vec<&'static str> {
    let listings = &case.ctx.node.listings;
    let lists = [
        (listings.iptables(Family::of(case.flow.orig.dst.ip())), "iptables"),
        (listings.nftables, "nftables"),
        (listings.others, "other programs' nftables tables"),
    ];
    let is_open = |listing: Listing| !listing.is_conclusive();
    lists.into_iter().filter(|(listing, _)| is_open(*listing)).map(|(_, name)| name).collect()
}
