//! A long-lived program of the cluster: its output goes to a file, it ends with this process, and an early end is an
//! error with the last lines of that file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::printer::indented;

/// How many of a program's last lines an error repeats.
const TAIL_LINES: usize = 10;

/// The words before a program that the kernel kills when the thread that started it ends in any way.
pub(crate) const BOUND: &[&str] = &["setpriv", "--pdeathsig", "KILL", "--"];

/// A running program. It is killed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, which begins with [`BOUND`], with its output in `log`.
    pub(crate) fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let create = || File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = create().with_context(|| format!("could not create {}", log.display()))?;
        let child =
            command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().with_context(|| {
                format!("could not start {name} with {}", command.get_program().display())
            })?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the program has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        let status =
            self.child.try_wait().with_context(|| format!("could not read the state of {}", self.name))?;
        if let Some(status) = status {
            bail!("{} ended with {status}; {}", self.name, last_words(&self.log));
        }
        Ok(())
    }
}

/// The last lines of a log and its path, to end a message.
pub(crate) fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    format!("the last lines of {}:{}", log.display(), indented(lines.into_iter().skip(first)))
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_end_is_an_error_with_the_last_lines() {
        let here = tempfile::tempdir().unwrap();
        let log = here.path().join("x.log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no memory >&2; exit 3"]);
        let mut process = Process::start("etcd", command, &log).unwrap();
        let error = loop {
            if let Err(error) = process.check() {
                break error.to_string();
            }
            std::thread::yield_now();
        };
        assert!(
            error.starts_with("etcd ended with exit status: 3") && error.ends_with("no memory"),
            "{error}"
        );
    }

    #[test]
    fn a_process_ends_with_its_value() {
        let here = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        let process = Process::start("sleep", command, &here.path().join("log")).unwrap();
        let folder = PathBuf::from(format!("/proc/{}", process.id()));
        assert!(folder.exists());
        drop(process);
        assert!(!folder.exists());
    }
}
