//! The verdicts of recordings by the tuples of their flows, for the sightings of those flows.
//!
//! Owns only short texts of the verdicts, in a bounded number. The replay judges.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::{
    class::Class,
    net::{Protocol, Tuple},
    pcap::canonical,
    time::Timestamp,
    verdict::Verdict,
};

/// The most flows whose verdicts are kept, and those of one tuple.
const MAX_FLOWS: usize = 1 << 17;
const MAX_OF_ONE: usize = 64;

/// The verdicts by tuple.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    by_tuple: HashMap<Tuple, Vec<Kept>, RandomState>,
    kept: usize,
    /// Flows beyond the limits.
    left_out: u64,
}

#[derive(Debug)]
struct Kept {
    track: usize,
    started: Timestamp,
    text: String,
}

impl Verdicts {
    /// Keeps the class and root cause of a verdict of this trace, under the tuples to the VIP and to the endpoint.
    pub(crate) fn add(&mut self, verdict: &Verdict, track: usize) {
        let flow = &verdict.flow;
        let Some(protocol) = Protocol::from_name(&flow.protocol) else { return };
        for to in [flow.vip, flow.endpoint].into_iter().flatten() {
            let key = canonical(Tuple::new(protocol, flow.client, to));
            let of_tuple = self.by_tuple.entry(key).or_default();
            // A later verdict on the same flow holds.
            let is_same = |kept: &&mut Kept| kept.track == track && kept.started == flow.started;
            if let Some(kept) = of_tuple.iter_mut().find(is_same) {
                kept.text = text(verdict);
            } else if self.kept < MAX_FLOWS && of_tuple.len() < MAX_OF_ONE {
                self.kept += 1;
                of_tuple.push(Kept { track, started: flow.started, text: text(verdict) });
            } else {
                self.left_out += 1;
            }
        }
    }

    /// The verdict on the flow to which an event of this tuple, time and trace belongs, and the trace that has it: another
    /// one only if this one has none.
    pub(crate) fn of(&self, tuple: Tuple, time: Timestamp, track: usize) -> Option<(&str, usize)> {
        let of_tuple = self.by_tuple.get(&canonical(tuple))?;
        let is_own = of_tuple.iter().any(|kept| kept.track == track);
        let of_trace = || of_tuple.iter().filter(|kept| !is_own || kept.track == track);
        let before = of_trace().filter(|kept| kept.started <= time).max_by_key(|kept| kept.started);
        let found = before.or_else(|| of_trace().min_by_key(|kept| kept.started));
        found.map(|kept| (kept.text.as_str(), kept.track))
    }

    /// The flows that had no room.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }
}

fn text(verdict: &Verdict) -> String {
    let kind = match verdict.class {
        Class::Ok => "OK".to_owned(),
        Class::Unknown => "UNKNOWN".to_owned(),
        class if class.is_fault() => format!("FAULT {class}"),
        class => format!("NORMAL {class}"),
    };
    let service = verdict.service.as_ref().map(|service| format!(" of {service}")).unwrap_or_default();
    let flow = &verdict.flow;
    let endpoint = flow.endpoint.map(|endpoint| format!(" -> {endpoint}")).unwrap_or_default();
    let vip = flow.vip.map(|vip| format!(" -> {vip}")).unwrap_or_default();
    format!("flow{service}, {}{vip}{endpoint}: {kind}, {}", flow.client, verdict.root_cause)
}
