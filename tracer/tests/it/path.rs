//! `viptrace path` on captured nodes: kube-proxy's rules alone, and beside those of CNI plugins and firewalls.

use std::fs;

use insta::assert_snapshot;
use serde_json::Value;

use crate::{check_support::Gathered, terminal_support::Terminal};

const ROUTES: &str = "default via 192.0.2.1 dev eth0 proto dhcp metric 100\n\
    10.244.1.0/24 dev cni0 proto kernel scope link src 10.244.1.1\n\
    10.244.2.0/24 via 192.0.2.12 dev flannel.1 onlink\n192.0.2.0/24 dev eth0 proto kernel scope link\n";

/// A node in this mode, with its routes and addresses.
fn node(mode: &str) -> Gathered {
    let gathered = Gathered::new(&[&format!("kube-proxy/worker-1/{mode}")]);
    gathered.write("node/ip-route.txt", ROUTES);
    if mode != "ipvs" {
        gathered.write("node/addresses.txt", "192.0.2.11\n10.244.1.1\n");
    }
    gathered
}

fn terminal(gathered: &Gathered) -> Terminal {
    let terminal = Terminal::new();
    gathered.copy_to(&terminal.path().join("worker-1"));
    terminal
}

/// The record of a journey.
fn journey(gathered: &Gathered, ends: &str) -> Value {
    let terminal = terminal(gathered);
    let out = terminal.run(&format!("path --from worker-1 --node worker-1 -o json {ends}"));
    let line = out.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{out}"))).unwrap()
}

fn result_of(gathered: &Gathered, ends: &str) -> (String, String) {
    let journey = journey(gathered, ends);
    let text = |name: &str| journey[name].as_str().unwrap().to_owned();
    (text("result"), text("verdict"))
}

/// Adds rules of another program to a table: in front of kube-proxy's, and at the end.
fn beside(gathered: &Gathered, table: &str, chains: &str, first: &str, last: &str) {
    gathered.edit("node/iptables-save.txt", |text| {
        let begin = text.find(&format!("*{table}\n")).unwrap();
        let (before, rest) = text.split_at(begin);
        let (own, after) = rest.split_at(rest.find("COMMIT").unwrap());
        let rules = own.find("\n[").or_else(|| own.find("\n-A")).map_or(own.len(), |at| at + 1);
        let (head, rules) = own.split_at(rules);
        format!("{before}{head}{chains}{first}{rules}{last}{after}")
    });
}

/// Sets the policy of a chain of the table filter.
fn drops(gathered: &Gathered, chain: &str) {
    gathered.edit("node/iptables-save.txt", |text| {
        let (before, filter) = text.split_at(text.find("*filter").unwrap());
        before.to_owned() + &filter.replacen(&format!(":{chain} ACCEPT"), &format!(":{chain} DROP"), 1)
    });
}

#[test]
fn each_mode_in_words() {
    for mode in ["iptables", "nftables", "ipvs"] {
        let terminal = terminal(&node(mode));
        let ends = [
            "pod/shop/client-1 shop/cart:http",
            "pod/shop/cart-1 shop/cart",
            "pod/shop/client-1 shop/checkout",
            "198.51.100.7 192.0.2.11:30080",
            "node shop/payments",
        ];
        let commands = ends.map(|ends| format!("path --from worker-1 --node worker-1 {ends}"));
        assert_snapshot!(format!("path_{mode}"), terminal.session(&commands.each_ref().map(String::as_str)));
    }
}

#[test]
fn ends_that_do_not_exist() {
    let terminal = terminal(&node("nftables"));
    assert_snapshot!(terminal.session(&[
        "path --from worker-1 pod/shop/none shop/cart",
        "path --from worker-1 node shop/none",
        "path --from worker-1 node shop/db",
        "path --from worker-1 node shop/cart:99",
        "path --from worker-1 node kube-system/kube-dns",
        "path --from worker-1 node [2001:db8::1]:80 --family ipv4",
        "path --from worker-1 10.244.1.100 [2001:db8::1]:80",
        "path --from worker-1 shop/cart shop/cart",
        "path --from worker-1 node 10.96.10.10",
        "path --from worker-1 10.244.1.100:80 10.96.10.10:80",
        "path --from worker-1 node pod/shop/cart-1",
        "path --from nowhere node 10.96.10.10:80",
    ]));
}

#[test]
fn each_mode_gives_the_same_answers() {
    for mode in ["iptables", "nftables", "ipvs"] {
        let node = node(mode);
        let of = |ends: &str| result_of(&node, ends).0;
        assert_eq!(of("pod/shop/client-1 shop/cart"), "reaches", "{mode}");
        assert_eq!(of("pod/shop/client-1 kube-system/kube-dns:dns-tcp"), "reaches", "{mode}");
        assert_eq!(of("pod/shop/client-1 shop/checkout"), "refused", "{mode}");
        assert_eq!(of("pod/shop/client-1 10.244.2.21:8080"), "passes", "{mode}");
        let client_outside = |address: &str| of(&format!("{address} 203.0.113.80:443"));
        assert_eq!(client_outside("198.51.100.7"), "reaches", "{mode}: inside the source ranges");
        assert_eq!(client_outside("203.0.113.200"), "dropped", "{mode}: outside the source ranges");
        let journey = journey(&node, "pod/shop/client-1 shop/cart");
        let shares = journey["ways"].as_array().unwrap().iter().map(|way| way["share"].as_f64().unwrap());
        assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9, "{journey}");
        assert_eq!(journey["kube_proxy_mode"], mode);
    }
}

#[test]
fn a_port_that_the_service_does_not_have() {
    let (result, verdict) = result_of(&node("nftables"), "pod/shop/client-1 10.96.10.10:81");
    assert_eq!(result, "refused", "{verdict}");
    let (result, verdict) = result_of(&node("iptables"), "pod/shop/client-1 10.96.10.10:81");
    assert_eq!(result, "not_translated", "{verdict}");
    assert!(
        verdict.contains("Service shop/cart has this address, but no port 81/TCP: it has http"),
        "{verdict}"
    );
}

#[test]
fn an_endpoint_that_connects_to_itself() {
    let node = node("iptables");
    assert_eq!(result_of(&node, "pod/shop/api-1 shop/api").0, "reaches");
    // Without the rule that marks such a connection, the Pod drops its own packet.
    node.edit("node/iptables-save.txt", |text| {
        let kept: Vec<&str> = text.lines().filter(|line| !line.contains("-s 10.244.1.41/32")).collect();
        kept.join("\n") + "\n"
    });
    let journey = journey(&node, "pod/shop/api-1 shop/api");
    assert_eq!(journey["result"], "reply_lost", "{journey}");
    assert!(journey["reply"][0].as_str().unwrap().contains("C31"), "{journey}");
}

/// Calico's rules for a Pod (Calico 3.28, `felix/rules`): its chains come first in every table.
const CALICO: &str = "-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD\n";
const CALICO_CHAINS: &str = ":cali-FORWARD - [0:0]\n:cali-from-wl-dispatch - [0:0]\n:cali-fw-cali1 - [0:0]\n:cali-pro-ns.shop - [0:0]\n";
const CALICO_RULES: &str = "\
-A cali-FORWARD -m comment --comment \"cali:1\" -j MARK --set-xmark 0x0/0xe0000\n\
-A cali-FORWARD -i cali+ -m comment --comment \"cali:2\" -j cali-from-wl-dispatch\n\
-A cali-FORWARD -m mark --mark 0x10000/0x10000 -m comment --comment \"Policy explicitly accepted packet.\" -j ACCEPT\n\
-A cali-from-wl-dispatch -i cali1 -m comment --comment \"cali:3\" -g cali-fw-cali1\n\
-A cali-from-wl-dispatch -m comment --comment \"Unknown interface\" -j DROP\n\
-A cali-fw-cali1 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
-A cali-fw-cali1 -m conntrack --ctstate INVALID -j DROP\n\
-A cali-fw-cali1 -m set --match-set cali40s:allowed dst -j MARK --set-xmark 0x10000/0x10000\n\
-A cali-fw-cali1 -m mark --mark 0x10000/0x10000 -j RETURN\n\
-A cali-fw-cali1 -m comment --comment \"Drop if no policies passed packet\" -j DROP\n";

#[test]
fn a_network_policy_of_calico() {
    let node = node("iptables");
    beside(&node, "filter", CALICO_CHAINS, CALICO, CALICO_RULES);
    node.edit("node/ip-route.txt", |text| format!("{text}10.244.1.100 dev cali1 scope link\n"));
    // The sets were not captured: the answer depends on one.
    let unknown = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(unknown["result"], "dropped", "{unknown}");
    let condition = &unknown["depends_on"][0];
    assert!(
        condition["why"].as_str().unwrap().contains("the ipset cali40s:allowed was not captured"),
        "{unknown}"
    );
    let then = "it reaches one of 3 endpoints, which sees the client's address";
    assert_eq!(condition["then"], then, "{unknown}");
    let verdict = unknown["verdict"].as_str().unwrap();
    assert!(
        verdict.contains("rule 5 of cali-fw-cali1") && verdict.contains("Drop if no policies"),
        "{verdict}"
    );
    // With the set, it is known for each endpoint.
    let set = "create cali40s:allowed hash:net family inet hashsize 1024 maxelem 1048576\nadd cali40s:allowed 10.244.1.0/24\n";
    node.write("node/ipset-save.txt", set);
    let known = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(
        (known["result"].as_str(), known["depends_on"].as_array().unwrap().len()),
        (Some("mixed"), 0),
        "{known}"
    );
    assert!(
        known["verdict"].as_str().unwrap().contains("33 %: dropped by rule 5 of cali-fw-cali1"),
        "{known}"
    );
    let lost = known["ways"].as_array().unwrap().iter().find(|way| way["result"] == "dropped").unwrap();
    assert_eq!(lost["endpoint"], "10.244.2.13:8080", "what it was translated to: {known}");
    node.write("node/ipset-save.txt", &set.replace("10.244.1.0/24", "10.244.0.0/16"));
    assert_eq!(result_of(&node, "pod/shop/client-1 shop/cart").0, "reaches");
}

/// ufw 0.36 with its defaults, and the policy DROP for forwarded packets (`/etc/default/ufw`).
const UFW_CHAINS: &str = ":ufw-before-forward - [0:0]\n:ufw-before-input - [0:0]\n:ufw-user-input - [0:0]\n:ufw-not-local - [0:0]\n";
const UFW: &str = "-A INPUT -j ufw-before-input\n-A FORWARD -j ufw-before-forward\n";
const UFW_RULES: &str = "\
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
-A ufw-before-forward -p icmp -m icmp --icmp-type 3 -j ACCEPT\n\
-A ufw-before-input -i lo -j ACCEPT\n\
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP\n\
-A ufw-before-input -j ufw-not-local\n\
-A ufw-before-input -j ufw-user-input\n\
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN\n\
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN\n\
-A ufw-not-local -m addrtype --dst-type BROADCAST -j RETURN\n\
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] \"\n\
-A ufw-not-local -j DROP\n\
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\n";

#[test]
fn the_policy_of_a_firewall() {
    let node = node("iptables");
    beside(&node, "filter", UFW_CHAINS, UFW, UFW_RULES);
    drops(&node, "FORWARD");
    drops(&node, "INPUT");
    let (result, verdict) = result_of(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(
        (result.as_str(), verdict.as_str()),
        ("dropped", "dropped by the policy of FORWARD (iptables-nft filter, FORWARD)")
    );
    // kube-proxy accepts what it masquerades.
    assert_eq!(result_of(&node, "198.51.100.7 203.0.113.80:443").0, "reaches");
    let ssh = journey(&node, "198.51.100.7 192.0.2.11:22");
    assert_eq!(ssh["result"], "passes", "{ssh}");
    assert_eq!(result_of(&node, "198.51.100.7 192.0.2.11:23").0, "dropped");
    assert!(ssh["depends_on"].as_array().unwrap().is_empty(), "a limit on a log line decides nothing: {ssh}");
}

/// Docker 27 beside a cluster: `FORWARD` drops, and only Docker's own networks and flannel's ranges are accepted.
#[test]
fn docker_and_flannel() {
    let node = node("iptables");
    beside(
        &node,
        "filter",
        ":DOCKER-USER - [0:0]\n:DOCKER-FORWARD - [0:0]\n:FLANNEL-FWD - [0:0]\n",
        "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n",
        "-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n-A DOCKER-USER -j RETURN\n\
         -A DOCKER-FORWARD -i docker0 -j ACCEPT\n\
         -A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment \"flanneld forward\" -j ACCEPT\n\
         -A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment \"flanneld forward\" -j ACCEPT\n",
    );
    beside(
        &node,
        "nat",
        ":FLANNEL-POSTRTG - [0:0]\n",
        "",
        "-A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
         -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN\n\
         -A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.0.0/16 -j RETURN\n\
         -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\n",
    );
    drops(&node, "FORWARD");
    let pod = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(pod["result"], "reaches", "{pod}");
    assert_eq!(pod["ways"][0]["masqueraded"], false, "{pod}");
    let flannel =
        pod["ways"][0]["steps"].as_array().unwrap().iter().any(|step| step["chain"] == "FLANNEL-FWD");
    assert!(flannel, "{pod}");
    let outside = journey(&node, "pod/shop/client-1 198.51.100.7:443");
    assert_eq!(outside["ways"][0]["masqueraded"], true, "{outside}");
}

/// firewalld 2 (nftables backend): a table `inet` with a zone for the interface, and a reject at the end.
const FIREWALLD: &str = r#"table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state established,related accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_ZONES {
		iifname "cni0" goto filter_FWD_trusted
		iifname { "eth0", "eth1" } goto filter_FWD_public
	}
	chain filter_FWD_trusted {
		oifname "eth0" limit rate 10/second accept
		accept
	}
	chain filter_FWD_public {
		tcp dport { 80, 8000-8090 } ip6 daddr fd00::1 accept
		meta l4proto { icmp, ipv6-icmp } accept
	}
}
"#;

#[test]
fn firewalld_beside_kube_proxy_in_nftables_mode() {
    let node = node("nftables");
    fs::remove_file(node.path().join("node/nft-ruleset.json")).unwrap();
    node.edit("node/nft-ruleset.txt", |text| format!("{text}{FIREWALLD}"));
    // kube-proxy translated it, and firewalld accepts what was translated.
    let served = journey(&node, "198.51.100.7 203.0.113.80:443");
    assert_eq!(served["result"], "reaches", "{served}");
    let tables: Vec<&str> =
        served["steps"].as_array().unwrap().iter().filter_map(|step| step["table"].as_str()).collect();
    assert!(tables.contains(&"nftables inet firewalld"), "{served}");
    // Directly to a Pod: the zone of the interface decides.
    let (result, verdict) = result_of(&node, "198.51.100.7 10.244.1.41:8443");
    assert_eq!(result, "refused", "{verdict}");
    assert!(verdict.contains("rule 6 of filter_FORWARD (nftables inet firewalld, FORWARD)"), "{verdict}");
    assert_eq!(result_of(&node, "pod/shop/client-1 10.244.2.21:8080").0, "passes");
    // IPv6's condition does not hold for IPv4.
    assert_eq!(result_of(&node, "198.51.100.7 10.244.1.41:8080").0, "refused");
}

/// The node-local DNS cache (kubernetes/kubernetes, cluster/addons/dns/nodelocaldns): its address bypasses conntrack.
#[test]
fn a_node_local_cache_bypasses_conntrack() {
    let node = node("iptables");
    node.edit("node/iptables-save.txt", |text| {
        format!(
            "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
             -A PREROUTING -d 10.96.0.10/32 -p udp -m udp --dport 53 -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK\n\
             COMMIT\n{text}"
        )
    });
    node.edit("node/addresses.txt", |text| format!("{text}10.96.0.10\n"));
    let dns = journey(&node, "pod/shop/client-1 kube-system/kube-dns:dns");
    assert_eq!(dns["result"], "not_translated", "{dns}");
    assert!(dns["verdict"].as_str().unwrap().ends_with("it reaches this node itself"), "{dns}");
    assert_eq!(dns["steps"][0]["effect"], "conntrack and NAT ignore it", "{dns}");
    assert_eq!(journey(&node, "pod/shop/client-1 kube-system/kube-dns:dns-tcp")["result"], "reaches");
}

/// A target that hands packets to a program.
#[test]
fn a_queue_is_not_judged() {
    let node = node("iptables");
    beside(&node, "filter", "", "-A FORWARD -p tcp -j NFQUEUE --queue-num 0\n", "");
    let journey = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["result"], "unknown", "{journey}");
    assert!(journey["verdict"].as_str().unwrap().contains("NFQUEUE"), "{journey}");
}

/// A firewall without state: it admits requests to the Pods and drops their answers.
#[test]
fn a_reply_that_a_rule_drops() {
    let node = node("iptables");
    beside(&node, "filter", "", "-A FORWARD -s 10.244.1.41/32 -p tcp -m tcp --sport 8443 -j DROP\n", "");
    let journey = journey(&node, "pod/shop/client-1 shop/api");
    assert_eq!(journey["result"], "reply_lost", "{journey}");
    assert!(journey["reply"].to_string().contains("is dropped by rule 1 of FORWARD"), "{journey}");
}

#[test]
fn a_folder_without_rules_claims_nothing() {
    let node = Gathered::new(&[]);
    let journey = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["result"], "unknown", "{journey}");
    assert!(journey["unjudged"].to_string().contains("kube-proxy's rules were not read"), "{journey}");
    assert!(journey["unread"].as_array().unwrap().len() >= 3, "{journey}");
}

/// A name that would move the cursor.
#[test]
fn hostile_names_are_escaped() {
    let node = node("iptables");
    beside(
        &node,
        "filter",
        ":EVIL\u{1b}[2J - [0:0]\n",
        "-A FORWARD -j EVIL\u{1b}[2J\n",
        "-A EVIL\u{1b}[2J -m comment --comment \"\u{202e}x\" -j DROP\n",
    );
    let terminal = terminal(&node);
    for format in ["text", "json"] {
        let out = terminal
            .run(&format!("path --from worker-1 --node worker-1 -o {format} pod/shop/client-1 shop/cart"));
        assert!(!out.contains('\u{1b}') && !out.contains('\u{202e}'), "{out}");
        assert!(out.contains("EVIL"), "{out}");
    }
}

/// Every record has the properties that its schema declares.
#[test]
fn records_fit_their_schema() {
    let terminal = terminal(&node("iptables"));
    let schema = terminal.run("schema path");
    let schema: Value = serde_json::from_str(schema.split_once('\n').unwrap().1).unwrap();
    let declared = schema["properties"].as_object().unwrap();
    let journey = journey(&node("iptables"), "pod/shop/client-1 shop/cart");
    let written = journey.as_object().unwrap();
    assert!(declared.keys().eq(written.keys()), "{declared:?}");
}

/// The portmap plugin of CNI (containernetworking/plugins, `plugins/meta/portmap`): a Pod's hostPort.
#[test]
fn a_host_port() {
    let node = node("iptables");
    beside(
        &node,
        "nat",
        ":CNI-HOSTPORT-DNAT - [0:0]\n:CNI-DN-0123456789abcdef - [0:0]\n",
        "",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
         -A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: cbr0\" -m multiport --dports 8081,8443 -j CNI-DN-0123456789abcdef\n\
         -A CNI-DN-0123456789abcdef -p tcp -m tcp --dport 8081 -j DNAT --to-destination 10.244.1.41:80\n",
    );
    let (result, verdict) = result_of(&node, "198.51.100.7 192.0.2.11:8081");
    assert_eq!(result, "reaches", "{verdict}");
    assert!(verdict.starts_with("reaches 10.244.1.41:80 (Pod shop/api-1)"), "{verdict}");
    assert_eq!(result_of(&node, "198.51.100.7 192.0.2.11:8443").0, "passes");
}

/// Rules of both backends of iptables are in the kernel, and both count.
#[test]
fn rules_of_both_backends() {
    let node = node("iptables");
    node.write(
        "node/iptables-legacy-save.txt",
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n-A FORWARD -d 10.244.2.0/24 -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n",
    );
    let journey = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["result"], "mixed", "{journey}");
    let verdict = journey["verdict"].as_str().unwrap();
    assert!(
        verdict.contains("33 %: refused by rule 1 of FORWARD (iptables-legacy filter, FORWARD)"),
        "{verdict}"
    );
}

#[test]
fn a_chain_that_is_missing_and_chains_in_a_loop() {
    let gone = node("iptables");
    gone.edit("node/iptables-save.txt", |text| {
        let kept: Vec<&str> = text
            .lines()
            .filter(|line| {
                !line.contains("A KUBE-SVC-I5LIAMPLWKMBJ54B")
                    && !line.starts_with(":KUBE-SVC-I5LIAMPLWKMBJ54B")
            })
            .collect();
        kept.join("\n") + "\n"
    });
    let missing = journey(&gone, "pod/shop/client-1 shop/cart");
    assert_eq!(missing["result"], "not_translated", "{missing}");
    assert!(
        missing.to_string().contains("the chain KUBE-SVC-I5LIAMPLWKMBJ54B is not in the list"),
        "{missing}"
    );
    let looping = node("iptables");
    beside(&looping, "filter", ":A - [0:0]\n:B - [0:0]\n", "-A FORWARD -j A\n", "-A A -j B\n-A B -g A\n");
    let journey = journey(&looping, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["result"], "unknown", "{journey}");
}

/// A list of clients that another program keeps, and an unknown map: each is named, and neither is taken as affinity.
#[test]
fn what_another_program_keeps_is_not_known() {
    let node = node("iptables");
    beside(
        &node,
        "filter",
        "",
        "-A FORWARD -m recent --rcheck --seconds 60 --name bad --mask 255.255.255.255 --rsource -j DROP\n",
        "",
    );
    let journey = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(
        (journey["result"].as_str(), &journey["affinity"]),
        (Some("reaches"), &Value::Null),
        "{journey}"
    );
    assert_eq!(journey["depends_on"][0]["then"], "it is dropped", "{journey}");
    let nft = self::node("nftables");
    nft.write(
        "node/nft-others.json",
        r#"{"nftables": [{"table": {"family": "inet", "name": "fw"}},
            {"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}},
            {"rule": {"family": "inet", "table": "fw", "chain": "f", "expr": [{"vmap": {"key": {"meta": {"key": "cpu"}}, "data": {"set": [[1, {"drop": null}]]}}}]}}]}"#,
    );
    let journey = self::journey(&nft, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["depends_on"][0]["then"], "its way is not known", "{journey}");
}

/// Masquerading of IPVS's connections needs conntrack.
#[test]
fn ipvs_without_conntrack() {
    let node = node("ipvs");
    assert_eq!(journey(&node, "node shop/payments")["ways"][0]["masqueraded"], true);
    node.edit("node/sysctl.txt", |text| {
        let kept: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("vs.conntrack") && !line.contains("vs/conntrack"))
            .collect();
        kept.join("\n") + "\nnet.ipv4.vs.conntrack = 0\n"
    });
    assert_eq!(journey(&node, "node shop/payments")["ways"][0]["masqueraded"], false);
}

#[test]
fn a_packet_to_the_internet_is_masqueraded_by_the_network_plugin() {
    let node = node("iptables");
    beside(
        &node,
        "nat",
        "",
        "",
        "-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -o eth0 -j MASQUERADE\n",
    );
    let (result, verdict) = result_of(&node, "pod/shop/client-1 198.51.100.7:443");
    assert_eq!(result, "passes");
    assert!(verdict.ends_with("it goes out of eth0 with an address of this node as its source"), "{verdict}");
}

/// Another program serves this node: its rules do not show the way.
#[test]
fn another_dataplane_serves_the_node() {
    let node = node("iptables");
    node.remove("node/ip6tables-save.txt");
    node.remove("node/proxyMode.txt");
    node.remove("node/metrics.txt");
    node.remove("node/healthz.txt");
    node.write(
        "node/iptables-save.txt",
        "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n",
    );
    node.write("node/ip-addr.json", r#"[{"ifname": "cilium_host", "addr_info": [{"family": "inet", "local": "10.244.1.1", "prefixlen": 32}]}]"#);
    let journey = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["result"], "unknown", "{journey}");
    assert!(journey["unjudged"].to_string().contains("Cilium serves Services on this node"), "{journey}");
}

/// Matches that decide without an option, and several unknown options of one match.
#[test]
fn a_match_that_is_not_known_keeps_its_name() {
    let node = node("iptables");
    beside(
        &node,
        "filter",
        "",
        "-A FORWARD -m socket -j DROP\n-A FORWARD -m limit --limit 3/min --limit-burst 10 -j DROP\n-A FORWARD -m rpfilter --invert -j DROP\n",
        "",
    );
    let journey = journey(&node, "pod/shop/client-1 shop/cart");
    assert_eq!(journey["result"], "reaches", "{journey}");
    let texts: Vec<&str> = journey["depends_on"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["rule"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(
        texts,
        [
            "-m socket -j DROP",
            "-m limit --limit 3/min --limit-burst 10 -j DROP",
            "-m rpfilter --invert -j DROP"
        ]
    );
}

/// kube-proxy's rules are in the legacy backend, and iptables cannot print the table `filter` of the other one.
#[test]
fn a_table_that_iptables_cannot_print_beside_kube_proxys_rules_is_read_from_nft_or_named() {
    let node = node("iptables");
    let saved = fs::read_to_string(node.path().join("node/iptables-save.txt")).unwrap();
    node.write("node/iptables-legacy-save.txt", &saved.replace("(nf_tables)", "(legacy)"));
    node.write(
        "node/iptables-nft-save.txt",
        "# Generated by iptables-nft-save v1.8.9 (nf_tables) on Thu\n*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n\
         # Table `filter' is incompatible, use 'nft' tool.\n",
    );
    for list in ["iptables-save.txt", "nft-ruleset.txt", "nft-ruleset.json"] {
        node.remove(&format!("node/{list}"));
    }
    let said = journey(&node, "pod/shop/client-1 shop/cart");
    assert!(said["unread"].to_string().contains("cannot print the table filter"), "{said:#}");
    node.write(
        "node/nft-ruleset.txt",
        "table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\t\
         ip daddr 10.244.0.0/16 drop\n\t}\n}\n",
    );
    assert_eq!(result_of(&node, "pod/shop/client-1 shop/cart").0, "dropped");
}
