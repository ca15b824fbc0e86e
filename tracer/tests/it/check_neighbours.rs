//! Other programs beside kube-proxy on the node: their rules raise no fault, and kube-proxy's own faults are still
//! found beside them.
use viptrace::diagnosis::triage::Level;

use crate::{
    check_faults::{besides, node},
    check_support::name,
};

/// kube-router's network policies as k3s writes them, CRI-O's host ports, Calico, Flannel, portmap and Docker, at the
/// start of the base chains.
fn beside(text: &str) -> String {
    let nat = ":KUBE-HOSTPORTS - [0:0]\n:KUBE-HP-3PGXU2N5ESM3PZEV - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n\
        :cali-PREROUTING - [0:0]\n:DOCKER - [0:0]\n:FLANNEL-POSTRTG - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n\
        -A PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING\n\
        -A PREROUTING -m comment --comment \"kube hostport portals\" -m addrtype --dst-type LOCAL -j KUBE-HOSTPORTS\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
        -A KUBE-HOSTPORTS -p tcp -m tcp --dport 30080 -j KUBE-HP-3PGXU2N5ESM3PZEV\n\
        -A KUBE-HP-3PGXU2N5ESM3PZEV -p tcp -m tcp -j DNAT --to-destination 10.244.1.99:80\n\
        -A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n";
    let filter = ":KUBE-ROUTER-INPUT - [0:0]\n:KUBE-ROUTER-FORWARD - [0:0]\n:KUBE-ROUTER-OUTPUT - [0:0]\n\
        :KUBE-POD-FW-4T2XYZUJHNSYVFOA - [0:0]\n:KUBE-NWPLCY-3PGXU2N5ESM3PZEV - [0:0]\n\
        :KUBE-NWPLCY-DEFAULT - [0:0]\n:FLANNEL-FWD - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n\
        -A INPUT -m comment --comment \"kube-router netpol - 4IA2OSFRMVNDXBVV\" -j KUBE-ROUTER-INPUT\n\
        -A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMHZYE7H7T\" -j KUBE-ROUTER-FORWARD\n\
        -A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n\
        -A OUTPUT -m comment --comment \"kube-router netpol - VEAAIY32XVBHCSCY\" -j KUBE-ROUTER-OUTPUT\n\
        -A KUBE-ROUTER-FORWARD -m comment --comment \"rule to jump traffic to POD name:web\" -j KUBE-POD-FW-4T2XYZUJHNSYVFOA\n\
        -A KUBE-ROUTER-OUTPUT -m comment --comment \"rule to jump traffic from POD name:web\" -j KUBE-POD-FW-4T2XYZUJHNSYVFOA\n\
        -A KUBE-POD-FW-4T2XYZUJHNSYVFOA -j KUBE-NWPLCY-3PGXU2N5ESM3PZEV\n\
        -A KUBE-POD-FW-4T2XYZUJHNSYVFOA -m comment --comment \"rule to REJECT traffic destined for POD name:web\" -j REJECT --reject-with icmp-port-unreachable\n";
    let mut out = String::new();
    for line in text.lines() {
        out += line;
        out.push('\n');
        match line {
            "*nat" => out += nat,
            "*filter" => out += filter,
            _ => {}
        }
    }
    out
}

#[test]
fn chains_of_other_programs_are_not_taken_for_kube_proxys() {
    let node = node();
    node.edit("node/iptables-save.txt", |text| beside(&text));
    let report = node.check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
}

#[test]
fn a_missing_rule_of_kube_proxy_is_found_beside_them() {
    let node = node();
    node.edit("node/iptables-save.txt", |text| {
        let lines = text.lines().filter(|line| !line.contains("-A KUBE-SERVICES -d 10.96.10.10/32"));
        beside(&lines.collect::<Vec<_>>().join("\n"))
    });
    let report = node.check();
    let found = report.findings.iter().find(|finding| name(finding).ends_with("shop/cart"));
    assert!(found.is_some_and(|found| found.level == Level::Fault), "{:#?}", report.findings);
}
