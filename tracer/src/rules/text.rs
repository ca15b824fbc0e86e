//! Writes a rule in the words of the program that lists it: iptables-save or nft.
//!
//! Without the names of matches (`-m tcp`), counters, and statements that do not change a packet's way. Reading the text
//! gives the same rule.

use std::net::SocketAddr;

use super::{Addresses, Family, Field, Rule, Side, Step, Table, Verdict, Writer};
use crate::net::Protocol;

/// The rule without its comment.
pub fn rule(rule: &Rule, table: &Table) -> String {
    let mut out = String::new();
    for one in &rule.steps {
        let text = step(one, table);
        if !text.is_empty() {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(&text);
        }
    }
    out
}

/// One condition or statement.
pub fn step(step: &Step, table: &Table) -> String {
    if table.writer == Writer::Nftables { nft(step, table.family) } else { iptables(step) }
}

pub fn verdict(verdict: &Verdict, table: &Table) -> String {
    if table.writer == Writer::Nftables { nft_verdict(verdict) } else { iptables_verdict(verdict) }
}

fn not(negated: bool) -> &'static str {
    if negated { "! " } else { "" }
}

/// `tcp`, or a number.
fn protocol(protocol: Protocol) -> String {
    match protocol {
        Protocol::TCP => "tcp".to_owned(),
        Protocol::UDP => "udp".to_owned(),
        Protocol::SCTP => "sctp".to_owned(),
        Protocol::ICMP => "icmp".to_owned(),
        Protocol(58) => "ipv6-icmp".to_owned(),
        Protocol(number) => number.to_string(),
    }
}

fn joined<T>(items: &[T], one: impl Fn(&T) -> String) -> String {
    items.iter().map(one).collect::<Vec<_>>().join(",")
}

fn ports((first, last): (u16, u16), between: char) -> String {
    if first == last { first.to_string() } else { format!("{first}{between}{last}") }
}

fn ranges(of: &Addresses) -> Vec<String> {
    of.ranges().map(|range| range.to_string()).collect()
}

/// `-s A`, or for a range that is no network, `--src-range A-B`.
fn addresses(side: &str, of: &Addresses) -> String {
    let (not, text) = (not(of.is_negated()), ranges(of).join(","));
    match (side, text.contains('-')) {
        ("s", true) => format!("{not}--src-range {text}"),
        ("d", true) => format!("{not}--dst-range {text}"),
        _ => format!("{not}-{side} {text}"),
    }
}

/// The states that are listed, of new, established, translated and untracked packets.
fn states(listed: [bool; 4]) -> String {
    let names = ["NEW", "RELATED,ESTABLISHED", "DNAT", "UNTRACKED"];
    let listed: Vec<_> = names.into_iter().zip(listed).filter(|(_, is)| *is).map(|(name, _)| name).collect();
    if listed.is_empty() { "INVALID".to_owned() } else { listed.join(",") }
}

const FLAGS: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

fn flags(bits: u8) -> String {
    let set: Vec<&str> =
        FLAGS.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "NONE".to_owned() } else { set.join(",") }
}

fn iptables(step: &Step) -> String {
    match step {
        Step::Source(from) => addresses("s", from),
        Step::Destination(to) => addresses("d", to),
        Step::Protocol { protocol: number, negated } => format!("{}-p {}", not(*negated), protocol(*number)),
        Step::Protocols { protocols, negated } => {
            format!("{}-p {}", not(*negated), joined(protocols, |one| protocol(*one)))
        }
        Step::Port { first, last, negated } => {
            format!("{}--dport {}", not(*negated), ports((*first, *last), ':'))
        }
        Step::Ports { source, ranges, negated } => {
            let side = if *source { "--sports" } else { "--dports" };
            format!("{}{side} {}", not(*negated), joined(ranges, |range| ports(*range, ':')))
        }
        Step::SourceLocal { negated } => format!("{}--src-type LOCAL", not(*negated)),
        Step::DestinationLocal { negated } => format!("{}--dst-type LOCAL", not(*negated)),
        Step::AddressType { source, kind, negated } => {
            let side = if *source { "src" } else { "dst" };
            format!("{}--{side}-type {}", not(*negated), kind.to_ascii_uppercase())
        }
        Step::State { new, translated, negated, established, untracked } => {
            let listed = states([*new, *established, *translated, *untracked]);
            format!("{}--ctstate {listed}", not(*negated))
        }
        Step::ConnMark { value, mask, negated } => {
            format!("-m connmark {}--mark {value:#x}/{mask:#x}", not(*negated))
        }
        Step::Mark { value, mask: u32::MAX, negated } => format!("{}--mark {value:#x}", not(*negated)),
        Step::Mark { value, mask, negated } => format!("{}--mark {value:#x}/{mask:#x}", not(*negated)),
        Step::Interface { name, negated } => format!("{}-i {}", not(*negated), word(name)),
        Step::Devices { out, names, negated } => {
            let side = if *out { "-o" } else { "-i" };
            format!("{}{side} {}", not(*negated), joined(names, |name| word(name)))
        }
        Step::OfFamily { family, negated } => {
            format!("{}{}", not(*negated), if *family == Family::Ipv4 { "-4" } else { "-6" })
        }
        Step::TcpFlags { mask, set, negated } => {
            format!("{}--tcp-flags {} {}", not(*negated), flags(*mask), flags(*set))
        }
        Step::Chance(chance) => format!("--mode random --probability {chance:.11}"),
        Step::InSet(of) => format!("{}--match-set {}", not(of.negated), word(&of.set)),
        Step::InIpset(of) => {
            let side = |side: &Side| if *side == Side::Source { "src" } else { "dst" }.to_owned();
            format!("{}--match-set {} {}", not(of.negated), word(&of.set), joined(&of.sides, side))
        }
        Step::Sticky(of) => {
            let seconds = of.seconds.map(|seconds| format!("--seconds {seconds} ")).unwrap_or_default();
            format!("--rcheck {seconds}--name {}", word(&of.list))
        }
        Step::Remember(list) => format!("--set --name {}", word(list)),
        Step::Unknown(text) => text.to_string(),
        Step::SetMark { clear, toggle } => format!("-j MARK --set-xmark {toggle:#x}/{clear:#x}"),
        Step::SetConnMark { clear, toggle } => format!("-j CONNMARK --set-xmark {toggle:#x}/{clear:#x}"),
        Step::SaveMark { clear, keep } => {
            format!("-j CONNMARK --save-mark --nfmask {keep:#x} --ctmask {clear:#x}")
        }
        Step::RestoreMark { clear, keep } => {
            format!("-j CONNMARK --restore-mark --nfmask {clear:#x} --ctmask {keep:#x}")
        }
        Step::NoTrack => "-j CT --notrack".to_owned(),
        Step::Do(verdict) => iptables_verdict(verdict),
        Step::Look(_) | Step::Spread { .. } | Step::ByState(_) | Step::Harmless => String::new(),
    }
}

fn iptables_verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "-j ACCEPT".to_owned(),
        Verdict::Drop => "-j DROP".to_owned(),
        Verdict::Reject => "-j REJECT".to_owned(),
        Verdict::Return => "-j RETURN".to_owned(),
        Verdict::Masquerade => "-j MASQUERADE".to_owned(),
        Verdict::Dnat(to) => format!("-j DNAT --to-destination {}", endpoint(to.get())),
        Verdict::Jump(to) => format!("-j {}", word(to)),
        Verdict::Goto(to) => format!("-g {}", word(to)),
        Verdict::Unknown(target) => format!("-j {target}"),
    }
}

/// The address alone if the packet keeps its port.
fn endpoint(to: SocketAddr) -> String {
    if to.port() == 0 { to.ip().to_string() } else { to.to_string() }
}

/// A name as one word of iptables-save.
fn word(name: &str) -> String {
    if name.contains([' ', '"', '\\', '\'']) || name.is_empty() {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        name.to_owned()
    }
}

const fn unequal(negated: bool) -> &'static str {
    if negated { "!= " } else { "" }
}

/// One value, or several in braces.
fn set(values: &[String]) -> String {
    match values {
        [one] => one.clone(),
        several => format!("{{ {} }}", several.join(", ")),
    }
}

fn field(field: Field, family: Family) -> String {
    let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
    match field {
        Field::Source => format!("{ip} saddr"),
        Field::Destination => format!("{ip} daddr"),
        Field::Protocol => "meta l4proto".to_owned(),
        Field::Port => "th dport".to_owned(),
    }
}

fn fields(list: &[Field], family: Family) -> String {
    list.iter().map(|one| field(*one, family)).collect::<Vec<_>>().join(" . ")
}

fn quoted(names: &[Box<str>]) -> String {
    set(&names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>())
}

fn nft(step: &Step, family: Family) -> String {
    let addresses = |side: &str, of: &Addresses| {
        let family = of.ranges().next().map_or(family, |range| Family::of(range.first));
        let ip = if family == Family::Ipv4 { "ip" } else { "ip6" };
        format!("{ip} {side} {}{}", unequal(of.is_negated()), set(&ranges(of)))
    };
    match step {
        Step::Source(from) => addresses("saddr", from),
        Step::Destination(to) => addresses("daddr", to),
        Step::Protocol { protocol: number, negated } => {
            format!("meta l4proto {}{}", unequal(*negated), protocol(*number))
        }
        Step::Protocols { protocols, negated } => {
            let list: Vec<_> = protocols.iter().map(|one| protocol(*one)).collect();
            format!("meta l4proto {}{}", unequal(*negated), set(&list))
        }
        Step::Port { first, last, negated } => {
            format!("th dport {}{}", unequal(*negated), ports((*first, *last), '-'))
        }
        Step::Ports { source, ranges, negated } => {
            let side = if *source { "sport" } else { "dport" };
            let list: Vec<_> = ranges.iter().map(|range| ports(*range, '-')).collect();
            format!("th {side} {}{}", unequal(*negated), set(&list))
        }
        Step::SourceLocal { negated } => format!("fib saddr type {}local", unequal(*negated)),
        Step::DestinationLocal { negated } => format!("fib daddr type {}local", unequal(*negated)),
        Step::AddressType { source, kind, negated } => {
            let side = if *source { "saddr" } else { "daddr" };
            format!("fib {side} type {}{kind}", unequal(*negated))
        }
        Step::State { new: false, established: false, translated: true, untracked: false, negated } => {
            format!("ct status {}dnat", unequal(*negated))
        }
        Step::State { new, translated, negated, established, untracked } => {
            let listed = states([*new, *established, *translated, *untracked]).to_ascii_lowercase();
            format!("ct state {}{listed}", unequal(*negated))
        }
        Step::ConnMark { value, mask: u32::MAX, negated } => {
            format!("ct mark {}{value:#x}", unequal(*negated))
        }
        Step::ConnMark { value, mask, negated } => {
            format!("ct mark & {mask:#x} {} {value:#x}", if *negated { "!=" } else { "==" })
        }
        Step::Mark { value, mask: u32::MAX, negated } => {
            format!("meta mark {}{value:#x}", unequal(*negated))
        }
        Step::Mark { value, mask, negated } => {
            format!("meta mark & {mask:#x} {} {value:#x}", if *negated { "!=" } else { "==" })
        }
        Step::Interface { name, negated } => format!("iifname {}\"{name}\"", unequal(*negated)),
        Step::Devices { out, names, negated } => {
            let side = if *out { "oifname" } else { "iifname" };
            format!("{side} {}{}", unequal(*negated), quoted(names))
        }
        Step::OfFamily { family, negated } => {
            let name = if *family == Family::Ipv4 { "ipv4" } else { "ipv6" };
            format!("meta nfproto {}{name}", unequal(*negated))
        }
        Step::TcpFlags { mask, set, negated } => {
            let op = if *negated { "!=" } else { "==" };
            format!("tcp flags & ({}) {op} {}", nft_flags(*mask), nft_flags(*set))
        }
        Step::InSet(of) => {
            format!("{} {}@{}", fields(&of.fields, family), unequal(of.negated), of.set)
        }
        Step::Sticky(of) => format!("{} @{}", field(Field::Source, family), of.list),
        Step::Remember(list) => format!("update @{list} {{ {} }}", field(Field::Source, family)),
        Step::Unknown(text) => text.to_string(),
        Step::SetMark { clear, toggle } => nft_mark("meta mark", *clear, *toggle),
        Step::SetConnMark { clear, toggle } => nft_mark("ct mark", *clear, *toggle),
        Step::SaveMark { clear, keep } => nft_copy(("meta mark", *keep), ("ct mark", *clear)),
        Step::RestoreMark { clear, keep } => nft_copy(("ct mark", *keep), ("meta mark", *clear)),
        Step::NoTrack => "notrack".to_owned(),
        Step::Look(of) if of.map.starts_with("__map") => {
            format!("{} vmap {{ … }}", fields(&of.fields, family))
        }
        Step::Look(of) => format!("{} vmap @{}", fields(&of.fields, family), of.map),
        Step::Spread { of, .. } => format!("numgen random mod {of} vmap {{ … }}"),
        Step::ByState(_) => "ct state vmap { … }".to_owned(),
        Step::Do(verdict) => nft_verdict(verdict),
        Step::InIpset(_) | Step::Chance(_) | Step::Harmless => String::new(),
    }
}

/// A change of the mark of a packet or of a connection.
fn nft_mark(mark: &str, clear: u32, toggle: u32) -> String {
    match (clear, toggle) {
        (u32::MAX, toggle) => format!("{mark} set {toggle:#x}"),
        (0, toggle) => format!("{mark} set {mark} xor {toggle:#x}"),
        (clear, 0) => format!("{mark} set {mark} and {:#x}", !clear),
        (clear, toggle) if clear == toggle => format!("{mark} set {mark} or {toggle:#x}"),
        (clear, toggle) => format!("{mark} set {mark} and {:#x} xor {toggle:#x}", !clear),
    }
}

/// Bits of one mark that replace those of the other.
fn nft_copy((from, keep): (&str, u32), (to, clear): (&str, u32)) -> String {
    let kept = if keep == u32::MAX { from.to_owned() } else { format!("{from} and {keep:#x}") };
    if clear == u32::MAX {
        format!("{to} set {kept}")
    } else {
        format!("{to} set {to} and {:#x} xor {kept}", !clear)
    }
}

/// nft's name of ECE is `ecn`, and it has none for no flag (`tcp_flag_tbl` in `src/proto.c`, nftables 1.1).
fn nft_flags(bits: u8) -> String {
    match bits {
        0 => "0x0".to_owned(),
        bits => flags(bits).to_ascii_lowercase().replace("ece", "ecn").replace(',', "|"),
    }
}

fn nft_verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Accept => "accept".to_owned(),
        Verdict::Drop => "drop".to_owned(),
        Verdict::Reject => "reject".to_owned(),
        Verdict::Return => "return".to_owned(),
        Verdict::Masquerade => "masquerade".to_owned(),
        Verdict::Dnat(to) => format!("dnat to {}", endpoint(to.get())),
        Verdict::Jump(to) => format!("jump {to}"),
        Verdict::Goto(to) => format!("goto {to}"),
        Verdict::Unknown(target) => target.to_string(),
    }
}
