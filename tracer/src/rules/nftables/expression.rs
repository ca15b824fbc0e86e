//! Statements, conditions and set elements of the JSON format.

use std::net::{IpAddr, SocketAddr};

use serde_json_borrow::Value;

use super::{foreign, is_ours};
use crate::{
    net::Protocol,
    rules::{
        AddressRange, Addresses, Datum, Field, InSet, Key, Look, Set, Step, Sticky, Table, Verdict, iptables,
        step::{Steps, thin},
    },
};

/// Access to a value's parts; `None` for a value of another type.
pub(super) trait Read<'ctx> {
    fn member(&self, name: &str) -> Option<&Value<'ctx>>;
    fn unsigned(&self) -> Option<u64>;
}

impl<'ctx> Read<'ctx> for Value<'ctx> {
    fn member(&self, name: &str) -> Option<&Value<'ctx>> {
        self.as_object()?.get(name)
    }

    /// Also works for a number converted from [`serde_json::Value`], which is stored as a signed number.
    fn unsigned(&self) -> Option<u64> {
        self.as_u64().or_else(|| u64::try_from(self.as_i64()?).ok())
    }
}

/// Statements that do not affect the destination of a packet.
const HARMLESS: [&str; 14] = [
    "counter",
    "log",
    "comment",
    "notrack",
    "continue",
    "last",
    "flow",
    "dup",
    "ct helper",
    "ct timeout",
    "ct expectation",
    "secmark",
    "map",
    "reset",
];

/// Statements that only decide whether the rule goes on.
const CONDITIONS: [&str; 5] = ["match", "limit", "quota", "ct count", "unknown"];

/// Appends a statement's effect to `steps`. A verdict map inside the rule becomes a map of the table.
pub(super) fn statement(statement: &Value<'_>, table: &mut Table, steps: &mut Steps) {
    let Some((name, body)) = statement.as_object().and_then(|object| object.iter().next()) else {
        steps.push(unknown(statement));
        return;
    };
    if let Some(verdict) = verdict_of(name, body) {
        steps.push(Step::Do(verdict));
        return;
    }
    let step = match name {
        "match" => {
            imply(body.member("left"), table, steps);
            condition(body, table)
        }
        "vmap" => {
            imply(body.member("key"), table, steps);
            vmap(body, table, steps.len())
        }
        "mangle" => mangle(body, is_ours(&table.name), steps),
        "notrack" if !is_ours(&table.name) => Some(Step::NoTrack),
        "redirect" | "queue" | "tproxy" | "fwd" | "synproxy" => Some(Step::Do(Verdict::Unknown(name.into()))),
        "snat" if body.member("addr").and_then(|address| address.member("map")).is_some() => {
            // A source that the map does not have stays as it is.
            steps.push(unknown(statement));
            Some(Step::Do(Verdict::Masquerade))
        }
        "masquerade" | "snat" => Some(Step::Do(Verdict::Masquerade)),
        "dnat" => dnat(body),
        "set" => body.member("set").and_then(Value::as_str).map(|set| Step::Remember(bare(set).into())),
        harmless if HARMLESS.contains(&harmless) => Some(Step::Harmless),
        _ => None,
    };
    match step {
        Some(Step::Harmless) => {}
        Some(step) => steps.push(step),
        None => {
            steps.push(unknown(statement));
            // The effect of another statement is not known either.
            let is_match = name == "xt" && body.member("type").and_then(Value::as_str) == Some("match");
            if !CONDITIONS.contains(&name) && !is_match {
                steps.push(Step::Do(Verdict::Unknown(name.into())));
            }
        }
    }
}

fn unknown(value: &Value<'_>) -> Step {
    Step::Unknown(foreign::describe(value).into())
}

/// Adds the conditions that a field implies in another program's rule.
fn imply(key: Option<&Value<'_>>, table: &Table, steps: &mut Steps) {
    if let Some(key) = key.filter(|_| !is_ours(&table.name)) {
        foreign::implied(key, table, steps);
    }
}

fn bare(set: &str) -> &str {
    set.strip_prefix('@').unwrap_or(set)
}

pub(super) fn verdict(value: &Value<'_>) -> Option<Verdict> {
    let (name, body) = value.as_object()?.iter().next()?;
    verdict_of(name, body)
}

fn verdict_of(name: &str, body: &Value<'_>) -> Option<Verdict> {
    let target = || body.member("target").and_then(Value::as_str);
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

/// The packet field that an expression reads.
fn field(value: &Value<'_>) -> Option<Field> {
    if let Some(payload) = value.member("payload") {
        return match (payload.member("protocol")?.as_str()?, payload.member("field")?.as_str()?) {
            ("ip" | "ip6", "saddr") => Some(Field::Source),
            ("ip" | "ip6", "daddr") => Some(Field::Destination),
            ("tcp" | "udp" | "sctp" | "th", "dport") => Some(Field::Port),
            _ => None,
        };
    }
    (value.member("meta")?.member("key")?.as_str()? == "l4proto").then_some(Field::Protocol)
}

fn fields(value: &Value<'_>) -> Option<Box<[Field]>> {
    match value.member("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(field).collect(),
        None => Some([field(value)?].into()),
    }
}

fn condition(body: &Value<'_>, table: &Table) -> Option<Step> {
    own_condition(body, table).or_else(|| {
        let negated = match body.member("op").and_then(Value::as_str)? {
            "==" | "in" => false,
            "!=" => true,
            _ => return None,
        };
        foreign::condition(body.member("left")?, body.member("right")?, negated)
    })
}

/// A constant of nft(8): its name, and its number, which `nft -n` prints.
#[derive(Clone, Copy)]
pub(super) struct Constant {
    name: &'static str,
    number: u64,
}

/// `enum ip_conntrack_info` as `NF_CT_STATE_BIT` makes bits of it (`include/net/netfilter/nf_tables.h`).
pub(super) const ESTABLISHED: Constant = Constant { name: "established", number: 2 };
/// `NF_CT_STATE_UNTRACKED_BIT`.
pub(super) const UNTRACKED: Constant = Constant { name: "untracked", number: 64 };
pub(super) const NEW: Constant = Constant { name: "new", number: 8 };
/// `IPS_DST_NAT` (`include/uapi/linux/netfilter/nf_conntrack_common.h`).
const DNAT: Constant = Constant { name: "dnat", number: 1 << 5 };
/// `IPS_SRC_NAT`.
const SNAT: Constant = Constant { name: "snat", number: 1 << 4 };
/// `RTN_LOCAL` (`include/uapi/linux/rtnetlink.h`).
const LOCAL: Constant = Constant { name: "local", number: 2 };

/// Whether a bit is in a value: alone, in a list, or in a set.
pub(super) fn has(value: &Value<'_>, bit: Constant) -> bool {
    let list = value.as_array().or_else(|| value.member("set").and_then(Value::as_array));
    list.map_or_else(|| bit.is_in(value), |list| list.iter().any(|value| bit.is_in(value)))
}

impl Constant {
    fn is(self, value: &Value<'_>) -> bool {
        value.as_str() == Some(self.name) || value.unsigned() == Some(self.number)
    }

    fn is_in(self, value: &Value<'_>) -> bool {
        value.as_str() == Some(self.name) || value.unsigned().is_some_and(|bits| bits & self.number != 0)
    }
}

/// A condition that kube-proxy's rules have.
fn own_condition(body: &Value<'_>, table: &Table) -> Option<Step> {
    let (left, right) = (body.member("left")?, body.member("right")?);
    let negated = match body.member("op").and_then(Value::as_str)? {
        "==" | "in" => false,
        "!=" => true,
        _ => return None,
    };
    if let Some(name) = right.as_str().and_then(|text| text.strip_prefix('@')) {
        let fields = fields(left)?;
        let remembered = table.set(name).is_some_and(|set| set.timeout.is_some());
        return match fields.as_ref() {
            [Field::Source] if remembered && !negated => {
                Some(Step::Sticky(Sticky { list: name.into(), seconds: None }.into()))
            }
            _ => Some(Step::InSet(InSet { set: name.into(), fields, negated }.into())),
        };
    }
    match field(left) {
        Some(Field::Source) => return Some(Step::Source(addresses(right, negated)?)),
        Some(Field::Destination) => return Some(Step::Destination(addresses(right, negated)?)),
        Some(Field::Protocol) => return Some(Step::Protocol { protocol: protocol(right)?, negated }),
        Some(Field::Port) => {
            let (first, last) = match right.member("range").and_then(Value::as_array) {
                Some([first, last]) => (port(first)?, port(last)?),
                _ => (port(right)?, port(right)?),
            };
            return Some(Step::Port { first, last, negated });
        }
        None => {}
    }
    if let Some(ct) = left.member("ct") {
        return match ct.member("key")?.as_str()? {
            "state" => Some(Step::State {
                new: has(right, NEW),
                translated: false,
                established: has(right, ESTABLISHED),
                untracked: has(right, UNTRACKED),
                negated,
            }),
            // A first packet has no other status, and of an answer's the translation alone is known.
            "status" if has(right, DNAT) || has(right, SNAT) => Some(Step::State {
                new: false,
                translated: has(right, DNAT),
                established: false,
                untracked: false,
                negated,
            }),
            "mark" => Some(Step::ConnMark { value: number(right)?, mask: u32::MAX, negated }),
            _ => None,
        };
    }
    if let Some(fib) = left.member("fib") {
        let local = fib.member("result")?.as_str()? == "type" && LOCAL.is(right);
        let flags = fib.member("flags")?;
        let of = |name: &str| {
            flags.as_str() == Some(name)
                || flags.as_array().is_some_and(|flags| flags.iter().all(|flag| flag.as_str() == Some(name)))
        };
        return match () {
            () if local && of("saddr") => Some(Step::SourceLocal { negated }),
            () if local && of("daddr") => Some(Step::DestinationLocal { negated }),
            () => None,
        };
    }
    if matches!(left.member("meta").and_then(|meta| meta.member("key")?.as_str()), Some("iifname" | "iif")) {
        return Some(Step::Interface { name: thin(right.as_str()?), negated });
    }
    let (value, mask) = match left.member("&").and_then(Value::as_array) {
        Some([of, mask]) if is_mark(of) => (number(right)?, number(mask)?),
        Some([of, mask]) if is_connmark(of) => {
            return Some(Step::ConnMark { value: number(right)?, mask: number(mask)?, negated });
        }
        None if is_mark(left) => (number(right)?, u32::MAX),
        _ => return None,
    };
    Some(Step::Mark { value, mask, negated })
}

fn is_connmark(value: &Value<'_>) -> bool {
    value.member("ct").and_then(|ct| ct.member("key")?.as_str()) == Some("mark")
}

fn is_mark(value: &Value<'_>) -> bool {
    value.member("meta").and_then(|meta| meta.member("key")?.as_str()) == Some("mark")
}

fn number(value: &Value<'_>) -> Option<u32> {
    value.unsigned().and_then(|number| u32::try_from(number).ok())
}

fn port(value: &Value<'_>) -> Option<u16> {
    value.unsigned().and_then(|number| u16::try_from(number).ok())
}

fn protocol(value: &Value<'_>) -> Option<Protocol> {
    match value {
        Value::Str(name) => iptables::protocol(name),
        other => other.unsigned().and_then(|number| u8::try_from(number).ok()).map(Protocol),
    }
}

fn addresses(value: &Value<'_>, negated: bool) -> Option<Addresses> {
    Some(match value.member("set").and_then(Value::as_array) {
        Some(list) => Addresses::new(list.iter().map(range).collect::<Option<Box<[_]>>>()?, negated),
        None => Addresses::new([range(value)?], negated),
    })
}

/// An address, a prefix or a range.
fn range(value: &Value<'_>) -> Option<AddressRange> {
    if let Some(text) = value.as_str() {
        return AddressRange::parse(text);
    }
    if let Some(prefix) = value.member("prefix") {
        let length = u8::try_from(prefix.member("len")?.unsigned()?).ok()?;
        return AddressRange::of(prefix.member("addr")?.as_str()?.parse().ok()?, length);
    }
    match value.member("range")?.as_array()? {
        [first, last] => {
            Some(AddressRange { first: first.as_str()?.parse().ok()?, last: last.as_str()?.parse().ok()? })
        }
        _ => None,
    }
}

/// The value that a statement gives to a mark: `(packet's & packet) ^ (connection's & connection) ^ toggle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewMark {
    packet: u32,
    connection: u32,
    toggle: u32,
}

impl NewMark {
    fn of(value: &Value<'_>) -> Option<Self> {
        let nothing = Self { packet: 0, connection: 0, toggle: 0 };
        if let Some(toggle) = number(value) {
            return Some(Self { toggle, ..nothing });
        }
        if is_mark(value) {
            return Some(Self { packet: u32::MAX, ..nothing });
        }
        if is_connmark(value) {
            return Some(Self { connection: u32::MAX, ..nothing });
        }
        let (operator, operands) = value.as_object()?.iter().next()?;
        let [first, others @ ..] = operands.as_array()? else { return None };
        let mut of = Self::of(first)?;
        for other in others {
            of = of.with(operator, Self::of(other)?)?;
        }
        Some(of)
    }

    const fn bits(self) -> u32 {
        self.packet | self.connection | self.toggle
    }

    const fn constant(self) -> Option<u32> {
        if self.packet | self.connection == 0 { Some(self.toggle) } else { None }
    }

    fn with(self, operator: &str, other: Self) -> Option<Self> {
        let masked = |of: Self, mask: u32| Self {
            packet: of.packet & mask,
            connection: of.connection & mask,
            toggle: of.toggle & mask,
        };
        let (of, constant) = match (self.constant(), other.constant()) {
            (_, Some(constant)) => (self, Some(constant)),
            (Some(constant), None) => (other, Some(constant)),
            (None, None) => (self, None),
        };
        match (operator, constant) {
            ("&", Some(mask)) => Some(masked(of, mask)),
            ("|", Some(bits)) => {
                let rest = masked(of, !bits);
                Some(Self { toggle: rest.toggle | bits, ..rest })
            }
            ("^", Some(bits)) => Some(Self { toggle: of.toggle ^ bits, ..of }),
            // Of parts that share no bit, the union is the sum.
            ("|" | "^", None) if self.bits() & other.bits() == 0 => Some(Self {
                packet: self.packet | other.packet,
                connection: self.connection | other.connection,
                toggle: self.toggle | other.toggle,
            }),
            _ => None,
        }
    }
}

/// A statement that sets a field of the packet, or of its conntrack entry.
fn mangle(body: &Value<'_>, is_ours: bool, steps: &mut Steps) -> Option<Step> {
    let key = body.member("key")?;
    if is_mark(key) {
        let NewMark { packet, connection, toggle } = NewMark::of(body.member("value")?)?;
        if connection == 0 {
            return Some(Step::SetMark { clear: !packet, toggle });
        }
        steps.push(Step::RestoreMark { clear: !packet, keep: connection });
        return Some(if toggle == 0 { Step::Harmless } else { Step::SetMark { clear: 0, toggle } });
    }
    if is_ours {
        return None;
    }
    if is_connmark(key) {
        let NewMark { packet, connection, toggle } = NewMark::of(body.member("value")?)?;
        if packet == 0 {
            return Some(Step::SetConnMark { clear: !connection, toggle });
        }
        steps.push(Step::SaveMark { clear: !connection, keep: packet });
        return Some(if toggle == 0 { Step::Harmless } else { Step::SetConnMark { clear: 0, toggle } });
    }
    // The packet's addresses and ports decide its way, and no other field does.
    let field = key.member("payload").map(|payload| payload.member("field").and_then(Value::as_str));
    match field {
        Some(None | Some("saddr" | "daddr" | "sport" | "dport" | "protocol" | "nexthdr")) => None,
        _ => Some(Step::Harmless),
    }
}

/// `numgen random mod N`.
fn random(key: &Value<'_>) -> Option<u32> {
    let numgen = key.member("numgen")?;
    let whole = numgen.member("offset").is_none_or(|offset| offset.unsigned() == Some(0));
    number(numgen.member("mod")?).filter(|of| whole && *of > 0)
}

fn dnat(body: &Value<'_>) -> Option<Step> {
    let address = body.member("addr")?;
    if let Some(map) = address.member("map") {
        let of = random(map.member("key")?)?;
        let to =
            map.member("data")?.member("set")?.as_array()?.iter().map(|entry| match entry.as_array()? {
                [key, value] => {
                    let endpoint = match value.member("concat").and_then(Value::as_array) {
                        Some([address, number]) => {
                            SocketAddr::new(address.as_str()?.parse().ok()?, port(number)?)
                        }
                        _ => SocketAddr::new(
                            value.as_str()?.parse().ok()?,
                            body.member("port").and_then(port).unwrap_or(0),
                        ),
                    };
                    Some((number(key)?, Verdict::Dnat(endpoint.into())))
                }
                _ => None,
            });
        return Some(Step::Spread { of, to: thin(to.collect::<Option<Box<[_]>>>()?) });
    }
    let ip: IpAddr = address.as_str()?.parse().ok()?;
    let endpoint = SocketAddr::new(ip, body.member("port").map_or(Some(0), port)?);
    Some(Step::Do(Verdict::Dnat(endpoint.into())))
}

fn vmap(body: &Value<'_>, table: &mut Table, place: usize) -> Option<Step> {
    let (key, data) = (body.member("key")?, body.member("data")?);
    if let Some(of) = random(key) {
        let to = data.member("set")?.as_array()?.iter().map(|entry| match entry.as_array()? {
            [key, value] => Some((number(key)?, verdict(value)?)),
            _ => None,
        });
        return Some(Step::Spread { of, to: thin(to.collect::<Option<Box<[_]>>>()?) });
    }
    let Some(fields) = fields(key) else { return foreign::vmap(key, data) };
    if let Some(name) = data.as_str() {
        return Some(Step::Look(Look { fields, map: bare(name).into() }.into()));
    }
    // An anonymous map of the rule.
    let name = format!("__map{}_{place}", table.sets.len());
    let mut map = Set::new(&*name);
    for entry in data.member("set")?.as_array()? {
        let (key, verdict) = element(entry)?;
        map.insert(key, verdict);
    }
    table.add_set(map);
    Some(Step::Look(Look { fields, map: name.into() }.into()))
}

/// An element of a set, or of a map: `[KEY, VERDICT]`.
pub(super) fn element(value: &Value<'_>) -> Option<(Key, Option<Verdict>)> {
    match value.as_array() {
        Some([of, then]) => Some((key(of)?, Some(verdict(then)?))),
        Some(_) => None,
        None => Some((key(value)?, None)),
    }
}

/// An address, a port, a protocol, or several of them, without comment and counter.
fn key(value: &Value<'_>) -> Option<Key> {
    if let Some(inner) = value.member("elem").and_then(|elem| elem.member("val")) {
        return key(inner);
    }
    match value.member("concat").and_then(Value::as_array) {
        Some(parts) => {
            // nft names a protocol only where it finds /etc/protocols. In kube-proxy's sets a port is the last part, and its
            // protocol the one before.
            if let [addresses @ .., number @ Value::Number(_), port @ Value::Number(_)] = parts {
                let protocol = protocol(number).map(Datum::Protocol);
                return addresses.iter().map(datum).chain([protocol, datum(port)]).collect();
            }
            parts.iter().map(datum).collect()
        }
        None => Some([datum(value)?].into()),
    }
}

fn datum(value: &Value<'_>) -> Option<Datum> {
    match value {
        Value::Number(_) => port(value).map(Datum::Port),
        Value::Str(text) => match AddressRange::parse(text) {
            Some(range) => Some(range.as_host().map_or(Datum::Range(range), Datum::Address)),
            None => iptables::protocol(text).map(Datum::Protocol),
        },
        other => {
            let range = range(other)?;
            Some(range.as_host().map_or(Datum::Range(range), Datum::Address))
        }
    }
}
