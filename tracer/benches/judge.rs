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
#[path = "../tests/it/folded_support.rs"]
mod folded_support;
#[path = "../tests/it/node_support.rs"]
mod node_support;
#[path = "../tests/it/recording_support.rs"]
mod recording_support;
#[path = "../tests/it/session_support.rs"]
mod session_support;
#[path = "../tests/it/soak/mod.rs"]
mod soak;

use std::{cell::Cell, env, fs, hint::black_box};

use folded_support::Folded;
use soak::{
    MODES,
    player::{Loss, Prepared, Soak},
};
use viptrace::{diagnosis::judge, session::Detail};

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
