//! The distance of a capture's clock from that of each recording, by the connections that both have.
//!
//! Owns the comparison only: the join by time uses it. A capture may come from another node, or from before a clock was set.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;

use crate::{net::Tuple, time::Timestamp};

/// Distances that differ by less belong to one distance: a clock that drifts by 100 ppm moves that far in 83 minutes.
const SAME_DISTANCE: Duration = Duration::from_millis(500);
/// The least connections that show one distance: a port is used again, so that fewer may be others by chance.
const MIN_CONNECTIONS: usize = 3;
/// A smaller distance changes nothing: clocks that are synchronised differ by less, and the join allows for more.
const NEAR: Duration = Duration::from_secs(1);

/// When connections began, by their tuples in canonical form.
#[derive(Debug, Default)]
pub(super) struct Beginnings(HashMap<Tuple, Began, RandomState>);

#[derive(Clone, Copy, Debug)]
enum Began {
    Once(Timestamp),
    /// Several connections of this tuple cannot be told apart by time.
    Often,
}

/// How far a capture's clock is ahead of a recording's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub(super) ns: i64,
    /// The connections that show it.
    pub(super) connections: usize,
}

impl Beginnings {
    pub(super) fn add(&mut self, key: Tuple, time: Timestamp) {
        self.0.entry(key).and_modify(|began| *began = Began::Often).or_insert(Began::Once(time));
    }

    /// How far the clock of `self` is ahead of that of `other`; `None` if it is not far, or if most of the connections that
    /// both have do not show one distance.
    pub(super) fn ahead_of(&self, other: &Self) -> Option<Ahead> {
        let distance = |(key, began): (&Tuple, &Began)| match (began, other.0.get(key)?) {
            (Began::Once(own), Began::Once(other)) => {
                own.as_unix_ns().cast_signed().checked_sub(other.as_unix_ns().cast_signed())
            }
            _ => None,
        };
        let mut distances: Vec<i64> = self.0.iter().filter_map(distance).collect();
        distances.sort_unstable();
        let ns = *distances.get(distances.len() / 2)?;
        let is_same = |distance: &&i64| u128::from(distance.abs_diff(ns)) <= SAME_DISTANCE.as_nanos();
        let connections = distances.iter().filter(is_same).count();
        let is_far = u128::from(ns.unsigned_abs()) > NEAR.as_nanos();
        (is_far && connections >= MIN_CONNECTIONS && connections * 2 > distances.len())
            .then_some(Ahead { ns, connections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Protocol;

    fn beginnings(times: &[(u16, f64)]) -> Beginnings {
        let mut found = Beginnings::default();
        for (port, secs) in times {
            let client = format!("10.244.1.7:{port}").parse().unwrap();
            let tuple = Tuple::new(Protocol::TCP, client, "10.96.0.10:80".parse().unwrap());
            found.add(tuple, Timestamp::from_unix_secs_f64(1_000.0 + secs).unwrap());
        }
        found
    }

    #[test]
    fn three_connections_show_a_distance_and_two_do_not() {
        let capture = beginnings(&[(1, 90.0), (2, 91.0), (3, 92.1), (4, 93.0)]);
        let recorded = beginnings(&[(1, 0.0), (2, 1.0), (3, 2.0), (5, 7.0)]);
        let ahead = capture.ahead_of(&recorded).unwrap();
        assert_eq!((ahead.ns / 1_000_000_000, ahead.connections), (90, 3));
        assert_eq!(recorded.ahead_of(&capture).unwrap().ns, -ahead.ns);
        assert_eq!(capture.ahead_of(&beginnings(&[(1, 0.0), (2, 1.0)])), None);
    }

    #[test]
    fn a_port_that_is_used_again_shows_no_distance() {
        let capture = beginnings(&[(1, 90.0), (2, 91.0), (3, 92.0), (3, 95.0)]);
        assert_eq!(capture.ahead_of(&beginnings(&[(1, 0.0), (2, 1.0), (3, 2.0)])), None);
        // Three of seven agree, by chance.
        let mixed =
            beginnings(&[(1, 90.0), (2, 90.0), (3, 90.0), (4, 10.0), (5, 20.0), (6, 30.0), (7, 40.0)]);
        let recorded = beginnings(&[1, 2, 3, 4, 5, 6, 7].map(|port| (port, 0.0)));
        assert_eq!(mixed.ahead_of(&recorded), None);
    }

    #[test]
    fn clocks_that_nearly_agree_are_left_as_they_are() {
        let capture = beginnings(&[(1, 0.4), (2, 1.4), (3, 2.4)]);
        assert_eq!(capture.ahead_of(&beginnings(&[(1, 0.0), (2, 1.0), (3, 2.0)])), None);
        assert_eq!(Beginnings::default().ahead_of(&capture), None);
    }
}
