//! `viptrace replay`: judges a recording and prints it like a live trace.
//!
//! Owns the messages about an incomplete recording. The pipeline judges, and the report prints the rows.

use std::{fs::File, path::Path};

use anyhow::Context as _;

use crate::{
    cli::{
        Outcome, ResultExt as _,
        args::ReplayOptions,
        show::{Show, detail},
        target::Target,
    },
    recording::{Damage, DamageKind, End, Header, Player, Step},
    report::{Printer, Report},
    session::{Detail, Ending},
    text::{count, safe},
};

/// The maximum number of damaged parts named; the others are counted.
const NAMED: usize = 5;

/// Plays the file to its end, and prints it.
pub(super) fn run(options: &ReplayOptions, printer: Printer) -> anyhow::Result<Outcome> {
    let mut report = Report::new(options.form, printer);
    play(options, &mut report)?.finish(&mut report)
}

/// A recording that was played to its end.
pub(super) struct Played {
    show: Show,
    ending: Ending,
    is_complete: bool,
}

impl Played {
    /// Ends the report with the summary.
    pub(super) fn finish(&self, report: &mut Report) -> anyhow::Result<Outcome> {
        Ok(match self.show.finish(report, &self.ending)? {
            Outcome::Clean if !self.is_complete => Outcome::Incomplete,
            outcome => outcome,
        })
    }
}

/// Plays the file to its end, without the summary.
pub(super) fn play(options: &ReplayOptions, report: &mut Report) -> anyhow::Result<Played> {
    let (mut player, target) = open(options)?;
    let header = player.header().clone();
    if let Some(warning) = narrowed(&header, options.target.as_ref()) {
        report.warn(&warning)?;
    }
    report.note(&describe(&header, target.as_ref()))?;
    let mut show = Show::new(target);
    let mut end: Option<End> = None;
    while let Some(step) =
        player.step().with_context(|| format!("cannot replay {}", options.file.display()))?
    {
        match step {
            Step::Judged { judgements, now } => show.show(report, judgements, player.pipeline(), now)?,
            Step::Ended(ended) => end = Some(ended),
        }
    }
    while let Some(judgements) = player.cut_off() {
        show.show(report, judgements, player.pipeline(), player.now())?;
    }
    let lacks = lacks(&player, end.is_some());
    for lack in &lacks {
        report.warn(lack)?;
    }
    let mut gaps = end.as_ref().map(|end| end.gaps.clone()).unwrap_or_default();
    for gap in &mut gaps {
        *gap = safe(gap).into_owned();
    }
    if !lacks.is_empty() {
        gaps.push(format!("the recording is incomplete: {}", lacks.join("; ")));
    }
    let ended = end.map_or(player.now(), |end| end.ended);
    if let Some(why) = show.nothing_meant(&player.pipeline().cluster().history, ended) {
        report.warn(&why)?;
    }
    let ending = Ending::new(player.pipeline(), header.started, ended, gaps);
    Ok(Played { show, ending, is_complete: lacks.is_empty() })
}

/// Opens the recording. The replay has the trace's target, unless the user sets another.
fn open(options: &ReplayOptions) -> anyhow::Result<(Player<File>, Option<Target>)> {
    let path = &options.file;
    let file = File::open(path)
        .with_context(|| format!("cannot replay {}", path.display()))
        .hint(|| "`viptrace trace --record FILE` makes one".to_owned())?;
    let meta = file.metadata().with_context(|| format!("cannot replay {}", path.display()))?;
    if !meta.is_file() {
        return Err(anyhow::anyhow!("cannot replay {}: it is not a regular file", path.display()))
            .hint(|| "store the recording in a file first".to_owned());
    }
    // The header has the target, which determines the necessary detail.
    let player = opened(path, file, Detail::All)?;
    let recorded = player.header().target.as_deref().and_then(|target| Target::parse(target, None).ok());
    let target = options.target.clone().or(recorded);
    match detail(options.form.view, target.as_ref()) {
        Detail::All => Ok((player, target)),
        detail @ Detail::Faults => {
            let file = File::open(path).with_context(|| format!("cannot replay {}", path.display()))?;
            Ok((opened(path, file, detail)?, target))
        }
    }
}

fn opened(path: &Path, file: File, detail: Detail) -> anyhow::Result<Player<File>> {
    Player::open(file, detail)
        .map_err(|error| anyhow::Error::from(error).context(format!("cannot replay {}", path.display())))
}

fn describe(header: &Header, target: Option<&Target>) -> String {
    let what = target.map_or("every Service".to_owned(), ToString::to_string);
    format!(
        "replaying {what} as recorded on {} (Linux {}) from {} by viptrace {}",
        safe(header.node_name.as_deref().unwrap_or("an unnamed node")),
        safe(&header.kernel_release),
        header.started.to_the_millisecond(),
        safe(&header.viptrace)
    )
}

/// The warning if the recording covers less than the replay's target.
fn narrowed(header: &Header, wanted: Option<&Target>) -> Option<String> {
    let recorded = header.target.as_deref()?;
    let wanted = wanted?.to_string();
    (wanted != recorded).then(|| {
        format!("the recording contains only flows of {}: flows of {wanted} may be missing", safe(recorded))
    })
}

/// The missing parts of the recording, in words.
pub(super) fn lacks(player: &Player<File>, ended: bool) -> Vec<String> {
    let mut lacks = Vec::new();
    let (damages, found) = player.damage();
    for damage in damages.iter().take(NAMED) {
        lacks.push(damage_text(damage));
    }
    if let Some(more) = found.checked_sub(NAMED as u64).filter(|more| *more > 0) {
        lacks.push(count(more, "more damaged part"));
    }
    let missing = player.missing();
    if missing.beginning {
        lacks.push("the cluster's objects from before it began are missing".to_owned());
    }
    if missing.items > 0 {
        let why = missing.first_unreadable.as_deref().unwrap_or_default();
        lacks.push(format!("{} could not be read: {}", count(missing.items, "item"), safe(why)));
    }
    if missing.undecodable > 0 {
        lacks.push(format!("{} could not be decoded", count(missing.undecodable, "event")));
    }
    let dropped = missing.dropped;
    if dropped.records > 0 || dropped.others > 0 {
        lacks.push(format!(
            "{} and {} from {} to {} could not be recorded: the disk was too slow",
            count(dropped.records, "event"),
            count(dropped.others, "other item"),
            dropped.from.to_the_millisecond(),
            dropped.to.to_the_millisecond()
        ));
    }
    if !ended {
        lacks.push(format!("it was cut off at {}", player.now().to_the_millisecond()));
    }
    lacks
}

fn damage_text(damage: &Damage) -> String {
    let Damage { kind, offset, skipped, blocks } = damage;
    let (what, skipped) = (kind.as_str(), count(*skipped, "byte"));
    match (kind, blocks) {
        (DamageKind::Truncated, _) => format!("at byte {offset}: {what} (the file has {skipped} of it)"),
        (_, 0) => format!("at byte {offset}: {what} ({skipped} skipped)"),
        (_, blocks) => {
            format!("at byte {offset}: {what} ({skipped} skipped, {} lost)", count(*blocks, "block"))
        }
    }
}
