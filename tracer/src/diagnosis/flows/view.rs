//! What diagnosis asks of the node.
//!
//! Owns the questions and the plain answers, so that the rules can be read and tested without it.

use std::net::{IpAddr, SocketAddr};

use crate::{
    net::Protocol,
    node::{IpvsSettings, Rule, Ruling},
    time::Timestamp,
};

/// The node as it was last read. `None` means not known.
pub trait NodeView {
    /// `iptables`, `nftables` or `ipvs`.
    fn kube_proxy_mode(&self) -> Option<&str>;
    fn kube_proxy_version(&self) -> Option<&str>;
    fn kube_proxy_running(&self) -> Option<bool>;
    /// Another program than kube-proxy that is known to serve Services where kube-proxy does not, and has its network
    /// interfaces here.
    fn other_dataplane(&self) -> Option<&str> {
        None
    }
    /// Whether any of kube-proxy's rules stand, and packets get to them.
    fn has_proxy_rules(&self) -> Option<bool>;
    fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<Rule>;
    /// The same of each writer that has rules of kube-proxy in this family, leftovers of another mode or backend among
    /// them, for a connection from `source` where that is known to matter. Empty where no rules were read.
    fn rulings(&self, _addr: SocketAddr, _protocol: Protocol, _source: IpAddr) -> Vec<Ruling> {
        Vec::new()
    }
    /// Another address of this node at which its rules serve this node port; `None` also where that is not known.
    fn serves_node_port_at(&self, _port: u16, _protocol: Protocol) -> Option<IpAddr> {
        None
    }
    /// Entries and the limit (`nf_conntrack_count`, `nf_conntrack_max`).
    fn conntrack_use(&self) -> Option<(u64, u64)>;
    /// Whether the address is one of this node's own, bridges included.
    fn is_own_address(&self, ip: IpAddr) -> Option<bool>;
    fn ipvs_settings(&self) -> Option<IpvsSettings> {
        None
    }
    /// When it was read.
    fn read_at(&self) -> Option<Timestamp>;
}
