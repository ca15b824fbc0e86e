//! The programs' debug lines: the reader of aya-log's buffer.

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinSet,
};
use tracer_ebpf::{Hook, map};
use tracing::debug;

use super::attach::{AttachError, MESSAGES};

/// A task on the current runtime that reads lines as they arrive; dropping it ends the task.
#[derive(Debug)]
pub(super) struct Messages {
    _task: JoinSet<()>,
}

impl Messages {
    pub(super) fn read(ebpf: &mut Ebpf) -> Result<Self, AttachError> {
        let logger = EbpfLogger::init_with_logger(ebpf, DebugLines)
            .map_err(|_| AttachError::Map { name: map::MESSAGES })?;
        #[expect(unsafe_code, reason = "tokio requires a promise about the file descriptor")]
        // SAFETY: the logger owns its ring buffer's descriptor, returns the same one as long as it lives, and the
        // AsyncFd owns the logger.
        let mut logger = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }
            .map_err(|error| AttachError::Ring(error.into()))?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok(mut ready) = logger.readable_mut().await {
                ready.get_inner_mut().flush();
                ready.clear_ready();
            }
        });
        Ok(Self { _task: task })
    }
}

/// Forwards a program's lines, with the name of its hook in place of the leading number.
#[derive(Debug)]
struct DebugLines;

impl Log for DebugLines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = record.args().to_string();
        let (hook, text) = named(&line);
        debug!(target: MESSAGES, hook, "{text}");
    }

    fn flush(&self) {}
}

/// The hook's symbol and the rest of a line that begins with the hook's number.
fn named(line: &str) -> (&'static str, &str) {
    let split = line.split_once(' ');
    let hook = split.and_then(|(number, _)| Hook::from_number(number.parse().ok()?));
    match (hook, split) {
        (Some(hook), Some((_, text))) => (hook.symbol(), text),
        _ => ("unknown", line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_named_after_its_hook() {
        assert_eq!(named("5 no room"), ("early_drop", "no room"));
        for odd in ["", "5", "22 no such hook", "300 too large", "a line"] {
            assert_eq!(named(odd), ("unknown", odd));
        }
    }
}
