//! Conditions that only other programs' tables have, and those that nft leaves out when it lists a rule.

use serde_json_borrow::Value;

use super::expression::{ESTABLISHED, NEW, Read as _, UNTRACKED, has, verdict};
use crate::{
    net::{Family, Protocol},
    rules::{
        ByState, Step, Table, iptables,
        step::{Steps, thin},
    },
};

/// The longest text of a condition that cannot be judged.
const MAX_TEXT: usize = 120;

/// The conditions that a field implies: `tcp dport` is only in TCP packets, and `ip saddr` only in IPv4 packets. nft does not list
/// these conditions. kube-proxy's own rules do not need them.
pub(super) fn implied(key: &Value<'_>, table: &Table, steps: &mut Steps) {
    let parts = key.member("concat").and_then(Value::as_array);
    for part in parts.unwrap_or(std::slice::from_ref(key)) {
        let part = part.member("&").and_then(Value::as_array).and_then(<[_]>::first).unwrap_or(part);
        let Some(name) = part.member("payload").and_then(|payload| payload.member("protocol")?.as_str())
        else {
            continue;
        };
        let step = match name {
            "ip" if table.name.starts_with("inet ") => {
                Step::OfFamily { family: Family::Ipv4, negated: false }
            }
            "ip6" if table.name.starts_with("inet ") => {
                Step::OfFamily { family: Family::Ipv6, negated: false }
            }
            "tcp" | "udp" | "sctp" | "icmp" | "icmpv6" => match iptables::protocol(name) {
                Some(protocol) => Step::Protocol { protocol, negated: false },
                None => continue,
            },
            _ => continue,
        };
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
}

/// A condition that kube-proxy's rules do not have.
pub(super) fn condition(left: &Value<'_>, right: &Value<'_>, negated: bool) -> Option<Step> {
    if let Some(key) = left.member("meta").and_then(|meta| meta.member("key")?.as_str()) {
        return match key {
            "iifname" | "iif" | "oifname" | "oif" => {
                Some(Step::Devices { out: key.starts_with('o'), names: thin(all(right, name)?), negated })
            }
            "l4proto" => Some(Step::Protocols { protocols: thin(all(right, protocol)?), negated }),
            "nfproto" => Some(Step::OfFamily { family: family(right)?, negated }),
            _ => None,
        };
    }
    if let Some(payload) = left.member("payload") {
        return match (payload.member("protocol")?.as_str()?, payload.member("field")?.as_str()?) {
            ("tcp" | "udp" | "sctp" | "th", side @ ("dport" | "sport")) => {
                Some(Step::Ports { source: side == "sport", ranges: thin(all(right, ports)?), negated })
            }
            ("ip", "protocol") | ("ip6", "nexthdr") => {
                Some(Step::Protocols { protocols: thin(all(right, protocol)?), negated })
            }
            _ => None,
        };
    }
    if let Some(fib) = left.member("fib") {
        let flag = match fib.member("flags")? {
            Value::Array(flags) if flags.len() == 1 => flags.first()?.as_str()?,
            other => other.as_str()?,
        };
        let source = match flag {
            "saddr" => true,
            "daddr" => false,
            _ => return None,
        };
        let is_type = fib.member("result")?.as_str()? == "type";
        return is_type.then_some(Step::AddressType { source, kind: thin(right.as_str()?), negated });
    }
    if let Some([of, mask]) = left.member("&").and_then(Value::as_array) {
        let payload = of.member("payload")?;
        let is_flags =
            payload.member("protocol")?.as_str()? == "tcp" && payload.member("field")?.as_str()? == "flags";
        return is_flags.then_some(Step::TcpFlags { mask: flags(mask)?, set: flags(right)?, negated });
    }
    let direction = left.member("ct").and_then(|ct| ct.member("key")?.as_str()) == Some("direction");
    let original = right.as_str() == Some("original") || right.unsigned() == Some(0);
    (direction && original).then_some(Step::State {
        new: !negated,
        translated: false,
        established: negated,
        untracked: false,
        negated: false,
    })
}

/// `ct state vmap { established : accept, invalid : drop }`
pub(super) fn vmap(key: &Value<'_>, data: &Value<'_>) -> Option<Step> {
    if key.member("ct")?.member("key")?.as_str()? != "state" {
        return None;
    }
    let (mut new, mut established, mut untracked) = (None, None, None);
    for entry in data.member("set")?.as_array()? {
        let [states, then] = entry.as_array()? else { return None };
        let verdict = verdict(then)?;
        if has(states, NEW) {
            new = Some(verdict.clone());
        }
        if has(states, UNTRACKED) {
            untracked = Some(verdict.clone());
        }
        if has(states, ESTABLISHED) {
            established = Some(verdict);
        }
    }
    Some(Step::ByState(ByState { new, established, untracked }.into()))
}

/// One value, or each of a set.
fn all<T>(value: &Value<'_>, one: impl Fn(&Value<'_>) -> Option<T>) -> Option<Box<[T]>> {
    let list = value.member("set").and_then(Value::as_array).or_else(|| value.as_array());
    match list {
        Some(list) => list.iter().map(&one).collect(),
        None => Some([one(value)?].into()),
    }
}

fn name(value: &Value<'_>) -> Option<Box<str>> {
    value.as_str().filter(|text| !text.starts_with('@')).map(Into::into)
}

fn protocol(value: &Value<'_>) -> Option<Protocol> {
    match value {
        Value::Str(name) => iptables::protocol(name),
        other => other.unsigned().and_then(|number| u8::try_from(number).ok()).map(Protocol),
    }
}

fn family(value: &Value<'_>) -> Option<Family> {
    match value.as_str()? {
        "ipv4" => Some(Family::Ipv4),
        "ipv6" => Some(Family::Ipv6),
        _ => None,
    }
}

fn port(value: &Value<'_>) -> Option<u16> {
    value.unsigned().and_then(|number| u16::try_from(number).ok())
}

fn ports(value: &Value<'_>) -> Option<(u16, u16)> {
    match value.member("range").and_then(Value::as_array) {
        Some([first, last]) => Some((port(first)?, port(last)?)),
        _ => port(value).map(|port| (port, port)),
    }
}

/// `"syn"`, `["syn", "ack"]` or `{"|": ["syn", "ack"]}`, or `"(syn|ack)"` of a text, as the bits of a TCP header.
fn flags(value: &Value<'_>) -> Option<u8> {
    let bit = |name: &str| {
        let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];
        names.iter().position(|known| *known == name).map(|bit| 1_u8 << bit)
    };
    if let Some(names) = value.as_str() {
        let mut names = names.trim_matches(['(', ')']).split('|');
        return names.try_fold(0, |bits, name| Some(bits | bit(name)?));
    }
    if value.unsigned() == Some(0) {
        return Some(0);
    }
    let list = value.member("|").and_then(Value::as_array).or_else(|| value.as_array())?;
    list.iter().try_fold(0, |bits, value| Some(bits | flags(value)?))
}

/// The field of a key, for a person.
fn key(value: &Value<'_>) -> Option<String> {
    let text = |value: &Value<'_>, name: &str| {
        value.member(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (kind, body) = value.as_object()?.iter().next()?;
    Some(match kind {
        "payload" => format!("{} {}", text(body, "protocol"), text(body, "field")),
        "meta" => match text(body, "key").as_str() {
            key @ ("iif" | "iifname" | "oif" | "oifname") => key.to_owned(),
            key => format!("meta {key}"),
        },
        "ct" => format!("ct {}", text(body, "key")),
        "fib" => {
            let flags = body.member("flags").map(describe).unwrap_or_default().replace(", ", " . ");
            format!("fib {flags} {}", text(body, "result"))
        }
        "socket" => format!("socket {}", text(body, "key")),
        _ => return None,
    })
}

/// A statement or value in the words of nft, as far as they are known.
pub(super) fn describe(value: &Value<'_>) -> String {
    let mut text = words(value);
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn words(value: &Value<'_>) -> String {
    let list = |items: &[Value<'_>], between: &str| items.iter().map(words).collect::<Vec<_>>().join(between);
    match value {
        Value::Str(text) => text.to_string(),
        Value::Null => String::new(),
        Value::Array(items) => list(items, ", "),
        _ => {
            if let Some(key) = key(value) {
                return key;
            }
            let Some((name, body)) = value.as_object().and_then(|object| object.iter().next()) else {
                return value.to_string();
            };
            match (name, body.as_array()) {
                ("match", _) => {
                    let part = |name: &str| body.member(name).map(words).unwrap_or_default();
                    let op = part("op");
                    let op =
                        if matches!(op.as_str(), "==" | "in") { String::new() } else { format!("{op} ") };
                    format!("{} {op}{}", part("left"), part("right"))
                }
                ("unknown" | "unknown effect", _) => words(body),
                ("set", Some(items)) => format!("{{ {} }}", list(items, ", ")),
                ("range", Some(items)) => list(items, "-"),
                ("concat", Some(items)) => list(items, " . "),
                ("&" | "|" | "^", Some(items)) => list(items, &format!(" {name} ")),
                ("prefix", _) => {
                    let part = |name: &str| body.member(name).map(words).unwrap_or_default();
                    format!("{}/{}", part("addr"), part("len"))
                }
                ("limit", _) => {
                    let part = |name: &str| body.member(name).map(words).unwrap_or_default();
                    format!("limit rate {}/{}", part("rate"), part("per"))
                }
                ("xt", _) => "a match of iptables that nft does not list".to_owned(),
                _ => format!("{name} {}", words(body)).trim_end().to_owned(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::{Step, nftables::parse_others, text};

    /// Every text of flags reads as the same flags.
    #[test]
    fn flags_are_read_as_they_are_written() {
        let rule_of = |condition: &str| {
            let text = format!(
                "table inet x {{\n\tchain c {{\n\t\ttype filter hook input priority filter; policy accept;\n\
                 \t\t{condition} drop\n\t}}\n}}\n"
            );
            let table = parse_others(&text).unwrap().tables.remove(0);
            let steps = table.chains[0].rules[0].steps.clone();
            (table, steps)
        };
        let (table, _) = rule_of("tcp flags & (syn|ack) == syn");
        for set in [0, 0x02, 0x12, 0x40, 0xc0] {
            let wanted = Step::TcpFlags { mask: 0xff, set, negated: false };
            let written = text::step(&wanted, &table);
            let (_, steps) = rule_of(&written);
            assert!(steps.contains(&wanted), "`{written}` reads as {steps:?}");
        }
    }
}
