//! A netfilter queue (`NFQUEUE`): packets that a rule sends there wait until they are released.
//!
//! It makes two packets meet that would otherwise meet very rarely. Formats:
//! `include/uapi/linux/netfilter/nfnetlink_queue.h`.

use std::{
    io::{Error, ErrorKind, Read as _, Write as _},
    time::Duration,
};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{netns::Netns, wait};

/// `NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_…`.
const PACKET: u16 = 0x0300;
const VERDICT: u16 = 0x0301;
const CONFIG: u16 = 0x0302;
/// `NFQA_CFG_CMD` with `NFQNL_CFG_CMD_BIND`, `NFQA_CFG_PARAMS` with `NFQNL_COPY_META`.
const BIND: (u16, [u8; 4]) = (1, [1, 0, 0, 0]);
const COPY_META: (u16, [u8; 5]) = (2, [0, 0, 0, 0, 1]);
/// `NFQA_PACKET_HDR` of a packet, `NFQA_VERDICT_HDR` of a verdict, and `NF_ACCEPT`.
const PACKET_HDR: u16 = 1;
const VERDICT_HDR: u16 = 2;
const ACCEPT: u32 = 1;
const REQUEST: u16 = 1;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const HEADERS_BYTES: usize = 16 + 4;
const LIMIT: Duration = Duration::from_secs(20);

/// The waiting packets of one queue in a namespace. When the value is dropped, the kernel drops them.
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: u16,
    waiting: Vec<u32>,
}

impl Queue {
    /// Binds the queue of this number. Rules may send packets there when this returns.
    pub fn open(netns: &Netns, number: u16) -> Result<Self> {
        let open = || {
            Socket::new(
                Domain::from(libc::AF_NETLINK),
                Type::from(libc::SOCK_RAW),
                Some(Protocol::from(libc::NETLINK_NETFILTER)),
            )
        };
        let socket = netns.run(open)?.context("opening a netfilter socket")?;
        socket.set_nonblocking(true).context("making a socket non-blocking")?;
        let mut queue = Self { socket, number, waiting: Vec::new() };
        queue.send(CONFIG, BIND.0, &BIND.1)?;
        queue.send(CONFIG, COPY_META.0, &COPY_META.1)?;
        Ok(queue)
    }

    /// Waits until the queue holds this many packets.
    pub fn holds(&mut self, count: usize) -> Result<()> {
        let what = format!("{count} packets in netfilter queue {}", self.number);
        wait::until(&what, LIMIT, || match self.read() {
            Ok(()) => (self.waiting.len() >= count).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        })?
        .with_context(|| format!("waiting for {what}"))
    }

    /// Releases all waiting packets in the order of their arrival. The kernel has sent each on when this returns.
    pub fn release(&mut self) -> Result<()> {
        for id in std::mem::take(&mut self.waiting) {
            self.send(VERDICT, VERDICT_HDR, [ACCEPT, id].map(u32::to_be_bytes).as_flattened())?;
        }
        Ok(())
    }

    fn send(&mut self, message: u16, attribute: u16, value: &[u8]) -> Result<()> {
        let length = 4 + value.len();
        let padded = length.next_multiple_of(4);
        let mut bytes = Vec::with_capacity(HEADERS_BYTES + padded);
        bytes.extend(((HEADERS_BYTES + padded) as u32).to_ne_bytes());
        bytes.extend(message.to_ne_bytes());
        bytes.extend(REQUEST.to_ne_bytes());
        bytes.extend([0; 8 + 2]);
        bytes.extend(self.number.to_be_bytes());
        bytes.extend((length as u16).to_ne_bytes());
        bytes.extend(attribute.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(HEADERS_BYTES + padded, 0);
        self.socket.write_all(&bytes).context("sending to the netfilter queue")
    }

    /// Reads the packets that arrived since the last call.
    fn read(&mut self) -> std::io::Result<()> {
        let mut datagram = [0; 4096];
        loop {
            match self.socket.read(&mut datagram) {
                Ok(length) => self.waiting.extend(packet(&datagram[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // More packets arrived than the socket can hold: some will never be released.
                Err(error) => return Err(Error::new(error.kind(), format!("netfilter queue: {error}"))),
            }
        }
    }
}

/// The id of the packet in a message from the kernel.
fn packet(message: &[u8]) -> Option<u32> {
    let at = |from: usize, to: usize| message.get(from..to);
    if at(4, 6)? != PACKET.to_ne_bytes() {
        return None;
    }
    let attribute = at(HEADERS_BYTES + 2, HEADERS_BYTES + 4)?;
    let id = at(HEADERS_BYTES + 4, HEADERS_BYTES + 8)?;
    (attribute == PACKET_HDR.to_ne_bytes()).then(|| id.try_into().map(u32::from_be_bytes).ok())?
}
