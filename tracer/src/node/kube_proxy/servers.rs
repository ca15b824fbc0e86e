//! The addresses of kube-proxy's own servers for requests from its node: from its configuration, or the defaults.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use super::{config::Config, process::ProcessList};
use crate::node::procfs;

const METRICS_PORT: u16 = 10249;
const HEALTH_PORT: u16 = 10256;

/// The addresses of both servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    /// `/proxyMode` and `/metrics`.
    pub metrics: SocketAddr,
    /// `/healthz` and `/livez`.
    pub health: SocketAddr,
}

impl Default for Servers {
    /// 127.0.0.1, ports 10249 and 10256.
    fn default() -> Self {
        Self::of(&Config::default())
    }
}

impl Servers {
    /// The addresses that this configuration binds (`metricsBindAddress`, `healthzBindAddress`).
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            metrics: address(config.metrics_bind_address.as_deref(), METRICS_PORT),
            health: address(config.healthz_bind_address.as_deref(), HEALTH_PORT),
        }
    }
}

/// The path that kube-proxy was started with, and the file's text as kube-proxy sees it, inside its container.
pub(crate) fn config_file<'a>(
    process: &'a ProcessList,
    root: &Path,
) -> Option<(&'a str, io::Result<String>)> {
    let (path, pid) = (process.flag("config")?, process.pid?);
    let inside = root.join(pid.to_string()).join("root").join(path.trim_start_matches('/'));
    Some((path, procfs::read_text(&inside).or_else(|_| procfs::read_text(Path::new(path)))))
}

/// The address for requests from this node to a server that binds to `text`.
fn address(text: Option<&str>, default_port: u16) -> SocketAddr {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, default_port));
    let Some(text) = text else { return local };
    let bound = text.parse::<SocketAddr>().ok().or_else(|| {
        // A bare address, or a bare port (`:10249`).
        let ip = text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, default_port));
        ip.or_else(|| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, text.strip_prefix(':')?.parse().ok()?))))
    });
    match bound {
        Some(bound) if bound.ip().is_unspecified() => {
            let ip = if bound.is_ipv4() {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            } else {
                IpAddr::V6(Ipv6Addr::LOCALHOST)
            };
            SocketAddr::new(ip, bound.port())
        }
        Some(bound) => bound,
        None => local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_asked_where_they_listen() {
        let at = |text: Option<&str>| address(text, 10249).to_string();
        assert_eq!(at(None), "127.0.0.1:10249");
        assert_eq!(at(Some("0.0.0.0:9000")), "127.0.0.1:9000");
        assert_eq!(at(Some("[::]:9000")), "[::1]:9000");
        assert_eq!(at(Some("192.0.2.11")), "192.0.2.11:10249");
        assert_eq!(at(Some(":7")), "127.0.0.1:7");
        assert_eq!(at(Some("nonsense")), "127.0.0.1:10249");
    }
}
