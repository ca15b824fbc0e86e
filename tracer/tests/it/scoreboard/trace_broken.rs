//! Established connections that are reset or fall silent.

use viptrace::{
    class::Class,
    cluster::Via,
    node::ProxyMode,
    sighting::{Conntrack, Fact, Hook, SocketEvent, Status, TcpState},
};

use super::{
    Iptables, Ipvs, Nftables,
    case::{Group, case, case_in},
    constructed::{OTHER, Traced, cart, falls_silent, reached_by, reset_by_client, reset_by_endpoint, world},
};
use crate::{
    flow_support::{EP, Script, VIP, World, addr},
    ipvs_support::{PSH_ACK, close_that_the_node_resets, packet, reset_by_the_node},
};

pub(super) fn groups() -> Vec<Group<Traced>> {
    vec![reset(), silent()]
}

const BY_RULE: &[ProxyMode] = &[Iptables, Nftables];

const OUT_OF_WINDOW: &str = "SEQ is over upper bound %u (over the window of the receiver)";

/// The client closes a connection that was idle for longer than IPVS keeps it.
fn late_close() -> Script {
    let script = cart().established(10_000).delete(910_000, Status::SEEN_REPLY | Status::ASSURED);
    let script = close_that_the_node_resets(script, 1_000_000);
    let script = script.receive_reset(1_000_001, TcpState::FinWait1);
    script.state(1_000_001, false, TcpState::FinWait1, TcpState::Close)
}

/// The Pod of cart's endpoint is deleted at this time, in milliseconds.
fn leaving(mode: ProxyMode, ms: u64) -> World {
    let mut world = deselected(mode, ms);
    world.shop.pod_is_deleted(EP, ms);
    world
}

/// cart's selector moves to another version, and the Pod of its endpoint runs on.
fn deselected(mode: ProxyMode, ms: u64) -> World {
    let mut world = world(mode);
    world.shop.leaves(EP, ms);
    world
}

/// The segments of an open connection are reset by an endpoint that does not know it.
fn unknown_there(script: Script, ms: u64) -> Script {
    script.endpoint_has_no_connection(ms).receive_reset(ms + 1, TcpState::Established).state(
        ms + 1,
        false,
        TcpState::Established,
        TcpState::Close,
    )
}

/// Neither end has carried data.
fn wordless(mut script: Script) -> Script {
    for sighting in &mut script.out {
        if let Fact::Socket(socket) = &mut sighting.fact {
            (socket.bytes_acked, socket.bytes_received) = (1, 0);
        }
    }
    script
}

/// The entry of the established connection, as later packets carry it in ipvs mode.
fn old_entry() -> Conntrack {
    Conntrack { status: Status(0x18e), ..cart().entry(0) }
}

fn reset() -> Group<Traced> {
    let cases = vec![
        case(Class::C18, "an answer out of window reaches the client untranslated", |mode| {
            let script = cart().established(10_000).invalid_answer(12_000, OUT_OF_WINDOW);
            let script = script.client_has_no_socket(12_001, addr(EP));
            Traced::of(world(mode), unknown_there(script, 13_000))
        }),
        case(Class::C18, "the same, and no hook reports invalid packets", |mode| {
            let script = cart().established(10_000).client_has_no_socket(12_001, addr(EP));
            Traced::of(world(mode), unknown_there(script, 13_000))
        }),
        case_in(
            BY_RULE,
            Class::C19,
            "the entry was deleted, and another endpoint gets the next segment",
            |mode| {
                let mut world = world(mode);
                world.shop.ready(OTHER, 0);
                let before = cart().established(10_000).delete_by_hand(12_000);
                let after = Script::new(&cart().client.to_string(), VIP, Some(OTHER)).with_ct(77);
                let mut after = unknown_there(after.confirm_midstream(13_000), 13_001);
                after.out.splice(0..0, before.out);
                Traced::of(world, after)
            },
        ),
        case_in(BY_RULE, Class::N9, "the same after its endpoint left", |mode| cleaned_up(mode, 11_000)),
        case_in(BY_RULE, Class::C7, "the same long after its endpoint left", |mode| cleaned_up(mode, 40_000)),
        case_in(BY_RULE, Class::C19, "the first entry that was seen is one for a segment", |mode| {
            let script = cart().confirm_midstream(20_000).endpoint_has_no_connection(20_001);
            Traced::of(world(mode), script.receive_reset(20_002, TcpState::Established))
        }),
        case_in(BY_RULE, Class::C19, "the client of the picked-up connection is on another node", |mode| {
            let script = Script::new("203.0.113.9:40000", VIP, Some(EP)).confirm_midstream(20_000);
            Traced::of(world(mode), script.endpoint_has_no_connection(20_001))
        }),
        case_in(BY_RULE, Class::N16, "a late segment of a connection that has ended", |mode| {
            let script = cart().confirm_midstream(20_000).endpoint_has_no_connection(20_001);
            Traced::of(world(mode), script)
        }),
        case_in(&[Ipvs], Class::C15, "the entry expired while the connection was idle", |mode| {
            let script = cart().established(10_000).delete(910_000, Status::SEEN_REPLY | Status::ASSURED);
            Traced::of(world(mode), reset_by_the_node(script, 1_000_000))
        }),
        case_in(&[Ipvs], Class::N5, "the entry expired, and only the client's close is reset", |mode| {
            Traced::of(world(mode), late_close())
        }),
        case_in(&[Ipvs], Class::N9, "the same after its endpoint left", |mode| {
            Traced::of(leaving(mode, 60_000), late_close())
        }),
        case_in(&[Ipvs], Class::C13, "the real server was removed, and a packet ends the entry", |mode| {
            let mut script = cart().established(10_000);
            let expires =
                packet(40_000, Hook::IpVsConnExpire, PSH_ACK, Some(old_entry()), Some("NETFILTER_DROP"));
            script.out.push(expires);
            let script = script.delete(40_001, Status::SEEN_REPLY);
            let script = script.retransmit(40_200, TcpState::Established);
            Traced::of(leaving(mode, 20_000), reset_by_the_node(script, 40_200))
        }),
        case_in(&[Ipvs], Class::C13, "the real server was removed together with its entries", |mode| {
            let script = cart().established(10_000).delete(30_000, Status::SEEN_REPLY | Status::ASSURED);
            Traced::of(leaving(mode, 29_900), reset_by_the_node(script, 40_000))
        }),
        case_in(&[Ipvs], Class::C15, "the same while the endpoint is listed", |mode| {
            let script = cart().established(10_000).delete(30_000, Status::SEEN_REPLY | Status::ASSURED);
            Traced::of(world(mode), reset_by_the_node(script, 40_000))
        }),
        case(Class::C7, "the endpoint left 80 s before", |mode| {
            Traced::of(leaving(mode, 20_000), reset_by_endpoint(cart().established(10_000), 100_000))
        }),
        case(Class::N9, "the endpoint left ten seconds before", |mode| {
            Traced::of(leaving(mode, 20_000), reset_by_endpoint(cart().established(10_000), 30_000))
        }),
        case(Class::Ok, "the endpoint left 80 s before, and its Pod runs on", |mode| {
            Traced::of(deselected(mode, 20_000), reset_by_endpoint(cart().established(10_000), 100_000))
        }),
        case(Class::Ok, "the application of a listed endpoint resets", |mode| {
            Traced::of(world(mode), reset_by_endpoint(cart().established(10_000), 15_000))
        }),
        case(Class::Ok, "a late answer reaches a client that has closed", |mode| {
            let script = cart().healthy(10_000).client_has_no_socket(10_500, addr(EP));
            Traced::of(world(mode), script)
        }),
        case(Class::N4, "the client aborts", |mode| {
            let script = reset_by_client(cart().established(10_000), 10_050, "TCP_ABORT_ON_DATA");
            Traced::of(world(mode), script)
        }),
        case(Class::N4, "the client aborts after the endpoint left", |mode| {
            let script = reset_by_client(cart().established(10_000), 100_000, "TCP_ABORT_ON_DATA");
            Traced::of(leaving(mode, 20_000), script)
        }),
        case(Class::N4, "the client's RST passed between two other hosts", |mode| {
            let script = cart().confirm(10_000).transit_reset(11_000, true, Status::SEEN_REPLY);
            Traced::of(world(mode), script)
        }),
        case(Class::N4, "the client aborts after a second without data", |mode| {
            let script = reset_by_client(cart().established(10_000), 11_000, "TCP_ABORT_ON_LINGER");
            Traced::of(world(mode), wordless(script))
        }),
        case(Class::N17, "the client aborts at once and without data", |mode| {
            let script = reset_by_client(cart().established(10_000), 10_120, "TCP_ABORT_ON_LINGER");
            Traced::of(world(mode), wordless(script))
        }),
        case(Class::N5, "keepalive gives up an idle connection", |mode| {
            let script = reset_by_client(cart().established(10_000), 900_000, "TCP_KEEPALIVE_TIMEOUT");
            Traced::of(world(mode), script)
        }),
        case_in(
            BY_RULE,
            Class::N5,
            "the endpoint had closed, and another one gets what the client writes",
            |mode| {
                let mut world = world(mode);
                world.shop.ready(OTHER, 0);
                Traced::of(world, written_after_close())
            },
        ),
        case_in(
            &[Ipvs],
            Class::N5,
            "the endpoint had closed, and the node resets what the client writes",
            |mode| Traced::of(world(mode), written_without_entry()),
        ),
        case_in(&[Ipvs], Class::N9, "the same after the endpoint left", |mode| {
            Traced::of(leaving(mode, 20_000), written_without_entry())
        }),
        case_in(BY_RULE, Class::Ok, "a segment is picked up by the same endpoint", |mode| {
            Traced::of(world(mode), cart().confirm_midstream(13_000).closed(14_000))
        }),
    ];
    Group { symptom: "an established connection is reset", cases }
}

fn silent() -> Group<Traced> {
    let cases = vec![
        case(Class::C29, "the endpoint is silent", |mode| {
            Traced::of(world(mode), falls_silent(cart().established(10_000), 20_000))
        }),
        case(Class::C29, "its client, on another node, is silent", |mode| {
            let script = cart().confirm(10_000).state(10_002, true, TcpState::SynRecv, TcpState::Established);
            Traced::of(world(mode), repeats(script, 120))
        }),
        case(Class::Ok, "its client outside is silent", |mode| {
            let script = Script::new("203.0.113.9:40000", "192.168.1.2:30080", Some(EP)).confirm(10_000);
            let script = script.state(10_002, true, TcpState::SynRecv, TcpState::Established);
            Traced::of(reached_by(mode, Via::NodePort, "192.168.1.2:30080"), repeats(script, 120))
        }),
        case(Class::C29, "the entry ended long after the silence began", |mode| {
            let script = falls_silent(cart().established(10_000), 20_000);
            let script = script.delete(120_000, Status::SEEN_REPLY | Status::ASSURED);
            Traced::of(world(mode), script)
        }),
        case(Class::N5, "the endpoint had closed before the client wrote", |mode| {
            let script =
                cart().confirm(10_000).state(10_001, false, TcpState::SynSent, TcpState::Established);
            Traced::of(world(mode), in_close_wait(falls_silent(script, 20_000)))
        }),
        case(Class::C7, "the endpoint left 40 s before", |mode| {
            Traced::of(leaving(mode, 20_000), falls_silent(cart().established(10_000), 60_000))
        }),
        case(Class::N9, "the endpoint left ten seconds before, and the client gives up", |mode| {
            let script = [30_200, 30_600, 31_400, 33_000]
                .iter()
                .fold(cart().established(10_000), |it, ms| it.retransmit(*ms, TcpState::Established));
            Traced::after(leaving(mode, 20_000), script, 1_500)
        }),
        case(Class::C30, "a rule that came later drops its segments", |mode| {
            let script = falls_silent(cart().established(10_000), 20_000);
            Traced::of(world(mode), script.drop_later(20_001, "NETFILTER_DROP").in_order())
        }),
        case(Class::C33, "its segments are larger than the path's MTU", |mode| {
            let script = cart().established(10_000).icmp_error(20_000, "10.244.1.1:0", 4);
            Traced::of(world(mode), falls_silent(script, 20_001))
        }),
        case(Class::C33, "its large segments are lost, and no ICMP error comes", |mode| {
            Traced::of(world(mode), repeats(cart().established(10_000), 1_398))
        }),
        case(Class::C29, "its small segments are lost too", |mode| {
            Traced::of(world(mode), repeats(cart().established(10_000), 120))
        }),
        case(Class::Ok, "the sender heeds the ICMP error", |mode| {
            let script = cart().established(10_000).icmp_error(20_000, "10.244.1.1:0", 4);
            Traced::of(world(mode), script.closed(21_000))
        }),
        case_in(BY_RULE, Class::C34, "a masqueraded connection leaves by another interface", |mode| {
            let script = masqueraded().established(10_000).kill_answered(20_000);
            let script = script.drop_later(20_000, "NETFILTER_DROP");
            Traced::of(world(mode), falls_silent(script, 20_200))
        }),
        case_in(BY_RULE, Class::C18b, "invalid answers are dropped", |mode| {
            let script = cart().established(10_000).invalid_answer(12_000, OUT_OF_WINDOW);
            Traced::of(world(mode), falls_silent(script.drop_invalid(12_000), 12_200))
        }),
        case(Class::Ok, "one invalid answer is dropped, and the connection goes on", |mode| {
            let script = cart().established(10_000).invalid_answer(12_000, OUT_OF_WINDOW);
            Traced::of(world(mode), script.drop_invalid(12_000).closed(13_000))
        }),
        case_in(BY_RULE, Class::C19, "the entry timed out, and the client sends data", |mode| {
            let script = cart().established(10_000).delete(100_000, Status::SEEN_REPLY | Status::ASSURED);
            Traced::of(world(mode), falls_silent(script, 200_000))
        }),
        case_in(BY_RULE, Class::N5, "the entry timed out, and only the close is lost", |mode| {
            let script = cart().established(10_000).delete(100_000, Status::SEEN_REPLY | Status::ASSURED);
            let script = [200_200, 200_600, 201_400, 203_000, 206_200]
                .iter()
                .fold(script, |script, ms| script.retransmit(*ms, TcpState::FinWait1));
            Traced::of(world(mode), script)
        }),
        case_in(&[Ipvs], Class::C13, "the real server was removed, and IPVS drops its packets", |mode| {
            Traced::of(leaving(mode, 20_000), dropped_by_ipvs())
        }),
        case(Class::Unknown, "the SYNs of another connection were lost with the events", |mode| {
            Traced::with_losses(world(mode), cart().healthy(10_000))
        }),
    ];
    Group { symptom: "an established connection falls silent", cases }
}

/// All that befalls the client's established socket befalls it in `CLOSE_WAIT`.
fn in_close_wait(mut script: Script) -> Script {
    for sighting in &mut script.out {
        if let Fact::Socket(socket) = &mut sighting.fact {
            match &mut socket.event {
                SocketEvent::State { old: state, .. }
                | SocketEvent::Retransmit { state, .. }
                | SocketEvent::SendReset { state, .. }
                | SocketEvent::ReceiveReset { state } => {
                    if *state == TcpState::Established {
                        *state = TcpState::CloseWait;
                    }
                }
            }
        }
    }
    script
}

/// The endpoint, on another node, has closed; the entry is deleted before the client writes.
fn written_after_close() -> Script {
    let script = cart().confirm(10_000).state(10_001, false, TcpState::SynSent, TcpState::Established);
    let mut script = script.delete_by_hand(80_000);
    let after = Script::new(&cart().client.to_string(), VIP, Some(OTHER)).with_ct(77);
    script.out.append(&mut in_close_wait(unknown_there(after.confirm_midstream(100_000), 100_001)).out);
    script
}

/// The same in ipvs mode.
fn written_without_entry() -> Script {
    let script = cart().confirm(10_000).state(10_001, false, TcpState::SynSent, TcpState::Established);
    let script = script.delete(80_000, Status::SEEN_REPLY | Status::ASSURED);
    in_close_wait(reset_by_the_node(script, 100_000))
}

fn masqueraded() -> Script {
    let mut script = cart();
    script.masquerade = Some(addr("10.244.1.1:52000"));
    script
}

fn dropped_by_ipvs() -> Script {
    let mut script = cart().established(10_000);
    for ms in [40_000, 40_200, 40_600, 41_400, 43_000] {
        script.out.push(packet(ms, Hook::KfreeSkb, PSH_ACK, Some(old_entry()), Some("NETFILTER_DROP")));
        script = script.retransmit(ms + 1, TcpState::Established);
    }
    script
}

/// The endpoint repeats its first answer, of so many bytes.
/// The endpoint leaves after ten seconds, and its entries are deleted a moment before the idle client sends on.
fn cleaned_up(mode: ProxyMode, idle: u64) -> Traced {
    let mut world = leaving(mode, 20_000);
    world.shop.ready(OTHER, 20_000);
    let client = "203.0.113.9:40000";
    let before = Script::new(client, VIP, Some(EP)).confirm(10_000).delete_by_hand(19_000 + idle);
    let after = Script::new(client, VIP, Some(OTHER)).with_ct(77).confirm_midstream(20_000 + idle);
    let mut after = after.endpoint_has_no_connection(20_001 + idle);
    after.out.splice(0..0, before.out);
    Traced::of(world, after)
}

fn repeats(script: Script, bytes: u32) -> Script {
    [20_200, 20_600, 21_400, 23_000, 26_200, 32_600]
        .into_iter()
        .fold(script, |script, ms| script.repeats_segment(ms, true, bytes, (0, 120)))
}
