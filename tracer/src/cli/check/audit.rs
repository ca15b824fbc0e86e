//! `viptrace check`: judges the node and the API server, or a folder.
//!
//! Owns the order of steps and the exit status. A live check reads exactly what `viptrace capture` would save, so that
//! a folder gives the same result as its node.

use std::{collections::BTreeSet, fs, mem::ManuallyDrop, path::Path, thread};

use anyhow::Context as _;

use crate::{
    cli::{
        Outcome, ResultExt as _,
        args::{CheckOptions, ClusterSource},
        capture,
    },
    cluster::{Key, Kind},
    diagnosis::triage::{self, CheckReport, Facts, Reading, Saved, Scope, State},
    node::{
        Presence,
        capture::{Capture, Kind as ArtifactKind, folder},
    },
    report::{Output, Printer, check},
    text::{length, shortened},
};

/// The remedy where a folder does not have the node that was named.
const NODE_OF_FOLDER: &str = "leave out --node, or name a node that the folder has";

/// Runs the check and prints it.
pub(in crate::cli) fn run(options: &CheckOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let saved = options.compare.as_deref().map(read_saved).transpose()?;
    let capture = read(options, &mut printer)?;
    // The process ends with the check. Freeing every rule and object first would take longer than printing.
    let facts = ManuallyDrop::new(Facts::read(&capture));
    let scope =
        Scope { service: options.service.as_ref().map(|(namespace, name)| Key::new(namespace, name)) };
    require_node(&facts, options.from.as_deref(), options.node.as_deref())?;
    require_service(&facts, &scope)?;
    // A folder cannot be read again.
    let first = Reading::of(&facts, &scope);
    let pause = first.pause().filter(|_| options.from.is_none());
    let again;
    let (mut report, facts) = match pause {
        None => (first.report(), &facts),
        Some(pause) => {
            printer.detail(&format!("reading again in {}: a difference may be of the moment", length(pause)));
            thread::sleep(pause);
            again = ManuallyDrop::new(Facts::read(&read(options, &mut printer)?));
            (first.confirmed_by(Reading::of(&again, &scope)), &again)
        }
    };
    let is_record = matches!(options.output, Output::Json | Output::Yaml);
    if is_record || options.save.is_some() || saved.is_some() {
        report.facts = facts.digest();
    }
    if let Some(saved) = &saved {
        report.differences = triage::compare::differences(&report, saved);
    }
    match options.output {
        Output::Table | Output::Wide => {
            printer.text(&check::text(&report, printer.paint(), options.output == Output::Wide))?;
        }
        Output::Json => printer.data(&check::record(&report)?)?,
        Output::Yaml => printer.data(&check::document(&report)?)?,
    }
    printer.flush()?;
    if let Some(path) = &options.save {
        fs::write(path, check::record(&report)?)
            .with_context(|| format!("cannot save the check in {}", path.display()))
            .hint(|| "name another file with --save FILE".to_owned())?;
    }
    outcome(&report, facts)
}

fn outcome(report: &CheckReport, facts: &Facts) -> anyhow::Result<Outcome> {
    match report.state {
        // Neither the cluster nor the node's rules were read.
        State::Unknown if facts.history.is_none() && facts.node.proxy_rules.any() == Presence::Unknown => {
            Err(anyhow::anyhow!(
                "neither the cluster's objects nor this node's rules could be read: nothing was checked"
            ))
            .hint(|| {
                "run it as root on a node, with a kubeconfig; or give a captured folder with --from"
                    .to_owned()
            })
        }
        state => Ok(Outcome::of(state, report.is_possibly_broken())),
    }
}

fn read(options: &CheckOptions, printer: &mut Printer) -> anyhow::Result<Capture> {
    match &options.from {
        Some(dir) => read_folder(dir, &options.cluster, options.node.as_deref(), printer),
        None => capture::collect(&options.cluster, options.node.clone(), printer),
    }
}

/// A captured folder, with the lists of another one if `--cluster-from` names it.
pub(in crate::cli) fn read_folder(
    dir: &Path,
    cluster: &ClusterSource,
    node: Option<&str>,
    printer: &mut Printer,
) -> anyhow::Result<Capture> {
    let read = folder::read(dir, node);
    let is_of_others = matches!(read, Err(folder::FolderError::OtherNode { .. }));
    let read = read.hint(|| {
        if is_of_others {
            NODE_OF_FOLDER.to_owned()
        } else {
            "`viptrace capture DIR` makes such a folder on a node".to_owned()
        }
    })?;
    for warning in &read.warnings {
        printer.warn(warning);
    }
    let mut capture = read.capture;
    if let ClusterSource::Folder(lists) = cluster {
        capture::replace_lists(lists, &mut capture)?;
    }
    Ok(capture)
}

fn read_saved(path: &Path) -> anyhow::Result<Saved> {
    let read = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let parsed = read.and_then(|text| {
        Saved::parse(&text).map_err(|why| anyhow::anyhow!("{} is not a saved check: {why}", path.display()))
    });
    parsed.hint(|| "`viptrace check --save FILE` on the other node makes one".to_owned())
}

/// Fails if the cluster of a folder does not have the node that was named: another one would be judged instead.
pub(in crate::cli) fn require_node(
    facts: &Facts,
    from: Option<&Path>,
    node: Option<&str>,
) -> anyhow::Result<()> {
    let (Some(dir), Some(node)) = (from, node) else { return Ok(()) };
    let Some(history) = facts.history.as_ref().filter(|history| history.knows(Kind::Node)) else {
        return Ok(());
    };
    let names: BTreeSet<&str> = history.nodes().map(|node| &*node.key.name).collect();
    if names.is_empty() || names.contains(node) {
        return Ok(());
    }
    Err(anyhow::anyhow!("{} has no node {node}: it has {}", dir.display(), shortened(&names)))
        .hint(|| NODE_OF_FOLDER.to_owned())
}

/// Fails if the Service does not exist.
fn require_service(facts: &Facts, scope: &Scope) -> anyhow::Result<()> {
    let Some(key) = &scope.service else { return Ok(()) };
    let history = facts.history.as_ref().filter(|history| history.knows(Kind::Service));
    let Some(history) = history else {
        let why = facts.why_missing(ArtifactKind::Services);
        let why = why.map_or("they were not listed".to_owned(), ToString::to_string);
        return Err(anyhow::anyhow!("cannot check {key}, because the Services are not known: {why}"))
            .hint(|| "give --kubeconfig FILE, or --cluster-from DIR with saved lists".to_owned());
    };
    if history.services().any(|service| service.key == *key) {
        return Ok(());
    }
    Err(anyhow::anyhow!("there is no Service {key} in this cluster"))
        .hint(|| "`kubectl get services -A` lists the Services".to_owned())
}
