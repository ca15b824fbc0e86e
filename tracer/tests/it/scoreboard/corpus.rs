//! The recordings of real kernels: each flow's label is the class in the recording's `.expected`.

use std::{collections::BTreeMap, fs};

use viptrace::class::Class;

use super::board::{Board, Place, Source, Verb};
use crate::recording_corpus::{self, lines};

/// `6.12` and `nftables` of `debian-6.12-c6-stale-endpoint-gone_nftables`.
fn kernel_and_mode(name: &str) -> (String, String) {
    let kernel = name.split('-').nth(1).unwrap().to_owned();
    let mode = name.split_once('_').map_or("iptables", |(_, mode)| mode);
    (kernel, mode.to_owned())
}

/// The classes of each flow: Service port, addresses and client.
fn by_flow(lines: &str) -> BTreeMap<&str, Vec<Class>> {
    let mut flows = BTreeMap::<&str, Vec<Class>>::new();
    for line in lines.lines() {
        let (class, flow) = line.split_once(' ').unwrap();
        flows.entry(flow).or_default().push(class.parse().unwrap());
    }
    flows
}

pub(super) fn count(board: &mut Board) {
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

#[test]
fn a_recording_names_its_kernel_and_mode() {
    let of = |name| kernel_and_mode(name);
    assert_eq!(of("debian-6.1-healthy-tcp"), ("6.1".to_owned(), "iptables".to_owned()));
    let legacy = of("debian-5.10-every-kind_iptables-legacy-ipv6");
    assert_eq!(legacy, ("5.10".to_owned(), "iptables-legacy-ipv6".to_owned()));
}
