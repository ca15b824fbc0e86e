//! Requests to the kernel over netlink: the common parts of every family's messages.
//!
//! Only reads, each with a bound on bytes and time. Formats: `include/uapi/linux/netlink.h`. Each caller interprets its
//! messages.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Instant,
};

use crate::node::Limits;

/// `struct nlmsghdr`; no message is shorter.
pub(super) const HEADER_BYTES: usize = 16;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST`
pub(super) const REQUEST: u16 = 0x0001;
/// `NLM_F_REQUEST | NLM_F_DUMP`
pub(super) const DUMP: u16 = 0x0301;
/// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`, which are not part of an attribute's type.
pub(super) const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// The families, by their numbers in `include/uapi/linux/netlink.h`.
pub(super) const NETLINK_NETFILTER: isize = 12;
pub(super) const NETLINK_GENERIC: isize = 16;

/// Sends the request and passes each datagram of the answer to `read`, until the last one or until a bound is exceeded.
/// Returns whether the answer is complete.
#[cfg(target_os = "linux")]
pub(super) fn ask(
    protocol: isize,
    request: &[u8],
    limits: Limits,
    mut read: impl FnMut(&[u8]) -> io::Result<bool>,
) -> io::Result<bool> {
    let begun = Instant::now();
    let socket = netlink_sys::Socket::new(protocol)?;
    socket.send(request, 0)?;
    let mut bytes = 0_usize;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        bytes = bytes.saturating_add(datagram.len());
        if read(&datagram)? {
            return Ok(true);
        }
        if datagram.is_empty() || bytes > limits.bytes || begun.elapsed() > limits.time {
            return Ok(false);
        }
    }
}

/// Other systems have no netlink.
#[cfg(not(target_os = "linux"))]
pub(super) fn ask(
    _: isize,
    _: &[u8],
    _: Limits,
    _: impl FnMut(&[u8]) -> io::Result<bool>,
) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Passes the type and body of each message of a datagram to `each`; returns whether the dump ends with it.
///
/// # Errors
///
/// The kernel answered with an error, or a message is truncated.
pub(super) fn messages(mut rest: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while let Some(length) = u32_ne(rest, 0) {
        // A length below the header's size would cause an endless loop.
        let length = (length as usize).max(HEADER_BYTES);
        let (Some(kind), Some(body)) = (u16_ne(rest, 4), rest.get(HEADER_BYTES..length)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink message is truncated"));
        };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = u32_ne(body, 0).map_or(0, u32::cast_signed);
                return if code == 0 {
                    Ok(true)
                } else {
                    Err(io::Error::from_raw_os_error(code.saturating_neg()))
                };
            }
            _ => each(kind, body),
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

/// A message of this type with sequence number and port 0.
pub(super) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend([0; 8]);
    out.extend(body);
    out
}

/// One attribute, padded. The value is shorter than 64 KiB.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aligned(value.len() + 4));
    out.extend(((value.len() + 4) as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(aligned(out.len()), 0);
    out
}

/// Type and value of each complete attribute.
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_ne(self.0, 0)?);
        let kind = u16_ne(self.0, 2)? & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// 4 bytes are an IPv4 address, 16 an IPv6 address.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| Ipv6Addr::from(v6).into())
}

const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(super) fn u16_ne(from: &[u8], at: usize) -> Option<u16> {
    bytes(from, at).map(u16::from_ne_bytes)
}

pub(super) fn u32_ne(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u32::from_ne_bytes)
}

pub(super) fn u16_be(from: &[u8]) -> Option<u16> {
    bytes(from, 0).map(u16::from_be_bytes)
}

pub(super) fn u32_be(from: &[u8]) -> Option<u32> {
    bytes(from, 0).map(u32::from_be_bytes)
}
