//! A running `viptrace agent`, and a client for its ports.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use viptrace::session::Detail;

use crate::recording_support::{Live, Traffic, corpus, header};

/// How long a test waits for something that happens at once.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The records of failed flows that an agent has handed out.
pub(crate) fn faults() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/two-nodes/node1.viptrace");
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["replay", path.to_str().unwrap(), "-o", "json", "--faults-only"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A recording of healthy and failing connections.
pub(crate) fn recording(folder: &Path) -> PathBuf {
    recording_with(folder, |_| ())
}

/// The same, with what `happens` before its end.
pub(crate) fn recording_with(folder: &Path, happens: impl FnOnce(&mut Live)) -> PathBuf {
    let path = folder.join("source.viptrace");
    let corpus = corpus("debian-6.12");
    let mut live = Live::new(&header(&corpus), Detail::All, &path);
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus, 3, 200.0).take(6000).collect();
    for batch in traffic.chunks(50) {
        live.turn(batch.iter().map(Vec::as_slice));
    }
    happens(&mut live);
    live.pass(Duration::from_secs(20));
    live.end();
    path
}

/// The output of a verb that ends by itself.
pub(crate) fn viptrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_viptrace")).args(arguments).output().unwrap()
}

/// A running agent. It is killed when the value is dropped.
pub(crate) struct Agent {
    child: Child,
    lines: Receiver<String>,
    pub(crate) log: String,
    pub(crate) metrics: SocketAddr,
    pub(crate) health: SocketAddr,
    pub(crate) socket: PathBuf,
    pub(crate) config: PathBuf,
}

impl Agent {
    /// Replays `recording` through an agent whose configuration has these further lines. Ready when the replay is over.
    pub(crate) fn start(folder: &Path, recording: &Path, yaml: &str) -> Self {
        let stdout = fs::File::create(folder.join("stdout")).unwrap();
        Self::start_with(folder, recording, yaml, stdout.into())
    }

    /// The same with this standard output.
    pub(crate) fn start_with(folder: &Path, recording: &Path, yaml: &str, stdout: Stdio) -> Self {
        let config = folder.join("agent.yaml");
        let socket = folder.join("agent.sock");
        fs::write(&config, Self::yaml(&socket, yaml)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_viptrace"))
            .args(["agent", "--config", config.to_str().unwrap(), "--from", recording.to_str().unwrap()])
            .stderr(Stdio::piped())
            .stdout(stdout)
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut agent =
            Self { child, lines, log: String::new(), metrics: nowhere, health: nowhere, socket, config };
        let address = |line: &str| line.rsplit(' ').next().unwrap().parse().unwrap();
        agent.metrics = address(&agent.wait("serves metrics on"));
        agent.health = address(&agent.wait("serves health on"));
        agent.wait(" ends at ");
        agent
    }

    /// A configuration with free ports.
    fn yaml(socket: &Path, yaml: &str) -> String {
        let listen = if yaml.contains("metrics:") { "" } else { "metrics: {listen: '127.0.0.1:0'}\n" };
        format!(
            "version: 1\n{listen}health: {{listen: '127.0.0.1:0'}}\nstream: {{socket: '{}'}}\n{yaml}",
            socket.display()
        )
    }

    /// The next line of the log that contains `text`.
    pub(crate) fn wait(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no line with {text:?}:\n{}", self.log));
            self.log.push_str(&line);
            self.log.push('\n');
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Writes another configuration and sends SIGHUP.
    pub(crate) fn reload(&mut self, text: &str) {
        let text = text.replace("SOCKET", self.socket.to_str().unwrap());
        fs::write(&self.config, text).unwrap();
        self.signal("HUP");
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Stops the agent with SIGTERM. Returns its exit status.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal("TERM");
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.log.push_str(&(line + "\n")),
                // Standard error is closed: the process has ended.
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap().code(),
                Err(RecvTimeoutError::Timeout) => panic!("the agent does not end:\n{}", self.log),
            }
        }
    }

    /// The text of a scrape.
    pub(crate) fn scrape(&self) -> String {
        let (status, answer) = get(self.metrics, "/metrics");
        assert_eq!(status, 200, "{answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// Scrapes until the metrics are so. Returns their text.
    pub(crate) fn until(&self, so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let text = self.scrape();
            if so(&text) {
                return text;
            }
            assert!(begun.elapsed() < PATIENCE, "{text}");
            thread::yield_now();
        }
    }

    /// The output of `viptrace agent stream` for requests that end by themselves.
    pub(crate) fn stream(&self, arguments: &[&str]) -> Output {
        let socket = self.socket.to_str().unwrap();
        viptrace(&[&["agent", "stream", "--socket", socket], arguments].concat())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request. Returns the status and the whole answer.
pub(crate) fn request(address: SocketAddr, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("not HTTP: {answer:?}")), answer)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: viptrace\r\nConnection: close\r\n\r\n"))
}

/// The sum of a metric's series whose labels contain `label`.
pub(crate) fn sum(text: &str, name: &str, label: &str) -> u64 {
    let of = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
    };
    text.lines().filter(of).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}
