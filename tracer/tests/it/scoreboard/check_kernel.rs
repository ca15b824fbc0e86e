//! The node beneath kube-proxy: conntrack, settings of the kernel, interfaces, and the Node objects.

use serde_json::{Value, json};
use viptrace::class::Class;

use super::{
    Iptables, Ipvs, Nftables,
    captured::{Checked, node, replace, set},
    case::{Group, case, case_in},
};
use crate::{check_neighbours::edit_items, check_support::Gathered};

pub(super) fn groups() -> Vec<Group<Checked>> {
    vec![settings(), nodes()]
}

/// The counters of conntrack; `later` are those of the second reading.
fn counted(node: &Gathered, change: impl Fn(String) -> String) {
    node.edit("node/nf_conntrack.stat.later.txt", change);
}

fn settings() -> Group<Checked> {
    let cases = vec![
        case(Class::C16, "the conntrack table is full", |mode| {
            let node = node(mode);
            set(&node, "net.netfilter.nf_conntrack_max", "131072");
            set(&node, "net.netfilter.nf_conntrack_count", "131072");
            Checked::of(mode, &node)
        }),
        case(Class::C17, "entries cannot be inserted", |mode| {
            let node = node(mode);
            counted(&node, |text| text.replacen("0 00000000 00000000 0 0", "0 00000003 00000003 0 0", 1));
            Checked::of(mode, &node)
        }),
        case(Class::C17, "hash chains are too long", |mode| {
            let node = node(mode);
            counted(&node, |text| text.replacen("0 0 00000000 00000000 0 0", "4 0 00000004 00000000 0 0", 1));
            Checked::of(mode, &node)
        }),
        case(Class::N7, "entries are evicted, and nothing is dropped", |mode| {
            let node = node(mode);
            counted(&node, |text| text.replacen("00000000 00000000 0 0", "00000000 00000000 9 0", 1));
            Checked::of(mode, &node)
        }),
        case(Class::C32, "the node does not forward", |mode| {
            let node = node(mode);
            set(&node, "net.ipv4.ip_forward", "0");
            Checked::of(mode, &node)
        }),
        case(Class::C32, "the reverse path filter drops between two readings", |mode| {
            let node = node(mode);
            node.write("node/netstat.later.txt", "TcpExt: IPReversePathFilter\nTcpExt: 9\n");
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables, Nftables], Class::C31, "bridged packets do not pass iptables", |mode| {
            let node = node(mode);
            set(&node, "net.bridge.bridge-nf-call-iptables", "0");
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables, Nftables], Class::C31, "a port of the bridge has no hairpin mode", |mode| {
            let node = node(mode);
            replace(&node, "node/ip-addr.json", "\"hairpin\":true", "\"hairpin\":false");
            Checked::of(mode, &node)
        }),
        case_in(&[Iptables], Class::C26, "node ports at loopback are not routed", |mode| {
            let node = node(mode);
            set(&node, "net.ipv4.conf.all.route_localnet", "0");
            Checked::of(mode, &node)
        }),
        case_in(&[Ipvs], Class::K11, "IPVS keeps no conntrack entries", |mode| {
            let node = node(mode);
            set(&node, "net.ipv4.vs.conntrack", "0");
            Checked::of(mode, &node)
        }),
        case_in(&[Ipvs], Class::C13, "connections to removed servers are dropped silently", |mode| {
            let node = node(mode);
            set(&node, "net.ipv4.vs.expire_nodest_conn", "0");
            Checked::of(mode, &node)
        }),
        case_in(&[Ipvs], Class::C14, "reused ports wait, on an old kernel", |mode| {
            let node = node(mode);
            set(&node, "net.ipv4.vs.conn_reuse_mode", "1");
            set(&node, "kernel.osrelease", "5.4.0-150-generic");
            Checked::of(mode, &node)
        }),
        case_in(&[Ipvs], Class::C15, "IPVS forgets idle connections", |mode| {
            let (long, short) = (node(mode), node(mode));
            long.edit("node/config.yaml", |text| {
                text.replace("mode: ", "ipvs: {tcpTimeout: 24h0m0s}\nmode: ")
            });
            Checked::beside(&long, &short)
        }),
        case_in(&[Ipvs], Class::C11, "a module that IPVS needs is neither loaded nor built in", |mode| {
            let node = node(mode);
            node.write(
                "node/modules.txt",
                "nf_conntrack 1 0 - Live 0x0\nip_vs 1 0 - Live 0x0\nkernel/net/x.ko\n",
            );
            Checked::of(mode, &node)
        }),
        case_in(
            &[Iptables, Nftables],
            Class::C33,
            "a tunnel's packets are larger than the uplink's MTU",
            |mode| {
                let (fits, large) = (node(mode), node(mode));
                for (node, mtu) in [(&fits, 1450), (&large, 1500)] {
                    node.write("node/ip-addr.json", &links(mtu).to_string());
                }
                Checked::beside(&fits, &large)
            },
        ),
    ];
    Group { symptom: "connections fail, or may, while the rules are right", cases }
}

/// An uplink of 1500 and a tunnel of this MTU.
fn links(mtu: u64) -> Value {
    json!([
        {"ifname": "eth0", "mtu": 1500, "flags": ["UP"],
         "addr_info": [{"family": "inet", "local": "192.0.2.11", "prefixlen": 24}]},
        {"ifname": "flannel.1", "mtu": mtu, "flags": ["UP"], "linkinfo": {"info_kind": "vxlan"},
         "addr_info": [{"family": "inet", "local": "10.244.1.0", "prefixlen": 32}]},
        {"ifname": "veth1", "mtu": 1450, "flags": ["UP"], "linkinfo": {"info_kind": "veth"}, "addr_info": []},
    ])
}

/// The condition of the Node with this name.
fn condition(node: &Gathered, name: &str, condition: &Value) {
    edit_items(node, "nodes", |item| {
        if item["metadata"]["name"] == name {
            item["status"]["conditions"] = json!([condition]);
        }
    });
}

fn nodes() -> Group<Checked> {
    let cases = vec![
        case(Class::K10, "this one", |mode| {
            let node = node(mode);
            condition(&node, "worker-1", &json!({"type": "Ready", "status": "Unknown"}));
            Checked::of(mode, &node)
        }),
        case(Class::C29, "one that has endpoints", |mode| {
            let node = node(mode);
            condition(&node, "worker-2", &json!({"type": "Ready", "status": "Unknown"}));
            Checked::of(mode, &node)
        }),
        case(Class::C9, "its release is older than the API server's by more than it may be", |mode| {
            let node = node(mode);
            edit_items(&node, "nodes", |item| {
                item["status"]["nodeInfo"]["kubeletVersion"] = Value::from("v1.30.1");
            });
            Checked::of(mode, &node)
        }),
    ];
    Group { symptom: "a node is not Ready, or of another release", cases }
}
