//! Events for which the kernel skipped the programs. They left no record that could be counted as lost.

use crate::{kernel::tracer::Tracer, sighting::Hook};

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
    Hook::ALL.iter().filter_map(line).chain(shared(tracer)).collect()
}

/// A line for the program that functions share: the kernel does not tell at which of them it skipped it.
fn shared(tracer: &Tracer) -> Option<String> {
    let count = tracer.skipped_by_shared();
    let events = if count == 1 { "event" } else { "events" };
    let functions: Vec<&str> = tracer.shared_hooks().map(Hook::symbol).collect();
    (count > 0).then(|| {
        format!(
            "up to {count} {events} missed because another program was running on that CPU, at one of {}",
            functions.join(", ")
        )
    })
}
