//! Captures of real failures.

use std::{fs, time::Duration};

use viptrace::{
    cluster::folder,
    diagnosis::audit::{Aspect, Context, Kind, SyncState, SyncStatus},
    node::ProxyMode,
    rules::Writer,
    time::Timestamp,
};

use super::captures::{audit_of, cluster, context, iptables_of, lines, nftables_of, path, read};

/// kube-proxy lost the API server, and then an endpoint left.
#[test]
fn a_stale_endpoint_after_the_api_server_was_lost() {
    let lists = tempfile::tempdir().unwrap();
    for (from, name) in [
        ("cluster/services.json", "services.json"),
        ("cluster/nodes.json", "nodes.json"),
        ("incidents/api-lost/endpointslices.json", "endpointslices.json"),
    ] {
        fs::copy(path(from), lists.path().join(name)).unwrap();
    }
    let history = folder::read(lists.path(), Duration::from_hours(1)).unwrap().history;
    let rules = iptables_of(&read("incidents/api-lost/iptables-save.txt"));
    let mut context = context("worker-1", ProxyMode::Iptables);
    // kube-proxy's last sync in the capture's metrics was before the endpoint left.
    let worked = Timestamp::from_unix_secs(1_795_213_600 - 3600 * 24);
    context.sync =
        SyncStatus { last_queued: Some(worked), last_synced: Some(worked), ..SyncStatus::default() };
    let audit = audit_of(&history, &rules, &context);
    assert_eq!(audit.discrepancies.len(), 1, "{}", lines(&audit));
    let found = &audit.discrepancies[0];
    assert_eq!((found.kind, found.aspect), (Kind::Stale, Aspect::Endpoint));
    assert_eq!(found.service.as_deref(), Some("shop/cart"));
    assert_eq!(found.endpoint, Some("10.244.1.11:8080".parse().unwrap()));
    assert_eq!(found.place.as_ref(), "KUBE-SEP-JS5ZM5E6CLZJ4JLZ");
    assert!(found.since.is_some());
    assert_eq!(found.sync, SyncState::Unheard);
}

/// The API server rejected kube-proxy's token, so it never wrote a rule.
#[test]
fn no_rules_at_all() {
    let rules = iptables_of(&read("incidents/unauthorized/iptables-save.txt"));
    let audit = audit_of(&cluster("cluster"), &rules, &context("worker-1", ProxyMode::Iptables));
    assert_eq!(audit.discrepancies.len(), 1, "{}", lines(&audit));
    let found = &audit.discrepancies[0];
    assert_eq!((found.kind, found.aspect, found.writer), (Kind::Missing, Aspect::Frame, None));
    assert!(found.text.contains("none of 10 Service ports is served"), "{}", found.text);
}

/// A change younger than the grace may still be in flight.
#[test]
fn a_young_change_is_in_flight() {
    let history = cluster("cluster");
    let rules = iptables_of(
        &read("kube-proxy/worker-1/iptables/iptables-save.txt")
            .replace("10.244.1.12:8080", "10.244.1.99:8080"),
    );
    let sync_of = |after: u64, sync: SyncStatus| {
        let mut context = context("worker-1", ProxyMode::Iptables);
        let probe = audit_of(&history, &rules, &context);
        let since = probe.discrepancies.iter().find(|d| d.aspect == Aspect::Endpoint).unwrap().since.unwrap();
        context.at = since.saturating_add(Duration::from_secs(after));
        context.sync = SyncStatus {
            last_queued: sync
                .last_queued
                .map(|offset| since.saturating_add(Duration::from_nanos(offset.as_unix_ns()))),
            last_synced: sync
                .last_synced
                .map(|offset| since.saturating_add(Duration::from_nanos(offset.as_unix_ns()))),
            ..sync
        };
        let audit = audit_of(&history, &rules, &context);
        let found =
            audit.discrepancies.iter().find(|d| d.kind == Kind::Missing && d.aspect == Aspect::Endpoint);
        found.unwrap().sync
    };
    let none = SyncStatus::default();
    assert_eq!(sync_of(2, none), SyncState::InFlight);
    assert_eq!(sync_of(60, none), SyncState::Unknown);
    let at = |secs| Some(Timestamp::from_unix_secs(secs));
    assert_eq!(
        sync_of(60, SyncStatus { last_queued: at(1), last_synced: at(0), ..none }),
        SyncState::Failing
    );
    assert_eq!(
        sync_of(60, SyncStatus { last_queued: at(58), last_synced: at(30), ..none }),
        SyncState::InFlight
    );
    assert_eq!(
        sync_of(60, SyncStatus { last_queued: at(1), last_synced: at(2), ..none }),
        SyncState::Overwritten
    );
}

/// ipvs mode writes every 30 s, whether kube-proxy received a change or not.
#[test]
fn a_periodic_sync_does_not_show_that_a_change_was_received() {
    let rules = iptables_of(
        &read("kube-proxy/worker-1/iptables/iptables-save.txt")
            .replace("10.244.1.12:8080", "10.244.1.99:8080"),
    );
    let mut context = context("worker-1", ProxyMode::Iptables);
    let missing = |context: &Context| {
        let found = audit_of(&cluster("cluster"), &rules, context).discrepancies;
        found.into_iter().find(|it| it.kind == Kind::Missing && it.aspect == Aspect::Endpoint).unwrap()
    };
    let since = missing(&context).since.unwrap();
    context.at = since.saturating_add(Duration::from_mins(1));
    context.sync.last_queued = Some(since.saturating_sub(Duration::from_secs(10)));
    context.sync.last_synced = Some(since.saturating_add(Duration::from_secs(30)));
    assert_eq!(missing(&context).sync, SyncState::Unheard);
    context.sync.last_queued = Some(since.saturating_add(Duration::from_secs(1)));
    assert_eq!(missing(&context).sync, SyncState::Overwritten);
}

/// iptables of old hosts: kubernetes/kubernetes#95409, #114537.
#[test]
fn endpoints_that_an_old_iptables_does_not_print_are_a_gap() {
    let saved = read("kube-proxy/worker-1/iptables/iptables-save.txt");
    for instead in
        ["[unsupported revision]", "--to-destination :0 --persistent", "--to-destination 0.0.0.0:0"]
    {
        let text: Vec<String> = saved
            .lines()
            .map(|line| match line.split_once("--to-destination ") {
                Some((before, _)) => format!("{before}{instead}"),
                None => line.to_owned(),
            })
            .collect();
        let rules = iptables_of(&text.join("\n"));
        let audit = audit_of(&cluster("cluster"), &rules, &context("worker-1", ProxyMode::Iptables));
        assert!(audit.discrepancies.is_empty(), "{instead}: {}", lines(&audit));
        assert!(audit.gaps.iter().any(|gap| gap.contains("the target DNAT")), "{instead}: {:?}", audit.gaps);
    }
}

/// Rules of both backends, and of a mode that is no longer used.
#[test]
fn leftovers_of_another_backend_and_mode() {
    let saved = read("kube-proxy/worker-1/iptables/iptables-save.txt");
    let mut rules = iptables_of(&saved);
    rules.absorb(iptables_of(&saved.replace(" (nf_tables)", "")));
    let audit = audit_of(&cluster("cluster"), &rules, &context("worker-1", ProxyMode::Iptables));
    let found = audit.discrepancies.iter().map(|d| (d.aspect, d.writer)).collect::<Vec<_>>();
    assert_eq!(found, [(Aspect::Writer, Some(Writer::IptablesLegacy))], "{}", lines(&audit));

    let mut rules = nftables_of(&read("kube-proxy/worker-1/nftables/nft-ruleset.json"));
    rules.absorb(iptables_of(&saved));
    let audit = audit_of(&cluster("cluster"), &rules, &context("worker-1", ProxyMode::Nftables));
    let found = audit.discrepancies.iter().map(|d| (d.aspect, d.writer)).collect::<Vec<_>>();
    assert_eq!(found, [(Aspect::Writer, Some(Writer::IptablesNft))], "{}", lines(&audit));
}
