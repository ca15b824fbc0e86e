//! The output of each verb when it works, from committed recordings and captures.

use std::fs;

use insta::assert_snapshot;
use roxmltree::{Document, ParsingOptions};

use crate::{check_support::Gathered, terminal_support::Terminal};

/// Runs the check with times that depend on when the folder was written left out.
fn without_times(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"· \d{4}-\d\d-\d\dT[0-9:.]+Z", "· [TIME]");
    settings
        .add_filter(r"worker-1: 12 files, \d+ bytes; \d+ could", "worker-1: 12 files, [N] bytes; [N] could");
    settings.bind(check);
}

/// A terminal with recordings, by their names without what all have in common.
fn with_recordings(names: &[&str]) -> Terminal {
    let terminal = Terminal::new();
    for name in names {
        terminal.bring(&format!("recordings/{name}.viptrace"), &format!("{name}.viptrace"));
    }
    terminal
}

#[test]
fn a_replay_in_every_form() {
    let terminal = with_recordings(&["debian-6.12-c5-one-service-without-rules"]);
    terminal.rename("debian-6.12-c5-one-service-without-rules.viptrace", "incident.viptrace");
    assert_snapshot!(terminal.session(&[
        "replay incident.viptrace",
        "replay incident.viptrace --faults-only -q",
        "replay incident.viptrace --service shop/frontend",
        "replay incident.viptrace --all --quiet --client pod/shop/client-1",
    ]));
    assert_snapshot!("a_replay_wide", terminal.run("replay incident.viptrace -o wide"));
    assert_snapshot!(
        "a_replay_as_yaml",
        terminal.run("replay incident.viptrace --service shop/cart -o yaml")
    );
    assert_snapshot!(
        "a_replay_as_json",
        terminal.run("replay incident.viptrace --service shop/cart -o json")
    );
}

#[test]
fn stories() {
    let names =
        ["debian-6.12-api-server-away", "debian-6.1-c29-silent-other-node", "debian-6.12-targeted-service"];
    let terminal = with_recordings(&names);
    let commands = names.map(|name| format!("replay {name}.viptrace -o story"));
    assert_snapshot!(terminal.session(&commands.each_ref().map(String::as_str)));
}

/// Two agents' recordings, of nodes whose clocks were 90 s apart; one was stepped by 20 s meanwhile. On one node kube-proxy
/// lost the API while a rollout replaced the Pods behind a Service.
#[test]
fn an_incident_on_two_nodes() {
    let terminal = with_recordings(&[]);
    for name in ["node1", "node2"] {
        terminal.bring(&format!("two-nodes/{name}.viptrace"), &format!("{name}.viptrace"));
    }
    assert_snapshot!(terminal.session(&[
        "replay node1.viptrace node2.viptrace -o story",
        "replay node2.viptrace node1.viptrace --path 10.244.1.2:48740 --quiet",
        "replay node2.viptrace --faults-only --since 1m --quiet",
    ]));
}

/// The clock of this node was stepped by 20 s between the first failure and the last.
#[test]
fn a_story_of_one_node_does_not_follow_its_wall_clock() {
    let terminal = with_recordings(&[]);
    terminal.bring("two-nodes/node1.viptrace", "node1.viptrace");
    let story = terminal.run("replay node1.viptrace -o story --quiet");
    assert!(story.contains(", 1 min 33 s later"), "{story}");
}

/// The page of each is well-formed and whole. On a terminal it is refused: `/dev/ptmx` is one.
#[test]
fn pages_of_incidents() {
    let names =
        ["debian-6.12-api-server-away", "debian-6.1-c29-silent-other-node", "debian-6.12-recording-losses"];
    let terminal = with_recordings(&names);
    for name in names {
        let transcript = terminal.run(&format!("replay {name}.viptrace -o html --quiet"));
        let begin = transcript.find("<!DOCTYPE html>").unwrap();
        let end = transcript.find("</html>").unwrap() + "</html>".len();
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        let document = Document::parse_with_options(&transcript[begin..end], options).unwrap();
        // Near a loss no flow is called healthy, and none of this recording broke.
        let has_causes = name != "debian-6.12-recording-losses";
        for (id, is_due) in
            [("timeline", has_causes), ("cause-1", has_causes), ("not-known", true), ("recordings", true)]
        {
            let has = document.descendants().any(|node| node.attribute("id") == Some(id));
            assert_eq!(has, is_due, "{name}: {id}");
        }
        let records = document.descendants().filter(|node| node.attribute("class") == Some("json")).count();
        assert_eq!(records > 0, has_causes, "{name}");
    }
    let command = format!("replay {}.viptrace -o html", names[0]);
    assert_snapshot!(terminal.run_into(&command, "/dev/ptmx"));
}

#[test]
fn a_part_of_a_replay() {
    let name = "debian-6.12-api-server-away";
    let terminal = with_recordings(&[name]);
    let replay = |flags: &str| format!("replay {name}.viptrace {flags}");
    let commands = [
        replay("--class C6 --until 07:01:38"),
        replay("--since 07:01:39 -o story --quiet"),
        replay("--flow 10.244.1.100:20081,10.96.10.10:80 --each"),
        replay("--client pod/client-1 -n shop --since 1s --faults-only --quiet"),
        replay("--since yesterday"),
        replay("--flow 10.244.1.100"),
        replay("--class C99"),
        replay("--client shop/cart"),
        replay("shop/cart"),
        "replay .".to_owned(),
    ];
    assert_snapshot!(terminal.session(&commands.each_ref().map(String::as_str)));
}

/// Nothing is as it should be: events were lost, the API server went away, the file is cut off.
#[test]
fn replays_of_troubled_traces() {
    let names = [
        "debian-6.12-recording-losses",
        "debian-6.12-api-server-away",
        "debian-6.12-n9-old-flow-stalls",
        "debian-7.2-c28-udp-refused_iptables-ipv6",
        "debian-6.1-c16-conntrack-table-full",
    ];
    let terminal = with_recordings(&names);
    let whole = fs::read(terminal.path().join("debian-6.1-c16-conntrack-table-full.viptrace")).unwrap();
    terminal.write("cut.viptrace", &whole[..whole.len() * 3 / 4]);
    let commands = names[1..4].iter().map(|name| format!("replay {name}.viptrace"));
    let read: String = commands.map(|command| terminal.run(&command)).collect();
    let summary_of = |read: String| read.split_once("\nSummary").unwrap().1.to_owned();
    let lossy = summary_of(terminal.run("replay debian-6.12-recording-losses.viptrace"));
    assert_snapshot!(read + &lossy + &terminal.run("replay cut.viptrace"));
}

#[test]
fn a_check_in_every_form() {
    let terminal = Terminal::new();
    Gathered::new(&["kube-proxy/worker-1/iptables"]).copy_to(&terminal.path().join("worker-1"));
    Gathered::new(&["kube-proxy/worker-2/iptables"]).copy_to(&terminal.path().join("worker-2"));
    Gathered::new(&["incidents/unauthorized"]).copy_to(&terminal.path().join("lost"));
    terminal.run("check --from worker-1 --save worker-1.json -q");
    without_times(|| {
        assert_snapshot!("check", terminal.run("check --from worker-1"));
        assert_snapshot!("check_wide", terminal.run("check --from worker-1 -o wide"));
        assert_snapshot!(
            "check_of_one_service",
            terminal.session(&[
                "check --from worker-1 shop/cart",
                "check --from worker-1 shop/checkout",
                "check --from worker-1 shop/db",
                "check --from worker-1 shop/legacy",
            ])
        );
        assert_snapshot!("check_compare", terminal.run("check --from worker-2 --compare worker-1.json"));
        assert_snapshot!("check_lost", terminal.run("check --from lost"));
        let both = Terminal::new();
        Gathered::new(&["kube-proxy/worker-1/iptables"]).copy_to(&both.path().join("nodes"));
        Gathered::new(&["kube-proxy/worker-2/iptables"]).copy_to(&both.path().join("nodes/worker-2"));
        assert_snapshot!("check_two_nodes", both.run("check --from nodes"));
    });
}
