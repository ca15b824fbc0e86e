//! Runs a read-only command of the node with a limit on time and output.
//!
//! Uses no shell, gives no input, and runs only commands that list; the callers name them as constants.

use std::{
    ffi::OsString,
    io::{self, Read},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use crate::{
    error::sentence,
    node::{Limits, gap::Reason},
    text,
};

/// The folders of commands, and the limits of one command.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    /// Folders as in `PATH`; `None` uses the environment's.
    pub path: Option<OsString>,
    pub limits: Limits,
}

impl Commands {
    /// Runs `program` and returns its standard output with invalid UTF-8 replaced. Blocks for at most the limit.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> Result<String, Reason> {
        let command = std::iter::once(program).chain(args.iter().copied()).collect::<Vec<_>>().join(" ");
        let place = || format!("`{command}`");
        let limits = self.limits;
        let deadline = Instant::now() + limits.time;
        let mut prepared = Command::new(program);
        prepared.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(path) = &self.path {
            prepared.env("PATH", path);
        }
        let broken = |error: &io::Error| Reason::Unreadable { place: place(), error: sentence(error) };
        let mut child = prepared.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Reason::CommandMissing { command: command.clone() },
            io::ErrorKind::PermissionDenied => Reason::NotPermitted { place: place() },
            _ => broken(&error),
        })?;
        let out = collect(child.stdout.take(), limits.bytes);
        let err = collect(child.stderr.take(), 4096);

        let until = || deadline.saturating_duration_since(Instant::now());
        let stdout = match out.recv_timeout(until()) {
            Ok(Collected::Whole(bytes)) => bytes,
            outcome => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match outcome {
                    Ok(Collected::TooLong) => Reason::TooLarge { place: place(), limit_bytes: limits.bytes },
                    Ok(Collected::Broken(error)) => broken(&error),
                    _ => Reason::TimedOut { place: place(), limit: limits.time },
                });
            }
        };
        // The pipes are normally closed by now; a child that closes them and keeps running is stopped as well.
        let stderr = match err.recv_timeout(until()) {
            Ok(Collected::Whole(bytes)) => bytes,
            Ok(_) => Vec::new(),
            Err(_) => {
                let _ = child.kill();
                Vec::new()
            }
        };
        let status = match child.try_wait() {
            Ok(Some(status)) => status,
            _ => child.wait().map_err(|error| broken(&error))?,
        };
        if status.success() {
            return Ok(text::of_bytes(stdout));
        }
        let stderr = String::from_utf8_lossy(&stderr);
        let error = match stderr.lines().find(|line| !line.trim().is_empty()) {
            Some(line) => format!("{status}: {}", line.trim()),
            None => status.to_string(),
        };
        Err(Reason::CommandFailed { command, error })
    }
}

enum Collected {
    Whole(Vec<u8>),
    TooLong,
    Broken(io::Error),
}

/// Reads a pipe to its end on its own thread. The thread ends when the pipe closes, at the latest when the child is
/// killed.
fn collect<R: Read + Send + 'static>(pipe: Option<R>, max_bytes: usize) -> mpsc::Receiver<Collected> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
        let outcome = match pipe.map(|pipe| pipe.take(limit).read_to_end(&mut bytes)) {
            Some(Err(error)) => Collected::Broken(error),
            Some(Ok(_)) if bytes.len() > max_bytes => Collected::TooLong,
            _ => Collected::Whole(bytes),
        };
        let _ = sender.send(outcome);
    });
    receiver
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn commands(time: Duration) -> Commands {
        Commands { path: None, limits: Limits { time, bytes: 1024 } }
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(commands(Duration::from_secs(10)).run("echo", &["a", "b"]).unwrap(), "a b\n");
    }

    #[test]
    fn every_failure_has_its_type() {
        let long_enough = commands(Duration::from_secs(10));
        let missing = long_enough.run("viptrace-no-such-command", &[]);
        assert!(matches!(missing, Err(Reason::CommandMissing { .. })), "{missing:?}");
        let long = long_enough.run("cat", &["/dev/zero"]);
        assert!(matches!(long, Err(Reason::TooLarge { limit_bytes: 1024, .. })), "{long:?}");
        let slow = commands(Duration::from_millis(20)).run("sleep", &["60"]);
        assert!(matches!(slow, Err(Reason::TimedOut { .. })), "{slow:?}");
        let failed = long_enough.run("cat", &["/nonexistent/file"]).unwrap_err();
        assert!(
            matches!(&failed, Reason::CommandFailed { command, error }
            if command == "cat /nonexistent/file" && error.contains("exit status: 1")),
            "{failed:?}"
        );
    }
}
