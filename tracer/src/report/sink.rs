//! Where verdicts go: one of the tables, JSON lines or YAML documents, behind one type.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{
    report::{
        FoldedItem, Item, Output, OutputError, Printer, Summary, View, json,
        live::LiveTable,
        log::LogTable,
        printer::Style,
        row::{Row, end},
        yaml,
    },
    text::{self, measured, safe},
    time::Timestamp,
};

/// What the status line of a live table says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub flows_seen: u64,
    pub flows_open: u64,
    pub ok: u64,
    pub normal: u64,
    pub faults: u64,
    pub unknown: u64,
    pub lost_events: u64,
    /// See [`Summary::metadata_age`].
    pub metadata_age: Option<Duration>,
    /// Anything that has to be said all the time, such as an API server that does not answer.
    pub remark: Option<String>,
}

/// Takes verdicts and prints them. Nothing is written between calls: who runs the loop calls [`Report::tick`] after
/// each batch and at [`Report::deadline`].
#[derive(Debug)]
pub struct Report {
    printer: Printer,
    sink: Sink,
    view: View,
}

#[derive(Debug)]
enum Sink {
    Live(Box<LiveTable>),
    Log(Box<LogTable>),
    Json,
    Yaml,
}

impl Report {
    /// Chooses the sink: the table is updated in place where standard output is a terminal.
    pub fn new(output: Output, view: View, printer: Printer) -> Self {
        let sink = match output {
            Output::Json => Sink::Json,
            Output::Yaml => Sink::Yaml,
            Output::Table if printer.can_update_in_place() => {
                Sink::Live(Box::new(LiveTable::on_stdout(view)))
            }
            Output::Table | Output::Wide => Sink::Log(Box::new(LogTable::new(output, view))),
        };
        Self { printer, sink, view }
    }

    #[cfg(test)]
    pub(super) fn live(table: LiveTable, view: View, printer: Printer) -> Self {
        Self { printer, sink: Sink::Live(Box::new(table)), view }
    }

    /// Shows one judged flow, if the view shows it.
    pub fn show(&mut self, item: Item<'_>, now: Instant) -> Result<(), OutputError> {
        match &mut self.sink {
            Sink::Live(table) => {
                table.show(item, now);
                Ok(())
            }
            Sink::Log(table) => table.show(item, now, &mut self.printer),
            Sink::Json if self.view.shows(item.verdict) => {
                let mut line = json::line(item.verdict)?;
                line.push('\n');
                self.printer.data(&line)
            }
            Sink::Yaml if self.view.shows(item.verdict) => self.printer.data(&yaml::document(item.verdict)?),
            Sink::Json | Sink::Yaml => Ok(()),
        }
    }

    /// Counts healthy flows that share a verdict. A record has each flow or none, so only tables show them.
    pub fn fold(&mut self, item: FoldedItem<'_>, now: Instant) {
        match &mut self.sink {
            Sink::Live(table) => table.fold(item),
            Sink::Log(table) => table.fold(item, now),
            Sink::Json | Sink::Yaml => {}
        }
    }

    /// Whether [`Report::status`] is of use.
    pub const fn shows_status(&self) -> bool {
        matches!(self.sink, Sink::Live(_))
    }

    /// Takes the newest counters; only a live table shows them.
    pub fn status(&mut self, status: Status, now: Instant) {
        if let Sink::Live(table) = &mut self.sink {
            table.status(status, now);
        }
    }

    /// When [`Report::tick`] is due next, if anything waits to be written.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.sink {
            Sink::Live(table) => table.deadline(),
            Sink::Log(table) => table.deadline(),
            Sink::Json | Sink::Yaml => None,
        }
    }

    /// Writes what is due and hands everything on to the reader. To be called after each batch.
    pub fn tick(&mut self, now: Instant) -> Result<(), OutputError> {
        match &mut self.sink {
            Sink::Live(table) => table.tick(now, &mut self.printer),
            Sink::Log(table) => table.tick(now, &mut self.printer),
            Sink::Json | Sink::Yaml => self.printer.flush(),
        }
    }

    /// Says something to the person without disturbing the table.
    pub fn note(&mut self, text: &str) -> Result<(), OutputError> {
        self.talk(|printer| printer.note(text))
    }

    /// As [`Report::note`], for what limits the verdicts.
    pub fn warn(&mut self, text: &str) -> Result<(), OutputError> {
        self.talk(|printer| printer.warn(text))
    }

    fn talk(&mut self, say: impl FnOnce(&mut Printer)) -> Result<(), OutputError> {
        if let Sink::Live(table) = &mut self.sink
            && self.printer.shares_screen()
        {
            table.make_way(&mut self.printer)?;
        }
        say(&mut self.printer);
        Ok(())
    }

    /// Ends the output with the summary: on standard output for tables, on standard error beside records.
    pub fn finish(&mut self, summary: &Summary) -> Result<(), OutputError> {
        match &mut self.sink {
            Sink::Live(table) => table.finish(&mut self.printer)?,
            Sink::Log(table) => table.write_folds(&mut self.printer)?,
            Sink::Json | Sink::Yaml => {
                self.printer.flush()?;
                let text = summary.render(self.printer.talk_paint());
                self.printer.talk_block(&text);
                return Ok(());
            }
        }
        let text = summary.render(self.printer.paint());
        self.printer.data(&text)?;
        self.printer.flush()
    }
}

/// Folds that are kept; healthy flows beyond them share one line.
const MAX_FOLDS: usize = 1024;

/// Healthy flows, folded by Service and endpoint.
#[derive(Debug, Default)]
pub(super) struct Folds(BTreeMap<FoldKey, Fold>);

/// The name of the Service port, and the endpoint.
type FoldKey = (String, Option<SocketAddr>);

#[derive(Debug)]
struct Fold {
    row: Row,
    count: u64,
    clients: Clients,
    slowest: Option<Duration>,
    last: Timestamp,
    changed: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Clients {
    One,
    Several,
}

impl Folds {
    /// Counts a healthy flow; true if it is the first of its line.
    pub(super) fn add(&mut self, item: Item<'_>, row: Row) -> bool {
        let key = (row.service.clone(), item.verdict.flow.endpoint);
        let full = self.0.len() >= MAX_FOLDS && !self.0.contains_key(&key);
        let (key, row) = if full { other_fold(row) } else { (key, row) };
        if let Some(fold) = self.0.get_mut(&key) {
            // A revised flow was counted here before, or had a line of its own.
            fold.count += u64::from(!item.revised);
            if fold.row.client != row.client {
                fold.clients = Clients::Several;
            }
            fold.slowest = fold.slowest.max(item.connect_time);
            fold.last = fold.last.max(item.verdict.time);
            fold.changed = true;
            return false;
        }
        let fold = Fold {
            row,
            count: 1,
            clients: Clients::One,
            slowest: item.connect_time,
            last: item.verdict.time,
            changed: false,
        };
        self.0.insert(key, fold);
        true
    }

    /// Counts healthy flows that share a verdict; true if they are the first of their line. `with_addresses` as for
    /// the rows of this table.
    pub(super) fn add_folded(&mut self, item: FoldedItem<'_>, with_addresses: bool) -> bool {
        let service = item.verdict.service.as_ref();
        let name = service.map_or_else(|| "-".into(), |service| safe(&service.to_string()).into_owned());
        let mut key = (name, item.verdict.flow.endpoint);
        if !self.0.contains_key(&key) {
            let alone = Item { verdict: item.verdict, connect_time: item.slowest, revised: false };
            let mut row = Row::new(alone, with_addresses);
            row.client = end(item.client_pod, Some(item.client), with_addresses);
            if self.0.len() >= MAX_FOLDS {
                (key, row) = other_fold(row);
            }
            self.0.entry(key.clone()).or_insert(Fold {
                row,
                count: 0,
                clients: Clients::One,
                slowest: None,
                last: Timestamp::MIN,
                changed: false,
            });
        }
        let Some(fold) = self.0.get_mut(&key) else { return false };
        let first = fold.count == 0;
        let one = if with_addresses {
            item.one_address
        } else {
            item.one_pod && (item.client_pod.is_some() || item.one_address)
        };
        if fold.clients == Clients::One
            && !(one && fold.row.client == end(item.client_pod, Some(item.client), with_addresses))
        {
            fold.clients = Clients::Several;
        }
        fold.count += item.count;
        fold.slowest = fold.slowest.max(item.slowest);
        fold.last = fold.last.max(item.last);
        fold.changed = true;
        first
    }

    /// The lines that changed since they were last taken.
    pub(super) fn take_changed(&mut self) -> Vec<Row> {
        let take = |fold: &mut Fold| std::mem::take(&mut fold.changed).then(|| fold.line());
        self.0.values_mut().filter_map(take).collect()
    }

    /// The lines that changed last, at most this many, in the order of their names.
    pub(super) fn latest(&self, most: usize) -> Vec<Row> {
        let mut folds: Vec<_> = self.0.values().enumerate().collect();
        if folds.len() > most {
            folds.sort_by_key(|(_, fold)| std::cmp::Reverse(fold.last));
            folds.truncate(most);
            folds.sort_by_key(|(place, _)| *place);
        }
        folds.into_iter().map(|(_, fold)| fold.line()).collect()
    }
}

impl Fold {
    fn line(&self) -> Row {
        let mut row = self.row.clone();
        row.time = self.last.clock();
        if self.count > 1 {
            row.what = text::count(self.count, "flow");
            if let Some(slowest) = self.slowest {
                row.what.push_str(", slowest connect ");
                row.what.push_str(&measured(slowest));
            }
        }
        if self.clients == Clients::Several {
            row.client = "(several)".into();
        }
        row
    }
}

fn other_fold(row: Row) -> (FoldKey, Row) {
    let name = "(others)".to_owned();
    let row = Row { service: name.clone(), vip: "-".into(), endpoint: "-".into(), style: Style::Good, ..row };
    ((name, None), row)
}

#[cfg(test)]
pub(super) mod fixture {
    //! Verdicts for the tests of this module.

    use crate::{
        class::{Class, Confidence, Domain, Safety, Severity},
        time::Timestamp,
        verdict::{Evidence, EvidenceType, FlowRef, Mitigation, ServiceRef, Verdict},
    };

    pub(in crate::report) fn fault() -> Verdict {
        Verdict {
            time: Timestamp::from_unix_ns(101_500_000_000),
            class: Class::C20,
            root_cause: "no_endpoints — the selector matches no Pod".into(),
            domain: Domain::NoEndpoints,
            confidence: Confidence::High,
            severity: Severity::High,
            service: Some(ServiceRef {
                namespace: "shop".into(),
                name: "checkout".into(),
                port: "http".into(),
            }),
            flow: FlowRef {
                protocol: "TCP".into(),
                client: ([10, 244, 1, 40], 40001).into(),
                vip: Some(([10, 96, 10, 20], 80).into()),
                endpoint: None,
                client_pod: Some("shop/client".into()),
                endpoint_pod: None,
                node: Some("worker-1".into()),
                started: Timestamp::from_unix_secs(101),
            },
            evidence: vec![Evidence {
                r#type: EvidenceType::Kernel,
                time: Some(Timestamp::from_unix_secs(101)),
                content: "nf_send_unreach: port unreachable, at FORWARD".into(),
            }],
            against: vec![],
            unseen: vec!["the client's socket".into()],
            lost_events: 0,
            kube_proxy_mode: Some("iptables".into()),
            kube_proxy_version: None,
            metadata_age: Some(0.5),
            mitigation: Mitigation {
                immediate: "kubectl -n shop get pods -l app=checkout".into(),
                long_term: "alert on Services without endpoints".into(),
                safety: Safety::ReadOnly,
            },
            cross_reference: vec!["C20".into()],
        }
    }

    /// A healthy flow from this client port.
    pub(in crate::report) fn ok(port: u16) -> Verdict {
        let mut verdict = fault();
        verdict.class = Class::Ok;
        verdict.root_cause = "normal — healthy".into();
        verdict.flow.client.set_port(port);
        verdict.flow.endpoint = Some(([10, 244, 1, 11], 8080).into());
        verdict.flow.endpoint_pod = Some("shop/cart-1".into());
        verdict
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex, PoisonError},
    };

    use super::{fixture, *};
    use crate::{class::Class, report::Verbosity, verdict::Verdict};

    /// A writer whose text a test can read.
    #[derive(Clone, Default)]
    pub(in crate::report) struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        pub(in crate::report) fn take(&self) -> String {
            let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&std::mem::take(&mut *bytes)).into_owned()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(in crate::report) fn printer() -> (Printer, Shared, Shared) {
        let (out, err) = (Shared::default(), Shared::default());
        (Printer::to(Box::new(out.clone()), Box::new(err.clone()), Verbosity::Normal), out, err)
    }

    pub(in crate::report) fn item(verdict: &Verdict) -> Item<'_> {
        Item { verdict, connect_time: None, revised: false }
    }

    fn run(output: Output, view: View, verdicts: &[Verdict]) -> (String, String) {
        let (printer, out, err) = printer();
        let mut report = Report::new(output, view, printer);
        let now = Instant::now();
        for verdict in verdicts {
            assert!(report.show(item(verdict), now).is_ok());
        }
        assert!(report.tick(now).is_ok());
        assert!(report.finish(&Summary::default()).is_ok());
        (out.take(), err.take())
    }

    fn mixed() -> Vec<Verdict> {
        let mut normal = fixture::ok(3);
        normal.class = Class::N1;
        normal.root_cause = "normal — kubelet probe".into();
        vec![fixture::ok(1), fixture::fault(), fixture::ok(2), normal]
    }

    #[test]
    fn the_default_view_folds_healthy_flows_on_a_pipe() {
        let (out, _) = run(Output::Table, View::Default, &mixed());
        let lines: Vec<_> = out.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 4, "{out}");
        assert!(lines[0].starts_with("TIME(UTC)"));
        assert!(lines[1].contains("ok ") && lines[1].contains("shop/cart-1"));
        assert!(lines[2].contains("FAULT C20") && lines[2].contains("the selector matches no Pod"));
        assert!(lines[3].contains("2 flows"), "{out}");
    }

    #[test]
    fn views() {
        let count = |view| {
            let (out, _) = run(Output::Table, view, &mixed());
            out.lines().take_while(|line| !line.is_empty()).count() - 1
        };
        assert_eq!(count(View::All), 4);
        assert_eq!(count(View::FaultsOnly), 1);
    }

    #[test]
    fn wide_shows_evidence_and_action_below() {
        let (out, _) = run(Output::Wide, View::Default, &[fixture::fault()]);
        assert!(out.contains("shop/client (10.244.1.40:40001)"), "{out}");
        assert!(out.contains("\n    evidence: 00:01:41.000 nf_send_unreach"), "{out}");
        assert!(out.contains("\n    do: kubectl -n shop get pods"), "{out}");
    }

    #[test]
    fn records_are_alone_on_standard_output() {
        let (out, err) = run(Output::Json, View::All, &mixed());
        assert_eq!(out.lines().count(), 4);
        assert!(out.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        assert!(err.contains("Summary"));
        let (out, _) = run(Output::Json, View::Default, &mixed());
        assert_eq!(out.lines().count(), 1);
        let (out, _) = run(Output::Yaml, View::Default, &mixed());
        assert_eq!(out.matches("---\n").count(), 1);
    }

    #[test]
    fn folds_are_bounded() {
        let mut folds = Folds::default();
        for port in 0..=u16::MAX {
            let mut verdict = fixture::ok(1);
            verdict.flow.endpoint = Some(([10, 0, 0, 1], port).into());
            folds.add(item(&verdict), Row::new(item(&verdict), false));
        }
        assert_eq!(folds.0.len(), MAX_FOLDS + 1);
        assert_eq!(folds.0.values().map(|fold| fold.count).sum::<u64>(), u64::from(u16::MAX) + 1);
        assert_eq!(folds.latest(5).len(), 5);
    }
}
