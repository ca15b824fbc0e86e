//! `viptrace explain-pcap` with captures of the traffic in a recording: each container and link type, translated and
//! repeated sightings, other connections, and damaged files.

use std::{fs, path::Path, process::Command};

use proptest::prelude::*;
use serde_json::Value;

use crate::pcap_support::{ETHERNET, Form, RAW, SLL, SLL2, VLAN, Writer, tcp};
use viptrace::pcap::{Assembly, Recorded, explain, read, tuples};

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/fixtures/recordings/debian-6.12-c28-refused-same-node.viptrace"
);
const CLIENT: &str = "10.244.1.100:20048";
const VIP: &str = "10.96.10.50:443";
const ENDPOINT: &str = "10.244.1.41:8443";
/// 2026-11-21 07:01:05.438, when the first connection of the recording begins.
const START_NS: u64 = 1_795_244_465_438_000_000;
const MS: u64 = 1_000_000;

/// The refused connection: its SYN before and after DNAT, the RST after and before it is translated back; and a connection
/// to no Service.
fn refused(form: Form) -> Vec<u8> {
    let mut writer = Writer::new(form);
    writer.packet(START_NS, 0, false, &tcp(CLIENT, VIP, "S", 7, 100, 0, b""));
    writer.packet(START_NS + MS, 1, true, &tcp(CLIENT, ENDPOINT, "S", 7, 100, 0, b""));
    writer.packet(START_NS + 5 * MS, 1, false, &tcp(ENDPOINT, CLIENT, "RA", 0, 0, 101, b""));
    writer.packet(START_NS + 6 * MS, 0, true, &tcp(VIP, CLIENT, "RA", 0, 0, 101, b""));
    writer.packet(START_NS + 9 * MS, 0, true, &tcp("10.244.1.100:5000", "10.244.1.9:80", "S", 9, 5, 0, b""));
    writer.bytes
}

fn explained(capture: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["explain-pcap", capture.to_str().unwrap(), "--recording", RECORDING])
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn records(capture: &[u8]) -> (Option<i32>, Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.pcap");
    fs::write(&path, capture).unwrap();
    let (status, stdout, stderr) = explained(&path, &["-o", "json"]);
    (status, stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), stderr)
}

fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for link in [ETHERNET, VLAN, RAW, SLL, SLL2] {
        for big in [false, true] {
            forms.push(Form::Pcapng { big, link });
            forms.extend([false, true].map(|nano| Form::Pcap { big, nano, link: link.into() }));
        }
    }
    forms
}

#[test]
fn the_text_names_the_verdict_and_the_packets_seen_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.pcap");
    fs::write(&path, refused(Form::Pcapng { big: false, link: SLL2 })).unwrap();
    let (status, table, stderr) = explained(&path, &[]);
    assert_eq!(status, Some(3), "{stderr}");
    insta::assert_snapshot!("explain-pcap", table);
    let (_, wide, _) = explained(&path, &["-o", "wide"]);
    insta::assert_snapshot!("explain-pcap-wide", wide);
}

#[test]
fn every_container_and_link_type_gives_the_same_connections() {
    for form in forms() {
        let (status, records, stderr) = records(&refused(form));
        assert_eq!(status, Some(3), "{form:?} {stderr}");
        let [fault, other] = &records[..] else { panic!("{form:?}: {} records", records.len()) };
        assert_eq!(fault["verdict"]["class"], "C28", "{form:?}");
        assert_eq!((fault["packets"].as_u64(), fault["sightings"].as_u64()), (Some(2), Some(4)), "{form:?}");
        assert_eq!(fault["seen_as"][1]["stage"], "after_dnat", "{form:?}");
        assert_eq!(fault["reset_packets"][0]["by"], "endpoint", "{form:?}");
        assert_eq!(fault["first"], "2026-11-21T07:01:05.438000000Z", "{form:?}");
        assert_eq!(fault["syns"], 1, "{form:?}");
        assert!(other["verdict"].is_null(), "{form:?}");
        assert_eq!(other["not_recorded"], "not a Service flow: neither address is a Service's", "{form:?}");
    }
}

#[test]
fn every_record_fits_the_schema() {
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace")).args(["schema", "pcap"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for record in records(&refused(Form::Pcapng { big: false, link: SLL2 })).1 {
        let errors: Vec<String> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

#[test]
fn a_repeated_syn_is_no_second_sighting() {
    let mut writer = Writer::new(Form::Pcap { big: false, nano: true, link: SLL.into() });
    for (number, after) in [(1, 0), (2, 1000), (3, 3000)] {
        for way in [VIP, ENDPOINT] {
            writer.packet(START_NS + after * MS, 0, false, &tcp(CLIENT, way, "S", number, 100, 0, b""));
        }
    }
    let (_, records, _) = records(&writer.bytes);
    assert_eq!(records.len(), 1);
    let flow = &records[0];
    assert_eq!((&flow["packets"], &flow["sightings"]), (&3.into(), &6.into()), "{flow}");
    assert_eq!((&flow["syns"], &flow["retransmits"]), (&3.into(), &2.into()), "{flow}");
}

#[test]
fn a_reused_port_begins_another_connection() {
    let mut writer = Writer::new(Form::Pcap { big: false, nano: false, link: RAW.into() });
    writer.packet(START_NS, 0, false, &tcp(CLIENT, VIP, "S", 1, 100, 0, b""));
    writer.packet(START_NS + 60_000 * MS, 0, false, &tcp(CLIENT, VIP, "S", 2, 999, 0, b""));
    let (_, records, _) = records(&writer.bytes);
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["verdict"]["class"], "C28");
    let why = records[1]["not_recorded"].as_str().unwrap();
    assert!(why.contains("another connection of these addresses"), "{why}");
}

#[test]
fn the_masqueraded_tuple_is_the_same_connection() {
    // Without a recording of it, the SYN joins the tuples.
    let mut writer = Writer::new(Form::Pcap { big: false, nano: false, link: RAW.into() });
    let (client, node) = ("10.1.1.1:700", "10.0.0.1:40000");
    writer.packet(START_NS, 0, false, &tcp(client, "10.96.0.1:80", "S", 44, 9, 0, b""));
    writer.packet(START_NS + MS, 0, false, &tcp(node, "10.2.2.2:8080", "S", 44, 9, 0, b""));
    writer.packet(START_NS + 2 * MS, 0, false, &tcp("10.2.2.2:8080", node, "SA", 0, 3, 10, b""));
    writer.packet(START_NS + 2 * MS, 0, false, &tcp("10.96.0.1:80", client, "SA", 0, 3, 10, b""));
    let (_, records, _) = records(&writer.bytes);
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(records[0]["seen_as"][1]["stage"], "after_masquerade");
    assert_eq!((&records[0]["packets"], &records[0]["syn_acks"]), (&2.into(), &1.into()));
}

#[test]
fn connections_outside_the_recordings_time_are_named() {
    let mut writer = Writer::new(Form::Pcap { big: false, nano: false, link: RAW.into() });
    writer.packet(START_NS - 3_600_000 * MS, 0, false, &tcp("10.244.1.7:999", VIP, "S", 1, 100, 0, b""));
    let (status, outside, stderr) = records(&writer.bytes);
    assert_eq!(status, Some(4), "nothing could be judged: {stderr}");
    assert!(
        stderr.contains(
            "its connections, from 2026-11-21T06:01:05.438Z to 2026-11-21T06:01:05.438Z, are outside"
        ),
        "{stderr}"
    );
    let why = outside[0]["not_recorded"].as_str().unwrap();
    assert!(why.starts_with("outside the recording's time: 2026-11-21T07:01"), "{why}");
    // A capture that began earlier has connections outside and within.
    writer.packet(START_NS, 0, false, &tcp("10.244.1.100:5000", "10.244.1.9:80", "S", 9, 5, 0, b""));
    let (status, records, stderr) = records(&writer.bytes);
    assert_eq!((status, records.len()), (Some(0), 2), "{stderr}");
}

/// The text of one capture, on both streams.
fn told(capture: &[u8]) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.pcap");
    fs::write(&path, capture).unwrap();
    explained(&path, &[])
}

#[test]
fn a_packet_of_an_interface_without_a_block_is_counted_with_the_reason() {
    let mut writer = Writer::new(Form::Pcapng { big: false, link: RAW });
    writer.packet(START_NS, 2, false, &tcp(CLIENT, VIP, "S", 7, 100, 0, b""));
    let (status, stdout, stderr) = told(&writer.bytes);
    assert_eq!(stdout, "1 packet in node.pcap; 0 connections\n");
    assert!(
        stderr.contains("node.pcap: 1 packet of an interface that no interface block of the file describes"),
        "{stderr}"
    );
    assert_eq!(status, Some(4));
}

#[test]
fn an_obsolete_packet_block_is_counted_with_the_reason() {
    let mut writer = Writer::new(Form::Pcapng { big: false, link: RAW });
    let block_at = writer.bytes.len();
    writer.packet(START_NS, 0, false, &tcp(CLIENT, VIP, "S", 7, 100, 0, b""));
    writer.bytes[block_at] = 2;
    let (status, stdout, stderr) = told(&writer.bytes);
    assert_eq!((status, stdout.as_str()), (Some(4), "1 packet in node.pcap; 0 connections\n"));
    assert!(stderr.contains("1 packet in an obsolete Packet Block"), "{stderr}");
}

#[test]
fn frames_with_more_vlan_tags_than_are_read_are_counted() {
    let ip = tcp(CLIENT, VIP, "S", 7, 100, 0, b"");
    for (tags, expected) in [(3, Some(3)), (4, Some(4)), (6, Some(4))] {
        let mut writer = Writer::new(Form::Pcap { big: false, nano: true, link: RAW.into() });
        // The link type, behind 20 bytes of the header.
        writer.bytes[20] = 1;
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0, 0, 7].repeat(tags));
        frame.extend([8, 0]);
        frame.extend(&ip);
        // The writer adds nothing in front of a packet of raw IP.
        writer.packet(START_NS, 0, false, &frame);
        let (status, stdout, stderr) = told(&writer.bytes);
        assert_eq!(status, expected, "{tags}: {stderr}{stdout}");
        let says = stderr.contains("1 packet with more than three VLAN tags, which viptrace does not read");
        assert_eq!(says, tags > 3, "{stderr}");
    }
}

#[test]
fn packets_of_no_connection_are_counted_without_a_warning() {
    let mut writer = Writer::new(Form::Pcap { big: false, nano: true, link: RAW.into() });
    let mut ip = tcp(CLIENT, VIP, "S", 7, 100, 0, b"");
    // OSPF.
    ip[9] = 89;
    writer.packet(START_NS, 0, false, &ip);
    let (status, stdout, stderr) = told(&writer.bytes);
    assert_eq!((status, stdout.as_str()), (Some(0), "1 packet in node.pcap; 0 connections\n"));
    assert!(stderr.contains("1 packet of no connection: neither TCP, UDP nor SCTP"), "{stderr}");
    assert!(!stderr.contains("warning"), "{stderr}");
}

#[test]
fn a_cut_capture_gives_every_whole_packet() {
    for form in
        [Form::Pcap { big: false, nano: false, link: RAW.into() }, Form::Pcapng { big: true, link: SLL2 }]
    {
        let whole = refused(form);
        let (status, records, stderr) = records(&whole[..whole.len() - 1]);
        assert_eq!(records.len(), 1, "{stderr}");
        assert_eq!(status, Some(3));
        assert!(stderr.contains("the file ends within a packet"), "{stderr}");
    }
}

#[test]
fn a_damaged_length_is_no_cut_file() {
    for (form, length_at) in [
        (Form::Pcap { big: false, nano: false, link: RAW.into() }, 24 + 16 + 40 + 8),
        (Form::Pcapng { big: false, link: RAW }, 28 + 44 + 40 + 72 + 4),
    ] {
        let mut bytes = refused(form);
        bytes[length_at..length_at + 4].copy_from_slice(&[0xfc, 0xff, 0xff, 0x7f]);
        let (status, records, stderr) = records(&bytes);
        assert_eq!((status, records.len()), (Some(3), 1), "{stderr}");
        assert!(stderr.contains("no whole packet begins at byte"), "{form:?} {stderr}");
    }
}

#[test]
fn a_capture_that_ends_within_its_header_was_cut_off() {
    for (form, header) in [
        (Form::Pcap { big: false, nano: false, link: RAW.into() }, 24),
        (Form::Pcap { big: true, nano: true, link: RAW.into() }, 24),
        (Form::Pcapng { big: false, link: SLL2 }, 28),
        (Form::Pcapng { big: true, link: SLL2 }, 28),
    ] {
        let whole = refused(form);
        for length in [4, 7, 11, 13, header - 1] {
            let (status, _, stderr) = records(&whole[..length]);
            assert_eq!(status, Some(1));
            assert!(
                stderr.contains("was cut off") && stderr.contains("copy it again"),
                "{form:?} {length}: {stderr}"
            );
        }
        let (status, records, stderr) = records(&whole[..header]);
        assert_eq!((status, records.len()), (Some(0), 0), "{form:?}: {stderr}");
    }
}

#[test]
fn other_files_are_refused_with_a_hint() {
    for (bytes, text) in [
        (&b""[..], "it is empty"),
        (b"something else entirely, and long enough", "neither a pcap nor a pcapng file"),
        (
            b"\n\r\r\n\x1c\0\0\0 no order of bytes, and enough for a header",
            "neither a pcap nor a pcapng file",
        ),
        (b"\x1f\x8b\x08\x00 compressed", "gunzip"),
        (b"\x28\xb5\x2f\xfd compressed", "gunzip"),
        (b"\xfd7zXZ\x00 compressed", "gunzip"),
    ] {
        let (status, _, stderr) = records(bytes);
        assert_eq!(status, Some(1));
        assert!(stderr.contains(text), "{stderr}");
    }
}

/// A capture with the SYN of each recorded TCP connection, `ahead_s` seconds later than recorded. Returns how many.
fn syns_of(recording: &Path, ahead_s: u64, path: &Path) -> usize {
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["replay", recording.to_str().unwrap(), "-o", "json", "--all"])
        .output()
        .unwrap();
    let mut writer = Writer::new(Form::Pcapng { big: false, link: SLL2 });
    let mut written = 0;
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let flow = serde_json::from_str::<Value>(line).unwrap()["flow"].take();
        let (Some(client), Some(vip), "TCP") =
            (flow["client"].as_str(), flow["vip"].as_str(), flow["protocol"].as_str().unwrap())
        else {
            continue;
        };
        let began: jiff::Timestamp = flow["started"].as_str().unwrap().parse().unwrap();
        let ns = u64::try_from(began.as_nanosecond()).unwrap() + ahead_s * 1000 * MS;
        written += 1;
        writer.packet(ns, 0, false, &tcp(client, vip, "S", written, 100 + u32::from(written), 0, b""));
    }
    fs::write(path, writer.bytes).unwrap();
    written.into()
}

fn with_verdict(stdout: &str) -> usize {
    let records = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| !record["verdict"].is_null()).count()
}

#[test]
fn a_capture_of_another_clock_gets_the_verdicts_of_its_connections() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.pcapng");
    for ahead_s in [0, 90] {
        let written = syns_of(Path::new(RECORDING), ahead_s, &path);
        let (_, stdout, stderr) = explained(&path, &["-o", "json"]);
        assert!(written >= 3 && with_verdict(&stdout) == written, "{written}: {stderr}{stdout}");
        let says = stderr.contains("the clock of the capture is 90.0 s ahead of that of");
        assert_eq!(says, ahead_s == 90, "{stderr}");
    }
}

/// An export has each packet at the time that the wall clock showed then. The clock of this node was set forward by 20 s, and a
/// flow that began before was judged after that.
#[test]
fn a_capture_has_its_verdicts_where_the_nodes_clock_was_stepped() {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/two-nodes/node1.viptrace");
    let recording = recording.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node1.pcapng");
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_viptrace")).args(args).output().unwrap();
    fs::write(&path, run(&["replay", recording, "-o", "pcapng"]).stdout).unwrap();
    let output = run(&["explain-pcap", path.to_str().unwrap(), "--recording", recording, "-o", "json"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.lines().count() > 10, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(with_verdict(&stdout), stdout.lines().count(), "{stdout}");
    // The time that was skipped is within the recording, and so is what the clock showed last.
    for (time_s, is_during) in [(-60, false), (30, true), (240, true), (600, false)] {
        let began: jiff::Timestamp = "2026-11-23T21:15:45.647Z".parse().unwrap();
        let ns = u64::try_from(began.as_nanosecond() + i128::from(time_s) * 1_000_000_000).unwrap();
        let mut writer = Writer::new(Form::Pcap { big: false, nano: true, link: RAW.into() });
        writer.packet(ns, 0, false, &tcp("10.244.1.2:999", "10.96.95.123:80", "S", 1, 100, 0, b""));
        fs::write(&path, writer.bytes).unwrap();
        let output = run(&["explain-pcap", path.to_str().unwrap(), "--recording", recording, "-o", "json"]);
        let record: Value = serde_json::from_slice(&output.stdout).unwrap();
        let why = record["not_recorded"].as_str().unwrap();
        assert_eq!(!why.starts_with("outside the recording's time"), is_during, "{time_s}: {why}");
    }
}

#[test]
fn recordings_may_be_folders_and_each_has_its_own_clock() {
    let nodes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/two-nodes");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node2.pcapng");
    let written = syns_of(&nodes.join("node2.viptrace"), 200, &path);
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["explain-pcap", path.to_str().unwrap(), "-o", "json", "--recording", nodes.to_str().unwrap()])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(written >= 3 && with_verdict(&stdout) == written, "{written}: {stderr}{stdout}");
    assert!(
        stderr.contains("is 200.0 s ahead of that of") && stderr.contains("node2.viptrace, by "),
        "{stderr}"
    );
    assert!(!stderr.contains("node1.viptrace, by "), "no connection is in the other recording: {stderr}");
    let lost = Path::new("nowhere.viptrace");
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["explain-pcap", path.to_str().unwrap(), "--recording", lost.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("nowhere.viptrace"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
}

fn assemble(bytes: &[u8]) {
    let length = bytes.len() as u64;
    let Ok(found) = tuples(bytes, length) else { return };
    let recorded = Recorded::default();
    let mut assembly = Assembly::default();
    let ending = read(bytes, length, |packet| assembly.add(packet, &recorded)).unwrap();
    let flows = explain(&assembly, &recorded, &ending);
    assert!(flows.len() >= found.len().min(1));
    for flow in flows {
        assert!(flow.packets <= flow.sightings);
        assert!(flow.packet_list.len() as u64 <= flow.packets);
    }
}

proptest! {
    #[test]
    fn damaged_captures_are_read_without_a_panic(
        form in prop::sample::select(forms()),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = refused(form);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let length = bytes.len();
        bytes.truncate(length - cut.index(length) / 4);
        assemble(&bytes);
    }
}
