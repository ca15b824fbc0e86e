//! kube-proxy, and its rules as a whole.

use serde_json::json;
use viptrace::{class::Class, node::ProxyMode};

use super::{
    Iptables, Ipvs, Nftables,
    captured::{
        Checked, NO_RULES, log, node, replace, rules_file, times, without_lines, without_process,
        without_rules,
    },
    case::{Group, case, case_in},
};
use crate::{
    check_neighbours::{edit_items, without_kube_proxy},
    check_support::Gathered,
};

pub(super) fn groups() -> Vec<Group<Checked>> {
    vec![absent(), no_rules(), reports_trouble(), other_rules()]
}

const CILIUM: &str = "[{\"ifname\": \"cilium_host\"}, {\"ifname\": \"eth0\"}]";

/// The minute after 23:00 at which the node of this mode was read.
const fn minute(mode: ProxyMode) -> u32 {
    match mode {
        Ipvs => 26,
        Iptables | Nftables => 25,
    }
}

fn absent() -> Group<Checked> {
    let cases = vec![
        case(Class::C1, "its process is gone, and its rules stand", |mode| {
            let node = node(mode);
            without_process(&node);
            Checked::of(mode, &node)
        }),
        case(Class::C1, "it exits with an error", |mode| {
            let node = node(mode);
            without_process(&node);
            log(
                &node,
                "23:27:00",
                "\"command failed\" err=\"listen tcp 127.0.0.1:10249: bind: address in use\"",
            );
            Checked::of(mode, &node)
        }),
        case(Class::C1, "it exits with an error, and its process was not read", |mode| {
            let node = node(mode);
            node.remove("node/kube-proxy.process.json");
            log(
                &node,
                "23:27:00",
                "\"command failed\" err=\"listen tcp 127.0.0.1:10249: bind: address in use\"",
            );
            Checked::of(mode, &node)
        }),
        case(Class::C1, "its Pod crashes", |mode| {
            let node = node(mode);
            edit_items(&node, "pods", |pod| {
                if pod["metadata"]["name"] == "kube-proxy-w1" {
                    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                    pod["status"]["containerStatuses"] = json!([{
                        "name": "kube-proxy", "ready": false, "restartCount": 7, "image": "", "imageID": "",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    }]);
                }
            });
            Checked::of(mode, &node)
        }),
        case(Class::C9, "it rejects its configuration", |mode| {
            let node = node(mode);
            without_process(&node);
            log(&node, "23:27:00", "\"command failed\" err=\"failed complete: unknown field \\\"x\\\"\"");
            Checked::of(mode, &node)
        }),
        case_in(&[Ipvs], Class::C11, "the kernel has no IPVS", |mode| {
            let node = Gathered::new(&["incidents/ipvs-unsupported"]);
            node.write("node/kube-proxy.process.json", "{\"complete\": true}");
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables], Class::K1, "Cilium replaces it", |mode| {
            let node = node(mode);
            without_process(&node);
            node.remove("node/kube-proxy.log");
            without_rules(&node, mode);
            node.write("node/ip6tables-save.txt", NO_RULES);
            node.write("node/ip-addr.json", CILIUM);
            without_kube_proxy(&node);
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables], Class::C10, "Cilium replaces it, and its rules are left", |mode| {
            let node = node(mode);
            without_process(&node);
            node.remove("node/kube-proxy.log");
            node.write("node/ip-addr.json", CILIUM);
            without_kube_proxy(&node);
            Checked::of(mode, &node)
        })
        .and(&[(Class::K1, "")]),
    ];
    Group { symptom: "kube-proxy does not answer", cases }
}

fn no_rules() -> Group<Checked> {
    let cases = vec![
        case(Class::C5e, "they were written, and another program removed them", |mode| {
            let node = node(mode);
            without_rules(&node, mode);
            Checked::of(mode, &node)
        }),
        case_in(
            &[Iptables, Nftables],
            Class::C1,
            "kube-proxy runs, and nothing shows that it wrote any",
            |mode| {
                let node = node(mode);
                node.remove("node/metrics.txt");
                without_rules(&node, mode);
                Checked::of(mode, &node)
            },
        ),
        case_in(&[Iptables, Nftables], Class::C1, "the same, and the Services could not be listed", |mode| {
            let (whole, bare) = without_lists(mode);
            for node in [&whole, &bare] {
                node.remove("node/metrics.txt");
            }
            without_rules(&bare, mode);
            Checked::beside(&whole, &bare)
        }),
        case_in(&[Iptables], Class::C1, "those of one family are missing", |_| {
            let capture = ["dualstack/kube-proxy/worker-1/iptables"];
            let (whole, half) =
                (Gathered::of("dualstack/cluster", &capture), Gathered::of("dualstack/cluster", &capture));
            half.write("node/ip6tables-save.txt", NO_RULES);
            Checked::beside(&whole, &half)
        }),
        case_in(
            &[Iptables],
            Class::C2,
            "its credentials are rejected, and it has never written them",
            |mode| Checked::of(mode, &Gathered::new(&["incidents/unauthorized"])),
        ),
        case(Class::C5, "kube-proxy has run for long and has never written them", |mode| {
            let node = node(mode);
            times(&node, "1795216900", "1795217098", "0");
            without_rules(&node, mode);
            Checked::of(mode, &node)
        }),
    ];
    Group { symptom: "the node has no rules of kube-proxy", cases }
}

/// The same node twice; the API's lists could not be read.
fn without_lists(mode: ProxyMode) -> (Gathered, Gathered) {
    let node = || {
        let node = node(mode);
        for list in ["services", "endpointslices"] {
            node.remove(&format!("cluster/{list}.json"));
        }
        node
    };
    (node(), node())
}

const REFUSED: &str = "\"Failed to watch\" err=\"failed to list *v1.EndpointSlice: Get \\\"https://192.0.2.1:6443\\\": dial tcp 192.0.2.1:6443: connect: connection refused\"";

/// kube-proxy's `/healthz` is unhealthy; `body` is the rest of its answer.
fn unhealthy(node: &Gathered, body: &str) {
    node.write(
        "node/healthz.txt",
        &format!("{{\"currentTime\": \"2026-11-20 23:26:40.0 +0000 UTC m=+7.9\"{body}}}\n503"),
    );
    if node.path().join("node/livez.txt").exists() {
        node.remove("node/livez.txt");
    }
}

fn reports_trouble() -> Group<Checked> {
    let cases = vec![
        case(Class::C4, "a change has waited for minutes", |mode| {
            let node = node(mode);
            times(&node, "1795210000", "1795217000", "1795216990");
            Checked::of(mode, &node)
        }),
        case(Class::C5, "a change has waited for seconds", |mode| {
            let node = node(mode);
            let queued = match mode {
                Iptables => "1795217105.0",
                Nftables => "1795217113.0",
                Ipvs => "1795217191.0",
            };
            times(&node, "1795210000", queued, "1795217090");
            Checked::of(mode, &node)
        }),
        case(Class::C5, "its syncs are slow", |mode| {
            let node = node(mode);
            node.edit("node/metrics.txt", |text| {
                text + "kubeproxy_network_programming_duration_seconds_bucket{le=\"60\"} 0\n\
                        kubeproxy_network_programming_duration_seconds_bucket{le=\"120\"} 50\n\
                        kubeproxy_network_programming_duration_seconds_bucket{le=\"+Inf\"} 50\n"
            });
            Checked::of(mode, &node)
        }),
        case(Class::C4, "/healthz reports a change that was not written", |mode| {
            let node = node(mode);
            unhealthy(&node, ", \"nodeEligible\": true");
            Checked::of(mode, &node)
        }),
        case(Class::N15, "/healthz reports that the node is being removed", |mode| {
            let node = node(mode);
            unhealthy(&node, ", \"nodeEligible\": false");
            Checked::of(mode, &node)
        }),
        case(Class::C2, "its role lacks a kind that no rule is made of", |mode| {
            let (node, minute) = (node(mode), minute(mode));
            let time = format!("23:{}:50", minute - 1);
            let forbidden =
                "\"Failed to watch\" err=\"failed to list *v1.ServiceCIDR: servicecidrs is forbidden\"";
            log(&node, &time, forbidden);
            Checked::of(mode, &node)
        }),
        case(Class::C2, "it has not reached the API server for minutes", |mode| {
            let (node, minute) = (node(mode), minute(mode));
            for time in [
                format!("23:{}:10", minute - 2),
                format!("23:{}:55", minute - 2),
                format!("23:{}:50", minute - 1),
            ] {
                log(&node, &time, REFUSED);
            }
            Checked::of(mode, &node)
        }),
        case(Class::C8, "it could not clean up conntrack", |mode| {
            let node = node(mode);
            log(
                &node,
                "23:27:00",
                "\"Failed to delete endpoint connections\" err=\"error deleting conntrack entries for UDP peer\"",
            );
            Checked::of(mode, &node)
        }),
        case(Class::C9, "its release is older than the API server's by more than it may be", |mode| {
            let node = node(mode);
            node.edit("node/metrics.txt", |text| {
                text.replace("git_version=\"v0.0.0-master+$Format:%H$\"", "git_version=\"v1.30.5\"")
            });
            Checked::of(mode, &node)
        }),
        case(Class::C1, "its Pods on other nodes do not run", |mode| {
            let node = node(mode);
            edit_items(&node, "pods", |pod| {
                if pod["metadata"]["name"] == "kube-proxy-w2" {
                    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                }
            });
            Checked::of(mode, &node)
        }),
        case_in(
            &[Iptables, Nftables],
            Class::C10,
            "it runs in another mode than its configuration names",
            |mode| {
                let node = node(mode);
                let other = if mode == Iptables { "nftables" } else { "iptables" };
                node.edit("node/config.yaml", |text| {
                    text.replace(&format!("mode: \"{mode}\""), &format!("mode: \"{other}\""))
                });
                Checked::of(mode, &node)
            },
        ),
        case_in(&[Ipvs], Class::K3, "its mode is deprecated", |_| {
            let (iptables, ipvs) = (node(Iptables), node(Ipvs));
            Checked::beside(&iptables, &ipvs)
        })
        .and(&[(Class::C15, "")]),
    ];
    Group { symptom: "kube-proxy runs and reports trouble", cases }
}

/// An `iptables-save` of another backend.
fn other_rules() -> Group<Checked> {
    let cases = vec![
        case_in(&[Iptables], Class::C3, "both backends of iptables have its Service chains", |mode| {
            let node = node(mode);
            let text = std::fs::read_to_string(node.path().join(rules_file(mode))).unwrap();
            node.remove(rules_file(mode));
            node.write("node/iptables-legacy-save.txt", &text.replace("10.244.1.11", "10.244.9.9"));
            node.write("node/iptables-nft-save.txt", &text);
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables], Class::C3, "the same, and the Services could not be listed", |mode| {
            let (one, both) = without_lists(mode);
            let text = std::fs::read_to_string(both.path().join(rules_file(mode))).unwrap();
            both.remove(rules_file(mode));
            both.write("node/iptables-legacy-save.txt", &text.replace("10.244.1.11", "10.244.9.9"));
            both.write("node/iptables-nft-save.txt", &text);
            Checked::beside(&one, &both)
        }),
        case_in(&[Iptables], Class::C3, "the other backend was cleaned up by half", |mode| {
            let node = node(mode);
            let text = std::fs::read_to_string(node.path().join(rules_file(mode))).unwrap();
            node.remove(rules_file(mode));
            node.write("node/iptables-nft-save.txt", &text);
            node.write("node/iptables-legacy-save.txt", LEGACY_LEFTOVER);
            Checked::of(mode, &node)
        }),
        case_in(
            &[Iptables],
            Class::C10,
            "leftovers of nftables mode, and the Services could not be listed",
            |mode| {
                let (clean, left) = without_lists(mode);
                left.write("node/nft-ruleset.txt", NFT_LEFTOVER);
                Checked::beside(&clean, &left)
            },
        ),
        case_in(&[Iptables], Class::C10, "leftovers of nftables mode", |mode| {
            let node = node(mode);
            node.write("node/nft-ruleset.txt", NFT_LEFTOVER);
            Checked::of(mode, &node)
        }),
        case_in(
            &[Iptables],
            Class::C10,
            "leftovers of nftables mode, and kube-proxy does not answer",
            |mode| {
                let node = node(mode);
                node.write("node/nft-ruleset.txt", NFT_LEFTOVER);
                node.remove("node/proxyMode.txt");
                node.remove("node/kube-proxy.log");
                Checked::of(mode, &node)
            },
        ),
        case_in(&[Iptables], Class::C5e, "the jump to its chains is missing", |mode| {
            let node = node(mode);
            without_lines(
                &node,
                rules_file(mode),
                "-A PREROUTING -m comment --comment \"kubernetes service portals\"",
            );
            Checked::of(mode, &node)
        }),
        case_in(&[Nftables], Class::C5e, "a base chain is missing", |mode| {
            let node = node(mode);
            replace(
                &node,
                rules_file(mode),
                "\t\ttype nat hook prerouting priority dstnat; policy accept;\n",
                "",
            );
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables], Class::C18, "the rule against invalid packets is missing", |mode| {
            let node = node(mode);
            without_lines(&node, rules_file(mode), "--ctstate INVALID -j DROP");
            node.write("node/sysctl.txt", "net.netfilter.nf_conntrack_tcp_be_liberal = 0\n");
            Checked::of(mode, &node)
        }),
        case_in(&[Nftables], Class::C5c, "ports that no Service has are no longer refused", |mode| {
            let node = node(mode);
            without_lines(&node, rules_file(mode), "ip daddr @cluster-ips reject");
            Checked::of(mode, &node)
        }),
        case_in(&[Ipvs], Class::C11, "kube-ipvs0 is missing", |mode| {
            let node = node(mode);
            replace(&node, "node/ip-addr.json", "kube-ipvs0", "kube-ipvs1");
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables], Class::C6, "an address of a Service that was deleted", |mode| {
            let node = node(mode);
            let rule = "-A KUBE-SERVICES -d 10.96.10.10/32";
            let deleted =
                "-A KUBE-SERVICES -d 10.96.99.99/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-I5LIAMPLWKMBJ54B";
            replace(&node, rules_file(mode), rule, &format!("{deleted}\n{rule}"));
            Checked::of(mode, &node)
        }),
        case_in(&[Nftables], Class::C6, "an address that a Service gave up", |mode| {
            let node = node(mode);
            let element = "10.96.10.10 . tcp . 80 : goto";
            let former = "10.96.99.99 . tcp . 80 : goto service-242WI43H-shop/cart/tcp/http";
            replace(&node, rules_file(mode), element, &format!("{former}, {element}"));
            Checked::of(mode, &node)
        })
        .about("shop/cart"),
    ];
    Group { symptom: "rules stand that kube-proxy would not write, or lack", cases }
}

/// The backend that kube-proxy no longer writes, after a clean-up that removed the chains of the Services and not the rules
/// that mark their packets.
const LEGACY_LEFTOVER: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n\
    :KUBE-MARK-MASQ - [0:0]\n\
    -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
    -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
    -A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.10.10/32 -p tcp -m comment --comment \"shop/cart:http cluster IP\" \
    -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
    -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";

const NFT_LEFTOVER: &str = "table ip kube-proxy {\n\
    \tmap service-ips {\n\t\ttype ipv4_addr . inet_proto . inet_service : verdict\n\
    \t\telements = { 10.96.10.10 . tcp . 80 : goto service-242WI43H-shop/cart/tcp/http }\n\t}\n\
    \tchain nat-prerouting {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\
    \t\tip daddr . meta l4proto . th dport vmap @service-ips\n\t}\n\
    \tchain service-242WI43H-shop/cart/tcp/http {\n\t\tmeta l4proto tcp dnat to 10.244.1.11:8080\n\t}\n}\n";
