//! `viptrace agent` as a node runs it, with a recording as its source.

use std::{
    fs,
    io::Write as _,
    net::IpAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use viptrace::{flow::Suppressed, net::Netns};

use crate::agent_support::{Agent, get, recording, recording_with, request, sum, viptrace};

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8(bytes.to_vec()).unwrap().lines().map(str::to_owned).collect()
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

#[test]
fn a_fault_appears_in_the_metrics_the_stream_the_output_and_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let replayed = viptrace(&["replay", source.to_str().unwrap(), "-o", "json", "--all"]);
    let all = lines(&replayed.stdout);
    let faults = lines(&viptrace(&["replay", source.to_str().unwrap(), "-o", "json"]).stdout);
    let store = folder.path().join("segments");
    let yaml = format!("output: json\nrecorder: {{folder: '{}'}}\n", store.display());
    let mut agent = Agent::start(folder.path(), &source, &yaml);

    let text = agent.scrape();
    assert_eq!(sum(&text, "viptrace_flows_total", ""), all.len() as u64);
    assert_eq!(
        sum(&text, "viptrace_flows_total", "result=\"fault\""),
        sum(&text, "viptrace_faults_total", "")
    );
    let failed = sum(&text, "viptrace_faults_total", "") + sum(&text, "viptrace_unexplained_total", "");
    assert_eq!(failed, faults.len() as u64);
    let of_checkout = faults.iter().filter(|line| line.contains("\"checkout\"")).count();
    assert!(of_checkout > 0);
    assert_eq!(sum(&text, "viptrace_faults_total", "service=\"checkout\""), of_checkout as u64);
    let to_services = all.iter().filter(|line| !line.contains("\"service\":null")).count();
    assert_eq!(sum(&text, "viptrace_connections_total", ""), to_services as u64);
    assert_eq!(sum(&text, "viptrace_ready", ""), 1);
    assert_eq!(sum(&text, "viptrace_recorder_up", ""), 1);
    assert_eq!(sum(&text, "viptrace_recorder_dropped_events_total", ""), 0);
    assert!(sum(&text, "process_resident_memory_bytes", "") > 1_000_000);
    assert!(text.ends_with("# EOF\n"));

    let printed = lines(&fs::read(folder.path().join("stdout")).unwrap());
    assert_eq!(printed, faults);
    let counts = lines(&agent.stream(&["--counts"]).stdout);
    let connections: u64 = counts
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["connections"].as_u64().unwrap())
        .sum();
    assert_eq!(connections, to_services as u64);
    let listed = lines(&agent.stream(&["--segments"]).stdout);
    assert!(listed.len() == 1 && listed[0].contains("\"open\":true"), "{listed:?}");
    assert_eq!(fs::metadata(&agent.socket).unwrap().permissions().mode() & 0o777, 0o600);

    assert_eq!(agent.stop(), Some(0), "{}", agent.log);
    assert!(!agent.socket.exists());
    let stored = segments(&store);
    assert_eq!(stored.len(), 1, "{stored:?}");
    assert_eq!(fs::metadata(&stored[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let again = viptrace(&["replay", stored[0].to_str().unwrap(), "-o", "json", "--all"]);
    assert_eq!(lines(&again.stdout), all, "{}", String::from_utf8_lossy(&again.stderr));
    assert!(!String::from_utf8_lossy(&again.stderr).contains("incomplete"));
}

#[test]
fn a_standard_output_that_nobody_reads_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let failed =
        |text: &str| sum(text, "viptrace_faults_total", "") + sum(text, "viptrace_unexplained_total", "");
    let (reader, mut writer) = std::io::pipe().unwrap();
    // As much as a pipe takes (pipe(7)).
    writer.write_all(&vec![b'\n'; 1 << 16]).unwrap();
    let mut agent = Agent::start_with(folder.path(), &source, "output: json\ndrain: 1s\n", writer.into());
    assert!(failed(&agent.scrape()) > 0);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log);
    assert!(agent.log.contains("standard output did not take the last records"), "{}", agent.log);
    drop(reader);

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut agent = Agent::start_with(folder.path(), &source, "output: json\n", writer.into());
    let text = agent.until(|text| {
        let dropped = sum(text, "viptrace_output_dropped_total", "");
        dropped > 0 && dropped == failed(text)
    });
    assert_eq!(sum(&text, "viptrace_ready", ""), 1);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log);
    assert!(agent.log.contains("records are no longer written to standard output"), "{}", agent.log);
}

#[test]
fn suppressed_events_are_counted_by_service_and_gaps_are_logged() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording_with(folder.path(), |live| {
        let suppressed = |service, count| Suppressed {
            client: None,
            service: Some(IpAddr::from([10, 96, 10, service])),
            netns: Netns(1),
            from: live.now.saturating_sub(Duration::from_secs(1)),
            to: live.now,
            count,
        };
        let all = [suppressed(20, 7), suppressed(10, 30), suppressed(20, 5), suppressed(250, 100)];
        for suppressed in all {
            live.recorded.suppressed(suppressed);
        }
    });
    let agent = Agent::start(folder.path(), &source, "");
    let of = |text: &str, service: &str| {
        sum(
            text,
            "viptrace_service_suppressed_events_total",
            &format!("namespace=\"shop\",service=\"{service}\""),
        )
    };
    let text = agent.until(|text| of(text, "checkout") > 0);
    assert_eq!((of(&text, "checkout"), of(&text, "cart")), (12, 30));
    assert_eq!(sum(&text, "viptrace_suppressed_events_total", ""), 142);
    assert_eq!(sum(&text, "viptrace_services_refused", ""), 0);
    assert!(agent.log.contains("info gap: nothing but a test"), "{}", agent.log);
}

#[test]
fn a_reader_receives_the_last_failures_until_the_agent_ends() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let faults = lines(&viptrace(&["replay", source.to_str().unwrap(), "-o", "json"]).stdout);
    let mut agent = Agent::start(folder.path(), &source, "");
    let socket = agent.socket.clone();
    let read = |flags: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_viptrace"))
            .args(["agent", "stream", "--socket", socket.to_str().unwrap()])
            .args(flags)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (reader, heart) = (read(&[]), read(&["--heartbeat"]));
    // A reader is counted once its request is being answered.
    agent.until(|text| sum(text, "viptrace_stream_readers", "") == 2);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log);
    let output = reader.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    // Those from before the reader came are marked, so that a trace can leave them out.
    let marked = faults[faults.len().saturating_sub(256)..]
        .iter()
        .map(|fault| fault.replacen('{', "{\"earlier\":true,", 1));
    assert_eq!(lines(&output.stdout), marked.collect::<Vec<_>>());
    let announced = lines(&heart.wait_with_output().unwrap().stdout);
    assert_eq!(announced[0], r#"{"heartbeat":10}"#);
    assert_eq!(announced[1..], lines(&output.stdout));
    let output = viptrace(&["agent", "stream", "--socket", socket.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot connect to the agent") && said.contains("hint: "), "{said}");
}

#[test]
fn a_stored_segment_is_read_by_its_name_only() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let store = folder.path().join("segments");
    let yaml = format!("recorder: {{folder: '{}'}}\n", store.display());
    let mut agent = Agent::start(folder.path(), &source, &yaml);
    for name in ["../source.viptrace", "source.viptrace", "", "00000001"] {
        let output = agent.stream(&["--segment", name]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("no segment"));
    }
    let stored = segments(&store);
    let name = stored[0].file_name().unwrap().to_str().unwrap();
    let output = agent.stream(&["--segment", name]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout.starts_with(b"\xf1viptrace rec"));
    assert_eq!(agent.stop(), Some(0));
    assert!(fs::read(&stored[0]).unwrap().starts_with(&output.stdout));
}

#[test]
fn probes_and_unknown_paths() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let agent = Agent::start(folder.path(), &source, "");
    assert_eq!(get(agent.health, "/healthz").0, 200);
    assert_eq!(get(agent.health, "/readyz").0, 200);
    assert_eq!(get(agent.health, "/metrics").0, 404);
    assert_eq!(get(agent.metrics, "/flows").0, 404);
    let post = "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_eq!(request(agent.metrics, post).0, 405);
    let text = agent.scrape();
    assert_eq!(sum(&text, "viptrace_http_requests_total", "server=\"health\",code=\"200\""), 2);
    assert_eq!(sum(&text, "viptrace_http_requests_total", "server=\"metrics\",code=\"404\""), 1);
}

#[test]
fn sighup_rereads_the_configuration_and_keeps_the_old_one_if_it_is_invalid() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let mut agent = Agent::start(folder.path(), &source, "");
    agent.reload("version: 1\nsampel: 1/5\n");
    let line = agent.wait("the old configuration stays");
    assert!(line.contains("error config: ") && line.contains("line 2") && line.contains("sampel"), "{line}");
    let text = agent.scrape();
    assert_eq!(sum(&text, "viptrace_config_last_reload_successful", ""), 0);
    let store = folder.path().join("later");
    agent.reload(&format!(
        "version: 1\nhooks: full\nhealth: {{listen: '127.0.0.1:0'}}\nmetrics: {{listen: '127.0.0.1:0'}}\n\
         stream: {{socket: 'SOCKET'}}\nrecorder: {{folder: '{}'}}\n",
        store.display()
    ));
    assert!(agent.wait("starts again").contains("hooks takes effect"));
    agent.wait("info config: reread");
    let log = agent.log.len();
    let text = agent.scrape();
    assert_eq!(sum(&text, "viptrace_config_last_reload_successful", ""), 1);
    assert_eq!(sum(&text, "viptrace_config_reloads_total", ""), 2);
    agent.until(|text| sum(text, "viptrace_recorder_up", "") == 1);
    assert_eq!(segments(&store).len(), 1);
    // The configuration of the start stays in force: a change of it stays pending, and a return to it changes nothing.
    let start = "version: 1\nhealth: {listen: '127.0.0.1:0'}\nmetrics: {listen: '127.0.0.1:0'}\n\
                 stream: {socket: 'SOCKET'}\n";
    agent.reload(&format!("{start}hooks: full\n"));
    assert!(agent.wait("starts again").contains("hooks takes effect"));
    agent.wait("info config: reread");
    agent.reload(start);
    agent.wait("info config: reread");
    assert_eq!(agent.log[log..].matches("starts again").count(), 1, "{}", agent.log);
    assert_eq!(agent.stop(), Some(0));
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_and_changes_no_probe() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let yaml = format!("recorder: {{folder: '{}/below'}}\n", source.display());
    let agent = Agent::start(folder.path(), &source, &yaml);
    assert!(agent.log.contains("error recorder: nothing is recorded for the next 5 s"), "{}", agent.log);
    let text = agent.scrape();
    assert_eq!(sum(&text, "viptrace_recorder_up", ""), 0);
    assert!(sum(&text, "viptrace_recorder_failures_total", "") >= 1);
    assert_eq!(
        sum(&text, "viptrace_recorder_dropped_events_total", ""),
        sum(&text, "viptrace_events_total", "")
    );
    assert_eq!(get(agent.health, "/readyz").0, 200);
}

#[test]
fn an_unusable_configuration_ends_the_agent_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.yaml");
    let run = |text: &str, flag: &[&str]| {
        fs::write(&path, text).unwrap();
        let output = viptrace(&[&["agent", "--config", path.to_str().unwrap()], flag].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = run("version: 1\nrecorder:\n  max_byte: 5\n", &[]);
    assert_eq!(status, Some(1));
    assert!(said.contains("line 3") && said.contains("max_byte"), "{said}");
    assert!(said.contains("hint: `viptrace schema agent`"), "{said}");
    let (status, said) = run("version: 1\n", &["--check-config"]);
    assert_eq!((status, said.contains("is valid")), (Some(0), true), "{said}");
    let (status, said) = run("version: 1\nmetrics: {listen: '192.0.2.1:1'}\n", &["--from", "/dev/null"]);
    assert_eq!(status, Some(1));
    assert!(said.contains("cannot listen on 192.0.2.1:1 (metrics)"), "{said}");
    assert_eq!(viptrace(&["agent", "--from", "a", "--check-config"]).status.code(), Some(2));
    assert_eq!(viptrace(&["agent", "stream", "--counts", "--segments"]).status.code(), Some(2));
    assert_eq!(viptrace(&["agent", "stream", "--counts", "--heartbeat"]).status.code(), Some(2));
}
