//! The recording's header: everything that a reader needs for the rest of the file, and a description of the trace.
//!
//! Owns its JSON. Contains everything that verdicts depend on and that is constant during the trace.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    flow::Limits,
    kernel::{
        layout::{FIELDS, Layout},
        plan::HookSet,
    },
    net::Netns,
    session::{Detail, Grace, Settings},
    sighting::Hook,
    time::Timestamp,
};

/// The version of the format that is written. A reader refuses later ones.
///
/// 2: records borrow ports (`records`).
pub const FORMAT: u32 = 2;
/// The version of the kernel half's records (`tracer_ebpf`'s structs). Raise it when one of them changes its fields but
/// keeps its kind's number.
pub const RECORD_LAYOUT: u32 = 1;

/// The first block of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// [`RECORD_LAYOUT`].
    pub record_layout: u32,
    /// The program that wrote it.
    pub viptrace: String,
    /// The byte order of the records: `little` or `big`.
    pub byte_order: String,
    /// The output of `uname -r`, for people; no decision depends on it.
    #[serde(default)]
    pub kernel_release: String,
    /// The node's name in Kubernetes.
    #[serde(default)]
    pub node_name: Option<String>,
    /// The boot of the node (`/proc/sys/kernel/random/boot_id`): the kernel's clock is one since then. `None` if unknown.
    #[serde(default)]
    pub boot: Option<Arc<str>>,
    /// The namespace in which kube-proxy writes its rules.
    #[serde(default)]
    pub node_netns: Option<Netns>,
    /// The target of the trace, as typed for `viptrace trace`.
    #[serde(default)]
    pub target: Option<String>,
    /// When the last hook was attached.
    pub started: Timestamp,
    /// Nanoseconds to add to a record's time (`CLOCK_MONOTONIC`) to get Unix time.
    pub clock_offset_ns: u64,
    /// The grace: how long kube-proxy may take to write a change, in nanoseconds.
    pub grace_ns: u64,
    /// Whether that is only the least, which kube-proxy's pace extends.
    #[serde(default)]
    pub grace_follows_node: bool,
    #[serde(default)]
    pub limits: Limits,
    /// The plan, one line for each hook.
    #[serde(default)]
    pub hooks: Vec<HookLine>,
    /// The set of hooks that the trace requested ([`HookSet::name`]). With `failures`, most connections have no record. `None`
    /// in older recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_set: Option<Arc<str>>,
    /// The offsets of the fields in this kernel's structures, in bytes.
    pub offsets: BTreeMap<String, u32>,
    #[serde(default)]
    pub drop_reasons: BTreeMap<u32, Arc<str>>,
    #[serde(default)]
    pub reset_reasons: BTreeMap<u32, Arc<str>>,
}

/// The state of one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookLine {
    /// The kernel's name of the function or tracepoint.
    pub hook: String,
    pub attach: String,
    pub state: HookState,
    /// Why it is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookState {
    Attached,
    /// Its absence loses nothing.
    NotNeeded,
    /// Its observations are missing.
    Missing,
}

/// The byte order of this machine.
pub const BYTE_ORDER: &str = if cfg!(target_endian = "little") { "little" } else { "big" };

/// The version of this program.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// Why a readable header cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsuitable {
    #[error(
        "it was written by viptrace {viptrace} in format {found}; this is viptrace {OWN}, which reads formats up to {FORMAT}"
    )]
    Format { found: u32, viptrace: String },
    #[error(
        "it was written by viptrace {viptrace} with record layout {found}; this is viptrace {OWN}, which reads layout \
         {RECORD_LAYOUT}"
    )]
    RecordLayout { found: u32, viptrace: String },
    #[error("it was recorded on a {found}-endian machine, and this machine is {BYTE_ORDER}-endian")]
    ByteOrder { found: String },
}

impl Header {
    /// Fails if this viptrace cannot read the rest of the file.
    pub fn check(&self) -> Result<(), Unsuitable> {
        let viptrace = || self.viptrace.chars().take(64).collect();
        if !(1..=FORMAT).contains(&self.format) {
            return Err(Unsuitable::Format { found: self.format, viptrace: viptrace() });
        }
        if self.record_layout != RECORD_LAYOUT {
            return Err(Unsuitable::RecordLayout { found: self.record_layout, viptrace: viptrace() });
        }
        if self.byte_order != BYTE_ORDER {
            return Err(Unsuitable::ByteOrder { found: self.byte_order.chars().take(16).collect() });
        }
        Ok(())
    }

    /// The recorded kernel's layout, for the fields that this viptrace knows.
    pub fn layout(&self) -> Layout {
        let offset = |name| self.offsets.get(name).map(|offset| (name, *offset));
        let reasons = |names: &BTreeMap<u32, Arc<str>>| {
            names.iter().map(|(number, name)| (*number, Arc::clone(name))).collect::<Vec<_>>()
        };
        Layout::from_parts(
            FIELDS.iter().filter_map(|field| offset(field.name)),
            reasons(&self.drop_reasons),
            reasons(&self.reset_reasons),
        )
    }

    /// The settings of the live trace. The replay chooses how healthy flows are reported.
    pub fn settings(&self, detail: Detail) -> Settings {
        // Bounded as on the command line.
        let max_flows = self.limits.max_flows.clamp(16, 16_777_216);
        Settings {
            limits: Limits { max_flows, ..self.limits },
            node_name: self.node_name.clone(),
            node_netns: self.node_netns,
            missing_hooks: self.missing_hooks(),
            drop_reasons: !self.drop_reasons.is_empty(),
            grace: if self.grace_follows_node {
                Grace::AtLeast(Duration::from_nanos(self.grace_ns))
            } else {
                Grace::Exactly(Duration::from_nanos(self.grace_ns))
            },
            detail,
        }
    }

    /// Whether each connection's beginning is a record; `None` if an older recording does not show it.
    pub(crate) fn has_every_connection(&self) -> Option<bool> {
        if let Some(set) = self.hook_set.as_deref() {
            return HookSet::named(set).map(|set| set != HookSet::Failures);
        }
        // No agent attaches it.
        let is_attached =
            |line: &HookLine| line.state == HookState::Attached && Hook::SockEstablished.has_name(&line.hook);
        self.hooks.iter().any(is_attached).then_some(true)
    }

    fn missing_hooks(&self) -> Vec<Hook> {
        let missing = |hook: &&Hook| {
            self.hooks.iter().any(|line| line.state == HookState::Missing && hook.has_name(&line.hook))
        };
        Hook::ALL.iter().filter(missing).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, collection::vec, option, prelude::*, sample::select};

    use super::*;

    fn line() -> impl Strategy<Value = HookLine> {
        let states = vec![HookState::Attached, HookState::NotNeeded, HookState::Missing];
        (any::<String>(), any::<String>(), select(states), option::of(any::<String>()))
            .prop_map(|(hook, attach, state, reason)| HookLine { hook, attach, state, reason })
    }

    fn header() -> impl Strategy<Value = Header> {
        let numbers = (any::<u32>(), any::<u32>(), any::<[u64; 3]>(), any::<Option<u32>>());
        let texts = (any::<String>(), any::<String>(), any::<String>(), option::of(any::<String>()));
        let reasons = btree_map(any::<u32>(), any::<String>().prop_map(Arc::from), 0..4);
        let tables = (btree_map(any::<String>(), any::<u32>(), 0..6), reasons, vec(line(), 0..4));
        (numbers, texts, tables).prop_map(
            |(
                (format, record_layout, [started, clock_offset_ns, grace_ns], netns),
                (viptrace, byte_order, kernel_release, node_name),
                (offsets, reasons, hooks),
            )| Header {
                format,
                record_layout,
                viptrace,
                byte_order,
                kernel_release,
                target: node_name.clone(),
                boot: node_name.as_deref().map(Arc::from),
                hook_set: node_name.as_deref().map(Arc::from),
                node_name,
                node_netns: netns.map(Netns),
                started: Timestamp::from_unix_ns(started),
                clock_offset_ns,
                grace_ns,
                grace_follows_node: grace_ns % 2 == 0,
                limits: Limits::default(),
                hooks,
                offsets,
                drop_reasons: reasons.clone(),
                reset_reasons: reasons,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(header in header()) {
            let json = serde_json::to_vec(&header).unwrap();
            let read: Header = serde_json::from_slice(&json).unwrap();
            prop_assert_eq!(&read, &header);
            let fits = (1..=FORMAT).contains(&header.format)
                && header.record_layout == RECORD_LAYOUT
                && header.byte_order == BYTE_ORDER;
            prop_assert_eq!(read.check().is_ok(), fits);
        }
    }
}
