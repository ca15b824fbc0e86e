//! Ranges of addresses, and the small forms of addresses in rules: a node has hundreds of thousands of them.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

use serde::{Deserialize, Serialize, Serializer};

use crate::net::Cidr;

/// The first and last address, both included, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddressRange {
    pub first: IpAddr,
    pub last: IpAddr,
}

impl AddressRange {
    pub const fn host(ip: IpAddr) -> Self {
        Self { first: ip, last: ip }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        // IpAddr orders IPv4 before IPv6, so a range of one family contains no address of the other.
        self.first <= ip && ip <= self.last
    }

    pub fn as_host(&self) -> Option<IpAddr> {
        (self.first == self.last).then_some(self.first)
    }

    /// Parses `ADDRESS`, `ADDRESS/LENGTH`, `ADDRESS/MASK` (IPv4) or `FIRST-LAST`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some((first, last)) = text.split_once('-') {
            return Some(Self { first: first.parse().ok()?, last: last.parse().ok()? });
        }
        let Some((base, length)) = text.split_once('/') else { return text.parse().ok().map(Self::host) };
        let base: IpAddr = base.parse().ok()?;
        let length = if let Ok(length) = length.parse::<u8>() {
            length
        } else {
            let mask = u32::from(length.parse::<Ipv4Addr>().ok()?);
            (mask.leading_ones() + mask.trailing_zeros() == 32).then_some(mask.leading_ones() as u8)?
        };
        Self::of(base, length)
    }

    /// `None` if the length is larger than the family's.
    pub fn of(base: IpAddr, length: u8) -> Option<Self> {
        match base {
            IpAddr::V4(base) if length <= 32 => {
                let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
                let base = base.to_bits();
                Some(Self {
                    first: IpAddr::V4((base & !host).into()),
                    last: IpAddr::V4((base | host).into()),
                })
            }
            IpAddr::V6(base) if length <= 128 => {
                let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
                let base = base.to_bits();
                Some(Self {
                    first: IpAddr::V6((base & !host).into()),
                    last: IpAddr::V6((base | host).into()),
                })
            }
            _ => None,
        }
    }
}

impl From<Cidr> for AddressRange {
    fn from(cidr: Cidr) -> Self {
        Self::of(cidr.base, cidr.prefix).unwrap_or(Self::host(cidr.base))
    }
}

/// An address, a network, or else a range.
impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let differ = first.to_bits() ^ last.to_bits();
                let length = differ.leading_zeros();
                (first.to_bits() & differ == 0 && differ.checked_add(1).is_none_or(u32::is_power_of_two))
                    .then_some(length)
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let differ = first.to_bits() ^ last.to_bits();
                let length = differ.leading_zeros();
                (first.to_bits() & differ == 0 && differ.checked_add(1).is_none_or(u128::is_power_of_two))
                    .then_some(length)
            }
            _ => None,
        };
        match length {
            _ if self.first == self.last => write!(f, "{}", self.first),
            Some(length) => write!(f, "{}/{length}", self.first),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// The ranges of a condition. A single one of IPv4, which most conditions have, is stored inline; in 16 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<AddressRange>")]
pub struct AddressRanges(Ranges);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ranges {
    /// The first and last address of the only range.
    Ipv4(Ipv4Addr, Ipv4Addr),
    Others(Box<[AddressRange]>),
}

impl AddressRanges {
    pub fn iter(&self) -> impl Iterator<Item = AddressRange> {
        let others: &[_] = if let Ranges::Others(ranges) = &self.0 { ranges } else { &[] };
        self.of_ipv4().into_iter().chain(others.iter().copied())
    }

    /// The range, if there is only one.
    pub fn one(&self) -> Option<AddressRange> {
        match &self.0 {
            Ranges::Others(ranges) => {
                if let [one] = **ranges {
                    Some(one)
                } else {
                    None
                }
            }
            Ranges::Ipv4(..) => self.of_ipv4(),
        }
    }

    /// The address, if there is only one.
    pub fn host(&self) -> Option<IpAddr> {
        self.one()?.as_host()
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        match &self.0 {
            Ranges::Ipv4(first, last) => *first <= ip && ip <= *last,
            Ranges::Others(ranges) => ranges.iter().any(|range| range.contains(ip)),
        }
    }

    fn of_ipv4(&self) -> Option<AddressRange> {
        match self.0 {
            Ranges::Ipv4(first, last) => Some(AddressRange { first: first.into(), last: last.into() }),
            Ranges::Others(_) => None,
        }
    }
}

impl From<AddressRange> for AddressRanges {
    fn from(range: AddressRange) -> Self {
        Self(match range {
            AddressRange { first: IpAddr::V4(first), last: IpAddr::V4(last) } => Ranges::Ipv4(first, last),
            other => Ranges::Others([other].into()),
        })
    }
}

impl From<Vec<AddressRange>> for AddressRanges {
    fn from(ranges: Vec<AddressRange>) -> Self {
        match *ranges {
            [one] => one.into(),
            _ => Self(Ranges::Others(ranges.into())),
        }
    }
}

/// As a list.
impl Serialize for AddressRanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// An address and a port in 16 bytes: those of IPv4 are stored inline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SocketAddr", into = "SocketAddr")]
pub enum SmallSocketAddr {
    V4(SocketAddrV4),
    V6(Box<SocketAddrV6>),
}

impl SmallSocketAddr {
    pub fn get(&self) -> SocketAddr {
        match self {
            Self::V4(address) => SocketAddr::V4(*address),
            Self::V6(address) => SocketAddr::V6(**address),
        }
    }
}

impl From<SocketAddr> for SmallSocketAddr {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self::V4(address),
            SocketAddr::V6(address) => Self::V6(address.into()),
        }
    }
}

impl From<SmallSocketAddr> for SocketAddr {
    fn from(address: SmallSocketAddr) -> Self {
        address.get()
    }
}
