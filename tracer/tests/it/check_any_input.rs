//! A check ends with a report whatever the files of a folder contain: parts removed, repeated or replaced.
use std::{collections::BTreeSet, fs, sync::OnceLock, time::Duration};

use crate::check_support::{Gathered, fixtures};
use proptest::prelude::*;
use viptrace::{
    diagnosis::triage::{Facts, Scope, triage},
    node::{
        Reason,
        capture::{Capture, Kind, folder},
    },
    report::{Paint, check},
    time::Timestamp,
};

/// A node in each mode, with settings and counters.
fn captures() -> &'static [Capture] {
    static CAPTURES: OnceLock<Vec<Capture>> = OnceLock::new();
    CAPTURES.get_or_init(|| {
        let folders = [
            "kube-proxy/worker-1/iptables",
            "kube-proxy/worker-1/nftables",
            "kube-proxy/worker-1/ipvs",
            "incidents/api-lost",
        ];
        let read = |capture: &&str| {
            let gathered = Gathered::new(&[capture]);
            gathered.write("node/nf_conntrack.stat.txt", "entries drop insert_failed early_drop\n0f 1 2 3\n");
            gathered.write(
                "node/nf_conntrack.stat.later.txt",
                "entries drop insert_failed early_drop\n0f 2 2 3\n",
            );
            gathered.write(
                "node/kube-proxy.process.json",
                "{\"complete\": true, \"program\": \"kube-proxy\", \"cpus\": 2}",
            );
            if !gathered.path().join("node/sysctl.txt").exists() {
                let sysctls =
                    fs::read_to_string(fixtures().join("kube-proxy/worker-1/ipvs/sysctl.txt")).unwrap();
                gathered.write("node/sysctl.txt", &sysctls);
            }
            folder::read(gathered.path(), None).unwrap().capture
        };
        folders.iter().map(read).collect()
    })
}

/// A change of one text: position, length and replacement.
fn change() -> impl Strategy<Value = (prop::sample::Index, prop::sample::Index, usize, String)> {
    let put = prop_oneof![
        Just(String::new()),
        any::<String>(),
        "[0-9]{1,20}",
        "[{}\\[\\]\",:=*-]{1,4}",
        Just("\u{1b}[2J".to_owned())
    ];
    (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_usize..200, put)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_written_folder_reads_back(
        which in any::<prop::sample::Index>(),
        kept in prop::collection::vec(any::<bool>(), 40),
        gaps in prop::collection::btree_map(prop::sample::select(Kind::ALL.to_vec()), reason(), 0..3),
        node in prop::option::of("[a-z0-9.-]{1,20}"),
        taken in any::<u64>(),
    ) {
        let mut capture = which.get(captures()).clone();
        let mut kept = kept.into_iter().chain(std::iter::repeat(true));
        capture.artifacts.retain(|_| kept.next().unwrap());
        capture.node = node;
        for (kind, reason) in gaps {
            capture.miss(kind, reason);
        }
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder::write(folder.path(), &capture, Timestamp::from_unix_ns(taken)).unwrap();
        prop_assert_eq!(manifest.files.len(), capture.artifacts.len());
        match folder::read(folder.path(), None) {
            Ok(read) => {
                prop_assert_eq!(read.warnings, Vec::<String>::new());
                prop_assert_eq!(texts(&read.capture), texts(&capture));
                prop_assert_eq!(read.capture.taken, Some(Timestamp::from_unix_ns(taken)));
                prop_assert_eq!(read.capture.node, capture.node);
                prop_assert_eq!(read.capture.gaps, capture.gaps);
            }
            Err(error) => prop_assert!(capture.artifacts.is_empty(), "{}", error),
        }
    }
}

fn reason() -> impl Strategy<Value = Reason> {
    let text = any::<String>;
    prop_oneof![
        text().prop_map(|text| Reason::Quoted { text }),
        text().prop_map(|part| Reason::NotInKernel { part }),
        (text(), any::<u64>(), text()).prop_map(|(place, line, why)| Reason::Unparsable { place, line, why }),
        (text(), 0..10_000_u64)
            .prop_map(|(place, limit)| Reason::TimedOut { place, limit: Duration::from_millis(limit) }),
        (any::<usize>(), prop::collection::vec(text(), 0..3))
            .prop_map(|(count, examples)| Reason::Ambiguous { count, examples }),
        Just(Reason::NotCaptured { kind: Kind::Pods }),
    ]
}

/// The captured texts, without their source.
fn texts(capture: &Capture) -> BTreeSet<(Kind, &str)> {
    capture.artifacts.iter().map(|artifact| (artifact.kind, artifact.text.as_str())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn changed_files_are_checked_all_the_same(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let mut capture = which.get(captures()).clone();
        for (file, at, length, put) in changes {
            let artifact = file.index(capture.artifacts.len());
            let text = &mut capture.artifacts[artifact].text;
            let mut from = at.index(text.len().max(1)).min(text.len());
            while !text.is_char_boundary(from) { from -= 1; }
            let mut to = (from + length).min(text.len());
            while !text.is_char_boundary(to) { to -= 1; }
            text.replace_range(from..to.max(from), &put);
        }
        let facts = Facts::read(&capture);
        let mut report = triage(&facts, &Scope::default());
        report.facts = facts.digest();
        prop_assert!(check::is_clean(&check::text(&report, Paint(false), true)));
        prop_assert!(check::record(&report).is_ok() && check::document(&report).is_ok());
    }
}
