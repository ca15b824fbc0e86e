//! Files of `/proc`: their text, with a limit on bytes, and the addresses of the network namespace.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use crate::text;

/// No file read here is longer on a healthy node: even a table of 100,000 routes is shorter.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// Reads a text file, up to the limit. Invalid UTF-8 is replaced.
pub fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(text::of_bytes(bytes))
}

/// The addresses of this namespace, without loopback: IPv4 from `/proc/net/fib_trie`, IPv6 from `/proc/net/if_inet6`.
/// With IPVS they include the VIPs, which `kube-ipvs0` has.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_of_both_families() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
            |-- 192.0.2.11\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let inet6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
            20010db8000000000000000000000011 02 40 00 80     eth0\nnonsense\n";
        let found: Vec<_> = parse_addresses(trie, inet6).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.11", "2001:db8::11"]);
    }
}
