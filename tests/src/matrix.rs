//! The matrix of the dataplane: mode × Service kind × family × protocol. Each scenario declares as data which cells it
//! proves. The host knows the kernels and prints the table (`cargo xtask test --matrix`).
//!
//! It runs nothing and judges nothing.

use std::fmt;

use serde::Serialize;

/// How kube-proxy programs the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Mode {
    /// iptables mode with the nft backend of iptables, today's default.
    #[serde(rename = "iptables")]
    Iptables,
    /// iptables mode with the legacy backend.
    #[serde(rename = "iptables-legacy")]
    IptablesLegacy,
    #[serde(rename = "nftables")]
    Nftables,
    #[serde(rename = "ipvs")]
    Ipvs,
}

impl Mode {
    pub const ALL: [Self; 4] = [Self::Iptables, Self::IptablesLegacy, Self::Nftables, Self::Ipvs];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::IptablesLegacy => "iptables-legacy",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How clients reach a Service, or why it has no address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Kind {
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    NodePort,
    LoadBalancer,
    #[serde(rename = "externalIPs")]
    ExternalIps,
    Headless,
    ExternalName,
    /// A Service without a selector and with a manual slice.
    Selectorless,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::ClusterIp,
        Self::NodePort,
        Self::LoadBalancer,
        Self::ExternalIps,
        Self::Headless,
        Self::ExternalName,
        Self::Selectorless,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Family {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Protocol {
    #[serde(rename = "TCP")]
    Tcp,
    #[serde(rename = "UDP")]
    Udp,
    #[serde(rename = "SCTP")]
    Sctp,
}

/// One cell for one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Cell {
    pub mode: Mode,
    pub kind: Kind,
    pub family: Family,
    pub protocol: Protocol,
}

impl Cell {
    /// All cells.
    pub fn all() -> Vec<Self> {
        let every = Covers {
            kinds: &Kind::ALL,
            families: &[Family::V4, Family::V6],
            protocols: &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
        };
        Mode::ALL.into_iter().flat_map(|mode| every.cells(mode)).collect()
    }
}

/// The cells that a scenario proves in each mode it runs in: the product of these kinds, families and protocols.
#[derive(Clone, Copy, Debug)]
pub struct Covers {
    pub kinds: &'static [Kind],
    pub families: &'static [Family],
    pub protocols: &'static [Protocol],
}

impl Covers {
    /// The cells in this mode.
    pub fn cells(self, mode: Mode) -> impl Iterator<Item = Cell> {
        self.kinds.iter().flat_map(move |&kind| {
            self.families.iter().flat_map(move |&family| {
                self.protocols.iter().map(move |&protocol| Cell { mode, kind, family, protocol })
            })
        })
    }
}

/// The cell that most scenarios prove: TCP over IPv4 through a cluster IP.
pub const TCP4: &[Covers] =
    &[Covers { kinds: &[Kind::ClusterIp], families: &[Family::V4], protocols: &[Protocol::Tcp] }];
/// UDP over IPv4 through a cluster IP.
pub const UDP4: &[Covers] =
    &[Covers { kinds: &[Kind::ClusterIp], families: &[Family::V4], protocols: &[Protocol::Udp] }];

/// The error of a story whose kernel or node lacks a feature: the scenario was skipped and did not fail. The text is
/// the name of the missing feature, from the kernel or the hook plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn covers_are_a_product() {
        let covers = Covers {
            kinds: &[Kind::ClusterIp, Kind::NodePort],
            families: &[Family::V4, Family::V6],
            protocols: &[Protocol::Tcp],
        };
        let cells: Vec<_> = covers.cells(Mode::Ipvs).collect();
        assert_eq!(cells.len(), 4);
        let first = json!({"mode": "ipvs", "kind": "ClusterIP", "family": "IPv4", "protocol": "TCP"});
        assert_eq!(json!(cells[0]), first);
    }

    #[test]
    fn a_mode_is_serialised_as_it_is_displayed() {
        for mode in Mode::ALL {
            assert_eq!(json!(mode), json!(mode.as_str()));
        }
    }
}
