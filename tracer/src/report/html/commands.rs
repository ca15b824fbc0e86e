//! Finds the commands in an action, so that the page shows each in a box of its own.
//!
//! A record has an action as one line of text: sentences and commands, divided by semicolons. Only what certainly is a
//! command of the knowledge base leaves the text; a missed command stays readable there.

/// The programs that the knowledge base names.
const PROGRAMS: [&str; 22] = [
    "bpftool",
    "conntrack",
    "crictl",
    "curl",
    "dmesg",
    "ethtool",
    "ip6tables-save",
    "ipset",
    "iptables-save",
    "ipvsadm",
    "journalctl",
    "kubectl",
    "lsmod",
    "lsof",
    "modprobe",
    "nft",
    "ping",
    "slabtop",
    "ss",
    "sysctl",
    "tc",
    "viptrace",
];

/// A sentence and a command that follows it; either can be empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Step<'a> {
    pub(super) text: &'a str,
    pub(super) command: &'a str,
}

/// The steps of an action.
pub(super) fn steps(action: &str) -> Vec<Step<'_>> {
    divided(action, "; ").into_iter().map(step).collect()
}

fn step(text: &str) -> Step<'_> {
    let text = text.trim();
    if is_command(text) {
        return Step { text: "", command: text };
    }
    match text.rsplit_once(": ") {
        Some((sentence, command)) if is_command(command) => Step { text: sentence, command },
        _ => Step { text, command: "" },
    }
}

fn is_command(text: &str) -> bool {
    let program = text.split(' ').next().unwrap_or_default();
    // A comma or a parenthesis outside quotes belongs to a sentence.
    PROGRAMS.contains(&program) && divided(text, ", ").len() == 1 && divided(text, " (").len() == 1
}

/// The parts between `at`, where that is not inside quotes or parentheses.
fn divided<'a>(text: &'a str, at: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut from, mut quoted, mut depth) = (0, false, 0_u32);
    for (place, character) in text.char_indices() {
        if !quoted
            && depth == 0
            && place >= from
            && text.get(place..).is_some_and(|rest| rest.starts_with(at))
        {
            parts.extend(text.get(from..place));
            from = place + at.len();
        }
        match character {
            // The apostrophe of "Pod's" follows a letter.
            '\'' if quoted
                || !text.get(..place).is_some_and(|before| before.ends_with(char::is_alphanumeric)) =>
            {
                quoted = !quoted;
            }
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    parts.extend(text.get(from..));
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::class::Class;

    #[test]
    fn an_action_is_divided_into_steps() {
        let action = "see what the API lists: kubectl get endpointslices; find what fills it: conntrack -L | grep -oE \
                      'src=[^ ]+; x' | sort; then read the Pod's log; nft list tables; sysctl a.b, which must be 1";
        assert_eq!(
            steps(action),
            [
                Step { text: "see what the API lists", command: "kubectl get endpointslices" },
                Step { text: "find what fills it", command: "conntrack -L | grep -oE 'src=[^ ]+; x' | sort" },
                Step { text: "then read the Pod's log", command: "" },
                Step { text: "", command: "nft list tables" },
                Step { text: "sysctl a.b, which must be 1", command: "" },
            ]
        );
    }

    /// The knowledge base marks its commands by backticks, which records do not have.
    #[test]
    fn the_commands_of_the_knowledge_base_are_found() {
        let (mut found, mut all) = (0, 0);
        for action in Class::ALL.iter().flat_map(|class| class.entry().now.iter().chain(class.entry().later))
        {
            let marked = action.marked();
            let marked: Vec<&str> = marked.split('`').skip(1).step_by(2).collect();
            all += marked.len();
            let plain = action.plain();
            for step in steps(&plain).into_iter().filter(|step| !step.command.is_empty()) {
                assert!(marked.contains(&step.command), "{step:?} of {marked:?}");
                found += 1;
            }
        }
        // The others stand in the middle of a sentence.
        assert!(found * 10 >= all * 8, "{found} of {all}");
    }

    proptest! {
        #[test]
        fn no_text_is_lost(action in "([a-z'();:, ]|kubectl |é)*") {
            let letters = |text: &str| text.chars().filter(|it| it.is_alphanumeric() || *it == '\'').count();
            let steps = steps(&action);
            prop_assert_eq!(
                steps.iter().map(|step| letters(step.text) + letters(step.command)).sum::<usize>(),
                letters(&action)
            );
        }
    }
}
