//! A pipeline together with a recording of what it receives, in a live trace and in a replay that is recorded again.
//!
//! Owns that every input reaches both or neither. Without a recorder it is only the pipeline.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{End, Failure, Finished, NodeReading, Recorder, Records, item::HookChanged};
use crate::{
    cluster::{Cluster, Update},
    diagnosis::OtherFlows,
    flow::{Lost, Suppressed},
    node::Snapshot,
    session::{Judgements, Pipeline, SavedChanges, WallStep},
    sighting::{Hook, Sighting},
    time::Timestamp,
};

/// A pipeline with an optional recording.
#[derive(Debug)]
pub struct Recorded {
    pipeline: Pipeline,
    recorder: Option<Recorder>,
    /// When the node was last read, and when the pipeline received the result.
    node_read: (Timestamp, Timestamp),
}

impl Recorded {
    pub fn new(pipeline: Pipeline) -> Self {
        Self { pipeline, recorder: None, node_read: (Timestamp::MIN, Timestamp::MIN) }
    }

    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The cluster for the first lists of metadata, which come before the recording begins: it begins with their
    /// contents.
    pub fn cluster_before(&mut self) -> &mut Cluster {
        self.pipeline.cluster_mut()
    }

    /// As [`Pipeline::note_crossings`].
    pub(crate) fn note_crossings(&mut self) {
        self.pipeline.note_crossings();
    }

    /// As [`Pipeline::note_other_flows`].
    pub(crate) fn note_other_flows(&mut self) {
        self.pipeline.note_other_flows();
    }

    /// As [`Pipeline::take_other_flows`].
    pub(crate) fn take_other_flows(&mut self) -> BTreeSet<OtherFlows> {
        self.pipeline.take_other_flows()
    }

    /// As [`Pipeline::pass`]. Only without a recorder.
    pub(super) fn pass(&mut self, time: Timestamp) {
        self.pipeline.pass(time);
    }

    /// As [`Pipeline::each_since`].
    pub(crate) fn each_since(&mut self, time: Timestamp) {
        self.pipeline.each_since(time);
    }

    /// As [`Pipeline::stay_on_trace_clock`].
    pub(crate) fn stay_on_trace_clock(&mut self) {
        self.pipeline.stay_on_trace_clock();
    }

    /// As [`Pipeline::set_missing_hooks`]. Only before the recording begins, because the header contains the hooks.
    pub fn set_missing_hooks(&mut self, missing: Vec<Hook>) {
        self.pipeline.set_missing_hooks(missing);
    }

    /// Records everything from here on. The recording begins with the cluster's history and the last reading of the node;
    /// it lacks what the pipeline observed before, so that flows open at this time are partial in it.
    pub fn begin(&mut self, mut recorder: Recorder) {
        let (began, now) = self.node_read;
        let reading = NodeReading { snapshot: Arc::clone(self.pipeline.node()), began, now };
        recorder.start(self.pipeline.cluster(), self.pipeline.save_changes(), reading);
        // The wall clock may have been stepped before this recording began.
        if let Some(ahead_ns) = self.pipeline.wall_ahead_ns() {
            recorder.wall_clock(WallStep { at: now, ahead_ns });
        }
        self.recorder = Some(recorder);
    }

    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Takes sightings and their records. `records` is empty afterwards.
    pub fn observe(&mut self, sightings: impl IntoIterator<Item = Sighting>, records: &mut Records) {
        self.pipeline.observe(sightings);
        self.record(records);
    }

    /// As [`Self::observe`] for the sighting that `fill` writes, before all records are complete: [`Self::record`] follows. Returns
    /// its time.
    pub(super) fn observe_with<E>(
        &mut self,
        fill: impl FnOnce(&mut Sighting) -> Result<(), E>,
    ) -> Result<Timestamp, E> {
        self.pipeline.observe_with(fill)
    }

    /// As [`Self::observe_with`] for one that exists.
    pub(super) fn observe_one(&mut self, sighting: Sighting) {
        self.pipeline.observe([sighting]);
    }

    /// Takes the records of the sightings of [`Self::observe_with`]. `records` is empty afterwards.
    pub(super) fn record(&mut self, records: &mut Records) {
        if let Some(recorder) = &mut self.recorder {
            recorder.records(records);
        }
    }

    /// As [`Pipeline::last_rereads`].
    pub fn last_rereads(&mut self) -> Vec<u64> {
        self.pipeline.last_rereads()
    }

    /// As [`Pipeline::lost`].
    pub fn lost(&mut self, lost: Lost) {
        self.pipeline.lost(lost);
        if let Some(recorder) = &mut self.recorder {
            recorder.lost(lost);
        }
    }

    /// As [`Pipeline::lost_uncounted`].
    pub(crate) fn lost_uncounted(&mut self, from: Timestamp, to: Timestamp) {
        self.pipeline.lost_uncounted(from, to);
        if let Some(recorder) = &mut self.recorder {
            recorder.lost(Lost::of_unknown_hook(1, from, to));
        }
    }

    /// As [`Pipeline::hook_changed`].
    pub fn hook_changed(&mut self, hook: Hook, is_attached: bool, time: Timestamp) {
        if let Some(recorder) = &mut self.recorder {
            recorder.hook_changed(HookChanged { hook: hook.symbol().to_owned(), is_attached, time });
        }
        self.pipeline.hook_changed(hook, is_attached, time);
    }

    /// As [`Pipeline::suppressed`].
    pub fn suppressed(&mut self, suppressed: Suppressed) {
        if let Some(recorder) = &mut self.recorder {
            recorder.suppressed(suppressed);
        }
        self.pipeline.suppressed(suppressed);
    }

    /// Compares the wall clock, which is this far ahead of the clock of the trace, with the last comparison.
    pub fn measure_wall_clock(&mut self, at: Timestamp, ahead_ns: i64) {
        if self.pipeline.is_wall_step(ahead_ns) {
            self.set_wall_clock(WallStep { at, ahead_ns });
        }
    }

    /// As [`Pipeline::set_wall_clock`].
    pub fn set_wall_clock(&mut self, step: WallStep) {
        if let Some(recorder) = &mut self.recorder {
            recorder.wall_clock(step);
        }
        self.pipeline.set_wall_clock(step);
    }

    /// As [`Pipeline::restore_changes`]. Only before an own recording begins, because it begins with the changes so far.
    pub(super) fn restore_changes(&mut self, changes: SavedChanges) {
        self.pipeline.restore_changes(changes);
    }

    pub fn absorb(&mut self, update: Update) {
        if let Some(recorder) = &mut self.recorder {
            recorder.update(update.clone());
        }
        self.pipeline.absorb(update);
    }

    pub fn prune(&mut self, now: Timestamp) {
        self.pipeline.prune(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.prune(now);
        }
    }

    pub fn advance(&mut self, now: Timestamp) -> Judgements {
        let _not_read_again = self.advance_clock(now);
        self.judge(now)
    }

    /// As [`Pipeline::advance_clock`]. The entries that are read arrive as records.
    pub fn advance_clock(&mut self, now: Timestamp) -> Vec<u64> {
        if let Some(recorder) = &mut self.recorder {
            recorder.advance(now);
        }
        self.pipeline.advance_clock(now)
    }

    /// As [`Pipeline::reread_at`].
    pub fn reread_at(&mut self, at: Timestamp) {
        if let Some(recorder) = &mut self.recorder {
            recorder.reread_at(at);
        }
        self.pipeline.reread_at(at);
    }

    /// As [`Pipeline::judge`].
    pub fn judge(&mut self, now: Timestamp) -> Judgements {
        self.pipeline.judge(now)
    }

    /// As [`Pipeline::node_state`]. It was received at `now`.
    pub fn node_state(&mut self, snapshot: Arc<Snapshot>, began: Timestamp, now: Timestamp) {
        self.pipeline.node_state(&snapshot, began);
        if let Some(recorder) = &mut self.recorder {
            recorder.node_state(snapshot, began, now);
        }
    }

    pub fn node_read(&mut self, snapshot: Arc<Snapshot>, began: Timestamp, now: Timestamp) -> Judgements {
        self.node_read = (began, now);
        if let Some(recorder) = &mut self.recorder {
            recorder.node_read(Arc::clone(&snapshot), began, now);
        }
        self.pipeline.node_read(snapshot, began, now)
    }

    pub fn finish(&mut self, now: Timestamp) -> Judgements {
        if let Some(recorder) = &mut self.recorder {
            recorder.finish_flows(now);
        }
        self.pipeline.finish(now)
    }

    /// Returns once that the recording cannot continue, if that is so.
    pub fn failure(&mut self) -> Option<Failure> {
        self.recorder.as_mut()?.failure()
    }

    /// Takes the recorder out: nothing is recorded any more. The caller ends the file.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    /// Ends the recording, if there is one, as [`Recorder::finish`] does.
    pub fn end(&mut self, end: End, limit: Duration) -> Option<Finished> {
        Some(self.recorder.take()?.finish(end, limit))
    }
}
