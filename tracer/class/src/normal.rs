//! What is healthy, and what only looks broken: N1 to N20 and `ok`.

use crate::{Entry, Kind};

pub(super) const N1: Entry = Entry::normal("kubelet probe");
pub(super) const N2: Entry = Entry::normal("load balancer health check");
pub(super) const N3: Entry = Entry::normal("same packet before and after NAT");
pub(super) const N4: Entry = Entry::normal("client aborted");
pub(super) const N5: Entry = Entry::normal("idle timeout");
pub(super) const N6: Entry = Entry::normal("port reused");
pub(super) const N7: Entry = Entry::normal("conntrack pressure, packet accepted");
pub(super) const N8: Entry = Entry::normal("terminating endpoint still serving");
pub(super) const N9: Entry = Entry::normal("endpoint draining");
pub(super) const N10: Entry = Entry::normal("clash resolved");
pub(super) const N11: Entry = Entry::normal("untracked VIP");
pub(super) const N12: Entry = Entry::normal("offloaded flow");
pub(super) const N13: Entry = Entry::normal("NAT of another owner");
pub(super) const N14: Entry = Entry::normal("masqueraded source");
pub(super) const N15: Entry = Entry::normal("kube-proxy draining");
pub(super) const N16: Entry = Entry::normal("background noise");
pub(super) const N17: Entry = Entry::normal("losing attempt of a racing client");
pub(super) const N18: Entry = Entry::normal("kernel timer");
pub(super) const N19: Entry = Entry::normal("refused by design");
pub(super) const N20: Entry = Entry::normal("sent, answer not seen");
pub(super) const Ok: Entry = Entry { kind: Kind::Ok, ..Entry::normal("healthy") };
