//! `viptrace replay FILE -o pcapng`: a recording as a file for another program.
//!
//! Owns the destination and the messages. The replay judges, and `export` writes.

use std::{
    fs::File,
    io::{BufWriter, IsTerminal as _},
    path::PathBuf,
};

use anyhow::Context as _;

use crate::{
    cli::{Outcome, ResultExt as _, replay, target::Target},
    export::{Verdicts, packets},
    recording::{Player, Sightings, Step},
    report::{OutputError, Printer},
    session::{Detail, Judged},
    text::count,
};

/// The options of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportOptions {
    pub(crate) file: PathBuf,
    pub(crate) target: Option<Target>,
    pub(crate) to: Destination,
}

/// The format, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Standard output.
    Pcapng,
}

/// Exports the recording.
pub(super) fn run(options: &ExportOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    match &options.to {
        Destination::Pcapng => pcapng(options, &mut printer),
    }
}

fn pcapng(options: &ExportOptions, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if std::io::stdout().is_terminal() {
        return Err(anyhow::anyhow!("pcapng is a binary format, and standard output is a terminal"))
            .hint(|| "viptrace replay FILE -o pcapng > packets.pcapng".to_owned());
    }
    let mut verdicts = Verdicts::default();
    let lacks = play(options, |judged| {
        verdicts.add(&judged.verdict);
        Ok(())
    })?;
    let census = packets::census(&mut sightings(options)?).with_context(|| what(options))?;
    let out = BufWriter::new(std::io::stdout().lock());
    let written = packets::write(&mut sightings(options)?, &census, &verdicts, options.target.is_some(), out);
    let written = written.map_err(OutputError::from)?;
    printer.note(&format!("{} written", count(written, "packet")));
    if written == 0 {
        printer.warn("no packet of these flows is in the recording: viptrace records packets that failed, not the healthy ones");
    }
    Ok(end(&lacks, printer))
}

fn end(lacks: &[String], printer: &mut Printer) -> Outcome {
    for lack in lacks {
        printer.warn(lack);
    }
    if lacks.is_empty() { Outcome::Clean } else { Outcome::Incomplete }
}

fn what(options: &ExportOptions) -> String {
    format!("cannot export {}", options.file.display())
}

/// Plays the recording to its end. Returns its missing parts.
fn play(
    options: &ExportOptions,
    mut each: impl FnMut(&Judged) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let mut player = Player::open(open(options)?, Detail::All).with_context(|| what(options))?;
    let mut has_end = false;
    let mut take = |judged: Vec<Judged>| {
        let wanted =
            |judged: &&Judged| options.target.as_ref().is_none_or(|target| target.matches(&judged.verdict));
        judged.iter().filter(wanted).try_for_each(&mut each)
    };
    while let Some(step) = player.step().with_context(|| what(options))? {
        match step {
            Step::Judged { judgements, .. } => take(judgements.judged)?,
            Step::Ended(_) => has_end = true,
        }
    }
    while let Some(judgements) = player.cut_off() {
        take(judgements.judged)?;
    }
    Ok(replay::lacks(&player, has_end))
}

fn sightings(options: &ExportOptions) -> anyhow::Result<Sightings<File>> {
    Sightings::open(open(options)?).with_context(|| what(options))
}

fn open(options: &ExportOptions) -> anyhow::Result<File> {
    let file = File::open(&options.file)
        .with_context(|| what(options))
        .hint(|| "`viptrace trace --record FILE` makes one".to_owned())?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(anyhow::anyhow!("{}: it is not a regular file", what(options)))
            .hint(|| "store the recording in a file first".to_owned());
    }
    Ok(file)
}
