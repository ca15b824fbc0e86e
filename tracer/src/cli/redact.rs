//! `viptrace redact`: copies of recordings without their names and addresses.
//!
//! Owns the files and the messages. `recording` replaces the names.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};

use crate::{
    cli::{Outcome, ResultExt as _, args::RedactArgs, recording_file},
    error::{Hint as _, sentence},
    platform,
    recording::{self, RedactError, Redacted, Redaction, Substitutes, Tape, Tapes, UnusableFile},
    report::Printer,
    session::Detail,
    text::{count, list, safe},
};

/// The contents that no redaction removes.
const STAYS: &str = "times, ports, protocols, counts, process ids, numbers of network namespaces, versions of the kernel and of \
                     Kubernetes, and the structure of the rules and of the cluster";
/// The folder of the copies of a node without a name.
const UNNAMED: &str = "unnamed-node";

/// Writes the copies and prints what was replaced.
pub(super) fn run(args: &RedactArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    match args.paths.as_slice() {
        [path] if !path.is_dir() && !args.out.is_dir() => one(path, &args.out, args.force, &mut printer),
        paths => several(paths, &args.out, &mut printer),
    }
}

/// One file as another one.
fn one(path: &Path, out: &Path, force: bool, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let place = || format!("cannot redact {}", path.display());
    let file = recording_file(path, place)?;
    if is_same(path, out) {
        return Err(anyhow!("cannot redact {} into itself", path.display()))
            .hint(|| "name another file with --out".to_owned());
    }
    let redaction = Redaction::open(file).map_err(|error| anyhow::Error::from(error).context(place()))?;
    let mut substitutes = Substitutes::default();
    let redacted = write(redaction, out, force, &mut substitutes)?.with_context(place)?;
    let lack = left_out(&redacted);
    if let Some(lack) = &lack {
        printer.warn(lack);
    }
    let place = out.display().to_string();
    printer.data(&format!("{}\nstill in the file: {STAYS}\n", summary(&place, &redacted, &substitutes)))?;
    printer.flush()?;
    Ok(if lack.is_none() { Outcome::Clean } else { Outcome::Incomplete })
}

/// Whether both are one existing file, also by two names.
fn is_same(path: &Path, out: &Path) -> bool {
    let is_linked = matches!(
        (fs::metadata(path), fs::metadata(out)),
        (Ok(path), Ok(out)) if platform::is_same_file(&path, &out)
    );
    is_linked || matches!((fs::canonicalize(path), fs::canonicalize(out)), (Ok(path), Ok(out)) if path == out)
}

/// Writes a copy. The outer error is one of creating it.
fn write(
    redaction: Redaction<fs::File>,
    out: &Path,
    force: bool,
    substitutes: &mut Substitutes,
) -> Result<Result<Redacted, RedactError>, recording::CreateError> {
    let copy = recording::create(out, force)?;
    Ok(redaction.write(copy, substitutes).inspect_err(|_| {
        // Half a copy is none.
        let _ = fs::remove_file(out);
    }))
}

/// Several recordings as the files of one folder, in which they are the same traces.
fn several(paths: &[PathBuf], out: &Path, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let found = Tapes::find(paths, Detail::All).map_err(|file| unusable(&file))?;
    if found.tapes.is_empty() {
        return Err(nothing(&found, paths));
    }
    new_folder(out)?;
    let mut copies = Copies::new(out);
    // The first trace's node is the first one in the copies, too.
    for tape in &found.tapes {
        copies.node(tape);
    }
    for tape in &found.tapes {
        copies.trace(tape, printer)?;
    }
    for file in &found.skipped {
        printer.warn(&safe(&unusable(file).to_string()));
    }
    if found.skipped_more > 0 {
        printer.warn(&format!("{} could not be redacted", count(found.skipped_more, "more file")));
    }
    for copy in &found.copies {
        printer.note(&safe(&copy.to_string()));
    }
    if found.others > 0 {
        printer.note(&format!("{} in the folders: no recordings", count(found.others, "other file")));
    }
    let lack = left_out(&copies.redacted);
    if let Some(lack) = &lack {
        printer.warn(lack);
    }
    let Copies { substitutes, numbers, redacted, failed, .. } = copies;
    let files: u64 = numbers.values().sum();
    if files == 0 {
        return Err(anyhow!("none of the recordings could be redacted"));
    }
    let place = format!(
        "{}: {} of {}",
        safe(&out.display().to_string()),
        count(files, "file"),
        count(numbers.len(), "node")
    );
    printer.data(&format!("{}\nstill in the files: {STAYS}\n", summary(&place, &redacted, &substitutes)))?;
    printer.flush()?;
    let is_whole = lack.is_none() && found.skipped.is_empty() && !failed;
    Ok(if is_whole { Outcome::Clean } else { Outcome::Incomplete })
}

/// The copies of several recordings.
struct Copies<'o> {
    out: &'o Path,
    substitutes: Substitutes,
    /// The files of each node so far, by the name of its folder.
    numbers: BTreeMap<String, u64>,
    redacted: Redacted,
    /// A file could not be read.
    failed: bool,
}

impl<'o> Copies<'o> {
    fn new(out: &'o Path) -> Self {
        Self {
            out,
            substitutes: Substitutes::default(),
            numbers: BTreeMap::new(),
            redacted: Redacted::default(),
            failed: false,
        }
    }

    /// The name of the folder of this trace's node.
    fn node(&mut self, tape: &Tape) -> String {
        let name = tape.header().node_name.as_deref().filter(|name| !name.is_empty());
        name.map_or_else(|| UNNAMED.to_owned(), |name| self.substitutes.node(name))
    }

    /// Writes the copies of the files of one trace. A file that cannot be read is named, and the others are written.
    fn trace(&mut self, tape: &Tape, printer: &mut Printer) -> anyhow::Result<()> {
        let node = self.node(tape);
        let folder = self.out.join(&node);
        platform::private_folder(&mut fs::DirBuilder::new())
            .recursive(true)
            .create(&folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        for path in tape.paths() {
            let number = self.numbers.get(&node).map_or(1, |files| files + 1);
            match self.file(path, &folder.join(format!("{number:05}.viptrace")))? {
                Ok(redacted) => {
                    self.redacted.add(&redacted);
                    self.numbers.insert(node.clone(), number);
                }
                Err(why) => {
                    self.failed = true;
                    printer.warn(&safe(&format!("cannot redact {}: {why}", path.display())));
                }
            }
        }
        Ok(())
    }

    /// Writes a copy. The inner error says why the recording cannot be read; the copy cannot be written with the outer one.
    fn file(&mut self, path: &Path, out: &Path) -> anyhow::Result<Result<Redacted, String>> {
        let redaction = match fs::File::open(path).map_err(Into::into).and_then(Redaction::open) {
            Ok(redaction) => redaction,
            Err(error) => return Ok(Err(sentence(&error))),
        };
        match write(redaction, out, false, &mut self.substitutes)? {
            Ok(redacted) => Ok(Ok(redacted)),
            Err(error @ RedactError::Write(_)) => {
                Err(anyhow::Error::from(error).context(format!("cannot redact {}", path.display())))
            }
            Err(error) => Ok(Err(sentence(&error))),
        }
    }
}

/// A folder that nothing is in: what is there would be read as a part of these recordings.
fn new_folder(out: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot create the folder {}", out.display());
    platform::private_folder(&mut fs::DirBuilder::new()).recursive(true).create(out).with_context(failed)?;
    let is_empty =
        fs::read_dir(out).and_then(|mut entries| entries.next().transpose()).with_context(failed)?;
    if is_empty.is_some() {
        return Err(anyhow!("the folder {} is not empty", out.display())).hint(|| {
            "name a new folder with --out: the copies must not mix with other recordings".to_owned()
        });
    }
    Ok(())
}

/// The error of a file that cannot be used.
fn unusable(file: &UnusableFile) -> anyhow::Error {
    let error = anyhow!("cannot redact {}: {}", file.path.display(), file.why);
    match file.hint() {
        Some(hint) => Err::<(), _>(error).hint(|| hint).err().unwrap_or_else(|| anyhow!("{file}")),
        None => error,
    }
}

/// Why there is nothing to redact.
fn nothing(found: &Tapes, paths: &[PathBuf]) -> anyhow::Error {
    if let Some(file) = found.skipped.first() {
        return unusable(file);
    }
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    anyhow!("no recording is in {}", list(&names))
}

fn summary(place: &str, redacted: &Redacted, substitutes: &Substitutes) -> String {
    let names = substitutes.names();
    let mut parts: Vec<String> = names.map(|(sort, names)| count(names, &format!("{sort} name"))).collect();
    parts.push(match substitutes.addresses() {
        1 => "1 address".to_owned(),
        addresses => format!("{addresses} addresses"),
    });
    let events = count(redacted.finished.records, "event");
    format!("{place}: {events} in {} bytes; replaced {}", redacted.finished.bytes, parts.join(", "))
}

/// The parts of the recordings that the copies lack.
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
