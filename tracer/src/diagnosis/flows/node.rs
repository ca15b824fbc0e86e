//! The node's state as the rules of judgement ask for it.

use std::net::{IpAddr, SocketAddr};

use super::NodeView;
use crate::{
    net::Protocol,
    node::{IpvsSettings, NodeFacts, Rule, Ruling},
    time::Timestamp,
};

impl NodeView for NodeFacts {
    fn kube_proxy_mode(&self) -> Option<&str> {
        self.kube_proxy_mode()
    }
    fn kube_proxy_version(&self) -> Option<&str> {
        self.kube_proxy_version()
    }
    fn kube_proxy_running(&self) -> Option<bool> {
        self.kube_proxy_running()
    }
    fn other_dataplane(&self) -> Option<&str> {
        self.other_dataplane()
    }
    fn has_proxy_rules(&self) -> Option<bool> {
        self.has_proxy_rules()
    }
    fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<Rule> {
        self.rule(addr, protocol)
    }
    fn rulings(&self, addr: SocketAddr, protocol: Protocol, source: IpAddr) -> Vec<Ruling> {
        self.rulings(addr, protocol, source)
    }
    fn serves_node_port_at(&self, port: u16, protocol: Protocol) -> Option<IpAddr> {
        self.serves_node_port_at(port, protocol)
    }
    fn conntrack_use(&self) -> Option<(u64, u64)> {
        self.conntrack_use()
    }
    fn is_own_address(&self, ip: IpAddr) -> Option<bool> {
        self.is_own_address(ip)
    }
    fn ipvs_settings(&self) -> Option<IpvsSettings> {
        self.ipvs_settings()
    }
    fn read_at(&self) -> Option<Timestamp> {
        self.read_at()
    }
}
