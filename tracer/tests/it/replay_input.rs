//! The files that `viptrace replay`, `redact` and `explain-pcap` take: links, pipes, copies, and what cannot be read.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use crate::terminal_support::{Terminal, fixture};

const RECORDING: &str = "recordings/debian-6.12-c20-no-endpoints.viptrace";

/// A terminal beside a folder with one whole recording.
fn folder() -> Terminal {
    let terminal = Terminal::new();
    terminal.bring(RECORDING, "node/a.viptrace");
    terminal
}

/// Each output that reads recordings, on this folder.
fn each(terminal: &Terminal, folder: &str) -> Vec<String> {
    let _ = fs::remove_dir_all(terminal.path().join("public"));
    ["replay {} -o json", "replay {} -o story", "replay {} -o counts", "redact {} --out public"]
        .map(|command| terminal.run(&command.replace("{}", folder)))
        .into()
}

#[test]
fn recordings_of_a_folder_that_cannot_be_read_are_named() {
    let terminal = folder();
    terminal.write("node/empty.viptrace", "");
    terminal.write("node/other.viptrace", "this is another file, with the name of a recording");
    symlink("nowhere", terminal.path().join("node/dangling.viptrace")).unwrap();
    symlink("loop", terminal.path().join("node/loop")).unwrap();
    terminal.write("node/notes.txt", "no recording");
    terminal.write("node/b.viptrace.part", "being fetched");
    for read in each(&terminal, "node") {
        for name in ["empty.viptrace", "other.viptrace", "dangling.viptrace", "loop"] {
            assert!(read.contains(&format!("node/{name}: ")), "{name}: {read}");
        }
        assert!(!read.contains("notes.txt") && !read.contains(".part"), "{read}");
        let is_judged = read.contains("-o json") || read.contains("-o story");
        assert!(read.contains(if is_judged { "[exit status 3]" } else { "[exit status 4]" }), "{read}");
    }
    fs::remove_file(terminal.path().join("node/a.viptrace")).unwrap();
    let read = terminal.run("replay node");
    assert!(read.contains("error: cannot replay node/dangling.viptrace: "), "{read}");
}

/// Folders with so long names that the path of the innermost one is longer than the kernel takes.
fn too_deep(outermost: &Path) {
    let levels: Vec<_> = (0..16).map(|level| outermost.join(vec!["a"; level + 1].join("/"))).collect();
    fs::create_dir_all(levels.last().unwrap()).unwrap();
    for level in levels.iter().rev() {
        fs::rename(level, level.with_file_name("a".repeat(255))).unwrap();
    }
}

#[test]
fn a_folder_that_cannot_be_listed_is_named_and_the_others_are_read() {
    let terminal = folder();
    fs::create_dir(terminal.path().join("node/deep")).unwrap();
    too_deep(&terminal.path().join("node/deep"));
    let read = terminal.run("replay node -o json");
    assert!(read.contains("cannot replay node/deep/aaa") && read.contains("[exit status 3]"), "{read}");
}

#[test]
fn deep_folders_are_searched_and_deeper_ones_are_named() {
    let terminal = Terminal::new();
    terminal.bring(RECORDING, "node/1/2/3/4/5/6/a.viptrace");
    let read = terminal.run("replay node -o json");
    assert!(read.contains("\"C20\"") && read.contains("[exit status 3]"), "{read}");
    terminal.bring(RECORDING, &format!("node/{}b.viptrace", "d/".repeat(18)));
    let read = terminal.run("replay node -o json");
    assert!(read.contains("d: more than 16 folders are around it"), "{read}");
}

#[test]
fn links_to_recordings_are_followed_and_links_to_folders_are_not() {
    let terminal = folder();
    fs::create_dir(terminal.path().join("links")).unwrap();
    symlink("../node/a.viptrace", terminal.path().join("links/a.viptrace")).unwrap();
    symlink("..", terminal.path().join("links/up")).unwrap();
    let read = terminal.run("replay links -o json");
    assert!(read.contains("\"C20\"") && !read.contains("warning"), "{read}");
    // One file by two names is no copy.
    assert!(!terminal.run("replay links node node/a.viptrace -o json").contains("warning"));
}

/// Without faults the status shows whether something is missing.
const HEALTHY: &str = "recordings/debian-6.1-healthy-tcp.viptrace";

#[test]
fn a_copy_that_is_left_out_is_no_lack() {
    let terminal = Terminal::new();
    terminal.bring(HEALTHY, "a.viptrace");
    terminal.bring(HEALTHY, "copy.viptrace");
    for form in ["", " -o story", " -o counts"] {
        let read = terminal.run(&format!("replay a.viptrace copy.viptrace{form}"));
        assert!(read.contains("copy.viptrace begins as a.viptrace does: left out as its copy"), "{read}");
        assert!(!read.contains("warning") && !read.contains("[exit status"), "{read}");
    }
}

#[test]
fn what_is_missing_names_the_file_and_the_remedy() {
    let terminal = Terminal::new();
    let mut bytes = fs::read(fixture(HEALTHY)).unwrap();
    bytes.truncate(bytes.len() * 3 / 4);
    terminal.write("cut.viptrace", &bytes);
    for form in ["", " -o story", " -o counts"] {
        let read = terminal.run(&format!("replay cut.viptrace{form}"));
        assert!(read.contains("warning: cut.viptrace: at byte "), "{read}");
        assert!(read.contains("warning: cut.viptrace: it was cut off at "), "{read}");
        assert!(read.contains("\nhint: ") && read.contains("copy it again"), "{read}");
    }
}

#[test]
fn clocks_that_cannot_be_compared_are_named_with_their_files() {
    let terminal = Terminal::new();
    terminal.bring(HEALTHY, "one.viptrace");
    terminal.bring(RECORDING, "other.viptrace");
    let read = terminal.run("replay one.viptrace other.viptrace");
    assert!(read.contains("cannot be compared with that of"), "{read}");
    assert!(read.contains(" (one.viptrace)") && read.contains(" (other.viptrace)"), "{read}");
}

#[test]
fn of_two_copies_the_whole_one_is_played() {
    let terminal = folder();
    let whole = fs::read(fixture(RECORDING)).unwrap();
    // As long as the whole one, and longer: without its index.
    let mut zeros = whole.clone();
    let length = zeros.len();
    zeros[length - 200..].fill(0);
    let own = terminal.run("replay node/a.viptrace -o json");
    let records =
        |read: &str| read.lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect::<Vec<_>>();
    for (name, bytes) in
        [("0", zeros.clone()), ("b", zeros.clone()), ("longer", [zeros, vec![0; 100]].concat())]
    {
        terminal.write(&format!("node/{name}.viptrace"), bytes);
        let read = terminal.run("replay node -o json");
        assert_eq!(records(&own), records(&read), "{name}: {read}");
        assert!(read.contains(&format!("node/{name}.viptrace begins as node/a.viptrace does")), "{read}");
        fs::remove_file(terminal.path().join(format!("node/{name}.viptrace"))).unwrap();
    }
}

#[test]
fn a_pipe_is_refused_and_not_opened() {
    let terminal = folder();
    let pipe = terminal.path().join("node/pipe.viptrace");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (file, pipe) = ("node/a.viptrace", "node/pipe.viptrace");
    let loopback = "{listen: '127.0.0.1:0'}";
    let socket = terminal.path().join("agent.sock");
    let yaml = format!(
        "version: 1\nmetrics: {loopback}\nhealth: {loopback}\nstream: {{socket: '{}'}}\n",
        socket.display()
    );
    terminal.write("agent.yaml", yaml);
    for command in [
        format!("replay {pipe}"),
        format!("replay {pipe} -o counts"),
        format!("redact {pipe} --out public.viptrace"),
        format!("explain-pcap {pipe} --recording {file}"),
        format!("agent --config agent.yaml --from {pipe}"),
    ] {
        let read = terminal.run(&command);
        assert!(read.contains("it is not a regular file") && read.contains("[exit status 1]"), "{read}");
    }
    for read in each(&terminal, "node") {
        assert!(read.contains("node/pipe.viptrace: it is not a regular file"), "{read}");
    }
}

#[test]
fn a_recording_is_not_redacted_onto_a_link_to_itself() {
    let terminal = folder();
    let (own, link) = ("node/a.viptrace", terminal.path().join("link.viptrace"));
    fs::hard_link(terminal.path().join(own), &link).unwrap();
    let read = terminal.run(&format!("redact {own} --out link.viptrace --force"));
    assert!(read.contains("into itself") && read.contains("[exit status 1]"), "{read}");
    assert_eq!(fs::read(link).unwrap(), fs::read(fixture(RECORDING)).unwrap());
}
