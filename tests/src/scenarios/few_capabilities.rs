//! viptrace as an unprivileged Pod runs it: with `CAP_BPF`, `CAP_PERFMON` and `CAP_NET_ADMIN`, where `kernel.perf_event_paranoid`
//! is 3 (Debian's default) and the kernel refuses perf events to it. kprobe.multi links need none.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use viptrace_class::Class;

use super::check_kernel::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, has_kprobe_multi, modules_have_btf};
use crate::{
    expect::Endpoint,
    invocation::{Invocation, with_only},
    matrix::Skip,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

const CAPABILITIES: &[u32] = &[CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF];
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
const LIMIT: Duration = Duration::from_secs(90);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    if !modules_have_btf() {
        return Err(Skip("kprobe.multi links exist since 5.18".to_owned()).into());
    }
    let before = fs::read_to_string(PARANOID).with_context(|| format!("reading {PARANOID}"))?;
    stage.break_with(
        |_| fs::write(PARANOID, "3").context("forbidding perf events"),
        move |_| fs::write(PARANOID, before).context("allowing perf events again"),
    )?;
    // Without kprobe.multi links (Debian's 6.1 is built without CONFIG_FPROBE) no way is left, and viptrace reports it.
    if !has_kprobe_multi()? {
        let check = || Invocation::start(&["check", "--kernel"]);
        let refused = with_only(CAPABILITIES, check)?.end(LIMIT)?;
        let named = refused.stdout.iter().any(|line| line.contains("perf_event_paranoid` shows"));
        ensure!(refused.status == 1 && named, "the way out is not named: {refused:?}");
        return Ok(());
    }
    let server = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch_with_only(CAPABILITIES)?;
    let from = stage.place("shop/client-1")?;
    let vip = |service, port| stage.vip(service, port);
    let answered = client::connect(from, vip("shop/frontend", "http")?, 4, 2, Script::exchange())?;
    let refused = client::connect(from, vip("shop/api", "https")?, 4, 1, Script::exchange())?;
    let without = client::connect(from, vip("shop/checkout", "http")?, 3, 1, Script::exchange())?;
    all_ended(&answered, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&without, &Outcome::Refused)?;
    let refusing = SocketAddr::new(stage.place("shop/api-1")?.address, 8443);
    stage.expect(&answered, "shop/frontend", Class::Ok, &Endpoint::Is(server.address()));
    stage.expect(&refused, "shop/api", Class::C28, &Endpoint::Is(refusing));
    stage.expect(&without, "shop/checkout", Class::C20, &Endpoint::Null);
    Ok(())
}
