//! `viptrace top` on a terminal, with keys that a person presses.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use viptrace_lab::sys::open_terminal;

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/fixtures/recordings/debian-6.12-c20-no-endpoints.viptrace"
);
const LIMIT: Duration = Duration::from_mins(1);
const ENTER: &[u8] = b"\r";
const ESCAPE: &[u8] = b"\x1b";
const CONTROL_C: &[u8] = b"\x03";
/// Switch to a screen of its own, and back (xterm's private mode 1049).
const OWN_SCREEN: &str = "\x1b[?1049h";
const OLD_SCREEN: &str = "\x1b[?1049l";

struct Terminal {
    child: Child,
    keyboard: File,
    written: Arc<Mutex<String>>,
}

impl Terminal {
    fn run(arguments: &[&str]) -> Self {
        let (shows, runs) = open_terminal(80, 24).unwrap();
        let end = || Stdio::from(runs.try_clone().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_viptrace"))
            .args(arguments)
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (written, keyboard) = (Arc::new(Mutex::new(String::new())), shows.try_clone().unwrap());
        let (reader, mut shows) = (Arc::clone(&written), shows);
        // Ends with an error once the program has closed the terminal.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = shows.read(&mut bytes) {
                reader.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self { child, keyboard, written }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    fn written(&self) -> String {
        self.written.lock().unwrap().clone()
    }

    /// Waits until these words are written behind the first `from` bytes. Returns the length of everything so far.
    fn wait_for(&self, words: &str, from: usize) -> usize {
        let end = Instant::now() + LIMIT;
        loop {
            let written = self.written();
            if written.get(from..).is_some_and(|new| new.contains(words)) {
                return written.len();
            }
            assert!(Instant::now() < end, "no {words:?} behind {from} bytes of {written:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the program's end. Returns its exit status and everything that it wrote.
    fn end(mut self) -> (Option<i32>, String) {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.wait_for("Not observed", 0);
                return (status.code(), self.written());
            }
            assert!(Instant::now() < end, "it does not end: {:?}", self.written());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_person_opens_a_flow_and_ends_it() {
    let mut terminal = Terminal::run(&["top", "--recording", RECORDING]);
    let at = terminal.wait_for("C20", 0);
    let written = terminal.written();
    assert!(written.contains(OWN_SCREEN), "{written:?}");
    for words in ["SERVICE", "FAULTS", "LATEST", "shop/checkout:http"] {
        assert!(written.contains(words), "{words} is missing: {written:?}");
    }
    terminal.press(ENTER);
    let at = terminal.wait_for("kubectl", at);
    terminal.press(ESCAPE);
    terminal.wait_for("FAULTS", at);
    terminal.press(b"q");
    let (status, written) = terminal.end();
    assert_eq!(status, Some(3));
    let (_, after) = written.rsplit_once(OLD_SCREEN).unwrap();
    assert!(after.contains("First cause") && after.contains("C20 Service has no endpoints"), "{after:?}");
}

#[test]
fn control_c_gives_the_terminal_back() {
    let mut terminal = Terminal::run(&["top", "--recording", RECORDING, "shop/slow"]);
    terminal.wait_for("C20", 0);
    terminal.press(CONTROL_C);
    let (status, written) = terminal.end();
    assert_eq!(status, Some(3));
    assert!(
        written.rsplit_once(OLD_SCREEN).is_some_and(|(_, after)| after.contains("Summary")),
        "{written:?}"
    );
}

#[test]
fn that_a_service_does_not_exist_stays_on_the_screen_of_a_cut_recording() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.viptrace");
    let whole = std::fs::read(RECORDING).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 8]).unwrap();
    let mut terminal = Terminal::run(&["top", "--recording", cut.to_str().unwrap(), "shop/wbe"]);
    terminal.wait_for(OWN_SCREEN, 0);
    terminal.wait_for("more message", terminal.written().find(OWN_SCREEN).unwrap());
    let screen = terminal.written();
    let (_, screen) = screen.split_once(OWN_SCREEN).unwrap();
    for words in ["nothing of service/shop/wbe", "there is no service/shop/wbe", "it was cut off at"] {
        assert!(screen.contains(words), "{words}: {screen:?}");
    }
    terminal.press(b"q");
    let (status, _) = terminal.end();
    assert_eq!(status, Some(4));
}

#[test]
fn without_a_terminal_it_says_so() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_viptrace")).args(["top", "--recording", RECORDING]).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("standard output is not a terminal"), "{text}");
    assert!(text.contains(&format!("hint: `viptrace replay {RECORDING}` prints")), "{text}");
}
