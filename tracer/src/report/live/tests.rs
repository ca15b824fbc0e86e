//! The live table on a simulated terminal: the lines that stay on the screen, and those that scroll off.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::*;
use crate::{
    class::{Class, Severity},
    recording::{Player, Step},
    report::{
        Output, Report, View,
        fixture::{self, Shared, judged, printer, snapshot},
    },
    session::{Detail, Ending, Judgements, Summary},
    time::Timestamp,
    verdict::Verdict,
};

/// The part of a terminal that the table uses: wraps long lines and keeps the scrollback.
struct Screen {
    columns: usize,
    visible: usize,
    /// Scrollback and screen.
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
    wrap: bool,
}

impl Screen {
    fn new(columns: usize, visible: usize) -> Self {
        Self { columns, visible, lines: vec![vec![]], row: 0, column: 0, wrap: true }
    }

    fn feed(&mut self, text: &str) {
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            match character {
                '\r' => self.column = 0,
                '\n' => self.line_feed(),
                '\u{1b}' => {
                    assert_eq!(rest.next(), Some('['));
                    let mut arguments = String::new();
                    let end = loop {
                        match rest.next() {
                            Some(end) if end.is_ascii_alphabetic() => break end,
                            Some(other) => arguments.push(other),
                            None => panic!("unfinished sequence"),
                        }
                    };
                    self.control(&arguments, end);
                }
                other => self.put(other),
            }
        }
    }

    fn control(&mut self, arguments: &str, end: char) {
        match (arguments, end) {
            ("?7", 'l') => self.wrap = false,
            ("?7", 'h') => self.wrap = true,
            ("" | "0", 'J') => {
                self.lines.truncate(self.row + 1);
                self.lines[self.row].truncate(self.column);
            }
            (count, 'A') => {
                let top = self.lines.len().saturating_sub(self.visible);
                let count: usize = count.parse().unwrap_or(1);
                self.row = self.row.saturating_sub(count).max(top);
            }
            (_, 'm') => {}
            other => panic!("unexpected sequence {other:?}"),
        }
    }

    fn line_feed(&mut self) {
        self.row += 1;
        self.column = 0;
        if self.row == self.lines.len() {
            self.lines.push(vec![]);
        }
    }

    fn put(&mut self, character: char) {
        if self.column == self.columns {
            if !self.wrap {
                return;
            }
            self.line_feed();
        }
        let line = &mut self.lines[self.row];
        line.truncate(self.column);
        line.push(character);
        self.column += 1;
    }

    fn text(&self) -> String {
        self.lines.iter().map(|line| line.iter().collect::<String>() + "\n").collect()
    }
}

struct Bench {
    report: Report,
    out: Shared,
    screen: Screen,
    now: Instant,
    columns: Arc<AtomicUsize>,
}

impl Bench {
    fn new(form: Form, columns: usize, lines: usize) -> Self {
        let (printer, out, _) = printer();
        let shared = Arc::new(AtomicUsize::new(columns));
        let columns_now = Arc::clone(&shared);
        let table =
            LiveTable::new(form, move || Some(Size { columns: columns_now.load(Ordering::Relaxed), lines }));
        let mut screen = Screen::new(columns, lines);
        screen.feed("$ viptrace trace\n");
        let report = Report::live(table, form, printer);
        Self { report, out, screen, now: Instant::now(), columns: shared }
    }

    fn tick(&mut self) -> String {
        self.now += REDRAW_INTERVAL;
        assert!(self.report.tick(self.now).is_ok());
        self.screen.feed(&self.out.take());
        self.screen.text()
    }

    fn show(&mut self, verdict: &Verdict) {
        assert!(self.report.show(&judged(verdict.clone()), self.now).is_ok());
    }
}

/// Each failed flow has its own line.
const EACH: Form =
    Form { output: Output::Table, view: View::Default, each: true, several_nodes: false, replayed: false };

fn fault(port: u16) -> Verdict {
    let mut verdict = fixture::fault();
    verdict.flow.client_pod = None;
    verdict.flow.client.set_port(port);
    verdict
}

#[test]
fn healthy_flows_stay_one_line_and_the_prompt_stays() {
    let mut bench = Bench::new(Form::default(), 120, 24);
    for port in 1..200 {
        bench.show(&fixture::ok(port));
        let text = bench.tick();
        assert_eq!(text.lines().count(), 4 + usize::from(text.ends_with("\n\n")), "{text}");
    }
    let text = bench.tick();
    assert!(text.starts_with("$ viptrace trace\nTIME UTC"), "{text}");
    assert!(text.contains(" ok            199  shop/checkout:http"), "{text}");
    assert_eq!(text.matches("TIME UTC").count(), 1);
}

#[test]
fn no_fault_is_lost_from_the_scrollback_and_none_is_doubled() {
    for lines in [5, 12, 60] {
        let mut bench = Bench::new(EACH, 100, lines);
        for port in 1..=300 {
            bench.show(&fixture::ok(port));
            bench.show(&fault(port));
            if port % 7 == 0 {
                bench.tick();
            }
        }
        bench.tick();
        assert!(bench.report.finish(&Summary::default(), &Ending::default()).is_ok());
        bench.screen.feed(&bench.out.take());
        let text = bench.screen.text();
        let faults = text.lines().filter(|line| line.contains("FAULT C20")).count();
        assert_eq!(faults, 300, "{lines} lines:\n{text}");
        assert!(text.contains("Summary"));
    }
}

#[test]
fn flows_of_one_cause_share_a_line_and_lines_without_room_are_counted() {
    let mut bench = Bench::new(Form { several_nodes: true, ..Form::default() }, 80, 12);
    let nodes = ["worker-1", "worker-2", "worker-3", "worker-4", "worker-5", "worker-6"];
    for (node, port) in nodes.iter().zip(1..) {
        for client in 1..=port * 10 {
            let mut verdict = fault(client);
            verdict.flow.node = Some((*node).into());
            verdict.time = Timestamp::from_unix_secs(u64::from(port));
            bench.show(&verdict);
        }
        bench.tick();
    }
    let text = bench.tick();
    assert_eq!(text.matches("FAULT C20").count(), 4, "{text}");
    assert!(text.contains("… 2 more lines, printed at the end\n"), "{text}");
    assert!(
        text.contains("00:00:06 FAULT C20     60 shop/checkout:http         -                worker-6\n"),
        "{text}"
    );
    assert!(bench.report.finish(&Summary::default(), &Ending::default()).is_ok());
    bench.screen.feed(&bench.out.take());
    let text = bench.screen.text();
    assert_eq!(text.matches("FAULT C20").count(), 6, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn redraws_are_limited_and_an_idle_table_needs_no_timer() {
    let mut bench = Bench::new(Form::default(), 100, 24);
    bench.tick();
    assert_eq!(bench.report.deadline(), None);
    bench.show(&fault(1));
    assert_eq!(bench.report.deadline(), Some(bench.now + REDRAW_INTERVAL));
    assert!(bench.report.tick(bench.now).is_ok());
    assert_eq!(bench.out.take(), "");
    // Unchanged counters cause no redraw.
    bench.tick();
    bench.report.status(Status::default());
    assert_eq!(bench.report.deadline(), None);
}

#[test]
fn a_resize_erases_nothing_that_is_not_ours() {
    let mut bench = Bench::new(Form::default(), 100, 24);
    bench.show(&fault(1));
    bench.tick();
    bench.columns.store(60, Ordering::Relaxed);
    bench.screen.columns = 60;
    bench.show(&fault(2));
    bench.tick();
    let text = bench.tick();
    assert!(text.starts_with("$ viptrace trace\n"), "{text}");
    assert_eq!(text.matches("TIME UTC").count(), 2, "{text}");
    bench.show(&fault(3));
    let text = bench.tick();
    assert_eq!(text.matches("TIME UTC").count(), 2, "{text}");
}

#[test]
fn a_revised_flow_replaces_its_line() {
    let mut bench = Bench::new(EACH, 140, 24);
    let mut verdict = fault(1);
    verdict.class = Class::Unknown;
    bench.show(&verdict);
    assert!(bench.tick().contains("unknown "));
    verdict.class = Class::Ok;
    let before = Some(Arc::new(fixture::fault().key()));
    assert!(bench.report.show(&Judged { before, ..judged(verdict) }, bench.now).is_ok());
    let text = bench.tick();
    let row = text.lines().find(|line| line.contains("shop/checkout"));
    assert!(row.is_some_and(|row| row.contains(" ok ")), "{text}");
}

#[test]
fn healthy_flows_near_a_loss_share_a_line_apart_from_those_that_broke() {
    let mut bench = Bench::new(EACH, 140, 24);
    let near_a_loss = fixture::near_a_loss(1);
    bench.show(&near_a_loss);
    bench.show(&fixture::near_a_loss(2));
    bench.show(&Verdict { severity: Severity::Low, ..near_a_loss });
    let text = bench.tick();
    assert_eq!(text.matches("unknown ").count(), 2, "{text}");
}

#[test]
fn the_status_line_says_what_matters() {
    let status = Status {
        counts: Counts { faults: 2, ..Counts::default() },
        lost_events: 3,
        metadata_age: Some(Duration::from_mins(3)),
        remark: Some("API server does not answer\u{7}".into()),
        ..Status::default()
    };
    let lines = status_lines(&status, 80);
    assert_eq!(lines[0], "API server does not answer\\u{7}");
    assert!(lines[1].starts_with("2 faults, ") && lines[1].contains("3 events LOST"), "{lines:?}");
}

/// Plays a committed recording.
fn play(name: &str, mut take: impl FnMut(&Judgements)) {
    let path = format!("{}/../tests/fixtures/recordings/{name}.viptrace", env!("CARGO_MANIFEST_DIR"));
    let mut player = Player::open(fs::File::open(path).unwrap(), Detail::Faults).unwrap();
    while let Some(step) = player.step().unwrap() {
        if let Step::Judged { judgements, .. } = step {
            take(&judgements);
        }
    }
}

#[test]
fn what_a_person_reads_while_a_trace_runs_and_when_it_has_ended() {
    for columns in [80, 120] {
        let mut bench = Bench::new(Form::default(), columns, 24);
        let mut summary = Summary::default();
        for name in [
            "debian-6.12-c5-one-service-without-rules",
            "debian-6.12-c20-no-endpoints",
            "debian-7.2-c6-stale-endpoint-gone",
            "debian-6.1-c29-silent-other-node",
        ] {
            play(name, |judgements| {
                for judged in &judgements.judged {
                    summary.add(judged);
                    bench.report.show(judged, bench.now).unwrap();
                }
                for folded in &judgements.folded {
                    summary.add_folded(folded);
                    bench.report.fold(folded, bench.now);
                }
            });
        }
        bench.report.status(Status {
            counts: summary.counts(),
            flows_open: 3,
            lost_events: 0,
            metadata_age: Some(Duration::from_secs(70)),
            remark: Some("Services and Pods are 70 s old: https://10.0.0.1:6443: no connection".into()),
        });
        // The first tick only learns the screen's size.
        bench.tick();
        snapshot(&format!("live_table_{columns}_columns"), &bench.tick());
        assert!(bench.report.finish(&summary, &Ending::default()).is_ok());
        bench.screen.feed(&bench.out.take());
        snapshot(&format!("live_table_{columns}_columns_at_the_end"), &bench.screen.text());
    }
}

/// The README's table: one flow of each cause from recordings, and healthy ones.
fn readme_trace() -> (String, Verdict) {
    let mut bench = Bench::new(Form::default(), 100, 60);
    // As a terminal copies it: a wrapped line is one line.
    bench.screen.columns = usize::MAX;
    let mut summary = Summary::default();
    let mut faults = Vec::new();
    for name in [
        "debian-6.12-c20-no-endpoints",
        "debian-6.12-c28-refused-same-node",
        "debian-7.2-c6-stale-endpoint-gone",
        "debian-6.1-c16-conntrack-table-full",
    ] {
        let mut fault = None;
        play(name, |judgements| {
            fault =
                fault.take().or_else(|| judgements.judged.iter().find(|it| it.verdict.is_fault()).cloned());
        });
        faults.extend(fault);
    }
    play("debian-6.12-c5-one-service-without-rules", |judgements| {
        for judged in judgements.judged.iter().filter(|judged| judged.verdict.class == Class::Ok) {
            summary.add(judged);
            bench.report.show(judged, bench.now).unwrap();
        }
        for folded in &judgements.folded {
            summary.add_folded(folded);
            bench.report.fold(folded, bench.now);
        }
    });
    for judged in &faults {
        summary.add(judged);
        bench.report.show(judged, bench.now).unwrap();
    }
    assert!(bench.report.finish(&summary, &Ending::default()).is_ok());
    bench.screen.feed(&bench.out.take());
    let text = bench.screen.text();
    let (table, rest) = text.split_once("\nSummary\n").unwrap();
    let cause = rest.split("\n\n").find(|section| section.starts_with("First cause")).unwrap();
    (format!("{table}\n{cause}\n"), faults.remove(0).verdict)
}

/// The README and the page about records show what the program prints. `VIPTRACE_README=write` writes it there.
#[test]
fn the_readme_is_true() {
    let (trace, verdict) = readme_trace();
    let record = serde_json::to_string_pretty(&verdict).unwrap() + "\n";
    for (page, name, text) in [("README.md", "trace", trace), ("docs/records.md", "record", record)] {
        let path = format!("{}/../{page}", env!("CARGO_MANIFEST_DIR"));
        let shown = fs::read_to_string(&path).unwrap();
        let (before, rest) = shown.split_once(&format!("<!-- example: {name} -->\n")).unwrap();
        let (fence, rest) = rest.split_once('\n').unwrap();
        let (_, after) = rest.split_once("\n```\n").unwrap();
        let printed = format!("{before}<!-- example: {name} -->\n{fence}\n{text}```\n{after}");
        if std::env::var_os("VIPTRACE_README").is_some_and(|what| what == "write") {
            fs::write(path, &printed).unwrap();
        } else {
            assert_eq!(shown, printed, "VIPTRACE_README=write cargo test -p viptrace the_readme_is_true");
        }
    }
}
