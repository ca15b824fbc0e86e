//! The agent on a node: its counts, its verdicts and its segments; and what it survives.

pub(super) mod disk;
pub(super) mod early;
pub(super) mod kills;
pub(super) mod outage;
pub(super) mod rules;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::silent;
use crate::{
    agent::Agent,
    expect::Record,
    invocation::Invocation,
    replay,
    tool::Ended,
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
    expect_faults("api", Class::C28, REFUSED)?;
    expect_faults("payments", Class::C29, UNANSWERED)?;
    for (service, made) in [("cart", SERVED), ("api", REFUSED), ("payments", UNANSWERED)] {
        expect_connections(service, made)?;
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
    stop(agent)?;
    expect_stored(&segments, &faults)
}

/// Connections to `shop/api`, whose Pod serves nothing.
fn refused(stage: &Stage, count: usize) -> Result<Vec<Attempt>> {
    let (from, api) = (stage.place("shop/client-1")?, stage.vip("shop/api", "https")?);
    let attempts = client::connect(from, api, count, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    Ok(attempts)
}

/// Waits until so many faults of a class are counted at a Service, and fails if there are more.
pub(super) fn expect_faults(service: &str, class: Class, count: usize) -> Result<()> {
    let labels = [format!("service=\"{service}\""), format!("class=\"{class}\"")];
    let labels = labels.each_ref().map(String::as_str);
    let counted = Agent::wait_for("viptrace_faults_total", &labels, count as u64)?;
    ensure!(
        counted == count as u64,
        "{counted} faults {class} of {service} were reported, {count} were caused"
    );
    Ok(())
}

/// Waits until so many connections to a Service are counted, and fails if there are more.
pub(super) fn expect_connections(service: &str, count: usize) -> Result<()> {
    let label = format!("service=\"{service}\"");
    let counted = Agent::wait_for("viptrace_connections_total", &[&label], count as u64)?;
    ensure!(counted == count as u64, "{counted} connections to {service} were counted, {count} were made");
    Ok(())
}

/// Stops the agent, which must end as after a drain.
pub(super) fn stop(agent: Agent) -> Result<Ended> {
    let ended = agent.stop()?;
    ensure!(ended.status == 0, "the agent's exit status is {}: {}", ended.status, ended.stderr);
    Ok(ended)
}

/// Healthy, refused and silent connections. Returns those that failed, with their class.
fn traffic(stage: &mut Stage) -> Result<Vec<(Attempt, Class)>> {
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    silent::misdeliver_payments(stage)?;
    let from = stage.place("shop/client-1")?;
    let served = client::connect(from, stage.vip("shop/cart", "http")?, SERVED, 2, Script::exchange())?;
    let refused = refused(stage, REFUSED)?;
    let patience = Script::exchange().connect_limit(Duration::from_secs(4));
    let unanswered = client::connect(from, stage.vip("shop/payments", "grpc")?, UNANSWERED, 2, patience)?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&unanswered, &Outcome::ConnectTimedOut)?;
    Ok([all_of(Class::C28, refused), all_of(Class::C29, unanswered)].concat())
}

/// Each of these attempts with the class of its fault.
fn all_of(class: Class, attempts: Vec<Attempt>) -> Vec<(Attempt, Class)> {
    attempts.into_iter().map(|attempt| (attempt, class)).collect()
}

/// The segments replay, and have a verdict of its class for each of these attempts.
fn expect_stored(segments: &Path, faults: &[(Attempt, Class)]) -> Result<()> {
    expect_among(&replayed(&Agent::stored(segments)?, &[0, 3])?, faults)
}

/// The segments' records have a verdict of its class for each of these attempts.
fn expect_among(records: &[Record], faults: &[(Attempt, Class)]) -> Result<()> {
    for (attempt, class) in faults {
        let client = attempt.client.to_string();
        let found = records
            .iter()
            .any(|record| record.text("/flow/client") == client && record.class() == Some(*class));
        ensure!(found, "no segment has {class} for the connection from {client}");
    }
    Ok(())
}

/// The records of these segments, whose replays end with one of these exit statuses.
fn replayed(segments: &[PathBuf], statuses: &[i32]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for segment in segments {
        let replayed = replay::run(&segment.to_string_lossy(), &["-o", "json", "--all"])?;
        ensure!(statuses.contains(&replayed.status), "{}: {}", segment.display(), replayed.stderr);
        records.extend(replayed.records());
    }
    Ok(records)
}

/// An empty folder.
pub(super) fn fresh(path: &str) -> Result<PathBuf> {
    let _absent = fs::remove_dir_all(path);
    fs::create_dir_all(path).with_context(|| format!("creating {path}"))?;
    Ok(path.into())
}
