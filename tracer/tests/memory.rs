//! How much memory the objects of a large cluster and the rules of its nodes take: the part of the agent's memory that
//! grows with the cluster.
//!
//! A binary of its own, because the allocator that counts is the whole program's. The real client lists an API server in
//! this process, whose own thread is not counted. `cargo xtask bench memory` measures the resident memory of an agent.

#![cfg(test)]

#[expect(dead_code, reason = "the benchmark of the audit needs more of the cluster than its rules")]
#[path = "../benches/audit/generate.rs"]
mod generate;

use std::{fs, net::SocketAddr};

use allocation_counter::measure;
use viptrace::{
    cluster::{Access, Kind, LOOK_BACK, Source},
    rules::{Ruleset, iptables, nftables},
};
use viptrace_lab::apiserver::{ApiServer, Population};

/// Endpoints of each Service, each a Pod. A Node has 30 Pods.
const ENDPOINTS: u32 = 10;
/// Bytes in the history for each endpoint with its Pod, and a tenth of its Service and of that one's slice.
const MAX_ENDPOINT_BYTES: u64 = 900;
/// Bytes beyond those that stay, while the pages are read and trimmed: a page of 500 Pods is 4 MiB of JSON.
const MAX_PASSING_BYTES: u64 = 20 << 20;

/// Bytes in the parsed rules of a node for each endpoint, with a tenth of its Service's rules.
const MAX_RULES_BYTES: u64 = 500;
/// Bytes for each endpoint beyond those that stay, while the rules are parsed.
const MAX_PASSING_RULES_BYTES: u64 = 200;

/// The memory of the objects in a cluster or of the rules for them, in bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    kept: u64,
    most: u64,
}

/// Lists a cluster with this many Services.
fn list(services: u32) -> Memory {
    let server = ApiServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), Vec::new()).unwrap();
    let population = Population { services, endpoints: ENDPOINTS, node: "worker-1".to_owned() };
    let objects = population.objects();
    server.populate(population).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, server.kubeconfig()).unwrap();
    let source = Source::Watch(Access { kubeconfig: Some(path), ..Access::default() });
    let mut listed = None;
    let counted = measure(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let opened = runtime.block_on(async {
            let mut opened = source.open(LOOK_BACK).await.unwrap();
            opened.cluster.sync(&mut opened.feed).await.unwrap();
            opened
        });
        // The buffers of the connections depend on how the answers were split into reads.
        drop(opened.feed);
        drop(runtime);
        listed = Some(opened.cluster);
    });
    let cluster = listed.unwrap();
    assert_eq!(cluster.history.counts().objects, objects as usize);
    assert!(Kind::ALL.into_iter().all(|kind| cluster.history.knows(kind)));
    assert_eq!(cluster.status.oddities, 0);
    Memory { kept: counted.bytes_current.try_into().unwrap(), most: counted.bytes_max }
}

#[test]
fn the_objects_of_a_large_cluster_take_little_memory() {
    // Hash tables double: between two sizes of the same ratio the steps even out.
    let (small, large) = (list(50), list(200));
    let endpoint = (large.kept - small.kept) / u64::from((200 - 50) * ENDPOINTS);
    let passing = large.most - large.kept;
    println!("{endpoint} bytes an endpoint, {passing} bytes more while listing");
    assert!(endpoint <= MAX_ENDPOINT_BYTES, "{endpoint} bytes an endpoint");
    assert!(passing <= MAX_PASSING_BYTES, "{passing} bytes more while listing");
}

/// Parses the rules for a cluster with this many Services, which `write` lists.
fn parse(services: u32, write: fn(&generate::Cluster) -> String, read: fn(&str) -> Ruleset) -> Memory {
    let listing = write(&generate::cluster(services));
    let mut rules = None;
    let counted = measure(|| rules = Some(read(&listing)));
    let rules = rules.unwrap();
    assert_eq!(rules.skipped, 0, "{:?}", rules.oddities);
    assert!(rules.size() > (services * generate::ENDPOINTS) as usize);
    Memory { kept: counted.bytes_current.try_into().unwrap(), most: counted.bytes_max }
}

/// Bounds the bytes that the rules of each endpoint take in one mode, once they are read and while they are.
fn rules_take_little(mode: &str, write: fn(&generate::Cluster) -> String, read: fn(&str) -> Ruleset) {
    let [small, large] = [100, 400].map(|services| parse(services, write, read));
    let endpoints = u64::from((400 - 100) * generate::ENDPOINTS);
    let endpoint = (large.kept - small.kept) / endpoints;
    let passing = (large.most - large.kept).saturating_sub(small.most - small.kept) / endpoints;
    println!("{mode}: {endpoint} bytes an endpoint, {passing} bytes more while parsing");
    assert!(endpoint <= MAX_RULES_BYTES, "{mode}: {endpoint} bytes an endpoint");
    assert!(passing <= MAX_PASSING_RULES_BYTES, "{mode}: {passing} bytes more while parsing");
}

#[test]
fn the_rules_of_a_large_cluster_take_little_memory() {
    rules_take_little("iptables", generate::iptables, |text| {
        iptables::parse(text, iptables::Hint::default())
    });
    rules_take_little("nftables", generate::nftables, |text| nftables::parse(text).unwrap());
}
