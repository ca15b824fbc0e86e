//! The agent: verdicts and figures of a node for months, on ports, a socket and the disk.
//!
//! Owns everything around the pipeline of a trace: the configuration, the figures and their bound, the flight recorder,
//! the HTTP servers, the socket of the stream, the export by OTLP and the agent's own log. It judges nothing and reads no
//! sighting: the command line drives a trace or a replay and hands over judgements.

mod access;
pub mod config;
mod counts;
mod figures;
mod health;
mod hub;
mod log;
mod metrics;
mod otlp;
mod output;
mod process;
mod queue;
pub(crate) mod recorder;
mod server;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod tls;

use std::{
    collections::BTreeMap,
    error::Error,
    hash::BuildHasher as _,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::fast::FixedState;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    cluster::{self, Key},
    error::sentence,
    recording::{End, Header, HookLine, HookState, Recorded},
    report::{self, OutputError},
    session::{Judgements, Pair, Pipeline},
    sighting::Hook,
    time::Timestamp,
    verdict::Verdict,
};
use access::Reviewer;
use config::{Config, Level, OutputChoice};
use counts::Counts;
use figures::{HookRuns, Shared};
use health::Health;
use hub::Hub;
use log::Log;
use otlp::Outbox;
use output::Lines;
use tls::{Certificate, TlsError};

pub(crate) use hub::MAX_RECENT;
pub use recorder::{FlightRecorder, Notice, RecorderFigures};
pub use stream::{Wanted, client::answer};

/// How often the loop has to turn although nothing happens: for the bounds of the recorder, and for `/healthz`.
const TICK: Duration = Duration::from_secs(5);
/// How long the end waits, at the least, for readers of the stream, for the receiver of the export and for the log's.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often the suppressed events are counted by Service.
const COUNT_SUPPRESSED: Duration = Duration::from_secs(5);
/// How often the series of deleted Services are looked for.
const SWEEP: Duration = Duration::from_secs(30);

/// The parts that the event loop and the servers' tasks share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) figures: Arc<Shared>,
    pub(crate) log: Arc<Log>,
    pub(crate) health: Health,
    pub(crate) hub: Hub,
    pub(crate) outbox: Outbox,
    pub(crate) reviewer: Reviewer,
    pub(crate) certificate: Certificate,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    /// This node's name in Kubernetes.
    pub(crate) node: Option<String>,
}

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {place}: {error}")]
    Listen { place: String, error: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot start the thread that writes to standard output: {0}")]
    Output(io::Error),
}

/// The event loop's side of the agent.
#[derive(Debug)]
pub(crate) struct Agent {
    context: Arc<Context>,
    config: watch::Sender<Arc<Config>>,
    /// The configuration of the start: some of its keys stay in force until the agent starts again.
    started_with: Arc<Config>,
    path: PathBuf,
    recorder: FlightRecorder,
    output: Lines,
    header: Option<Header>,
    ticked: Instant,
    swept: Option<Timestamp>,
    /// The log says that other nodes share this kernel.
    knows_neighbours: bool,
    /// The suppressed events of each Service that are counted, and when they were.
    suppressed: (BTreeMap<Key, u64>, Option<Instant>),
    socket: Option<PathBuf>,
    tasks: JoinSet<()>,
    exports: JoinSet<()>,
    /// The end of the drain, once it began.
    until: Option<Instant>,
}

impl Agent {
    /// Opens the ports and the socket, and starts their tasks. Needs a runtime.
    ///
    /// # Errors
    ///
    /// If an address, the socket or the certificate cannot be used.
    pub(crate) fn start(config: Config, path: &Path, node: Option<String>) -> Result<Self, StartError> {
        let metrics = &config.metrics;
        let counts = Counts::new(metrics.max_series.as_usize(), metrics.endpoints, metrics.keep.get());
        let figures = Arc::new(Shared::new(counts));
        let log = Arc::new(Log::new(&config.log, Arc::clone(&figures)));
        let started = Self::with_log(config, path, node, figures, Arc::clone(&log));
        started.inspect_err(|_| log.close(Instant::now() + LAST_WORDS))
    }

    fn with_log(
        config: Config,
        path: &Path,
        node: Option<String>,
        figures: Arc<Shared>,
        log: Arc<Log>,
    ) -> Result<Self, StartError> {
        let output =
            Lines::to(io::stdout(), Arc::clone(&figures), Arc::clone(&log)).map_err(StartError::Output)?;
        let recorder = FlightRecorder::new(config.recorder.clone());
        let access = cluster::Access {
            kubeconfig: config.cluster.kubeconfig.clone(),
            context: config.cluster.context.clone(),
            ..cluster::Access::default()
        };
        let config = Arc::new(config);
        let (sender, receiver) = watch::channel(Arc::clone(&config));
        let context = Arc::new(Context {
            figures,
            log,
            health: Health::new(),
            hub: Hub::default(),
            outbox: Outbox::new(),
            reviewer: Reviewer::new(access),
            certificate: Certificate::default(),
            config: receiver,
            node,
        });
        open_certificates(&context, &config)?;
        let mut tasks = JoinSet::new();
        server::start(&context, &mut tasks)?;
        let socket = stream::start(&context, &mut tasks)?;
        let mut exports = JoinSet::new();
        otlp::start(&context, &mut exports);
        Ok(Self {
            context,
            config: sender,
            started_with: config,
            path: path.to_owned(),
            recorder,
            output,
            header: None,
            ticked: Instant::now(),
            swept: None,
            knows_neighbours: false,
            suppressed: (BTreeMap::new(), None),
            socket,
            tasks,
            exports,
            until: None,
        })
    }

    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.context.log
    }

    /// The start waits for this module of the kernel, or goes on.
    pub(crate) fn waits_for(&self, module: Option<&'static str>) {
        self.context.health.waits_for(module);
        if let Some(module) = module {
            self.context.log.info("start", &health::waits_for(module));
        }
    }

    fn current(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// The trace observes everything from now on. `header` describes it for recordings.
    pub(crate) fn ready(&mut self, header: Header) {
        self.hooks_are(header);
        let mut figures = self.context.figures.lock();
        figures.ready = true;
        let hooks = figures.hooks.values().filter(|attached| **attached).count();
        drop(figures);
        self.context.health.ready();
        self.context.log.info("start", &format!("observes connections to Services with {hooks} hooks"));
    }

    /// Takes the hooks of now: a module was loaded or unloaded. The next segment begins with them.
    pub(crate) fn hooks_are(&mut self, header: Header) {
        self.context.figures.lock().hooks = needed_hooks(&header.hooks);
        self.header = Some(header);
    }

    /// The kernel counts the connections, and samples the healthy ones.
    pub(crate) fn counted_by_kernel(&self) {
        self.context.figures.lock().counted_by_kernel = true;
    }

    /// The kernel counted connections; `None` if they were to no Service.
    pub(crate) fn started(&self, pair: Option<Pair>, count: u64) {
        if let Some(pair) = pair {
            self.context.figures.lock().counts.counted(pair, count);
        }
    }

    /// The kernel had no counter for so many connections.
    pub(crate) fn uncounted(&self, count: u64) {
        if count > 0 {
            self.context.figures.lock().counts.uncounted(count);
        }
    }

    /// Counts judgements and passes failed and sampled flows on.
    pub(crate) fn show(&mut self, judgements: &Judgements) -> Result<(), OutputError> {
        let Judgements { judged, folded, unjudged, .. } = judgements;
        if judged.is_empty() && folded.is_empty() && unjudged.is_empty() {
            return Ok(());
        }
        let mut figures = self.context.figures.lock();
        for flows in unjudged {
            if let Some(service) = &flows.service {
                figures.counts.evicted(service, flows.count);
            }
        }
        for judged in judged {
            figures.judged(judged);
        }
        for folded in folded {
            figures.results(folded.verdict.class.kind(), folded.count);
            figures.started(&folded.verdict, folded.count);
        }
        // The kernel's recorder reports no other healthy flows than the sampled ones.
        let is_sampled = figures.counted_by_kernel;
        drop(figures);
        let config = self.current();
        let start = Arc::clone(&self.started_with);
        let shown =
            |verdict: &&Verdict| verdict.has_failed() || is_sampled || start.sample.has(flow_hash(verdict));
        for verdict in judged.iter().map(|judged| &judged.verdict).filter(shown) {
            self.pass_on(verdict, &config)?;
        }
        Ok(())
    }

    fn pass_on(&mut self, verdict: &Verdict, config: &Config) -> Result<(), OutputError> {
        let failed = verdict.has_failed();
        let printed = failed && config.output == OutputChoice::Json;
        let exported = config.otlp.endpoint.is_some() && config.otlp.logs;
        if !failed && !exported && self.context.hub.is_empty() {
            return Ok(());
        }
        let line = report::record_line(verdict)?;
        if printed {
            self.output.push(&line);
        }
        let lost = self.context.hub.publish(&line, failed);
        let dropped = self.context.outbox.push(verdict, &line, &config.otlp, process::wall_clock());
        if lost > 0 || dropped {
            let mut figures = self.context.figures.lock();
            figures.stream_dropped += lost;
            figures.logs.dropped += u64::from(dropped);
        }
        Ok(())
    }

    /// The end of a turn of the event loop at the time `now`.
    pub(crate) fn turned(&mut self, recorded: &mut Recorded, now: Timestamp) {
        self.ticked = Instant::now();
        self.context.health.turned();
        if let Some(header) = &self.header {
            for (level, text) in self.recorder.turn(recorded, header, now, self.ticked) {
                match level {
                    Level::Error => self.context.log.error("recorder", &text),
                    Level::Warn => self.context.log.warn("recorder", &text),
                    Level::Info => self.context.log.info("recorder", &text),
                }
            }
        }
        self.update(recorded.pipeline(), now);
    }

    /// The kernel has no room for so many addresses and ports of Services.
    pub(crate) fn services_refused(&self, count: u64) {
        self.context.figures.lock().refused_ends = count;
    }

    /// Counts the suppressed events of each Service since the last time. They are often attributed after the total has
    /// counted them.
    fn count_suppressed(&mut self, pipeline: &Pipeline) {
        let (counted, at) = &mut self.suppressed;
        if at.is_some_and(|at| self.ticked.duration_since(at) < COUNT_SUPPRESSED) {
            return;
        }
        *at = Some(self.ticked);
        let mut figures = self.context.figures.lock();
        for (service, total) in pipeline.suppressed_by_service() {
            let before = counted.get(service).copied().unwrap_or_default();
            if total > before {
                figures.counts.suppressed(service, total - before);
                counted.insert(service.clone(), total);
            }
        }
    }

    fn update(&mut self, pipeline: &Pipeline, now: Timestamp) {
        self.count_suppressed(pipeline);
        let mut figures = self.context.figures.lock();
        figures.recorder = self.recorder.figures().clone();
        let counters = pipeline.counters();
        figures.open_flows = counters.open;
        figures.held_flows = pipeline.held_flows();
        figures.evicted_flows = counters.evicted;
        figures.events = counters.sightings;
        figures.flows_of_other_nodes = pipeline.flows_of_other_nodes();
        figures.lost_events = pipeline.lost_events();
        figures.suppressed_events = pipeline.suppressed_events();
        let status = &pipeline.cluster().status;
        figures.metadata_age = status.metadata_age(now);
        figures.watches = cluster::Kind::ALL.map(|kind| status.kind(kind).connected);
        if self.swept.is_none_or(|swept| now.since(swept) >= SWEEP) {
            self.swept = Some(now);
            figures.counts.remove_gone(&pipeline.cluster().history, now, process::wall_clock());
            drop(figures);
            for gap in status.gaps(now) {
                self.context.log.warn("metadata", &gap);
            }
            if let Some(nodes) = pipeline.other_nodes().filter(|_| !self.knows_neighbours) {
                self.knows_neighbours = true;
                let line = format!(
                    "other nodes share this kernel ({nodes}): their flows are left to the agents there"
                );
                self.context.log.info("gap", &line);
            }
        }
    }

    /// Takes the kernel's counts about the hooks' programs: of each hook its kernel name, the runs that the kernel
    /// skipped, and the time and number of the runs that it measured.
    pub(crate) fn kernel_runs(
        &self,
        runs: impl IntoIterator<Item = (&'static str, u64, Option<(Duration, u64)>)>,
    ) {
        let runs = runs.into_iter().map(|(hook, skipped, measured)| (hook, HookRuns { skipped, measured }));
        self.context.figures.lock().runs.extend(runs);
    }

    /// The kernel gives up a decision after about this time; `None` while it gives up none.
    pub(crate) fn decisions_last(&self, retention: Option<Duration>) {
        self.context.figures.lock().decision_retention = retention;
    }

    /// When the loop has to turn although nothing happens.
    pub(crate) fn deadline(&self) -> Instant {
        self.ticked + TICK
    }

    /// Rereads the configuration. An invalid file, or one that names an unusable certificate, is reported, and the old
    /// configuration stays.
    pub(crate) fn reload(&mut self, recorded: &mut Recorded, now: Timestamp) {
        let context = &self.context;
        let new = match reread(context, &self.path) {
            Ok(new) => new,
            Err(error) => {
                let mut figures = context.figures.lock();
                figures.failed_reloads += 1;
                figures.last_reload_failed = true;
                drop(figures);
                context.log.error("config", &format!("{}; the old configuration stays", sentence(&*error)));
                return;
            }
        };
        for key in self.started_with.needs_restart(&new) {
            context.log.warn("config", &format!("{key} takes effect when the agent starts again"));
        }
        let mut figures = context.figures.lock();
        figures.reloads += 1;
        figures.last_reload_failed = false;
        let metrics = &new.metrics;
        figures.counts.set(metrics.max_series.as_usize(), metrics.endpoints, metrics.keep.get());
        drop(figures);
        context.log.set(&new.log);
        self.recorder.set(new.recorder.clone(), recorded, now);
        self.config.send_replace(Arc::new(new));
        context.log.info("config", &format!("reread {}", self.path.display()));
    }

    /// How long the end may take.
    pub(crate) fn drain_limit(&self) -> Duration {
        self.config.borrow().drain.get()
    }

    /// How much of it is left: always some, since what was judged last is still to be written.
    pub(crate) fn time_left(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.unwrap_or_else(|| self.drain_limit()).max(LAST_WORDS)
    }

    /// The agent was asked to end: it is not ready any more.
    pub(crate) fn draining(&mut self) {
        self.until = Some(Instant::now() + self.drain_limit());
        self.context.health.draining();
        self.context.figures.lock().ready = false;
        self.context.log.info("stop", "judges the open flows and ends");
    }

    /// The trace ended: reports what it did not observe.
    pub(crate) fn ended(&self, gaps: &[String]) {
        for gap in gaps {
            self.context.log.info("gap", gap);
        }
    }

    /// Closes the last segment, unless the trace did.
    pub(crate) fn close_recording(&mut self, recorded: &mut Recorded, ended: Timestamp) {
        let limit = self.time_left();
        self.recorder.finish(recorded, End { ended, gaps: Vec::new() }, limit);
    }

    /// Sends the last records, and closes the ports and the socket.
    pub(crate) async fn finish(mut self) {
        self.context.hub.close();
        let until = self.until.unwrap_or_else(Instant::now).max(Instant::now() + LAST_WORDS);
        self.context.outbox.close(until);
        let sent = async { while self.exports.join_next().await.is_some() {} };
        // A receiver that does not answer gets no more time.
        let _ = tokio::time::timeout_at(until.into(), sent).await;
        let readers = async {
            while self.context.figures.lock().stream_readers > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // A slow reader is cut off.
        let _ = tokio::time::timeout(LAST_WORDS, readers).await;
        if let Some(socket) = &self.socket {
            // Another agent may have replaced it, or its folder may be gone.
            let _ = std::fs::remove_file(socket);
        }
        self.tasks.shutdown().await;
        self.output.finish(until.max(Instant::now() + LAST_WORDS));
        self.recorder.wait(until);
        self.context.log.info("stop", "ended");
    }
}

/// Reads the configuration again, with the certificates that it names.
fn reread(context: &Context, path: &Path) -> Result<Config, Box<dyn Error>> {
    let config = Config::read(path)?;
    open_certificates(context, &config)?;
    Ok(config)
}

/// Opens the certificates that the configuration names. They are kept: a file that becomes unusable later costs nothing.
fn open_certificates(context: &Context, config: &Config) -> Result<(), TlsError> {
    // First the export's: if it is unusable, the port keeps its old one.
    if config.otlp.endpoint.is_some()
        && let Some(authorities) = &config.otlp.ca
    {
        context.outbox.open_trust(authorities, &context.log)?;
    }
    if let Some(tls) = &config.metrics.tls {
        context.certificate.acceptor(tls, &context.log)?;
    }
    Ok(())
}

/// The hooks that this kernel and its rules need, by their kernel names: whether each is attached.
fn needed_hooks(lines: &[HookLine]) -> BTreeMap<&'static str, bool> {
    let needed = lines.iter().filter(|line| line.state != HookState::NotNeeded);
    let named = |line: &HookLine| {
        let hook = Hook::from_symbol(&line.hook)?;
        Some((hook.symbol(), line.state == HookState::Attached))
    };
    needed.filter_map(named).collect()
}

/// A number by which flows are sampled: the same for each verdict on one flow.
fn flow_hash(verdict: &Verdict) -> u64 {
    let flow = &verdict.flow;
    FixedState::default().hash_one((&flow.protocol, flow.client, flow.vip))
}
