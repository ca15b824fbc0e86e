//! Verdicts as they come, counted for the status line and the summary.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    class::{Class, Kind},
    diagnosis,
    report::{
        self,
        latency::Latencies,
        summary::{Cause, ClassCount, ServiceCount},
    },
    session::{Folded, Judged, Pipeline},
    time::Timestamp,
    verdict::Verdict,
};

#[derive(Debug, Default)]
pub(super) struct Tally {
    summary: diagnosis::Summary,
    latencies: Latencies,
}

impl Tally {
    pub(super) fn add(&mut self, judged: &Judged) {
        self.summary.add(&judged.verdict, judged.before.as_deref());
        if judged.verdict.class == Class::Ok
            && let (Some(service), Some(time)) = (&judged.verdict.service, judged.connect_time)
        {
            self.latencies.record(&service.to_string(), time);
        }
    }

    pub(super) fn add_folded(&mut self, folded: &Folded) {
        self.summary.add_healthy(&folded.verdict, folded.count);
        if let Some(service) = &folded.verdict.service {
            self.latencies.record_all(&service.to_string(), &folded.connect_times);
        }
    }

    /// Nothing was counted.
    pub(super) fn is_empty(&self) -> bool {
        self.summary.count(|_| true) == 0
    }

    pub(super) fn has_faults(&self) -> bool {
        self.summary.has_faults()
    }

    /// What a live table's status line says.
    pub(super) fn status(&self, pipeline: &Pipeline, now: Timestamp) -> report::Status {
        let count = |kind| self.counted(kind);
        report::Status {
            flows_seen: self.summary.judged,
            flows_open: pipeline.counters().open,
            ok: count(Kind::Ok),
            normal: count(Kind::Normal),
            faults: count(Kind::Fault),
            unknown: count(Kind::Unknown),
            lost_events: pipeline.lost_events(),
            metadata_age: metadata_age(pipeline, now),
            remark: pipeline.cluster().status.gaps(now).into_iter().next(),
        }
    }

    /// The end of the trace. `gaps` is what could not be seen, besides the metadata's own.
    pub(super) fn summary(
        &self,
        pipeline: &Pipeline,
        started: Timestamp,
        ended: Timestamp,
        mut gaps: Vec<String>,
    ) -> report::Summary {
        gaps.extend(pipeline.cluster().status.gaps(ended));
        gaps.extend(pipeline.node().gap_lines());
        let counters = pipeline.counters();
        report::Summary {
            started,
            ended,
            flows_seen: self.summary.judged,
            flows_open: counters.open,
            flows_evicted: counters.evicted,
            classes: self
                .summary
                .classes()
                .into_iter()
                .map(|it| ClassCount { class: it.class, count: it.count })
                .collect(),
            services: self
                .summary
                .services()
                .map(|(service, classes)| service_count(service.to_string(), classes))
                .collect(),
            causes: self
                .summary
                .causes()
                .into_iter()
                .map(|cause| Cause { verdict: Verdict::clone(&cause.verdict), flows: cause.flows })
                .collect(),
            latencies: self.latencies.summarize(),
            gaps,
            lost_events: pipeline.lost_events(),
            metadata_age: metadata_age(pipeline, ended),
        }
    }

    fn counted(&self, kind: Kind) -> u64 {
        self.summary.count(|class| class.kind() == kind)
    }
}

fn service_count(service: String, classes: &BTreeMap<Class, u64>) -> ServiceCount {
    let count = |kind| classes.iter().filter(|(class, _)| class.kind() == kind).map(|(_, count)| count).sum();
    ServiceCount {
        service,
        ok: count(Kind::Ok),
        normal: count(Kind::Normal),
        faults: count(Kind::Fault),
        unknown: count(Kind::Unknown),
    }
}

fn metadata_age(pipeline: &Pipeline, now: Timestamp) -> Option<Duration> {
    pipeline.cluster().metadata_age(now).and_then(|age| Duration::try_from_secs_f64(age).ok())
}
