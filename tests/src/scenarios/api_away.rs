//! The API server becomes unavailable and returns without old versions (410 Gone). Tracing continues, every record has
//! the age of the metadata, and changes from the outage are known afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::stale;
use viptrace_class::Class;

use crate::{
    apiserver::Absence,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    wait,
    world::Stage,
};

/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(4);
/// Metadata younger than this counts as fresh.
const FRESH_S: f64 = 2.0;
/// Enough for a client that backs off between its attempts.
const BACK_LIMIT: Duration = Duration::from_secs(90);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let remote = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    let here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let leaving = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?.clone();
    let frontend = stage.vip("shop/frontend", "http")?;
    let touch_frontend = |stage: &mut Stage| -> Result<Attempt> {
        let mut attempts = client::connect(&from, frontend, 1, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Done)?;
        stage.expect_by_server(&attempts, "shop/frontend", &[(&remote, Class::Ok)])?;
        attempts.pop().context("one attempt was made")
    };

    let before = touch_frontend(stage)?;
    if metadata_age(stage, &before)?.is_some_and(|age| age > FRESH_S) {
        bail!("the metadata is old although the API server answers");
    }
    stage.api.go_away(Absence::Refused);
    wait::until_older_than(Instant::now(), AWAY);
    let meanwhile = touch_frontend(stage)?;
    if metadata_age(stage, &meanwhile)?.is_some_and(|age| age < AWAY.as_secs_f64() - 1.0) {
        bail!("the record does not report old metadata");
    }

    stale::remove_cart_2(stage)?;
    stage.api.compact();
    stage.api.come_back().context("bringing the lab's API server back")?;
    let came_back = Instant::now();
    loop {
        let attempt = touch_frontend(stage)?;
        match metadata_age(stage, &attempt)? {
            Some(age) if age > FRESH_S && came_back.elapsed() < BACK_LIMIT => {}
            Some(age) if age > FRESH_S => {
                bail!(
                    "{} s after the API server came back, metadata is still {age} s old",
                    BACK_LIMIT.as_secs()
                );
            }
            _ => break,
        }
    }
    // A change from the outage is in force from the time at which viptrace learned it.
    stage.changed_now();
    stage.after_grace();
    let cart = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(&from, cart, 30, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(
        &attempts,
        "shop/cart",
        &[(&here, Class::Ok), (&leaving, Class::C6), (&there, Class::Ok)],
    )
}

/// The metadata's age in the attempt's record; `None` if viptrace does not run.
fn metadata_age(stage: &Stage, attempt: &Attempt) -> Result<Option<f64>> {
    let Some(record) = stage.record_of(attempt)? else { return Ok(None) };
    let age = record.value()["metadata_age"].as_f64();
    age.map(Some).with_context(|| format!("a record without metadata_age: {record}"))
}
