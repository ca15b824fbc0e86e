//! Parses lists of IPVS servers: the output of `ipvsadm -Sn` and `ipvsadm -Ln`, and the kernel's `/proc/net/ip_vs`.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use super::{Destination, VirtualServer};
use crate::{net::Protocol, parse::ParseError};

/// The most virtual and real servers of one list; further ones are skipped.
const MAX_SERVERS: usize = 1_000_000;

/// Parses any of the three formats.
pub fn parse(text: &str) -> Vec<VirtualServer> {
    let mut servers: Vec<VirtualServer> = Vec::new();
    // The index of each saved server: its real servers name it and need not follow it directly.
    let mut places = HashMap::new();
    let mut count = 0_usize;
    let hexadecimal = is_proc(text);
    let endpoint = |text: &str| endpoint(text, hexadecimal);
    for line in text.lines() {
        if count >= MAX_SERVERS {
            break;
        }
        let words = line.split_ascii_whitespace().collect::<Vec<_>>();
        match words.as_slice() {
            ["-A", rest @ ..] => {
                if let Some(server) = saved_server(rest) {
                    places.insert((server.protocol, server.address), servers.len());
                    servers.push(server);
                    count += 1;
                }
            }
            ["-a", rest @ ..] => {
                if let Some((protocol, address, destination)) = saved_destination(rest) {
                    let place = places.get(&(protocol, address));
                    if let Some(owner) = place.and_then(|place| servers.get_mut(*place)) {
                        owner.destinations.push(destination);
                        count += 1;
                    }
                }
            }
            ["->", address, forward, weight, ..] => {
                if let (Some(owner), Some(address), Ok(weight)) =
                    (servers.last_mut(), endpoint(address), weight.parse())
                {
                    owner.destinations.push(Destination { address, weight, masquerade: *forward == "Masq" });
                    count += 1;
                }
            }
            [protocol, address, scheduler, flags @ ..] => {
                if let (Some(protocol), Some(address)) = (Protocol::from_name(protocol), endpoint(address)) {
                    // In /proc the time is in the kernel's ticks, whose length the file does not contain.
                    let persistent = flags.iter().position(|flag| *flag == "persistent").map(|position| {
                        let seconds = flags.get(position + 1).and_then(|text| text.parse().ok());
                        seconds.filter(|_| !hexadecimal).unwrap_or(UNKNOWN_SECONDS)
                    });
                    servers.push(VirtualServer {
                        protocol,
                        address,
                        scheduler: (*scheduler).into(),
                        persistent,
                        destinations: Vec::new(),
                    });
                    count += 1;
                }
            }
            _ => {}
        }
    }
    servers
}

/// As [`parse`], but a text that is not a list is an error.
pub fn parse_whole(text: &str) -> Result<Vec<VirtualServer>, ParseError> {
    let begins = |word: &str| matches!(word, "-A" | "-a" | "IP" | "TCP" | "UDP" | "SCTP" | "FWM");
    match text.split_ascii_whitespace().next() {
        Some(word) if !begins(word) => Err(ParseError::nothing_in(text, "a list of IPVS's servers")),
        _ => Ok(parse(text)),
    }
}

/// Persistent for an unknown time.
pub const UNKNOWN_SECONDS: u32 = u32::MAX;

/// `-t 10.96.10.40:443 -s rr -p 10800`
fn saved_server(words: &[&str]) -> Option<VirtualServer> {
    let (protocol, address) = saved_address(words)?;
    let value = |option: &str| {
        let position = words.iter().position(|word| *word == option)?;
        words.get(position + 1).copied()
    };
    // Without a number ipvsadm means 300 s.
    let persistent = words.contains(&"-p").then(|| value("-p").and_then(|s| s.parse().ok()).unwrap_or(300));
    Some(VirtualServer {
        protocol,
        address,
        scheduler: value("-s").unwrap_or_default().into(),
        persistent,
        destinations: Vec::new(),
    })
}

/// `-t 10.96.10.40:443 -r 10.244.1.31:9090 -m -w 1`
fn saved_destination(words: &[&str]) -> Option<(Protocol, SocketAddr, Destination)> {
    let (protocol, address) = saved_address(words)?;
    let value = |option: &str| {
        let position = words.iter().position(|word| *word == option)?;
        words.get(position + 1).copied()
    };
    let destination = Destination {
        address: endpoint(value("-r")?, false)?,
        weight: value("-w").and_then(|text| text.parse().ok()).unwrap_or(1),
        masquerade: words.contains(&"-m"),
    };
    Some((protocol, address, destination))
}

fn saved_address(words: &[&str]) -> Option<(Protocol, SocketAddr)> {
    match words {
        ["-t" | "--tcp-service", address, ..] => Some((Protocol::TCP, endpoint(address, false)?)),
        ["-u" | "--udp-service", address, ..] => Some((Protocol::UDP, endpoint(address, false)?)),
        ["--sctp-service", address, ..] => Some((Protocol::SCTP, endpoint(address, false)?)),
        _ => None,
    }
}

/// Whether this is `/proc/net/ip_vs`: only this format writes IPv4 addresses and all ports in hexadecimal digits, and
/// IPv6 addresses in full length.
fn is_proc(text: &str) -> bool {
    let words = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("->" | "TCP" | "UDP" | "SCTP") => words.next(),
            _ => None,
        }
    });
    let mut addresses = words.filter(|word| !word.starts_with("RemoteAddress")).take(64).peekable();
    let hexadecimal = |word: &str| {
        word.rsplit_once(':').is_some_and(|(address, port)| {
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let whole =
                address.strip_prefix('[').map_or(address.len() == 8 && digits(address), |v6| v6.len() == 40);
            whole && port.len() == 4 && digits(port)
        })
    };
    addresses.peek().is_some() && addresses.all(hexadecimal)
}

/// `10.96.10.10:80`, `[fd00::1]:80`, or in /proc `0A600A0A:0050`, `[fd00:0000:…:0001]:0050`.
fn endpoint(text: &str, hexadecimal: bool) -> Option<SocketAddr> {
    if !hexadecimal {
        return text.parse().ok();
    }
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let ip = match address.strip_prefix('[') {
        Some(address) => address.trim_end_matches(']').parse().ok()?,
        None => IpAddr::V4(Ipv4Addr::from_bits(u32::from_str_radix(address, 16).ok()?)),
    };
    Some(SocketAddr::new(ip, port))
}
