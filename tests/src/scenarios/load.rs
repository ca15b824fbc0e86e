//! A load beside a scenario's own traffic: connections for as long as the scenario wants. It counts them, and judges nothing.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{topology::Place, traffic::client};

/// The limit of one connection of the load.
const PATIENCE: Duration = Duration::from_secs(20);

/// After so many failed connections, a load ends: something is broken that is not its own.
const MOST_FAILED: usize = 20;

/// One connection after the other, from ports that the kernel chooses.
#[derive(Debug)]
pub(super) struct Load {
    running: Running,
    thread: JoinHandle<io::Result<Connections>>,
}

/// What a load did.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// All of them, the failed ones too.
    pub(super) made: usize,
    /// The reason of each that failed, with its time since the load's start.
    pub(super) failed: Vec<String>,
}

/// Whether the thread is to end. It is when this is dropped: a story that fails must not burden the ones after it.
#[derive(Debug)]
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Load {
    /// Starts a thread that calls `connect` until it is stopped, or until the value is dropped.
    pub(super) fn start(
        from: &Place,
        to: SocketAddr,
        connect: fn(SocketAddr) -> io::Result<()>,
    ) -> Result<Self> {
        let running = Running(Arc::default());
        let is_over = Arc::clone(&running.0);
        let work = move || {
            let (mut connections, began) = (Connections::default(), Instant::now());
            while !is_over.load(Ordering::Relaxed) && connections.failed.len() < MOST_FAILED {
                connections.made += 1;
                if let Err(error) = connect(to) {
                    connections.failed.push(format!("{error} ({} s)", began.elapsed().as_secs()));
                }
            }
            connections
        };
        Ok(Self { running, thread: from.netns.spawn("load", work).context("starting a load")? })
    }

    /// The number of connections, none of which failed.
    pub(super) fn stop(self) -> Result<usize> {
        let Connections { made, failed } = self.end()?;
        ensure!(failed.is_empty(), "connections of the load failed, of {made}: {}", failed.join(", "));
        Ok(made)
    }

    /// The connections, of which some may have failed.
    pub(super) fn end(self) -> Result<Connections> {
        let Self { running, thread } = self;
        drop(running);
        let ended = thread.join().map_err(|_| anyhow!("a load panicked"))?;
        ended.context("entering the load's namespace")
    }
}

/// Sends a request and receives the response.
pub(super) fn exchange(to: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[b'q'; client::REQUEST])?;
    stream.read_exact(&mut [0; client::RESPONSE])
}

/// Sends a datagram and receives an answer.
pub(super) fn query(to: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    socket.send(b"query")?;
    socket.recv(&mut [0; 64]).map(drop)
}

/// Connects to a closed port.
pub(super) fn refused(to: SocketAddr) -> io::Result<()> {
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("the closed port accepted a connection")),
    }
}
