//! The flows that are left to other nodes on this kernel.

use std::collections::BTreeSet;

use crate::text;

/// The most names in the line of the summary.
const MAX_NAMES: usize = 5;

/// Their number, and their nodes.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    flows: u64,
    /// At most one more than are named.
    nodes: BTreeSet<String>,
}

impl Neighbours {
    pub(super) fn count(&mut self, node: String) {
        self.flows += 1;
        if self.nodes.len() <= MAX_NAMES {
            self.nodes.insert(node);
        }
    }

    /// The flows that were left out.
    pub(super) const fn flows(&self) -> u64 {
        self.flows
    }

    /// The line of the summary.
    pub(super) fn line(&self) -> Option<String> {
        let flows = text::count(self.flows, "flow");
        let left = |names| {
            format!(
                "left out: {flows} of {names}, on the same kernel as this node; a trace there reports them"
            )
        };
        self.names().map(left)
    }

    /// The names of the nodes, if there are any.
    pub(super) fn names(&self) -> Option<String> {
        let mut names: Vec<&str> = self.nodes.iter().map(String::as_str).take(MAX_NAMES).collect();
        if self.nodes.len() > MAX_NAMES {
            names.push("others");
        }
        (!names.is_empty()).then(|| text::list(&names))
    }
}
