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

/// The addresses that a condition names: those in some ranges, or all others. Takes 16 bytes: one range of IPv4, which
/// nearly every condition has, is stored inline.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "List")]
pub struct Addresses(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Ipv4 {
        first: Ipv4Addr,
        last: Ipv4Addr,
        negated: bool,
    },
    /// Never one range of IPv4.
    List(Box<List>),
}

/// Their form in recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct List<R = Box<[AddressRange]>> {
    ranges: R,
    negated: bool,
}

impl Addresses {
    pub fn new(ranges: impl Into<Box<[AddressRange]>>, negated: bool) -> Self {
        List { ranges: ranges.into(), negated }.into()
    }

    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        let (one, several): (_, &[_]) = match &self.0 {
            Form::Ipv4 { .. } => (self.one(), &[]),
            Form::List(list) => (None, &list.ranges),
        };
        one.into_iter().chain(several.iter().copied())
    }

    /// Whether it names the addresses outside the ranges.
    pub const fn is_negated(&self) -> bool {
        match &self.0 {
            Form::Ipv4 { negated, .. } => *negated,
            Form::List(list) => list.negated,
        }
    }

    /// The range, if there is only one.
    pub fn one(&self) -> Option<AddressRange> {
        match &self.0 {
            Form::Ipv4 { first, last, .. } => {
                Some(AddressRange { first: IpAddr::V4(*first), last: IpAddr::V4(*last) })
            }
            Form::List(list) => {
                if let [one] = *list.ranges {
                    Some(one)
                } else {
                    None
                }
            }
        }
    }

    /// The address, if it names only one.
    pub fn host(&self) -> Option<IpAddr> {
        self.one()?.as_host().filter(|_| !self.is_negated())
    }

    /// Whether it names this address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match &self.0 {
            Form::Ipv4 { first, last, negated } => (*first <= ip && ip <= *last) != *negated,
            Form::List(list) => list.ranges.iter().any(|range| range.contains(ip)) != list.negated,
        }
    }
}

impl From<List> for Addresses {
    fn from(of: List) -> Self {
        Self(match *of.ranges {
            [AddressRange { first: IpAddr::V4(first), last: IpAddr::V4(last) }] => {
                Form::Ipv4 { first, last, negated: of.negated }
            }
            _ => Form::List(of.into()),
        })
    }
}

impl Serialize for Addresses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Form::Ipv4 { negated, .. } => {
                List { ranges: self.one().as_slice(), negated: *negated }.serialize(serializer)
            }
            Form::List(list) => list.serialize(serializer),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_their_ranges_in_either_form() {
        let range = |text: &str| AddressRange::parse(text).unwrap();
        let lists = [
            vec![],
            vec![range("10.0.0.0/8")],
            vec![range("10.0.0.9-10.0.0.1")],
            vec![range("fd00::/64")],
            vec![range("10.0.0.1-fd00::9")],
            vec![range("10.0.0.1"), range("fd00::1")],
        ];
        let ips: [IpAddr; 4] = ["10.0.0.1", "11.0.0.1", "fd00::1", "::"].map(|ip| ip.parse().unwrap());
        for (ranges, negated) in lists.into_iter().flat_map(|list| [(list.clone(), false), (list, true)]) {
            let addresses = Addresses::new(ranges.clone(), negated);
            assert_eq!(addresses.ranges().collect::<Vec<_>>(), ranges);
            assert_eq!(addresses.one().as_slice(), if ranges.len() == 1 { &*ranges } else { &[] });
            assert_eq!(addresses.is_negated(), negated);
            for ip in ips {
                let is_in = ranges.iter().any(|range| range.contains(ip));
                assert_eq!(addresses.contains(ip), is_in != negated, "{addresses:?} {ip}");
            }
        }
    }
}
