//! The tables of recordings: their flows with their verdicts, and the changes in the cluster and on the node.
//!
//! Owns the columns, which docs/records.md describes. A column keeps its name and type; new ones are added at the end.

use std::{collections::BTreeSet, fs::File, io, net::SocketAddr};

use serde::Serialize;

use super::columns::{Row, Table, Value};
use crate::{
    incident::{Timeline, Track},
    recording::Header,
    session::{Judged, ListedChange},
    verdict::Evidence,
};

/// One row for each verdict.
const FLOWS: &str = "message flows {
    required int64 time (TIMESTAMP(MICROS,true));
    required binary class (STRING);
    required boolean is_fault;
    required binary root_cause (STRING);
    required binary domain (STRING);
    required binary confidence (STRING);
    required binary severity (STRING);
    optional binary service_namespace (STRING);
    optional binary service_name (STRING);
    optional binary service_port (STRING);
    required binary protocol (STRING);
    required binary client_ip (STRING);
    required int32 client_port;
    optional binary vip_ip (STRING);
    optional int32 vip_port;
    optional binary endpoint_ip (STRING);
    optional int32 endpoint_port;
    optional binary client_pod (STRING);
    optional binary endpoint_pod (STRING);
    optional binary node (STRING);
    required int64 started (TIMESTAMP(MICROS,true));
    optional double connect_seconds;
    required boolean is_revision;
    required int64 lost_events;
    optional binary kube_proxy_mode (STRING);
    optional binary kube_proxy_version (STRING);
    optional double metadata_age_seconds;
    required group evidence (LIST) {
        repeated group list {
            required group element {
                required binary type (STRING);
                optional int64 time (TIMESTAMP(MICROS,true));
                required binary content (STRING);
            }
        }
    }
    required group against (LIST) {
        repeated group list {
            required group element {
                required binary type (STRING);
                optional int64 time (TIMESTAMP(MICROS,true));
                required binary content (STRING);
            }
        }
    }
    required group unseen (LIST) {
        repeated group list {
            required binary element (STRING);
        }
    }
    required binary action (STRING);
    required binary action_safety (STRING);
}";

/// One row for each change.
const CHANGES: &str = "message changes {
    required int64 time (TIMESTAMP(MICROS,true));
    optional int64 after (TIMESTAMP(MICROS,true));
    required binary kind (STRING);
    required binary subject_kind (STRING);
    optional binary subject_namespace (STRING);
    optional binary subject_name (STRING);
    required binary text (STRING);
    optional binary node (STRING);
    optional int64 resource_version;
}";

/// The two tables of an export.
pub(crate) struct Tables {
    flows: Table,
    changes: Table,
}

/// The rows that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) flows: u64,
    pub(crate) changes: u64,
}

impl Tables {
    pub(crate) fn create(flows: File, changes: File, timeline: &Timeline) -> io::Result<Self> {
        let of_each = |fact: fn(&Header) -> Option<&str>| {
            let all = timeline.tracks().iter().filter_map(|track| fact(track.header()));
            all.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
        };
        let started = timeline.tracks().iter().enumerate();
        let started = started.map(|(index, track)| timeline.common(index, track.header().started)).min();
        let facts = || {
            vec![
                ("viptrace.recorded_by", of_each(|header| Some(&header.viptrace))),
                ("viptrace.kernel_release", of_each(|header| Some(&header.kernel_release))),
                ("viptrace.node", of_each(|header| header.node_name.as_deref())),
                ("viptrace.target", of_each(|header| header.target.as_deref())),
                ("viptrace.started", started.unwrap_or_default().to_the_millisecond()),
                ("viptrace.clock", timeline.reference().map_or("", Track::name).to_owned()),
            ]
        };
        Ok(Self {
            flows: Table::create(flows, FLOWS, facts())?,
            changes: Table::create(changes, CHANGES, facts())?,
        })
    }

    /// Adds a flow's verdict, as it was given on this node.
    pub(crate) fn flow(&mut self, judged: &Judged, node: Option<&str>) -> io::Result<()> {
        let verdict = &judged.verdict;
        let (flow, service) = (&verdict.flow, verdict.service.as_ref());
        self.flows.row(|row| {
            row.put(Value::Time(verdict.time))?;
            row.put(Value::Text(&verdict.class.to_string()))?;
            row.put(Value::Bool(verdict.is_fault()))?;
            row.put(Value::Text(&verdict.root_cause))?;
            row.put(Value::Text(&name(&verdict.domain)))?;
            row.put(Value::Text(&name(&verdict.confidence)))?;
            row.put(Value::Text(&name(&verdict.severity)))?;
            row.maybe(service.map(|service| Value::Text(&service.namespace)))?;
            row.maybe(service.map(|service| Value::Text(&service.name)))?;
            row.maybe(service.map(|service| Value::Text(&service.port)))?;
            row.put(Value::Text(&flow.protocol))?;
            row.put(Value::Text(&flow.client.ip().to_string()))?;
            row.put(Value::Int(flow.client.port().into()))?;
            address(row, flow.vip)?;
            address(row, flow.endpoint)?;
            row.maybe(flow.client_pod.as_deref().map(Value::Text))?;
            row.maybe(flow.endpoint_pod.as_deref().map(Value::Text))?;
            row.maybe(flow.node.as_deref().or(node).map(Value::Text))?;
            row.put(Value::Time(flow.started))?;
            row.maybe(judged.connect_time.map(|time| Value::Double(time.as_secs_f64())))?;
            row.put(Value::Bool(judged.before.is_some()))?;
            row.put(Value::Long(verdict.lost_events.cast_signed()))?;
            row.maybe(verdict.kube_proxy_mode.as_deref().map(Value::Text))?;
            row.maybe(verdict.kube_proxy_version.as_deref().map(Value::Text))?;
            row.maybe(verdict.metadata_age.map(Value::Double))?;
            evidence(row, &verdict.evidence)?;
            evidence(row, &verdict.against)?;
            row.list(verdict.unseen.iter().map(|text| Some(Value::Text(text))))?;
            row.put(Value::Text(&verdict.mitigation.immediate))?;
            row.put(Value::Text(&name(&verdict.mitigation.safety)))
        })
    }

    /// Adds a change, as it was noticed on this node.
    pub(crate) fn change(&mut self, change: &ListedChange, node: Option<&str>) -> io::Result<()> {
        let (kind, object) = match change.subject.split_once(' ') {
            Some((kind @ ("Service" | "Pod" | "Node"), object)) => (kind, Some(object)),
            _ => (change.subject.as_str(), None),
        };
        let (namespace, object) = match object.and_then(|object| object.split_once('/')) {
            Some((namespace, name)) => (Some(namespace), Some(name)),
            None => (None, object),
        };
        self.changes.row(|row| {
            row.put(Value::Time(change.time))?;
            row.maybe(change.after.map(Value::Time))?;
            row.put(Value::Text(&name(&change.kind)))?;
            row.put(Value::Text(kind))?;
            row.maybe(namespace.map(Value::Text))?;
            row.maybe(object.map(Value::Text))?;
            row.put(Value::Text(&change.text))?;
            row.maybe(node.map(Value::Text))?;
            row.maybe(change.resource_version.map(|version| Value::Long(version.cast_signed())))
        })
    }

    /// Ends both files.
    pub(crate) fn finish(self) -> io::Result<Rows> {
        Ok(Rows { flows: self.flows.finish()?, changes: self.changes.finish()? })
    }
}

fn address(row: &mut Row<'_>, address: Option<SocketAddr>) -> io::Result<()> {
    let ip = address.map(|address| address.ip().to_string());
    row.maybe(ip.as_deref().map(Value::Text))?;
    row.maybe(address.map(|address| Value::Int(address.port().into())))
}

fn evidence(row: &mut Row<'_>, list: &[Evidence]) -> io::Result<()> {
    let kinds: Vec<String> = list.iter().map(|evidence| name(&evidence.r#type)).collect();
    row.list(kinds.iter().map(|kind| Some(Value::Text(kind))))?;
    row.list(list.iter().map(|evidence| evidence.time.map(Value::Time)))?;
    row.list(list.iter().map(|evidence| Some(Value::Text(&evidence.content))))
}

/// The name of a value in a record.
fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
