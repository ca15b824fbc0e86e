//! A soak: many flows of one cluster at once, healthy, normal and broken at random, each with a known cause.
//!
//! The flows pass through the same path as those of a trace: sightings in the order of the CPUs' buffers, the flow
//! table with rereads of entries, the history of the cluster, and a node that is read when a verdict needs it. A random
//! seed decides everything, and a failure prints it.
//!
//! `cargo test` runs a small soak in each mode. The whole one, 60,000 flows with 3 seeds in 3 modes, and the same with
//! losses: `cargo test -p viptrace --test it soak -- --ignored --nocapture` (a quarter of an hour).

mod cluster;
mod conditions;
mod faults;
mod normal;
pub(crate) mod player;
mod services;
mod tally;
mod traffic;
mod wire;

use viptrace::{node::ProxyMode, session::Detail};

use player::{Loss, Soak};
use tally::Tally;

pub(crate) const MODES: [ProxyMode; 3] = [ProxyMode::Iptables, ProxyMode::Nftables, ProxyMode::Ipvs];
/// The flows that break by themselves, of a hundred.
const BROKEN: u64 = 20;

/// Plays all modes and prints what was caused and found. Returns the confusions.
fn soaked(seed: u64, flows: usize, loss: Loss, wrong: impl Fn(&Tally) -> Vec<String>) -> Vec<String> {
    let mut all = Vec::new();
    for mode in MODES {
        let prepared = Soak { mode, seed, flows, broken: BROKEN, loss }.prepare(|_| true);
        let mut tally = Tally::of(&prepared.flows);
        prepared.play(Detail::All, &mut |judgements| {
            judgements.judged.into_iter().for_each(|judged| tally.take(judged.verdict));
        });
        println!("{mode}, seed {seed}, {} flows, {loss:?} lost\n{tally}", tally.flows());
        all.extend(
            wrong(&tally).into_iter().map(|wrong| format!("{mode}, seed {seed}, {loss:?} lost: {wrong}")),
        );
    }
    all
}

/// Every caused fault is found and named, and nothing else.
fn nothing_is_missed_or_invented(seed: u64, flows: usize) {
    let wrong = soaked(seed, flows, Loss::Nothing, Tally::confusions);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// No verdict names a fault that was not caused, and a verdict that lacks events of its flow admits it.
fn losses_invent_nothing(seed: u64, flows: usize) {
    for loss in [Loss::Scattered, Loss::Bursts] {
        let wrong = soaked(seed, flows, loss, |tally| {
            let certain = tally.too_certain();
            tally.inventions().into_iter().chain(certain).collect()
        });
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn a_small_soak() {
    nothing_is_missed_or_invented(1, 3_000);
}

#[test]
fn a_small_soak_with_losses() {
    losses_invent_nothing(1, 3_000);
}

#[test]
#[ignore = "takes minutes"]
fn the_whole_soak() {
    for seed in [1, 2, 3] {
        nothing_is_missed_or_invented(seed, 60_000);
    }
}

#[test]
#[ignore = "takes minutes"]
fn the_whole_soak_with_losses() {
    for seed in [1, 2, 3] {
        losses_invent_nothing(seed, 60_000);
    }
}
