//! A node of a real cluster (`cargo xtask cluster`): runs the commands that the host sends through a port of the
//! machine, so that the host decides everything and reaches the node also when its network is broken.
//!
//! Both directions are lines of JSON. The host sends [`Request`]s. The answers are `{"ready":true}` once, then for a
//! command with number N: `{"id":N,"out":TEXT}`, `{"id":N,"err":TEXT}` and at last `{"id":N,"exit":CODE}`.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{console, sys, wait};

/// The name of the port, which the host gives it.
const PORT: &str = "viptrace.lab";
/// The longest time until the kernel has found the port.
const PORT_LIMIT: Duration = Duration::from_secs(20);
/// The exit code of a command that cannot be started, as shells have it.
const NOT_STARTED: i32 = 127;

#[derive(Debug, Deserialize)]
struct Request {
    /// The number of the command.
    id: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum What {
    /// Run a program with its arguments. With a log, the output goes there and not to the host.
    Run {
        run: Vec<String>,
        #[serde(default)]
        input: String,
        log: Option<PathBuf>,
    },
    /// Send a signal to the command with this number, and to its children.
    Signal { signal: i32 },
}

/// Serves until the host closes the port.
pub(super) fn run() -> Result<bool> {
    let path = wait::until("the port to the host", PORT_LIMIT, port)?;
    let port = OpenOptions::new().read(true).write(true).open(&path);
    let port = port.with_context(|| format!("opening {}", path.display()))?;
    let requests = BufReader::new(port.try_clone().context("sharing the port")?);
    let node = Arc::new(Node { port: Mutex::new(port), running: Mutex::default() });
    console::print("node: ready for commands");
    node.send(&json!({"ready": true}));
    for line in requests.lines() {
        let line = line.context("reading from the port")?;
        let Request { id, what } = serde_json::from_str(&line).with_context(|| format!("parsing {line}"))?;
        match what {
            What::Run { run, input, log } => {
                let node = Arc::clone(&node);
                thread::spawn(move || node.run(id, &run, &input, log));
            }
            What::Signal { signal } => node.signal(id, signal),
        }
    }
    Ok(true)
}

/// The device of the port, if there is one.
fn port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let ours = ports
        .filter_map(Result::ok)
        .find(|port| fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == PORT))?;
    let device = PathBuf::from("/dev").join(ours.file_name());
    device.exists().then_some(device)
}

struct Node {
    port: Mutex<File>,
    /// The process numbers of the commands that run.
    running: Mutex<HashMap<u64, u32>>,
}

impl Node {
    fn send(&self, answer: &Value) {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a host there is nobody to answer.
        let _gone = port.write_all(format!("{answer}\n").as_bytes());
    }

    fn run(self: Arc<Self>, id: u64, words: &[String], input: &str, log: Option<PathBuf>) {
        let exit = self.clone().try_run(id, words, input, log).unwrap_or_else(|error| {
            self.send(&json!({"id": id, "err": format!("{error:#}\n")}));
            NOT_STARTED
        });
        self.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.send(&json!({"id": id, "exit": exit}));
    }

    fn try_run(self: Arc<Self>, id: u64, words: &[String], input: &str, log: Option<PathBuf>) -> Result<i32> {
        let (program, arguments) = words.split_first().context("a command without a program")?;
        let mut command = Command::new(program);
        // A group of its own, so that a signal reaches its children.
        command.args(arguments).stdin(Stdio::piped()).process_group(0);
        match log {
            Some(path) => {
                let log = OpenOptions::new().create(true).append(true).open(&path);
                let log = log.with_context(|| format!("opening {}", path.display()))?;
                command.stdout(log.try_clone().context("sharing the log")?).stderr(log);
            }
            None => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
        }
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(id, child.id());
        if let Some(mut stdin) = child.stdin.take() {
            // A program that stops reading reports why itself.
            let _stopped_reading = stdin.write_all(input.as_bytes());
        }
        self.pass_on(id, &mut child);
        let status = child.wait().with_context(|| format!("waiting for {program}"))?;
        Ok(sys::exit_code(std::os::unix::process::ExitStatusExt::into_raw(status)))
    }

    /// Sends the output to the host line by line, until its end.
    fn pass_on(&self, id: u64, child: &mut Child) {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        thread::scope(|scope| {
            scope.spawn(|| self.pass_on_stream(id, "out", out));
            self.pass_on_stream(id, "err", err);
        });
    }

    fn pass_on_stream(&self, id: u64, name: &str, stream: Option<impl Read>) {
        let Some(stream) = stream else { return };
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            self.send(&json!({"id": id, (name): String::from_utf8_lossy(&line)}));
            line.clear();
        }
    }

    fn signal(&self, id: u64, signal: i32) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&pid) = running.get(&id) {
            // It may have ended a moment ago.
            let _ended = sys::signal_group(pid, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let parse = |line: &str| serde_json::from_str::<Request>(line).unwrap();
        let run = parse(r#"{"id":1,"run":["ip","link"],"input":"","log":null}"#);
        assert!(
            matches!(run.what, What::Run { ref run, log: None, .. } if run == &["ip", "link"]),
            "{run:?}"
        );
        let signal = parse(r#"{"id":1,"signal":15}"#);
        assert!(matches!(signal.what, What::Signal { signal: 15 }), "{signal:?}");
    }

    /// Runs a command and returns the answers.
    fn answers(words: &[&str], input: &str) -> Vec<Value> {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("port");
        let node =
            Arc::new(Node { port: Mutex::new(File::create(&path).unwrap()), running: Mutex::default() });
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        node.run(7, &words, input, None);
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_command_answers_with_its_output_and_its_exit_code() {
        assert_eq!(
            answers(&["sh", "-c", "cat; exit 3"], "text\n"),
            [json!({"id": 7, "out": "text\n"}), json!({"id": 7, "exit": 3})]
        );
        assert_eq!(answers(&["sh", "-c", "kill -9 $$"], ""), [json!({"id": 7, "exit": 137})]);
        let missing = answers(&["/nonexistent"], "");
        assert_eq!(missing[1], json!({"id": 7, "exit": NOT_STARTED}));
    }
}
