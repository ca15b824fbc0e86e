//! `viptrace check --from` as a user types it: exit statuses, the first line, records and their schema, `--save` and
//! `--compare`.
use std::{
    fs,
    process::{Command, Output},
};

use crate::{check_neighbours::without_kube_proxy, check_support::Gathered};
use serde_json::Value;

fn viptrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_viptrace")).args(args).env_remove("NODE_NAME").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check(gathered: &Gathered, args: &[&str]) -> Output {
    let from = gathered.path().display().to_string();
    viptrace(&[&["check", "--from", &from], args].concat())
}

#[test]
fn the_first_line_and_the_status_report_the_fault() {
    let lost = Gathered::new(&["incidents/unauthorized"]);
    let output = check(&lost, &[]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{said}{}", text(&output.stderr));
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("broken") && first.contains("Unauthorized"), "{first}");
    assert!(said.contains("1. FAULT C2") && said.contains("do: [") && said.contains("NOT CHECKED"), "{said}");
    let order = ["FAULT", "NOT CHECKED"].map(|part| said.find(part).unwrap());
    assert!(order.is_sorted());
}

#[test]
fn one_healthy_service_exits_with_0() {
    let node = Gathered::new(&["kube-proxy/worker-1/nftables"]);
    let output = check(&node, &["shop/cart"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).starts_with("nothing broken on worker-1"), "{}", text(&output.stdout));
    assert_eq!(check(&node, &["--service", "shop/slow"]).status.code(), Some(3));
    let nobody = check(&node, &["shop/no-such-service"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("hint: "), "{}", text(&nobody.stderr));
}

/// Files of a node, and lists that were saved elsewhere.
#[test]
fn a_folder_of_a_node_is_checked_with_the_lists_of_another() {
    let (node, lists) =
        (Gathered::new(&["kube-proxy/worker-1/nftables"]), Gathered::new(&["kube-proxy/worker-1/nftables"]));
    for list in ["services", "endpointslices", "pods", "nodes", "daemonsets"] {
        node.remove(&format!("cluster/{list}.json"));
    }
    let lists = lists.path().join("cluster").display().to_string();
    let args = ["shop/cart", "--cluster-from", &lists, "--node", "worker-1"];
    let output = check(&node, &args);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("nothing broken on worker-1"), "{said}");
    assert!(
        !said.contains("services.json") && text(&output.stderr).is_empty(),
        "{said}{}",
        text(&output.stderr)
    );
}

/// The first line, what was not checked, and the status of a check that found no fault and could not check a part.
fn unchecked(node: &Gathered, args: &[&str]) -> (String, String) {
    let output = check(node, args);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{said}{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&check(node, &[args, &["-o", "json"]].concat()).stdout).unwrap();
    assert_eq!(json["state"], "unknown", "{json}");
    let (first, rest) = said.split_once('\n').unwrap();
    (first.to_owned(), rest.split_once("NOT CHECKED").unwrap().1.to_owned())
}

#[test]
fn lists_that_cannot_be_parsed_are_not_taken_for_healthy() {
    let cut = |text: String| text.lines().take(40).collect::<Vec<_>>().join("\n");
    for (file, what) in [("services", "the Services"), ("endpointslices", "their endpoints")] {
        let node = Gathered::new(&["kube-proxy/worker-1/nftables"]);
        node.edit(&format!("cluster/{file}.json"), cut);
        let (first, rest) = unchecked(&node, &[]);
        assert_eq!(first, format!("no fault found on worker-1, but {what} could not be checked"));
        assert!(rest.contains(&format!("cluster/{file}.json is unreadable at line 40: EOF")), "{rest}");
        assert!(!rest.contains(&format!("no {file}.json")), "{rest}");
    }
    // A file that is something else is named as well.
    let node = Gathered::new(&["kube-proxy/worker-1/nftables"]);
    node.edit("cluster/services.json", |_| "{\"kind\": \"Status\", \"code\": 403}".to_owned());
    assert!(unchecked(&node, &[]).1.contains("services.json is unreadable at line 1: it holds no Services"));
}

#[test]
fn rules_that_cannot_be_parsed_are_not_taken_for_healthy() {
    let cut = |text: String| text[..text.len() / 2].to_owned();
    for (capture, files) in [
        ("nftables", &["nft-ruleset.json", "nft-ruleset.txt"][..]),
        ("iptables", &["iptables-save.txt"]),
        ("ipvs", &["ipvsadm-save.txt", "ipvsadm-list.txt"]),
    ] {
        let node = Gathered::new(&[&format!("kube-proxy/worker-1/{capture}")]);
        for file in files {
            let spoil = |text: String| if capture == "ipvs" { format!("oops\n{text}") } else { cut(text) };
            node.edit(&format!("node/{file}"), spoil);
        }
        let (first, rest) = unchecked(&node, &["shop/cart"]);
        assert_eq!(
            first, "no fault found on worker-1, but the node's rules could not be checked",
            "{capture}"
        );
        for file in files {
            assert!(rest.contains(&format!("node/{file} is unreadable at line ")), "{rest}");
            node.remove(&format!("node/{file}"));
        }
        // Nor is a list that is not there, whatever rules of other modes are.
        assert_eq!(unchecked(&node, &["shop/cart"]).0, first, "{capture}");
    }
    // Of two forms of one list one is enough.
    let node = Gathered::new(&["kube-proxy/worker-1/nftables"]);
    node.edit("node/nft-ruleset.json", cut);
    assert_eq!(check(&node, &["shop/cart"]).status.code(), Some(0));
}

#[test]
fn what_another_dataplane_serves_is_not_taken_for_healthy() {
    let node = Gathered::new(&["kube-proxy/worker-1/iptables"]);
    for file in [
        "proxyMode.txt",
        "metrics.txt",
        "healthz.txt",
        "livez.txt",
        "iptables-save.txt",
        "ip6tables-save.txt",
    ] {
        node.remove(&format!("node/{file}"));
    }
    node.write("node/iptables-save.txt", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n");
    node.write("node/kube-proxy.process.json", "{\"complete\": true}");
    node.write("node/ip-addr.json", "[{\"ifname\": \"cilium_host\"}, {\"ifname\": \"eth0\"}]");
    without_kube_proxy(&node);
    let output = check(&node, &["shop/cart"]);
    let first = "no fault found on worker-1, but the Services that Cilium serves instead of kube-proxy could not be checked";
    assert!(text(&output.stdout).starts_with(first), "{}", text(&output.stdout));
    assert_eq!(output.status.code(), Some(4));
    // Next to kube-proxy, another CNI changes nothing.
    node.write("node/proxyMode.txt", "iptables");
    assert_eq!(check(&node, &["shop/cart"]).status.code(), Some(3));
}

#[test]
fn the_record_matches_its_schema() {
    let schema = viptrace(&["schema", "check"]);
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for capture in ["incidents/api-lost", "incidents/ipvs-unsupported", "kube-proxy/worker-1/ipvs"] {
        let node = Gathered::new(&[capture]);
        let json = check(&node, &["-o", "json"]);
        let record: Value = serde_json::from_slice(&json.stdout).unwrap();
        let errors: Vec<_> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{capture}: {errors:?}");
        assert_eq!(text(&json.stdout).lines().count(), 1);
        let yaml = check(&node, &["-o", "yaml"]);
        let again: Value = serde_saphyr::from_str(&text(&yaml.stdout)).unwrap();
        assert_eq!(again["findings"], record["findings"], "{capture}");
        let wide = text(&check(&node, &["-o", "wide"]).stdout);
        for procedure in [
            "clusterip-unreachable",
            "nodeport-unreachable",
            "sync-slow",
            "source-ip-lost",
            "conntrack-exhausted",
        ] {
            assert!(wide.contains(procedure), "{capture}: {wide}");
        }
    }
}

#[test]
fn a_saved_check_is_compared_with_another_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("worker-1.json").display().to_string();
    let one = Gathered::new(&["kube-proxy/worker-1/iptables"]);
    assert_eq!(check(&one, &["--save", &saved]).status.code(), Some(3));
    let two = Gathered::new(&["kube-proxy/worker-2/iptables"]);
    let output = text(&check(&two, &["--compare", &saved]).stdout);
    assert!(output.contains("DIFFERENT IN THE SAVED CHECK"), "{output}");
    assert!(output.contains("finding C22 shop/cache: here none"), "{output}");
    fs::write(&saved, "{}").unwrap();
    let broken = check(&two, &["--compare", &saved]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stderr).contains("is not a saved check"), "{}", text(&broken.stderr));
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let node = Gathered::new(&["incidents/unauthorized"]);
    node.edit("node/kube-proxy.log", |text| text.replace("Unauthorized", "Unauthorized \u{1b}[2J\u{202e}"));
    for format in ["table", "wide", "json", "yaml"] {
        let output = text(&check(&node, &["-o", format]).stdout);
        assert!(!output.contains(['\u{1b}', '\u{202e}']), "{format}: {output}");
    }
}

#[test]
fn a_folder_of_unknown_files_is_an_error_with_a_hint() {
    let empty = tempfile::tempdir().unwrap();
    fs::write(empty.path().join("README.md"), "# nothing").unwrap();
    let output = viptrace(&["check", "--from", &empty.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("in 1 file\n") && said.contains("hint: `viptrace capture DIR`"), "{said}");
}

/// Otherwise the rules of one node would be judged as those of another.
#[test]
fn a_node_that_the_folder_does_not_have_is_an_error_with_those_that_it_has() {
    let node = Gathered::new(&["kube-proxy/worker-1/iptables"]);
    let from = node.path().display().to_string();
    let verbs: [&[&str]; 2] = [&["check"], &["path", "10.244.1.10", "10.96.0.1:443"]];
    let refused = |name: &str| {
        verbs.map(|verb| {
            let output = viptrace(&[verb, &["--from", &from, "--node", name]].concat());
            (output.status.code(), text(&output.stderr))
        })
    };
    for (status, said) in refused("worker-9") {
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("has no node worker-9: it has ") && said.contains("worker-1"), "{said}");
        assert!(said.contains("hint: leave out --node"), "{said}");
    }
    for (_, said) in refused("worker-1") {
        assert!(!said.contains("has no node"), "{said}");
    }
    // A capture of viptrace says of which node it is.
    let manifest = r#"{"kind": "viptrace-capture", "format": 1, "viptrace": "0.1.0", "node": "worker-1",
        "taken": "2026-11-20T23:25:05Z", "taken_ns": 1795217105000000000}"#;
    node.write("node/viptrace-capture.json", manifest);
    for (status, said) in refused("worker-2") {
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("has no node worker-2: it is a capture of worker-1"), "{said}");
        assert!(said.contains("hint: leave out --node"), "{said}");
    }
}

/// `viptrace capture` without `--node` names its capture after the host, which a cloud or `--hostname-override` names otherwise
/// than the Node.
#[test]
fn a_capture_that_is_named_after_its_host_is_of_the_node_that_its_lists_have() {
    let node = Gathered::new(&["kube-proxy/worker-1/iptables"]);
    let manifest = r#"{"kind": "viptrace-capture", "format": 1, "viptrace": "0.1.0", "node": "ip-192-0-2-11",
        "taken": "2026-11-20T23:25:05Z", "taken_ns": 1795217105000000000}"#;
    node.write("viptrace-capture.json", manifest);
    let output = check(&node, &["--node", "worker-1", "-o", "json"]);
    let record: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!(record["node"], "worker-1", "{record:#}");
    let refused = check(&node, &["--node", "worker-9"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("has no node worker-9"), "{}", text(&refused.stderr));
}

#[test]
fn capture_refuses_a_folder_that_is_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("precious.txt"), "x").unwrap();
    let output = viptrace(&["capture", &folder.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not empty"), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
