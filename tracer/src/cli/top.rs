//! `viptrace top`: a trace, or a recording, on a screen that a person moves in.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::{
    cli::{Outcome, ResultExt as _, args::ReplayOptions, block_on, replay, stop::Stop},
    report::{Form, Printer, Report},
};
#[cfg(target_os = "linux")]
use crate::{
    cli::{args::TraceOptions, trace::follow},
    kernel::allocator,
};

/// A wait without a deadline is repeated.
const IDLE: Duration = Duration::from_secs(1);

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
        let report = screen(options.form, &options.file.display().to_string(), printer, &mut stop)?;
        replay::play(options, report, async |report| {
            while !report.is_over() {
                report.tick(Instant::now())?;
                let until = report.deadline().unwrap_or_else(|| Instant::now() + IDLE);
                tokio::select! {
                    () = stop.wanted() => break,
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
            Ok(())
        })
        .await
    })
}

/// A report on a screen. Once the user ends it, a stop is wanted.
pub(super) fn screen(form: Form, title: &str, printer: Printer, stop: &mut Stop) -> anyhow::Result<Report> {
    let (orders, requests) = mpsc::channel(1);
    let report = Report::top(form, title, printer, orders).hint(|| {
        "`viptrace trace` prints to pipes and files; -v needs standard error elsewhere".to_owned()
    })?;
    stop.also_by(requests);
    Ok(report)
}
