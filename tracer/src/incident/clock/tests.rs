//! Clocks with a known distance, and what their flows show of it.

use proptest::{collection::vec, prelude::*};

use super::*;

const START: u64 = 1_700_000_000_000_000_000;

/// A clock that shows more than the true time by `ahead`, and gains `drift`.
#[derive(Clone, Copy, Debug)]
struct TestClock {
    ahead: i64,
    drift: f64,
}

impl TestClock {
    /// At `ns` after the start.
    fn show(self, ns: u64) -> Timestamp {
        Timestamp::from_unix_ns(START + ns).shifted(self.ahead + (ns as f64 * self.drift) as i64)
    }
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 1000))
}

/// A flow that is sent at `sent` and takes these times to the arrival and back.
fn flow(
    number: usize,
    (sent, there, back): (u64, u64, u64),
    (from, to): (TestClock, TestClock),
    is_answered: bool,
) -> (Crossing, Crossing) {
    let crossing = |first, side| Crossing {
        protocol: Protocol::TCP,
        from: address(number),
        to: SocketAddr::from(([10, 1, 0, 1], 80)),
        first,
        side,
    };
    let answered = is_answered.then(|| from.show(sent + there + back));
    let established = is_answered.then(|| to.show(sent + there + back + there));
    (
        crossing(from.show(sent), Side::Sender { answered }),
        crossing(to.show(sent + there), Side::Receiver { established }),
    )
}

fn seen(crossings: impl IntoIterator<Item = Crossing>) -> Seen {
    let mut seen = Seen::default();
    crossings.into_iter().for_each(|crossing| seen.add(crossing));
    seen
}

const TRUE: TestClock = TestClock { ahead: 0, drift: 0.0 };

proptest! {
    #[test]
    fn the_truth_is_within_the_bounds(
        flows in vec((0..3_600_000_000_000_u64, 20_000..3_000_000_u64, 20_000..3_000_000_u64, any::<bool>()), 1..60),
        ahead in -100_000_000_000_000..100_000_000_000_000_i64,
        ppm in -300.0..300.0_f64,
    ) {
        let other = TestClock { ahead, drift: ppm * 1e-6 };
        let (mut here, mut there) = (Seen::default(), Seen::default());
        for (number, (sent, to, back, is_from_here)) in flows.iter().enumerate() {
            let ends = if *is_from_here { (TRUE, other) } else { (other, TRUE) };
            let (one, two) = flow(number, (*sent, *to, *back), ends, true);
            let (first, second) = if *is_from_here { (one, two) } else { (two, one) };
            here.add(first);
            there.add(second);
        }
        let found = compare(&here, &there);
        let Compared::Known(distance) = found else { panic!("{found:?}") };
        prop_assert_eq!(distance.contrary, 0);
        if let Some((drift, within)) = distance.drift_ppm() {
            // The drift is counted by the other clock.
            let truth = ppm / (1.0 + ppm * 1e-6);
            prop_assert!((drift - truth).abs() <= within + 0.001, "{drift} ± {within}, not {truth}");
            for (sent, ..) in &flows {
                let on_other = other.show(*sent);
                let truth = signed(on_other, TRUE.show(*sent));
                let error = distance.ahead_ns(on_other).abs_diff(truth);
                prop_assert!(error <= distance.within_ns() + 2000, "off by {error}: {distance:?}");
            }
        }
        // There and back again.
        let time = other.show(1_000_000_000);
        prop_assert!(signed(distance.to_second(distance.to_first(time)), time).abs() < 2000);
    }
}

/// How far a clock is from where it should be, by the time; both in nanoseconds.
type Wander = Box<dyn Fn(f64) -> f64>;

/// What NTP does to a clock: it gains and loses some, or is slewed once.
#[test]
fn clocks_that_wander_are_compared_as_well_as_they_agree() {
    const HOUR_NS: f64 = 3.6e12;
    let waves = |amplitude: f64| move |ns: f64| amplitude * (ns / HOUR_NS * 7.0).sin();
    let slewed = |by: f64| move |ns: f64| ((ns - HOUR_NS) * 5e-4).clamp(0.0, by);
    let wanders: [(&str, Wander, u64); 4] = [
        ("0.05 ms", Box::new(waves(5e4)), 800_000),
        ("0.3 ms", Box::new(waves(3e5)), 2_000_000),
        ("1 ms", Box::new(waves(1e6)), 4_500_000),
        ("a slew of 20 ms", Box::new(slewed(2e7)), 25_000_000),
    ];
    for (name, wander, most) in wanders {
        for flows in [50, 1_000, 5_000] {
            let (mut here, mut there) = (Seen::default(), Seen::default());
            for number in 0..flows {
                let sent = number as u64 * 7_200_000_000_000 / flows as u64;
                let other = TestClock { ahead: 90_000_000_000 + wander(sent as f64) as i64, drift: 0.0 };
                let round = 100_000 + (number as u64 * 7_919 % 200_000);
                let (mut one, mut two) = flow(number, (sent, round, round), (TRUE, other), true);
                let from = SocketAddr::from(([10, 9, (number >> 15) as u8, 1], (number & 0x7fff) as u16 + 1));
                (one.from, two.from) = (from, from);
                here.add(one);
                there.add(two);
            }
            let found = compare(&here, &there);
            let Compared::Known(distance) = found else { panic!("{name}, {flows} flows: {found:?}") };
            assert!(distance.within_ns() <= most, "{name}, {flows} flows: {distance:?}");
            for number in 0..1_000_u64 {
                let ns = number * 7_200_000_000;
                let truth = 90_000_000_000 + wander(ns as f64) as i64;
                let shown = Timestamp::from_unix_ns(START + ns).shifted(truth);
                let error = distance.ahead_ns(shown).abs_diff(truth);
                assert!(error <= distance.within_ns(), "{name}, {flows} flows: off by {error}: {distance:?}");
            }
        }
    }
    // Wrong pairs, not clocks: half of the flows are seconds away from the others.
    let (mut here, mut there) = (Seen::default(), Seen::default());
    for number in 0..40 {
        let other = TestClock { ahead: if number % 2 == 0 { 0 } else { 400_000_000 }, drift: 0.0 };
        let (one, two) = flow(number, (number as u64 * 1_000_000_000, 200_000, 200_000), (TRUE, other), true);
        here.add(one);
        there.add(two);
    }
    assert_eq!(compare(&here, &there), Compared::Contrary);
}

#[test]
fn flows_of_both_directions_bound_the_distance_without_an_answer() {
    let other = TestClock { ahead: 90_000_000_000, drift: 0.0 };
    let (a, b) = flow(1, (0, 300_000, 0), (TRUE, other), false);
    let (c, d) = flow(2, (5_000_000, 200_000, 0), (other, TRUE), false);
    assert_eq!(compare(&seen([a]), &seen([b])), Compared::OneWay);
    let Compared::Known(found) = compare(&seen([a, d]), &seen([b, c])) else { panic!() };
    assert!(found.ahead_ns(b.first).abs_diff(90_000_000_000) <= 300_000);
    assert!(found.within_ns() <= 300_000, "{found:?}");
    assert_eq!(found.drift_ppm(), None);
}

#[test]
fn another_flow_with_the_same_addresses_does_not_count() {
    let other = TestClock { ahead: -5_000_000_000, drift: 0.0 };
    let pairs: Vec<_> =
        (0..8).map(|n| flow(n, (n as u64 * 1_000_000_000, 200_000, 200_000), (TRUE, other), true)).collect();
    let (mut a, mut b) = (seen(pairs.iter().map(|it| it.0)), seen(pairs.iter().map(|it| it.1)));
    // Its other half was not observed: an earlier flow of the same port was.
    let (one, _) = flow(99, (3_000_000_000, 200_000, 200_000), (TRUE, other), true);
    let (_, two) = flow(99, (50_000_000_000, 200_000, 200_000), (TRUE, other), true);
    a.add(one);
    b.add(two);
    let Compared::Known(found) = compare(&a, &b) else { panic!() };
    assert_eq!((found.flows, found.contrary), (8, 1));
    assert!(found.ahead_ns(pairs[0].1.first).abs_diff(-5_000_000_000) <= 200_000);
}

#[test]
fn addresses_that_were_used_twice_do_not_count() {
    let (a, b) = flow(1, (0, 1, 1), (TRUE, TRUE), true);
    assert_eq!(compare(&seen([a, a]), &seen([b])), Compared::NoFlow);
    assert_eq!(compare(&seen([]), &seen([b])), Compared::NoFlow);
}

#[test]
fn a_flow_that_two_traces_of_a_node_recorded_counts_once() {
    let other = TestClock { ahead: 90_000_000_000, drift: 0.0 };
    let (a, b) = flow(1, (0, 200_000, 200_000), (TRUE, other), true);
    let mut here = seen([a]);
    here.absorb(seen([Crossing { first: a.first.shifted(1_000), ..a }]));
    assert!(matches!(compare(&here, &seen([b])), Compared::Known(_)));
    here.absorb(seen([Crossing { first: a.first.shifted(30_000_000_000), ..a }]));
    assert_eq!(compare(&here, &seen([b])), Compared::NoFlow, "its port was used again");
}

#[test]
fn the_reference_is_in_the_middle_and_a_clock_is_reached_over_another() {
    let clocks = [90_000_000_000_i64, 0, 20_000_000].map(|ahead| TestClock { ahead, drift: 0.0 });
    let [wrong, one, two] = clocks;
    // No flow between the wrong clock and the third.
    let (a, b) = flow(1, (0, 200_000, 200_000), (wrong, one), true);
    let (c, d) = flow(2, (0, 200_000, 200_000), (one, two), true);
    let alone = Seen::default();
    let found = Alignment::of(&[seen([a]), seen([b, c]), seen([d]), alone]);
    assert_eq!(found.reference, 2);
    let ahead = |clock| found.distance(clock).unwrap().ahead_ns(Timestamp::from_unix_ns(START));
    assert!(ahead(0).abs_diff(89_980_000_000) <= 500_000, "{}", ahead(0));
    assert!(ahead(1).abs_diff(-20_000_000) <= 500_000);
    assert_eq!(found.clocks[3], Compared::NoFlow);
}

#[test]
fn more_flows_than_there_is_room_for_are_thinned_out_alike() {
    let pairs = |n: usize| flow(n, (n as u64 * 1000, 200, 200), (TRUE, TRUE), true);
    let number = |n: usize| {
        let (mut a, mut b) = pairs(n % 60_000);
        let from = SocketAddr::from(([10, 9, (n / 60_000) as u8, 1], (n % 60_000) as u16 + 1));
        (a.from, b.from) = (from, from);
        (a, b)
    };
    let (mut a, mut b) = (Seen::default(), Seen::default());
    for n in 0..200_000 {
        let (one, two) = number(n);
        a.add(one);
        if n < 50_000 {
            b.add(two);
        }
    }
    assert!(a.flows.len() <= MAX_FLOWS);
    assert!(matches!(compare(&a, &b), Compared::Known(found) if found.flows > 5000));
}

proptest! {
    #[test]
    fn no_times_panic(times in vec((any::<u64>(), any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>()), 0..20)) {
        let (mut a, mut b) = (Seen::default(), Seen::default());
        for (number, (sent, received, answered, established)) in times.into_iter().enumerate() {
            let (mut one, mut two) = flow(number, (0, 0, 0), (TRUE, TRUE), true);
            one.first = Timestamp::from_unix_ns(sent);
            two.first = Timestamp::from_unix_ns(received);
            one.side = Side::Sender { answered: answered.map(Timestamp::from_unix_ns) };
            two.side = Side::Receiver { established: established.map(Timestamp::from_unix_ns) };
            a.add(one);
            b.add(two);
        }
        compare(&a, &b);
    }
}
