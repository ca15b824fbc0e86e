//! Scripted TCP servers. Each keeps the address of every client that it accepted, so that a test knows which endpoint
//! served which connection.

use std::{
    collections::HashSet,
    io::{self, Read, Write},
    net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::topology::Place;

/// The treatment of each connection by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Reads `request` bytes, answers with `response` bytes, waits for the client's close.
    Serve { request: usize, response: usize },
    /// As `Serve`, but closes first.
    ServeAndClose { request: usize, response: usize },
    /// Repeats the exchange until the client closes.
    Chat { request: usize, response: usize },
    /// Serves one request and resets the connection at the next.
    ServeOnceThenReset { request: usize, response: usize },
    /// Reads until the client closes its half, then answers with one byte: for bulk transfers.
    Swallow,
    /// Resets right after accepting.
    ResetOnAccept,
    /// Reads `request` bytes, then resets.
    ResetOnRequest { request: usize },
    /// Accepts and never sends anything.
    Silent,
    /// Sends first, then waits for the client's close.
    Banner { bytes: usize },
}

/// The server's part of [`super::client::Script::exchange`].
pub const EXCHANGE: Script =
    Script::Serve { request: super::client::REQUEST, response: super::client::RESPONSE };

/// How long a connection may be idle before the server closes it.
const PATIENCE: Duration = Duration::from_mins(2);

/// Enough for the few calls of a connection's thread.
const STACK_BYTES: usize = 64 * 1024;

type Accepted = Arc<Mutex<HashSet<SocketAddr>>>;

/// A running server. It stops when the value is dropped. Open connections live on until both ends close.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    listener: Arc<Socket>,
    accepted: Accepted,
}

impl Server {
    /// Starts a server on `port` of the place's address. It listens when this returns.
    pub fn start(place: &Place, port: u16, script: Script) -> Result<Self> {
        Self::start_on(place, port, place.address, script)
    }

    /// The same on an IPv6 socket that is bound to no address, as many languages' libraries open it. Its IPv4 peers are
    /// `::ffff:a.b.c.d`.
    pub fn start_dual_stack(place: &Place, port: u16, script: Script) -> Result<Self> {
        Self::start_on(place, port, Ipv6Addr::UNSPECIFIED.into(), script)
    }

    fn start_on(place: &Place, port: u16, bound: IpAddr, script: Script) -> Result<Self> {
        let address = SocketAddr::new(place.address, port);
        let listener = place
            .netns
            .run(move || listen(SocketAddr::new(bound, port)))?
            .with_context(|| format!("listening on {address} in namespace {}", place.netns.name()))?;
        let listener = Arc::new(listener);
        let accepted = Accepted::default();
        let (their_listener, their_accepted) = (Arc::clone(&listener), Arc::clone(&accepted));
        place
            .netns
            .spawn("server", move || accept_all(&their_listener, &their_accepted, script))
            .context("starting a server's thread")?;
        Ok(Self { address, listener, accepted })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the server accepted this client's connection.
    pub fn accepted(&self, client: SocketAddr) -> bool {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).contains(&client)
    }

    pub fn accepted_count(&self) -> usize {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Wakes the accepting thread, which then ends. From here on the kernel answers SYNs with a reset.
        let _closed = self.listener.shutdown(Shutdown::Both);
    }
}

fn listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket)
}

fn accept_all(listener: &Socket, accepted: &Accepted, script: Script) {
    while let Ok((connection, peer)) = listener.accept() {
        if let Some(peer) = peer.as_socket() {
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            accepted.lock().unwrap_or_else(PoisonError::into_inner).insert(peer);
        }
        let serve = move || {
            // Many scripts include a client that resets or leaves early; the client's side reports it.
            let _as_scripted = serve(connection, script);
        };
        if thread::Builder::new().stack_size(STACK_BYTES).spawn(serve).is_err() {
            // Without a thread the connection is closed, and the client reports it.
        }
    }
}

fn serve(mut connection: Socket, script: Script) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    match script {
        Script::Serve { request, response } => {
            read_exactly(&mut connection, request)?;
            connection.write_all(&vec![b'r'; response])?;
            read_to_close(&mut connection).map(drop)
        }
        Script::ServeAndClose { request, response } => {
            read_exactly(&mut connection, request)?;
            connection.write_all(&vec![b'r'; response])?;
            connection.shutdown(Shutdown::Write)?;
            read_to_close(&mut connection).map(drop)
        }
        Script::Chat { request, response } => loop {
            read_exactly(&mut connection, request)?;
            connection.write_all(&vec![b'r'; response])?;
        },
        Script::ServeOnceThenReset { request, response } => {
            read_exactly(&mut connection, request)?;
            connection.write_all(&vec![b'r'; response])?;
            read_exactly(&mut connection, request)?;
            reset(&connection)
        }
        Script::Swallow => {
            read_to_close(&mut connection)?;
            connection.write_all(b"!")
        }
        Script::ResetOnAccept => reset(&connection),
        Script::ResetOnRequest { request } => {
            read_exactly(&mut connection, request)?;
            reset(&connection)
        }
        Script::Silent => read_to_close(&mut connection).map(drop),
        Script::Banner { bytes } => {
            connection.write_all(&vec![b'b'; bytes])?;
            read_to_close(&mut connection).map(drop)
        }
    }
}

/// Makes the next close send a reset.
pub(super) fn reset(connection: &Socket) -> io::Result<()> {
    SockRef::from(connection).set_linger(Some(Duration::ZERO))
}

pub(super) fn read_exactly(connection: &mut Socket, bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; bytes];
    connection.read_exact(&mut buffer)
}

fn read_to_close(connection: &mut Socket) -> io::Result<u64> {
    let mut buffer = vec![0; 32 * 1024];
    let mut total = 0;
    loop {
        match connection.read(&mut buffer)? {
            0 => return Ok(total),
            read => total += read as u64,
        }
    }
}
