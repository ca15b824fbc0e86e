//! Connect times per Service, as histograms of bounded size.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Duration,
};

use hdrhistogram::Histogram;

use crate::verdict::ServiceRef;

/// The most Services with their own histogram; the others share one.
const MAX_SERVICES: usize = 1000;
/// The longest measured connect: a client gives up earlier.
const MAX_MICROSECONDS: u64 = 3_600_000_000;
/// The name of the histogram that the other Services share.
const REST: &str = "(other Services)";

/// Connect times of healthy flows, by Service.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies(BTreeMap<String, Histogram<u32>>);

/// Connect times of one Service, to two significant digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// `namespace/name:port`.
    pub service: String,
    pub count: u64,
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl Latencies {
    /// Counts connects of one Service, with microsecond resolution.
    pub(super) fn record(&mut self, service: &ServiceRef, connect_times: &[Duration]) {
        if connect_times.is_empty() {
            return;
        }
        let mut name = service.to_string();
        if self.0.len() >= MAX_SERVICES && !self.0.contains_key(&name) {
            REST.clone_into(&mut name);
        }
        let histogram = match self.0.entry(name) {
            Entry::Occupied(known) => known.into_mut(),
            // These bounds are valid, so a histogram is always created.
            Entry::Vacant(new) => match Histogram::new_with_bounds(1, MAX_MICROSECONDS, 2) {
                Ok(histogram) => new.insert(histogram),
                Err(_) => return,
            },
        };
        for time in connect_times {
            histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// Every Service's figures, by name.
    pub(super) fn summarize(&self) -> Vec<Latency> {
        let at = Duration::from_micros;
        self.0
            .iter()
            .map(|(service, histogram)| Latency {
                service: service.clone(),
                count: histogram.len(),
                p50: at(histogram.value_at_quantile(0.5)),
                p99: at(histogram.value_at_quantile(0.99)),
                max: at(histogram.max()),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_bounds() {
        let service =
            |name: &str| ServiceRef { namespace: "shop".into(), name: name.into(), port: "http".into() };
        let mut latencies = Latencies::default();
        for ms in 1..=100 {
            latencies.record(&service("cart"), &[Duration::from_millis(ms)]);
        }
        latencies.record(&service("cart"), &[Duration::MAX]);
        let [latency] = latencies.summarize().try_into().unwrap_or_else(|_| panic!("one Service"));
        assert_eq!((latency.service.as_str(), latency.count), ("shop/cart:http", 101));
        assert!(latency.p50.abs_diff(Duration::from_millis(51)) < Duration::from_millis(1));
        assert!(latency.max >= Duration::from_hours(1));
        for number in 0..2000 {
            latencies.record(&service(&number.to_string()), &[Duration::ZERO]);
        }
        assert_eq!(latencies.summarize().len(), MAX_SERVICES + 1);
    }
}
