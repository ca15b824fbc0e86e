//! Bytes that keep a silent connection open.
//!
//! A load balancer before the API server cuts a connection that carries nothing: `HAProxy` after the 35 s of kubeadm's example or
//! its own 50 s, AWS after 60 s. The client's WebSocket pings once a minute, which is too late. A Pod ends with the connection to
//! its standard input, and a trace with the Pod.

use std::time::Duration;

use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    task::JoinHandle,
    time::sleep,
};

/// The time between two of these bytes.
pub(super) const PERIOD: Duration = Duration::from_secs(10);
/// An empty line, which every reader in `viptrace node` ignores.
pub(super) const NOTHING: &[u8] = b"\n";

/// A task that writes to a command's standard input until this value is dropped.
#[derive(Debug)]
pub(super) struct Alive(JoinHandle<()>);

impl Alive {
    pub(super) fn keep(input: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(tokio::spawn(write(input)))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Writes until the connection ends.
async fn write(mut input: impl AsyncWrite + Unpin) {
    while input.write_all(NOTHING).await.is_ok() && input.flush().await.is_ok() {
        sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, time::Instant};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_carries_a_byte_at_once_and_every_few_seconds() {
        let (input, mut read) = tokio::io::duplex(64);
        let kept = Alive::keep(input);
        let began = Instant::now();
        let mut byte = [0];
        for _ in 0..4 {
            read.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte, NOTHING);
        }
        assert_eq!(began.elapsed(), PERIOD * 3);
        drop(kept);
        assert_eq!(read.read(&mut byte).await.unwrap(), 0, "the input ends with the value");
    }
}
