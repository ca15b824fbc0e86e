//! The API server goes away while the agent runs, and returns without old versions (410 Gone). Verdicts go on with the age
//! of the metadata, the metrics report it, and changes of the meantime are known afterwards. `lab.api-away=SECONDS` on the
//! kernel's command line sets how long it is away.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::{expect_connections, expect_faults, fresh, refused, stop};
use crate::{
    agent::Agent,
    apiserver::Absence,
    boot,
    console::{self, Progress},
    expect::Record,
    published::{Member, Port, Published},
    scenarios::stale,
    traffic::{
        Attempt, Outcome, Transport, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    wait,
    world::Stage,
};

/// Longer than the interval at which the log repeats that metadata is missing.
const AWAY: Duration = Duration::from_secs(35);
/// From one round of connections to the next.
const PACE: Duration = Duration::from_secs(10);
const SERVED: usize = 6;
const ADDED: usize = 3;
const STALE: usize = 4;
/// The watches of `services`, `endpointslices`, `pods` and `nodes`.
const WATCHES: u64 = 4;
/// Metadata younger than this counts as fresh, seconds.
const FRESH_S: f64 = 2.0;
/// The limit from a loss to its notice, seconds.
const NOTICED_S: f64 = 5.0;

pub(in crate::scenarios) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let away = boot::kernel_number("lab.api-away")?.map_or(AWAY, Duration::from_secs);
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    let agent = Agent::start(&stage.kubeconfig()?, &fresh("/tmp/segments")?, "output: json\n")?;
    let mut made = Made::default();
    let before = made.round(stage)?;
    expect_faults("api", Class::C28, made.refused)?;
    let age = metadata_age(&agent, &before)?;
    ensure!(age <= FRESH_S, "the metadata is {age} s old although the API server answers");

    stage.api.go_away(Absence::Refused);
    let gone = Instant::now();
    Agent::wait_until("viptrace_watch_connected", &[], "0", |open| open == 0)?;
    let mut progress = Progress::every(Duration::from_mins(1));
    let (mut last, mut round) = (before, 0);
    while gone.elapsed() + PACE / 2 < away {
        last = made.round(stage)?;
        expect_faults("api", Class::C28, made.refused)?;
        ensure!(Agent::is_ready(), "an API server that is away makes the agent unready");
        round += 1;
        wait::until_older_than(gone, (PACE * round).min(away));
        if progress.is_due() {
            console::print(format!("agent-api-away: {} s, {made:?}", gone.elapsed().as_secs()));
        }
    }
    wait::until_older_than(gone, away);
    let (shown, stated) = (Agent::number("viptrace_metadata_age_seconds")?, metadata_age(&agent, &last)?);
    let lasted = gone.elapsed().as_secs_f64();
    ensure!(shown + NOTICED_S >= lasted, "after {lasted} s the metrics report metadata of {shown} s");
    ensure!(
        stated + NOTICED_S + PACE.as_secs_f64() >= lasted,
        "after {lasted} s a record states metadata of {stated} s"
    );

    // A new Service and an endpoint that leaves, of which the agent learns later.
    let added = add_service(stage)?;
    let left = stale::remove_cart_2(stage)?;
    stage.api.compact();
    stage.api.come_back().context("bringing the lab's API server back")?;
    let back = Instant::now();
    Agent::wait_for("viptrace_watch_connected", &[], WATCHES)?;
    let took = back.elapsed();
    ensure!(
        Agent::number("viptrace_metadata_age_seconds")? <= FRESH_S,
        "the metadata is old although every watch is open"
    );
    expect_connections("cart", made.served)?;
    stage.changed_now();
    stage.after_grace();
    let (from, cart) = (stage.place("shop/client-1")?, stage.vip("shop/cart", "http")?);
    let refusals = client::connect(from, added, ADDED, 1, Script::exchange())?;
    all_ended(&refusals, &Outcome::Refused)?;
    expect_faults("added", Class::C28, ADDED)?;
    // kube-proxy's rules still have the endpoint. A repeated SYN shall not reach another.
    stale::unplug(stage, "shop/cart-2")?;
    let mut rules = stage.rules()?.clone();
    for other in ["shop/cart-1", "shop/cart-3"] {
        rules = rules.with_endpoint_moved(stage.place(other)?.address, left.ip());
    }
    stage.break_rules(&rules)?;
    let late = client::connect(from, cart, STALE, STALE, Script::exchange())?;
    all_ended(&late, &Outcome::HostUnreachable)?;
    expect_faults("cart", Class::C6, STALE)?;
    let unexplained = Agent::sum("viptrace_unexplained_total", &[])?;
    ensure!(unexplained == 0, "{unexplained} flows are unexplained");

    let ended = stop(agent)?;
    ensure!(ended.stderr.contains(" s old: "), "the log does not report old metadata: {}", ended.stderr);
    let records = ended.records();
    let with = |kind: &str| records.iter().filter(|record| has_change(record, kind)).count();
    let (losses, returns) = (with("api_lost"), with("api_back"));
    ensure!(
        losses > 0 && returns > 0,
        "{losses} records list the loss of the API server, {returns} its return"
    );
    console::print(format!(
        "agent-api-away: away for {lasted:.0} s, every watch open {:.1} s after the return; {made:?}, {} records",
        took.as_secs_f64(),
        records.len()
    ));
    Ok(())
}

/// The connections that were made.
#[derive(Debug, Default)]
struct Made {
    served: usize,
    refused: usize,
}

impl Made {
    /// Makes healthy connections and one that is refused, which it returns.
    fn round(&mut self, stage: &Stage) -> Result<Attempt> {
        let (from, cart) = (stage.place("shop/client-1")?, stage.vip("shop/cart", "http")?);
        all_ended(&client::connect(from, cart, SERVED, 2, Script::exchange())?, &Outcome::Done)?;
        self.served += SERVED;
        self.refused += 1;
        refused(stage, 1)?.pop().context("one attempt was made")
    }
}

/// The metadata's age in an attempt's record, seconds.
fn metadata_age(agent: &Agent, attempt: &Attempt) -> Result<f64> {
    let client = attempt.client.to_string();
    let record = agent.printed()?.into_iter().find(|record| record.text("/flow/client") == client);
    let record = record.with_context(|| format!("no record was printed for {attempt:?}"))?;
    record.value()["metadata_age"]
        .as_f64()
        .with_context(|| format!("a record without metadata_age: {record}"))
}

/// Whether the record lists a change of this kind.
fn has_change(record: &Record, kind: &str) -> bool {
    record.value()["changes_around"].as_array().into_iter().flatten().any(|change| change["kind"] == kind)
}

/// Adds a Service whose endpoint refuses, and its rules. Returns its address.
fn add_service(stage: &mut Stage) -> Result<SocketAddr> {
    let (cluster_ip, number) = ([10, 96, 10, 92].into(), 443);
    stage.publish(&[Published {
        name: "added".to_owned(),
        cluster_ip: Some(cluster_ip),
        external_ip: None,
        load_balancer_ip: None,
        ports: vec![Port { name: "https", protocol: Transport::Tcp, number, target: 8443, node_port: None }],
        family: stage.family(),
        endpoint: Some(Member { address: stage.place("shop/api-1")?.address, pod: Some("shop/api-1") }),
        selects: true,
    }])?;
    Ok(SocketAddr::new(cluster_ip, number))
}
