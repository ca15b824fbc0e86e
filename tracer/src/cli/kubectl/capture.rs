//! `kubectl viptrace capture`: the input of each node's check, saved in a folder for each node.

use std::{fs, sync::Arc};

use anyhow::{Context as _, anyhow, bail};

use super::{
    AT_ONCE, Progress, Session,
    args::{CaptureArgs, ServerArgs},
    check::collect,
    trace::usage,
    traces::Objects,
    unless_stopped, with_session,
};
use crate::{
    cli::{Outcome, ResultExt as _, trace::Stop},
    error::sentence,
    kernel::now,
    node::capture::folder,
    plugin::{
        nodes::{Wish, choose},
        visit::VisitError,
    },
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
    let mut session = Session::open(server, &args.pods).await?;
    let is_dry = args.pods.dry_run.is_some();
    if !is_dry {
        session.permitted(&mut printer).await?;
    }
    let mut stop = Stop::listen()?;
    let objects = unless_stopped(&mut stop, Objects::open(&session, progress)).await?;
    let wish = args.nodes.wish(&session.namespace).map_err(usage)?;
    let every = wish.nodes.is_empty() && wish.client.is_none();
    let wish = Wish { all: wish.all || every, ..wish };
    let choice = choose(&objects.cluster.history, &wish, None, now()).map_err(|why| anyhow!(why))?;
    let nodes = &choice.nodes;
    drop(objects);
    if is_dry {
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
    let captures = with_session(session, &mut printer, async |session, stop| {
        unless_stopped(stop, async {
            let mut captures = Vec::new();
            for some in nodes.chunks(AT_ONCE) {
                let mut reached = Vec::new();
                for (node, visit) in session.reach(some, progress).await {
                    match visit {
                        Ok(visit) => reached.push((node, visit)),
                        Err(error) => captures.push((node, Err(error))),
                    }
                }
                captures.extend(collect(session, progress, &reached).await);
            }
            Ok(captures)
        })
        .await
    })
    .await?;
    for node in &choice.not_ready {
        printer.warn(&format!("{node}: {}", VisitError::NotReady));
    }
    let (mut saved, mut failed) = (0_usize, choice.not_ready.len());
    for (node, capture) in captures {
        let capture = match capture {
            Ok(capture) => capture,
            Err(error) => {
                failed += 1;
                printer.warn(&format!("{node}: {}", sentence(&error)));
                continue;
            }
        };
        let dir = args.folder.join(&node);
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
