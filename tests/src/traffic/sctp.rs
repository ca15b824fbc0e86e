//! SCTP: a server that echoes one message for each association, and clients that exchange one message. One-to-one
//! sockets, which behave like TCP's (RFC 6458 section 4).

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Attempt, Outcome, Transport, bound_socket, client::REQUEST};
use crate::topology::Place;

const IPPROTO_SCTP: i32 = 132;
const LIMIT: Duration = Duration::from_secs(20);
/// Long enough for one retransmission of an INIT (after 3 s, RFC 9260).
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// How often a server checks whether it should stop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The socket type of all SCTP sockets here.
pub(super) fn socket(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::STREAM, Some(Protocol::from(IPPROTO_SCTP)))
}

/// A running server. It stops when the value is dropped.
#[derive(Debug)]
pub struct SctpServer {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    serving: Option<JoinHandle<io::Result<()>>>,
}

impl SctpServer {
    /// Starts a server on `port` of the place's address. It listens when this returns.
    pub fn start(place: &Place, port: u16) -> Result<Self> {
        let address = SocketAddr::new(place.address, port);
        let listen = move || -> io::Result<Socket> {
            let listener = socket(Domain::for_address(address))?;
            listener.bind(&address.into())?;
            listener.listen(64)?;
            // A shutdown does not wake a thread that waits for an association, so the thread polls.
            listener.set_read_timeout(Some(POLL_INTERVAL))?;
            Ok(listener)
        };
        let listener = place.netns.run(listen)?.with_context(|| format!("listening on SCTP {address}"))?;
        let stop = Arc::<AtomicBool>::default();
        let theirs = Arc::clone(&stop);
        let serve = move || {
            while !theirs.load(Ordering::Relaxed) {
                let Ok((mut association, _)) = listener.accept() else { continue };
                let mut message = [0; 256];
                // The connection inherits the listener's timeout. A client that leaves early is not an error.
                let _gone = association
                    .set_read_timeout(Some(LIMIT))
                    .and_then(|()| association.read(&mut message))
                    .and_then(|length| association.write(&message[..length]));
            }
        };
        let serving = place.netns.spawn("sctp-server", serve).context("starting a server's thread")?;
        Ok(Self { address, stop, serving: Some(serving) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SctpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The port is free once the thread has ended.
        let _served = self.serving.take().map(JoinHandle::join);
    }
}

/// Makes `count` associations one after the other, with one message in each direction.
pub fn connect(place: &Place, target: SocketAddr, count: usize) -> Result<Vec<Attempt>> {
    let there = place.clone();
    place
        .netns
        .spawn("client", move || (0..count).map(|_| attempt(&there, target)).collect::<Result<Vec<_>>>())
        .context("starting a client's thread")?
        .join()
        .map_err(|_| anyhow!("a client's thread panicked"))?
        .with_context(|| format!("entering {}", place.netns.name()))?
}

fn attempt(place: &Place, target: SocketAddr) -> Result<Attempt> {
    let (mut socket, client) = bound_socket(place, Transport::Sctp)?;
    let outcome = match socket.connect_timeout(&target.into(), CONNECT_LIMIT) {
        Err(error) => Outcome::of_connect(&error),
        Ok(()) => exchange(&mut socket).map_or_else(|error| Outcome::of(&error), |()| Outcome::Done),
    };
    Ok(Attempt { protocol: Transport::Sctp, client, target, outcome })
}

fn exchange(socket: &mut Socket) -> io::Result<()> {
    socket.set_read_timeout(Some(LIMIT))?;
    socket.write_all(&[b'q'; REQUEST])?;
    let mut echo = [0; REQUEST];
    socket.read_exact(&mut echo)
}
