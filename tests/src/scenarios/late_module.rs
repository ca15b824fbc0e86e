//! A module that is loaded while the trace runs: with the first REJECT of a node comes `nf_reject_ipv4`, and with it the hook
//! that names a Service without endpoints.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use viptrace_class::Class;

use super::check_kernel::unload_reject;
use crate::{
    expect::{Endpoint, Record},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
    },
    wait,
    world::Stage,
};

/// The trace looks for new modules once a second.
const ATTACH_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let rules = stage.rules()?.clone();
    unload_reject(stage)?;
    stage.watch()?;
    let before = unnamed_files(stage)?;
    // The rules come back, and their REJECT loads the module.
    stage.break_rules(&rules)?;
    wait::until("the hooks of nf_reject_ipv4", ATTACH_LIMIT, || {
        unnamed_files(stage).is_ok_and(|files| files > before).then_some(())
    })?;
    let from = stage.place("shop/client-1")?;
    let attempts = client::connect(from, stage.vip("shop/checkout", "http")?, 4, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/checkout", Class::C20, &Endpoint::Null);
    stage.check(|records, ended| {
        let text = records.iter().map(Record::statements).collect::<Vec<_>>().join("\n---\n");
        ensure!(!text.contains("no hook at nf_send_unreach"), "the hook was not attached: {text}");
        ensure!(
            ended.stderr.contains("nf_send_unreach: until")
                && ended.stderr.contains("nf_reject_ipv4 was loaded"),
            "the summary does not say since when the hook counts: {}",
            ended.stderr
        );
        Ok(())
    });
    Ok(())
}

/// See [`crate::tool::Tool::unnamed_files`].
fn unnamed_files(stage: &Stage) -> Result<usize> {
    stage.tool().context("viptrace does not run")?.unnamed_files()
}
