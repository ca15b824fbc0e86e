//! A copy of a recording without its names and addresses, to be attached to a public issue.
//!
//! Owns what of each item is replaced: everything that is not known to be harmless. An item of an unknown kind, one that
//! cannot be read again afterwards and a record that cannot be decoded are left out and counted. Judges nothing: the
//! copy replays to the same classes because names are replaced by names, and addresses prefix by prefix.
//!
//! What stays: times, ports, counts, process ids and network namespaces, the kernel's version, the structure of the
//! rules, and the names by which viptrace recognises something (`names`).

mod addresses;
mod json;
mod names;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Addresses, Header,
    header::{FORMAT, HookLine},
    item::{Assembler, Dropped, Item},
    reader::{Block, OpenError, Reader},
    records::Records,
    writer::{Blocks, Finished},
};
use crate::{
    kernel::{
        decode::{Decoder, Mask, Replace, Rewriter},
        layout::FIELDS,
        plan::HookSet,
    },
    sighting::Hook,
    time::Timestamp,
};
use names::Names;
use names::Sort;

/// The contents of a redacted recording.
#[derive(Debug, Default)]
pub(crate) struct Redacted {
    /// The file's size, and the number of the kernel's records in it.
    pub(crate) finished: Finished,
    /// Items of kinds that this viptrace does not know.
    pub(crate) unknown: u64,
    /// Items that could not be read, or not after the replacement.
    pub(crate) unreadable: u64,
    /// Records that could not be decoded.
    pub(crate) undecodable: u64,
    /// Damaged parts of the file.
    pub(crate) damaged: u64,
}

impl Redacted {
    /// Adds the contents of another copy.
    pub(crate) fn add(&mut self, other: &Self) {
        self.finished.records += other.finished.records;
        self.finished.bytes += other.finished.bytes;
        self.unknown += other.unknown;
        self.unreadable += other.unreadable;
        self.undecodable += other.undecodable;
        self.damaged += other.damaged;
    }
}

/// What stands for each name and address. Recordings that are redacted with the same substitutes still belong together.
#[derive(Debug, Default)]
pub(crate) struct Substitutes {
    names: Names,
    /// The numbers of the kernel's addresses: an entry of one segment is the same in the next one.
    addresses: Addresses,
}

impl Substitutes {
    /// The name that stands for a node's.
    pub(crate) fn node(&mut self, name: &str) -> String {
        self.names.of(Sort::Node, name)
    }

    /// How many names of each sort were replaced so far.
    pub(crate) fn names(&self) -> impl Iterator<Item = (Sort, usize)> {
        self.names.counts()
    }

    /// The number of replaced addresses so far.
    pub(crate) fn addresses(&self) -> u64 {
        self.names.addresses.replaced
    }
}

/// Why a recording could not be redacted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RedactError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    #[error("the copy cannot be written: {0}")]
    Write(io::Error),
}

/// A recording whose copy can begin.
#[derive(Debug)]
pub(crate) struct Redaction<R> {
    reader: Reader<R>,
    header: Header,
}

impl<R: Read + Seek> Redaction<R> {
    /// Reads the header.
    pub(crate) fn open(file: R) -> Result<Self, OpenError> {
        let (reader, header) = Reader::open(file)?;
        Ok(Self { reader, header })
    }

    /// Writes the copy into an empty file.
    pub(crate) fn write(
        mut self,
        to: File,
        Substitutes { names, addresses }: &mut Substitutes,
    ) -> Result<Redacted, RedactError> {
        let layout = Arc::new(self.header.layout());
        let mask = Mask::new(&layout);
        let rewriter = Rewriter::new(&layout);
        let decoder = Decoder::new(layout, self.header.clock_offset_ns);
        let header = redacted_header(&self.header, names);
        let json = serde_json::to_vec(&header).map_err(|error| RedactError::Write(error.into()))?;
        let addresses = addresses.clone();
        let mut blocks = Blocks::begin(to, json, header.started, mask.clone(), decoder.clone(), addresses)
            .map_err(RedactError::Write)?;
        let mut redacted = Redacted::default();
        let (mut block, mut assembler) = (Block::default(), Assembler::default());
        let (mut batch, mut now, mut lacks) = (Records::default(), header.started, Lacks::default());
        while self.reader.next_block(&mut block).map_err(RedactError::Read)? {
            if block.after_damage {
                assembler.forget();
                lacks.since.get_or_insert(now);
            }
            let mut items = block.items.as_slice();
            let mut next = 0;
            while let Some(item) = assembler.next(&mut items) {
                let item = match item {
                    Ok(Item::Records(count, _)) => {
                        let mut undecodable = 0;
                        for index in next..next + count as usize {
                            let Some(record) = block.records.get(index) else { break };
                            let mut record = record.to_vec();
                            mask.apply(&mut record);
                            if decoder.decode(&record).is_err() {
                                undecodable += 1;
                                continue;
                            }
                            rewriter.apply(&mut record, names);
                            batch.push(&record);
                        }
                        next += count as usize;
                        blocks.records(&mut batch);
                        batch.clear();
                        redacted.undecodable += undecodable;
                        lacks.undecodable += undecodable;
                        continue;
                    }
                    Ok(item) => redacted_item(&item, names),
                    Err(_) => None,
                };
                let Some(item) = item else {
                    redacted.unreadable += 1;
                    lacks.since.get_or_insert(now);
                    continue;
                };
                if let Item::Advance(time) | Item::Finish(time) = &item {
                    lacks.write(&mut blocks, now, *time);
                    now = now.max(*time);
                }
                blocks.item(&item);
            }
        }
        lacks.write(&mut blocks, now, now);
        redacted.finished = blocks.close();
        if let Some(failure) = &redacted.finished.failure {
            return Err(RedactError::Write(io::Error::other(failure.error.clone())));
        }
        redacted.unknown = assembler.unknown();
        redacted.damaged = self.reader.damage().1;
        Ok(redacted)
    }
}

/// What the copy lacks since the last advance of time. The copy says so before the next one, as a replay of the original
/// finds it.
#[derive(Debug, Default)]
struct Lacks {
    undecodable: u64,
    /// The time before something else that is missing.
    since: Option<Timestamp>,
}

impl Lacks {
    /// Writes it, at the advance of time from `before` to `now`.
    fn write(&mut self, blocks: &mut Blocks, before: Timestamp, now: Timestamp) {
        let Self { undecodable: records, since } = std::mem::take(self);
        let mut write = |records, others, from| {
            let dropped = Dropped { records, others, from, to: now, in_original: true };
            blocks.item(&Item::Dropped(dropped));
        };
        if records > 0 {
            write(records, 0, before);
        }
        if let Some(since) = since {
            write(0, 1, since);
        }
    }
}

/// `None` if it is no item any more.
fn redacted_item(item: &Item, names: &mut Names) -> Option<Item> {
    match item {
        Item::Records(..)
        | Item::Advance(_)
        | Item::Lost(_)
        | Item::Prune(_)
        | Item::Reread(_)
        | Item::Finish(_)
        | Item::Dropped(_)
        | Item::WallClock(_) => Some(item.clone()),
        // Only for a hook that this viptrace knows, so that the text is one of its own.
        Item::Hook(change) => Hook::from_symbol(&change.hook).map(|_| item.clone()),
        Item::Update(_)
        | Item::Node(_)
        | Item::NodeState(_)
        | Item::Object(_)
        | Item::Start(_)
        | Item::Suppressed(_)
        | Item::Changes(_)
        | Item::End(_) => {
            // Encoded by this viptrace: fields that it does not know are gone.
            let (kind, body) = item.encode().ok()?;
            let value = names.value(&serde_json::from_slice(&body).ok()?);
            Item::decode(kind, &serde_json::to_vec(&value).ok()?).ok()?
        }
    }
}

fn redacted_header(header: &Header, names: &mut Names) -> Header {
    let own = |text: &str| Names::version(text);
    let is_symbol = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let reasons = |reasons: &BTreeMap<u32, Arc<str>>| {
        let of_the_kernel = reasons.iter().filter(|(_, name)| is_symbol(name));
        of_the_kernel.map(|(number, name)| (*number, Arc::clone(name))).collect()
    };
    let offsets = header.offsets.iter().filter(|(name, _)| FIELDS.iter().any(|field| field.name == **name));
    let hooks = header.hooks.iter().filter(|line| Hook::from_symbol(&line.hook).is_some());
    Header {
        format: FORMAT,
        viptrace: own(&header.viptrace),
        // The rest can name an organisation that builds its own kernels.
        kernel_release: Names::version(&header.kernel_release)
            .split('.')
            .take(3)
            .collect::<Vec<_>>()
            .join("."),
        node_name: header.node_name.as_deref().map(|name| names.of(Sort::Node, name)),
        // The node's logs have it; traces with the same one have one clock.
        boot: header.boot.as_deref().map(|boot| names.uid(boot).into()),
        target: header.target.as_deref().map(|target| names.target(target)),
        hooks: hooks
            .map(|line| HookLine {
                attach: names.text(&line.attach),
                reason: line.reason.as_deref().map(|reason| names.text(reason)),
                ..line.clone()
            })
            .collect(),
        offsets: offsets.map(|(name, offset)| (name.clone(), *offset)).collect(),
        drop_reasons: reasons(&header.drop_reasons),
        reset_reasons: reasons(&header.reset_reasons),
        hook_set: header.hook_set.clone().filter(|set| HookSet::named(set).is_some()),
        // Numbers, and what `Header::check` has compared.
        ..header.clone()
    }
}

impl Replace for Names {
    fn address(&mut self, ip: IpAddr) -> IpAddr {
        self.addresses.of(ip)
    }

    fn task(&mut self, name: &str) -> String {
        self.of(Sort::Task, name)
    }
}
