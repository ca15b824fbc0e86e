//! Rules that change below a running agent: the first REJECT, which loads a module, and kube-proxy's tables, which another
//! program deletes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::{all_of, expect_connections, expect_faults, expect_stored, fresh, stop};
use crate::{
    agent::Agent,
    expect::Record,
    kube_proxy::KubeProxy,
    scenarios::check_kernel::unload_reject,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

const REJECTED: usize = 4;
const SERVED: usize = 12;
const LOST: usize = 4;
/// Enough for two retransmissions of the SYN.
const PATIENCE: Duration = Duration::from_secs(4);
const REJECT_HOOK: [&str; 1] = ["hook=\"nf_send_unreach\""];

/// `nf_reject_ipv4` comes with the first REJECT, and with it the hook that names a Service without endpoints.
pub(in crate::scenarios) fn late_module(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let rules = stage.rules()?.clone();
    unload_reject(stage)?;
    let segments = fresh("/tmp/segments")?;
    let agent = Agent::start(&stage.kubeconfig()?, &segments, "output: json\n")?;
    // A node without a REJECT is healthy: the hook is neither attached nor missing.
    ensure!(
        Agent::series("viptrace_hook_attached", &REJECT_HOOK)? == 0,
        "the hook of a module that no rule needs has a figure"
    );
    stage.break_rules(&rules)?;
    Agent::wait_for("viptrace_hook_attached", &REJECT_HOOK, 1)?;
    stage.after_grace();
    let from = stage.place("shop/client-1")?;
    let attempts =
        client::connect(from, stage.vip("shop/checkout", "http")?, REJECTED, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    expect_faults("checkout", Class::C20, REJECTED)?;
    let ended = stop(agent)?;
    ensure!(
        !ended.stderr.contains("nf_send_unreach is not attached"),
        "the log reports a hook as missing that no rule needs: {}",
        ended.stderr
    );
    ensure!(
        ended.stderr.contains("nf_reject_ipv4 was loaded"),
        "the log does not name the module: {}",
        ended.stderr
    );
    for record in ended.records() {
        let unseen = record.unobserved();
        ensure!(!unseen.contains("nf_send_unreach"), "the hook was not attached: {record}: {unseen}");
    }
    expect_stored(&segments, &all_of(Class::C20, attempts))
}

/// Another program deletes the tables of a kube-proxy that runs (C5e). Then kube-proxy ends as well (C1), and returns
/// with its rules.
///
/// Without any rule that needs it the kernel tracks no connection, so that no hook sees a decision: only the repeated SYNs
/// remain.
pub(in crate::scenarios) fn tables_deleted(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    let agent = Agent::start(&stage.kubeconfig()?, &fresh("/tmp/segments")?, "output: json\nsample: 1/1\n")?;
    serve(stage)?;
    expect_healthy(SERVED)?;

    stage.break_with(
        |world| {
            let delete =
                |family: &str| world.topology.host.command("nft", &["delete", "table", family, "kube-proxy"]);
            delete("ip")?;
            delete("ip6").map(drop)
        },
        |_| Ok(()),
    )?;
    let removed = lose(stage)?;
    expect_faults("cart", Class::C5e, LOST)?;
    stage.kube_proxy.kill();
    let without = lose(stage)?;
    expect_faults("cart", Class::C1, LOST)?;

    stage.rules()?.restore(&stage.world.topology.host)?;
    stage.kube_proxy = KubeProxy::start(&stage.world.capture(stage.mode()))?;
    serve(stage)?;
    expect_healthy(2 * SERVED)?;
    let (faults, unexplained) =
        (Agent::sum("viptrace_faults_total", &[])?, Agent::sum("viptrace_unexplained_total", &[])?);
    ensure!(
        (faults, unexplained) == (2 * LOST as u64, 0),
        "{faults} faults and {unexplained} unexplained flows, {} were caused",
        2 * LOST
    );
    let records = stop(agent)?.records();
    for (attempts, class) in [(removed, Class::C5e), (without, Class::C1)] {
        for attempt in attempts {
            let client = attempt.client.to_string();
            let of = |record: &&Record| record.text("/flow/client") == client;
            let printed = records.iter().find(of).with_context(|| format!("no record of {attempt:?}"))?;
            ensure!(printed.class() == Some(class), "expected {class}: {printed}");
        }
    }
    Ok(())
}

/// Makes healthy connections.
fn serve(stage: &Stage) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let attempts = client::connect(from, stage.vip("shop/cart", "http")?, SERVED, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)
}

/// So many connections were counted, and judged healthy but for a few: one with a repeated segment is open until its entry
/// ends.
fn expect_healthy(count: usize) -> Result<()> {
    Agent::wait_for("viptrace_flows_total", &["result=\"ok\""], (count - count / 6) as u64)?;
    expect_connections("cart", count)
}

/// Makes connections that no rule translates.
fn lose(stage: &Stage) -> Result<Vec<Attempt>> {
    let from = stage.place("shop/client-1")?;
    let script = Script::exchange().connect_limit(PATIENCE);
    let attempts = client::connect(from, stage.vip("shop/cart", "http")?, LOST, LOST, script)?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    Ok(attempts)
}
