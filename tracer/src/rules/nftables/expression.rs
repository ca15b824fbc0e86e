//! Statements, conditions and set elements of the JSON format.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::{
    net::Protocol,
    rules::{AddressRange, Datum, Field, Key, Set, Step, Table, Verdict, iptables},
};

/// Statements that do not touch where a packet goes.
const HARMLESS: [&str; 4] = ["counter", "log", "comment", "notrack"];

/// Adds what a statement does to `steps`. A verdict map written into the rule becomes a map of the table.
pub(super) fn statement(statement: &Value, table: &mut Table, steps: &mut Vec<Step>) {
    let Some((name, body)) = statement.as_object().and_then(|object| object.iter().next()) else {
        steps.push(unknown(statement));
        return;
    };
    if let Some(verdict) = verdict_of(name, body) {
        steps.push(Step::Do(verdict));
        return;
    }
    let step = match name.as_str() {
        "match" => condition(body, table),
        "vmap" => vmap(body, table, steps.len()),
        "mangle" => mangle(body),
        "masquerade" | "snat" => Some(Step::Do(Verdict::Masquerade)),
        "dnat" => dnat(body),
        "set" => body.get("set").and_then(Value::as_str).map(|set| Step::Remember(bare(set).into())),
        harmless if HARMLESS.contains(&harmless) => Some(Step::Harmless),
        _ => None,
    };
    match step {
        Some(Step::Harmless) => {}
        Some(step) => steps.push(step),
        None => steps.push(unknown(statement)),
    }
}

fn unknown(value: &Value) -> Step {
    Step::Unknown(value.to_string().chars().take(120).collect::<String>().into())
}

fn bare(set: &str) -> &str {
    set.strip_prefix('@').unwrap_or(set)
}

fn verdict(value: &Value) -> Option<Verdict> {
    let (name, body) = value.as_object()?.iter().next()?;
    verdict_of(name, body)
}

fn verdict_of(name: &str, body: &Value) -> Option<Verdict> {
    let target = || body.get("target").and_then(Value::as_str);
    Some(match name {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "reject" => Verdict::Reject,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(target()?.into()),
        "goto" => Verdict::Goto(target()?.into()),
        _ => return None,
    })
}

/// What of the packet an expression reads.
fn field(value: &Value) -> Option<Field> {
    if let Some(payload) = value.get("payload") {
        return match (payload.get("protocol")?.as_str()?, payload.get("field")?.as_str()?) {
            ("ip" | "ip6", "saddr") => Some(Field::Source),
            ("ip" | "ip6", "daddr") => Some(Field::Destination),
            ("tcp" | "udp" | "sctp" | "th", "dport") => Some(Field::Port),
            _ => None,
        };
    }
    (value.get("meta")?.get("key")? == "l4proto").then_some(Field::Protocol)
}

fn fields(value: &Value) -> Option<Box<[Field]>> {
    match value.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(field).collect(),
        None => Some([field(value)?].into()),
    }
}

fn condition(body: &Value, table: &Table) -> Option<Step> {
    let (left, right) = (body.get("left")?, body.get("right")?);
    let negated = match body.get("op").and_then(Value::as_str)? {
        "==" | "in" => false,
        "!=" => true,
        _ => return None,
    };
    if let Some(name) = right.as_str().and_then(|text| text.strip_prefix('@')) {
        let fields = fields(left)?;
        let remembered = table.set(name).is_some_and(|set| set.timeout.is_some());
        return match fields.as_ref() {
            [Field::Source] if remembered && !negated => {
                Some(Step::Sticky { list: name.into(), seconds: None })
            }
            _ => Some(Step::InSet { set: name.into(), fields, negated }),
        };
    }
    match field(left) {
        Some(Field::Source) => return Some(Step::Source { ranges: ranges(right)?, negated }),
        Some(Field::Destination) => return Some(Step::Destination { ranges: ranges(right)?, negated }),
        Some(Field::Protocol) => return Some(Step::Protocol { protocol: protocol(right)?, negated }),
        Some(Field::Port) => {
            let (first, last) = match right.get("range").and_then(Value::as_array).map(Vec::as_slice) {
                Some([first, last]) => (port(first)?, port(last)?),
                _ => (port(right)?, port(right)?),
            };
            return Some(Step::Port { first, last, negated });
        }
        None => {}
    }
    if let Some(ct) = left.get("ct") {
        let names = |name: &str| match right {
            Value::String(text) => text == name,
            Value::Array(list) => list.iter().any(|text| text == name),
            other => other
                .get("set")
                .and_then(Value::as_array)
                .is_some_and(|list| list.iter().any(|text| text == name)),
        };
        return match ct.get("key")?.as_str()? {
            "state" => Some(Step::State { new: names("new"), translated: false, negated }),
            "status" => Some(Step::State { new: false, translated: names("dnat"), negated }),
            _ => None,
        };
    }
    if let Some(fib) = left.get("fib") {
        let local = fib.get("result")? == "type" && right == "local";
        let flags = fib.get("flags")?;
        let of = |name: &str| {
            flags == name || flags.as_array().is_some_and(|flags| flags.iter().all(|flag| flag == name))
        };
        return match () {
            () if local && of("saddr") => Some(Step::SourceLocal { negated }),
            () if local && of("daddr") => Some(Step::DestinationLocal { negated }),
            () => None,
        };
    }
    if left.get("meta").and_then(|meta| meta.get("key")).is_some_and(|key| key == "iifname" || key == "iif") {
        return Some(Step::Interface { name: right.as_str()?.into(), negated });
    }
    let (value, mask) = match left.get("&").and_then(Value::as_array).map(Vec::as_slice) {
        Some([of, mask]) if is_mark(of) => (number(right)?, number(mask)?),
        None if is_mark(left) => (number(right)?, u32::MAX),
        _ => return None,
    };
    Some(Step::Mark { value, mask, negated })
}

fn is_mark(value: &Value) -> bool {
    value.get("meta").and_then(|meta| meta.get("key")).is_some_and(|key| key == "mark")
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

fn port(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|number| u16::try_from(number).ok())
}

fn protocol(value: &Value) -> Option<Protocol> {
    match value {
        Value::String(name) => iptables::protocol(name),
        other => other.as_u64().and_then(|number| u8::try_from(number).ok()).map(Protocol),
    }
}

fn ranges(value: &Value) -> Option<Box<[AddressRange]>> {
    match value.get("set").and_then(Value::as_array) {
        Some(list) => list.iter().map(range).collect(),
        None => Some([range(value)?].into()),
    }
}

/// An address, a prefix or a range.
fn range(value: &Value) -> Option<AddressRange> {
    if let Some(text) = value.as_str() {
        return AddressRange::parse(text);
    }
    if let Some(prefix) = value.get("prefix") {
        let length = u8::try_from(prefix.get("len")?.as_u64()?).ok()?;
        return AddressRange::of(prefix.get("addr")?.as_str()?.parse().ok()?, length);
    }
    match value.get("range")?.as_array()?.as_slice() {
        [first, last] => {
            Some(AddressRange { first: first.as_str()?.parse().ok()?, last: last.as_str()?.parse().ok()? })
        }
        _ => None,
    }
}

fn mangle(body: &Value) -> Option<Step> {
    if !is_mark(body.get("key")?) {
        return None;
    }
    let value = body.get("value")?;
    if let Some(number) = number(value) {
        return Some(Step::SetMark { clear: u32::MAX, toggle: number });
    }
    let (operator, operands) = value.as_object()?.iter().next()?;
    let bits = match operands.as_array()?.as_slice() {
        [of, bits] if is_mark(of) => number(bits)?,
        _ => return None,
    };
    Some(match operator.as_str() {
        "|" => Step::SetMark { clear: bits, toggle: bits },
        "^" => Step::SetMark { clear: 0, toggle: bits },
        "&" => Step::SetMark { clear: !bits, toggle: 0 },
        _ => return None,
    })
}

/// `numgen random mod N`.
fn random(key: &Value) -> Option<u32> {
    let numgen = key.get("numgen")?;
    let whole = numgen.get("offset").is_none_or(|offset| offset == 0);
    number(numgen.get("mod")?).filter(|of| whole && *of > 0)
}

fn dnat(body: &Value) -> Option<Step> {
    let address = body.get("addr")?;
    if let Some(map) = address.get("map") {
        let of = random(map.get("key")?)?;
        let to =
            map.get("data")?.get("set")?.as_array()?.iter().map(|entry| match entry.as_array()?.as_slice() {
                [key, value] => {
                    let endpoint = match value.get("concat").and_then(Value::as_array).map(Vec::as_slice) {
                        Some([address, number]) => {
                            SocketAddr::new(address.as_str()?.parse().ok()?, port(number)?)
                        }
                        _ => SocketAddr::new(
                            value.as_str()?.parse().ok()?,
                            body.get("port").and_then(port).unwrap_or(0),
                        ),
                    };
                    Some((number(key)?, Verdict::Dnat(endpoint)))
                }
                _ => None,
            });
        return Some(Step::Spread { of, to: to.collect::<Option<_>>()? });
    }
    let ip: IpAddr = address.as_str()?.parse().ok()?;
    Some(Step::Do(Verdict::Dnat(SocketAddr::new(ip, body.get("port").map_or(Some(0), port)?))))
}

fn vmap(body: &Value, table: &mut Table, place: usize) -> Option<Step> {
    let (key, data) = (body.get("key")?, body.get("data")?);
    if let Some(of) = random(key) {
        let to = data.get("set")?.as_array()?.iter().map(|entry| match entry.as_array()?.as_slice() {
            [key, value] => Some((number(key)?, verdict(value)?)),
            _ => None,
        });
        return Some(Step::Spread { of, to: to.collect::<Option<_>>()? });
    }
    let fields = fields(key)?;
    if let Some(name) = data.as_str() {
        return Some(Step::Look { fields, map: bare(name).into() });
    }
    // A map of the rule's own: nft gives it no name.
    let name = format!("__map{}_{place}", table.sets.len());
    let mut map = Set::new(&name);
    for entry in data.get("set")?.as_array()? {
        let (key, verdict) = element(entry)?;
        map.insert(key, verdict);
    }
    table.add_set(map);
    Some(Step::Look { fields, map: name.into() })
}

/// An element of a set, or of a map: `[KEY, VERDICT]`.
pub(super) fn element(value: &Value) -> Option<(Key, Option<Verdict>)> {
    match value.as_array().map(Vec::as_slice) {
        Some([of, then]) => Some((key(of)?, Some(verdict(then)?))),
        Some(_) => None,
        None => Some((key(value)?, None)),
    }
}

/// An address, a port, a protocol, or several of them; a comment or counter is taken off.
fn key(value: &Value) -> Option<Key> {
    if let Some(inner) = value.get("elem").and_then(|elem| elem.get("val")) {
        return key(inner);
    }
    match value.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(datum).collect(),
        None => Some([datum(value)?].into()),
    }
}

fn datum(value: &Value) -> Option<Datum> {
    match value {
        Value::Number(_) => port(value).map(Datum::Port),
        Value::String(text) => match text.parse() {
            Ok(ip) => Some(Datum::Address(ip)),
            Err(_) => iptables::protocol(text).map(Datum::Protocol),
        },
        other => {
            let range = range(other)?;
            Some(range.as_host().map_or(Datum::Range(range), Datum::Address))
        }
    }
}
