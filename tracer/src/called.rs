//! How the user called this program: as `viptrace`, or as the plugin `kubectl viptrace`, also through what the plugin runs on a
//! node. What a text tells the user to type follows it.
//!
//! The command line sets it once, before anything is printed.

use std::sync::atomic::{AtomicBool, Ordering};

static BY_PLUGIN: AtomicBool = AtomicBool::new(false);

/// From now on the texts are for a user of the plugin.
pub(crate) fn by_plugin() {
    BY_PLUGIN.store(true, Ordering::Relaxed);
}

/// Whether the texts are for a user of the plugin, who cannot type what the plugin does not have.
pub(crate) fn is_by_plugin() -> bool {
    BY_PLUGIN.load(Ordering::Relaxed)
}

/// What the user types before a verb that both have.
pub(crate) fn name() -> &'static str {
    if is_by_plugin() { "kubectl viptrace" } else { "viptrace" }
}

/// Where a recording comes from.
pub(crate) fn source_of_recordings() -> String {
    if is_by_plugin() {
        "check the path; `kubectl viptrace collect DIR` fetches the agents' recordings".to_owned()
    } else {
        "check the path; `viptrace trace --record FILE` makes a recording".to_owned()
    }
}

/// The part of a text that names a flag which only `viptrace` has.
pub(crate) fn unless_by_plugin(text: &'static str) -> &'static str {
    if is_by_plugin() { "" } else { text }
}
