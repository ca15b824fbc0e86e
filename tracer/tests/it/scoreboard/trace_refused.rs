//! SYNs that a rule or IPVS refuses or drops before an endpoint is chosen.

use viptrace::{
    class::Class,
    cluster::{
        Kind, Via,
        model::{Labels, Object, Pod, TrafficPolicy},
    },
    net::{Cidr, Netns},
    node::{ProxyMode, RuleEffect, capture},
    sighting::{Hook, TcpState},
};

use super::{
    Iptables, Ipvs, Nftables,
    case::{Group, case, case_in},
    constructed::{
        LOAD_BALANCER, NODE_PORT, OUTSIDE, Traced, cart, flows, reached_by, refused_by_rules, untranslated,
        with_rules, world, world_of,
    },
};
use crate::{
    cluster_support::{NOT_READY, Shop, TERMINATING},
    flow_support::{CLIENT, EP, Script, VIP, World, addr},
    ipvs_support::{SYN, null_bound, packet},
    node_support::{Rules, source_ranges},
};

pub(super) fn groups() -> Vec<Group<Traced>> {
    vec![refused(), dropped()]
}

const BY_RULE: &[ProxyMode] = &[Iptables, Nftables];

fn of(mode: ProxyMode, world: World) -> Traced {
    Traced::of(with_rules(world, RuleEffect::Refuses), refused_by_rules(mode, untranslated()))
}

fn scaled_to_zero() -> Shop {
    let mut shop = Shop::new();
    shop.leaves(EP, 20_000);
    shop.pod_ends(EP, 21_000);
    shop
}

/// A refusal by rules of another namespace than the node's.
fn elsewhere(script: Script) -> Script {
    script.in_netns(Netns(4_026_533_000))
}

fn refused() -> Group<Traced> {
    let cases = vec![
        case(Class::C20, "no Pod matches the selector", |mode| {
            of(mode, world_of(mode, Shop::with_endpoints(&[])))
        }),
        case(Class::C20, "the only Pod crashes", |mode| {
            let mut shop = Shop::new();
            shop.becomes(EP, NOT_READY, 20_000);
            let pod = shop.pods[&addr(EP).ip()].clone();
            let crashing = Pod { ready: false, trouble: Some("CrashLoopBackOff".into()), ..pod };
            shop.put(20_000, Object::Pod(crashing.into()));
            of(mode, world_of(mode, shop))
        }),
        case(Class::C20, "the Pod's labels changed", |mode| {
            let mut shop = Shop::new();
            shop.leaves(EP, 20_000);
            let pod = Pod { labels: Labels::default(), ..shop.pods[&addr(EP).ip()].clone() };
            shop.put(19_900, Object::Pod(pod.into()));
            of(mode, world_of(mode, shop))
        }),
        case(Class::C20, "the selector was mistyped", |mode| {
            let mut shop = scaled_to_zero();
            let mut mistyped = shop.cart.clone();
            mistyped.selector = Labels::of([("app", "chart")]);
            shop.put(19_900, Object::Service(mistyped.into()));
            of(mode, world_of(mode, shop))
        }),
        case_in(BY_RULE, Class::C20, "an old kube-proxy does not use terminating endpoints", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 20_000);
            world.node.version = "v1.25.4";
            of(mode, world)
        }),
        case_in(BY_RULE, Class::C20, "the hook of the refusal is missing", |mode| {
            let mut world = world_of(mode, Shop::with_endpoints(&[]));
            world.missing = vec![Hook::SendUnreach];
            let script = untranslated().drop_syn(60_000, "NETFILTER_DROP").connect_failed(60_001);
            Traced::of(with_rules(world, RuleEffect::Refuses), script)
        }),
        case_in(BY_RULE, Class::C20, "the rules of another node on this machine", |mode| {
            let world = world_of(mode, Shop::with_endpoints(&[]));
            Traced::of(world, elsewhere(refused_by_rules(mode, untranslated())))
        }),
        case(Class::N19, "scaled to zero", |mode| of(mode, world_of(mode, scaled_to_zero()))),
        case_in(BY_RULE, Class::N19, "scaled to zero, and the hook of the refusal is missing", |mode| {
            let mut world = world_of(mode, scaled_to_zero());
            world.missing = vec![Hook::SendUnreach];
            let script = untranslated().drop_syn(60_000, "NETFILTER_DROP").connect_failed(60_001);
            Traced::of(with_rules(world, RuleEffect::Refuses), script)
        }),
        case_in(BY_RULE, Class::C4, "the endpoint has been ready for a minute", |mode| of(mode, world(mode))),
        case_in(BY_RULE, Class::C4, "the endpoint terminates and still serves", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 20_000);
            of(mode, world)
        }),
        case_in(&[Ipvs], Class::C12, "the endpoint has been ready for a minute", |mode| {
            of(mode, world(mode))
        }),
        case_in(&[Ipvs], Class::C12, "the slices could not be listed", |mode| {
            let mut world = world(mode);
            world.shop.known.retain(|kind| *kind != Kind::EndpointSlice);
            of(mode, world)
        }),
        case(Class::C5, "the endpoint became ready two seconds before", |mode| {
            let mut shop = Shop::with_endpoints(&[]);
            shop.ready(EP, 58_000);
            of(mode, world_of(mode, shop))
        }),
        case_in(&[Ipvs], Class::C5, "the same, and the set of KUBE-IPVS-FILTER lacks the port", |mode| {
            let mut shop = Shop::with_endpoints(&[]);
            shop.ready(EP, 58_000);
            Traced::of(world_of(mode, shop), untranslated().unreach(60_000, 3).connect_failed(60_001))
        }),
        case_in(&[Ipvs], Class::C4, "the set of KUBE-IPVS-FILTER lacks the port after a minute", |mode| {
            Traced::of(world(mode), untranslated().unreach(60_000, 3).connect_failed(60_001))
        }),
        case_in(&[Ipvs], Class::C22, "the endpoint is on another node, internal policy Local", |mode| {
            local_refusal(mode, Via::ClusterIp, VIP, |script| script)
        }),
        case_in(&[Ipvs], Class::C22, "the same, and the event of the drop is missing", |mode| {
            local_refusal(mode, Via::ClusterIp, VIP, without_drops)
        }),
        case_in(&[Ipvs], Class::C21, "the endpoint is on another node, external policy Local", |mode| {
            local_refusal(mode, Via::NodePort, NODE_PORT, |script| script)
        }),
        case_in(&[Ipvs], Class::C21, "the same, and the event of the drop is missing", |mode| {
            local_refusal(mode, Via::NodePort, NODE_PORT, without_drops)
        }),
        case_in(&[Iptables], Class::C22, "internal policy Local, and an old kube-proxy refuses", |mode| {
            let mut world = with_rules(local(mode, Via::ClusterIp, VIP), RuleEffect::Refuses);
            world.node.version = "v1.23.17";
            Traced::of(world, refused_by_rules(mode, untranslated()))
        }),
        case_in(BY_RULE, Class::C30, "a firewall rejects with its own code", |mode| {
            Traced::of(world(mode), untranslated().unreach(60_000, 13).connect_failed(60_001))
        }),
        case_in(BY_RULE, Class::C30, "a rule in another namespace rejects", |mode| {
            Traced::of(world(mode), elsewhere(refused_by_rules(mode, untranslated())))
        }),
        case_in(
            BY_RULE,
            Class::C30,
            "a firewall rejects a Service without endpoints with its own code",
            |mode| {
                let world = world_of(mode, Shop::with_endpoints(&[]));
                Traced::of(world, untranslated().unreach(60_000, 13).connect_failed(60_001))
            },
        ),
    ];
    Group { symptom: "a SYN is refused before an endpoint is chosen", cases }
}

fn local_refusal(mode: ProxyMode, via: Via, address: &str, seen: fn(Script) -> Script) -> Traced {
    let world = with_rules(local(mode, via, address), RuleEffect::Refuses);
    Traced::of(world, seen(refused_by_rules(mode, Script::new(CLIENT, address, None))))
}

fn without_drops(mut script: Script) -> Script {
    script.out.retain(|sighting| sighting.hook != Hook::KfreeSkb);
    script
}

/// cart with policies Local and its endpoint on another node.
pub(super) fn local(mode: ProxyMode, via: Via, address: &str) -> World {
    let mut world = reached_by(mode, via, address);
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    world
}

/// A SYN and its retransmit are dropped by a rule before NAT or without one.
fn by_rule(address: &str) -> Script {
    Script::new(CLIENT, address, None)
        .drop_syn(60_000, "NETFILTER_DROP")
        .retransmit(61_000, TcpState::SynSent)
        .drop_syn(61_000, "NETFILTER_DROP")
        .retransmit(63_000, TcpState::SynSent)
}

fn with_ranges(mode: ProxyMode, range: &str) -> World {
    let mut world = reached_by(mode, Via::LoadBalancerIp, LOAD_BALANCER);
    world.shop.cart.source_ranges = vec![Cidr::parse(range).unwrap()];
    if mode == Nftables {
        world.node.rules = Rules::Lists(vec![(
            capture::Kind::NftRuleset,
            source_ranges("203.0.113.80 . tcp . 80", "shop/cart/tcp/http"),
        )]);
    }
    world
}

/// Connections of a client outside the cluster at these seconds; the last one is judged, the others are known.
pub(super) fn visits(mut world: World, secs: &[u64], script: impl Fn(&str, u64) -> Script) -> Traced {
    let of = |number: usize, at: u64| script(&format!("203.0.113.9:{}", 40_000 + number), at * 1000);
    for (number, at) in secs.iter().enumerate() {
        let seen = flows(&world, of(number, *at), 30_000);
        world.note(&seen[0]);
    }
    let last = secs.len() - 1;
    Traced::of(world, of(last, secs[last]))
}

fn dropped() -> Group<Traced> {
    let cases = vec![
        case(Class::C16, "the conntrack table is full", |mode| {
            let mut world = world(mode);
            world.node.conntrack = (131_072, 131_072);
            let script = untranslated()
                .drop_table_full(60_000)
                .retransmit(61_000, TcpState::SynSent)
                .drop_table_full(61_000)
                .retransmit(63_000, TcpState::SynSent)
                .drop_table_full(63_000);
            Traced::of(world, script)
        }),
        case_in(BY_RULE, Class::C22, "internal policy Local, no local endpoint", |mode| {
            Traced::of(with_rules(local(mode, Via::ClusterIp, VIP), RuleEffect::Drops), by_rule(VIP))
        }),
        case_in(BY_RULE, Class::C21, "external policy Local at a node port, no local endpoint", |mode| {
            let world = with_rules(local(mode, Via::NodePort, NODE_PORT), RuleEffect::Drops);
            Traced::of(world, by_rule(NODE_PORT))
        }),
        case_in(BY_RULE, Class::C21, "external policy Local at a load balancer's address", |mode| {
            let world = with_rules(local(mode, Via::LoadBalancerIp, LOAD_BALANCER), RuleEffect::Drops);
            Traced::of(world, by_rule(LOAD_BALANCER))
        }),
        case(Class::C23, "the client is outside the ranges", |mode| {
            Traced::of(with_ranges(mode, "198.51.100.0/24"), by_rule(LOAD_BALANCER))
        }),
        case_in(BY_RULE, Class::Unknown, "the ranges admit the client, and another rule drops", |mode| {
            let mut world = with_ranges(mode, "10.244.0.0/16");
            world.node.rules = Rules::Vip(RuleEffect::Forwards);
            Traced::of(world, by_rule(LOAD_BALANCER))
        }),
        case_in(BY_RULE, Class::C5, "a firewall drops what no rule translates", |mode| {
            Traced::of(with_rules(world(mode), RuleEffect::Missing), by_rule(VIP))
        }),
        case_in(&[Ipvs], Class::C12, "IPVS finds no server for it and sends no error", |mode| {
            let mut script = untranslated();
            let entry = || Some(null_bound(1, 0));
            script.out.push(packet(60_000, Hook::IpVsSchedule, SYN, entry(), None));
            script.out.push(packet(60_000, Hook::KfreeSkb, SYN, entry(), Some("NETFILTER_DROP")));
            let script = script.retransmit(61_000, TcpState::SynSent).connect_failed(62_000);
            Traced::of(world(mode), script)
        }),
        case_in(&[Ipvs], Class::Unknown, "the hook of IPVS's refusal is missing", |mode| {
            let mut world = world(mode);
            world.missing = vec![Hook::IpVsLeave];
            let mut script = refused_by_rules(mode, untranslated());
            script.out.retain(|sighting| sighting.hook != Hook::IpVsLeave);
            Traced::of(world, script)
        }),
        case_in(BY_RULE, Class::N2, "a load balancer checks a node without an endpoint", |mode| {
            let world = with_rules(local(mode, Via::NodePort, NODE_PORT), RuleEffect::Drops);
            visits(world, &[60, 65, 70, 75, 80], |client, ms| {
                Script::new(client, NODE_PORT, None).drop_syn(ms, "NETFILTER_DROP")
            })
        }),
        case_in(BY_RULE, Class::C21, "clients of that node come when they like", |mode| {
            let world = with_rules(local(mode, Via::NodePort, NODE_PORT), RuleEffect::Drops);
            visits(world, &[60, 61, 70, 72, 90], |client, ms| {
                Script::new(client, NODE_PORT, None).drop_syn(ms, "NETFILTER_DROP")
            })
        }),
        case_in(BY_RULE, Class::C21, "a client repeats its SYN at a fixed interval", |mode| {
            let world = with_rules(local(mode, Via::NodePort, NODE_PORT), RuleEffect::Drops);
            visits(world, &[60, 70, 80, 90, 100], |client, ms| {
                (0..5).fold(Script::new(client, NODE_PORT, None), |script, n| {
                    script.drop_syn(ms + n * 1000, "NETFILTER_DROP")
                })
            })
        }),
        case(Class::Ok, "the full table only delayed the connection", |mode| {
            let script = cart().drop_table_full(60_000).retransmit(61_000, TcpState::SynSent).healthy(61_000);
            Traced::of(world(mode), script)
        }),
        case_in(BY_RULE, Class::Unknown, "a node port of another node", |mode| {
            let address = "192.168.1.3:30080";
            let world = reached_by(mode, Via::NodePort, address);
            Traced::of(world, Script::new(OUTSIDE, address, None).silent(60_000))
        }),
    ];
    Group { symptom: "SYNs are dropped before an endpoint is chosen", cases }
}
