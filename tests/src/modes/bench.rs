//! Measures what tracing costs: the same connections and the same transfer, without a tool and with each tool attached,
//! in turn. On a guest whose clock counts instructions (QEMU's `-icount`) a nanosecond is an instruction, independent
//! of the host's load. It defines the method and emits metric lines; the host evaluates them.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::workload::{self, Workload};
use crate::{
    boot, console,
    dataplane::{Mode, Variant},
    rules, wait,
    watcher::{Ready, Watcher},
    world::{NODE, Stage, Watch, World},
};

/// The number of rounds without `lab.rounds`.
const ROUNDS: u64 = 5;
const KUBECONFIG: &str = "/run/lab/kubeconfig";
const READY_FILE: &str = "/run/bench.ready";
/// Stands for the Service address of the workload in a command.
const VIP: &str = "{vip}";

/// A tool, its command, and how it reports that it is ready.
struct Tool {
    name: &'static str,
    command: &'static [&'static str],
    ready: Ready,
}

const fn viptrace(name: &'static str, command: &'static [&'static str]) -> Tool {
    Tool { name, command, ready: Ready::File(READY_FILE) }
}

/// A trace with these arguments in addition to the common ones.
macro_rules! trace {
    ($($argument:literal),*) => {
        &["/bin/viptrace", "trace", "--node", NODE, "--kubeconfig", KUBECONFIG, "--ready-file", READY_FILE,
            $($argument),*]
    };
}

/// In the order of each round. `none` attaches nothing: its ratio is the noise of the method.
const TOOLS: &[Tool] = &[
    Tool { name: "none", command: &[], ready: Ready::Settled },
    // Attached by fentry if the kernel has it, and by kprobes only.
    // As an agent traces.
    viptrace("failures", trace!["--hooks", "failures", "--sample", "100"]),
    viptrace("failures-kprobe", trace!["--hooks", "failures", "--sample", "100", "--attach", "kprobe"]),
    viptrace("lean", trace!["--hooks", "lean"]),
    viptrace("lean-kprobe", trace!["--hooks", "lean", "--attach", "kprobe"]),
    viptrace("full", trace![]),
    viptrace("full-kprobe", trace!["--attach", "kprobe"]),
    viptrace("full-json-all", trace!["-o", "json", "--all"]),
    Tool {
        name: "tcpdump",
        command: &["tcpdump", "-Z", "root", "-i", "any", "-w", "/dev/null", "host", VIP],
        ready: Ready::Printed("listening on"),
    },
    Tool { name: "conntrack", command: &["conntrack", "-E", "-o", "timestamp"], ready: Ready::Settled },
    Tool {
        name: "bpftrace",
        command: &[
            "bpftrace",
            "-e",
            "kprobe:nf_nat_setup_info { @a = count(); } kprobe:__nf_conntrack_confirm { @b = count(); }",
        ],
        ready: Ready::Settled,
    },
];

/// The mode that wrote the node's rules: `lab.dataplane` on the kernel's command line, by default iptables.
fn mode() -> Result<Mode> {
    let Some(name) = boot::kernel_argument("lab.dataplane") else { return Ok(Mode::Iptables) };
    let known = Mode::ALL.into_iter().find(|mode| mode.as_str() == name);
    known.with_context(|| format!("lab.dataplane={name} is not one of {:?}", Mode::ALL.map(Mode::as_str)))
}

/// Measures all tools whose names contain `filter`, or one of several strings separated by commas. Reports a tool that
/// does not start, leaves it out and returns true, because a measurement cannot fail.
pub(super) fn run(world: &World, filter: &str) -> Result<bool> {
    let rounds = boot::kernel_number("lab.rounds")?.unwrap_or(ROUNDS);
    let is_chosen = |tool: &&Tool| filter.split(',').any(|part| tool.name.contains(part));
    if !TOOLS.iter().any(|tool| is_chosen(&tool)) {
        let names = TOOLS.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
        bail!("no tool's name contains {filter:?}; there are {names}");
    }
    let variant = Variant { mode: mode()?, ..Variant::DEFAULT };
    let stage = Stage::set(world, Watch::Nobody, variant)?;
    fs::create_dir_all("/run/lab").context("creating /run/lab")?;
    fs::write(KUBECONFIG, stage.api.kubeconfig()).with_context(|| format!("writing {KUBECONFIG}"))?;
    let workload = Workload::start(world, variant.mode)?;
    workload.connections()?;
    workload.transfer()?;
    Workload::keep_neighbours(world)?;

    let mut failed = Vec::new();
    for round in 1..=rounds {
        for tool in TOOLS.iter().filter(is_chosen) {
            if failed.contains(&tool.name) {
                continue;
            }
            if let Err(error) = measure(world, &workload, tool, round) {
                console::print(format!("bench: {}: {error:#}", tool.name));
                failed.push(tool.name);
            }
        }
        console::print(format!("bench: round {round} of {rounds} done"));
    }
    if failed.len() == TOOLS.len() {
        bail!("no tool could be measured");
    }
    Ok(true)
}

fn measure(world: &World, workload: &Workload, tool: &Tool, round: u64) -> Result<()> {
    rules::flush_conntrack(&world.topology.host)?;
    workload.connections()?;
    sample(workload, tool, round, Side::Bare)?;
    rules::flush_conntrack(&world.topology.host)?;

    let started = Instant::now();
    let watcher = match tool.command.split_first() {
        Some((program, arguments)) => {
            let vip = workload.vip().to_string();
            let fill =
                |argument: &&'static str| if *argument == VIP { vip.clone() } else { (*argument).to_owned() };
            let arguments: Vec<String> = arguments.iter().map(fill).collect();
            Some(Watcher::start(program, &arguments, &tool.ready)?)
        }
        None => None,
    };
    let labels = json!({"tool": tool.name, "round": round.to_string()});
    if let Some(watcher) = &watcher {
        if tool.ready != Ready::Settled {
            emit("attach_ns", watcher.ready_at.duration_since(started).as_nanos(), &labels);
        }
        // Work that the tool does right after it is ready does not count as idle time.
        watcher.cpu_with_idle_ns(0)?;
        emit("idle_cpu_ns", watcher.cpu_with_idle_ns(watcher.cpu_ns()?)?, &labels);
    }
    // The first run after attaching pays for everything that is created on first use.
    workload.connections()?;
    sample(workload, tool, round, Side::With(watcher.as_ref()))?;
    if let Some(watcher) = watcher {
        emit("rss_bytes", u128::from(watcher.rss_bytes()?), &labels);
        let stopping = Instant::now();
        watcher.stop()?;
        emit("detach_ns", stopping.elapsed().as_nanos(), &labels);
    }
    Ok(())
}

/// Whether a run has the tool attached. For the tool `none` both sides are equal.
#[derive(Clone, Copy)]
enum Side<'w> {
    Bare,
    With(Option<&'w Watcher>),
}

/// Measures both workloads once. The ratio of `crr_ns` is the effect on a client, and that of `crr_quartile_ns` the same
/// without what happens beside it: nearly half of the connections take some 2,700 instructions more, once or several times,
/// so that a median falls on either side. `crr_tool_cpu_ns` is the tool's own work for each connection, much of which it does
/// later.
fn sample(workload: &Workload, tool: &Tool, round: u64, side: Side) -> Result<()> {
    let (side, watcher) = match side {
        Side::Bare => ("bare", None),
        Side::With(watcher) => ("with", watcher),
    };
    let cpu_ns = || watcher.map_or(Ok(0), Watcher::cpu_ns);
    let put_off = |before| watcher.map_or(Ok(0), |watcher| watcher.cpu_with_idle_ns(before));
    let labels = json!({"tool": tool.name, "round": round.to_string(), "side": side});

    // Work that the last run left over must not count for this one.
    put_off(0)?;
    let run = workload.connections()?;
    put_off(0)?;
    let before = cpu_ns()?;
    let transfer = workload.transfer()?;
    let transfer_cpu = put_off(before)?;
    emit("crr_ns", run.mean_ns, &labels);
    emit("crr_quartile_ns", run.quartile_ns, &labels);
    emit("bulk_ns", transfer.as_nanos(), &labels);
    if let Some(watcher) = watcher {
        emit("crr_tool_cpu_ns", own_work(workload, watcher)?, &labels);
        emit("bulk_tool_cpu_ns", transfer_cpu, &labels);
    }
    Ok(())
}

/// The batches of connections in a window with few and in one with many: even the few are enough for a tool that works on one of a
/// hundred. With more than some 14,000 connections in a window, each takes 5 ms, also without a tool.
const FEW: usize = 5;
const MANY: usize = 75;

/// A multiple of the periods of a tool's other work, the longest of which is a minute (the state of the node).
const WINDOW: Duration = Duration::from_mins(1);

/// The tool's own work for each connection: the difference of two windows that have as much other work.
fn own_work(workload: &Workload, watcher: &Watcher) -> Result<u128> {
    let work = |batches| -> Result<u64> {
        let (started, before) = (Instant::now(), watcher.cpu_ns()?);
        for _ in 0..batches {
            workload.connections()?;
        }
        wait::until_older_than(started, WINDOW);
        Ok(watcher.cpu_ns()?.saturating_sub(before))
    };
    let (few, many) = (work(FEW)?, work(MANY)?);
    Ok(u128::from(many.saturating_sub(few)) / ((MANY - FEW) * workload::CONNECTIONS) as u128)
}

#[expect(clippy::cast_precision_loss, reason = "durations of a bench fit in 53 bits")]
fn emit(name: &str, value: u128, labels: &serde_json::Value) {
    console::metric(name, value as f64, if name == "rss_bytes" { "bytes" } else { "ns" }, labels);
}
