//! `viptrace check`: [`audit`] judges the node, the API server or a folder; `--kernel` prints the plan of the hooks.

pub(super) mod audit;
#[cfg(target_os = "linux")]
pub(super) mod kernel;
