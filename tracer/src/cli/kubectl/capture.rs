//! `kubectl viptrace capture`: the input of each node's check, saved in a folder for each node.

use std::{fs, path::Path, sync::Arc};

use anyhow::{Context as _, bail};

use super::{
    AT_ONCE, Follows, Progress, Session,
    args::{CaptureArgs, ServerArgs},
    check::{collect, nodes},
    separated,
    trace::usage,
    unless_stopped, with_session,
};
use crate::{
    cli::{Outcome, ResultExt as _},
    error::sentence,
    node::capture::{Capture, folder},
    plugin::{nodes::Choice, visit::VisitError},
    report::{Output, Printer},
    text::{count, safe},
};

/// Saves the captures and reports their gaps.
pub(super) async fn run(
    args: &CaptureArgs,
    server: &ServerArgs,
    mut printer: Printer,
    progress: &Arc<Progress>,
) -> anyhow::Result<Outcome> {
    if args.nodes.client.is_none() {
        server.without_namespace("a capture has every namespace").map_err(usage)?;
    }
    let (mut session, objects) =
        Session::begin(server, &args.pods, Follows::Visits, &mut printer, progress).await?;
    let wish = args.nodes.wish(&session.namespace).map_err(usage)?;
    let choice = nodes(&objects, wish, None)?;
    let nodes = &choice.nodes;
    drop(objects);
    if args.pods.is_dry_run() {
        return session.print_pods(nodes, Output::Yaml, &mut printer);
    }
    fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot create {}", args.folder.display()))
        .hint(|| "name another folder".to_owned())?;
    // Checked before the work, so that a refusal comes at once.
    for node in nodes {
        folder::prepare(&args.folder.join(node)).hint(|| "name a new or an empty folder".to_owned())?;
    }
    session.protect()?;
    with_session(session, &mut printer, async |session, stop, printer| {
        let captures = unless_stopped(stop, async {
            let mut captures = Vec::new();
            for some in nodes.chunks(AT_ONCE) {
                let (reached, failed) = separated(session.reach(some, progress).await);
                captures.extend(failed.into_iter().map(|(node, error)| (node, Err(error))));
                captures.extend(collect(session, progress, &reached).await);
            }
            Ok(captures)
        })
        .await?;
        save(captures, &choice, &args.folder, printer)
    })
    .await
}

/// Writes each node's texts to its folder.
fn save(
    captures: Vec<(String, Result<Capture, VisitError>)>,
    choice: &Choice,
    into: &Path,
    printer: &mut Printer,
) -> anyhow::Result<Outcome> {
    for (node, why) in &choice.left_out {
        printer.warn(&format!("{node}: {why}"));
    }
    let missing = choice.left_out.iter().filter(|(_, why)| !choice.excuses(*why)).count();
    let (mut saved, mut failed) = (0_usize, missing);
    for (node, capture) in captures {
        let capture = match capture {
            Ok(capture) => capture,
            Err(error) => {
                failed += 1;
                printer.warn(&format!("{node}: {}", sentence(&error)));
                continue;
            }
        };
        let dir = into.join(&node);
        let manifest = folder::write(&dir, &capture, capture.taken.unwrap_or_default())?;
        saved += 1;
        printer.data(&format!(
            "{}: {}; {} could not be collected\n",
            safe(&dir.display().to_string()),
            count(manifest.files.len(), "file"),
            manifest.gaps.len()
        ))?;
    }
    printer.flush()?;
    if saved == 0 {
        bail!("no node could be captured");
    }
    Ok(if failed > 0 { Outcome::Incomplete } else { Outcome::Clean })
}
