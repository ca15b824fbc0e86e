//! Healthy flows of one Service and endpoint, folded into one line with a count.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use crate::{
    report::{
        printer::Style,
        row::{Row, end},
    },
    session::{Folded, Judged},
    text::{self, measured, safe},
    time::Timestamp,
};

/// The maximum number of folds; healthy flows beyond them share one line.
const MAX_FOLDS: usize = 1024;

/// The lines, by Service port and endpoint.
#[derive(Debug, Default)]
pub(super) struct Folds(BTreeMap<FoldKey, Fold>);

/// The name of the Service port, and the endpoint.
type FoldKey = (String, Option<SocketAddr>);

#[derive(Debug)]
struct Fold {
    row: Row,
    count: u64,
    several_clients: bool,
    slowest: Option<Duration>,
    last: Timestamp,
    changed: bool,
}

impl Folds {
    /// Counts a healthy flow; true if it is the first of its line.
    pub(super) fn add(&mut self, judged: &Judged, row: Row) -> bool {
        let key = (row.service.clone(), judged.verdict.flow.endpoint);
        let client = row.client.clone();
        let fold = self.fold(key, || row);
        let first = fold.count == 0;
        fold.changed = !first;
        // A revised flow was counted here before, or had its own line.
        fold.count += u64::from(first || judged.before.is_none());
        fold.several_clients |= fold.row.client != client;
        fold.slowest = fold.slowest.max(judged.connect_time);
        fold.last = fold.last.max(judged.verdict.time);
        first
    }

    /// Counts healthy flows that share a verdict; true if they are the first of their line. `with_addresses` as for the
    /// rows of this table.
    pub(super) fn add_folded(&mut self, folded: &Folded, with_addresses: bool) -> bool {
        let Folded { verdict, count, connect_times, last, clients } = folded;
        let slowest = connect_times.iter().max().copied();
        let service = verdict.service.as_ref();
        let name = service.map_or_else(|| "-".into(), |service| safe(&service.to_string()).into_owned());
        let client = end(clients.pod.as_deref(), Some(clients.address), with_addresses);
        let row = || Row { client: client.clone(), ..Row::new(verdict, slowest, with_addresses) };
        let fold = self.fold((name, verdict.flow.endpoint), row);
        let first = fold.count == 0;
        let one = if with_addresses {
            clients.one_address
        } else {
            clients.one_pod && (clients.pod.is_some() || clients.one_address)
        };
        fold.several_clients |= !one || fold.row.client != client;
        fold.count += count;
        fold.slowest = fold.slowest.max(slowest);
        fold.last = fold.last.max(*last);
        fold.changed = true;
        first
    }

    /// The line of this key, or the shared line of the others; a new line has counted nothing yet.
    fn fold(&mut self, key: FoldKey, row: impl FnOnce() -> Row) -> &mut Fold {
        let full = self.0.len() >= MAX_FOLDS && !self.0.contains_key(&key);
        let key = if full { ("(others)".to_owned(), None) } else { key };
        let new = |row| Fold {
            row,
            count: 0,
            several_clients: false,
            slowest: None,
            last: Timestamp::MIN,
            changed: false,
        };
        self.0.entry(key).or_insert_with_key(|(name, _)| {
            let row = row();
            new(if full {
                let dash = || "-".to_owned();
                Row { service: name.clone(), vip: dash(), endpoint: dash(), style: Style::Good, ..row }
            } else {
                row
            })
        })
    }

    /// The lines that changed since the last call.
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
        row.count = self.count;
        if self.count > 1 {
            row.what = text::count(self.count, "flow");
            if let Some(slowest) = self.slowest {
                row.what.push_str(", slowest connect ");
                row.what.push_str(&measured(slowest));
            }
        }
        if self.several_clients {
            row.client = "(several)".into();
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn folds_are_bounded() {
        let mut folds = Folds::default();
        for port in 0..=u16::MAX {
            let mut verdict = fixture::ok(1);
            verdict.flow.endpoint = Some(([10, 0, 0, 1], port).into());
            let row = Row::new(&verdict, None, false);
            folds.add(&fixture::judged(verdict), row);
        }
        assert_eq!(folds.0.len(), MAX_FOLDS + 1);
        assert_eq!(folds.0.values().map(|fold| fold.count).sum::<u64>(), u64::from(u16::MAX) + 1);
        assert_eq!(folds.latest(5).len(), 5);
    }
}
