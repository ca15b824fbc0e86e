//! The way of a flow as a drawing: the client, the Service's address, its translation on the node, the endpoint, and where
//! it broke.
//!
//! Marks the place that the verdict's domain names, and none if that names none.

use super::writer::{Attributes, Html};
use crate::{class::Domain, report::row::end, verdict::Verdict};

/// A part of the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The rules, IPVS tables or conntrack entries that choose the endpoint.
    Translation,
    /// Between the translation and the endpoint, in either direction.
    Network,
    Endpoint,
}

fn broken(domain: Domain) -> Option<Place> {
    match domain {
        Domain::PodCrash
        | Domain::ApiConnectivity
        | Domain::IptablesSync
        | Domain::IpvsModules
        | Domain::StaleEndpoints
        | Domain::VersionSkew
        | Domain::ServiceConfig
        | Domain::Conntrack
        | Domain::NoEndpoints => Some(Place::Translation),
        Domain::NetworkPath | Domain::NetworkPolicy | Domain::Hairpin | Domain::Mtu => Some(Place::Network),
        Domain::BackendRefused => Some(Place::Endpoint),
        Domain::HostKernel | Domain::Normal | Domain::Unknown => None,
    }
}

/// Draws the way of the flow that the verdict is about; `which` names it.
pub(super) fn write(html: &mut Html, verdict: &Verdict, which: &str) {
    let (flow, domain) = (&verdict.flow, verdict.domain);
    // A connection to a Pod's own address passes no translation.
    let broke = broken(domain).map(|place| match place {
        Place::Translation if flow.vip.is_none() => Place::Network,
        place => place,
    });
    html.leaf("h4", &[], format!("The way of the {which}"));
    html.block("ol", &[("class", &"way")], |html| {
        let client = end(flow.client_pod.as_deref(), Some(flow.client), true);
        stop(html, "client", &client, false);
        if let Some(vip) = flow.vip {
            stop(html, "Service address", &format!("{vip} ({})", flow.protocol), false);
            let node = flow.node.as_deref().unwrap_or("the node");
            stop(html, "translation on the node", node, broke == Some(Place::Translation));
        }
        if broke == Some(Place::Network) {
            stop(html, "network", "between the node and the endpoint", true);
        }
        let endpoint = match flow.endpoint {
            Some(endpoint) => end(flow.endpoint_pod.as_deref(), Some(endpoint), true),
            None => "none was chosen".to_owned(),
        };
        stop(html, "endpoint", &endpoint, broke == Some(Place::Endpoint));
    });
    if broke.is_none() {
        html.leaf(
            "p",
            &[("class", &"note")],
            format!("The domain {} names no place on it.", domain.as_str()),
        );
    }
}

fn stop(html: &mut Html, role: &str, name: &str, is_broken: bool) {
    let attributes: Attributes = if is_broken { &[("class", &"broken")] } else { &[] };
    html.element("li", attributes, |html| {
        html.element("span", &[("class", &"role")], |html| html.text(role));
        html.element("span", &[("class", &"name")], |html| html.text(name));
        if is_broken {
            html.element("strong", &[], |html| html.text("✕ broke here"));
        }
    });
}
