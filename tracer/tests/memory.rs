//! How much memory the objects of a large cluster take: the part of the agent's memory that grows with the cluster.
//!
//! A binary of its own, because the allocator that counts is the whole program's. The real client lists an API server in
//! this process, whose own thread is not counted. `cargo xtask bench memory` measures the resident memory of an agent.

#![cfg(test)]

use std::{fs, net::SocketAddr};

use allocation_counter::measure;
use viptrace::cluster::{Access, Kind, LOOK_BACK, Source};
use viptrace_lab::apiserver::{ApiServer, Population};

/// Endpoints of each Service, each a Pod. A Node has 30 Pods.
const ENDPOINTS: u32 = 10;
/// Bytes in the history for each endpoint with its Pod, and a tenth of its Service and of that one's slice.
const MAX_ENDPOINT_BYTES: u64 = 900;
/// Bytes beyond those that stay, while the pages are read and trimmed: a page of 500 Pods is 4 MiB of JSON.
const MAX_PASSING_BYTES: u64 = 20 << 20;

/// The memory of the objects in a cluster, in bytes.
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
