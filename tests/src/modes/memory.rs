//! Measures the memory of an agent in clusters of several sizes: the captured cluster, and a population of Services
//! besides it; before and after a failed flow has needed the node's rules. It defines the sizes and emits metric lines; the host evaluates them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::workload::Workload;
use crate::{
    agent::Agent,
    apiserver::Population,
    boot, command,
    console::{self, Progress},
    dataplane::Variant,
    process::Status,
    traffic::client::{self, Script},
    wait,
    world::{NODE, Stage, Watch, World},
};

/// The numbers of Services without `lab.services`.
const SIZES: [u32; 5] = [0, 300, 1_000, 3_000, 10_000];
/// Endpoints of each Service, each a Pod.
const ENDPOINTS: u32 = 10;
const SEGMENTS: &str = "/run/lab/segments";
/// The limit until an agent is ready. The lists of the largest size are 900 MB of JSON, which an emulated processor
/// writes, sends and reads.
const READY: Duration = Duration::from_mins(40);
/// The interval of the lines that show progress.
const PROGRESS: Duration = Duration::from_secs(20);
/// The memory counts when it has stayed within [`STEADY_KIB`] for this time: the first segment is written.
const STEADY: Duration = Duration::from_secs(5);
const STEADY_KIB: u64 = 256;
/// Below the host's patience with a silent guest.
const STEADY_LIMIT: Duration = Duration::from_mins(3);
/// The agent returns free memory to the kernel each minute.
const TIDIED: Duration = Duration::from_secs(65);
/// The runs of connections before that.
const RUNS: usize = 5;
/// What the agent runs to list the rules. In this guest it prints a file.
const LISTER: &str = "iptables-nft-save";
const RULES: &str = "/run/lab/rules.txt";
/// The lister leaves this file behind.
const READ: &str = "/run/lab/rules-are-read";
/// Connections to a Service without endpoints, whose packets a firewall drops: the cause may be in the rules.
const DROPPED: usize = 3;
/// Enough for a retransmission of the SYN.
const PATIENCE: Duration = Duration::from_secs(2);
/// The limit for a reading of the rules.
const LISTED: Duration = Duration::from_mins(1);
/// The values of `/proc/PID/status` that are reported, and their names as metrics.
const VALUES: [(&str, &str); 5] = [
    ("VmRSS", "resident_bytes"),
    ("VmHWM", "peak_bytes"),
    ("RssAnon", "anonymous_bytes"),
    ("RssFile", "file_bytes"),
    ("RssShmem", "shared_bytes"),
];

/// Measures every size.
pub(super) fn run(world: &World) -> Result<bool> {
    let sizes = match boot::kernel_argument("lab.services") {
        None => SIZES.to_vec(),
        Some(list) => {
            let sizes: Result<Vec<u32>, _> = list.split(',').map(str::parse).collect();
            sizes.with_context(|| format!("lab.services={list} is not a list of numbers"))?
        }
    };
    let stage = Stage::set(world, Watch::Nobody, Variant::DEFAULT)?;
    fs::create_dir_all("/run/lab").context("creating /run/lab")?;
    let workload = Workload::start(world, stage.mode())?;
    let dropped = stage.vip("shop/checkout", "http")?.ip().to_string();
    world.topology.host.command("iptables-nft", &["-I", "FORWARD", "-d", dropped.as_str(), "-j", "DROP"])?;
    let own_rules = replace_lister(world)?;
    for services in sizes {
        measure(&stage, &workload, services, &own_rules)
            .with_context(|| format!("with {services} Services"))?;
    }
    Ok(true)
}

fn measure(stage: &Stage<'_>, workload: &Workload, services: u32, own_rules: &str) -> Result<()> {
    let population = Population { services, endpoints: ENDPOINTS, node: NODE.to_owned() };
    let objects = population.objects();
    let rules = population.add_rules(own_rules).map_err(anyhow::Error::msg)?;
    fs::write(RULES, &rules).with_context(|| format!("writing {RULES}"))?;
    stage.api.populate(population).context("populating the API server")?;
    let segments = Path::new(SEGMENTS);
    if segments.exists() {
        fs::remove_dir_all(segments).with_context(|| format!("removing {SEGMENTS}"))?;
    }
    if Path::new(READ).exists() {
        fs::remove_file(READ).with_context(|| format!("removing {READ}"))?;
    }
    let started = Instant::now();
    let mut progress = Progress::every(PROGRESS);
    let agent = Agent::start_with_defaults(&stage.kubeconfig()?, segments, READY, |pid| {
        if progress.is_due() {
            let kib = Status::read(pid).and_then(|status| status.kib("VmRSS")).unwrap_or_default();
            console::print(format!(
                "memory: {services} Services, {objects} objects: {kib} KiB after {:.0} s",
                started.elapsed().as_secs_f64()
            ));
        }
    })?;
    let ready = started.elapsed();
    for _ in 0..RUNS {
        workload.connections()?;
    }
    wait::until_older_than(started + ready, TIDIED);
    steady(agent.pid())?;
    let status = Status::read(agent.pid())?;
    let labels = json!({"services": services.to_string(), "endpoints": (services * ENDPOINTS).to_string()});
    for (field, name) in VALUES {
        emit(name, status.kib(field)? * 1024, &labels);
    }
    emit("map_bytes", agent.map_bytes()?, &labels);
    let stored = Agent::stored(segments)?;
    let sizes: Option<u64> = stored.iter().map(|path| fs::metadata(path).ok().map(|meta| meta.len())).sum();
    emit("segment_bytes", sizes.context("reading the sizes of the segments")?, &labels);
    console::metric("ready_seconds", ready.as_secs_f64(), "s", &labels);
    let judged = with_rules(stage, &agent)?;
    emit("resident_with_rules_bytes", judged.kib("VmRSS")? * 1024, &labels);
    emit("peak_with_rules_bytes", judged.kib("VmHWM")? * 1024, &labels);
    console::print(format!(
        "memory: {services} Services: {} KiB, at most {} KiB, ready after {:.0} s; with {} KiB of rules {} KiB, at most {} KiB",
        status.kib("VmRSS")?,
        status.kib("VmHWM")?,
        ready.as_secs_f64(),
        rules.len() / 1024,
        judged.kib("VmRSS")?,
        judged.kib("VmHWM")?,
    ));
    let ended = agent.stop()?;
    if ended.status != 0 {
        bail!("the agent ended with status {}: {}", ended.status, ended.stderr);
    }
    Ok(())
}

/// Puts a program that prints [`RULES`] in the place of [`LISTER`]: this kernel takes minutes for the rules of the larger
/// clusters. Returns the node's own rules.
fn replace_lister(world: &World) -> Result<String> {
    let own = world.topology.host.command(LISTER, &[])?;
    let path = command::run("which", &[LISTER])?;
    let path = Path::new(path.trim());
    // A link to the program of all of iptables.
    fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    let made = fs::write(path, format!("#!/bin/sh\n: > {READ}\nexec cat {RULES}\n"))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    made.with_context(|| format!("writing {}", path.display()))?;
    Ok(own)
}

/// Makes connections fail, so that the agent reads the node's rules, and waits until it has judged and tidied up.
fn with_rules(stage: &Stage<'_>, agent: &Agent) -> Result<Status> {
    let (from, checkout) = (stage.place("shop/client-1")?, stage.vip("shop/checkout", "http")?);
    let read = Path::new(READ);
    if read.exists() {
        bail!("the agent reads the node's rules before a flow needs them");
    }
    client::connect(from, checkout, DROPPED, DROPPED, Script::exchange().connect_limit(PATIENCE))?;
    Agent::wait_for("viptrace_faults_total", &["service=\"checkout\""], DROPPED as u64)?;
    wait::until("the agent to read the node's rules", LISTED, || read.exists().then_some(()))?;
    wait::until_older_than(Instant::now(), TIDIED);
    steady(agent.pid())?;
    Status::read(agent.pid())
}

/// Waits until the resident memory does not change any more.
fn steady(pid: u32) -> Result<()> {
    let (mut since, mut last, mut changed) = (Instant::now(), 0, 0);
    let steady = wait::until("the agent's memory to be steady", STEADY_LIMIT, || {
        let now = Status::read(pid).and_then(|status| status.kib("VmRSS")).ok()?;
        if now.abs_diff(last) > STEADY_KIB {
            (since, last, changed) = (Instant::now(), now, last);
        }
        (since.elapsed() > STEADY).then_some(())
    });
    steady.with_context(|| format!("its last change was from {changed} to {last} KiB"))
}

#[expect(clippy::cast_precision_loss, reason = "sizes of memory fit in 53 bits")]
fn emit(name: &str, bytes: u64, labels: &serde_json::Value) {
    console::metric(name, bytes as f64, "bytes", labels);
}
