//! `cargo xtask test`: set-up, checks, the host's tests, then the scenarios in guests of each kernel, some in parallel.
//!
//! `--matrix` runs every scenario on every kernel and prints the table of the cells that they cover (`matrix`).
//! The last line of stdout is the tally, which counts every failure before it.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::apt;
use crate::cluster;
use crate::deploy;
use crate::event::{Event, Scenario, Verdict};
use crate::exports;
use crate::host_tests;
use crate::image::Flavour;
use crate::kernels::{self, SERIES, Series};
use crate::matrix::Matrix;
use crate::place::Place;
use crate::printer::{Printer, indented, seconds};
use crate::report;
use crate::scores::Results;
use crate::setup;
use crate::stamp::Stamp;
use crate::tally::Tally;
use crate::vm::{self, Console, Ending, Guest, Run};

/// The longest time for all scenarios of a guest.
const LIMIT: Duration = Duration::from_mins(25);
/// The longest time for a part of the whole matrix, and for scenarios that settings make longer.
const MATRIX_LIMIT: Duration = Duration::from_mins(90);
/// The longest silence of a guest: the mixed run of 5,000 connections under emulation on a busy machine.
const SILENCE: Duration = Duration::from_mins(5);

#[derive(Debug, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Options {
    /// Only guests of this kernel; may be given more than once. With --cluster: a cluster whose nodes have this kernel
    #[arg(long = "kernel", value_name = "SERIES", value_parser = kernels::parse)]
    kernels: Vec<&'static Series>,
    /// Only scenarios whose name contains FILTER, or one of several filters separated by commas (`=NAME` selects one
    /// exactly), and no tests on the host
    #[arg(long, value_name = "FILTER", value_parser = parameter, conflicts_with = "host_only")]
    scenario: Option<String>,
    /// Trace without this kernel hook, to show which scenarios need it; may be given more than once
    #[arg(long = "without-hook", value_name = "HOOK", value_parser = parameter, conflicts_with = "host_only")]
    without_hooks: Vec<String>,
    /// Keep each scenario's recording among the guest's files
    #[arg(long, conflicts_with = "host_only")]
    keep_recordings: bool,
    /// A setting of the lab, such as `soak=1800` or `api-away=600` (seconds), `kills=20` or `seed=7`; may be given more than
    /// once
    #[arg(long = "lab", value_name = "NAME=VALUE", value_parser = parameter, conflicts_with = "host_only")]
    lab: Vec<String>,
    /// Only the checks and the tests on the host
    #[arg(long, conflicts_with = "kernels")]
    host_only: bool,
    /// Run all guests. Without it, a guest whose scenarios all passed before, with the same binaries and kernel, is not run
    /// and its scenarios count as skipped
    #[arg(long, conflicts_with_all = ["host_only", "cluster"])]
    again: bool,
    /// Every scenario on every kernel, and the table of the modes, Service kinds, families and protocols that they
    /// cover; an uncovered cell is a failure
    #[arg(long, conflicts_with_all = ["host_only", "kernels", "scenario", "without_hooks"])]
    matrix: bool,
    /// Only the scenarios on a real Kubernetes with two nodes (see `cargo xtask cluster`)
    #[arg(long, conflicts_with_all = ["host_only", "matrix", "without_hooks", "lab", "keep_recordings"])]
    cluster: bool,
    /// With --cluster: which Kubernetes
    #[command(flatten)]
    kind: cluster::Kind,
}

/// The number of guests that run at the same time on two processors. Most of the time a guest waits: for timeouts, for
/// retransmits, for an agent's next line. With six, the soak's agent came too late with what it does every 30 s.
const GUESTS: usize = 4;

/// The number of guests of each kernel for the whole matrix, and for the kernel's share, which is the default: many
/// short parts end at about the same time, but each boots. The lab defines each kernel's share
/// (`tests/src/scenarios/share.rs`).
const MATRIX_GUESTS: usize = 4;
const SHARE_GUESTS: &[(&str, usize)] = &[("6.12", 6), ("6.1", 2), ("7.2", 2)];

/// One guest's part of a kernel's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// From 1.
    number: usize,
    parts: usize,
}

impl Part {
    /// The name of the guest that runs this part.
    fn of(self, series: &Series) -> String {
        match self.parts {
            1 => series.name.to_owned(),
            parts => format!("{} {}/{parts}", series.name, self.number),
        }
    }
}

impl Options {
    /// Every scenario on every kernel.
    pub(crate) fn whole_matrix() -> Self {
        Self { matrix: true, ..Self::default() }
    }

    /// Whether each kernel runs its share, which is the default.
    fn shared(&self) -> bool {
        !self.matrix && self.kernels.is_empty() && self.scenario.is_none()
    }

    /// Whether a guest that passed before is not run: not where the command names what to run.
    fn remembers(&self) -> bool {
        self.shared()
            && !self.again
            && self.without_hooks.is_empty()
            && self.lab.is_empty()
            && !self.keep_recordings
    }

    /// The longest time for the scenarios of a guest.
    fn limit(&self) -> Duration {
        if self.matrix || !self.lab.is_empty() { MATRIX_LIMIT } else { LIMIT }
    }

    /// The parts of this kernel's scenarios. Each part has its own guest.
    fn parts(&self, series: &Series) -> Vec<Part> {
        let share =
            SHARE_GUESTS.iter().find(|(name, _)| *name == series.name).map_or(1, |(_, guests)| *guests);
        let parts = match (self.matrix, self.shared()) {
            (true, _) => MATRIX_GUESTS,
            (false, true) => share,
            (false, false) => 1,
        };
        (1..=parts).map(|number| Part { number, parts }).collect()
    }
}

/// The kernels in the order in which their guests begin: those that take longest first, so that no processor waits for
/// them at the end.
const LONGEST_FIRST: [&str; 5] = ["6.12", "5.10", "6.1", "7.2", "6.12-rt"];

fn longest_first<'a>(guests: &[&'a Series]) -> Vec<&'a Series> {
    let mut guests = guests.to_vec();
    guests.sort_by_key(|series| LONGEST_FIRST.iter().position(|name| *name == series.name));
    guests
}

/// Runs the requested tests. Returns false if a test failed or none ran.
pub(crate) fn run(printer: &Printer, options: &Options) -> bool {
    let mut tally = Tally::default();
    if let Err(error) = run_all(printer, options, &mut tally) {
        printer.error(&error);
        tally.failed += 1;
    }
    printer.failures();
    printer.data(&tally.line());
    tally.is_good()
}

fn is_on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn run_all(printer: &Printer, options: &Options, tally: &mut Tally) -> Result<()> {
    if options.cluster {
        return run_on_clusters(printer, options, tally);
    }
    run_here(printer, options, tally)?;
    printer.say(
        "==> the scenarios on a real Kubernetes were not run; to run them, type: cargo xtask test --cluster",
    );
    Ok(())
}

/// Runs the scenarios on a cluster with nodes of each kernel.
fn run_on_clusters(printer: &Printer, options: &Options, tally: &mut Tally) -> Result<()> {
    let default = || kernels::parse(kernels::DEFAULT).map_err(anyhow::Error::msg);
    let kernels = if options.kernels.is_empty() { vec![default()?] } else { options.kernels.clone() };
    for series in kernels {
        tally.add(cluster::scenarios::run(printer, &options.kind, series, options.scenario.as_deref())?);
    }
    Ok(())
}

fn run_here(printer: &Printer, options: &Options, tally: &mut Tally) -> Result<()> {
    let place = Place::find()?;
    let guests: Vec<&Series> = match (options.host_only, options.kernels.as_slice()) {
        (true, _) => Vec::new(),
        (false, []) => SERIES.iter().collect(),
        (false, some) => some.to_vec(),
    };
    let mut packages = Vec::new();
    if !guests.is_empty() {
        packages.push(apt::GUEST);
    }
    if options.scenario.is_none() && !is_on_path("kubectl") {
        packages.push(apt::HOST_TESTS);
    }
    setup::tools(printer, &place, &packages)?;
    setup::kernels(printer, &place, &guests)?;
    if options.scenario.is_none() {
        printer.say("==> checks");
        tally.add(host_tests::checks(&place, printer)?);
        printer.say("==> tests on the host");
        tally.add(host_tests::cargo_test(&place, printer)?);
        printer.say("==> checks of deploy/");
        tally.add(deploy::checks(&place, printer)?);
        printer.say("==> checks of the exports");
        tally.add(exports::checks(&place, printer)?);
        printer.say("==> checks of the report in a browser");
        tally.add(report::checks(&place, printer)?);
    }
    if guests.is_empty() {
        return Ok(());
    }
    setup::binaries(printer, &place)?;
    let mut queue = VecDeque::new();
    for series in longest_first(&guests) {
        let (kernel, image) = setup::guest_image(printer, &place, series, Flavour::Lab)?;
        let parts = options.parts(series);
        queue.extend(parts.into_iter().map(|part| Guest {
            name: part.of(series),
            kernel: kernel.clone(),
            image: image.clone(),
            emulator: vm::QEMU.into(),
            parameters: parameters(options, series, part),
            counted: false,
            console: Console::Prefixed(format!("{:>8} | ", part.of(series))),
            limit: options.limit(),
            silence: SILENCE,
            output: place.guest_output(&part.of(series).replace([' ', '/'], "-")),
        }));
    }
    // After the whole matrix, scenarios that no longer exist must not count.
    let results = if options.matrix { Results::default() } else { Results::read(&place.scores())? };
    let mut collected = Collected { matrix: Matrix::default(), results, file: place.scores() };
    if options.remembers() {
        tally.skipped += skip_passed(printer, &mut queue)?;
    }
    tally.add(run_guests(printer, queue, &mut collected)?);
    let matrix = collected.matrix;
    if options.matrix {
        let names: Vec<&'static str> = guests.iter().map(|series| series.name).collect();
        let table = matrix.table(&names);
        for line in &table {
            printer.data(line);
        }
        let path = place.guest().join("out/matrix.md");
        fs::write(&path, table.join("\n") + "\n")
            .with_context(|| format!("could not write {}", path.display()))?;
        let uncovered = matrix.uncovered(&names);
        if uncovered > 0 {
            printer.failed(&format!("matrix: no scenario covers {uncovered} cells"));
        }
        tally.failed += uncovered;
    }
    Ok(())
}

/// The reports of all guests.
struct Collected {
    matrix: Matrix,
    results: Results,
    /// Where the results are kept.
    file: PathBuf,
}

impl Collected {
    fn keep(&self) -> Result<()> {
        self.results.write(&self.file)
    }
}

/// What a guest's scenarios run on: the kernel, the binaries, the fixtures and the parameters.
fn stamp(guest: &Guest) -> Result<Stamp> {
    let mut stamp = Stamp::new("scenarios");
    stamp.file(&guest.kernel.image)?;
    stamp.file(&guest.image)?;
    stamp.note(&guest.parameters.join(" "));
    Ok(stamp)
}

/// The number of the guest's scenarios, in a file among its results that is there if all of them passed.
fn passed(guest: &Guest) -> PathBuf {
    guest.output.join("passed")
}

/// Takes the guests that passed before, with the same binaries and kernel, out of the queue, and prints them. Returns the
/// number of their scenarios.
fn skip_passed(printer: &Printer, queue: &mut VecDeque<Guest>) -> Result<u64> {
    let mut skipped = 0;
    let mut rest = VecDeque::new();
    for guest in queue.drain(..) {
        let count = fs::read_to_string(passed(&guest)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        match count.filter(|count| *count > 0) {
            Some(count) if stamp(&guest)?.is_fresh(&passed(&guest)) => {
                skipped += count;
                printer.data(&format!(
                    "skipped  {}: its {count} scenarios passed before, and nothing has changed",
                    guest.name
                ));
            }
            _ => rest.push_back(guest),
        }
    }
    *queue = rest;
    if skipped > 0 {
        printer.say("==> to run these scenarios again, type: cargo xtask test --again");
    }
    Ok(skipped)
}

/// Runs the guests, at most `GUESTS` at a time.
fn run_guests(printer: &Printer, queue: VecDeque<Guest>, collected: &mut Collected) -> Result<Tally> {
    let (queue, shared) = (Mutex::new(queue), Mutex::new(collected));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        let mut tally = Tally::default();
        while let Some(guest) = next() {
            tally.add(scenarios(printer, &guest, &shared)?);
        }
        Ok::<Tally, anyhow::Error>(tally)
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..GUESTS).map(|_| scope.spawn(work)).collect();
        let mut tally = Tally::default();
        for worker in workers {
            let done = worker.join().map_err(|_| anyhow::anyhow!("a thread that ran guests panicked"))?;
            tally.add(done?);
        }
        Ok(tally)
    })
}

/// The lab's parameters on the guest's kernel command line.
fn parameters(options: &Options, series: &Series, part: Part) -> Vec<String> {
    let mut parameters = vec!["lab.mode=test".to_owned()];
    parameters.extend(options.scenario.as_ref().map(|filter| format!("lab.filter={filter}")));
    if options.shared() {
        parameters.push(format!("lab.share={}", series.name));
    }
    parameters.extend((part.parts > 1).then(|| format!("lab.part={}/{}", part.number, part.parts)));
    if !options.without_hooks.is_empty() {
        parameters.push(format!("lab.without={}", options.without_hooks.join(",")));
    }
    if options.keep_recordings {
        parameters.push("lab.keep=recordings".to_owned());
    }
    parameters.extend(options.lab.iter().map(|setting| format!("lab.{setting}")));
    parameters
}

/// Runs one guest and prints a line for each of its scenarios and for each failure of the guest itself.
fn scenarios(printer: &Printer, guest: &Guest, collected: &Mutex<&mut Collected>) -> Result<Tally> {
    let series = guest.kernel.series;
    let name = &guest.name;
    printer.say(&format!("==> guest {name} ({})", guest.kernel.release));
    let mut tally = Tally::default();
    let collected = || collected.lock().unwrap_or_else(PoisonError::into_inner);
    let run = vm::run(printer, guest, |event| match event {
        Event::Scenario(scenario) => {
            tally.count(scenario.result);
            collected().matrix.count(series, scenario);
            if scenario.result != Verdict::Skipped {
                collected().results.keep(series, &guest.kernel.release, scenario);
            }
            let line = scenario_line(&guest.name, scenario);
            match scenario.result {
                Verdict::Passed => printer.data(&format!("passed   {line}")),
                Verdict::Skipped => printer.data(&format!("skipped  {line}")),
                Verdict::Failed => printer.failed(&line),
            }
        }
        Event::Matrix { cells } => collected().matrix.list(cells),
        Event::File { .. } | Event::Metric(_) | Event::Done { .. } => {}
    })?;
    collected().keep()?;
    let problems = problems(&run, tally);
    if problems.is_empty() && tally.failed == 0 {
        let passed = passed(guest);
        fs::write(&passed, tally.passed.to_string())
            .with_context(|| format!("could not write {}", passed.display()))?;
        stamp(guest)?.keep(&passed)?;
    }
    for problem in problems {
        tally.count(Verdict::Failed);
        printer.failed(&format!("{name}  guest: {problem}"));
    }
    if tally.failed > 0 {
        printer.say(&format!("    logs and files of this guest: {}", guest.output.display()));
    }
    printer.say(&format!("    guest {name}: {} ({})", tally.line(), seconds(run.took)));
    Ok(tally)
}

/// The failures of a run other than failed scenarios.
fn problems(run: &Run, tally: Tally) -> Vec<String> {
    let mut problems = run.unread.clone();
    match &run.ending {
        Ending::Done(0) if tally == Tally::default() => problems.push("no scenario ran".to_owned()),
        Ending::Done(0) => {}
        Ending::Done(exit) if tally.failed == 0 => {
            problems.push(format!("it exited with status {exit} and reported no failed scenario"));
        }
        Ending::Done(_) => {}
        Ending::Died(_) | Ending::Stopped(_) => {
            let tail = run.last_words();
            problems.push(format!("{}; the last lines of its console:{tail}", run.ending));
        }
    }
    problems
}

/// The line of a scenario after its result.
fn scenario_line(guest: &str, scenario: &Scenario) -> String {
    let Scenario { name, detail, seconds, .. } = scenario;
    let mut lines = detail.lines();
    let first = lines.next().map_or(String::new(), |line| format!(": {line}"));
    let detail = first + &indented(lines);
    format!("{guest}  {name} ({seconds:.1} s){detail}")
}

/// Parses a value for the kernel's command line.
pub(crate) fn parameter(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:/@=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("only letters, digits and -_.,:/@= are allowed on the kernel's command line".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ending: Ending, unread: &[&str]) -> Run {
        Run::for_test(ending, unread, &["[    1.0] Kernel panic", "last words"])
    }

    #[test]
    fn a_scenario_has_one_line() {
        let scenario = Scenario {
            name: "c6".into(),
            result: Verdict::Failed,
            detail: "no verdict".into(),
            seconds: 2.34,
            mode: None,
            cells: Vec::new(),
            scores: Vec::new(),
        };
        assert_eq!(scenario_line("6.12", &scenario), "6.12  c6 (2.3 s): no verdict");
        let scenario = Scenario { result: Verdict::Passed, detail: String::new(), ..scenario };
        assert_eq!(scenario_line("6.1", &scenario), "6.1  c6 (2.3 s)");
        let scenario = Scenario { detail: "one\ntwo".into(), ..scenario };
        assert_eq!(scenario_line("6.1", &scenario), "6.1  c6 (2.3 s): one\n    two");
    }

    #[test]
    fn a_guest_without_results_is_a_failure() {
        let (none, good) = (Tally::default(), Tally { passed: 3, ..Tally::default() });
        let bad = Tally { failed: 1, ..good };
        assert!(problems(&after(Ending::Done(0), &[]), good).is_empty());
        assert_eq!(problems(&after(Ending::Done(0), &[]), none), ["no scenario ran"]);
        assert_eq!(problems(&after(Ending::Done(1), &[]), good).len(), 1);
        assert!(problems(&after(Ending::Done(1), &[]), bad).is_empty(), "the failed scenario counts already");
        assert_eq!(problems(&after(Ending::Done(0), &["unreadable"]), good), ["unreadable"]);
        let died = problems(&after(Ending::Died("gone".into()), &[]), good);
        assert_eq!(died.len(), 1);
        assert!(died[0].contains("gone") && died[0].ends_with("last words"), "{died:?}");
    }

    #[test]
    fn the_lab_receives_the_scenarios_and_the_hooks_to_leave_out() {
        let mut options = Options::default();
        let series = |name: &str| kernels::parse(name).unwrap();
        let whole = Part { number: 1, parts: 1 };
        let part = Part { number: 2, parts: 3 };
        assert_eq!(
            parameters(&options, series("6.12"), part),
            ["lab.mode=test", "lab.share=6.12", "lab.part=2/3"]
        );
        options.scenario = Some("c6,n1".into());
        options.without_hooks = vec!["kfree_skb".into(), "early_drop".into()];
        assert_eq!(
            parameters(&options, series("6.1"), whole),
            ["lab.mode=test", "lab.filter=c6,n1", "lab.without=kfree_skb,early_drop"]
        );
        assert_eq!(options.limit(), LIMIT);
        options.without_hooks.clear();
        options.lab = vec!["soak=1800".into(), "kills=20".into()];
        assert_eq!(
            parameters(&options, series("6.1"), whole),
            ["lab.mode=test", "lab.filter=c6,n1", "lab.soak=1800", "lab.kills=20"]
        );
        assert_eq!(options.limit(), MATRIX_LIMIT, "a long soak");
    }

    #[test]
    fn a_kernel_runs_its_share_by_default() {
        let series = |name: &str| kernels::parse(name).unwrap();
        let mut options = Options::default();
        assert!(options.shared());
        assert_eq!((options.parts(series("6.12")).len(), options.parts(series("5.10")).len()), (6, 1));
        options.matrix = true;
        assert!(!options.shared());
        assert_eq!(options.parts(series("6.12")).len(), MATRIX_GUESTS);
        options.matrix = false;
        options.kernels = vec![series("5.10")];
        assert!(!options.shared());
        assert_eq!(options.parts(series("6.12")).len(), 1);
        options.kernels = Vec::new();
        options.scenario = Some("c6".into());
        assert!(!options.shared());
        assert_eq!(options.parts(series("6.12")).len(), 1);
    }

    #[test]
    fn a_guest_that_passed_before_is_skipped_until_something_changes() {
        let here = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = here.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let guest = |parameters: &[&str]| {
            let mut guest = Guest::for_test(here.path().join("out"));
            guest.kernel.image = here.path().join("vmlinuz");
            guest.image = here.path().join("lab.cpio");
            guest.parameters = parameters.iter().map(|&text| text.to_owned()).collect();
            guest
        };
        file("vmlinuz", "kernel");
        file("lab.cpio", "image");
        fs::create_dir(here.path().join("out")).unwrap();
        let skipped = |parameters: &[&str]| {
            let mut queue = VecDeque::from([guest(parameters)]);
            (skip_passed(&Printer::quiet(), &mut queue).unwrap(), queue.len())
        };
        assert_eq!(skipped(&["a"]), (0, 1), "it never ran");
        file("out/passed", "12");
        stamp(&guest(&["a"])).unwrap().keep(&here.path().join("out/passed")).unwrap();
        assert_eq!(skipped(&["a"]), (12, 0));
        assert_eq!(skipped(&["b"]), (0, 1), "other scenarios");
        file("lab.cpio", "another image");
        assert_eq!(skipped(&["a"]), (0, 1), "other binaries");
        file("lab.cpio", "image");
        file("out/passed", "not a number");
        assert_eq!(skipped(&["a"]), (0, 1), "damaged");
    }

    #[test]
    fn only_a_run_of_everything_skips_what_passed_before() {
        assert!(Options::default().remembers());
        for options in [
            Options { again: true, ..Options::default() },
            Options { matrix: true, ..Options::default() },
            Options { scenario: Some("c6".into()), ..Options::default() },
            Options { kernels: vec![kernels::parse("6.12").unwrap()], ..Options::default() },
            Options { lab: vec!["seed=7".into()], ..Options::default() },
        ] {
            assert!(!options.remembers(), "{options:?}");
        }
    }

    #[test]
    fn every_kernel_has_its_place_in_the_order() {
        let order: Vec<_> =
            longest_first(&SERIES.iter().collect::<Vec<_>>()).iter().map(|it| it.name).collect();
        assert_eq!(order, LONGEST_FIRST);
    }

    #[test]
    fn filters_cannot_change_the_command_line() {
        assert!(parameter("c6-stale,n1").is_ok());
        for text in ["", "a b", "a\"b", "a\nb"] {
            assert!(parameter(text).is_err(), "{text:?}");
        }
    }
}
