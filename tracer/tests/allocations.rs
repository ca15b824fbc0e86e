//! How many heap allocations a judged flow costs: the part of the engine's speed that a test can count.
//!
//! A binary of its own, because the allocator that counts is the whole program's. The flows are those of the soak, the
//! same in every run. `cargo xtask bench judge` measures the time.

#![cfg(test)]
#![expect(dead_code, reason = "the helpers of the tests")]

#[path = "it/cluster_support.rs"]
mod cluster_support;
#[path = "it/flow_support.rs"]
mod flow_support;
#[path = "it/folded_support.rs"]
mod folded_support;
#[path = "it/node_support.rs"]
mod node_support;
#[path = "it/recording_support.rs"]
mod recording_support;
#[path = "it/session_support.rs"]
mod session_support;
#[path = "it/soak/mod.rs"]
mod soak;

use allocation_counter::measure;
use folded_support::Folded;
use soak::{
    MODES,
    player::{Loss, Soak},
};
use viptrace::{
    class::Class,
    diagnosis::{Outline, judge, outline},
};

/// Of a flow that was served and ended: its evidence, the texts in it that contain addresses or sizes, the names of two
/// Pods and of the node, and kube-proxy's version. Flows with repeated packets or IPv6 addresses have more.
const MAX_MEAN_OF_HEALTHY_FLOWS: u64 = 11;
/// Of a fault: also its evidence in words, its actions, and its rule's queries of the cluster and of the node's rules.
const MAX_MEAN_OF_FAULTS: u64 = 70;
/// Of a fault that is only counted: what its rules ask.
const MAX_MEAN_WITHOUT_WORDS: u64 = 32;

#[test]
fn a_verdict_takes_few_allocations() {
    for mode in MODES {
        let made = Soak { mode, seed: 1, flows: 1_000, broken: 50, loss: Loss::Nothing };
        let folded = Folded::of(made.prepare(|_| true));
        let context = folded.context();
        let (mut healthy, mut faults, mut counted) = (Vec::new(), Vec::new(), Vec::new());
        for flow in &folded.flows {
            let mut verdict = None;
            let allocations = measure(|| verdict = judge(flow, &context)).count_total;
            let mut without_words = None;
            let for_outline = measure(|| without_words = outline(flow, &context)).count_total;
            assert_eq!(without_words, verdict.as_ref().map(Outline::of), "{flow:#?}");
            match verdict.map(|verdict| verdict.class) {
                Some(Class::Ok) => healthy.push(allocations),
                Some(class) if class.is_fault() => {
                    faults.push(allocations);
                    counted.push(for_outline);
                }
                _ => {}
            }
        }
        assert!(healthy.len() > 200 && faults.len() > 400, "{mode}: {} and {}", healthy.len(), faults.len());
        let mean = |counts: &[u64]| counts.iter().sum::<u64>() / counts.len() as u64;
        let (healthy, faults, counted) = (mean(&healthy), mean(&faults), mean(&counted));
        println!("{mode}: {healthy} for a healthy flow, {faults} for a fault, {counted} without words");
        assert!(healthy <= MAX_MEAN_OF_HEALTHY_FLOWS, "{mode}: {healthy} allocations for a healthy flow");
        assert!(faults <= MAX_MEAN_OF_FAULTS, "{mode}: {faults} allocations for a fault");
        assert!(counted <= MAX_MEAN_WITHOUT_WORDS, "{mode}: {counted} allocations without words");
    }
}
