//! `viptrace top`: a trace, or a recording, on a screen that a person moves in.

use std::time::Instant;

use tokio::sync::mpsc;

use crate::{
    called,
    cli::{
        Outcome, ResultExt as _,
        args::ReplayOptions,
        block_on, replay,
        stop::{Stop, sleep_until},
    },
    report::{Form, Printer, Report},
    text,
};
#[cfg(target_os = "linux")]
use crate::{
    cli::{args::TraceOptions, trace::follow},
    kernel::allocator,
};

/// Traces until the user ends it.
#[cfg(target_os = "linux")]
pub(super) fn trace(options: &TraceOptions, printer: Printer) -> anyhow::Result<Outcome> {
    allocator::keep_little();
    let title = options.target.as_ref().map_or("every Service".to_owned(), ToString::to_string);
    block_on(2, async {
        let mut stop = Stop::listen()?;
        let report = screen(options.form, &title, printer, &mut stop, "trace")?;
        Box::pin(follow(options, report, stop)).await
    })
}

/// Plays the recording, and keeps its result on the screen.
pub(super) fn recording(options: &ReplayOptions, printer: Printer) -> anyhow::Result<Outcome> {
    block_on(1, async {
        let mut stop = Stop::listen()?;
        let opened = replay::open(options)?;
        let names: Vec<_> = options.files.iter().map(|path| path.display().to_string()).collect();
        let words: Vec<_> = names.iter().map(|name| text::word(name)).collect();
        let instead = format!("replay {}", words.join(" "));
        let mut report = screen(options.form, &names.join(" "), printer, &mut stop, &instead)?;
        let played = replay::rows(opened, &mut report)?;
        played.report.played();
        while !played.report.is_over() {
            played.report.tick(Instant::now())?;
            tokio::select! {
                () = stop.wanted() => break,
                () = sleep_until(played.report.deadline()) => {}
            }
        }
        played.finish()
    })
}

/// A report on a screen. Once the user ends it, a stop is wanted. `instead` is the verb, with its arguments, that needs no
/// terminal.
pub(super) fn screen(
    form: Form,
    title: &str,
    printer: Printer,
    stop: &mut Stop,
    instead: &str,
) -> anyhow::Result<Report> {
    let (orders, requests) = mpsc::channel(1);
    let report = Report::top(form, title, printer, orders).hint(|| {
        let name = called::name();
        format!("`{name} {instead}` prints to pipes and files; -v needs standard error elsewhere")
    })?;
    stop.also_by(requests);
    Ok(report)
}
