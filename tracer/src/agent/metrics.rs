//! The names, types and labels of the figures, and their text in `OpenMetrics` 1.0.0.
//!
//! `docs/agent.md` lists them; a test compares the page with a scrape.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::{MetricType, exemplar::Exemplar},
    registry::{Registry, Unit},
};

use super::{
    figures::{Figures, Shared, Signal},
    process::{self, Process},
};
use crate::{cluster::Kind, time::Timestamp, verdict::ServiceRef};

/// The media type of a scrape.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The registry of everything that the agent serves.
pub(crate) fn registry(figures: Arc<Shared>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { figures, started: process::wall_clock() }));
    registry
}

/// Writes the text of one scrape.
pub(crate) fn write(out: &mut impl fmt::Write, registry: &Registry) -> fmt::Result {
    text::encode(out, registry)
}

/// Reads the figures at each scrape.
#[derive(Debug)]
struct Scrape {
    figures: Arc<Shared>,
    /// When the process started.
    started: Timestamp,
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Writes one metric after the other.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn begin(
        &mut self,
        name: &'static str,
        help: &str,
        unit: Option<&Unit>,
        kind: MetricType,
        write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        write(&mut self.0.encode_descriptor(name, help, unit, kind)?)
    }

    fn counter(&mut self, name: &'static str, help: &str, value: u64) -> fmt::Result {
        self.begin(name, help, None, MetricType::Counter, |metric| count(metric, value))
    }

    fn gauge(&mut self, name: &'static str, help: &str, value: u64) -> fmt::Result {
        self.begin(name, help, None, MetricType::Gauge, |metric| metric.encode_gauge(&value))
    }

    fn seconds(&mut self, name: &'static str, help: &str, value: f64) -> fmt::Result {
        self.begin(name, help, Some(&Unit::Seconds), MetricType::Gauge, |metric| metric.encode_gauge(&value))
    }

    fn counters<'l>(
        &mut self,
        name: &'static str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        self.begin(name, help, None, MetricType::Counter, |metric| {
            series
                .into_iter()
                .try_for_each(|(labels, value)| count(&mut metric.encode_family(&labels)?, value))
        })
    }

    fn gauges<'l>(
        &mut self,
        name: &'static str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        self.begin(name, help, None, MetricType::Gauge, |metric| {
            series
                .into_iter()
                .try_for_each(|(labels, value)| metric.encode_family(&labels)?.encode_gauge(&value))
        })
    }
}

fn count(metric: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter(&value, None::<&Exemplar<NoLabelSet, u64>>)
}

fn count_seconds(metric: &mut MetricEncoder<'_>, value: f64) -> fmt::Result {
    metric.encode_counter(&value, None::<&Exemplar<NoLabelSet, f64>>)
}

fn of_service(service: Option<&ServiceRef>) -> Labels<'_> {
    let (namespace, name, port) =
        service.map_or(("", "", ""), |service| (&*service.namespace, &*service.name, &*service.port));
    vec![("namespace", namespace), ("service", name), ("port", port)]
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let process = Process::read();
        let figures = self.figures.copy();
        let mut page = Page(encoder);
        page.begin("viptrace_build", "The version of the agent", None, MetricType::Info, |metric| {
            metric.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
        })?;
        flows(&mut page, &figures)?;
        kernel(&mut page, &figures)?;
        state(&mut page, &figures)?;
        outputs(&mut page, &figures)?;
        page.begin(
            "process_cpu",
            "User and system time",
            Some(&Unit::Seconds),
            MetricType::Counter,
            |metric| count_seconds(metric, process.cpu_seconds),
        )?;
        page.begin(
            "process_resident_memory",
            "Resident memory",
            Some(&Unit::Bytes),
            MetricType::Gauge,
            |metric| metric.encode_gauge(&process.resident_bytes),
        )?;
        page.seconds("process_start_time", "Unix time of the start", self.started.as_unix_secs_f64())?;
        page.gauge("process_open_fds", "Open files", process.open_files)
    }
}

fn flows(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    let counts = &figures.counts;
    let connections: Vec<_> = counts
        .connections()
        .map(|(key, total)| (key, key.endpoint.map(|addr| addr.to_string()).unwrap_or_default(), total.count))
        .collect();
    page.counters(
        "viptrace_connections",
        "Connections started, by Service port and endpoint",
        connections.iter().map(|(key, endpoint, count)| {
            let mut labels = of_service(Some(&key.service));
            labels.extend([("protocol", key.protocol.as_ref()), ("endpoint", endpoint.as_str())]);
            (labels, *count)
        }),
    )?;
    page.counters(
        "viptrace_flows",
        "Judged flows",
        figures.by_result().map(|(name, count)| (vec![("result", name)], count)),
    )?;
    page.counters(
        "viptrace_faults",
        "Flows with a fault",
        counts.faults().map(|(key, total)| {
            let mut labels = of_service(key.service.as_ref());
            labels.extend([("class", key.class.id()), ("domain", key.domain.as_str())]);
            (labels, total.count)
        }),
    )?;
    page.counters(
        "viptrace_unexplained",
        "Broken flows that no rule explains",
        counts.unexplained().map(|(service, total)| (of_service(service), total.count)),
    )?;
    page.counter("viptrace_corrected_flows", "Verdicts replaced by a later one", figures.corrected)?;
    page.counter(
        "viptrace_other_nodes_flows",
        "Flows of other nodes on the same kernel",
        figures.flows_of_other_nodes,
    )?;
    if let Some(time) = figures.last_fault {
        page.seconds(
            "viptrace_last_fault_timestamp",
            "Unix time of the last fault",
            time.as_unix_secs_f64(),
        )?;
    }
    page.counter("viptrace_series_limited", "Increments that went to service=\"_other\"", counts.limited())?;
    page.gauge("viptrace_series", "Series with names of Services", counts.len() as u64)?;
    page.gauge("viptrace_open_flows", "Flows without a verdict yet", figures.open_flows)?;
    let help = "Flows in memory, also those that are kept after their verdict";
    page.gauge("viptrace_held_flows", help, figures.held_flows)?;
    page.counter("viptrace_evicted_flows", "Flows evicted without a verdict", figures.evicted_flows)?;
    page.counters(
        "viptrace_service_evicted_flows",
        "Flows of a Service port evicted without a verdict",
        counts.evicted_by_service().map(|(service, count)| (of_service(Some(service)), count)),
    )
}

fn kernel(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    page.counter("viptrace_events", "Events read from the kernel", figures.events)?;
    page.counter("viptrace_lost_events", "Events that the kernel could not deliver", figures.lost_events)?;
    page.counter(
        "viptrace_suppressed_events",
        "Events of storms that the kernel counted instead of reporting",
        figures.suppressed_events,
    )?;
    page.counters(
        "viptrace_service_suppressed_events",
        "Suppressed events whose Service is known",
        figures.counts.suppressed_by_service().map(|(service, count)| {
            (vec![("namespace", &*service.namespace), ("service", &*service.name)], count)
        }),
    )?;
    page.gauge(
        "viptrace_services_refused",
        "Addresses and ports of Services without room in the kernel",
        figures.refused_ends,
    )?;
    if let Some(retention) = figures.decision_retention {
        page.seconds(
            "viptrace_decision_retention",
            "Median age of the decisions that the kernel gives up for new ones",
            retention.as_secs_f64(),
        )?;
    }
    page.counters(
        "viptrace_skipped_runs",
        "Program runs that the kernel skipped",
        figures.runs.iter().map(|(hook, runs)| (vec![("hook", *hook)], runs.skipped)),
    )?;
    page.gauges(
        "viptrace_hook_attached",
        "Whether the hook is attached",
        figures.hooks.iter().map(|(hook, attached)| (vec![("hook", *hook)], u64::from(*attached))),
    )?;
    let measured: Vec<_> =
        figures.runs.iter().filter_map(|(hook, runs)| Some((*hook, runs.measured?))).collect();
    if measured.is_empty() {
        return Ok(());
    }
    let unit = Some(&Unit::Seconds);
    page.begin(
        "viptrace_kernel",
        "Time of the agent's programs in the kernel",
        unit,
        MetricType::Counter,
        |metric| {
            measured.iter().try_for_each(|(hook, (time, _))| {
                count_seconds(&mut metric.encode_family(&[("hook", *hook)])?, time.as_secs_f64())
            })
        },
    )?;
    page.counters(
        "viptrace_kernel_runs",
        "Runs of the agent's programs in the kernel",
        measured.iter().map(|(hook, (_, runs))| (vec![("hook", *hook)], *runs)),
    )
}

fn state(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    page.gauge("viptrace_ready", "Whether the agent observes everything", u64::from(figures.ready))?;
    if let Some(age) = figures.metadata_age {
        page.seconds(
            "viptrace_metadata_age",
            "Time since the oldest lost watch last sent data",
            age.as_secs_f64(),
        )?;
    }
    page.gauges(
        "viptrace_watch_connected",
        "Whether the watch is open",
        Kind::ALL
            .into_iter()
            .zip(figures.watches)
            .map(|(kind, open)| (vec![("kind", resource(kind))], u64::from(open))),
    )?;
    let recorder = &figures.recorder;
    if let Some(up) = recorder.up {
        page.gauge("viptrace_recorder_up", "Whether segments are written", u64::from(up))?;
    }
    page.counter(
        "viptrace_recorder_failures",
        "Segments that could not be begun or continued",
        recorder.failures,
    )?;
    page.counter("viptrace_recorder_dropped_events", "Events that no segment has", recorder.dropped_events)?;
    page.gauge("viptrace_recorder_segments", "Stored segments", recorder.segments)?;
    page.begin(
        "viptrace_recorder",
        "Size of the segments",
        Some(&Unit::Bytes),
        MetricType::Gauge,
        |metric| metric.encode_gauge(&recorder.bytes),
    )?;
    page.counter(
        "viptrace_recorder_deleted_segments",
        "Segments deleted to stay within the bounds",
        recorder.deleted,
    )
}

/// The resource of a kind without its API group.
fn resource(kind: Kind) -> &'static str {
    let name = kind.resource();
    name.split_once('.').map_or(name, |(resource, _)| resource)
}

fn outputs(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    page.gauge("viptrace_stream_readers", "Readers of the socket", figures.stream_readers)?;
    page.counter("viptrace_stream_dropped", "Verdicts that slow readers lost", figures.stream_dropped)?;
    page.counter("viptrace_stream_refused", "Readers refused", figures.stream_refused)?;
    page.counter(
        "viptrace_output_dropped",
        "Verdicts that standard output did not take",
        figures.output_dropped,
    )?;
    let exports = Signal::ALL.map(|signal| {
        let export = if signal == Signal::Logs { figures.logs } else { figures.metrics };
        (signal.name(), export)
    });
    let label = |name| vec![("signal", name)];
    page.counters(
        "viptrace_otlp_exported",
        "Items that the receiver accepted",
        exports.map(|(name, export)| (label(name), export.exported)),
    )?;
    page.counters(
        "viptrace_otlp_dropped",
        "Items given up",
        exports.map(|(name, export)| (label(name), export.dropped)),
    )?;
    page.counters(
        "viptrace_otlp_failures",
        "Requests that failed",
        exports.map(|(name, export)| (label(name), export.failures)),
    )?;
    page.counter("viptrace_log_suppressed", "Lines left out of the agent's log", figures.log_suppressed)?;
    let reloads = [("success", figures.reloads), ("failure", figures.failed_reloads)];
    page.counters(
        "viptrace_config_reloads",
        "Reloads of the configuration",
        reloads.map(|(name, count)| (vec![("result", name)], count)),
    )?;
    page.gauge(
        "viptrace_config_last_reload_successful",
        "Whether the last reload succeeded",
        u64::from(!figures.last_reload_failed),
    )?;
    let requests: Vec<_> =
        figures.requests.iter().map(|((server, code), count)| (*server, code.to_string(), *count)).collect();
    page.counters(
        "viptrace_http_requests",
        "Requests answered",
        requests
            .iter()
            .map(|(server, code, count)| (vec![("server", *server), ("code", code.as_str())], *count)),
    )
}
