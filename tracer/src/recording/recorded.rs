//! The pipeline of a live trace, and beside it the recording that is told the same.
//!
//! Owns that nothing reaches the one and not the other. Without a recorder it is the pipeline alone.

use std::sync::Arc;

use super::{End, Failure, Finished, NodeReading, Recorder, Records};
use crate::{
    cluster::{Cluster, Update},
    node::Snapshot,
    session::{Judgements, Pipeline},
    sighting::{Hook, Sighting},
    time::Timestamp,
};

/// A pipeline that may be recorded.
#[derive(Debug)]
pub struct Recorded {
    pipeline: Pipeline,
    recorder: Option<Recorder>,
    /// When the node was last read, and when that was told.
    node_read: (Timestamp, Timestamp),
}

impl Recorded {
    pub fn new(pipeline: Pipeline) -> Self {
        Self { pipeline, recorder: None, node_read: (Timestamp::MIN, Timestamp::MIN) }
    }

    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// For the first lists of the metadata, before the recording begins: it begins with what is known then.
    pub fn cluster_before(&mut self) -> &mut Cluster {
        self.pipeline.cluster_mut()
    }

    /// As [`Pipeline::set_missing_hooks`], before the recording begins: the hooks are part of its header.
    pub fn set_missing_hooks(&mut self, missing: Vec<Hook>) {
        self.pipeline.set_missing_hooks(missing);
    }

    /// From here on everything is recorded. Nothing may have been observed yet.
    pub fn begin(&mut self, mut recorder: Recorder) {
        let (asked, now) = self.node_read;
        let reading = NodeReading { snapshot: Arc::clone(self.pipeline.node()), asked, now };
        recorder.start(self.pipeline.cluster(), reading);
        self.recorder = Some(recorder);
    }

    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    pub fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Sightings, and the records that they were, which are taken away.
    pub fn observe(&mut self, sightings: impl IntoIterator<Item = Sighting>, records: &mut Records) {
        self.pipeline.observe(sightings);
        if let Some(recorder) = &mut self.recorder {
            recorder.records(records);
        }
    }

    /// As [`Pipeline::last_rereads`].
    pub fn last_rereads(&mut self) -> Vec<u64> {
        self.pipeline.last_rereads()
    }

    pub fn lost(&mut self, count: u64, from: Timestamp, to: Timestamp) {
        self.pipeline.lost(count, from, to);
        if let Some(recorder) = &mut self.recorder {
            recorder.lost(count, from, to);
        }
    }

    pub fn absorb(&mut self, update: Update) {
        if let Some(recorder) = &mut self.recorder {
            recorder.update(update.clone());
        }
        self.pipeline.cluster_mut().absorb(update);
    }

    pub fn prune(&mut self, now: Timestamp) {
        self.pipeline.cluster_mut().history.prune(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.prune(now);
        }
    }

    pub fn advance(&mut self, now: Timestamp) -> Judgements {
        let _not_read_again = self.pass(now);
        self.judge(now)
    }

    /// As [`Pipeline::pass`]; what is read comes as records.
    pub fn pass(&mut self, now: Timestamp) -> Vec<u64> {
        if let Some(recorder) = &mut self.recorder {
            recorder.advance(now);
        }
        self.pipeline.pass(now)
    }

    /// As [`Pipeline::judge`].
    pub fn judge(&mut self, now: Timestamp) -> Judgements {
        self.pipeline.judge(now)
    }

    pub fn node_read(&mut self, snapshot: Arc<Snapshot>, asked: Timestamp, now: Timestamp) -> Judgements {
        self.node_read = (asked, now);
        if let Some(recorder) = &mut self.recorder {
            recorder.node_read(Arc::clone(&snapshot), asked, now);
        }
        self.pipeline.node_read(snapshot, asked, now)
    }

    pub fn finish(&mut self, now: Timestamp) -> Judgements {
        if let Some(recorder) = &mut self.recorder {
            recorder.finish_flows(now);
        }
        self.pipeline.finish(now)
    }

    /// Says once that the recording takes no more, where that is so.
    pub fn failure(&mut self) -> Option<Failure> {
        self.recorder.as_mut()?.failure()
    }

    /// Ends the recording, where there is one.
    pub fn end(&mut self, end: End) -> Option<Finished> {
        Some(self.recorder.take()?.finish(end))
    }
}
