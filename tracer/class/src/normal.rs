//! Healthy flows, and look-alikes of faults: N1 to N20 and `ok`.

use crate::{
    Entry, Kind,
    Seen::{Both, Check, Trace},
    action,
};

/// A look-alike that no verdict has, for the reason given.
const fn not_reported(title: &'static str, reason: &'static str) -> Entry {
    Entry::normal(title)
        .no_rule(reason)
        .no_scenario("no record names it, so that a scenario would have nothing to expect")
}

pub(super) const N1: Entry = Entry::normal("kubelet probe")
    .seen(Trace)
    .now(&[action::DESCRIBE_PROBED_POD])
    .references(&["kubernetes/kubernetes#115143"])
    .lab(&["n1-probes"]);
pub(super) const N2: Entry = Entry::normal("load balancer health check")
    .seen(Trace)
    .no_scenario("the lab has no load balancer; tests/it/verdict_ordinary.rs connects at its period");
pub(super) const N3: Entry = Entry::normal("same packet before and after NAT")
    .no_rule("its sightings are merged into one flow, so that nothing is left to report")
    .lab(&["n3-one-record-per-connection"]);
pub(super) const N4: Entry = Entry::normal("client aborted").seen(Trace).lab(&["n4-reset-by-client"]);
pub(super) const N5: Entry = Entry::normal("idle timeout").seen(Trace).no_scenario(
    "keepalive has to give up, or an entry to time out, which takes minutes; tests/it/verdict_resets.rs and tests/it/verdict_ordinary.rs build both",
);
pub(super) const N6: Entry =
    not_reported("port reused", "the new connection is a flow of its own, with its own verdict");
pub(super) const N7: Entry = Entry::normal("conntrack pressure, packet accepted").seen(Check).no_scenario(
    "entries are evicted only for a moment before the table is full; tests/it/check_faults.rs changes the counters",
);
pub(super) const N8: Entry =
    Entry::normal("terminating endpoint still serving").seen(Trace).lab(&["n8-terminating"]);
pub(super) const N9: Entry = Entry::normal("endpoint draining")
    .seen(Trace)
    .later(&[action::DRAIN_GRACEFULLY])
    .lab(&["n9-old-flow-reset", "n9-old-flow-stalls"]);
pub(super) const N10: Entry = Entry::normal("conntrack clash resolved").seen(Trace).lab(&["n10-udp-race"]);
pub(super) const N11: Entry = Entry::normal("untracked VIP")
    .seen(Trace)
    .no_scenario("the lab has no NodeLocal DNSCache; tests/it/verdict_missing.rs gives the node the address");
pub(super) const N12: Entry = not_reported(
    "offloaded flow",
    "the flow is judged by its beginning and end; the evidence names the offload where it was seen",
);
pub(super) const N13: Entry = not_reported(
    "NAT of another owner",
    "flows that no Service owns get no verdict, and decisions of other owners are not used as those of kube-proxy",
);
pub(super) const N14: Entry = Entry::normal("masqueraded source")
    .no_rule("it is no outcome of a flow: every verdict of such a flow has it in its evidence")
    .lab(&["kinds-addresses"]);
pub(super) const N15: Entry = Entry::normal("kube-proxy draining")
    .seen(Check)
    .references(&["kubernetes/kubernetes#116470"])
    .no_scenario(
        "the lab has no autoscaler that removes a node; tests/it/check_faults.rs changes a \
         captured health answer",
    );
pub(super) const N16: Entry = Entry::normal("background noise")
    .seen(Trace)
    .no_scenario("the lab's connections leave no late segments; tests/it/verdict_ordinary.rs builds one");
pub(super) const N17: Entry = Entry::normal("losing attempt of a racing client").seen(Trace).no_scenario(
    "the lab's clients have one address for a name; tests/it/verdict_resets.rs resets within the moment",
);
pub(super) const N18: Entry = not_reported(
    "kernel timer after an abort",
    "a retransmitted SYN-ACK alone makes no verdict; the flow is judged by its client",
);
pub(super) const N19: Entry =
    Entry::normal("refused by design").seen(Both).now(&[action::FIND_SCALER]).no_scenario(
        "the lab's API server has no workloads to scale; tests/it/check_neighbours.rs and tests/it/verdict_ordinary.rs \
         remove the Pods of a Service",
    );
pub(super) const N20: Entry =
    Entry::normal("datagram sent, answer not seen").seen(Trace).lab(&["ipvs-without-conntrack"]);
pub(super) const Ok: Entry =
    Entry { kind: Kind::Ok, ..Entry::normal("healthy") }.seen(Trace).lab(&["healthy-tcp", "healthy-udp"]);
