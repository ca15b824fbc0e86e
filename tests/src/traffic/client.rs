//! Scripted TCP clients, including one that probes as kubelet does.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Attempt, Outcome, Transport, bound_socket, server};
use crate::{sys, topology::Place, wait};

/// The sizes of the usual exchange in bytes.
pub const REQUEST: usize = 16;
pub const RESPONSE: usize = 64;

/// How a client ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closes first (FIN).
    Close,
    /// Waits for the server's close, then closes.
    CloseLast,
    /// Closes with a reset (linger 0).
    Reset,
    /// Waits until the server has sent data, then closes without reading it, which makes the kernel send a reset.
    CloseUnread,
}

/// The script of one connection: connect, send, receive, end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    pub connect_limit: Duration,
    pub request: usize,
    pub response: usize,
    pub response_limit: Duration,
    pub ending: Ending,
}

impl Script {
    /// Sends a request, receives a response and closes.
    pub const fn exchange() -> Self {
        Self {
            connect_limit: Duration::from_secs(20),
            request: REQUEST,
            response: RESPONSE,
            response_limit: Duration::from_secs(20),
            ending: Ending::Close,
        }
    }

    /// Connects and closes without sending data, as a `tcpSocket` probe does.
    pub const fn touch() -> Self {
        Self { request: 0, response: 0, ..Self::exchange() }
    }

    #[must_use]
    pub const fn ending(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }

    #[must_use]
    pub const fn connect_limit(self, connect_limit: Duration) -> Self {
        Self { connect_limit, ..self }
    }

    #[must_use]
    pub const fn response_limit(self, response_limit: Duration) -> Self {
        Self { response_limit, ..self }
    }
}

/// A connection that a test holds open.
#[derive(Debug)]
pub struct Held {
    pub client: SocketAddr,
    pub target: SocketAddr,
    socket: Socket,
}

impl Held {
    /// Makes one more exchange.
    pub fn exchange(&mut self, script: &Script) -> Outcome {
        converse(&mut self.socket, script).map_or_else(|error| Outcome::of(&error), |()| Outcome::Done)
    }

    /// The next sequence numbers that the client sends and expects.
    pub fn sequences(&self) -> Result<(u32, u32)> {
        sys::tcp_sequences(&self.socket).context("reading a connection's sequence numbers")
    }

    fn attempt(&self, outcome: Outcome) -> Attempt {
        Attempt { protocol: Transport::Tcp, client: self.client, target: self.target, outcome }
    }

    /// Ends the connection and returns its attempt. `outcome` is the client's last observation.
    pub fn end(self, ending: Ending, outcome: Outcome) -> Attempt {
        let attempt = self.attempt(outcome);
        let _as_scripted = finish(self.socket, ending);
        attempt
    }

    /// Closes the connection, which must not outlive the returned value.
    pub fn close(self, outcome: Outcome) -> Result<(Attempt, Closing)> {
        let attempt = self.attempt(outcome);
        match self.socket.shutdown(Shutdown::Both) {
            // The connection was reset.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            closed => closed.with_context(|| format!("closing the connection of {}", self.client))?,
        }
        Ok((attempt, Closing(self.socket)))
    }
}

/// A connection that its client closed. If no peer acknowledges the close, the kernel retransmits it for minutes and
/// the next trace would see it. Dropping this value ends the connection.
#[derive(Debug)]
pub struct Closing(Socket);

impl Drop for Closing {
    fn drop(&mut self) {
        // If this fails, the kernel retransmits for a while.
        let _aborted = server::reset(&self.0);
    }
}

/// Makes `count` connections from `place`, up to `parallel` at a time.
pub fn connect(
    place: &Place,
    target: SocketAddr,
    count: usize,
    parallel: usize,
    script: Script,
) -> Result<Vec<Attempt>> {
    connect_as("client", place, target, count, parallel, script)
}

/// Probes a Pod as kubelet does: from the node itself, by a task with kubelet's name.
pub fn probe(place: &Place, target: SocketAddr, count: usize, script: Script) -> Result<Vec<Attempt>> {
    connect_as("kubelet", place, target, count, 1, script)
}

fn connect_as(
    task: &str,
    place: &Place,
    target: SocketAddr,
    count: usize,
    parallel: usize,
    script: Script,
) -> Result<Vec<Attempt>> {
    let parallel = parallel.clamp(1, count.max(1));
    let mut threads = Vec::new();
    for thread in 0..parallel {
        let share = count / parallel + usize::from(thread < count % parallel);
        let place = place.clone();
        let netns = place.netns.clone();
        let work = move || (0..share).map(|_| attempt(&place, target, &script)).collect::<Result<Vec<_>>>();
        threads.push(netns.spawn(task, work).context("starting a client's thread")?);
    }
    let mut attempts = Vec::with_capacity(count);
    for thread in threads {
        let made = thread.join().map_err(|_| anyhow!("a client's thread panicked"))?;
        attempts.extend(made.with_context(|| format!("entering {}", place.netns.name()))??);
    }
    Ok(attempts)
}

/// Opens one connection that stays open after its first exchange.
pub fn hold(place: &Place, target: SocketAddr, script: Script) -> Result<Held> {
    let there = place.clone();
    place
        .netns
        .run(move || {
            let (mut socket, client) = bound_socket(&there, Transport::Tcp)?;
            connect_within(&socket, target, script.connect_limit)
                .and_then(|()| converse(&mut socket, &script))
                .with_context(|| format!("holding a connection from {client} to {target}"))?;
            Ok(Held { client, target, socket })
        })
        .and_then(|held| held)
}

/// Connects once more from the address and port of a finished attempt.
pub fn reconnect(place: &Place, before: &Attempt, script: Script) -> Result<Attempt> {
    let (local, target) = (before.client, before.target);
    place
        .netns
        .run(move || {
            let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))
                .context("creating a socket")?;
            socket.set_reuse_address(true).context("allowing the reuse of a port")?;
            socket.bind(&local.into()).with_context(|| format!("binding to {local}"))?;
            Ok(attempt_on(socket, local, target, &script))
        })
        .and_then(|attempt| attempt)
}

/// Starts `count` connections without waiting: each has sent its SYN when this returns, and is aborted when its value
/// is dropped.
pub fn half_open(place: &Place, target: SocketAddr, count: usize) -> Result<Vec<Held>> {
    let there = place.clone();
    let begin = move || {
        let (socket, client) = bound_socket(&there, Transport::Tcp)?;
        socket.set_nonblocking(true).context("making a socket non-blocking")?;
        match socket.connect(&target.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                Err(error).with_context(|| format!("connecting from {client} to {target}"))
            }
            _ => Ok(Held { client, target, socket }),
        }
    };
    place.netns.run(move || (0..count).map(|_| begin()).collect()).and_then(|held| held)
}

/// Connects as event-driven programs do: without blocking, then waiting for the outcome. (A blocking connect holds the
/// socket while a refusal from this node arrives, and processes it a second later.)
fn connect_within(socket: &Socket, target: SocketAddr, limit: Duration) -> io::Result<()> {
    let connected = socket.connect_timeout(&target.into(), limit);
    match connected {
        // Hung up without an error so far: the state of the socket changes before its error is set.
        Err(error) if error.raw_os_error().is_none() && error.kind() != io::ErrorKind::TimedOut => {
            let late = wait::until("the error of a failed connect", Duration::from_secs(2), || {
                socket.take_error().ok().flatten()
            });
            Err(late.unwrap_or(error))
        }
        other => other,
    }
}

fn attempt(place: &Place, target: SocketAddr, script: &Script) -> Result<Attempt> {
    let (socket, client) = bound_socket(place, Transport::Tcp)?;
    Ok(attempt_on(socket, client, target, script))
}

fn attempt_on(mut socket: Socket, client: SocketAddr, target: SocketAddr, script: &Script) -> Attempt {
    let outcome = match connect_within(&socket, target, script.connect_limit) {
        Err(error) => Outcome::of_connect(&error),
        Ok(()) => match converse(&mut socket, script).and_then(|()| finish(socket, script.ending)) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::of(&error),
        },
    };
    Attempt { protocol: Transport::Tcp, client, target, outcome }
}

fn converse(socket: &mut Socket, script: &Script) -> io::Result<()> {
    socket.set_read_timeout(Some(script.response_limit))?;
    if script.request > 0 {
        socket.write_all(&vec![b'q'; script.request])?;
    }
    if script.response > 0 {
        server::read_exactly(socket, script.response)?;
    }
    Ok(())
}

fn finish(mut socket: Socket, ending: Ending) -> io::Result<()> {
    match ending {
        Ending::Close => Ok(()),
        Ending::CloseLast => {
            let mut rest = [0; 64];
            while socket.read(&mut rest)? > 0 {}
            Ok(())
        }
        Ending::Reset => server::reset(&socket),
        Ending::CloseUnread => {
            let mut first = [std::mem::MaybeUninit::uninit()];
            socket.peek(&mut first).map(drop)
        }
    }
}

/// Sends `bytes` over one connection and waits until the server confirms that all arrived
/// ([`server::Script::Swallow`]).
pub fn bulk(place: &Place, target: SocketAddr, bytes: usize) -> Result<Attempt> {
    let there = place.clone();
    place
        .netns
        .run(move || {
            let (mut socket, client) = bound_socket(&there, Transport::Tcp)?;
            let script = Script::exchange();
            let sent =
                connect_within(&socket, target, script.connect_limit).and_then(|()| push(&mut socket, bytes));
            let outcome = sent.map_or_else(|error| Outcome::of(&error), |()| Outcome::Done);
            Ok(Attempt { protocol: Transport::Tcp, client, target, outcome })
        })
        .and_then(|attempt| attempt)
}

fn push(socket: &mut Socket, bytes: usize) -> io::Result<()> {
    let block = vec![b'x'; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        left -= socket.write(&block[..left.min(block.len())])?;
    }
    socket.shutdown(Shutdown::Write)?;
    server::read_exactly(socket, 1)
}
