//! Connections of Services as the recorder in the kernel counts them, for the rooms that know Services.

use std::net::{IpAddr, SocketAddr};

use crate::net::Protocol;

/// One end of Services' connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceEnd {
    /// All ports of an address: a Service's own.
    Address(IpAddr),
    /// One port: of an endpoint on this node.
    Port(SocketAddr, Protocol),
    /// One port of all addresses: a node port.
    NodePort(u16, Protocol),
}

/// Connections from the clients of one Service port to one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Counted {
    /// The destination before NAT.
    pub(crate) service: SocketAddr,
    /// The destination after NAT; the Service's own where nothing was translated.
    pub(crate) endpoint: SocketAddr,
    pub(crate) protocol: Protocol,
}
