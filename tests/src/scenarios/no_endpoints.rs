//! C20: kube-proxy rejects connections to Services without a usable endpoint. `shop/checkout` selects no Pod; the only
//! Pod of `shop/slow` is not ready.

use anyhow::{Result, bail};
use viptrace_class::Class;

use crate::{
    dataplane::Family,
    expect::{Endpoint, Record},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
    },
    world::Stage,
};

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    // The second Service has one family only.
    let services = ["shop/checkout", "shop/slow"];
    let count = if stage.family() == Family::V4 { 2 } else { 1 };
    for service in services.into_iter().take(count) {
        let vip = stage.vip(service, "http")?;
        let attempts = client::connect(from, vip, 4, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Refused)?;
        stage.expect(&attempts, service, Class::C20, &Endpoint::Null);
    }
    stage.check(|records, _| {
        check_reason(records, "checkout", "selector")?;
        check_reason(records, "slow", "ready")
    });
    Ok(())
}

/// Every verdict of the Service names the reason for the missing endpoint.
fn check_reason(records: &[Record], service: &str, word: &str) -> Result<()> {
    for record in records.iter().filter(|record| record.text("/service/name") == service) {
        if !record.statements().contains(word) {
            bail!("the verdict about {service} does not mention the {word}: {}", record.statements());
        }
    }
    Ok(())
}
