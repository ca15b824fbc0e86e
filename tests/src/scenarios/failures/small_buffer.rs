//! A buffer of records that connections fill faster than the reader's turns come: once it is half full, the programs wake
//! the reader before its time.

use anyhow::{Context, Result, ensure};

use crate::{
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

/// Room for some 40 records. Each connection of the sample, here all of them, writes one.
const BUFFER: &str = "8K";
const SERVED: usize = 600;

pub(in crate::scenarios) fn story(stage: &mut Stage) -> Result<()> {
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    stage.watch_with(&["--hooks", "failures", "--sample", "1", "--buffer", BUFFER])?;
    let from = stage.place("shop/client-1")?;
    let served = client::connect(from, stage.vip("shop/cart", "http")?, SERVED, 4, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    stage.needs_viptrace()?;
    let ended = stage.stop_watching()?;
    let lost = lost(&ended.stderr)?;
    // A busy machine keeps the reader from the CPU, but the connections too. On an idle one two thirds of the records are lost
    // without the second wake-up.
    ensure!(lost <= SERVED / 3, "{lost} events were lost of {SERVED} connections: {}", ended.stderr);
    Ok(())
}

/// The summary's number of lost events.
fn lost(summary: &str) -> Result<usize> {
    let Some(line) = summary.lines().find(|line| line.contains("lost in the kernel")) else { return Ok(0) };
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().with_context(|| format!("no number of lost events in {line:?}"))
}
