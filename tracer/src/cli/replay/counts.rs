//! `viptrace replay -o counts`: the events of recordings by Service, without judging.

use std::{fs::File, path::Path};

use anyhow::Context as _;

use super::{
    lacks::{COPY_AGAIN, cut_off, damaged_parts, unusable},
    nothing_in, wanted_time,
};
use crate::{
    cli::{
        Outcome, ResultExt as _,
        args::{ReplayOptions, usage},
        selection::{Selection, Span},
        target::Target,
    },
    recording::{EventCounter, EventCounts, Lacks, Tape, Tapes},
    report::{Printer, counts},
    session::Detail,
    text::{count, list, safe},
    time::Timestamp,
};

/// Counts the events of all files, and prints them.
pub(super) fn run(options: &ReplayOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let service = service(&options.selection)?;
    let Tapes { tapes, skipped, skipped_more, copies, .. } = Tapes::find(&options.files, Detail::Faults)?;
    if tapes.is_empty() {
        return Err(nothing_in(&skipped, &options.files));
    }
    let mut lacks = unusable(&skipped, skipped_more);
    for copy in &copies {
        printer.note(&safe(&copy.to_string()));
    }
    let mut span = Span::ALL;
    if options.selection.has_times() {
        let recorded = recorded_time(&tapes);
        span = wanted_time(&options.selection, recorded)?;
        printer.note(&format!("events {span}"));
        lacks.extend(span.misses(recorded));
    }
    let mut counts = EventCounts::default();
    let mut selection = options.selection.clone();
    let mut is_whole = true;
    let mut unknown_port = None;
    for tape in &tapes {
        unknown_port =
            count_tape(tape, span, &mut selection, &mut counts, &mut lacks, &mut is_whole).or(unknown_port);
    }
    lacks.extend(missing(&counts));
    if let Some((namespace, name)) = service {
        counts.retain(|service| {
            selection.has_port(service) && *service.namespace == *namespace && *service.name == *name
        });
        if counts.services().next().is_none() {
            let port = selection.port.as_deref().map_or_else(String::new, |port| format!(":{port}"));
            let why = unknown_port.map_or_else(String::new, |why| format!(": {why}"));
            lacks.push(format!("no event of {namespace}/{name}{port} is in the recordings{why}"));
        }
    }
    printer.note(&describe(&tapes, &counts));
    printer.text(&counts::render(&counts, printer.paint()))?;
    printer.flush()?;
    // As in a replay of flows, losses that were counted are no lack of the recording.
    if counts.lost > 0 {
        let lost = count(counts.lost, "event");
        printer.warn(&format!("{lost} lost or suppressed while it was recorded"));
    }
    for lack in &lacks {
        printer.warn(&safe(lack));
    }
    if !is_whole {
        printer.note(COPY_AGAIN);
    }
    Ok(if lacks.is_empty() { Outcome::Clean } else { Outcome::Incomplete })
}

/// The wanted Service. Flows are not followed, so that nothing else of a flow can be wanted.
fn service(selection: &Selection) -> anyhow::Result<Option<(&str, &str)>> {
    let is_of_flows = selection.client.is_some() || selection.flow.is_some() || !selection.classes.is_empty();
    match &selection.target {
        _ if is_of_flows => {
            let why =
                "-o counts follows no flow: leave out --client, --flow and --class, or use another output";
            Err(usage("replay", why.to_owned()).into())
        }
        None => Ok(None),
        Some(Target::Service { namespace, name }) => Ok(Some((namespace, name))),
        Some(other) => Err(anyhow::anyhow!("-o counts counts by Service, and {other} is none"))
            .hint(|| "write --service NAMESPACE/SERVICE, or use another output".to_owned()),
    }
}

/// The time that the traces cover, each by its own clock.
fn recorded_time(tapes: &[Tape]) -> Span {
    let began = |tape: &Tape| tape.header().started;
    let ends = tapes.iter().map(|tape| tape.last_time().unwrap_or_else(|| began(tape)));
    Span { from: tapes.iter().map(began).min().unwrap_or_default(), to: ends.max().unwrap_or_default() }
}

/// Returns why the wanted port can have no event, if the Service does not have it.
fn count_tape(
    tape: &Tape,
    span: Span,
    selection: &mut Selection,
    counts: &mut EventCounts,
    lacks: &mut Vec<String>,
    is_whole: &mut bool,
) -> Option<String> {
    let mut counter = EventCounter::new(span.from, span.to);
    let mut lacks_beginning = false;
    let mut cut = None;
    for path in tape.paths() {
        let result = File::open(path)
            .context("cannot open it")
            .and_then(|file| counter.count(file, counts).map_err(anyhow::Error::from));
        match result {
            Ok(found) => {
                lacks_beginning |= found.beginning;
                cut = (!found.has_end).then_some(found.last);
                *is_whole &= found.damage.1 == 0;
                lacks.extend(in_words(path, &found));
            }
            Err(error) => lacks.push(format!("{}: {error:#}", path.display())),
        }
    }
    selection.name_ports(counter.history());
    let unknown_port = selection.unknown_port(counter.history(), Timestamp::MAX);
    counter.finish(counts);
    let node = tape.header().node_name.as_deref().unwrap_or("an unnamed node");
    let last = tape.paths().last().map(|path| path.display().to_string()).unwrap_or_default();
    let cut = cut.filter(|at| *at <= span.to).map(|at| format!("{last}: {}", cut_off(at)));
    *is_whole &= cut.is_none();
    lacks.extend(cut);
    if lacks_beginning {
        lacks.push(format!("{node}: the cluster's objects from before it began are missing"));
    }
    unknown_port
}

/// What is missing in one file.
fn in_words(path: &Path, found: &Lacks) -> Vec<String> {
    let (first, all) = &found.damage;
    let place = path.display();
    let parts = damaged_parts(first, *all);
    let mut lacks: Vec<_> = parts.into_iter().map(|part| format!("{place}: {part}")).collect();
    if found.unreadable_items > 0 {
        lacks.push(format!("{place}: {} could not be read", count(found.unreadable_items, "item")));
    }
    lacks
}

/// What is missing in all files.
fn missing(counts: &EventCounts) -> Vec<String> {
    let mut lacks = Vec::new();
    if counts.undecodable > 0 {
        lacks.push(format!("{} could not be decoded", count(counts.undecodable, "event")));
    }
    lacks
}

fn describe(tapes: &[Tape], counts: &EventCounts) -> String {
    let mut nodes: Vec<_> =
        tapes.iter().map(|tape| tape.header().node_name.as_deref().unwrap_or("an unnamed node")).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let span = counts.span.map_or_else(String::new, |(first, last)| {
        format!(" from {} to {}", first.to_the_millisecond(), last.to_the_millisecond())
    });
    format!(
        "{} of {}{span}, as each node's clock has it; no flow was judged. CONNECTIONS are the translations in the \
         recording: an agent records those of failures and of its samples",
        count(counts.events, "event"),
        safe(&list(&nodes)),
    )
}
