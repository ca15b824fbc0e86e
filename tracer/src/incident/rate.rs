//! Flows over time, in a bounded number of equal spans.

use std::time::Duration;

use crate::time::Timestamp;

/// The most spans.
const MAX_SPANS: usize = 60;
const SECOND_NS: u64 = 1_000_000_000;

/// The flows that began in one span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub failed: u64,
    pub others: u64,
}

/// Flows by the time of their beginning. The spans are as long as necessary, a power of two in seconds.
#[derive(Clone, Debug)]
pub struct Rate {
    /// The number of the first span, counted from the Unix epoch.
    first: u64,
    span_ns: u64,
    spans: Vec<Span>,
}

impl Default for Rate {
    fn default() -> Self {
        Self { first: 0, span_ns: SECOND_NS, spans: Vec::new() }
    }
}

impl Rate {
    pub(super) fn add(&mut self, time: Timestamp, count: u64, failed: bool) {
        let time = time.as_unix_ns();
        if self.spans.is_empty() {
            self.first = time / self.span_ns;
        }
        loop {
            let number = time / self.span_ns;
            let first = self.first.min(number);
            let last = (self.first + self.spans.len().saturating_sub(1) as u64).max(number);
            if last - first < MAX_SPANS as u64 {
                self.reach(first, last);
                if let Some(span) = usize::try_from(number - first).ok().and_then(|at| self.spans.get_mut(at))
                {
                    *(if failed { &mut span.failed } else { &mut span.others }) += count;
                }
                return;
            }
            self.double();
        }
    }

    /// Takes back a flow that was counted at this time.
    pub(super) fn take_back(&mut self, time: Timestamp, failed: bool) {
        let number = (time.as_unix_ns() / self.span_ns).checked_sub(self.first);
        let span = number.and_then(|number| self.spans.get_mut(usize::try_from(number).ok()?));
        if let Some(span) = span {
            let count = if failed { &mut span.failed } else { &mut span.others };
            *count = count.saturating_sub(1);
        }
    }

    fn reach(&mut self, first: u64, last: u64) {
        let before = usize::try_from(self.first - first).unwrap_or_default();
        self.spans.splice(0..0, std::iter::repeat_n(Span::default(), before));
        self.first = first;
        let wanted = usize::try_from(last - first + 1).unwrap_or_default();
        self.spans.resize(wanted.min(MAX_SPANS), Span::default());
    }

    /// Makes the spans twice as long.
    fn double(&mut self) {
        let (first, span_ns) = (self.first / 2, self.span_ns.saturating_mul(2));
        let mut spans: Vec<Span> = Vec::with_capacity(self.spans.len() / 2 + 1);
        for (index, span) in self.spans.iter().enumerate() {
            let at = usize::try_from(u64::midpoint(self.first, index as u64) - first).unwrap_or_default();
            if spans.len() <= at {
                spans.push(Span::default());
            }
            if let Some(into) = spans.get_mut(at) {
                into.failed += span.failed;
                into.others += span.others;
            }
        }
        (self.first, self.span_ns, self.spans) = (first, span_ns, spans);
    }

    /// The length of a span.
    pub fn span(&self) -> Duration {
        Duration::from_nanos(self.span_ns)
    }

    /// The spans with the time of their beginning.
    pub fn spans(&self) -> impl Iterator<Item = (Timestamp, Span)> {
        let time =
            |index: usize| Timestamp::from_unix_ns((self.first + index as u64).saturating_mul(self.span_ns));
        self.spans.iter().enumerate().map(move |(index, span)| (time(index), *span))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn every_flow_is_in_the_span_of_its_time(
            start in 0..1_700_000_000_000_000_000_u64,
            flows in vec((0..100_000_000_000_000_u64, 1..5_u64, any::<bool>()), 1..50),
        ) {
            let mut rate = Rate::default();
            for (after, count, failed) in &flows {
                rate.add(Timestamp::from_unix_ns(start + after), *count, *failed);
            }
            prop_assert!(rate.spans().count() <= MAX_SPANS);
            for (from, span) in rate.spans() {
                let to = from.saturating_add(rate.span());
                let inside = |failed: bool| -> u64 {
                    let flows = flows.iter().filter(|flow| {
                        let time = Timestamp::from_unix_ns(start + flow.0);
                        flow.2 == failed && time >= from && time < to
                    });
                    flows.map(|flow| flow.1).sum()
                };
                prop_assert_eq!((span.failed, span.others), (inside(true), inside(false)));
            }
            let all: u64 = rate.spans().map(|(_, span)| span.failed + span.others).sum();
            prop_assert_eq!(all, flows.iter().map(|flow| flow.1).sum::<u64>());
        }

        #[test]
        fn no_time_panics(times in vec(any::<u64>(), 0..20)) {
            let mut rate = Rate::default();
            for time in times {
                rate.add(Timestamp::from_unix_ns(time), 1, true);
            }
        }
    }
}
