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
    Hook::ALL.iter().filter_map(line).collect()
}
