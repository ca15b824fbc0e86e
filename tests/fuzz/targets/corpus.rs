//! The header of a real kernel's trace, from `tests/corpus`.

use std::{collections::BTreeMap, sync::Arc};

use viptrace::{
    kernel::layout::{FIELDS, Layout},
    net::Netns,
    recording::{BYTE_ORDER, FORMAT, Header, RECORD_LAYOUT},
    time::Timestamp,
};

const CORPUS: &str = include_str!("../../corpus/debian-6.12.records");
/// 2026-12-01, long after the fixture cluster was listed.
pub const CLOCK_OFFSET_NS: u64 = 1_796_083_200_000_000_000;

pub fn offsets() -> BTreeMap<String, u32> {
    let fields = CORPUS.lines().filter_map(|line| line.strip_prefix("offset ")?.split_once(' '));
    fields.filter_map(|(name, bytes)| Some((name.to_owned(), bytes.parse().ok()?))).collect()
}

pub fn reasons() -> BTreeMap<u32, Arc<str>> {
    let reasons = CORPUS.lines().filter_map(|line| line.strip_prefix("drop-reason ")?.split_once(' '));
    reasons.filter_map(|(name, number)| Some((number.parse().ok()?, Arc::from(name)))).collect()
}

#[allow(dead_code, reason = "each target uses a part")]
pub fn layout() -> Layout {
    let offsets = offsets();
    let known = FIELDS.iter().filter_map(|field| Some((field.name, *offsets.get(field.name)?)));
    Layout::from_parts(known, reasons(), reasons())
}

#[allow(dead_code, reason = "each target uses a part")]
pub fn header() -> Header {
    Header {
        format: FORMAT,
        record_layout: RECORD_LAYOUT,
        viptrace: "0.0.0-fuzz".to_owned(),
        byte_order: BYTE_ORDER.to_owned(),
        kernel_release: String::new(),
        node_name: Some("worker-1".to_owned()),
        boot: None,
        node_netns: Some(Netns(4_026_531_840)),
        target: None,
        started: Timestamp::from_unix_ns(CLOCK_OFFSET_NS),
        clock_offset_ns: CLOCK_OFFSET_NS,
        grace_ns: 5_000_000_000,
        grace_follows_node: true,
        limits: Default::default(),
        hooks: Vec::new(),
        offsets: offsets(),
        drop_reasons: reasons(),
        reset_reasons: reasons(),
        hook_set: None,
    }
}
