//! The exchange with the recorder in the kernel: it gets the Services' ends, and its counts are read.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Sink;
use crate::{cluster::History, kernel::tracer::Tracer, session::Attribution, time::Timestamp};

/// The interval at which changed Services are passed on: they are looked through as a whole.
const SERVICES: Duration = Duration::from_secs(1);
/// The interval at which the counts are read.
const COUNTS: Duration = Duration::from_secs(5);

/// The exchange of a trace with its recorder, if it has one.
#[derive(Debug)]
pub(super) struct Exchange {
    /// This node's name in Kubernetes.
    node: Option<String>,
    /// Whether Services changed since they were passed on.
    has_changed: bool,
    services_set: Instant,
    /// When the counts were read last, on both clocks.
    counted: (Instant, Timestamp),
    attribution: Attribution,
}

impl Exchange {
    /// Its counts begin at `started`.
    pub(super) fn new(node: Option<String>, started: Timestamp) -> Self {
        let now = Instant::now();
        Self {
            node,
            has_changed: true,
            services_set: now,
            counted: (now, started),
            attribution: Attribution::default(),
        }
    }

    /// The metadata changed.
    pub(super) fn changed(&mut self) {
        self.has_changed = true;
    }

    /// Does what is due.
    pub(super) fn turn(
        &mut self,
        tracer: &mut Tracer,
        history: &History,
        now: Timestamp,
        sink: &mut impl Sink,
    ) -> anyhow::Result<()> {
        if self.has_changed && self.services_set.elapsed() >= SERVICES {
            self.set_services(tracer, history, now, sink)?;
        }
        if self.counted.0.elapsed() >= COUNTS {
            self.count(tracer, history, now, Attribution::BEHIND, sink)?;
        }
        Ok(())
    }

    /// Passes the ends on that belong to Services.
    pub(super) fn set_services(
        &mut self,
        tracer: &mut Tracer,
        history: &History,
        now: Timestamp,
        sink: &mut impl Sink,
    ) -> anyhow::Result<()> {
        (self.services_set, self.has_changed) = (Instant::now(), false);
        if !tracer.is_recorder() {
            return Ok(());
        }
        let Some(refused) = tracer.set_services(&history.service_ends(self.node.as_deref(), now)) else {
            return Ok(());
        };
        let refused = u64::try_from(refused).unwrap_or(u64::MAX);
        sink.services_refused(refused, &without_room(refused))
    }

    /// Passes on the connections of the last moments, and all that wait for their Service: nothing is learned any more.
    pub(super) fn finish(
        &mut self,
        tracer: &mut Tracer,
        history: &History,
        now: Timestamp,
        sink: &mut impl Sink,
    ) -> anyhow::Result<()> {
        self.count(tracer, history, now, Duration::ZERO, sink)
    }

    /// Passes on the connections that were counted since the last time, once their Service is known or they have waited for
    /// longer than `patience`.
    fn count(
        &mut self,
        tracer: &mut Tracer,
        history: &History,
        now: Timestamp,
        patience: Duration,
        sink: &mut impl Sink,
    ) -> anyhow::Result<()> {
        let (_, from) = std::mem::replace(&mut self.counted, (Instant::now(), now));
        let (counted, uncounted) = tracer.counts().context("cannot read how many connections started")?;
        for (counted, count) in counted {
            self.attribution.add(counted, count, from);
        }
        for (pair, count) in self.attribution.take(patience, history, now) {
            sink.started(pair, count);
        }
        sink.uncounted(uncounted);
        Ok(())
    }
}

/// The message about the addresses and ports of Services that the kernel has no room for.
fn without_room(refused: u64) -> String {
    match refused {
        0 => "every address and port of the Services has room in the kernel again".to_owned(),
        refused => format!(
            "the kernel has no room for {refused} of the Services' addresses with their ports: their failures are observed \
             only where NAT has translated the connection"
        ),
    }
}
