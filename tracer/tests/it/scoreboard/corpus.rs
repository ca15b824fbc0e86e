//! The recordings of real kernels: each flow's label is the class in the recording's `.expected`. And the captures of
//! healthy nodes.

use std::{collections::BTreeMap, fs};

use viptrace::class::Class;

use super::{
    board::{Board, Place, Source, Verb},
    case::Name,
};
use crate::{
    check_captures::{BY_DESIGN, ON_WORKER_1},
    check_support::{Gathered, named},
    recording_corpus::{self, lines},
};

/// `6.12` and `nftables` of `debian-6.12-c6-stale-endpoint-gone_nftables`.
fn kernel_and_mode(name: &str) -> (String, String) {
    let kernel = name.split('-').nth(1).unwrap().to_owned();
    let mode = name.split_once('_').map_or("iptables", |(_, mode)| mode);
    (kernel, mode.to_owned())
}

/// The classes of each flow: Service port, addresses and client.
fn by_flow(lines: &str) -> BTreeMap<&str, Vec<Name>> {
    let mut flows = BTreeMap::<&str, Vec<Name>>::new();
    for line in lines.lines() {
        let (class, flow) = line.split_once(' ').unwrap();
        flows.entry(flow).or_default().push(class.parse::<Class>().unwrap().into());
    }
    flows
}

pub(super) fn count(board: &mut Board) {
    count_captures(board);
    for (path, verdicts) in recording_corpus::replays() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let (kernel, mode) = kernel_and_mode(&name);
        let place = Place { source: Source::Corpus, verb: Verb::Trace, mode, kernel: Some(kernel) };
        let expected = fs::read_to_string(path.with_extension("expected")).unwrap();
        let found = lines(&verdicts);
        let (caused, mut found) = (by_flow(&expected), by_flow(&found));
        for (flow, caused) in &caused {
            board.count(&place, &name, caused, &found.remove(flow).unwrap_or_default());
        }
        for found in found.values() {
            board.count(&place, &name, &[], found);
        }
    }
}

/// The captures of healthy nodes, which have these faults by design.
fn captures() -> impl Iterator<Item = (String, &'static [&'static str])> {
    let of = |worker: u8, modes: &'static [&'static str], names| {
        modes.iter().map(move |mode| (format!("kube-proxy/worker-{worker}/{mode}"), names))
    };
    of(1, &["iptables", "nftables", "ipvs"], &ON_WORKER_1[..]).chain(of(
        2,
        &["iptables", "nftables"],
        &BY_DESIGN,
    ))
}

fn count_captures(board: &mut Board) {
    for (capture, caused) in captures() {
        let mode = capture.rsplit('/').next().unwrap().to_owned();
        let place = Place { source: Source::Corpus, verb: Verb::Check, mode, kernel: None };
        let caused: Vec<Name> = caused.iter().map(|name| Name::read(name)).collect();
        let found: Vec<Name> =
            named(&Gathered::new(&[&capture]).check()).iter().map(|name| Name::read(name)).collect();
        board.count(&place, &capture, &caused, &found);
    }
}

#[test]
fn a_recording_names_its_kernel_and_mode() {
    let of = |name| kernel_and_mode(name);
    assert_eq!(of("debian-6.1-healthy-tcp"), ("6.1".to_owned(), "iptables".to_owned()));
    let legacy = of("debian-5.10-every-kind_iptables-legacy-ipv6");
    assert_eq!(legacy, ("5.10".to_owned(), "iptables-legacy-ipv6".to_owned()));
}
