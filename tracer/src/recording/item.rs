//! The contents of a recording, in the order of the live trace: every input of a [`Pipeline`].
//!
//! Owns the items and their bytes. An item is one byte for its kind, its length, and its body. A body that does not fit
//! into one block is split into pieces. A reader skips items of an unknown kind.
//!
//! [`Pipeline`]: crate::session::Pipeline

use std::sync::Arc;

use bytes::{Buf, BufMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cluster::{
        Event, SavedFacts, SavedObject, Status, Update,
        model::{Change, Object},
    },
    flow::{Lost, Suppressed},
    node::Snapshot,
    session::{SavedChanges, WallStep},
    sighting::Hook,
    time::Timestamp,
};

/// The longest body, assembled from its pieces, in bytes: more than the rules of any cluster need.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 20;
/// Set in the kind of every piece except the last.
const MORE: u8 = 0x80;

/// One input of the live trace's pipeline.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// This many records of the block, the next ones; and their latest time, if it is known.
    Records(u32, Option<Timestamp>),
    /// Time advanced.
    Advance(Timestamp),
    /// Events were lost.
    Lost(Lost),
    /// Versions older than the look-back were removed.
    Prune(Timestamp),
    /// The entries that flows waited for after the last advance were read again.
    Reread(Timestamp),
    /// All open flows were handed out.
    Finish(Timestamp),
    /// An event of a Kubernetes watch.
    Update(Update),
    /// The node was read.
    Node(Box<NodeReading>),
    /// The node's state was read without its rules, for the changes around failures.
    NodeState(Box<NodeReading>),
    /// An object with its history, at the beginning of the recording.
    Object(Box<SavedObject>),
    /// The other metadata at the beginning of the recording; it follows the objects.
    Start(Box<Start>),
    /// The recorder could not keep up.
    Dropped(Dropped),
    /// Events of one client, or of one Service, were suppressed.
    Suppressed(Suppressed),
    /// The wall clock was stepped.
    WallClock(WallStep),
    /// The changes in the API and on the node before the recording.
    Changes(Box<SavedChanges>),
    /// The end of the trace and of the recording.
    End(Box<End>),
    /// A hook was attached or lost while the trace ran.
    Hook(HookChanged),
}

/// A hook that was attached, or is lost, since a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HookChanged {
    /// As in the header.
    pub(super) hook: String,
    pub(super) is_attached: bool,
    pub(super) time: Timestamp,
}

/// The node, when its reading began, and when the pipeline received it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeReading {
    #[serde(rename = "facts")]
    pub snapshot: Arc<Snapshot>,
    #[serde(rename = "asked")]
    pub began: Timestamp,
    pub now: Timestamp,
}

/// The cluster without its objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) history: SavedFacts,
    pub(super) status: Status,
}

/// Inputs of the live trace that the recording lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dropped {
    /// Records of the kernel.
    pub records: u64,
    /// Other items: metadata, snapshots of the node.
    pub others: u64,
    /// The times between which they were dropped.
    pub from: Timestamp,
    pub to: Timestamp,
    /// They were missing, or unreadable, in the recording of which this one is a copy. Other items than records then stand
    /// for an unknown number of both.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_original: bool,
}

/// The facts of the live trace's summary that a replay cannot compute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    pub ended: Timestamp,
    /// Gaps of the trace.
    pub gaps: Vec<String>,
}

const RECORDS: u8 = 1;
const ADVANCE: u8 = 2;
const LOST: u8 = 3;
const PRUNE: u8 = 4;
const FINISH: u8 = 5;
const UPDATE: u8 = 6;
const NODE: u8 = 7;
const OBJECT: u8 = 8;
const START: u8 = 9;
const DROPPED: u8 = 10;
const END: u8 = 11;
const HOOK: u8 = 12;
const SUPPRESSED: u8 = 13;
const WALL_CLOCK: u8 = 14;
const CHANGES: u8 = 15;
const NODE_STATE: u8 = 16;
const REREAD: u8 = 17;

impl Item {
    /// Passes the versions of the cluster's objects in it to `take`.
    pub(super) fn objects(self, take: &mut impl FnMut(&Object)) {
        let of = match self {
            Self::Object(saved) => saved.versions(),
            Self::Update(Update {
                event: Event::Listed(trimmed) | Event::Changed(Change::Put(trimmed)),
                ..
            }) => {
                vec![trimmed.object]
            }
            _ => return,
        };
        of.iter().for_each(take);
    }

    /// Kind and body. The packer counts records.
    ///
    /// # Errors
    ///
    /// If a body cannot be written as JSON, or is longer than [`MAX_BODY_BYTES`].
    pub(super) fn encode(&self) -> Result<(u8, Vec<u8>), Unwritable> {
        let times = |times: &[u64]| times.iter().flat_map(|time| time.to_le_bytes()).collect();
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Records(count, newest) => {
                let newest = newest.map(|newest| newest.as_unix_ns().to_le_bytes());
                let newest = newest.as_ref().map_or(&[] as &[u8], <[u8; 8]>::as_slice);
                (RECORDS, [&count.to_le_bytes(), newest].concat())
            }
            Self::Advance(now) => (ADVANCE, times(&[now.as_unix_ns()])),
            Self::Lost(Lost { hook, count, from, to }) => {
                let times: Vec<u8> = times(&[*count, from.as_unix_ns(), to.as_unix_ns()]);
                (LOST, times.into_iter().chain(hook.map(|hook| hook as u8)).collect())
            }
            Self::Prune(now) => (PRUNE, times(&[now.as_unix_ns()])),
            Self::Finish(now) => (FINISH, times(&[now.as_unix_ns()])),
            Self::Reread(at) => (REREAD, times(&[at.as_unix_ns()])),
            Self::Update(update) => (UPDATE, json(update)?),
            Self::Node(reading) => (NODE, json(reading)?),
            Self::Object(object) => (OBJECT, json(object)?),
            Self::Start(start) => (START, json(start)?),
            Self::Dropped(dropped) => (DROPPED, json(dropped)?),
            Self::End(end) => (END, json(end)?),
            Self::Hook(change) => (HOOK, json(change)?),
            Self::Suppressed(suppressed) => (SUPPRESSED, json(suppressed)?),
            Self::WallClock(step) => (WALL_CLOCK, json(step)?),
            Self::Changes(changes) => (CHANGES, json(changes)?),
            Self::NodeState(reading) => (NODE_STATE, json(reading)?),
        };
        if body.len() > MAX_BODY_BYTES {
            return Err(Unwritable::TooLong(body.len()));
        }
        Ok((kind, body))
    }

    /// `Ok(None)` for an unknown kind, which a later version may have written.
    pub(super) fn decode(kind: u8, mut body: &[u8]) -> Result<Option<Self>, Unreadable> {
        const SHORT: Unreadable = Unreadable::Length;
        if kind == RECORDS {
            let count = body.try_get_u32_le().map_err(|_| SHORT)?;
            // Older recordings lack it.
            return Ok(Some(Self::Records(count, body.try_get_u64_le().ok().map(Timestamp::from_unix_ns))));
        }
        let mut number = || body.try_get_u64_le().map_err(|_| SHORT);
        Ok(Some(match kind {
            ADVANCE => Self::Advance(Timestamp::from_unix_ns(number()?)),
            LOST => {
                let (count, from, to) = (number()?, number()?, number()?);
                Self::Lost(Lost {
                    // Older recordings lack it.
                    hook: body.try_get_u8().ok().and_then(Hook::from_number),
                    count,
                    from: Timestamp::from_unix_ns(from),
                    to: Timestamp::from_unix_ns(to),
                })
            }
            PRUNE => Self::Prune(Timestamp::from_unix_ns(number()?)),
            FINISH => Self::Finish(Timestamp::from_unix_ns(number()?)),
            REREAD => Self::Reread(Timestamp::from_unix_ns(number()?)),
            UPDATE => Self::Update(parsed(kind, body)?),
            NODE => Self::Node(parsed(kind, body)?),
            OBJECT => Self::Object(parsed(kind, body)?),
            START => Self::Start(parsed(kind, body)?),
            DROPPED => Self::Dropped(parsed(kind, body)?),
            END => Self::End(parsed(kind, body)?),
            HOOK => Self::Hook(parsed(kind, body)?),
            SUPPRESSED => Self::Suppressed(parsed(kind, body)?),
            WALL_CLOCK => Self::WallClock(parsed(kind, body)?),
            CHANGES => Self::Changes(parsed(kind, body)?),
            NODE_STATE => Self::NodeState(parsed(kind, body)?),
            _ => return Ok(None),
        }))
    }
}

/// Why an item cannot be stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unwritable {
    #[error("it cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it has {0} bytes, more than {MAX_BODY_BYTES}")]
    TooLong(usize),
}

/// Why an item cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("an item has a wrong length")]
    Length,
    #[error("an item of kind {kind} has an invalid body: {error}")]
    Json { kind: u8, error: serde_json::Error },
    #[error("an item is longer than {MAX_BODY_BYTES} bytes")]
    TooLong,
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, Unwritable> {
    Ok(serde_json::to_vec(value)?)
}

fn parsed<T: DeserializeOwned>(kind: u8, body: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(body).map_err(|error| Unreadable::Json { kind, error })
}

/// Appends one piece of a body: kind, length, bytes.
pub(super) fn put_piece(into: &mut Vec<u8>, kind: u8, piece: &[u8], more: bool) {
    into.put_u8(kind | if more { MORE } else { 0 });
    let mut length = piece.len();
    while length >= 0x80 {
        into.put_u8((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    into.put_u8(length as u8);
    into.extend_from_slice(piece);
}

/// Assembles the pieces of consecutive blocks.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    begun: Option<(u8, Vec<u8>)>,
    unknown: u64,
}

impl Assembler {
    /// The number of skipped items, whose kinds are unknown.
    pub(super) const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Drops an unfinished body, whose blocks are missing. Returns whether there was one.
    pub(super) fn forget(&mut self) -> bool {
        self.begun.take().is_some()
    }

    /// Removes the next item from `items`. After an error the rest of `items` is readable or empty.
    pub(super) fn next(&mut self, items: &mut &[u8]) -> Option<Result<Item, Unreadable>> {
        self.next_of(items, Item::decode)
    }

    /// The next step of the wall clock in `items`. The other items are not decoded, and those before it are removed.
    pub(super) fn next_wall_step(&mut self, items: &mut &[u8]) -> Option<Result<WallStep, Unreadable>> {
        self.next_of(items, |kind, body| match kind {
            WALL_CLOCK => parsed(kind, body).map(Some),
            _ => Ok(None),
        })
    }

    /// The next item of which `decode` makes something.
    fn next_of<T>(
        &mut self,
        items: &mut &[u8],
        decode: impl Fn(u8, &[u8]) -> Result<Option<T>, Unreadable>,
    ) -> Option<Result<T, Unreadable>> {
        while items.has_remaining() {
            let Some((kind, piece)) = piece(items) else {
                *items = &[];
                self.begun = None;
                return Some(Err(Unreadable::Length));
            };
            let (kind, more) = (kind & !MORE, kind & MORE != 0);
            let decoded = match self.begun.take() {
                Some((begun, mut body)) if begun == kind => {
                    if body.len() + piece.len() > MAX_BODY_BYTES {
                        return Some(Err(Unreadable::TooLong));
                    }
                    body.extend_from_slice(piece);
                    if more {
                        self.begun = Some((kind, body));
                        continue;
                    }
                    decode(kind, &body)
                }
                _ if more => {
                    self.begun = Some((kind, piece.to_vec()));
                    continue;
                }
                _ => decode(kind, piece),
            };
            match decoded {
                Ok(None) => self.unknown += 1,
                Ok(Some(item)) => return Some(Ok(item)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

fn piece<'a>(items: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let kind = items.try_get_u8().ok()?;
    let mut length = 0_usize;
    for shift in [0, 7, 14, 21, 28] {
        let byte = items.try_get_u8().ok()?;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((kind, items.split_off(..length)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{
        cluster::{
            Event, Key, Kind, Origin,
            history::Line,
            model::{Change, Node},
            trim::Oddity,
        },
        node::{Gap, Observed, Reason, capture, snapshot::ConntrackUse},
    };

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_unix_ns(ns)
    }

    #[test]
    fn items_come_back_in_order_whole_or_in_pieces() {
        let end = End { ended: at(9), gaps: vec!["é".repeat(500)] };
        let lost = Lost { hook: Some(Hook::SockClosed), count: 3, from: at(1), to: at(2) };
        let items = [
            Item::Advance(at(5)),
            Item::Lost(lost),
            Item::End(Box::new(end.clone())),
            Item::Records(7, Some(at(3))),
        ];
        for size in [1, 7, 100, 100_000] {
            let mut bytes = Vec::new();
            put_piece(&mut bytes, 99, b"of a later version", false);
            for item in &items {
                let (kind, body) = item.encode().unwrap();
                let count = body.chunks(size).count();
                for (index, piece) in body.chunks(size).enumerate() {
                    put_piece(&mut bytes, kind, piece, index + 1 < count);
                }
            }
            let (mut rest, mut assembler) = (bytes.as_slice(), Assembler::default());
            let read: Vec<_> = std::iter::from_fn(|| assembler.next(&mut rest)).map(Result::unwrap).collect();
            let [Item::Advance(now), Item::Lost(found), Item::End(ended), Item::Records(7, Some(_))] =
                read.as_slice()
            else {
                panic!("{read:?}")
            };
            assert_eq!((*now, *found, &**ended), (at(5), lost, &end));
        }
    }

    #[test]
    fn an_unfinished_body_is_dropped() {
        let mut bytes = Vec::new();
        put_piece(&mut bytes, END, b"{\"ended\":", true);
        let (mut rest, mut assembler) = (bytes.as_slice(), Assembler::default());
        assert!(assembler.next(&mut rest).is_none());
        assert!(assembler.forget());
        assert!(!assembler.forget());
    }

    fn time() -> impl Strategy<Value = Timestamp> {
        any::<u64>().prop_map(at)
    }

    fn update() -> impl Strategy<Value = Update> {
        let event = prop_oneof![
            Just(Event::Synced),
            Just(Event::Heard),
            any::<String>().prop_map(Event::Lost),
            any::<String>().prop_map(Event::Denied),
            (any::<String>(), any::<String>())
                .prop_map(|(object, what)| Event::Odd(vec![Oddity { object, what }])),
            ("[a-z]{1,9}", "[a-z]{1,9}").prop_map(|(namespace, name)| {
                Event::Changed(Change::Delete(Kind::Pod, Key::new(&namespace, &name)))
            }),
        ];
        (prop::sample::select(Kind::ALL.to_vec()), time(), event).prop_map(|(kind, received, event)| Update {
            kind,
            received,
            event,
        })
    }

    fn reading() -> impl Strategy<Value = NodeReading> {
        let state = (
            prop::option::of(any::<String>()),
            prop::option::of((any::<u64>(), any::<u64>())),
            vec(any::<String>(), 0..3),
        );
        (time(), time(), state).prop_map(|(began, now, (version, conntrack, gaps))| {
            let gap = |text| Gap { kind: capture::Kind::ProxyMode, reason: Reason::Quoted { text } };
            let snapshot = Snapshot {
                version: version.map(String::into),
                conntrack_use: conntrack
                    .map(|(count, max)| Observed { time: began, value: ConntrackUse { count, max } }),
                gaps: gaps.into_iter().map(gap).collect(),
                ..Snapshot::default()
            };
            NodeReading { snapshot: snapshot.into(), began, now }
        })
    }

    fn object() -> impl Strategy<Value = SavedObject> {
        let versions = vec(
            (time(), prop::option::of(("[a-z0-9.]{0,9}", any::<Option<bool>>(), any::<std::net::IpAddr>()))),
            0..4,
        );
        (any::<String>(), prop::option::of(time()), versions).prop_map(|(name, created, versions)| {
            let key = Key::new("", &name);
            let node = |(uid, ready, address): (String, Option<bool>, std::net::IpAddr)| {
                let addresses = vec![address];
                let (uid, kubelet_version) = (uid.as_str().into(), uid.as_str().into());
                let (pod_cidrs, pressure) = (Vec::new(), Vec::new());
                let (key, kube_proxy_version, zone) = (key.clone(), "".into(), None);
                Node {
                    key,
                    uid,
                    addresses,
                    pod_cidrs,
                    ready,
                    pressure,
                    kubelet_version,
                    kube_proxy_version,
                    zone,
                    unschedulable: false,
                    unfit: None,
                }
            };
            let versions =
                versions.into_iter().map(|(from, version)| (from, version.map(|it| node(it).into())));
            SavedObject::Node(Line { key: key.clone(), created, versions: versions.collect() })
        })
    }

    fn any_item() -> impl Strategy<Value = Item> {
        let counts = || (any::<u64>(), time(), time());
        prop_oneof![
            (any::<u32>(), proptest::option::of(any::<u64>()))
                .prop_map(|(count, newest)| Item::Records(count, newest.map(Timestamp::from_unix_ns))),
            time().prop_map(Item::Advance),
            (counts(), any::<Option<u8>>()).prop_map(|((count, from, to), hook)| {
                Item::Lost(Lost { hook: hook.and_then(Hook::from_number), count, from, to })
            }),
            time().prop_map(Item::Prune),
            time().prop_map(Item::Finish),
            time().prop_map(Item::Reread),
            update().prop_map(Item::Update),
            reading().prop_map(|reading| Item::Node(Box::new(reading))),
            reading().prop_map(|reading| Item::NodeState(Box::new(reading))),
            object().prop_map(|object| Item::Object(Box::new(object))),
            (any::<u64>(), any::<bool>(), any::<String>()).prop_map(|(look_back, known, server)| {
                let history =
                    SavedFacts { look_back, known: [known; Kind::ALL.len()], forgotten: 1, refused: 2 };
                Item::Start(Box::new(Start { history, status: Status::new(Origin::ApiServer(server)) }))
            }),
            counts().prop_map(|(count, from, to)| Item::Dropped(Dropped {
                records: count,
                others: count,
                from,
                to,
                in_original: count % 2 == 1,
            })),
            (any::<String>(), any::<bool>(), time())
                .prop_map(|(hook, is_attached, time)| Item::Hook(HookChanged { hook, is_attached, time })),
            (any::<[Option<std::net::IpAddr>; 2]>(), any::<u32>(), counts()).prop_map(
                |([client, service], netns, (count, from, to))| {
                    let netns = crate::net::Netns(netns);
                    Item::Suppressed(Suppressed { client, service, netns, from, to, count })
                }
            ),
            (time(), any::<i64>()).prop_map(|(at, ahead_ns)| Item::WallClock(WallStep { at, ahead_ns })),
            Just(Item::Changes(Box::default())),
            (time(), vec(any::<String>(), 0..3))
                .prop_map(|(ended, gaps)| Item::End(Box::new(End { ended, gaps }))),
        ]
    }

    proptest! {
        #[test]
        fn items_read_back(items in vec((any_item(), 1..200_usize), 0..6)) {
            let mut bytes = Vec::new();
            for (item, size) in &items {
                let (kind, body) = item.encode().unwrap();
                let count = body.chunks(*size).count();
                for (index, piece) in body.chunks(*size).enumerate() {
                    put_piece(&mut bytes, kind, piece, index + 1 < count);
                }
            }
            let (mut rest, mut assembler) = (bytes.as_slice(), Assembler::default());
            let read: Vec<_> = std::iter::from_fn(|| assembler.next(&mut rest)).map(Result::unwrap).collect();
            // Not all parts of an item can be compared, but all of them can be printed.
            let encoded = |item: &Item| item.encode().unwrap();
            let written: Vec<_> = items.iter().map(|(item, _)| item).collect();
            prop_assert_eq!(
                read.iter().map(encoded).collect::<Vec<_>>(),
                written.iter().map(|item| encoded(item)).collect::<Vec<_>>()
            );
            prop_assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..300)) {
            let (mut rest, mut assembler) = (bytes.as_slice(), Assembler::default());
            while assembler.next(&mut rest).is_some() {}
            prop_assert!(rest.is_empty());
        }
    }
}
