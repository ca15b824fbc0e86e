//! Runs viptrace to its end and keeps its output, for commands that end by themselves: a check, a refusal, an exit
//! status. It judges nothing. Module `tool` runs traces.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

use crate::{
    sys,
    tool::{Ended, PROGRAM},
    wait,
};

/// More than exist. The first number that the kernel does not know ends the loop.
const CAPABILITIES: u32 = 64;

/// Calls `start` in a thread whose children have no capabilities but those of these numbers, as in a Pod.
pub fn with_only<T: Send>(kept: &[u32], start: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        // A thread withholds a capability only from itself and its children.
        let starting = scope.spawn(|| {
            for capability in (0..CAPABILITIES).filter(|capability| !kept.contains(capability)) {
                match sys::withhold_capability(capability) {
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                    withheld => withheld.with_context(|| format!("withholding capability {capability}"))?,
                }
            }
            start()
        });
        starting.join().map_err(|_| anyhow!("the thread that starts viptrace panicked"))?
    })
}

/// A running viptrace. Its output goes to files.
#[derive(Debug)]
pub struct Invocation {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Invocation {
    /// Starts viptrace with these arguments.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = |stream: &str| PathBuf::from(format!("/tmp/viptrace-{number}.{stream}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let create =
            |path: &PathBuf| File::create(path).with_context(|| format!("creating {}", path.display()));
        let child = Command::new(PROGRAM)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?)
            .spawn()
            .with_context(|| format!("starting {PROGRAM}; is it in the guest image?"))?;
        Ok(Self { child, stdout, stderr })
    }

    /// Starts viptrace as root without the capabilities of these numbers; without any capability if `withheld` is
    /// empty.
    pub fn start_without(withheld: &[u32], arguments: &[&str]) -> Result<Self> {
        let is_kept = |capability: &u32| !withheld.is_empty() && !withheld.contains(capability);
        let kept: Vec<u32> = (0..CAPABILITIES).filter(is_kept).collect();
        with_only(&kept, || Self::start(arguments))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether viptrace has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM, as a kubelet does.
    pub fn terminate(&self) -> Result<()> {
        sys::terminate(self.child.id()).context("terminating viptrace")
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) -> Result<()> {
        sys::interrupt(self.child.id()).context("interrupting viptrace")
    }

    /// Kills viptrace without warning (SIGKILL).
    pub fn kill(mut self, limit: Duration) -> Result<Ended> {
        self.child.kill().context("killing viptrace")?;
        self.end(limit)
    }

    /// The lines of its standard output so far.
    pub fn printed(&self) -> Result<Vec<String>> {
        Ok(read(&self.stdout)?.lines().map(str::to_owned).collect())
    }

    /// Waits until viptrace ends.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        let status = wait::until("viptrace to end", limit, || self.child.try_wait().transpose())?
            .context("waiting for it")?;
        Ok(Ended {
            status: sys::exit_code(std::os::unix::process::ExitStatusExt::into_raw(status)),
            stdout: self.printed()?,
            stderr: read(&self.stderr)?,
        })
    }
}

fn read(path: &PathBuf) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading viptrace's output {}", path.display()))
}

impl Drop for Invocation {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ended = self.child.kill();
            let _ended = self.child.wait();
        }
    }
}
