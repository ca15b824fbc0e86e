//! `viptrace replay` as an export: the files are read back by other readers, with what the recording has.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use parquet::{
    file::reader::{FileReader as _, SerializedFileReader},
    record::{Row, RowAccessor as _},
};
use pcap_parser::{Block, OptionCode, PcapNGOption, parse_pcapng};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/recordings").join(name)
}

fn replay(recording: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["replay", recording.to_str().unwrap()])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(options: &[PcapNGOption<'_>], code: OptionCode) -> String {
    let option = options.iter().find(|option| option.code == code).unwrap();
    String::from_utf8(option.value[..option.len.into()].to_vec()).unwrap()
}

/// The file's comments and packets, as another program reads them.
fn listing(bytes: &[u8]) -> String {
    let (rest, capture) = parse_pcapng(bytes).unwrap();
    assert!(rest.is_empty());
    let mut lines = Vec::new();
    for block in capture.sections.into_iter().flat_map(|section| section.blocks) {
        lines.push(match block {
            Block::SectionHeader(section) => text(&section.options, OptionCode::Comment),
            Block::InterfaceDescription(interface) => {
                assert_eq!((interface.linktype.0, interface.if_tsresol, interface.snaplen), (101, 9, 64));
                format!(
                    "interface {}: {}",
                    text(&interface.options, OptionCode::IfName),
                    text(&interface.options, OptionCode::IfDescription)
                )
            }
            Block::EnhancedPacket(packet) => {
                assert!(packet.caplen <= 64 && packet.caplen <= packet.origlen);
                let first = packet.data[0] >> 4;
                assert!(first == 4 || first == 6);
                format!(
                    "{} {}/{} bytes: {}",
                    packet.if_id,
                    packet.caplen,
                    packet.origlen,
                    text(&packet.options, OptionCode::Comment)
                )
            }
            other => panic!("{other:?}"),
        });
    }
    lines.join("\n")
}

#[test]
fn packets_have_the_hook_the_copies_and_the_verdict_as_comments() {
    let output = replay(&fixture("debian-6.12-c28-refused-same-node.viptrace"), &["-o", "pcapng"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let listing = listing(&output.stdout);
    let few: Vec<&str> = listing.lines().take(12).collect();
    insta::assert_snapshot!("export-pcapng", few.join("\n"));
    // The reader of captures takes it as well.
    let length = output.stdout.len() as u64;
    let read = viptrace::pcap::read(&output.stdout[..], length, |packet| {
        viptrace::pcap::head(packet).unwrap();
    });
    let ending = read.unwrap();
    assert_eq!((ending.packets, ending.missing), (listing.matches(" bytes: ").count() as u64, None));
}

#[test]
fn every_recording_becomes_a_sound_file() {
    let mut packets = BTreeMap::new();
    for entry in std::fs::read_dir(fixture("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "viptrace") {
            continue;
        }
        let output = replay(&path, &["-o", "pcapng"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 4)), "{}: {stderr}", path.display());
        packets.insert(path, listing(&output.stdout).matches(" bytes: ").count());
    }
    assert!(packets.len() > 50 && packets.values().sum::<usize>() > 200, "{packets:?}");
}

#[test]
fn a_target_leaves_only_its_packets() {
    let recording = fixture("debian-6.12-c28-refused-same-node.viptrace");
    let all = replay(&recording, &["-o", "pcapng"]).stdout.len();
    let one = replay(&recording, &["--service", "shop/api", "-o", "pcapng"]);
    assert!(listing(&one.stdout).contains("FAULT C28") && one.stdout.len() <= all);
    let none = replay(&recording, &["--service", "shop/cart", "-o", "pcapng"]);
    assert!(!listing(&none.stdout).contains(" bytes: "));
    assert!(String::from_utf8_lossy(&none.stderr).contains("no packet of these flows"));
}

#[test]
fn a_trace_has_no_exports() {
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace")).args(["trace", "--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(!help.contains("pcapng") && !help.contains("parquet"));
}

fn rows(file: &Path) -> Vec<Row> {
    let file = std::fs::File::open(file).unwrap();
    SerializedFileReader::new(file).unwrap().get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

/// The position of a column.
fn column(row: &Row, name: &str) -> usize {
    row.get_column_iter().position(|(column, _)| column == name).unwrap()
}

#[test]
fn the_table_of_flows_has_the_records() {
    let recording = fixture("debian-6.12-c6-stale-endpoint-answers.viptrace");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("tables");
    let output = replay(&recording, &["-o", "parquet", "--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let records = replay(&recording, &["-o", "json", "--all"]).stdout;
    let records: Vec<Value> =
        String::from_utf8(records).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = rows(&out.join("flows.parquet"));
    assert_eq!(rows.len(), records.len());
    let mut pieces = 0;
    for (row, record) in rows.iter().zip(&records) {
        for name in ["class", "root_cause", "domain", "confidence", "severity"] {
            assert_eq!(row.get_string(column(row, name)).unwrap(), record[name].as_str().unwrap(), "{name}");
        }
        let client = format!(
            "{}:{}",
            row.get_string(column(row, "client_ip")).unwrap(),
            row.get_int(column(row, "client_port")).unwrap()
        );
        assert_eq!(client, record["flow"]["client"].as_str().unwrap());
        let evidence = row.get_list(column(row, "evidence")).unwrap();
        let expected = record["evidence"].as_array().unwrap();
        assert_eq!(evidence.len(), expected.len());
        pieces += expected.len();
        assert_eq!(
            row.get_list(column(row, "unseen")).unwrap().len(),
            record["unseen"].as_array().unwrap().len()
        );
    }
    assert!(pieces > 100);
}

#[test]
fn the_table_of_changes_has_each_change_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let recording = fixture("debian-6.12-c6-stale-endpoint-answers.viptrace");
    let output = replay(&recording, &["-o", "parquet", "--out", out]);
    assert_eq!(output.status.code(), Some(0));
    let changes = rows(&folder.path().join("changes.parquet"));
    let texts: Vec<&str> =
        changes.iter().map(|row| row.get_string(column(row, "text")).unwrap().as_str()).collect();
    assert_eq!(texts, ["endpoint 10.244.1.12 left Service shop/cart", "Pod shop/cart-2 was deleted"]);
    assert_eq!(changes[0].get_string(column(&changes[0], "subject_name")).unwrap(), "cart");

    let again = replay(&recording, &["-o", "parquet", "--out", out]);
    assert_eq!(again.status.code(), Some(1), "an earlier export stays");
    assert!(String::from_utf8_lossy(&again.stderr).contains("choose another folder"));
    assert_eq!(replay(&recording, &["-o", "parquet"]).status.code(), Some(2));
}

/// The recordings of the two nodes of one incident. The wall clock of the first was set forward by 20 s meanwhile.
fn two_nodes() -> [PathBuf; 2] {
    ["node1", "node2"].map(|node| fixture("../two-nodes").join(format!("{node}.viptrace")))
}

fn replay_both(arguments: &[&str]) -> Output {
    let paths = two_nodes();
    Command::new(env!("CARGO_BIN_EXE_viptrace")).arg("replay").args(paths).args(arguments).output().unwrap()
}

/// Each packet: the name of its interface, its time in nanoseconds, its comment.
fn packets(bytes: &[u8]) -> Vec<(String, u64, String)> {
    let (_, capture) = parse_pcapng(bytes).unwrap();
    let (mut interfaces, mut packets) = (Vec::new(), Vec::new());
    for block in capture.sections.into_iter().flat_map(|section| section.blocks) {
        match block {
            Block::InterfaceDescription(interface) => {
                interfaces.push(text(&interface.options, OptionCode::IfName));
            }
            Block::EnhancedPacket(packet) => packets.push((
                interfaces[packet.if_id as usize].clone(),
                u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low),
                text(&packet.options, OptionCode::Comment),
            )),
            _ => {}
        }
    }
    packets
}

#[test]
fn packets_of_several_nodes_are_on_one_timeline() {
    let output = replay_both(&["-o", "pcapng"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    let both = packets(&output.stdout);
    let listing = listing(&output.stdout);
    assert!(listing.lines().next().unwrap().contains("Note: the clock of node2 is"), "{listing}");
    let count = |node: &str| both.iter().filter(|(name, ..)| name.starts_with(node)).count();
    assert!(count("node1/netns-") > 0 && count("node2/netns-") > 0, "{listing}");
    assert_eq!(count("node"), both.len());
    let mut names: Vec<_> = listing.lines().filter(|line| line.starts_with("interface ")).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    let first = both.iter().position(|(name, ..)| name.starts_with("node2")).unwrap();
    assert!(
        both.iter().skip(first).any(|(name, ..)| name.starts_with("node1")),
        "the nodes' packets do not alternate"
    );
    // A packet of node2 that belongs to a flow that node1 judged.
    assert!(listing.contains("(on node1)"), "{listing}");
}

#[test]
fn times_follow_the_steps_of_the_wall_clock() {
    let [stepped, _] = two_nodes();
    let output = replay(&stepped, &["-o", "pcapng"]);
    let alone = packets(&output.stdout);
    // On the common clock, which is node1's without its step.
    let both = packets(&replay_both(&["-o", "pcapng"]).stdout);
    let common: Vec<_> = both.iter().filter(|(name, ..)| name.starts_with("node1")).collect();
    assert_eq!(alone.len(), common.len());
    let steps: std::collections::BTreeSet<u64> =
        alone.iter().zip(&common).map(|(own, common)| (own.1 - common.1) / 1_000_000_000).collect();
    assert!(steps.contains(&0) && steps.iter().any(|step| (19..=20).contains(step)), "{steps:?}");

    let folder = tempfile::tempdir().unwrap();
    let times = |out: &str, export: &dyn Fn(&str) -> Output| {
        let out = folder.path().join(out);
        let output = export(out.to_str().unwrap());
        assert!(output.status.code() == Some(4), "{}", String::from_utf8_lossy(&output.stderr));
        let rows = rows(&out.join("changes.parquet")).into_iter();
        let rows = rows.filter(|row| row.get_string(column(row, "node")).unwrap() == "node1");
        let each = rows.map(|row| {
            let time = row.get_timestamp_micros(column(&row, "time")).unwrap();
            (row.get_string(column(&row, "text")).unwrap().clone(), time)
        });
        each.collect::<Vec<_>>()
    };
    let alone = times("alone", &|out| replay(&stepped, &["-o", "parquet", "--out", out]));
    let common = times("common", &|out| replay_both(&["-o", "parquet", "--out", out]));
    let at =
        common.iter().position(|(text, _)| text.starts_with("the wall clock was set forward by 20")).unwrap();
    let moved = |(own, common): (&(String, i64), &(String, i64))| {
        assert_eq!(own.0, common.0);
        (own.1 - common.1) / 1_000_000
    };
    let steps: Vec<i64> = alone.iter().zip(&common).map(moved).collect();
    assert!(at > 0 && steps[at - 1] == 0 && steps[steps.len() - 1] >= 19, "{steps:?}");
}

#[test]
fn tables_of_several_nodes_name_the_node_and_have_one_clock() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let output = replay_both(&["-o", "parquet", "--out", out]);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let records = String::from_utf8(replay_both(&["-o", "json", "--all"]).stdout).unwrap();
    let flows = rows(&folder.path().join("flows.parquet"));
    assert_eq!(flows.len(), records.lines().count());
    let changes = rows(&folder.path().join("changes.parquet"));
    for (row, record) in flows.iter().zip(records.lines()) {
        let record: Value = serde_json::from_str(record).unwrap();
        assert_eq!(row.get_string(column(row, "node")).unwrap(), record["flow"]["node"].as_str().unwrap());
    }
    // Both nodes noticed the same change of the API, on clocks that are 90 s apart.
    let joined = |node: &str| {
        let found = changes.iter().find(|row| {
            row.get_string(column(row, "node")).unwrap() == node
                && row.get_string(column(row, "text")).unwrap()
                    == "endpoint 10.244.2.2 left Service lab-incident/web"
        });
        let row = found.unwrap_or_else(|| panic!("{node} has none"));
        row.get_timestamp_micros(column(row, "time")).unwrap()
    };
    assert!((joined("node1") - joined("node2")).abs() < 5_000_000, "{} {}", joined("node1"), joined("node2"));
}
