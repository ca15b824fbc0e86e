//! `viptrace replay` of a part of the flows: what a person asks for, and what the output says about it.

use crate::terminal_support::Terminal;

/// A terminal beside a recording of two nodes, from 21:15:45 to 21:20:26 on 2026-11-23, with failures from 21:17 on.
fn incident() -> Terminal {
    let terminal = Terminal::new();
    terminal.bring("two-nodes", "nodes");
    terminal
}

#[test]
fn damage_is_no_loss_in_the_kernel() {
    let terminal = incident();
    let whole = std::fs::read(terminal.path().join("nodes/node1.viptrace")).unwrap();
    let (before, after) = whole.split_at(whole.len() / 3);
    terminal.write("hole.viptrace", [before, &after[3000..]].concat());
    for output in ["table", "story"] {
        let read = terminal.run(&format!("replay hole.viptrace --all -o {output}"));
        let words = "an unknown number of events in damaged or missing parts of the recording";
        assert!(read.contains(words), "{read}");
        assert!(!read.contains("1 event") && !read.contains("in the kernel"), "{read}");
    }
    let records = terminal.run("replay hole.viptrace --all -o json");
    assert!(records.contains("an unknown number of events is missing: a part of the recording"), "{records}");
}
