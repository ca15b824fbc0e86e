//! The node's network interfaces: addresses, bridges and their ports, as in `ip -d -j addr` (K7, K11).
//!
//! Owns that form; without `ip` it is filled from the kernel's own files. Judges nothing.

use std::{collections::BTreeMap, fmt, fs, net::IpAddr, path::Path};

use serde_json::{Value, json};

use crate::{node::procfs, parse::ParseError};

/// The interface that has every VIP in IPVS mode.
pub const IPVS_DEVICE: &str = "kube-ipvs0";
/// The most interfaces kept.
const MAX_INTERFACES: usize = 20_000;
/// The most addresses of one interface: `kube-ipvs0` has one for each VIP.
const MAX_ADDRESSES: usize = 100_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// `UP` and `LOWER_UP` among the flags.
    pub up: bool,
    pub promiscuous: bool,
    pub mtu: Option<u64>,
    /// `bridge`, `veth`, `dummy`, `vxlan`…; empty if unknown.
    pub kind: String,
    /// The bridge or bond of which it is a port.
    pub master: Option<String>,
    /// Whether a bridge sends packets back out of this incoming port (hairpin mode).
    pub hairpin: Option<bool>,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether the addresses were read.
    pub addresses_known: bool,
}

/// A program that can serve Services instead of kube-proxy and bypasses netfilter's NAT: with eBPF, Open vSwitch, or
/// its own IPVS. Each can also run next to kube-proxy, so its interface alone proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataplane {
    Cilium,
    CalicoEbpf,
    KubeRouter,
    Antrea,
    OvnKubernetes,
}

impl Dataplane {
    pub const ALL: [Self; 5] =
        [Self::Cilium, Self::CalicoEbpf, Self::KubeRouter, Self::Antrea, Self::OvnKubernetes];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cilium => "Cilium",
            Self::CalicoEbpf => "Calico's eBPF dataplane",
            Self::KubeRouter => "kube-router",
            Self::Antrea => "Antrea",
            Self::OvnKubernetes => "OVN-Kubernetes",
        }
    }

    const fn interface(self) -> &'static str {
        match self {
            Self::Cilium => "cilium_host",
            Self::CalicoEbpf => "bpfin.cali",
            Self::KubeRouter => "kube-dummy-if",
            Self::Antrea => "antrea-gw0",
            Self::OvnKubernetes => "ovn-k8s-mp0",
        }
    }
}

impl fmt::Display for Dataplane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// By name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces(BTreeMap<String, Interface>);

impl Interfaces {
    /// Parses the JSON of `ip -j addr` or `ip -d -j addr`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let items: Vec<Value> = serde_json::from_str(text)?;
        let mut found = BTreeMap::new();
        let mut foreign = !items.is_empty();
        for item in items.iter().take(MAX_INTERFACES) {
            // `ip` writes an empty object for an interface that a filter hides.
            let Some(name) = item.get("ifname").and_then(Value::as_str) else { continue };
            foreign = false;
            found.insert(name.to_owned(), interface(name, item));
        }
        if foreign { Err(ParseError::nothing_in(text, "a list of interfaces")) } else { Ok(Self(found)) }
    }

    /// The same content from `sys` (`/sys`) and `proc` (`/proc`), in the form of `ip`. Without IPv4 addresses: no file
    /// assigns them to interfaces.
    pub fn from_files(sys: &Path, proc: &Path) -> std::io::Result<String> {
        let mut items = Vec::new();
        let inet6 = procfs::read_text(&proc.join("net/if_inet6")).unwrap_or_default();
        for entry in fs::read_dir(sys.join("class/net"))?.flatten().take(MAX_INTERFACES) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let folder = entry.path();
            let file = |path: &str| procfs::read_text(&folder.join(path)).ok();
            let flags = file("flags")
                .and_then(|text| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
            let flags = flags.unwrap_or(0);
            // IFF_UP, IFF_LOOPBACK, IFF_PROMISC of include/uapi/linux/if.h.
            let names = [(0x1, "UP"), (0x8, "LOOPBACK"), (0x100, "PROMISC")];
            let names: Vec<&str> =
                names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
            let mut item = json!({
                "ifname": name,
                "flags": names,
                "mtu": file("mtu").and_then(|text| text.trim().parse::<u64>().ok()),
                "addr_info": addresses6(&inet6, &name),
                "ipv4_unknown": true,
            });
            if folder.join("bridge").is_dir() {
                put(&mut item, "linkinfo", json!({"info_kind": "bridge"}));
            }
            if let Some(master) = fs::read_link(folder.join("master"))
                .ok()
                .and_then(|path| path.file_name()?.to_str().map(str::to_owned))
            {
                put(&mut item, "master", json!(master));
            }
            if let Some(hairpin) = file("brport/hairpin_mode") {
                let data = json!({"info_slave_kind": "bridge", "info_slave_data": {"hairpin": hairpin.trim() == "1"}});
                put(&mut item, "linkinfo", data);
            }
            items.push(item);
        }
        Ok(Value::Array(items).to_string())
    }

    /// The MTUs that were read of the interfaces that lead to other machines.
    pub fn mtus(&self) -> BTreeMap<String, u64> {
        let links = self.iter().filter(|one| !is_no_link(&one.name));
        links.filter_map(|one| Some((one.name.clone(), one.mtu?))).collect()
    }

    /// The first other dataplane that has its interface here.
    pub fn other_dataplane(&self) -> Option<Dataplane> {
        Dataplane::ALL.into_iter().find(|dataplane| self.get(dataplane.interface()).is_some())
    }

    pub fn get(&self, name: &str) -> Option<&Interface> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Interface> {
        self.0.values()
    }

    /// The ports of this bridge.
    pub fn ports<'a>(&'a self, bridge: &'a str) -> impl Iterator<Item = &'a Interface> {
        self.0.values().filter(move |port| port.master.as_deref() == Some(bridge))
    }
}

/// Whether the interface leads to one Pod or to nowhere: a node has hundreds, and their MTU is not the path's.
fn is_no_link(name: &str) -> bool {
    ["lo", "veth", "cali", "lxc", "dummy", "kube-ipvs"].iter().any(|begin| name.starts_with(begin))
}

/// The names in `/proc/net/dev`, in the form of `ip -j addr`, with the MTU of those that lead to other machines.
pub fn names_to_text(proc_net_dev: &str, sys: &Path) -> String {
    let names = proc_net_dev.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    let mtu = |name: &str| {
        if is_no_link(name) {
            return None;
        }
        let file = sys.join("class/net").join(name).join("mtu");
        fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    };
    let item = |name: &str| match mtu(name) {
        Some(mtu) => json!({ "ifname": name, "mtu": mtu }),
        None => json!({ "ifname": name }),
    };
    names.map(item).collect::<Value>().to_string()
}

fn put(item: &mut Value, name: &str, value: Value) {
    if let Some(object) = item.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}

fn interface(name: &str, item: &Value) -> Interface {
    let flag = |name: &str| {
        item.get("flags").and_then(Value::as_array).is_some_and(|flags| flags.iter().any(|flag| flag == name))
    };
    let text = |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let addresses = item.get("addr_info").and_then(Value::as_array);
    let address = |info: &Value| {
        let address = info.get("local")?.as_str()?.parse().ok()?;
        Some((address, u8::try_from(info.get("prefixlen")?.as_u64()?).ok()?))
    };
    Interface {
        name: name.to_owned(),
        up: flag("UP"),
        promiscuous: flag("PROMISC"),
        mtu: item.get("mtu").and_then(Value::as_u64),
        kind: text("/linkinfo/info_kind"),
        master: item.get("master").and_then(Value::as_str).map(str::to_owned),
        hairpin: item.pointer("/linkinfo/info_slave_data/hairpin").and_then(Value::as_bool),
        addresses: addresses.into_iter().flatten().take(MAX_ADDRESSES).filter_map(address).collect(),
        addresses_known: addresses.is_some() && item.get("ipv4_unknown").is_none(),
    }
}

/// The IPv6 addresses of this interface in `/proc/net/if_inet6`: address, index, prefix length, scope, flags and name;
/// all except the name are hexadecimal.
fn addresses6(if_inet6: &str, name: &str) -> Vec<Value> {
    let address = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (bits, prefix, device) = (fields.first()?, fields.get(2)?, fields.get(5)?);
        if *device != name || bits.len() != 32 {
            return None;
        }
        let address = std::net::Ipv6Addr::from_bits(u128::from_str_radix(bits, 16).ok()?);
        let prefix = u8::from_str_radix(prefix, 16).ok()?;
        Some(json!({"family": "inet6", "local": address.to_string(), "prefixlen": prefix}))
    };
    if_inet6.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_bridge_its_ports_and_their_hairpin_mode() {
        let text = r#"[{},{"ifname":"cni0","flags":["UP","PROMISC"],"mtu":1450,"linkinfo":{"info_kind":"bridge"},
            "addr_info":[{"family":"inet","local":"10.244.1.1","prefixlen":24}]},
            {"ifname":"veth1","flags":["UP"],"master":"cni0","linkinfo":{"info_kind":"veth",
            "info_slave_kind":"bridge","info_slave_data":{"hairpin":false}},"addr_info":[]}]"#;
        let interfaces = Interfaces::parse(text).unwrap();
        let bridge = interfaces.get("cni0").unwrap();
        assert!(bridge.up && bridge.promiscuous && bridge.addresses_known);
        assert_eq!(bridge.addresses, [("10.244.1.1".parse().unwrap(), 24)]);
        let ports: Vec<_> = interfaces.ports("cni0").map(|port| (port.name.as_str(), port.hairpin)).collect();
        assert_eq!(ports, [("veth1", Some(false))]);
        assert!(Interfaces::parse(r#"[{"kind":"Pod"}]"#).is_err());
        assert!(Interfaces::parse("{}").is_err());
        assert_eq!(Interfaces::parse("[]").unwrap().iter().count(), 0);
    }

    #[test]
    fn names_alone_show_another_dataplane() {
        let sys = tempfile::tempdir().unwrap();
        for (name, mtu) in [("eth0", "1500\n"), ("veth1", "1450\n")] {
            fs::create_dir_all(sys.path().join("class/net").join(name)).unwrap();
            fs::write(sys.path().join("class/net").join(name).join("mtu"), mtu).unwrap();
        }
        let of = |dev: &str| Interfaces::parse(&names_to_text(dev, sys.path())).unwrap();
        assert_eq!(of("eth0: 0\nveth1: 0\ntunl0: 0\n").mtus(), [("eth0".to_owned(), 1500)].into());
        let plain = of("Inter-|   Receive\n face |bytes\n    lo: 0 0\nkube-ipvs0:  0 0\n");
        assert!(plain.get(IPVS_DEVICE).is_some_and(|device| !device.addresses_known));
        assert_eq!((plain.get("kube-ipvs"), plain.other_dataplane()), (None, None));
        assert_eq!(of("cilium_host: 0 0\n  eth0: 0 0\n").other_dataplane(), Some(Dataplane::Cilium));
    }

    #[test]
    fn the_kernels_files_say_nearly_the_same() {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("class/net/veth1");
        fs::create_dir_all(folder.join("brport")).unwrap();
        fs::create_dir_all(sys.path().join("class/net/cni0/bridge")).unwrap();
        fs::write(folder.join("flags"), "0x1003\n").unwrap();
        fs::write(folder.join("brport/hairpin_mode"), "1\n").unwrap();
        std::os::unix::fs::symlink("../cni0", folder.join("master")).unwrap();
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("net")).unwrap();
        let inet6 = "20010db8000000000000000000000011 02 40 00 80     veth1\n";
        fs::write(proc.path().join("net/if_inet6"), inet6).unwrap();
        let read = Interfaces::parse(&Interfaces::from_files(sys.path(), proc.path()).unwrap()).unwrap();
        let port = read.get("veth1").unwrap();
        assert_eq!((port.hairpin, port.master.as_deref(), port.up), (Some(true), Some("cni0"), true));
        assert_eq!(port.addresses, [("2001:db8::11".parse().unwrap(), 64)]);
        assert!(!port.addresses_known);
        assert_eq!(read.get("cni0").unwrap().kind, "bridge");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ports in vec((any::<bool>(), any::<std::net::Ipv4Addr>(), 0_u8..=32), 0..20)) {
            let items: Vec<Value> = ports.iter().enumerate().map(|(at, (hairpin, address, prefix))| json!({
                "ifname": format!("veth{at}"), "flags": ["UP"], "master": "cni0",
                "linkinfo": {"info_slave_data": {"hairpin": hairpin}},
                "addr_info": [{"family": "inet", "local": address.to_string(), "prefixlen": prefix}],
            })).collect();
            let read = Interfaces::parse(&Value::Array(items).to_string()).unwrap();
            prop_assert_eq!(read.ports("cni0").count(), ports.len());
            for (at, (hairpin, address, prefix)) in ports.iter().enumerate() {
                let port = read.get(&format!("veth{at}")).unwrap();
                prop_assert_eq!(port.hairpin, Some(*hairpin));
                prop_assert_eq!(&port.addresses, &[(IpAddr::V4(*address), *prefix)]);
            }
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = Interfaces::parse(&text);
        }
    }
}
