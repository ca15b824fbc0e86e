//! Man pages and shell completions, as a package gets them.

use std::fs;

use crate::terminal_support::Terminal;

#[test]
fn each_verb_has_a_man_page_and_each_shell_its_completions() {
    let terminal = Terminal::new();
    assert_eq!(terminal.run("pages dist"), "$ viptrace pages dist\n\n");
    let names = |folder: &str| {
        let entries = fs::read_dir(terminal.path().join("dist").join(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names("completions"), ["_viptrace", "viptrace.bash", "viptrace.fish"]);
    let pages = names("man1");
    let read = |name: &str| fs::read_to_string(terminal.path().join("dist").join(name)).unwrap();
    let help = terminal.run("--help");
    let verbs = help.split_once("Commands:\n").unwrap().1.lines().map_while(|line| {
        line.strip_prefix("  ").filter(|line| !line.starts_with(' ')).and_then(|line| line.split(' ').next())
    });
    for verb in verbs.filter(|verb| *verb != "help") {
        let name = format!("viptrace-{verb}.1");
        assert!(pages.contains(&name), "{name}: {pages:?}");
        let page = read(&format!("man1/{name}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{page}");
        for completions in ["_viptrace", "viptrace.bash", "viptrace.fish"] {
            assert!(read(&format!("completions/{completions}")).contains(verb), "{verb}");
        }
    }
    let plugin = read("man1/kubectl-viptrace-why.1");
    assert!(plugin.contains("kubectl viptrace why") && plugin.contains("probe"), "{plugin}");
    let trace = read("man1/viptrace-trace.1");
    for flag in ["cluster\\-from", "without\\-hook", "faults\\-only", "Examples:"] {
        assert!(trace.contains(flag), "{flag}: {trace}");
    }
    assert!(!pages.iter().any(|page| page.contains("pages")), "{pages:?}");
}
