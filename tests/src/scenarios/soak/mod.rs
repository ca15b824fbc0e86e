//! The agent under a small CPU limit for minutes: steady connections, DNS, Pods and Services that come and go, and a Pod that
//! connects to a closed port as fast as it can. Every fault of another Service is reported with its class, the noise makes no
//! healthy flow uncertain, counts are exact, and nothing grows. `lab.soak=SECONDS` on the kernel's command line sets the
//! length.

mod churn;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::{
    agent::{expect_connections, expect_faults, fresh, stop},
    load::{self, Load},
    silent,
};
use crate::{
    agent::Agent,
    boot,
    console::{self, Progress},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
        udp::Answer,
    },
    wait,
    world::Stage,
};
use churn::Churn;

const LENGTH: Duration = Duration::from_mins(3);
/// From one fault to the next.
const PACE: Duration = Duration::from_secs(15);
const SILENT: usize = 2;
const REJECTED: usize = 2;
/// 200 thousandths of a CPU, as `resources.limits.cpu: 200m`.
const CPU_MAX: &str = "20000 100000";
const GROUP: &str = "/sys/fs/cgroup/agent";
/// The growth of the agent's resident memory after the first third: the room that its allocator and its histograms may
/// still take.
const GROWTH: u64 = 8 << 20;
/// The same for its open files, for its series, of which those of the last rounds are not removed yet, and for the flows that
/// are not judged yet.
const MORE_FILES: u64 = 4;
const MORE_SERIES: u64 = 12;
const MORE_FLOWS: u64 = 1_000;

/// So many connections of the steady load may fail, of a busy machine's: each of them is then a fault that is reported.
const FAILED_OF: usize = 10_000;

/// The connections that were made.
#[derive(Debug, Default)]
struct Made {
    steady: usize,
    /// The reasons of those among them that failed.
    failed: Vec<String>,
    noise: usize,
    queries: usize,
    silent: usize,
    rejected: usize,
    /// To Pods and Services that come and go.
    changing: usize,
    /// To Pods that had gone.
    stale: usize,
    /// Services whose series disappeared after their deletion.
    removed: usize,
}

/// The figures that must not grow.
#[derive(Clone, Copy, Debug)]
struct Size {
    resident: u64,
    files: u64,
    series: u64,
    flows: u64,
}

impl Size {
    fn read() -> Result<Self> {
        Ok(Self {
            resident: Agent::sum("process_resident_memory_bytes", &[])?,
            files: Agent::sum("process_open_fds", &[])?,
            series: Agent::sum("viptrace_series", &[])?,
            flows: Agent::sum("viptrace_open_flows", &[])?,
        })
    }

    fn expect_no_more(self, later: Self) -> Result<()> {
        ensure!(
            later.resident <= self.resident + GROWTH
                && later.files <= self.files + MORE_FILES
                && later.series <= self.series + MORE_SERIES
                && later.flows <= self.flows + MORE_FLOWS,
            "the agent grew from {self:?} to {later:?} after the first third"
        );
        Ok(())
    }
}

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let length = boot::kernel_number("lab.soak")?.map_or(LENGTH, Duration::from_secs);
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    stage.keep_serving_udp(&["kube-system/coredns-1", "kube-system/coredns-2"], 53, Answer::Echo)?;
    silent::misdeliver_payments(stage)?;
    // The rounds replace the rules, and the last ones are repaired here.
    let rules = stage.rules()?.clone();
    stage.break_rules(&rules)?;
    let more = format!("sample: 1/100\noutput: json\nmetrics: {{keep: {}s}}\n", churn::KEEP.as_secs());
    let agent = Agent::start(&stage.kubeconfig()?, &fresh("/tmp/segments")?, &more)?;
    limit_cpu(&agent)?;
    let made = traffic(stage, length)?;

    expect_faults("payments", Class::C29, made.silent)?;
    expect_faults("checkout", Class::C20, made.rejected)?;
    // An agent that has just learned of the removal calls it lag (C5), and with so little CPU time it may learn late.
    let left = Agent::wait_for("viptrace_faults_total", &["service=\"workers\""], made.stale as u64)?;
    let late = Agent::sum("viptrace_faults_total", &["service=\"workers\"", "class=\"C5\""])?;
    ensure!(
        left == made.stale as u64 && late * 10 <= left,
        "{left} connections to Pods that were gone are faults, {late} of them by lag, {} were made",
        made.stale
    );
    expect_faults("workers", Class::C6, made.stale - usize::try_from(late)?)?;
    for (service, made) in [("cart", made.steady), ("api", made.noise), ("payments", made.silent)] {
        expect_connections(service, made)?;
    }
    for (service, failed) in [("cart", made.failed.len()), ("kube-dns", 0)] {
        let faults = Agent::sum("viptrace_faults_total", &[&format!("service=\"{service}\"")])?;
        ensure!(
            faults == failed as u64,
            "{service}: {faults} faults, {failed} connections failed: {}\n{}",
            made.failed.join(", "),
            printed(&agent, service)?
        );
    }
    let label = ["service=\"kube-dns\""];
    let queries = Agent::wait_for("viptrace_connections_total", &label, 1)?;
    // A query from a port whose entry is still alive begins no connection.
    ensure!(queries <= made.queries as u64, "{queries} connections of {} queries", made.queries);
    let sum = |name: &str| Agent::sum(name, &[]);
    let (lost, suppressed) = (sum("viptrace_lost_events_total")?, sum("viptrace_suppressed_events_total")?);
    // A connection is reported whole; only one whose first failure was suppressed for two seconds may lack it.
    let of_noise = Agent::sum("viptrace_unexplained_total", &["service=\"api\""])?;
    let (unexplained, evicted) =
        (sum("viptrace_unexplained_total")? - of_noise, sum("viptrace_evicted_flows_total")?);
    let (noise, all) =
        (Agent::sum("viptrace_faults_total", &["service=\"api\""])?, sum("viptrace_faults_total")?);
    let (results, maps) = (Agent::sum("viptrace_flows_total", &["result=\"ok\""])?, agent.map_bytes()?);
    let cpu = Agent::number("process_cpu_seconds_total")?;
    // The queries alone are more than the kernel keeps decisions of.
    let retention = Agent::number("viptrace_decision_retention_seconds")?;
    ensure!(
        retention > 0.0 && retention < 2.0 * length.as_secs_f64(),
        "decisions are kept for {retention} s in a run of {} s",
        length.as_secs()
    );
    console::print(format!(
        "agent-soak: {} s, {made:?}, {} to Pods that come and go; {noise} refusals of the noise reported, {suppressed} events suppressed, {lost} lost, \
         {late} late, {evicted} flows evicted, {unexplained} unexplained and {of_noise} of the noise, {results} healthy ones sampled; {cpu} s of CPU, {maps} bytes of maps",
        length.as_secs(),
        made.changing
    ));
    ensure!(
        (lost, unexplained, evicted) == (0, 0, 0) && suppressed > 0,
        "{lost} events were lost, {suppressed} suppressed, {late} late, {evicted} flows evicted, {unexplained} unexplained; \
         skipped runs:\n{}",
        Agent::lines("viptrace_skipped_runs_total")?
    );
    ensure!(
        of_noise * 100 <= noise,
        "{of_noise} connections of the noise are unexplained, {noise} were reported"
    );
    // Each refusal of the noise causes several events. Without a report, all of them were suppressed.
    ensure!(
        noise + suppressed >= made.noise as u64 && noise > 0,
        "{} connections of the noise: {noise} were reported, {suppressed} events suppressed",
        made.noise
    );
    let caused = made.silent + made.rejected + made.stale + made.failed.len();
    ensure!(
        all == noise + caused as u64,
        "{all} faults were reported, {noise} of the noise and {caused} others caused"
    );
    stop(agent)?;
    Ok(())
}

/// Makes connections for as long, and checks that nothing grows. Returns how many.
fn traffic(stage: &mut Stage, length: Duration) -> Result<Made> {
    let vip = |service, port| stage.vip(service, port);
    let (cart, dns) = (vip("shop/cart", "http")?, vip("kube-system/kube-dns", "dns")?);
    let (api, payments, checkout) =
        (vip("shop/api", "https")?, vip("shop/payments", "grpc")?, vip("shop/checkout", "http")?);
    let (client_1, slow_1) = (stage.place("shop/client-1")?, stage.place("shop/slow-1")?);
    let steady = Load::start(client_1, cart, load::exchange)?;
    let queries = Load::start(client_1, dns, load::query)?;
    let noise = Load::start(slow_1, api, load::refused)?;
    let mut churn = Churn::default();
    let mut progress = Progress::every(Duration::from_mins(1));
    let (mut silent, mut rejected, mut at_third, mut round) = (0, 0, None, 0);
    let began = Instant::now();
    while began.elapsed() < length {
        let patience = Script::exchange().connect_limit(Duration::from_secs(4));
        all_ended(&client::connect(client_1, payments, SILENT, 2, patience)?, &Outcome::ConnectTimedOut)?;
        let without = client::connect(client_1, checkout, REJECTED, 1, Script::exchange())?;
        all_ended(&without, &Outcome::Refused)?;
        churn.round(stage)?;
        (silent, rejected, round) = (silent + SILENT, rejected + REJECTED, round + 1);
        if began.elapsed() * 3 >= length && at_third.is_none() {
            at_third = Some(Size::read()?);
        }
        if progress.is_due() {
            console::print(format!("agent-soak: {} s, {:?}", began.elapsed().as_secs(), Size::read()?));
        }
        wait::until_older_than(began, (PACE * round).min(length));
    }
    let now = Size::read()?;
    let steady = steady.end()?;
    ensure!(
        steady.failed.len() * FAILED_OF <= steady.made,
        "of {} steady connections failed: {}",
        steady.made,
        steady.failed.join(", ")
    );
    let made = Made {
        steady: steady.made,
        failed: steady.failed,
        noise: noise.stop()?,
        queries: queries.stop()?,
        silent,
        rejected,
        changing: churn.served,
        stale: churn.stale,
        removed: churn.end(stage)?,
    };
    let at_third = at_third.unwrap_or(now);
    console::print(format!("agent-soak: {at_third:?} after the first third, {now:?} at the end"));
    at_third.expect_no_more(now)?;
    ensure!(made.removed > 0, "no series of a deleted Service disappeared");
    Ok(made)
}

/// What the agent printed about a Service, for an error message.
fn printed(agent: &Agent, service: &str) -> Result<String> {
    let records = agent.printed()?;
    let of_service = records.iter().map(|record| format!("{record:?}")).filter(|text| text.contains(service));
    Ok(of_service.take(5).collect::<Vec<_>>().join("\n"))
}

/// Puts the agent into a group with a limit of its CPU time.
fn limit_cpu(agent: &Agent) -> Result<()> {
    let group = Path::new(GROUP);
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu").context("enabling the CPU controller")?;
    fs::create_dir_all(group).context("creating the agent's group")?;
    fs::write(group.join("cpu.max"), CPU_MAX).context("limiting the agent's CPU time")?;
    fs::write(group.join("cgroup.procs"), agent.pid().to_string())
        .context("moving the agent into its group")?;
    Ok(())
}
