//! `viptrace redact`: a copy of a recording without its names and addresses.
//!
//! Owns the two files and the messages. `recording` replaces the names.

use std::{fs, path::Path};

use anyhow::Context as _;

use crate::{
    cli::{Outcome, ResultExt as _, args::RedactArgs},
    recording::{self, Redacted, Redaction},
    report::Printer,
    text::count,
};

/// The contents that no redaction removes.
const STAYS: &str = "still in the file: times, ports, protocols, counts, process ids, numbers of network namespaces, \
                     versions of the kernel and of Kubernetes, and the structure of the rules and of the cluster";

/// Writes the copy and prints what was replaced.
pub(super) fn run(args: &RedactArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    let (path, out) = (&args.file, &args.out);
    let place = || format!("cannot redact {}", path.display());
    let file = fs::File::open(path)
        .with_context(place)
        .hint(|| "`viptrace trace --record FILE` makes one".to_owned())?;
    if !file.metadata().with_context(place)?.is_file() {
        return Err(anyhow::anyhow!("cannot redact {}: it is not a regular file", path.display()))
            .hint(|| "store the recording in a file first".to_owned());
    }
    if is_same(path, out) {
        return Err(anyhow::anyhow!("cannot redact {} into itself", path.display()))
            .hint(|| "name another file with --out".to_owned());
    }
    let redaction = Redaction::open(file).map_err(|error| anyhow::Error::from(error).context(place()))?;
    let copy = recording::create(out, args.force)?;
    let redacted = redaction.write(copy).with_context(place).inspect_err(|_| {
        // Half a copy is none.
        let _ = fs::remove_file(out);
    })?;
    if let Some(lack) = left_out(&redacted) {
        printer.warn(&lack);
    }
    printer.data(&format!("{}\n", summary(&redacted, out)))?;
    printer.flush()?;
    Ok(Outcome::Clean)
}

/// Whether both are one existing file.
fn is_same(path: &Path, out: &Path) -> bool {
    matches!((fs::canonicalize(path), fs::canonicalize(out)), (Ok(path), Ok(out)) if path == out)
}

fn summary(redacted: &Redacted, out: &Path) -> String {
    let mut parts: Vec<String> =
        redacted.names.iter().map(|(sort, names)| count(*names, &format!("{sort} name"))).collect();
    parts.push(match redacted.addresses {
        1 => "1 address".to_owned(),
        addresses => format!("{addresses} addresses"),
    });
    let events = count(redacted.finished.records, "event");
    format!(
        "{}: {events} in {} bytes; replaced {}\n{STAYS}",
        out.display(),
        redacted.finished.bytes,
        parts.join(", ")
    )
}

/// The parts of the recording that the copy lacks.
fn left_out(redacted: &Redacted) -> Option<String> {
    let parts: Vec<String> = [
        (redacted.unknown, "item of an unknown kind"),
        (redacted.unreadable, "unreadable item"),
        (redacted.undecodable, "event that could not be decoded"),
        (redacted.damaged, "damaged part"),
    ]
    .into_iter()
    .filter(|(number, _)| *number > 0)
    .map(|(number, what)| match what.split_once(' ') {
        Some((noun @ ("item" | "event"), rest)) => format!("{} {rest}", count(number, noun)),
        _ => count(number, what),
    })
    .collect();
    (!parts.is_empty()).then(|| format!("left out: {}", parts.join(", ")))
}
