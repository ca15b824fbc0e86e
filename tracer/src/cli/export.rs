//! `viptrace replay … -o pcapng` and `-o parquet`: recordings as files for other programs.
//!
//! Owns the destination and the messages. The replay judges, and `export` writes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, IsTerminal as _},
    path::Path,
};

use anyhow::Context as _;

use crate::{
    cli::{
        Outcome, ResultExt as _,
        args::ReplayOptions,
        replay::{self, Audience, Opened},
        selection::Selection,
    },
    export::{Tables, Verdicts, packets},
    incident::{Beside, Timeline, Track},
    platform,
    report::{OutputError, Printer},
    session::{ChangeLister, Judged, Judgements},
    text::count,
    time::Timestamp,
};

/// Exports the recordings: to standard output, or into a folder.
pub(super) fn run(options: &ReplayOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    if options.out.is_none() && io::stdout().is_terminal() {
        return Err(anyhow::anyhow!("pcapng is a binary format, and standard output is a terminal"))
            .hint(|| "viptrace replay FILE -o pcapng > packets.pcapng".to_owned());
    }
    let mut opened = replay::open(options)?;
    opened.judge_each_flow();
    match &options.out {
        Some(folder) => parquet(opened, folder, &mut printer),
        None => pcapng(opened, options.selection != Selection::default(), &mut printer),
    }
}

/// Keeps the verdicts for the packets.
struct Judging<'p> {
    printer: &'p mut Printer,
    verdicts: Verdicts,
}

impl Audience for Judging<'_> {
    fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.note(text);
        Ok(())
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.warn(text);
        Ok(())
    }

    fn take(&mut self, judgements: Judgements, beside: Beside<'_>, _: Timestamp) -> anyhow::Result<()> {
        judgements.judged.iter().for_each(|judged| self.verdicts.add(&judged.verdict, beside.track));
        Ok(())
    }

    fn withdraw(&mut self, judged: &Judged, beside: Beside<'_>) -> anyhow::Result<()> {
        self.verdicts.add(&judged.verdict, beside.track);
        Ok(())
    }
}

fn pcapng(opened: Opened, only_judged: bool, printer: &mut Printer) -> anyhow::Result<Outcome> {
    let notes = opened.about_clocks();
    let mut judging = Judging { printer, verdicts: Verdicts::default() };
    let (ended, timeline) = opened.play(&mut judging)?;
    let Judging { printer, verdicts } = judging;
    let out = BufWriter::new(io::stdout().lock());
    let written =
        packets::write(&timeline, &verdicts, only_judged, &notes, out).map_err(|error| match error {
            packets::PacketsError::Read(file) => file.into(),
            packets::PacketsError::Write(error) => anyhow::Error::from(OutputError::from(error)),
        })?;
    printer.note(&format!("{} written", count(written, "packet")));
    if written == 0 {
        printer.warn("no packet of these flows is in the recording: viptrace records packets that failed, not the healthy ones");
    }
    Ok(ended.outcome(Outcome::Clean))
}

/// Fills the tables.
struct Filling<'p> {
    printer: &'p mut Printer,
    folder: &'p Path,
    tables: Tables,
    /// Those of each trace.
    changes: Vec<ChangeLister>,
}

impl Filling<'_> {
    /// Adds the changes that a trace has noticed since the last call.
    fn list(&mut self, timeline: &Timeline, index: usize) -> anyhow::Result<()> {
        let Some(player) = timeline.tracks().get(index).and_then(|track| track.tape().player()) else {
            return Ok(());
        };
        if self.changes.len() <= index {
            self.changes.resize_with(index + 1, ChangeLister::default);
        }
        let Some(lister) = self.changes.get_mut(index) else { return Ok(()) };
        for mut change in lister.list(player.pipeline()) {
            change.time = timeline.common(index, change.time);
            change.after = change.after.map(|after| timeline.common(index, after));
            self.tables.change(&change, node(timeline, index)).with_context(|| cannot_write(self.folder))?;
        }
        Ok(())
    }
}

impl Audience for Filling<'_> {
    fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.note(text);
        Ok(())
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.warn(text);
        Ok(())
    }

    fn take(&mut self, judgements: Judgements, beside: Beside<'_>, _: Timestamp) -> anyhow::Result<()> {
        self.list(beside.timeline, beside.track)?;
        for judged in &judgements.judged {
            let node = node(beside.timeline, beside.track);
            self.tables.flow(judged, node).with_context(|| cannot_write(self.folder))?;
        }
        Ok(())
    }

    fn withdraw(&mut self, judged: &Judged, beside: Beside<'_>) -> anyhow::Result<()> {
        let node = node(beside.timeline, beside.track);
        self.tables.flow(judged, node).with_context(|| cannot_write(self.folder))
    }
}

fn parquet(opened: Opened, folder: &Path, printer: &mut Printer) -> anyhow::Result<Outcome> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))?;
    let flows = create(&folder.join("flows.parquet"))?;
    let changes = create(&folder.join("changes.parquet"))?;
    let tables = Tables::create(flows, changes, opened.timeline()).with_context(|| cannot_write(folder))?;
    let mut filling = Filling { printer, folder, tables, changes: Vec::new() };
    let (ended, timeline) = opened.play(&mut filling)?;
    for index in 0..timeline.tracks().len() {
        filling.list(&timeline, index)?;
    }
    let Filling { printer, tables, .. } = filling;
    let rows = tables.finish().with_context(|| cannot_write(folder))?;
    printer.note(&format!(
        "{}: {} in flows.parquet, {} in changes.parquet",
        folder.display(),
        count(rows.flows, "row"),
        count(rows.changes, "row")
    ));
    Ok(ended.outcome(Outcome::Clean))
}

fn cannot_write(folder: &Path) -> String {
    format!("cannot write to {}", folder.display())
}

/// The name of a trace's node.
fn node(timeline: &Timeline, index: usize) -> Option<&str> {
    timeline.tracks().get(index).map(Track::header)?.node_name.as_deref()
}

/// A new file. Only its owner may read it: it names Pods and their peers.
fn create(path: &Path) -> anyhow::Result<File> {
    let mut how = OpenOptions::new();
    platform::private(how.write(true).create_new(true))
        .open(path)
        .with_context(|| format!("cannot create {}", path.display()))
        .hint(|| format!("remove {}, or choose another folder with --out", path.display()))
}
