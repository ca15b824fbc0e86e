//! Flows whose verdict waits until a time: for an update of the cluster's metadata, because kube-proxy may know a change before
//! viptrace does, or for a reading of the node that began later than the flow.

use std::collections::BTreeMap;

use foldhash::HashMap;

use crate::{flow::SharedFlow, time::Timestamp};

/// By deadline, then in the order in which they were handed out.
type Place = (Timestamp, u64);

#[derive(Debug, Default)]
pub(super) struct Undecided {
    flows: BTreeMap<Place, SharedFlow>,
    /// By the flow's number.
    places: HashMap<u64, Place>,
    pushed: u64,
}

impl Undecided {
    /// Adds a flow, in the place of an earlier state of it.
    pub(super) fn push(&mut self, until: Timestamp, flow: SharedFlow) {
        self.supersede(flow.id);
        self.pushed += 1;
        self.places.insert(flow.id, (until, self.pushed));
        self.flows.insert((until, self.pushed), flow);
    }

    /// Forgets the state of this flow that waits, because a later one is to be judged. Returns whether there was one.
    pub(super) fn supersede(&mut self, id: u64) -> bool {
        let place = self.places.remove(&id);
        place.is_some_and(|place| self.flows.remove(&place).is_some())
    }

    /// The flow with the earliest deadline.
    pub(super) fn pop(&mut self) -> Option<SharedFlow> {
        let (_, flow) = self.flows.pop_first()?;
        self.places.remove(&flow.id);
        Some(flow)
    }

    /// The flow with the earliest deadline, if that has passed.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<SharedFlow> {
        self.next_deadline().filter(|until| *until <= now)?;
        self.pop()
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.flows.first_key_value().map(|((until, _), _)| *until)
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }
}
