//! Connect times per Service, as histograms of bounded size.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;

/// Services with a histogram of their own; the rest share one.
const MAX_SERVICES: usize = 1000;
/// The longest connect that is told apart: a client gives up before.
const MAX_MICROSECONDS: u64 = 3_600_000_000;
/// The name under which the Services beyond the limit are counted.
const REST: &str = "(other Services)";

/// Connect times of healthy flows, by Service.
#[derive(Clone, Debug, Default)]
pub struct Latencies(BTreeMap<String, Histogram<u32>>);

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
    /// Counts one connect, with microsecond resolution.
    pub fn record(&mut self, service: &str, connect_time: Duration) {
        self.record_all(service, &[connect_time]);
    }

    /// Counts several connects of one Service.
    pub fn record_all(&mut self, service: &str, connect_times: &[Duration]) {
        if connect_times.is_empty() {
            return;
        }
        let known = self.0.contains_key(service);
        let name = if known || self.0.len() < MAX_SERVICES { service } else { REST };
        if !self.0.contains_key(name) {
            // These bounds are valid, so a histogram always comes.
            let Ok(histogram) = Histogram::new_with_bounds(1, MAX_MICROSECONDS, 2) else { return };
            self.0.insert(name.to_owned(), histogram);
        }
        if let Some(histogram) = self.0.get_mut(name) {
            for time in connect_times {
                histogram.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
            }
        }
    }

    /// Every Service's figures, by name.
    pub fn summarize(&self) -> Vec<Latency> {
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
        let mut latencies = Latencies::default();
        for ms in 1..=100 {
            latencies.record("shop/cart:http", Duration::from_millis(ms));
        }
        latencies.record("shop/cart:http", Duration::MAX);
        let [latency] = latencies.summarize().try_into().unwrap_or_else(|_| panic!("one Service"));
        assert_eq!(latency.count, 101);
        assert!(latency.p50.abs_diff(Duration::from_millis(51)) < Duration::from_millis(1));
        assert!(latency.max >= Duration::from_hours(1));
        for number in 0..2000 {
            latencies.record(&format!("many/{number}"), Duration::ZERO);
        }
        assert_eq!(latencies.summarize().len(), MAX_SERVICES + 1);
    }
}
