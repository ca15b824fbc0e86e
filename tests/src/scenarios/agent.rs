//! The agent on a node: its counts, its verdicts, its segments, and a disk that fails.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::silent;
use crate::{
    agent::Agent,
    invocation::Invocation,
    replay, sys,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

const SERVED: usize = 30;
const REFUSED: usize = 5;
const UNANSWERED: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);
/// The bound of the agent's maps, with those of two CPUs.
const MAPS: u64 = 16 << 20;

/// Counts are exact, faults have their class, a healthy connection has no record, and the segments contain the faults.
pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let segments = fresh("/tmp/segments")?;
    // Beside the agent no trace runs, and this sample has no flow of so few.
    let agent = Agent::start(&stage.kubeconfig()?, &segments, "sample: 1/1000000\n")?;
    let faults = traffic(stage)?;
    let of = |service: &'static str, class: &'static str| [service, class];
    Agent::wait_for("viptrace_faults_total", &of("service=\"api\"", "class=\"C28\""), REFUSED as u64)?;
    Agent::wait_for(
        "viptrace_faults_total",
        &of("service=\"payments\"", "class=\"C29\""),
        UNANSWERED as u64,
    )?;
    for (service, made) in [("cart", SERVED), ("api", REFUSED), ("payments", UNANSWERED)] {
        let label = format!("service=\"{service}\"");
        let counted = Agent::wait_for("viptrace_connections_total", &[&label], made as u64)?;
        ensure!(counted == made as u64, "{counted} connections to {service} were counted, {made} were made");
    }
    let (ok, lost) = (
        Agent::sum("viptrace_flows_total", &["result=\"ok\""])?,
        Agent::sum("viptrace_lost_events_total", &[])?,
    );
    // A busy machine repeats a segment now and then.
    ensure!(ok * 10 <= SERVED as u64, "{ok} of {SERVED} healthy flows have a record");
    ensure!(lost == 0, "{lost} events were lost");
    let bytes = agent.map_bytes()?;
    ensure!((1..=MAPS).contains(&bytes), "the agent's maps take {bytes} bytes");

    let socket = agent.socket.to_string_lossy().into_owned();
    let listed = Invocation::start(&["agent", "stream", "--socket", &socket, "--segments"])?.end(LIMIT)?;
    ensure!(listed.status == 0 && !listed.stdout.is_empty(), "the segments are not listed: {listed:?}");
    let ended = agent.stop()?;
    ensure!(ended.status == 0, "the agent's exit status is {}: {}", ended.status, ended.stderr);
    expect_stored(&segments, &faults)
}

/// The disk is full from the start and has room later: the agent judges all the same, reports it and records again.
pub(super) fn full_disk(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let folder = fresh("/tmp/small")?;
    sys::mount_with("tmpfs", &folder, "size=4m").context("mounting a small file system")?;
    let unmounted = folder.clone();
    stage.break_with(|_| Ok(()), move |_| sys::unmount(&unmounted).context("unmounting it"))?;
    let filler = folder.join("filler");
    fs::write(&filler, vec![1; 4 << 20]).or_else(|error| {
        // The disk is to be full.
        if error.raw_os_error() == Some(28) { Ok(()) } else { Err(error) }
    })?;
    let agent = Agent::start(&stage.kubeconfig()?, &folder.join("segments"), "")?;
    Agent::wait_for("viptrace_recorder_failures_total", &[], 1)?;
    traffic(stage)?;
    Agent::wait_for("viptrace_faults_total", &["service=\"api\"", "class=\"C28\""], REFUSED as u64)?;
    ensure!(Agent::sum("viptrace_recorder_up", &[])? == 0, "the recorder writes to a full disk");
    fs::remove_file(&filler).context("making room")?;
    Agent::wait_for("viptrace_recorder_up", &[], 1)?;
    let ended = agent.stop()?;
    ensure!(ended.status == 0, "the agent's exit status is {}: {}", ended.status, ended.stderr);
    ensure!(
        ended.stderr.contains("No space left on device"),
        "the log does not name the disk: {}",
        ended.stderr
    );
    ensure!(!Agent::stored(&folder.join("segments"))?.is_empty(), "nothing was recorded once there was room");
    Ok(())
}

/// Killed without warning, it leaves segments from which every fault that it had counted is read; its successor goes on.
pub(super) fn killed(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let segments = fresh("/tmp/segments")?;
    let agent = Agent::start(&stage.kubeconfig()?, &segments, "")?;
    let faults = traffic(stage)?;
    Agent::wait_for("viptrace_faults_total", &["service=\"payments\"", "class=\"C29\""], UNANSWERED as u64)?;
    // A verdict follows its events by seconds, and a block is written within one.
    agent.kill();
    expect_stored(&segments, &faults)?;
    let before = Agent::stored(&segments)?;
    let agent = Agent::start(&stage.kubeconfig()?, &segments, "")?;
    let (from, api) = (stage.place("shop/client-1")?, stage.vip("shop/api", "https")?);
    all_ended(&client::connect(from, api, REFUSED, 1, Script::exchange())?, &Outcome::Refused)?;
    Agent::wait_for("viptrace_faults_total", &["service=\"api\"", "class=\"C28\""], REFUSED as u64)?;
    let ended = agent.stop()?;
    ensure!(ended.status == 0, "the agent's exit status is {}: {}", ended.status, ended.stderr);
    let after = Agent::stored(&segments)?;
    ensure!(after.len() > before.len() && after.starts_with(&before), "{before:?} became {after:?}");
    Ok(())
}

/// Healthy, refused and silent connections. Returns those that failed, with their class.
fn traffic(stage: &mut Stage) -> Result<Vec<(Attempt, Class)>> {
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    silent::misdeliver_payments(stage)?;
    let from = stage.place("shop/client-1")?;
    let served = client::connect(from, stage.vip("shop/cart", "http")?, SERVED, 2, Script::exchange())?;
    let refused = client::connect(from, stage.vip("shop/api", "https")?, REFUSED, 1, Script::exchange())?;
    let patience = Script::exchange().connect_limit(Duration::from_secs(4));
    let unanswered = client::connect(from, stage.vip("shop/payments", "grpc")?, UNANSWERED, 2, patience)?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&unanswered, &Outcome::ConnectTimedOut)?;
    let with = |class: Class| move |attempt| (attempt, class);
    Ok(refused
        .into_iter()
        .map(with(Class::C28))
        .chain(unanswered.into_iter().map(with(Class::C29)))
        .collect())
}

/// The segments replay, and have a verdict of its class for each of these attempts.
fn expect_stored(segments: &Path, faults: &[(Attempt, Class)]) -> Result<()> {
    let mut records = Vec::new();
    for segment in Agent::stored(segments)? {
        let replayed = replay::run(&segment.to_string_lossy(), &["-o", "json", "--all"])?;
        ensure!([0, 3].contains(&replayed.status), "{}: {}", segment.display(), replayed.stderr);
        records.extend(replayed.records());
    }
    for (attempt, class) in faults {
        let client = attempt.client.to_string();
        let found = records
            .iter()
            .any(|record| record.text("/flow/client") == client && record.class() == Some(*class));
        ensure!(found, "no segment has {class} for the connection from {client}");
    }
    Ok(())
}

/// An empty folder.
pub(super) fn fresh(path: &str) -> Result<std::path::PathBuf> {
    let _absent = fs::remove_dir_all(path);
    fs::create_dir_all(path).with_context(|| format!("creating {path}"))?;
    Ok(path.into())
}
