//! The traces on several nodes at once.
//!
//! Owns the visits of a trace, the relay of the cluster's objects to them, and the merge of what they send.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::bail;
use kube::Client;
use tokio::{sync::mpsc, task::JoinSet, time::sleep_until};

use super::{
    Progress, Session, Visits,
    agents::{Reading, Turn},
};
use crate::{
    cli::stop::Stop,
    cluster::{self, Cluster, Feed, Key, Opened, Source, Update},
    kernel::now,
    plugin::{
        nodes::{self, Choice, MAX_NODES},
        relay::Relay,
        visit::{AgentStream, Handed, Heard, Orders, Visit, VisitError},
        wire::{self, Answer, Connection, Order, Task},
    },
    session::{Arrival, Ending, Folded, Judged, NotJudged},
    text::{count, safe},
    time::Timestamp,
    verdict::{FlowRef, Verdict},
};

/// How long the nodes may take to judge their open flows at the end.
const FINISH: Duration = Duration::from_secs(20);
/// The messages of all nodes that wait to be printed.
const QUEUE: usize = 4096;
/// The updates that are relayed at once.
const BATCH: usize = 512;
/// A wait without an event is repeated.
const IDLE: Duration = Duration::from_hours(1);

/// The cluster's objects, as the plugin watches them.
pub(super) struct Objects {
    pub(super) cluster: Cluster,
    feed: Feed,
    relay: Relay,
}

impl Objects {
    /// Reads the objects of every kind.
    pub(super) async fn open(session: &Session, progress: &Progress) -> anyhow::Result<Self> {
        progress.say(&format!("reading the cluster's objects from {}", safe(&session.server)));
        let Opened { cluster, feed, .. } =
            Source::Watch(session.access().clone()).open(cluster::LOOK_BACK).await?;
        let mut objects = Self { cluster, feed, relay: Relay::default() };
        let Self { cluster, feed, relay } = &mut objects;
        cluster.sync_with(feed, |update| relay.absorb(update)).await?;
        Ok(objects)
    }

    /// Applies an update and those that wait behind it. Returns all of them.
    async fn absorb(&mut self, update: Update) -> Vec<Update> {
        let mut updates = vec![update];
        while updates.len() < BATCH {
            let next = tokio::time::timeout(Duration::ZERO, self.feed.next()).await;
            let Ok(update) = next else { break };
            updates.push(update);
        }
        for update in &updates {
            self.relay.absorb(update);
            self.cluster.absorb(update.clone());
        }
        updates
    }
}

/// Takes the merged results of the nodes.
pub(super) trait Results {
    fn judged(&mut self, node: &str, judged: Judged) -> anyhow::Result<()>;
    /// The way of a wanted flow, as a node's trace has it.
    fn way(&mut self, text: &str, is_fault: bool) -> anyhow::Result<()>;
    fn folded(&mut self, folded: Folded);
    fn unjudged(&mut self, flows: &NotJudged);
    /// A flow to no Service's address, as the node of an endpoint observes those that another node translated.
    fn arrived(&mut self, node: &str, arrival: &Arrival);
    fn connected(&mut self, node: &str, connection: Connection);
    /// A node observes everything from now on.
    fn attached(&mut self, node: &str, hooks: usize) -> anyhow::Result<()>;
    fn warn(&mut self, text: &str) -> anyhow::Result<()>;
    /// After each turn, with the flows that are open and the events lost so far, on all nodes.
    fn turned(&mut self, cluster: &Cluster, open: u64, lost_events: u64) -> anyhow::Result<()>;
    fn deadline(&self) -> Option<Instant>;
}

/// What a node's task reports.
#[derive(Debug)]
enum Event {
    /// It takes orders from now on.
    Started(Orders),
    /// Its agent hands out verdicts.
    Agent,
    Handed(Handed),
    /// Its agent is alive, as a line at this time says, and its next line comes within this time.
    Alive(Timestamp, Duration),
    Answer(Answer),
    /// It is over.
    Over(Result<(), VisitError>),
}

/// The state of one node.
#[derive(Debug, Default)]
struct OneNode {
    orders: Option<Orders>,
    /// When it reported that it observes everything, on the clock of this program.
    attached: Option<Timestamp>,
    /// Its verdicts are those of its agent, which goes on.
    reading: Option<Reading>,
    ending: Option<Ending>,
    error: Option<VisitError>,
    open: u64,
    lost_events: u64,
    is_over: bool,
}

impl OneNode {
    /// One that is not traced.
    fn failed(error: VisitError) -> Self {
        Self { error: Some(error), is_over: true, ..Self::default() }
    }

    /// A time of this node's trace on the clock of this program, later by no more than the report that it is attached took:
    /// the clocks of two nodes may be apart. `None` until the node's trace has ended, and for a time before it.
    fn on_own_clock(&self, time: Timestamp) -> Option<Timestamp> {
        let started = self.ending.as_ref()?.started;
        (time >= started).then_some(self.attached?.saturating_add(time.since(started)))
    }

    /// Whether its agent was read once, so that a lost connection is opened again.
    fn is_read(&self) -> bool {
        self.reading.is_some() && self.attached.is_some()
    }

    /// Whether it was observed to the end, and its agent, whose trace has none, was read all the time.
    fn is_complete(&self) -> bool {
        if self.error.as_ref().is_some_and(VisitError::is_excused) {
            return true;
        }
        match &self.reading {
            Some(reading) => self.attached.is_some() && self.error.is_none() && reading.is_whole(),
            None => self.ending.is_some(),
        }
    }
}

/// The traces on all visited nodes.
pub(super) struct Traces<'s> {
    session: &'s Session,
    progress: Arc<Progress>,
    objects: Objects,
    args: Vec<String>,
    may_grow: bool,
    /// The agents that are read where their node is of interest.
    agents: BTreeMap<String, Key>,
    nodes: BTreeMap<String, OneNode>,
    events: mpsc::Receiver<(String, Event)>,
    sender: mpsc::Sender<(String, Event)>,
    tasks: JoinSet<()>,
    /// When the first node observed everything.
    started: Option<Timestamp>,
    /// When the agents, which go on, have been read for long enough.
    agents_until: Option<Instant>,
}

impl<'s> Traces<'s> {
    /// Visits the chosen nodes, and reads the agents of those that have one.
    pub(super) fn start(
        session: &'s Session,
        progress: &Arc<Progress>,
        objects: Objects,
        choice: &Choice,
        agents: BTreeMap<String, Key>,
        args: Vec<String>,
    ) -> Self {
        let new = Self::new(session, progress, objects, args, choice.may_grow);
        let mut all = Self { agents, ..new };
        for node in &choice.nodes {
            all.follow(node);
        }
        for (node, error) in VisitError::of_left_out(choice) {
            all.nodes.insert(node, OneNode::failed(error));
        }
        all
    }

    /// Traces on the nodes that were reached, and keeps why the others were not.
    pub(super) fn on(
        session: &'s Session,
        progress: &Arc<Progress>,
        objects: Objects,
        visits: &Visits,
        args: Vec<String>,
    ) -> Self {
        let mut all = Self::new(session, progress, objects, args, false);
        for (node, visit) in visits {
            match visit {
                Ok(visit) => all.start_task(node, Some(Arc::clone(visit))),
                Err(error) => {
                    all.nodes.insert(node.clone(), OneNode::failed(error.clone()));
                }
            }
        }
        all
    }

    fn new(
        session: &'s Session,
        progress: &Arc<Progress>,
        objects: Objects,
        args: Vec<String>,
        may_grow: bool,
    ) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        Self {
            session,
            progress: Arc::clone(progress),
            objects,
            args,
            may_grow,
            agents: BTreeMap::new(),
            nodes: BTreeMap::new(),
            events,
            sender,
            tasks: JoinSet::new(),
            started: None,
            agents_until: None,
        }
    }

    /// Reads the agents until then. The traces of the other nodes end by themselves.
    pub(super) fn read_agents_until(&mut self, until: Instant) {
        self.agents_until = Some(until);
    }

    /// Reads the node's agent, or visits the node, in parallel to the others.
    fn follow(&mut self, node: &str) {
        match self.agents.get(node).cloned() {
            Some(agent) => self.read_agent(node, agent),
            None => self.start_task(node, None),
        }
    }

    /// Reads what the agent of a node hands out.
    fn read_agent(&mut self, node: &str, agent: Key) {
        self.nodes.insert(node.to_owned(), OneNode { reading: Some(Reading::new()), ..OneNode::default() });
        self.connect_to_agent(node, agent);
    }

    fn connect_to_agent(&mut self, node: &str, agent: Key) {
        let (client, node, events) = (self.session.client.clone(), node.to_owned(), self.sender.clone());
        self.tasks.spawn(async move {
            let done = follow_agent(client, &agent, &node, &events).await;
            drop(events.send((node, Event::Over(done))).await);
        });
    }

    /// Starts the trace on a node, which is visited first unless it has been.
    fn start_task(&mut self, node: &str, visit: Option<Arc<Visit>>) {
        self.nodes.insert(node.to_owned(), OneNode::default());
        let task = Task::Trace {
            server: self.session.server.clone(),
            node: node.to_owned(),
            args: self.args.clone(),
        };
        let (visitor, progress) = (Arc::clone(&self.session.visitor), Arc::clone(&self.progress));
        let (node, events) = (node.to_owned(), self.sender.clone());
        self.tasks.spawn(async move {
            let done = async {
                let visit = match visit {
                    Some(visit) => visit,
                    None => Arc::new(visitor.reach(&node, |what| progress.node(&node, what)).await?),
                };
                talk(&visit, task, &node, &events).await
            };
            let done = done.await;
            drop(events.send((node.clone(), Event::Over(done))).await);
        });
    }

    /// Orders every node to connect there once.
    pub(super) async fn connect(&self, to: SocketAddr) {
        self.order(&Order::Connect(to)).await;
    }

    /// The nodes whose hooks are attached.
    pub(super) fn attached(&self) -> Vec<String> {
        self.nodes.iter().filter(|(_, node)| node.attached.is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// The visited node of a Pod with this address, and whether it observed everything since this flow of another node began.
    pub(super) fn node_of(&self, ip: IpAddr, flow: &FlowRef) -> Option<(String, bool)> {
        let pod = self.objects.cluster.history.pod_by_ip(ip, now())?;
        let name = pod.node.as_deref()?;
        let node = self.nodes.get(name)?;
        let client = flow.node.as_ref().and_then(|name| self.nodes.get(name));
        let began = client.and_then(|client| client.on_own_clock(flow.started));
        let is_observed = node.attached.zip(began).is_some_and(|(attached, began)| attached <= began);
        let lost_nothing =
            node.ending.as_ref().is_some_and(|ending| ending.lost_events == 0 && ending.flows_evicted == 0);
        Some((name.to_owned(), is_observed && lost_nothing))
    }

    /// Whether every node either observes or has failed.
    pub(super) fn is_settled(&self) -> bool {
        self.nodes.values().all(|node| node.attached.is_some() || node.is_over)
    }

    /// Waits for one event and takes those behind it. Returns whether the trace is over: by a signal, the end of every node's
    /// trace, or `until`.
    pub(super) async fn turn(
        &mut self,
        results: &mut impl Results,
        stop: &mut Stop,
        until: Option<Instant>,
    ) -> anyhow::Result<bool> {
        if self.nodes.values().all(|node| node.is_over) {
            self.require_one()?;
            return Ok(true);
        }
        // The nodes without an agent may be later.
        let agents_until = self.agents_until.filter(|until| *until > Instant::now());
        let readings = self.nodes.values().filter_map(|node| node.reading.as_ref()?.deadline()).min();
        let deadline = [results.deadline(), until, agents_until, readings].into_iter().flatten().min();
        tokio::select! {
            biased;
            () = stop.wanted() => return Ok(true),
            Some((node, event)) = self.events.recv() => {
                self.take(&node, event, results).await?;
                for _ in 0..QUEUE {
                    let Ok((node, event)) = self.events.try_recv() else { break };
                    self.take(&node, event, results).await?;
                }
            }
            update = self.objects.feed.next() => {
                let updates = self.objects.absorb(update).await;
                self.relay(updates).await;
            }
            () = sleep_until(deadline.unwrap_or_else(|| Instant::now() + IDLE).into()) => {}
        }
        self.read_again(results)?;
        let open = self.nodes.values().map(|node| node.open).sum();
        let lost = self.nodes.values().map(|node| node.lost_events).sum();
        results.turned(&self.objects.cluster, open, lost)?;
        let are_read = self.agents_until.is_some_and(|until| Instant::now() >= until);
        if self.nodes.values().all(|node| node.is_over || are_read && node.reading.is_some()) {
            self.require_one()?;
            return Ok(true);
        }
        Ok(until.is_some_and(|until| Instant::now() >= until))
    }

    /// Reconnects to agents whose connection was lost: a restarted one, or another Pod on the node since a rollout.
    fn read_again(&mut self, results: &mut impl Results) -> anyhow::Result<()> {
        let at = Instant::now();
        let is_due = |node: &OneNode| {
            let deadline = node.reading.as_ref().and_then(Reading::deadline);
            !node.is_over && deadline.is_some_and(|deadline| deadline <= at)
        };
        if !self.nodes.values().any(is_due) {
            return Ok(());
        }
        let agents = nodes::running_agents(&self.objects.cluster.history);
        let mut connect = Vec::new();
        for (name, node) in self.nodes.iter_mut().filter(|(_, node)| is_due(node)) {
            let agent = agents.get(name);
            match node.reading.as_mut().map(|reading| reading.turn(agent.is_some(), at)) {
                Some(Turn::Connect) => connect.extend(agent.map(|agent| (name.clone(), agent.clone()))),
                Some(Turn::ReadAgain(text)) => results.warn(&format!("{name}: {text}"))?,
                Some(Turn::GiveUp(error)) => {
                    results.warn(&format!("{name}: {error}"))?;
                    node.is_over = true;
                    node.error = Some(error);
                }
                Some(Turn::Nothing) | None => {}
            }
        }
        for (name, agent) in connect {
            self.connect_to_agent(&name, agent);
        }
        Ok(())
    }

    async fn relay(&self, updates: Vec<Update>) {
        for update in updates {
            self.order(&Order::Update(Box::new(update.for_relay()))).await;
        }
    }

    /// Sends an order to every node that takes orders.
    async fn order(&self, order: &Order) {
        let Ok(line) = wire::line(order) else { return };
        for orders in self.nodes.values().filter_map(|node| node.orders.as_ref()) {
            orders.send_line(line.clone()).await;
        }
    }

    async fn take(&mut self, name: &str, event: Event, results: &mut impl Results) -> anyhow::Result<()> {
        let Some(node) = self.nodes.get_mut(name) else { return Ok(()) };
        match event {
            Event::Started(orders) => {
                for update in self.objects.relay.updates(now()) {
                    orders.send(&Order::Update(Box::new(update.for_relay()))).await;
                }
                node.orders = Some(orders);
            }
            Event::Agent => {
                if let Some(reading) = &mut node.reading {
                    reading.opened(now(), Instant::now());
                }
                node.attached.get_or_insert_with(now);
                self.started.get_or_insert_with(now);
            }
            Event::Handed(handed) => {
                let Some(reading) = &mut node.reading else { return Ok(()) };
                let (is_new, said) = reading.take(&handed, now());
                if let Some(said) = said {
                    results.warn(&format!("{name}: {said}"))?;
                }
                if is_new {
                    self.grow(&handed.verdict);
                    results.judged(name, Judged::of(*handed.verdict))?;
                }
            }
            Event::Alive(at, within) => {
                if let Some(reading) = &mut node.reading {
                    reading.alive(at, within);
                }
            }
            Event::Over(Err(error)) if node.is_read() => {
                let said =
                    node.reading.as_mut().and_then(|reading| reading.lost(error, now(), Instant::now()));
                if let Some(said) = said {
                    results.warn(&format!("{name}: {said}"))?;
                }
            }
            Event::Over(done) => {
                node.is_over = true;
                node.orders = None;
                if let Err(error) = done {
                    results.warn(&format!("{name}: {error}"))?;
                    node.error = Some(error);
                }
            }
            Event::Answer(answer) => match answer {
                Answer::Attached { hooks } => {
                    node.attached = Some(now());
                    self.started.get_or_insert_with(now);
                    results.attached(name, hooks)?;
                }
                Answer::Warning(text) => results.warn(&format!("{name}: {text}"))?,
                Answer::Status { open, lost_events } => (node.open, node.lost_events) = (open, lost_events),
                Answer::Judged(judged) => {
                    self.grow(&judged.verdict);
                    results.judged(name, *judged)?;
                }
                Answer::Way { text, is_fault } => results.way(&text, is_fault)?,
                Answer::Folded(folded) => {
                    self.grow(&folded.verdict);
                    results.folded(*folded);
                }
                Answer::Unjudged(flows) => results.unjudged(&flows),
                Answer::Arrived(arrival) => results.arrived(name, &arrival),
                Answer::Connected(connection) => results.connected(name, connection),
                Answer::Ended(ending) => node.ending = Some(*ending),
                Answer::Hello { .. }
                | Answer::Artifact(_)
                | Answer::Gap(_)
                | Answer::Captured { .. }
                | Answer::Failed { .. } => {}
            },
        }
        Ok(())
    }

    /// Follows the node of a client too, where only the endpoints' nodes were chosen.
    fn grow(&mut self, verdict: &Verdict) {
        if !self.may_grow || self.nodes.len() >= MAX_NODES {
            return;
        }
        let client = verdict.flow.client.ip();
        let history = &self.objects.cluster.history;
        let node = history.pod_by_ip(client, now()).and_then(|pod| pod.node.clone());
        if let Some(node) = node.filter(|node| !self.nodes.contains_key(&**node)) {
            self.progress.node(&node, "a client of the Service is there");
            self.follow(&node);
        }
    }

    /// Whether some node is traced, or was.
    pub(super) fn has_any(&self) -> bool {
        self.nodes.values().any(|node| node.attached.is_some())
    }

    /// Fails if no node could be traced.
    fn require_one(&mut self) -> anyhow::Result<()> {
        if self.has_any() {
            return Ok(());
        }
        match self.nodes.iter_mut().find_map(|(name, node)| Some((name, node.error.take()?))) {
            Some((name, error)) => {
                Err(anyhow::Error::new(error).context(format!("no node could be traced; {name}")))
            }
            None => bail!("no node could be traced"),
        }
    }

    /// Ends every trace, takes what they still judge, and merges their endings.
    pub(super) async fn finish(
        &mut self,
        results: &mut impl Results,
        stop: &mut Stop,
    ) -> anyhow::Result<Ending> {
        self.order(&Order::Stop).await;
        let until = Instant::now() + FINISH;
        while Instant::now() < until
            && self
                .nodes
                .values()
                .any(|node| !node.is_over && node.attached.is_some() && node.reading.is_none())
        {
            tokio::select! {
                biased;
                () = stop.wanted() => break,
                Some((node, event)) = self.events.recv() => self.take(&node, event, results).await?,
                () = sleep_until(until.into()) => {}
            }
        }
        self.tasks.abort_all();
        let ended = now();
        for reading in self.nodes.values_mut().filter_map(|node| node.reading.as_mut()) {
            reading.ended(ended);
        }
        Ok(self.ending())
    }

    /// Whether each node was observed to the end.
    pub(super) fn is_complete(&self) -> bool {
        self.nodes.values().all(OneNode::is_complete)
    }

    fn ending(&mut self) -> Ending {
        let endings = self.nodes.iter().map(|(name, node)| {
            let gap = |text: String| Ending { gaps: vec![text], ..Ending::default() };
            let mut ending = if node.is_read() && node.error.is_none() {
                gap("healthy flows are a sample: that of the agent".to_owned())
            } else if let Some(ending) = &node.ending {
                ending.clone()
            } else {
                let why = match &node.error {
                    Some(error) => error.to_string(),
                    None => "it was left before its end".to_owned(),
                };
                let lost_events = node.lost_events;
                Ending { lost_events, ..gap(format!("not traced to the end: {why}")) }
            };
            if let Some(reading) = &node.reading {
                ending.gaps.extend(reading.gaps());
                if reading.earlier() > 0 {
                    let failed = count(reading.earlier(), "failed flow");
                    ending.gaps.push(format!(
                        "{failed} from before this trace left out: `kubectl viptrace collect DIR` fetches the agent's recordings"
                    ));
                }
            }
            (name.clone(), ending)
        });
        let ended = now();
        Ending {
            started: self.started.unwrap_or(ended),
            ended,
            metadata_age: self.objects.cluster.status.metadata_age(ended),
            ..Ending::of_nodes(endings)
        }
    }
}

/// Passes on what an agent hands out, until it ends.
async fn follow_agent(
    client: Client,
    agent: &Key,
    node: &str,
    events: &mpsc::Sender<(String, Event)>,
) -> Result<(), VisitError> {
    let mut stream = AgentStream::open(client, agent).await?;
    let send = async |event| drop(events.send((node.to_owned(), event)).await);
    send(Event::Agent).await;
    loop {
        let event = match stream.next().await? {
            Heard::Verdict(handed) => Event::Handed(handed),
            Heard::Alive { within } => Event::Alive(now(), within),
        };
        send(event).await;
    }
}

/// Talks with a node until its task ends.
async fn talk(
    visit: &Visit,
    task: Task,
    node: &str,
    events: &mpsc::Sender<(String, Event)>,
) -> Result<(), VisitError> {
    let mut conversation = visit.start(task).await?;
    let send = async |event| drop(events.send((node.to_owned(), event)).await);
    send(Event::Started(conversation.orders())).await;
    loop {
        let answer = conversation.next().await?;
        let is_end = matches!(answer, Answer::Ended(_));
        send(Event::Answer(answer)).await;
        if is_end {
            return Ok(());
        }
    }
}
