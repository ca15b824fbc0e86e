//! `viptrace replay` as a user runs it: records, exit statuses, and the messages about a damaged file.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use crate::recording_support::{Live, Traffic, corpus, header};
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
        let (status, stdout, stderr) = replay(&path, &["--service", target, "--all"]);
        assert_eq!(status, Some(0), "{stderr}");
        let said = format!("nothing of service/{target} is in the recording");
        assert!(stderr.contains(&said) && stderr.contains(why), "{target}: {stdout}{stderr}");
    }
    let (_, _, stderr) = replay(&path, &["--all"]);
    assert!(!stderr.contains("nothing of"), "{stderr}");
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
    let recording = crate::recording_support::tests_folder()
        .join("fixtures/recordings/debian-6.12-c20-no-endpoints.viptrace");
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
    let (status, _, stderr) = replay(&path, &["-o", "counts", "--service", "shop/nothing"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(stderr.contains("no event of shop/nothing is in the recordings"), "{stderr}");
    for flow in [["--class", "C20"], ["--flow", "10.0.1.2:40000"], ["--client", "10.0.1.2"]] {
        let (status, _, stderr) = replay(&path, &[&["-o", "counts"], flow.as_slice()].concat());
        assert_eq!(status, Some(1), "{stderr}");
        assert!(stderr.contains("-o counts follows no flow"), "{stderr}");
    }
}

#[test]
fn counts_of_a_damaged_recording_name_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = recording(folder.path(), true, None);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let (status, table, stderr) = replay(&path, &["-o", "counts"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(
        table.contains("shop/cart:http TCP") && stderr.contains("the file ends within a block"),
        "{stderr}"
    );
}
