//! The events of recordings, counted by Service.
//!
//! Owns which record counts as what. Follows no flow and judges nothing: a broken connection has several events, and so may a
//! healthy one. It is the quick look at a large recording, before a replay of what matters.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read, Seek},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;

use super::{
    header::Header,
    item::{Assembler, Item},
    reader::{Block, Damage, OpenError, Reader},
};
use crate::{
    cluster::{Cluster, History, LOOK_BACK, Origin, Status},
    kernel::{connections::Counted, decode::Decoder},
    net::{Protocol, TransportAddr},
    session::Attribution,
    sighting::{Fact, Hook, PacketFact, Sighting},
    time::Timestamp,
    verdict::ServiceRef,
};

/// Events of one Service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfService {
    /// Connections whose address NAT or IPVS translated; among [`EventCounts::others`] all connections.
    pub translated: u64,
    /// Connections that kept the Service's address: no rule translated them.
    pub untranslated: u64,
    /// Packets that a rule rejected, or for which IPVS had no real server.
    pub rejected: u64,
    /// Packets that the kernel dropped.
    pub dropped: u64,
    /// RSTs that the client's socket on this node received.
    pub resets: u64,
    /// Segments that the client's socket on this node repeated.
    pub retransmits: u64,
}

impl OfService {
    /// Events that a connection in which all is well seldom has.
    pub fn troubles(&self) -> u64 {
        let Self { untranslated, rejected, dropped, resets, retransmits, .. } = *self;
        [rejected, dropped, resets, retransmits].into_iter().fold(untranslated, u64::saturating_add)
    }
}

/// A Service port.
type ServicePort = (ServiceRef, Protocol);

/// The counts so far.
#[derive(Debug, Default)]
pub struct EventCounts {
    services: BTreeMap<ServicePort, OfService>,
    /// Connections and events of other addresses.
    pub others: OfService,
    hooks: BTreeMap<Hook, u64>,
    /// All records in the wanted time.
    pub events: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Events that the trace or the recorder lost, as far as they were counted, and those that the kernel suppressed.
    pub lost: u64,
    /// The times of the first and the last event.
    pub span: Option<(Timestamp, Timestamp)>,
}

/// What is missing in one file.
#[derive(Debug, Default)]
pub struct Lacks {
    /// The first damaged parts, and the number of all.
    pub damage: (Vec<Damage>, u64),
    pub unreadable_items: u64,
    /// It has neither the cluster's objects at its beginning nor is it the continuation of a file that has.
    pub beginning: bool,
    /// It has the end of the trace. Of a trace in several files, the last one has it.
    pub has_end: bool,
    /// The latest time in it.
    pub last: Timestamp,
}

/// An event of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Connection,
    Rejected,
    Dropped,
    Reset,
    Retransmit,
}

const EVENTS: [Event; 5] =
    [Event::Connection, Event::Rejected, Event::Dropped, Event::Reset, Event::Retransmit];

/// The destination before and after NAT; the same if there was none, or for an event that is no connection.
type Ends = (Protocol, TransportAddr, TransportAddr);

/// Counts the files of one trace, in their order.
#[derive(Debug)]
pub struct EventCounter {
    cluster: Cluster,
    has_started: bool,
    from: Timestamp,
    to: Timestamp,
    /// The events of one block.
    block: HashMap<(Event, Ends), u64, RandomState>,
    /// Events whose Service is not known yet.
    waiting: [Attribution; EVENTS.len()],
    /// The latest time.
    now: Timestamp,
}

impl EventCounter {
    /// Counts events from `from` to `to`, both included, by the clock of the trace.
    pub fn new(from: Timestamp, to: Timestamp) -> Self {
        Self {
            cluster: Cluster { history: History::new(LOOK_BACK), status: Status::new(Origin::None) },
            has_started: false,
            from,
            to,
            block: HashMap::default(),
            waiting: Default::default(),
            now: Timestamp::MIN,
        }
    }

    /// Counts the events of the trace's next file.
    ///
    /// # Errors
    ///
    /// If the file is no recording, or cannot be read to its end: the events before are counted.
    pub fn count<R: Read + Seek>(&mut self, file: R, counts: &mut EventCounts) -> Result<Lacks, OpenError> {
        let (mut reader, header) = Reader::open(file)?;
        let mut lacks = Lacks { last: header.started, ..Lacks::default() };
        let read = self.blocks(&mut reader, &header, counts, &mut lacks);
        let (first, number) = reader.damage();
        lacks.damage = (first.to_vec(), number);
        read?;
        Ok(lacks)
    }

    /// The cluster's objects, as far as they were read.
    pub(crate) const fn history(&self) -> &History {
        &self.cluster.history
    }

    /// After the last file: events whose Service is still unknown belong to none.
    pub fn finish(mut self, counts: &mut EventCounts) {
        self.attribute(Duration::ZERO, counts);
    }

    fn blocks<R: Read + Seek>(
        &mut self,
        reader: &mut Reader<R>,
        header: &Header,
        counts: &mut EventCounts,
        lacks: &mut Lacks,
    ) -> io::Result<()> {
        let decoder = Decoder::new(Arc::new(header.layout()), header.clock_offset_ns);
        let (mut block, mut assembler) = (Block::default(), Assembler::default());
        while reader.next_block(&mut block)? {
            if block.after_damage {
                assembler.forget();
            }
            let mut items = block.items.as_slice();
            while let Some(item) = assembler.next(&mut items) {
                match item {
                    Ok(Item::End(end)) => (lacks.has_end, lacks.last) = (true, lacks.last.max(end.ended)),
                    Ok(Item::Advance(now)) => lacks.last = lacks.last.max(now),
                    Ok(item) => self.item(item, counts),
                    Err(_) => lacks.unreadable_items += 1,
                }
            }
            lacks.beginning |= !self.has_started && !block.records.is_empty();
            let before = self.now;
            for record in block.records.iter() {
                self.record(record, &decoder, counts);
            }
            for ((event, (protocol, service, endpoint)), count) in self.block.drain() {
                let counted = Counted { service: service.socket(), endpoint: endpoint.socket(), protocol };
                let from = if before == Timestamp::MIN { self.now } else { before };
                if let Some(waiting) = self.waiting.get_mut(event as usize) {
                    waiting.add(counted, count, from);
                }
            }
            self.attribute(Attribution::BEHIND, counts);
        }
        Ok(())
    }

    fn item(&mut self, item: Item, counts: &mut EventCounts) {
        let is_wanted = |from: Timestamp, to: Timestamp| from <= self.to && to >= self.from;
        match item {
            Item::Update(update) => self.cluster.absorb(update),
            Item::Prune(now) => self.cluster.history.prune(now),
            Item::Object(object) => self.cluster.history.restore_object(*object),
            Item::Start(start) => {
                self.cluster.history.restore_facts(start.history);
                self.has_started = true;
            }
            Item::Lost(lost) if is_wanted(lost.from, lost.to) => {
                counts.lost = counts.lost.saturating_add(lost.count);
            }
            Item::Dropped(dropped) if is_wanted(dropped.from, dropped.to) => {
                counts.lost = counts.lost.saturating_add(dropped.records);
            }
            Item::Suppressed(suppressed) if is_wanted(suppressed.from, suppressed.to) => {
                counts.lost = counts.lost.saturating_add(suppressed.count);
            }
            _ => {}
        }
    }

    fn record(&mut self, record: &[u8], decoder: &Decoder, counts: &mut EventCounts) {
        let Some((time, hook)) = decoder.head(record) else {
            counts.undecodable += 1;
            return;
        };
        self.now = self.now.max(time);
        if !(self.from..=self.to).contains(&time) {
            return;
        }
        counts.events += 1;
        *counts.hooks.entry(hook).or_default() += 1;
        counts.span = Some(match counts.span {
            Some((first, last)) => (first.min(time), last.max(time)),
            None => (time, time),
        });
        let found = match hook {
            // Most records are of these.
            Hook::SockEstablished | Hook::SockClosed | Hook::Delete | Hook::NatSetup | Hook::EntryReread => {
                return;
            }
            Hook::Confirm => decoder.entry_of(record).map(|ct| {
                let endpoint = ct.endpoint().map_or(ct.orig.dst, TransportAddr::from);
                Some((Event::Connection, (ct.orig.protocol, ct.orig.dst, endpoint)))
            }),
            _ => decoder.decode(record).map(|sighting| event_of(&sighting)),
        };
        match found {
            Ok(Some(found)) => *self.block.entry(found).or_default() += 1,
            Ok(None) => {}
            Err(_) => counts.undecodable += 1,
        }
    }

    fn attribute(&mut self, patience: Duration, counts: &mut EventCounts) {
        for (waiting, event) in self.waiting.iter_mut().zip(EVENTS) {
            for (pair, count) in waiting.take(patience, &self.cluster.history, self.now) {
                // To other addresses, a connection need not be translated.
                let is_translated = pair.as_ref().is_none_or(|pair| pair.endpoint.is_some());
                let of = match pair {
                    Some(pair) => counts.services.entry((pair.service, pair.protocol)).or_default(),
                    None => &mut counts.others,
                };
                let total = match event {
                    Event::Connection if is_translated => &mut of.translated,
                    Event::Connection => &mut of.untranslated,
                    Event::Rejected => &mut of.rejected,
                    Event::Dropped => &mut of.dropped,
                    Event::Reset => &mut of.resets,
                    Event::Retransmit => &mut of.retransmits,
                };
                *total = total.saturating_add(count);
            }
        }
    }
}

impl EventCounts {
    /// Each Service port with its events.
    pub fn services(&self) -> impl Iterator<Item = (&ServicePort, &OfService)> {
        self.services.iter()
    }

    /// Leaves out the Services for which `wanted` returns false, the events of other addresses, and those of the hooks, which
    /// are not counted by Service.
    pub fn retain(&mut self, wanted: impl Fn(&ServiceRef) -> bool) {
        self.services.retain(|(service, _), _| wanted(service));
        self.others = OfService::default();
        self.hooks.clear();
    }

    /// The number of records of each hook.
    pub fn hooks(&self) -> impl Iterator<Item = (Hook, u64)> {
        self.hooks.iter().map(|(hook, count)| (*hook, *count))
    }
}

/// The event, and the address that the client used.
fn event_of(sighting: &Sighting) -> Option<(Event, Ends)> {
    let event = match sighting.hook {
        Hook::SendUnreach | Hook::SendUnreach6 | Hook::NfSendReset | Hook::NfSendReset6 | Hook::IpVsLeave => {
            Event::Rejected
        }
        Hook::KfreeSkb => Event::Dropped,
        Hook::TcpReceiveReset => Event::Reset,
        Hook::TcpRetransmit => Event::Retransmit,
        _ => return None,
    };
    let (protocol, to) = match &sighting.fact {
        Fact::Packet(packet) => asked(packet)?,
        Fact::Socket(socket) => (socket.tuple.protocol, socket.tuple.dst),
        Fact::Conntrack(_) | Fact::Ipvs(_) | Fact::TableFull { .. } => return None,
    };
    Some((event, (protocol, to, to)))
}

fn asked(packet: &PacketFact) -> Option<(Protocol, TransportAddr)> {
    let tuple = packet.ct.map(|ct| ct.orig).or(packet.tuple)?;
    Some((tuple.protocol, tuple.dst))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Cursor, path::Path};

    use super::*;
    use crate::recording::{Sightings, fixtures::recordings};

    fn fixture(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)).unwrap()
    }

    fn counted(bytes: &[u8], from: Timestamp, to: Timestamp) -> (EventCounts, Lacks) {
        let (mut counts, mut counter) = (EventCounts::default(), EventCounter::new(from, to));
        let lacks = counter.count(Cursor::new(bytes), &mut counts).unwrap();
        counter.finish(&mut counts);
        (counts, lacks)
    }

    #[test]
    fn every_decoded_record_is_counted_once() {
        for path in recordings() {
            let (name, bytes) = (path.display(), fs::read(&path).unwrap());
            let (counts, lacks) = counted(&bytes, Timestamp::MIN, Timestamp::MAX);
            assert_eq!((counts.undecodable, lacks.unreadable_items, lacks.damage.1), (0, 0, 0), "{name}");
            let (mut all, mut expected) = (0, BTreeMap::<Hook, u64>::new());
            let (mut connections, mut asked_of) = (0, [0; 4]);
            let mut sightings = Sightings::open(Cursor::new(bytes)).unwrap();
            while let Some(observed) = sightings.next_sighting().unwrap() {
                all += 1;
                let sighting = &observed.sighting;
                *expected.entry(sighting.hook).or_default() += 1;
                connections += u64::from(sighting.hook == Hook::Confirm);
                let is_of_address = match &sighting.fact {
                    Fact::Packet(packet) => packet.ct.is_some() || packet.tuple.is_some(),
                    Fact::Socket(_) => true,
                    _ => false,
                };
                let column = match sighting.hook {
                    Hook::KfreeSkb => Some(0),
                    Hook::TcpReceiveReset => Some(1),
                    Hook::TcpRetransmit => Some(2),
                    hook if hook.is_unreach() || hook.is_forged_reset() || hook == Hook::IpVsLeave => Some(3),
                    _ => None,
                };
                if let Some(column) = column.filter(|_| is_of_address) {
                    asked_of[column] += 1;
                }
            }
            assert_eq!((counts.events, counts.hooks.clone()), (all, expected), "{name}");
            let sum = |of: fn(&OfService) -> u64| {
                counts.services().map(|(_, counts)| of(counts)).sum::<u64>() + of(&counts.others)
            };
            let found =
                [sum(|it| it.dropped), sum(|it| it.resets), sum(|it| it.retransmits), sum(|it| it.rejected)];
            assert_eq!(found, asked_of, "{name}");
            assert_eq!(sum(|it| it.translated) + sum(|it| it.untranslated), connections, "{name}");
            assert_eq!(counts.others.untranslated, 0, "{name}");
        }
    }

    #[test]
    fn a_refused_service_is_named() {
        let bytes = fixture("recordings/debian-6.12-c20-no-endpoints.viptrace");
        let (counts, _) = counted(&bytes, Timestamp::MIN, Timestamp::MAX);
        let worst = counts.services().max_by_key(|(_, counts)| counts.rejected).unwrap();
        assert!(worst.1.rejected > 0, "{counts:?}");
        assert_eq!(&*worst.0.0.namespace, "shop", "{counts:?}");
    }

    #[test]
    fn only_the_wanted_time_is_counted() {
        let bytes = fs::read(&recordings()[0]).unwrap();
        let (all, _) = counted(&bytes, Timestamp::MIN, Timestamp::MAX);
        let (first, last) = all.span.unwrap();
        let middle = first.saturating_add(last.since(first) / 2);
        let (before, _) = counted(&bytes, Timestamp::MIN, middle);
        let (after, _) = counted(&bytes, middle.saturating_add(Duration::from_nanos(1)), Timestamp::MAX);
        assert!(before.events > 0 && after.events > 0);
        assert_eq!(before.events + after.events, all.events);
        assert!(before.span.unwrap().1 <= middle && after.span.unwrap().0 > middle);
    }

    #[test]
    fn damage_is_named_and_the_rest_is_counted() {
        let bytes = fs::read(&recordings()[0]).unwrap();
        let (whole, _) = counted(&bytes, Timestamp::MIN, Timestamp::MAX);
        let cut = &bytes[..bytes.len() - 10];
        let (counts, lacks) = counted(cut, Timestamp::MIN, Timestamp::MAX);
        assert_eq!(lacks.damage.1, 1);
        assert!(counts.events <= whole.events);
    }
}
