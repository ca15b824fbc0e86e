//! Where kube-proxy's own servers are asked from its node: as its configuration binds them, else at their defaults.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use super::{config::Config, process::ProcessList};
use crate::node::procfs;

const METRICS_PORT: u16 = 10249;
const HEALTH_PORT: u16 = 10256;

/// The addresses of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Servers {
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
    /// As this configuration binds them (`metricsBindAddress`, `healthzBindAddress`).
    pub fn of(config: &Config) -> Self {
        Self {
            metrics: address(config.metrics_bind_address.as_deref(), METRICS_PORT),
            health: address(config.healthz_bind_address.as_deref(), HEALTH_PORT),
        }
    }

    /// As the kube-proxy that runs here was told to bind them: by its file or its flags, as far as `/proc` at `root` shows
    /// them. Blocks shortly.
    pub fn find(process: &ProcessList, root: &Path) -> Self {
        let file = config_file(process, root).and_then(|(_, text)| Config::parse(&text.ok()?).ok());
        file.or_else(|| Config::from_flags(process)).map_or_else(Self::default, |config| Self::of(&config))
    }
}

/// The path that kube-proxy was started with, and the file's text as kube-proxy sees it, inside of its container.
pub fn config_file<'a>(process: &'a ProcessList, root: &Path) -> Option<(&'a str, io::Result<String>)> {
    let (path, pid) = (process.flag("config")?, process.pid?);
    let inside = root.join(pid.to_string()).join("root").join(path.trim_start_matches('/'));
    Some((path, procfs::read_text(&inside).or_else(|_| procfs::read_text(Path::new(path)))))
}

/// Where a server that binds to `text` is asked from this node.
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
    use std::fs;

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

    #[test]
    fn servers_are_found_by_the_file_or_the_flags_of_the_process() {
        let root = tempfile::tempdir().unwrap();
        let find = || Servers::find(&ProcessList::read(root.path()).unwrap(), root.path());
        assert_eq!(find(), Servers::default());
        let folder = root.path().join("8");
        let found = |cmdline: &str| {
            fs::write(folder.join("cmdline"), cmdline).unwrap();
            let Servers { metrics, health } = find();
            [metrics.to_string(), health.to_string()]
        };
        fs::create_dir_all(folder.join("root/etc")).unwrap();
        fs::write(folder.join("comm"), "kube-proxy\n").unwrap();
        let config = "kind: KubeProxyConfiguration\nmetricsBindAddress: 192.0.2.11:9249\nhealthzBindAddress: 0.0.0.0:9256\n";
        fs::write(folder.join("root/etc/p.conf"), config).unwrap();
        let by_file = found("/usr/bin/kube-proxy\0--config=/etc/p.conf\0");
        assert_eq!(by_file, ["192.0.2.11:9249", "127.0.0.1:9256"]);
        let by_flags = found("/usr/bin/kube-proxy\0--metrics-bind-address=:7\0");
        assert_eq!(by_flags, ["127.0.0.1:7", "127.0.0.1:10256"]);
        // A file that cannot be read leaves the defaults.
        assert_eq!(
            found("/usr/bin/kube-proxy\0--config=/etc/gone\0"),
            ["127.0.0.1:10249", "127.0.0.1:10256"]
        );
    }
}
