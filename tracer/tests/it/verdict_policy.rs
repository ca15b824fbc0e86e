//! C30 with the rule that stopped the packet: the node's rules are walked for it.

use crate::{
    flow_support::{CLIENT, EP, Script, VIP, World, addr},
    node_support::{Rules, iptables, nftables},
};
use viptrace::{
    class::{Class, Confidence},
    net::{Family, Netns, Protocol},
    node::{ProxyMode, RuleEffect, capture::Kind},
    sighting::{Hook, TcpState},
    verdict::Verdict,
};

const ROUTES: &str = "default via 192.168.1.1 dev eth0\n10.244.1.100 dev cali100\n10.244.1.7 dev cali007\n";

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// kube-proxy's rules, with these chains and rules of another program in the table filter.
pub(crate) fn beside(chains: &str, rules: &str) -> World {
    let own =
        iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", &[(addr(VIP), Protocol::TCP, addr(EP), RuleEffect::Forwards)]);
    let (head, filter) = own.split_once("*filter\n").unwrap();
    let text = format!("{head}*filter\n{chains}{}{rules}COMMIT\n", filter.replace("COMMIT\n", ""));
    with(vec![(Kind::IptablesSave, text), (Kind::Routes, ROUTES.to_owned())])
}

fn with(lists: Vec<(Kind, String)>) -> World {
    let mut world = World::new();
    world.node.read_ms = Some(62_000);
    world.node.rules = Rules::Lists(lists);
    world
}

/// As Calico writes a policy for the endpoint's interface.
pub(crate) const CALICO: (&str, &str) = (
    ":cali-FORWARD - [0:0]\n:cali-to-wl-dispatch - [0:0]\n:cali-tw-cali007 - [0:0]\n:cali-tw-cali008 - [0:0]\n",
    "-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch\n\
     -A cali-to-wl-dispatch -o cali008 -g cali-tw-cali008\n-A cali-to-wl-dispatch -o cali007 -g cali-tw-cali007\n\
     -A cali-tw-cali008 -j DROP\n-A cali-tw-cali007 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
     -A cali-tw-cali007 -p tcp -m tcp --dport 9090 -j RETURN\n\
     -A cali-tw-cali007 -m comment --comment \"Drop if no policies passed packet\" -j DROP\n",
);

fn stopped(script: Script) -> Script {
    script
        .drop_syn(60_000, "NETFILTER_DROP")
        .retransmit(61_000, TcpState::SynSent)
        .drop_syn(61_000, "NETFILTER_DROP")
        .retransmit(63_000, TcpState::SynSent)
}

fn says(verdict: &Verdict, words: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(words))
}

fn misses(verdict: &Verdict, words: &str) -> bool {
    verdict.unseen.iter().any(|unseen| unseen.contains(words))
}

#[test]
fn the_chain_that_dropped_the_packet_is_named() {
    let world = beside(CALICO.0, CALICO.1);
    let verdict = world.verdict(stopped(to_cart()), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High));
    let name = "rule 3 of cali-tw-cali007 (iptables filter, FORWARD)";
    assert!(verdict.root_cause.contains(name), "{}", verdict.root_cause);
    assert!(says(&verdict, "drops this packet: `-j DROP`"), "{verdict:#?}");
    assert!(!says(&verdict, "cali008"), "{verdict:#?}");
    // The policy of another Pod does not concern it, and no other rule does.
    let world = beside(CALICO.0, &CALICO.1.replace("cali007", "cali009"));
    let verdict = world.verdict(stopped(to_cart()), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium));
    assert!(misses(&verdict, "no rule that was read on this node drops this packet"), "{verdict:#?}");
    assert!(misses(&verdict, "other programs' nftables tables"), "{verdict:#?}");
}

/// kindnet hands first packets to its agent, which drops what a policy forbids: the kernel frees them without a reason.
#[test]
fn the_queue_whose_program_dropped_the_packet_is_named() {
    let queued = "-A FORWARD -d 10.244.1.7/32 -p tcp -j NFQUEUE --queue-num 100 --queue-bypass\n";
    let stopped = || {
        let script = to_cart().drop_syn(60_000, "NOT_SPECIFIED").retransmit(61_000, TcpState::SynSent);
        script.drop_syn(61_000, "NOT_SPECIFIED").retransmit(63_000, TcpState::SynSent)
    };
    let verdict = beside("", queued).verdict(stopped(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.root_cause.contains("the program behind rule 2 of FORWARD"), "{}", verdict.root_cause);
    // A queue that this packet does not come to, and none.
    for rules in [queued.replace("10.244.1.7", "10.244.9.9"), String::new()] {
        assert_eq!(beside("", &rules).verdict(stopped(), 70_000).class, Class::C29, "{rules}");
    }
}

/// Before 5.17 the kernel gives no reason for a drop: then only the rules show that one of them dropped the packet.
#[test]
fn a_drop_without_a_reason_is_a_rules_if_a_rule_stops_the_packet() {
    let without_reason = || {
        to_cart()
            .drop_syn(60_000, "")
            .retransmit(61_000, TcpState::SynSent)
            .drop_syn(61_000, "")
            .retransmit(63_000, TcpState::SynSent)
    };
    let on_an_old_kernel = |mut world: World| {
        world.drop_reasons = false;
        world.verdict(without_reason(), 70_000)
    };
    let verdict = on_an_old_kernel(beside(CALICO.0, CALICO.1));
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium));
    assert!(verdict.root_cause.contains("rule 3 of cali-tw-cali007"), "{}", verdict.root_cause);
    assert!(misses(&verdict, "this kernel gives no reason"), "{verdict:#?}");
    // The twin: no rule stops it, or it is not certain that one does.
    let elsewhere = CALICO.1.replace("cali007", "cali009");
    let unsure = CALICO.1.replace("-j DROP\n", "-m limit --limit 5/sec -j DROP\n");
    for rules in [elsewhere, unsure] {
        assert_eq!(on_an_old_kernel(beside(CALICO.0, &rules)).class, Class::C29, "{rules}");
    }
}

#[test]
fn a_policy_of_a_base_chain_is_named() {
    let mut world = beside("", "");
    if let Rules::Lists(lists) = &mut world.node.rules {
        for (_, text) in lists {
            *text = text.replace(":FORWARD ACCEPT", ":FORWARD DROP");
        }
    }
    let verdict = world.verdict(stopped(to_cart()), 70_000);
    assert!(verdict.root_cause.contains("the policy of FORWARD (iptables filter, FORWARD)"), "{verdict:#?}");
}

#[test]
fn a_rule_that_cannot_be_judged_is_a_candidate() {
    let limited = "-A FORWARD -p tcp -m hashlimit --hashlimit-above 5/sec --hashlimit-name x -j DROP\n";
    let verdict = beside("", limited).verdict(stopped(to_cart()), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium));
    assert!(says(&verdict, "of FORWARD (iptables filter, FORWARD) drops this packet"), "{verdict:#?}");
    assert!(says(&verdict, "it depends on whether"), "{verdict:#?}");
    assert!(says(&verdict, "hashlimit"), "{verdict:#?}");
}

#[test]
fn a_table_of_another_program_is_walked() {
    let firewall = "table inet firewalld {\n\tchain filter_FORWARD {\n\t\ttype filter hook forward priority filter + 10; policy accept;\n\
         \t\tct state established,related accept\n\t\tip daddr 10.244.0.0/16 tcp dport 8080 reject with icmpx admin-prohibited\n\t}\n}\n";
    let own = nftables(Family::Ipv4, &[(addr(VIP), Protocol::TCP, addr(EP), RuleEffect::Forwards)]);
    let mut world = with(vec![
        (Kind::NftRuleset, own.clone()),
        (Kind::NftOthers, firewall.to_owned()),
        (Kind::Routes, ROUTES.to_owned()),
    ]);
    world.node.mode = Some(ProxyMode::Nftables);
    let refused = || to_cart().unreach(60_000, 13).connect_failed(60_001);
    let verdict = world.verdict(refused(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High));
    let name = "rule 2 of filter_FORWARD (nftables inet firewalld, FORWARD)";
    assert!(verdict.root_cause.contains(name), "{}", verdict.root_cause);
    // Without that table the list of it is what is missing.
    world.node.rules = Rules::Lists(vec![(Kind::NftRuleset, own), (Kind::Routes, ROUTES.to_owned())]);
    let verdict = world.verdict(refused(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium));
    assert!(misses(&verdict, "other programs' nftables tables"), "{verdict:#?}");
}

#[test]
fn a_drop_before_nat_is_another_programs_only_if_its_rule_was_found() {
    let raw = |rules: &str| {
        let own = iptables(
            "KUBE-SVC-I5LIAMPLWKMBJ54B",
            &[(addr(VIP), Protocol::TCP, addr(EP), RuleEffect::Forwards)],
        );
        let raw = format!("*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{rules}COMMIT\n");
        with(vec![(Kind::IptablesSave, raw + &own), (Kind::Routes, ROUTES.to_owned())])
    };
    let seen = || {
        Script::new(CLIENT, VIP, None)
            .drop_before_nat(60_000)
            .retransmit(61_000, TcpState::SynSent)
            .drop_before_nat(61_000)
            .retransmit(63_000, TcpState::SynSent)
    };
    let verdict = raw("-A PREROUTING -d 10.96.0.0/12 -i cali100 -j DROP\n").verdict(seen(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High), "{verdict:#?}");
    assert!(verdict.root_cause.contains("before NAT: rule 1 of PREROUTING (iptables raw"), "{verdict:#?}");
    // A rule for other interfaces leaves the cause open.
    let verdict = raw("-A PREROUTING -d 10.96.0.0/12 -i eth1 -j DROP\n").verdict(seen(), 70_000);
    assert_ne!(verdict.class, Class::C30, "{verdict:#?}");
    // And kube-proxy's own drop is not another program's.
    let mut world = beside("", "");
    world.node.rules = Rules::Vip(RuleEffect::Drops);
    assert_ne!(world.verdict(seen(), 70_000).class, Class::C30);
}

#[test]
fn a_dropped_answer_names_its_rule() {
    let egress = (
        ":cali-FORWARD - [0:0]\n:cali-fw-cali007 - [0:0]\n",
        "-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -i cali007 -g cali-fw-cali007\n\
         -A cali-fw-cali007 -p udp -j DROP\n-A cali-fw-cali007 -p tcp -m tcp --sport 8080 -j DROP\n",
    );
    let tcp = || {
        let script =
            to_cart().confirm(60_000).drop_known_answer(60_001).retransmit(61_000, TcpState::SynSent);
        script.drop_known_answer(61_001).retransmit(63_000, TcpState::SynSent)
    };
    let verdict = beside(egress.0, egress.1).verdict(tcp(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High), "{verdict:#?}");
    assert!(verdict.root_cause.contains("drops the answers"), "{}", verdict.root_cause);
    assert!(verdict.root_cause.contains("rule 2 of cali-fw-cali007"), "{}", verdict.root_cause);
    let verdict =
        beside(egress.0, egress.1).verdict(to_cart().udp().confirm(60_000).drop_known_answer(60_001), 70_000);
    assert_eq!(verdict.class, Class::C30, "{verdict:#?}");
    assert!(verdict.root_cause.contains("rule 1 of cali-fw-cali007"), "{}", verdict.root_cause);
    // An invalid answer looks the same, and is not a policy's drop.
    let datagram = to_cart().udp().confirm(60_000).drop_known_answer(60_001);
    for invalid in [
        tcp().invalid_answer(60_001, "SEQ is over upper bound"),
        datagram.invalid_answer(60_001, "bad checksum"),
    ] {
        assert_ne!(beside(egress.0, egress.1).verdict(invalid, 70_000).class, Class::C30);
    }
}

#[test]
fn rules_of_another_moment_or_namespace_are_not_blamed() {
    let mut world = beside(CALICO.0, CALICO.1);
    world.node.read_ms = Some(161_000);
    let verdict = world.verdict(stopped(to_cart()), 70_000);
    assert!(misses(&verdict, "whether the rules changed: they were read 1 min 40 s later"), "{verdict:#?}");
    assert_eq!(verdict.confidence, Confidence::Medium);
    let mut elsewhere = stopped(to_cart());
    for sighting in &mut elsewhere.out {
        if sighting.hook == Hook::KfreeSkb {
            sighting.netns = Netns(4_026_532_999);
        }
    }
    let verdict = world.verdict(elsewhere.confirm(59_999), 70_000);
    assert_eq!(verdict.confidence, Confidence::Medium, "{verdict:#?}");
    assert!(!says(&verdict, "cali-tw"), "{verdict:#?}");
}
