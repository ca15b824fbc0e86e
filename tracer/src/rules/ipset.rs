//! Parses the output of `ipset save`: the sets of kube-proxy's IPVS mode.
//!
//! Pure and tolerant: of kube-proxy's sets, those of other types and unknown elements are counted and skipped. Other programs'
//! sets are kept with the note that a part of them is not understood.

use std::collections::HashMap;

use crate::{
    net::Protocol,
    parse::ParseError,
    rules::{AddressRange, Datum, Dimension, Ruleset, Set, iptables},
};

/// The most elements of one dump. Further elements count as oddities.
const MAX_ELEMENTS: usize = 4_000_000;

/// Parses `create` and `add` lines.
pub fn parse(text: &str) -> Ruleset {
    let mut ruleset = Ruleset::default();
    let mut by_name = HashMap::<&str, usize>::new();
    let mut elements = 0_usize;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("create"), Some(name), Some(kind)) => match dimensions(kind) {
                Some(dimensions) if !by_name.contains_key(name) => {
                    by_name.insert(name, ruleset.sets.len());
                    let options: Vec<&str> = words.collect();
                    let after = |word: &str| {
                        let position = options.iter().position(|option| *option == word)?;
                        options.get(position + 1)
                    };
                    let mut set = Set::new(name);
                    set.dimensions = dimensions;
                    set.timeout = after("timeout").and_then(|text| text.parse().ok());
                    // Its elements stand for others that the list does not name.
                    set.partial = after("netmask").or_else(|| after("bitmask")).is_some();
                    ruleset.sets.push(set);
                }
                Some(_) => {}
                None if is_kube_proxys(name) => {
                    ruleset.odd(|| format!("ipset: the type `{kind}` is unknown"));
                }
                None => {
                    let mut set = Set::new(name);
                    set.partial = true;
                    ruleset.sets.push(set);
                }
            },
            (Some("add"), Some(name), Some(element)) => {
                let Some(set) = by_name.get(name).and_then(|position| ruleset.sets.get_mut(*position)) else {
                    ruleset.skipped = ruleset.skipped.saturating_add(u64::from(is_kube_proxys(name)));
                    continue;
                };
                elements += 1;
                match parse_element(&set.dimensions, element).filter(|_| elements <= MAX_ELEMENTS) {
                    Some(key) if has_option(line, "nomatch") => set.exclude(key.into()),
                    Some(key) => set.insert(key.into(), None),
                    _ => {
                        set.partial = true;
                        if is_kube_proxys(name) {
                            ruleset.odd(|| format!("ipset: the element `{element}` is not understood"));
                        }
                    }
                }
            }
            (None, ..) => {}
            _ => ruleset
                .odd(|| format!("ipset: `{}` is not understood", line.chars().take(120).collect::<String>())),
        }
    }
    ruleset
}

/// As [`parse`], but a text that is not a list is an error.
pub fn parse_whole(text: &str) -> Result<Ruleset, ParseError> {
    match text.split_ascii_whitespace().next() {
        Some(word) if word != "create" && word != "add" => {
            Err(ParseError::nothing_in(text, "a list of ipset save"))
        }
        _ => Ok(parse(text)),
    }
}

/// Whether the set may be one of kube-proxy's. A part of another that is not understood is needed by that program's rules only.
fn is_kube_proxys(name: &str) -> bool {
    name.starts_with("KUBE-")
}

/// Whether the line has this word outside of its comment.
fn has_option(line: &str, option: &str) -> bool {
    line.split('"').step_by(2).flat_map(str::split_ascii_whitespace).any(|word| word == option)
}

fn dimensions(kind: &str) -> Option<Box<[Dimension]>> {
    let (method, parts) = kind.split_once(':')?;
    let dimension = |part: &str| match (method, part) {
        ("hash", "ip" | "net") => Some(Dimension::Address),
        ("hash", "port") => Some(Dimension::ProtocolPort),
        ("bitmap", "port") => Some(Dimension::Port),
        _ => None,
    };
    parts.split(',').map(dimension).collect()
}

/// `10.96.0.10,tcp:53`, `203.0.113.80,tcp:443,198.51.100.0/24`, `30080`.
fn parse_element(dimensions: &[Dimension], element: &str) -> Option<Vec<Datum>> {
    let mut key = Vec::with_capacity(4);
    let mut parts = element.split(',');
    for dimension in dimensions {
        let part = parts.next()?;
        match dimension {
            Dimension::Address => {
                let range = AddressRange::parse(part)?;
                key.push(range.as_host().map_or(Datum::Range(range), Datum::Address));
            }
            Dimension::ProtocolPort => {
                let (protocol, number) = part.split_once(':').unwrap_or(("tcp", part));
                key.push(Datum::Protocol(iptables::protocol(protocol)?));
                key.push(Datum::Port(number.parse().ok()?));
            }
            Dimension::Port => key.push(Datum::Port(part.parse().ok()?)),
        }
    }
    parts.next().is_none().then_some(key)
}

/// The protocol of a set whose elements are only ports, by the set's name.
pub fn protocol_of(name: &str) -> Protocol {
    if name.contains("-UDP") {
        Protocol::UDP
    } else if name.contains("-SCTP") {
        Protocol::SCTP
    } else {
        Protocol::TCP
    }
}
