//! What the kernel left out without a record that could be counted as lost.

use crate::{kernel::attached::Probe, sighting::Hook};

/// Hooks whose programs report nearly whenever they run, and what of how many is missing where one did not. Of the
/// others nobody could say whether a run that was left out would have told anything.
const TELL: [(Hook, &str); 14] = [
    (Hook::Confirm, "packets at most the NAT decision"),
    (Hook::Delete, "conntrack entries at most the end"),
    (Hook::KillAcct, "conntrack entries at most that a RST ended them"),
    (Hook::ResolveClash, "conntrack entries at most that they clashed"),
    (Hook::SendUnreach, "packets at most that a rule refused them"),
    (Hook::SendUnreach6, "packets at most that a rule refused them"),
    (Hook::NfSendReset, "packets at most that a rule refused them"),
    (Hook::NfSendReset6, "packets at most that a rule refused them"),
    (Hook::IcmpError, "ICMP errors at most that they came"),
    (Hook::IcmpError6, "ICMP errors at most that they came"),
    (Hook::SockState, "sockets at most a beginning or an end"),
    (Hook::TcpRetransmit, "segments at most that they were sent again"),
    (Hook::TcpSendReset, "RSTs at most that they were sent"),
    (Hook::TcpReceiveReset, "RSTs at most that they were received"),
];

/// A line for each hook whose programs the kernel left out.
pub(super) fn told(probe: &Probe) -> Vec<String> {
    let missed = TELL.iter().map(|(hook, what)| (hook, what, probe.missed_runs(*hook)));
    missed
        .filter(|(.., count)| *count > 0)
        .map(|(hook, what, count)| {
            format!(
                "{}: the kernel left its programs out up to {count} times, because they were busy on that CPU: of \
                 that many {what} was not seen",
                hook.symbol()
            )
        })
        .collect()
}
