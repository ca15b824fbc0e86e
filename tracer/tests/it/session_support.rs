//! The settings of the sessions that tests run.

use viptrace::{
    flow::Limits,
    session::{Detail, Grace, Settings},
};

use crate::flow_support::NODE;

/// A trace on worker-1, on a kernel with every hook.
pub(crate) fn settings(detail: Detail) -> Settings {
    Settings {
        limits: Limits::default(),
        node_name: Some("worker-1".into()),
        node_netns: Some(NODE),
        missing_hooks: Vec::new(),
        drop_reasons: true,
        grace: Grace::default(),
        detail,
    }
}
