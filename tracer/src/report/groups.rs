//! Flows with one result, of one Service port, endpoint and node: one line with a running count.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    net::SocketAddr,
    time::Duration,
};

use crate::{
    class::{Class, Kind},
    report::{
        printer::Style,
        row::{Row, end},
    },
    session::{Folded, Judged},
    text::measured,
    time::Timestamp,
    verdict::{ServiceRef, Verdict, VerdictKey},
};

/// The maximum number of lines for the flows of one kind; those beyond it share one line.
const MAX_GROUPS: usize = 1024;

/// The lines, in their order on the screen: the failed flows last, next to the prompt, and those of one Service
/// together.
#[derive(Debug, Default)]
pub(super) struct Groups {
    lines: BTreeMap<GroupKey, Group>,
    /// The number of lines of each kind.
    sizes: BTreeMap<Kind, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    kind: Reverse<Kind>,
    flows: Flows,
}

/// The flows of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flows {
    Of {
        service: Option<ServiceRef>,
        class: Class,
        has_failed: bool,
        endpoint: Option<SocketAddr>,
        node: Option<String>,
    },
    /// All further flows of the kind.
    Others,
}

impl GroupKey {
    fn new(key: &VerdictKey, node: Option<&str>) -> Self {
        let VerdictKey { class, has_failed, service, endpoint } = key.clone();
        let node = node.map(ToOwned::to_owned);
        Self { kind: Reverse(class.kind()), flows: Flows::Of { service, class, has_failed, endpoint, node } }
    }

    const fn others(kind: Reverse<Kind>) -> Self {
        Self { kind, flows: Flows::Others }
    }
}

/// How the clients of a line's flows differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Clients {
    One,
    /// One address with several ports.
    SeveralPorts,
    Several,
}

impl Clients {
    fn of(one: &Row, other: &Row) -> Self {
        if one.client_name != other.client_name {
            Self::Several
        } else if one.client != other.client {
            Self::SeveralPorts
        } else {
            Self::One
        }
    }
}

#[derive(Debug)]
struct Group {
    /// That of the latest flow; of healthy ones that of the first.
    row: Row,
    is_shared: bool,
    count: u64,
    clients: Clients,
    slowest: Option<Duration>,
    first: Timestamp,
    last: Timestamp,
    changed: bool,
}

impl Groups {
    /// Counts a flow, whose line is `row`; true if it is the first of its line.
    pub(super) fn add(&mut self, judged: &Judged, row: Row) -> bool {
        let Judged { verdict, connect_time, .. } = judged;
        let group = self.group(verdict, &row);
        let first = group.count == 0;
        group.changed |= !first;
        group.count += 1;
        group.clients = group.clients.max(Clients::of(&group.row, &row));
        group.slowest = group.slowest.max(*connect_time);
        group.first = group.first.min(verdict.time);
        let is_latest = verdict.time >= group.last;
        group.last = group.last.max(verdict.time);
        // Healthy flows differ in nothing that the line shows.
        if is_latest && row.style != Style::Good {
            group.row = shown(row, group.is_shared);
        }
        first
    }

    /// Counts flows that share a verdict; true if they are the first of their line. `with_addresses` as for the
    /// rows of this table.
    pub(super) fn add_folded(&mut self, folded: &Folded, with_addresses: bool) -> bool {
        let Folded { verdict, count, connect_times, first: earliest, last, clients } = folded;
        let slowest = connect_times.iter().max().copied();
        let client = end(clients.pod.as_deref(), Some(clients.address), with_addresses);
        let row = Row { client, ..Row::new(verdict, slowest, with_addresses) };
        let group = self.group(verdict, &row);
        let first = group.count == 0;
        let one = if with_addresses {
            clients.one_address
        } else {
            clients.one_pod && (clients.pod.is_some() || clients.one_address)
        };
        let folded = match (clients.is_one(), one) {
            (false, _) => Clients::Several,
            (true, false) => Clients::SeveralPorts,
            (true, true) => Clients::One,
        };
        group.clients = group.clients.max(folded).max(Clients::of(&group.row, &row));
        group.count += count;
        group.slowest = group.slowest.max(slowest);
        group.first = group.first.min(verdict.time).min(*earliest);
        group.last = group.last.max(*last);
        group.changed = true;
        first
    }

    /// No longer counts a flow under its earlier verdict. A line without flows ends.
    pub(super) fn take_back(&mut self, before: &VerdictKey, node: Option<&str>) {
        let key = GroupKey::new(before, node);
        let others = GroupKey::others(key.kind);
        let key = if self.lines.contains_key(&key) { key } else { others };
        let Entry::Occupied(mut line) = self.lines.entry(key) else { return };
        let group = line.get_mut();
        group.count = group.count.saturating_sub(1);
        group.changed = true;
        if group.count == 0 {
            let (key, _) = line.remove_entry();
            if let Some(size) = self.sizes.get_mut(&key.kind.0) {
                *size = size.saturating_sub(1);
            }
        }
    }

    /// The line of this verdict, or the shared line of the others; a new line has counted nothing yet.
    fn group(&mut self, verdict: &Verdict, row: &Row) -> &mut Group {
        let key = GroupKey::new(&verdict.key(), verdict.flow.node.as_deref());
        let size = self.sizes.entry(key.kind.0).or_default();
        let is_known = self.lines.contains_key(&key);
        let key = if is_known || *size < MAX_GROUPS { key } else { GroupKey::others(key.kind) };
        self.lines.entry(key).or_insert_with_key(|key| {
            *size += 1;
            let is_shared = key.flows == Flows::Others;
            Group {
                row: shown(row.clone(), is_shared),
                is_shared,
                count: 0,
                clients: Clients::One,
                slowest: None,
                first: Timestamp::MAX,
                last: Timestamp::MIN,
                changed: false,
            }
        })
    }

    /// The lines that changed since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<Row> {
        let take = |group: &mut Group| std::mem::take(&mut group.changed).then(|| group.line());
        self.lines.values_mut().filter_map(take).collect()
    }

    /// All lines, in the order of the screen.
    pub(super) fn rows(&self) -> Vec<Row> {
        self.lines.values().map(Group::line).collect()
    }

    /// The lines with their places in that order: those of failed flows first, and of these the latest.
    pub(super) fn by_urgency(&self) -> impl Iterator<Item = (usize, Row)> {
        let mut lines: Vec<_> = self.lines.iter().enumerate().collect();
        let is_healthy = |key: &GroupKey| matches!(key.kind.0, Kind::Ok | Kind::Normal);
        lines.sort_by_key(|(_, (key, group))| (is_healthy(key), Reverse(group.last)));
        lines.into_iter().map(|(place, (_, group))| (place, group.line()))
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }
}

impl Group {
    fn line(&self) -> Row {
        let mut row = self.row.clone();
        row.time = self.last.clock();
        row.count = self.count;
        if self.clients == Clients::Several && row.names_client && !row.what.is_empty() {
            row.what.push_str(" (other clients too)");
        }
        if self.count > 1 {
            match (row.style, self.slowest) {
                (Style::Good, Some(slowest)) => row.what = format!("slowest connect {}", measured(slowest)),
                (Style::Good, None) => row.what.clear(),
                _ if self.last.since(self.first) >= Duration::from_secs(1) => {
                    row.what.push_str(" (the first at ");
                    row.what.push_str(&self.first.beside(self.last));
                    row.what.push(')');
                }
                _ => {}
            }
        }
        if self.clients > Clients::One {
            row.client = "(several)".into();
        }
        row
    }
}

/// The cells of a flow on its line. On the shared line those of single flows have no meaning.
fn shown(row: Row, is_shared: bool) -> Row {
    if !is_shared {
        return row;
    }
    let dash = || "-".to_owned();
    let (verdict, service) = (kind_of(row.style).to_owned(), "(others)".to_owned());
    Row { service, verdict, what: String::new(), vip: dash(), endpoint: dash(), node: dash(), ..row }
}

/// The verdict of a line whose flows have different classes.
const fn kind_of(style: Style) -> &'static str {
    match style {
        Style::Fault => "FAULT",
        Style::Unknown => "unknown",
        Style::Good => "ok",
        Style::Plain | Style::Heading | Style::Faint => "normal",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::report::fixture;

    fn add(groups: &mut Groups, verdict: Verdict, before: Option<&Verdict>) -> bool {
        let row = Row::new(&verdict, None, false);
        let before = before.map(|before| Arc::new(before.key()));
        groups.add(&Judged { before, ..fixture::judged(verdict) }, row)
    }

    #[test]
    fn lines_are_bounded() {
        let mut groups = Groups::default();
        for port in 0..=u16::MAX {
            for mut verdict in [fixture::ok(1), fixture::fault()] {
                verdict.flow.endpoint = Some(([10, 0, 0, 1], port).into());
                add(&mut groups, verdict, None);
            }
        }
        let rows = groups.rows();
        assert_eq!(rows.len(), 2 * (MAX_GROUPS + 1));
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 2 * (u64::from(u16::MAX) + 1));
        let others: Vec<_> = rows.iter().filter(|row| row.service == "(others)").collect();
        assert_eq!(others.iter().map(|row| row.verdict.as_str()).collect::<Vec<_>>(), ["ok", "FAULT"]);
        assert!(others.iter().all(|row| row.what.is_empty() && row.endpoint == "-"));
        let latest: Vec<_> = groups.by_urgency().take(4).collect();
        assert_eq!(latest.len(), 4);
        assert!(latest.iter().all(|(_, row)| row.style == Style::Fault));
    }

    #[test]
    fn a_revised_flow_moves_to_another_line() {
        let mut groups = Groups::default();
        let mut unknown = fixture::fault();
        unknown.class = Class::Unknown;
        for _ in 0..2 {
            add(&mut groups, unknown.clone(), None);
        }
        groups.take_back(&unknown.key(), Some("worker-2"));
        groups.take_back(&unknown.key(), Some("worker-1"));
        assert!(add(&mut groups, fixture::fault(), Some(&unknown)));
        let counts = |groups: &Groups| -> Vec<_> {
            groups.rows().into_iter().map(|row| (row.verdict, row.count)).collect()
        };
        assert_eq!(counts(&groups), [("unknown".into(), 1), ("FAULT C20".into(), 1)]);
        groups.take_back(&unknown.key(), Some("worker-1"));
        assert_eq!(counts(&groups), [("FAULT C20".into(), 1)]);
    }

    #[test]
    fn a_sentence_that_names_one_of_several_clients_says_so() {
        let mut groups = Groups::default();
        let mut verdict = fixture::fault();
        verdict.flow.client_pod = None;
        verdict.root_cause = "service_config — the source 10.244.1.40 is not admitted".into();
        let what = |groups: &Groups| groups.rows().remove(0).what;
        add(&mut groups, verdict.clone(), None);
        verdict.flow.client.set_port(40_002);
        add(&mut groups, verdict.clone(), None);
        assert!(what(&groups).ends_with("is not admitted"), "other ports of one client");
        let mut other = verdict.clone();
        other.flow.client = ([10, 244, 1, 4], 40_003).into();
        add(&mut groups, other.clone(), None);
        add(&mut groups, verdict, None);
        assert!(what(&groups).ends_with("is not admitted (other clients too)"), "{}", what(&groups));
        other.root_cause = "service_config — the ranges do not admit it".into();
        add(&mut groups, other, None);
        assert!(what(&groups).ends_with("do not admit it"), "it names no client");
    }

    #[test]
    fn nodes_endpoints_and_classes_have_lines_of_their_own() {
        let mut groups = Groups::default();
        let first = fixture::fault();
        let mut others = vec![first.clone(), first.clone(), first.clone(), first.clone()];
        others[0].flow.node = Some("worker-2".into());
        others[1].flow.endpoint = Some(([10, 244, 1, 11], 8080).into());
        others[2].class = Class::C5;
        others[3].flow.client_pod = Some("shop/other".into());
        others[3].time = Timestamp::from_unix_secs(200);
        assert!(add(&mut groups, first, None));
        let is_first: Vec<_> = others.into_iter().map(|verdict| add(&mut groups, verdict, None)).collect();
        assert_eq!(is_first, [true, true, true, false]);
        let rows = groups.rows();
        let shared = rows.iter().find(|row| row.count == 2).unwrap();
        assert_eq!(shared.client, "(several)");
        assert_eq!(shared.time, "00:03:20.000");
        assert!(shared.what.ends_with("matches no Pod (the first at 00:01:41.500)"), "{}", shared.what);
    }
}
