//! What a recording holds, in the order in which the live trace had it: everything that a [`Pipeline`] is told.
//!
//! Owns the items and their bytes. An item is one byte for its kind, its length, and its body; a body that has no room
//! in one block is cut into pieces. Items of a kind that is not known here are passed over.
//!
//! [`Pipeline`]: crate::session::Pipeline

use std::sync::Arc;

use bytes::{Buf, BufMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cluster::{SavedFacts, SavedObject, Status, Update},
    node::Snapshot,
    time::Timestamp,
};

/// The longest body, put together from its pieces, in bytes: more than the rules of any cluster need.
pub(crate) const MAX_BODY_BYTES: usize = 64 << 20;
/// Set in the kind of every piece but the last.
const MORE: u8 = 0x80;

/// One thing that the live trace told its pipeline.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// As many records, the next ones of the block.
    Records(u32),
    /// Time passed.
    Advance(Timestamp),
    /// As many events were lost between the two times.
    Lost(Lost),
    /// What was older than the look-back was forgotten.
    Prune(Timestamp),
    /// Everything was handed out as it stood.
    Finish(Timestamp),
    /// Kubernetes said something.
    Update(Update),
    /// The node was read.
    Node(Box<NodeReading>),
    /// An object with its history, as it was when the recording began.
    Object(Box<SavedObject>),
    /// What else was known when the recording began; comes behind the objects.
    Start(Box<Start>),
    /// The recorder could not keep up.
    Dropped(Dropped),
    /// The trace's end, and the recording's.
    End(Box<End>),
}

/// Events that were lost on their way out of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) count: u64,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// The node, when its reading began, and when the pipeline received it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeReading {
    #[serde(rename = "facts")]
    pub snapshot: Arc<Snapshot>,
    pub asked: Timestamp,
    pub now: Timestamp,
}

/// The cluster beside its objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) history: SavedFacts,
    pub(super) status: Status,
}

/// What is missing of the recording although the live trace had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dropped {
    /// Records of the kernel.
    pub records: u64,
    /// Other items: metadata, readings of the node.
    pub others: u64,
    /// Between these times.
    pub from: Timestamp,
    pub to: Timestamp,
}

/// What the live trace's summary was made with, besides what a replay finds out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    pub ended: Timestamp,
    /// What could not be seen.
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

impl Item {
    /// Kind and body. Records are counted by who packs them.
    ///
    /// # Errors
    ///
    /// Where a body cannot be written as JSON, or is longer than [`MAX_BODY_BYTES`].
    pub(super) fn encode(&self) -> Result<(u8, Vec<u8>), Unwritable> {
        let times = |times: &[u64]| times.iter().flat_map(|time| time.to_le_bytes()).collect();
        let (kind, body): (u8, Vec<u8>) = match self {
            Self::Records(count) => (RECORDS, count.to_le_bytes().to_vec()),
            Self::Advance(now) => (ADVANCE, times(&[now.as_unix_ns()])),
            Self::Lost(Lost { count, from, to }) => {
                (LOST, times(&[*count, from.as_unix_ns(), to.as_unix_ns()]))
            }
            Self::Prune(now) => (PRUNE, times(&[now.as_unix_ns()])),
            Self::Finish(now) => (FINISH, times(&[now.as_unix_ns()])),
            Self::Update(update) => (UPDATE, json(update)?),
            Self::Node(reading) => (NODE, json(reading)?),
            Self::Object(object) => (OBJECT, json(object)?),
            Self::Start(start) => (START, json(start)?),
            Self::Dropped(dropped) => (DROPPED, json(dropped)?),
            Self::End(end) => (END, json(end)?),
        };
        if body.len() > MAX_BODY_BYTES {
            return Err(Unwritable::TooLong(body.len()));
        }
        Ok((kind, body))
    }

    /// `Ok(None)` for a kind that a later version may have.
    fn decode(kind: u8, mut body: &[u8]) -> Result<Option<Self>, Unreadable> {
        const SHORT: Unreadable = Unreadable::Length;
        let mut number = || body.try_get_u64_le().map_err(|_| SHORT);
        Ok(Some(match kind {
            RECORDS => Self::Records(body.try_get_u32_le().map_err(|_| SHORT)?),
            ADVANCE => Self::Advance(Timestamp::from_unix_ns(number()?)),
            LOST => Self::Lost(Lost {
                count: number()?,
                from: Timestamp::from_unix_ns(number()?),
                to: Timestamp::from_unix_ns(number()?),
            }),
            PRUNE => Self::Prune(Timestamp::from_unix_ns(number()?)),
            FINISH => Self::Finish(Timestamp::from_unix_ns(number()?)),
            UPDATE => Self::Update(parsed(kind, body)?),
            NODE => Self::Node(parsed(kind, body)?),
            OBJECT => Self::Object(parsed(kind, body)?),
            START => Self::Start(parsed(kind, body)?),
            DROPPED => Self::Dropped(parsed(kind, body)?),
            END => Self::End(parsed(kind, body)?),
            _ => return Ok(None),
        }))
    }
}

/// Why something cannot be stored.
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
    #[error("an item of kind {kind} is not what it should be: {error}")]
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

/// Puts the pieces of one block after the other together again.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    begun: Option<(u8, Vec<u8>)>,
}

impl Assembler {
    /// What was begun is lost with the blocks that are missing; answers whether there was something.
    pub(super) fn forget(&mut self) -> bool {
        self.begun.take().is_some()
    }

    /// The next item of `items`, which loses its bytes. An error leaves the rest of `items` readable or empty.
    pub(super) fn next(&mut self, items: &mut &[u8]) -> Option<Result<Item, Unreadable>> {
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
                    Item::decode(kind, &body)
                }
                _ if more => {
                    self.begun = Some((kind, piece.to_vec()));
                    continue;
                }
                _ => Item::decode(kind, piece),
            };
            match decoded {
                Ok(None) => {}
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
        let lost = Lost { count: 3, from: at(1), to: at(2) };
        let items =
            [Item::Advance(at(5)), Item::Lost(lost), Item::End(Box::new(end.clone())), Item::Records(7)];
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
            let [Item::Advance(now), Item::Lost(found), Item::End(ended), Item::Records(7)] = read.as_slice()
            else {
                panic!("{read:?}")
            };
            assert_eq!((*now, *found, &**ended), (at(5), lost, &end));
        }
    }

    #[test]
    fn what_is_begun_and_never_ended_is_forgotten() {
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
        (time(), time(), state).prop_map(|(asked, now, (version, conntrack, gaps))| {
            let gap = |text| Gap { kind: capture::Kind::ProxyMode, reason: Reason::Quoted { text } };
            let snapshot = Snapshot {
                version,
                conntrack_use: conntrack
                    .map(|(count, max)| Observed { time: asked, value: ConntrackUse { count, max } }),
                gaps: gaps.into_iter().map(gap).collect(),
                ..Snapshot::default()
            };
            NodeReading { snapshot: snapshot.into(), asked, now }
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
            any::<u32>().prop_map(Item::Records),
            time().prop_map(Item::Advance),
            counts().prop_map(|(count, from, to)| Item::Lost(Lost { count, from, to })),
            time().prop_map(Item::Prune),
            time().prop_map(Item::Finish),
            update().prop_map(Item::Update),
            reading().prop_map(|reading| Item::Node(Box::new(reading))),
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
                to
            })),
            (time(), vec(any::<String>(), 0..3))
                .prop_map(|(ended, gaps)| Item::End(Box::new(End { ended, gaps }))),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(items in vec((any_item(), 1..200_usize), 0..6)) {
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
            // Not all that an item holds can be compared; all of it can be written.
            let told = |item: &Item| item.encode().unwrap();
            prop_assert_eq!(read.iter().map(told).collect::<Vec<_>>(), items.iter().map(|(item, _)| told(item)).collect::<Vec<_>>());
            prop_assert_eq!(format!("{read:?}"), format!("{:?}", items.iter().map(|(item, _)| item).collect::<Vec<_>>()));
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..300)) {
            let (mut rest, mut assembler) = (bytes.as_slice(), Assembler::default());
            while assembler.next(&mut rest).is_some() {}
            prop_assert!(rest.is_empty());
        }
    }
}
