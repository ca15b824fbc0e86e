//! C31: a Pod that reaches itself through its Service. (`resets` has answers that bypass the node's NAT.)

use std::net::IpAddr;

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence, action},
    node::interfaces::Interface,
    rules::walk::Devices as _,
    sighting::Status,
    text::phrase,
};

/// C31; `None` where hairpin mode and masquerading are as they have to be.
/// Mechanism: NAT chose the client itself. Its packets return only if the source is masqueraded (otherwise the Pod's
/// stack sees its own address as the source and drops the packet as a martian), and if the bridge, where there is one, sends a
/// packet out of its incoming port (hairpin mode).
/// For: the endpoint is the client, and nothing answered. The reply tuple shows which of the two is missing, unless the
/// packet ended before its source was decided: a bridge without hairpin mode drops it there.
/// Against: a Pod that does not listen and a Pod that the packet does not reach look the same here. A routed CNI has no
/// bridge (Calico, the AWS VPC CNI): then the endpoint is silent (C29).
pub(super) fn itself(case: &Case<'_>, pod: IpAddr) -> Option<Finding> {
    let entry = case.decision.map(|decision| decision.ct);
    let masqueraded = entry.is_some_and(|ct| ct.masqueraded());
    let source_decided = entry.is_some_and(|ct| ct.status.has(Status::SRC_NAT_DONE));
    let bridge = bridge(case, pod);
    let may_end_at_bridge = masqueraded || !source_decided;
    if bridge == Bridge::NotInTheWay && may_end_at_bridge {
        return None;
    }
    let is_off = matches!(bridge, Bridge::WithoutHairpin { .. });
    let (lacks, look, unseen) = if masqueraded && is_off {
        (
            "hairpin mode is off at ports of the bridge in front of it, and those send no packet back",
            action::SHOW_HAIRPIN_MODE,
            "which of the bridge's ports is the Pod's",
        )
    } else if masqueraded {
        (
            "a bridge in front of it sends a packet back only in hairpin mode",
            action::SHOW_HAIRPIN_MODE,
            "whether a bridge connects the Pod, and its port's hairpin mode",
        )
    } else if source_decided {
        (
            "the source was not masqueraded, and a Pod drops packets that come from its own address",
            action::SHOW_MASQUERADE,
            "the rule that should mark it for masquerading",
        )
    } else {
        (
            "the packet ended before its source was decided, as at a bridge port without hairpin mode",
            action::SHOW_HAIRPIN_MODE,
            "the bridge port's hairpin mode, and whether a rule would masquerade the source",
        )
    };
    let finding = case
        .finding(
            Class::C31,
            format_args!(
                "{} connected to {}, NAT chose that Pod itself, and no answer came: {lacks}",
                case.endpoint_name(),
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .unobserved(unseen)
        .now(&[look]);
    Some(match bridge {
        Bridge::WithoutHairpin { name, off, ports } if may_end_at_bridge => finding.node(
            case.ctx.node.read_at(),
            phrase!("{off} of {ports} ports of bridge {name} have no hairpin mode"),
        ),
        _ => finding,
    })
}

/// The bridge on the way to a Pod of this node.
#[derive(Debug, PartialEq, Eq)]
enum Bridge<'a> {
    /// Some of its ports do not send packets back.
    WithoutHairpin {
        name: &'a str,
        off: usize,
        ports: usize,
    },
    /// There is none, or it sends packets back.
    NotInTheWay,
    Unknown,
}

fn bridge<'a>(case: &Case<'a>, pod: IpAddr) -> Bridge<'a> {
    let node = case.ctx.node;
    let known = || {
        let interfaces = node.interfaces.as_ref()?;
        let way = interfaces.get(node.routes.as_ref()?.device_to(pod)?).filter(|way| !way.kind.is_empty())?;
        if way.kind != "bridge" || way.promiscuous {
            return Some(Bridge::NotInTheWay);
        }
        let ports: Vec<&Interface> = interfaces.ports(&way.name).collect();
        let have = |hairpin| ports.iter().filter(|port| port.hairpin == Some(hairpin)).count();
        match (have(false), have(true), ports.len()) {
            (off @ 1.., _, ports) => Some(Bridge::WithoutHairpin { name: &way.name, off, ports }),
            (0, on @ 1.., ports) if on == ports => Some(Bridge::NotInTheWay),
            _ => None,
        }
    };
    known().unwrap_or(Bridge::Unknown)
}
