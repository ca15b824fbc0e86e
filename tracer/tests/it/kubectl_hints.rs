//! What the plugin's errors and hints tell its user to type: only `kubectl viptrace` with the plugin's own verbs and flags, and
//! kubectl. `viptrace` itself may not be on this machine.

use std::{os::unix::process::CommandExt as _, process::Command};

use crate::check_support::fixtures;

/// What the plugin prints, without a cluster.
fn said(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .arg0("kubectl-viptrace")
        .args(arguments)
        .current_dir(home.path())
        .env("HOME", home.path())
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// The command lines in a text: those in backquotes, and what stands behind `next:` or `more:`.
fn commands(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2).map(str::to_owned);
    let named = text.lines().filter_map(|line| {
        let line = line.trim();
        ["next: ", "more: ", "hint: "].iter().find_map(|start| line.strip_prefix(start)).map(str::to_owned)
    });
    quoted.chain(named).collect()
}

/// The flags of all verbs of the plugin, and of kubectl and sudo in hints.
fn is_known_flag(flag: &str) -> bool {
    static VERBS: [&str; 10] =
        ["why", "trace", "top", "check", "capture", "collect", "cleanup", "replay", "explain", "schema"];
    static HELP: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| VERBS.iter().map(|verb| said(&[verb, "--help"])).collect());
    HELP.split(|character: char| !(character.is_alphanumeric() || character == '-')).any(|word| word == flag)
}

#[test]
fn errors_and_hints_name_only_what_the_plugin_has() {
    let two_nodes = fixtures().join("two-nodes");
    let two_nodes = two_nodes.to_str().unwrap();
    let node = fixtures().join("two-nodes/node1.viptrace");
    let node = node.to_str().unwrap();
    // Its actions and what was not observed name viptrace's own verbs.
    let recorded = fixtures().join("recordings/debian-6.12-c17-insertion-failed.viptrace");
    let recorded = recorded.to_str().unwrap();
    let lines: &[&[&str]] = &[
        &["why", "shop/cart"],
        &["why", "shop/cart", "--probe"],
        &["trace", "shop/cart"],
        &["trace", "--all-nodes"],
        &["top", "shop/cart"],
        &["check"],
        &["check", "shop/cart"],
        &["capture", "folder"],
        &["collect", "folder"],
        &["collect", "folder", "--since", "yesterday"],
        &["collect", "folder", "--until", "15x"],
        &["collect", "folder", "--since", "5m", "--until", "10m"],
        &["cleanup"],
        &["replay", "nowhere"],
        &["replay", "."],
        &["replay", "/etc/passwd"],
        &["replay", two_nodes, "--class", "C99"],
        &["replay", two_nodes, "--since", "yesterday"],
        &["replay", two_nodes, "--service", "no/such"],
        &["replay", two_nodes, "--out", "x"],
        &["replay", two_nodes],
        &["replay", two_nodes, "-o", "wide"],
        &["replay", two_nodes, "-o", "story"],
        &["replay", node, "-o", "counts"],
        &["explain"],
        &["explain", "C99"],
        &["explain", "C31"],
        &["explain", "C32", "-o", "json"],
        &["replay", recorded, "-o", "wide"],
        &["replay", recorded, "-o", "story"],
    ];
    for line in lines {
        let said = said(line);
        assert!(!said.is_empty(), "{line:?}");
        for command in commands(&said) {
            assert!(!command.starts_with("viptrace "), "{line:?} names `{command}`: {said}");
        }
        let hints = said.lines().filter(|line| line.starts_with("hint: "));
        for word in hints.flat_map(|hint| hint.split([' ', '`', ',', ';', '='])) {
            let is_sudo = word == "--preserve-env";
            assert!(
                !word.starts_with("--") || is_sudo || is_known_flag(word),
                "{line:?} names {word}: {said}"
            );
        }
    }
    let wide = said(&["replay", recorded, "-o", "wide"]);
    assert!(wide.contains("affected: `kubectl viptrace trace --faults-only`"), "{wide}");
    // The page is for people, as the story is. Records, also those in the page, are for programs, and name viptrace.
    let page = said(&["replay", recorded, "-o", "html"]);
    assert!(page.contains("<code>kubectl viptrace trace --faults-only</code>"), "{page}");
    assert!(page.contains("<code>kubectl viptrace explain C17a</code>"), "{page}");
    assert!(!page.contains("<code>viptrace explain") && !page.contains("<code>viptrace trace"), "{page}");
    let record = said(&["replay", recorded, "-o", "json", "--quiet"]);
    assert!(
        record.contains("`viptrace trace --faults-only`") && !record.contains("kubectl viptrace"),
        "{record}"
    );
    let since = said(&["collect", "folder", "--since", "yesterday"]);
    assert!(since.contains("or 15m for so long ago") && !since.contains("recording"), "{since}");
    assert!(said(&["cleanup"]).contains("hint: give --kubeconfig FILE\n"));
    assert!(
        said(&["replay", "nowhere"]).contains("hint: check the path; `kubectl viptrace collect DIR` fetches")
    );
}

/// What only `viptrace` on a node has keeps its name, and a command that was renamed is one of the plugin's.
#[test]
fn pages_name_the_plugins_commands() {
    let pages = said(&["explain", "--all", "-o", "json"]);
    let typed: Vec<&str> = pages.split('`').filter(|text| text.starts_with("kubectl viptrace ")).collect();
    assert!(typed.len() > 50, "{typed:?}");
    for command in typed {
        for flag in command.split([' ', '\\']).filter(|word| word.starts_with("--")) {
            assert!(is_known_flag(flag), "the plugin has no {flag}: {command}");
        }
    }
    for command in pages.split('`').filter(|text| text.starts_with("viptrace ")) {
        let is_of_nodes = ["path ", "agent", "export "].iter().any(|verb| command[9..].starts_with(verb));
        let has_own_flag = ["--kernel", "--record "].iter().any(|flag| command.contains(flag));
        assert!(is_of_nodes || has_own_flag, "the plugin has this too: {command}");
    }
}
