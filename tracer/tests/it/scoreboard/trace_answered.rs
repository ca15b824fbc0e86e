//! Datagrams with and without answers, and connections that work.

use viptrace::{
    class::Class,
    cluster::Via,
    node::{ProxyMode, capture::Kind},
    sighting::{Fact, Hook, Status, TcpState},
};

use super::{
    Iptables, Nftables,
    case::{Group, case, case_in},
    constructed::{
        NODE_PORT, OTHER, Traced, cart, dropped_behind, flows, left, reached_by, refused_by_rules,
        untranslated, world, world_of,
    },
    trace_chosen::{left_with, two_attempts},
    trace_refused::visits,
};
use crate::{
    cluster_support::{NOT_READY, Shop, TERMINATING},
    flow_support::{CLIENT, CLIENT_NS, EP, Script, World, addr},
};

pub(super) fn groups() -> Vec<Group<Traced>> {
    vec![datagrams(), works()]
}

const BY_RULE: &[ProxyMode] = &[Iptables, Nftables];

fn one_way() -> Script {
    cart().udp().confirm(60_000).reread(65_400, 0)
}

/// The Service answered so many other datagrams.
fn answering(mode: ProxyMode, times: usize) -> World {
    let mut world = world(mode);
    let answered = flows(&world, cart().udp().confirm(5_000).reread(6_000, Status::SEEN_REPLY), 1_000);
    for _ in 0..times {
        world.note(&answered[0]);
    }
    world
}

/// An answered entry that is used on after its endpoint left; its Pod is gone.
fn answered_once() -> Script {
    cart().udp().confirm(10_000).reread(15_500, Status::SEEN_REPLY).listed_answered(60_000, 58_000)
}

fn datagrams() -> Group<Traced> {
    let cases = vec![
        case(Class::C8, "an old entry leads to an endpoint that left", |mode| {
            Traced::after(left(mode), cart().udp().listed(60_000, 58_000), 1_000)
        }),
        case(Class::C8, "the same entry, whose beginning was seen", |mode| {
            Traced::after(left(mode), cart().udp().confirm(10_000).listed(60_000, 58_000), 1_000)
        }),
        case(Class::C8, "the entry was answered once, and the Pod is gone", |mode| {
            let mut world = left(mode);
            world.shop.pod_ends(EP, 21_000);
            Traced::after(world, answered_once(), 1_000)
        }),
        case(Class::N9, "the entry was answered once, and the Pod still runs", |mode| {
            Traced::after(left(mode), answered_once(), 1_000)
        }),
        case_in(BY_RULE, Class::C6, "the rules made the entry after the endpoint had left", |mode| {
            Traced::after(left(mode), cart().udp().confirm(40_000).listed(60_000, 58_000), 1_000)
        }),
        case_in(BY_RULE, Class::C20, "the Service has no endpoints", |mode| {
            let world = world_of(mode, Shop::with_endpoints(&[]));
            Traced::of(world, refused_by_rules(mode, untranslated().udp()))
        }),
        case(Class::C29, "the Service answered others", |mode| Traced::of(answering(mode, 4), one_way())),
        case(Class::C29, "a resolver always answers", |mode| {
            let address = "10.96.0.53:53";
            let world = reached_by(mode, Via::ClusterIp, address);
            let script = Script::new(CLIENT, address, Some(EP)).udp().confirm(60_000).reread(65_400, 0);
            Traced::of(world, script)
        }),
        case(Class::N20, "the Service never answers", |mode| Traced::of(world(mode), one_way())),
        case(Class::N20, "the Service answered once", |mode| Traced::of(answering(mode, 1), one_way())),
        case_in(BY_RULE, Class::C17a, "two datagrams of one socket raced, and one was dropped", |mode| {
            let script = cart().udp().confirm(60_000).clash(60_000).drop_syn(60_000, "NETFILTER_DROP");
            Traced::of(world(mode), script)
        }),
        case_in(BY_RULE, Class::N10, "two datagrams of one socket raced, and both went out", |mode| {
            Traced::of(world(mode), cart().udp().confirm(60_000).with_ct(9).confirm(60_000).clash(60_000))
        }),
        case(Class::C30, "a policy's rule drops them", |mode| {
            Traced::of(world(mode), dropped_behind(mode, cart().udp(), 60_000, "NETFILTER_DROP"))
        }),
        case(Class::C30, "a policy's rule drops the answers", |mode| {
            Traced::of(world(mode), cart().udp().confirm(60_000).drop_known_answer(60_001))
        }),
        case(Class::C33, "they are too big for the path", |mode| {
            Traced::of(world(mode), dropped_behind(mode, cart().udp(), 60_000, "PKT_TOO_BIG"))
        }),
        case(Class::C28, "the endpoint's host refuses them", |mode| {
            Traced::of(world(mode), cart().udp().confirm(60_000).no_socket(60_001))
        }),
        case(Class::Ok, "the answer is seen when the entry ends", |mode| {
            let script = cart().udp().confirm(60_000).delete(150_000, Status::SEEN_REPLY);
            Traced::of(world(mode), script)
        }),
    ];
    Group { symptom: "datagrams stay unanswered", cases }
}

fn probe() -> Script {
    Script::new("10.244.1.1:50000", EP, None)
}

fn works() -> Group<Traced> {
    let cases = vec![
        case(Class::Ok, "connected, served, closed", |mode| Traced::of(world(mode), cart().healthy(60_000))),
        case(Class::Ok, "kube-proxy knew the new endpoint first", |mode| {
            let mut shop = Shop::with_endpoints(&[OTHER]);
            shop.ready(EP, 60_300);
            Traced::of(world_of(mode, shop), cart().healthy(60_000))
        }),
        case(Class::Ok, "the endpoint left a moment before and still served", |mode| {
            let mut world = world(mode);
            world.shop.leaves(EP, 58_000);
            Traced::of(world, cart().healthy(60_000))
        }),
        case(Class::Ok, "the endpoint returned, and kube-proxy knew first", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, NOT_READY, 20_000);
            world.shop.ready(EP, 60_400);
            Traced::of(world, cart().healthy(60_000))
        }),
        case(Class::Ok, "the trace has no socket states", |mode| {
            let mut world = world(mode);
            world.missing = vec![Hook::SockEstablished, Hook::SockClosed, Hook::Delete];
            Traced::of(world, cart().confirm(60_000).drop_syn(60_000, "OTHERHOST"))
        }),
        case(Class::C6, "another Pod answers at the address that left", |mode| {
            let mut world = left(mode);
            world.shop.newcomer(EP, 50_000);
            Traced::of(world, cart().healthy(60_000))
        }),
        case(Class::C6, "no slice ever listed the endpoint", |mode| {
            Traced::of(world_of(mode, Shop::with_endpoints(&[OTHER])), cart().healthy(60_000))
        }),
        case_in(
            BY_RULE,
            Class::C6,
            "three seconds late, because the first SYNs went to an endpoint that left",
            |mode| {
                let mut world = world_of(mode, Shop::with_endpoints(&[EP, OTHER]));
                world.shop.leaves(EP, 20_000);
                Traced::of(world, two_attempts(OTHER).established(143_201).closed(143_300))
            },
        ),
        case_in(
            BY_RULE,
            Class::Ok,
            "three seconds late, because the first SYNs found no link address",
            |mode| {
                let world = world_of(mode, Shop::with_endpoints(&[EP, OTHER]));
                Traced::of(world, two_attempts(OTHER).established(143_201).closed(143_300))
            },
        ),
        case_in(
            &[Nftables],
            Class::C10,
            "three seconds late, because of leftovers of iptables mode",
            |mode| late(mode, &[(Kind::IptablesNftSave, EP), (Kind::NftRuleset, OTHER)]),
        ),
        case_in(&[Iptables], Class::C3, "three seconds late, because of the other backend's rules", |mode| {
            late(mode, &[(Kind::IptablesLegacySave, EP), (Kind::IptablesNftSave, OTHER)])
        }),
        case(Class::N8, "the endpoint terminates and serves", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 5_000);
            Traced::of(world, cart().healthy(60_000))
        }),
        case(Class::N9, "the endpoint left during the connection", |mode| {
            let mut world = world(mode);
            world.shop.leaves(EP, 20_000);
            Traced::of(world, cart().established(10_000).closed(100_000))
        }),
        case(Class::N1, "a kubelet's probe", |mode| Traced::of(world(mode), probe().healthy(60_000))),
        case(Class::N1, "a kubelet's probe that is refused", |mode| {
            Traced::of(world(mode), probe().refused(60_000))
        }),
        case(Class::N2, "a load balancer's health checks", |mode| {
            let world = reached_by(mode, Via::NodePort, NODE_PORT);
            visits(world, &[60, 65, 70, 75, 80], |client, ms| {
                let mut script = visit(client, ms);
                for sighting in &mut script.out {
                    if let Fact::Socket(socket) = &mut sighting.fact {
                        (socket.bytes_acked, socket.bytes_received) = (0, 0);
                    }
                }
                script
            })
        }),
        case(Class::Ok, "a client's requests at a fixed interval", |mode| {
            visits(reached_by(mode, Via::NodePort, NODE_PORT), &[60, 65, 70, 75, 80], visit)
        }),
        case(Class::N3, "one packet before and after NAT", |mode| {
            let mut script = cart().healthy(60_000);
            // The client's namespace has conntrack too, and sees the address of the Service.
            let mut own = untranslated().with_ct(0x77).confirm(60_000);
            own.out[0].netns = CLIENT_NS;
            script.out.splice(0..0, own.out);
            Traced::of(world(mode), script)
        }),
        case(Class::N12, "an offloaded flow, of which only the ends are seen", |mode| {
            let ended = Status::SEEN_REPLY | Status::ASSURED | Status::OFFLOAD;
            Traced::of(world(mode), cart().established(60_000).delete(600_000, ended).closed(600_001))
        }),
        case(Class::N6, "a client uses its port again", |mode| {
            let mut script = cart().healthy(20_000);
            script.out.extend(cart().with_ct(0x9000).healthy(60_000).out);
            Traced::last_of(world(mode), script)
        }),
        case(Class::N13, "NAT of another owner", |mode| {
            Traced::of(world(mode), Script::new(CLIENT, "192.0.2.7:80", Some(EP)).healthy(60_000))
        }),
        case(Class::N14, "a masqueraded source", |mode| {
            let mut script = cart();
            script.masquerade = Some(addr("192.168.1.2:50000"));
            Traced::of(world(mode), script.healthy(60_000))
        }),
        case(Class::N18, "the endpoint repeats its SYN-ACK to a client that is gone", |mode| {
            let script = cart().confirm(60_000).connect_failed(60_200);
            Traced::of(world(mode), script.state(63_000, true, TcpState::SynRecv, TcpState::Close))
        }),
    ];
    Group { symptom: "a connection works, perhaps late or by luck", cases }
}

/// A connection from outside that the endpoint's side closes first.
fn visit(client: &str, ms: u64) -> Script {
    Script::new(client, NODE_PORT, Some(EP)).ended_by_server(ms)
}

/// The first SYNs went to the endpoint that left, and the next one to another, which answered; these rules stand.
fn late(mode: ProxyMode, lists: &[(Kind, &str)]) -> Traced {
    let mut world = left_with(mode, lists);
    world.shop.ready(OTHER, 20_000);
    Traced::of(world, two_attempts(OTHER).established(143_201).closed(143_300))
}
