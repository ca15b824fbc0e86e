//! Changes in the API, of kube-proxy and on the node, with their times: a failed flow's verdict lists the nearest ones.
//!
//! Owns the timeline, its bounds, and which changes concern a flow. [`objects`], [`readings`] and [`watches`] find the
//! differences.
//! Must not judge: a change near a failure is a correlation, and no class or confidence depends on it. Does no I/O and
//! reads no clock.

mod listed;
mod objects;
mod readings;
mod watches;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{WallStep, WallSteps, wall_clock};
use crate::{
    cluster::{Cluster, Event, History, Key, Update},
    node::Snapshot,
    sighting::Hook,
    text::{self, clean},
    time::Timestamp,
    verdict::{ChangeKind, NearbyChange, Verdict},
};
pub(crate) use listed::{ChangeLister, ListedChange};
use readings::Readings;
use watches::Watches;

/// The most changes of one verdict. Further ones are counted.
const MAX_LISTED: usize = 5;
/// Older changes are forgotten: the longest window, widened.
const MAX_AGE: Duration = Duration::from_hours(2);
/// The longest text, in bytes. An API server's message can be of any length.
const MAX_TEXT_BYTES: usize = 512;
/// The most changes of one object: one that changes all the time displaces only its own.
const MAX_OF_SUBJECT: usize = 256;
/// How far a change can lie from a flow's first event, or from its end, to be listed: by default, for settings, and for
/// upgrades.
const WINDOW: Duration = Duration::from_mins(5);
const SETTINGS: Duration = Duration::from_mins(30);
const UPGRADES: Duration = Duration::from_hours(1);
/// By how much the windows grow if none has a change.
const WIDENED: u32 = 2;

/// The window of a kind.
const fn window(kind: ChangeKind) -> Duration {
    match kind {
        ChangeKind::ServiceCreated
        | ChangeKind::ServiceDeleted
        | ChangeKind::ServiceChanged
        | ChangeKind::KubeProxyConfig
        | ChangeKind::Sysctl => SETTINGS,
        ChangeKind::Upgraded => UPGRADES,
        _ => WINDOW,
    }
}

/// The object of a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Subject {
    Service(Key),
    Pod(Key),
    Node(Arc<str>),
    /// The node on which viptrace runs.
    ThisNode,
    KubeProxy,
    ApiServer,
    Viptrace,
}

impl Subject {
    /// Those that concern every flow.
    const COMMON: [Self; 4] = [Self::ThisNode, Self::KubeProxy, Self::ApiServer, Self::Viptrace];

    /// The position of its shelf.
    const fn shelf(&self) -> usize {
        match self {
            Self::Service(_) => 0,
            Self::Pod(_) => 1,
            Self::Node(_) => 2,
            Self::ThisNode | Self::KubeProxy | Self::ApiServer | Self::Viptrace => 3,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(key) => write!(f, "Service {key}"),
            Self::Pod(key) => write!(f, "Pod {key}"),
            Self::Node(name) => write!(f, "Node {name}"),
            Self::ThisNode => f.write_str("this node"),
            Self::KubeProxy => f.write_str("kube-proxy"),
            Self::ApiServer => f.write_str("API server"),
            Self::Viptrace => f.write_str("viptrace"),
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Change {
    time: Timestamp,
    /// The earliest time, if only an interval is known.
    #[serde(default)]
    after: Option<Timestamp>,
    kind: ChangeKind,
    subject: Subject,
    text: Arc<str>,
    /// The version of the API object that brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
}

impl Change {
    fn at(time: Timestamp, kind: ChangeKind, subject: Subject, text: String) -> Self {
        Self { time, after: None, kind, subject, text: text.into(), version: None }
    }

    /// Between two readings.
    fn between(
        (after, time): (Timestamp, Timestamp),
        kind: ChangeKind,
        subject: Subject,
        text: String,
    ) -> Self {
        Self { after: Some(after), ..Self::at(time, kind, subject, text) }
    }

    /// How far it lies at most from the flow's beginning or its end, whichever is nearer: a connection that breaks after hours
    /// has the changes at both. `None` if it is outside both windows, `widened` so many times, or later than the flow.
    fn distance(&self, began: Timestamp, end: Timestamp, widened: u32) -> Option<Duration> {
        let earliest = self.after.unwrap_or(self.time);
        let from = |moment: Timestamp| {
            // Zero if an interval has the moment in it.
            let at_least = moment.since(self.time).max(earliest.since(moment));
            let apart = |time: Timestamp| time.since(moment).max(moment.since(time));
            (at_least <= window(self.kind) * widened).then(|| apart(self.time).max(apart(earliest)))
        };
        [from(began), from(end)].into_iter().flatten().min().filter(|_| earliest <= end)
    }

    fn beside(&self, began: Timestamp) -> NearbyChange {
        let seconds = if self.time > began {
            -self.time.since(began).as_secs_f64()
        } else {
            began.since(self.time).as_secs_f64()
        };
        NearbyChange {
            time: self.time,
            after: self.after,
            seconds_before: (seconds * 1e3).round() / 1e3,
            kind: self.kind,
            subject: clean(self.subject.to_string()).into(),
            text: clean(self.text.to_string()).into(),
            resource_version: self.version,
        }
    }
}

/// The changes of similar subjects.
#[derive(Debug)]
struct Shelf {
    limit: usize,
    /// By the order in which they were noted.
    order: BTreeMap<u64, Subject>,
    of: HashMap<Subject, VecDeque<(u64, Change)>>,
}

impl Shelf {
    fn new(limit: usize) -> Self {
        Self { limit, order: BTreeMap::new(), of: HashMap::new() }
    }

    /// Adds a change, and returns how many earlier ones it displaced.
    fn push(&mut self, number: u64, change: Change) -> u64 {
        let mut displaced = 0;
        let line = self.of.entry(change.subject.clone()).or_default();
        self.order.insert(number, change.subject.clone());
        line.push_back((number, change));
        if line.len() > MAX_OF_SUBJECT
            && let Some((oldest, _)) = line.pop_front()
        {
            self.order.remove(&oldest);
            displaced += 1;
        }
        if self.order.len() > self.limit
            && let Some((_, subject)) = self.order.pop_first()
            && let Some(line) = self.of.get_mut(&subject)
        {
            line.pop_front();
            if line.is_empty() {
                self.of.remove(&subject);
            }
            displaced += 1;
        }
        displaced
    }

    fn forget_before(&mut self, horizon: Timestamp) {
        let order = &mut self.order;
        self.of.retain(|_, line| {
            line.retain(|(number, change)| change.time >= horizon || order.remove(number).is_none());
            !line.is_empty()
        });
    }
}

/// The timeline in a recording, for one that begins while a trace runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SavedChanges {
    changes: Vec<Change>,
    forgotten: u64,
    readings: Readings,
    watches: Watches,
    wall_ahead_ns: i64,
    /// Older recordings have only the last distance.
    wall_steps: Option<WallSteps>,
}

impl SavedChanges {
    pub(super) fn with_wall_steps(self, steps: WallSteps) -> Self {
        Self { wall_steps: Some(steps), ..self }
    }

    /// By how much the wall clock was ahead of the clock of the trace, over time.
    pub(super) fn take_wall_steps(&mut self) -> WallSteps {
        self.wall_steps.take().unwrap_or_else(|| WallSteps::constant(self.wall_ahead_ns))
    }
}

/// The changes of the last two hours.
#[derive(Debug)]
pub(super) struct Changes {
    shelves: [Shelf; 4],
    noted: u64,
    /// How often a recording's timeline replaced this one.
    restored: u64,
    forgotten: u64,
    /// The node's facts as last read.
    readings: Readings,
    watches: Watches,
    wall_ahead_ns: i64,
}

impl Default for Changes {
    /// Changes of Services, of Pods, of Nodes, and of this node: 4,096 together.
    fn default() -> Self {
        Self {
            shelves: [2048, 1024, 512, 512].map(Shelf::new),
            noted: 0,
            restored: 0,
            forgotten: 0,
            readings: Readings::default(),
            watches: Watches::default(),
            wall_ahead_ns: 0,
        }
    }
}

impl Changes {
    fn push(&mut self, mut change: Change) {
        if change.text.len() > MAX_TEXT_BYTES {
            let end = change.text.floor_char_boundary(MAX_TEXT_BYTES);
            change.text = format!("{}…", change.text.get(..end).unwrap_or_default()).into();
        }
        self.noted += 1;
        if let Some(shelf) = self.shelves.get_mut(change.subject.shelf()) {
            self.forgotten += shelf.push(self.noted, change);
        }
    }

    fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.push(change);
        }
    }

    /// Notes the differences that an update brings, before it is applied.
    pub(super) fn update(&mut self, update: &Update, cluster: &Cluster) {
        let watch = self.watches.update(update, cluster);
        let mut found = objects::differences(update, &cluster.history);
        if let (Event::Changed(_), Some(earliest)) = (&update.event, self.watches.earliest(update.kind)) {
            for change in &mut found {
                change.after = Some(earliest);
            }
        }
        self.extend(watch.into_iter().chain(found));
    }

    /// Notes the differences from the last reading, which began at `began`.
    pub(super) fn node_read(&mut self, snapshot: &Snapshot, began: Timestamp) {
        let found = self.readings.differences(snapshot, began);
        self.extend(found);
    }

    pub(super) fn hook(&mut self, hook: Hook, is_attached: bool, time: Timestamp) {
        let (kind, end) =
            if is_attached { (ChangeKind::HookAttached, "attached") } else { (ChangeKind::HookLost, "lost") };
        let text = format!("viptrace's hook at {} was {end}", hook.symbol());
        self.push(Change::at(time, kind, Subject::Viptrace, text));
    }

    pub(super) fn wall_clock(&mut self, WallStep { at, ahead_ns }: WallStep) {
        let size = ahead_ns.saturating_sub(self.wall_ahead_ns);
        self.wall_ahead_ns = ahead_ns;
        if size == 0 {
            return;
        }
        self.push(Change::at(at, ChangeKind::ClockStepped, Subject::ThisNode, wall_clock::in_words(size)));
    }

    /// Forgets changes that no later flow can have in its window.
    pub(super) fn prune(&mut self, now: Timestamp) {
        let horizon = now.saturating_sub(MAX_AGE);
        self.shelves.iter_mut().for_each(|shelf| shelf.forget_before(horizon));
    }

    /// Puts the changes near a failed flow into its verdict, and leaves every other verdict as it is.
    pub(super) fn list_in(&self, verdict: &mut Verdict, history: &History, node_name: Option<&str>) {
        if !verdict.has_failed() || self.shelves.iter().all(|shelf| shelf.order.is_empty()) {
            return;
        }
        let began = verdict.flow.started;
        let subjects = concerned(verdict, history, node_name);
        let mut near = self.near(&subjects, verdict, 1);
        if near.is_empty() {
            near = self.near(&subjects, verdict, WIDENED);
        }
        near.sort_unstable_by_key(|(distance, number, _)| (*distance, *number));
        verdict.changes_left_out = near.len().saturating_sub(MAX_LISTED) as u64;
        near.truncate(MAX_LISTED);
        verdict.changes_around = near.into_iter().map(|(.., change)| change.beside(began)).collect();
    }

    /// The changes of these subjects in the windows, each with its distance and its number.
    fn near(&self, subjects: &[Subject], verdict: &Verdict, widened: u32) -> Vec<(Duration, u64, &Change)> {
        let (began, end) = (verdict.flow.started, verdict.time);
        let of =
            |subject: &Subject| self.shelves.get(subject.shelf()).and_then(|shelf| shelf.of.get(subject));
        let noted = subjects.iter().filter_map(of).flatten();
        let inside = noted
            .filter_map(|(number, change)| Some((change.distance(began, end, widened)?, *number, change)));
        inside.collect()
    }

    /// All changes that concern the flow of a verdict.
    pub(super) fn concerning(
        &self,
        verdict: &Verdict,
        history: &History,
        node_name: Option<&str>,
    ) -> Vec<NearbyChange> {
        let of = |subject: Subject| {
            let line = self.shelves.get(subject.shelf()).and_then(|shelf| shelf.of.get(&subject));
            line.into_iter().flatten().map(|(_, change)| change.beside(verdict.flow.started))
        };
        concerned(verdict, history, node_name).into_iter().flat_map(of).collect()
    }

    /// A line for the summary, if changes of the last two hours were displaced.
    pub(super) fn loss(&self) -> Option<String> {
        (self.forgotten > 0).then(|| {
            format!(
                "{} forgotten early: verdicts may lack changes around their flow",
                text::count(self.forgotten, "change")
            )
        })
    }

    pub(super) fn save(&self) -> SavedChanges {
        let all = self.shelves.iter().flat_map(|shelf| shelf.of.values().flatten());
        let in_order: BTreeMap<u64, &Change> = all.map(|(number, change)| (*number, change)).collect();
        SavedChanges {
            changes: in_order.into_values().cloned().collect(),
            forgotten: self.forgotten,
            readings: self.readings.clone(),
            watches: self.watches.clone(),
            wall_ahead_ns: self.wall_ahead_ns,
            wall_steps: None,
        }
    }

    /// Goes on from these changes instead. The bounds hold whatever the recording contains.
    pub(super) fn restore(&mut self, saved: SavedChanges) {
        let SavedChanges { changes, forgotten, readings, watches, wall_ahead_ns, .. } = saved;
        *self = Self { readings, watches, wall_ahead_ns, restored: self.restored + 1, ..Self::default() };
        self.extend(changes);
        self.forgotten = self.forgotten.max(forgotten);
    }
}

/// The subjects whose changes concern the flow: its Service, its Pods and their nodes, and this node.
fn concerned(verdict: &Verdict, history: &History, node_name: Option<&str>) -> Vec<Subject> {
    let flow = &verdict.flow;
    let mut subjects = Subject::COMMON.to_vec();
    let service = verdict.service.as_ref();
    subjects.extend(service.map(|it| Subject::Service(Key::new(&it.namespace, &it.name))));
    let mut nodes: BTreeSet<Arc<str>> = node_name.map(Arc::from).into_iter().collect();
    for pod in [&flow.client_pod, &flow.endpoint_pod].into_iter().flatten() {
        let Some((namespace, name)) = pod.split_once('/') else { continue };
        let key = Key::new(namespace, name);
        nodes.extend(history.pod(&key, flow.started).and_then(|pod| pod.node.clone()));
        subjects.push(Subject::Pod(key));
    }
    let ends = [Some(flow.client.ip()), flow.endpoint.map(|endpoint| endpoint.ip())];
    let hosts = ends.into_iter().flatten().filter_map(|ip| history.node_by_ip(ip, flow.started));
    nodes.extend(hosts.map(|node| Arc::clone(&node.key.name)));
    subjects.extend(nodes.into_iter().map(Subject::Node));
    subjects
}

#[cfg(test)]
mod tests;
