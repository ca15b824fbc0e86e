//! A flood of half-open connections, far more than viptrace may hold. Its memory stays bounded, the evicted flows are
//! counted, and a healthy connection afterwards has its verdict.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context, Result, bail, ensure};

use super::silent;
use viptrace_class::Class;

use crate::{
    console,
    expect::Endpoint,
    process::Status,
    sys,
    tool::Tool,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

/// The flood comes in waves, each read to its end before the next. After one large burst the memory would show the
/// judgement of the buffered events, and not the number of kept flows.
const WAVES: usize = 10;
const WAVE: usize = 2_000;
const FLOOD: usize = WAVES * WAVE;
const MAX_FLOWS: usize = 2_000;
const MAX_TRIES: usize = 3;
const CAUGHT_UP_LIMIT: Duration = Duration::from_secs(45);
/// The growth of a wave whose flows were kept, at 1 KiB each, minus the free memory that it may find.
const KEPT_KIB: u64 = (WAVE as u64) / 4 * 3;
/// This many waves may grow by that much without keeping a flow: short-lived data, such as the sightings of one read and
/// the verdicts of one step, grows in steps.
const MAX_STEPS: usize = (WAVES - 1) / 3 * 2;
/// The growth since the first wave, which fills the table: the size of all other waves' flows, 18 MB.
const GROWTH_LIMIT_KIB: u64 = (FLOOD - WAVE) as u64;
/// The total: the program, its buffer from the kernel (8 MiB, mapped twice) and its flows.
const TOTAL_LIMIT_KIB: u64 = 96 * 1024;

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let most = MAX_FLOWS.to_string();
    stage.watch_with(&["--max-flows", &most])?;
    sys::allow_open_files(FLOOD as u64 + 4_096).context("allowing the flood's sockets")?;
    // Each client gives up after one retransmission of its SYN.
    let place = stage.place("shop/slow-1")?.clone();
    let (netns, same_netns) = (place.netns.clone(), place.netns.clone());
    let retries = "net.ipv4.tcp_syn_retries";
    stage.break_with(move |_| netns.sysctl(retries, "1"), move |_| same_netns.sysctl(retries, "6"))?;
    silent::misdeliver(stage, stage.world.pod("shop/api-1")?)?;
    let rules = only_cart_1(stage)?;
    stage.break_rules(&rules)?;
    let target = stage.vip("shop/api", "https")?;

    let endpoint = Endpoint::Is(serving.address());
    let (mut half_open, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..WAVES {
        half_open.extend(client::half_open(&place, target, WAVE)?);
        memory.extend(memory_once_caught_up(stage, &endpoint)?);
    }
    drop(half_open);
    memory_once_caught_up(stage, &endpoint)?;
    let own: Vec<String> = memory.iter().map(|memory| memory.own_kib.to_string()).collect();
    console::print(format!(
        "flood: viptrace's own memory after each {WAVE} connections: {} KiB",
        own.join(", ")
    ));
    let (Some(before), Some(after)) = (memory.first(), memory.last()) else {
        return Ok(());
    };
    let grown = |pair: &[Memory]| pair[1].own_kib.saturating_sub(pair[0].own_kib);
    let steps = memory.windows(2).filter(|pair| grown(pair) >= KEPT_KIB).count();
    ensure!(
        after.total_kib <= TOTAL_LIMIT_KIB
            && after.own_kib.saturating_sub(before.own_kib) <= GROWTH_LIMIT_KIB
            && steps <= MAX_STEPS,
        "memory grew from {before:?} to {after:?} over {WAVES} waves, in {steps} steps"
    );
    judge(stage)
}

/// Makes a healthy connection and waits for its verdict, which comes after all earlier events. Returns viptrace's
/// memory; `None` if viptrace does not run. A connection that more SYNs are retransmitted beside than the table holds
/// is evicted and counted: then it makes another one.
fn memory_once_caught_up(stage: &Stage, endpoint: &Endpoint) -> Result<Option<Memory>> {
    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let mut failure = None;
    for _ in 0..MAX_TRIES {
        let attempts = client::connect(from, cart, 1, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Done)?;
        let attempt = attempts.first().context("no connection was made")?;
        match stage.record_within(attempt, CAUGHT_UP_LIMIT) {
            Ok(None) => return Ok(None),
            Ok(Some(record)) => {
                let address = record.text("/flow/endpoint").parse().context("an endpoint is no address")?;
                let is_right = record.class() == Some(Class::Ok) && Endpoint::Is(address) == *endpoint;
                ensure!(is_right, "in the flood: {record}");
                return stage.tool().map(Memory::of).transpose();
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.context("no try was made")?)
}

/// Rules that send all of `shop/cart` to its first Pod, which is the only one that serves.
fn only_cart_1(stage: &Stage) -> Result<crate::rules::Rules> {
    let serving = stage.place("shop/cart-1")?.address;
    let mut rules = stage.rules()?.clone();
    for other in ["shop/cart-2", "shop/cart-3"] {
        rules = rules.with_endpoint_moved(stage.place(other)?.address, serving);
    }
    Ok(rules)
}

/// Each connection of the flood has a verdict or is counted.
fn judge(stage: &mut Stage) -> Result<()> {
    let ended = stage.stop_watching()?;
    let records = ended.records();
    // Later events of an evicted flow lack its beginning: the flow may stay unexplained, but must not get a wrong
    // explanation.
    let may_be = |class| matches!(class, Some(Class::C29 | Class::Unknown));
    if let Some(other) = records.iter().find(|record| record.reports_failure() && !may_be(record.class())) {
        bail!("a flow of the flood has a class other than silence: {other}");
    }
    // On a slow machine each flow may get its verdict before the table is full: then no line counts evicted flows, and
    // all must have been judged.
    let evicted = match ended.stderr.lines().find(|line| line.contains("--max-flows")) {
        None => 0,
        Some(line) => line
            .split_whitespace()
            .next()
            .and_then(|count| count.parse().ok())
            .with_context(|| format!("the summary's line of evicted flows has no count: {line}"))?,
    };
    // A late event of a forgotten flow begins another: each connection counts once.
    let judged = records.iter().filter(|record| may_be(record.class()));
    let judged = judged.map(|record| record.text("/flow/client")).collect::<HashSet<_>>().len();
    ensure!(
        evicted + judged >= FLOOD,
        "of {FLOOD} half-open connections, {judged} were judged and {evicted} evicted: {}",
        ended.stderr
    );
    Ok(())
}

/// The resident memory of viptrace.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// All of it, including pages shared with the kernel.
    total_kib: u64,
    /// The private part, which holds the flows. The buffer from the kernel is not in it; its pages count when they are
    /// first used.
    own_kib: u64,
}

impl Memory {
    fn of(tool: &Tool) -> Result<Self> {
        let status = Status::read(tool.pid())?;
        Ok(Self { total_kib: status.kib("VmRSS")?, own_kib: status.kib("RssAnon")? })
    }
}
