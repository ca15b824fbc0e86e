//! Events for which the kernel skipped the programs. They left no record that could be counted as lost.

use crate::{
    kernel::tracer::{SkippedByShared, Tracer},
    sighting::Hook,
};

/// A line for each hook whose programs the kernel skipped.
pub(super) fn events(tracer: &Tracer) -> Vec<String> {
    let line = |hook: &Hook| {
        let what = hook.spec().skipped?;
        let count = tracer.skipped_events(*hook);
        let events = if count == 1 { "event" } else { "events" };
        (count > 0).then(|| {
            format!(
                "{}: up to {count} {events} missed because its programs were already running on that CPU ({what})",
                hook.symbol()
            )
        })
    };
    let shared = tracer.skipped_by_shared();
    Hook::ALL.iter().filter_map(line).chain(shared.iter().filter_map(of_shared)).collect()
}

/// A line for a program that hooks share: the kernel does not tell at which of them it skipped it.
fn of_shared(skipped: &SkippedByShared) -> Option<String> {
    let SkippedByShared { hooks, events: count } = skipped;
    let events = if *count == 1 { "event" } else { "events" };
    let names: Vec<&str> = hooks.iter().map(|hook| hook.symbol()).collect();
    (*count > 0).then(|| {
        format!(
            "up to {count} {events} missed at one of {}: another program was running on that CPU",
            names.join(", ")
        )
    })
}
