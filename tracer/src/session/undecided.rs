//! Flows whose verdict can still change with an update of the cluster's metadata: kube-proxy may know a change before
//! viptrace does.

use std::{collections::BTreeMap, sync::Arc};

use crate::{flow::Flow, time::Timestamp};

/// By deadline, then in the order in which they were handed out.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    flows: BTreeMap<(Timestamp, u64), Arc<Flow>>,
    pushed: u64,
}

impl Undecided {
    pub(super) fn push(&mut self, until: Timestamp, flow: Arc<Flow>) {
        self.pushed += 1;
        self.flows.insert((until, self.pushed), flow);
    }

    /// The flow with the earliest deadline.
    pub(super) fn pop(&mut self) -> Option<Arc<Flow>> {
        self.flows.pop_first().map(|(_, flow)| flow)
    }

    /// A flow whose deadline has passed.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Arc<Flow>> {
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
