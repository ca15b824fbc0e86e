//! `viptrace agent` as a `DaemonSet` runs it: a process with a configuration file, probes, metrics and stored segments. It
//! manages the process and judges nothing.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    expect::Record,
    invocation::Invocation,
    tool::Ended,
    wait,
    world::{GRACE, NODE},
};

/// The limit for loading, attaching and the first lists on an emulated machine.
const READY: Duration = Duration::from_secs(90);
/// The limit from an event to the metrics that count it. A verdict may wait for a reading of the node, and another guest may
/// have the CPU.
const COUNTED: Duration = Duration::from_mins(3);
/// The pause between two scrapes: one costs some 40 ms of an emulated CPU.
const SCRAPE: Duration = Duration::from_millis(250);
/// The limit of one answer on a port.
const ANSWER: Duration = Duration::from_secs(20);

const METRICS: ([u8; 4], u16) = ([127, 0, 0, 1], 9478);
const HEALTH: ([u8; 4], u16) = ([127, 0, 0, 1], 9479);

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    process: Invocation,
    /// The folder of its flight recorder.
    pub segments: PathBuf,
    /// Its Unix socket.
    pub socket: PathBuf,
}

impl Agent {
    /// Starts an agent whose recorder writes small segments to `segments`, and waits until it is ready. `more` is YAML at
    /// the end of its configuration.
    pub fn start(kubeconfig: &Path, segments: &Path, more: &str) -> Result<Self> {
        Self::begin(kubeconfig, segments, more)?.wait_until_ready()
    }

    /// The same without waiting.
    pub fn begin(kubeconfig: &Path, segments: &Path, more: &str) -> Result<Self> {
        let bounds = ", max_bytes: 4M, segment_bytes: 1M, segment_age: 10s";
        Self::begin_bounded(kubeconfig, segments, bounds, more)
    }

    /// Starts an agent with the defaults, and waits for at most `limit` until it is ready. Calls `waiting` with its
    /// process id meanwhile.
    pub fn start_with_defaults(
        kubeconfig: &Path,
        segments: &Path,
        limit: Duration,
        waiting: impl FnMut(u32),
    ) -> Result<Self> {
        Self::begin_bounded(kubeconfig, segments, "", "")?.ready_within(limit, waiting)
    }

    /// Waits until it is ready.
    pub fn wait_until_ready(self) -> Result<Self> {
        self.ready_within(READY, |_| ())
    }

    fn ready_within(mut self, limit: Duration, mut waiting: impl FnMut(u32)) -> Result<Self> {
        let ready = wait::until_every(SCRAPE / 5, "the agent to be ready", limit, || {
            waiting(self.process.pid());
            if Self::is_ready() {
                return Some(true);
            }
            self.process.has_ended().then_some(false)
        });
        if !ready.as_ref().is_ok_and(|is_ready| *is_ready) {
            self.process.interrupt()?;
            bail!("the agent did not get ready: {ready:?}: {}", self.process.end(ANSWER)?.stderr);
        }
        Ok(self)
    }

    fn begin_bounded(kubeconfig: &Path, segments: &Path, bounds: &str, more: &str) -> Result<Self> {
        let folder = Path::new("/run/lab");
        let (config, socket) = (folder.join("agent.yaml"), folder.join("agent.sock"));
        let text = format!(
            "version: 1\nnode: {NODE}\ngrace: {}s\ncluster: {{kubeconfig: {}}}\nstream: {{socket: {}}}\n\
             recorder: {{folder: {}{bounds}}}\n{more}",
            GRACE.as_secs(),
            kubeconfig.display(),
            socket.display(),
            segments.display()
        );
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let arguments = ["agent", "--config", &config.to_string_lossy()].map(str::to_owned);
        let process = Invocation::start(&arguments.each_ref().map(String::as_str))?;
        Ok(Self { process, segments: segments.to_owned(), socket })
    }

    /// Whether `/readyz` answers with status 200.
    pub fn is_ready() -> bool {
        Self::readiness().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// The answer of `/readyz`, with its headers.
    pub fn readiness() -> Result<String> {
        get(HEALTH, "/readyz")
    }

    /// The sum of a metric's series that have these labels (`name="value"`).
    pub fn sum(name: &str, labels: &[&str]) -> Result<u64> {
        Ok(Self::values(name, labels)?.into_iter().sum())
    }

    /// The series that are not 0 of the metrics whose names begin so, a line each.
    pub fn lines(name: &str) -> Result<String> {
        let page = get(METRICS, "/metrics")?;
        let is_shown =
            |line: &&str| line.starts_with(name) && !line.starts_with('#') && !line.ends_with(" 0");
        let lines = page.lines().filter(is_shown);
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// The number of a metric's series that have these labels.
    pub fn series(name: &str, labels: &[&str]) -> Result<usize> {
        Ok(Self::values(name, labels)?.len())
    }

    fn values(name: &str, labels: &[&str]) -> Result<Vec<u64>> {
        let page = get(METRICS, "/metrics")?;
        let is_of = |line: &&str| {
            let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']));
            rest.is_some_and(|rest| labels.iter().all(|label| rest.contains(label)))
        };
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
        Ok(page.lines().filter(is_of).filter_map(value).collect())
    }

    /// Waits until the sum is at least this, and returns it.
    pub fn wait_for(name: &str, labels: &[&str], least: u64) -> Result<u64> {
        Self::wait_until(name, labels, &format!("at least {least}"), |sum| sum >= least)
    }

    /// Waits until the sum is `expected`, as `is_expected` decides, and returns it.
    pub fn wait_until(
        name: &str,
        labels: &[&str],
        expected: &str,
        is_expected: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        let mut sum = 0;
        let reached = wait::until_every(SCRAPE, name, COUNTED, || {
            sum = Self::sum(name, labels).ok()?;
            is_expected(sum).then_some(sum)
        });
        reached.with_context(|| {
            let shown = Self::lines("").unwrap_or_default();
            format!("{name} with {labels:?} is {sum}, expected {expected}; all metrics:\n{shown}")
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The kernel's memory for all of its maps, bytes (`memlock` in the descriptors' information).
    pub fn map_bytes(&self) -> Result<u64> {
        let folder = format!("/proc/{}/fdinfo", self.process.pid());
        let entries = fs::read_dir(&folder).with_context(|| format!("reading {folder}"))?;
        let of = |text: &str| {
            let field = |name: &str| {
                text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
            };
            Some((field("map_id:")?, field("memlock:")?))
        };
        // A map may have several descriptors.
        let maps: BTreeMap<u64, u64> =
            entries.filter_map(|entry| of(&fs::read_to_string(entry.ok()?.path()).ok()?)).collect();
        Ok(maps.values().sum())
    }

    /// The value of a metric without labels.
    pub fn number(name: &str) -> Result<f64> {
        let page = get(METRICS, "/metrics")?;
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        page.lines().find_map(of).with_context(|| format!("the metrics have no number {name}"))
    }

    /// The records that it has printed so far, with `output: json`.
    pub fn printed(&self) -> Result<Vec<Record>> {
        Ok(self.process.printed()?.iter().filter_map(|line| Record::parse(line)).collect())
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn stop(self) -> Result<Ended> {
        self.process.terminate()?;
        self.process.end(READY)
    }

    /// Kills it without warning.
    pub fn kill(self) -> Result<Ended> {
        self.process.kill(ANSWER)
    }

    /// The stored segments, the oldest first.
    pub fn stored(segments: &Path) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(segments).with_context(|| format!("reading {}", segments.display()))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "viptrace"))
            .collect();
        files.sort();
        Ok(files)
    }
}

/// The answer to a GET.
fn get(place: ([u8; 4], u16), path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(place), ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
