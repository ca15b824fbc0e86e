//! Commands in a node: the host's side of the port that the lab serves in a guest (`tests/src/modes/node.rs`), which
//! works without the guest's network.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::printer::{indented, seconds};

/// The name of the port in the guest.
pub(crate) const PORT: &str = "viptrace.lab";
/// The longest time for a short command, which takes up to a few seconds under emulation.
const SHORT: Duration = Duration::from_mins(2);

/// The number under which the guest reports that it is ready.
const HELLO: u64 = 0;

/// A line from the guest.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    id: u64,
    #[serde(flatten)]
    what: What,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Ready(bool),
    Out(String),
    Err(String),
    Exit(i32),
}

type Listeners = Arc<Mutex<Listening>>;

/// The commands that wait for answers.
#[derive(Debug)]
struct Listening {
    next: u64,
    senders: HashMap<u64, Sender<What>>,
}

/// The connection to one guest; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    node: String,
    port: Arc<Mutex<UnixStream>>,
    listeners: Listeners,
}

/// A command's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) exit: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Remote {
    /// Connects to the guest's port, at QEMU's socket. The command that is returned ends when the guest is ready.
    pub(crate) fn connect(node: &str, socket: &Path) -> Result<(Self, Running)> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("could not connect to the port of {node} at {}", socket.display()))?;
        let lines = BufReader::new(stream.try_clone().context("could not share the port")?).lines();
        let (sender, answers) = mpsc::channel();
        let listening = Listening { next: HELLO + 1, senders: HashMap::from([(HELLO, sender)]) };
        let listeners = Arc::new(Mutex::new(listening));
        let remote = Self {
            node: node.to_owned(),
            port: Arc::new(Mutex::new(stream)),
            listeners: Arc::clone(&listeners),
        };
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                distribute(&listeners, &line);
            }
            // Without the guest, no command gets another answer.
            listeners.lock().unwrap_or_else(PoisonError::into_inner).senders.clear();
        });
        let hello = Running { remote: remote.clone(), id: HELLO, what: "the start".to_owned(), answers };
        Ok((remote, hello))
    }

    /// Starts a command with this input. With a log, a file in the guest, its output goes there.
    pub(crate) fn start(&self, words: &[&str], input: &str, log: Option<&str>) -> Result<Running> {
        let (sender, answers) = mpsc::channel();
        let id = {
            let mut listening = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            let id = listening.next;
            listening.next += 1;
            listening.senders.insert(id, sender);
            id
        };
        self.send(&json!({"id": id, "run": words, "input": input, "log": log}))?;
        Ok(Running { remote: self.clone(), id, what: words.join(" "), answers })
    }

    /// Runs a command to its end and returns its output. Fails unless it succeeds.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let finished = self.start(words, "", None)?.finish(SHORT)?;
        if finished.exit != 0 {
            let tail = indented(finished.err.lines().chain(finished.out.lines()));
            bail!("`{}` on {} exited with status {}{tail}", words.join(" "), self.node, finished.exit);
        }
        Ok(finished.out)
    }

    fn send(&self, request: &Value) -> Result<()> {
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        port.write_all(format!("{request}\n").as_bytes())
            .with_context(|| format!("could not send a command to {}", self.node))
    }
}

fn distribute(listeners: &Listeners, line: &str) {
    let Ok(answer) = serde_json::from_str::<Answer>(line) else { return };
    let mut listening = listeners.lock().unwrap_or_else(PoisonError::into_inner);
    let ends = matches!(answer.what, What::Exit(_) | What::Ready(_));
    if let Some(sender) = listening.senders.get(&answer.id) {
        // The receiver may have gone.
        let _ = sender.send(answer.what);
    }
    if ends {
        listening.senders.remove(&answer.id);
    }
}

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Running {
    remote: Remote,
    id: u64,
    what: String,
    answers: Receiver<What>,
}

impl Running {
    /// Waits for its end, at most for `limit`.
    pub(crate) fn finish(self, limit: Duration) -> Result<Finished> {
        self.wait(limit)
    }

    /// The same for a command that its owner keeps. Its output is returned once.
    pub(crate) fn wait(&self, limit: Duration) -> Result<Finished> {
        let started = Instant::now();
        let mut finished = Finished { exit: 0, out: String::new(), err: String::new() };
        loop {
            match self.answers.recv_timeout(limit.saturating_sub(started.elapsed())) {
                Ok(What::Out(text)) => finished.out.push_str(&text),
                Ok(What::Err(text)) => finished.err.push_str(&text),
                Ok(What::Exit(exit)) => return Ok(Finished { exit, ..finished }),
                Ok(What::Ready(_)) => return Ok(finished),
                Err(RecvTimeoutError::Timeout) => {
                    self.signal(SIGKILL)?;
                    let tail = indented(finished.err.lines().chain(finished.out.lines()));
                    bail!(
                        "waited {} for the end of `{}` on {}{tail}",
                        seconds(limit),
                        self.what,
                        self.remote.node
                    );
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    /// Fails if the command has ended; drops its output so far.
    pub(crate) fn check(&self) -> Result<()> {
        loop {
            match self.answers.try_recv() {
                Ok(What::Exit(exit)) => {
                    bail!("`{}` on {} ended with status {exit}", self.what, self.remote.node)
                }
                Ok(_) => {}
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    /// Ends the command as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> Result<()> {
        self.signal(SIGINT)
    }

    /// Ends the command as a service manager does.
    pub(crate) fn terminate(&self) -> Result<()> {
        self.signal(SIGTERM)
    }

    fn signal(&self, signal: i32) -> Result<()> {
        self.remote.send(&json!({"id": self.id, "signal": signal}))
    }

    fn gone(&self) -> anyhow::Error {
        anyhow::anyhow!("{} ended during `{}`", self.remote.node, self.what)
    }
}

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A guest for the tests of what runs in one.
#[cfg(test)]
pub(crate) mod fake {
    use std::{os::unix::net::UnixListener, sync::mpsc};

    use super::*;

    /// One whose commands go on until a signal ends them. Returns the signals, too.
    pub(crate) fn that_ends_by_a_signal() -> (tempfile::TempDir, Remote, Receiver<i64>) {
        let here = tempfile::tempdir().unwrap();
        let socket = here.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let (sender, signals) = mpsc::channel();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"ready\":true}\n").unwrap();
            for request in BufReader::new(stream.try_clone().unwrap()).lines() {
                let request: Value = serde_json::from_str(&request.unwrap()).unwrap();
                let Some(signal) = request["signal"].as_i64() else { continue };
                sender.send(signal).unwrap();
                let answer = json!({"id": request["id"], "exit": 0}).to_string() + "\n";
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let (remote, _) = Remote::connect("node1", &socket).unwrap();
        (here, remote, signals)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A guest that answers each request with these lines, in which `ID` is the request's number.
    fn guest(answers: &'static [&'static str]) -> (tempfile::TempDir, Remote, Running) {
        let here = tempfile::tempdir().unwrap();
        let socket = here.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"ready\":true}\n").unwrap();
            let requests = BufReader::new(stream.try_clone().unwrap()).lines();
            for request in requests {
                let request: Value = serde_json::from_str(&request.unwrap()).unwrap();
                for answer in answers {
                    let line = answer.replace("ID", &request["id"].to_string()) + "\n";
                    stream.write_all(line.as_bytes()).unwrap();
                }
                if answers.is_empty() {
                    return;
                }
            }
        });
        let (remote, hello) = Remote::connect("node1", &socket).unwrap();
        (here, remote, hello)
    }

    #[test]
    fn a_command_has_its_own_output_and_exit_code() {
        let (_here, remote, hello) = guest(&[
            r#"{"id":99,"out":"other"}"#,
            r#"{"id":ID,"out":"a\n"}"#,
            "kernel noise",
            r#"{"id":ID,"exit":0}"#,
        ]);
        hello.finish(SHORT).unwrap();
        assert_eq!(remote.run(&["echo", "a"]).unwrap(), "a\n");
        assert_eq!(remote.run(&["echo", "a"]).unwrap(), "a\n");
    }

    #[test]
    fn a_failure_names_the_command_and_repeats_its_output() {
        let (_here, remote, _hello) =
            guest(&[r#"{"id":ID,"err":"no such device\n"}"#, r#"{"id":ID,"exit":1}"#]);
        let error = remote.run(&["ip", "link"]).unwrap_err().to_string();
        assert_eq!(error, "`ip link` on node1 exited with status 1\n    no such device");
    }

    #[test]
    fn a_guest_that_ends_ends_its_commands() {
        let (_here, remote, _hello) = guest(&[]);
        let error = remote.run(&["true"]).unwrap_err().to_string();
        assert_eq!(error, "node1 ended during `true`");
    }
}
