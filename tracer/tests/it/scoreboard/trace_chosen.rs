//! Connections for which an endpoint was chosen, and which were never established.

use std::time::Duration;

use viptrace::{
    class::Class,
    cluster::{Via, model::TrafficPolicy},
    net::{Family, Protocol},
    node::{ProxyMode, RuleEffect, capture::Kind},
    sighting::{Fact, Status, TcpState},
};

use super::{
    Iptables, Ipvs, Nftables,
    case::{Group, case, case_in},
    constructed::{
        NODE_PORT, OTHER, OUTSIDE, Traced, cart, dropped_behind, left, reached_by, unanswered, world,
        world_of,
    },
};
use crate::{
    cluster_support::{NOT_READY, Shop, TERMINATING},
    flow_support::{CLIENT, EP, Script, VIP, World, addr},
    ipvs_support::chosen,
    node_support::{Rules, iptables, nftables},
    verdict_policy::{CALICO, beside},
};

pub(super) fn groups() -> Vec<Group<Traced>> {
    vec![refuses(), silent()]
}

const BY_RULE: &[ProxyMode] = &[Iptables, Nftables];

/// Rules of one backend of iptables, of nftables mode, or a virtual server, that send VIP to the endpoint.
fn rules(kind: Kind, endpoint: &str) -> (Kind, String) {
    let entry = (addr(VIP), Protocol::TCP, addr(endpoint), RuleEffect::Forwards);
    let text = match kind {
        Kind::NftRuleset => nftables(Family::Ipv4, &[entry]),
        Kind::IpvsSave => format!("-A -t {VIP} -s rr\n-a -t {VIP} -r {endpoint} -m -w 1\n"),
        _ => iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", &[entry]),
    };
    (kind, text)
}

/// The endpoint left, and these rules stand.
pub(super) fn left_with(mode: ProxyMode, lists: &[(Kind, &str)]) -> World {
    let mut world = left(mode);
    world.node.rules = Rules::Lists(lists.iter().map(|(kind, endpoint)| rules(*kind, endpoint)).collect());
    world
}

/// A virtual server with session affinity that has this real server; the endpoint left, another is ready.
fn with_affinity(mode: ProxyMode, server: &str) -> World {
    let mut world = world(mode);
    world.shop.cart.affinity = Some(Duration::from_hours(3));
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 20_000);
    let servers = format!("-A -t {VIP} -s rr -p 10800\n-a -t {VIP} -r {server} -m -w 1\n");
    world.node.rules = Rules::Lists(vec![(Kind::IpvsSave, servers)]);
    world
}

/// The entry only exists in IPVS (`vs/conntrack=0`).
fn without_conntrack(mut script: Script) -> Script {
    script.out.retain(|sighting| !matches!(sighting.fact, Fact::Conntrack(_)));
    script.out.insert(0, chosen(60_000, CLIENT, EP, 0));
    script
}

fn refuses() -> Group<Traced> {
    let cases = vec![
        case(Class::C28, "no process listens", |mode| Traced::of(world(mode), refused())),
        case(Class::C28, "no process listens, seen only at the client", |mode| {
            let script = cart().confirm(60_000).receive_reset(60_002, TcpState::SynSent);
            Traced::of(world(mode), script.connect_failed(60_002))
        }),
        case(Class::C28, "no process listens, and the source is masqueraded", |mode| {
            let mut script = cart();
            script.masquerade = Some(addr("10.244.1.1:52000"));
            Traced::of(world(mode), script.refused(60_000))
        }),
        case(Class::C28, "no process listens for datagrams", |mode| {
            Traced::of(world(mode), cart().udp().confirm(60_000).no_socket(60_001))
        }),
        case(Class::C28, "an endpoint on another node answers a datagram with an ICMP error", |mode| {
            let script = cart().udp().confirm(60_000).icmp_error(60_010, "10.244.1.7:0", 3);
            Traced::of(world(mode), script)
        }),
        case(Class::C28, "no process accepts associations of SCTP", |mode| {
            Traced::of(world(mode), cart().sctp().confirm(60_000).reread(65_400, Status::SEEN_REPLY))
        }),
        case(Class::C28, "the RST passed between two other hosts", |mode| {
            let script = cart().confirm(60_000).transit_reset(60_001, false, 0).kill(60_001);
            Traced::of(world(mode), script)
        }),
        case(Class::C28, "the application is down, and becomes unready", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, NOT_READY, 60_500);
            Traced::of(world, refused())
        }),
        case(Class::C28, "kube-proxy knew the new endpoint first", |mode| {
            let mut shop = Shop::with_endpoints(&[OTHER]);
            shop.ready(EP, 60_300);
            Traced::of(world_of(mode, shop), refused())
        }),
        case(Class::C28, "with affinity, at an endpoint that is listed", |mode| {
            let mut world = world(mode);
            world.shop.ready(OTHER, 0);
            world.shop.cart.affinity = Some(Duration::from_hours(3));
            Traced::of(world, refused())
        }),
        case_in(BY_RULE, Class::C28, "the last attempt, after one that a live endpoint lost", |mode| {
            let third = two_attempts(OTHER).no_socket(143_201);
            let third = third.receive_reset(143_201, TcpState::SynSent).connect_failed(143_202);
            Traced::of(world_of(mode, Shop::with_endpoints(&[EP, OTHER])), third)
        }),
        case_in(&[Ipvs], Class::C28, "without conntrack", |mode| {
            Traced::of(world(mode), without_conntrack(refused()))
        }),
        case(Class::C6, "the endpoint left 40 s before", |mode| Traced::of(left(mode), refused())),
        case(Class::C6, "the endpoint left, and another Pod has its address", |mode| {
            let mut world = left(mode);
            world.shop.newcomer(EP, 50_000);
            Traced::of(world, refused())
        }),
        case(Class::C6, "no slice ever listed the endpoint", |mode| {
            Traced::of(world_of(mode, Shop::with_endpoints(&[OTHER])), refused())
        }),
        case(Class::C6, "the endpoint has not been ready for 40 s", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, NOT_READY, 20_000);
            Traced::of(world, refused())
        }),
        case(Class::C6, "the endpoint has terminated for 40 s, and another is ready", |mode| {
            let mut world = world(mode);
            world.shop.ready(OTHER, 0);
            world.shop.becomes(EP, TERMINATING, 20_000);
            Traced::of(world, refused())
        }),
        case(Class::C6, "the lists are old", |mode| {
            let mut world = world_of(mode, Shop::with_endpoints(&[OTHER]));
            world.metadata_age = Some(20.0);
            Traced::of(world, refused())
        }),
        case(Class::C5, "the endpoint left two seconds before", |mode| {
            let mut world = world(mode);
            world.shop.leaves(EP, 58_000);
            Traced::of(world, refused())
        }),
        case(Class::C5, "the endpoint terminates and no longer serves", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 58_000);
            Traced::of(world, refused())
        }),
        case(Class::C5, "the last endpoint has terminated for 40 s", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 20_000);
            Traced::of(world, refused())
        }),
        case(Class::C5, "the termination is reported just after the refusal", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 60_500);
            Traced::of(world, refused())
        }),
        case_in(&[Ipvs], Class::C24, "affinity keeps the client at the endpoint that left", |mode| {
            Traced::of(with_affinity(mode, OTHER), refused())
        }),
        case_in(&[Ipvs], Class::C6, "with affinity, the virtual server still has the endpoint", |mode| {
            Traced::of(with_affinity(mode, EP), refused())
        }),
        case_in(&[Nftables], Class::C10, "leftovers of iptables mode send there", |mode| {
            Traced::of(left_with(mode, &[(Kind::IptablesNftSave, EP), (Kind::NftRuleset, OTHER)]), refused())
        }),
        case_in(&[Iptables], Class::C3, "the backend that kube-proxy does not write sends there", |mode| {
            let lists = [(Kind::IptablesLegacySave, EP), (Kind::IptablesNftSave, OTHER)];
            Traced::of(left_with(mode, &lists), refused())
        }),
        case_in(&[Ipvs], Class::C10, "leftovers of iptables mode translate before IPVS", |mode| {
            Traced::of(left_with(mode, &[(Kind::IptablesSave, EP), (Kind::IpvsSave, OTHER)]), refused())
        }),
        case_in(&[Ipvs], Class::C6, "leftovers and the virtual server send there", |mode| {
            Traced::of(left_with(mode, &[(Kind::IptablesSave, EP), (Kind::IpvsSave, EP)]), refused())
        }),
    ];
    Group { symptom: "NAT chose an endpoint that refuses", cases }
}

fn refused() -> Script {
    cart().refused(60_000)
}

/// The first SYNs went to the endpoint at 140 s and were lost at its link address; the next one went to this endpoint.
pub(super) fn two_attempts(next: &str) -> Script {
    let mut script = cart();
    script.out = cart().dead_pod(140_000).out[..5].to_vec();
    script.with_endpoint(next).with_ct(0x9000).confirm(143_200)
}

fn silent() -> Group<Traced> {
    let cases = vec![
        case(Class::C29, "the endpoint is silent", |mode| Traced::of(world(mode), cart().silent(60_000))),
        case(Class::C29, "the client gives up after half a second", |mode| {
            Traced::of(world(mode), cart().confirm(60_000).connect_failed(60_500))
        }),
        case(Class::C29, "no host has the endpoint's address", |mode| {
            let script = if mode == Ipvs { cart().confirm(60_000) } else { cart() };
            Traced::of(world(mode), script.dead_pod(60_000))
        }),
        case(Class::C29, "another host reports it unreachable", |mode| {
            let script = cart().confirm(60_000).icmp_error(60_010, "192.168.1.3:0", 1);
            Traced::of(world(mode), script.connect_failed(60_011))
        }),
        case(Class::C29, "a client on the host's network, at an endpoint there", |mode| {
            let endpoint = "192.168.1.2:8080";
            let mut world = world(mode);
            world.shop.ready(endpoint, 0);
            Traced::of(world, Script::new("192.168.1.2:40000", VIP, Some(endpoint)).silent(60_000))
        }),
        case_in(BY_RULE, Class::C29, "the endpoint of IPv6 is silent", |mode| {
            let mut world = world_of(mode, Shop::with_endpoints(&["[fd00:10::7]:8080"]));
            let vip = "[fd00:96::10]:80";
            world.shop.reached_by(Via::ClusterIp, vip);
            let script = Script::new("[fd00:10::9]:40000", vip, Some("[fd00:10::7]:8080"));
            Traced::of(world, script.silent(60_000))
        }),
        case(Class::C29, "SCTP is not answered", |mode| {
            Traced::of(world(mode), cart().sctp().confirm(60_000).reread(65_400, 0))
        }),
        case(Class::C6, "the endpoint left 40 s before", |mode| {
            Traced::of(left(mode), cart().silent(60_000))
        }),
        case(Class::C6, "the endpoint left, and its address is nobody's", |mode| {
            let script = if mode == Ipvs { cart().confirm(60_000) } else { cart() };
            Traced::of(left(mode), script.dead_pod(60_000))
        }),
        case_in(BY_RULE, Class::C6, "the first attempts went to the endpoint that left", |mode| {
            let mut world = world_of(mode, Shop::with_endpoints(&[EP, OTHER]));
            world.shop.leaves(EP, 20_000);
            Traced::of(world, two_attempts(OTHER).connect_failed(143_300))
        }),
        case(Class::C5, "the endpoint terminates and is silent", |mode| {
            let mut world = world(mode);
            world.shop.becomes(EP, TERMINATING, 58_000);
            Traced::of(world, cart().silent(60_000))
        }),
        case_in(
            &[Nftables],
            Class::C10,
            "leftovers of iptables mode send to the endpoint that left",
            |mode| {
                let lists = [(Kind::IptablesNftSave, EP), (Kind::NftRuleset, OTHER)];
                Traced::of(left_with(mode, &lists), cart().silent(60_000))
            },
        ),
        case_in(&[Nftables], Class::C6, "leftovers and kube-proxy's own rules send there", |mode| {
            let lists = [(Kind::IptablesNftSave, EP), (Kind::NftRuleset, EP)];
            Traced::of(left_with(mode, &lists), cart().silent(60_000))
        }),
        case_in(&[Iptables], Class::C3, "the backend that kube-proxy does not write sends there", |mode| {
            let lists = [(Kind::IptablesLegacySave, EP), (Kind::IptablesNftSave, OTHER)];
            Traced::of(left_with(mode, &lists), cart().silent(60_000))
        }),
        case(Class::C30, "a policy's rule drops", |mode| {
            let script = dropped_behind(mode, cart(), 60_000, "NETFILTER_DROP");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case_in(&[Iptables], Class::C30, "a policy's rule drops, on a kernel without drop reasons", |_| {
            let mut world = beside(CALICO.0, CALICO.1);
            world.drop_reasons = false;
            Traced::of(world, unanswered(cart().drop_syn(60_000, ""), 60_000))
        }),
        case_in(&[Iptables], Class::C29, "a drop without a reason that no rule explains", |_| {
            let mut world = beside(CALICO.0, "");
            world.drop_reasons = false;
            Traced::of(world, unanswered(cart().drop_syn(60_000, ""), 60_000))
        }),
        case_in(&[Iptables], Class::C30, "the program behind a queue drops", |_| {
            let world = beside("", "-A FORWARD -d 10.244.1.7/32 -j NFQUEUE --queue-num 100\n");
            Traced::of(world, unanswered(cart().drop_syn(60_000, "NOT_SPECIFIED"), 60_000))
        }),
        case(Class::C30, "a rule of another node refuses by default", |mode| {
            let script = cart().confirm(60_000).icmp_error(60_010, "192.168.1.3:0", 3);
            Traced::of(world(mode), script.connect_failed(60_011))
        }),
        case(Class::C30, "a policy's rule drops the answer", |mode| {
            let script = cart().confirm(60_000).drop_known_answer(60_001);
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case(Class::C30, "a tc program drops", |mode| {
            let script = dropped_behind(mode, cart(), 60_000, "TC_EGRESS");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case(Class::C30, "a program of the sender's cgroup drops", |mode| {
            let script = dropped_behind(mode, cart(), 60_000, "BPF_CGROUP_EGRESS");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case(Class::C30, "a firewall elsewhere prohibits it", |mode| {
            let script = cart().confirm(60_000).icmp_error(60_010, "192.168.1.3:0", 13);
            Traced::of(world(mode), script.connect_failed(60_011))
        }),
        case(Class::C32, "the reverse path filter drops", |mode| {
            let script = dropped_behind(mode, cart(), 60_000, "IP_RPFILTER");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case(Class::C32, "the node does not forward", |mode| {
            let script = dropped_behind(mode, cart(), 60_000, "IP_INADDRERRORS");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case(Class::C31, "a Pod reaches itself, and its source is not masqueraded", |mode| {
            Traced::of(world(mode), Script::new("10.244.1.7:40000", VIP, Some(EP)).silent(60_000))
        }),
        case(Class::C31, "a Pod reaches itself, masqueraded, without hairpin mode", |mode| {
            let mut script = Script::new("10.244.1.7:40000", VIP, Some(EP));
            script.masquerade = Some(addr("10.244.1.1:50000"));
            Traced::of(world(mode), script.silent(60_000))
        }),
        case(Class::C31, "the answer comes directly, and the client resets it", |mode| {
            let script = cart().confirm(60_000).client_resets_answer(60_001);
            let script = script.retransmit(61_000, TcpState::SynSent).client_resets_answer(61_001);
            Traced::of(world(mode), script.retransmit(63_000, TcpState::SynSent))
        }),
        case_in(&[Ipvs], Class::C21, "the reply goes past this node", |mode| {
            let mut world = reached_by(mode, Via::NodePort, NODE_PORT);
            world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
            world.shop.serves_elsewhere();
            Traced::of(world, Script::new(OUTSIDE, NODE_PORT, Some(EP)).silent(60_000))
        }),
        case_in(BY_RULE, Class::C17, "another packet took its tuple", |mode| {
            let script = cart().confirm(60_000).clash(60_000).drop_syn(60_000, "NETFILTER_DROP");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case_in(BY_RULE, Class::C17, "its hash chain is too long", |mode| {
            let script = cart().confirm(60_000).drop_syn(60_000, "NETFILTER_DROP");
            Traced::of(world(mode), unanswered(script, 60_000))
        }),
        case(Class::N4, "the client gives up after 200 ms", |mode| {
            Traced::of(world(mode), cart().confirm(60_000).connect_failed(60_200))
        }),
        case(Class::Unknown, "NAT's decision was not seen", |mode| {
            let script = cart().receive_reset(60_000, TcpState::SynSent).connect_failed(60_000);
            Traced::of(world(mode), script)
        }),
    ];
    Group { symptom: "NAT chose an endpoint and nothing answers", cases }
}
