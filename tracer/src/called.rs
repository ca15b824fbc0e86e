//! How the user called this program: as `viptrace`, or as the plugin `kubectl viptrace`, also through what the plugin runs on a
//! node. What a text tells the user to type follows it.
//!
//! The command line sets it once, before anything is printed.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicBool, Ordering},
};

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

/// The verbs that the plugin has as well.
const SHARED_VERBS: [&str; 7] = ["trace", "top", "check", "capture", "replay", "explain", "schema"];
/// The flags of these verbs that only `viptrace` has.
const OWN_FLAGS: [&str; 6] = ["--kernel", "--record ", "--recording", "--from", "--save", "--compare"];

/// A text of the knowledge base or of a record, with its commands as the user types them. Man pages and records, also those of
/// `-o json`, name `viptrace`: they cannot know who will read them, and programs compare records of nodes, agents and files.
pub(crate) fn as_typed(text: &str) -> Cow<'_, str> {
    if is_by_plugin() { typed_by_plugin(text) } else { Cow::Borrowed(text) }
}

fn typed_by_plugin(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    for (at, _) in text.match_indices("viptrace") {
        let (before, command) = text.split_at(at);
        let begins = before.is_empty() || before.ends_with('`') || before.ends_with(": ");
        let begins = begins || before.ends_with("; ");
        if begins && is_shared(command) {
            out.push_str(before.get(copied..).unwrap_or_default());
            out.push_str("kubectl ");
            copied = at;
        }
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// Whether the plugin has this command, which ends with its backtick or the step that it stands in.
fn is_shared(command: &str) -> bool {
    let end = command.find(['`', ';']).unwrap_or(command.len());
    let command = command.get(..end).unwrap_or_default();
    let verb = command.split_whitespace().nth(1);
    verb.is_some_and(|verb| SHARED_VERBS.contains(&verb))
        && !OWN_FLAGS.iter().any(|flag| command.contains(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_user_reads_its_commands() {
        for (text, typed) in [
            ("`viptrace check`", "`kubectl viptrace check`"),
            ("viptrace trace --faults-only", "kubectl viptrace trace --faults-only"),
            (
                "watch for it: viptrace trace a/b; then viptrace is done; viptrace check",
                "watch for it: kubectl viptrace trace a/b; then viptrace is done; kubectl viptrace check",
            ),
        ] {
            assert_eq!(typed_by_plugin(text), typed);
        }
        for same in [
            "",
            "viptrace",
            "`kubectl viptrace trace a/b`",
            "`viptrace check --kernel`",
            "`viptrace trace --all --record FILE`",
            "`viptrace path CLIENT_IP a/b`",
            "`nsenter -t 7 -n viptrace check`",
            "`viptrace` reads no DNS messages",
        ] {
            assert_eq!(typed_by_plugin(same), same);
        }
    }
}
