//! What watching costs: the same connections and the same transfer, bare and with each tool attached, in turn.
//! On a guest whose clock counts instructions (QEMU's `-icount`) a nanosecond is an instruction, whatever else
//! the machine does. It owns the method; the figures are put together by whoever reads the metric lines.

mod watcher;
mod workload;

use std::{fs, time::Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use self::{
    watcher::{Ready, Watcher},
    workload::Workload,
};
use crate::{
    boot, console,
    dataplane::{Mode, Variant},
    rules,
    world::{NODE, Stage, Watch, World},
};

/// Rounds, unless `lab.rounds` says otherwise.
const ROUNDS: usize = 5;
const KUBECONFIG: &str = "/run/lab/kubeconfig";
const READY_FILE: &str = "/run/bench.ready";
/// In a command: the Service address that the workload goes to.
const VIP: &str = "{vip}";

/// A tool, how it is started and how it says that it watches.
struct Tool {
    name: &'static str,
    command: &'static [&'static str],
    ready: Ready,
}

const fn viptrace(name: &'static str, command: &'static [&'static str]) -> Tool {
    Tool { name, command, ready: Ready::File(READY_FILE) }
}

/// A trace with these arguments besides those that every trace gets.
macro_rules! trace {
    ($($argument:literal),*) => {
        &["/bin/viptrace", "trace", "--node", NODE, "--kubeconfig", KUBECONFIG, "--ready-file", READY_FILE, $($argument),*]
    };
}

/// In the order in which each round takes them. `none` attaches nothing: its ratio is the method's noise.
const TOOLS: &[Tool] = &[
    Tool { name: "none", command: &[], ready: Ready::Settled },
    // Functions by fentry where this kernel has it, and all by kprobes.
    viptrace("lean", trace!["--hooks", "lean"]),
    viptrace("lean-kprobe", trace!["--hooks", "lean", "--attach", "kprobe"]),
    viptrace("full", trace![]),
    viptrace("full-kprobe", trace!["--attach", "kprobe"]),
    viptrace("full-json-all", trace!["-o", "json", "--all"]),
    Tool {
        name: "tcpdump",
        command: &["tcpdump", "-Z", "root", "-i", "any", "-w", "/dev/null", "host", VIP],
        ready: Ready::Said("listening on"),
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

/// The mode in which the node's rules stand: `lab.dataplane` of the kernel's command line, iptables without it.
fn mode() -> Result<Mode> {
    let Some(name) = boot::kernel_argument("lab.dataplane") else { return Ok(Mode::Iptables) };
    let known = Mode::ALL.into_iter().find(|mode| mode.as_str() == name);
    known.with_context(|| format!("lab.dataplane={name} is none of {:?}", Mode::ALL.map(Mode::as_str)))
}

/// Measures all tools whose name holds `filter`, or one of several separated by commas. Returns true: a figure is no failure, a tool that does not
/// start is told and left out.
pub(super) fn run(world: &World, filter: &str) -> Result<bool> {
    let rounds = match boot::kernel_argument("lab.rounds") {
        Some(rounds) => rounds.parse().with_context(|| format!("lab.rounds={rounds} is no number"))?,
        None => ROUNDS,
    };
    let is_chosen = |tool: &&Tool| filter.split(',').any(|part| tool.name.contains(part));
    if !TOOLS.iter().any(|tool| is_chosen(&tool)) {
        let names = TOOLS.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ");
        bail!("no tool's name holds {filter:?}; there are {names}");
    }
    let variant = Variant { mode: mode()?, ..Variant::DEFAULT };
    let stage = Stage::set(world, Watch::Nobody, variant)?;
    fs::create_dir_all("/run/lab").context("making /run/lab")?;
    fs::write(KUBECONFIG, stage.api.kubeconfig()).with_context(|| format!("writing {KUBECONFIG}"))?;
    let workload = Workload::start(world)?;
    // Whatever endpoint the rules draw, the same Pod serves: the two others' addresses are replaced.
    let serving = world.pod("shop/cart-1")?.place.address;
    let mut same_pod = world.rules(variant.mode)?.clone();
    for other in ["shop/cart-2", "shop/cart-3"] {
        same_pod = same_pod.with_endpoint_moved(world.pod(other)?.place.address, serving);
    }
    same_pod.restore(&world.topology.host)?;
    workload.connections()?;
    workload.transfer()?;

    let mut failed = Vec::new();
    for round in 1..=rounds {
        for tool in TOOLS.iter().filter(is_chosen) {
            if failed.contains(&tool.name) {
                continue;
            }
            if let Err(error) = measure(world, &workload, tool, round) {
                console::say(format!("bench: {}: {error:#}", tool.name));
                failed.push(tool.name);
            }
        }
        console::say(format!("bench: round {round} of {rounds} done"));
    }
    if failed.len() == TOOLS.len() {
        bail!("no tool could be measured");
    }
    Ok(true)
}

fn measure(world: &World, workload: &Workload, tool: &Tool, round: usize) -> Result<()> {
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
        // What it still does after it is ready is not idleness.
        watcher.cpu_with_idle_ns(0)?;
        emit("idle_cpu_ns", watcher.cpu_with_idle_ns(watcher.cpu_ns()?)?, &labels);
    }
    // The first run after attaching pays for what is made on first use.
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

/// Whether a run is the base or the one with the tool, which for `none` is nothing.
#[derive(Clone, Copy)]
enum Side<'w> {
    Bare,
    With(Option<&'w Watcher>),
}

/// One measured run of both workloads. The ratio of `crr_ns` is what a client
/// lives to see; the tool's own work for it, much of which comes later, is `crr_tool_cpu_ns`, for each connection.
fn sample(workload: &Workload, tool: &Tool, round: usize, side: Side) -> Result<()> {
    let (side, watcher) = match side {
        Side::Bare => ("bare", None),
        Side::With(watcher) => ("with", watcher),
    };
    let cpu_ns = || watcher.map_or(Ok(0), Watcher::cpu_ns);
    let put_off = |before| watcher.map_or(Ok(0), |watcher| watcher.cpu_with_idle_ns(before));
    let labels = json!({"tool": tool.name, "round": round.to_string(), "side": side});

    // What the last run left to do must not count for this one.
    put_off(0)?;
    let before = cpu_ns()?;
    let run = workload.connections()?;
    let connections_cpu = put_off(before)? / workload::CONNECTIONS as u128;
    let before = cpu_ns()?;
    let transfer = workload.transfer()?;
    let transfer_cpu = put_off(before)?;
    emit("crr_ns", run.mean_ns, &labels);
    emit("crr_median_ns", run.median_ns, &labels);
    emit("bulk_ns", transfer.as_nanos(), &labels);
    if watcher.is_some() {
        emit("crr_tool_cpu_ns", connections_cpu, &labels);
        emit("bulk_tool_cpu_ns", transfer_cpu, &labels);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "durations of a bench fit in 53 bits")]
fn emit(name: &str, value: u128, labels: &serde_json::Value) {
    console::metric(name, value as f64, if name == "rss_bytes" { "bytes" } else { "ns" }, labels);
}
