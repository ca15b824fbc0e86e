//! Lists of one node's rules as different programs print them: the check finds the same, or says that the list has not
//! everything.

use serde_json::Value;

use crate::{
    check_captures::ON_WORKER_1,
    check_faults::complete,
    check_support::{Gathered, fixtures, named},
};
use viptrace::diagnosis::triage::{CheckReport, State};

fn node(mode: &str) -> Gathered {
    Gathered::new(&[&format!("kube-proxy/worker-1/{mode}")])
}

/// Nothing but what the cluster has by design; one of the gaps says this.
fn assert_not_checked(report: &CheckReport, why: &str) {
    let unexpected = named(report).into_iter().filter(|name| !ON_WORKER_1.contains(&name.as_str()));
    assert_eq!(unexpected.collect::<Vec<_>>(), [""; 0], "{:#?}", report.findings);
    assert!(report.gaps.iter().any(|gap| gap.contains(why)), "{:#?}", report.gaps);
}

/// A host with Debian 11's or Ubuntu 22.04's iptables and a newer one in kube-proxy's image (kubernetes/kubernetes#112477).
/// These are lists of 1.8.7: of rules that 1.8.9 wrote, and of the same rules written by 1.8.7.
#[test]
fn a_list_of_an_old_iptables_without_marks_and_ports_is_no_list() {
    let of = |writer: &str| std::fs::read_to_string(fixtures().join("iptables-1.8.7").join(writer)).unwrap();
    let lossy = of("of-1.8.9.txt");
    for name in ["iptables-save.txt", "iptables-nft-save.txt"] {
        let node = node("iptables");
        node.write(&format!("node/{name}"), &lossy);
        if name == "iptables-nft-save.txt" {
            node.remove("node/iptables-save.txt");
        }
        assert_not_checked(&node.check(), "iptables 1.8.7 wrote this list, and leaves out marks and ports");
    }
    let node = node("iptables");
    node.write("node/iptables-save.txt", &of("of-1.8.7.txt"));
    let report = node.check();
    assert_eq!(named(&report), ON_WORKER_1, "{:#?}", report.findings);
    assert!(!report.gaps.iter().any(|gap| gap.contains("1.8.7")), "{:#?}", report.gaps);
}

/// One rule of another program's that iptables cannot express, such as Tailscale's, hides the table from `iptables-save`.
#[test]
fn a_table_that_iptables_cannot_print_is_not_empty() {
    for table in ["nat", "filter"] {
        let node = node("iptables");
        node.edit("node/iptables-save.txt", |saved| {
            let (before, rest) = saved.split_once(&format!("*{table}\n")).unwrap();
            let (_, after) = rest.split_once("COMMIT\n").unwrap();
            format!("{before}# Table `{table}' is incompatible, use 'nft' tool.\n{after}")
        });
        assert_not_checked(&node.check(), &format!("iptables cannot print the table {table}"));
    }
}

/// nft names protocols only where it finds `/etc/protocols`, and nothing with `-n`.
#[test]
fn protocols_and_states_of_nft_are_read_by_number() {
    const PROTOCOLS: [(&str, u8); 3] = [("tcp", 6), ("udp", 17), ("sctp", 132)];
    fn by_number(value: &mut Value) {
        match value {
            Value::Object(members) => {
                if let Some(Value::Array(parts)) = members.get_mut("concat") {
                    for part in parts {
                        let known = PROTOCOLS.iter().find(|(name, _)| part.as_str() == Some(name));
                        if let Some((_, number)) = known {
                            *part = (*number).into();
                        }
                    }
                }
                members.values_mut().for_each(by_number);
            }
            Value::Array(list) => list.iter_mut().for_each(by_number),
            _ => {}
        }
    }
    let json = node("nftables");
    json.edit("node/nft-ruleset.json", |text| {
        let mut listing = serde_json::from_str(&text).unwrap();
        by_number(&mut listing);
        listing.to_string()
    });
    let text = node("nftables");
    text.remove("node/nft-ruleset.json");
    text.edit("node/nft-ruleset.txt", |text| {
        let text = PROTOCOLS.iter().fold(text, |text, (name, number)| {
            text.replace(&format!(" . {name} . "), &format!(" . {number} . "))
                .replace(&format!("{{ {name} . "), &format!("{{ {number} . "))
                .replace(&format!("\t{name} . "), &format!("\t{number} . "))
        });
        let text =
            text.replace("ct state new", "ct state 0x8").replace("fib saddr type local", "fib saddr type 2");
        text.replace("priority dstnat;", "priority -100;").replace("priority srcnat;", "priority 100;")
    });
    for (node, form) in [(json, "JSON"), (text, "text")] {
        let report = node.check();
        assert_eq!(named(&report), ON_WORKER_1, "{form}: {:#?}", report.findings);
        let audited: Vec<_> =
            report.gaps.iter().filter(|gap| gap.contains("rules against the API")).collect();
        assert!(audited.is_empty(), "{form}: {audited:?}");
    }
}

/// In nftables mode iptables' tables have none of kube-proxy's rules.
#[test]
fn a_table_that_iptables_cannot_print_matters_in_its_mode_only() {
    let node = complete(node("nftables"));
    node.write(
        "node/iptables-nft-save.txt",
        "# Generated by iptables-nft-save v1.8.9 (nf_tables) on Thu\n*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n\
         # Table `filter' is incompatible, use 'nft' tool.\n",
    );
    let report = node.check_service("shop", "cart");
    assert_eq!(report.state, State::Healthy, "{:#?}", report.gaps);
}
