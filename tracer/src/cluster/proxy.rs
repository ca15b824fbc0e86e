//! Which servers are reached through the environment's proxy, as kubectl decides it.
//!
//! kubectl follows Go's `golang.org/x/net/http/httpproxy`: a loopback address is always reached directly, and so is what
//! `NO_PROXY` lists. kube's client compares `NO_PROXY` with the address of the proxy instead. Pure but for [`of_environment`].

use std::{env, net::IpAddr};

use http::{Uri, uri::Scheme};
use kube::config::{Kubeconfig, NamedCluster};

use crate::{net::Cidr, text::safe};

/// Why a proxy cannot be used. It has nothing of the value, which may have a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} is not a proxy's URL: {why}")]
pub struct ProxyError {
    /// Where the value is written.
    place: String,
    why: &'static str,
}

/// What to do about a [`ProxyError`].
pub(super) const HINT: &str = "write http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT; the special characters of a \
    user's name or password are percent-encoded, such as %40 for @";

/// The proxy for the API server of this kubeconfig; `server` is its address, where the kubeconfig has one.
pub(super) fn proxy(
    kubeconfig: &Kubeconfig,
    context: Option<&str>,
    server: Option<&Uri>,
) -> Result<Option<Uri>, ProxyError> {
    // Another error is in the way then.
    let Some(cluster) = of_context(kubeconfig, context) else { return Ok(None) };
    // kubectl takes it whatever the environment says.
    let own = cluster.cluster.as_ref().and_then(|cluster| cluster.proxy_url.as_deref());
    if let Some(own) = own.filter(|own| !own.is_empty()) {
        let place = || format!("proxy-url of the kubeconfig's cluster {}", safe(&cluster.name));
        return parse(own).map(Some).map_err(|why| ProxyError { place: place(), why });
    }
    let Some((name, value)) = of_environment(&["HTTPS_PROXY", "https_proxy"]) else { return Ok(None) };
    let no_proxy = of_environment(&["NO_PROXY", "no_proxy"]).map(|(_, value)| value).unwrap_or_default();
    if server.is_some_and(|server| is_direct(server, &no_proxy)) {
        return Ok(None);
    }
    let place = || format!("the environment's {name}");
    parse(&value).map(Some).map_err(|why| ProxyError { place: place(), why })
}

/// The kubeconfig without what kube's client would decide of proxies: it rejects what kubectl takes, such as the environment's
/// proxy for a server that needs none.
pub(super) fn undecided(kubeconfig: &Kubeconfig) -> Kubeconfig {
    const DECIDED_LATER: &str = "http://proxy.invalid";
    let mut kubeconfig = kubeconfig.clone();
    let of_all = of_environment(&["HTTPS_PROXY", "https_proxy"]).is_some();
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        if of_all || cluster.proxy_url.as_deref().is_some_and(|own| !own.is_empty()) {
            cluster.proxy_url = Some(DECIDED_LATER.to_owned());
        }
    }
    kubeconfig
}

/// The API server's address.
pub(super) fn server(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<Uri> {
    of_context(kubeconfig, context)?.cluster.as_ref()?.server.as_ref()?.parse().ok()
}

/// A context's cluster.
fn of_context<'k>(kubeconfig: &'k Kubeconfig, context: Option<&str>) -> Option<&'k NamedCluster> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|named| named.name == context)?;
    let cluster = &named.context.as_ref()?.cluster;
    kubeconfig.clusters.iter().find(|named| named.name == *cluster)
}

/// The first of these variables with a value, and its name.
fn of_environment<'n>(names: &[&'n str]) -> Option<(&'n str, String)> {
    let value = |name| env::var_os(name).map(|value| (name, value.to_string_lossy().into_owned()));
    names.iter().filter_map(|name| value(*name)).find(|(_, value)| !value.is_empty())
}

/// `proxy:3128` is `http://proxy:3128`, and the proxy resolves names in any case (`socks5h`).
fn parse(text: &str) -> Result<Uri, &'static str> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let text = text.strip_prefix("socks5h://").map_or(text.clone(), |rest| format!("socks5://{rest}"));
    let uri: Uri = text.parse().map_err(|_| "it cannot be read as a URL")?;
    let authority = uri.authority().ok_or("it has no host")?;
    match uri.scheme_str() {
        Some("http" | "https" | "socks5") => {}
        _ => return Err("its scheme is none of http, https and socks5"),
    }
    let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
    let port = host_and_port.strip_prefix(authority.host()).and_then(|rest| rest.strip_prefix(':'));
    if port.is_some_and(|port| !port.is_empty() && port.parse::<u16>().is_err()) {
        return Err("its port is no number up to 65535");
    }
    if authority.host().is_empty() { Err("it has no host") } else { Ok(uri) }
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
            ("proxy.example:3128/", "http://proxy.example:3128/"),
            ("u:p@[2001:db8::1]:3128", "http://u:p@[2001:db8::1]:3128/"),
            ("http://u:p@proxy.example:3128", "http://u:p@proxy.example:3128/"),
            ("socks5h://proxy.example:1080", "socks5://proxy.example:1080/"),
            ("https://proxy.example", "https://proxy.example/"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), read, "{text}");
        }
    }

    #[test]
    fn what_is_no_proxy_is_an_error_without_its_text() {
        for (text, why) in [
            ("http://u:secret@", "cannot be read as a URL"),
            ("http://", "cannot be read as a URL"),
            ("http://u:secret@pro xy:3128", "cannot be read as a URL"),
            ("u:secret@proxy 3128", "cannot be read as a URL"),
            ("ftp://u:secret@proxy:3128", "its scheme is none of"),
            ("socks4://secret", "its scheme is none of"),
            ("http://u:secret@proxy:99999", "its port is no number"),
            ("proxy:http", "its port is no number"),
            ("\u{fffd}", "cannot be read as a URL"),
        ] {
            let why_not = parse(text).expect_err(text);
            assert!(why_not.contains(why), "{text}: {why_not}");
        }
    }
}
