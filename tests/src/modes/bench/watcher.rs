//! A tool under measurement: starts it, waits until it is ready, reads its CPU time and memory from /proc, and stops it
//! as Ctrl-C does.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{process::Status, sys, wait};

const READY_LIMIT: Duration = Duration::from_mins(2);
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// A tool that does not report readiness is ready after this time with hardly any CPU use; some tools poll.
const SETTLED: Duration = Duration::from_millis(500);
const SETTLED_CPU_NS: u64 = 4_000_000;
/// How long an idle tool is measured.
const IDLE: Duration = Duration::from_secs(1);
const STDERR: &str = "/tmp/bench.stderr";

/// How a tool reports that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// It writes this file.
    File(&'static str),
    /// Its standard error contains this text.
    Printed(&'static str),
    /// It reports nothing; it is ready when it is idle.
    Settled,
}

pub(super) struct Watcher {
    child: Child,
    name: String,
    pub(super) ready_at: Instant,
}

impl Watcher {
    pub(super) fn start(program: &str, arguments: &[String], ready: &Ready) -> Result<Self> {
        if let Ready::File(path) = ready
            && Path::new(path).exists()
        {
            fs::remove_file(path).with_context(|| format!("removing {path}"))?;
        }
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create("/tmp/bench.stdout").context("making /tmp/bench.stdout")?)
            .stderr(File::create(STDERR).context("making /tmp/bench.stderr")?)
            .spawn()
            .with_context(|| format!("starting {program}; is it in the bench image?"))?;
        let mut watcher = Self { child, name: program.to_owned(), ready_at: Instant::now() };
        watcher.wait_until_ready(ready)?;
        Ok(watcher)
    }

    fn wait_until_ready(&mut self, ready: &Ready) -> Result<()> {
        let mut used = 0;
        let at = wait::until(&format!("{} to be ready", self.name), READY_LIMIT, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                let output = fs::read_to_string(STDERR).unwrap_or_default();
                return Some(Err(format!("it exited at once ({status}): {}", output.trim())));
            }
            let is_ready = match ready {
                Ready::File(path) => Path::new(path).exists(),
                Ready::Printed(words) => {
                    fs::read_to_string(STDERR).is_ok_and(|output| output.contains(words))
                }
                Ready::Settled => {
                    let now = self.cpu_ns().unwrap_or_default();
                    if now.saturating_sub(used) > SETTLED_CPU_NS {
                        used = now;
                        self.ready_at = Instant::now();
                    }
                    return (self.ready_at.elapsed() > SETTLED).then_some(Ok(self.ready_at));
                }
            };
            is_ready.then(|| Ok(Instant::now()))
        })?;
        match at {
            Ok(at) => {
                self.ready_at = at;
                Ok(())
            }
            Err(why) => bail!("{}: {why}", self.name),
        }
    }

    /// The CPU time of all its threads so far.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        let folder = format!("/proc/{}/task", self.child.id());
        let mut total = 0;
        for task in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))?.flatten() {
            // A thread that ended meanwhile is not an error.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            total += text
                .split_ascii_whitespace()
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .unwrap_or_default();
        }
        Ok(total)
    }

    /// The CPU time used since `before`, including the next second without traffic: deferred work counts too.
    pub(super) fn cpu_with_idle_ns(&self, before: u64) -> Result<u128> {
        wait::until_older_than(Instant::now(), IDLE);
        Ok(u128::from(self.cpu_ns()?.saturating_sub(before)))
    }

    pub(super) fn rss_bytes(&self) -> Result<u64> {
        Ok(Status::read(self.child.id())?.kib("VmRSS")? * 1024)
    }

    pub(super) fn stop(mut self) -> Result<()> {
        sys::interrupt(self.child.id()).with_context(|| format!("interrupting {}", self.name))?;
        wait::until(&format!("{} to end", self.name), STOP_LIMIT, || self.child.try_wait().transpose())?
            .with_context(|| format!("waiting for {}", self.name))
            .map(drop)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && !thread::panicking() {
            let _ended = self.child.kill();
            let _ended = self.child.wait();
        }
    }
}
