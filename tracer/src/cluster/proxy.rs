//! Which servers are reached through the environment's proxy, as kubectl decides it.
//!
//! kubectl follows Go's `golang.org/x/net/http/httpproxy`: a loopback address is always reached directly, and so is what
//! `NO_PROXY` lists. kube's client compares `NO_PROXY` with the address of the proxy instead. Pure but for [`of_environment`].

use std::{env, net::IpAddr, str::FromStr as _};

use http::{Uri, uri::Scheme};
use kube::config::Kubeconfig;

use crate::net::Cidr;

/// The proxy for the API server of this kubeconfig.
pub(super) fn proxy(kubeconfig: &Kubeconfig, context: Option<&str>, server: &Uri) -> Option<Uri> {
    // kubectl takes it whatever the environment says.
    if let Some(own) = of_context(kubeconfig, context).filter(|own| !own.is_empty()) {
        return own.parse().ok().map(with_scheme);
    }
    let found = of_environment(&["HTTPS_PROXY", "https_proxy"])?.parse().ok()?;
    let no_proxy = of_environment(&["NO_PROXY", "no_proxy"]).unwrap_or_default();
    if is_direct(server, &no_proxy) { None } else { Some(with_scheme(found)) }
}

/// The `proxy-url` of a context's cluster.
fn of_context<'k>(kubeconfig: &'k Kubeconfig, context: Option<&str>) -> Option<&'k str> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    named.cluster.as_ref()?.proxy_url.as_deref()
}

/// The first of these variables with a value.
fn of_environment(names: &[&str]) -> Option<String> {
    names.iter().filter_map(|name| env::var(name).ok()).find(|value| !value.is_empty())
}

/// `proxy:3128` is `http://proxy:3128`, and the proxy resolves names in any case (`socks5h`).
fn with_scheme(proxy: Uri) -> Uri {
    let scheme = match proxy.scheme_str() {
        None => "http",
        Some("socks5h") => "socks5",
        Some(_) => return proxy,
    };
    let authority = proxy.authority().map(ToString::to_string).unwrap_or_default();
    Uri::from_str(&format!("{scheme}://{authority}")).unwrap_or(proxy)
}

/// Whether the server is reached without the proxy.
fn is_direct(server: &Uri, no_proxy: &str) -> bool {
    let Some(host) = server.host() else { return false };
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let ip = host.parse::<IpAddr>().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let by_scheme = if server.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 };
    let port = server.port_u16().unwrap_or(by_scheme);
    no_proxy.split(',').any(|entry| matches(&entry.trim().to_ascii_lowercase(), &host, ip, port))
}

/// Whether an entry of `NO_PROXY` names the host: `*`, an address, a CIDR, or a domain, each of the latter with or without a
/// port.
fn matches(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if entry.contains('/') {
        return ip.zip(Cidr::parse(entry)).is_some_and(|(ip, net)| net.contains(ip));
    }
    let (name, wanted) = match entry.rsplit_once(':') {
        Some((name, digits)) if !name.contains(':') || name.ends_with(']') => (name, digits.parse().ok()),
        _ => (entry, None),
    };
    if wanted.is_some_and(|wanted: u16| wanted != port) {
        return false;
    }
    let name = name.trim_matches(['[', ']']);
    if let Ok(named) = name.parse::<IpAddr>() {
        return ip == Some(named);
    }
    // `example.org` is the domain and the hosts below it, `.example.org` and `*.example.org` only the latter.
    match name.strip_prefix('*').unwrap_or(name) {
        "" => false,
        below if below.starts_with('.') => host.ends_with(below),
        domain => host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_directly_as_kubectl_reaches_it() {
        for (server, no_proxy, direct) in [
            ("https://127.0.0.1:41231", "", true),
            ("https://localhost:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://10.1.2.3:6443", "", false),
            ("https://10.1.2.3:6443", "*", true),
            ("https://10.1.2.3:6443", "10.0.0.0/8", true),
            ("https://10.1.2.3:6443", "192.168.0.0/16,", false),
            ("https://10.1.2.3:6443", "0.0.0.0/0", true),
            ("https://10.1.2.3:6443", "10.0.0.0/33", false),
            ("https://10.1.2.3:6443", "::/0", false),
            ("https://[2001:db8::7]:6443", "2001:db8::/32", true),
            ("https://[2001:db8::7]:6443", "2001:db8::7", true),
            ("https://[2001:db8::7]:6443", "[2001:db8::7]:443", false),
            ("https://10.1.2.3:6443", " 10.1.2.3 , x", true),
            ("https://10.1.2.3:6443", "10.1.2.3:443", false),
            ("https://10.1.2.3:6443", "10.1.2.3:6443", true),
            ("https://Api.Corp.example", "corp.example", true),
            ("https://api.corp.example", ".corp.example:443", true),
            ("https://corp.example", ".corp.example", false),
            ("https://corp.example", "*.corp.example", false),
            ("https://notcorp.example", "corp.example", false),
            ("https://api.corp.example", ",,:,:443,[,]", false),
        ] {
            assert_eq!(is_direct(&server.parse().unwrap(), no_proxy), direct, "{server} {no_proxy:?}");
        }
    }

    #[test]
    fn a_proxy_is_written_as_people_write_it() {
        for (text, read) in [
            ("proxy.example:3128", "http://proxy.example:3128/"),
            ("http://u:p@proxy.example:3128", "http://u:p@proxy.example:3128/"),
            ("socks5h://proxy.example:1080", "socks5://proxy.example:1080/"),
            ("https://proxy.example", "https://proxy.example/"),
        ] {
            assert_eq!(with_scheme(text.parse().unwrap()).to_string(), read, "{text}");
        }
    }
}
