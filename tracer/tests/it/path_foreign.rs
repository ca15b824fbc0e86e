//! Rules of other programs than kube-proxy in a walk that notes every rule: their marks, their states and devices, and what is
//! not known of them. An answer of which a part is not known must not look certain.

use std::{collections::BTreeSet, net::IpAddr};

use viptrace::{
    diagnosis::path::{From, Journey, Outcome, Question, Scene, To},
    node::routes::Routes,
    rules::{
        Ruleset, ipset,
        iptables::{self, Hint},
        nftables,
    },
};

const NODE: &str = "192.0.2.5";
const POD: &str = "10.244.1.9";

/// The journey of a packet through these rules, on a node with Pods behind `cni0` and a tunnel to the others.
fn journey(rules: &Ruleset, from: &str, to: &str) -> Journey {
    let mut rules = rules.clone();
    rules.addresses = Some(BTreeSet::from([NODE, "127.0.0.1", "10.244.1.1"].map(|ip| ip.parse().unwrap())));
    let routes = Routes::parse(
        "default via 192.0.2.1 dev eth0\n10.244.1.0/24 dev cni0 scope link\n10.244.0.0/16 dev tun0 scope link\n",
    )
    .unwrap();
    let from = match from {
        "node" => From::Node,
        address => From::Address(address.parse::<IpAddr>().unwrap()),
    };
    let question = Question { from, to: To::Address(to.parse().unwrap()), protocol: None, family: None };
    Scene::new(&rules, &routes).journey(&question).unwrap()
}

/// The rules of one table, whose built-in chains accept. Chains are declared where they are used.
fn tables(tables: &[(&str, &str)]) -> Ruleset {
    let texts: Vec<String> =
        tables.iter().map(|(name, rules)| format!("*{name}\n{rules}\nCOMMIT\n")).collect();
    let rules = iptables::parse(&texts.concat(), Hint::default());
    assert_eq!(rules.oddities, [""; 0]);
    rules
}

fn iptables_journey(list: &[(&str, &str)], from: &str, to: &str) -> Journey {
    journey(&tables(list), from, to)
}

/// The result alone, of an answer that depends on nothing.
fn certain(journey: &Journey) -> Outcome {
    assert!(journey.depends_on.is_empty() && journey.unjudged.is_empty(), "{journey:#?}");
    journey.result
}

fn is_open(journey: &Journey) -> bool {
    journey.result == Outcome::Unknown || !journey.depends_on.is_empty()
}

/// The mark of a connection is another than that of the packet, and begins with 0.
#[test]
fn the_mark_of_a_connection_is_not_the_packets() {
    let drop = |rules: &str| {
        let list = [("mangle", rules), ("filter", "-A FORWARD -m mark --mark 0x80/0x80 -j DROP")];
        certain(&iptables_journey(&list, POD, "10.244.2.7:80")) == Outcome::Dropped
    };
    let set = "-A PREROUTING -j CONNMARK --set-xmark 0x80/0x80\n";
    assert!(!drop(set));
    assert!(drop(&format!("{set}-A PREROUTING -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80")));
    assert!(!drop(&format!("{set}-A PREROUTING -j CONNMARK --restore-mark --nfmask 0x40 --ctmask 0x40")));
    // A new connection's mark replaces the packet's.
    let marked = "-A PREROUTING -j MARK --set-xmark 0x80/0x80\n";
    assert!(drop(marked));
    assert!(!drop(&format!(
        "{marked}-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"
    )));

    let of_connection = |rules: &str| {
        let list = [("mangle", rules), ("filter", "-A FORWARD -m connmark --mark 0x80/0x80 -j DROP")];
        certain(&iptables_journey(&list, POD, "10.244.2.7:80")) == Outcome::Dropped
    };
    assert!(of_connection(set));
    assert!(!of_connection(marked));
    assert!(of_connection(&format!(
        "{marked}-A PREROUTING -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff"
    )));
}

/// Of a known connection the mark is not in any list.
#[test]
fn the_mark_of_a_known_connection_is_not_known() {
    let list = [
        ("nat", "-A OUTPUT -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.7:80"),
        (
            "filter",
            "-A INPUT -j CONNMARK --restore-mark --nfmask 0xf0 --ctmask 0xf0\n-A INPUT -m mark --mark 0x10/0x10 -j DROP",
        ),
    ];
    let journey = iptables_journey(&list, "node", "10.96.0.9:80");
    assert_eq!(journey.result, Outcome::Reaches);
    assert!(journey.reply.iter().any(|line| line.contains("may be dropped")), "{:?}", journey.reply);
}

/// Conntrack's mark is neither read nor written for a packet that it ignores, and a rule's text says so. Each effect is that of the
/// packet's marks at that rule, also after rules that are not listed.
#[test]
fn a_steps_marks_are_those_of_the_walk() {
    let effects = |list: &[(&str, &str)]| -> Vec<String> {
        let journey = iptables_journey(list, POD, "10.244.2.7:80");
        journey.steps.into_iter().filter_map(|step| step.effect).collect()
    };
    let restore = "-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff";
    let marked = format!("-A PREROUTING -j MARK --set-xmark 0x80/0x80\n{restore}");
    let raw = ("raw", "-A PREROUTING -j CT --notrack");
    assert_eq!(effects(&[("mangle", &marked)]), ["mark 0x80", "mark 0x0"]);
    let ignored = "nothing: conntrack ignores the packet";
    assert_eq!(effects(&[raw, ("mangle", &marked)]), ["conntrack and NAT ignore it", "mark 0x80", ignored]);
    let save = "-A PREROUTING -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff";
    let saved = format!("-A PREROUTING -j MARK --set-xmark 0x3/0x3\n{save}");
    assert_eq!(effects(&[("mangle", &saved)]), ["mark 0x3", "mark of the connection 0x3"]);
    assert_eq!(effects(&[raw, ("mangle", save)]), ["conntrack and NAT ignore it", ignored]);
}

/// Conntrack has a state for packets that it ignores, which rules of firewalls and Calico ask for.
#[test]
fn a_packet_that_conntrack_ignores_is_untracked() {
    let raw = ("raw", "-A PREROUTING -d 10.244.2.7/32 -j CT --notrack");
    let to = "10.244.2.7:80";
    let filter = |rules: &'static str| ("filter", rules);
    let untracked = filter("-A FORWARD -m conntrack --ctstate INVALID,UNTRACKED -j DROP");
    assert_eq!(certain(&iptables_journey(&[raw, untracked], POD, to)), Outcome::Dropped);
    assert_eq!(certain(&iptables_journey(&[untracked], POD, to)), Outcome::Passes);
    let tracked = filter("-A FORWARD -m conntrack ! --ctstate UNTRACKED -j DROP");
    assert_eq!(certain(&iptables_journey(&[raw, tracked], POD, to)), Outcome::Passes);
    assert_eq!(certain(&iptables_journey(&[tracked], POD, to)), Outcome::Dropped);

    let nft = |rule: &str| {
        let text = format!(
            "table inet fw {{\n\tchain raw {{\n\t\ttype filter hook prerouting priority raw; policy accept;\n\
             \t\tip daddr 10.244.2.7 notrack\n\t}}\n\tchain forward {{\n\
             \t\ttype filter hook forward priority filter; policy accept;\n\t\t{rule}\n\t}}\n}}\n"
        );
        certain(&journey(&nftables::parse_others(&text).unwrap(), POD, to))
    };
    assert_eq!(nft("ct state { new, untracked } drop"), Outcome::Dropped);
    assert_eq!(nft("ct state new drop"), Outcome::Passes);
    assert_eq!(
        nft("ct state vmap { established : accept, new : accept, untracked : drop }"),
        Outcome::Dropped
    );
    assert_eq!(nft("ct state vmap { established : accept, new : drop }"), Outcome::Passes);
}

/// `LOCAL` with `--limit-iface-out` is an address of the device: one of another device is not LOCAL there, though it is the
/// node's.
#[test]
fn a_local_address_of_one_device_is_not_known() {
    let rule = "-A POSTROUTING -o tun0 -m addrtype ! --src-type LOCAL --limit-iface-out -m addrtype --src-type LOCAL -j MASQUERADE";
    assert!(is_open(&iptables_journey(&[("nat", rule)], "node", "10.244.2.7:80")));
    // The last condition decides alone.
    assert_eq!(certain(&iptables_journey(&[("nat", rule)], POD, "10.244.2.7:80")), Outcome::Passes);
    let positive = "-A FORWARD -m addrtype --dst-type LOCAL --limit-iface-in -j DROP";
    assert_eq!(certain(&iptables_journey(&[("filter", positive)], POD, "10.244.2.7:80")), Outcome::Passes);
}

/// The node's packets to itself arrive through the loopback device.
#[test]
fn packets_to_the_node_itself_use_the_loopback_device() {
    let to = "192.0.2.5:80";
    let firewall = ("filter", "-A INPUT -i lo -j ACCEPT\n-A INPUT -j DROP");
    assert_eq!(certain(&iptables_journey(&[firewall], "node", to)), Outcome::Passes);
    assert_eq!(certain(&iptables_journey(&[firewall], "203.0.113.9", to)), Outcome::Dropped);
    let output = |rule| certain(&iptables_journey(&[("filter", rule)], "node", to));
    assert_eq!(output("-A OUTPUT -o lo -j DROP"), Outcome::Dropped);
    assert_eq!(output("-A OUTPUT -o eth0 -j DROP"), Outcome::Passes);
    // No device is known there, so none has this name.
    assert_eq!(output("-A OUTPUT ! -o lo -j DROP"), Outcome::Passes);

    let nft = |rule: &str| {
        let text = format!(
            "table inet fw {{\n\tchain input {{\n\t\ttype filter hook input priority filter; policy accept;\n\
             \t\t{rule}\n\t}}\n}}\n"
        );
        certain(&journey(&nftables::parse_others(&text).unwrap(), "node", to))
    };
    assert_eq!(nft("iifname \"lo\" drop"), Outcome::Dropped);
    assert_eq!(nft("oifname \"lo\" drop"), Outcome::Passes);
}

/// A translation in OUTPUT changes the route. The chains after it in this hook still see the first device.
#[test]
fn the_device_in_output_is_that_of_the_first_route() {
    let nat = ("nat", "-A OUTPUT -d 10.96.0.9/32 -j DNAT --to-destination 10.244.2.7:80");
    let drop = |rule| {
        let list = [nat, ("filter", rule)];
        certain(&iptables_journey(&list, "node", "10.96.0.9:80"))
    };
    assert_eq!(drop("-A OUTPUT -o tun0 -j DROP"), Outcome::Reaches);
    assert_eq!(drop("-A OUTPUT -o eth0 -j DROP"), Outcome::Dropped);
    let masquerade = (
        "nat",
        "-A OUTPUT -d 10.96.0.9/32 -j DNAT --to-destination 10.244.2.7:80\n-A POSTROUTING -o tun0 -j MASQUERADE",
    );
    let journey = iptables_journey(&[masquerade], "node", "10.96.0.9:80");
    assert!(journey.ways.iter().all(|way| way.masqueraded), "{journey:#?}");
}

/// A target that is neither known nor a chain of the list ends what is known.
#[test]
fn an_unknown_target_leaves_the_answer_open() {
    for target in ["TARPIT", "DELUDE --reset", "NFQUEUE --queue-num 0", "NETMAP --to 10.0.0.0/8", "CONNMARK"]
    {
        let rule = format!("-A FORWARD -j {target}");
        let journey = iptables_journey(&[("filter", &rule)], POD, "10.244.2.7:80");
        assert_eq!(journey.result, Outcome::Unknown, "{target}: {journey:#?}");
    }
    for target in
        ["HL --hl-set 64", "IDLETIMER --timeout 5 --label x", "LOG --log-prefix \"--set-xmark 0x1/0x1\""]
    {
        let rule = format!("-A FORWARD -j {target}\n-A FORWARD -m mark --mark 0x1/0x1 -j DROP");
        let journey = iptables_journey(&[("filter", &rule)], POD, "10.244.2.7:80");
        assert_eq!(certain(&journey), Outcome::Passes, "{target}");
    }
}

/// A match that is not known leaves the answer open, with options or without, and its text is whole.
#[test]
fn an_unknown_match_leaves_the_answer_open() {
    for condition in [
        "-m ndpi",
        "-f",
        "-m condition --condition night",
        "-m u32 --u32 \"0x0>>0x16=0x5\"",
        "-m statistic --mode nth --every 3 --packet 0",
        "-m owner --uid-owner 1337",
        "-m socket",
        "-m set --match-set absent src",
        "-m recent --rcheck --seconds 5 --hitcount 3 --name GUESTS --rsource",
        "-d 10.0.0.0/255.0.255.0",
    ] {
        let rule = format!("-A FORWARD {condition} -j DROP");
        let journey = iptables_journey(&[("filter", &rule)], POD, "10.244.2.7:80");
        assert!(is_open(&journey), "{condition}: {journey:#?}");
    }
    let journey =
        iptables_journey(&[("filter", "-A FORWARD -d 10.0.0.0/255.0.255.0 -j DROP")], POD, "10.244.2.7:80");
    let why = &journey.depends_on[0].why;
    assert!(why.contains("-d 10.0.0.0/255.0.255.0"), "{why}");
    // Without options these hold for every packet of their protocol.
    for name in ["-m tcp", "-m comment", "-m conntrack", "! -f"] {
        let rule = format!("-A FORWARD -p tcp {name} -j DROP");
        let journey = iptables_journey(&[("filter", &rule)], POD, "10.244.2.7:80");
        assert_eq!(certain(&journey), Outcome::Dropped, "{name}");
    }
}

/// A protocol by its name is another one than TCP.
#[test]
fn protocols_by_name_do_not_match_tcp() {
    for name in ["esp", "ipencap", "gre", "vrrp", "udplite", "ipv6-crypt", "igmp", "ospf"] {
        let rule = format!("-A FORWARD -p {name} -j DROP");
        assert_eq!(
            certain(&iptables_journey(&[("filter", &rule)], POD, "10.244.2.7:80")),
            Outcome::Passes,
            "{name}"
        );
    }
}

/// Before 1.4.3, iptables wrote the negation after the option.
#[test]
fn a_negation_after_the_option_counts() {
    for (condition, dropped) in [
        ("-s ! 10.244.0.0/16", false),
        ("-s ! 10.0.0.0/16", true),
        ("-i ! cni0", false),
        ("-i ! eth0", true),
        ("-o ! tun0", false),
        ("-p ! tcp", false),
        ("-p ! udp", true),
        ("-p tcp -m tcp --dport ! 80", false),
        ("-p tcp -m tcp --dport ! 443", true),
        ("-m mark --mark ! 0x1/0x1", true),
    ] {
        let rule = format!("-A FORWARD {condition} -j DROP");
        let result = certain(&iptables_journey(&[("filter", &rule)], POD, "10.244.2.7:80"));
        assert_eq!(result == Outcome::Dropped, dropped, "{condition}");
    }
}

fn with_sets(sets: &str, rule: &str, to: &str) -> Journey {
    let mut rules = tables(&[("filter", rule)]);
    rules.absorb(ipset::parse(sets));
    journey(&rules, POD, to)
}

/// An excluded element counts where it is the smallest around the address, wherever the word stands.
#[test]
fn elements_of_ipsets_can_be_excluded() {
    let sets = "create nets hash:net family inet hashsize 1024 maxelem 65536 timeout 0 comment\n\
                add nets 10.244.0.0/16 timeout 0\nadd nets 10.244.2.0/24 timeout 0 nomatch\n\
                add nets 10.244.2.128/25 timeout 0 comment \"not nomatch \"\n";
    let rule = "-A FORWARD -m set --match-set nets dst -j DROP";
    assert_eq!(certain(&with_sets(sets, rule, "10.244.3.7:80")), Outcome::Dropped);
    assert_eq!(certain(&with_sets(sets, rule, "10.244.2.7:80")), Outcome::Passes);
    assert_eq!(certain(&with_sets(sets, rule, "10.244.2.200:80")), Outcome::Dropped);
}

/// The port of `src` is the source port.
#[test]
fn ports_of_ipsets_have_a_side() {
    let sets =
        "create own hash:ip,port family inet\nadd own 10.244.2.7,tcp:40000\nadd own 10.244.2.8,tcp:80\n";
    let rule = "-A FORWARD -m set --match-set own dst,src -j DROP";
    assert_eq!(certain(&with_sets(sets, rule, "10.244.2.7:80")), Outcome::Dropped);
    assert_eq!(certain(&with_sets(sets, rule, "10.244.2.8:80")), Outcome::Passes);
}

/// With `netmask` a set has one element for a whole network.
#[test]
fn a_set_of_networks_by_mask_is_not_known() {
    let sets =
        "create wide hash:ip family inet hashsize 1024 maxelem 65536 netmask 24\nadd wide 10.244.2.0\n";
    let rule = "-A FORWARD -m set --match-set wide dst -j DROP";
    assert!(is_open(&with_sets(sets, rule, "10.244.2.7:80")));
}

/// A set of a type that is not understood has unknown elements. It is no part of kube-proxy's rules.
#[test]
fn a_set_of_another_type_is_not_known() {
    let sets = "create all list:set size 8\ncreate pairs hash:net,iface family inet\ncreate pings hash:ip,port family inet\n\
                add all pairs\nadd pairs 10.244.0.0/16,cni0\nadd pings 10.244.2.7,icmp:echo-request\n";
    for set in ["all src", "pairs dst,src", "pings dst,dst"] {
        let rule = format!("-A FORWARD -m set --match-set {set} -j DROP");
        let journey = with_sets(sets, &rule, "10.244.2.7:80");
        assert!(journey.depends_on[0].why.contains("not understood"), "{set}: {journey:#?}");
    }
    assert_eq!(ipset::parse(sets).skipped, 0);
    assert_eq!(ipset::parse("create KUBE-A list:set size 8\nadd KUBE-A x\n").skipped, 2);
}

fn nft(chains: &str, from: &str, to: &str) -> Journey {
    journey(&nftables::parse_others(&format!("table inet fw {{\n{chains}\n}}\n")).unwrap(), from, to)
}

fn forward(rules: &str) -> String {
    format!("\tchain forward {{\n\t\ttype filter hook forward priority filter; policy accept;\n{rules}\n\t}}")
}

/// A log is followed by the verdict of the same rule.
#[test]
fn the_rest_of_an_nft_rule_counts() {
    for rule in [
        "log prefix \"dropped: \" level info flags all drop",
        "log drop",
        "log prefix \"x\" flags tcp sequence,options drop",
        "ip daddr 10.244.2.7 log group 5 snaplen 64 counter packets 1 bytes 2 drop comment \"y\"",
        "notrack drop",
        "tcp dport { 22, 79-81 } drop",
        "tcp option maxseg size set rt mtu drop",
        "meta priority set 1:2 ip dscp set cs1 drop",
        "ct mark set 0x7 drop",
        "meta nftrace set 1 drop",
    ] {
        assert_eq!(certain(&nft(&forward(rule), POD, "10.244.2.7:80")), Outcome::Dropped, "{rule}");
    }
}

/// A statement that is not known has an effect that is not known, in either format.
#[test]
fn an_unknown_nft_statement_leaves_the_answer_open() {
    for rule in [
        "dnat ip to ip daddr map @backends",
        "ip daddr set 10.244.2.9",
        "tcp dport set 8080",
        "meta mark set jhash ip saddr mod 2\n\t\tmeta mark 1 drop",
        "numgen random mod 10 vmap { 0-4 : drop, 5-9 : accept }",
        "ip saddr . tcp sport vmap @clients",
        "ip daddr vmap @absent",
        "tcp dport vmap { 80 : dnat to 10.0.0.1, { 1 } }",
        "ip saddr set",
        "jump absent",
        "synproxy mss 1460 wscale 7",
        "tcp dport 80 # xt_TARPIT counter packets 0 bytes 0",
        "tcp dport 80 # xt_string counter packets 0 bytes 0 drop",
    ] {
        assert!(is_open(&nft(&forward(rule), POD, "10.244.2.7:80")), "{rule}");
    }
    let json = |statement: &str| {
        let text = format!(
            r#"{{"nftables": [
            {{"table": {{"family": "ip", "name": "fw"}}}},
            {{"chain": {{"family": "ip", "table": "fw", "name": "c", "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}}},
            {{"rule": {{"family": "ip", "table": "fw", "chain": "c", "expr": [{statement}]}}}}
            ]}}"#
        );
        journey(&nftables::parse_others(&text).unwrap(), POD, "10.244.2.7:80")
    };
    for statement in [
        r#"{"xt": {"type": "target", "name": "DNAT"}}"#,
        r#"{"mangle": {"key": {"payload": {"protocol": "ip", "field": "daddr"}}, "value": "10.0.0.1"}}"#,
        r#"{"teleport": {"to": "10.0.0.1"}}"#,
        r#"{"match": {"op": "==", "left": {"ct": {"key": "status"}}, "right": "dying"}}, {"drop": null}"#,
    ] {
        assert!(is_open(&json(statement)), "{statement}");
    }
    for statement in [
        r#"{"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}}, {"drop": null}"#,
        r#"{"map": {"op": "add", "elem": 1, "data": 2, "map": "@m"}}"#,
        r#"{"mangle": {"key": {"payload": {"protocol": "ip", "field": "dscp"}}, "value": 1}}"#,
    ] {
        assert_eq!(certain(&json(statement)), Outcome::Passes, "{statement}");
    }
}

/// An element that is not understood may be the one that decides.
#[test]
fn a_part_of_a_map_that_is_not_understood_leaves_the_answer_open() {
    let map = |elements: &str| {
        format!(
            "\tmap ports {{\n\t\ttype inet_service : verdict\n\t\telements = {{ {elements} }}\n\t}}\n{}",
            forward("\t\ttcp dport vmap @ports")
        )
    };
    assert!(is_open(&nft(&map("443 : accept, 79-81 : drop"), POD, "10.244.2.7:80")));
    assert!(is_open(&nft(&map("443 : accept, * : drop"), POD, "10.244.2.7:80")));
    assert_eq!(certain(&nft(&map("443 : accept, 80 : drop"), POD, "10.244.2.7:80")), Outcome::Dropped);
    assert_eq!(certain(&nft(&map("443 : accept, 81 : drop"), POD, "10.244.2.7:80")), Outcome::Passes);
}

#[test]
fn networks_in_a_set_of_an_nft_text_are_read() {
    let set = format!(
        "\tset nets {{\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = {{ 10.244.2.0/24, 10.244.3.0-10.244.3.9 }}\n\t}}\n{}",
        forward("\t\tip daddr @nets drop")
    );
    for (to, result) in [
        ("10.244.2.7:80", Outcome::Dropped),
        ("10.244.3.9:80", Outcome::Dropped),
        ("10.244.3.10:80", Outcome::Passes),
    ] {
        assert_eq!(certain(&nft(&set, POD, to)), result, "{to}");
    }
}

/// The source changes only if the map has it.
#[test]
fn a_source_by_a_map_leaves_the_answer_open() {
    let chain = "\tchain out {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\
                 \t\tsnat ip to ip saddr map @egress comment \"x\"\n\t}";
    let journey = nft(chain, POD, "10.244.2.7:80");
    assert!(!journey.ways[0].masqueraded && is_open(&journey), "{journey:#?}");
}

/// The kernel does not enter the chains of a dormant table.
#[test]
fn a_dormant_table_decides_nothing() {
    let text = format!("\tflags dormant\n{}", forward("\t\tdrop"));
    assert_eq!(certain(&nft(&text, POD, "10.244.2.7:80")), Outcome::Passes);
    let text = format!("\tflags owner,persist\n{}", forward("\t\tdrop"));
    assert_eq!(certain(&nft(&text, POD, "10.244.2.7:80")), Outcome::Dropped);
    for (flags, result) in [(r#""dormant""#, Outcome::Passes), (r#"["owner", "persist"]"#, Outcome::Dropped)]
    {
        let json = format!(
            r#"{{"nftables": [
            {{"table": {{"family": "ip", "name": "fw", "flags": {flags}}}}},
            {{"chain": {{"family": "ip", "table": "fw", "name": "c", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}}}
            ]}}"#
        );
        let journey = journey(&nftables::parse_others(&json).unwrap(), POD, "10.244.2.7:80");
        assert_eq!(certain(&journey), result, "{flags}");
    }
}

/// Marks of packets and connections in expressions of several terms.
#[test]
fn marks_of_nft_have_several_terms() {
    for (rules, dropped) in [
        ("meta mark set 0x85\n\t\tmeta mark set meta mark & 0xf0 | 0x1\n\t\tmeta mark 0x81 drop", true),
        ("meta mark set mark or 0x4000\n\t\tmark and 0x4000 == 0x4000 drop", true),
        ("ct mark set 0x80\n\t\tmeta mark set ct mark\n\t\tmeta mark 0x80 drop", true),
        ("ct mark set 0x80\n\t\tct mark & 0x80 == 0x80 drop", true),
        (
            "meta mark set 0x5\n\t\tmeta mark set meta mark & 0xffffff00 | ct mark & 0xff\n\t\tmeta mark 0x5 drop",
            false,
        ),
        ("meta mark set 0x5\n\t\tct mark set meta mark\n\t\tct mark 0x5 drop", true),
        ("meta mark 0x5 drop", false),
        ("ct mark != 0x0 drop", false),
    ] {
        let result = certain(&nft(&forward(&format!("\t\t{rules}")), POD, "10.244.2.7:80"));
        assert_eq!(result == Outcome::Dropped, dropped, "{rules}");
    }
}
