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

/// The failed flows of the Service and all of them, and the exit status, as an output has them.
fn failed_of_web(read: &str) -> (Option<String>, String) {
    let mut words = read.lines().filter_map(|line| {
        let (before, _) = line.split_once(" failed")?;
        let words: Vec<_> =
            before.split_whitespace().filter(|word| *word != "flows" && *word != "flow").collect();
        let [.., failed, "of", all] = words.as_slice() else { return None };
        Some(format!("{failed} of {all}"))
    });
    let status = read.rsplit_once("[exit status ").map_or("0", |(_, status)| status).to_owned();
    (words.next(), status)
}

/// The wall clock of this node was set forward by 20 s at 21:17:36. It showed 21:18:34.885 when the trace's own clock was at
/// 21:18:14.920.
#[test]
fn each_output_has_the_same_flows_of_a_time_after_a_step() {
    let terminal = incident();
    for span in ["--since 2m", "--since 21:18:34 --until 21:18:36", "--since 21:17:00 --until 21:17:10"] {
        let run = |output| {
            let read = terminal
                .run(&format!("replay nodes/node1.viptrace --service lab-incident/web {span} -o {output}"));
            failed_of_web(&read)
        };
        let table = run("table");
        assert!(table.0.is_some() && table.1.starts_with('3'), "{span}: {table:?}");
        assert_eq!(run("story"), table, "{span}");
        let records = terminal.run(&format!(
            "replay nodes/node1.viptrace --service lab-incident/web {span} -o json --faults-only --quiet"
        ));
        let faults = records.lines().filter(|line| line.contains("\"C6\"")).count();
        assert_eq!(table.0.unwrap().split(' ').next().unwrap(), faults.to_string(), "{span}");
    }
    let story = terminal.run("replay nodes/node1.viptrace -o story");
    let said = "the wall clock was set forward by 20.0 s at 2026-11-23T21:17:36.056Z: all times here are those of the clock \
                as it was set before";
    assert!(story.contains(said), "{story}");
}

/// Its SYNs and their failures are in the recording of this node alone, as they are in that of both.
#[test]
fn the_path_of_a_flow_before_a_step_has_its_sightings() {
    let terminal = incident();
    for flow in ["10.244.1.2:60986", "10.244.1.2:50900"] {
        let read = terminal.run(&format!("replay nodes/node1.viptrace --path {flow} --quiet"));
        assert!(
            !read.contains("no sighting of this flow") && !read.contains("had left the Service"),
            "{read}"
        );
        assert!(read.contains("not ready") && read.contains("nf_ct_kill_acct"), "{read}");
    }
}

#[test]
fn a_span_selects_the_same_flows_whether_or_not_each_is_shown() {
    let terminal = incident();
    for selection in [
        "--service lab-incident/web --since 21:16:28 --until 21:16:43",
        "--since 21:17 --until 21:18",
        "--service lab-incident/web:80 --since 1m",
    ] {
        let verdicts = |view: &str| {
            let read = terminal.run(&format!("replay nodes {selection} {view}"));
            let of = read
                .split_once("\nVerdicts\n")
                .map(|(_, after)| after.split("\n\n").next().unwrap().to_owned());
            (of, failed_of_web(&read))
        };
        assert_eq!(verdicts(""), verdicts("--all"), "{selection}");
    }
}

#[test]
fn the_share_of_failed_flows_does_not_depend_on_the_class() {
    let terminal = incident();
    let all = failed_of_web(&terminal.run("replay nodes --service lab-incident/web"));
    assert_eq!(all.0.as_deref(), Some("36 of 70"));
    for output in ["table", "story"] {
        let of_class = failed_of_web(&terminal.run(&format!("replay nodes --class C6 -o {output}")));
        assert_eq!(of_class.0, all.0, "{output}");
    }
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
