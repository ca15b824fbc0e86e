//! `cargo xtask bench kernel` measures the cost of tracing for a Service, in guest instructions, for viptrace and its
//! peers. `bench audit` measures the cost of the audit of a node's rules on the host, `bench judge` that of verdicts, and
//! `bench memory` the memory of an agent.
//!
//! The guest measures and sends metrics. This file runs it on a virtual clock that counts instructions, and prints
//! medians, ranges and ratios. A ratio divides one round's value with the tool by the same round's value without it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use crate::apt;
use crate::event::Metric;
use crate::image::Flavour;
use crate::kernels::{self, Series};
use crate::memory;
use crate::place::{Place, cargo};
use crate::printer::{Printer, seconds};
use crate::replay;
use crate::setup;
use crate::test::parameter;
use crate::vm::{self, Console, Ending, Guest};

/// A guest whose instructions are counted has one processor and takes several times as long.
const LIMIT: Duration = Duration::from_hours(2);
const SILENCE: Duration = Duration::from_mins(20);

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Cost for connections and for bulk transfer, with viptrace and each peer attached in turn
    Kernel(Options),
    /// Speed, size and memory of recordings, replayed on this machine
    Replay(replay::Options),
    /// Cost of the audit of a node's rules, alone and in a whole check; writes a plot
    Audit,
    /// Flows folded and judged a second, on one core of this machine
    Judge,
    /// Memory of an agent by size of cluster, against its limits; writes a plot
    Memory(memory::Options),
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of measurements of each tool
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The guest's kernel; may be given more than once
    #[arg(long = "kernel", value_name = "SERIES", value_parser = kernels::parse, default_value = kernels::DEFAULT)]
    kernels: Vec<&'static Series>,
    /// kube-proxy's mode on the node: iptables, iptables-legacy, nftables or ipvs; may be given more than once
    #[arg(long = "mode", value_name = "MODE", value_parser = parameter, default_value = "iptables")]
    modes: Vec<String>,
    /// Only tools whose name contains FILTER, or one of several filters separated by commas
    #[arg(long, value_name = "FILTER", value_parser = parameter)]
    tool: Option<String>,
}

/// Measures and prints. Returns false if the guest reports a missing measurement, or viptrace costs more than it may.
pub(crate) fn run(printer: &Printer, what: &What) -> Result<bool> {
    let place = Place::find()?;
    let options = match what {
        What::Kernel(options) => options,
        What::Audit => return on_host(&place, "audit"),
        What::Judge => return on_host(&place, "judge"),
        What::Replay(options) => return replay::run(printer, options),
        What::Memory(options) => return memory::run(printer, &place, options),
    };
    setup::tools(printer, &place, &[apt::GUEST, apt::BENCH])?;
    setup::kernels(printer, &place, &options.kernels)?;
    setup::binaries(printer, &place)?;
    let mut all_measured = true;
    for series in &options.kernels {
        for mode in &options.modes {
            all_measured &= measure(printer, &place, options, series, mode)?;
        }
    }
    Ok(all_measured)
}

/// Measures on one kernel in one mode.
fn measure(
    printer: &Printer,
    place: &Place,
    options: &Options,
    series: &'static Series,
    mode: &str,
) -> Result<bool> {
    let (kernel, image) = setup::guest_image(printer, place, series, Flavour::Bench)?;
    let release = kernel.release.clone();
    printer.say(&format!(
        "==> bench on {release} in {mode} mode, {} rounds (instructions are counted, which is slow)",
        options.rounds
    ));
    let mut parameters = vec![
        "lab.mode=bench".to_owned(),
        format!("lab.rounds={}", options.rounds),
        format!("lab.dataplane={mode}"),
    ];
    parameters.extend(options.tool.iter().map(|filter| format!("lab.filter={filter}")));
    let guest = Guest {
        name: format!("{} (bench)", series.name),
        kernel,
        image,
        emulator: vm::QEMU.into(),
        parameters,
        counted: true,
        console: Console::Prefixed(format!("{:>5} | ", series.name)),
        limit: LIMIT,
        silence: SILENCE,
        output: place.guest_output(&format!("{}-bench-{mode}", series.name)),
    };
    let run = vm::run(printer, &guest, |_| {})?;
    let groups = groups(&run.metrics);
    for line in table(&groups) {
        printer.data(&line);
    }
    let beyond = beyond_budget(&groups);
    for line in &beyond {
        printer.say(&format!("    {line}"));
    }
    for problem in &run.unread {
        printer.say(&format!("    {problem}"));
    }
    printer.data(&format!(
        "kernel {release}; command: cargo xtask bench kernel --kernel {} --mode {mode} --rounds {}",
        series.name, options.rounds
    ));
    match run.ending {
        Ending::Done(0) if run.metrics.is_empty() => bail!("the guest measured nothing"),
        Ending::Done(exit) => {
            printer.say(&format!(
                "    took {}; raw values: {}",
                seconds(run.took),
                guest.output.join("machine.log").display()
            ));
            Ok(exit == 0 && run.unread.is_empty() && beyond.is_empty())
        }
        Ending::Died(_) | Ending::Stopped(_) => {
            let tail = run.last_words();
            bail!("the bench's guest failed: {}; the last lines of its console:{tail}", run.ending)
        }
    }
}

/// Runs a benchmark of the library on the host; the benchmark prints its own table.
fn on_host(place: &Place, name: &str) -> Result<bool> {
    let call = cargo("measure on this machine").args([
        "bench",
        "--profile=dist",
        "--locked",
        "-p",
        "viptrace",
        "--bench",
        name,
    ]);
    call.directory(&place.repository).stream()?;
    Ok(true)
}

/// The values of one tool in one measure.
#[derive(Debug, Default)]
struct Measured {
    /// By round.
    bare: BTreeMap<String, Vec<f64>>,
    with: BTreeMap<String, Vec<f64>>,
    unit: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    };
    Some(Spread { median, low, high })
}

/// The results by measure and tool.
type Groups = BTreeMap<(String, String), Measured>;

fn groups(metrics: &[Metric]) -> Groups {
    let mut groups = Groups::new();
    for metric in metrics {
        let tool = metric.label("tool").unwrap_or_else(|| "-".to_owned());
        let round = metric.label("round").unwrap_or_default();
        let group = groups.entry((metric.name.clone(), tool)).or_default();
        group.unit.clone_from(&metric.unit);
        let side =
            if metric.label("side").as_deref() == Some("bare") { &mut group.bare } else { &mut group.with };
        side.entry(round).or_default().push(metric.value);
    }
    groups
}

/// The results as lines: a heading, then one line for each measure and tool.
fn table(groups: &Groups) -> Vec<String> {
    let heading = ["measure", "tool", "bare", "with", "with: range", "ratio", "ratio: range", "rounds"];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(groups.iter().map(|((name, tool), group)| row(name, tool, group)));
    aligned(&rows)
}

/// The median of each round.
fn medians(side: &BTreeMap<String, Vec<f64>>) -> BTreeMap<&str, f64> {
    let median = |values: &Vec<f64>| Some(spread(values.iter().copied())?.median);
    side.iter().filter_map(|(round, values)| Some((round.as_str(), median(values)?))).collect()
}

impl Measured {
    /// The rounds' ratios, where there is a bare side.
    fn ratios(&self) -> Option<Spread> {
        let bare = medians(&self.bare);
        spread(medians(&self.with).iter().filter_map(|(round, value)| Some(value / bare.get(round)?)))
    }
}

/// What a tool may cost: a ratio, or a value of a measure without a bare side.
struct Budget {
    measure: &'static str,
    tool: &'static str,
    at_most: f64,
}

/// The most that viptrace may cost (`docs/costs.md`): the targets, but for an agent its present cost with room for the noise, so
/// that a dearer program is noticed. That of `none` is the noise of the method.
const BUDGETS: [Budget; 7] = [
    Budget { measure: "crr_quartile_ns", tool: "none", at_most: 1.003 },
    Budget { measure: "crr_quartile_ns", tool: "failures", at_most: 1.01 },
    Budget { measure: "crr_quartile_ns", tool: "full", at_most: 1.03 },
    Budget { measure: "crr_tool_cpu_ns", tool: "failures", at_most: 500.0 },
    Budget { measure: "crr_tool_cpu_ns", tool: "full", at_most: 40_000.0 },
    Budget { measure: "attach_ns", tool: "failures", at_most: 0.5e9 },
    Budget { measure: "attach_ns", tool: "full", at_most: 0.5e9 },
];

/// A line for each measure that is beyond its budget.
fn beyond_budget(groups: &Groups) -> Vec<String> {
    let beyond = |budget: &Budget| {
        let Budget { measure, tool, at_most } = *budget;
        let group = groups.get(&(measure.to_owned(), tool.to_owned()))?;
        let of_value = || spread(medians(&group.with).into_values());
        let found = group.ratios().or_else(of_value)?.median;
        (found > at_most)
            .then(|| format!("beyond its budget: {measure} of {tool} is {found}, at most {at_most}"))
    };
    BUDGETS.iter().filter_map(beyond).collect()
}

fn row(name: &str, tool: &str, group: &Measured) -> [String; 8] {
    let (bare, with) = (medians(&group.bare), medians(&group.with));
    let ratios = group.ratios();
    let dash = || "-".to_owned();
    let value = |spread: Option<Spread>| {
        spread.map_or_else(dash, |s| format!("{} {}", grouped(s.median), group.unit))
    };
    let range = |spread: Option<Spread>| {
        spread.map_or_else(dash, |s| format!("{}–{}", grouped(s.low), grouped(s.high)))
    };
    let with_spread = spread(with.values().copied());
    [
        name.to_owned(),
        tool.to_owned(),
        value(spread(bare.values().copied())),
        value(with_spread),
        range(with_spread),
        ratios.map_or_else(dash, |s| format!("{:.3}", s.median)),
        ratios.map_or_else(dash, |s| format!("{:.3}–{:.3}", s.low, s.high)),
        with.len().to_string(),
    ]
}

/// A number with its thousands grouped, without a fraction.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(index, (cell, width))| {
            // Names to the left, numbers to the right.
            if index < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{self, Event};

    fn metric(tool: &str, round: u32, side: &str, value: u32) -> Metric {
        named("crr_ns", tool, round, side, value)
    }

    fn named(name: &str, tool: &str, round: u32, side: &str, value: u32) -> Metric {
        let line = format!(
            r#"{{"event":"metric","name":"{name}","value":{value},"unit":"ns","labels":{{"tool":"{tool}","round":{round},"side":"{side}"}}}}"#
        );
        let Event::Metric(metric) = event::parse(&line).unwrap().unwrap() else { panic!("not a metric") };
        metric
    }

    #[test]
    fn medians_and_ranges() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, low: 1.0, high: 3.0 }));
        assert_eq!(spread([4.0, 1.0]), Some(Spread { median: 2.5, low: 1.0, high: 4.0 }));
        assert_eq!(spread([f64::NAN]), None);
        assert_eq!(spread([]), None);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let metrics = [
            metric("lean", 1, "bare", 200_000),
            metric("lean", 1, "with", 202_000),
            metric("lean", 2, "bare", 100_000),
            metric("lean", 2, "with", 103_000),
            metric("lean", 3, "with", 9_000_000),
        ];
        let lines = table(&groups(&metrics));
        assert_eq!(lines.len(), 2);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "crr_ns",
                "lean",
                "150,000",
                "ns",
                "202,000",
                "ns",
                "103,000–9,000,000",
                "1.020",
                "1.010–1.030",
                "3"
            ]
        );
    }

    #[test]
    fn a_measure_without_a_bare_side_has_no_ratio() {
        let lines = table(&groups(&[metric("full", 1, "with", 1_234_567)]));
        assert!(lines[1].contains("1,234,567 ns") && lines[1].contains(" - "), "{lines:?}");
        assert_eq!(table(&Groups::new()).len(), 1);
    }

    #[test]
    fn a_dearer_program_is_beyond_its_budget() {
        let of_full = |name: &str, side: &str, value: u32| named(name, "full", 1, side, value);
        let beyond = |with, attached| {
            let metrics = [
                of_full("crr_quartile_ns", "bare", 100_000),
                of_full("crr_quartile_ns", "with", with),
                of_full("attach_ns", "with", attached),
            ];
            beyond_budget(&groups(&metrics))
        };
        assert_eq!(beyond(103_000, 500_000_000), [""; 0]);
        assert_eq!(
            beyond(105_000, 500_000_000),
            ["beyond its budget: crr_quartile_ns of full is 1.05, at most 1.03"]
        );
        assert_eq!(beyond(103_000, 510_000_000).len(), 1);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(
            ["0", "999", "1,000", "-12,345"],
            [0.0, 999.0, 1e3, -12_345.0].map(grouped).each_ref().map(String::as_str)
        );
    }
}
