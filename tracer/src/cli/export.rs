//! `viptrace replay FILE -o pcapng` and `-o parquet`: a recording as files for other programs.
//!
//! Owns the destination and the messages. The replay judges, and `export` writes.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufWriter, IsTerminal as _},
    path::Path,
};

use anyhow::Context as _;

use crate::{
    cli::{
        Outcome, ResultExt as _,
        args::ReplayOptions,
        replay,
        selection::{Selection, Span},
    },
    export::{Tables, Verdicts, packets},
    platform,
    recording::{Player, Sightings, Step, Tape, Tapes},
    report::{OutputError, Printer},
    session::{Detail, Judged, ListedChange},
    text::count,
    time::Timestamp,
    verdict::Verdict,
};

/// What is exported.
#[derive(Debug)]
struct ExportOptions<'a> {
    file: &'a Path,
    selection: &'a Selection,
    span: Span,
}

impl ExportOptions<'_> {
    fn wants(&self, verdict: &Verdict) -> bool {
        self.selection.wants(verdict, self.span)
    }
}

/// Exports the recording: to standard output, or into a folder.
pub(super) fn run(options: &ReplayOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let [file] = options.files.as_slice() else {
        return Err(anyhow::anyhow!("an export takes one recording"))
            .hint(|| "export each file by itself; -o story and the tables take several".to_owned());
    };
    let end = Tapes::find(std::slice::from_ref(file), Detail::All)?.tapes.first().and_then(Tape::last_time);
    let span = options.selection.span(end.unwrap_or(Timestamp::MAX));
    let export = ExportOptions { file, selection: &options.selection, span };
    match &options.out {
        Some(folder) => parquet(&export, folder, &mut printer),
        None => pcapng(&export, &mut printer),
    }
}

fn pcapng(options: &ExportOptions<'_>, printer: &mut Printer) -> anyhow::Result<Outcome> {
    if std::io::stdout().is_terminal() {
        return Err(anyhow::anyhow!("pcapng is a binary format, and standard output is a terminal"))
            .hint(|| "viptrace replay FILE -o pcapng > packets.pcapng".to_owned());
    }
    let mut verdicts = Verdicts::default();
    let lacks = play(options, &mut player(options)?, |played| {
        if let Played::Flow(judged) = played {
            verdicts.add(&judged.verdict);
        }
        Ok(())
    })?;
    let census = packets::census(&mut sightings(options)?).with_context(|| what(options))?;
    let out = BufWriter::new(std::io::stdout().lock());
    let written = packets::write(
        &mut sightings(options)?,
        &census,
        &verdicts,
        *options.selection != Selection::default(),
        out,
    );
    let written = written.map_err(OutputError::from)?;
    printer.note(&format!("{} written", count(written, "packet")));
    if written == 0 {
        printer.warn("no packet of these flows is in the recording: viptrace records packets that failed, not the healthy ones");
    }
    Ok(end(&lacks, printer))
}

fn parquet(options: &ExportOptions<'_>, folder: &Path, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let mut player = player(options)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let flows = create(&folder.join("flows.parquet"))?;
    let changes = create(&folder.join("changes.parquet"))?;
    let to = || format!("cannot write to {}", folder.display());
    let mut tables = Tables::create(flows, changes, player.header()).with_context(to)?;
    let lacks = play(options, &mut player, |played| {
        match played {
            Played::Flow(judged) => tables.flow(judged),
            Played::Change(change) => tables.change(change),
        }
        .with_context(to)
    })?;
    let rows = tables.finish().with_context(to)?;
    printer.note(&format!(
        "{}: {} in flows.parquet, {} in changes.parquet",
        folder.display(),
        count(rows.flows, "row"),
        count(rows.changes, "row")
    ));
    Ok(end(&lacks, printer))
}

/// A new file. Only its owner may read it: it names Pods and their peers.
fn create(path: &Path) -> anyhow::Result<File> {
    let mut how = OpenOptions::new();
    platform::private(how.write(true).create_new(true))
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))
        .hint(|| format!("remove {}, or choose another folder with --out", path.display()))
}

fn end(lacks: &[String], printer: &mut Printer) -> Outcome {
    for lack in lacks {
        printer.warn(lack);
    }
    if lacks.is_empty() { Outcome::Clean } else { Outcome::Incomplete }
}

fn what(options: &ExportOptions<'_>) -> String {
    format!("cannot export {}", options.file.display())
}

/// A part of the result of a replay.
enum Played<'a> {
    Flow(&'a Judged),
    Change(&'a ListedChange),
}

fn player(options: &ExportOptions<'_>) -> anyhow::Result<Player<File>> {
    Player::open(open(options)?, Detail::All).with_context(|| what(options))
}

/// Plays the recording to its end. Returns its missing parts.
fn play(
    options: &ExportOptions<'_>,
    player: &mut Player<File>,
    mut each: impl FnMut(Played<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let mut has_end = false;
    let mut noted = 0;
    loop {
        let judgements = match player.step().with_context(|| what(options))? {
            Some(Step::Judged { judgements, .. }) => Some(judgements),
            Some(Step::Ended(_)) => {
                has_end = true;
                None
            }
            None => match player.cut_off() {
                Some(judgements) => Some(judgements),
                None => break,
            },
        };
        let (changes, last) = player.pipeline().changes_after(noted);
        noted = last;
        changes.iter().try_for_each(|change| each(Played::Change(change)))?;
        for judged in judgements.iter().flat_map(|judgements| &judgements.judged) {
            if options.wants(&judged.verdict) {
                each(Played::Flow(judged))?;
            }
        }
    }
    Ok(replay::lacks(player, has_end))
}

fn sightings(options: &ExportOptions<'_>) -> anyhow::Result<Sightings<File>> {
    Sightings::open(open(options)?).with_context(|| what(options))
}

fn open(options: &ExportOptions<'_>) -> anyhow::Result<File> {
    let file = File::open(options.file)
        .with_context(|| what(options))
        .hint(|| "`viptrace trace --record FILE` makes one".to_owned())?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err(anyhow::anyhow!("{}: it is not a regular file", what(options)))
            .hint(|| "store the recording in a file first".to_owned());
    }
    Ok(file)
}
