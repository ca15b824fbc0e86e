//! kube-proxy's metrics: the Prometheus text of `/metrics`, as far as the triage reads it (K5; catalogue section 7).
//!
//! Owns the text form and the names. All of them are alpha: every one may be missing, and newer releases label many
//! with `ip_family`.

use std::collections::BTreeMap;

/// The most samples kept.
const MAX_SAMPLES: usize = 100_000;
/// The most bytes of a version.
const MAX_VERSION_BYTES: usize = 80;

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The samples of kube-proxy, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(BTreeMap<String, Vec<Sample>>);

/// When rules were requested and written, in seconds since the epoch. 0 means never.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncTimes {
    /// `IPv4`, `IPv6`; empty where the release does not separate the families.
    pub family: String,
    pub last_queued: f64,
    pub last_synced: f64,
}

/// kube-proxy's reads from the API server since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reads {
    pub succeeded: f64,
    /// By the status code, `<error>` without an answer.
    pub failed: BTreeMap<String, f64>,
}

impl Metrics {
    /// Parses the exposition text. Names other than kube-proxy's, the build's and the process's are skipped, and so are
    /// lines of another form.
    pub fn parse(text: &str) -> Self {
        let mut found = BTreeMap::<String, Vec<Sample>>::new();
        let mut count = 0;
        for line in text.lines() {
            let line = line.trim();
            let wanted = [
                "kubeproxy_",
                "kubernetes_build_info",
                "process_start_time_seconds",
                "rest_client_requests_total",
            ];
            if !wanted.iter().any(|name| line.starts_with(name)) || count >= MAX_SAMPLES {
                continue;
            }
            let Some((name, sample)) = sample(line) else { continue };
            count += 1;
            found.entry(name.to_owned()).or_default().push(sample);
        }
        Self(found)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> &[Sample] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of all samples of the name; `None` if there is none.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let samples = self.0.get(name)?;
        Some(samples.iter().map(|sample| sample.value).sum())
    }

    /// The release, `v1.30.5`.
    pub fn version(&self) -> Option<&str> {
        let build = self.get("kubernetes_build_info").first()?;
        let version = build.labels.get("git_version").filter(|version| !version.is_empty())?;
        version.get(..version.floor_char_boundary(MAX_VERSION_BYTES))
    }

    /// When the process was started, in seconds since the epoch.
    pub fn started(&self) -> Option<f64> {
        self.get("process_start_time_seconds").first().map(|sample| sample.value)
    }

    /// `sync_proxy_rules_last_queued_timestamp_seconds` and `…_last_timestamp_seconds`, for each family.
    pub fn sync_times(&self) -> Vec<SyncTimes> {
        let synced = self.get("kubeproxy_sync_proxy_rules_last_timestamp_seconds");
        let family = |sample: &Sample| sample.labels.get("ip_family").cloned().unwrap_or_default();
        let queued = self.get("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds").iter();
        queued
            .filter_map(|queued| {
                let family = family(queued);
                let synced = synced
                    .iter()
                    .find(|sample| sample.labels.get("ip_family").cloned().unwrap_or_default() == family)?;
                Some(SyncTimes { family, last_queued: queued.value, last_synced: synced.value })
            })
            .collect()
    }

    /// `rest_client_requests_total` of the method GET; `None` if there is none.
    pub fn reads(&self) -> Option<Reads> {
        let label = |sample: &Sample, name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        let samples = self.get("rest_client_requests_total").iter();
        let mut gets = samples.filter(|sample| label(sample, "method") == "GET").peekable();
        gets.peek()?;
        let mut reads = Reads::default();
        for sample in gets {
            let code = label(sample, "code");
            if code.starts_with('2') {
                reads.succeeded += sample.value;
            } else {
                *reads.failed.entry(code).or_default() += sample.value;
            }
        }
        Some(reads)
    }

    /// How often a batch of rules was rejected, by the names of the counters.
    pub fn failures(&self) -> Vec<(&'static str, f64)> {
        [
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        ]
        .into_iter()
        .filter_map(|name| Some((name, self.sum(name).filter(|count| *count > 0.0)?)))
        .collect()
    }

    /// An upper bound of the quantile (0 to 1) of a histogram over all its label sets: the bound of the bucket that it
    /// falls into, infinite above the last. With the number of observations; `None` without any.
    pub fn quantile(&self, name: &str, quantile: f64) -> Option<(f64, f64)> {
        let mut buckets = BTreeMap::<Bound, f64>::new();
        for sample in self.get(&format!("{name}_bucket")) {
            let bound = match sample.labels.get("le").map(String::as_str) {
                Some("+Inf") => f64::INFINITY,
                Some(text) => text.parse().ok()?,
                None => continue,
            };
            *buckets.entry(Bound(bound)).or_default() += sample.value;
        }
        let total = buckets.last_key_value().map(|(_, count)| *count).filter(|count| *count >= 1.0)?;
        let bound =
            buckets.iter().find(|(_, count)| **count >= quantile * total).map(|(bound, _)| bound.0)?;
        Some((bound, total))
    }
}

/// A bucket's upper bound, in the order of numbers.
#[derive(Clone, Copy, PartialEq)]
struct Bound(f64);

impl Eq for Bound {}

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// `name{label="value",…} 1.5e+09 [timestamp]`.
fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at_checked(end)?;
    let mut labels = BTreeMap::new();
    let rest = match rest.strip_prefix('{') {
        Some(inner) => read_labels(inner, &mut labels)?,
        None => rest,
    };
    let value = match rest.split_ascii_whitespace().next()? {
        "+Inf" => f64::INFINITY,
        text => text.parse::<f64>().ok()?,
    };
    Some((name, Sample { labels, value }))
}

/// Reads `name="value",…}` and returns the rest. Values escape `\\`, `\"` and `\n`.
fn read_labels<'t>(mut text: &'t str, labels: &mut BTreeMap<String, String>) -> Option<&'t str> {
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some(rest);
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.trim().to_owned(), value);
        text = rest.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*};

    use super::*;

    #[test]
    fn both_generations_of_names() {
        let old = Metrics::parse(
            "# HELP x\nkubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.79521709812791e+09\n\
             kubeproxy_sync_proxy_rules_last_timestamp_seconds 0\ngo_threads 7\n",
        );
        let times = old.sync_times();
        assert_eq!((times.len(), times[0].family.as_str(), times[0].last_synced), (1, "", 0.0));
        let new = Metrics::parse(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} 10\n\
             kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 20\n\
             kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 21\n\
             kubernetes_build_info{git_version=\"v1.36.2\",x=\"a\\\"b\"} 1\n",
        );
        assert_eq!(
            new.sync_times(),
            [SyncTimes { family: "IPv6".into(), last_queued: 20.0, last_synced: 21.0 }]
        );
        assert_eq!(new.version(), Some("v1.36.2"));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let text = "kubeproxy_x_seconds_bucket{le=\"0.5\"} 10\nkubeproxy_x_seconds_bucket{le=\"8\"} 98\n\
            kubeproxy_x_seconds_bucket{le=\"16\"} 99\nkubeproxy_x_seconds_bucket{le=\"+Inf\"} 100\n";
        let metrics = Metrics::parse(text);
        assert_eq!(metrics.quantile("kubeproxy_x_seconds", 0.99), Some((16.0, 100.0)));
        assert_eq!(metrics.quantile("kubeproxy_x_seconds", 0.5), Some((8.0, 100.0)));
        assert_eq!(metrics.quantile("kubeproxy_x_seconds", 1.0), Some((f64::INFINITY, 100.0)));
        assert_eq!(metrics.quantile("kubeproxy_y_seconds", 0.5), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(labels in btree_map("[a-z_]{1,8}", "[^\n]{0,12}", 0..5), value in -1e9..1e12_f64) {
            let written: Vec<String> = labels.iter().map(|(name, text)|
                format!("{name}=\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))).collect();
            let metrics = Metrics::parse(&format!("kubeproxy_x{{{}}} {value}\n", written.join(",")));
            prop_assert_eq!(metrics.get("kubeproxy_x"), &[Sample { labels, value }]);
        }

        #[test]
        fn any_line_is_read(rest in any::<String>()) {
            let _ = Metrics::parse(&format!("kubeproxy_x{rest}"));
        }
    }
}
