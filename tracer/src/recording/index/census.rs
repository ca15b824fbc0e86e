//! What the index says about one block, collected while the block is written.

use std::collections::HashSet;

use foldhash::fast::RandomState;

use super::{Addressed, Element, FIRST_CLIENT_PORT, Filter, host, port, socket, template};
use crate::{
    kernel::decode::Decoder,
    sighting::{Fact, Sighting},
    time::Timestamp,
};

/// The most bytes of a block's filters: so many whatever its size, and so many records for each further byte.
const FEW_BYTES: usize = 64;
const RECORDS_PER_HOSTS_BYTE: usize = 64;
const RECORDS_PER_SOCKETS_BYTE: usize = 12;

/// The addresses and times of the block's records so far.
#[derive(Debug)]
pub(in crate::recording) struct Census {
    decoder: Decoder,
    hosts: HashSet<Element, RandomState>,
    sockets: HashSet<Element, RandomState>,
    /// A record could not be decoded and may have any address, or records are lost.
    is_open: bool,
    from: Timestamp,
    to: Timestamp,
}

impl Census {
    pub(in crate::recording) fn new(decoder: Decoder) -> Self {
        Self {
            decoder,
            hosts: HashSet::default(),
            sockets: HashSet::default(),
            is_open: false,
            from: Timestamp::MAX,
            to: Timestamp::MIN,
        }
    }

    /// Takes a record of the block. Returns its time.
    pub(in crate::recording) fn record(&mut self, record: &[u8]) -> Option<Timestamp> {
        let Ok(sighting) = self.decoder.decode(record) else {
            self.is_open = true;
            return None;
        };
        self.time(sighting.time);
        self.addresses(&sighting);
        Some(sighting.time)
    }

    /// The block has a loss, for which the order of events matters: it is read whole.
    pub(in crate::recording) fn loss(&mut self) {
        self.is_open = true;
    }

    /// Takes the time of an item.
    pub(in crate::recording) fn time(&mut self, time: Timestamp) {
        self.from = self.from.min(time);
        self.to = self.to.max(time);
    }

    fn addresses(&mut self, sighting: &Sighting) {
        for address in sighting.tuples().flat_map(|tuple| [tuple.src, tuple.dst]) {
            self.hosts.insert(host(address.bits()));
            if address.port() < FIRST_CLIENT_PORT {
                self.hosts.insert(port(address.port()));
            } else {
                self.sockets.insert(socket(address));
            }
        }
        if let Fact::Ipvs(fact) = &sighting.fact
            && fact.is_template()
        {
            self.hosts.insert(template(fact.tuple.src.bits()));
        }
    }

    /// The result for a block with so many records: its addresses, and its first and last time. Begins with the next block.
    pub(in crate::recording) fn take(&mut self, records: usize) -> (Addressed, Timestamp, Timestamp) {
        let filter = |elements: &mut HashSet<Element, RandomState>, records_per_byte: usize| {
            let filter = Filter::of(elements.iter().copied(), FEW_BYTES.max(records / records_per_byte));
            elements.clear();
            filter
        };
        let hosts = filter(&mut self.hosts, RECORDS_PER_HOSTS_BYTE);
        let sockets = filter(&mut self.sockets, RECORDS_PER_SOCKETS_BYTE);
        let addressed = if std::mem::take(&mut self.is_open) {
            Addressed { hosts: Filter::everything(), sockets: Filter::everything() }
        } else {
            Addressed { hosts, sockets }
        };
        let (from, to) = (self.from.min(self.to), self.to);
        (self.from, self.to) = (Timestamp::MAX, Timestamp::MIN);
        (addressed, from, to)
    }
}
