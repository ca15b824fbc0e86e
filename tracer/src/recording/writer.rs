//! Writes a recording: a handle for the event loop, and a thread that packs, compresses and writes.
//!
//! Owns the file and the queue to it. The event loop never waits for the disk: messages that do not fit into the queue
//! are dropped and counted, and the count is written. A failure of the file ends the recording, not the trace.

mod addresses;
mod blocks;

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    header::{FORMAT, Header},
    item::{Dropped, End, HookChanged, Item, NodeReading, Start},
    records::Records,
};
use crate::{
    cluster::{Cluster, Update},
    error::Hint,
    flow::{Lost, Suppressed},
    kernel::decode::{Decoder, Mask},
    node::Snapshot,
    platform,
    session::{SavedChanges, WallStep},
    text::word,
    time::Timestamp,
};
pub use addresses::Addresses;
pub(super) use blocks::Blocks;

/// The most messages in the queue to the writer.
const QUEUE: usize = 8192;
/// The most bytes of records in the queue to the writer.
const QUEUE_BYTES: usize = 64 << 20;
/// The longest time from a block's beginning to its writing: the loss when viptrace is killed.
const FLUSH: Duration = Duration::from_secs(1);
/// How long the end of a trace waits for the disk, unless it has less time.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// Why a recording could not be started.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("{path} exists already")]
    Exists { path: PathBuf },
    #[error("cannot create the recording {path}: {error}")]
    Create { path: PathBuf, error: io::Error },
    #[error("cannot begin the recording {path}: {error}")]
    Begin { path: PathBuf, error: io::Error },
}

impl Hint for CreateError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists { .. } => Some("add --force to overwrite it, or take another name".to_owned()),
            Self::Create { .. } => Some("name a file in a folder that you may write to".to_owned()),
            Self::Begin { path, .. } => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = folder.map_or_else(|| ".".to_owned(), |folder| word(&folder.to_string_lossy()));
                Some(format!("`df -h {folder}` shows the room on its file system"))
            }
        }
    }
}

/// The file could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The contents of the file end here.
    pub covered: Timestamp,
    pub error: String,
}

/// The result of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The number of the kernel's records in it.
    pub records: u64,
    pub dropped: Dropped,
    pub failure: Option<Failure>,
}

/// Creates the file, readable only by its owner: it contains Pod names and who communicated with whom.
///
/// Overwrites an existing file only with `force`.
pub fn create(path: &Path, force: bool) -> Result<File, CreateError> {
    let mut options = OpenOptions::new();
    platform::private(&mut options).write(true);
    let opened = if force {
        options.create(true).truncate(true).open(path).and_then(|file| {
            if file.metadata()?.is_file() {
                platform::make_private(&file)?;
            }
            Ok(file)
        })
    } else {
        options.create_new(true).open(path)
    };
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CreateError::Exists { path: path.to_owned() },
        _ => CreateError::Create { path: path.to_owned(), error },
    })
}

/// A running recording, as the event loop sees it.
#[derive(Debug)]
pub struct Recorder {
    queue: Option<SyncSender<Message>>,
    done: Receiver<()>,
    shared: Arc<Shared>,
    /// Not sent to the writer yet.
    dropped: Dropped,
    dropped_in_all: Dropped,
    now: Timestamp,
    said: bool,
}

#[derive(Debug)]
enum Message {
    Records(Records),
    Item(Box<Item>),
    /// The cluster, object by object.
    Objects(Vec<crate::cluster::SavedObject>),
}

#[derive(Debug, Default)]
struct Shared {
    queued_bytes: AtomicUsize,
    outcome: Mutex<Finished>,
}

impl Recorder {
    /// Writes the header to a file of [`create`] and starts the writer.
    ///
    /// Recordings of one pipeline share their `addresses`.
    pub fn begin(
        path: &Path,
        file: File,
        header: &Header,
        addresses: Addresses,
    ) -> Result<Self, CreateError> {
        let failed = |error| CreateError::Begin { path: path.to_owned(), error };
        // That of a trace that is replayed and recorded again may be older.
        let header = &Header { format: FORMAT, ..header.clone() };
        let json = serde_json::to_vec(header).map_err(|error| failed(error.into()))?;
        let layout = Arc::new(header.layout());
        let mask = Mask::new(&layout);
        let decoder = Decoder::new(layout, header.clock_offset_ns);
        let blocks = Blocks::begin(file, json, header.started, mask, decoder, addresses).map_err(failed)?;
        let (queue, messages) = mpsc::sync_channel(QUEUE);
        let (ended, done) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let of_writer = Arc::clone(&shared);
        thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || {
                write(blocks, &messages, &of_writer);
                // A trace that gave up the recording does not wait for the result.
                let _ = ended.send(());
            })
            .map_err(failed)?;
        Ok(Self {
            queue: Some(queue),
            done,
            shared,
            dropped: Dropped::default(),
            dropped_in_all: Dropped::default(),
            now: header.started,
            said: false,
        })
    }

    /// The size of the queued records in bytes.
    pub fn backlog_bytes(&self) -> usize {
        self.shared.queued_bytes.load(Ordering::Relaxed)
    }

    /// The bytes of complete blocks that were passed to the file so far.
    pub fn written_bytes(&self) -> u64 {
        self.outcome().bytes
    }

    /// Records the metadata at the beginning. To be called once, before everything else.
    pub(super) fn start(&mut self, cluster: &Cluster, changes: SavedChanges, node: NodeReading) {
        let (history, objects) = cluster.history.save();
        self.send(Message::Objects(objects));
        let start = Start { history, status: cluster.status.clone() };
        self.send(Message::Item(Box::new(Item::Start(Box::new(start)))));
        // Before the node, whose reading is no difference from that in the changes.
        self.send(Message::Item(Box::new(Item::Changes(Box::new(changes)))));
        self.send(Message::Item(Box::new(Item::Node(Box::new(node)))));
    }

    /// Takes observed records and leaves `records` empty.
    pub fn records(&mut self, records: &mut Records) {
        if !records.is_empty() {
            self.send(Message::Records(std::mem::take(records)));
        }
    }

    pub fn lost(&mut self, lost: Lost) {
        if lost.count > 0 {
            self.item(Item::Lost(lost));
        }
    }

    pub(super) fn hook_changed(&mut self, change: HookChanged) {
        self.item(Item::Hook(change));
    }

    pub fn suppressed(&mut self, suppressed: Suppressed) {
        self.item(Item::Suppressed(suppressed));
    }

    pub fn wall_clock(&mut self, step: WallStep) {
        self.item(Item::WallClock(step));
    }

    pub fn update(&mut self, update: Update) {
        self.item(Item::Update(update));
    }

    pub fn node_read(&mut self, snapshot: Arc<Snapshot>, began: Timestamp, now: Timestamp) {
        self.item(Item::Node(Box::new(NodeReading { snapshot, began, now })));
    }

    pub fn node_state(&mut self, snapshot: Arc<Snapshot>, began: Timestamp, now: Timestamp) {
        self.item(Item::NodeState(Box::new(NodeReading { snapshot, began, now })));
    }

    pub fn advance(&mut self, now: Timestamp) {
        self.now = now;
        self.item(Item::Advance(now));
    }

    pub fn reread_at(&mut self, at: Timestamp) {
        self.item(Item::Reread(at));
    }

    pub fn prune(&mut self, now: Timestamp) {
        self.item(Item::Prune(now));
    }

    pub fn finish_flows(&mut self, now: Timestamp) {
        self.now = now;
        self.item(Item::Finish(now));
    }

    /// Returns once that the file could not be written, if that is so.
    pub fn failure(&mut self) -> Option<Failure> {
        if self.said {
            return None;
        }
        let failure = self.outcome().failure;
        self.said = failure.is_some();
        failure
    }

    /// Ends the recording and waits until it has been passed to the disk, for `limit` at most.
    pub fn finish(mut self, end: End, limit: Duration) -> Finished {
        let (now, begun) = (self.now, Instant::now());
        self.send_dropped();
        if let Some(queue) = self.queue.take() {
            // The writer empties the queue even if the file has failed: this blocks as long as the disk does.
            let mut message = Message::Item(Box::new(Item::End(Box::new(end))));
            while let Err(TrySendError::Full(again)) = queue.try_send(message) {
                if begun.elapsed() > limit {
                    break;
                }
                message = again;
                thread::yield_now();
            }
        }
        let rest = limit.saturating_sub(begun.elapsed());
        let in_time = self.done.recv_timeout(rest) != Err(RecvTimeoutError::Timeout);
        let mut finished = self.outcome();
        finished.dropped = self.dropped_in_all;
        if !in_time && finished.failure.is_none() {
            let error = format!("the file system did not answer within {:.1} s", limit.as_secs_f64());
            finished.failure = Some(Failure { covered: now, error });
        }
        finished
    }

    fn outcome(&self) -> Finished {
        self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn item(&mut self, item: Item) {
        self.send(Message::Item(Box::new(item)));
    }

    fn send(&mut self, message: Message) {
        let (records, bytes) = match &message {
            Message::Records(records) => (records.len(), records.byte_len()),
            Message::Item(_) | Message::Objects(_) => (0, 0),
        };
        self.send_dropped();
        let is_clock = matches!(&message, Message::Item(item) if matches!(**item, Item::Advance(_)));
        let full = self.dropped != Dropped::default()
            || self.shared.queued_bytes.load(Ordering::Relaxed) + bytes > QUEUE_BYTES;
        let taken = !full && self.queue.as_ref().is_some_and(|queue| queue.try_send(message).is_ok());
        if taken {
            self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        } else if !is_clock {
            // A later time replaces an earlier one.
            for dropped in [&mut self.dropped, &mut self.dropped_in_all] {
                if *dropped == Dropped::default() {
                    dropped.from = self.now;
                }
                dropped.records += records as u64;
                dropped.others += u64::from(records == 0);
                dropped.to = dropped.to.max(self.now);
            }
        }
    }

    /// Sends the count of dropped messages as soon as the queue has room.
    fn send_dropped(&mut self) {
        if self.dropped == Dropped::default() {
            return;
        }
        self.dropped.to = self.now;
        let message = Message::Item(Box::new(Item::Dropped(self.dropped)));
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(message).is_ok()) {
            self.dropped = Dropped::default();
        }
    }
}

impl Drop for Recorder {
    /// A trace that aborts keeps the recording so far.
    fn drop(&mut self) {
        if self.queue.take().is_some() {
            let _ = self.done.recv_timeout(CLOSE_LIMIT);
        }
    }
}

/// The writer's thread, which runs until the queue is closed.
fn write(mut blocks: Blocks, messages: &Receiver<Message>, shared: &Shared) {
    let mut due: Option<Instant> = None;
    loop {
        let message = match due {
            Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let ended = matches!(message, Err(RecvTimeoutError::Disconnected));
        match message {
            Ok(Message::Records(mut records)) => {
                blocks.records(&mut records);
                shared.queued_bytes.fetch_sub(records.byte_len(), Ordering::Relaxed);
            }
            Ok(Message::Item(item)) => blocks.item(&item),
            Ok(Message::Objects(objects)) => {
                for object in objects {
                    blocks.item(&Item::Object(Box::new(object)));
                }
            }
            Err(_) => blocks.flush(),
        }
        if due.is_some_and(|due| due <= Instant::now()) {
            blocks.flush();
        }
        due = if blocks.is_empty() { None } else { due.or_else(|| Some(Instant::now() + FLUSH)) };
        let outcome = if ended { blocks.close() } else { blocks.outcome() };
        *shared.outcome.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
        if ended {
            return;
        }
    }
}
