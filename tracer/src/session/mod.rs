//! From sightings to verdicts: the one path that a live trace and a replay share.
//!
//! Owns the order of steps: sightings are folded into flows, settled flows are joined with the cluster's history and
//! the node's state, and judged. Does no I/O and reads no clock; the caller reads the node when
//! [`Pipeline::wants_node`] returns true.

mod cause_folds;
mod changes;
mod connections;
mod crossing;
mod folded;
mod grace;
mod healthy_folds;
mod judging;
mod latency;
mod neighbours;
mod others;
mod remembered;
mod summary;
mod suppressed;
mod undecided;
mod unjudged;
mod wall_clock;
pub mod why;

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{Address, Cluster, Key, Membership, Update},
    diagnosis::{HookGap, OtherFlows, Translations},
    flow::{Counters, FlowTable, Limits, Lost, SharedFlow, Suppressed},
    net::Netns,
    node::Snapshot,
    sighting::{Hook, ListedEntry, Sighting},
    time::Timestamp,
    verdict::{NearbyChange, Verdict, VerdictKey},
};
use cause_folds::CauseFolds;
use changes::Changes;
use healthy_folds::HealthyFolds;
use neighbours::Neighbours;
use remembered::Remembered;
use suppressed::SuppressedEvents;
use undecided::Undecided;
use wall_clock::WallClock;

pub(crate) use changes::{ChangeLister, ListedChange, SavedChanges};
pub(crate) use connections::Attribution;
pub use connections::{Connections, Pair};
pub use crossing::{Crossing, Side};
pub(crate) use folded::Folded;
pub use grace::Grace;
pub use latency::Latency;
pub(crate) use others::names_client;
pub(crate) use summary::{Cause, weight};
pub use summary::{Counts, Ending, SelectedFlows, Summary};
pub use unjudged::NotJudged;
pub use wall_clock::WallStep;
pub(crate) use wall_clock::{Showing, WallSteps};

/// The most gaps of hooks that are kept: two for each hook.
const MAX_HOOK_GAPS: usize = 64;

/// Which flows have their own verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// As [`Self::Faults`]; and of the flows of one cause, one in a second has a verdict, and the others are counted under
    /// it. For lines that flows share: the rows of a recording.
    Causes,
    /// Flows that are healthy for the same reasons share one verdict and are counted: see [`Folded`].
    Faults,
    /// Every flow has its own verdict.
    #[default]
    All,
}

/// The constant settings of a trace.
#[derive(Clone, Debug)]
pub struct Settings {
    pub limits: Limits,
    /// This node's name in Kubernetes.
    pub node_name: Option<String>,
    /// The namespace in which kube-proxy writes its rules.
    pub node_netns: Option<Netns>,
    pub missing_hooks: Vec<Hook>,
    /// The kernel gives a reason for drops (since 5.17).
    pub drop_reasons: bool,
    pub grace: Grace,
    pub detail: Detail,
}

/// A flow's verdict, and further facts for a report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    pub verdict: Verdict,
    /// The key of its earlier verdict, which this one replaces.
    pub before: Option<Arc<VerdictKey>>,
    /// From the flow's beginning to its client's established socket.
    pub connect_time: Option<Duration>,
    /// The time of the flow's last sighting so far. The verdict's own time may be much later, if many flows waited for theirs.
    #[serde(default)]
    pub last_seen: Timestamp,
    /// When it failed, if it did: an answered flow when it broke, any other with its beginning.
    #[serde(default)]
    pub failed: Timestamp,
    /// The same of its earlier verdict.
    #[serde(default)]
    pub failed_before: Option<Timestamp>,
    /// Whether an observation shows that it was answered.
    #[serde(default)]
    pub was_answered: bool,
}

/// The results of one step.
#[derive(Clone, Debug, Default)]
pub struct Judgements {
    pub judged: Vec<Judged>,
    /// Further flows that share a verdict with a judged one: healthy ones, and those of one cause with
    /// [`Detail::Causes`]. None with [`Detail::All`].
    pub folded: Vec<Folded>,
    /// Flows that have no verdict, because the table was full.
    pub unjudged: Vec<NotJudged>,
    /// Flows that went to no Service's address, with [`Detail::All`]: at an endpoint's node, those that another node
    /// translated.
    pub arrivals: Vec<Arrival>,
    /// Flows that may cross to another node, if [`Pipeline::note_crossings`] asked for them.
    pub crossings: Vec<Crossing>,
}

impl Judged {
    /// Whether its earlier verdict was a failure, which this one replaces.
    pub(crate) fn had_failed(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.has_failed)
    }

    /// A verdict without the further facts.
    pub fn of(verdict: Verdict) -> Self {
        let (last_seen, failed) = (verdict.time, verdict.flow.started);
        Self {
            verdict,
            before: None,
            connect_time: None,
            last_seen,
            failed,
            failed_before: None,
            was_answered: false,
        }
    }
}

impl Judgements {
    /// Brings every time in them to another clock.
    pub(crate) fn map_times(&mut self, to: impl Fn(Timestamp) -> Timestamp) {
        for judged in &mut self.judged {
            judged.verdict.map_times(&to);
            judged.last_seen = to(judged.last_seen);
            judged.failed = to(judged.failed);
            judged.failed_before = judged.failed_before.map(&to);
        }
        for folded in &mut self.folded {
            Arc::make_mut(&mut folded.verdict).map_times(&to);
            (folded.first, folded.last) = (to(folded.first), to(folded.last));
        }
    }
}

/// A flow that went to no Service's address, as an endpoint's node observes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    pub client: SocketAddr,
    pub to: SocketAddr,
    pub fate: Fate,
}

/// The end of an [`Arrival`], as far as this node observed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Answered,
    /// A rule of this node stopped it.
    Stopped,
    /// It failed otherwise, or is open.
    Other,
}

/// The flows of a trace, and everything that they are judged with.
#[derive(Debug)]
pub struct Pipeline {
    settings: Settings,
    flows: FlowTable,
    cluster: Cluster,
    node: Arc<Snapshot>,
    /// When the read of `node` began: it says nothing about later decisions.
    node_read_began: Option<Timestamp>,
    translations: Translations,
    waiting: Undecided,
    /// The flows whose wait for the node is over.
    ready: VecDeque<SharedFlow>,
    /// All flows were handed out: none waits for the cluster's metadata any more.
    is_finished: bool,
    undecided: Undecided,
    /// The grace on this node.
    grace: Duration,
    before: Remembered,
    healthy: HealthyFolds,
    causes: CauseFolds,
    lost: u64,
    /// Of these, the ones that stand for an unknown number.
    uncounted_losses: u64,
    hook_gaps: Vec<HookGap>,
    suppressed: SuppressedEvents,
    wall_clock: WallClock,
    changes: Changes,
    arrivals: Vec<Arrival>,
    neighbours: Neighbours,
    /// `None` if nobody compares clocks.
    crossings: Option<Vec<Crossing>>,
    /// Healthy flows that were last seen before it share verdicts, also where each flow has its own.
    each_since: Timestamp,
}

impl Pipeline {
    pub fn new(settings: Settings, cluster: Cluster) -> Self {
        Self {
            flows: FlowTable::new(settings.limits),
            grace: settings.grace.minimum(),
            settings,
            cluster,
            node: Arc::default(),
            node_read_began: None,
            translations: Translations::new(),
            waiting: Undecided::default(),
            ready: VecDeque::new(),
            is_finished: false,
            undecided: Undecided::default(),
            before: Remembered::default(),
            healthy: HealthyFolds::default(),
            causes: CauseFolds::default(),
            lost: 0,
            uncounted_losses: 0,
            hook_gaps: Vec::new(),
            suppressed: SuppressedEvents::default(),
            wall_clock: WallClock::default(),
            changes: Changes::default(),
            arrivals: Vec::new(),
            neighbours: Neighbours::default(),
            crossings: None,
            each_since: Timestamp::MIN,
        }
    }

    /// Adds to the judgements the flows that may cross to another node.
    pub(crate) fn note_crossings(&mut self) {
        self.crossings.get_or_insert_default();
    }

    /// Of [`Detail::All`] only the flows that were last seen at `time` or later are wanted, on the clock of the trace.
    pub(crate) fn each_since(&mut self, time: Timestamp) {
        self.each_since = time;
    }

    /// Leaves the times of verdicts on the clock of the trace, whatever happened to the wall clock.
    pub(crate) fn stay_on_trace_clock(&mut self) {
        self.wall_clock.ignore();
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The metadata before the first flow; later updates go through [`Self::absorb`].
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Takes an update of the metadata.
    pub fn absorb(&mut self, update: Update) {
        self.changes.update(&update, &self.cluster);
        self.cluster.absorb(update);
    }

    /// Forgets versions and changes that no later flow needs: see [`History::prune`](crate::cluster::History::prune).
    pub fn prune(&mut self, now: Timestamp) {
        self.cluster.history.prune(now);
        self.changes.prune(now);
    }

    /// Sets the hooks that are not attached.
    pub fn set_missing_hooks(&mut self, missing: Vec<Hook>) {
        self.settings.missing_hooks = missing;
        self.healthy.clear();
    }

    /// A hook was attached at `time` (its module was loaded), or is lost since then. Flows that lived before, or after, were
    /// not observed there.
    pub fn hook_changed(&mut self, hook: Hook, is_attached: bool, time: Timestamp) {
        let open = self.hook_gaps.iter_mut().find(|gap| gap.hook == hook && gap.until.is_none());
        let was_missing = self.settings.missing_hooks.contains(&hook);
        match open {
            Some(gap) if is_attached => gap.until = Some(time),
            None if is_attached && was_missing => {
                self.settings.missing_hooks.retain(|missing| *missing != hook);
                self.hook_gaps.push(HookGap { hook, from: None, until: Some(time) });
            }
            None if !is_attached && !was_missing => {
                self.hook_gaps.push(HookGap { hook, from: Some(time), until: None });
            }
            Some(_) | None => return,
        }
        self.changes.hook(hook, is_attached, time);
        if self.hook_gaps.len() > MAX_HOOK_GAPS {
            self.merge_oldest_gaps();
        }
        self.healthy.clear();
    }

    /// The times during which a hook was not attached.
    pub(crate) fn hook_gaps(&self) -> &[HookGap] {
        &self.hook_gaps
    }

    /// Two gaps of one hook become one, with the time between them: a module that comes and goes needs no more memory.
    fn merge_oldest_gaps(&mut self) {
        let gaps = &mut self.hook_gaps;
        let next = |(index, gap): (usize, &HookGap)| {
            let later = gaps.iter().skip(index + 1).position(|other| other.hook == gap.hook)?;
            Some((index, index + 1 + later))
        };
        if let Some((earlier, later)) = gaps.iter().enumerate().find_map(next) {
            let from = gaps.remove(earlier).from;
            if let Some(gap) = gaps.get_mut(later - 1) {
                gap.from = from;
            }
        }
    }

    pub fn node(&self) -> &Arc<Snapshot> {
        &self.node
    }

    pub fn counters(&self) -> Counters {
        self.flows.counters()
    }

    /// The flows in memory, also those that were handed out and are kept for late evidence.
    pub fn held_flows(&self) -> u64 {
        self.flows.len() as u64
    }

    /// The number of events lost so far, in the kernel or after it.
    pub fn lost_events(&self) -> u64 {
        self.lost
    }

    pub fn observe(&mut self, sightings: impl IntoIterator<Item = Sighting>) {
        for sighting in sightings {
            self.flows.observe(sighting);
        }
    }

    /// As [`Self::observe`], of the sighting that `fill` writes, without a copy of it. Returns its time.
    pub(crate) fn observe_with<E>(
        &mut self,
        fill: impl FnOnce(&mut Sighting) -> Result<(), E>,
    ) -> Result<Timestamp, E> {
        self.flows.observe_with(fill)
    }

    /// A sighting of this time is left out of a replay: see [`FlowTable::pass`].
    pub(crate) fn pass(&mut self, time: Timestamp) {
        self.flows.pass(time);
    }

    /// Notes from now on which other flows' evidence verdicts rest on.
    pub(crate) fn note_other_flows(&mut self) {
        self.translations.note_uses();
    }

    /// The other flows whose evidence verdicts rested on since the last call, each kind once.
    pub(crate) fn take_other_flows(&mut self) -> BTreeSet<OtherFlows> {
        self.translations.take_uses()
    }

    /// The stale ones (C8) of the node's UDP entries, which can be older than the trace: they lead to a former endpoint,
    /// and their sender has sent since. The caller observes them as sightings of [`Hook::EntryReread`].
    pub fn stale_entries(&self, entries: &[ListedEntry]) -> Vec<ListedEntry> {
        let history = &self.cluster.history;
        let gone = |entry: &&ListedEntry| {
            let Some(endpoint) = entry.ct.endpoint() else { return false };
            let orig = entry.ct.orig;
            let Address::Vip(vip) = history.address(orig.dst.socket(), orig.protocol, entry.read_at) else {
                return false;
            };
            let gone_since = match history.membership(&vip, endpoint, entry.read_at) {
                Membership::NeverSeen { since } => Some(since),
                membership => membership.unusable_since(),
            };
            // An entry whose sender has stopped only waits for its timeout.
            let is_used = |since: Timestamp| entry.last_packet > Some(since.saturating_add(self.grace));
            gone_since.is_some_and(is_used)
        };
        entries.iter().filter(gone).copied().collect()
    }

    /// As [`FlowTable::lost`].
    pub fn lost(&mut self, lost: Lost) {
        self.lost = self.lost.saturating_add(lost.count);
        self.flows.lost(lost);
    }

    /// Reports that an unknown number of events is missing between `from` and `to`: it counts as one.
    pub(crate) fn lost_uncounted(&mut self, from: Timestamp, to: Timestamp) {
        self.lost = self.lost.saturating_add(1);
        self.uncounted_losses += 1;
        self.flows.lost_uncounted(from, to);
    }

    /// How many of [`Self::lost_events`] stand for an unknown number.
    pub(crate) fn uncounted_losses(&self) -> u64 {
        self.uncounted_losses
    }

    /// Reports that the kernel suppressed events: only the flows of that client, or of that Service, that were alive then
    /// carry the count. Call it before the time advances past `suppressed.to`.
    pub fn suppressed(&mut self, suppressed: Suppressed) {
        self.suppressed.add(&suppressed, &self.cluster.history);
        self.flows.suppressed(suppressed);
    }

    /// The number of events that the kernel suppressed so far.
    pub fn suppressed_events(&self) -> u64 {
        self.suppressed.total
    }

    /// Of these, the events of each Service, as far as their address or a flow of their client shows it.
    pub fn suppressed_by_service(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.suppressed.by_service()
    }

    /// Whether the wall clock was stepped since the last [`Self::set_wall_clock`], if it is now this far ahead of the clock
    /// of the trace.
    pub fn is_wall_step(&self, ahead_ns: i64) -> bool {
        self.wall_clock.is_step(ahead_ns)
    }

    /// The wall clock was stepped: the times of later verdicts follow it, and nothing else changes.
    pub fn set_wall_clock(&mut self, step: WallStep) {
        self.wall_clock.set(step);
        self.changes.wall_clock(step);
    }

    /// By how many nanoseconds the wall clock is ahead of the clock of the trace, if it was stepped.
    pub(crate) fn wall_ahead_ns(&self) -> Option<i64> {
        self.wall_clock.ahead_ns()
    }

    /// A time of the trace as the wall clock counted it then.
    pub(crate) fn unix_then(&self, time: Timestamp) -> Timestamp {
        self.wall_clock.unix_then(time)
    }

    /// The reverse: the time of the trace at which the wall clock showed this one, the latest of several.
    pub(crate) fn own_time(&self, unix: Timestamp) -> Timestamp {
        self.wall_clock.own(unix)
    }

    /// A line for each step of the wall clock.
    pub(crate) fn wall_clock_lines(&self) -> impl Iterator<Item = String> {
        self.wall_clock.lines()
    }

    /// The other nodes on this kernel, in words, as far as their flows were observed.
    pub(crate) fn other_nodes(&self) -> Option<String> {
        self.neighbours.names()
    }

    /// The number of flows that are left to them.
    pub(crate) const fn flows_of_other_nodes(&self) -> u64 {
        self.neighbours.flows()
    }

    /// The line of the summary about flows that are left to other nodes.
    pub(crate) fn left_to_other_nodes(&self) -> Option<String> {
        self.neighbours.line()
    }

    /// The line of the summary about changes that were forgotten early.
    pub(crate) fn changes_loss(&self) -> Option<String> {
        self.changes.loss()
    }

    /// The changes of the last two hours that concern the flow of a verdict, however far they are from it.
    pub(crate) fn changes_concerning(&self, verdict: &Verdict) -> Vec<NearbyChange> {
        self.changes.concerning(verdict, &self.cluster.history, self.settings.node_name.as_deref())
    }

    pub(crate) fn save_changes(&self) -> SavedChanges {
        self.changes.save().with_wall_steps(self.wall_clock.distances().clone())
    }

    /// Goes on from the changes that a recording begins with.
    pub(crate) fn restore_changes(&mut self, mut saved: SavedChanges) {
        self.wall_clock.begin(saved.take_wall_steps());
        self.changes.restore(saved);
    }

    /// Judges flows that are settled at `now`, by which time every earlier event has been observed: one step of bounded
    /// size, after which [`Self::has_backlog`] reports whether [`Self::judge`] has more. A flow whose
    /// cause is in the node's rules or counters waits for a read of the node that began after the flow
    /// ([`Self::wants_node`]): older rules say nothing about its decision.
    pub fn advance(&mut self, now: Timestamp) -> Judgements {
        let _not_read_again = self.advance_clock(now);
        self.judge(now)
    }

    /// The first half of [`Self::advance`]. Returns the kernel addresses of the conntrack entries to be read again, for
    /// flows whose verdict depends on them; the caller observes them as sightings of [`Hook::EntryReread`] before the
    /// second half, which can take long.
    pub fn advance_clock(&mut self, now: Timestamp) -> Vec<u64> {
        self.flows.advance(now);
        self.flows.take_rereads()
    }

    /// The entries that [`Self::advance_clock`] returned were read again at this time, which may be long after `now`.
    pub fn reread_at(&mut self, at: Timestamp) {
        self.flows.reread_at(at);
    }

    /// The second half: judges settled flows, as many as fit into one step.
    pub fn judge(&mut self, now: Timestamp) -> Judgements {
        let judged = self.judge_settled(now);
        self.collect(judged)
    }

    /// Whether [`Self::judge`] has more to judge at once.
    pub fn has_backlog(&self) -> bool {
        !self.ready.is_empty() || self.flows.has_settled() || (self.is_finished && self.undecided.len() > 0)
    }

    /// Ends the trace: all open flows are judged as they are, in this step and in those of [`Self::judge`] while there is
    /// a [backlog](Self::has_backlog). A last [`Self::node_read`] then judges the flows that still wait for the node.
    pub fn finish(&mut self, now: Timestamp) -> Judgements {
        self.flows.advance(now);
        self.flows.finish(now);
        self.is_finished = true;
        self.judge(now)
    }

    /// The entries of all open flows, as [`Self::advance_clock`] returns them, before [`Self::finish`].
    pub fn last_rereads(&mut self) -> Vec<u64> {
        self.flows.last_rereads()
    }

    /// When [`Self::advance`] has work again without a new sighting.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.flows.next_deadline().into_iter().chain(self.undecided.next_deadline()).min()
    }

    /// Whether flows wait for a read of the node.
    pub fn wants_node(&self) -> bool {
        self.waiting.len() > 0
    }

    /// Receives the node's state without its rules. The reading began at `began`. It only shows changes: verdicts
    /// depend on the last whole reading.
    pub fn node_state(&mut self, snapshot: &Snapshot, began: Timestamp) {
        self.changes.node_read(snapshot, began);
    }

    /// Takes a snapshot whose reading began at `began`, and judges flows that waited for it: one step, as
    /// [`Self::judge`].
    pub fn node_read(&mut self, snapshot: Arc<Snapshot>, began: Timestamp, now: Timestamp) -> Judgements {
        self.grace = self.settings.grace.on(&snapshot);
        self.healthy.node_read(&self.node, &snapshot);
        self.changes.node_read(&snapshot, began);
        self.node = snapshot;
        self.node_read_began = Some(began);
        self.ready.extend(std::iter::from_fn(|| self.waiting.pop_due(began)));
        let mut judged = Vec::new();
        self.judge_ready(now, &mut judged);
        self.collect(judged)
    }

    fn collect(&mut self, judged: Vec<Judged>) -> Judgements {
        let (history, clock) = (&self.cluster.history, &self.wall_clock);
        let mut folded = self.healthy.take();
        folded.append(&mut self.causes.take());
        let unjudged =
            self.flows.take_unjudged().into_iter().map(|flows| NotJudged::of(flows, history, clock));
        let unjudged = unjudged.collect();
        let arrivals = std::mem::take(&mut self.arrivals);
        let crossings = self.crossings.as_mut().map(std::mem::take).unwrap_or_default();
        let mut judgements = Judgements { judged, folded, unjudged, arrivals, crossings };
        if !clock.is_steady() {
            judgements.map_times(|time| clock.unix_then(time));
        }
        judgements
    }
}
