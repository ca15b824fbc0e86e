//! viptrace run to its end, for what it answers by itself: a check, a refusal, an exit status. It owns the process
//! and judges nothing; a trace that watches traffic is `tool`'s.

use std::{
    fs::{self, File},
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

/// More than there are; the first number that the kernel does not know ends the list.
const CAPABILITIES: u32 = 64;

/// A running viptrace whose output goes to files.
#[derive(Debug)]
pub struct Invocation {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Invocation {
    /// Starts it with these arguments.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = |stream: &str| PathBuf::from(format!("/tmp/viptrace-{number}.{stream}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let create =
            |path: &PathBuf| File::create(path).with_context(|| format!("making {}", path.display()));
        let child = Command::new(PROGRAM)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?)
            .spawn()
            .with_context(|| format!("starting {PROGRAM}; is it in the guest image?"))?;
        Ok(Self { child, stdout, stderr })
    }

    /// Starts it as root without some of root's capabilities, by their numbers; without all of them if `withheld` is empty.
    pub fn start_without(withheld: &[u32], arguments: &[&str]) -> Result<Self> {
        thread::scope(|scope| {
            // What a thread withholds it withholds from itself and its children only.
            let starting = scope.spawn(|| -> Result<Self> {
                if withheld.is_empty() {
                    for capability in 0..CAPABILITIES {
                        if sys::withhold_capability(capability).is_err() {
                            break;
                        }
                    }
                }
                for capability in withheld {
                    sys::withhold_capability(*capability)
                        .with_context(|| format!("withholding capability {capability}"))?;
                }
                Self::start(arguments)
            });
            starting.join().map_err(|_| anyhow!("the thread that starts viptrace panicked"))?
        })
    }

    /// Ctrl-C.
    pub fn interrupt(&self) -> Result<()> {
        sys::interrupt(self.child.id()).context("interrupting viptrace")
    }

    /// Waits for its end.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        let status = wait::until("viptrace to end", limit, || self.child.try_wait().transpose())?
            .context("waiting for it")?;
        let read = |path: &PathBuf| {
            fs::read_to_string(path)
                .with_context(|| format!("reading what viptrace said in {}", path.display()))
        };
        Ok(Ended {
            status: sys::exit_code(std::os::unix::process::ExitStatusExt::into_raw(status)),
            stdout: read(&self.stdout)?.lines().map(str::to_owned).collect(),
            stderr: read(&self.stderr)?,
        })
    }
}

impl Drop for Invocation {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ended = self.child.kill();
            let _ended = self.child.wait();
        }
    }
}
