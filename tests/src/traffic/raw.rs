//! TCP segments that no stack would send, built by hand and sent from a place's namespace.

use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
};

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::Place;

const HEADER_BYTES: usize = 20;
const PSH_ACK: u8 = 0x18;
const PAYLOAD: &[u8] = b"too late";

/// Sends one data segment with these sequence and acknowledgement numbers.
pub fn send_segment(place: &Place, src: SocketAddr, dst: SocketAddr, seq: u32, ack: u32) -> Result<()> {
    let (SocketAddr::V4(src), SocketAddr::V4(dst)) = (src, dst) else {
        bail!("a raw segment from {src} to {dst}: only IPv4 is supported");
    };
    let segment = segment(src, dst, seq, ack);
    let send = move || -> io::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::TCP))?;
        socket.bind(&SocketAddr::V4(SocketAddrV4::new(*src.ip(), 0)).into())?;
        socket.send_to(&segment, &SocketAddr::V4(SocketAddrV4::new(*dst.ip(), 0)).into()).map(drop)
    };
    place.netns.run(send)?.with_context(|| format!("sending a raw segment from {src} to {dst}"))
}

fn segment(src: SocketAddrV4, dst: SocketAddrV4, seq: u32, ack: u32) -> Vec<u8> {
    let mut segment = Vec::with_capacity(HEADER_BYTES + PAYLOAD.len());
    segment.extend(src.port().to_be_bytes());
    segment.extend(dst.port().to_be_bytes());
    segment.extend(seq.to_be_bytes());
    segment.extend(ack.to_be_bytes());
    segment.extend([5 << 4, PSH_ACK]);
    segment.extend(500_u16.to_be_bytes()); // window
    segment.extend([0; 4]); // checksum, urgent pointer
    segment.extend(PAYLOAD);
    let mut pseudo = Vec::new();
    pseudo.extend(src.ip().octets());
    pseudo.extend(dst.ip().octets());
    pseudo.extend([0, 6]);
    pseudo.extend((segment.len() as u16).to_be_bytes());
    pseudo.extend(&segment);
    segment[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    segment
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_over_a_segment_with_its_checksum_is_zero() {
        let (src, dst) = ("10.244.1.41:8443".parse().unwrap(), "10.244.1.100:20000".parse().unwrap());
        let segment = segment(src, dst, 1, 2);
        let mut whole = vec![10, 244, 1, 41, 10, 244, 1, 100, 0, 6, 0, segment.len() as u8];
        whole.extend(&segment);
        assert_eq!(checksum(&whole), 0);
    }
}
