//! A tool that watches the node: starts it, waits until it is ready, reads its CPU time and memory from /proc, and stops it
//! as Ctrl-C does.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
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
const STDOUT: &str = "/tmp/watcher.stdout";
const STDERR: &str = "/tmp/watcher.stderr";

/// How a tool reports that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It writes this file.
    File(&'static str),
    /// Its standard error contains this text.
    Printed(&'static str),
    /// It reports nothing; it is ready when it is idle.
    Settled,
}

/// A running tool.
#[derive(Debug)]
pub struct Watcher {
    child: Child,
    name: String,
    pub ready_at: Instant,
}

impl Watcher {
    /// Starts the tool and waits until it is ready. Only one at a time: the next one overwrites its output.
    pub fn start(program: &str, arguments: &[impl AsRef<OsStr>], ready: &Ready) -> Result<Self> {
        if let Ready::File(path) = ready
            && Path::new(path).exists()
        {
            fs::remove_file(path).with_context(|| format!("removing {path}"))?;
        }
        let create = |path| File::create(path).with_context(|| format!("making {path}"));
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(create(STDOUT)?)
            .stderr(create(STDERR)?)
            .spawn()
            .with_context(|| format!("starting {program}; is it in the guest image?"))?;
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
    pub fn cpu_ns(&self) -> Result<u64> {
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
    pub fn cpu_with_idle_ns(&self, before: u64) -> Result<u128> {
        wait::until_older_than(Instant::now(), IDLE);
        Ok(u128::from(self.cpu_ns()?.saturating_sub(before)))
    }

    pub fn rss_bytes(&self) -> Result<u64> {
        Ok(Status::read(self.child.id())?.kib("VmRSS")? * 1024)
    }

    /// Interrupts the tool and waits for its end.
    pub fn stop(mut self) -> Result<ExitStatus> {
        sys::interrupt(self.child.id()).with_context(|| format!("interrupting {}", self.name))?;
        wait::until(&format!("{} to end", self.name), STOP_LIMIT, || self.child.try_wait().transpose())?
            .with_context(|| format!("waiting for {}", self.name))
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
