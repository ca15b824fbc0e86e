//! The rules that older releases of kube-proxy write match the API too. A result that no release has is still found.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use viptrace::{
    cluster::{History, folder},
    diagnosis::{
        audit::{Aspect, Context, Discrepancy, Settings},
        triage::{CheckReport, FindingRecord},
    },
    net::Cidr,
    node::{ProxyMode, Release, capture},
    rules::Ruleset,
};

use super::{
    captures::{IpvsCapture, audit_of, context, iptables_of, lines, nftables_of, read},
    suite::check,
};

/// The objects of the captures, edited: `edit` gets each with its kind's file.
fn cluster_with(edit: impl Fn(&str, &mut Value)) -> History {
    let lists = tempfile::tempdir().unwrap();
    write_lists(lists.path(), edit);
    folder::read(lists.path(), Duration::from_hours(1)).unwrap().history
}

fn write_lists(folder: &Path, edit: impl Fn(&str, &mut Value)) {
    for name in ["services.json", "endpointslices.json", "nodes.json"] {
        let mut list: Value = serde_json::from_str(&read(&format!("cluster/{name}"))).unwrap();
        list["items"].as_array_mut().unwrap().iter_mut().for_each(|object| edit(name, object));
        fs::write(folder.join(name), list.to_string()).unwrap();
    }
}

fn unchanged() -> History {
    cluster_with(|_, _| {})
}

/// shop/frontend as a load balancer at 203.0.113.81, still with `externalTrafficPolicy: Local`.
fn balanced_frontend() -> History {
    cluster_with(|file, object| {
        if file == "services.json" && object["metadata"]["name"] == "frontend" {
            object["spec"]["type"] = json!("LoadBalancer");
            object["status"]["loadBalancer"] = json!({"ingress": [{"ip": "203.0.113.81"}]});
        }
    })
}

/// kube-proxy of `release`, or of an unknown one.
fn node(mode: ProxyMode, release: Option<Release>) -> Context {
    Context { release, ..context("worker-1", mode) }
}

/// One line for each difference.
fn found(history: &History, rules: &Ruleset, context: &Context) -> String {
    lines(&audit_of(history, rules, context))
}

fn saved(mode: &str) -> String {
    read(&format!("kube-proxy/worker-1/{mode}/iptables-save.txt"))
}

/// Replaces a part that must exist.
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

/// Adds rules at the end of a chain's rules, and the chain.
fn with_rules(text: &str, table: &str, chain: &str, rules: &[&str]) -> String {
    let start = text.find(&format!("*{table}\n")).unwrap();
    let end = start + text[start..].find("COMMIT\n").unwrap();
    let rules = rules.iter().map(|rule| format!("-A {chain} {rule}\n")).collect::<Vec<_>>().concat();
    let (before, after) = text.split_at(end);
    let known = before[start..].contains(&format!(":{chain} "));
    let chain = if known { String::new() } else { format!(":{chain} - [0:0]\n") };
    format!("{before}{chain}{rules}{after}")
}

fn without(text: &str, part: &str) -> String {
    assert!(text.contains(part), "{part}");
    text.lines().filter(|line| !line.contains(part)).collect::<Vec<_>>().join("\n") + "\n"
}

/// With the drop of marked packets, as kube-proxy until 1.24 and the kubelet until 1.27 write it.
fn with_drop_mark(text: &str) -> String {
    let text = with_rules(text, "nat", "KUBE-MARK-DROP", &["-j MARK --set-xmark 0x8000/0x8000"]);
    with_rules(&text, "filter", "KUBE-FIREWALL", &["-m mark --mark 0x8000/0x8000 -j DROP"])
}

/// iptables mode of 1.22: what it should drop is marked, and no filter drops it in FORWARD.
fn marking_rules() -> String {
    let text = with_drop_mark(&saved("iptables"));
    let text = without(&text, "KUBE-PROXY-FIREWALL");
    let text = without(&text, "shop/frontend:http has no local endpoints");
    let text = with_rules(&text, "nat", "KUBE-FW-OTVU7MV6PRR7MW2X", &["-j KUBE-MARK-DROP"]);
    let text = with_rules(&text, "nat", "KUBE-EXT-PY4JZH2ITZYEO4CN", &["-j KUBE-MARK-DROP"]);
    replaced(
        &text,
        "-A KUBE-SERVICES -d 203.0.113.80/32",
        "-A KUBE-SERVICES -d 203.0.113.81/32 -p tcp -m tcp --dport 80 -j KUBE-EXT-PY4JZH2ITZYEO4CN\n\
         -A KUBE-SERVICES -d 203.0.113.80/32",
    )
}

#[test]
fn connections_marked_for_kube_firewall_are_as_good_as_dropped() {
    let (history, context) = (balanced_frontend(), node(ProxyMode::Iptables, Some(Release(1, 22))));
    let text = marking_rules();
    assert_eq!(found(&history, &iptables_of(&text), &context), "");
    // At the node's own addresses, KUBE-FIREWALL must drop them.
    let unfiltered = without(&text, "--mark 0x8000/0x8000");
    let lines = found(&history, &iptables_of(&unfiltered), &context);
    assert!(lines.contains("shop/frontend:http"), "{lines}");
    assert!(lines.contains("continue untranslated, and should be dropped"), "{lines}");
    // Without the mark nothing drops them.
    let unmarked = without(&text, "-A KUBE-EXT-PY4JZH2ITZYEO4CN -j KUBE-MARK-DROP");
    let lines = found(&history, &iptables_of(&unmarked), &context);
    assert!(lines.contains("continue untranslated, and should be dropped"), "{lines}");
}

#[test]
fn a_chain_for_dropping_alone_drops_nothing() {
    // A kubelet until 1.27 writes KUBE-MARK-DROP beside a newer kube-proxy.
    let text = with_drop_mark(&saved("iptables"));
    let context = node(ProxyMode::Iptables, Some(Release(1, 26)));
    assert_eq!(found(&unchanged(), &iptables_of(&text), &context), "");
    let lost = without(&text, "KUBE-PROXY-FIREWALL");
    let lines = found(&unchanged(), &iptables_of(&lost), &context);
    assert!(lines.contains("source ranges IPv4 shop/api:https"), "{lines}");
}

#[test]
fn external_ips_of_1_23_do_not_masquerade_pods() {
    let context = node(ProxyMode::Iptables, Some(Release(1, 23)));
    let to_svc = "-A KUBE-SERVICES -d 203.0.113.50/32 -p tcp -m comment --comment \"shop/api:https external IP\" -m tcp \
                  --dport 443 -j KUBE-SVC-OTVU7MV6PRR7MW2X";
    let text = replaced(
        &saved("iptables"),
        &to_svc.replace("KUBE-SVC-", "KUBE-EXT-"),
        &format!(
            "-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 203.0.113.50/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ\n{to_svc}"
        ),
    );
    assert_eq!(found(&unchanged(), &iptables_of(&text), &context), "");
    // Other clients are masqueraded.
    let lost = without(&text, "-d 203.0.113.50/32 -p tcp -m tcp --dport 443 -j KUBE-MARK-MASQ");
    let lines = found(&unchanged(), &iptables_of(&lost), &context);
    assert!(lines.contains("new connections from the node are not masqueraded"), "{lines}");
    // KUBE-EXT masquerades Pods too.
    let lost = without(&saved("iptables"), "masquerade traffic for shop/api:https external destinations");
    let lines = found(&unchanged(), &iptables_of(&lost), &context);
    assert!(lines.contains("new connections from Pods are not masqueraded"), "{lines}");
}

#[test]
fn external_ips_of_an_old_release_are_for_connections_from_off_the_machine() {
    let context = node(ProxyMode::Iptables, Some(Release(1, 17)));
    let matched = "-A KUBE-SERVICES -d 203.0.113.50/32 -p tcp -m comment --comment \"shop/api:https external IP\" -m tcp \
                   --dport 443";
    let to_svc = "-j KUBE-SVC-OTVU7MV6PRR7MW2X";
    let mask = format!("{matched} -j KUBE-MARK-MASQ");
    let of_others = format!("{matched} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL {to_svc}");
    let of_local = format!("{matched} -m addrtype --dst-type LOCAL {to_svc}");
    let current = format!("{matched} -j KUBE-EXT-OTVU7MV6PRR7MW2X");
    let text = replaced(&saved("iptables"), &current, &format!("{mask}\n{of_others}\n{of_local}"));
    assert_eq!(found(&unchanged(), &iptables_of(&text), &context), "");
    let lines = found(&unchanged(), &iptables_of(&without(&text, &of_others)), &context);
    assert!(lines.contains("shop/api:https") && lines.contains("are not translated"), "{lines}");
}

#[test]
fn connections_to_an_endpoint_on_the_nodes_network_are_not_masqueraded() {
    let history = cluster_with(|_, object| {
        if object["metadata"]["labels"]["kubernetes.io/service-name"] == "cart" {
            for endpoint in object["endpoints"].as_array_mut().unwrap() {
                if endpoint["addresses"][0] == "10.244.1.12" {
                    endpoint["addresses"][0] = json!("192.0.2.11");
                }
            }
        }
    });
    let of_node = |text: &str| replaced(text, "10.244.1.12", "192.0.2.11");
    let check = |mut rules: Ruleset, mode| {
        rules.addresses = Some(["192.0.2.11".parse().unwrap()].into());
        found(&history, &rules, &node(mode, Some(Release(1, 36))))
    };
    // They enter the node, and no chain that masquerades is on their way.
    let text = of_node(&saved("iptables"));
    assert_eq!(check(iptables_of(&text), ProxyMode::Iptables), "");
    let nftables = of_node(&read("kube-proxy/worker-1/nftables/nft-ruleset.json"));
    assert_eq!(check(nftables_of(&nftables), ProxyMode::Nftables), "");
    // Those to the other endpoints are.
    let mark = "-d 10.96.10.10/32 -p tcp -m comment --comment \"shop/cart:http cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ";
    let lines = check(iptables_of(&without(&text, mark)), ProxyMode::Iptables);
    assert!(lines.contains("shop/cart:http") && lines.contains("are not masqueraded"), "{lines}");
}

#[test]
fn a_local_policy_preserves_the_addresses_of_pods_in_kube_xlb_too() {
    let history = cluster_with(|file, object| {
        if file == "services.json" && object["metadata"]["name"] == "frontend" {
            object["spec"]["externalIPs"] = json!(["203.0.113.81"]);
        }
    });
    let text = marking_rules().replace("KUBE-EXT-PY4JZH2ITZYEO4CN", "KUBE-XLB-PY4JZH2ITZYEO4CN");
    let context = node(ProxyMode::Iptables, Some(Release(1, 22)));
    assert_eq!(found(&history, &iptables_of(&text), &context), "");
    let of_pods = "-A KUBE-XLB-PY4JZH2ITZYEO4CN -s 10.244.0.0/16";
    let masked = replaced(&text, of_pods, &format!("{of_pods} -j KUBE-MARK-MASQ\n{of_pods}"));
    let audit = audit_of(&history, &iptables_of(&masked), &context);
    let masquerades = |found: &&Discrepancy| found.aspect == Aspect::Masquerade;
    let found = audit.discrepancies.iter().find(masquerades).unwrap();
    let addresses = found.frontends.iter().map(|frontend| frontend.address);
    assert!(addresses.flatten().any(|ip| ip.to_string() == "203.0.113.81"), "{}", lines(&audit));
}

#[test]
fn a_cluster_ip_without_local_endpoint_refuses_drops_or_marks_by_release() {
    let history = unchanged();
    let dropping = "shop/cache:redis has no local endpoints\" -m tcp --dport 6379 -j DROP";
    let refusing = replaced(&saved("iptables"), dropping, &dropping.replace("DROP", "REJECT"));
    let refused = |release| {
        found(&history, &iptables_of(&refusing), &node(ProxyMode::Iptables, release)).contains("are refused")
    };
    assert!(!refused(Some(Release(1, 23))) && !refused(None));
    assert!(refused(Some(Release(1, 24))) && refused(Some(Release(1, 36))));

    let marking = with_drop_mark(&without(&saved("iptables"), "shop/cache:redis has no local endpoints"));
    let marking = with_rules(&marking, "nat", "KUBE-SVL-ABCDEFGHIJKLMNOP", &["-j KUBE-MARK-DROP"]);
    let marking = replaced(
        &marking,
        "-A KUBE-SERVICES -d 203.0.113.80/32",
        "-A KUBE-SERVICES -d 10.96.10.60/32 -p tcp -m tcp --dport 6379 -j KUBE-SVL-ABCDEFGHIJKLMNOP\n\
         -A KUBE-SERVICES -d 203.0.113.80/32",
    );
    let context = node(ProxyMode::Iptables, Some(Release(1, 24)));
    assert_eq!(found(&history, &iptables_of(&marking), &context), "");
}

/// The endpoints of shop/cart serve and terminate.
fn terminate_cart(_: &str, object: &mut Value) {
    if object["metadata"]["labels"]["kubernetes.io/service-name"] == "cart" {
        for endpoint in object["endpoints"].as_array_mut().unwrap() {
            endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
        }
    }
}

/// iptables mode's rules that refuse shop/cart.
fn refusing_cart() -> String {
    let refusal = "-d 10.96.10.10/32 -p tcp -m tcp --dport 80 -j REJECT";
    let text = without(&saved("iptables"), "-A KUBE-SERVICES -d 10.96.10.10/32");
    with_rules(&text, "filter", "KUBE-SERVICES", &[refusal])
}

#[test]
fn terminating_endpoints_are_used_since_1_26() {
    let history = cluster_with(terminate_cart);
    let (sends, refuses) = (saved("iptables"), refusing_cart());
    let is_clean = |text: &str, uses_terminating| {
        let context = Context { uses_terminating, ..node(ProxyMode::Iptables, None) };
        found(&history, &iptables_of(text), &context).is_empty()
    };
    assert!(is_clean(&sends, Some(true)) && is_clean(&sends, None) && !is_clean(&sends, Some(false)));
    assert!(is_clean(&refuses, Some(false)) && is_clean(&refuses, None) && !is_clean(&refuses, Some(true)));
}

#[test]
fn hints_for_nodes_are_followed_since_1_34() {
    let history = cluster_with(|_, object| {
        if object["metadata"]["labels"]["kubernetes.io/service-name"] == "cart" {
            for endpoint in object["endpoints"].as_array_mut().unwrap() {
                let is_first = endpoint["addresses"][0] == "10.244.1.11";
                let node = if is_first { "worker-1" } else { "worker-2" };
                endpoint["hints"] =
                    json!({"forZones": [{"name": endpoint["zone"]}], "forNodes": [{"name": node}]});
            }
        }
    });
    let all = saved("iptables");
    let third = "10.244.2.13:8080\" -j KUBE-SEP-HSQSPC2QE3PEOFCC";
    let of_zone = without(&all, third).replace(
        "10.244.1.12:8080\" -m statistic --mode random --probability 0.50000000000 -j",
        "10.244.1.12:8080\" -j",
    );
    let of_zone = replaced(&of_zone, "--probability 0.33333333349", "--probability 0.50000000000");
    let of_node = without(&of_zone, "10.244.1.12:8080\" -j").replace(
        "10.244.1.11:8080\" -m statistic --mode random --probability 0.50000000000 -j",
        "10.244.1.11:8080\" -j",
    );
    let by = |text: &str, release| found(&history, &iptables_of(text), &node(ProxyMode::Iptables, release));
    for (release, [node, zone, none]) in [
        (Some(Release(1, 32)), [false, true, true]),
        (Some(Release(1, 34)), [true, true, true]),
        (Some(Release(1, 35)), [true, false, true]),
        (None, [true, true, true]),
    ] {
        let clean = [&of_node, &of_zone, &all].map(|text| by(text, release).is_empty());
        assert_eq!(clean, [node, zone, none], "{release:?}");
    }
    let lines = by(&of_zone, Some(Release(1, 35)));
    assert!(lines.contains("which is an endpoint, but not for these connections"), "{lines}");
    // Another set is no release's.
    let second = without(&of_zone, "10.244.1.11:8080\" -m statistic");
    assert!(by(&second, None).contains("no new connection goes to the endpoint 10.244.1.11:8080"));
}

/// A check of worker-1 with these rules of iptables mode and this version of kube-proxy.
fn checked(iptables: &str, version: &str, edit: impl Fn(&str, &mut Value)) -> CheckReport {
    checked_in("iptables", iptables, version, edit)
}

/// A check of worker-1 in this mode, without the lists of IPVS.
fn checked_in(mode: &str, iptables: &str, version: &str, edit: impl Fn(&str, &mut Value)) -> CheckReport {
    let folder = tempfile::tempdir().unwrap();
    write_lists(folder.path(), edit);
    let of_node = |name: &str| read(&format!("kube-proxy/worker-1/{mode}/{name}"));
    let metrics = replaced(&of_node("metrics.txt"), "v0.0.0-master+$Format:%H$", version);
    for (name, text) in [
        ("iptables-save.txt", iptables.to_owned()),
        ("metrics.txt", metrics),
        ("config.yaml", of_node("config.yaml")),
        ("proxyMode.txt", of_node("proxyMode.txt")),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    check(&capture::folder::read(folder.path(), None).unwrap().capture)
}

fn causes(report: &CheckReport) -> Vec<String> {
    report.findings.iter().map(|finding| format!("{} {}", finding.class, finding.root_cause)).collect()
}

#[test]
fn only_terminating_endpoints_are_none_before_1_26() {
    let old = causes(&checked(&refusing_cart(), "v1.25.16", terminate_cart));
    let of_cart = old.iter().filter(|cause| cause.contains("shop/cart")).collect::<Vec<_>>();
    let cause = "C20 no_endpoints — shop/cart has no endpoint: all of its endpoints terminate, and this kube-proxy does not send to them \
                 (ProxyTerminatingEndpoints, on since v1.26)";
    assert_eq!(of_cart, [cause]);
    let new = causes(&checked(&saved("iptables"), "v1.26.0", terminate_cart));
    assert!(
        !new.iter().any(|cause| cause.contains("shop/cart has no endpoint") || cause.starts_with("C5")),
        "{new:?}"
    );
}

#[test]
fn the_effect_of_a_local_policy_is_the_releases() {
    let dropping = "shop/cache:redis has no local endpoints\" -m tcp --dport 6379 -j DROP";
    let refusing = replaced(&saved("iptables"), dropping, &dropping.replace("DROP", "REJECT"));
    let of_cache = |rules: &str, version: &str| {
        let report = checked(rules, version, |_, _| {});
        let causes = causes(&report);
        causes.into_iter().filter(|cause| cause.contains("shop/cache")).collect::<Vec<_>>()
    };
    let [only] = &of_cache(&refusing, "v1.23.17")[..] else {
        panic!("{:?}", of_cache(&refusing, "v1.23.17"))
    };
    assert!(only.ends_with("connections from worker-1 and its Pods are refused"), "{only}");
    let [only] = &of_cache(&saved("iptables"), "v1.25.0")[..] else { panic!() };
    assert!(only.ends_with("connections from worker-1 and its Pods time out"), "{only}");
}

#[test]
fn ipvs_mode_of_1_20_refuses_every_client_without_a_local_endpoint() {
    let of_frontend = |version: &str| {
        let report = checked_in("ipvs", &saved("ipvs"), version, |_, _| {});
        let is_local = |finding: &FindingRecord| finding.root_cause.contains("shop/frontend is external");
        let found = report.findings.into_iter().find(is_local).unwrap();
        (found.root_cause.to_string(), found.against.len())
    };
    let (cause, against) = of_frontend("v1.20.15");
    assert!(cause.ends_with("connections from outside to worker-1 are refused"), "{cause}");
    assert_eq!(against, 0, "Pods are not exempt");
    let (cause, against) = of_frontend("v1.21.0");
    assert!(
        cause.ends_with("connections from outside to worker-1 are answered from a wrong address"),
        "{cause}"
    );
    assert_eq!(against, 1);
}

/// nftables mode of 1.29: one chain checks all endpoints, and none of PREROUTING checks source ranges.
fn nftables_of_1_29() -> String {
    let text = read("kube-proxy/worker-1/nftables/nft-ruleset.txt");
    let text = without(&text, "jump nodeport-endpoints-check");
    let text = replaced(&text, "\t}\n\n\tchain service-endpoints-check {\n", "");
    let text = text.replace("nodeport-endpoints-check", "endpoints-check");
    let text = text.replace("service-endpoints-check", "endpoints-check");
    let early = "type filter hook prerouting priority dstnat - 10; policy accept;\n\t\tct state new jump firewall-check\n";
    replaced(&text, early, "type filter hook prerouting priority dstnat - 10; policy accept;\n")
}

#[test]
fn nftables_mode_of_1_29_enforces_no_source_ranges() {
    let (text, context) = (nftables_of_1_29(), node(ProxyMode::Nftables, Some(Release(1, 29))));
    let lines = found(&unchanged(), &nftables_of(&text), &context);
    assert!(!lines.is_empty());
    for line in lines.lines() {
        assert!(line.contains("source ranges IPv4 shop/api:https"), "{lines}");
        assert!(line.contains("; nftables mode of 1.29 checks them after the translation"), "{lines}");
    }
    // Its check of endpoints is a part of the frame.
    let forward =
        "type filter hook forward priority -110; policy accept;\n\t\tct state new jump endpoints-check\n";
    let lost = replaced(&text, forward, "type filter hook forward priority -110; policy accept;\n");
    let lines = found(&unchanged(), &nftables_of(&lost), &context);
    assert!(lines.contains("FORWARD does not lead to endpoints-check in table kube-proxy"), "{lines}");
    // A newer release has its check of source ranges in PREROUTING.
    let newer = read("kube-proxy/worker-1/nftables/nft-ruleset.txt");
    let early = "type filter hook prerouting priority dstnat - 10; policy accept;\n\t\tct state new jump firewall-check\n";
    let lost = replaced(&newer, early, "type filter hook prerouting priority dstnat - 10; policy accept;\n");
    let lines = found(&unchanged(), &nftables_of(&lost), &context);
    assert!(lines.contains("PREROUTING does not lead to firewall-check"), "{lines}");
}

#[test]
fn nftables_mode_drops_the_nodes_own_connections_before_it_translates() {
    let text = read("kube-proxy/worker-1/nftables/nft-ruleset.txt");
    let text = replaced(
        &text,
        "\"shop/cache:redis\" : drop }",
        "\"shop/cache:redis\" : drop, 203.0.113.81 . tcp . 80 comment \"shop/frontend:http\" : drop }",
    );
    let external = "203.0.113.81 . tcp . 80 : goto external-SFDBSQB2-shop/frontend/tcp/http, ";
    let entry = "203.0.113.50 . tcp . 443 : goto external-";
    let text = replaced(&text, entry, &format!("{external}{entry}"));
    let context = node(ProxyMode::Nftables, Some(Release(1, 30)));
    assert_eq!(found(&balanced_frontend(), &nftables_of(&text), &context), "");
    // Pods pass no such check.
    let lost = text.replace(external, "203.0.113.81 . tcp . 80 : drop, ");
    let lines = found(&balanced_frontend(), &nftables_of(&lost), &context);
    assert!(lines.contains("new connections are dropped, although there is 1 endpoint"), "{lines}");
}

#[test]
fn the_node_is_exempt_from_a_local_policy_if_its_connections_are_translated_first() {
    let exempt = |listing: &str| {
        let folder = tempfile::tempdir().unwrap();
        write_lists(folder.path(), |_, _| {});
        let of_node = |name: &str| read(&format!("kube-proxy/worker-1/nftables/{name}"));
        for name in ["metrics.txt", "config.yaml", "proxyMode.txt"] {
            fs::write(folder.path().join(name), of_node(name)).unwrap();
        }
        fs::write(folder.path().join("nft-ruleset.txt"), listing).unwrap();
        let report = check(&capture::folder::read(folder.path(), None).unwrap().capture);
        let is_local = |finding: &FindingRecord| finding.root_cause.contains("shop/frontend is external");
        let found = report.findings.into_iter().find(is_local).unwrap();
        found.against.iter().map(|evidence| evidence.content.to_string()).collect::<Vec<_>>()
    };
    let early = read("kube-proxy/worker-1/nftables/nft-ruleset.txt");
    assert_eq!(exempt(&early), ["connections from this node's Pods are exempt"]);
    let late = replaced(&early, "hook output priority -110", "hook output priority 0");
    assert_eq!(exempt(&late), ["connections from this node and its Pods are exempt"]);
}

#[test]
fn ipvs_mode_of_1_20_has_no_real_server_without_a_local_endpoint() {
    let mut capture = IpvsCapture::worker_1();
    capture.servers = without(&capture.servers, ":30080 -r 10.244.2.21:8080");
    let is_refused = |release: Option<Release>| {
        let lines = found(&unchanged(), &capture.rules(), &node(ProxyMode::Ipvs, release));
        lines
            .contains("shop/frontend:http None [virtual server 192.0.2.11:30080] new connections are refused")
    };
    assert!(!is_refused(Some(Release(1, 20))) && !is_refused(None) && is_refused(Some(Release(1, 21))));
    // The form of the rules shows a newer release.
    let context = Context { oldest_release: Some(Release(1, 26)), ..node(ProxyMode::Ipvs, None) };
    assert!(found(&unchanged(), &capture.rules(), &context).contains("new connections are refused"));
}

#[test]
fn ipvs_mode_with_marks_for_source_ranges_drops_the_nodes_own_connections() {
    let mut capture = IpvsCapture::worker_1();
    let mut text = capture.iptables.clone();
    for newer in ["KUBE-PROXY-FIREWALL", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-OUT-FILTER"] {
        text = without(&text, newer);
    }
    let text = with_drop_mark(&text);
    let text = with_rules(&text, "filter", "INPUT", &["-j KUBE-FIREWALL"]);
    let text = with_rules(&text, "filter", "OUTPUT", &["-j KUBE-FIREWALL"]);
    let admitted = "-m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN";
    let text = with_rules(&text, "nat", "KUBE-FIREWALL", &[admitted, "-j KUBE-MARK-DROP"]);
    let masquerade = "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ";
    let filter = "-A KUBE-LOAD-BALANCER -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-FIREWALL";
    capture.iptables = replaced(&text, masquerade, &format!("{filter}\n{masquerade}"));
    let context = node(ProxyMode::Ipvs, Some(Release(1, 24)));
    assert_eq!(found(&unchanged(), &capture.rules(), &context), "");
    capture.iptables = without(&capture.iptables, admitted);
    let lines = found(&unchanged(), &capture.rules(), &context);
    assert!(lines.contains("are rejected, although a source range admits them"), "{lines}");
}

#[test]
fn the_tables_of_docker_in_the_other_backend_are_not_those_of_ipvs_mode() {
    let mut capture = IpvsCapture::worker_1();
    capture.iptables = replaced(&capture.iptables, " (nf_tables)", "");
    let docker = "# Generated by iptables-save v1.8.9 (nf_tables)\n*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT \
                  [0:0]\n:DOCKER - [0:0]\n-A PREROUTING -j DOCKER\nCOMMIT\n*filter\n:FORWARD ACCEPT [0:0]\n:DOCKER - \
                  [0:0]\n-A FORWARD -j DOCKER\nCOMMIT\n";
    let with_docker = |capture: &IpvsCapture| {
        let mut rules = iptables_of(docker);
        rules.absorb(capture.rules());
        found(&unchanged(), &rules, &node(ProxyMode::Ipvs, None))
    };
    assert_eq!(with_docker(&capture), "");
    capture.iptables = without(&capture.iptables, "-A POSTROUTING");
    let lines = with_docker(&capture);
    assert!(lines.contains("POSTROUTING does not lead to KUBE-POSTROUTING in table nat"), "{lines}");
}

#[test]
fn addresses_of_a_load_balancer_that_is_a_proxy_may_have_rules() {
    let history = cluster_with(|file, object| {
        if file == "services.json" && object["metadata"]["name"] == "api" {
            object["status"]["loadBalancer"] =
                json!({"ingress": [{"ip": "203.0.113.80", "ipMode": "Proxy"}]});
        }
    });
    let rules = iptables_of(&saved("iptables"));
    let of = |release| found(&history, &rules, &node(ProxyMode::Iptables, release));
    assert_eq!((of(Some(Release(1, 28))), of(None)), (String::new(), String::new()));
    let lines = of(Some(Release(1, 32)));
    assert!(lines.contains("names 203.0.113.80:443/TCP: no Service has it"), "{lines}");
}

#[test]
fn virtual_servers_of_keepalived_are_not_kube_proxys() {
    let mut capture = IpvsCapture::worker_1();
    capture.servers += "-A -t 192.0.2.100:6443 -s rr\n-a -t 192.0.2.100:6443 -r 192.0.2.21:6443 -g -w 1\n";
    let is_named = |capture: &IpvsCapture, context: &Context| {
        found(&unchanged(), &capture.rules(), context).contains("IPVS names 192.0.2.100:6443/TCP")
    };
    let settings = |range: &str| {
        let known = node(ProxyMode::Ipvs, None);
        let settings = known.settings.clone().unwrap();
        let excluded = vec![Cidr::parse(range).unwrap()];
        Context { settings: Some(Settings { excluded, ..settings }), ..known }
    };
    assert!(!is_named(&capture, &settings("192.0.2.96/28")) && is_named(&capture, &settings("192.0.2.0/28")));
    // Without a configuration, kube-ipvs0 has kube-proxy's addresses.
    let own = Some(vec!["192.0.2.11".parse().unwrap(), "10.0.2.15".parse().unwrap()]);
    let unknown = Context { settings: None, own_addresses: own, ..node(ProxyMode::Ipvs, None) };
    assert!(!is_named(&capture, &unknown));
    capture.addresses.push("192.0.2.100".parse().unwrap());
    assert!(is_named(&capture, &unknown));
}

#[test]
fn dns_of_openshift_prefers_the_local_endpoint() {
    let dns = cluster_with(|_, object| {
        if object["metadata"]["name"] == "kube-dns" {
            object["metadata"]["namespace"] = json!("openshift-dns");
            object["metadata"]["name"] = json!("dns-default");
        }
        if object["metadata"]["labels"]["kubernetes.io/service-name"] == "kube-dns" {
            object["metadata"]["namespace"] = json!("openshift-dns");
            object["metadata"]["labels"]["kubernetes.io/service-name"] = json!("dns-default");
        }
    });
    let only = |endpoint: &str, other: &str| {
        let text = without(&saved("iptables"), &format!("-> {other}:53\""));
        let with_chance =
            format!("-> {endpoint}:53\" -m statistic --mode random --probability 0.50000000000 -j");
        iptables_of(&text.replace(&with_chance, &format!("-> {endpoint}:53\" -j")))
    };
    let (local, remote) = (only("10.244.1.53", "10.244.2.53"), only("10.244.2.53", "10.244.1.53"));
    let context = node(ProxyMode::Iptables, None);
    assert_eq!(found(&dns, &local, &context), "");
    assert!(found(&dns, &remote, &context).contains("no new connection goes to the endpoint 10.244.1.53:53"));
    let lines = found(&unchanged(), &local, &context);
    assert!(lines.contains("no new connection goes to the endpoint 10.244.2.53:53"), "{lines}");
}
