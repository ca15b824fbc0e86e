//! Another address for each address: prefix by prefix, so that ranges stay ranges.
//!
//! Owns the mapping, which depends on a random key that is stored nowhere. Two addresses share as many leading bits after
//! it as before it (as in Crypto-PAn; Xu et al., 2002): rules of ranges, Pod ranges and neighbours stay what they
//! were. The ranges of [`SPECIAL_V4`] and [`SPECIAL_V6`] are mapped to themselves, those with a meaning for each host
//! address by address.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::rules::AddressRange;

/// Ranges that keep their prefix, and whether their addresses stay as they are: the first address, its bits, and that.
const SPECIAL_V4: [(Ipv4Addr, u32, bool); 8] = [
    (Ipv4Addr::UNSPECIFIED, 8, true),
    (Ipv4Addr::new(127, 0, 0, 0), 8, true),
    (Ipv4Addr::new(169, 254, 0, 0), 16, true),
    // Multicast, and the rest up to the broadcast address.
    (Ipv4Addr::new(224, 0, 0, 0), 3, true),
    (Ipv4Addr::new(10, 0, 0, 0), 8, false),
    (Ipv4Addr::new(100, 64, 0, 0), 10, false),
    (Ipv4Addr::new(172, 16, 0, 0), 12, false),
    (Ipv4Addr::new(192, 168, 0, 0), 16, false),
];
const SPECIAL_V6: [(Ipv6Addr, u32, bool); 6] = [
    // The unspecified address and that of the host itself, and what else begins with 95 zeros.
    (Ipv6Addr::UNSPECIFIED, 96, true),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, true),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 64, false),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 8, false),
    (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 8, false),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, false),
];
/// Solicited-node multicast, whose last 24 bits are those of an address.
const SOLICITED: (u128, u32) = (0xff02_0000_0000_0000_0000_0001_ff00_0000, 104);
/// The most addresses kept with their replacement; they are computed again after that.
const MAX_KNOWN: usize = 1 << 16;

/// The mapping of the recordings that are redacted together.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    key: RandomState,
    known: HashMap<IpAddr, IpAddr>,
    /// Different addresses so far that were replaced by another one; not exact above [`MAX_KNOWN`].
    pub(super) replaced: u64,
}

impl Addresses {
    pub(super) fn of(&mut self, ip: IpAddr) -> IpAddr {
        if let Some(known) = self.known.get(&ip) {
            return *known;
        }
        let other = match ip {
            IpAddr::V4(ip) => IpAddr::V4(self.v4(ip)),
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) => IpAddr::V6(self.v4(v4).to_ipv6_mapped()),
                None => IpAddr::V6(self.v6(v6)),
            },
        };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(ip, other);
        self.replaced += u64::from(ip != other);
        other
    }

    /// The beginning of a range with this many leading bits in common. Host bits that are zero stay zero.
    pub(super) fn range(&mut self, base: IpAddr, prefix: u8) -> IpAddr {
        let start = |ip: IpAddr| AddressRange::of(ip, prefix).map(|range| range.first);
        let other = self.of(base);
        if start(base) == Some(base) { start(other).unwrap_or(other) } else { other }
    }

    /// The ranges into which all addresses from the first to the last are mapped: one for each block of addresses with a
    /// common prefix.
    pub(super) fn ranges(&mut self, AddressRange { first, last }: AddressRange) -> Vec<AddressRange> {
        let (mut at, end, width) = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                (u128::from(first.to_bits()), u128::from(last.to_bits()), 32)
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => (first.to_bits(), last.to_bits(), 128),
            _ => return Vec::new(),
        };
        let mut found = Vec::new();
        while at <= end {
            // The largest block that begins here and does not go beyond the end.
            let mut bits = at.trailing_zeros().min(width);
            let beyond = |bits: u32| u128::MAX.checked_shr(128 - bits).unwrap_or(0) > end - at;
            while bits > 0 && beyond(bits) {
                bits -= 1;
            }
            let ip = if width == 32 {
                Ipv4Addr::from_bits(at as u32).into()
            } else {
                Ipv6Addr::from_bits(at).into()
            };
            found.extend(AddressRange::of(self.of(ip), (width - bits) as u8));
            let Some(next) = 1_u128.checked_shl(bits).and_then(|size| at.checked_add(size)) else { break };
            at = next;
        }
        found
    }

    fn v4(&self, ip: Ipv4Addr) -> Ipv4Addr {
        let special = SPECIAL_V4.map(|(base, bits, stays)| (u128::from(base.to_bits()), bits, stays));
        Ipv4Addr::from_bits(self.mapped(ip.to_bits().into(), 32, &special) as u32)
    }

    fn v6(&self, ip: Ipv6Addr) -> Ipv6Addr {
        let (solicited, bits) = SOLICITED;
        let mut special = SPECIAL_V6.map(|(base, bits, stays)| (base.to_bits(), bits, stays));
        if ip.to_bits() >> (128 - bits) == solicited >> (128 - bits) {
            special = special.map(|(base, bits, _)| (base, bits, false));
            return Ipv6Addr::from_bits(
                solicited | self.mapped(ip.to_bits(), 128, &special) & (u128::MAX >> bits),
            );
        }
        Ipv6Addr::from_bits(self.mapped(ip.to_bits(), 128, &special))
    }

    /// Flips each bit, or not, as a keyed hash of the bits before it decides. A bit on the way to a special range is not
    /// flipped, so that these ranges, and only their addresses, are mapped into them.
    fn mapped(&self, value: u128, width: u32, special: &[(u128, u32, bool)]) -> u128 {
        let top = |value: u128, bits: u32| value.checked_shr(width - bits).unwrap_or(0);
        let mut mapped = 0;
        for bit in 0..width {
            let before = top(value, bit);
            let is_fixed = special.iter().any(|(base, bits, stays)| {
                if bit < *bits {
                    top(*base, bit) == before
                } else {
                    *stays && top(value, *bits) == top(*base, *bits)
                }
            });
            let flip = !is_fixed && self.key.hash_one((width, bit, before)) & 1 == 1;
            let own = value >> (width - 1 - bit) & 1;
            mapped = mapped << 1 | own ^ u128::from(flip);
        }
        mapped
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn shared(a: IpAddr, b: IpAddr) -> u32 {
        match (a, b) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn prefixes_are_kept(a: u32, b: u32, c: [u16; 8], bits in 0..128_u32) {
            let mut map = Addresses::default();
            let (a, b) = (IpAddr::from(a.to_be_bytes()), IpAddr::from((a ^ b.checked_shr(bits).unwrap_or(0)).to_be_bytes()));
            prop_assert_eq!(shared(map.of(a), map.of(b)), shared(a, b));
            let c = Ipv6Addr::from(c);
            let d = IpAddr::from(Ipv6Addr::from_bits(c.to_bits() ^ 1 << bits));
            prop_assert_eq!(shared(map.of(c.into()), map.of(d)), shared(c.into(), d));
        }

        #[test]
        fn special_ranges_are_mapped_to_themselves(ips in vec(any::<u32>(), 1..50)) {
            let mut map = Addresses::default();
            for ip in ips {
                for (base, bits, stays) in SPECIAL_V4 {
                    let within = |ip: u32| ip >> (32 - bits) == base.to_bits() >> (32 - bits);
                    let inside = base.to_bits() | ip & u32::MAX.checked_shr(bits).unwrap_or(0);
                    for ip in [ip, inside] {
                        let IpAddr::V4(other) = map.of(IpAddr::from(ip.to_be_bytes())) else { panic!() };
                        prop_assert_eq!(within(ip), within(other.to_bits()));
                        prop_assert!(!(within(ip) && stays) || ip == other.to_bits());
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_range_is_mapped_address_by_address(first: u32, size in 0..700_u32, other: u32) {
            let mut map = Addresses::default();
            let ip = |bits: u32| IpAddr::from(bits.to_be_bytes());
            let range = AddressRange { first: ip(first), last: ip(first.saturating_add(size)) };
            let ranges = map.ranges(range);
            for probe in [other, first, first.wrapping_sub(1), first.saturating_add(size), first.saturating_add(size / 2)] {
                let is_in = ranges.iter().any(|range| range.contains(map.of(ip(probe))));
                prop_assert_eq!(is_in, range.contains(ip(probe)));
            }
        }
    }

    #[test]
    fn well_known_addresses_stay_and_others_do_not() {
        let mut map = Addresses::default();
        for ip in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(map.of(ip), ip);
        }
        assert_eq!(map.replaced, 0);
        let moved = (0..64_u8).filter(|last| {
            let ip = IpAddr::from([10, 244, *last, 1]);
            map.of(ip) != ip
        });
        assert_eq!(moved.count() as u64, map.replaced);
        // How many depends on the key; that none does has a chance of less than 2 to the power of -32.
        assert!(map.replaced > 0);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (mapped, own) = (map.of(ip("::ffff:10.1.2.3")), map.of(ip("10.1.2.3")));
        assert_eq!(mapped.to_canonical(), own);
        assert!(map.of(ip("fe80::1034:37ff:fe36:123f")).to_string().starts_with("fe80::"));
        assert!(map.of(ip("ff02::1:ff36:123f")).to_string().starts_with("ff02::1:ff"));
    }
}
