//! How far two clocks are apart, from the flows that both nodes observed.
//!
//! A packet is at the node that sends it before it is at the node that receives it, whatever their clocks show, and so is
//! its answer. Each flow therefore bounds the distance of the clocks from both sides, to about its round trip. Owns the
//! matching of flows, and the one line (distance and drift) that fits the bounds. NTP slews a clock now and then, so that the
//! distance of two is no straight line: the stated error then contains how far they wander from it. Trusts no clock, and judges
//! nothing.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "distances relative to one of them are small, and widths are not negative"
)]

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    net::SocketAddr,
    time::Duration,
};

use crate::{
    net::Protocol,
    session::{Crossing, Side},
    time::Timestamp,
};

/// The most flows kept of one clock, some 150 bytes each. Beyond it half of them are left out, by a hash of their
/// addresses: the same on every node.
const MAX_FLOWS: usize = 65_536;
/// The steepest drift that is believed: the kernel slews a clock by at most 500 ppm (`adjtimex(2)`), and so two of them
/// differ by at most twice as much.
const MAX_DRIFT: f64 = 1e-3;
/// A drift is stated if it is known at least this well, parts per one.
const KNOWN_DRIFT: f64 = 1e-4;
/// Of so many flows one may be far from the others.
const CONTRARY: usize = 4;
/// Of so many flows one may be left out for a line that fits all others exactly, and the most pairs that are.
const EXCEPTIONS: usize = 8;
const MAX_EXCEPTIONS: usize = 16;
/// Two clocks wander at most this far from a straight line together, nanoseconds: NTP corrects differences up to 128 ms by
/// slewing (the default step threshold of ntpd; chrony slews larger ones).
const MAX_WANDER_NS: f64 = 128e6;
/// Bounds that are this far from most others are not of the same flow, nanoseconds.
const SLACK_NS: f64 = 1e6;

/// Two traces on one clock time a flow at most this far apart. No client uses a port again so soon.
const SAME_FLOW: Duration = Duration::from_millis(1);

type Addresses = (Protocol, SocketAddr, SocketAddr);

/// The flows that one clock timed.
#[derive(Debug, Default)]
pub struct Seen {
    /// `None`: the addresses were used more than once.
    flows: HashMap<Addresses, Option<Crossing>>,
    /// Only flows whose hash has none of these bits are kept.
    mask: u64,
}

impl Seen {
    pub fn add(&mut self, crossing: Crossing) {
        let addresses = (crossing.protocol, crossing.from, crossing.to);
        if hash(&addresses) & self.mask != 0 {
            return;
        }
        self.flows.entry(addresses).and_modify(|known| *known = None).or_insert(Some(crossing));
        self.thin_out();
    }

    /// Adds the flows of another trace on the same clock. Both may have recorded a flow.
    pub fn absorb(&mut self, other: Self) {
        for (addresses, crossing) in other.flows {
            let is_known = |crossing: &Crossing| {
                let known = self.flows.get(&addresses).copied().flatten();
                known.is_some_and(|known| is_same(&known, crossing))
            };
            match crossing {
                Some(crossing) if is_known(&crossing) => {}
                Some(crossing) => self.add(crossing),
                None if hash(&addresses) & self.mask == 0 => {
                    self.flows.insert(addresses, None);
                }
                None => {}
            }
        }
        self.mask |= other.mask;
        self.thin_out();
    }

    fn thin_out(&mut self) {
        while self.flows.len() > MAX_FLOWS {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.flows.retain(|addresses, _| hash(addresses) & mask == 0);
        }
    }
}

/// Whether two traces on one clock timed the same flow: the difference is that of their readings of the clock's distance from
/// Unix time.
fn is_same(one: &Crossing, other: &Crossing) -> bool {
    one.first.since(other.first).max(other.first.since(one.first)) <= SAME_FLOW
}

fn hash(addresses: &Addresses) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(addresses)
}

/// The distance between two clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// By how many nanoseconds the second clock is ahead of the first at `at`.
    ahead_ns: i64,
    /// On the second clock.
    at: Timestamp,
    /// Nanoseconds by which it gains on the first, per nanosecond of its own.
    drift: f64,
    /// The drift is at most so far from `drift`; `None` if the flows do not bound it well.
    drift_within: Option<f64>,
    /// The distance is at most so far from this line, while flows were observed, nanoseconds.
    within_ns: u64,
    /// The flows that agree, and those that do not.
    pub flows: u64,
    pub contrary: u64,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compared {
    Known(Distance),
    /// No flow was observed on both nodes.
    NoFlow,
    /// All flows went one way, without an answer: they bound the distance from one side only.
    OneWay,
    /// The flows contradict each other.
    Contrary,
}

impl Distance {
    /// The same clock.
    pub const NONE: Self = Self {
        ahead_ns: 0,
        at: Timestamp::MIN,
        drift: 0.0,
        drift_within: Some(0.0),
        within_ns: 0,
        flows: 0,
        contrary: 0,
    };

    /// By how many nanoseconds the second clock is ahead when it shows `time`.
    pub fn ahead_ns(&self, time: Timestamp) -> i64 {
        let since = signed(time, self.at) as f64;
        self.ahead_ns.saturating_add((since * self.drift) as i64)
    }

    /// A time of the second clock, on the first.
    pub fn to_first(&self, time: Timestamp) -> Timestamp {
        // The times of a trace's beginning and end stand for "before" and "after everything".
        if time == Timestamp::MIN || time == Timestamp::MAX {
            return time;
        }
        time.shifted(self.ahead_ns(time).saturating_neg())
    }

    /// A time of the first clock, on the second.
    pub fn to_second(&self, time: Timestamp) -> Timestamp {
        if time == Timestamp::MIN || time == Timestamp::MAX {
            return time;
        }
        // The distance is known by the second clock's time: each round leaves a thousandth of the error.
        (0..4).fold(time, |found, _| time.shifted(self.ahead_ns(found)))
    }

    pub fn within_ns(&self) -> u64 {
        self.within_ns
    }

    /// Parts per million, and how well that is known; `None` if the flows do not bound it.
    pub fn drift_ppm(&self) -> Option<(f64, f64)> {
        self.drift_within.map(|within| (self.drift * 1e6, within * 1e6))
    }

    /// The distance of a third clock from the first, of which `next` is the distance from the second.
    fn then(&self, next: &Self) -> Self {
        let at = next.at;
        let first = next.to_first(at);
        Self {
            ahead_ns: next.ahead_ns.saturating_add(self.ahead_ns(first)),
            at,
            drift: self.drift + next.drift,
            drift_within: self.drift_within.zip(next.drift_within).map(|(a, b)| a + b),
            within_ns: self.within_ns.saturating_add(next.within_ns),
            flows: if self.flows == 0 { next.flows } else { self.flows.min(next.flows) },
            contrary: self.contrary.max(next.contrary),
        }
    }

    /// The same, from the other clock.
    fn reversed(&self) -> Self {
        Self {
            ahead_ns: self.ahead_ns.saturating_neg(),
            at: self.to_first(self.at),
            drift: -self.drift,
            ..*self
        }
    }
}

fn signed(time: Timestamp, from: Timestamp) -> i64 {
    let (time, from) = (i128::from(time.as_unix_ns()), i128::from(from.as_unix_ns()));
    i64::try_from(time - from).unwrap_or(if time < from { i64::MIN } else { i64::MAX })
}

/// What one flow says: at this time of the second clock it was ahead by so many nanoseconds, at least and at most.
#[derive(Clone, Copy, Debug)]
struct Bound {
    at: Timestamp,
    low: Option<i64>,
    high: Option<i64>,
}

impl Bound {
    /// Of a flow that the first clock timed at its sender and the second at its receiver.
    fn of(sent: &Crossing, received: &Crossing) -> Option<Self> {
        let (Side::Sender { answered }, Side::Receiver { established }) = (sent.side, received.side) else {
            return None;
        };
        let ahead = |second: Timestamp, first: Timestamp| signed(second, first);
        let arrival = ahead(received.first, sent.first);
        let completed = established.zip(answered).map(|(second, first)| ahead(second, first));
        Some(Self {
            at: received.first,
            low: answered.map(|first| ahead(received.first, first)),
            high: Some(completed.map_or(arrival, |completed| completed.min(arrival))),
        })
    }

    /// The same from the other clock, which showed `at`.
    fn reversed(self, at: Timestamp) -> Self {
        Self { at, low: self.high.map(i64::saturating_neg), high: self.low.map(i64::saturating_neg) }
    }
}

/// Compares the second clock with the first.
pub fn compare(first: &Seen, second: &Seen) -> Compared {
    let mut bounds = Vec::new();
    for (addresses, one) in &first.flows {
        let (Some(one), Some(Some(other))) = (one, second.flows.get(addresses)) else { continue };
        bounds.extend(Bound::of(one, other));
        bounds.extend(Bound::of(other, one).map(|bound| bound.reversed(other.first)));
    }
    fit(&bounds)
}

/// A bound relative to a time and a distance near all of them, so that numbers stay small.
#[derive(Clone, Copy, Debug)]
struct Near {
    at: f64,
    low: f64,
    high: f64,
}

fn fit(bounds: &[Bound]) -> Compared {
    let Some(middle) = middle(bounds) else { return Compared::NoFlow };
    let Some(base) = bounds.iter().find_map(|bound| bound.high.or(bound.low)) else {
        return Compared::NoFlow;
    };
    let relative = |ns: i64| ns.saturating_sub(base) as f64;
    let mut near: Vec<Near> = bounds
        .iter()
        .map(|bound| Near {
            at: signed(bound.at, middle) as f64,
            low: bound.low.map_or(f64::NEG_INFINITY, relative),
            high: bound.high.map_or(f64::INFINITY, relative),
        })
        .collect();
    near.sort_by(|a, b| a.at.total_cmp(&b.at).then(a.high.total_cmp(&b.high)));
    let all = near.len();
    keep_majority(&mut near);
    if near.len() * CONTRARY < all * (CONTRARY - 1) {
        return Compared::Contrary;
    }
    let every = near.clone();
    for _ in 0..=(near.len() / EXCEPTIONS).min(MAX_EXCEPTIONS) {
        let drift = steepest(&near);
        let (low, high) = (lowest(&near, drift), highest(&near, drift));
        if low.1.is_infinite() || high.1.is_infinite() {
            return Compared::OneWay;
        }
        if low.1 <= high.1 {
            return Compared::Known(line(&near, drift, middle, base, all));
        }
        // The two that contradict each other most.
        let (one, other) = (low.0.max(high.0), low.0.min(high.0));
        near.remove(one);
        if one != other {
            near.remove(other);
        }
    }
    wandering(every, middle, base, all).map_or(Compared::Contrary, Compared::Known)
}

/// The distance of clocks that no straight line fits: the line that is nearest to all bounds. Its error is what it misses
/// them by, on both sides, and what the narrowest one leaves open. `None` if they wander too far.
fn wandering(mut near: Vec<Near>, middle: Timestamp, base: i64, all: usize) -> Option<Distance> {
    let drift = steepest(&near);
    let missed = lowest(&near, drift).1 - highest(&near, drift).1;
    if missed > MAX_WANDER_NS {
        return None;
    }
    let narrowest =
        near.iter().map(|it| it.high - it.low).filter(|width| *width >= 0.0).fold(f64::INFINITY, f64::min);
    for bound in &mut near {
        bound.low -= missed.midpoint(1.0);
        bound.high += missed.midpoint(1.0);
    }
    let distance = line(&near, drift, middle, base, all);
    let within = missed + if narrowest.is_finite() { narrowest } else { 0.0 };
    let span = near.last()?.at - near.first()?.at;
    let drift_within = 2.0 * within / span;
    Some(Distance {
        within_ns: distance.within_ns.saturating_add(within.ceil() as u64),
        drift_within: (drift_within <= KNOWN_DRIFT).then_some(drift_within),
        ..distance
    })
}

/// The middle of the times.
fn middle(bounds: &[Bound]) -> Option<Timestamp> {
    let first = bounds.iter().map(|bound| bound.at).min()?;
    let last = bounds.iter().map(|bound| bound.at).max()?;
    Some(first.saturating_add(last.since(first) / 2))
}

/// Leaves out the bounds that are far from where most of them meet: other flows had the same addresses.
fn keep_majority(near: &mut Vec<Near>) {
    let span = near.iter().map(|it| it.at.abs()).fold(0.0, f64::max);
    let slack = SLACK_NS + span * MAX_DRIFT;
    // +1 where an interval begins, -1 where it ends: the place inside most of them.
    let mut ends: Vec<(f64, i32)> =
        near.iter().flat_map(|it| [(it.low - slack, 1), (it.high + slack, -1)]).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let (mut inside, mut most, mut best) = (0, 0, (f64::NEG_INFINITY, f64::INFINITY));
    let mut rest = ends.iter().peekable();
    while let Some((place, step)) = rest.next() {
        inside += step;
        if inside > most {
            most = inside;
            best = (*place, rest.peek().map_or(f64::INFINITY, |next| next.0));
        }
    }
    near.retain(|it| it.low - slack <= best.1 && it.high + slack >= best.0);
}

/// The highest lower bound with this drift, at the time 0, and whose it is.
fn lowest(near: &[Near], drift: f64) -> (usize, f64) {
    let values = near.iter().map(|it| it.low - drift * it.at).enumerate();
    values.fold((0, f64::NEG_INFINITY), |best, it| if it.1 > best.1 { it } else { best })
}

/// The lowest upper bound with this drift, at the time 0, and whose it is.
fn highest(near: &[Near], drift: f64) -> (usize, f64) {
    let values = near.iter().map(|it| it.high - drift * it.at).enumerate();
    values.fold((0, f64::INFINITY), |best, it| if it.1 < best.1 { it } else { best })
}

/// The room between the bounds with this drift: concave in the drift.
fn room(near: &[Near], drift: f64) -> f64 {
    highest(near, drift).1 - lowest(near, drift).1
}

/// The drift that leaves most room; 0 if that leaves as much.
fn steepest(near: &[Near]) -> f64 {
    let (mut from, mut to) = (-MAX_DRIFT, MAX_DRIFT);
    for _ in 0..80 {
        let third = (to - from) / 3.0;
        if room(near, from + third) < room(near, to - third) {
            from += third;
        } else {
            to -= third;
        }
    }
    let best = f64::midpoint(from, to);
    if room(near, best) <= room(near, 0.0) || room(near, best).is_infinite() { 0.0 } else { best }
}

/// The line through the bounds, and how far the truth can be from it.
fn line(near: &[Near], best: f64, middle: Timestamp, base: i64, all: usize) -> Distance {
    let edge = |outside: f64| {
        let (mut inside, mut outside) = (best, outside);
        if room(near, outside) >= 0.0 {
            return outside;
        }
        for _ in 0..60 {
            let half = f64::midpoint(inside, outside);
            if room(near, half) >= 0.0 { inside = half } else { outside = half }
        }
        inside
    };
    let (from, to) = (edge(-MAX_DRIFT), edge(MAX_DRIFT));
    let half = (to - from) / 2.0;
    let is_known = half <= KNOWN_DRIFT;
    // An unknown drift is taken as none where that fits.
    let drift = if is_known || room(near, 0.0) < 0.0 { best } else { 0.0 };
    let ahead = f64::midpoint(highest(near, drift).1, lowest(near, drift).1);
    let drifts = if is_known { [from, drift, to] } else { [drift; 3] };
    let ends = [near.first(), near.last()].into_iter().flatten().map(|it| it.at).chain([0.0]);
    let farthest = |at: f64| {
        let on_line = ahead + drift * at;
        let of = |drift: f64| {
            let (low, high) = (lowest(near, drift).1 + drift * at, highest(near, drift).1 + drift * at);
            (high - on_line).max(on_line - low)
        };
        drifts.iter().map(|drift| of(*drift)).fold(0.0, f64::max)
    };
    let within = ends.map(farthest).fold(0.0, f64::max);
    Distance {
        ahead_ns: base.saturating_add(ahead as i64),
        at: middle,
        drift,
        drift_within: is_known.then_some((drift - from).max(to - drift)),
        within_ns: within.ceil() as u64,
        flows: near.len() as u64,
        contrary: (all - near.len()) as u64,
    }
}

/// The clocks of several traces.
#[derive(Debug, Default)]
pub struct Alignment {
    /// The clock that all times are brought to.
    pub reference: usize,
    /// Each clock's distance from it.
    pub clocks: Vec<Compared>,
}

impl Alignment {
    /// Compares all clocks. The reference is the one that is nearest to the middle of those that can be compared, so
    /// that one wrong clock among three or more is not the measure of the others.
    pub fn of(seen: &[Seen]) -> Self {
        let mut pairs = Vec::new();
        let mut reasons = vec![Compared::NoFlow; seen.len()];
        for (index, first) in seen.iter().enumerate() {
            for (other, second) in seen.iter().enumerate().skip(index + 1) {
                match compare(first, second) {
                    Compared::Known(distance) => pairs.push((index, other, distance)),
                    Compared::NoFlow => {}
                    reason => {
                        for clock in [index, other] {
                            if let Some(known) = reasons.get_mut(clock) {
                                *known = reason;
                            }
                        }
                    }
                }
            }
        }
        pairs.sort_by_key(|(.., distance)| distance.within_ns);
        let from = |reference: usize| distances(reference, seen.len(), &pairs);
        let largest = (0..seen.len()).map(|clock| (from(clock).iter().flatten().count(), clock));
        let Some((_, any)) = largest.max_by_key(|(size, clock)| (*size, usize::MAX - clock)) else {
            return Self::default();
        };
        let mut ahead: Vec<(i64, usize)> = from(any)
            .iter()
            .enumerate()
            .filter_map(|(clock, distance)| Some((distance.as_ref()?.ahead_ns, clock)))
            .collect();
        // Of two neither is more likely to be right: the first one stays the measure.
        let reference = if ahead.len() < 3 {
            any
        } else {
            ahead.sort_unstable();
            ahead.get(ahead.len() / 2).map_or(any, |(_, clock)| *clock)
        };
        let clocks = from(reference).into_iter().zip(reasons);
        let clocks = clocks.map(|(distance, reason)| distance.map_or(reason, Compared::Known)).collect();
        Self { reference, clocks }
    }

    /// A clock's distance from the reference, if it is known.
    pub fn distance(&self, clock: usize) -> Option<&Distance> {
        match self.clocks.get(clock) {
            Some(Compared::Known(distance)) => Some(distance),
            _ => None,
        }
    }
}

/// The distance of each clock from the reference, over the pairs that are known best.
fn distances(reference: usize, clocks: usize, pairs: &[(usize, usize, Distance)]) -> Vec<Option<Distance>> {
    let mut found: Vec<Option<Distance>> = vec![None; clocks];
    if let Some(own) = found.get_mut(reference) {
        *own = Some(Distance::NONE);
    }
    while let Some((clock, distance)) = pairs.iter().find_map(|(first, second, distance)| {
        let known = |clock: &usize| found.get(*clock).copied().flatten();
        match (known(first), known(second)) {
            (Some(way), None) => Some((*second, way.then(distance))),
            (None, Some(way)) => Some((*first, way.then(&distance.reversed()))),
            _ => None,
        }
    }) {
        if let Some(place) = found.get_mut(clock) {
            *place = Some(distance);
        }
    }
    found
}

#[cfg(test)]
mod tests;
