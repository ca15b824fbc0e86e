//! Any JSON as a Kubernetes object of each kind: trimmed, added to a history and queried.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use viptrace::{
    cluster::{Address, History, Kind, LOOK_BACK, model::Change, trim},
    net::Protocol,
    time::Timestamp,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    let mut history = History::new(LOOK_BACK);
    for (kind, second) in Kind::ALL.into_iter().zip(1_000_u64..) {
        let mut odd = Vec::new();
        let trimmed = trim::trim(kind, &value, &mut odd);
        let key = trim::key_of(kind, &value);
        history.mark_known(kind);
        if let Some(trimmed) = trimmed {
            history.apply_listed(Timestamp::from_unix_secs(second), trimmed.clone());
            history.apply(Timestamp::from_unix_secs(second + 5), Change::Put(trimmed));
        }
        if let Some(key) = key {
            history.apply(Timestamp::from_unix_secs(second + 10), Change::Delete(kind, key));
        }
    }
    query(&history);
    history.prune(Timestamp::from_unix_secs(2_000));
    history.prune(Timestamp::MAX);
    query(&history);
});

fn query(history: &History) {
    for at in [Timestamp::MIN, Timestamp::from_unix_secs(1_003), Timestamp::MAX] {
        for service in history.services() {
            for port in &service.ports {
                for ip in &service.cluster_ips {
                    let addr = SocketAddr::new(*ip, port.port);
                    query_address(history, addr, port.protocol, at);
                }
                for ip in history.nodes().flat_map(|node| node.addresses.iter()) {
                    let addr = SocketAddr::new(*ip, port.node_port.unwrap_or(0));
                    query_address(history, addr, port.protocol, at);
                }
            }
        }
        for ip in history.pods().flat_map(|pod| pod.ips.iter()) {
            let _ = (history.pod_by_ip(*ip, at), history.last_pod_by_ip(*ip, at));
            let _ = history.probes(*ip, 8080, at);
        }
    }
}

fn query_address(history: &History, addr: SocketAddr, protocol: Protocol, at: Timestamp) {
    let Address::Vip(vip) = history.address(addr, protocol, at) else { return };
    for then in [Timestamp::MIN, at] {
        let _ = (history.membership(&vip, addr, then), history.usable(&vip, Some(""), then));
        let _ = (history.hinted(&vip, "", true, then), history.why_no_endpoints(&vip, then));
    }
}
