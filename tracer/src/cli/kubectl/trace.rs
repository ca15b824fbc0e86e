//! `kubectl viptrace trace`: traces on several nodes, and prints their verdicts as one report.
//!
//! Owns the choice of flows and the report; `traces.rs` runs the traces.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use clap::{CommandFactory as _, error::ErrorKind};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::ListParams};

use super::{
    Follows, Progress, Session,
    args::{FollowArgs, Name, Plugin, ServerArgs, fits_namespace, name},
    target::{Filter, resolve},
    traces::{Objects, Results, Traces},
    with_session,
};
use crate::{
    cli::{Outcome, ResultExt as _, args::Hooks, selection::FlowAddresses, show::Ways, top},
    cluster::{Cluster, Key, request_error},
    kernel::now,
    plugin::{nodes, permissions, wire::Connection},
    report::{Form, Output, Printer, Report, Status, View},
    session::{Arrival, Folded, Judged, NotJudged, Summary},
    text::{count, safe, shortened},
};

/// How the verdicts are shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum Medium {
    Lines(Form),
    /// The screen of `kubectl viptrace top`.
    Screen,
    /// Instead of verdicts, the ways of these flows.
    Ways(FlowAddresses),
}

/// Runs until the duration has passed, or until Ctrl-C.
pub(super) async fn run(
    args: &FollowArgs,
    medium: Medium,
    server: &ServerArgs,
    mut printer: Printer,
    progress: &Arc<Progress>,
) -> anyhow::Result<Outcome> {
    args.nodes.fits(args.target.as_deref()).map_err(usage)?;
    fits_namespace(server.namespace.as_deref(), args.target.as_deref(), &args.nodes).map_err(usage)?;
    args.pods.allow(args.duration).map_err(usage)?;
    let (mut session, objects) =
        Session::begin(server, &args.pods, Follows::VisitsOrAgents, &mut printer, progress).await?;
    let (filter, wish) = filter(args, server, &session, &objects).await?;
    let service = filter.service();
    let choice = nodes::choose(&objects.cluster.history, &wish, service.as_ref(), now())
        .map_err(|why| anyhow!(why))?;
    // An agent hands out no sightings.
    let own_pods = args.own_pods || matches!(medium, Medium::Ways(_));
    let all_agents = if own_pods { BTreeMap::new() } else { nodes::agents(&objects.cluster.history) };
    let agents: BTreeMap<&String, &Key> =
        all_agents.iter().filter(|(node, _)| choice.nodes.contains(node)).collect();
    let without: Vec<String> =
        choice.nodes.iter().filter(|node| !agents.contains_key(*node)).cloned().collect();
    let several_nodes = choice.nodes.len() > 1 || choice.may_grow;
    let form = match medium {
        Medium::Lines(form) => Form { several_nodes, ..form },
        Medium::Screen => Form { several_nodes, ..Form::default() },
        Medium::Ways(_) => Form { output: Output::Wide, several_nodes, ..Form::default() },
    };
    if args.pods.is_dry_run() {
        return session.print_pods(&without, form.output, &mut printer);
    }
    let namespaces: BTreeSet<&str> = agents.values().map(|agent| &*agent.namespace).collect();
    let mut needed: Vec<_> = namespaces.into_iter().flat_map(permissions::to_exec).collect();
    if !without.is_empty() {
        needed.extend(permissions::to_visit(&args.pods.pod_namespace));
    }
    session.require(needed, &mut printer).await?;
    let nodes = &choice.nodes;
    let names = nodes.iter().map(String::as_str).collect();
    progress.say(&format!("visits {}: {} ({})", count(nodes.len(), "node"), shortened(&names), choice.why));
    for (node, why) in &choice.left_out {
        printer.warn(&format!("{node}: {why}"));
    }
    if !agents.is_empty() {
        let names = agents.keys().map(|name| name.as_str()).collect();
        printer.note(&format!(
            "reads the agent on {}: failed flows and a sample of the others; --own-pods traces every flow",
            shortened(&names)
        ));
        if args.hooks.is_some() {
            printer.warn(&format!(
                "--hooks is not followed on {}: the agent there has hooks of its own, and --own-pods reads no agent",
                shortened(&names)
            ));
        }
    }
    if !without.is_empty() || choice.may_grow {
        session.protect()?;
    }
    with_session(session, &mut printer, async |session, stop, _| {
        let printer = Printer::new(progress.verbosity, progress.color);
        let report = match medium {
            Medium::Lines(_) | Medium::Ways(_) => Report::new(form, printer),
            Medium::Screen => {
                let report = top::screen(form, &filter.to_string(), printer, stop, "trace")?;
                progress.hold();
                report
            }
        };
        let path = if let Medium::Ways(path) = medium { Some(path) } else { None };
        let ways = path.map(|_| Ways::default());
        let mut view = Shown { filter, summary: Summary::default(), report, progress, ways };
        let hooks = args.hooks.unwrap_or_default();
        let orders = task_args(&view.filter, form.view, path, args.duration, hooks);
        let mut trace = Traces::start(session, progress, objects, &choice, all_agents, orders);
        if let Some(duration) = args.duration {
            trace.read_agents_until(Instant::now() + duration);
        }
        while !trace.turn(&mut view, stop, None).await? {}
        let ending = trace.finish(&mut view, stop).await?;
        let has_fault = if let Some(ways) = view.ways {
            ways.finish(&mut view.report)?
        } else {
            view.report.finish(&view.summary, &ending)?;
            view.summary.counts().faults > 0
        };
        Ok(match has_fault {
            true => Outcome::Faults,
            false if !trace.is_complete() => Outcome::Incomplete,
            false => Outcome::Clean,
        })
    })
    .await
}

/// An error of the command line's usage.
pub(super) fn usage(why: String) -> anyhow::Error {
    anyhow::Error::new(Plugin::command().error(ErrorKind::ValueValidation, why))
}

/// The flows that are shown, and the nodes that the user wants.
async fn filter(
    args: &FollowArgs,
    server: &ServerArgs,
    session: &Session,
    objects: &Objects,
) -> anyhow::Result<(Filter, nodes::Wish)> {
    let mut wish = args.nodes.wish(&session.namespace).map_err(usage)?;
    let mut filter = Filter::default();
    if let Some(text) = &args.target {
        let named = name(text, &session.namespace).map_err(usage)?;
        if let Name::Node(node) = &named {
            wish.nodes.push(node.clone());
        }
        filter.target = resolve(named, &session.client, &objects.cluster.history).await?;
        if let Some(target) = &filter.target {
            target.check(&objects.cluster.history, now())?;
        }
    } else if !args.all_namespaces {
        filter.namespace.clone_from(&server.namespace);
        let history = &objects.cluster.history;
        if let Some(namespace) = &server.namespace
            && !history.services().any(|service| *service.key.namespace == **namespace)
        {
            return Err(anyhow!("the namespace {} has no Services", safe(namespace)))
                .hint(|| "`kubectl get services -A` lists them".to_owned());
        }
    }
    if let Some(selector) = &args.selector {
        filter.services = Some(selected(session, selector, filter.namespace.as_deref()).await?);
    }
    Ok((filter, wish))
}

/// The Services with these labels.
async fn selected(session: &Session, selector: &str, namespace: Option<&str>) -> anyhow::Result<Vec<Key>> {
    let client = session.client.clone();
    let services: Api<Service> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let listed = services
        .list_metadata(&ListParams::default().labels(selector))
        .await
        .map_err(|error| anyhow!("cannot list the Services with -l {selector}: {}", request_error(&error)))?;
    let keys: Vec<Key> = listed
        .items
        .into_iter()
        .filter_map(|item| Some(Key::new(&item.metadata.namespace?, &item.metadata.name?)))
        .collect();
    if keys.is_empty() {
        return Err(anyhow!("no Service has the labels {selector}"))
            .hint(|| "`kubectl get services -A --show-labels` lists them".to_owned());
    }
    Ok(keys)
}

/// The arguments of the trace on each node.
pub(super) fn task_args(
    filter: &Filter,
    view: View,
    path: Option<FlowAddresses>,
    duration: Option<Duration>,
    hooks: Hooks,
) -> Vec<String> {
    let mut args: Vec<String> = filter.target.iter().map(ToString::to_string).collect();
    if let Some(path) = path {
        args.extend(["--path".to_owned(), path.to_string()]);
    } else if view == View::All || filter.namespace.is_some() || filter.services.is_some() {
        // The plugin filters by namespace or labels, so it needs each flow.
        args.push("--all".to_owned());
    }
    if let Some(duration) = duration {
        args.extend(["--duration".to_owned(), format!("{}ms", duration.as_millis())]);
    }
    let hooks = match hooks {
        Hooks::Full => "full",
        Hooks::Lean => "lean",
        Hooks::Failures => "failures",
    };
    args.extend(["--hooks".to_owned(), hooks.to_owned()]);
    args
}

/// Shows the merged verdicts.
struct Shown<'a> {
    filter: Filter,
    summary: Summary,
    report: Report,
    progress: &'a Progress,
    ways: Option<Ways>,
}

impl Results for Shown<'_> {
    fn judged(&mut self, _: &str, judged: Judged) -> anyhow::Result<()> {
        if self.ways.is_none() && self.filter.shows(&judged.verdict) {
            self.summary.add(&judged);
            self.report.show(&judged, Instant::now())?;
        }
        Ok(())
    }

    fn way(&mut self, text: &str, is_fault: bool) -> anyhow::Result<()> {
        self.ways.get_or_insert_default().show(text, is_fault, &mut self.report)
    }

    fn folded(&mut self, folded: Folded) {
        if self.ways.is_none() && self.filter.shows(&folded.verdict) {
            self.summary.add_folded(&folded);
            self.report.fold(&folded, Instant::now());
        }
    }

    fn unjudged(&mut self, flows: &NotJudged) {
        self.summary.add_unjudged(flows);
    }

    fn arrived(&mut self, _: &str, _: &Arrival) {}

    fn connected(&mut self, _: &str, _: Connection) {}

    fn attached(&mut self, node: &str, hooks: usize) -> anyhow::Result<()> {
        let what = self.filter.to_string();
        Ok(self
            .report
            .note(&format!("{node}: tracing {what} with {hooks} hooks; Ctrl-C ends with a summary"))?)
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.report.warn(text)?)
    }

    fn turned(&mut self, cluster: &Cluster, open: u64, lost_events: u64) -> anyhow::Result<()> {
        for text in self.progress.held() {
            self.report.note(&text)?;
        }
        if self.report.shows_status() {
            let now = now();
            self.report.status(Status {
                counts: self.summary.counts(),
                flows_open: open,
                lost_events,
                metadata_age: cluster.status.metadata_age(now),
                remark: cluster.status.gaps(now).into_iter().next(),
            });
        }
        Ok(self.report.tick(Instant::now())?)
    }

    fn deadline(&self) -> Option<Instant> {
        self.report.deadline()
    }
}
