//! The grace of a trace.

use std::time::Duration;

use crate::node::Snapshot;

/// How long kube-proxy may take to write a change before its rules count as wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// As the user set it.
    Exactly(Duration),
    /// Longer if kube-proxy's configuration or metrics show a slower pace.
    AtLeast(Duration),
}

impl Default for Grace {
    /// 5 s cover a kube-proxy with its default `minSyncPeriod` (1 s).
    fn default() -> Self {
        Self::AtLeast(Duration::from_secs(5))
    }
}

impl Grace {
    /// The value of `--grace`, if given.
    pub fn of(option: Option<Duration>) -> Self {
        option.map_or_else(Self::default, Self::Exactly)
    }

    pub const fn minimum(self) -> Duration {
        match self {
            Self::Exactly(grace) | Self::AtLeast(grace) => grace,
        }
    }

    pub fn on(self, node: &Snapshot) -> Duration {
        match self {
            Self::Exactly(grace) => grace,
            Self::AtLeast(minimum) => node.report.grace(minimum),
        }
    }
}
