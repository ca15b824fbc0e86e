//! What `/proc` says: conntrack's use and counters, the node's addresses, which processes run.
//!
//! Reads files below a root that tests replace, each with a limit on bytes. Conntrack's files are those of the
//! network namespace that viptrace runs in: it has to be the node's.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// No file that is read here is longer on a sane node: a route table with 100,000 routes stays below.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// Processes looked at when kube-proxy is sought.
const MAX_PROCESSES: usize = 1 << 20;

/// Entries of the conntrack table and their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConntrackUse {
    pub count: u64,
    pub max: u64,
}

impl ConntrackUse {
    pub const fn is_full(self) -> bool {
        self.count >= self.max && self.max != 0
    }
}

/// Counters of `/proc/net/stat/nf_conntrack`, summed over CPUs; since boot, so only differences tell anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConntrackCounters {
    /// Packets dropped because no entry could be allocated.
    pub drop: u64,
    /// Entries that could not be inserted (clash, chain too long).
    pub insert_failed: u64,
    /// Unreplied entries evicted to make room.
    pub early_drop: u64,
    /// Packets that conntrack could not place.
    pub invalid: u64,
}

/// Reads a whole text file, up to the limit. What is not UTF-8 is replaced.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `nf_conntrack_count` and `nf_conntrack_max` below `root` (`/proc`).
pub fn conntrack_use(root: &Path) -> io::Result<ConntrackUse> {
    let number = |name: &str| {
        let path = root.join("sys/net/netfilter").join(name);
        let text = read_text(&path)?;
        text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a number"))
    };
    Ok(ConntrackUse { count: number("nf_conntrack_count")?, max: number("nf_conntrack_max")? })
}

/// Parses `/proc/net/stat/nf_conntrack`: a line of column names, then a line of hexadecimal numbers for each CPU.
/// Columns are found by name, as kernels differ in them. `None` if a needed column is missing.
pub fn parse_conntrack_counters(text: &str) -> Option<ConntrackCounters> {
    let mut lines = text.lines();
    let names: Vec<_> = lines.next()?.split_ascii_whitespace().collect();
    let column = |name: &str| names.iter().position(|candidate| *candidate == name);
    let columns = [column("drop")?, column("insert_failed")?, column("early_drop")?, column("invalid")?];
    let mut sums = [0_u64; 4];
    for line in lines {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        for (sum, at) in sums.iter_mut().zip(columns) {
            let value = fields.get(at).and_then(|field| u64::from_str_radix(field, 16).ok()).unwrap_or(0);
            *sum = sum.saturating_add(value);
        }
    }
    let [drop, insert_failed, early_drop, invalid] = sums;
    Some(ConntrackCounters { drop, insert_failed, early_drop, invalid })
}

/// The addresses that this namespace answers to, without loopback: IPv4 from `/proc/net/fib_trie`, IPv6 from
/// `/proc/net/if_inet6`. With IPVS they contain the VIPs too, as `kube-ipvs0` holds them.
pub fn parse_addresses(fib_trie: &str, if_inet6: &str) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    let mut last = None;
    for line in fib_trie.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last
        {
            found.insert(IpAddr::V4(address));
        }
    }
    for line in if_inet6.lines() {
        let hex = line.split_ascii_whitespace().next().unwrap_or_default();
        if hex.len() == 32
            && let Ok(bits) = u128::from_str_radix(hex, 16)
        {
            found.insert(IpAddr::V6(Ipv6Addr::from_bits(bits)));
        }
    }
    found.retain(|address| !address.is_loopback());
    found
}

/// Whether `/proc/net/dev` lists the interface.
pub fn has_interface(proc_net_dev: &str, name: &str) -> bool {
    proc_net_dev.lines().any(|line| line.split_once(':').is_some_and(|(device, _)| device.trim() == name))
}

/// Interfaces of programs that can serve Services in kube-proxy's place, by ways that netfilter's NAT never sees: eBPF,
/// Open vSwitch, or IPVS of their own. Each also runs beside kube-proxy, so an interface alone proves nothing.
const DATAPLANES: [(&str, &str); 5] = [
    ("cilium_host", "Cilium"),
    ("bpfin.cali", "Calico's eBPF dataplane"),
    ("kube-dummy-if", "kube-router"),
    ("antrea-gw0", "Antrea"),
    ("ovn-k8s-mp0", "OVN-Kubernetes"),
];

/// The first of them whose interface `/proc/net/dev` lists.
pub fn other_dataplane(proc_net_dev: &str) -> Option<&'static str> {
    DATAPLANES.iter().find(|(device, _)| has_interface(proc_net_dev, device)).map(|(_, name)| *name)
}

/// What the process list says about kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processes {
    /// It runs, as a process of this name; distributions such as k3s build it into another program.
    Runs(String),
    /// Every process of the node is visible, and it is not among them.
    Absent,
    /// The list shows only some of the node's processes (a PID namespace), so absence proves nothing.
    Partial,
}

/// Programs that contain kube-proxy.
const KUBE_PROXY_COMMS: [&str; 6] = ["kube-proxy", "k3s", "k3s-server", "k3s-agent", "kubelite", "rke2"];

/// Looks for kube-proxy among the processes below `root` (`/proc`).
pub fn find_kube_proxy(root: &Path) -> io::Result<Processes> {
    let mut sees_kernel_threads = false;
    let mut embedded = None;
    for entry in fs::read_dir(root)?.take(MAX_PROCESSES).flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        // A process may end between the listing and this read.
        let Ok(comm) = read_text(&entry.path().join("comm")) else { continue };
        let comm = comm.trim_end();
        sees_kernel_threads |= comm == "kthreadd";
        if comm == "kube-proxy" {
            return Ok(Processes::Runs(comm.to_owned()));
        }
        if embedded.is_none() && KUBE_PROXY_COMMS.contains(&comm) {
            embedded = Some(comm.to_owned());
        }
    }
    Ok(match embedded {
        Some(comm) => Processes::Runs(comm),
        None if sees_kernel_threads => Processes::Absent,
        None => Processes::Partial,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name_and_summed() {
        let text = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error\n\
            0000000f 0 0 0 00000002 0 0 0 0 00000001 0000000a 00000003 0\n\
            0000000f 0 0 0 00000001 0 0 0 0 00000000 00000006 00000000 0\n";
        let counters = parse_conntrack_counters(text).unwrap();
        let expected = ConntrackCounters { drop: 16, insert_failed: 1, early_drop: 3, invalid: 3 };
        assert_eq!(counters, expected);
        assert_eq!(parse_conntrack_counters("entries found\n0 0\n"), None);
        assert_eq!(parse_conntrack_counters(""), None);
        // A short or foreign line counts as nothing.
        assert_eq!(
            parse_conntrack_counters("drop insert_failed early_drop invalid\nzz 1\n").unwrap().insert_failed,
            1
        );
    }

    #[test]
    fn local_addresses_of_both_families() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
            |-- 192.0.2.11\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let inet6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
            20010db8000000000000000000000011 02 40 00 80     eth0\nnonsense\n";
        let found: Vec<_> = parse_addresses(trie, inet6).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.11", "2001:db8::11"]);
    }

    #[test]
    fn interfaces() {
        let dev = "Inter-|   Receive\n face |bytes\n    lo: 0 0\nkube-ipvs0:  0 0\n";
        assert!(has_interface(dev, "kube-ipvs0"));
        assert!(!has_interface(dev, "kube-ipvs"));
        assert_eq!(other_dataplane(dev), None);
        assert_eq!(other_dataplane("cilium_host: 0 0\n  eth0: 0 0\n"), Some("Cilium"));
    }

    #[test]
    fn absence_counts_only_where_all_processes_are_seen() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: &str, comm: &str| {
            fs::create_dir(root.path().join(pid)).unwrap();
            fs::write(root.path().join(pid).join("comm"), format!("{comm}\n")).unwrap();
        };
        process("1", "viptrace");
        assert_eq!(find_kube_proxy(root.path()).unwrap(), Processes::Partial);
        process("2", "kthreadd");
        assert_eq!(find_kube_proxy(root.path()).unwrap(), Processes::Absent);
        process("30", "k3s-server");
        assert_eq!(find_kube_proxy(root.path()).unwrap(), Processes::Runs("k3s-server".into()));
        process("40", "kube-proxy");
        assert_eq!(find_kube_proxy(root.path()).unwrap(), Processes::Runs("kube-proxy".into()));
    }

    #[test]
    fn use_of_the_table() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sys/net/netfilter");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("nf_conntrack_count"), "64\n").unwrap();
        assert!(conntrack_use(root.path()).is_err());
        fs::write(dir.join("nf_conntrack_max"), "64\n").unwrap();
        assert!(conntrack_use(root.path()).unwrap().is_full());
    }
}
