//! `kubectl viptrace`: the verbs of the plugin, one file each.
//!
//! Owns the connection to the cluster, the check of the permissions, and the removal of the Pods on every way out.

mod agents;
pub mod args;
mod capture;
mod check;
mod collect;
mod complete;
mod target;
mod trace;
mod traces;
mod why;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, anyhow, bail};
use clap::Parser as _;
use futures::{StreamExt as _, stream};
use kube::{Api, Client};
use serde::Serialize;

use crate::{
    called,
    cli::{self, Outcome, ResultExt as _, args::Global, explain, stop::Stop},
    cluster::{Access, request_error},
    plugin::{
        guard::{self, Guard, REMOVAL, Watched},
        nodes::Choice,
        permissions::{self, Permission},
        pod,
        visit::{self, AT_ONCE, CleanedUp, Visit, VisitError, Visitor},
    },
    report::{Output, Paint, Printer, Verbosity, printer::ColorChoice, record_line, yaml_document},
    text::{count, list},
};
use args::{CleanupArgs, Plugin, PodArgs, ServerArgs, Verb};
pub(super) use complete::COMPLETER;
use trace::Medium;
use traces::Objects;

/// The time between the guard's attempts.
const RETRY: Duration = Duration::from_secs(2);

/// Runs the plugin with these arguments, the program's name first.
pub(super) fn run(args: Vec<OsString>) -> ExitCode {
    if args.get(1).is_some_and(|word| word == guard::VERB) {
        return if guard_pods().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    called::by_plugin();
    let plugin = match Plugin::try_parse_from(args) {
        Ok(plugin) => plugin,
        Err(error) => return cli::usage(&error),
    };
    let verbosity = plugin.global.verbosity();
    let printer = Printer::new(verbosity, plugin.global.color);
    let progress = Arc::new(Progress::new(&plugin.global));
    cli::log_to_stderr(verbosity);
    let result = match plugin.verb {
        Verb::Replay(args) => match args.resolve() {
            Ok(options) => cli::replay::run(&options, printer),
            Err(error) => return cli::usage(&error),
        },
        Verb::Explain(args) => explain::run(&args, printer),
        Verb::Schema(args) => cli::schema::run(&args, printer),
        Verb::Why(args) => block_on(why::run(&args, &plugin.server, printer, &progress)),
        Verb::Trace(args) => {
            let medium = args.path.map_or_else(|| Medium::Lines(args.shown.form()), Medium::Ways);
            block_on(trace::run(&args.followed, medium, &plugin.server, printer, &progress))
        }
        Verb::Top(args) => {
            block_on(trace::run(&args.followed, Medium::Screen, &plugin.server, printer, &progress))
        }
        Verb::Check(args) => block_on(check::run(&args, &plugin.server, printer, &progress)),
        Verb::Capture(args) => block_on(capture::run(&args, &plugin.server, printer, &progress)),
        Verb::Collect(args) => block_on(collect::run(&args, &plugin.server, printer, &progress)),
        Verb::Cleanup(args) => block_on(cleanup(&args, &plugin.server, printer)),
    };
    cli::end(result, &plugin.global)
}

/// Completes a command line: prints the candidates as kubectl reads them.
pub(super) fn complete(words: Vec<OsString>) -> ExitCode {
    let words: Vec<String> =
        words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    complete::run(&words)
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    cli::block_on(2, work)
}

/// The work for which the objects are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    Visits,
    /// The nodes decide whether Pods are needed, and which permissions.
    VisitsOrAgents,
    /// Only agents are read.
    Agents,
}

/// Nodes with the Pods that run there, or why there is none.
type Visits = Vec<(String, Result<Arc<Visit>, VisitError>)>;
/// Nodes with the Pods that run there.
type Reached = Vec<(String, Arc<Visit>)>;

/// A connection to the cluster, and the Pods of this run.
struct Session {
    client: Client,
    /// The API server's URL.
    server: String,
    /// That of `-n`, else of the kubeconfig's context.
    namespace: String,
    visitor: Arc<Visitor>,
    pods: PodArgs,
    guard: Option<Guard>,
    guarded: Watched,
}

impl Session {
    async fn open(server: &ServerArgs, pods: &PodArgs) -> anyhow::Result<Self> {
        let access = server.access();
        let (client, url, default) = access.client_and_namespace().await?;
        let run = run_number();
        let visitor = Visitor::new(client.clone(), pods.options(), run.clone(), pods.pod_timeout);
        Ok(Self {
            client,
            server: url,
            namespace: server.namespace.clone().unwrap_or(default),
            visitor: Arc::new(visitor),
            pods: pods.clone(),
            guard: None,
            guarded: Watched { access, namespace: pods.pod_namespace.clone(), run },
        })
    }

    /// Connects, and reads the cluster's objects. Fails first if the user lacks a permission for what follows; a dry run needs
    /// none beyond reading.
    async fn begin(
        server: &ServerArgs,
        pods: &PodArgs,
        follows: Follows,
        printer: &mut Printer,
        progress: &Progress,
    ) -> anyhow::Result<(Self, Objects)> {
        let session = Self::open(server, pods).await?;
        match follows {
            _ if pods.is_dry_run() => {}
            Follows::Visits => session.permitted(printer).await?,
            Follows::VisitsOrAgents => session.readable(printer).await?,
            Follows::Agents => session.require(permissions::to_read(), printer).await?,
        }
        let mut stop = Stop::listen()?;
        let objects = unless_stopped(&mut stop, Objects::open(&session, progress)).await?;
        Ok((session, objects))
    }

    /// The number of this run.
    fn run(&self) -> &str {
        &self.guarded.run
    }

    /// How to reach the API server.
    fn access(&self) -> &Access {
        &self.guarded.access
    }

    /// Fails unless the user may read the objects and run Pods.
    async fn permitted(&self, printer: &mut Printer) -> anyhow::Result<()> {
        let mut needed = permissions::to_read();
        needed.extend(permissions::to_visit(&self.pods.pod_namespace));
        self.require(needed, printer).await
    }

    /// Fails unless the user may read the objects. If not, what else is missing is printed as well.
    async fn readable(&self, printer: &mut Printer) -> anyhow::Result<()> {
        if self.missing(permissions::to_read()).await?.is_empty() {
            return Ok(());
        }
        self.permitted(printer).await
    }

    async fn missing(&self, needed: Vec<Permission>) -> anyhow::Result<Vec<Permission>> {
        permissions::missing(&self.client, needed)
            .await
            .map_err(|error| anyhow!("cannot ask {} what you may do: {}", self.server, request_error(&error)))
    }

    /// Fails unless the user has these permissions. The missing ones are printed as roles.
    async fn require(&self, needed: Vec<Permission>, printer: &mut Printer) -> anyhow::Result<()> {
        let missing = self.missing(needed).await?;
        if missing.is_empty() {
            return Ok(());
        }
        printer.data(&permissions::roles(&missing))?;
        printer.flush()?;
        Err(anyhow!("you lack {} for this; nothing was created", count(missing.len(), "permission")))
            .hint(|| "an administrator can grant them: the roles are on standard output".to_owned())
    }

    /// Prints the Pods that would be created on these nodes.
    fn print_pods(&self, nodes: &[String], output: Output, printer: &mut Printer) -> anyhow::Result<Outcome> {
        for (number, node) in nodes.iter().enumerate() {
            let name = pod::name(&self.guarded.run, number);
            let manifest = pod::manifest(&self.pods.options(), &name, node, &self.guarded.run);
            let text = match output {
                Output::Json => format!("{}\n", serde_json::to_string_pretty(&manifest)?),
                _ => yaml_document(&manifest)?,
            };
            printer.data(&text)?;
        }
        printer.flush()?;
        Ok(Outcome::Clean)
    }

    /// Starts the process that removes the Pods if this one is killed. Call it before the first visit.
    fn protect(&mut self) -> anyhow::Result<()> {
        if self.guard.is_none() {
            self.guard = Some(Guard::start(&self.guarded)?);
        }
        Ok(())
    }

    /// Visits these nodes. The order is that of `nodes`.
    async fn reach(&self, nodes: &[String], progress: &Progress) -> Visits {
        let visits = nodes.iter().map(|node| async {
            let reached = self.visitor.reach(node, |what| progress.node(node, what)).await;
            (node.clone(), reached.map(Arc::new))
        });
        stream::iter(visits).buffered(AT_ONCE).collect().await
    }

    /// The chosen nodes that are not visited, since no Pod can start there.
    fn not_reached(choice: &Choice) -> Visits {
        VisitError::of_left_out(choice).map(|(node, error)| (node, Err(error))).collect()
    }

    /// Removes the Pods of this run.
    async fn leave(mut self, printer: &mut Printer) {
        let namespace = &self.pods.pod_namespace;
        match self.visitor.leave().await {
            Ok(names) => {
                if !names.is_empty() {
                    printer.detail(&format!("removed {}", list(&names)));
                }
                if let Some(guard) = self.guard.take() {
                    guard.dismiss();
                }
            }
            // The guard goes on trying.
            Err(error) => printer.warn(&format!(
                "Pods of this run may remain in {namespace}: {error}; {} removes them",
                cleanup_command(namespace)
            )),
        }
    }
}

/// Does the work with a session, and removes its Pods however it ends: by a result, an error or a signal. The work prints
/// its result, so that nobody waits for the removal to read it.
async fn with_session<T>(
    mut session: Session,
    printer: &mut Printer,
    work: impl AsyncFnOnce(&mut Session, &mut Stop, &mut Printer) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut stop = Stop::listen()?;
    let done = work(&mut session, &mut stop, printer).await;
    session.leave(printer).await;
    done
}

/// Waits for a signal while `work` is done. The error of a stopped work is for the user.
async fn unless_stopped<T>(
    stop: &mut Stop,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        () = stop.wanted() => bail!("stopped before there was a result"),
    }
}

/// Separates the nodes that were reached from those that were not.
fn separated(visits: Visits) -> (Reached, Vec<(String, VisitError)>) {
    let (mut reached, mut failed) = (Vec::new(), Vec::new());
    for (node, visit) in visits {
        match visit {
            Ok(visit) => reached.push((node, visit)),
            Err(error) => failed.push((node, error)),
        }
    }
    (reached, failed)
}

/// Prints a report as text or as a record.
fn print<T: Serialize>(
    report: &T,
    text: impl FnOnce(&T, Paint, bool) -> String,
    output: Output,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    match output {
        Output::Table | Output::Wide => {
            printer.text(&text(report, printer.paint(), output == Output::Wide))?;
        }
        Output::Json => printer.data(&record_line(report)?)?,
        Output::Yaml => printer.data(&yaml_document(report)?)?,
    }
    Ok(printer.flush()?)
}

/// Says on standard error what the plugin waits for on each node, when that changes.
#[derive(Debug)]
struct Progress {
    verbosity: Verbosity,
    color: ColorChoice,
    last: Mutex<BTreeMap<String, String>>,
    /// Texts for a screen, while there is one.
    held: Mutex<Option<Vec<String>>>,
}

impl Progress {
    fn new(plugin: &Global) -> Self {
        Self {
            verbosity: plugin.verbosity(),
            color: plugin.color,
            last: Mutex::default(),
            held: Mutex::default(),
        }
    }

    fn say(&self, text: &str) {
        match &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(held) => held.push(text.to_owned()),
            None => Printer::new(self.verbosity, self.color).note(text),
        }
    }

    /// From now on [`Self::held`] has the texts.
    fn hold(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
    }

    fn held(&self) -> Vec<String> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn node(&self, node: &str, text: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.insert(node.to_owned(), text.to_owned()).as_deref() != Some(text) {
            self.say(&format!("{node}: {text}"));
        }
    }
}

/// A number that no other run has, as far as the clock and the process's number allow.
fn run_number() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mixed = since.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(40);
    format!("{:08x}", (mixed ^ (mixed >> 32)) as u32)
}

/// The command that removes every Pod of the plugin from this namespace.
fn cleanup_command(namespace: &str) -> String {
    if namespace == pod::NAMESPACE {
        return "`kubectl viptrace cleanup --all`".to_owned();
    }
    format!("`kubectl viptrace cleanup --all --pod-namespace {namespace}`")
}

/// `kubectl viptrace cleanup`.
async fn cleanup(args: &CleanupArgs, server: &ServerArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    server
        .without_namespace("--pod-namespace names the namespace of the plugin's Pods")
        .map_err(trace::usage)?;
    let (client, _) = server.access().client().await?;
    let namespace = &args.pod_namespace;
    let CleanedUp { removed, in_use } =
        visit::clean_up(&Api::namespaced(client, namespace), args.all).await?;
    if !removed.is_empty() {
        let pods = count(removed.len(), "Pod");
        printer.data(&format!("removed {pods} from {namespace}: {}\n", list(&removed)))?;
    }
    if !in_use.is_empty() {
        let (pods, names) = (count(in_use.len(), "Pod"), list(&in_use));
        let command = cleanup_command(namespace);
        printer
            .data(&format!("left {pods} that another run may use: {names}; {command} removes them, too\n"))?;
    }
    if removed.is_empty() && in_use.is_empty() {
        printer.data(&format!("no Pod of the plugin is in {namespace}\n"))?;
    }
    printer.flush()?;
    Ok(Outcome::Clean)
}

/// The guard: waits for the plugin's end, and removes what it left.
fn guard_pods() -> anyhow::Result<()> {
    let Some(watched) = guard::wait()? else { return Ok(()) };
    block_on(async {
        let removal = async {
            loop {
                let removed = match watched.access.client().await {
                    Ok((client, _)) => {
                        visit::delete_run(&Api::namespaced(client, &watched.namespace), &watched.run).await
                    }
                    Err(_) => false,
                };
                if removed {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        tokio::time::timeout(REMOVAL, removal).await.context("the Pods could not be removed")?
    })
}
