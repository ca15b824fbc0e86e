//! A tool under measurement: started, watched until it is ready, its CPU time and memory read from /proc, stopped
//! as by Ctrl-C.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{sys, wait};

const READY_LIMIT: Duration = Duration::from_mins(2);
const STOP_LIMIT: Duration = Duration::from_mins(1);
/// A tool that says nothing is ready when it used hardly any CPU for this long; some poll now and then.
const STILL: Duration = Duration::from_millis(500);
const HARDLY_ANY_NS: u64 = 4_000_000;
/// How long an idle tool is looked at.
const IDLE: Duration = Duration::from_secs(1);
const STDERR: &str = "/tmp/bench.stderr";

/// How a tool says that it watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// It writes this file.
    File(&'static str),
    /// Its standard error holds this.
    Said(&'static str),
    /// It does not say: when it has come to rest.
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
                let said = fs::read_to_string(STDERR).unwrap_or_default();
                return Some(Err(format!("it ended at once ({status}): {}", said.trim())));
            }
            let is_ready = match ready {
                Ready::File(path) => Path::new(path).exists(),
                Ready::Said(words) => fs::read_to_string(STDERR).is_ok_and(|said| said.contains(words)),
                Ready::Settled => {
                    let now = self.cpu_ns().unwrap_or_default();
                    if now.saturating_sub(used) > HARDLY_ANY_NS {
                        used = now;
                        self.ready_at = Instant::now();
                    }
                    return (self.ready_at.elapsed() > STILL).then_some(Ok(self.ready_at));
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

    /// CPU time of all its threads so far.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        let folder = format!("/proc/{}/task", self.child.id());
        let mut total = 0;
        for task in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))?.flatten() {
            // A thread that ended meanwhile is no error.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            total += text
                .split_ascii_whitespace()
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .unwrap_or_default();
        }
        Ok(total)
    }

    /// CPU time that it used since it had used `before`, with the second after now in which nothing happens: what a
    /// tool puts off counts too.
    pub(super) fn cpu_with_idle_ns(&self, before: u64) -> Result<u128> {
        wait::until_older_than(Instant::now(), IDLE);
        Ok(u128::from(self.cpu_ns()?.saturating_sub(before)))
    }

    pub(super) fn rss_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024).with_context(|| format!("{path} has no VmRSS"))
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
