//! SYNs that leave the node as they came.

use viptrace::{
    class::Class,
    cluster::{
        Via,
        model::{Object, Service, ServiceType},
    },
    net::{Cidr, Protocol},
    node::{ProxyMode, RuleEffect, capture::Kind},
    sighting::{Fact, TcpState},
};

use super::{
    Iptables, Ipvs, Nftables,
    case::{Group, case, case_in},
    constructed::{
        LOAD_BALANCER, NODE_PORT, OTHER, OUTSIDE, Traced, cart, flows, reached_by, untranslated, with_rules,
        world, world_of,
    },
    trace_refused::local,
};
use crate::{
    cluster_support::{READY, Shop, endpoint, service, slice},
    flow_support::{CLIENT, CLIENT_NS, EP, NODE, Script, VIP, World, addr},
    node_support::{Rules, iptables},
};

pub(super) fn groups() -> Vec<Group<Traced>> {
    vec![untranslated_syn(), no_such_port()]
}

const BY_RULE: &[ProxyMode] = &[Iptables, Nftables];

fn silent(world: World) -> Traced {
    Traced::of(world, untranslated().silent(60_000))
}

/// shop/users at 10.96.0.11.
fn with_users(world: &mut World) {
    let users = service("users", "10.96.0.11");
    let user = addr("10.244.1.9:8080");
    let endpoints = slice(&users, user, vec![endpoint(user.ip(), "users-0", READY)]);
    world.shop.put(0, Object::Service(users.into()));
    world.shop.put(0, Object::EndpointSlice(endpoints.into()));
}

/// kube-proxy wrote its rules half a minute before.
const WRITTEN: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.70000003e+09\n\
    kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.70000003e+09\n";
const NEVER_WRITTEN: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.70000003e+09\n\
    kubeproxy_sync_proxy_rules_last_timestamp_seconds 0\n";

fn without_rules(mode: ProxyMode) -> World {
    let mut world = world(mode);
    world.node.rules = Rules::Nothing;
    world
}

/// cart with the policy Local and its endpoint on another node, and the rules of kube-proxy 1.22 for its load balancer's
/// address: they translate the connections of Pods and mark the others, which KUBE-FIREWALL does not meet in FORWARD.
fn marking(mode: ProxyMode) -> World {
    let mut world = local(mode, Via::LoadBalancerIp, LOAD_BALANCER);
    world.node.version = "v1.22.17";
    let entry = (addr(LOAD_BALANCER), Protocol::TCP, addr(EP), RuleEffect::Forwards);
    let rules = iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", &[entry]);
    let to_pods = "-A KUBE-SERVICES -d 203.0.113.80 -p tcp -m tcp --dport 80 -j KUBE-SVC-I5LIAMPLWKMBJ54B\n";
    let marks = ":KUBE-MARK-MASQ - [0:0]\n:KUBE-MARK-DROP - [0:0]\n:KUBE-FW-I5LIAMPLWKMBJ54B - [0:0]\n\
        :KUBE-XLB-I5LIAMPLWKMBJ54B - [0:0]\n\
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000\n\
        -A KUBE-SERVICES -d 203.0.113.80/32 -p tcp -m tcp --dport 80 -j KUBE-FW-I5LIAMPLWKMBJ54B\n\
        -A KUBE-FW-I5LIAMPLWKMBJ54B -j KUBE-XLB-I5LIAMPLWKMBJ54B\n\
        -A KUBE-FW-I5LIAMPLWKMBJ54B -j KUBE-MARK-DROP\n\
        -A KUBE-SVC-I5LIAMPLWKMBJ54B ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
        -A KUBE-XLB-I5LIAMPLWKMBJ54B -s 10.244.0.0/16 -j KUBE-SVC-I5LIAMPLWKMBJ54B\n\
        -A KUBE-XLB-I5LIAMPLWKMBJ54B -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ\n\
        -A KUBE-XLB-I5LIAMPLWKMBJ54B -m addrtype --src-type LOCAL -j KUBE-SVC-I5LIAMPLWKMBJ54B\n\
        -A KUBE-XLB-I5LIAMPLWKMBJ54B -j KUBE-MARK-DROP\n";
    let guard = ":KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\n\
        -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n";
    assert!(rules.contains(to_pods), "{rules}");
    let rules = rules.replacen(to_pods, marks, 1).replacen("*filter\n", &format!("*filter\n{guard}"), 1);
    world.node.rules = Rules::Lists(vec![(Kind::IptablesSave, rules)]);
    world
}

/// Nothing is tracked where no rule needs conntrack.
fn untracked(mut script: Script) -> Script {
    script.out.retain(|sighting| !matches!(sighting.fact, Fact::Conntrack(_)));
    script
}

fn untranslated_syn() -> Group<Traced> {
    let cases = vec![
        case_in(&[Ipvs], Class::C11, "kube-proxy is to use IPVS, and the kernel has none", |mode| {
            let mut world = world(mode);
            (world.node.no_ipvs, world.node.rules) = (true, Rules::Lists(Vec::new()));
            silent(world)
        }),
        case(Class::C5, "the Service's rule is missing", |mode| {
            silent(with_rules(world(mode), RuleEffect::Missing))
        }),
        case(Class::C5, "the Service was created four seconds before", |mode| {
            Traced::of(with_rules(world(mode), RuleEffect::Missing), untranslated().silent(4_000))
        }),
        case(Class::C5, "two Services have no rule, and kube-proxy works", |mode| {
            let mut world = with_rules(world(mode), RuleEffect::Missing);
            with_users(&mut world);
            let other = Script::new(CLIENT, "10.96.0.11:80", None).silent(59_000);
            let seen = flows(&world, other, 10_000);
            world.note(&seen[0]);
            silent(world)
        }),
        case(Class::C5, "only the rules of the other family were read", |mode| {
            let mut world = world_of(mode, Shop::with_endpoints(&["[fd00:10::7]:8080"]));
            let vip = "[fd00:96::10]:80";
            world.shop.reached_by(Via::ClusterIp, vip);
            world.node.rules = Rules::OtherFamily;
            Traced::of(world, Script::new("[fd00:10::9]:40000", vip, None).silent(60_000))
        }),
        case(Class::C5, "a node port of this node has no rule", |mode| {
            let world = with_rules(reached_by(mode, Via::NodePort, NODE_PORT), RuleEffect::Missing);
            Traced::of(world, Script::new(CLIENT, NODE_PORT, None).silent(60_000))
        }),
        case(Class::C5b, "the rule was written after the connection began", |mode| silent(world(mode))),
        case_in(&[Iptables], Class::C5b, "a rule for Pods alone, and this one came before it", |mode| {
            Traced::of(marking(mode), Script::new(CLIENT, LOAD_BALANCER, None).silent(60_000))
        }),
        case_in(
            &[Iptables],
            Class::C21,
            "external policy Local, and the rules only mark the packet",
            |mode| Traced::of(marking(mode), Script::new(OUTSIDE, LOAD_BALANCER, None).silent(60_000)),
        ),
        case(Class::C1, "kube-proxy has written no rule", |mode| silent(without_rules(mode))),
        case(Class::C1, "kube-proxy is starting", |mode| {
            let mut world = without_rules(mode);
            world.node.metrics = NEVER_WRITTEN;
            silent(world)
        }),
        case(Class::C1, "kube-proxy does not run, and one rule is missing", |mode| {
            let mut world = with_rules(world(mode), RuleEffect::Missing);
            world.node.running = Some(false);
            silent(world)
        }),
        case(Class::C1, "kube-proxy does not run, and its rule stands by now", |mode| {
            let mut world = world(mode);
            world.node.running = Some(false);
            silent(world)
        }),
        case(Class::C1, "nothing on the node needs conntrack", |mode| {
            Traced::of(without_rules(mode), untracked(untranslated().silent(60_000)))
        }),
        case(Class::C1, "no Service is translated any more, and nothing can be read", |mode| {
            let mut world = world(mode);
            (world.node.running, world.node.rules) = (None, Rules::Unread);
            with_users(&mut world);
            let other = Script::new(CLIENT, "10.96.0.11:80", None).silent(59_000);
            let seen = flows(&world, other, 10_000);
            world.note(&seen[0]);
            silent(world)
        }),
        case(Class::C1, "kube-proxy runs beside Cilium and has written no rule", |mode| {
            let mut world = without_rules(mode);
            world.node.interface = Some("cilium_host");
            silent(world)
        }),
        case(Class::C5e, "another program removed the rules, as kube-proxy's figures show", |mode| {
            let mut world = without_rules(mode);
            world.node.metrics = WRITTEN;
            silent(world)
        }),
        case(Class::C5e, "another program removed the rules, as an earlier connection shows", |mode| {
            let mut world = without_rules(mode);
            let seen = flows(&world, cart().healthy(30_000), 10_000);
            world.note(&seen[0]);
            silent(world)
        }),
        case(Class::C5d, "the Service belongs to another proxy", |mode| {
            let mut world = with_rules(world(mode), RuleEffect::Missing);
            world.shop.cart.proxy_name = Some("other".into());
            silent(world)
        }),
        case_in(BY_RULE, Class::C23, "the client is outside the ranges, and no drop was observed", |mode| {
            let mut world = reached_by(mode, Via::LoadBalancerIp, LOAD_BALANCER);
            world.shop.cart.source_ranges = vec![Cidr::parse("198.51.100.0/24").unwrap()];
            Traced::of(world, Script::new(CLIENT, LOAD_BALANCER, None).silent(60_000))
        }),
        case_in(BY_RULE, Class::C26, "nodePortAddresses leave this address out", |mode| {
            let mut world = reached_by(mode, Via::NodePort, NODE_PORT);
            world.node.own.push(addr("192.0.2.9:0").ip());
            world.node.rules = Rules::At("192.0.2.9:30080");
            Traced::of(world, Script::new(CLIENT, NODE_PORT, None).silent(60_000))
        }),
        case_in(&[Nftables], Class::C26, "nftables mode does not serve node ports at loopback", |mode| {
            let world = reached_by(mode, Via::NodePort, NODE_PORT);
            let script = Script::new("127.0.0.1:40000", "127.0.0.1:30080", None).confirm(60_000);
            let mut script = script.receive_reset(60_001, TcpState::SynSent).connect_failed(60_001);
            script.out.iter_mut().for_each(|sighting| sighting.netns = NODE);
            Traced::of(world, script)
        }),
        case(Class::C20, "the Service has no endpoints, and no refusal was observed", |mode| {
            let world = world_of(mode, Shop::with_endpoints(&[]));
            Traced::of(with_rules(world, RuleEffect::Refuses), untranslated().silent(60_000))
        }),
        case(Class::N19, "the Service was scaled to zero, and no refusal was observed", |mode| {
            let mut shop = Shop::new();
            shop.leaves(EP, 20_000);
            shop.pod_ends(EP, 21_000);
            let world = with_rules(world_of(mode, shop), RuleEffect::Refuses);
            Traced::of(world, untranslated().silent(60_000))
        }),
        case(Class::Unknown, "a sidecar in the client's Pod took it, and does not run", |mode| {
            let world = with_rules(world_of(mode, Shop::with_endpoints(&[])), RuleEffect::Refuses);
            let script = Script::new(CLIENT, VIP, Some("127.0.0.1:15001")).silent(60_000);
            Traced::of(world, script.in_netns(CLIENT_NS))
        }),
        case_in(BY_RULE, Class::N11, "the node serves the address itself, without conntrack", |mode| {
            let mut world = world(mode);
            world.node.own.push(addr(VIP).ip());
            let script = untranslated().retransmit(59_999, TcpState::SynSent);
            let script = script.state(60_001, false, TcpState::SynSent, TcpState::Established);
            Traced::of(world, untracked(script.state(60_020, false, TcpState::FinWait2, TcpState::Close)))
        }),
        case_in(BY_RULE, Class::Unknown, "the node serves the address itself and does not answer", |mode| {
            let mut world = world(mode);
            world.node.own.push(addr(VIP).ip());
            let script = untranslated().retransmit(59_999, TcpState::SynSent);
            Traced::of(world, script.retransmit(62_000, TcpState::SynSent).connect_failed(65_000))
        }),
        case(Class::Unknown, "Cilium replaces kube-proxy", |mode| {
            let mut world = without_rules(mode);
            (world.node.running, world.node.mode) = (Some(false), None);
            world.node.interface = Some("cilium_host");
            silent(world)
        }),
        case(Class::Unknown, "a node port of another node", |mode| {
            let address = "192.168.1.3:30080";
            let world = with_rules(reached_by(mode, Via::NodePort, address), RuleEffect::Missing);
            Traced::of(world, Script::new(CLIENT, address, None).silent(60_000))
        }),
        case(Class::Unknown, "nothing is tracked, and the rules could not be read", |mode| {
            let mut world = world(mode);
            world.node.rules = Rules::Unread;
            Traced::of(world, untracked(untranslated().silent(60_000)))
        }),
        case(Class::Ok, "a Pod's own conntrack sees it untranslated, and the node translates it", |mode| {
            let mut script = untranslated().confirm(60_000);
            script.out[0].netns = CLIENT_NS;
            script.endpoint = cart().endpoint;
            Traced::of(world(mode), script.with_ct(7).healthy(60_001))
        }),
    ];
    Group { symptom: "a SYN leaves untranslated", cases }
}

fn no_such_port() -> Group<Traced> {
    let cases = vec![
        case(Class::C5c, "the Service has no such port", |mode| {
            Traced::of(world(mode), Script::new(CLIENT, "10.96.0.10:81", None).silent(60_000))
        }),
        case(Class::C5c, "the Service gave its address up", |mode| {
            silent(formerly(mode, |service| service.cluster_ips.push(addr("10.96.0.99:0").ip())))
        }),
        case(Class::C6, "the Service gave its address up, and a rule still translates it", |mode| {
            let world = formerly(mode, |service| service.cluster_ips.push(addr("10.96.0.99:0").ip()));
            Traced::of(world, cart().silent(60_000))
        }),
        case(Class::C5c, "no Service has an address among the cluster IPs", |mode| {
            let mut world = world(mode);
            let far = service("far", "10.96.200.1");
            let at_far = addr("10.244.1.9:8080");
            let endpoints = slice(&far, at_far, vec![endpoint(at_far.ip(), "far-0", READY)]);
            world.shop.put(0, Object::Service(far.into()));
            world.shop.put(0, Object::EndpointSlice(endpoints.into()));
            Traced::of(world, Script::new(CLIENT, "10.96.77.77:80", None).silent(60_000))
        }),
        case(Class::C27, "the Service became headless", |mode| {
            silent(formerly(mode, |service| service.headless = true))
        }),
        case(Class::C27, "the Service became a name in DNS", |mode| {
            silent(formerly(mode, |service| service.r#type = ServiceType::ExternalName))
        }),
        case(
            Class::C5,
            "the port was added to the Service a minute before, and no rule was written",
            |mode| {
                let mut world = world_of(mode, Shop::with_endpoints(&[OTHER]));
                world = with_rules(world, RuleEffect::Missing);
                silent(world)
            },
        ),
        case(Class::N13, "a host elsewhere, which is no address of the cluster", |mode| {
            Traced::of(world(mode), Script::new(CLIENT, "192.0.2.7:80", None).silent(60_000))
        }),
    ];
    Group { symptom: "nothing answers at an address or port that the rules do not know", cases }
}

/// cart without its address since 20 s, changed in this way.
fn formerly(mode: ProxyMode, change: fn(&mut Service)) -> World {
    let mut world = world(mode);
    let mut service = world.shop.cart.clone();
    service.cluster_ips.clear();
    change(&mut service);
    world.shop.put(20_000, Object::Service(service.into()));
    world
}
