//! The help of every verb on a terminal of 80 columns, short and long, and the schemas.

use insta::assert_snapshot;

use crate::terminal_support::Terminal;

#[test]
fn short_and_long_help() {
    let mut terminal = Terminal::new();
    terminal.set("COLUMNS", "80");
    for verb in [
        "",
        "trace",
        "top",
        "agent",
        "agent stream",
        "replay",
        "redact",
        "check",
        "path",
        "capture",
        "explain",
        "explain-pcap",
        "schema",
    ] {
        let help = |flag: &str| terminal.run(format!("{verb} {flag}").trim_start());
        let (short, long) = (help("-h"), help("--help"));
        let wide = short.lines().chain(long.lines()).find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{verb}");
        let name = if verb.is_empty() { "viptrace".to_owned() } else { verb.replace(' ', "_") };
        assert_snapshot!(format!("help_{name}"), short + &long);
    }
}

#[test]
fn help_of_the_plugin() {
    let mut terminal = Terminal::new();
    terminal.set("COLUMNS", "80");
    for verb in ["", "why", "trace", "top", "check", "capture", "collect", "cleanup"] {
        let help = |flag: &str| terminal.kubectl(format!("{verb} {flag}").trim_start());
        let (short, long) = (help("-h"), help("--help"));
        let wide = short.lines().chain(long.lines()).find(|line| line.chars().count() > 80);
        assert_eq!(wide, None, "{verb}");
        assert_snapshot!(format!("help_kubectl_{verb}"), short + &long);
    }
}

/// The nodes that a verb visits without a choice are those of docs/kubectl.md.
#[test]
fn each_verb_of_the_plugin_names_its_own_default_nodes() {
    let mut terminal = Terminal::new();
    terminal.set("COLUMNS", "100");
    let of_node = |verb: &str| {
        let help = terminal.kubectl(&format!("{verb} -h"));
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let of_flag = help.split(" --node <NAME> ").nth(1).unwrap_or_default();
        let default = of_flag.split_once("[default: ").map_or("", |(_, rest)| rest);
        default.split_once(']').map_or("", |(default, _)| default).to_owned()
    };
    assert_eq!(of_node("capture"), "every node");
    assert!(of_node("check").starts_with("every node; with a Service, all nodes"), "{}", of_node("check"));
    assert!(of_node("trace").ends_with("and of its clients"), "{}", of_node("trace"));
    assert!(of_node("why").ends_with("the Service's endpoints"), "{}", of_node("why"));
    let page = include_str!("../../../docs/kubectl.md");
    for row in [
        "| `check` without a Service, `capture` | every node |",
        "| `why`, `check` of a Service | all of a cluster with up to ten; in a larger one, those of the Service's endpoints, ten at most |",
    ] {
        assert!(page.contains(row), "{row}");
    }
}

#[test]
fn schemas() {
    let terminal = Terminal::new();
    assert_snapshot!(terminal.session(&[
        "schema",
        "schema check",
        "schema path",
        "schema nodes",
        "schema why"
    ]));
}
