//! The JSON Schema of a record, derived from its type, so that the two cannot differ.

use schemars::{
    JsonSchema, Schema,
    generate::{SchemaGenerator, SchemaSettings},
};

use crate::{
    diagnosis::{
        path::Journey,
        triage::{CheckReport, nodes::NodesReport},
    },
    pcap::ExplainedFlow,
    report::explain::Explanation,
    session::why::Why,
    verdict::Verdict,
};

/// The schema of a type, with this title and description.
fn of<T: JsonSchema>(title: &str, about: &str) -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>();
    schema.insert("title".into(), title.into());
    schema.insert("description".into(), about.into());
    schema
}

/// JSON Schema (draft 2020-12) of one line of `-o json`.
pub(crate) fn schema() -> Schema {
    let about = "One record of `viptrace trace -o json` (one object a line) or `-o yaml` (one document): the \
        verdict on one flow. Every property is always present; what was not observed is null or empty. A flow \
        whose outcome changes later has a second record with the same `flow.client`, `flow.vip` and \
        `flow.started`; the later one holds.";
    of::<Verdict>("viptrace verdict", about)
}

/// JSON Schema (draft 2020-12) of the output of `viptrace check -o json`.
pub(crate) fn check_schema() -> Schema {
    let about = "The output of `viptrace check -o json` (one object), `-o yaml` (one document) and `--save`: one check of \
        one node. Every property is always present; what was not observed is null or empty. The order of `findings` \
        is their rank.";
    of::<CheckReport>("viptrace check", about)
}

/// JSON Schema (draft 2020-12) of the output of `kubectl viptrace check -o json`.
pub(crate) fn nodes_schema() -> Schema {
    let about = "The output of `kubectl viptrace check -o json` (one object): the checks of several nodes. A finding has the \
        properties of one in `viptrace check -o json`, and the nodes that have it. Every property is always present; what was \
        not observed is null or empty.";
    of::<NodesReport>("viptrace nodes", about)
}

/// JSON Schema (draft 2020-12) of the output of `kubectl viptrace why SERVICE -o json`.
pub(crate) fn why_schema() -> Schema {
    let about = "The output of `kubectl viptrace why SERVICE -o json` (one object): the first cause of a Service's failures, with \
        the checks and the connections that it follows from. Every property is always present; what was not observed is null \
        or empty.";
    of::<Why>("viptrace why", about)
}

/// JSON Schema (draft 2020-12) of the output of `viptrace path FROM TO -o json`.
pub(crate) fn path_schema() -> Schema {
    let about = "The output of `viptrace path FROM TO -o json` (one object): the way of one packet through the rules of a node. Every \
        property is always present; what is not known is null or empty.";
    of::<Journey>("viptrace path", about)
}

/// JSON Schema (draft 2020-12) of the output of `viptrace explain CLASS -o json`.
pub(crate) fn explain_schema() -> Schema {
    let about = "The output of `viptrace explain CLASS -o json`: one class of the knowledge base. `viptrace explain --all -o json` \
        writes an array of them. Every property is always present.";
    of::<Explanation>("viptrace explain", about)
}

/// JSON Schema (draft 2020-12) of one line of `viptrace explain-pcap -o json`.
pub(crate) fn pcap_schema() -> Schema {
    let about = "One record of `viptrace explain-pcap CAPTURE --recording FILE -o json` (one object a line): a connection of the \
        capture, with its verdict or the reason why no recording has one. Every property is always present; what is not known is \
        null or empty.";
    of::<ExplainedFlow>("viptrace pcap", about)
}
