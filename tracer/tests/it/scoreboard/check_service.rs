//! One Service: its endpoints, its rules and its settings.

use serde_json::{Value, json};
use viptrace::{class::Class, node::ProxyMode};

use super::{
    Iptables, Ipvs, Nftables,
    captured::{
        Checked, arrives, edit_service, edit_slices, kept, leaves, node, replace, rules_file, times,
        without_lines,
    },
    case::{Group, case, case_in},
};
use crate::{check_neighbours::edit_items, check_support::Gathered};

pub(super) fn groups() -> Vec<Group<Checked>> {
    vec![differ(), form(), not_served()]
}

/// Before kube-proxy wrote the rules of the captures.
const BEFORE: &str = "2026-11-20T23:24:56Z";

/// The rule of shop/cart's cluster IP is missing.
fn without_rule(node: &Gathered, mode: ProxyMode) {
    match mode {
        Iptables => without_lines(node, rules_file(mode), "-A KUBE-SERVICES -d 10.96.10.10/32"),
        Nftables => without_lines(node, rules_file(mode), "10.96.10.10 . tcp . 80 : goto"),
        Ipvs => without_lines(node, rules_file(mode), "10.96.10.10:80"),
    }
}

/// A quarter of an hour after the captures, in seconds.
const LATER: u64 = 1_795_218_000;

/// An endpoint that the rules lack, added two minutes before, with kube-proxy's last update and sync in seconds before.
fn lacks_endpoint(mode: ProxyMode, queued: u64, synced: u64) -> Checked {
    lacks_endpoint_since(mode, "2026-11-20T23:38:00Z", queued, synced)
}

fn lacks_endpoint_since(mode: ProxyMode, added: &str, queued: u64, synced: u64) -> Checked {
    let node = node(mode);
    arrives(&node, "10.244.1.13", added);
    let clock = "2026-11-20 23:40:00.0 +0000 UTC";
    let health = format!("{{\"lastUpdated\": \"{clock}\", \"currentTime\": \"{clock} m=+7.9\"}}\n200");
    node.write("node/healthz.txt", &health);
    times(&node, "1795210000", &(LATER - queued).to_string(), &(LATER - synced).to_string());
    Checked::at(mode, &node, LATER)
}

fn differ() -> Group<Checked> {
    let cases = vec![
        case(Class::C6, "an endpoint left, and the rules keep it", |mode| {
            let node = node(mode);
            leaves(&node, "10.244.1.12", BEFORE);
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case_in(&[Iptables, Nftables], Class::C5e, "another program removed the rule", |mode| {
            let node = node(mode);
            without_rule(&node, mode);
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case_in(&[Ipvs], Class::C12, "its virtual server has no real server", |mode| {
            let node = node(mode);
            without_lines(&node, rules_file(mode), "-a -t 10.96.10.10:80");
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case_in(&[Ipvs], Class::C11, "its address is not on kube-ipvs0", |mode| {
            let node = node(mode);
            replace(&node, "node/ip-addr.json", "10.96.10.10", "10.96.10.99");
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case(Class::C5, "an endpoint was added, and kube-proxy's times are unknown", |mode| {
            let node = node(mode);
            arrives(&node, "10.244.1.13", BEFORE);
            node.remove("node/metrics.txt");
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case(Class::C4, "an endpoint was added, and kube-proxy cannot write it", |mode| {
            lacks_endpoint(mode, 110, 300)
        })
        .about("shop/cart")
        .and(&[(Class::C4, "")]),
        case(Class::C5e, "an endpoint was written, and another program removed it", |mode| {
            lacks_endpoint(mode, 110, 109)
        })
        .about("shop/cart"),
        case(Class::C2, "an endpoint was added, and kube-proxy has not received it", |mode| {
            lacks_endpoint(mode, 130, 129)
        })
        .and(&[(Class::C2, "shop/cart")]),
        case(
            Class::C2,
            "an endpoint was added ten seconds before, and kube-proxy has not received it",
            |mode| lacks_endpoint_since(mode, "2026-11-20T23:39:50Z", 20, 19),
        )
        .and(&[(Class::C2, "shop/cart")]),
    ];
    Group { symptom: "a Service's rules differ from its endpoints", cases }
}

fn with(mode: ProxyMode, from: &str, to: &str) -> Checked {
    let node = node(mode);
    replace(&node, rules_file(mode), from, to);
    Checked::of(mode, &node)
}

fn form() -> Group<Checked> {
    let cases = vec![
        case_in(&[Iptables], Class::C20, "a Service without endpoints is not refused", |mode| {
            let node = node(mode);
            without_lines(&node, rules_file(mode), "-A KUBE-SERVICES -d 10.96.10.20/32");
            Checked::of(mode, &node)
        })
        .about("shop/checkout"),
        case_in(&[Nftables], Class::C20, "a Service without endpoints is not refused", |mode| {
            with(mode, "10.96.10.20 . tcp . 80 comment \"shop/checkout:http\" : goto reject-chain,", "")
        })
        .about("shop/checkout"),
        case_in(&[Ipvs], Class::C12, "a Service without endpoints has no virtual server", |mode| {
            with(mode, "-A -t 10.96.10.20:80 -s rr\n", "")
        })
        .about("shop/checkout"),
        case_in(&[Iptables], Class::C22, "packets inside are refused instead of dropped", |mode| {
            with(mode, "--dport 6379 -j DROP", "--dport 6379 -j REJECT")
        })
        .about("shop/cache"),
        case_in(&[Nftables], Class::C22, "packets inside are refused instead of dropped", |mode| {
            with(mode, "\"shop/cache:redis\" : drop", "\"shop/cache:redis\" : goto reject-chain")
        })
        .about("shop/cache"),
        case_in(&[Iptables], Class::C21, "packets from outside are not dropped", |mode| {
            let node = node(mode);
            without_lines(&node, rules_file(mode), "shop/frontend:http has no local endpoints");
            Checked::of(mode, &node)
        })
        .about("shop/frontend"),
        case_in(&[Nftables], Class::C21, "packets from outside are refused instead of dropped", |mode| {
            with(mode, "\"shop/frontend:http\" : drop", "\"shop/frontend:http\" : goto reject-chain")
        })
        .about("shop/frontend"),
        case_in(&[Iptables], Class::C23, "the ranges admit others than the Service does", |mode| {
            with(mode, "-s 198.51.100.0/24", "-s 198.51.0.0/16")
        })
        .about("shop/api"),
        case_in(&[Nftables], Class::C23, "the ranges admit others than the Service does", |mode| {
            with(mode, "ip saddr != 198.51.100.0/24 drop", "ip saddr != 198.51.0.0/16 drop")
        })
        .about("shop/api"),
        case_in(&[Ipvs], Class::C23, "the ranges admit others than the Service does", |mode| {
            let node = node(mode);
            replace(&node, "node/ipset-save.txt", "198.51.100.0/24", "198.51.0.0/16");
            Checked::of(mode, &node)
        })
        .about("shop/api"),
        case_in(&[Iptables], Class::C24, "affinity lasts another time", |mode| {
            with(mode, "--seconds 10800", "--seconds 600")
        })
        .about("shop/payments"),
        case_in(&[Ipvs], Class::C24, "affinity lasts another time", |mode| with(mode, "-p 10800", "-p 600"))
            .about("shop/payments"),
        case_in(&[Iptables], Class::C31, "an endpoint that connects to itself is not masqueraded", |mode| {
            let node = node(mode);
            without_lines(&node, rules_file(mode), "-A KUBE-SEP-JS5ZM5E6CLZJ4JLZ -s 10.244.1.11/32");
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case_in(&[Nftables], Class::C31, "an endpoint that connects to itself is not masqueraded", |mode| {
            with(mode, "\t\tip saddr 10.244.1.11 jump mark-for-masquerade\n", "")
        })
        .about("shop/cart"),
        case_in(&[Iptables], Class::C5e, "an endpoint gets another share", |mode| {
            with(mode, "--probability 0.33333333349", "--probability 0.43333333349")
        })
        .about("shop/cart"),
        case_in(&[Nftables], Class::C5e, "an endpoint gets another share", |mode| {
            with(mode, "numgen random mod 3", "numgen random mod 4")
        })
        .about("shop/cart"),
    ];
    Group { symptom: "a Service's rules have another effect than kube-proxy's", cases }
}

/// shop/cart without endpoints, and its Pods with these labels.
fn without_endpoints(node: &Gathered, generation: u64, app: &str) {
    edit_slices(node, "cart", BEFORE, |slice| {
        slice["endpoints"] = Value::Null;
        slice["metadata"]["generation"] = generation.into();
    });
    edit_items(node, "pods", |pod| {
        if pod["metadata"]["labels"]["app"] == "cart" {
            pod["metadata"]["labels"]["app"] = app.into();
        }
    });
}

/// The rules that a Service without endpoints has, for cart.
fn refusing(node: &Gathered, mode: ProxyMode) {
    match mode {
        Iptables => node.edit(rules_file(mode), |text| {
            let chains = ["I5LIAMPLWKMBJ54B", "4O5AICOKW2EZK2IV", "HSQSPC2QE3PEOFCC", "JS5ZM5E6CLZJ4JLZ"];
            let others = kept(&text, |line| !chains.iter().any(|chain| line.contains(chain)));
            let checkout = "-A KUBE-SERVICES -d 10.96.10.20/32";
            let cart = "-A KUBE-SERVICES -d 10.96.10.10/32 -p tcp -m comment --comment \"shop/cart:http has no \
                endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable";
            others.replacen(checkout, &format!("{cart}\n{checkout}"), 1)
        }),
        Nftables => node.edit(rules_file(mode), |text| {
            let text = text.replace("10.96.10.10 . tcp . 80 : goto service-242WI43H-shop/cart/tcp/http,", "");
            text.replacen(
                "elements = { 10.96.10.20 . tcp . 80 comment",
                "elements = { 10.96.10.10 . tcp . 80 comment \"shop/cart:http\" : goto reject-chain,\n\t\t\t     10.96.10.20 . tcp . 80 comment",
                1,
            )
        }),
        Ipvs => without_lines(node, rules_file(mode), "-a -t 10.96.10.10:80"),
    }
}

fn not_served() -> Group<Checked> {
    let cases = vec![
        case(Class::C20, "it never had an endpoint", |mode| {
            let node = node(mode);
            without_endpoints(&node, 1, "another");
            refusing(&node, mode);
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case(Class::N19, "it was scaled to zero", |mode| {
            let node = node(mode);
            without_endpoints(&node, 4, "another");
            refusing(&node, mode);
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
        case(Class::C29, "the Pod of an endpoint is gone", |mode| {
            let node = node(mode);
            node.edit("cluster/pods.json", |text| {
                let mut list: Value = serde_json::from_str(&text).unwrap();
                list["items"].as_array_mut().unwrap().retain(|pod| pod["metadata"]["name"] != "cart-1");
                list.to_string()
            });
            Checked::at(mode, &node, LATER)
        })
        .about("shop/cart"),
        case(Class::C21, "external policy Local, and its endpoints are elsewhere", |mode| {
            Checked::by_design(mode, "C21 shop/frontend")
        })
        .about("shop/frontend"),
        case(Class::C22, "internal policy Local, and its endpoints are elsewhere", |mode| {
            Checked::by_design(mode, "C22 shop/cache")
        })
        .about("shop/cache"),
        case(Class::C5d, "it belongs to another proxy", |mode| {
            let node = node(mode);
            edit_service(&node, "checkout", |service| {
                service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
            });
            Checked::about(mode, &node, "checkout")
        })
        .about("shop/checkout"),
        case(Class::C27, "it is headless", |mode| Checked::about(mode, &node(mode), "db")).about("shop/db"),
        case(Class::C27, "it is a name in DNS", |mode| Checked::about(mode, &node(mode), "legacy"))
            .about("shop/legacy"),
        case(Class::C25, "topology hints leave endpoints out", |mode| {
            let node = node(mode);
            edit_slices(&node, "payments", BEFORE, |slice| {
                for endpoint in slice["endpoints"].as_array_mut().unwrap() {
                    let zone = if endpoint["nodeName"] == "worker-1" { "zone-a" } else { "zone-b" };
                    endpoint["hints"] = json!({"forZones": [{"name": zone}]});
                }
            });
            Checked::about(mode, &node, "payments")
        })
        .about("shop/payments"),
        case(Class::C26, "no address of the node serves node ports", |mode| {
            let node = node(mode);
            node.edit("node/config.yaml", |text| text + "nodePortAddresses: [203.0.113.0/28]\n");
            Checked::of(mode, &node)
        }),
        case(Class::C26, "the load balancer has no address", |mode| {
            let node = node(mode);
            edit_service(&node, "frontend", |service| service["spec"]["type"] = "LoadBalancer".into());
            Checked::of(mode, &node)
        })
        .about("shop/frontend"),
        case_in(
            &[Iptables],
            Class::C23,
            "its ranges have no effect: the address is an external IP too",
            |mode| {
                let node = node(mode);
                edit_service(&node, "api", |service| {
                    service["spec"]["externalIPs"] = json!(["203.0.113.50", "203.0.113.80"]);
                });
                let balanced = "-A KUBE-SERVICES -d 203.0.113.80/32 -p tcp";
                let external =
                    format!("{balanced} -m tcp --dport 443 -j KUBE-EXT-OTVU7MV6PRR7MW2X\n{balanced}");
                replace(&node, rules_file(mode), balanced, &external);
                Checked::about(mode, &node, "api")
            },
        )
        .about("shop/api"),
    ];
    Group { symptom: "a Service does not serve, or not everywhere", cases }
}
