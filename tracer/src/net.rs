//! The nouns of networking that every room uses: protocol, tuple, network namespace, address family and range.
//!
//! Plain values: nothing here does I/O or knows Kubernetes.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    net::{AddrParseError, IpAddr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// Inode number of a network namespace, as `ls -L /proc/PID/ns/net` shows it; 0 if the hook could not read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Netns(pub u32);

/// The flags of a TCP header (RFC 9293, section 3.1).
pub(crate) mod flag {
    pub(crate) const FIN: u8 = 1;
    pub(crate) const SYN: u8 = 2;
    pub(crate) const RST: u8 = 4;
    pub(crate) const PSH: u8 = 8;
    pub(crate) const ACK: u8 = 16;
}

/// Layer-4 protocol number (IANA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Protocol(pub u8);

impl Protocol {
    pub const ICMP: Self = Self(1);
    pub const TCP: Self = Self(6);
    pub const UDP: Self = Self(17);
    pub const SCTP: Self = Self(132);

    /// The name: Kubernetes' (`TCP`, `UDP`, `SCTP`), or `ICMP`.
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::TCP => Some("TCP"),
            Self::UDP => Some("UDP"),
            Self::SCTP => Some("SCTP"),
            Self::ICMP => Some("ICMP"),
            Self(_) => None,
        }
    }

    /// The protocol of connections with this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::TCP, Self::UDP, Self::SCTP].into_iter().find(|protocol| protocol.name() == Some(name))
    }

    /// As it is displayed. A name is not copied.
    pub fn text(self) -> Cow<'static, str> {
        self.name().map_or_else(|| Cow::Owned(self.to_string()), Cow::Borrowed)
    }
}

/// The name (`TCP`, `UDP`, `SCTP`), otherwise the number.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "protocol {}", self.0),
        }
    }
}

/// An IP address and a port in 18 bytes and one plain form: an IPv4 address is the same whether a dual-stack socket wrote it
/// (`::ffff:a.b.c.d`) or conntrack did (`a.b.c.d`). Flow labels and scope ids, which conntrack does not have, are left out.
///
/// Sightings and flows consist mostly of addresses: a [`SocketAddr`] takes 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransportAddr {
    /// Big-endian; an IPv4 address is mapped.
    octets: [u8; 16],
    port: u16,
}

impl TransportAddr {
    pub(crate) const fn v4(octets: [u8; 4], port: u16) -> Self {
        let [a, b, c, d] = octets;
        Self { octets: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d], port }
    }

    pub(crate) const fn v6(octets: [u8; 16], port: u16) -> Self {
        Self { octets, port }
    }

    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.octets).to_canonical()
    }

    pub const fn port(self) -> u16 {
        self.port
    }

    pub const fn is_ipv4(self) -> bool {
        self.bits() >> 32 == 0xffff
    }

    /// The address as a number, mapped if it is IPv4.
    pub(crate) const fn bits(self) -> u128 {
        u128::from_be_bytes(self.octets)
    }

    /// An IPv4 address as a number.
    pub(crate) const fn ipv4_bits(self) -> Option<u32> {
        if self.is_ipv4() { Some(self.bits() as u32) } else { None }
    }

    pub fn socket(self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }
}

impl Hash for TransportAddr {
    /// In numbers: bytes have a length, and are hashed one by one or by a call.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.bits());
        state.write_u16(self.port);
    }
}

impl From<SocketAddr> for TransportAddr {
    fn from(address: SocketAddr) -> Self {
        match address.ip() {
            IpAddr::V4(ip) => Self::v4(ip.octets(), address.port()),
            IpAddr::V6(ip) => Self::v6(ip.octets(), address.port()),
        }
    }
}

impl From<TransportAddr> for SocketAddr {
    fn from(address: TransportAddr) -> Self {
        address.socket()
    }
}

impl FromStr for TransportAddr {
    type Err = AddrParseError;

    /// As [`SocketAddr`]: `IP:PORT` or `[IPv6]:PORT`.
    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        text.parse::<SocketAddr>().map(Self::from)
    }
}

impl fmt::Debug for TransportAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TransportAddr {
    /// As [`SocketAddr`]. Most evidence has addresses: one of IPv4 is written at once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_ipv4() || f.width().is_some() || f.precision().is_some() {
            return fmt::Display::fmt(&self.socket(), f);
        }
        // From the end, which is that of the longest address.
        let (mut text, mut at) = (*b"255.255.255.255:65535", 21);
        let mut put = |mut number: u16, before: Option<u8>| {
            loop {
                at -= 1;
                text[at] = b'0' + (number % 10) as u8;
                number /= 10;
                if number == 0 {
                    break;
                }
            }
            if let Some(before) = before {
                at -= 1;
                text[at] = before;
            }
        };
        put(self.port, Some(b':'));
        for (place, octet) in self.octets.iter().rev().take(4).enumerate() {
            put((*octet).into(), (place < 3).then_some(b'.'));
        }
        f.write_str(std::str::from_utf8(&text[at..]).unwrap_or_default())
    }
}

/// Source and destination of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    pub protocol: Protocol,
    pub src: TransportAddr,
    pub dst: TransportAddr,
}

impl Tuple {
    pub fn new(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Self {
        Self { protocol, src: src.into(), dst: dst.into() }
    }

    /// The same connection as the other end sees it.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { protocol: self.protocol, src: self.dst, dst: self.src }
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.protocol, self.src, self.dst)
    }
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Parses an address of an API object or of kube-proxy's configuration. Leading zeros do not matter and numbers stay
/// decimal, as in `ParseIPSloppy` (k8s.io/utils/net, `internal/third_party/forked/golang/net/ip.go`), with which
/// kube-proxy reads both: objects older than Kubernetes 1.33 may contain `172.30.0.041`.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let plain = |number: &str| match number.trim_start_matches('0') {
        "" => number.get(..1).unwrap_or_default().to_owned(),
        rest => rest.to_owned(),
    };
    let v4 = |text: &str| text.split('.').map(plain).collect::<Vec<_>>().join(".");
    let part = |part: &str| if part.contains('.') { v4(part) } else { plain(part) };
    text.split(':').map(part).collect::<Vec<_>>().join(":").parse().ok()
}

/// An address range: an address with its host bits as written, and its prefix length in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cidr {
    pub base: IpAddr,
    /// At most 32 for IPv4 and 128 for IPv6.
    pub prefix: u8,
}

impl Cidr {
    /// Parses `ADDRESS/LENGTH`, with leading zeros as [`parse_address`]; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let (base, prefix) = text.trim().split_once('/')?;
        let (base, prefix) = (parse_address(base)?, prefix.parse::<u8>().ok()?);
        (prefix <= Self::bits(base)).then_some(Self { base, prefix })
    }

    /// Whether the range contains `ip`. It never contains an address of the other family.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let same = |a: u128, b: u128, bits: u8| {
            (a ^ b).checked_shr(u32::from(bits.saturating_sub(self.prefix))).unwrap_or(0) == 0
        };
        match (self.base, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }

    /// The prefix length of a host's own network.
    pub(crate) const fn bits(ip: IpAddr) -> u8 {
        if ip.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_displayed_as_a_socket_address() {
        for text in [
            "0.0.0.0:0",
            "255.255.255.255:65535",
            "10.96.0.1:443",
            "1.20.103.9:8",
            "[fd00::a]:53",
            "[::ffff:10.0.0.1]:80",
        ] {
            let socket: SocketAddr = text.parse().unwrap();
            let address = TransportAddr::from(socket);
            assert_eq!(address.to_string(), address.socket().to_string());
            assert_eq!(format!("{address:>24}|{address:<3}"), format!("{0:>24}|{0:<3}", address.socket()));
        }
    }

    #[test]
    fn leading_zeros_are_decimal() {
        let ip = |text: &str| parse_address(text).map(|ip| ip.to_string());
        assert_eq!(ip("172.30.0.041").as_deref(), Some("172.30.0.41"));
        assert_eq!(ip("010.000.00.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(ip("fd00:0010:00096::0a").as_deref(), Some("fd00:10:96::a"));
        assert_eq!(ip("::ffff:010.1.2.03").as_deref(), Some("::ffff:10.1.2.3"));
        assert_eq!(ip("::").as_deref(), Some("::"));
        for text in [
            "",
            "0",
            "1.2.3",
            "1.2.3.4.5",
            "256.1.1.1",
            "00300.1.1.1",
            "1..2.3",
            ":::",
            "fe80::1%eth0",
            "0x1.2.3.4",
        ] {
            assert_eq!(ip(text), None, "{text}");
        }
        let cidr = |text: &str| Cidr::parse(text).map(|cidr| cidr.to_string());
        assert_eq!(cidr("203.0.113.000/025").as_deref(), Some("203.0.113.0/25"));
        assert_eq!((cidr("203.0.113.0"), cidr("203.0.113.0/33")), (None, None));
    }
}
