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
        let report = screen(options.form, &title, printer, &mut stop)?;
        Box::pin(follow(options, report, stop)).await
    })
}

/// Plays the recording, and keeps its result on the screen.
pub(super) fn recording(options: &ReplayOptions, printer: Printer) -> anyhow::Result<Outcome> {
    block_on(1, async {
        let mut stop = Stop::listen()?;
        let opened = replay::open(options)?;
        let names: Vec<_> = options.files.iter().map(|path| path.display().to_string()).collect();
        let mut report = screen(options.form, &names.join(" "), printer, &mut stop)?;
        let played = replay::rows(opened, &mut report)?;
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

/// A report on a screen. Once the user ends it, a stop is wanted.
pub(super) fn screen(form: Form, title: &str, printer: Printer, stop: &mut Stop) -> anyhow::Result<Report> {
    let (orders, requests) = mpsc::channel(1);
    let report = Report::top(form, title, printer, orders).hint(|| {
        let name = called::name();
        format!("`{name} trace` prints to pipes and files; -v needs standard error elsewhere")
    })?;
    stop.also_by(requests);
    Ok(report)
}
