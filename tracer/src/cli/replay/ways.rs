//! `viptrace replay --path`: the ways of the selected flows' packets.

use super::{Audience, Opened};
use crate::{
    cli::Outcome,
    incident::{self, Beside, Trail},
    report::{Printer, trail},
    session::{Judged, Judgements},
    text::count,
    time::Timestamp,
};

/// The most flows whose way is printed.
const MAX_WAYS: usize = 8;

/// Plays to the end and prints the ways.
pub(super) fn run(mut opened: Opened, printer: &mut Printer) -> anyhow::Result<Outcome> {
    opened.stay_on_trace_clock()?;
    let mut pathfinder = Pathfinder { printer, found: Vec::new(), more: 0 };
    let (ended, timeline) = opened.play(&mut pathfinder)?;
    let Pathfinder { printer, mut found, more } = pathfinder;
    let has_fault = found.iter().any(|trail| trail.verdict.is_fault());
    for (index, trail) in found.iter_mut().enumerate() {
        incident::complete(&timeline, trail)?;
        let blank = if index > 0 { "\n" } else { "" };
        printer.text(&format!("{blank}{}", trail::render(trail, printer.paint())))?;
    }
    if more > 0 {
        printer
            .warn(&format!("{} with these addresses: --since and --until choose", count(more, "later flow")));
    }
    printer.flush()?;
    Ok(ended.outcome(if has_fault { Outcome::Faults } else { Outcome::Clean }))
}

/// Keeps the verdicts of flows whose way is wanted.
struct Pathfinder<'p> {
    printer: &'p mut Printer,
    found: Vec<Trail>,
    more: u64,
}

impl Audience for Pathfinder<'_> {
    fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.note(text);
        Ok(())
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.warn(text);
        Ok(())
    }

    fn take(&mut self, judgements: Judgements, beside: Beside<'_>, _: Timestamp) -> anyhow::Result<()> {
        for Judged { verdict, before, .. } in judgements.judged {
            let flow = &verdict.flow;
            let is_known = |trail: &Trail| {
                trail.verdict.flow.started == flow.started && trail.verdict.flow.node == flow.node
            };
            if before.is_some() {
                self.found.retain(|trail| !is_known(trail));
            }
            if self.found.len() < MAX_WAYS {
                self.found.push(Trail::around(beside, verdict));
            } else {
                self.more += 1;
            }
        }
        Ok(())
    }
}
