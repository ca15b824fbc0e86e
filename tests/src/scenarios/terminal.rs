//! On a terminal the table is updated in place, with colours, and ends with the summary below it.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::{
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

/// The beginning of a terminal's control sequence.
const ESCAPE: char = '\u{1b}';
/// A row must not wrap, or moving the cursor up would miss it. Later output must wrap again.
const WITHOUT_WRAPPING: &str = "\u{1b}[?7l";
const WITH_WRAPPING: &str = "\u{1b}[?7h";
const RED: &str = "\u{1b}[1;31mFAULT C28";
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let _serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch_on_terminal()?;
    let from = stage.place("shop/client-1")?;
    let vip = |service, port| stage.vip(service, port);
    let served = client::connect(from, vip("shop/frontend", "http")?, 5, 1, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    let refused = client::connect(from, vip("shop/api", "https")?, 3, 1, Script::exchange())?;
    all_ended(&refused, &Outcome::Refused)?;

    let Some(tool) = stage.tool() else { return Ok(()) };
    let is_row = |line: &str| line.contains("C28") && line.contains("shop/api");
    if !tool.wait_for(SHOWN_WITHIN, is_row) {
        bail!("no row shows C28 of shop/api within {SHOWN_WITHIN:?}: {:?}", tool.lines_from(0));
    }
    let ended = stage.stop_watching()?;
    let shown = ended.stdout.join("\n");
    // Every other scenario writes to a pipe, which must receive no control sequences.
    for (sequence, what) in [("A\u{1b}[J", "moving up and rewriting"), (RED, "colours")] {
        if !shown.contains(sequence) {
            bail!("the terminal shows no {what}: {shown:?}");
        }
    }
    if shown.rfind(WITHOUT_WRAPPING) > shown.rfind(WITH_WRAPPING) {
        bail!("the terminal is left without the wrapping of long lines: {shown:?}");
    }
    let Some((_, summary)) = shown.rsplit_once("Summary") else { bail!("there is no summary: {shown:?}") };
    let summary = without_sequences(summary);
    for words in ["8 flows", "3 faulty flows", "First cause", "C28"] {
        if !summary.contains(words) {
            bail!("the summary lacks {words:?}: {summary}");
        }
    }
    if ended.status != 3 {
        bail!("viptrace's exit status is {}, expected 3", ended.status);
    }
    Ok(())
}

/// The text without control sequences.
fn without_sequences(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character == ESCAPE {
            rest.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(character);
        }
    }
    plain
}
