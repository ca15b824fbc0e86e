//! Whether the agent lives and is ready, for the probes.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// The event loop turns at least every few seconds; without a turn for this long it hangs.
const HANGS: Duration = Duration::from_mins(1);

const STARTING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;

/// The state that the probes report.
#[derive(Debug)]
pub(crate) struct Health {
    began: Instant,
    state: AtomicU8,
    /// Milliseconds from `began` to the last turn.
    turned: AtomicU64,
    /// The kernel's module for which the start waits.
    awaited: Mutex<Option<&'static str>>,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            state: AtomicU8::new(STARTING),
            turned: AtomicU64::new(0),
            awaited: Mutex::new(None),
        }
    }

    /// The start waits for this module of the kernel, or goes on.
    pub(crate) fn waits_for(&self, module: Option<&'static str>) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = module;
    }

    pub(crate) fn ready(&self) {
        self.turned();
        self.state.store(READY, Ordering::Relaxed);
    }

    pub(crate) fn draining(&self) {
        self.state.store(DRAINING, Ordering::Relaxed);
    }

    /// The event loop turned.
    pub(crate) fn turned(&self) {
        self.turned.store(self.elapsed(), Ordering::Relaxed);
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The answer of `/healthz`: whether it is well, and the reason. Before the first lists of metadata nothing turns,
    /// and a list that makes no progress ends the agent.
    pub(crate) fn healthz(&self) -> (bool, String) {
        let turned = self.turned.load(Ordering::Relaxed);
        let ago = Duration::from_millis(self.elapsed().saturating_sub(turned));
        if self.state.load(Ordering::Relaxed) == READY && ago > HANGS {
            (false, format!("the event loop has not turned for {} s", ago.as_secs()))
        } else {
            (true, "ok".to_owned())
        }
    }

    /// The answer of `/readyz`.
    pub(crate) fn readyz(&self) -> (bool, String) {
        let awaited = *self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.state.load(Ordering::Relaxed), awaited) {
            (STARTING, Some(module)) => (false, waits_for(module)),
            (STARTING, None) => (
                false,
                "starting: the hooks are not attached yet, or the first lists of metadata are incomplete"
                    .to_owned(),
            ),
            (READY, _) => (true, "ok".to_owned()),
            _ => (false, "draining".to_owned()),
        }
    }
}

/// For an operator: the start waits for this module of the kernel.
pub(super) fn waits_for(module: &str) -> String {
    format!("waiting for the kernel's module {module}: the first rule that tracks connections loads it")
}
