//! The request to stop a trace, and the wait for the next moment at which work is due.

use std::{io, time::Instant};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

/// Ctrl-C, SIGTERM, or an order.
#[derive(Debug)]
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    /// Each message is a request; without a sender, every wait ends at once.
    orders: Option<mpsc::Receiver<()>>,
}

impl Stop {
    pub(crate) fn listen() -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, orders: None })
    }

    /// Also by a message, and for good once its sender is gone.
    pub(crate) fn also_by(&mut self, orders: mpsc::Receiver<()>) {
        self.orders = Some(orders);
    }

    pub(crate) async fn wanted(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
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
