//! `viptrace replay`: judges recordings and prints them like a live trace.
//!
//! Owns what is played, and the messages about it. The pipeline judges, and the report prints the rows.

mod clocks;
mod counts;
mod lacks;
mod narrow;
mod ways;

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    time::Duration,
};

use crate::{
    called,
    cli::{
        Outcome, ResultExt as _,
        args::{self, ReplayOptions},
        export,
        selection::{Selection, Span},
        show::{Show, detail, detail_of_rows},
        target::Target,
    },
    incident::{Beside, Moment, Story, Timeline, Track},
    recording::{Header, Part, UnusableFile},
    report::{
        Form, Printer, ReplayOutput, Report,
        html::{self, Messages},
        story,
    },
    session::{Detail, Ending, Judged, Judgements, SelectedFlows},
    text::{count, list, safe},
    time::Timestamp,
};
use clocks::{clock_note, unaligned, with_files};
pub(super) use lacks::{missing, unusable};

/// How long before `--since` events are observed: a connection that began earlier counts as begun before the recording.
const EARLIER: Duration = Duration::from_mins(15);
/// How long after a flow's end its verdict may come.
const LATE: Duration = Duration::from_mins(5);

/// Plays the files to their end, and prints them.
pub(super) fn run(options: &ReplayOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    if matches!(options.output, ReplayOutput::Pcapng | ReplayOutput::Parquet) {
        return export::run(options, printer);
    }
    if options.output == ReplayOutput::Counts {
        return counts::run(options, printer);
    }
    if options.output == ReplayOutput::Html && io::stdout().is_terminal() {
        return Err(anyhow::anyhow!("a report is a file: standard output is a terminal"))
            .hint(|| "viptrace replay FILE -o html > report.html".to_owned());
    }
    let mut opened = open(options)?;
    if options.paths {
        return ways::run(opened, &mut printer);
    }
    if let ReplayOutput::Story | ReplayOutput::Html = options.output {
        return tell(opened, options, printer);
    }
    let form = Form { several_nodes: opened.timeline.tracks().len() > 1, ..options.form };
    opened.timeline.set_detail(detail_of_rows(form, &opened.selection));
    rows(opened, &mut Report::new(form, printer))?.finish()
}

/// Plays to the end, and writes the story as text or as a page.
fn tell(mut opened: Opened, options: &ReplayOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let is_page = options.output == ReplayOutput::Html;
    let story = if is_page { Story::with_records() } else { Story::default() };
    opened.stay_on_trace_clock()?;
    let mut teller = Teller { printer: &mut printer, story, messages: Messages::default() };
    let (ended, _) = opened.play(&mut teller)?;
    let Teller { story, messages, .. } = teller;
    if is_page {
        printer.data(&html::render(&story, &ended.nodes, &ended.ending, &messages))?;
    } else {
        printer.text(&story::render(&story, &ended.nodes, &ended.ending, printer.paint()))?;
    }
    printer.flush()?;
    let has_fault = story.chapters().iter().any(|chapter| chapter.verdict.is_fault());
    Ok(ended.outcome(if has_fault { Outcome::Faults } else { Outcome::Clean }))
}

/// Plays to the end and shows the rows, without the summary.
pub(super) fn rows(opened: Opened, report: &mut Report) -> anyhow::Result<Played<'_>> {
    let show = Show::new(opened.selection.target.clone());
    let mut rows = Rows { report, show, selection: opened.selection.clone() };
    let (ended, _) = opened.play(&mut rows)?;
    let Rows { report, show, .. } = rows;
    Ok(Played { report, show, ended })
}

/// Takes what is played.
pub(super) trait Audience {
    fn note(&mut self, text: &str) -> anyhow::Result<()>;
    fn warn(&mut self, text: &str) -> anyhow::Result<()>;
    /// The wanted judgements of a trace at `now`.
    fn take(&mut self, judgements: Judgements, beside: Beside<'_>, now: Timestamp) -> anyhow::Result<()>;
    /// The judgements that would be wanted if all classes were.
    fn take_beside(&mut self, _: &Judgements) {}
    /// An earlier verdict that it took no longer holds: the flow has another class, which is not wanted.
    fn withdraw(&mut self, _: &Judged, _: Beside<'_>) -> anyhow::Result<()> {
        Ok(())
    }
    /// A trace has ended.
    fn ended(&mut self, _: Beside<'_>) {}
}

/// Shows rows, and counts for the summary.
struct Rows<'r> {
    report: &'r mut Report,
    show: Show,
    selection: Selection,
}

impl Audience for Rows<'_> {
    fn note(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.report.note(text)?)
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.report.warn(text)?)
    }

    fn take(&mut self, judgements: Judgements, beside: Beside<'_>, now: Timestamp) -> anyhow::Result<()> {
        for judged in judgements.judged.iter().filter(|judged| self.selection.was_beside(judged)) {
            self.show.no_longer_beside(&judged.verdict);
        }
        self.show.show(self.report, judgements, beside.pipeline, now)
    }

    fn take_beside(&mut self, judgements: &Judgements) {
        for judged in judgements.judged.iter().filter(|judged| !self.selection.was_beside(judged)) {
            self.show.beside(&judged.verdict, 1);
        }
        for folded in &judgements.folded {
            self.show.beside(&folded.verdict, folded.count);
        }
    }

    fn withdraw(&mut self, judged: &Judged, _: Beside<'_>) -> anyhow::Result<()> {
        self.show.withdraw(self.report, judged)
    }
}

/// Collects the story.
struct Teller<'p> {
    printer: &'p mut Printer,
    story: Story,
    messages: Messages,
}

impl Audience for Teller<'_> {
    fn note(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.note(text);
        self.messages.notes.push(text.to_owned());
        Ok(())
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.printer.warn(text);
        self.messages.warnings.push(text.to_owned());
        Ok(())
    }

    fn take(&mut self, judgements: Judgements, beside: Beside<'_>, _: Timestamp) -> anyhow::Result<()> {
        judgements.judged.iter().for_each(|judged| self.story.add(judged, beside));
        judgements.folded.iter().for_each(|folded| self.story.add_folded(folded));
        Ok(())
    }

    fn take_beside(&mut self, judgements: &Judgements) {
        judgements.judged.iter().for_each(|judged| self.story.note(judged));
        judgements.folded.iter().for_each(|folded| self.story.add_folded(folded));
    }

    fn ended(&mut self, beside: Beside<'_>) {
        self.story.note_changes(beside);
    }
}

/// Recordings whose rows were shown.
pub(super) struct Played<'r> {
    pub(super) report: &'r mut Report,
    show: Show,
    ended: Ended,
}

impl Played<'_> {
    /// Ends the report with the summary.
    pub(super) fn finish(self) -> anyhow::Result<Outcome> {
        let outcome = self.show.finish(self.report, &self.ended.ending)?;
        Ok(self.ended.outcome(outcome))
    }
}

/// Recordings that were played to their end.
pub(super) struct Ended {
    nodes: Vec<String>,
    ending: Ending,
    is_complete: bool,
}

impl Ended {
    /// The outcome, if the flows alone have this one.
    pub(super) fn outcome(&self, of_flows: Outcome) -> Outcome {
        if of_flows == Outcome::Clean && !self.is_complete { Outcome::Incomplete } else { of_flows }
    }
}

/// Recordings that can be played.
pub(super) struct Opened {
    timeline: Timeline,
    selection: Selection,
    /// The part of the selection that the user asked for.
    asked: Selection,
    /// The wanted times, on the clock of the verdicts' times.
    span: Span,
    /// The same as the user gave them.
    asked_span: Span,
    notes: Vec<String>,
    warnings: Vec<String>,
    /// What is missing from the beginning.
    lacks: Vec<String>,
}

/// Opens the recordings. Without a Service of the user's, the replay has the traces' common target.
pub(super) fn open(options: &ReplayOptions) -> anyhow::Result<Opened> {
    let mut selection = options.selection.clone();
    let mut timeline = Timeline::open(&options.files).map_err(|file| no_file(file, &options.files))?;
    let Some(first) = timeline.tracks().first() else {
        return Err(nothing_in(&timeline.skipped, &options.files));
    };
    let recorded = first.header().target.clone();
    let is_common = timeline.tracks().iter().all(|track| track.header().target == recorded);
    if selection.target.is_none() && is_common {
        selection.target = recorded.as_deref().and_then(|target| Target::parse(target, None).ok());
    }
    timeline.set_detail(detail(options.form.view, &selection));
    let tracks = || timeline.tracks().iter();
    let mut notes: Vec<_> = tracks()
        .map(|track| describe(track.header(), selection.target.as_ref(), track.tape().files()))
        .collect();
    notes.extend(tracks().enumerate().filter_map(|(index, _)| clock_note(&timeline, index)));
    notes.extend(timeline.copies.iter().map(|copy| safe(&copy.to_string()).into_owned()));
    if timeline.others > 0 {
        notes.push(format!("{} in the folders: no recordings", count(timeline.others, "other file")));
    }
    let narrowed = tracks().filter_map(|track| narrowed(track.header(), options.selection.target.as_ref()));
    let mut warnings: Vec<_> = narrowed.collect();
    warnings.extend(unaligned(&timeline));
    warnings.extend(recorded_twice(&timeline));
    let mut lacks = unusable(&timeline.skipped, timeline.skipped_more);
    let asked = options.selection.clone();
    let mut span = Span::ALL;
    if asked.has_times() {
        let recorded = recorded_time(&timeline)?;
        span = wanted_time(&asked, recorded)?;
        notes.push(format!("flows {span}"));
        lacks.extend(span.misses(recorded));
    }
    Ok(Opened { timeline, selection, asked, span, asked_span: span, notes, warnings, lacks })
}

/// The wanted times. Some mistakes of usage show only beside the recorded ones.
fn wanted_time(selection: &Selection, recorded: Span) -> Result<Span, clap::Error> {
    selection.span(recorded).map_err(|why| args::usage("replay", why))
}

/// The time that the traces cover, on their common clock; of a single one, by its wall clock.
fn recorded_time(timeline: &Timeline) -> Result<Span, UnusableFile> {
    let begins = timeline.tracks().iter().enumerate();
    let begins = begins.map(|(index, track)| timeline.common(index, track.header().started));
    let wall = timeline.wall_clock()?;
    Ok(Span { from: wall.unix(begins.min().unwrap_or_default()), to: wall.unix(timeline.last_time()) })
}

impl Opened {
    pub(super) const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Leaves the times of a single trace on its own clock, so that they show what came first and how much later the next
    /// one came. The wanted times stay those of its wall clock.
    fn stay_on_trace_clock(&mut self) -> Result<(), UnusableFile> {
        self.notes.extend(self.timeline.wall_clock()?.difference());
        if self.span != Span::ALL {
            let (from, to) = self.timeline.on_trace_clock(self.span.from, self.span.to)?;
            self.span = Span { from, to };
        }
        self.timeline.stay_on_trace_clock();
        Ok(())
    }

    /// Healthy flows have their own verdicts, whatever the options say.
    pub(super) fn judge_each_flow(&mut self) {
        self.timeline.set_detail(Detail::All);
    }

    /// What is known about the distances of the clocks, in sentences.
    pub(super) fn about_clocks(&self) -> Vec<String> {
        let tracks = 0..self.timeline.tracks().len();
        tracks
            .filter_map(|index| clock_note(&self.timeline, index))
            .chain(unaligned(&self.timeline))
            .collect()
    }

    /// Plays to the end, for an audience.
    pub(super) fn play(mut self, audience: &mut impl Audience) -> anyhow::Result<(Ended, Timeline)> {
        for note in &self.notes {
            audience.note(note)?;
        }
        for warning in &self.warnings {
            audience.warn(warning)?;
        }
        let span = self.span;
        let played = played(&self.timeline, span)?;
        if played.from > Timestamp::MIN {
            self.timeline.skip_until(played.from);
            self.timeline.each_since(played.from.saturating_add(EARLIER));
        }
        let (part, why) = narrow::part(&self.timeline, &self.asked, played)?;
        let is_all_judged = matches!(part, Part::Whole) && span == Span::ALL;
        self.timeline.narrow(part);
        if let Some(why) = why {
            audience.note(&why)?;
        }
        let (mut others, mut has_any) = (0, false);
        while let Some(Moment { track, judgements, now }) = self.timeline.step()? {
            if now > played.to {
                break;
            }
            let beside = beside(&self.timeline, track);
            if let Some(beside) = beside {
                self.selection.name_ports(&beside.pipeline.cluster().history);
            }
            let selected = self.selection.select(judgements, span);
            others += selected.others;
            has_any |= selected.has_any();
            audience.take_beside(&selected.of_other_classes);
            if let Some(beside) = beside {
                let others = selected.of_other_classes.judged.iter();
                for judged in others.filter(|judged| self.selection.wanted_before(judged)) {
                    audience.withdraw(judged, beside)?;
                }
                audience.take(selected.wanted, beside, now)?;
            }
        }
        if let Some(note) = self.timeline.reading().and_then(narrow::note) {
            audience.note(&note)?;
        }
        let several = self.timeline.tracks().len() > 1;
        let mut lacks = self.lacks;
        let mut endings = Vec::new();
        let mut reasons = Vec::new();
        let mut hint = None;
        for (index, track) in self.timeline.tracks().iter().enumerate() {
            let place = if several { format!("{}: ", safe(track.name())) } else { String::new() };
            let is_whole = is_reached(&self.timeline, index, span.to);
            let found = missing(track.tape(), is_whole);
            hint = hint.or(lacks::remedy(track.tape(), is_whole));
            lacks.extend(found.iter().map(|lack| format!("{place}{lack}")));
            let Some(beside) = beside(&self.timeline, index) else { continue };
            let end = track.tape().end();
            let ended = end.map_or(track.tape().now(), |end| end.ended);
            audience.ended(beside);
            let history = &beside.pipeline.cluster().history;
            reasons.push(if has_any { None } else { self.selection.nothing_meant(span, history, ended) });
            let mut gaps: Vec<_> = end.map(|end| end.gaps.clone()).unwrap_or_default();
            for gap in &mut gaps {
                *gap = safe(gap).into_owned();
            }
            if !found.is_empty() {
                gaps.push(format!("the recording is incomplete: {}", found.join("; ")));
            }
            let mut ending = Ending::new(beside.pipeline, track.header().started, ended, gaps);
            // The times that were wanted, not those that were played for them.
            ending.started = self.timeline.displayed(index, ending.started).max(span.from);
            ending.ended = self.timeline.displayed(index, ending.ended).min(span.to).max(ending.started);
            endings.push((safe(track.name()).into_owned(), ending));
        }
        let nothing = reasons.into_iter().flatten().next();
        if self.asked.names_flows() {
            lacks.extend(nothing);
        } else if let Some(why) = nothing {
            // The trace had the same target and found the same.
            audience.warn(&why)?;
        }
        for lack in &lacks {
            audience.warn(lack)?;
        }
        if let Some(hint) = hint {
            audience.note(hint)?;
        }
        let nodes = endings.iter().map(|(name, _)| name.clone()).collect();
        let mut ending = match endings.pop() {
            Some((_, ending)) if endings.is_empty() => ending,
            last => Ending::of_nodes(endings.into_iter().chain(last)),
        };
        let others = is_all_judged.then_some(others);
        ending.selected = self.asked.in_words(self.asked_span).map(|only| SelectedFlows { only, others });
        Ok((Ended { nodes, ending, is_complete: lacks.is_empty() }, self.timeline))
    }
}

/// The times in which events or verdicts of flows in this span can be, on the clock of the timeline's steps.
fn played(timeline: &Timeline, span: Span) -> Result<Span, UnusableFile> {
    if span == Span::ALL {
        return Ok(span);
    }
    let Span { mut from, mut to } = span;
    if !timeline.is_on_trace_clock() {
        (from, to) = timeline.on_trace_clock(from, to)?;
    }
    Ok(Span { from: from.saturating_sub(EARLIER), to: to.saturating_add(LATE) })
}

/// Whether a trace goes on after this time: then it has all that is wanted until there, wherever it was cut off.
fn is_reached(timeline: &Timeline, track: usize, until: Timestamp) -> bool {
    let Some(tape) = timeline.tracks().get(track).map(Track::tape) else { return false };
    let last = tape.last_time().map_or(tape.now(), |last| last.max(tape.now()));
    until < timeline.displayed(track, last)
}

fn beside(timeline: &Timeline, track: usize) -> Option<Beside<'_>> {
    let player = timeline.tracks().get(track)?.tape().player()?;
    Some(Beside { pipeline: player.pipeline(), timeline, track })
}

/// The error of a path that cannot be replayed. It may be meant as a Service, as `viptrace trace` takes one.
pub(super) fn no_file(file: UnusableFile, paths: &[PathBuf]) -> anyhow::Error {
    let name = file.path.to_string_lossy().into_owned();
    let is_missing = !file.path.exists();
    let error = anyhow::Error::from(file);
    if !is_missing || paths.len() < 2 || !matches!(Target::parse(&name, None), Ok(Target::Service { .. })) {
        return error;
    }
    let text = format!("{error}");
    let hinted: anyhow::Result<()> = Err(anyhow::anyhow!(text));
    hinted.hint(|| format!("for the flows of a Service, add --service {name}")).err().unwrap_or(error)
}

/// Why there is no recording.
pub(super) fn nothing_in(skipped: &[UnusableFile], paths: &[PathBuf]) -> anyhow::Error {
    if let Some(file) = skipped.first() {
        return file.clone().into();
    }
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let error: anyhow::Result<()> = Err(anyhow::anyhow!("no recording is in {}", list(&names)));
    let hinted = error.hint(|| {
        let other = called::unless_by_plugin("; `viptrace trace --record FILE` makes a recording, too");
        format!("name the folder of an agent's segments{other}")
    });
    hinted.err().unwrap_or_else(|| anyhow::anyhow!("no recording was found"))
}

fn describe(header: &Header, target: Option<&Target>, files: usize) -> String {
    let what = target.map_or("every Service".to_owned(), ToString::to_string);
    let files = if files > 1 { format!(", {}", count(files as u64, "file")) } else { String::new() };
    format!(
        "replaying {what} as recorded on {} (Linux {}) from {} by viptrace {}{files}",
        safe(header.node_name.as_deref().unwrap_or("an unnamed node")),
        safe(&header.kernel_release),
        header.started.to_the_millisecond(),
        safe(&header.viptrace)
    )
}

/// A warning for each two traces that recorded the same flows.
fn recorded_twice(timeline: &Timeline) -> Vec<String> {
    let warning = |(one, other): (&Track, &Track)| {
        let (one, other) = (with_files(one), with_files(other));
        format!("{one} and {other} overlap: flows that both recorded count twice; replay one of the two")
    };
    timeline.overlapping().into_iter().map(warning).collect()
}

/// The warning if the recording covers less than the replay's target.
fn narrowed(header: &Header, wanted: Option<&Target>) -> Option<String> {
    let recorded = header.target.as_deref()?;
    let wanted = wanted?.to_string();
    (wanted != recorded).then(|| {
        format!("the recording contains only flows of {}: flows of {wanted} may be missing", safe(recorded))
    })
}
