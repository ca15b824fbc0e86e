//! The packet heads of recordings as a pcapng file: each sighting of a packet, with a comment.
//!
//! Owns the comments: what the hook observed, of which packet it is a further sighting, and the verdict on its flow.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt::Write as _,
    io::{self, Write},
    time::Duration,
};

use tracer_ebpf::{Hook, PACKET_HEAD_BYTES};

use super::{
    Verdicts,
    pcapng::{Pcapng, RawPacket},
    sighted::{SightedPacket, SightedPackets, packet_head},
};
use crate::{
    incident::{Timeline, Track},
    net::Netns,
    pcap::{Head, Packet, head},
    recording::{Header, Observed, UnusableFile},
    sighting::{Fact, PacketFact},
    text::{count, list, safe},
    time::Timestamp,
};

/// `LINKTYPE_RAW`.
const RAW: u16 = 101;
/// The most namespaces with an interface of their own; packets of further ones share the last.
const MAX_INTERFACES: usize = 4096;
/// The most packets back, and the time, in which a further sighting of a packet is found.
const MAX_RECENT: usize = 256;
const SAME_PACKET: Duration = Duration::from_secs(1);
/// Without an IP identification, only within this time.
const SAME_CONTENT: Duration = Duration::from_millis(100);

/// Why packets cannot be exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PacketsError {
    #[error(transparent)]
    Read(#[from] UnusableFile),
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// The records of the recordings by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    packets: u64,
    /// Packets of which no header was recorded.
    headless: u64,
    others: BTreeMap<&'static str, u64>,
}

impl Census {
    pub(super) fn add(&mut self, observed: &Observed<'_>) {
        let kind = match &observed.sighting.fact {
            Fact::Packet(_) => {
                let has_head = packet_head(observed.record).is_some();
                *(if has_head { &mut self.packets } else { &mut self.headless }) += 1;
                return;
            }
            Fact::Conntrack(_) => "conntrack event",
            Fact::Socket(_) => "socket event",
            Fact::Ipvs(_) => "IPVS event",
            Fact::TableFull { .. } => "event of a full conntrack table",
        };
        *self.others.entry(kind).or_default() += 1;
    }
}

/// Writes the packets of all traces on one timeline; with `only_judged`, those of flows with a verdict. `notes` are sentences
/// about the clocks. Returns the number of packets.
pub(crate) fn write<W: Write>(
    timeline: &Timeline,
    verdicts: &Verdicts,
    only_judged: bool,
    notes: &[String],
    out: W,
) -> Result<u64, PacketsError> {
    let census = SightedPackets::of(timeline).census()?;
    let headers: Vec<&Header> = timeline.tracks().iter().map(Track::header).collect();
    let systems: BTreeSet<&str> = headers.iter().map(|header| header.kernel_release.as_str()).collect();
    let system = format!("Linux {}", systems.into_iter().collect::<Vec<_>>().join(", "));
    let program = format!("viptrace {}", env!("CARGO_PKG_VERSION"));
    let about = about(&headers, &census, verdicts, notes);
    let mut file = Pcapng::begin(out, &safe(&system), &program, &about)?;
    let mut interfaces = Interfaces::of(&headers);
    let mut recent = Recents::default();
    let mut packets = SightedPackets::of(timeline);
    let mut written = 0;
    while let Some(packet) = packets.next()? {
        let Some(fact) = packet.fact() else { continue };
        let verdict = verdict(verdicts, &packet, fact);
        if only_judged && verdict.is_none() {
            continue;
        }
        let interface = interfaces.of_packet(&mut file, &packet)?;
        let parsed = head(&Packet { time: None, interface: 0, link: RAW, data: &packet.head }).ok();
        let before = parsed.and_then(|parsed| recent.find(&packet, fact.skb, &parsed));
        let verdict = verdict.map(|(text, track)| {
            let elsewhere = headers.get(track).filter(|_| track != packet.track);
            elsewhere.map_or_else(|| text.to_owned(), |header| format!("{text} (on {})", node(header)))
        });
        let comment = comment(&packet, fact, before, verdict);
        let (time, bytes, original_bytes) = (packet.time, packet.head.as_slice(), packet.original_bytes);
        let number =
            file.packet(&RawPacket { interface, time, head: bytes, original_bytes, comment: &comment })?;
        written += 1;
        if let Some(head) = parsed {
            let number = before.unwrap_or(number);
            recent.push(Recent { number, track: packet.track, skb: fact.skb, time, head });
        }
    }
    file.finish()?;
    Ok(written)
}

/// The verdict on the packet's flow, and the trace that has it.
fn verdict<'v>(
    verdicts: &'v Verdicts,
    packet: &SightedPacket,
    fact: &PacketFact,
) -> Option<(&'v str, usize)> {
    let of = |tuple| verdicts.of(tuple, packet.time, packet.track);
    let tuple = fact.ct.map(|ct| ct.orig).or(fact.tuple);
    tuple.and_then(of).or_else(|| fact.tuple.and_then(of))
}

fn node(header: &Header) -> &str {
    header.node_name.as_deref().unwrap_or("an unnamed node")
}

/// One interface for each network namespace of each node.
struct Interfaces<'h> {
    headers: &'h [&'h Header],
    /// The first trace of the same node, for each trace.
    nodes: Vec<usize>,
    numbers: HashMap<(usize, Netns), u32>,
}

impl<'h> Interfaces<'h> {
    fn of(headers: &'h [&'h Header]) -> Self {
        let first = |header: &&Header| headers.iter().position(|first| first.node_name == header.node_name);
        let nodes = headers.iter().map(|header| first(header).unwrap_or_default()).collect();
        Self { headers, nodes, numbers: HashMap::new() }
    }

    /// The number of the packet's interface, which is described in the file before its first packet.
    fn of_packet<W: Write>(&mut self, file: &mut Pcapng<W>, packet: &SightedPacket) -> io::Result<u32> {
        let netns = packet.sighting.netns;
        let node = self.nodes.get(packet.track).copied().unwrap_or_default();
        if let Some(number) = self.numbers.get(&(node, netns)) {
            return Ok(*number);
        }
        let header = self.headers.get(packet.track).filter(|_| self.numbers.len() < MAX_INTERFACES);
        let Some(header) = header else { return Ok(MAX_INTERFACES as u32 - 1) };
        let (name, about) = names(header, netns);
        let number = file.interface(&name, &about, PACKET_HEAD_BYTES as u32)?;
        self.numbers.insert((node, netns), number);
        Ok(number)
    }
}

/// The name and the description of the interface that stands for a namespace.
fn names(header: &Header, netns: Netns) -> (String, String) {
    let node = node(header);
    let own = if header.node_netns == Some(netns) { ", the node's own" } else { "" };
    let name = match netns.0 {
        0 => format!("{node}/netns-unknown"),
        inode => format!("{node}/netns-{inode}"),
    };
    (safe(&name).into_owned(), safe(&format!("network namespace {}{own}, on {node}", netns.0)).into_owned())
}

/// The comment of the whole file.
fn about(headers: &[&Header], census: &Census, verdicts: &Verdicts, notes: &[String]) -> String {
    let programs: BTreeSet<&str> = headers.iter().map(|header| header.viptrace.as_str()).collect();
    let programs = programs.into_iter().collect::<Vec<_>>();
    let traces = headers
        .iter()
        .map(|header| format!("on {} from {}", node(header), header.started.to_the_millisecond()));
    let mut text = format!(
        "Recorded by viptrace {} {}. Each packet is a sighting at one hook of the kernel: viptrace records packets that \
         are dropped, refused, answered with a RST or invalid, RSTs and ICMP errors on their way, and of each at most its first \
         {PACKET_HEAD_BYTES} bytes. Packets that pass in peace have no record.",
        list(&programs),
        list(&traces.collect::<Vec<_>>()),
    );
    for note in notes {
        let _ = write!(text, " Note: {note}.");
    }
    // Writing to a String cannot fail.
    let others: Vec<String> = census.others.iter().map(|(kind, number)| count(*number, kind)).collect();
    if !others.is_empty() {
        let _ = write!(text, " Not in this file, because they have no packet: {}.", list(&others));
    }
    if census.headless > 0 {
        let _ = write!(text, " Without a readable header: {}.", count(census.headless, "packet"));
    }
    if verdicts.left_out() > 0 {
        let _ = write!(text, " The verdicts on {} had no room.", count(verdicts.left_out(), "flow"));
    }
    safe(&text).into_owned()
}

fn comment(
    packet: &SightedPacket,
    fact: &PacketFact,
    before: Option<u64>,
    verdict: Option<String>,
) -> String {
    let hook = packet.sighting.hook;
    let mut parts = vec![format!("{}: {}", hook.symbol(), event(hook, fact))];
    parts.extend(stage(fact).map(str::to_owned));
    parts.extend(before.map(|number| format!("the same packet as frame {number}")));
    parts.push(verdict.unwrap_or_else(|| "no verdict: it belongs to no flow of a Service".to_owned()));
    safe(&parts.join("; ")).into_owned()
}

/// What the hook observed of the packet.
fn event(hook: Hook, fact: &PacketFact) -> String {
    let reason = fact.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let at = match fact.nf_hook {
        Some(1) => " at LOCAL_IN",
        Some(2) => " at FORWARD",
        Some(3) => " at LOCAL_OUT",
        _ => "",
    };
    let full = if fact.table_full { ", the conntrack table was full" } else { "" };
    match hook {
        Hook::KfreeSkb => {
            let site = fact.site.map(|site| format!(" in {site}")).unwrap_or_default();
            format!("dropped{reason}{site}{full}")
        }
        Hook::SendUnreach | Hook::SendUnreach6 => {
            let code = fact.icmp_code.map(|code| format!(", code {code}")).unwrap_or_default();
            format!("refused by a rule{at} with an ICMP error{code}")
        }
        Hook::NfSendReset | Hook::NfSendReset6 => format!("refused by a rule{at} with a RST"),
        Hook::TcpSendReset | Hook::TcpV4SendReset | Hook::TcpV6SendReset => {
            format!("the stack answers this packet with a RST{reason}")
        }
        Hook::TcpPacket => "a RST passes through the node".to_owned(),
        Hook::InvalidLog => format!("conntrack calls it invalid{reason}"),
        Hook::IcmpError | Hook::IcmpError6 => {
            let code = fact.icmp_code.map(|code| format!(", code {code}")).unwrap_or_default();
            format!("an ICMP error about a packet of the flow{reason}{code}")
        }
        Hook::IpVsLeave => "refused by IPVS: the virtual server has no real server".to_owned(),
        Hook::IpVsSchedule => "IPVS chose no real server".to_owned(),
        Hook::IpVsConnExpire => format!("dropped by IPVS, which gave up its entry{reason}"),
        _ => format!("seen{reason}"),
    }
}

/// On which side of NAT the packet was seen.
fn stage(fact: &PacketFact) -> Option<&'static str> {
    let (ct, tuple) = (fact.ct?, fact.tuple?);
    ct.endpoint()?;
    Some(match fact.original_direction? {
        true if tuple == ct.orig => "before DNAT",
        true if tuple == ct.reply.reversed() && ct.masqueraded() => "after DNAT and masquerade",
        true if tuple.dst == ct.reply.src => "after DNAT",
        false if tuple == ct.reply => "a reply before it is translated back",
        false if tuple == ct.orig.reversed() => "a reply after it is translated back",
        _ => return None,
    })
}

/// The packets of which further sightings can follow.
#[derive(Debug, Default)]
struct Recents(VecDeque<Recent>);

#[derive(Debug)]
struct Recent {
    /// The number of the packet's first sighting.
    number: u64,
    track: usize,
    skb: u64,
    time: Timestamp,
    head: Head,
}

impl Recents {
    fn push(&mut self, recent: Recent) {
        if self.0.len() >= MAX_RECENT {
            self.0.pop_front();
        }
        self.0.push_back(recent);
    }

    /// The number of the first sighting of the same packet, on any node: with the same content and identification, and
    /// without an identification in the same `sk_buff` of the same node.
    fn find(&self, packet: &SightedPacket, skb: u64, head: &Head) -> Option<u64> {
        let is_same = |recent: &&Recent| {
            let apart = packet.time.max(recent.time).since(packet.time.min(recent.time));
            let is_one = match (recent.head.ip_id, head.ip_id) {
                (Some(a), Some(b)) => a == b && apart <= SAME_PACKET,
                (None, None) => recent.track == packet.track && recent.skb == skb && apart <= SAME_CONTENT,
                _ => false,
            };
            is_one && recent.head.content == head.content && recent.head.tuple.protocol == head.tuple.protocol
        };
        self.0.iter().rev().find(is_same).map(|recent| recent.number)
    }
}
