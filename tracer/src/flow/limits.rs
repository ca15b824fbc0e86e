//! The limits of a flow table, and its counts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits on memory and waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Flows held at once, about 1 KiB each; at least 1. In a full table flows that were handed out make room first,
    /// and each other kind has a share that no other kind takes.
    pub max_flows: usize,
    /// How long sightings wait to be sorted by time.
    pub reorder: Duration,
    /// How long an ended flow waits for the evidence of the other end.
    pub settle: Duration,
    /// How long a TCP flow without a sign of an answer waits until it is handed out. SYN retransmits come after 1 s and
    /// 3 s (after 1, 2, 3 s since Linux 6.5), and an unresolved neighbour fails after 3 s: 4 s cover both.
    pub answer: Duration,
    /// How long a datagram flow stays unobserved before its entry is reread and the flow is handed out: longer than a
    /// resolver's timeout (resolv.conf(5)), shorter than conntrack's timeout of one-way UDP (30 s).
    pub silence: Duration,
    /// How old an unanswered UDP flow is at the last reading of its entry before the flow is handed out: a resolver whose
    /// upstream is silent answers after six seconds (the `forward` plugin of `CoreDNS`: five, and a last attempt).
    // A recording without it has one reading of each entry.
    #[serde(default)]
    pub last_reading: Duration,
    /// How long a flow that was handed out is kept for late evidence.
    pub linger: Duration,
    /// The same for an unanswered flow: the client retransmits its SYN for about 130 s.
    pub unanswered: Duration,
    /// How long an answered connection without an event is kept: conntrack's timeout of an established connection
    /// (`nf_conntrack_tcp_timeout_established`). It is then handed out as it is. The same for one that its server closed and
    /// its client did not.
    pub idle_connection: Duration,
    /// The same for answered datagrams (`nf_conntrack_udp_timeout_stream`).
    pub idle_datagrams: Duration,
    /// The flows whose entries are read again before they are handed out unanswered.
    #[serde(rename = "look")]
    pub reread: Reread,
    /// The end of a connection is an event: one without it, whose end retransmits no longer, goes on. Otherwise its end may have given
    /// up, as a recorder's trace observes no socket that closes.
    pub sees_closes: bool,
    /// How long such a flow waits for its entry. A busy program may read it late.
    #[serde(rename = "look_wait")]
    pub reread_wait: Duration,
}

/// The flows whose conntrack entries are read again before they are handed out without a sign of an answer: no hook
/// observes the answer itself, only the entry records it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reread {
    /// None: the kernel cannot be read, or the recording already has the entries.
    #[default]
    Nothing,
    /// Flows that no socket event describes: UDP and SCTP.
    Datagrams,
    /// TCP connections too: sockets on other nodes are not observed here. Not for a trace without socket states,
    /// because every connection would qualify.
    All,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_flows: 65_536,
            reorder: Duration::from_millis(30),
            settle: Duration::from_millis(200),
            answer: Duration::from_secs(4),
            silence: Duration::from_secs(5),
            last_reading: Duration::from_secs(8),
            linger: Duration::from_secs(3),
            unanswered: Duration::from_secs(135),
            // The kernel's defaults (nf_conntrack_proto_tcp.c and nf_conntrack_proto_udp.c, Linux 6.12).
            idle_connection: Duration::from_hours(5 * 24),
            idle_datagrams: Duration::from_mins(2),
            reread: Reread::Nothing,
            sees_closes: true,
            reread_wait: Duration::from_secs(2),
        }
    }
}

/// Counts since the start of the table, except `open`. `seen` is the sum of `settled`, `evicted`, `absorbed` and
/// `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub sightings: u64,
    /// Flows begun.
    pub seen: u64,
    /// Flows handed out at least once.
    pub settled: u64,
    /// Flows in the table that are not handed out yet.
    pub open: u64,
    /// Flows evicted before they had an outcome, because the table was full ([`Unjudged`](super::Unjudged)).
    pub evicted: u64,
    /// Flows that turned out to be the other end of another.
    pub absorbed: u64,
    /// Sightings that belong to no flow: of other protocols, without readable addresses, of flows evicted long ago, or
    /// the last ones of connections that made room for others.
    pub unmatched: u64,
    /// How often the conntrack table was full.
    pub table_full: u64,
    /// How often a full table evicted an unassured entry to make room (N7).
    pub table_full_freed: u64,
}
