//! `viptrace replay` of a part of the flows: what a person asks for, and what the output says about it.

use crate::terminal_support::Terminal;

/// A terminal beside a recording of two nodes, from 21:15:45 to 21:20:26 on 2026-11-23, with failures from 21:17 on.
fn incident() -> Terminal {
    let terminal = Terminal::new();
    terminal.bring("two-nodes", "nodes");
    terminal
}

#[test]
fn a_time_of_day_after_the_end_is_not_yesterdays() {
    let read = incident().run("replay nodes --since 21:17 --until 21:30");
    assert!(read.contains("flows from 2026-11-23T21:17:00.000Z to 2026-11-23T21:30:00.000Z"), "{read}");
    assert!(read.contains("[exit status 3]") && read.contains("21 faulty flows"), "{read}");
}

#[test]
fn a_span_that_ends_before_it_begins_is_wrong_usage() {
    let terminal = incident();
    for output in ["table", "story", "counts"] {
        let read = terminal.run(&format!("replay nodes -o {output} --since 21:18 --until 21:17"));
        assert!(read.contains("error: --until is before --since"), "{read}");
        assert!(read.contains("Usage: viptrace replay") && read.contains("[exit status 2]"), "{read}");
    }
}

#[test]
fn a_span_that_misses_the_recording_is_reported() {
    let terminal = incident();
    for (span, resolved) in [
        ("--until 21:00", "until 2026-11-23T21:00:00.000Z"),
        ("--since 2026-11-25T23:00:00Z", "since 2026-11-25T23:00:00.000Z"),
    ] {
        for output in ["table", "story", "counts"] {
            let read = terminal.run(&format!("replay nodes -o {output} {span}"));
            assert!(read.contains(resolved), "{read}");
            assert!(
                read.contains("warning: nothing of this time is recorded: the recording runs from "),
                "{read}"
            );
            assert!(read.contains("[exit status 4]"), "{read}");
        }
    }
}

#[test]
fn a_recording_that_was_cut_off_within_the_span_is_incomplete() {
    let terminal = incident();
    for (until, is_cut) in [("21:18", false), ("21:30", true)] {
        let read = terminal.run(&format!("replay nodes/node1.viptrace --until {until}"));
        assert_eq!(read.contains("it was cut off at 2026-11-23T21:20:"), is_cut, "{read}");
    }
}

#[test]
fn times_as_people_type_them() {
    let terminal = incident();
    for (flags, span) in [
        ("--since -1m --until now", "from 2026-11-23T21:19:"),
        ("--since 21:17Z", "since 2026-11-23T21:17:00.000Z"),
        ("--until -90s", "until 2026-11-23T21:18:"),
    ] {
        let read = terminal.run(&format!("replay nodes {flags}"));
        assert!(read.contains(&format!("\nflows {span}")) && !read.contains("error: "), "{read}");
    }
    let read = terminal.run("replay nodes --since 10");
    assert!(read.contains("\"10\" is no time") && read.contains("[exit status 2]"), "{read}");
}

#[test]
fn an_output_of_a_part_of_the_flows_says_so() {
    let terminal = incident();
    let story = terminal.run("replay nodes -o story --class ok");
    assert!(story.contains("No selected flow failed") && !story.contains("in what was observed"), "{story}");
    assert!(
        story.contains("\nonly: class ok; ") && story.contains(" other flows were not selected"),
        "{story}"
    );
    let page = terminal.run("replay nodes -o html --class ok");
    assert!(page.contains("<h1>No selected flow failed</h1>") && page.contains("only: class ok; "), "{page}");
    let table = terminal.run("replay nodes --class C7");
    assert!(
        table.contains("none of the selected flows was observed") && table.contains("only: class C7; "),
        "{table}"
    );
    assert!(!table.contains("no Service traffic"), "{table}");
    // A query by the index does not read the others.
    let part = terminal.run("replay nodes -o story --service lab-incident/web --since 21:17 --class C5,C6");
    let only = "only: service/lab-incident/web, class C5 and C6, since 2026-11-23T21:17:00.000Z\n";
    assert!(part.contains(only), "{part}");
    let all = terminal.run("replay nodes -o story");
    assert!(!all.contains("only: ") && !all.contains("not selected"), "{all}");
}

#[test]
fn the_end_of_a_failure_is_known_whatever_classes_are_shown() {
    let terminal = incident();
    let line = |read: &str, label: &str| {
        read.lines().find(|line| line.starts_with(label)).unwrap_or_else(|| panic!("{read}")).to_owned()
    };
    let all = terminal.run("replay nodes -o story --class C5,C6,ok");
    let some = terminal.run("replay nodes -o story --class C6");
    for label in ["  ended ", "  flows "] {
        assert_eq!(line(&all, label), line(&some, label));
    }
    assert!(line(&some, "  ended ").contains("was answered"), "{some}");
}

#[test]
fn names_are_taken_as_viptrace_prints_them() {
    let terminal = incident();
    let rows = |flags: &str| {
        let read = terminal.run(&format!("replay nodes -o json {flags}"));
        let rows = read.lines().filter(|line| line.starts_with('{')).count();
        assert!(rows > 0, "{flags}: {read}");
        rows
    };
    assert_eq!(rows("--service lab-incident/web:80"), rows("--service lab-incident/web"));
    assert_eq!(rows("--client lab-incident/client"), rows("--client pod/lab-incident/client"));
    assert_eq!(rows("-n lab-incident --client client"), rows("--client pod/lab-incident/client"));
    let read = terminal.run("replay nodes --service lab-incident/web:443");
    assert!(read.contains("nothing of service/lab-incident/web:443 is in the recording"), "{read}");
    let counts = terminal.run("replay nodes -o counts --service lab-incident/web:443");
    assert!(counts.contains("no event of lab-incident/web"), "{counts}");
    let read = terminal.run("replay nodes -n lab-incident");
    assert!(read.contains("add one of them") && read.contains("[exit status 2]"), "{read}");
}

#[test]
fn damage_is_no_loss_in_the_kernel() {
    let terminal = incident();
    let whole = std::fs::read(terminal.path().join("nodes/node1.viptrace")).unwrap();
    let (before, after) = whole.split_at(whole.len() / 3);
    terminal.write("hole.viptrace", [before, &after[3000..]].concat());
    for flags in ["--all", "-o story"] {
        let read = terminal.run(&format!("replay hole.viptrace {flags}"));
        let words = "an unknown number of events in damaged or missing parts of the recording";
        assert!(read.contains(words), "{read}");
        assert!(!read.contains("1 event") && !read.contains("in the kernel"), "{read}");
    }
    let records = terminal.run("replay hole.viptrace --all -o json");
    assert!(records.contains("an unknown number of events is missing: a part of the recording"), "{records}");
}

#[test]
fn a_port_is_chosen_by_its_name_or_its_number() {
    let terminal = Terminal::new();
    terminal.bring("recordings/debian-6.12-c20-no-endpoints.viptrace", "one.viptrace");
    let flows = |port: &str| {
        let read = terminal.run(&format!("replay one.viptrace -o json --service shop/checkout{port}"));
        read.lines().filter(|line| line.starts_with('{')).count()
    };
    let all = flows("");
    assert!(all > 0 && flows(":http") == all && flows(":80") == all, "{all}");
    assert_eq!(flows(":81"), 0);
}

#[test]
fn an_unknown_port_is_reported_with_the_ports_that_the_service_has() {
    let terminal = Terminal::new();
    terminal.bring("recordings/debian-6.12-c20-no-endpoints.viptrace", "one.viptrace");
    for output in ["table", "story", "counts"] {
        for port in ["81", "https"] {
            let read =
                terminal.run(&format!("replay one.viptrace -o {output} --service shop/checkout:{port}"));
            let why = format!("shop/checkout has no port {port}: it has http (80/TCP)");
            assert!(read.contains(&why) && read.contains("[exit status 4]"), "{read}");
        }
    }
}
