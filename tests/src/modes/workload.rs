//! The two workloads: sequential cycles of connect, request, response and close through a Service address, and one
//! transfer. The server handles one connection after the other on one thread, because a thread for each would cost more
//! than the measured work.
//!
//! Both ends run before every other thread, the server first. Otherwise the scheduler decides at each wake-up whether the
//! server runs at once or after the client's next call, which changes the number of context switches. The kernel's own
//! thread for packets runs before both: before Linux 6.5 (commit d15121be7485), once it was woken, packets waited for it, and it
//! for both ends, so that in some runs a connection's end was handled during the next one, which costs 1 % more.

use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{dataplane::Mode, netns::Netns, sys, world::World};

pub(super) const CONNECTIONS: usize = 100;
const TRANSFER_BYTES: usize = 20_000_000;
/// The first byte of a connection names its workload.
const EXCHANGE: u8 = b'x';
const TRANSFER: u8 = b't';
/// The priorities of the two ends, and of the kernel's thread for packets.
const CLIENT: i32 = 1;
const SERVER: i32 = 2;
const PACKETS: i32 = 3;

pub(super) struct Workload {
    client: Netns,
    vip: SocketAddr,
}

/// The result of one run of connection cycles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) mean_ns: u128,
    /// That of the connection that takes longer than a quarter of them.
    pub(super) quartile_ns: u128,
}

impl Workload {
    /// Starts the server in `shop/cart-1`, to which the rules of this mode lead from now on, whichever endpoint they choose.
    /// The client is `shop/client-1`.
    pub(super) fn start(world: &World, mode: Mode) -> Result<Self> {
        let server = &world.pod("shop/cart-1")?.place;
        let address = SocketAddr::new(server.address, 8080);
        let listener = server
            .netns
            .run(move || TcpListener::bind(address))?
            .with_context(|| format!("listening on {address}"))?;
        server
            .netns
            .spawn("server", move || {
                sys::run_first(SERVER)?;
                for connection in listener.incoming().flatten() {
                    // The client reports failures.
                    let _reported = serve(connection);
                }
                io::Result::Ok(())
            })
            .context("starting the server's thread")?;
        let mut rules = world.rules(mode)?.clone();
        for other in ["shop/cart-2", "shop/cart-3"] {
            rules = rules.with_endpoint_moved(world.pod(other)?.place.address, server.address);
        }
        rules.restore(&world.topology.host)?;
        handle_packets_first()?;
        let client = world.pod("shop/client-1")?.place.netns.clone();
        Ok(Self { client, vip: world.cluster.vip("shop/cart", "http")? })
    }

    /// Keeps the link-layer addresses on the path. A neighbour that was not confirmed lately takes a longer way through
    /// the kernel, some 1.7 % of a connection.
    pub(super) fn keep_neighbours(world: &World) -> Result<()> {
        let server = &world.pod("shop/cart-1")?.place.netns;
        let client = &world.pod("shop/client-1")?.place.netns;
        for netns in [client, &world.topology.host, server] {
            for line in netns.command("ip", &["neigh", "show"])?.lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [address, "dev", device, "lladdr", link, ..] = words.as_slice() else { continue };
                let known = ["neigh", "replace", address, "lladdr", link, "dev", device, "nud", "permanent"];
                netns.command("ip", &known)?;
            }
        }
        Ok(())
    }

    /// The Service address of both workloads.
    pub(super) fn vip(&self) -> IpAddr {
        self.vip.ip()
    }

    pub(super) fn connections(&self) -> Result<Run> {
        let vip = self.vip;
        let run = self.client.run(move || -> io::Result<Run> {
            sys::run_first(CLIENT)?;
            let mut cycles = Vec::with_capacity(CONNECTIONS);
            let started = Instant::now();
            let mut last = started;
            for _ in 0..CONNECTIONS {
                let mut connection = TcpStream::connect(vip)?;
                connection.write_all(&[EXCHANGE])?;
                connection.read_exact(&mut [0])?;
                drop(connection);
                let now = Instant::now();
                cycles.push((now - last).as_nanos());
                last = now;
            }
            cycles.sort_unstable();
            Ok(Run {
                mean_ns: (last - started).as_nanos() / CONNECTIONS as u128,
                quartile_ns: cycles.get(CONNECTIONS / 4).copied().unwrap_or_default(),
            })
        })?;
        run.with_context(|| format!("connecting to {vip}"))
    }

    pub(super) fn transfer(&self) -> Result<Duration> {
        let vip = self.vip;
        let took = self.client.run(move || -> io::Result<Duration> {
            sys::run_first(CLIENT)?;
            let block = vec![TRANSFER; 64 * 1024];
            let started = Instant::now();
            let mut connection = TcpStream::connect(vip)?;
            let mut left = TRANSFER_BYTES;
            while left > 0 {
                left -= connection.write(&block[..left.min(block.len())])?;
            }
            connection.shutdown(Shutdown::Write)?;
            connection.read_exact(&mut [0])?;
            Ok(started.elapsed())
        })?;
        took.with_context(|| format!("sending {TRANSFER_BYTES} bytes to {vip}"))
    }
}

/// Runs each processor's `ksoftirqd` before both ends.
fn handle_packets_first() -> Result<()> {
    for entry in fs::read_dir("/proc").context("reading /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("ksoftirqd/") {
            sys::run_thread_first(pid, PACKETS).with_context(|| format!("running {} first", name.trim()))?;
        }
    }
    Ok(())
}

fn serve(mut connection: TcpStream) -> io::Result<()> {
    let mut kind = [0];
    connection.read_exact(&mut kind)?;
    let mut block = vec![0; if kind == [TRANSFER] { 64 * 1024 } else { 16 }];
    if kind == [EXCHANGE] {
        connection.write_all(&kind)?;
    }
    while connection.read(&mut block)? > 0 {}
    if kind == [TRANSFER] {
        connection.write_all(&kind)?;
    }
    Ok(())
}
