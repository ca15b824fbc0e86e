//! The request to stop a trace, and the wait for the next moment at which work is due.

use std::{io, time::Instant};

use tokio::sync::mpsc;

use crate::{error::Hint, platform::StopSignals};

/// A signal or an order.
#[derive(Debug)]
pub(crate) struct Stop {
    signals: StopSignals,
    /// Each message is a request; without a sender, every wait ends at once.
    orders: Option<mpsc::Receiver<()>>,
}

/// A stop request came while the first lists arrived.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped before the metadata was complete: nothing was observed")]
pub(crate) struct StoppedEarly;

impl Hint for StoppedEarly {
    fn hint(&self) -> Option<String> {
        Some("`kubectl get services -A` shows whether the API server answers".to_owned())
    }
}

impl Stop {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { signals: StopSignals::listen()?, orders: None })
    }

    /// Also by a message, and for good once its sender is gone.
    pub(crate) fn also_by(&mut self, orders: mpsc::Receiver<()>) {
        self.orders = Some(orders);
    }

    pub(crate) async fn wanted(&mut self) {
        tokio::select! {
            () = self.signals.recv() => {}
            _ = ordered(self.orders.as_mut()) => {}
        }
    }
}

async fn ordered(orders: Option<&mut mpsc::Receiver<()>>) -> Option<()> {
    match orders {
        Some(orders) => orders.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits forever without a deadline.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
