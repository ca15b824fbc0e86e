//! The target of a trace: a Service, a Pod or an address.

mod meaning;

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use crate::cluster::Key;

/// The target of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Service {
        namespace: String,
        name: String,
    },
    Pod {
        namespace: String,
        name: String,
    },
    /// Any end of a flow: client, VIP or endpoint.
    Address {
        ip: IpAddr,
        port: Option<u16>,
    },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { namespace, name } => write!(f, "service/{namespace}/{name}"),
            Self::Pod { namespace, name } => write!(f, "pod/{namespace}/{name}"),
            Self::Address { ip, port: Some(port) } => SocketAddr::new(*ip, *port).fmt(f),
            Self::Address { ip, port: None } => ip.fmt(f),
        }
    }
}

impl Target {
    /// Parses `NAMESPACE/SERVICE`, `service/NAMESPACE/NAME`, `pod/NAMESPACE/NAME`, `IP`, `IP:PORT` or `[IPv6]:PORT`.
    /// With a `namespace` (`-n`) the names suffice: `SERVICE`, `service/NAME`, `pod/NAME`. The error is for the user.
    pub fn parse(text: &str, namespace: Option<&str>) -> Result<Self, String> {
        if let Some(address) = address(text)? {
            return Ok(address);
        }
        let parts: Vec<_> = text.split('/').collect();
        let needs_namespace =
            |example: &str| format!("{text:?} lacks the namespace: write {example}, or add -n NAMESPACE");
        match (parts.as_slice(), namespace) {
            (["pod" | "pods" | "po", namespace, name], _) => Self::pod(namespace, name),
            (["pod" | "pods" | "po", name], Some(namespace)) => Self::pod(namespace, name),
            (["pod" | "pods" | "po", name], None) => Err(needs_namespace(&format!("pod/NAMESPACE/{name}"))),
            (["service" | "services" | "svc", name], None) => {
                Err(needs_namespace(&format!("service/NAMESPACE/{name}")))
            }
            (["service" | "services" | "svc", name] | [name], Some(namespace)) => {
                Self::of_service(namespace, name)
            }
            ([own, name], Some(other)) if own != &other => {
                Err(format!("{text:?} names the namespace {own:?}, and -n names {other:?}: leave one out"))
            }
            (["service" | "services" | "svc", namespace, name] | [namespace, name], _) => {
                Self::of_service(namespace, name)
            }
            ([name], None) if is_label(name) => Err(needs_namespace(&format!("NAMESPACE/{name}"))),
            _ => Err(format!(
                "{text:?} is not a target: write NAMESPACE/SERVICE, pod/NAMESPACE/NAME, an IP address, IP:PORT or \
                 [IPv6]:PORT"
            )),
        }
    }

    /// Refuses a namespace (`-n`) that has no effect, since the target's name is complete or it is an address. The error is for
    /// the user.
    pub(crate) fn fits(&self, namespace: &str) -> Result<(), String> {
        match self {
            Self::Service { namespace: own, .. } | Self::Pod { namespace: own, .. } if own == namespace => {
                Ok(())
            }
            Self::Service { namespace: own, .. } | Self::Pod { namespace: own, .. } => {
                Err(format!("{self} is in the namespace {own:?}, and -n names {namespace:?}: leave one out"))
            }
            Self::Address { .. } => Err(format!("-n has no effect with {self}: an address has no namespace")),
        }
    }

    /// The Service, if it is one.
    pub(crate) fn service(&self) -> Option<Key> {
        match self {
            Self::Service { namespace, name } => Some(Key::new(namespace, name)),
            _ => None,
        }
    }

    fn of_service(namespace: &str, name: &str) -> Result<Self, String> {
        check(is_label(namespace), "namespace", namespace)?;
        check(is_label(name), "Service", name)?;
        Ok(Self::Service { namespace: namespace.into(), name: name.into() })
    }

    fn pod(namespace: &str, name: &str) -> Result<Self, String> {
        check(is_label(namespace), "namespace", namespace)?;
        check(is_subdomain(name), "Pod", name)?;
        Ok(Self::Pod { namespace: namespace.into(), name: name.into() })
    }
}

fn check(valid: bool, what: &str, name: &str) -> Result<(), String> {
    if valid {
        Ok(())
    } else {
        Err(format!(
            "{name:?} cannot be the name of a {what}: Kubernetes has lower-case letters, digits and '-'"
        ))
    }
}

/// An address, if the text looks like one; an error if it is an invalid one.
fn address(text: &str) -> Result<Option<Target>, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Some(Target::Address { ip, port: None }));
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
        && let Ok(ip) = inner.parse::<Ipv6Addr>()
    {
        return Ok(Some(Target::Address { ip: ip.into(), port: None }));
    }
    if let Some((name, _)) = text.rsplit_once(':')
        && name.bytes().any(|byte| byte.is_ascii_lowercase())
        && name.split('/').all(is_label)
    {
        return Err(format!("{text:?} names a port: write the Service without it: {name}"));
    }
    match text.parse::<SocketAddr>() {
        Ok(addr) if addr.port() == 0 => Err(format!("{text:?}: no connection has port 0")),
        Ok(addr) => Ok(Some(Target::Address { ip: addr.ip(), port: Some(addr.port()) })),
        Err(_) if text.contains([':', '[']) => Err(format!(
            "{text:?} is not an address: write IP, IP:PORT or [IPv6]:PORT, with a port from 1 to 65535"
        )),
        Err(_) if text.contains('.') && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            Err(format!("{text:?} is not a whole IPv4 address"))
        }
        Err(_) => Ok(None),
    }
}

/// An RFC 1123 label, the form of namespaces and Services.
fn is_label(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(inside)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// An RFC 1123 subdomain, the form of Pods.
fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str, namespace: Option<&str>) -> String {
        Target::parse(text, namespace).unwrap().to_string()
    }

    #[test]
    fn every_form() {
        for (text, namespace, expected) in [
            ("shop/cart", None, "service/shop/cart"),
            ("shop/cart", Some("shop"), "service/shop/cart"),
            ("cart", Some("shop"), "service/shop/cart"),
            ("svc/cart", Some("shop"), "service/shop/cart"),
            ("service/pod/cart", None, "service/pod/cart"),
            ("pod/shop/cart-7d.x", None, "pod/shop/cart-7d.x"),
            ("pod/cart-0", Some("shop"), "pod/shop/cart-0"),
            ("10.96.0.10", None, "10.96.0.10"),
            ("10.96.0.10:53", Some("shop"), "10.96.0.10:53"),
            ("2001:db8::1", None, "2001:db8::1"),
            ("[2001:db8::1]", None, "2001:db8::1"),
            ("[2001:db8::1]:80", None, "[2001:db8::1]:80"),
        ] {
            assert_eq!(parsed(text, namespace), expected, "{text}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, namespace, expected) in [
            ("cart", None, "lacks the namespace: write NAMESPACE/cart"),
            ("pod/cart", None, "write pod/NAMESPACE/cart"),
            ("shop/cart", Some("other"), "leave one out"),
            ("shop/Cart", None, "cannot be the name of a Service"),
            ("shop/cart\u{1b}[2J", None, "\\u{1b}"),
            ("a/b/c/d", None, "is not a target"),
            ("", None, "is not a target"),
            ("/", None, "cannot be the name of a namespace"),
            ("10.96.0", None, "not a whole IPv4 address"),
            ("10.96.0.10:0", None, "no connection has port 0"),
            ("10.96.0.10:99999", None, "is not an address"),
            ("2001:db8::1:zz", None, "is not an address"),
            ("[::1", None, "is not an address"),
            ("shop/cart:http", None, "names a port: write the Service without it: shop/cart"),
            ("cart:80", Some("shop"), "names a port: write the Service without it: cart"),
        ] {
            let error = Target::parse(text, namespace).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains('\u{1b}'));
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_reads_back(text in "(pod/|svc/)?[a-z0-9./:\\[\\]-]{0,40}|.{0,300}") {
            if let Ok(target) = Target::parse(&text, None) {
                prop_assert_eq!(Target::parse(&target.to_string(), None), Ok(target));
            }
        }
    }
}
