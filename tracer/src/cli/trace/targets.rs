//! What a target means: to the kernel's filter a set of addresses, to a verdict a match.

use std::net::IpAddr;

use crate::{
    cli::target::Target,
    cluster::{
        History,
        model::{Key, ServiceType},
    },
    time::Timestamp,
    verdict::Verdict,
};

/// The addresses that concern a target now, for the kernel's filter. It lets more through than is meant (an endpoint
/// serves other Services too); [`matches`] decides.
pub(super) fn addresses(target: &Target, history: &History, now: Timestamp) -> Vec<IpAddr> {
    let mut addresses = match target {
        Target::Address { ip, .. } => vec![*ip],
        Target::Pod { namespace, name } => {
            history.pod(&Key::new(namespace, name), now).map(|pod| pod.ips.clone()).unwrap_or_default()
        }
        Target::Service { namespace, name } => {
            let key = Key::new(namespace, name);
            let Some(service) = history.service(&key, now) else { return Vec::new() };
            let mut found: Vec<IpAddr> =
                [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips]
                    .into_iter()
                    .flatten()
                    .copied()
                    .collect();
            for port in &service.ports {
                found.extend(history.endpoints(&key, port, now).iter().map(|endpoint| endpoint.addr.ip()));
            }
            if matches!(service.r#type, ServiceType::NodePort | ServiceType::LoadBalancer) {
                found.extend(history.nodes().flat_map(|node| node.addresses.iter().copied()));
            }
            found
        }
    };
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Whether there is such an object; an address always is.
pub(super) fn exists(target: &Target, history: &History, now: Timestamp) -> bool {
    match target {
        Target::Address { .. } => true,
        Target::Pod { namespace, name } => history.pod(&Key::new(namespace, name), now).is_some(),
        Target::Service { namespace, name } => history.service(&Key::new(namespace, name), now).is_some(),
    }
}

/// Whether a verdict is about the target.
pub(super) fn matches(target: &Target, verdict: &Verdict) -> bool {
    let flow = &verdict.flow;
    match target {
        Target::Service { namespace, name } => verdict
            .service
            .as_ref()
            .is_some_and(|service| service.namespace == *namespace && service.name == *name),
        Target::Pod { namespace, name } => {
            let is = |pod: &Option<String>| {
                pod.as_deref().and_then(|pod| pod.split_once('/'))
                    == Some((namespace.as_str(), name.as_str()))
            };
            is(&flow.client_pod) || is(&flow.endpoint_pod)
        }
        Target::Address { ip, port } => [Some(flow.client), flow.vip, flow.endpoint]
            .into_iter()
            .flatten()
            .any(|addr| addr.ip() == *ip && port.is_none_or(|port| addr.port() == port)),
    }
}
