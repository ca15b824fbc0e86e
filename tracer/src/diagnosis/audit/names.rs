//! The names that kube-proxy gives its chains, which identify a chain without its comments.
//!
//! iptables: `pkg/proxy/iptables/proxier.go`, `portProtoHash` and `servicePortEndpointChainName`. nftables:
//! `pkg/proxy/nftables/proxier.go`, `hashAndTruncate`.

use std::net::SocketAddr;

use data_encoding::BASE32;
use ring::digest::{SHA256, digest};

use crate::{
    cluster::model::{Key, ServicePort},
    net::Protocol,
};

/// nftables chain names are cut so that hash and name have this many characters at most (`chainNameBaseLengthMax`).
const MAX_NFTABLES_NAME: usize = 240;

/// `namespace/name:port`, or `namespace/name` if the port has no name.
pub fn port_name(service: &Key, port: &ServicePort) -> String {
    if port.name.is_empty() { service.to_string() } else { format!("{service}:{}", port.name) }
}

pub const fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::UDP => "udp",
        Protocol::SCTP => "sctp",
        _ => "tcp",
    }
}

/// The 16 characters after `KUBE-SVC-`, `KUBE-SVL-`, `KUBE-EXT-` and `KUBE-FW-`.
pub fn iptables_hash(service: &Key, port: &ServicePort) -> String {
    hash(&format!("{}{}", port_name(service, port), protocol_name(port.protocol)), 16)
}

/// `KUBE-SEP-…`
pub fn iptables_endpoint(service: &Key, port: &ServicePort, endpoint: SocketAddr) -> String {
    let name = format!("{}{}{endpoint}", port_name(service, port), protocol_name(port.protocol));
    format!("KUBE-SEP-{}", hash(&name, 16))
}

/// `242WI43H-shop/cart/tcp/http`, to which nftables mode prefixes `service-`, `local-`, `external-` or `firewall-`.
pub fn nftables_base(service: &Key, port: &ServicePort) -> String {
    with_hash(&nftables_readable(service, port))
}

/// `endpoint-CMZFK4QB-shop/cart/tcp/http__10.244.1.11/8080`
pub fn nftables_endpoint(service: &Key, port: &ServicePort, endpoint: SocketAddr) -> String {
    // Colons are not allowed in the name of a chain.
    let address = endpoint.ip().to_string().replace(':', ".");
    let readable = format!("{}__{address}/{}", nftables_readable(service, port), endpoint.port());
    format!("endpoint-{}", with_hash(&readable))
}

fn nftables_readable(service: &Key, port: &ServicePort) -> String {
    format!("{service}/{}/{}", protocol_name(port.protocol), port.name)
}

fn with_hash(readable: &str) -> String {
    let name = format!("{}-{readable}", hash(readable, 8));
    match name.char_indices().nth(MAX_NFTABLES_NAME - 3) {
        Some((end, _)) if name.chars().count() > MAX_NFTABLES_NAME => {
            format!("{}...", name.get(..end).unwrap_or_default())
        }
        _ => name,
    }
}

fn hash(text: &str, length: usize) -> String {
    let mut encoded = BASE32.encode(digest(&SHA256, text.as_bytes()).as_ref());
    encoded.truncate(length);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::TargetPort;

    #[test]
    fn names_equal_those_of_kube_proxy() {
        let key = Key::new("shop", "cart");
        let port = ServicePort {
            name: "http".into(),
            protocol: Protocol::TCP,
            port: 80,
            target: TargetPort::Number(8080),
            node_port: None,
        };
        assert_eq!(iptables_hash(&key, &port), "I5LIAMPLWKMBJ54B");
        let v4 = SocketAddr::from(([10, 244, 1, 12], 8080));
        assert_eq!(iptables_endpoint(&key, &port, v4), "KUBE-SEP-4O5AICOKW2EZK2IV");
        assert_eq!(nftables_base(&key, &port), "242WI43H-shop/cart/tcp/http");
        let v4 = SocketAddr::from(([10, 244, 1, 11], 8080));
        assert_eq!(
            nftables_endpoint(&key, &port, v4),
            "endpoint-CMZFK4QB-shop/cart/tcp/http__10.244.1.11/8080"
        );
        let v6 = SocketAddr::from(([0xfd00, 0x10, 0x244, 1, 0, 0, 0, 0x11], 8080));
        assert_eq!(
            nftables_endpoint(&key, &port, v6),
            "endpoint-WR5Y5PEM-shop/cart/tcp/http__fd00.10.244.1..11/8080"
        );
    }
}
