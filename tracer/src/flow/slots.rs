//! Storage of flows: reused slots, each in exactly one queue, with all operations in constant time.
//!
//! A queue is a doubly linked list through the slots. It is ordered by deadline, because each queue has one timeout:
//! its head is the next to expire and the first to evict. Owns only the names of the queues, not their meaning.

use super::{Flow, SharedFlow};
use crate::time::Timestamp;

/// The queue that a flow waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Waiting for an answer.
    Opening,
    /// Datagrams (and SCTP), whose end no socket reports: waiting for silence.
    Datagram,
    /// Waiting for its conntrack entry to be reread.
    Rereading,
    /// An answered connection that is open, ordered by activity: until conntrack would forget an idle one.
    Live,
    /// Answered datagrams, ordered by activity: until conntrack would forget an idle entry.
    Answered,
    /// A connection that was handed out after its server had closed it, while its client's socket is open: until that closes.
    HalfClosed,
    /// Its outcome is known; waiting for the evidence of other CPUs and of the other end.
    Settling,
    /// Handed out; kept for late evidence.
    Lingering,
    /// Handed out as unanswered; kept longer, because an answer may still arrive.
    Waiting,
}

pub(super) const QUEUES: [Queue; 9] = [
    Queue::Opening,
    Queue::Datagram,
    Queue::Rereading,
    Queue::Live,
    Queue::Answered,
    Queue::HalfClosed,
    Queue::Settling,
    Queue::Lingering,
    Queue::Waiting,
];

const NONE: u32 = u32::MAX;
/// The flows that are read ahead together.
const AHEAD: u32 = 16;
/// The flows whose memory is kept for others: more than leave and begin by turns, and less than a quarter of a megabyte.
const SPARE: usize = 256;

/// A flow's time in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) index: u32,
    /// Of the flows that were in the slot before.
    pub(super) number: u32,
}

#[derive(Debug)]
struct Slot {
    flow: Option<SharedFlow>,
    queue: Queue,
    life: u32,
    deadline: Timestamp,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
    /// That of the head, which is asked for more often than the head itself.
    deadline: Timestamp,
    /// The uses of the head until flows are read ahead again.
    ahead: u32,
}

const EMPTY: Ends = Ends { head: NONE, tail: NONE, len: 0, deadline: Timestamp::MAX, ahead: 0 };

#[derive(Debug)]
pub(super) struct Slots {
    all: Vec<Slot>,
    free: Vec<u32>,
    /// Flows that have left and that nobody shares. The memory of each is that of a later one: it is still in the processor's
    /// cache, and an allocator would join it with its neighbours, which are not.
    spare: Vec<SharedFlow>,
    queues: [Ends; QUEUES.len()],
    /// No deadline is earlier.
    earliest: Timestamp,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            queues: [EMPTY; QUEUES.len()],
            earliest: Timestamp::MAX,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Flow> {
        self.all.get(index as usize)?.flow.as_deref()
    }

    /// The flow to change: those who share it keep it as it was.
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Flow> {
        self.all.get_mut(index as usize)?.flow.as_mut().map(SharedFlow::make_mut)
    }

    /// The life of the flow in this slot.
    pub(super) fn life(&self, index: u32) -> Life {
        Life { index, number: self.all.get(index as usize).map_or(0, |slot| slot.life) }
    }

    /// The slot of a flow that is still there.
    pub(super) fn alive(&self, life: Life) -> Option<u32> {
        let slot = self.all.get(life.index as usize)?;
        (slot.life == life.number && slot.flow.is_some()).then_some(life.index)
    }

    /// The flow as it is now, whatever changes it later.
    pub(super) fn share(&self, index: u32) -> Option<SharedFlow> {
        self.all.get(index as usize)?.flow.clone()
    }

    pub(super) fn queue_of(&self, index: u32) -> Option<Queue> {
        let slot = self.all.get(index as usize)?;
        slot.flow.is_some().then_some(slot.queue)
    }

    pub(super) fn insert(&mut self, flow: Flow, queue: Queue, deadline: Timestamp) -> u32 {
        let flow = Some(self.stored(flow));
        let slot = Slot { flow, queue, life: 0, deadline, previous: NONE, next: NONE };
        let index = if let Some(index) = self.free.pop() {
            let free = &mut self.all[index as usize];
            *free = Slot { life: free.life.wrapping_add(1), ..slot };
            index
        } else {
            self.all.push(slot);
            (self.all.len() - 1) as u32
        };
        self.link(index);
        index
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<SharedFlow> {
        let flow = self.all.get_mut(index as usize)?.flow.take()?;
        self.unlink(index);
        self.free.push(index);
        Some(flow)
    }

    /// Removes the flow and frees its slot.
    pub(super) fn clear(&mut self, index: u32) {
        if self.get(index).is_none() {
            return;
        }
        self.unlink(index);
        let left = self.all[index as usize].flow.take();
        self.free.push(index);
        if self.spare.len() < SPARE {
            self.spare.extend(left.filter(SharedFlow::is_unique));
        }
    }

    /// The flow in the memory of one that has left, if there is any.
    fn stored(&mut self, flow: Flow) -> SharedFlow {
        let Some(mut spare) = self.spare.pop() else { return SharedFlow::new(flow) };
        *SharedFlow::make_mut(&mut spare) = flow;
        spare
    }

    /// Moves the flow to the end of `queue`.
    pub(super) fn enqueue(&mut self, index: u32, queue: Queue, deadline: Timestamp) {
        if self.get(index).is_none() {
            return;
        }
        self.unlink(index);
        let slot = &mut self.all[index as usize];
        slot.queue = queue;
        slot.deadline = deadline;
        self.link(index);
    }

    /// The index of every flow, not in order of time.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        let all = self.all.len() as u32;
        0..all
    }

    pub(super) fn head(&self, queue: Queue) -> Option<(u32, Timestamp)> {
        let Ends { head, deadline, .. } = self.queues[queue as usize];
        (head != NONE).then_some((head, deadline))
    }

    /// Call it before the head of a queue is used. The first time, and then every sixteenth time, it reads the next
    /// sixteen flows: a flow that waited has left the processor's cache, and that of several arrives in the time of one.
    pub(super) fn read_ahead(&mut self, queue: Queue) {
        let ends = &mut self.queues[queue as usize];
        if ends.ahead > 0 {
            ends.ahead -= 1;
            return;
        }
        ends.ahead = AHEAD - 1;
        let (mut at, mut sum) = (ends.head, 0);
        for _ in 0..AHEAD {
            let Some(slot) = self.all.get(at as usize) else { break };
            sum ^= slot.flow.as_ref().map_or(0, |flow| flow.glance());
            at = slot.next;
        }
        std::hint::black_box(sum);
    }

    /// Whether a deadline may have passed: cheap, because it is asked for every sighting.
    pub(super) fn may_be_due(&self, now: Timestamp) -> bool {
        self.earliest <= now
    }

    /// Finds the earliest deadline. Deadlines that were moved or removed leave an older one behind.
    pub(super) fn find_earliest(&mut self) {
        let deadlines = self.queues.iter().map(|ends| ends.deadline);
        self.earliest = deadlines.min().unwrap_or(Timestamp::MAX);
    }

    /// The number of flows in a queue.
    pub(super) fn len_of(&self, queue: Queue) -> usize {
        self.queues[queue as usize].len as usize
    }

    fn link(&mut self, index: u32) {
        let slot = &mut self.all[index as usize];
        self.earliest = self.earliest.min(slot.deadline);
        let ends = &mut self.queues[slot.queue as usize];
        let tail = std::mem::replace(&mut ends.tail, index);
        ends.len += 1;
        (slot.previous, slot.next) = (tail, NONE);
        if tail == NONE {
            (ends.head, ends.deadline) = (index, slot.deadline);
        } else {
            self.all[tail as usize].next = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Slot { queue, previous, next, .. } = self.all[index as usize];
        let ends = &mut self.queues[queue as usize];
        ends.len -= 1;
        if previous == NONE {
            (ends.head, ends.deadline) = (next, Timestamp::MAX);
        } else {
            self.all[previous as usize].next = next;
        }
        let ends = &mut self.queues[queue as usize];
        if next == NONE {
            ends.tail = previous;
        } else {
            let follower = &mut self.all[next as usize];
            follower.previous = previous;
            // Perhaps the new head, and with an earlier deadline: a late decision waits longer than those behind it.
            if previous == NONE {
                ends.deadline = follower.deadline;
                self.earliest = self.earliest.min(follower.deadline);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::net::{Netns, Protocol, Tuple};

    fn flow(id: u64) -> Flow {
        let end: SocketAddr = "10.0.0.1:80".parse().unwrap();
        Flow::new(id, Tuple::new(Protocol::TCP, end, end), Netns(1), Timestamp::MIN, false)
    }

    fn place(slots: &Slots, index: u32) -> *const Flow {
        std::ptr::from_ref(slots.get(index).unwrap())
    }

    #[test]
    fn a_flow_that_has_left_leaves_its_memory_to_the_next() {
        let mut slots = Slots::new();
        let index = slots.insert(flow(1), Queue::Opening, Timestamp::MAX);
        let before = place(&slots, index);
        slots.clear(index);
        let index = slots.insert(flow(2), Queue::Opening, Timestamp::MAX);
        assert_eq!((place(&slots, index), slots.get(index).map(|flow| flow.id)), (before, Some(2)));
    }

    #[test]
    fn a_flow_that_others_hold_keeps_its_memory() {
        let mut slots = Slots::new();
        let index = slots.insert(flow(1), Queue::Opening, Timestamp::MAX);
        let held = slots.share(index).unwrap();
        slots.clear(index);
        let index = slots.insert(flow(2), Queue::Opening, Timestamp::MAX);
        assert_eq!((held.id, slots.get(index).map(|flow| flow.id)), (1, Some(2)));
    }

    #[test]
    fn the_memory_that_is_kept_is_bounded() {
        let mut slots = Slots::new();
        let all: Vec<_> =
            (0..1000).map(|id| slots.insert(flow(id), Queue::Opening, Timestamp::MAX)).collect();
        for index in all {
            slots.clear(index);
        }
        assert_eq!((slots.spare.len(), slots.len()), (SPARE, 0));
    }
}
