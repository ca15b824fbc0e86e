//! The verdicts on a soak's flows: each caused fault is named, and nothing else, also where events are lost.
//!
//! `cargo test` runs a small soak in each mode. The whole one, 60,000 flows with 3 seeds in 3 modes, and the same with
//! losses: `cargo test -p viptrace --test it soak -- --ignored --nocapture` (a quarter of an hour).

use viptrace::session::Detail;

use crate::soak::{
    BROKEN, MODES,
    player::{Loss, Soak},
    tally::Tally,
};

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
