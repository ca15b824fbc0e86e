//! Kills the agent at random moments, from its start on. A verdict whose events are older than the open block is in a
//! segment, a segment never becomes shorter, and the next agent goes on. `lab.kills=COUNT` on the kernel's command line sets
//! how often, and `lab.seed=NUMBER` repeats the moments of a run.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use viptrace_class::Class;

use super::{REFUSED, expect_among, expect_faults, fresh, replayed, stop, traffic};
use crate::{
    agent::Agent,
    boot, console,
    expect::Record,
    scenarios::load::{self, Load},
    wait,
    world::Stage,
};

const KILLS: u64 = 5;
/// The kill comes within this time after the agent is ready; of every fourth agent, within this time after its start. The
/// first one is ready when a verdict is due, because at random moments perhaps none is.
const WITHIN: Duration = Duration::from_secs(6);
const EVERY: u64 = 4;
/// From one connection of the load to the next: below the limit from which failures are only counted.
const PACE: Duration = Duration::from_millis(100);
/// A block is written at the latest 1 s after its first event. The rest is for a busy machine.
const OPEN_BLOCK: Duration = Duration::from_secs(3);
/// The limit for the first verdict, and for it to be due.
const DUE: Duration = Duration::from_mins(2);
/// The exit statuses of a replay: one that was cut off before its first complete block has no objects (4).
const CUT_OFF: [i32; 3] = [0, 3, 4];

pub(in crate::scenarios) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let count = boot::kernel_number("lab.kills")?.unwrap_or(KILLS);
    let clock = || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |now| u64::from(now.subsec_nanos()));
    let seed = boot::kernel_number("lab.seed")?.unwrap_or_else(clock);
    console::print(format!("agent-killed: lab.seed={seed}"));
    let mut random = Random(seed);
    let segments = fresh("/tmp/segments")?;
    let kubeconfig = stage.kubeconfig()?;
    let mut sizes = BTreeMap::new();
    let (mut due, mut early) = (0, 0);
    for number in 0..count {
        let (from, api) = (stage.place("shop/client-1")?, stage.vip("shop/api", "https")?);
        let load = Load::start(from, api, knock)?;
        let agent = if number % EVERY == EVERY - 1 {
            Agent::begin(&kubeconfig, &segments, "output: json\n")?
        } else {
            Agent::start(&kubeconfig, &segments, "output: json\n")?
        };
        if number == 0 {
            wait::until("a verdict that is due", DUE, || {
                let records = agent.printed().ok()?;
                records.iter().any(|record| is_due(record, SystemTime::now())).then_some(())
            })?;
        }
        wait::until_older_than(Instant::now(), random.below(WITHIN));
        let before = sizes_of(&segments)?;
        let moment = SystemTime::now();
        let ended = agent.kill()?;
        load.stop()?;
        early += u64::from(Agent::stored(&segments)?.len() == sizes.len());
        due += expect_survived(&segments, &sizes, &before, &ended.records(), moment)
            .with_context(|| format!("after kill {} of {count}", number + 1))?;
        sizes = sizes_of(&segments)?;
    }
    ensure!(due > 0, "no verdict was old enough at any of {count} kills");
    console::print(format!(
        "agent-killed: {count} kills, {early} of them before a segment began; {due} verdicts were due in {} segments, and are \
         there",
        sizes.len()
    ));

    // The next agent judges and records as if nothing had happened.
    let agent = Agent::start(&kubeconfig, &segments, "")?;
    let faults = traffic(stage)?;
    expect_faults("api", Class::C28, REFUSED)?;
    stop(agent)?;
    expect_among(&replayed(&Agent::stored(&segments)?, &CUT_OFF)?, &faults)
}

/// Compares the segments after a kill with those `before` it, and replays those that are not among the `earlier` ones.
/// Returns the number of printed verdicts that had to be in them.
fn expect_survived(
    segments: &Path,
    earlier: &BTreeMap<PathBuf, u64>,
    before: &BTreeMap<PathBuf, u64>,
    printed: &[Record],
    moment: SystemTime,
) -> Result<usize> {
    let after = sizes_of(segments)?;
    for (path, size) in before {
        let now = after.get(path).with_context(|| format!("{} is gone", path.display()))?;
        ensure!(now >= size, "{} had {size} bytes, and has {now}", path.display());
    }
    // One that began just now has no verdict that is due, and may lack its header.
    let is_new = |(path, size): &(&PathBuf, &u64)| **size > 0 && !earlier.contains_key(*path);
    let new: Vec<PathBuf> = before.iter().filter(is_new).map(|(path, _)| path.clone()).collect();
    let due: Vec<&Record> = printed.iter().filter(|record| is_due(record, moment)).collect();
    let stored = replayed(&new, &CUT_OFF)?;
    let is_stored = |record: &Record| {
        let is_same = |other: &Record| other.key() == record.key() && other.class() == record.class();
        stored.iter().any(is_same)
    };
    let missing: Vec<&&Record> = due.iter().filter(|record| !is_stored(record)).collect();
    if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
        let began = |record: &Record| record.text("/flow/started").to_owned();
        bail!(
            "{} of {} printed verdicts are in none of {new:?}, of flows from {} to {}; the {} stored ones are from {:?} to {:?}; \
             the first: {first}",
            missing.len(),
            due.len(),
            began(first),
            began(last),
            stored.len(),
            stored.iter().map(began).min(),
            stored.iter().map(began).max()
        );
    }
    Ok(due.len())
}

/// Connects to a closed port, and waits.
fn knock(to: SocketAddr) -> io::Result<()> {
    load::refused(to)?;
    wait::until_older_than(Instant::now(), PACE);
    Ok(())
}

/// Whether all events of a verdict were in closed blocks at that moment.
fn is_due(record: &Record, moment: SystemTime) -> bool {
    let time = record.text("/time").parse::<jiff::Timestamp>();
    time.is_ok_and(|time| SystemTime::from(time) + OPEN_BLOCK <= moment)
}

/// The bytes of each stored segment.
fn sizes_of(segments: &Path) -> Result<BTreeMap<PathBuf, u64>> {
    let size = |path: PathBuf| {
        let meta = fs::metadata(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok((path, meta.len()))
    };
    Agent::stored(segments)?.into_iter().map(size).collect()
}

/// Numbers that a seed determines (splitmix64, <https://prng.di.unimi.it/splitmix64.c>).
struct Random(u64);

impl Random {
    /// A time below a limit, in milliseconds.
    fn below(&mut self, limit: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis((mixed ^ (mixed >> 31)) % limit)
    }
}
