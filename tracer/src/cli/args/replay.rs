//! The arguments of `replay`, which also exports recordings.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{EXIT_STATUS, WhichArgs, target};
use crate::{
    cli::{
        export::{Destination, ExportOptions},
        target::Target,
    },
    report::{Form, Output},
};

const EXAMPLES: &str = "Examples:
  viptrace replay incident.viptrace                the verdicts of the live trace
  viptrace replay incident.viptrace shop/cart      those of one Service
  viptrace replay incident.viptrace -o json --all  every flow as a record
  viptrace replay incident.viptrace -o pcapng > packets.pcapng
                                                   packets, for Wireshark
  viptrace replay incident.viptrace -o parquet --out incident/
                                                   tables, for DuckDB";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct ReplayArgs {
    /// A recording of `viptrace trace --record FILE`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only flows of this Service, Pod or address, as for `viptrace trace` [default: the recorded trace's target]
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// The namespace of TARGET, if TARGET is a bare name
    #[arg(short, long, value_name = "NAMESPACE", requires = "target")]
    namespace: Option<String>,

    /// How to print verdicts, or the format of an export
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    output: Format,
    /// With -o parquet: the folder of the files flows.parquet and changes.parquet
    #[arg(long, value_name = "DIR", help_heading = "Output", required_if_eq("output", "parquet"))]
    out: Option<PathBuf>,
    #[command(flatten)]
    which: WhichArgs,
}

/// What a replay writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    #[default]
    Table,
    /// The same with all known details, never shortened
    Wide,
    /// One JSON object a record and line; `viptrace schema` describes it
    Json,
    /// One YAML document a record, with the same fields
    Yaml,
    /// The recorded packet heads on standard output, for Wireshark; a comment at each names the hook and the verdict
    Pcapng,
    /// Parquet files of flows and changes in the folder of --out, for a database
    Parquet,
}

impl Format {
    /// The form of verdicts; `None` for an export.
    fn printed(self) -> Option<Output> {
        Some(match self {
            Self::Table => Output::Table,
            Self::Wide => Output::Wide,
            Self::Json => Output::Json,
            Self::Yaml => Output::Yaml,
            Self::Pcapng | Self::Parquet => return None,
        })
    }
}

/// The options of `viptrace replay`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    pub file: PathBuf,
    pub target: Option<Target>,
    pub form: Form,
}

impl ReplayArgs {
    /// Resolves the arguments to options; the error is a usage error.
    pub fn resolve(self) -> Result<ReplayOptions, clap::Error> {
        let target = target("replay", self.target.as_deref(), self.namespace.as_deref())?;
        let form = self.which.form(self.output.printed().unwrap_or_default());
        Ok(ReplayOptions { file: self.file, target, form: Form { replayed: true, ..form } })
    }

    /// Whether it writes a file for another program, not verdicts for a person.
    pub(crate) fn is_export(&self) -> bool {
        self.output.printed().is_none()
    }

    /// Resolves the arguments to the options of an export; the error is a usage error.
    pub(crate) fn resolve_export(self) -> Result<ExportOptions, clap::Error> {
        let target = target("replay", self.target.as_deref(), self.namespace.as_deref())?;
        let to = match (self.output, self.out) {
            (Format::Parquet, folder) => Destination::Parquet { folder: folder.unwrap_or_default() },
            _ => Destination::Pcapng,
        };
        Ok(ExportOptions { file: self.file, target, to })
    }
}
