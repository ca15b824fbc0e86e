//! Several nodes on one kernel (kind, k3d, minikube with several nodes): the programs observe the traffic of all of them,
//! and each flow is its own node's to report, whose rules and kube-proxy it met.

use std::net::IpAddr;

use super::Context;
use crate::{flow::Flow, net::Netns};

/// The other node on this kernel whose flow this is: the API places its client there, or its target if the client is
/// unknown; it was first observed outside the namespace of this node's rules; and that namespace decided nothing for it.
/// `None` too where this node's name is not that of a Node with its addresses, because all its flows would be another's.
pub fn other_node<'a>(flow: &Flow, ctx: &Context<'a>) -> Option<&'a str> {
    let (own_netns, own_node) = (ctx.node_netns?, ctx.node_name?);
    let is_elsewhere = flow.netns != own_netns && flow.netns != Netns::default();
    if !is_elsewhere
        || flow.decision(ctx.node_netns).is_some()
        || flow.chosen_by_ipvs(ctx.node_netns).is_some()
    {
        return None;
    }
    let (client, target) = (flow.orig.src.ip(), flow.orig.dst.ip());
    // A target in ipvs mode is an address of every node.
    let is_own = |address: &IpAddr| ctx.node.is_own_address(*address) == Some(true);
    let named = ctx.cluster.node(own_node, flow.first_seen)?;
    if is_own(&client) || !named.addresses.iter().any(is_own) {
        return None;
    }
    let node_of = |address: IpAddr| {
        let pod = ctx.cluster.pod_by_ip(address, flow.first_seen).and_then(|pod| pod.node.as_deref());
        pod.or_else(|| Some(&*ctx.cluster.node_by_ip(address, flow.first_seen)?.key.name))
    };
    let target = node_of(target);
    let node = node_of(client).or(target)?;
    (node != own_node && target != Some(own_node)).then_some(node)
}
