//! The matrix: mode × Service kind × family × protocol × kernel, from the cells that each guest's scenarios report.
//!
//! The lab lists the cells. A cell that no scenario covers appears in the table and counts as failed: an empty table
//! must not pass for a good one.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::event::{Scenario, Verdict};

/// One row of the table, as the lab names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) struct Cell {
    pub(crate) mode: String,
    pub(crate) kind: String,
    pub(crate) family: String,
    pub(crate) protocol: String,
}

/// The result of one cell on one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Passed,
    Failed,
    /// The text is the feature that the kernel lacks.
    Skipped(String),
}

/// The guests' results so far.
#[derive(Debug, Default)]
pub(crate) struct Matrix {
    /// In the lab's order.
    rows: Vec<Cell>,
    states: BTreeMap<(&'static str, Cell), State>,
}

/// The text of a cell that no scenario covers.
const NOT_COVERED: &str = "not covered";

impl Matrix {
    /// Adds the lab's list of all cells.
    pub(crate) fn list(&mut self, cells: &[Cell]) {
        for cell in cells {
            if !self.rows.contains(cell) {
                self.rows.push(cell.clone());
            }
        }
    }

    /// Adds the result of a scenario on this kernel.
    pub(crate) fn count(&mut self, series: &'static str, scenario: &Scenario) {
        self.list(&scenario.cells);
        for cell in &scenario.cells {
            let state = match scenario.result {
                Verdict::Passed => State::Passed,
                Verdict::Failed => State::Failed,
                Verdict::Skipped => State::Skipped(scenario.detail.trim().to_owned()),
            };
            let known = self.states.entry((series, cell.clone())).or_insert_with(|| state.clone());
            // One failure fails the cell; a pass overrides a skip.
            if state == State::Failed || (state == State::Passed && *known != State::Failed) {
                *known = state;
            }
        }
    }

    /// The number of cells of these kernels that no scenario covers; 1 for a matrix without rows.
    pub(crate) fn uncovered(&self, kernels: &[&'static str]) -> u64 {
        let cells = kernels.iter().flat_map(|series| self.rows.iter().map(|row| (*series, row.clone())));
        let missing = cells.filter(|key| !self.states.contains_key(key)).count() as u64;
        if self.rows.is_empty() { 1 } else { missing }
    }

    /// The table in Markdown, and below it the reasons for skipped cells.
    pub(crate) fn table(&self, kernels: &[&'static str]) -> Vec<String> {
        let reasons: BTreeSet<&str> = self
            .states
            .values()
            .filter_map(|state| match state {
                State::Skipped(reason) => Some(reason.as_str()),
                State::Passed | State::Failed => None,
            })
            .collect();
        let shown = |series: &'static str, row: &Cell| match self.states.get(&(series, row.clone())) {
            Some(State::Passed) => "passed".to_owned(),
            Some(State::Failed) => "FAILED".to_owned(),
            Some(State::Skipped(reason)) => {
                let number = reasons.iter().position(|known| known == reason).unwrap_or_default() + 1;
                format!("skipped [{number}]")
            }
            None => NOT_COVERED.to_owned(),
        };
        let mut table = vec![["mode", "kind", "family", "protocol"].map(str::to_owned).to_vec()];
        if let Some(heading) = table.first_mut() {
            heading.extend(kernels.iter().map(|series| (*series).to_owned()));
        }
        for row in &self.rows {
            let mut line = [&row.mode, &row.kind, &row.family, &row.protocol].map(Clone::clone).to_vec();
            line.extend(kernels.iter().map(|series| shown(series, row)));
            table.push(line);
        }
        let mut lines = markdown(&table);
        if !reasons.is_empty() {
            lines.push(String::new());
        }
        lines.extend(reasons.iter().enumerate().map(|(index, reason)| format!("[{}] {reason}", index + 1)));
        lines
    }
}

/// A table in Markdown, its first row as the heading.
pub(crate) fn markdown(table: &[Vec<String>]) -> Vec<String> {
    let columns = table.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        table.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let mut lines: Vec<String> = table.iter().map(line).collect();
    let rule = widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join(" | ");
    lines.insert(1.min(lines.len()), format!("| {rule} |"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(protocol: &str) -> Cell {
        Cell {
            mode: "iptables".into(),
            kind: "ClusterIP".into(),
            family: "IPv4".into(),
            protocol: protocol.into(),
        }
    }

    fn scenario(result: Verdict, detail: &str, protocol: &str) -> Scenario {
        let cells = vec![cell(protocol)];
        Scenario {
            name: "x".into(),
            result,
            detail: detail.into(),
            seconds: 1.0,
            mode: None,
            cells,
            scores: Vec::new(),
        }
    }

    #[test]
    fn a_failure_fails_its_cell_and_a_skip_does_not() {
        let mut matrix = Matrix::default();
        matrix.count("6.1", &scenario(Verdict::Passed, "", "TCP"));
        matrix.count("6.1", &scenario(Verdict::Failed, "why", "TCP"));
        matrix.count("6.1", &scenario(Verdict::Passed, "", "TCP"));
        matrix.count("6.1", &scenario(Verdict::Skipped, "no BTF", "UDP"));
        matrix.count("6.12", &scenario(Verdict::Skipped, "no BTF", "UDP"));
        matrix.count("6.12", &scenario(Verdict::Passed, "", "UDP"));
        let table = matrix.table(&["6.1", "6.12"]);
        let row =
            |protocol: &str| table.iter().find(|line| line.contains(protocol)).cloned().unwrap_or_default();
        assert!(row("TCP").contains("FAILED") && row("TCP").contains(NOT_COVERED), "{table:?}");
        assert!(row("UDP").contains("skipped [1]") && row("UDP").contains("passed"), "{table:?}");
        assert_eq!(table.last().map(String::as_str), Some("[1] no BTF"));
        assert_eq!(matrix.uncovered(&["6.1", "6.12"]), 1);
    }

    #[test]
    fn uncovered_cells_are_counted() {
        let mut matrix = Matrix::default();
        assert_eq!(matrix.uncovered(&["6.1"]), 1, "an empty matrix is not good");
        matrix.list(&[cell("TCP"), cell("SCTP"), cell("TCP")]);
        assert_eq!(matrix.uncovered(&["6.1", "6.12"]), 4);
        matrix.count("6.1", &scenario(Verdict::Passed, "", "TCP"));
        assert_eq!(matrix.uncovered(&["6.1"]), 1);
        assert_eq!(matrix.table(&["6.1"]).len(), 4);
    }
}
