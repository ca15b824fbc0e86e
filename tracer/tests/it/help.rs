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
