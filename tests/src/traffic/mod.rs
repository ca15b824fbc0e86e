//! The traffic generator: scripted servers and clients that know exactly what happened to each attempt. It handles
//! sockets and outcomes, and knows nothing of Services, rules or verdicts.

pub mod client;
pub mod queue;
pub mod raw;
pub mod sctp;
pub mod server;
pub mod udp;

use std::{collections::HashMap, io, net::SocketAddr, sync::atomic::Ordering};

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::{FIRST_PORT, LAST_PORT, Place};

/// The client's view of an attempt. Errors carry the client's errno by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Connected, exchanged all bytes, ended as scripted.
    Done,
    /// ECONNREFUSED.
    Refused,
    /// No answer to the SYN within the script's limit.
    ConnectTimedOut,
    /// EHOSTUNREACH.
    HostUnreachable,
    /// ENETUNREACH.
    NetUnreachable,
    /// ECONNRESET on an established connection.
    Reset,
    /// Connected or sent, then received nothing within the script's limit.
    Silent,
    /// The server closed before it had sent everything.
    ClosedEarly,
    Other(String),
}

impl Outcome {
    fn of_connect(error: &io::Error) -> Self {
        match error.raw_os_error() {
            None if error.kind() == io::ErrorKind::TimedOut => Self::ConnectTimedOut,
            Some(libc::ETIMEDOUT) => Self::ConnectTimedOut,
            _ => Self::of(error),
        }
    }

    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(libc::EHOSTUNREACH) => Self::HostUnreachable,
            Some(libc::ENETUNREACH) => Self::NetUnreachable,
            Some(libc::ECONNRESET | libc::EPIPE) => Self::Reset,
            Some(libc::EAGAIN) => Self::Silent,
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::ClosedEarly,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// One attempt of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub protocol: Transport,
    pub client: SocketAddr,
    pub target: SocketAddr,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    /// As viptrace's records write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// The number of attempts by outcome.
pub fn count(attempts: &[Attempt]) -> HashMap<Outcome, usize> {
    let mut counts = HashMap::new();
    for attempt in attempts {
        *counts.entry(attempt.outcome.clone()).or_default() += 1;
    }
    counts
}

/// Fails with the counts of all outcomes unless every attempt ended as `expected`.
pub fn all_ended(attempts: &[Attempt], expected: &Outcome) -> Result<()> {
    if attempts.is_empty() {
        bail!("there is no attempt");
    }
    if let Some(other) = attempts.iter().find(|attempt| attempt.outcome != *expected) {
        bail!(
            "expected {expected:?} for all {} attempts and observed {:?}; the first difference: {other:?}",
            attempts.len(),
            count(attempts)
        );
    }
    Ok(())
}

/// A socket in the place's namespace, bound to its address and to a port that no other attempt of this run used.
fn bound_socket(place: &Place, transport: Transport) -> Result<(Socket, SocketAddr)> {
    let domain = Domain::for_address(SocketAddr::new(place.address, 0));
    let socket = match transport {
        Transport::Tcp => Socket::new(domain, Type::STREAM, Some(Protocol::TCP)),
        Transport::Udp => Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)),
        Transport::Sctp => sctp::socket(domain),
    };
    let socket = socket.context("creating a socket")?;
    for _ in FIRST_PORT..=LAST_PORT {
        let port = place.next_port.fetch_add(1, Ordering::Relaxed);
        if port > LAST_PORT {
            bail!("all source ports of {} are used up", place.address);
        }
        let local = SocketAddr::new(place.address, port);
        match socket.bind(&local.into()) {
            Ok(()) => return Ok((socket, local)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).with_context(|| format!("binding to {local}")),
        }
    }
    bail!("no free source port at {}", place.address)
}
