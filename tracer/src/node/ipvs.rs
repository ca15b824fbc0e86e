//! IPVS as the node's own files tell it: virtual servers with their real servers (`/proc/net/ip_vs`), and how it is set up
//! (`/proc/sys/net/ipv4/vs`).
//!
//! The parser is pure and takes any input. Reading needs neither netlink nor `ipvsadm`, and loads no module: where IPVS
//! is not in the kernel there is no file. Connections are not listed, which could be millions of lines.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use crate::{diagnosis::IpvsSettings, node::procfs, sighting::Protocol};

/// Virtual servers, each with its real servers. Services by firewall mark are left out: kube-proxy makes none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    servers: HashMap<(Protocol, SocketAddr), VirtualServer>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualServer {
    /// `rr` unless kube-proxy was told otherwise.
    pub scheduler: String,
    /// Session affinity, in seconds.
    pub persistent_secs: Option<u32>,
    pub real_servers: Vec<RealServer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServer {
    pub address: SocketAddr,
    /// 0: kept for its connections, gets no new ones.
    pub weight: i32,
}

impl Table {
    /// Parses `/proc/net/ip_vs` (`ip_vs_info_seq_show` in `net/netfilter/ipvs/ip_vs_ctl.c`). Lines that are not
    /// understood are passed over.
    pub fn parse(text: &str) -> Self {
        let mut table = Self::default();
        let mut current = None;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("->") => {
                    let real_server = words.next().and_then(address).zip(words.nth(1));
                    let Some((address, weight)) = real_server else { continue };
                    let Ok(weight) = weight.parse() else { continue };
                    if let Some(server) = current.as_ref().and_then(|key| table.servers.get_mut(key)) {
                        server.real_servers.push(RealServer { address, weight });
                    }
                }
                Some(name) => {
                    current = protocol(name).zip(words.next().and_then(address));
                    let Some(key) = current else { continue };
                    let scheduler = words.next().unwrap_or_default().to_owned();
                    let persistent_secs = words
                        .find(|word| *word == "persistent")
                        .and(words.next())
                        .and_then(|n| n.parse().ok());
                    let server = VirtualServer { scheduler, persistent_secs, real_servers: Vec::new() };
                    table.servers.insert(key, server);
                }
                None => current = None,
            }
        }
        table
    }

    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    pub fn len(&self) -> usize {
        self.servers.len()
    }

    pub fn virtual_server(&self, address: SocketAddr, protocol: Protocol) -> Option<&VirtualServer> {
        self.servers.get(&(protocol, address))
    }
}

impl VirtualServer {
    /// Whether a new connection gets a real server.
    pub fn schedules(&self) -> bool {
        self.real_servers.iter().any(|server| server.weight > 0)
    }
}

fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "TCP" => Some(Protocol::TCP),
        "UDP" => Some(Protocol::UDP),
        "SCTP" => Some(Protocol::SCTP),
        _ => None,
    }
}

/// `0A600A0A:0050`, or `[fd00:0010:0096:0000:0000:0000:0000:000a]:0050`.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.rsplit_once(':')?;
    let ip: IpAddr = match ip.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?.into(),
        None => Ipv4Addr::from(u32::from_str_radix(ip, 16).ok().filter(|_| ip.len() == 8)?).into(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The virtual servers of the network namespace of `proc`'s reader; `None` where IPVS is not in the kernel.
///
/// # Errors
///
/// The gap's text.
pub fn read(proc: &Path) -> Result<Option<Table>, String> {
    let path = proc.join("net/ip_vs");
    if !path.exists() {
        return Ok(None);
    }
    match procfs::read_text(&path) {
        Ok(text) => Ok(Some(Table::parse(&text))),
        Err(error) => Err(format!("IPVS's virtual servers: {}: {error}", path.display())),
    }
}

/// `net.ipv4.vs`, as far as it can be read; `None` where IPVS is not in the kernel.
pub fn settings(proc: &Path) -> Option<IpvsSettings> {
    let folder = proc.join("sys/net/ipv4/vs");
    let number = |name: &str| procfs::read_text(&folder.join(name)).ok()?.trim().parse::<u8>().ok();
    folder.is_dir().then(|| IpvsSettings {
        conntrack: number("conntrack").map(|value| value != 0),
        expire_nodest_conn: number("expire_nodest_conn").map(|value| value != 0),
        conn_reuse_mode: number("conn_reuse_mode"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TEXT: &str = "IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600A28:01BB rr persistent 10800 FFFFFFFF
  -> 0AF4011F:2382      Masq    1      0          0         
  -> 0AF40220:2382      Masq    0      3          0         
UDP  0A60000A:0035 rr 
TCP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0050 wrr 
  -> [fd00:0010:0244:0001:0000:0000:0000:000b]:1F90      Masq    1      0          0         
FWM  00000001 rr 
  -> 0AF4011F:2382      Masq    1      0          0         
";

    #[test]
    fn the_kernels_own_listing_is_read() {
        let table = Table::parse(TEXT);
        assert_eq!(table.len(), 3);
        let payments = table.virtual_server("10.96.10.40:443".parse().unwrap(), Protocol::TCP).unwrap();
        assert_eq!((payments.scheduler.as_str(), payments.persistent_secs), ("rr", Some(10_800)));
        let real = |text: &str, weight| RealServer { address: text.parse().unwrap(), weight };
        assert_eq!(payments.real_servers, [real("10.244.1.31:9090", 1), real("10.244.2.32:9090", 0)]);
        assert!(payments.schedules());
        let dns = table.virtual_server("10.96.0.10:53".parse().unwrap(), Protocol::UDP).unwrap();
        assert!(dns.real_servers.is_empty() && !dns.schedules());
        let v6 = table.virtual_server("[fd00:10:96::a]:80".parse().unwrap(), Protocol::TCP).unwrap();
        assert_eq!(v6.real_servers, [real("[fd00:10:244:1::b]:8080", 1)]);
        assert_eq!(table.virtual_server("10.96.0.10:53".parse().unwrap(), Protocol::TCP), None);
    }

    #[test]
    fn odd_lines_are_passed_over() {
        for text in
            ["", "TCP", "TCP 0A60", "-> x", "TCP  0A600A28:01BB\n  -> 0AF4011F:2382 Masq x\n\n->", "TCP [::1"]
        {
            assert!(Table::parse(text).servers.values().all(|server| server.real_servers.is_empty()));
        }
    }

    #[test]
    fn settings_are_read_where_ipvs_is() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(settings(proc.path()), None);
        assert_eq!(read(proc.path()), Ok(None));
        let folder = proc.path().join("sys/net/ipv4/vs");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("conntrack"), "1\n").unwrap();
        std::fs::write(folder.join("conn_reuse_mode"), "2\n").unwrap();
        let read = settings(proc.path()).unwrap();
        assert_eq!(
            (read.conntrack, read.expire_nodest_conn, read.conn_reuse_mode),
            (Some(true), None, Some(2))
        );
    }
}
