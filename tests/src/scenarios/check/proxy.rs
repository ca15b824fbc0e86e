//! Faults of kube-proxy: it does not run, or it keeps an endpoint that the API has removed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{check, count, expect};
use crate::{dataplane::OF_ONE_TIME, scenarios::stale::remove_cart_2, world::Stage};

/// C1: the process was killed and its rules stay.
pub(in crate::scenarios) fn gone(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    stage.kube_proxy.kill();
    let checked = expect(stage, &["C1"])?;
    ensure!(checked.find("C1")?.level == "fault", "{:#?}", checked.findings);
    Ok(())
}

/// After this time a missing sync is a fault and not a sync under way.
const BROKEN: Duration = Duration::from_mins(1);

/// C6: the API has removed an endpoint and the rules still have it.
pub(in crate::scenarios) fn stale(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let gone = remove_cart_2(stage)?;
    // A young difference may be a sync under way: the check reports it, but not as a fault.
    let begun = Instant::now();
    loop {
        let checked = check(stage, &["shop/cart"])?;
        let found = checked.find("C6 shop/cart")?;
        ensure!(found.root_cause.contains(&gone.to_string()), "{gone} is not named: {found:?}");
        if found.level == "fault" {
            ensure!(checked.ended.status == 3, "the exit status is {}", checked.ended.status);
            // IPVS was captured without IPv6, which is a fault of its own.
            if OF_ONE_TIME.contains(&stage.variant) {
                count(stage, &["C6 shop/cart"], &checked);
            }
            return Ok(());
        }
        ensure!(begun.elapsed() < BROKEN, "it is still no fault: {found:?}");
    }
}
