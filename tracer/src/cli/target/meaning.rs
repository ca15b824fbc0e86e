//! The meaning of a target: a set of addresses for the kernel's filter, a match for a verdict.
//!
//! Owns the reasons why a target cannot be traced, and the remedies.

use std::net::IpAddr;

use super::Target;
use crate::{
    cli::ResultExt as _,
    cluster::{
        History,
        model::{Key, Service, ServiceType},
    },
    text::word,
    time::Timestamp,
    verdict::Verdict,
};

impl Target {
    /// The target's current addresses, for the kernel's filter. The filter passes more than the target (an endpoint
    /// also serves other Services); [`Self::matches`] decides.
    pub fn addresses(&self, history: &History, now: Timestamp) -> Vec<IpAddr> {
        let mut addresses = match self {
            Self::Address { ip, .. } => vec![*ip],
            Self::Pod { namespace, name } => {
                history.pod(&Key::new(namespace, name), now).map(|pod| pod.ips.to_vec()).unwrap_or_default()
            }
            Self::Service { namespace, name } => {
                let key = Key::new(namespace, name);
                let Some(service) = history.service(&key, now) else { return Vec::new() };
                let mut found: Vec<IpAddr> = service.own_ips().collect();
                for port in &service.ports {
                    found
                        .extend(history.endpoints(&key, port, now).iter().map(|endpoint| endpoint.addr.ip()));
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

    /// Fails if the target can have no flows: the object does not exist, or the Service has no address of its own
    /// (C27).
    pub fn check(&self, history: &History, now: Timestamp) -> anyhow::Result<()> {
        let found = match self {
            Self::Address { .. } => true,
            Self::Pod { namespace, name } => history.pod(&Key::new(namespace, name), now).is_some(),
            Self::Service { namespace, name } => match history.service(&Key::new(namespace, name), now) {
                Some(service) => return has_address(service, history, now),
                None => false,
            },
        };
        if found {
            return Ok(());
        }
        Err(anyhow::anyhow!("there is no {self} in this cluster"))
            .hint(|| "`kubectl get services,pods -A` lists the existing ones".to_owned())
    }

    /// Whether it is the flow's client.
    pub(crate) fn is_client(&self, verdict: &Verdict) -> bool {
        let client = verdict.flow.client;
        match self {
            Self::Service { .. } => false,
            Self::Pod { namespace, name } => {
                let pod = verdict.flow.client_pod.as_deref().and_then(|pod| pod.split_once('/'));
                pod == Some((namespace.as_str(), name.as_str()))
            }
            Self::Address { ip, port } => client.ip() == *ip && port.is_none_or(|port| client.port() == port),
        }
    }

    /// Whether a verdict belongs to the target.
    pub fn matches(&self, verdict: &Verdict) -> bool {
        let flow = &verdict.flow;
        match self {
            Self::Service { namespace, name } => verdict
                .service
                .as_ref()
                .is_some_and(|service| *service.namespace == **namespace && *service.name == **name),
            Self::Pod { namespace, name } => {
                let is = |pod: &Option<String>| {
                    pod.as_deref().and_then(|pod| pod.split_once('/'))
                        == Some((namespace.as_str(), name.as_str()))
                };
                is(&flow.client_pod) || is(&flow.endpoint_pod)
            }
            Self::Address { ip, port } => [Some(flow.client), flow.vip, flow.endpoint]
                .into_iter()
                .flatten()
                .any(|addr| addr.ip() == *ip && port.is_none_or(|port| addr.port() == port)),
        }
    }
}

fn has_address(service: &Service, history: &History, now: Timestamp) -> anyhow::Result<()> {
    let Some(why) = service.without_address() else { return Ok(()) };
    let error = format!("{} has no VIP, so no connection to it can be traced (C27): {why}", service.key);
    Err(anyhow::Error::msg(error)).hint(|| what_to_do(service, history, now))
}

/// The command that examines the failure in another place.
fn what_to_do(service: &Service, history: &History, now: Timestamp) -> String {
    if let Some(name) = &service.external_name {
        let name = word(name);
        return format!(
            "`nslookup {name}` in the client's Pod shows whether the name resolves; its target is outside kube-proxy"
        );
    }
    let Key { namespace, name } = &service.key;
    let mut endpoints = service.ports.iter().flat_map(|port| history.endpoints(&service.key, port, now));
    endpoints.next().map_or_else(
        || {
            format!(
                "`kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name}` lists what the name \
                 resolves to"
            )
        },
        |endpoint| {
            format!(
                "`nslookup {name}.{namespace}` in the client's Pod shows whether the name resolves; `nc -vz {} {}` there, \
                 whether a Pod answers",
                endpoint.addr.ip(),
                endpoint.addr.port()
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{cli::hint::hint, cluster::folder};

    /// 2026-11-20T23:28:00Z, before the fixture's watch begins.
    const BEFORE: Timestamp = Timestamp::from_unix_secs(1_795_217_280);

    /// The error for a target in the fixture cluster, and its hint.
    fn said(target: &str) -> Option<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/cluster");
        let history = folder::read(&folder, Duration::from_hours(1)).unwrap().history;
        let target = Target::parse(target, None).unwrap();
        let error = target.check(&history, BEFORE).err()?;
        Some((error.to_string(), hint(&error).unwrap()))
    }

    #[test]
    fn a_service_without_an_address_is_refused_with_the_reason() {
        let (error, hint) = said("shop/db").unwrap();
        assert!(
            error.starts_with("shop/db has no VIP") && error.contains("(C27): it is headless"),
            "{error}"
        );
        assert!(hint.contains("`nc -vz 10.244.2.61 5432`"), "{hint}");
        let (error, hint) = said("shop/legacy").unwrap();
        assert!(error.contains("a name in DNS"), "{error}");
        assert!(hint.contains("nslookup legacy.example.com"), "{hint}");
    }

    #[test]
    fn what_is_there_is_traced_and_what_is_not_is_named() {
        for target in ["shop/cart", "pod/shop/cart-1", "203.0.113.9:80"] {
            assert_eq!(said(target), None, "{target}");
        }
        for target in ["shop/nobody", "pod/shop/nobody"] {
            let (error, hint) = said(target).unwrap();
            assert!(error.contains("shop/nobody") && hint.contains("kubectl get"), "{error}; {hint}");
        }
    }
}
