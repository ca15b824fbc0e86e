//! The ends of connections that belong to Services, by which a recorder in the kernel recognises their connections.

use std::collections::BTreeSet;

use super::History;
use crate::{kernel::connections::ServiceEnd, time::Timestamp};

impl History {
    /// The Services' own addresses with all their ports, their node ports, and the endpoints on `node` (without a name,
    /// all endpoints), where connections from other nodes arrive translated.
    pub fn service_ends(&self, node: Option<&str>, at: Timestamp) -> BTreeSet<ServiceEnd> {
        let mut ends = BTreeSet::new();
        for service in self.services() {
            ends.extend(service.own_ips().map(ServiceEnd::Address));
            for port in &service.ports {
                ends.extend(port.node_port.map(|number| ServiceEnd::NodePort(number, port.protocol)));
                let endpoints = self.endpoints(&service.key, port, at).into_iter();
                let here = endpoints.filter(|endpoint| node.is_none() || endpoint.node == node);
                ends.extend(here.map(|endpoint| ServiceEnd::Port(endpoint.addr, port.protocol)));
            }
        }
        ends
    }
}
