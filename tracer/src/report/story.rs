//! Lays out the story of an incident as one screen of text.
//!
//! Owns the order of its parts and how much of each is shown; the sentences are those of the outline. The story decides
//! nothing here, and neither does the report.

use std::fmt::Write as _;

use crate::{
    called::as_typed,
    incident::{Chapter, Names, Rate, Span, Story},
    report::{
        outline,
        printer::{Paint, Style},
        row::{actions, detail, ends, more},
    },
    session::Ending,
    text::{count, safe},
    time::Timestamp,
    verdict::Verdict,
};

/// The most names in a list, the most changes before a failure, around its end, and the most gaps.
const MAX_NAMES: usize = 4;
const MAX_CHANGES: usize = 8;
const MAX_OTHERS: usize = 6;
const MAX_GAPS: usize = 6;
/// The most look-alikes named as what would prove the conclusion wrong.
const MAX_LIKE: usize = 3;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The text, with a line end after each line and every name safe for a terminal.
/// `nodes` are the names of the recorded ones.
pub fn render(story: &Story, nodes: &[String], ending: &Ending, paint: Paint) -> String {
    let mut out = String::new();
    let chapters = story.chapters();
    let span = outline::span(ending);
    let nodes = nodes.iter().map(|node| safe(node)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "{}", paint.text(Style::Faint, &format!("{nodes}, {span}, UTC")));
    if let Some(only) = outline::only(ending) {
        let _ = writeln!(out, "{}", paint.text(Style::Faint, &only));
    }
    match chapters.split_first() {
        None => heading(&mut out, paint, outline::no_failure(ending)),
        Some((first, others)) => {
            what_happened(&mut out, paint, story, first, ending);
            who_was_hit(&mut out, paint, story, first, others);
            what_changed(&mut out, paint, first);
            what_to_do(&mut out, paint, &first.verdict);
            what_would_refute(&mut out, paint, &first.verdict);
            others_too(&mut out, paint, story, others, ending);
        }
    }
    gaps(&mut out, paint, story, ending);
    out
}

fn what_happened(out: &mut String, paint: Paint, story: &Story, chapter: &Chapter, ending: &Ending) {
    let (verdict, first) = (&chapter.verdict, &chapter.first().flow);
    heading(out, paint, outline::WHAT_HAPPENED);
    let title = outline::title(verdict.class);
    let service = outline::service(verdict.service.as_ref()).map_or_else(String::new, |it| format!("  {it}"));
    line(out, &format!("{}{service}", paint.text(Style::Fault, &title)));
    line(out, &detail(&verdict.root_cause));
    line(
        out,
        &format!(
            "domain {}, confidence {}, {}",
            verdict.domain,
            verdict.confidence,
            count(chapter.flows, "failed flow")
        ),
    );
    let node = first.node.as_deref().map_or_else(String::new, |node| format!(" on {}", safe(node)));
    let way = ends(first).join(" -> ");
    line(out, &format!("first   {}{node}: {way}", chapter.began().beside(ending.started)));
    line(out, &format!("last    {}", outline::last(chapter, ending)));
    if verdict.flow != *first {
        let time = verdict.flow.started.beside(ending.started);
        line(out, &format!("shown   {time}: {}", ends(&verdict.flow).join(" -> ")));
    }
    if let Some(bouts) = outline::bouts(chapter, ending) {
        line(out, &format!("bouts   {bouts}"));
    }
    line(out, &format!("ended   {}", outline::ended(story, chapter, ending)));
    for piece in verdict.evidence.iter().take(MAX_NAMES) {
        let time = piece.time.map(|time| time.beside(verdict.time) + " ").unwrap_or_default();
        line(out, &format!("because {time}{}", safe(&piece.content)));
    }
    let hidden = verdict.evidence.len().saturating_sub(MAX_NAMES);
    if hidden > 0 {
        line(out, &format!("        and {}", outline::only_in_wide(hidden, "more piece", " of evidence")));
    }
}

fn who_was_hit(out: &mut String, paint: Paint, story: &Story, first: &Chapter, others: &[&Chapter]) {
    heading(out, paint, outline::WHO_WAS_HIT);
    names(out, "clients", &first.clients);
    names(out, "endpoints", &first.endpoints);
    names(out, "nodes", &first.nodes);
    let services = others.iter().filter_map(|it| it.verdict.service.as_ref());
    let mut services: Vec<_> = services.filter(|it| Some(*it) != first.verdict.service.as_ref()).collect();
    services.sort_unstable();
    services.dedup();
    if !services.is_empty() {
        let names: Vec<_> =
            services.iter().take(MAX_NAMES).map(|it| safe(&it.to_string()).into_owned()).collect();
        let more = services.len().saturating_sub(MAX_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line(out, &format!("also      {}{more}", names.join(", ")));
    }
    let Some(rate) = first.verdict.service.as_ref().and_then(|service| story.rate_of(service)) else {
        return;
    };
    let per = rate.span().as_secs();
    line(out, &format!("flows     {}; per {per} s, from {}:", outline::failed(rate), start(rate).clock()));
    line(out, &format!("          failed {}", bars(rate, |span| span.failed)));
    line(out, &format!("          others {}", bars(rate, |span| span.others)));
}

fn start(rate: &Rate) -> Timestamp {
    rate.spans().next().map(|(time, _)| time).unwrap_or_default()
}

/// A bar for each span, as high as its share of the highest.
fn bars(rate: &Rate, of: impl Fn(Span) -> u64) -> String {
    let most = rate.spans().map(|(_, span)| of(span)).max().unwrap_or_default();
    if most == 0 {
        return "none".to_owned();
    }
    let bar = |(_, span): (Timestamp, Span)| match of(span) {
        0 => '·',
        count => {
            let step = count.saturating_mul(BARS.len() as u64 - 1) / most;
            usize::try_from(step).ok().and_then(|step| BARS.get(step)).copied().unwrap_or('█')
        }
    };
    format!("{}  at most {most}", rate.spans().map(bar).collect::<String>())
}

fn names(out: &mut String, label: &str, names: &Names) {
    let all = names.by_count();
    if all.is_empty() {
        return;
    }
    let shown: Vec<_> =
        all.iter().take(MAX_NAMES).map(|(name, count)| format!("{} ({count})", safe(name))).collect();
    let hidden = all.len().saturating_sub(MAX_NAMES) as u64;
    let more =
        if hidden > 0 || names.others() > 0 { format!(" and {} more", hidden.max(1)) } else { String::new() };
    line(out, &format!("{label:<9} {}{more}", shown.join(", ")));
}

fn what_changed(out: &mut String, paint: Paint, chapter: &Chapter) {
    heading(out, paint, outline::WHAT_CHANGED);
    let (windows, during) = outline::changes(chapter);
    let mut shown = 0;
    for (label, changes) in windows {
        line(out, label);
        for change in changes {
            if shown < MAX_CHANGES {
                line(out, &format!("  {}", outline::change(change, chapter)));
            }
            shown += 1;
        }
    }
    if shown == 0 {
        line(out, outline::NO_CHANGE);
    } else if shown > MAX_CHANGES {
        line(out, &format!("  and {} more", shown - MAX_CHANGES));
    }
    if !during.is_empty() {
        line(out, "while it lasted");
        let hidden = during.len().saturating_sub(MAX_OTHERS);
        if hidden > 0 {
            line(out, &format!("  {hidden} earlier ones, and"));
        }
        for change in during.iter().skip(hidden) {
            line(out, &format!("  {}", outline::change(change, chapter)));
        }
    }
}

fn what_to_do(out: &mut String, paint: Paint, verdict: &Verdict) {
    heading(out, paint, outline::WHAT_TO_DO);
    let actions = actions(&verdict.mitigation, verdict.class, Paint(false));
    for action in &actions {
        line(out, action);
    }
    if actions.is_empty() {
        line(out, &format!("look at the page of the class: {}", more(verdict.class)));
    }
    if !verdict.mitigation.long_term.is_empty() {
        line(out, &format!("later: {}", safe(&as_typed(&verdict.mitigation.long_term))));
    }
    if !actions.is_empty() {
        line(out, &format!("more: {}", more(verdict.class)));
    }
}

fn what_would_refute(out: &mut String, paint: Paint, verdict: &Verdict) {
    heading(out, paint, outline::WHAT_WOULD_REFUTE);
    for piece in verdict.against.iter().take(MAX_LIKE) {
        line(out, &format!("against it: {}", safe(&piece.content)));
    }
    for unseen in verdict.unseen.iter().take(MAX_LIKE) {
        line(out, &format!("not observed: {}", safe(&as_typed(unseen))));
    }
    let like: Vec<String> = outline::look_alikes(verdict.class).take(MAX_LIKE).collect();
    for text in &like {
        line(out, &format!("if instead {text}"));
    }
    if verdict.against.is_empty() && verdict.unseen.is_empty() && like.is_empty() {
        line(out, outline::NOTHING_OPEN);
    }
}

fn others_too(out: &mut String, paint: Paint, story: &Story, others: &[&Chapter], ending: &Ending) {
    if others.is_empty() && story.left_out == 0 {
        return;
    }
    heading(out, paint, "Also");
    for chapter in others.iter().take(MAX_OTHERS) {
        let service = chapter.verdict.service.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        line(
            out,
            &format!(
                "{} {}  {}  {} to {}: {}",
                chapter.flows,
                chapter.verdict.class,
                safe(&service),
                chapter.began().beside(ending.started),
                chapter.last().beside(ending.started),
                detail(&chapter.verdict.root_cause)
            ),
        );
    }
    let hidden = others.len().saturating_sub(MAX_OTHERS);
    if hidden > 0 {
        line(out, &format!("and {}", count(hidden as u64, "other cause")));
    }
    if story.left_out > 0 {
        line(out, &format!("{} of further causes", count(story.left_out, "failed flow")));
    }
}

fn gaps(out: &mut String, paint: Paint, story: &Story, ending: &Ending) {
    let mut lines = outline::gaps(story, ending);
    if lines.is_empty() && !story.chapters().is_empty() {
        return;
    }
    heading(out, paint, outline::NOT_KNOWN);
    if lines.is_empty() {
        lines.push(outline::NO_GAP.to_owned());
    }
    for text in lines.iter().take(MAX_GAPS) {
        line(out, text);
    }
    let hidden = lines.len().saturating_sub(MAX_GAPS);
    if hidden > 0 {
        line(out, &format!("and {hidden} more, in the summary of -o table"));
    }
}

fn heading(out: &mut String, paint: Paint, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(Style::Heading, text));
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "  {text}");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        class::Class,
        report::fixture::{fault, near_a_loss},
        verdict::Verdict,
    };

    /// The line of bouts in a story of flows that failed after so many seconds.
    fn bouts(seconds: &[u64]) -> Option<String> {
        let began = fault().flow.started;
        let verdicts = seconds.iter().map(|seconds| {
            let mut verdict = fault();
            verdict.flow.started = began.saturating_add(Duration::from_secs(*seconds));
            verdict
        });
        let ending = Ending { started: began, ..Ending::default() };
        let text = render(&Story::of(verdicts, &[]), &["worker-1".into()], &ending, Paint(false));
        text.lines().find_map(|line| Some(line.strip_prefix("  bouts   ")?.to_owned()))
    }

    #[test]
    fn a_healthy_flow_near_a_loss_has_no_chapter() {
        let unknown = Verdict { class: Class::Unknown, ..fault() };
        let chapters = |verdict| Story::of([verdict], &[]).chapters().len();
        assert_eq!((chapters(unknown), chapters(near_a_loss(1))), (1, 0));
    }

    #[test]
    fn failures_with_long_pauses_between_them_are_several_bouts() {
        assert_eq!(bouts(&[0, 1, 590]), None);
        assert_eq!(
            bouts(&[0, 5, 1200, 1260, 4000]).unwrap(),
            "3, at least 10 min apart: 00:01:41.000 to 00:01:46.000 (2 flows), 00:21:41.000 to 00:22:41.000 (2 flows), \
             01:08:21.000 (1 flow)"
        );
        assert_eq!(bouts(&[0, 900, 400]), None, "the last one joins the others");
        let many: Vec<u64> = (0..70).map(|number| number * 1000).collect();
        let text = bouts(&many).unwrap();
        assert!(text.starts_with("64, ") && text.ends_with(", and 60 more"), "{text}");
    }
}
