//! A large cluster: kube-proxy's rules for 1,000 Services with 10 endpoints each, and generated ones.

use std::{fs, time::Duration};

use viptrace::{
    cluster::{History, folder},
    diagnosis::audit::{Context, Expected, audit},
    node::ProxyMode,
};

use super::{
    captures::{context, iptables_of, lines, nftables_of, path},
    generate,
};

fn unpacked(name: &str) -> String {
    let packed = fs::read(path("large").join(name)).unwrap();
    String::from_utf8(zstd::decode_all(packed.as_slice()).unwrap()).unwrap()
}

fn cluster() -> History {
    let lists = tempfile::tempdir().unwrap();
    for name in ["services.json", "endpointslices.json"] {
        fs::write(lists.path().join(name), unpacked(&format!("cluster/{name}.zst"))).unwrap();
    }
    fs::copy(path("cluster/nodes.json"), lists.path().join("nodes.json")).unwrap();
    folder::read(lists.path(), Duration::from_hours(1)).unwrap().history
}

#[test]
fn a_thousand_services_match_the_api() {
    let history = cluster();
    for mode in [ProxyMode::Iptables, ProxyMode::Nftables] {
        let rules = match mode {
            ProxyMode::Iptables => iptables_of(&unpacked("iptables/iptables-save.txt.zst")),
            _ => nftables_of(&unpacked("nftables/nft-ruleset.json.zst")),
        };
        let context = context("worker-1", mode);
        let found = audit(&Expected::new(&history, &context), &rules, &context);
        assert_eq!(lines(&found), "", "{mode}");
        assert!(found.checked.service_ports > 1000, "{:?}", found.checked);
        assert!(found.checked.rules > 20_000, "{:?}", found.checked);
    }
}

/// Large-cluster mode writes no comments: the chain identifies one endpoint among ten thousand.
#[test]
fn one_endpoint_among_many_is_named() {
    let cluster = generate::cluster(300);
    let text = generate::iptables(&cluster);
    // Each thread that audits Services finds its own.
    for (place, name) in [(23, "load/svc-00023"), (277, "load/svc-00277")] {
        let (key, port, _, endpoints) = &cluster.services[place];
        let gone = endpoints[4];
        let text = text.replace(&format!("--to-destination {gone}\n"), "--to-destination 10.1.2.3:8080\n");
        let context = Context { at: generate::now(), ..context("worker-1", ProxyMode::Iptables) };
        let found = audit(&Expected::new(&cluster.history, &context), &iptables_of(&text), &context);
        let chain = viptrace::diagnosis::audit::names::iptables_endpoint(key, port, gone);
        let lines = lines(&found);
        assert!(found.discrepancies.iter().all(|d| d.service.as_deref() == Some(name)), "{lines}");
        assert!(
            found.discrepancies.iter().any(|d| *d.place == *chain && d.endpoint == Some(gone)),
            "{lines}"
        );
    }
}

/// The work for each Service does not depend on the number of Services.
#[test]
fn walks_grow_linearly_with_the_number_of_services() {
    let walks = |services: u32| {
        let cluster = generate::cluster(services);
        let context = Context { at: generate::now(), ..context("worker-1", ProxyMode::Nftables) };
        let rules = nftables_of(&generate::nftables(&cluster));
        let found = audit(&Expected::new(&cluster.history, &context), &rules, &context);
        assert_eq!(lines(&found), "");
        found.checked.walks
    };
    assert_eq!(walks(200), 4 * walks(50));
}
