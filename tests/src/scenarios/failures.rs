//! Failing connections only: the kernel keeps all decisions and hands over those of connections that fail. A fault has
//! the verdict and the endpoint of a full trace, a healthy connection has no record, and the kernel counts both exactly.
//! Nor has a connection to an endpoint itself, as those that another node translated arrive.

pub(super) mod shared;
pub(super) mod small_buffer;

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::silent;
use crate::{
    dataplane::Mode,
    expect::{Endpoint, Record},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
        udp::{self, Answer},
    },
    world::Stage,
};

const SERVED: usize = 60;
const REFUSED: usize = 5;
const UNANSWERED: usize = 3;
const QUERIES: usize = 40;
/// More than the failures that one client may have reported at once.
const DIRECT: usize = 150;

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    stage.keep_serving_udp(&["kube-system/coredns-1", "kube-system/coredns-2"], 53, Answer::Echo)?;
    stage.watch_with(&["--hooks", "failures", "--sample", "0"])?;
    stage.ends_are_unseen();
    silent::misdeliver_payments(stage)?;

    let vip = |service, port| stage.vip(service, port);
    let from = stage.place("shop/client-1")?;
    let served = client::connect(from, vip("shop/cart", "http")?, SERVED, 2, Script::exchange())?;
    let asked = udp::query(from, vip("kube-system/kube-dns", "dns")?, QUERIES, Duration::from_secs(20))?;
    let refused = client::connect(from, vip("shop/api", "https")?, REFUSED, 1, Script::exchange())?;
    let without = client::connect(from, vip("shop/checkout", "http")?, 3, 1, Script::exchange())?;
    let endpoint = SocketAddr::new(stage.place("shop/cart-1")?.address, 8080);
    let direct = client::connect(from, endpoint, DIRECT, 2, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&asked, &Outcome::Done)?;
    all_ended(&direct, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&without, &Outcome::Refused)?;
    let (unanswered, silent) = silent::unanswered(stage, UNANSWERED)?;

    stage.expect_hardly_recorded(&served);
    stage.expect_hardly_recorded(&asked);
    let refusing = SocketAddr::new(stage.place("shop/api-1")?.address, 8443);
    stage.expect(&refused, "shop/api", Class::C28, &Endpoint::Is(refusing));
    stage.expect(&without, "shop/checkout", Class::C20, &Endpoint::Null);
    stage.expect(&unanswered, "shop/payments", Class::C29, &silent);
    let rejected = if stage.mode() == Mode::Ipvs { "ip_vs_leave" } else { "nf_send_unreach" };
    // Before, the tracepoint is blind to RSTs without a full socket.
    let reset = if shared::kernel_version()? < (6, 10) { "tcp_v4_send_reset" } else { "tcp_send_reset" };
    let events = [rejected, reset, "nf_ct_kill_acct", "tcp_receive_reset", "tcp_retransmit_skb"];
    shared::expect_events(stage, &events);
    stage.check(move |_, ended| {
        let started = |service: &str| started(&ended.stderr, service);
        for (service, expected) in
            [("shop/cart:http", SERVED), ("kube-system/kube-dns:dns", QUERIES), ("shop/api:https", REFUSED)]
        {
            let counted = started(service)?;
            ensure!(
                counted == expected,
                "{counted} connections to {service} were counted, {expected} were made"
            );
        }
        // A healthy connection costs no record, whichever hooks meet it.
        let (flows, failed) = (flows(&ended.stderr)?, REFUSED + without.len() + UNANSWERED);
        let met = (SERVED + QUERIES + DIRECT) / 10;
        ensure!(
            (failed..=failed + met).contains(&flows),
            "{flows} flows were observed, {failed} failed: {}",
            ended.stderr
        );
        ensure!(
            !ended.stderr.contains("suppressed in the kernel"),
            "events were suppressed: {}",
            ended.stderr
        );
        Ok(())
    });
    Ok(())
}

/// The summary's number of flows.
fn flows(summary: &str) -> Result<usize> {
    let words: Vec<&str> = summary.split_whitespace().collect();
    let count = words.windows(3).find(|words| words[1..] == ["flows", "in"]).map(|words| words[0]);
    count.context("the summary has no number of flows")?.parse().context("the number of flows is none")
}

const NOISE: usize = 400;

/// One Pod connects in a loop to a port that refuses. The kernel reports some of its failures and counts the others by
/// Service; the faults and the healthy connections of other Pods are judged as ever.
pub(super) fn noisy(stage: &mut Stage) -> Result<()> {
    let cart_1 = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    stage.watch_with(&["--hooks", "failures", "--sample", "1"])?;
    silent::misdeliver_payments(stage)?;
    let address = |pod: &str| anyhow::Ok(stage.place(pod)?.address);
    let (cart, silent) = (address("shop/cart-1")?, address("shop/payments-1")?);
    let rules = stage.rules()?.with_endpoint_moved(address("shop/payments-2")?, silent);
    let rules = rules.with_endpoint_moved(address("shop/cart-2")?, cart);
    let rules = rules.with_endpoint_moved(address("shop/cart-3")?, cart);
    stage.break_rules(&rules)?;

    let (noisy, other) = (stage.place("shop/slow-1")?, stage.place("shop/client-1")?);
    let refused = client::connect(noisy, stage.vip("shop/api", "https")?, NOISE, 2, Script::exchange())?;
    let patience = Script::exchange().connect_limit(Duration::from_secs(4));
    let unanswered = client::connect(other, stage.vip("shop/payments", "grpc")?, UNANSWERED, 3, patience)?;
    let served = client::connect(other, stage.vip("shop/cart", "http")?, SERVED, 2, Script::exchange())?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&unanswered, &Outcome::ConnectTimedOut)?;
    all_ended(&served, &Outcome::Done)?;
    let (noisy, other) = (noisy.address.to_string(), other.address.to_string());
    drop(cart_1);

    let ended = stage.stop_watching()?;
    let records = ended.records();
    let of = |client: &str, service: &str, class: Class| {
        let is_of = |record: &&Record| {
            record.text("/flow/client").starts_with(&format!("{client}:"))
                && record.text("/service/name") == service
                && record.class() == Some(class)
        };
        records.iter().filter(is_of).count()
    };
    let (silent, healthy) = (of(&other, "payments", Class::C29), of(&other, "cart", Class::Ok));
    ensure!(
        (silent, healthy) == (UNANSWERED, SERVED),
        "beside the noise, {silent} of {UNANSWERED} silent connections and {healthy} of {SERVED} healthy ones are judged: {}",
        others(&records, &noisy, &ended.stderr)
    );
    let reported = of(&noisy, "api", Class::C28);
    ensure!((1..NOISE).contains(&reported), "{reported} of {NOISE} refused connections were reported");
    let suppressed = ended.stderr.lines().find(|line| line.contains("suppressed in the kernel"));
    let suppressed = suppressed.unwrap_or_default().trim_start();
    // Each one is known to be of this Service, also where both CPUs met the first one at the same time.
    let count = suppressed.split(' ').next().unwrap_or_default();
    ensure!(
        !count.is_empty() && suppressed.ends_with(&format!(": {count} to shop/api")),
        "the summary does not count all suppressed events as those to shop/api: {}",
        ended.stderr
    );
    let counted = started(&ended.stderr, "shop/api:https")?;
    ensure!(counted == NOISE, "{counted} connections were counted, {NOISE} were made");
    Ok(())
}

/// All records that are not healthy but those of one client, and the summary.
fn others(records: &[Record], client: &str, summary: &str) -> String {
    let is_other = |record: &&Record| {
        record.class() != Some(Class::Ok) && !record.text("/flow/client").starts_with(&format!("{client}:"))
    };
    let lines: Vec<String> = records.iter().filter(is_other).map(ToString::to_string).collect();
    format!("{}\n{summary}", lines.join("\n"))
}

/// The connections to a Service port that the summary lists, of all its endpoints.
pub(super) fn started(summary: &str, service: &str) -> Result<usize> {
    let rows = summary.lines().skip_while(|line| !line.contains("Connections started"));
    let of_service = rows.filter(|row| row.split_whitespace().next() == Some(service));
    let counts = of_service.map(|row| {
        let count = row.split_whitespace().rev().nth(1).unwrap_or_default();
        count.parse::<usize>().with_context(|| format!("the summary's line has no count: {row}"))
    });
    counts.sum()
}
