//! `viptrace schema`: the JSON Schema of the records.

use crate::{
    agent::config,
    cli::{
        Outcome,
        args::{Record, SchemaArgs},
    },
    report::{Printer, schema},
};

/// Prints the schema.
pub(super) fn run(args: &SchemaArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    let schema = match args.record {
        Record::Verdict => schema::schema(),
        Record::Check => schema::check_schema(),
        Record::Explain => schema::explain_schema(),
        Record::Path => schema::path_schema(),
        Record::Pcap => schema::pcap_schema(),
        Record::Nodes => schema::nodes_schema(),
        Record::Why => schema::why_schema(),
        Record::Agent => config::schema(),
    };
    let text = serde_json::to_string_pretty(&schema)?;
    printer.data(&text)?;
    printer.data("\n")?;
    printer.flush()?;
    Ok(Outcome::Clean)
}
