//! `cargo xtask bench memory` measures the memory of an agent in clusters of several sizes, and compares it with the
//! limits that it must keep.
//!
//! The guest measures and sends metrics. This file prints them as a table, writes the plot of docs/costs.md and fails
//! beyond a limit.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::apt;
use crate::event::Metric;
use crate::image::Flavour;
use crate::kernels::{self, Series};
use crate::place::Place;
use crate::printer::{Printer, seconds};
use crate::setup;
use crate::vm::{self, Console, Ending, Guest};

mod plot;

/// The largest cluster's lists take an emulated processor most of this time.
const LIMIT: Duration = Duration::from_hours(2);
const SILENCE: Duration = Duration::from_mins(10);
/// The most resident memory with a number of Services, each with ten endpoints.
const LIMITS: [Bound; 2] = [Bound { services: 1_000, mib: 64 }, Bound { services: 10_000, mib: 200 }];
const PLOT: &str = "docs/memory.svg";
const MIB: f64 = 1_048_576.0;

#[derive(Debug, Clone, Copy)]
struct Bound {
    services: u32,
    mib: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The guest's kernel
    #[arg(long, value_name = "SERIES", value_parser = kernels::parse, default_value = kernels::DEFAULT)]
    kernel: &'static Series,
    /// Only these numbers of Services, each with ten endpoints; then no plot is written
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..=50_000))]
    services: Vec<u32>,
}

/// Measures and prints. Returns false if a limit is exceeded or a value is missing.
pub(crate) fn run(printer: &Printer, place: &Place, options: &Options) -> Result<bool> {
    setup::tools(printer, place, &[apt::GUEST])?;
    setup::kernels(printer, place, &[options.kernel])?;
    setup::binaries(printer, place)?;
    let (kernel, image) = setup::guest_image(printer, place, options.kernel, Flavour::Lab)?;
    let release = kernel.release.clone();
    printer.say(&format!("==> memory on {release} (the largest cluster takes most of the time)"));
    let mut parameters = vec!["lab.mode=memory".to_owned()];
    if !options.services.is_empty() {
        let sizes: Vec<String> = options.services.iter().map(u32::to_string).collect();
        parameters.push(format!("lab.services={}", sizes.join(",")));
    }
    let guest = Guest {
        name: format!("{} (memory)", options.kernel.name),
        kernel,
        image,
        emulator: vm::QEMU.into(),
        parameters,
        counted: false,
        console: Console::Prefixed(format!("{:>5} | ", options.kernel.name)),
        limit: LIMIT,
        silence: SILENCE,
        output: place.guest_output(&format!("{}-memory", options.kernel.name)),
    };
    let run = vm::run(printer, &guest, |_| {})?;
    let points = points(&run.metrics);
    for line in table(&points) {
        printer.data(&line);
    }
    for problem in &run.unread {
        printer.say(&format!("    {problem}"));
    }
    printer.data(&format!("kernel {release}; command: cargo xtask bench memory"));
    match run.ending {
        Ending::Done(exit) => {
            printer.say(&format!("    took {}", seconds(run.took)));
            let exceeded = exceeded(&points);
            for line in &exceeded {
                printer.say(&format!("    {line}"));
            }
            if options.services.is_empty() {
                let path = place.repository.join(PLOT);
                fs::write(&path, plot::svg(&points, &LIMITS))
                    .with_context(|| format!("could not write {}", path.display()))?;
                printer.say(&format!("    wrote {PLOT}"));
            }
            Ok(exit == 0 && run.unread.is_empty() && !points.is_empty() && exceeded.is_empty())
        }
        Ending::Died(_) | Ending::Stopped(_) => {
            let tail = run.last_words();
            bail!(
                "the guest of the memory bench failed: {}; the last lines of its console:{tail}",
                run.ending
            )
        }
    }
}

/// The values of one size of cluster, by the name of their metric.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    services: u32,
    endpoints: u32,
    values: BTreeMap<String, f64>,
}

impl Point {
    fn mib(&self, name: &str) -> Option<f64> {
        self.values.get(name).map(|bytes| bytes / MIB)
    }
}

/// By size.
fn points(metrics: &[Metric]) -> Vec<Point> {
    let mut points = BTreeMap::<u32, Point>::new();
    for metric in metrics {
        let number = |name| metric.label(name)?.parse().ok();
        let (Some(services), Some(endpoints)) = (number("services"), number("endpoints")) else { continue };
        let point = points.entry(services);
        let point = point.or_insert_with(|| Point { services, endpoints, values: BTreeMap::new() });
        point.values.insert(metric.name.clone(), metric.value);
    }
    points.into_values().collect()
}

/// A heading, then one line for each size.
fn table(points: &[Point]) -> Vec<String> {
    const COLUMNS: [(&str, &str); 8] = [
        ("resident", "resident_bytes"),
        ("peak", "peak_bytes"),
        ("anonymous", "anonymous_bytes"),
        ("file", "file_bytes"),
        ("shared", "shared_bytes"),
        ("segment", "segment_bytes"),
        ("with rules", "resident_with_rules_bytes"),
        ("peak", "peak_with_rules_bytes"),
    ];
    let names = COLUMNS.iter().map(|(name, _)| format!("{name:>13}"));
    let heading = format!("{:>9}{:>10}{}{:>9}", "Services", "endpoints", names.collect::<String>(), "ready");
    let line = |point: &Point| {
        let cell = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let cells = COLUMNS.iter().map(|(_, name)| point.mib(name).map(|mib| format!("{mib:.1} MiB")));
        let cells: Vec<String> = cells.map(|value| format!("{:>13}", cell(value))).collect();
        let ready = cell(point.values.get("ready_seconds").map(|ready| format!("{ready:.0} s")));
        format!("{:>9}{:>10}{}{ready:>9}", point.services, point.endpoints, cells.concat())
    };
    std::iter::once(heading).chain(points.iter().map(line)).collect()
}

/// One sentence for each limit that a point exceeds.
fn exceeded(points: &[Point]) -> Vec<String> {
    let beyond = |bound: &Bound| {
        let point = points.iter().find(|point| point.services == bound.services)?;
        let mib = point.mib("resident_with_rules_bytes").or_else(|| point.mib("resident_bytes"))?;
        (mib > f64::from(bound.mib)).then(|| {
            let Point { services, endpoints, .. } = point;
            format!(
                "the agent takes {mib:.1} MiB with {services} Services and {endpoints} endpoints; the limit is {} MiB",
                bound.mib
            )
        })
    };
    LIMITS.iter().filter_map(beyond).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(services: u32, mib: f64) -> Point {
        let values = [
            ("resident_bytes", 40.0 * MIB),
            ("peak_bytes", (mib + 9.0) * MIB),
            ("resident_with_rules_bytes", mib * MIB),
            ("ready_seconds", 3.0),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        Point { services, endpoints: services * 10, values: values.into() }
    }

    #[test]
    fn a_limit_is_named_with_its_size() {
        assert!(exceeded(&[point(0, 40.0), point(1_000, 63.9), point(10_000, 199.0)]).is_empty());
        let lines = exceeded(&[point(1_000, 64.1), point(3_000, 500.0), point(10_000, 200.0)]);
        let expected = "the agent takes 64.1 MiB with 1000 Services and 10000 endpoints; the limit is 64 MiB";
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn every_size_has_a_line() {
        let lines = table(&[point(0, 40.0), point(1_000, 50.0)]);
        assert_eq!(lines.len(), 3);
        assert!(
            lines[2].contains("50.0 MiB") && lines[2].contains("59.0 MiB") && lines[2].ends_with("3 s"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_plot_has_every_point_and_both_limits() {
        let svg = plot::svg(&[point(0, 40.0), point(1_000, 50.0), point(10_000, 150.0)], &LIMITS);
        assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
        for text in ["64 MiB", "200 MiB", "MiB resident", "endpoints", "100,000", "prefers-color-scheme"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
