//! Recordings of traces on real kernels, made in guests: each still gives its expected verdicts, and no damage causes a
//! panic.
//!
//! `cargo xtask test --keep-recordings` makes them. `NAME.expected` has a line for the last verdict on each flow:
//! class, Service port, VIP, endpoint, client. `VIPTRACE_BLESS=1` rewrites it, to be reviewed before it is committed.

#[path = "../../src/recording/fixtures.rs"]
mod fixtures;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Cursor,
    path::PathBuf,
};

use fixtures::recordings;
use proptest::{collection::vec, prelude::*, sample::Index};
use viptrace::{
    class::Class,
    diagnosis::path::{Prediction, Scene},
    net::{Protocol, Tuple},
    node::routes::Routes,
    recording::{End, Player, Step},
    session::{Detail, Judgements},
    verdict::Verdict,
};

/// By client and beginning.
pub(crate) type Verdicts = BTreeMap<(String, String), Verdict>;

/// The last verdict on each flow, and the end if the recording is complete.
fn replay(bytes: Vec<u8>, detail: Detail) -> Option<(Verdicts, Option<End>)> {
    let mut player = Player::open(Cursor::new(bytes), detail).ok()?;
    let (mut verdicts, mut end) = (BTreeMap::new(), None);
    let mut take = |judgements: Judgements| {
        for judged in judgements.judged {
            let flow = &judged.verdict.flow;
            verdicts.insert((flow.client.to_string(), flow.started.to_string()), judged.verdict);
        }
    };
    while let Some(step) = player.step().unwrap() {
        match step {
            Step::Judged { judgements, .. } => take(judgements),
            Step::Ended(ended) => end = Some(ended),
        }
    }
    std::iter::from_fn(|| player.cut_off()).for_each(take);
    Some((verdicts, end))
}

/// Every recording, with the last verdict on each of its flows.
pub(crate) fn replays() -> impl Iterator<Item = (PathBuf, Verdicts)> {
    recordings().into_iter().map(|path| {
        let verdicts = replay(fs::read(&path).unwrap(), Detail::All).unwrap().0;
        (path, verdicts)
    })
}

/// The last verdict on each flow of every recording.
pub(crate) fn verdicts() -> impl Iterator<Item = Verdict> {
    replays().flat_map(|(_, verdicts)| verdicts.into_values())
}

/// As in a recording's `.expected`.
pub(crate) fn lines(verdicts: &Verdicts) -> String {
    let text = |addr: Option<std::net::SocketAddr>| addr.map_or("-".to_owned(), |addr| addr.to_string());
    let mut lines: Vec<String> = verdicts
        .values()
        .map(|verdict| {
            let service = verdict.service.as_ref().map_or("-".to_owned(), ToString::to_string);
            let (vip, endpoint) = (text(verdict.flow.vip), text(verdict.flow.endpoint));
            format!("{} {service} {vip} {endpoint} {}\n", verdict.class, verdict.flow.client)
        })
        .collect();
    lines.sort();
    lines.concat()
}

#[test]
fn every_recording_gives_its_expected_verdicts() {
    for path in recordings() {
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() < 100 << 10, "{}: {} bytes are too many to keep", path.display(), bytes.len());
        let (verdicts, end) = replay(bytes, Detail::All).unwrap();
        assert!(end.is_some(), "{}: cut off", path.display());
        let expected = path.with_extension("expected");
        if env::var_os("VIPTRACE_BLESS").is_some() {
            fs::write(&expected, lines(&verdicts)).unwrap();
        }
        let Ok(expected) = fs::read_to_string(&expected) else { panic!("no {}", expected.display()) };
        assert_eq!(lines(&verdicts), expected, "{}", path.display());
    }
}

/// A flow whose earlier state still waits for the node when a later one is judged.
#[test]
fn no_flow_has_two_first_verdicts() {
    for path in recordings() {
        let mut player = Player::open(Cursor::new(fs::read(&path).unwrap()), Detail::All).unwrap();
        let mut counted = BTreeSet::new();
        let mut count = |judgements: Judgements| {
            for judged in judgements.judged.iter().filter(|judged| judged.before.is_none()) {
                let flow = &judged.verdict.flow;
                let key = (flow.client, flow.vip, flow.protocol.clone(), flow.started);
                assert!(counted.insert(key), "{}: {judged:#?}", path.display());
            }
        };
        while let Some(step) = player.step().unwrap() {
            if let Step::Judged { judgements, .. } = step {
                count(judgements);
            }
        }
        std::iter::from_fn(|| player.cut_off()).for_each(count);
    }
}

/// The walk against the kernel: each endpoint that a kernel chose for a new connection is one that the rules read at that
/// time lead to.
#[test]
fn the_rules_lead_to_what_the_kernel_chose() {
    let routes = Routes::default();
    let (mut possible, mut others) = (BTreeMap::<String, usize>::new(), Vec::new());
    for path in recordings() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let mut player = Player::open(Cursor::new(fs::read(&path).unwrap()), Detail::All).unwrap();
        while let Some(Step::Judged { judgements, .. }) = player.step().unwrap() {
            let snapshot = player.pipeline().node().clone();
            if snapshot.rules_time.is_none() {
                continue;
            }
            let scene = Scene::new(&snapshot.rules, &routes);
            for judged in judgements.judged {
                let Verdict { class, flow, .. } = &judged.verdict;
                let (Some(vip), Some(endpoint)) = (flow.vip, flow.endpoint) else { continue };
                let protocol = match &*flow.protocol {
                    "TCP" => Protocol::TCP,
                    "UDP" => Protocol::UDP,
                    _ => Protocol::SCTP,
                };
                let tuple = Tuple::new(protocol, flow.client, vip);
                match scene.predicts(tuple, Some(endpoint)) {
                    Prediction::Possible => *possible.entry(name.clone()).or_default() += 1,
                    // The stale entry of C8 is older than the rules, and they do not lead there.
                    Prediction::Impossible { endpoints } if *class == Class::C8 => {
                        assert!(!endpoints.is_empty(), "{name}: {tuple}");
                    }
                    other => others.push(format!("{name}: {class} {tuple} to {endpoint}: {other:?}")),
                }
            }
        }
    }
    assert!(others.is_empty(), "{possible:#?}\n{others:#?}");
    assert!(possible.len() >= 5 && possible.values().sum::<usize>() >= 50, "{possible:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_recording_never_panics(
        which in any::<Index>(),
        places in vec((any::<Index>(), any::<u8>()), 0..12),
        moved in (any::<Index>(), any::<Index>(), 0..2000_usize),
        cut in prop::option::of(any::<Index>()),
    ) {
        let paths = recordings();
        let mut bytes = fs::read(&paths[which.index(paths.len())]).unwrap();
        for (at, byte) in places {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // Repeats a part at another position.
        let (from, to, length) = moved;
        let from = from.index(bytes.len());
        let part = bytes[from..(from + length).min(bytes.len())].to_vec();
        let to = to.index(bytes.len());
        bytes.splice(to..to, part);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = replay(bytes, Detail::Faults);
    }
}
