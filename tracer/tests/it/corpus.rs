//! The records of real kernels, through the whole path: records, sightings, flows, verdicts.
//!
//! The corpus was recorded in guests; `tests/corpus/*.records` describe the traffic. It must give the same verdicts in
//! order, shuffled within the possible disagreement of CPUs, and with every record twice.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use crate::{decode::agrees_with_its_addresses, session_support::settings};
use viptrace::{
    class::Class,
    cluster::{LOOK_BACK, Source},
    kernel::{
        decode::Decoder,
        layout::{FIELDS, Layout},
    },
    session::{Detail, Pipeline},
    sighting::Sighting,
    time::Timestamp,
    verdict::Verdict,
};

const KERNELS: [&str; 2] = ["debian-6.1", "debian-6.12"];
/// 2026-12-01, long after the fixture cluster was listed.
const CLOCK_OFFSET_NS: u64 = 1_796_083_200_000_000_000;

fn sightings(kernel: &str) -> Vec<Sighting> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/corpus/{kernel}.records"));
    let text = fs::read_to_string(&path).unwrap();
    let mut offsets = Vec::new();
    let mut reasons = Vec::new();
    let mut records = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["offset", name, bytes] => {
                let field = FIELDS.iter().find(|field| field.name == *name).unwrap();
                offsets.push((field.name, bytes.parse().unwrap()));
            }
            ["drop-reason", name, number] => reasons.push((number.parse().unwrap(), Arc::from(*name))),
            ["record", hex] => records.push(unhex(hex)),
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    let layout = Layout::from_parts(offsets, reasons.clone(), reasons);
    let decoder = Decoder::new(Arc::new(layout), CLOCK_OFFSET_NS);
    records
        .iter()
        .map(|record| {
            agrees_with_its_addresses(&decoder, record);
            decoder.decode(record).unwrap()
        })
        .collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The last verdict on each flow, by the client's port.
fn verdicts(sightings: Vec<Sighting>) -> BTreeMap<u16, Verdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/cluster");
    let opened = runtime.block_on(Source::Folder(cluster).open(LOOK_BACK)).unwrap();
    let mut pipeline = Pipeline::new(settings(Detail::All), opened.cluster);
    let end = sightings.iter().map(|sighting| sighting.time).max().unwrap_or(Timestamp::MIN);
    let end = end.saturating_add(Duration::from_mins(1));
    pipeline.observe(sightings);
    let all = [pipeline.advance(end), pipeline.finish(end), pipeline.node_read(Arc::default(), end, end)];
    all.into_iter()
        .flat_map(|judgements| judgements.judged)
        .map(|judged| (judged.verdict.flow.client.port(), judged.verdict))
        .collect()
}

/// Class, Service, VIP and endpoint of each flow, in the order of their beginnings.
fn story(verdicts: &BTreeMap<u16, Verdict>) -> Vec<(Class, String, String, String)> {
    let mut all: Vec<&Verdict> = verdicts.values().collect();
    all.sort_by_key(|verdict| verdict.flow.started);
    let text = |addr: Option<std::net::SocketAddr>| addr.map_or("-".to_owned(), |addr| addr.to_string());
    all.iter()
        .map(|verdict| {
            let service = verdict.service.as_ref().map_or("-".to_owned(), ToString::to_string);
            (verdict.class, service, text(verdict.flow.vip), text(verdict.flow.endpoint))
        })
        .collect()
}

fn expected() -> Vec<(Class, String, String, String)> {
    [
        (Class::Ok, "shop/cart:http", "10.96.10.10:80", "10.244.1.11:8080"),
        (Class::C6, "shop/payments:grpc", "10.96.10.40:443", "10.244.1.12:9090"),
        (Class::C20, "shop/checkout:http", "10.96.10.20:80", "-"),
        (Class::C29, "shop/api:https", "10.96.10.50:443", "10.244.1.41:8443"),
        (Class::C16, "shop/cart:http", "10.96.10.10:80", "-"),
    ]
    .map(|(class, service, vip, endpoint)| (class, service.into(), vip.into(), endpoint.into()))
    .to_vec()
}

#[test]
fn real_kernels_give_the_same_verdicts() {
    for kernel in KERNELS {
        assert_eq!(story(&verdicts(sightings(kernel))), expected(), "{kernel}");
    }
}

#[test]
fn order_within_a_few_milliseconds_and_copies_change_nothing() {
    for kernel in KERNELS {
        let straight = sightings(kernel);
        let mut swapped = straight.clone();
        for pair in swapped.chunks_exact_mut(2) {
            if pair[1].time.since(pair[0].time) < Duration::from_millis(20) {
                pair.swap(0, 1);
            }
        }
        assert_eq!(story(&verdicts(swapped)), expected(), "{kernel}");
        let twice = straight.iter().flat_map(|sighting| [sighting.clone(), sighting.clone()]).collect();
        assert_eq!(story(&verdicts(twice)), expected(), "{kernel}");
    }
}

/// Without any single sighting, a healthy flow never becomes a fault and no fault becomes healthy.
#[test]
fn no_single_gap_turns_health_into_a_fault_or_a_fault_into_health() {
    for kernel in KERNELS {
        let all = sightings(kernel);
        let ports: Vec<(u16, bool)> =
            verdicts(all.clone()).into_iter().map(|(port, verdict)| (port, verdict.is_fault())).collect();
        for missing in 0..all.len() {
            let mut rest = all.clone();
            rest.remove(missing);
            let seen = verdicts(rest);
            for (port, was_fault) in &ports {
                let Some(verdict) = seen.get(port) else { continue };
                if *was_fault {
                    assert_ne!(verdict.class, Class::Ok, "{kernel}, without sighting {missing}: {verdict:?}");
                } else {
                    assert!(!verdict.is_fault(), "{kernel}, without sighting {missing}: {verdict:?}");
                }
            }
        }
    }
}
