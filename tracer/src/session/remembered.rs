//! The verdicts of flows that may be handed out again.
//!
//! Owns their bound: the one that was set longest ago leaves first, so that a flow which is judged again and again stays.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use foldhash::fast::RandomState;

use crate::{time::Timestamp, verdict::VerdictKey};

/// The last verdict on a flow.
#[derive(Clone, Debug)]
pub(super) struct Earlier {
    pub(super) key: Arc<VerdictKey>,
    /// When the flow failed, if it did.
    pub(super) failed: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Remembered {
    of_flows: HashMap<u64, (u64, Earlier), RandomState>,
    /// The turns in which flows were set, with those that were set again or removed since.
    turns: VecDeque<(u64, u64)>,
    turn: u64,
}

impl Remembered {
    pub(super) fn contains(&self, flow: u64) -> bool {
        self.of_flows.contains_key(&flow)
    }

    pub(super) fn get(&self, flow: u64) -> Option<&Earlier> {
        self.of_flows.get(&flow).map(|(_, earlier)| earlier)
    }

    pub(super) fn remove(&mut self, flow: u64) {
        self.of_flows.remove(&flow);
    }

    /// Sets the verdict of a flow. Beyond `limit` flows the oldest one is forgotten.
    pub(super) fn set(&mut self, flow: u64, earlier: Earlier, limit: usize) {
        if self.of_flows.len() >= limit && !self.contains(flow) {
            self.forget_oldest();
        }
        self.turn += 1;
        self.of_flows.insert(flow, (self.turn, earlier));
        self.turns.push_back((self.turn, flow));
        if self.turns.len() > 2 * self.of_flows.len() + 64 {
            let Self { of_flows, turns, .. } = self;
            turns.retain(|(turn, flow)| of_flows.get(flow).is_some_and(|(last, _)| last == turn));
        }
    }

    fn forget_oldest(&mut self) {
        while let Some((turn, flow)) = self.turns.pop_front() {
            if self.of_flows.get(&flow).is_some_and(|(last, _)| *last == turn) {
                self.of_flows.remove(&flow);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixture::fault;

    #[test]
    fn a_flow_that_is_set_again_outlives_younger_ones() {
        let mut all = Remembered::default();
        let earlier = || Earlier { key: Arc::new(fault().key()), failed: Timestamp::MIN };
        all.set(1, earlier(), 4);
        for flow in 2..1_000 {
            all.set(flow, earlier(), 4);
            all.set(1, earlier(), 4);
            assert!(all.contains(1) && all.of_flows.len() <= 4 && all.turns.len() <= 72);
        }
        assert!(!all.contains(990) && all.contains(999));
        all.remove(1);
        assert!(all.get(1).is_none());
    }
}
