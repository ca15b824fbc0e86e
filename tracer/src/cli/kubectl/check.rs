//! `kubectl viptrace check`: every node's check, as one report.
//!
//! The nodes only collect their texts. This machine reads the API server with the user's credentials, and judges.

use std::{collections::BTreeSet, future, mem::ManuallyDrop, sync::Arc};

use anyhow::anyhow;
use futures::{StreamExt as _, stream};

use super::{
    AT_ONCE, Follows, Progress, Session, Visits,
    args::{CheckArgs, Name, ServerArgs, is_node, name},
    print, separated,
    target::resolve,
    trace::usage,
    traces::Objects,
    unless_stopped, with_session,
};
use crate::{
    class::Class,
    cli::{Outcome, ResultExt as _, capture},
    cluster::Key,
    diagnosis::triage::{
        CheckReport, Facts, Reading, Scope,
        nodes::{NodesReport, NotChecked},
    },
    error::sentence,
    kernel::now,
    node::{self, capture::Capture},
    plugin::{
        nodes::{Choice, Wish, choose},
        visit::{Visit, VisitError},
        wire::{Answer, Task},
    },
    report::{self, Printer},
    text::{count, length, shortened},
    time::Timestamp,
};

/// Runs the checks and prints them.
pub(super) async fn run(
    args: &CheckArgs,
    server: &ServerArgs,
    mut printer: Printer,
    progress: &Arc<Progress>,
) -> anyhow::Result<Outcome> {
    args.nodes.fits(args.target.as_deref()).map_err(usage)?;
    if args.nodes.client.is_none() && args.target.as_deref().is_none_or(is_node) {
        server.without_namespace("without a Service, every namespace is checked").map_err(usage)?;
    }
    let (mut session, objects) =
        Session::begin(server, &args.pods, Follows::Visits, &mut printer, progress).await?;
    let mut wish = args.nodes.wish(&session.namespace).map_err(usage)?;
    let service = match &args.target {
        None => None,
        Some(text) => match name(text, &session.namespace).map_err(usage)? {
            Name::Node(node) => {
                wish.nodes.push(node);
                None
            }
            named => Some(service(named, text, &session, &objects).await?),
        },
    };
    let choice = nodes(&objects, wish, service.as_ref())?;
    drop(objects);
    if args.pods.is_dry_run() {
        return session.print_pods(&choice.nodes, args.output, &mut printer);
    }
    session.protect()?;
    with_session(session, &mut printer, async |session, stop, printer| {
        let scope = Scope { service };
        let report = unless_stopped(stop, check(session, progress, &choice, &scope)).await?;
        print(&report, report::nodes::text, args.output, printer)?;
        Ok(Outcome::of(report.state, report.is_possibly_broken()))
    })
    .await
}

/// The Service that a name means.
pub(super) async fn service(
    named: Name,
    text: &str,
    session: &Session,
    objects: &Objects,
) -> anyhow::Result<Key> {
    let history = &objects.cluster.history;
    let target = resolve(named, &session.client, history).await?;
    let Some((target, key)) = target.as_ref().and_then(|target| Some((target, target.service()?))) else {
        return Err(anyhow!("{text:?} is not a Service"))
            .hint(|| "write NAMESPACE/SERVICE, svc/NAME or deploy/NAME".to_owned());
    };
    target.check(history, now())?;
    Ok(key)
}

/// The nodes to check: every node, unless the user chose.
pub(super) fn nodes(objects: &Objects, wish: Wish, service: Option<&Key>) -> anyhow::Result<Choice> {
    let every = wish.nodes.is_empty() && wish.client.is_none() && service.is_none();
    let wish = Wish { all: wish.all || every, ..wish };
    choose(&objects.cluster.history, &wish, service, now()).map_err(|why| anyhow!(why))
}

/// Checks these nodes, a few at a time.
pub(super) async fn check(
    session: &Session,
    progress: &Progress,
    choice: &Choice,
    scope: &Scope,
) -> anyhow::Result<NodesReport> {
    let nodes = &choice.nodes;
    let names = nodes.iter().map(String::as_str).collect();
    progress.say(&format!("checks {}: {}", count(nodes.len(), "node"), shortened(&names)));
    let mut checks =
        check_visited(session, progress, Session::not_reached(choice), scope, future::pending()).await;
    for some in nodes.chunks(AT_ONCE) {
        let visits = session.reach(some, progress).await;
        checks.extend(check_visited(session, progress, visits, scope, future::pending()).await);
    }
    Ok(NodesReport::of(checks, now()))
}

/// The checks of nodes that were reached. `met` returns the classes of the faults that observed flows met, as soon as they are
/// known: a second reading does not wait if they confirm the first one.
pub(super) async fn check_visited(
    session: &Session,
    progress: &Progress,
    visits: Visits,
    scope: &Scope,
    met: impl Future<Output = BTreeSet<Class>>,
) -> Vec<(String, Result<CheckReport, NotChecked>)> {
    let (mut reached, failed) = separated(visits);
    let mut checks: Vec<_> =
        failed.into_iter().map(|(node, error)| (node, Err(not_checked(&error)))).collect();
    let mut first = Vec::new();
    for (node, capture) in collect(session, progress, &reached).await {
        match capture {
            // Freeing every rule and object first would take longer than printing.
            Ok(capture) => first.push((node, ManuallyDrop::new(Facts::read(&capture)))),
            Err(error) => checks.push((node, Err(not_checked(&error)))),
        }
    }
    let readings: Vec<_> =
        first.iter().map(|(node, facts)| (node.clone(), facts, Reading::of(facts, scope))).collect();
    let (mut again, mut confirmed) = (Vec::new(), None);
    if let Some(pause) = readings.iter().filter_map(|(_, _, reading)| reading.pause()).max() {
        progress.say(&format!("reading again in {}: a difference may be of the moment", length(pause)));
        reached.retain(|(node, _)| {
            readings.iter().any(|(name, _, reading)| name == node && reading.pause().is_some())
        });
        let is_confirmed = async {
            let met = met.await;
            if !readings.iter().all(|(_, _, reading)| reading.is_confirmed_by(&met)) {
                future::pending::<()>().await;
            }
            met
        };
        let read_again = async {
            tokio::time::sleep(pause).await;
            collect(session, progress, &reached).await
        };
        tokio::select! {
            captures = read_again => again = captures,
            met = is_confirmed => confirmed = Some(met),
        }
    }
    for (node, facts, reading) in readings {
        let later = again.iter().position(|(name, _)| *name == node).map(|at| again.swap_remove(at).1);
        let report = match later {
            None => {
                let report = match &confirmed {
                    Some(met) if reading.pause().is_some() => reading.confirmed_by_flows(met),
                    _ => reading.report(),
                };
                CheckReport { facts: facts.digest(), ..report }
            }
            Some(Ok(capture)) => {
                let later = ManuallyDrop::new(Facts::read(&capture));
                CheckReport { facts: later.digest(), ..reading.confirmed_by(Reading::of(&later, scope)) }
            }
            Some(Err(error)) => {
                let why = format!("the second reading failed: {}", sentence(&error));
                checks.push((node, Err(why.into())));
                continue;
            }
        };
        checks.push((node, Ok(report)));
    }
    checks
}

fn not_checked(error: &VisitError) -> NotChecked {
    NotChecked { why: sentence(error), is_excused: error.is_excused() }
}

/// Collects the facts of these nodes and of the cluster at the same time.
pub(super) async fn collect(
    session: &Session,
    progress: &Progress,
    visits: &[(String, Arc<Visit>)],
) -> Vec<(String, Result<Capture, VisitError>)> {
    let of_nodes = async {
        let each = visits.iter().map(|(node, visit)| async {
            progress.node(node, "reading its state and rules");
            (node.clone(), of_node(visit, node).await)
        });
        stream::iter(each).buffered(AT_ONCE).collect::<Vec<_>>().await
    };
    let (of_nodes, objects) = tokio::join!(of_nodes, capture::Objects::read(session.access()));
    let mut captures = Vec::new();
    for (node, of_node) in of_nodes {
        let capture = match of_node {
            Ok((mut capture, ahead)) => {
                let mut of_cluster = objects.for_node(&node).await;
                // The node's clock is the one that its texts were read by.
                for artifact in &mut of_cluster.artifacts {
                    artifact.read = artifact.read.map(|read| ahead.apply(read));
                }
                capture::add_objects(&mut capture, of_cluster);
                Ok(capture)
            }
            Err(error) => Err(error),
        };
        captures.push((node, capture));
    }
    captures
}

/// How far a node's clock is ahead of this machine's.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    here: Timestamp,
    there: Timestamp,
}

impl Ahead {
    fn apply(self, time: Timestamp) -> Timestamp {
        time.saturating_add(self.there.since(self.here)).saturating_sub(self.here.since(self.there))
    }
}

/// What a node reads of itself, and its clock.
async fn of_node(visit: &Visit, node: &str) -> Result<(Capture, Ahead), VisitError> {
    let mut talk = visit.start(Task::Capture).await?;
    let mut capture = Capture { node: Some(node.to_owned()), ..Capture::default() };
    loop {
        match talk.next().await? {
            Answer::Artifact(artifact) => capture.artifacts.push(*artifact),
            Answer::Gap(gap) => capture.gaps.push(gap),
            Answer::Captured { taken } => {
                capture.taken = Some(taken);
                return Ok((capture, Ahead { here: node::now(), there: taken }));
            }
            _ => {}
        }
    }
}
