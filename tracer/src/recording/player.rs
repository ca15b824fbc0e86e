//! Replays a recording: feeds a pipeline the inputs of the live trace, in the same order.
//!
//! Owns the mapping of items to a [`Pipeline`] and the handling of missing parts. Prints nothing.

use std::{
    io::{self, Read, Seek},
    sync::Arc,
    time::Duration,
};

use super::{
    header::Header,
    item::{Assembler, Dropped, End, Item, Unreadable},
    reader::{Block, Damage, OpenError, Reader, Reading},
    recorded::Recorded,
    records::Records,
    wanted::{Part, Wanted},
};
use crate::{
    cluster::{Cluster, History, LOOK_BACK, Origin, Status},
    flow::Lost,
    kernel::decode::Decoder,
    session::{Detail, Judgements, Pipeline},
    sighting::Hook,
    time::Timestamp,
};

/// Between two segments of an agent that begins one when it closes the other.
const SEAM: Duration = Duration::from_secs(1);

/// How far the times in a block may lie before those at which its records were observed.
const BEHIND: Duration = Duration::from_mins(1);

/// One step of a replay.
#[derive(Debug)]
pub enum Step {
    /// Time advanced to `now`.
    Judged { judgements: Judgements, now: Timestamp },
    /// The end of the trace. A recording without it was cut off.
    Ended(End),
}

/// How many flows are judged before the next item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// As many as the live trace judged in one step.
    AsRecorded,
    /// All that were handed out.
    Whole,
}

/// The parts that could not be replayed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The number of unreadable items, and the reason for the first.
    pub items: u64,
    pub first_unreadable: Option<String>,
    /// Records that could not be decoded; counted as lost.
    pub undecodable: u64,
    /// The recorder could not keep up.
    pub dropped: Dropped,
    /// How often something was missing in the recording of which this one is a copy.
    pub in_original: u64,
    /// The cluster at the beginning of the recording.
    pub beginning: bool,
}

/// A recording that is being replayed.
#[derive(Debug)]
pub struct Player<R> {
    reader: Reader<R>,
    header: Header,
    decoder: Decoder,
    pipeline: Recorded,
    records: Records,
    started: bool,
    /// The flows were handed out: from here on a trace judges until nothing is left.
    is_finished: bool,
    block: Block,
    /// How far the block's items and records have been read.
    at: usize,
    next_record: usize,
    assembler: Assembler,
    /// The latest time so far.
    now: Timestamp,
    /// The time of the newest sighting.
    newest: Timestamp,
    /// The time since which something is missing that no recorded loss covers.
    missing_since: Option<Timestamp>,
    undecodable: u64,
    missing: Missing,
    /// Events before this time are not observed.
    skip_until: Option<Timestamp>,
    /// The block is read without its records.
    skips_block: bool,
    /// When the current file begins.
    file: Timestamp,
    /// The part of the recording that is observed and read.
    part: Part,
    pace: Pace,
    /// The files before this one.
    read_before: Reading,
}

impl<R: Read + Seek> Player<R> {
    /// Reads the header.
    pub fn open(file: R, detail: Detail) -> Result<Self, OpenError> {
        let (reader, header) = Reader::open(file)?;
        let cluster = Cluster { history: History::new(LOOK_BACK), status: Status::new(Origin::None) };
        Ok(Self {
            reader,
            decoder: Decoder::new(Arc::new(header.layout()), header.clock_offset_ns),
            pipeline: Recorded::new(Pipeline::new(header.settings(detail), cluster)),
            records: Records::default(),
            started: false,
            is_finished: false,
            block: Block::default(),
            at: 0,
            next_record: 0,
            assembler: Assembler::default(),
            now: header.started,
            newest: header.started,
            file: header.started,
            header,
            missing_since: None,
            undecodable: 0,
            missing: Missing::default(),
            skip_until: None,
            skips_block: false,
            part: Part::Whole,
            pace: Pace::AsRecorded,
            read_before: Reading::default(),
        })
    }

    /// Before the first step: judges every flow when it is handed out, however many there are. The live trace judged at most
    /// some hundreds in one turn; a replay that shows more of them must not fall behind for it.
    pub(crate) fn judge_all(&mut self) {
        self.pace = Pace::Whole;
    }

    /// Before the first step, and after [`Self::skip_until`]: observes and reads only this part.
    pub fn narrow(&mut self, part: Part) -> io::Result<()> {
        self.part = part;
        self.read_by_index()
    }

    /// The addresses that [`Self::narrow`] was given, with those learned since.
    pub fn wanted(&self) -> Option<&Wanted> {
        if let Part::Flows(wanted) = &self.part { Some(wanted) } else { None }
    }

    /// How much of the files was read so far.
    pub fn reading(&self) -> Reading {
        let mut reading = self.read_before;
        reading += self.reader.reading();
        reading
    }

    fn read_by_index(&mut self) -> io::Result<()> {
        let Self { reader, part, skip_until, file, .. } = self;
        let wanted = match part {
            Part::Whole => return Ok(()),
            Part::Time => None,
            Part::Flows(wanted) => Some(&*wanted),
        };
        // Time advances behind the records: some of the wanted times may be in a block that ends before them.
        let from = skip_until.map_or(Timestamp::MIN, |until| until.saturating_sub(BEHIND));
        reader.narrow(|addressed, to| to >= from && wanted.is_none_or(|wanted| wanted.is_in(addressed)))?;
        if let Some(wanted) = wanted {
            reader.leave_out(|sequence| wanted.is_barren(*file, sequence));
        }
        Ok(())
    }

    /// Before the first step: observes no events before `time`. The cluster and the node are followed all the same. A flow
    /// that began before it is partial.
    pub(crate) fn skip_until(&mut self, time: Timestamp) {
        self.skip_until = Some(time);
    }

    /// Goes on with the next file of the same trace, as the agent closes one segment and begins another. Flows that are open
    /// stay open; [`Self::damage`] begins again. Returns the time that neither file covers, if there is some; it counts as a loss.
    pub(super) fn go_on(&mut self, file: R) -> Result<Option<(Timestamp, Timestamp)>, OpenError> {
        let (reader, header) = Reader::open(file)?;
        self.read_before += self.reader.reading();
        self.reader = reader;
        self.file = header.started;
        self.read_by_index()?;
        (self.block, self.at, self.next_record) = (Block::default(), 0, 0);
        self.assembler.forget();
        let from = self.now;
        if header.started <= from.saturating_add(SEAM) {
            return Ok(None);
        }
        // Objects may have been deleted meanwhile.
        self.pipeline.cluster_before().history = History::new(LOOK_BACK);
        self.started = false;
        self.missing_since.get_or_insert(from);
        self.now = header.started;
        Ok(Some((from, header.started)))
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn pipeline(&self) -> &Pipeline {
        self.pipeline.pipeline()
    }

    /// The pipeline together with its own recording, which [`Recorded::begin`] starts.
    pub(crate) fn recorded(&mut self) -> &mut Recorded {
        &mut self.pipeline
    }

    /// Whether the metadata at the beginning has been read.
    pub(crate) fn has_started(&self) -> bool {
        self.started
    }

    /// The latest time in the recording so far.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn missing(&self) -> &Missing {
        &self.missing
    }

    /// The first damaged parts of the file, and the number of all.
    pub fn damage(&self) -> (&[Damage], u64) {
        self.reader.damage()
    }

    /// Plays until there are judgements; `None` at the end of the file.
    pub fn step(&mut self) -> io::Result<Option<Step>> {
        if (self.is_finished || self.pace == Pace::Whole) && self.pipeline.pipeline().has_backlog() {
            let now = self.now;
            return Ok(Some(Step::Judged { judgements: self.pipeline.judge(now), now }));
        }
        loop {
            let mut items = self.block.items.get(self.at..).unwrap_or_default();
            let item = self.assembler.next(&mut items);
            self.at = self.block.items.len() - items.len();
            match item {
                Some(Ok(item)) => {
                    if let Some(step) = self.play(item) {
                        return Ok(Some(step));
                    }
                }
                Some(Err(error)) => self.unreadable(&error),
                None => {
                    self.note_barren();
                    // In a file that begins later, nothing is left out.
                    self.skip_until = self.skip_until.filter(|until| self.now < *until);
                    self.skips_block = self.skip_until.is_some();
                    let found = if self.skips_block {
                        self.reader.next_items(&mut self.block)?
                    } else {
                        self.reader.next_block(&mut self.block)?
                    };
                    if !found {
                        return Ok(None);
                    }
                    (self.at, self.next_record) = (0, 0);
                    if self.block.after_damage {
                        self.assembler.forget();
                        self.missing_since.get_or_insert(self.now);
                    }
                }
            }
        }
    }

    /// Judges the open flows of a recording that does not end them: it was cut off, or is a closed segment of an agent. In
    /// steps of bounded size; `None` when all are judged.
    pub fn cut_off(&mut self) -> Option<Judgements> {
        let now = self.now;
        if !self.is_finished {
            self.report_missing(now);
            self.is_finished = true;
            return Some(self.pipeline.finish(now));
        }
        if self.pipeline.pipeline().has_backlog() {
            return Some(self.pipeline.judge(now));
        }
        let node = self.pipeline.pipeline().node().clone();
        // A flow whose records are the last of the file began after the last time in it.
        let began = now.max(self.newest);
        self.pipeline.pipeline().wants_node().then(|| self.pipeline.node_read(node, began, now))
    }

    fn unreadable(&mut self, error: &Unreadable) {
        self.missing.items += 1;
        self.missing.first_unreadable.get_or_insert_with(|| error.to_string());
        self.missing_since.get_or_insert(self.now);
    }

    /// Before the next block: notes that this one has none of the wanted flows, if that was found.
    fn note_barren(&mut self) {
        let is_needed = std::mem::take(&mut self.block.is_needed);
        if let (Part::Flows(wanted), Some(sequence), false) = (&mut self.part, self.block.planned, is_needed)
            && self.next_record == self.block.records.len()
        {
            wanted.add_barren(self.file, sequence);
        }
    }

    fn play(&mut self, item: Item) -> Option<Step> {
        // A loss concerns the flows whose records are around it.
        self.block.is_needed |= matches!(item, Item::Lost(_) | Item::Suppressed(_) | Item::Dropped(_));
        let judged = |judgements, now| Some(Step::Judged { judgements, now });
        match item {
            Item::Records(count, _) if self.skips_block => {
                self.block.is_needed = true;
                self.next_record = self.next_record.saturating_add(count as usize);
            }
            Item::Lost(_) | Item::Suppressed(_) | Item::Reread(_) if self.skips_block => {}
            Item::Advance(now) if self.skips_block => self.skip_to(now),
            Item::Records(count, newest) => self.records(count, newest),
            Item::Lost(lost) => self.pipeline.lost(lost),
            Item::WallClock(step) => self.pipeline.set_wall_clock(step),
            Item::Changes(changes) => self.pipeline.restore_changes(*changes),
            Item::Suppressed(suppressed) => self.pipeline.suppressed(suppressed),
            Item::Reread(at) => self.pipeline.reread_at(at),
            Item::Advance(now) => {
                self.to(now);
                return judged(self.pipeline.advance(now), now);
            }
            Item::Finish(now) => {
                self.to(now);
                self.is_finished = true;
                return judged(self.pipeline.finish(now), now);
            }
            Item::Node(reading) => {
                let judgements = self.pipeline.node_read(reading.snapshot, reading.began, reading.now);
                return judged(judgements, reading.now);
            }
            Item::NodeState(reading) => {
                self.pipeline.node_state(reading.snapshot, reading.began, reading.now);
            }
            Item::Update(update) => self.pipeline.absorb(update),
            Item::Hook(change) => {
                // A hook of a later version has no record here.
                if let Some(hook) = Hook::from_symbol(&change.hook) {
                    self.pipeline.hook_changed(hook, change.is_attached, change.time);
                }
            }
            Item::Prune(now) => self.pipeline.prune(now),
            Item::Object(object) => self.pipeline.cluster_before().history.restore_object(*object),
            Item::Start(start) => {
                let cluster = self.pipeline.cluster_before();
                cluster.history.restore_facts(start.history);
                cluster.status = start.status;
                self.started = true;
            }
            Item::Dropped(Dropped { records, others, from, to, in_original: true }) => {
                self.missing.in_original += 1;
                self.pipeline.lost(Lost::of_unknown_hook(records, from, to));
                if others > 0 {
                    self.pipeline.lost_uncounted(from, to);
                }
            }
            Item::Dropped(dropped) => {
                let all = &mut self.missing.dropped;
                if *all == Dropped::default() {
                    all.from = dropped.from;
                }
                all.records = all.records.saturating_add(dropped.records);
                all.others = all.others.saturating_add(dropped.others);
                all.to = dropped.to;
                let Dropped { records, from, to, .. } = dropped;
                self.pipeline.lost(Lost::of_unknown_hook(records.max(1), from, to));
            }
            Item::End(end) => return Some(Step::Ended(*end)),
        }
        None
    }

    /// Time advanced while events are skipped. From the wanted time on they are observed.
    fn skip_to(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        self.newest = self.newest.max(now);
        self.missing_since = None;
        if self.skip_until.is_none_or(|until| now >= until) {
            (self.skip_until, self.skips_block) = (None, false);
            self.reader.add_records(&mut self.block);
        }
    }

    fn records(&mut self, count: u32, newest: Option<Timestamp>) {
        if !self.started {
            // The block with the cluster is missing: judges with the objects that are there.
            self.started = true;
            self.missing.beginning = true;
            let history = &mut self.pipeline.cluster_before().history;
            let (facts, _) = history.save();
            history.restore_facts(facts);
        }
        if let Some(latest) = self.block.unread {
            self.pipeline.pass(newest.unwrap_or(latest));
            return;
        }
        let end = self.next_record.saturating_add(count as usize).min(self.block.records.len());
        if matches!(self.part, Part::Flows(_)) {
            self.wanted_records(end);
            return;
        }
        let is_recording = self.pipeline.is_recording();
        for record in self.block.records.range(self.next_record..end) {
            let Ok(time) = self.pipeline.observe_with(|place| self.decoder.decode_into(record, place)) else {
                self.undecodable += 1;
                continue;
            };
            if is_recording {
                self.records.push(record);
            }
            self.newest = self.newest.max(time);
        }
        self.pipeline.record(&mut self.records);
        self.next_record = end;
    }

    /// Observes the wanted records up to this one.
    fn wanted_records(&mut self, end: usize) {
        let Self { block, decoder, pipeline, part: Part::Flows(wanted), .. } = self else { return };
        let Block { records, is_needed, .. } = block;
        for record in records.range(self.next_record..end) {
            if let Ok(Some((time, tuples))) = decoder.addresses(record)
                && !wanted.may_take(&tuples)
            {
                self.newest = self.newest.max(time);
                pipeline.pass(time);
                continue;
            }
            let Ok(sighting) = decoder.decode(record) else {
                self.undecodable += 1;
                *is_needed = true;
                continue;
            };
            let time = sighting.time;
            self.newest = self.newest.max(time);
            if wanted.takes(&sighting) {
                *is_needed = true;
                pipeline.observe_one(sighting);
            } else {
                pipeline.pass(time);
            }
        }
        self.next_record = end;
    }

    /// Advances the time and reports the losses so far, as the live trace does.
    fn to(&mut self, now: Timestamp) {
        self.report_missing(now);
        self.now = self.now.max(now);
    }

    fn report_missing(&mut self, now: Timestamp) {
        let undecodable = std::mem::take(&mut self.undecodable);
        self.missing.undecodable += undecodable;
        self.pipeline.lost(Lost::of_unknown_hook(undecodable, self.now, now));
        if let Some(since) = self.missing_since.take() {
            self.pipeline.lost_uncounted(since, now);
        }
    }
}
