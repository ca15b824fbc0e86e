//! How long a flow stays: the queue that its evidence requires, and what happens at the queue's deadline.
//!
//! Owns the hand-out of flows and their deadlines; no flow is without one. `slots.rs` stores the queues, `room.rs`
//! decides which flow leaves a full table.

use std::time::Duration;

use super::{Counters, Flow, FlowTable, Limits, Outcome, SharedFlow, losses::Losses, slots::Queue};
use crate::{sighting::Status, time::Timestamp};

/// The most flows that wait to be drained; further flows stay in their queues until then.
pub(super) const MAX_SETTLED: usize = 1024;

impl FlowTable {
    /// Puts a flow into the queue that its evidence requires.
    pub(super) fn place(&mut self, index: u32) {
        let Some(flow) = self.slots.get(index) else { return };
        let outcome = flow.outcome();
        let over = flow.is_over(outcome);
        let is_latest = || self.known(&flow.orig, flow.netns) == Some(index);
        // If it is no longer over, a repeated packet passed after all, unless a newer flow has its addresses.
        if over != flow.ended.is_some() && (over || is_latest()) {
            let ended = over.then_some(flow.last_seen);
            if let Some(flow) = self.slots.get_mut(index) {
                flow.ended = ended;
            }
        }
        let Some(flow) = self.slots.get(index) else { return };
        let tcp = flow.is_tcp();
        let handed = flow.handed;
        // If no entry was read again, the entry's end is the first to show that there was no answer.
        let first_told = flow.revision == 1 && flow.reread.is_none() && flow.deleted.is_some();
        let after_all = flow.was_answered_after_all() || (!tcp && first_told);
        let only_lingers = over && flow.expects_no_more(outcome);
        // An earlier SYN waited for its next hop's address until now, perhaps that of a wrong endpoint.
        let first_try = flow.is_repeated() && flow.decisions.len() > flow.handed_decisions;
        let goes_on = outcome == Outcome::Pending && handed.is_none() && flow.awaits_answer();
        let now = self.slots.queue_of(index);
        if now == Some(Queue::Settling) && !goes_on {
            return;
        }
        let news = handed.map_or(over || outcome == Outcome::Silent, |handed| {
            is_news(handed, outcome) || (handed == Outcome::Pending && after_all) || first_try
        });
        let (queue, wait) = if news {
            (Queue::Settling, self.limits.settle)
        } else if only_lingers {
            self.last_queue(index)
        } else if handed.is_some() && !outcome.is_success() {
            (Queue::Waiting, self.limits.unanswered)
        } else if outcome == Outcome::Established {
            self.open_queue(index)
        } else if tcp || outcome != Outcome::Pending {
            if now == Some(Queue::Opening) {
                return;
            }
            (Queue::Opening, self.limits.answer)
        } else {
            (Queue::Datagram, self.limits.silence)
        };
        self.slots.enqueue(index, queue, self.after(wait));
    }

    /// The queue of an answered flow that is not over.
    fn open_queue(&self, index: u32) -> (Queue, Duration) {
        match self.slots.get(index) {
            Some(flow) if flow.is_tcp() || flow.is_sctp() => (Queue::Live, self.limits.idle_connection),
            Some(flow) if flow.is_one_exchange() => (Queue::Lingering, self.limits.linger),
            _ => (Queue::Answered, self.limits.idle_datagrams),
        }
    }

    /// The queue of a flow that is over and was handed out. The client of a connection that its server closed may leave its
    /// socket open for hours, as a pool does: what it does in the end is no flow of its own.
    fn last_queue(&self, index: u32) -> (Queue, Duration) {
        match self.slots.get(index) {
            Some(flow) if self.limits.sees_closes && flow.is_half_closed() => {
                (Queue::HalfClosed, self.limits.idle_connection)
            }
            _ => (Queue::Lingering, self.limits.linger),
        }
    }

    /// Ends every wait whose deadline has passed, as long as there is room for the flows that it hands out.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.clock = self.clock.max(now);
        if !self.slots.may_be_due(self.clock) {
            return;
        }
        for queue in [Queue::Settling, Queue::Opening, Queue::Datagram, Queue::Rereading] {
            while let Some((index, deadline)) = self.due(queue) {
                if queue == Queue::Rereading || !self.wants_reread(index) {
                    self.settle(index, deadline);
                }
            }
        }
        for queue in [Queue::Live, Queue::Answered, Queue::HalfClosed, Queue::Lingering, Queue::Waiting] {
            while let Some((index, deadline)) = self.due(queue) {
                let may_recover = queue == Queue::Waiting && self.limits.sees_closes;
                if may_recover && self.slots.get_mut(index).is_some_and(Flow::has_recovered) {
                    self.settle(index, deadline);
                    continue;
                }
                if self.slots.get(index).is_some_and(|flow| flow.handed.is_none()) {
                    self.release(index, deadline);
                } else {
                    self.forget(index);
                }
            }
        }
        self.slots.find_earliest();
    }

    /// The next flow of a queue whose deadline has passed.
    fn due(&mut self, queue: Queue) -> Option<(u32, Timestamp)> {
        let is_due = |(_, deadline): &(u32, Timestamp)| *deadline <= self.clock;
        let due = self.slots.head(queue).filter(is_due).filter(|_| self.settled.len() < MAX_SETTLED)?;
        self.slots.read_ahead(queue);
        Some(due)
    }

    /// Hands the flow out and keeps it for late evidence.
    pub(super) fn settle(&mut self, index: u32, time: Timestamp) {
        let Self { slots, losses, counters, limits, .. } = self;
        let Some(flow) = slots.get_mut(index) else { return };
        let outcome = flow.outcome();
        let only_lingers = flow.ended.is_some() && flow.expects_no_more(outcome);
        flow.hand_out(outcome, time, limits, losses, counters);
        self.settled.extend(slots.share(index));
        let (queue, wait) = if only_lingers {
            self.last_queue(index)
        } else if outcome == Outcome::Established {
            self.open_queue(index)
        } else {
            (Queue::Waiting, self.limits.unanswered)
        };
        self.slots.enqueue(index, queue, self.clock.saturating_add(wait));
    }

    /// Hands the flow out and forgets it.
    pub(super) fn release(&mut self, index: u32, time: Timestamp) {
        let Some(mut flow) = self.take(index) else { return };
        let outcome = flow.outcome();
        let handed = SharedFlow::make_mut(&mut flow);
        handed.hand_out(outcome, time, &self.limits, &self.losses, &mut self.counters);
        self.settled.push_back(flow);
    }
}

/// Whether a flow that was handed out with `before` has to be handed out again.
pub(super) fn is_news(before: Outcome, after: Outcome) -> bool {
    match before {
        // The end of an entry adds little to a quiet flow, and nothing that changes the earlier verdict.
        Outcome::Pending => !matches!(after, Outcome::Pending | Outcome::Closed | Outcome::Abandoned),
        Outcome::Stalled | Outcome::Dropped | Outcome::Silent => before != after,
        Outcome::Established => !after.is_success(),
        // A repeated SYN passed after all: a busy socket keeps an ICMP error for later (`tcp_v4_err`).
        Outcome::Refused | Outcome::Rejected | Outcome::Unreachable => after.is_success(),
        _ => false,
    }
}

/// Whether later packets of a flow with this outcome may still wait for their next hop's address: they are not the
/// beginning of another flow.
const fn may_be_held_back(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Unreachable | Outcome::Dropped)
}

impl Flow {
    /// Notes that it is handed out with this outcome, and the events that are missing for it.
    pub(super) fn hand_out(
        &mut self,
        outcome: Outcome,
        time: Timestamp,
        limits: &Limits,
        losses: &Losses,
        counters: &mut Counters,
    ) {
        if self.handed.is_none() {
            counters.settled += 1;
        }
        (self.handed, self.handed_decisions) = (Some(outcome), self.decisions.len());
        self.revision = self.revision.saturating_add(1);
        self.settled = Some(time.max(self.last_seen));
        if losses.is_empty() {
            (self.lost, self.suppressed, self.has_uncounted_loss) = (0, 0, false);
            return;
        }
        // Events of its last moment may follow its end.
        let ended = self.ended.map_or(time, |ended| ended.saturating_add(limits.settle));
        let until = ended.min(time).max(self.last_seen);
        // Without its first decision it may have begun, and lost that event, before.
        let unseen = if self.is_seen_from_start() { Duration::ZERO } else { limits.answer };
        let since = self.first_seen.saturating_sub(unseen);
        let (lost, suppressed) = losses.of(self, since, until);
        self.lost = lost.saturating_add(suppressed);
        self.suppressed = suppressed;
        self.has_uncounted_loss = losses.are_uncounted(since, until);
    }

    /// Whether no later packet can change this outcome: its client is not seen to try again, and none waits for its next
    /// hop's address.
    fn expects_no_more(&self, outcome: Outcome) -> bool {
        let trying = (self.client.is_seen() || self.is_sctp()) && self.is_still_trying();
        !trying && !may_be_held_back(outcome)
    }

    /// Whether it was a request with its answer, as in DNS: its entry is not assured, so that no datagram followed two
    /// seconds later (`nf_conntrack_udp_packet` in `nf_conntrack_proto_udp.c`, Linux 6.12), and it expires
    /// within seconds. A later failure reports its entry again.
    fn is_one_exchange(&self) -> bool {
        self.last_packet.is_none() && self.reread.is_some_and(|entry| !entry.status.has(Status::ASSURED))
    }
}
