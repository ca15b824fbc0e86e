//! Findings without a class in the catalogue, named after their check (K1 to K11), and unexplained flows.

use crate::{
    Action,
    Domain::{self, HostKernel, NetworkPath, Normal},
    Entry, Kind,
    Seen::{Check, Trace},
    Severity::{High, Low, Medium, None},
    action::{self, slices},
};

pub(super) const K1: Entry = Entry {
    kind: Kind::Unknown,
    ..Entry::fault("Services left to another dataplane", &[Domain::Unknown], None)
}
.seen(Check)
.now(&[Action::reads("use the tools of {DATAPLANE}")])
.no_scenario("the lab has no dataplane but kube-proxy's");
pub(super) const K3: Entry = Entry { domains: &[Normal], ..Entry::normal("deprecated proxy mode") }
    .seen(Check)
    .later(&[action::MOVE_TO_NFTABLES])
    .references(&["KEP-5495"])
    .no_scenario("it is a note; tests/it/check_captures.rs checks captures in ipvs mode");
// The path if the node is not Ready, the kernel if the node is under pressure.
pub(super) const K10: Entry =
    Entry::fault("node not Ready, or under pressure", &[NetworkPath, HostKernel], High)
        .seen(Check)
        .now(&[Action::reads("`kubectl describe node {NODE}`; on the node: `journalctl -u kubelet`")])
        .no_scenario(
            "the lab's kubelet is a list of objects; tests/it/check_faults.rs changes the Node's conditions",
        );
pub(super) const K11: Entry = Entry::fault("kernel setting that breaks a proxy mode", &[HostKernel], Medium)
    .seen(Check)
    .now(&[action::SET_TO_1])
    .later(&[Action::disrupts("set it in /etc/sysctl.d, and find what resets it")])
    .no_scenario(
        "the lab has only a trace without conntrack; tests/it/check_faults.rs changes the captured setting",
    );
pub(super) const Unknown: Entry =
    Entry { kind: Kind::Unknown, ..Entry::fault("not explained", &[Domain::Unknown], Low) }
        .seen(Trace)
        .now(&[Action::reads(concat!("inspect the Service: ", slices!())), action::READ_OTHER_DATAPLANE])
        .later(&[Action::reads("trace again with every hook, from before the connection begins")])
        .no_scenario("a flow that no rule explains is a gap; the lab has no scenario that ends in one");
