//! The reports of a kernel in ipvs mode: IPVS translates behind the NAT hooks, which bind nothing.

use viptrace::{
    net::{Netns, Protocol, Tuple},
    sighting::{
        Conntrack, ConntrackFact, EntryNote, Fact, Hook, IpvsFact, IpvsFlags, PacketFact, Sighting, Status,
        TcpState,
    },
};

use crate::flow_support::{CLIENT, NODE, Script, VIP, addr, at};

/// A connection whose entry IPVS changes: null bindings at the NAT hooks, then another reply tuple, no DNAT bit.
pub(crate) fn by_ipvs(mut script: Script) -> Script {
    for sighting in &mut script.out {
        match &mut sighting.fact {
            Fact::Conntrack(fact) => fact.ct.status.0 &= !Status::DST_NAT,
            Fact::Packet(PacketFact { ct: Some(ct), .. }) => ct.status.0 &= !Status::DST_NAT,
            _ => {}
        }
    }
    script
}

pub(crate) fn orig() -> Tuple {
    Tuple::new(Protocol::TCP, addr(CLIENT), addr(VIP))
}

/// The entry of a packet that was not translated.
pub(crate) fn null_bound(id: u64, status: u32) -> Conntrack {
    let status = Status(status | Status::DST_NAT_DONE | Status::SRC_NAT_DONE);
    Conntrack { id, zone: 0, status, orig: orig(), reply: orig().reversed() }
}

pub(crate) fn seen(ms: u64, hook: Hook, netns: Netns, fact: Fact) -> Sighting {
    Sighting { time: at(ms), cpu: 0, hook, netns, fact }
}

pub(crate) fn packet(
    ms: u64,
    hook: Hook,
    flags: u8,
    ct: Option<Conntrack>,
    reason: Option<&str>,
) -> Sighting {
    let fact = PacketFact {
        skb: 0xffff_8881_0000_0000,
        tuple: Some(orig()),
        tcp_flags: flags,
        original_direction: ct.map(|_| true),
        ct,
        reason: reason.map(Into::into),
        site: None,
        icmp_code: None,
        nf_hook: None,
        table_full: false,
    };
    seen(ms, hook, NODE, Fact::Packet(fact))
}

pub(crate) const SYN: u8 = 2;
pub(crate) const FIN_ACK: u8 = 17;
pub(crate) const PSH_ACK: u8 = 24;

/// `ip_vs_leave` and the drop after it.
pub(crate) fn refused_by_ipvs(mut script: Script, ms: u64) -> Script {
    let mut refused = [
        packet(ms, Hook::IpVsLeave, SYN, None, None),
        packet(ms, Hook::KfreeSkb, SYN, None, Some("NETFILTER_DROP")),
    ];
    for sighting in &mut refused {
        if let Fact::Packet(packet) = &mut sighting.fact {
            let entry = null_bound(0x1000, 0);
            let (orig, reply) = (script.orig(), script.orig().reversed());
            packet.tuple = Some(orig);
            packet.ct = Some(Conntrack { orig, reply, ..entry });
            packet.original_direction = Some(true);
        }
    }
    script.out.extend(refused);
    script.connect_failed(ms + 1)
}

pub(crate) fn chosen(ms: u64, client: &str, destination: &str, flags: u32) -> Sighting {
    let tuple = Tuple::new(Protocol::TCP, addr(client), addr(VIP));
    let fact = IpvsFact { tuple, destination: addr(destination), flags: IpvsFlags(flags) };
    seen(ms, Hook::IpVsConnNew, NODE, Fact::Ipvs(fact))
}

/// A packet of an established connection reaches the node's own stack: conntrack picks it up, the stack resets it.
pub(crate) fn reset_by_the_node(mut script: Script, ms: u64) -> Script {
    let ct = null_bound(0x2000, 0);
    let confirmed = ConntrackFact { ct, task: None, note: EntryNote::default() };
    script.out.push(seen(ms, Hook::Confirm, NODE, Fact::Conntrack(confirmed)));
    let ct = null_bound(0x2000, Status::CONFIRMED);
    script.out.push(packet(ms, Hook::TcpSendReset, PSH_ACK, Some(ct), Some("NO_SOCKET")));
    script.out.push(packet(ms, Hook::KfreeSkb, PSH_ACK, Some(ct), Some("NO_SOCKET")));
    script.receive_reset(ms + 1, TcpState::Established).state(
        ms + 1,
        false,
        TcpState::Established,
        TcpState::Close,
    )
}

/// conntrack calls a FIN without an entry invalid, so that the packet has none.
pub(crate) fn close_that_the_node_resets(mut script: Script, ms: u64) -> Script {
    let mut close = packet(ms, Hook::TcpSendReset, FIN_ACK, None, Some("NO_SOCKET"));
    if let Fact::Packet(packet) = &mut close.fact {
        packet.tuple = Some(script.orig());
    }
    script.out.push(close);
    script
}
