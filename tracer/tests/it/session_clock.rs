//! Steps of the wall clock: no verdict depends on them, its times follow them, and the summary names them.

use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, EP, Script, VIP, addr, at},
    session_support::settings,
};
use viptrace::{
    cluster::{Cluster, Origin, Status},
    session::{Detail, Ending, Pipeline, WallStep},
    time::Timestamp,
    verdict::{ChangeKind, NearbyChange, Verdict},
};

const HOUR_NS: i64 = 3_600_000_000_000;

/// The verdicts of a trace in which the wall clock steps to this distance at these milliseconds: an endpoint that left
/// before the decision, a silent one, a refusal, and a healthy connection.
fn verdicts(detail: Detail, steps: &[(u64, i64)]) -> (Vec<Verdict>, Ending) {
    let mut shop = Shop::with_endpoints(&[EP, "10.244.1.8:8080"]);
    shop.leaves(EP, 20_000);
    let status = Status::new(Origin::Folder { taken: Some(at(0)) });
    let mut pipeline = Pipeline::new(settings(detail), Cluster { history: shop.history(), status });
    let to = |port: u16, endpoint: &str| {
        let mut script = Script::new(CLIENT, VIP, Some(endpoint)).with_ct(u64::from(port) << 12);
        script.client.set_port(port);
        script
    };
    let scripts = [
        to(1, "10.244.1.8:8080").healthy(10_000),
        to(2, "10.244.1.8:8080").healthy(11_000),
        to(3, EP).refused(40_000),
        to(4, "10.244.1.8:8080").silent(41_000).connect_failed(48_000),
        to(5, "10.244.1.8:8080").refused(50_000),
    ];
    let mut sightings: Vec<_> = scripts.into_iter().flat_map(|script| script.out).collect();
    sightings.sort_by_key(|sighting| sighting.time);
    let (mut sightings, mut verdicts) = (sightings.into_iter().peekable(), Vec::new());
    for ms in (9_000..70_000).step_by(250) {
        for (_, ahead_ns) in steps.iter().filter(|(step, _)| *step == ms) {
            assert!(pipeline.is_wall_step(*ahead_ns));
            pipeline.set_wall_clock(WallStep { at: at(ms), ahead_ns: *ahead_ns });
            assert!(!pipeline.is_wall_step(*ahead_ns + 10_000_000), "an inaccuracy is no step");
        }
        while let Some(sighting) = sightings.next_if(|sighting| sighting.time <= at(ms)) {
            pipeline.observe([sighting]);
        }
        let mut judgements = pipeline.advance(at(ms));
        if pipeline.wants_node() {
            let read = pipeline.node_read(std::sync::Arc::default(), at(ms), at(ms));
            judgements.judged.extend(read.judged);
        }
        verdicts.extend(judgements.judged.into_iter().map(|judged| judged.verdict));
        verdicts.extend(judgements.folded.iter().map(|folded| Verdict::clone(&folded.verdict)));
    }
    (verdicts, Ending::new(&pipeline, at(0), at(70_000), Vec::new()))
}

/// Every time in a verdict, earlier by the distance.
fn shifted(mut verdict: Verdict, ns: i64) -> Verdict {
    let shift = |time: Timestamp| time.shifted(-ns);
    verdict.time = shift(verdict.time);
    verdict.flow.started = shift(verdict.flow.started);
    for piece in &mut verdict.evidence {
        piece.time = piece.time.map(shift);
    }
    verdict
}

#[test]
fn a_step_of_an_hour_changes_no_verdict() {
    for detail in [Detail::All, Detail::Faults] {
        let (steady, ending) = verdicts(detail, &[]);
        assert_eq!(steady.len(), 5);
        assert!(!ending.gaps.iter().any(|gap| gap.contains("wall clock")));
        for ahead in [HOUR_NS, -HOUR_NS] {
            // Before everything, so that all times follow it.
            let (mut stepped, ending) = verdicts(detail, &[(9_000, ahead)]);
            // Failed flows list the step as a change around their time, and nothing else.
            for verdict in &mut stepped {
                let listed = std::mem::take(&mut verdict.changes_around);
                assert_eq!(listed.len(), usize::from(verdict.is_fault()), "{listed:?}");
                let is_step = |change: &NearbyChange| change.kind == ChangeKind::ClockStepped;
                assert!(listed.iter().all(is_step), "{listed:?}");
            }
            let expected: Vec<Verdict> = steady.iter().map(|it| shifted(it.clone(), -ahead)).collect();
            assert_eq!(stepped, expected);
            let direction = if ahead > 0 { "forward" } else { "back" };
            let line = format!("the wall clock was set {direction} by 1 h 0 min at 2023-11-14T22:13:29.000Z");
            assert!(ending.gaps.iter().any(|gap| gap.starts_with(&line)), "{:?}", ending.gaps);
        }
    }
}

/// In the middle of each connection, and back again.
#[test]
fn steps_in_the_middle_of_connections_change_no_class() {
    let classes = |steps: &[(u64, i64)]| -> Vec<_> {
        let (verdicts, _) = verdicts(Detail::All, steps);
        verdicts.into_iter().map(|it| (it.class, it.confidence, it.root_cause, it.flow.client)).collect()
    };
    let steady = classes(&[]);
    for steps in [[(10_000, HOUR_NS), (42_000, 0)], [(30_000, -HOUR_NS), (50_000, HOUR_NS)]] {
        assert_eq!(classes(&steps), steady);
    }
    assert!(steady.iter().any(|(_, _, _, client)| *client == addr("10.244.1.100:3")));
}

#[test]
fn many_steps_are_counted() {
    let steps: Vec<(u64, i64)> =
        (0..40_u64).map(|n| (10_000 + n * 250, (n.cast_signed() % 2 + 1) * HOUR_NS)).collect();
    let (_, ending) = verdicts(Detail::All, &steps);
    assert_eq!(ending.gaps.iter().filter(|gap| gap.starts_with("the wall clock was set ")).count(), 17);
    assert!(ending.gaps.contains(&"the wall clock was set 24 more times".to_owned()));
}
