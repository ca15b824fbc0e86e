//! What is healthy, and what only looks broken: N1 to N20 and `ok`.

use crate::{
    Entry, Kind,
    Seen::{Check, Trace},
    action,
};

/// Why a look-alike without a verdict has no scenario.
const NO_VERDICT: &str = "no verdict has it: a trace leaves it out, or judges the flow as what it is besides";

pub(super) const N1: Entry = Entry::normal("kubelet probe")
    .seen(Trace)
    .now(&[action::DESCRIBE_PROBED_POD])
    .references(&["kubernetes/kubernetes#115143"])
    .lab(&["n1-probes"]);
pub(super) const N2: Entry = Entry::normal("load balancer health check").no_scenario(NO_VERDICT);
pub(super) const N3: Entry =
    Entry::normal("same packet before and after NAT").lab(&["n3-one-record-per-connection"]);
pub(super) const N4: Entry = Entry::normal("client aborted").seen(Trace).lab(&["n4-reset-by-client"]);
pub(super) const N5: Entry = Entry::normal("idle timeout").seen(Trace).no_scenario(
    "keepalive has to give up, which takes minutes; tests/it/verdict_resets.rs gives the kernel's reason",
);
pub(super) const N6: Entry = Entry::normal("port reused").no_scenario(NO_VERDICT);
pub(super) const N7: Entry = Entry::normal("conntrack pressure, packet accepted").no_scenario(NO_VERDICT);
pub(super) const N8: Entry =
    Entry::normal("terminating endpoint still serving").seen(Trace).lab(&["n8-terminating"]);
pub(super) const N9: Entry = Entry::normal("endpoint draining")
    .seen(Trace)
    .later(&[action::DRAIN_GRACEFULLY])
    .lab(&["n9-old-flow-reset", "n9-old-flow-stalls"]);
pub(super) const N10: Entry = Entry::normal("conntrack clash resolved").seen(Trace).lab(&["n10-udp-race"]);
pub(super) const N11: Entry = Entry::normal("untracked VIP").no_scenario(NO_VERDICT);
pub(super) const N12: Entry = Entry::normal("offloaded flow").no_scenario(NO_VERDICT);
pub(super) const N13: Entry = Entry::normal("NAT of another owner").no_scenario(NO_VERDICT);
pub(super) const N14: Entry = Entry::normal("masqueraded source").lab(&["kinds-addresses"]);
pub(super) const N15: Entry = Entry::normal("kube-proxy draining")
    .seen(Check)
    .references(&["kubernetes/kubernetes#116470"])
    .no_scenario(
        "the lab has no autoscaler that removes a node; tests/it/check_faults.rs changes a \
         captured health answer",
    );
pub(super) const N16: Entry = Entry::normal("background noise").no_scenario(NO_VERDICT);
pub(super) const N17: Entry = Entry::normal("losing attempt of a racing client").seen(Trace).no_scenario(
    "the lab's clients have one address for a name; tests/it/verdict_resets.rs resets within the moment",
);
pub(super) const N18: Entry = Entry::normal("kernel timer after an abort").no_scenario(NO_VERDICT);
pub(super) const N19: Entry = Entry::normal("refused by design").no_scenario(NO_VERDICT);
pub(super) const N20: Entry =
    Entry::normal("datagram sent, answer not seen").seen(Trace).lab(&["ipvs-without-conntrack"]);
pub(super) const Ok: Entry =
    Entry { kind: Kind::Ok, ..Entry::normal("healthy") }.seen(Trace).lab(&["healthy-tcp", "healthy-udp"]);
