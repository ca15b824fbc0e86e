//! The packet heads of a recording as a pcapng file: each sighting of a packet, with a comment.
//!
//! Owns the comments: what the hook observed, of which packet it is a further sighting, and the verdict on its flow.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt::Write as _,
    io::{self, Read, Seek, Write},
    mem::offset_of,
    time::Duration,
};

use tracer_ebpf::{Hook, PACKET_HEAD_BYTES, PacketRecord};

use super::{
    Verdicts,
    pcapng::{Pcapng, RawPacket},
};
use crate::{
    net::Netns,
    pcap::{Head, Packet, head},
    recording::{Header, Observed, Sightings},
    sighting::{Fact, PacketFact, Sighting},
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

/// The records of a recording by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) packets: u64,
    /// Packets of which no header was recorded.
    pub(crate) headless: u64,
    others: BTreeMap<&'static str, u64>,
}

/// Counts the records.
pub(crate) fn census<R: Read + Seek>(sightings: &mut Sightings<R>) -> io::Result<Census> {
    let mut census = Census::default();
    while let Some(Observed { sighting, record }) = sightings.next_sighting()? {
        let kind = match &sighting.fact {
            Fact::Packet(_) => {
                let counter =
                    if packet_head(record).is_some() { &mut census.packets } else { &mut census.headless };
                *counter += 1;
                continue;
            }
            Fact::Conntrack(_) => "conntrack event",
            Fact::Socket(_) => "socket event",
            Fact::Ipvs(_) => "IPVS event",
            Fact::TableFull { .. } => "event of a full conntrack table",
        };
        *census.others.entry(kind).or_default() += 1;
    }
    Ok(census)
}

/// Writes the packets; with `only_judged`, those of flows with a verdict. Returns their number.
pub(crate) fn write<R: Read + Seek, W: Write>(
    sightings: &mut Sightings<R>,
    census: &Census,
    verdicts: &Verdicts,
    only_judged: bool,
    out: W,
) -> io::Result<u64> {
    let header = sightings.header().clone();
    let system = format!("Linux {}", header.kernel_release);
    let program = format!("viptrace {}", env!("CARGO_PKG_VERSION"));
    let mut file = Pcapng::begin(out, &safe(&system), &program, &about(&header, census, verdicts))?;
    let mut interfaces: HashMap<Netns, u32> = HashMap::new();
    let mut recent = Recents::default();
    let mut written = 0;
    while let Some(Observed { sighting, record }) = sightings.next_sighting()? {
        let Fact::Packet(fact) = &sighting.fact else { continue };
        let Some((bytes, original_bytes)) = packet_head(record) else { continue };
        let tuple = fact.ct.map(|ct| ct.orig).or(fact.tuple);
        let verdict = tuple
            .and_then(|tuple| verdicts.of(tuple, sighting.time))
            .or_else(|| fact.tuple.and_then(|tuple| verdicts.of(tuple, sighting.time)));
        if only_judged && verdict.is_none() {
            continue;
        }
        let interface = match interfaces.get(&sighting.netns) {
            Some(number) => *number,
            None if interfaces.len() < MAX_INTERFACES => {
                let (name, about) = names(&header, sighting.netns);
                let number = file.interface(&name, &about, PACKET_HEAD_BYTES as u32)?;
                interfaces.insert(sighting.netns, number);
                number
            }
            None => MAX_INTERFACES as u32 - 1,
        };
        let parsed = head(&Packet { time: None, interface: 0, link: RAW, data: bytes }).ok();
        let before = parsed.and_then(|parsed| recent.find(&sighting, fact.skb, &parsed));
        let comment = comment(&sighting, fact, before, verdict);
        let packet =
            RawPacket { interface, time: sighting.time, head: bytes, original_bytes, comment: &comment };
        let number = file.packet(&packet)?;
        written += 1;
        if let Some(head) = parsed {
            recent.push(Recent {
                number: before.unwrap_or(number),
                skb: fact.skb,
                time: sighting.time,
                head,
            });
        }
    }
    file.finish()?;
    Ok(written)
}

/// The packet's bytes in a record, cut to the packet's own length, and that length; `None` if they are no IP header.
fn packet_head(record: &[u8]) -> Option<(&[u8], u32)> {
    let bytes = record.get(offset_of!(PacketRecord, packet_head)..)?.get(..PACKET_HEAD_BYTES)?;
    let length = |at: usize| {
        bytes.get(at..at + 2).map(|it| it.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    let (least, whole) = match bytes.first()? >> 4 {
        4 => (u32::from(bytes.first()? & 0xf) * 4, length(2)?),
        6 => (40, length(4)?.saturating_add(40)),
        _ => return None,
    };
    if least < 20 {
        return None;
    }
    // A packet of segmentation offload has no length in its header.
    let whole = if whole < least { bytes.len() as u32 } else { whole };
    Some((bytes.get(..whole as usize).unwrap_or(bytes), whole))
}

/// The name and the description of the interface that stands for a namespace.
fn names(header: &Header, netns: Netns) -> (String, String) {
    let node = header.node_name.as_deref().unwrap_or("an unnamed node");
    let own = if header.node_netns == Some(netns) { ", the node's own" } else { "" };
    let name = match netns.0 {
        0 => "netns-unknown".to_owned(),
        inode => format!("netns-{inode}"),
    };
    (name, safe(&format!("network namespace {}{own}, on {node}", netns.0)).into_owned())
}

/// The comment of the whole file.
fn about(header: &Header, census: &Census, verdicts: &Verdicts) -> String {
    let node = header.node_name.as_deref().unwrap_or("an unnamed node");
    let mut text = format!(
        "Recorded by viptrace {} on {node} from {}. Each packet is a sighting at one hook of the kernel: viptrace records \
         packets that are dropped, refused, answered with a RST or invalid, RSTs and ICMP errors on their way, and of each at most \
         its first {PACKET_HEAD_BYTES} bytes. Packets that pass in peace have no record.",
        header.viptrace,
        header.started.to_the_millisecond()
    );
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

fn comment(sighting: &Sighting, fact: &PacketFact, before: Option<u64>, verdict: Option<&str>) -> String {
    let mut parts = vec![format!("{}: {}", sighting.hook.symbol(), event(sighting.hook, fact))];
    parts.extend(stage(fact).map(str::to_owned));
    parts.extend(before.map(|number| format!("the same packet as frame {number}")));
    parts.push(match verdict {
        Some(verdict) => verdict.to_owned(),
        None => "no verdict: it belongs to no flow of a Service".to_owned(),
    });
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

    /// The number of the first sighting of the same packet: with the same content and identification, and without an
    /// identification in the same `sk_buff`.
    fn find(&self, sighting: &Sighting, skb: u64, head: &Head) -> Option<u64> {
        let is_same = |recent: &&Recent| {
            let apart = sighting.time.max(recent.time).since(sighting.time.min(recent.time));
            let is_one = match (recent.head.ip_id, head.ip_id) {
                (Some(a), Some(b)) => a == b && apart <= SAME_PACKET,
                (None, None) => recent.skb == skb && apart <= SAME_CONTENT,
                _ => false,
            };
            is_one && recent.head.content == head.content && recent.head.tuple.protocol == head.tuple.protocol
        };
        self.0.iter().rev().find(is_same).map(|recent| recent.number)
    }
}
