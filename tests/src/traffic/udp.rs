//! UDP: echo servers, sinks, and clients that send queries or only send.

use std::{
    collections::HashSet,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

use super::{Attempt, Outcome, Transport, bound_socket};
use crate::topology::Place;

/// How often a server checks whether it should stop.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The treatment of a datagram by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Echo,
    Nothing,
    /// Answers this many datagrams, and then nothing more.
    First(usize),
}

#[derive(Debug)]
pub struct UdpServer {
    address: SocketAddr,
    received: Arc<Mutex<HashSet<SocketAddr>>>,
    stop: Arc<AtomicBool>,
    /// The port is in use until the thread ends.
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl UdpServer {
    /// Starts a server on `port` of the place's address. It is bound when this returns.
    pub fn start(place: &Place, port: u16, answer: Answer) -> Result<Self> {
        let address = SocketAddr::new(place.address, port);
        let socket = place
            .netns
            .run(move || UdpSocket::bind(address))?
            .with_context(|| format!("binding UDP {address} in namespace {}", place.netns.name()))?;
        socket.set_read_timeout(Some(POLL_INTERVAL)).context("setting a receive timeout")?;
        let mut server = Self { address, received: Arc::default(), stop: Arc::default(), thread: None };
        let (received, stop) = (Arc::clone(&server.received), Arc::clone(&server.stop));
        let thread = place
            .netns
            .spawn("udp-server", move || {
                let mut datagram = [0; 2048];
                let mut answers = match answer {
                    Answer::Echo => usize::MAX,
                    Answer::Nothing => 0,
                    Answer::First(count) => count,
                };
                while !stop.load(Ordering::Relaxed) {
                    let Ok((length, peer)) = socket.recv_from(&mut datagram) else {
                        continue;
                    };
                    received.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
                    if answers > 0 {
                        answers -= 1;
                        // A client that has ended needs no answer.
                        let _gone = socket.send_to(&datagram[..length], peer);
                    }
                }
            })
            .context("starting a server's thread")?;
        server.thread = Some(thread);
        Ok(server)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether a datagram of this client arrived.
    pub fn received_from(&self, client: SocketAddr) -> bool {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).contains(&client)
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            crate::console::print(format!("the UDP server at {} panicked", self.address));
        }
    }
}

/// Sends `count` queries, each from its own socket, and waits up to `limit` for each echo. With a limit of zero it only
/// sends.
pub fn query(place: &Place, target: SocketAddr, count: usize, limit: Duration) -> Result<Vec<Attempt>> {
    let there = place.clone();
    place
        .netns
        .spawn("client", move || {
            (0..count).map(|_| query_once(&there, target, limit)).collect::<Result<Vec<_>>>()
        })
        .context("starting a client's thread")?
        .join()
        .map_err(|_| anyhow!("a client's thread panicked"))?
        .with_context(|| format!("entering {}", place.netns.name()))?
}

/// Gives the next socket of each place the same port.
pub fn share_next_port(one: &Place, other: &Place) {
    let port = one.next_port.load(Ordering::Relaxed).max(other.next_port.load(Ordering::Relaxed));
    for place in [one, other] {
        place.next_port.store(port, Ordering::Relaxed);
    }
}

/// A socket that sends a datagram periodically and reads nothing, until it is dropped.
#[derive(Debug)]
pub struct Sender {
    pub client: SocketAddr,
    target: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Sender {
    pub fn attempt(&self) -> Attempt {
        Attempt {
            protocol: Transport::Udp,
            client: self.client,
            target: self.target,
            outcome: Outcome::Silent,
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Starts a sender.
pub fn keep_sending(place: &Place, target: SocketAddr) -> Result<Sender> {
    let there = place.clone();
    let (socket, client) = place.netns.run(move || bound_socket(&there, Transport::Udp))??;
    let socket = UdpSocket::from(socket);
    socket.connect(target).context("choosing a datagram socket's peer")?;
    // Hardly anything arrives: the read timeout is the pause between two datagrams.
    socket.set_read_timeout(Some(POLL_INTERVAL)).context("setting a receive timeout")?;
    let stop = Arc::<AtomicBool>::default();
    let theirs = Arc::clone(&stop);
    let send = move || {
        let mut answer = [0; 64];
        while !theirs.load(Ordering::Relaxed) {
            // Network errors do not matter to a sender that does not read.
            let _sent = socket.send(b"one way");
            let _answer = socket.recv(&mut answer);
        }
    };
    place.netns.spawn("sender", send).context("starting a sender's thread")?;
    Ok(Sender { client, target, stop })
}

/// Two queries from one socket.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub client: SocketAddr,
    pub answers: usize,
}

/// Sends `count` pairs of queries, each pair from two threads at once on one socket.
pub fn query_in_pairs(place: &Place, target: SocketAddr, count: usize) -> Result<Vec<Pair>> {
    let there = place.clone();
    let work = move || (0..count).map(|_| query_pair(&there, target)).collect::<Result<Vec<_>>>();
    let joined = place.netns.spawn("client", work).context("starting a client's thread")?.join();
    joined
        .map_err(|_| anyhow!("a client's thread panicked"))?
        .with_context(|| format!("entering {}", place.netns.name()))?
}

fn query_pair(place: &Place, target: SocketAddr) -> Result<Pair> {
    let (socket, client) = bound_socket(place, Transport::Udp)?;
    let socket = UdpSocket::from(socket);
    socket.connect(target).context("choosing a datagram socket's peer")?;
    socket.set_read_timeout(Some(Duration::from_secs(3))).context("setting a receive timeout")?;
    let together = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for query in [b"A of some length", b"AAAA of a length"] {
            let (socket, together) = (&socket, &together);
            scope.spawn(move || {
                together.wait();
                // A query that could not be sent has no answer.
                let _sent = socket.send(query);
            });
        }
    });
    let mut answer = [0; 256];
    let answers = (0..2).filter(|_| socket.recv(&mut answer).is_ok()).count();
    Ok(Pair { client, answers })
}

fn query_once(place: &Place, target: SocketAddr, limit: Duration) -> Result<Attempt> {
    let (socket, client) = bound_socket(place, Transport::Udp)?;
    let socket = UdpSocket::from(socket);
    let exchanged = (|| -> io::Result<()> {
        socket.connect(target)?;
        socket.send(b"a question of some length")?;
        if limit.is_zero() {
            return Ok(());
        }
        socket.set_read_timeout(Some(limit))?;
        let mut echo = [0; 256];
        socket.recv(&mut echo).map(drop)
    })();
    let outcome = exchanged.map_or_else(|error| Outcome::of(&error), |()| Outcome::Done);
    Ok(Attempt { protocol: Transport::Udp, client, target, outcome })
}
