//! The routes of this network namespace: the device through which packets to an address leave.
//!
//! Owns their form, the lines of `ip route`. Routes of other tables than the main one, and the rules of policy routing
//! that choose among tables, are left out.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

use crate::{net::Cidr, node::interfaces::Interfaces, parse::ParseError, rules::walk::Devices};

/// The most routes kept.
const MAX_ROUTES: usize = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Route {
    to: Cidr,
    /// `None`: there are several, or the route refuses packets.
    device: Option<Box<str>>,
    metric: u32,
}

/// The longest prefix first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes(Vec<Route>);

impl Routes {
    /// Parses the lines of `ip route`, of one or both families.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut found: Vec<Route> = Vec::new();
        let mut hops = 0;
        for line in text.lines().filter(|line| !line.trim().is_empty()).take(MAX_ROUTES) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let after = |word: &str| {
                let position = words.iter().position(|known| *known == word)?;
                words.get(position + 1).copied()
            };
            if words.first() == Some(&"nexthop") {
                hops += 1;
                if let Some(route) = found.last_mut() {
                    route.device = after("dev").filter(|_| hops == 1).map(Into::into);
                }
                continue;
            }
            hops = 0;
            let (refuses, rest) = match words.as_slice() {
                ["local" | "broadcast" | "multicast" | "anycast", ..] => continue,
                ["unreachable" | "blackhole" | "prohibit" | "throw", rest @ ..] => (true, rest),
                ["unicast", rest @ ..] | rest => (false, rest),
            };
            if after("table").is_some_and(|table| table != "main" && table != "254") {
                continue;
            }
            let gateway = after("via").and_then(|text| text.parse::<IpAddr>().ok());
            let Some(to) = rest.first().and_then(|text| destination(text, gateway)) else { continue };
            let device = after("dev").filter(|_| !refuses).map(Into::into);
            let metric = after("metric").and_then(|text| text.parse().ok()).unwrap_or(0);
            found.push(Route { to, device, metric });
        }
        if found.is_empty() && !text.trim().is_empty() {
            return Err(ParseError::nothing_in(text, "a list of routes"));
        }
        Ok(Self::sorted(found))
    }

    fn sorted(mut found: Vec<Route>) -> Self {
        found.sort_by_key(|route| (std::cmp::Reverse(route.to.prefix), route.metric));
        Self(found)
    }

    /// The networks of the interfaces' own addresses, for a node whose routes were not read.
    pub fn of_interfaces(interfaces: &Interfaces) -> Self {
        let own = interfaces.iter().flat_map(|interface| {
            interface.addresses.iter().map(|(base, prefix)| Route {
                to: Cidr { base: *base, prefix: *prefix },
                device: Some(interface.name.as_str().into()),
                metric: 0,
            })
        });
        let is_network = |route: &Route| route.to.prefix < Cidr::bits(route.to.base);
        Self::sorted(own.filter(is_network).collect())
    }

    /// The same from `/proc/net/route` and `/proc/net/ipv6_route`, as lines of `ip route`. The kernel writes IPv4
    /// addresses as numbers of its own byte order (`fib_route_seq_show` in `net/ipv4/fib_trie.c`).
    pub fn lines_of(route: &str, ipv6_route: &str) -> String {
        let mut out = String::new();
        for line in route.lines().skip(1) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [device, to, gateway, flags, _, _, metric, mask, ..] = words.as_slice() else { continue };
            let number = |text: &str| u32::from_str_radix(text, 16).ok();
            let address = |text: &str| Some(Ipv4Addr::from(number(text)?.to_ne_bytes()));
            let (Some(to), Some(gateway), Some(mask), Some(flags)) =
                (address(to), address(gateway), address(mask), number(flags))
            else {
                continue;
            };
            let via = (!gateway.is_unspecified()).then_some(IpAddr::V4(gateway));
            put(
                &mut out,
                Cidr { base: to.into(), prefix: mask.to_bits().count_ones() as u8 },
                via,
                device,
                metric,
                flags,
            );
        }
        for line in ipv6_route.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [to, prefix, _, _, gateway, metric, _, _, flags, device] = words.as_slice() else { continue };
            let address = |text: &str| Some(Ipv6Addr::from_bits(u128::from_str_radix(text, 16).ok()?));
            let (Some(to), Ok(prefix), Some(gateway), Ok(metric), Ok(flags)) = (
                address(to),
                u8::from_str_radix(prefix, 16),
                address(gateway),
                u32::from_str_radix(metric, 16),
                u32::from_str_radix(flags, 16),
            ) else {
                continue;
            };
            // RTF_LOCAL, RTF_ANYCAST and multicast: not routes to elsewhere.
            if flags & 0x8010_0000 != 0 || to.is_multicast() || prefix > 128 {
                continue;
            }
            let via = (!gateway.is_unspecified()).then_some(IpAddr::V6(gateway));
            put(&mut out, Cidr { base: to.into(), prefix }, via, device, &metric.to_string(), flags);
        }
        out
    }
}

/// `RTF_REJECT` of `include/uapi/linux/route.h`.
const REJECT: u32 = 0x0200;

fn put(out: &mut String, to: Cidr, via: Option<IpAddr>, device: &str, metric: &str, flags: u32) {
    let kind = if flags & REJECT != 0 { "unreachable " } else { "" };
    let via = via.map(|via| format!(" via {via}")).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{kind}{to}{via} dev {device} metric {metric}");
}

/// `default`, `10.244.1.0/24` or an address.
pub(in crate::node) fn destination(text: &str, gateway: Option<IpAddr>) -> Option<Cidr> {
    if text == "default" {
        let base = match gateway {
            Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        return Some(Cidr { base, prefix: 0 });
    }
    let host = |ip: IpAddr| Cidr { base: ip, prefix: Cidr::bits(ip) };
    Cidr::parse(text).or_else(|| text.parse().ok().map(host))
}

impl Devices for Routes {
    fn device_to(&self, address: IpAddr) -> Option<&str> {
        self.0.iter().find(|route| route.to.contains(address))?.device.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device<'r>(routes: &'r Routes, to: &str) -> Option<&'r str> {
        routes.device_to(to.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_wins() {
        let routes = Routes::parse(
            "default via 192.0.2.1 dev eth0 proto dhcp metric 100\n10.244.1.0/24 dev cni0 proto kernel scope link\n\
             10.244.1.7 dev cali7 scope link\nblackhole 10.244.1.64/26 proto bird\n\
             10.244.2.0/24 proto bird\n\tnexthop via 192.0.2.12 dev eth0 weight 1\n\tnexthop via 192.0.2.13 dev eth1 weight 1\n\
             local 192.0.2.11 dev eth0 table local\n10.0.0.0/8 dev wg0 table 200\ndefault via fe80::1 dev eth0\n",
        )
        .unwrap();
        assert_eq!(device(&routes, "10.244.1.5"), Some("cni0"));
        assert_eq!(device(&routes, "10.244.1.7"), Some("cali7"));
        assert_eq!(device(&routes, "10.244.1.65"), None);
        assert_eq!(device(&routes, "10.244.2.1"), None, "two devices");
        assert_eq!(device(&routes, "10.1.1.1"), Some("eth0"));
        assert_eq!(device(&routes, "2001:db8::1"), Some("eth0"));
        assert!(Routes::parse("hello\nworld\n").is_err());
    }

    #[test]
    fn the_kernels_files_give_the_same() {
        let hex = |ip: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(ip));
        let route = format!(
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
             eth0\t{}\t{}\t0003\t0\t0\t100\t{}\t0\t0\t0\ncni0\t{}\t{}\t0001\t0\t0\t0\t{}\t0\t0\t0\n",
            hex([0; 4]),
            hex([192, 0, 2, 1]),
            hex([0; 4]),
            hex([10, 244, 1, 0]),
            hex([0; 4]),
            hex([255, 255, 255, 0]),
        );
        let six = "20010db8000000000000000000000000 40 00000000000000000000000000000000 00 \
                   00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n\
                   20010db8000000000000000000000011 80 00000000000000000000000000000000 00 \
                   00000000000000000000000000000000 00000000 00000003 00000000 80200001     eth0\n";
        let lines = Routes::lines_of(&route, six);
        assert_eq!(
            lines,
            "0.0.0.0/0 via 192.0.2.1 dev eth0 metric 100\n10.244.1.0/24 dev cni0 metric 0\n2001:db8::/64 dev eth0 metric 256\n"
        );
        let routes = Routes::parse(&lines).unwrap();
        assert_eq!(device(&routes, "10.244.1.5"), Some("cni0"));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = Routes::parse(&text);
            let _ = Routes::lines_of(&text, &text);
        }
    }
}
