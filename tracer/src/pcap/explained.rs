//! The connections of a capture, each with the verdict that the recordings have for it, or the reason why they have none.
//!
//! Owns the join by tuple and time, and the record. The verdict is the recording's: nothing here judges.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Assembly, Ending, Recorded, canonical,
    connection::{Connection, Line, Reset, Seen},
    head::{Content, Place},
    recorded::{Found, Source},
};
use crate::{
    net::{Protocol, TransportAddr, flag},
    session::Fate,
    text::count,
    time::Timestamp,
    verdict::Verdict,
};

/// A recorded connection and a captured SYN are the same connection if they began at most so far apart.
const SAME_BEGINNING: Duration = Duration::from_secs(2);
/// Unanswered datagrams are of the recorded flow if its last event was at most so long before them: conntrack forgets them
/// after three minutes (`nf_conntrack_udp_timeout_stream` of older kernels).
const IDLE: Duration = Duration::from_mins(3);
/// How long a failed connection may be repeated (`tcp_retries2`: 15 retransmits take 924 s).
const GIVES_UP: Duration = Duration::from_mins(16);

/// A connection of the capture.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ExplainedFlow {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The client; if `is_oriented` is false, the sender of the first packet.
    #[schemars(with = "String")]
    pub client: SocketAddr,
    /// The address to which the client connected.
    #[schemars(with = "String")]
    pub server: SocketAddr,
    /// Whether the beginning of the connection or a recording shows which end is the client.
    pub is_oriented: bool,
    /// The times of the first and the last sighting; `null` if the capture has no times.
    #[schemars(with = "Option<String>")]
    pub first: Option<Timestamp>,
    #[schemars(with = "Option<String>")]
    pub last: Option<Timestamp>,
    /// The packets, each counted once.
    pub packets: u64,
    /// How often packets were captured: a packet that passes several interfaces, or NAT, is captured several times (N3).
    pub sightings: u64,
    /// The tuples under which the packets were captured, in the client's direction.
    pub seen_as: Vec<SeenAs>,
    /// SYNs of the client, each counted once, and the times of the first eight.
    pub syns: u64,
    #[schemars(with = "Vec<String>")]
    pub syn_times: Vec<Timestamp>,
    /// SYN-ACKs that answered them.
    pub syn_acks: u64,
    /// TCP packets that were sent again, repeated SYNs included.
    pub retransmits: u64,
    /// The RSTs: all, and the first eight.
    pub resets: u64,
    pub reset_packets: Vec<ResetLine>,
    /// ICMP errors about packets of the connection: all, and the first eight.
    pub icmp_errors: u64,
    pub icmp_packets: Vec<IcmpLine>,
    /// The first packets of the connection, at most 64.
    pub packet_list: Vec<PacketLine>,
    /// The recording that has the verdict: its file, or the node and the first of its files.
    pub recording: Option<String>,
    /// The verdict; `null` if no recording has the connection.
    pub verdict: Option<Verdict>,
    /// Why no recording has a verdict for the connection; `null` if one has.
    pub not_recorded: Option<String>,
}

/// A tuple of a connection.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeenAs {
    pub stage: Stage,
    #[schemars(with = "String")]
    pub client: SocketAddr,
    #[schemars(with = "String")]
    pub server: SocketAddr,
    pub sightings: u64,
    pub interfaces: Vec<String>,
}

/// Where NAT stands between the client's packet and a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The addresses that the client uses.
    AsSent,
    /// The destination is translated to the endpoint.
    AfterDnat,
    /// The source is translated as well, to an address of the node.
    AfterMasquerade,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Client,
    Server,
}

/// The sender of a RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Client,
    /// It was captured with the endpoint's own address.
    Endpoint,
    /// It was captured with the Service's address only: the endpoint sent it, or a rule of the node.
    ServiceAddress,
    /// The capture shows no translation: the server.
    Server,
}

/// A RST.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ResetLine {
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    pub by: By,
    /// The sender's address nearest to it.
    #[schemars(with = "String")]
    pub from: SocketAddr,
}

/// An ICMP error.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct IcmpLine {
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    pub from: String,
    /// The meaning of type and code, as in `port unreachable`.
    pub meaning: String,
}

/// A packet.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PacketLine {
    pub from: End,
    /// The TCP flags as in `SYN ACK`; `datagram`, or the meaning of an ICMP error.
    pub what: String,
    /// The bytes of data.
    pub bytes: u32,
    /// The same data, SYN or FIN was sent before.
    pub is_retransmit: bool,
    /// How often it was captured, and the first eight sightings.
    pub sightings: u64,
    pub seen: Vec<SeenLine>,
}

/// One sighting of a packet.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SeenLine {
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    #[schemars(with = "String")]
    pub src: SocketAddr,
    #[schemars(with = "String")]
    pub dst: SocketAddr,
    pub interface: String,
}

/// The connections of the capture, in the order of their first packets.
pub fn explain(assembly: &Assembly, recorded: &Recorded, capture: &Ending) -> Vec<ExplainedFlow> {
    let mut flows: Vec<ExplainedFlow> =
        assembly.connections.iter().map(|connection| explained(connection, recorded, capture)).collect();
    flows.sort_by_key(|flow| (flow.first, flow.client));
    flows
}

fn explained(connection: &Connection, recorded: &Recorded, capture: &Ending) -> ExplainedFlow {
    let found = verdict(connection, recorded);
    // A verdict knows the client where the capture shows no beginning.
    let is_reversed = found.is_some_and(|found| found.verdict.flow.client == connection.tuple.dst.socket());
    let tuple = if is_reversed { connection.tuple.reversed() } else { connection.tuple };
    let endpoint = found.and_then(|found| found.verdict.flow.endpoint);
    let stage = |client: TransportAddr, server: TransportAddr| {
        if client != tuple.src {
            Stage::AfterMasquerade
        } else if server != tuple.dst {
            Stage::AfterDnat
        } else {
            Stage::AsSent
        }
    };
    let mut seen_as: Vec<SeenAs> = connection
        .ways
        .iter()
        .map(|way| {
            let way_tuple = if is_reversed { way.tuple.reversed() } else { way.tuple };
            let names: BTreeSet<String> = way.places.iter().map(|place| interface(place, capture)).collect();
            SeenAs {
                stage: stage(way_tuple.src, way_tuple.dst),
                client: way_tuple.src.socket(),
                server: way_tuple.dst.socket(),
                sightings: way.sightings,
                interfaces: names.into_iter().collect(),
            }
        })
        .collect();
    seen_as.sort_by_key(|seen| seen.stage);
    let end = |from_client: bool| if from_client == is_reversed { End::Server } else { End::Client };
    ExplainedFlow {
        protocol: tuple.protocol.to_string(),
        client: tuple.src.socket(),
        server: tuple.dst.socket(),
        is_oriented: connection.is_oriented || found.is_some(),
        first: connection.first,
        last: connection.last,
        packets: connection.packets,
        sightings: connection.sightings,
        seen_as,
        syns: connection.syns.count,
        syn_times: connection.syns.first.clone(),
        syn_acks: connection.syn_acks,
        retransmits: connection.retransmits,
        resets: connection.resets.count,
        reset_packets: connection
            .resets
            .first
            .iter()
            .map(|reset| reset_line(reset, end(reset.from_client), is_reversed, tuple.dst.socket(), endpoint))
            .collect(),
        icmp_errors: connection.icmp_errors.count,
        icmp_packets: connection
            .icmp_errors
            .first
            .iter()
            .map(|icmp| IcmpLine {
                time: icmp.time,
                from: icmp.from.to_string(),
                meaning: meaning(icmp.from.is_ipv4(), icmp.kind, icmp.code),
            })
            .collect(),
        packet_list: connection
            .lines
            .iter()
            .map(|line| packet_line(line, end(line.from_client), capture))
            .collect(),
        recording: found.and_then(|found| {
            recorded.recordings.get(found.recording).map(|recording| recording.name.clone())
        }),
        verdict: found.map(|found| found.verdict.clone()),
        not_recorded: found.is_none().then(|| absence(connection, recorded)),
    }
}

/// The verdict on this connection: of its tuple, and of its time.
fn verdict<'a>(connection: &Connection, recorded: &'a Recorded) -> Option<&'a Found> {
    let found = recorded.verdicts(canonical(connection.tuple)).iter();
    let (Some(first), Some(last)) = (connection.first, connection.last) else {
        return found.max_by_key(|found| found.started);
    };
    let apart = |found: &&Found| found.started.max(first).since(found.started.min(first));
    if connection.isn.is_some() {
        return found.filter(|found| apart(found) <= SAME_BEGINNING).min_by_key(apart);
    }
    let until = last.saturating_add(SAME_BEGINNING);
    // A client uses a port again: the flow has to have lived until the capture, or nearly.
    let lived = |found: &&Found| {
        let is_tcp = connection.tuple.protocol == Protocol::TCP;
        // No event follows the first one of answered datagrams, and few those of a connection that goes on.
        let may_idle = if is_tcp { !found.verdict.has_failed() } else { found.was_answered };
        let idle = if is_tcp { GIVES_UP } else { IDLE };
        may_idle || found.last_seen.saturating_add(idle) >= first
    };
    found.filter(|found| found.started <= until).filter(lived).max_by_key(|found| found.started)
}

/// The recordings in whose time the connection lies.
fn during<'a>(connection: &Connection, recorded: &'a Recorded) -> impl Iterator<Item = &'a Source> {
    let (first, last) = (connection.first, connection.last);
    recorded.recordings.iter().filter(move |recording| match (first, last) {
        (Some(first), Some(last)) => first <= recording.ended && last >= recording.started,
        _ => true,
    })
}

/// From when to when each recording reaches, in words.
fn recorded_times(recorded: &Recorded) -> String {
    let times = recorded.recordings.iter().map(|recording| {
        format!("{} to {}", recording.started.to_the_millisecond(), recording.ended.to_the_millisecond())
    });
    times.collect::<Vec<_>>().join(", ")
}

/// The sentence if no connection of the capture lies in the time of any recording: then none can have a verdict.
pub(crate) fn all_outside(assembly: &Assembly, recorded: &Recorded) -> Option<String> {
    let connections = &assembly.connections;
    let first = connections.iter().filter_map(|connection| connection.first).min()?;
    let last = connections.iter().filter_map(|connection| connection.last).max()?;
    let is_outside = |connection: &Connection| {
        during(connection, recorded).next().is_none() && verdict(connection, recorded).is_none()
    };
    connections.iter().all(is_outside).then(|| {
        format!(
            "its connections, from {} to {}, are outside the recording's time: {}",
            first.to_the_millisecond(),
            last.to_the_millisecond(),
            recorded_times(recorded)
        )
    })
}

/// Why no recording has a verdict for this connection.
fn absence(connection: &Connection, recorded: &Recorded) -> String {
    let key = canonical(connection.tuple);
    let others = recorded.verdicts(key);
    if let Some(nearest) = others.iter().min_by_key(|found| {
        connection.first.map(|first| found.started.max(first).since(found.started.min(first)))
    }) {
        return format!(
            "another connection of these addresses is in the recording, which began at {}",
            nearest.started.to_the_millisecond()
        );
    }
    let during: Vec<_> = during(connection, recorded).collect();
    if during.is_empty() {
        return format!("outside the recording's time: {}", recorded_times(recorded));
    }
    if let Some(fate) = recorded.arrival(key) {
        let fate = match fate {
            Fate::Answered => "it was answered",
            Fate::Stopped => "a rule of the node stopped it",
            Fate::Other => "no answer was recorded",
        };
        return format!("not a Service flow: it went to no Service's address ({fate})");
    }
    if !recorded.is_to_service(key) {
        return "not a Service flow: neither address is a Service's".to_owned();
    }
    if let Some(target) = during.iter().find_map(|recording| recording.target.as_ref()) {
        return format!("outside the recording's target: it has only flows of {target}");
    }
    if during.iter().any(|recording| recording.is_sampled) {
        return "not sampled: the trace reported failures and a sample of the other connections".to_owned();
    }
    let lost: u64 = during.iter().map(|recording| recording.lost_events).sum();
    if lost > 0 {
        return format!("no hook reported it; the trace lost {}", count(lost, "event"));
    }
    if during.iter().all(|recording| connection.first.is_some_and(|first| first < recording.started)) {
        return "it began before the recording, and no hook reported it since".to_owned();
    }
    "no hook reported it on the recorded node".to_owned()
}

fn reset_line(
    reset: &Reset,
    end: End,
    is_reversed: bool,
    vip: SocketAddr,
    endpoint: Option<SocketAddr>,
) -> ResetLine {
    let tuples = reset.tuples.iter().map(|tuple| if is_reversed { tuple.reversed() } else { *tuple });
    let froms: Vec<SocketAddr> = tuples
        .map(|tuple| if end == End::Client { tuple.src.socket() } else { tuple.dst.socket() })
        .collect();
    let other = froms.iter().copied().find(|from| *from != vip);
    let from = match end {
        End::Client => froms.first().copied(),
        End::Server => other.or(froms.first().copied()),
    };
    let by = match (end, other, endpoint) {
        (End::Client, ..) => By::Client,
        (End::Server, Some(_), _) => By::Endpoint,
        (End::Server, None, Some(endpoint)) if endpoint == vip => By::Endpoint,
        (End::Server, None, Some(_)) => By::ServiceAddress,
        (End::Server, None, None) => By::Server,
    };
    ResetLine { time: reset.time, by, from: from.unwrap_or(vip) }
}

fn packet_line(line: &Line, from: End, capture: &Ending) -> PacketLine {
    let (what, bytes) = match line.content {
        Content::Tcp { flags, bytes, .. } => (flag_names(flags), bytes),
        Content::Datagram { bytes, .. } => ("datagram".to_owned(), bytes),
        Content::Icmp { from, kind, code } => {
            (format!("ICMP from {from}: {}", meaning(from.is_ipv4(), kind, code)), 0)
        }
    };
    let seen = line.seen.iter().map(|seen| {
        let Seen { time, tuple, place } = *seen;
        SeenLine {
            time,
            src: tuple.src.socket(),
            dst: tuple.dst.socket(),
            interface: interface(&place, capture),
        }
    });
    PacketLine {
        from,
        what,
        bytes,
        is_retransmit: line.is_retransmit,
        sightings: line.sightings,
        seen: seen.collect(),
    }
}

fn flag_names(flags: u8) -> String {
    const NAMES: [(u8, &str); 6] = [
        (flag::SYN, "SYN"),
        (flag::FIN, "FIN"),
        (flag::RST, "RST"),
        (flag::PSH, "PSH"),
        (flag::ACK, "ACK"),
        (32, "URG"),
    ];
    let names: Vec<&str> = NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { "no flag".to_owned() } else { names.join(" ") }
}

/// An ICMP error in words (RFC 792, RFC 1812, RFC 4443).
fn meaning(is_ipv4: bool, kind: u8, code: u8) -> String {
    let name = match (is_ipv4, kind, code) {
        (true, 3, 0) => "network unreachable",
        (true, 3, 1) | (false, 1, 3) => "host unreachable",
        (true, 3, 2) => "protocol unreachable",
        (true, 3, 3) | (false, 1, 4) => "port unreachable",
        (true, 3, 4) | (false, 2, _) => "packet too big",
        (true, 3, 9 | 10 | 13) | (false, 1, 1) => "administratively prohibited",
        (false, 1, 0) => "no route",
        (true, 11, _) | (false, 3, _) => "time exceeded",
        _ => return format!("ICMP type {kind} code {code}"),
    };
    name.to_owned()
}

/// The name of an interface, or its number with the direction if the capture shows it.
fn interface(place: &Place, capture: &Ending) -> String {
    let name = capture.interfaces.get(place.number).cloned().flatten();
    let base = match (place.index, name) {
        (Some(index), _) => format!("ifindex {index}"),
        (None, Some(name)) => name,
        (None, None) if place.is_any => "any".to_owned(),
        (None, None) => format!("interface {}", place.number),
    };
    match place.sent {
        Some(true) => format!("{base} out"),
        Some(false) => format!("{base} in"),
        None => base,
    }
}
