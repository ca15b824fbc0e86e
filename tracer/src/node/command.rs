//! Runs one of the node's own read-only commands with a limit on time and on bytes of output.
//!
//! Never through a shell, never with input, and only commands that list: the callers name them as constants.

use std::{
    io::{self, Read},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use thiserror::Error;

use crate::node::Limits;

/// Why a command has no usable output.
#[derive(Debug, Error)]
pub enum CommandError {
    #[error("`{command}` is not installed here")]
    Missing { command: String },
    #[error("`{command}` could not be run: {source}")]
    Start { command: String, source: io::Error },
    #[error("`{command}` did not end within {limit:?} and was stopped")]
    Slow { command: String, limit: std::time::Duration },
    #[error("`{command}` wrote more than {limit} bytes and was stopped")]
    Long { command: String, limit: usize },
    #[error("`{command}` failed: {reason}")]
    Failed { command: String, reason: String },
}

/// Runs `program` and returns its standard output. Blocks for at most `limits.time`.
pub fn run(program: &str, args: &[&str], limits: Limits) -> Result<Vec<u8>, CommandError> {
    let command = std::iter::once(program).chain(args.iter().copied()).collect::<Vec<_>>().join(" ");
    let deadline = Instant::now() + limits.time;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CommandError::Missing { command: command.clone() },
            _ => CommandError::Start { command: command.clone(), source },
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
                Ok(Collected::TooLong) => CommandError::Long { command, limit: limits.bytes },
                Ok(Collected::Broken(source)) => CommandError::Start { command, source },
                _ => CommandError::Slow { command, limit: limits.time },
            });
        }
    };
    // The pipes are closed by now in every honest case; a child that closes them and stays is stopped as well.
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
        _ => child.wait().map_err(|source| CommandError::Start { command: command.clone(), source })?,
    };
    if status.success() {
        Ok(stdout)
    } else {
        let said = String::from_utf8_lossy(&stderr);
        let reason = match said.lines().find(|line| !line.trim().is_empty()) {
            Some(line) => format!("{status}: {}", line.trim()),
            None => status.to_string(),
        };
        Err(CommandError::Failed { command, reason })
    }
}

enum Collected {
    Whole(Vec<u8>),
    TooLong,
    Broken(io::Error),
}

/// Reads a pipe to its end on a thread of its own. The thread ends when the pipe closes, at the latest when the
/// child is killed.
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

    const LIMITS: Limits = Limits { time: Duration::from_secs(10), bytes: 1024 };

    #[test]
    fn output_is_returned() {
        assert_eq!(run("echo", &["a", "b"], LIMITS).unwrap(), b"a b\n");
    }

    #[test]
    fn every_failure_has_its_name() {
        assert!(matches!(run("viptrace-no-such-command", &[], LIMITS), Err(CommandError::Missing { .. })));
        assert!(matches!(run("cat", &["/dev/zero"], LIMITS), Err(CommandError::Long { .. })));
        let short = Limits { time: Duration::from_millis(20), ..LIMITS };
        assert!(matches!(run("sleep", &["60"], short), Err(CommandError::Slow { .. })));
        let failed = run("cat", &["/nonexistent/file"], LIMITS).unwrap_err().to_string();
        assert!(
            failed.contains("`cat /nonexistent/file` failed") && failed.contains("exit status: 1"),
            "{failed}"
        );
    }
}
