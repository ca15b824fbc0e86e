//! This node's IPVS: its settings, and the kernel's lists over generic netlink.

mod kernel;

use serde::{Deserialize, Serialize};

use crate::node::sysctl::Sysctls;

pub(super) use kernel::saved;
pub use kernel::to_text;

/// IPVS's settings on the node (`net.ipv4.vs`); `None` if unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpvsSettings {
    /// `conntrack`: IPVS tracks its connections in conntrack; kube-proxy sets it.
    pub conntrack: Option<bool>,
    /// `expire_nodest_conn`: a packet to a removed real server ends its connection; otherwise such packets are dropped
    /// silently. kube-proxy sets it.
    pub expire_nodest_conn: Option<bool>,
    /// `conn_reuse_mode`: 0 follows the old entry when a client reuses a port, 1 schedules again. kube-proxy sets 0
    /// before Linux 5.9 and leaves the kernel's 1 since (kubernetes/kubernetes#93297).
    pub conn_reuse_mode: Option<u8>,
}

impl IpvsSettings {
    /// `None` if IPVS is not in the kernel.
    pub fn of(sysctls: &Sysctls) -> Option<Self> {
        let number = |name: &str| sysctls.number(&format!("net/ipv4/vs/{name}"));
        sysctls.has_folder("net/ipv4/vs").then(|| Self {
            conntrack: number("conntrack").map(|value| value != 0),
            expire_nodest_conn: number("expire_nodest_conn").map(|value| value != 0),
            conn_reuse_mode: number("conn_reuse_mode").and_then(|value| u8::try_from(value).ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_there_where_ipvs_is() {
        assert_eq!(IpvsSettings::of(&Sysctls::parse("net.ipv4.ip_forward = 1\n")), None);
        let sysctls = Sysctls::parse("net.ipv4.vs.conntrack = 1\nnet.ipv4.vs.conn_reuse_mode = 2\n");
        let expected =
            IpvsSettings { conntrack: Some(true), expire_nodest_conn: None, conn_reuse_mode: Some(2) };
        assert_eq!(IpvsSettings::of(&sysctls), Some(expected));
    }
}
