//! Sets and maps of nftables, and ipsets.

use std::{fmt, net::IpAddr};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use super::{AddressRange, Name, Verdict, saved};
use crate::net::Protocol;

/// A packet field that a set or map is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Field {
    Source,
    Destination,
    Protocol,
    /// The destination port.
    Port,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    Source,
    Destination,
}

/// A dimension of an ipset, as in the name of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dimension {
    /// `ip` or `net`.
    Address,
    /// `port` of a hash: a protocol and a port.
    ProtocolPort,
    /// `bitmap:port`: a port of any protocol.
    Port,
}

/// One part of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Datum {
    Address(IpAddr),
    Protocol(Protocol),
    Port(u16),
    Range(AddressRange),
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => write!(f, "{ip}"),
            Self::Protocol(Protocol::TCP) => f.write_str("tcp"),
            Self::Protocol(Protocol::UDP) => f.write_str("udp"),
            Self::Protocol(Protocol::SCTP) => f.write_str("sctp"),
            Self::Protocol(Protocol(number)) => write!(f, "{number}"),
            Self::Port(port) => write!(f, "{port}"),
            Self::Range(range) => write!(f, "{range}"),
        }
    }
}

pub(crate) type Key = Box<[Datum]>;

/// A set of nftables or an ipset, or a map if its elements have verdicts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Set {
    pub name: Name,
    #[serde(with = "saved::elements")]
    elements: HashMap<Key, Option<Verdict>>,
    /// Elements that contain a range, which are searched one by one.
    ranges: Vec<(Key, Option<Verdict>)>,
    /// The lifetime of an element in seconds, for a set that packets add to.
    pub timeout: Option<u32>,
    /// The dimensions of an ipset.
    pub dimensions: Box<[Dimension]>,
    /// An element was not understood. Not in recordings of the first version.
    #[serde(default)]
    pub partial: bool,
    /// Elements of an ipset that are excluded from a larger one (`nomatch`). Not in recordings of the first version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    except: Vec<Key>,
}

impl Set {
    pub fn new(name: impl Into<Name>) -> Self {
        Self {
            name: name.into(),
            elements: HashMap::default(),
            ranges: Vec::new(),
            timeout: None,
            dimensions: Box::default(),
            partial: false,
            except: Vec::new(),
        }
    }

    /// Excludes these from a larger element.
    pub fn exclude(&mut self, key: Key) {
        self.except.push(key);
    }

    pub fn insert(&mut self, key: Key, verdict: Option<Verdict>) {
        if key.iter().any(|datum| matches!(datum, Datum::Range(_))) {
            self.ranges.push((key, verdict));
        } else {
            self.elements.insert(key, verdict);
        }
    }

    pub fn len(&self) -> usize {
        self.elements.len() + self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every element with its verdict, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, Option<&Verdict>)> {
        let single = self.elements.iter().map(|(key, verdict)| (key, verdict.as_ref()));
        single.chain(self.ranges.iter().map(|(key, verdict)| (key, verdict.as_ref())))
    }

    /// The element with this key, and its verdict in a map.
    #[expect(clippy::option_option, reason = "an element of a set has no verdict")]
    pub fn find(&self, key: &[Datum]) -> Option<Option<&Verdict>> {
        if let Some(verdict) = self.elements.get(key) {
            return Some(verdict.as_ref());
        }
        let found = self.ranges.iter().find(|(element, _)| holds(element, key));
        found.filter(|_| !self.is_excluded(key)).map(|(_, verdict)| verdict.as_ref())
    }

    /// Whether the smallest element around the key is one that excludes it (`hash_net_test` in
    /// `net/netfilter/ipset/ip_set_hash_gen.h`).
    fn is_excluded(&self, key: &[Datum]) -> bool {
        let within = |inner: &Key, outer: &Key| inner != outer && holds(outer, inner);
        let is_smallest = |without: &&Key| {
            !self.ranges.iter().any(|(element, _)| holds(element, key) && within(element, without))
        };
        self.except.iter().filter(|without| holds(without, key)).any(|without| is_smallest(&without))
    }

    /// Passes its own name, and those of the chains to which its verdicts lead, to `visit`.
    pub(super) fn visit_names(&mut self, visit: &mut impl FnMut(&mut Name)) {
        visit(&mut self.name);
        let verdicts = self.elements.values_mut().chain(self.ranges.iter_mut().map(|(_, verdict)| verdict));
        verdicts.flatten().for_each(|verdict| verdict.visit_names(visit));
    }

    pub(super) fn absorb(&mut self, other: Self) {
        if self.elements.is_empty() {
            self.elements = other.elements;
        } else {
            self.elements.extend(other.elements);
        }
        self.ranges.extend(other.ranges);
        self.timeout = self.timeout.or(other.timeout);
        self.partial |= other.partial;
        self.except.extend(other.except);
        if self.dimensions.is_empty() {
            self.dimensions = other.dimensions;
        }
    }
}

/// Whether each part of the element contains that of the key.
fn holds(element: &[Datum], key: &[Datum]) -> bool {
    let part = |(element, datum): (&Datum, &Datum)| match (element, datum) {
        (Datum::Range(range), Datum::Address(ip)) => range.contains(*ip),
        (Datum::Range(range), Datum::Range(inner)) => {
            range.contains(inner.first) && range.contains(inner.last)
        }
        (element, datum) => element == datum,
    };
    element.len() == key.len() && element.iter().zip(key).all(part)
}
