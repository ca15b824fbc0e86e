//! The tuples of a capture, each once for both directions.
//!
//! Owns only their number, which is bounded, and what of the capture has none.

use std::collections::{BTreeMap, HashSet};

use foldhash::fast::RandomState;

use super::{MAX_TUPLES, Packet, Unread, head};
use crate::{net::Tuple, text::count};

/// The most link types that are named as not supported.
const MAX_LINKS: usize = 16;

/// The tuples of a capture.
#[derive(Debug, Default)]
pub struct Tuples {
    known: HashSet<Tuple, RandomState>,
    /// Packets whose tuples had no room.
    pub(super) without_room: u64,
    /// Neither TCP, UDP nor SCTP.
    pub(super) others: u64,
    pub(super) fragments: u64,
    /// With more VLAN tags than are read.
    pub(super) tags: u64,
    pub(super) cut: u64,
    /// Packets by link types that are not supported.
    pub(super) links: BTreeMap<u16, u64>,
    /// Packets of further such link types.
    pub(super) further_links: u64,
}

/// The direction of a tuple that stands for both.
pub fn canonical(tuple: Tuple) -> Tuple {
    if tuple.src <= tuple.dst { tuple } else { tuple.reversed() }
}

impl Tuples {
    /// Adds the tuple of a packet.
    pub fn add(&mut self, packet: &Packet<'_>) {
        match head(packet) {
            Ok(head) => {
                let tuple = canonical(head.tuple);
                if self.known.len() < MAX_TUPLES {
                    self.known.insert(tuple);
                } else if !self.known.contains(&tuple) {
                    self.without_room += 1;
                }
            }
            Err(Unread::Link(link)) => {
                if self.links.len() < MAX_LINKS || self.links.contains_key(&link) {
                    *self.links.entry(link).or_default() += 1;
                } else {
                    self.further_links += 1;
                }
            }
            Err(Unread::Other) => self.others += 1,
            Err(Unread::Fragment) => self.fragments += 1,
            Err(Unread::Tags) => self.tags += 1,
            Err(Unread::Cut) => self.cut += 1,
        }
    }

    /// Whether the capture has packets of this tuple, in either direction.
    pub fn has(&self, tuple: Tuple) -> bool {
        self.known.contains(&canonical(tuple))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Tuple> {
        self.known.iter()
    }

    /// The packets that belong to no connection here, in words.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self
            .links
            .iter()
            .map(|(link, packets)| {
                format!("{} of link type {link}, which viptrace does not read", count(*packets, "packet"))
            })
            .collect();
        for (packets, why) in [
            (self.further_links, "of further link types, which viptrace does not read"),
            (self.tags, "with more than three VLAN tags, which viptrace does not read"),
            (self.cut, "with too few bytes for their headers: the capture's snapshot length is too short"),
            (self.fragments, "that are later fragments, which have no ports"),
            (self.without_room, "of further connections: there is no room for more than 65,536 tuples"),
        ] {
            if packets > 0 {
                remarks.push(format!("{} {why}", count(packets, "packet")));
            }
        }
        remarks
    }

    /// The packets in which nothing is missing, and which belong to no connection all the same, in words.
    pub(crate) fn note(&self) -> Option<String> {
        (self.others > 0).then(|| {
            format!(
                "{} of no connection: neither TCP, UDP nor SCTP, and no ICMP error about one",
                count(self.others, "packet")
            )
        })
    }

    /// The number of different tuples.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}
