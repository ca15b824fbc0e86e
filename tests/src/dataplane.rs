//! The variants of a scenario: the mode in which kube-proxy wrote the node's rules, and the address family of the
//! traffic. Module `rules` knows what each mode needs on the node.

use std::{fmt, net::IpAddr};

pub use crate::matrix::{Family, Mode};

impl Mode {
    /// The folder of a capture with kube-proxy's output and rules in this mode.
    pub const fn capture(self) -> &'static str {
        match self {
            Self::Iptables | Self::IptablesLegacy => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Kubernetes' spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub const fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The length of a prefix that holds one address.
    pub const fn host_prefix(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// A mode and a family to run a scenario in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variant {
    pub mode: Mode,
    pub family: Family,
}

impl Variant {
    /// The variant of most scenarios; their names omit it.
    pub const DEFAULT: Self = Self::new(Mode::Iptables, Family::V4);

    pub const fn new(mode: Mode, family: Family) -> Self {
        Self { mode, family }
    }
}

/// iptables through nft, IPv4.
pub const DEFAULT: &[Variant] = &[Variant::DEFAULT];
const IPTABLES_6: Variant = Variant::new(Mode::Iptables, Family::V6);
const LEGACY: Variant = Variant::new(Mode::IptablesLegacy, Family::V4);
const LEGACY_6: Variant = Variant::new(Mode::IptablesLegacy, Family::V6);
const NFTABLES: Variant = Variant::new(Mode::Nftables, Family::V4);
const NFTABLES_6: Variant = Variant::new(Mode::Nftables, Family::V6);
/// Faults that only nftables' tables can have.
pub const NFTABLES_ONLY: &[Variant] = &[NFTABLES];
/// Features that exist only in IPVS.
pub const IPVS_ONLY: &[Variant] = &[IPVS];
const IPVS: Variant = Variant::new(Mode::Ipvs, Family::V4);
const IPVS_6: Variant = Variant::new(Mode::Ipvs, Family::V6);
/// Every mode in every family.
pub const WHOLE: &[Variant] =
    &[Variant::DEFAULT, IPTABLES_6, LEGACY, LEGACY_6, NFTABLES, NFTABLES_6, IPVS, IPVS_6];
/// Every mode, in each family that covers different code.
pub const EVERY: &[Variant] = &[Variant::DEFAULT, IPTABLES_6, LEGACY, NFTABLES, NFTABLES_6, IPVS];
/// Every mode that writes netfilter rules, in each family that covers different code.
pub const NETFILTER: &[Variant] = &[Variant::DEFAULT, IPTABLES_6, LEGACY, NFTABLES, NFTABLES_6];
/// The same for IPv4, for Services that the captures have only in IPv4.
pub const NETFILTER_4: &[Variant] = &[Variant::DEFAULT, LEGACY, NFTABLES];
/// Behaviour that differs between families but not between modes.
pub const BOTH_FAMILIES: &[Variant] = &[Variant::DEFAULT, IPTABLES_6];
/// Faults whose function is another one over IPv6.
pub const IPV6_ONLY: &[Variant] = &[IPTABLES_6];
/// Modes in which another writer's leftovers can coexist with kube-proxy's rules.
pub const BESIDE_OTHERS: &[Variant] = &[Variant::DEFAULT, NFTABLES];
/// Modes whose rules a newer kube-proxy writes differently.
pub const NEWER: &[Variant] = &[Variant::DEFAULT, IPTABLES_6, NFTABLES, NFTABLES_6];
/// The variants that differ most, for scenarios that take long.
pub const WIDE: &[Variant] = &[Variant::DEFAULT, IPTABLES_6, NFTABLES, IPVS];
/// The default variant, and the mode whose decisions are not only NAT's.
pub const WITH_IPVS: &[Variant] = &[Variant::DEFAULT, IPVS];
/// Modes whose rules and objects were captured at the same time, which a check without findings needs. IPVS's servers
/// were captured at another time, and only for IPv4.
pub const OF_ONE_TIME: &[Variant] = &[Variant::DEFAULT, IPTABLES_6, NFTABLES];

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            Family::V4 => write!(f, "{}", self.mode),
            Family::V6 => write!(f, "{}-ipv6", self.mode),
        }
    }
}
