//! Several nodes on one kernel (kind, k3d, minikube with several nodes): the programs observe the traffic of all of them,
//! and each flow is its own node's to report, whose rules and kube-proxy it met.

use std::net::IpAddr;

use super::Surroundings;
use crate::flow::Flow;

/// The other node on this kernel whose flow this is: the API places its client there, or its target if the client is
/// unknown and another namespace decided; it was first observed outside the namespace of this node's rules; and that namespace
/// decided nothing about this address for it. `None` too where this node's name is not that of a Node with its addresses,
/// because all its flows would be another's.
pub fn other_node<'a>(flow: &Flow, around: &Surroundings<'a>) -> Option<&'a str> {
    let own_node = around.node_name?;
    // A Pod that masquerades what its guests send has another address in this node's decision.
    let decided_here = flow
        .decisions
        .iter()
        .any(|decision| !around.is_elsewhere(decision.netns) && decision.ct.orig.dst == flow.orig.dst);
    let chosen_here = flow.chosen_by_ipvs(around.node_netns).is_some();
    if !around.is_elsewhere(flow.netns) || decided_here || chosen_here {
        return None;
    }
    let (client, target) = (flow.orig.src.ip(), flow.orig.dst.ip());
    // Only the client is compared: in ipvs mode every node has the Services' addresses.
    let is_own = |address: &IpAddr| around.node.is_own_address(*address) == Some(true);
    let named = around.cluster.node(own_node, flow.first_seen)?;
    if is_own(&client) || !named.addresses.iter().any(is_own) {
        return None;
    }
    let node_of = |address| around.cluster.node_of(address, flow.first_seen).map(|node| &**node);
    let target = node_of(target);
    let node = node_of(client).or_else(|| target.filter(|_| !flow.decisions.is_empty()))?;
    (node != own_node && target != Some(own_node)).then_some(node)
}
