//! tcpdump captures the connections of a client on every interface of the node, where each packet passes twice and NAT changes
//! its addresses. `explain-pcap` counts each packet once and gives each connection the verdict of the recording.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    invocation::Invocation,
    replay::RECORDING,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    wait,
    watcher::{Ready, Watcher},
    world::Stage,
};

const CAPTURE: &str = "/tmp/node.pcap";
const LIMIT: Duration = Duration::from_mins(1);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let beside = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    let from = stage.place("shop/client-1")?;
    stage.watch()?;
    let tcpdump = capture(&from.address.to_string())?;

    let healthy = client::connect(from, stage.vip("shop/cart", "http")?, 4, 1, Script::exchange())?;
    all_ended(&healthy, &Outcome::Done)?;
    let refused = client::connect(from, stage.vip("shop/frontend", "http")?, 3, 1, Script::exchange())?;
    all_ended(&refused, &Outcome::Refused)?;
    let all = healthy.len() + refused.len();
    wait::until("the capture to have each connection", LIMIT, || {
        (explain().ok()?.iter().filter(|connection| has_end(connection)).count() == all).then_some(())
    })
    .with_context(|| format!("it has {:#?}", explain()))?;
    let status = tcpdump.stop()?;
    ensure!(status.success(), "tcpdump ended with {status}");

    stage.expect_by_server(
        &healthy,
        "shop/cart",
        &[(&here, Class::Ok), (&beside, Class::Ok), (&there, Class::Ok)],
    )?;
    let endpoint = SocketAddr::new(stage.place("shop/frontend-1")?.address, 8080);
    stage.expect(&refused, "shop/frontend", Class::C28, &Endpoint::Is(endpoint));
    stage.check(move |_, _| {
        let found = explain()?;
        ensure!(found.len() == all, "{} connections: {found:#?}", found.len());
        for (attempts, class) in [(&healthy, "ok"), (&refused, "C28")] {
            attempts.iter().try_for_each(|attempt| is_explained(&found, attempt, class))?;
        }
        Ok(())
    });
    Ok(())
}

/// tcpdump on every interface of the node, of what this address sends and receives.
fn capture(address: &str) -> Result<Watcher> {
    // In its default mode the kernel hands out packets late. In this one, without a short snapshot length, its buffer has
    // room for eight packets.
    let options = ["-Z", "root", "-U", "--immediate-mode", "-s", "128", "-i", "any", "-w", CAPTURE];
    let filter = ["tcp", "and", "host", address];
    Watcher::start("tcpdump", &[options.as_slice(), &filter].concat(), &Ready::Printed("listening on"))
}

/// Whether the connection was refused, or exchanged a request and an answer.
fn has_end(connection: &Value) -> bool {
    connection["resets"] != 0 || connection["packets"].as_u64() >= Some(8)
}

/// The connections of the capture.
fn explain() -> Result<Vec<Value>> {
    let ended =
        Invocation::start(&["explain-pcap", CAPTURE, "--recording", RECORDING, "-o", "json"])?.end(LIMIT)?;
    let parse = |line: &String| serde_json::from_str(line).with_context(|| format!("{line:?} is no record"));
    ended.stdout.iter().map(parse).collect()
}

fn is_explained(found: &[Value], attempt: &Attempt, class: &str) -> Result<()> {
    let client = attempt.client.to_string();
    let mut own = found.iter().filter(|connection| connection["client"] == client.as_str());
    let connection = own.next().with_context(|| format!("no connection of {client} in {found:#?}"))?;
    ensure!(own.next().is_none(), "{client} has two connections: {found:#?}");
    ensure!(connection["server"] == attempt.target.to_string().as_str(), "another server: {connection:#}");
    ensure!(connection["verdict"]["class"] == class, "{client} is not {class}: {connection:#}");
    let number = |name: &str| connection[name].as_u64().unwrap_or_default();
    ensure!(number("syns") == 1, "its SYN was counted more than once: {connection:#}");
    ensure!(number("sightings") >= 2 * number("packets"), "a packet was captured once only: {connection:#}");
    ensure!(
        connection["seen_as"].as_array().is_some_and(|tuples| tuples.len() >= 2),
        "only one side of NAT was captured: {connection:#}"
    );
    Ok(())
}
