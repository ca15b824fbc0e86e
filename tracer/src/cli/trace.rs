//! `viptrace trace`: attaches, reads, judges and prints.
//!
//! Owns the event loop: its events, the order of reads, and the end of a trace. Time advances for the flows only up to
//! the point to which all of the kernel's records have been read (`reader.rs`).

mod limits;
mod node_poller;
mod reader;
mod record;
mod recorder;
mod sink;
mod skipped;

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    called,
    cli::{
        Outcome, ResultExt as _,
        args::{ClusterSource, Hooks, TraceOptions},
        block_on,
        check::kernel::Kernel,
        selection::{FlowAddresses, Selection},
        show::detail,
        stop::{Stop, StoppedEarly, sleep_until},
    },
    cluster::{self, Access, Feed, Opened, Source, Update},
    flow::Limits,
    incident::Pathfinder,
    kernel::{
        allocator,
        attach::Options,
        boot_id,
        environment::Environment,
        layout::Layout,
        now,
        plan::{HookPlan, HookSet, State},
        recorder::RecorderOptions,
        tracer::{HookChangeKind, Tracer},
        wall_ahead_ns,
    },
    net::Netns,
    node::{Presence, Request, Snapshot},
    recording::{BYTE_ORDER, End, FORMAT, Header, HookLine, HookState, RECORD_LAYOUT, Recorded},
    report::{Printer, Report},
    session::{Ending, Grace, Judgements, Pipeline, Settings},
    sighting::ListedEntry,
    text::count,
    time::Timestamp,
};
use node_poller::{EntryLister, NodePoller, Reading};
use reader::Reader;
use record::NewFile;
use recorder::Exchange;
use sink::Shown;
pub(super) use sink::Sink;

/// The maximum of one turn for judging: the rest follows in the next turn.
const JUDGING: Duration = Duration::from_millis(100);
/// The maximum time at the end for the records that were reported before it. A second stop request ends it.
const CATCH_UP: Duration = Duration::from_secs(5);
/// The pause of that wait while records are still being written.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of metadata updates applied at once.
const BATCH_UPDATES: usize = 512;
/// The interval at which versions older than the look-back are removed.
const PRUNE: Duration = Duration::from_mins(1);
/// The interval at which the modules are read: the hooks of a new one are attached within it.
const MODULES: Duration = Duration::from_secs(1);

/// Runs until the duration has passed, or until Ctrl-C.
pub(super) fn run(options: &TraceOptions, printer: Printer) -> anyhow::Result<Outcome> {
    allocator::keep_little();
    // This thread reads, folds and judges, in one order that a replay repeats. Two others receive the
    // metadata and the signals, and parse: a list of 100 MB takes a second. All sleep while nothing happens.
    block_on(2, trace(options, printer))
}

async fn trace(options: &TraceOptions, printer: Printer) -> anyhow::Result<Outcome> {
    Box::pin(follow(options, Report::new(options.form, printer), Stop::listen()?)).await
}

/// Runs the trace, and prints it to this report.
pub(super) async fn follow(
    options: &TraceOptions,
    report: Report,
    mut stop: Stop,
) -> anyhow::Result<Outcome> {
    if let Some(record) = &options.record {
        record::check(record)?;
    }
    let mut shown = Shown::new(options, report);
    let mut trace = Trace::begin(options, &mut shown, &mut stop).await?;
    trace.watch(&mut shown, &mut stop).await?;
    let (ending, recorded) = Box::pin(trace.finish(&mut shown, &mut stop)).await?;
    if let Some(note) = recorded {
        shown.report.note(&note)?;
    }
    shown.finish(&ending)
}

/// Inspects the kernel, and prints what the source of the cluster's objects lacks.
fn inspect(
    options: &TraceOptions,
    opened: Opened,
    sink: &mut impl Sink,
) -> anyhow::Result<(Limits, Kernel, cluster::Cluster, Feed)> {
    let Opened { cluster, feed, warnings } = opened;
    for warning in &warnings {
        sink.warn(&warning.to_string())?;
    }
    let environment = Environment::inspect();
    let set = match (&options.target, options.hooks) {
        (_, Hooks::Failures) => HookSet::Failures,
        (_, Hooks::Lean) => HookSet::Lean,
        (Some(_), Hooks::Full) => HookSet::Targeted,
        (None, Hooks::Full) => HookSet::Full,
    };
    let limits = limits::limits(options, &environment);
    let kernel = Kernel::inspect(environment, set, options.attach.into());
    if let Some(obstacle) = kernel.obstacle() {
        return Err(obstacle).hint(|| untraced("`viptrace check --kernel` prints the whole plan"));
    }

    Ok((limits, kernel, cluster, feed))
}

/// What to do on a kernel that cannot be traced. The plugin has no check of the kernel.
fn untraced(hint: &str) -> String {
    if called::is_by_plugin() {
        "`kubectl viptrace check` judges the node without a trace".to_owned()
    } else {
        hint.to_owned()
    }
}

/// Removes an earlier trace's ready file: a program that waits for it would mistake it for this trace's. Only a regular
/// file is removed; a device or a pipe stays.
fn forget_ready(path: &Path) -> anyhow::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) {
        fs::remove_file(path)
            .with_context(|| format!("cannot remove the old ready file {}", path.display()))?;
    }
    Ok(())
}

pub(super) fn source(source: &ClusterSource) -> Source {
    match source {
        ClusterSource::Folder(folder) => Source::Folder(folder.clone()),
        ClusterSource::Api { kubeconfig, context } => Source::Watch(Access {
            kubeconfig: kubeconfig.clone(),
            context: context.clone(),
            ..Access::default()
        }),
    }
}

/// A trace in progress.
#[derive(Debug)]
pub(super) struct Trace<'a> {
    options: &'a TraceOptions,
    plan: HookPlan,
    layout: Arc<Layout>,
    gaps: Vec<String>,
    kernel_release: String,
    pipeline: Recorded,
    feed: Feed,
    tracer: Option<Tracer>,
    targets: Vec<IpAddr>,
    node: NodePoller,
    lister: EntryLister,
    list_failed: bool,
    reader: Reader,
    started: Timestamp,
    pruned: Instant,
    modules_read: Instant,
    exchange: Exchange,
}

impl<'a> Trace<'a> {
    /// Opens the sources, waits until the metadata is complete, and attaches every hook.
    pub(super) async fn begin(
        options: &'a TraceOptions,
        sink: &mut impl Sink,
        stop: &mut Stop,
    ) -> anyhow::Result<Self> {
        let opened = source(&options.cluster).open(cluster::LOOK_BACK).await?;
        Self::begin_with(options, opened, sink, stop).await
    }

    /// The same with an opened source of the cluster's objects.
    pub(super) async fn begin_with(
        options: &'a TraceOptions,
        opened: Opened,
        sink: &mut impl Sink,
        stop: &mut Stop,
    ) -> anyhow::Result<Self> {
        let (limits, kernel, cluster, feed) = inspect(options, opened, sink)?;
        if let Some(path) = &options.ready_file {
            forget_ready(path)?;
        }
        let begin = async {
            let mut trace = Self::prepare(options, limits, kernel, cluster, feed).await?;
            trace.sync().await?;
            anyhow::Ok(trace)
        };
        let mut trace = tokio::select! {
            trace = begin => trace?,
            // Nothing was observed: neither "nothing broken" nor an empty summary would be true.
            () = stop.wanted() => {
                return Err(StoppedEarly.into());
            }
        };
        if let Some(warning) = trace.unknown_node() {
            sink.warn(&warning)?;
        }
        if let Some(warning) = served_elsewhere(trace.pipeline.pipeline().node()) {
            sink.warn(&warning)?;
        }
        trace.attach(options, sink)?;
        // That of the first lists, and of the kernel's types.
        allocator::return_free_pages();
        Ok(trace)
    }

    async fn prepare(
        options: &'a TraceOptions,
        limits: Limits,
        kernel: Kernel,
        cluster: cluster::Cluster,
        feed: Feed,
    ) -> anyhow::Result<Self> {
        let gaps = kernel.degradations();
        let kernel_release = kernel.release().to_owned();
        let mut node = NodePoller::default();
        let own_node = kernel.in_init_netns() != Some(false);
        let request = if own_node { Request::State } else { Request::Rules };
        let Reading { snapshot, began, .. } = node.read(request).await;
        // A Pod's namespace does not identify kube-proxy's. A node that is itself a container (kind) has rules in its own.
        let has_rules = snapshot.proxy_rules.any() == Presence::Present;
        let node_netns = if own_node || has_rules { own_netns() } else { None };
        let (mut plan, layout) = kernel.into_plan()?;
        options.without_hooks.iter().for_each(|hook| plan.leave_out(*hook));
        let settings = Settings {
            limits,
            node_name: options.node.clone(),
            node_netns,
            missing_hooks: Vec::new(),
            drop_reasons: layout.drop_reasons().next().is_some(),
            grace: Grace::of(options.grace),
            detail: detail(
                options.form.view,
                &Selection { flow: options.path, ..Selection::of(options.target.clone()) },
            ),
        };
        let mut pipeline = Recorded::new(Pipeline::new(settings, cluster));
        pipeline.node_read(snapshot, began, now());
        Ok(Self {
            options,
            plan,
            layout: Arc::new(layout),
            gaps,
            kernel_release,
            pipeline,
            feed,
            tracer: None,
            targets: Vec::new(),
            node,
            lister: EntryLister::default(),
            list_failed: false,
            reader: Reader::new(now()),
            started: now(),
            pruned: Instant::now(),
            modules_read: Instant::now(),
            exchange: Exchange::new(options.node.clone(), now()),
        })
    }

    /// Waits until the metadata is complete.
    async fn sync(&mut self) -> anyhow::Result<()> {
        self.pipeline.cluster_before().sync(&mut self.feed).await?;
        let history = &self.pipeline.pipeline().cluster().history;
        if !history.knows(cluster::Kind::Service) {
            return Err(anyhow::anyhow!("no list of Services: connections cannot be matched to a Service"))
                .hint(|| "`kubectl get services -A -o json > DIR/services.json` saves it".to_owned());
        }
        self.options.target.as_ref().map_or(Ok(()), |target| target.check(history, now()))
    }

    /// The warning if no Node has this node's name: then local endpoints are unknown.
    fn unknown_node(&self) -> Option<String> {
        let history = &self.pipeline.pipeline().cluster().history;
        let name = self.options.node.as_deref()?;
        (history.knows(cluster::Kind::Node) && history.node(name, now()).is_none()).then(|| {
            format!(
                "the cluster has no Node {name}: probes and Local traffic policies are not judged; give this node's \
                 name as `kubectl get nodes` lists it with --node"
            )
        })
    }

    /// Attaches every hook and reports that the trace observes everything from now on.
    fn attach(&mut self, options: &TraceOptions, sink: &mut impl Sink) -> anyhow::Result<()> {
        let targets = options
            .target
            .as_ref()
            .map(|target| target.addresses(&self.pipeline.pipeline().cluster().history, now()));
        self.targets = targets.clone().unwrap_or_default();
        let kernel_options = Options {
            buffer_bytes: u32::try_from(options.buffer_bytes).unwrap_or(1 << 31),
            targets,
            recorder: (options.hooks == Hooks::Failures).then(|| {
                let default = RecorderOptions::default();
                let decisions = options.decisions.unwrap_or(default.decisions);
                let netns = self.pipeline.pipeline().settings().node_netns;
                RecorderOptions { netns, sample: options.sample, decisions, ..default }
            }),
        };
        let file = options.record.as_ref().map(NewFile::create).transpose()?;
        let tracer = match Tracer::attach(&self.plan, Arc::clone(&self.layout), &kernel_options) {
            Ok(tracer) => tracer,
            Err(error) => {
                if let Some(file) = file {
                    file.discard();
                }
                return Err(error)
                    .hint(|| untraced("`viptrace check --kernel` prints what this kernel allows"));
            }
        };
        tracer.report(&mut self.plan);
        let limits = self.plan.limits();
        for gap in &self.gaps {
            sink.gap(gap);
        }
        for limit in &limits {
            sink.limit(limit);
        }
        self.gaps.extend(
            self.plan.gaps().map(|(spec, reason)| format!("{}: {} ({reason})", spec.symbol, spec.absence)),
        );
        self.gaps.extend(limits);
        let missing = self.plan.gaps().map(|(spec, _)| spec.hook).collect();
        self.pipeline.set_missing_hooks(missing);
        self.started = tracer.armed_at();
        let pathfinder = options.path.map(|FlowAddresses { client, to }| Pathfinder::new(client, to));
        self.reader = Reader::with_ways(self.started, pathfinder);
        let header = self.header(tracer.clock_offset_ns());
        if let Some(pathfinder) = self.reader.pathfinder() {
            pathfinder.hooks_are(header.clone());
        }
        if let Some(file) = file {
            self.pipeline.begin(file.begin(&header)?);
        }
        sink.attached(&tracer, header)?;
        let tracer = self.tracer.insert(tracer);
        let history = &self.pipeline.pipeline().cluster().history;
        self.exchange.set_services(tracer, history, self.started, sink)?;
        if let Some(path) = &options.ready_file {
            fs::write(path, format!("{}\n", self.started))
                .with_context(|| format!("cannot write the ready file {}", path.display()))?;
        }
        Ok(())
    }

    /// The header of a recording.
    fn header(&self, clock_offset_ns: u64) -> Header {
        let settings = self.pipeline.pipeline().settings();
        let hooks = self.plan.lines().iter().map(|line| {
            let (state, reason) = match &line.state {
                State::Planned => (HookState::Attached, None),
                State::NotNeeded(reason) => (HookState::NotNeeded, Some(reason.clone())),
                State::Missing(reason) => (HookState::Missing, Some(reason.clone())),
            };
            let (hook, attach) = (line.spec.symbol.to_owned(), line.attach().to_owned());
            HookLine { hook, attach, state, reason }
        });
        let names = |(number, name): (u32, &Arc<str>)| (number, Arc::clone(name));
        Header {
            format: FORMAT,
            record_layout: RECORD_LAYOUT,
            viptrace: env!("CARGO_PKG_VERSION").to_owned(),
            byte_order: BYTE_ORDER.to_owned(),
            kernel_release: self.kernel_release.clone(),
            node_name: settings.node_name.clone(),
            boot: boot_id(),
            node_netns: settings.node_netns,
            target: self.options.target.as_ref().map(ToString::to_string),
            started: self.started,
            clock_offset_ns,
            grace_ns: u64::try_from(settings.grace.minimum().as_nanos()).unwrap_or(u64::MAX),
            grace_follows_node: matches!(settings.grace, Grace::AtLeast(_)),
            limits: settings.limits,
            hooks: hooks.collect(),
            hook_set: Some(Arc::from(self.plan.set().name())),
            offsets: self.layout.offsets().map(|(name, offset)| (name.to_owned(), offset)).collect(),
            drop_reasons: self.layout.drop_reasons().map(names).collect(),
            reset_reasons: self.layout.reset_reasons().map(names).collect(),
        }
    }

    /// The event loop.
    pub(super) async fn watch(&mut self, sink: &mut impl Sink, stop: &mut Stop) -> anyhow::Result<()> {
        let end = self.options.duration.map(|duration| Instant::now() + duration);
        self.lister.want();
        // Before the first records are read, so that a segment of the flight recorder has them.
        sink.turned(&mut self.pipeline, self.tracer.as_ref(), self.started)?;
        loop {
            let deadline = self.deadline(end, sink);
            let Some(tracer) = self.tracer.as_mut() else { return Ok(()) };
            tokio::select! {
                biased;
                () = stop.wanted() => break,
                () = sink.wanted() => {}
                update = self.feed.next() => self.absorb(update).await,
                reading = self.node.answer() => self.node_read(reading, sink)?,
                listed = self.lister.answer() => self.listed(listed, sink),
                ready = tracer.readable() => ready.context("cannot wait for the kernel's events")?,
                () = sleep_until(deadline) => {}
            }
            self.turn(sink)?;
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
        }
        Ok(())
    }

    /// Reads the kernel's records, advances the time, prints.
    fn turn(&mut self, sink: &mut impl Sink) -> anyhow::Result<()> {
        let now = self.read()?;
        self.follow_modules(sink);
        self.pipeline.measure_wall_clock(now, wall_ahead_ns());
        let began = Instant::now();
        loop {
            // The time is recorded before each step, so that a replay takes the same steps.
            let entries = self.pipeline.advance_clock(now);
            if !entries.is_empty() {
                self.reread(&entries);
                self.pipeline.reread_at(crate::kernel::now());
            }
            let judged = self.pipeline.judge(now);
            self.show(judged, now, sink)?;
            if !self.pipeline.pipeline().has_backlog() || began.elapsed() >= JUDGING {
                break;
            }
        }
        if let Some(tracer) = &mut self.tracer {
            self.exchange.turn(tracer, &self.pipeline.pipeline().cluster().history, now, sink)?;
        }
        self.lister.want();
        if self.pipeline.pipeline().wants_node() {
            self.node.want();
        } else {
            self.node.want_state();
        }
        if self.pruned.elapsed() >= PRUNE {
            self.pruned = Instant::now();
            self.pipeline.prune(now);
            allocator::return_free_pages();
        }
        sink.turned(&mut self.pipeline, self.tracer.as_ref(), now)
    }

    /// Passes on judgements of the time `now`, and the ways that are complete by then.
    fn show(&mut self, judged: Judgements, now: Timestamp, sink: &mut impl Sink) -> anyhow::Result<()> {
        let pipeline = self.pipeline.pipeline();
        if let Some(pathfinder) = self.reader.pathfinder() {
            for found in pathfinder.judged(&judged, pipeline, now) {
                sink.way(&found)?;
            }
        }
        sink.show(judged, pipeline, now)
    }

    /// Takes a reading of the node, and judges the flows that waited for its rules.
    fn node_read(&mut self, reading: Reading, sink: &mut impl Sink) -> anyhow::Result<()> {
        let (Reading { request, snapshot, began }, now) = (reading, now());
        if request == Request::State {
            self.pipeline.node_state(snapshot, began, now);
            return Ok(());
        }
        let judged = self.pipeline.node_read(snapshot, began, now);
        self.show(judged, now, sink)
    }

    /// Attaches the hooks of modules that were loaded since the last look, and notes those that are lost.
    fn follow_modules(&mut self, sink: &mut impl Sink) {
        let Some(tracer) = self.tracer.as_mut().filter(|_| self.modules_read.elapsed() >= MODULES) else {
            return;
        };
        self.modules_read = Instant::now();
        let clock_offset_ns = tracer.clock_offset_ns();
        let changes = tracer.follow_modules(&mut self.plan);
        if changes.is_empty() {
            return;
        }
        let header = self.header(clock_offset_ns);
        for change in changes {
            let is_attached = change.kind == HookChangeKind::Attached;
            self.pipeline.hook_changed(change.hook, is_attached, change.time);
            // The earlier lines of the hook are about a gap that has just ended, or begun.
            let symbol = format!("{}: ", change.hook.symbol());
            self.gaps.retain(|gap| !is_attached || !gap.starts_with(&symbol));
            sink.hook_changed(&change.text);
            self.gaps.push(change.text);
        }
        if let Some(pathfinder) = self.reader.pathfinder() {
            pathfinder.hooks_are(header.clone());
        }
        sink.hooks_are(header);
    }

    /// Reads the records in the ring buffer, as many as fit into a turn. Returns the time up to which all records have been
    /// read.
    fn read(&mut self) -> anyhow::Result<Timestamp> {
        let Some(tracer) = self.tracer.as_mut() else { return Ok(now()) };
        self.reader.read(tracer, &mut self.pipeline)
    }

    /// Reads every record that was begun before this call, within [`CATCH_UP`] or until a stop request. Otherwise a gap names
    /// the rest.
    async fn read_all(&mut self, stop: &mut Stop) -> anyhow::Result<Timestamp> {
        let (wanted, end) = (now(), Instant::now() + CATCH_UP);
        let mut is_stopped = false;
        loop {
            self.reader.wait_no_longer();
            let until = self.read()?;
            if until >= wanted {
                return Ok(until);
            }
            if is_stopped || Instant::now() >= end {
                let (from, to) = (until.to_the_millisecond(), wanted.to_the_millisecond());
                self.gaps.push(format!(
                    "events from {from} to {to} were not read before the end: there were too many"
                ));
                return Ok(until);
            }
            let pause = if self.reader.has_more() { Duration::ZERO } else { PAUSE };
            tokio::select! {
                biased;
                () = stop.wanted() => is_stopped = true,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Takes the listed entries, or reports once why they could not be listed.
    fn listed(&mut self, listed: io::Result<Vec<ListedEntry>>, sink: &mut impl Sink) {
        match listed {
            Ok(entries) => {
                let Some(tracer) = &self.tracer else { return };
                let stale = self.pipeline.pipeline().stale_entries(&entries);
                let netns = self.pipeline.pipeline().settings().node_netns.unwrap_or_default();
                self.reader.listed(&stale, netns, tracer, &mut self.pipeline);
            }
            Err(error) if !self.list_failed => {
                self.list_failed = true;
                let gap = format!("conntrack's entries could not be listed: {error} (stale UDP entries, C8)");
                sink.gap(&gap);
                self.gaps.push(gap);
            }
            Err(_) => {}
        }
    }

    /// Rereads the entries of flows without a sign of an answer. The results arrive through the ring buffer.
    fn reread(&mut self, entries: &[u64]) {
        if let Some(tracer) = self.tracer.as_mut() {
            tracer.reread(entries);
        }
    }

    /// Applies an update of the metadata and the updates that wait behind it.
    async fn absorb(&mut self, update: Update) {
        let mut concerns_services = update.concerns_services();
        self.pipeline.absorb(update);
        for _ in 1..BATCH_UPDATES {
            let next = tokio::time::timeout(Duration::ZERO, self.feed.next()).await;
            let Ok(update) = next else { break };
            concerns_services |= update.concerns_services();
            self.pipeline.absorb(update);
        }
        if concerns_services {
            self.exchange.changed();
        }
        if let (Some(target), Some(tracer)) = (&self.options.target, &mut self.tracer) {
            let wanted = target.addresses(&self.pipeline.pipeline().cluster().history, now());
            // The addresses of a removed endpoint stay in the filter: its old connections end now.
            let more: Vec<IpAddr> = wanted.into_iter().filter(|ip| !self.targets.contains(ip)).collect();
            if !more.is_empty() {
                self.targets.extend(more);
                if let Err(error) = tracer.retarget(&self.targets) {
                    tracing::warn!("the kernel's filter keeps its old addresses: {error}");
                }
            }
        }
    }

    /// The next moment at which work is due without an event.
    fn deadline(&self, end: Option<Instant>, sink: &impl Sink) -> Option<Instant> {
        let flows =
            [self.pipeline.pipeline().next_deadline(), self.reader.next_way()].into_iter().flatten().min();
        // Flows end one by one. Those that settle within the time of a batch of records are judged together.
        let together = self.tracer.as_ref().map(Tracer::batch).unwrap_or_default();
        let flows = flows.map(|at| Instant::now() + at.since(now()).max(together));
        let is_busy = self.reader.has_more() || self.pipeline.pipeline().has_backlog();
        let modules = Some(self.modules_read + MODULES);
        let due = [
            is_busy.then(Instant::now),
            flows,
            self.reader.next_reading(),
            sink.deadline(),
            self.lister.deadline(),
            self.node.deadline(),
            modules,
            end,
        ];
        due.into_iter().flatten().min()
    }

    /// Judges until nothing is left, once the flows have been handed out. A second stop request ends it.
    async fn judge_all(
        &mut self,
        sink: &mut impl Sink,
        stop: &mut Stop,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        while self.pipeline.pipeline().has_backlog() {
            tokio::select! {
                biased;
                () = stop.wanted() => {
                    self.gaps.push("the trace was stopped before every flow was judged".to_owned());
                    break;
                }
                () = tokio::task::yield_now() => {}
            }
            let judged = self.pipeline.judge(now);
            self.show(judged, now, sink)?;
        }
        Ok(())
    }

    /// Passes on the ways that no further sighting completes.
    fn last_ways(&mut self, sink: &mut impl Sink) -> anyhow::Result<()> {
        let Some(pathfinder) = self.reader.pathfinder() else { return Ok(()) };
        for found in pathfinder.finish(self.pipeline.pipeline()) {
            sink.way(&found)?;
        }
        match pathfinder.left_out() {
            0 => Ok(()),
            flows => sink.warn(&format!(
                "the way of {} is left out: too many ended at the same time",
                count(flows, "flow with these addresses")
            )),
        }
    }

    /// Judges the open flows and detaches. A second stop request ends the wait for the node. Returns the ending, and
    /// the message about the recording, if there is one.
    pub(super) async fn finish(
        mut self,
        sink: &mut impl Sink,
        stop: &mut Stop,
    ) -> anyhow::Result<(Ending, Option<String>)> {
        // The last sightings are still held back to be sorted, and the entries of their flows must be reread too.
        tokio::time::sleep(self.pipeline.pipeline().settings().limits.reorder).await;
        let last = self.read_all(stop).await?;
        let judged = self.pipeline.advance(last);
        self.show(judged, last, sink)?;
        let entries = self.pipeline.last_rereads();
        self.reread(&entries);
        self.read_all(stop).await?;
        let listed = tokio::select! {
            listed = self.lister.read() => listed,
            () = stop.wanted() => Ok(Vec::new()),
        };
        self.listed(listed, sink);
        let ended = now();
        let judged = self.pipeline.finish(ended);
        self.show(judged, ended, sink)?;
        self.judge_all(sink, stop, ended).await?;
        if self.pipeline.pipeline().wants_node() {
            let mut node = NodePoller::default();
            let reading = tokio::select! {
                reading = node.read(Request::Rules) => reading,
                // A second stop request: judges with the known facts.
                () = stop.wanted() => {
                    let snapshot = self.pipeline.pipeline().node().clone();
                    Reading { request: Request::Rules, snapshot, began: now() }
                }
            };
            self.node_read(reading, sink)?;
            let now = now();
            self.judge_all(sink, stop, now).await?;
        }
        self.last_ways(sink)?;
        let mut gaps = std::mem::take(&mut self.gaps);
        gaps.extend(self.tracer.iter().flat_map(skipped::events));
        let left_out = self.tracer.as_ref().map_or(0, Tracer::targets_left_out);
        if left_out > 0 {
            gaps.push(format!(
                "the kernel's filter is full: flows of {} of the target are not observed",
                count(left_out, "address")
            ));
        }
        let recorded = self.pipeline.end(End { ended, gaps: gaps.clone() }, sink.time_for_disk());
        if self.options.record.is_none()
            && let Some(failure) = recorded.as_ref().and_then(|finished| finished.failure.as_ref())
        {
            sink.gap(&record::broken_off("the last segment", failure));
        }
        let note = recorded.zip(self.options.record.as_ref()).map(|(finished, record)| {
            let (note, missing) = record::ended(&record.path, &finished);
            gaps.extend(missing);
            note
        });
        if let Some(tracer) = &mut self.tracer {
            self.exchange.finish(tracer, &self.pipeline.pipeline().cluster().history, ended, sink)?;
        }
        Ok((Ending::new(self.pipeline.pipeline(), self.started, ended, gaps), note))
    }
}

/// The warning if another dataplane may serve Services here and kube-proxy is not known to run. A program that can contain
/// kube-proxy proves nothing.
fn served_elsewhere(node: &Snapshot) -> Option<String> {
    let by_kube_proxy = node.reported_mode.is_some()
        || node.proxy_rules.any() == Presence::Present
        || node.running == Some(true) && node.report.embedded_in.is_none();
    let dataplane = node.other_dataplane.filter(|_| !by_kube_proxy)?;
    Some(format!(
        "{dataplane} may serve Services on this node: what it translates without netfilter, at sockets or in tc, is out of \
         scope and has no verdict"
    ))
}

/// The network namespace that this process runs in.
fn own_netns() -> Option<Netns> {
    let inode = fs::metadata(Path::new("/proc/self/ns/net")).ok()?.ino();
    u32::try_from(inode).ok().map(Netns)
}
