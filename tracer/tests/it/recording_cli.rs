//! `viptrace replay` as a user runs it: records, exit statuses, and the messages about a damaged file.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use crate::{
    check_support::fixtures,
    recording_support::{Live, Traffic, corpus, header, tests_folder},
};
use viptrace::session::Detail;

fn viptrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_viptrace")).args(arguments).output().unwrap()
}

fn replay(path: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = viptrace(&[&["replay", path.to_str().unwrap()], arguments].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A recording, and the records that the live trace would have printed with `-o json --all`.
fn recording(folder: &Path, faults: bool, target: Option<&str>) -> (PathBuf, Vec<String>) {
    let path = folder.join("test.viptrace");
    let corpus = corpus("debian-6.12");
    let mut header = header(&corpus);
    header.target = target.map(str::to_owned);
    let mut live = Live::new(&header, Detail::All, &path);
    // The first five of the corpus are a healthy connection.
    let traffic: Vec<Vec<u8>> = if faults {
        Traffic::new(&corpus, 3, 200.0).take(6000).collect()
    } else {
        corpus.records.iter().take(5).cloned().collect()
    };
    for batch in traffic.chunks(50) {
        live.turn(batch.iter().map(Vec::as_slice));
    }
    live.pass(Duration::from_secs(20));
    let (lines, _) = live.end();
    // Later records are added by the test.
    let records = lines.iter().map(|line| line.rsplitn(3, ' ').nth(2).unwrap().to_owned());
    (path, records.collect())
}

#[test]
fn records_and_exit_status_equal_those_of_the_live_trace() {
    let folder = tempfile::tempdir().unwrap();
    let (path, live) = recording(folder.path(), true, None);
    let (status, stdout, stderr) = replay(&path, &["-o", "json", "--all"]);
    assert_eq!(status, Some(3), "{stderr}");
    let records: Vec<&str> = stdout.lines().collect();
    assert_eq!(records.len(), live.len());
    assert!(records.iter().zip(&live).all(|(replayed, live)| live.starts_with(replayed)), "{stdout}");
    assert!(stderr.contains("replaying every Service as recorded on worker-1"), "{stderr}");
    assert!(stderr.contains("nothing but a test"), "the summary has the trace's own gaps: {stderr}");
    assert!(!stderr.contains("incomplete"), "{stderr}");

    let (_, faults, _) = replay(&path, &["-o", "json"]);
    assert!(!faults.is_empty() && faults.lines().count() < records.len());
    assert!(faults.lines().all(|fault| stdout.contains(fault)));
    let (_, cart, _) = replay(&path, &["--service", "shop/cart", "-o", "json", "--all"]);
    let (_, checkout, _) = replay(&path, &["-n", "shop", "--service", "checkout", "-o", "json", "--all"]);
    assert!(cart.lines().count() > 100 && checkout.lines().count() > 0);
    assert!(checkout.lines().all(|line| line.contains("\"C20\"")), "{checkout}");
    let (status, table, _) = replay(&path, &[]);
    assert_eq!(status, Some(3));
    assert!(table.contains("shop/cart") && table.contains("C20"), "{table}");
}

/// A recording of two bursts of traffic half an hour apart, before the second of which the wall clock is stepped.
fn stepped(path: &Path, step_ns: i64) {
    let corpus = corpus("debian-6.12");
    let header = header(&corpus);
    let mut live = Live::new(&header, Detail::All, path);
    for (burst, mut record) in (0..2).flat_map(|burst| {
        Traffic::new(&corpus, 3 + burst, 200.0).take(600).map(move |record| (burst, record))
    }) {
        // The step is noticed before the second burst begins.
        let offset = burst * (HALF_HOUR + Duration::from_secs(10)).as_nanos() as u64;
        if burst == 1 && live.now < header.started.saturating_add(HALF_HOUR) {
            live.pass(HALF_HOUR);
            live.recorded.measure_wall_clock(live.now, step_ns);
        }
        let time = u64::from_le_bytes(record[..8].try_into().unwrap()) + offset;
        record[..8].copy_from_slice(&time.to_le_bytes());
        live.turn([record.as_slice()]);
    }
    live.pass(Duration::from_secs(10));
    live.end();
}

const HALF_HOUR: Duration = Duration::from_mins(30);

/// The flows with a time that begins so, of those that a replay of this selection shows.
fn flows_at(path: &Path, time: &str, selection: &[&str]) -> usize {
    let (_, stdout, stderr) = replay(path, &[&["-o", "json", "--all"], selection].concat());
    assert!(!stderr.contains("error: "), "{stderr}");
    let is_then = |line: &&str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        record["flow"]["started"].as_str().unwrap().starts_with(time)
    };
    stdout.lines().filter(is_then).count()
}

#[test]
fn a_time_that_the_wall_clock_shows_twice_is_replayed_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("back.viptrace");
    // The recording begins at midnight: the second burst is at half past eleven of the day before.
    stepped(&path, -3_600_000_000_000);
    let all = flows_at(&path, "2026-11-30T23:30:", &[]);
    assert!(all > 100, "{all}");
    for selection in [
        &["--until", "2026-12-01T00:00:30Z"][..],
        &["--until", "2026-11-30T23:30:30Z"],
        &["--since", "2026-11-30T23:30:00Z", "--until", "2026-11-30T23:31:00Z"],
    ] {
        assert_eq!(flows_at(&path, "2026-11-30T23:30:", selection), all, "{selection:?}");
    }
    let first = flows_at(&path, "2026-12-01T00:00:", &[]);
    assert!(first > 100, "{first}");
    assert_eq!(flows_at(&path, "2026-12-01T00:00:", &["--since", "2026-12-01T00:00:00Z"]), first);
    assert_eq!(flows_at(&path, "2026-12-01T00:00:", &["--until", "2026-11-30T23:31:00Z"]), 0);
}

#[test]
fn times_after_a_wall_clock_was_set_forward_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forward.viptrace");
    stepped(&path, 7_200_000_000_000);
    let all = flows_at(&path, "2026-12-01T02:30:", &[]);
    assert!(all > 100, "{all}");
    for selection in [
        &["--since", "2026-12-01T02:30:00Z"][..],
        &["--since", "2026-12-01T01:00:00Z", "--until", "2026-12-01T02:31:00Z"],
    ] {
        assert_eq!(flows_at(&path, "2026-12-01T02:30:", selection), all, "{selection:?}");
    }
    assert_eq!(flows_at(&path, "2026-12-01T02:30:", &["--until", "2026-12-01T01:00:00Z"]), 0);
}

#[test]
fn the_target_is_part_of_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (path, live) = recording(folder.path(), true, Some("service/shop/checkout"));
    let (_, stdout, stderr) = replay(&path, &["-o", "json", "--all"]);
    assert!(stderr.contains("replaying service/shop/checkout"), "{stderr}");
    assert!(stdout.lines().count() > 0 && stdout.lines().count() < live.len());
    let (_, _, stderr) = replay(&path, &["--service", "shop/cart", "-o", "json"]);
    assert!(stderr.contains("may be missing"), "{stderr}");
}

#[test]
fn a_target_without_records_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = recording(folder.path(), false, None);
    for (target, why) in [
        ("shop/checkout", "no flow of it was observed"),
        ("shop/db", "has no VIP"),
        ("shop/elsewhere", "there is no service/shop/elsewhere in this cluster"),
    ] {
        let out = folder.path().join(target.replace('/', "-"));
        let parquet = ["parquet", "--out", out.to_str().unwrap()];
        for output in [&["table", "--all"][..], &["json"], &["story"], &["html"], &parquet] {
            let (status, stdout, stderr) = replay(&path, &[&["--service", target, "-o"], output].concat());
            assert_eq!(status, Some(4), "{stderr}");
            let said = format!("nothing of service/{target} is in the recording");
            assert!(stderr.contains(&said) && stderr.contains(why), "{target}: {stdout}{stderr}");
        }
    }
    let (_, _, stderr) = replay(&path, &["--all"]);
    assert!(!stderr.contains("nothing of"), "{stderr}");
    for (wanted, why) in [
        (["--client", "shop/typo"], "there is no pod/shop/typo in this cluster"),
        (["--client", "192.0.2.77"], "nothing of 192.0.2.77 is in the recording: no flow of it was observed"),
        (["--flow", "192.0.2.77:4000"], "no flow with these addresses was observed"),
        (["--path", "192.0.2.77:4000"], "no flow with these addresses was observed"),
    ] {
        let (status, _, stderr) = replay(&path, &wanted);
        assert!(status == Some(4) && stderr.contains(why), "{wanted:?}: {stderr}");
    }
}

#[test]
fn a_trace_of_an_idle_target_replays_as_the_trace_did() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = recording(folder.path(), false, Some("service/shop/checkout"));
    let (status, _, stderr) = replay(&path, &[]);
    assert!(status == Some(0) && stderr.contains("nothing of service/shop/checkout"), "{stderr}");
}

#[test]
fn missing_parts_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = recording(folder.path(), false, None);
    let (status, _, stderr) = replay(&path, &["-o", "json"]);
    assert_eq!(status, Some(0), "{stderr}");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (status, _, stderr) = replay(&path, &["-o", "json"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(stderr.contains("at byte ") && stderr.contains("the file ends within a block"), "{stderr}");
    assert!(stderr.contains("the recording is incomplete"), "the summary says so: {stderr}");
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    let (status, _, stderr) = replay(&path, &[]);
    assert_eq!(status, Some(1));
    assert!(stderr.contains("No such file"), "{stderr}");
    fs::write(&path, "something else").unwrap();
    let (status, _, stderr) = replay(&path, &[]);
    assert_eq!(status, Some(1));
    assert!(stderr.contains("is not a recording of viptrace"), "{stderr}");
    assert_eq!(replay(Path::new("/dev/null"), &[]).0, Some(1));
    assert_eq!(viptrace(&["replay"]).status.code(), Some(2));
}

#[test]
fn a_recording_replaces_a_file_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "precious").unwrap();
    let output = viptrace(&["trace", "--record", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--force"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_redacted_copy_is_replayed_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let recording = tests_folder().join("fixtures/recordings/debian-6.12-c20-no-endpoints.viptrace");
    let out = folder.path().join("public.viptrace");
    let redact = |file: &Path, more: &[&str]| {
        let arguments = ["redact", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let output = viptrace(&[&arguments, more].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (status, said, errors) = redact(&recording, &[]);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{said}");
    for part in ["service names", " addresses", "still in the file: times"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (own, copy) = (replay(&recording, &["-o", "json"]), replay(&out, &["-o", "json"]));
    assert_eq!((own.0, own.1.lines().count()), (copy.0, copy.1.lines().count()));
    assert!(copy.1.contains("\"C20\"") && copy.1.contains("\"namespace-1\""), "{}", copy.1);
    assert!(own.1.contains("shop") && !copy.1.contains("shop"), "{}", copy.1);

    let (status, _, errors) = redact(&recording, &[]);
    assert_eq!(status, Some(1));
    assert!(errors.contains("exists already") && errors.contains("--force"), "{errors}");
    assert_eq!(redact(&recording, &["--force"]).0, Some(0));
    let bytes = fs::read(&out).unwrap();
    let (status, _, errors) = redact(&out, &["--force"]);
    assert!(status == Some(1) && errors.contains("into itself"), "{errors}");
    assert_eq!(fs::read(&out).unwrap(), bytes);
}

/// The numbers in the row of a Service.
fn row(table: &str, service: &str) -> Vec<u64> {
    let row = table.lines().find(|line| line.starts_with(service)).unwrap_or_else(|| panic!("{table}"));
    row.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn counts_say_which_service_had_trouble_without_judging() {
    let folder = tempfile::tempdir().unwrap();
    let (path, live) = recording(folder.path(), true, None);
    let (status, table, stderr) = replay(&path, &["-o", "counts"]);
    assert_eq!(status, Some(0), "counts judge nothing: {stderr}");
    assert!(stderr.contains("no flow was judged"), "{stderr}");
    assert!(table.contains("6000  all"), "{table}");
    let refused = live.iter().filter(|line| line.contains("\"C20\"")).count() as u64;
    let [cart, checkout] = ["shop/cart:http TCP", "shop/checkout:http TCP"].map(|name| row(&table, name));
    assert_eq!((checkout[0], checkout[2]), (0, refused), "each connection was refused once: {table}");
    assert!(cart[0] > 100 && cart[1] == 0, "{table}");

    let (_, only, _) = replay(&path, &["-o", "counts", "--service", "shop/checkout"]);
    assert_eq!(only.lines().count(), 2, "{only}");
    assert_eq!(row(&only, "shop/checkout:http TCP"), checkout);
    for port in ["http", "80"] {
        let (_, table, _) = replay(&path, &["-o", "counts", "--service", &format!("shop/checkout:{port}")]);
        assert_eq!(table, only);
    }
    let (status, _, stderr) = replay(&path, &["-o", "counts", "--service", "shop/checkout:81"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(stderr.contains("no event of shop/checkout:81 is in the recordings"), "{stderr}");
    let (status, _, stderr) = replay(&path, &["-o", "counts", "--service", "shop/nothing"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(stderr.contains("no event of shop/nothing is in the recordings"), "{stderr}");
    for flow in [["--class", "C20"], ["--flow", "10.0.1.2:40000"], ["--client", "10.0.1.2"]] {
        let (status, _, stderr) = replay(&path, &[&["-o", "counts"], flow.as_slice()].concat());
        assert_eq!(status, Some(2), "{stderr}");
        assert!(stderr.contains("-o counts follows no flow"), "{stderr}");
    }
}

/// Its first records come before the first of its times.
#[test]
fn a_time_before_the_recording_leaves_nothing_out() {
    for name in ["6.12-c20-no-endpoints", "6.12-c28-refused-other-node", "7.2-ipvs-from-outside_ipvs"] {
        let path = fixtures().join(format!("recordings/debian-{name}.viptrace"));
        let (_, whole, _) = replay(&path, &["-o", "json", "--all"]);
        let (_, since, _) = replay(&path, &["-o", "json", "--all", "--since", "5m"]);
        assert!(whole.lines().count() > 4, "{whole}");
        assert_eq!(since, whole, "{name}");
    }
}

#[test]
fn counts_of_a_damaged_recording_name_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.viptrace");
    let bytes = fs::read(tests_folder().join("fixtures/two-nodes/node1.viptrace")).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let (status, table, stderr) = replay(&path, &["-o", "counts"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(
        table.contains("lab-incident/web:80 TCP") && stderr.contains("the file ends within a block"),
        "{table}{stderr}"
    );
}

#[test]
fn counts_of_a_recording_without_its_end_say_when_it_was_cut_off() {
    let node = tests_folder().join("fixtures/two-nodes/node1.viptrace");
    let (status, _, stderr) = replay(&node, &["-o", "counts"]);
    assert!(
        status == Some(4) && stderr.contains("node1.viptrace: it was cut off at 2026-11-23T21:20:"),
        "{stderr}"
    );
    // The wanted time is in the recording.
    let (status, _, stderr) = replay(&node, &["-o", "counts", "--until", "21:18"]);
    assert!(status == Some(0) && !stderr.contains("cut off"), "{stderr}");
}

/// What a replay says of each flow, without names and addresses.
fn outline(place: &[&Path]) -> (Vec<String>, String) {
    let paths = place.iter().map(|path| path.to_str().unwrap());
    let replay = |format| {
        let arguments: Vec<&str> =
            ["replay"].into_iter().chain(paths.clone()).chain(["-o", format]).collect();
        let output = viptrace(&arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let (records, said) = replay("json");
    let facts = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let changes = record["changes_around"].as_array().map_or(0, Vec::len);
        format!(
            "{} {} {} {} {} {changes}",
            record["time"],
            record["class"],
            record["confidence"],
            record["flow"]["started"],
            record["lost_events"],
        )
    };
    let clocks = said.lines().filter(|line| line.contains("the clock of"));
    let clocks = clocks.map(|line| line.replace("node-1", "node1").replace("node-2", "node2") + "\n");
    (records.lines().map(facts).collect(), clocks.collect())
}

#[test]
fn recordings_that_are_redacted_together_are_one_incident() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = tests_folder().join("fixtures/two-nodes");
    let nodes = ["node1", "node2"].map(|name| fixtures.join(format!("{name}.viptrace")));
    let out = folder.path().join("public");
    let noise = folder.path().join("noise");
    fs::create_dir(&noise).unwrap();
    fs::write(noise.join("notes.txt"), "no recording").unwrap();
    let arguments = |out: &Path| {
        let paths = [&nodes[0], &nodes[1], &noise, &"--out".into(), &out.to_path_buf()];
        let words: Vec<String> = paths.map(|path| path.to_str().unwrap().to_owned()).into();
        words
    };
    let redact = |out: &Path| {
        let words = arguments(out);
        let words: Vec<&str> = ["redact"].into_iter().chain(words.iter().map(String::as_str)).collect();
        viptrace(&words)
    };
    let output = redact(&out);
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("2 files of 2 nodes") && said.contains("1 other file"), "{said}");
    let files = ["node-1/00001.viptrace", "node-2/00001.viptrace"].map(|name| out.join(name));
    assert!(files.iter().all(|file| file.is_file()), "{said}");

    let (own, own_clocks) = outline(&[&nodes[0], &nodes[1]]);
    let (copy, clocks) = outline(&[&out]);
    assert_eq!(own, copy);
    assert!(own_clocks.contains("ahead of") || own_clocks.contains("behind"), "{own_clocks}");
    assert_eq!(own_clocks, clocks);
    let story = |place: &[&Path]| {
        let words = place.iter().map(|path| path.to_str().unwrap());
        let words: Vec<&str> = ["replay"].into_iter().chain(words).chain(["-o", "story"]).collect();
        let text = String::from_utf8(viptrace(&words).stdout).unwrap();
        // The first words of each line; those of two lines are names.
        let shape = |line: &str| {
            let first = line.split_whitespace().next().unwrap_or_default();
            let has_name = matches!(first, "clients" | "endpoints");
            let words = line.split_whitespace().take(if has_name { 1 } else { 2 });
            words.collect::<Vec<_>>().join(" ").replace("node-", "node")
        };
        text.lines().map(shape).collect::<Vec<_>>()
    };
    assert_eq!(story(&[&nodes[0], &nodes[1]]), story(&[&out]));

    // A folder with files of another mapping is left alone.
    let again = redact(&out);
    let errors = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(1) && errors.contains("is not empty"), "{errors}");

    // What cannot be used is named, and the rest is written.
    let mut bytes = fs::read(&nodes[0]).unwrap();
    bytes.truncate(bytes.len() / 2);
    fs::write(noise.join("cut.viptrace"), &bytes[..100]).unwrap();
    let output = redact(&folder.path().join("other"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{errors}");
    assert!(errors.contains("cannot redact") && errors.contains("cut.viptrace"), "{errors}");
    assert!(folder.path().join("other/node-2/00001.viptrace").is_file());
}
