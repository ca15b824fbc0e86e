//! Measures how many flows a second the engine folds and judges on one core.
//!
//! `cargo xtask bench judge` runs it. The flows are those of the soak (`tests/it/soak`): decoded sightings of one
//! cluster, in two mixes. `folded and judged` is the whole path of a trace from decoded sightings to verdicts, with
//! healthy flows folded as in the default view, or each judged (`--all`). `judged` is only the step from a finished flow
//! to its verdict. Nothing is printed or serialized. The times are the thread's own on the CPU.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]
#![expect(clippy::panic, clippy::indexing_slicing, dead_code, reason = "the helpers of the tests")]

#[path = "../tests/it/cluster_support.rs"]
mod cluster_support;
#[path = "../tests/it/flow_support.rs"]
mod flow_support;
#[path = "../tests/it/node_support.rs"]
mod node_support;
#[path = "../tests/it/recording_support.rs"]
mod recording_support;
#[path = "../tests/it/session_support.rs"]
mod session_support;
#[path = "../tests/it/soak/mod.rs"]
mod soak;

use std::{cell::Cell, collections::BTreeMap, env, fs, hint::black_box, sync::Arc, time::Duration};

use flow_support::{NODE, at};
use soak::{
    MODES,
    player::{Loss, Prepared, REST, Soak, update},
};
use viptrace::{
    cluster::Cluster,
    diagnosis::{Context, Translations, judge},
    flow::{Flow, FlowTable, Limits},
    node::Snapshot,
    session::Detail,
};

const ROUNDS: usize = 5;

fn main() {
    // `cargo test` runs benchmarks too. Then a small one checks that it works.
    let is_bench = env::args().any(|argument| argument == "--bench");
    let flows = if is_bench { 40_000 } else { 500 };
    println!(
        "{:<10} {:<10} {:>7} {:>11} {:<28} {:>13} {:>9}",
        "mode", "mix", "flows", "events/flow", "measure", "flows/CPU s", "ns/flow"
    );
    for mode in MODES {
        for (mix, healthy_per_broken) in [("usual", 99), ("broken", 0)] {
            // The soak's own mix has many more broken flows than a cluster: made in excess, and thinned out.
            let made = Soak { mode, seed: 1, flows: flows * 3, broken: 50, loss: Loss::Nothing };
            let (broken, healthy) = (Cell::new(0_usize), Cell::new(0_usize));
            let prepared = made.prepare(|flow| {
                if broken.get() + healthy.get() >= flows {
                    return false;
                }
                let is_broken = flow.truth.classes.first().is_some_and(|class| class.is_fault());
                let count = if is_broken { &broken } else { &healthy };
                let is_wanted = if is_broken {
                    broken.get() * healthy_per_broken <= healthy.get()
                } else {
                    healthy_per_broken > 0
                };
                count.set(count.get() + usize::from(is_wanted));
                is_wanted
            });
            let count = broken.get() + healthy.get();
            let events: usize = prepared.turns.iter().map(|turn| turn.sightings.len()).sum();
            let events = format!("{}.{}", events / count, events * 10 / count % 10);
            let show = |measure: &str, ns: u64| {
                let per_second = count as u64 * 1_000_000_000 / ns.max(1);
                println!(
                    "{:<10} {mix:<10} {count:>7} {events:>11} {measure:<28} {per_second:>13} {:>9}",
                    mode.as_str(),
                    ns / count as u64
                );
            };
            show("folded and judged", median(|| played(&prepared, Detail::Faults)));
            show("folded and judged, --all", median(|| played(&prepared, Detail::All)));
            let folded = Folded::of(prepared);
            let context = folded.context();
            show(
                "judged",
                median(|| {
                    timed(|| {
                        for flow in &folded.flows {
                            black_box(judge(black_box(flow), &context));
                        }
                    })
                }),
            );
        }
    }
}

/// The flows of a soak as the table hands them out, with what they are judged by.
#[derive(Debug)]
struct Folded {
    flows: Vec<Flow>,
    cluster: Cluster,
    node: Arc<Snapshot>,
    translations: Translations,
}

impl Folded {
    /// Folds all flows without judging them. Each has the last of its revisions.
    fn of(prepared: Prepared) -> Self {
        let mut table = FlowTable::new(Limits::default());
        let mut flows: BTreeMap<u64, Flow> = BTreeMap::new();
        let mut cluster = prepared.soaked.cluster();
        for turn in prepared.turns {
            turn.changes.into_iter().for_each(|(ms, change)| cluster.absorb(update(ms, change)));
            turn.sightings.into_iter().for_each(|sighting| table.observe(sighting));
            table.advance(at(turn.ms));
            flows.extend(table.drain_settled().map(|flow| (flow.id, flow)));
        }
        table.finish(at(prepared.soaked.end + REST + 100_000));
        flows.extend(table.drain_settled().map(|flow| (flow.id, flow)));
        let node = prepared.soaked.snapshot(prepared.soaked.end);
        let mut folded =
            Self { flows: flows.into_values().collect(), cluster, node, translations: Translations::new() };
        let mut translations = Translations::new();
        for flow in &folded.flows {
            translations.note(flow, &folded.context());
        }
        folded.translations = translations;
        folded
    }

    fn context(&self) -> Context<'_> {
        Context {
            cluster: &self.cluster.history,
            node: &self.node,
            node_name: Some("worker-1"),
            node_netns: Some(NODE),
            missing_hooks: &[],
            drop_reasons: true,
            translations: &self.translations,
            grace: Duration::from_secs(5),
            now: at(u64::from(u32::MAX)),
            metadata_age: Some(0.0),
        }
    }
}

fn played(prepared: &Prepared, detail: Detail) -> u64 {
    let prepared = prepared.clone();
    timed(move || {
        prepared.play(detail, &mut |judgements| {
            black_box(judgements);
        });
    })
}

fn median(mut measure: impl FnMut() -> u64) -> u64 {
    let mut times: Vec<u64> = (0..ROUNDS).map(|_| measure()).collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn timed(work: impl FnOnce()) -> u64 {
    let begun = on_cpu_ns();
    work();
    on_cpu_ns() - begun
}

/// The CPU time of this thread in nanoseconds (the first number of `schedstat`), which does not depend on other load.
fn on_cpu_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
