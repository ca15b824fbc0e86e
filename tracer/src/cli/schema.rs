//! `viptrace schema`: the JSON Schema of the records.

use crate::{
    cli::Outcome,
    report::{Printer, schema},
};

/// Prints the schema.
pub(super) fn run(mut printer: Printer) -> anyhow::Result<Outcome> {
    let text = serde_json::to_string_pretty(&schema::schema())?;
    printer.data(&text)?;
    printer.data("\n")?;
    printer.flush()?;
    Ok(Outcome::Clean)
}
