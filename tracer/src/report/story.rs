//! Lays out the story of an incident as one screen of text.
//!
//! Owns the order of its parts and how much of each is shown. The story decides nothing here, and neither does the report.

use std::{fmt::Write as _, time::Duration};

use crate::{
    class::Class,
    incident::{Change, Chapter, Ended, Names, Rate, Span, Story},
    report::{
        printer::{Paint, Style},
        row::{action, detail, end},
    },
    session::Ending,
    text::{count, length, safe},
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
/// The windows in which changes are listed (K14), the nearest first.
const WINDOWS: [(Duration, &str); 3] = [
    (Duration::from_mins(5), "in the 5 min before"),
    (Duration::from_mins(30), "in the 30 min before"),
    (Duration::from_hours(1), "in the hour before"),
];
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The text, with a line end after each line and every name safe for a terminal.
/// `nodes` are the names of the recorded ones.
pub fn render(story: &Story, nodes: &[String], ending: &Ending, paint: Paint) -> String {
    let mut out = String::new();
    let chapters = story.chapters();
    let span = format!("{} to {}", ending.started.to_the_millisecond(), ending.ended.beside(ending.started));
    let nodes = nodes.iter().map(|node| safe(node)).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "{}", paint.text(Style::Faint, &format!("{nodes}, {span}, UTC")));
    match chapters.split_first() {
        None => heading(&mut out, paint, "No flow failed in what was observed"),
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
    let (verdict, first) = (&chapter.verdict, &chapter.first.flow);
    heading(out, paint, "What happened");
    let title = match verdict.class {
        Class::Unknown => verdict.class.title().to_owned(),
        class => format!("{class} {}", class.title()),
    };
    let service =
        verdict.service.as_ref().map_or_else(String::new, |it| format!("  {}", safe(&it.to_string())));
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
    let client = end(first.client_pod.as_deref(), Some(first.client), true);
    let endpoint = first.endpoint.map(|it| end(first.endpoint_pod.as_deref(), Some(it), true));
    let vip = first.vip.map(|vip| vip.to_string());
    let way: Vec<String> = [client].into_iter().chain(vip).chain(endpoint).collect();
    let node = first.node.as_deref().map_or_else(String::new, |node| format!(" on {}", safe(node)));
    line(out, &format!("first   {}{node}: {}", first.started.beside(ending.started), way.join(" -> ")));
    let lasted = chapter.last.since(first.started);
    let last = chapter.last.beside(ending.started);
    line(out, &format!("last    {last}, {} later", length(lasted)));
    let ended = match story.ended(chapter, ending.ended) {
        Ended::Answered(time) => format!(
            "ended   the flow at {} was answered, and none failed after it",
            time.beside(ending.started)
        ),
        Ended::Open => "ended   not in this recording: flows failed until shortly before its end".to_owned(),
        Ended::NoFlow => "ended   unknown: no later flow of the Service was observed".to_owned(),
    };
    line(out, &ended);
    for piece in verdict.evidence.iter().take(MAX_NAMES) {
        let time = piece.time.map(|time| time.beside(verdict.time) + " ").unwrap_or_default();
        line(out, &format!("because {time}{}", safe(&piece.content)));
    }
    let hidden = verdict.evidence.len().saturating_sub(MAX_NAMES);
    if hidden > 0 {
        line(out, &format!("        and {hidden} more pieces of evidence: -o wide shows them"));
    }
}

fn who_was_hit(out: &mut String, paint: Paint, story: &Story, first: &Chapter, others: &[&Chapter]) {
    heading(out, paint, "Who was hit");
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
    let failed: u64 = rate.spans().map(|(_, span)| span.failed).sum();
    let all: u64 = rate.spans().map(|(_, span)| span.failed + span.others).sum();
    line(
        out,
        &format!(
            "flows     {failed} of {all} failed; per {} s, from {}:",
            rate.span().as_secs(),
            start(rate).clock()
        ),
    );
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
    heading(out, paint, "What changed around it (a correlation, not a cause)");
    let began = chapter.first.flow.started;
    let before: Vec<&Change> = chapter.changes.iter().filter(|it| it.change.time <= began).collect();
    let mut from = Duration::ZERO;
    let mut shown = 0;
    for (window, label) in WINDOWS {
        let inside = before.iter().rev().filter(|it| {
            let apart = began.since(it.change.time);
            apart <= window && (apart > from || from.is_zero())
        });
        for (index, change) in inside.enumerate() {
            if index == 0 {
                line(out, label);
            }
            if shown < MAX_CHANGES {
                line(out, &format!("  {}", describe(change, chapter)));
            }
            shown += 1;
        }
        from = window;
    }
    if shown == 0 {
        line(out, "nothing that is known in the hour before, as far as the recording reaches");
    } else if shown > MAX_CHANGES {
        line(out, &format!("  and {} more", shown - MAX_CHANGES));
    }
    let during: Vec<&Change> = chapter.changes.iter().filter(|it| it.change.time > began).collect();
    if !during.is_empty() {
        line(out, "while it lasted");
        let hidden = during.len().saturating_sub(MAX_OTHERS);
        if hidden > 0 {
            line(out, &format!("  {hidden} earlier ones, and"));
        }
        for change in during.iter().skip(hidden) {
            line(out, &format!("  {}", describe(change, chapter)));
        }
    }
}

/// A change with its distance from the first or the last failed flow.
fn describe(Change { node, change }: &Change, chapter: &Chapter) -> String {
    let began = chapter.first.flow.started;
    let node = node.as_deref().map_or_else(String::new, |node| format!("{}: ", safe(node)));
    let when = if let Some(after) = change.after {
        format!("between {} and {}", after.beside(began), change.time.beside(began))
    } else if change.time <= began {
        format!("{} before", length(began.since(change.time)))
    } else if change.time > chapter.last {
        format!("{} after the last failed flow", length(change.time.since(chapter.last)))
    } else {
        format!("{} after the first failed flow", length(change.time.since(began)))
    };
    format!("{when}: {node}{}", safe(&change.text))
}

fn what_to_do(out: &mut String, paint: Paint, verdict: &Verdict) {
    heading(out, paint, "What to do");
    match action(&verdict.mitigation) {
        Some(action) => line(out, &action),
        None => line(out, &format!("look at the page of the class: viptrace explain {}", verdict.class)),
    }
    if !verdict.mitigation.long_term.is_empty() {
        line(out, &format!("later: {}", safe(&verdict.mitigation.long_term)));
    }
}

fn what_would_refute(out: &mut String, paint: Paint, verdict: &Verdict) {
    heading(out, paint, "What would prove this wrong");
    for piece in verdict.against.iter().take(MAX_LIKE) {
        line(out, &format!("against it: {}", safe(&piece.content)));
    }
    for unseen in verdict.unseen.iter().take(MAX_LIKE) {
        line(out, &format!("not observed: {}", safe(unseen)));
    }
    let like: Vec<String> = look_alikes(verdict.class).take(MAX_LIKE).collect();
    for text in &like {
        line(out, &format!("if instead {text}"));
    }
    if verdict.against.is_empty() && verdict.unseen.is_empty() && like.is_empty() {
        line(out, "nothing that this recording leaves open");
    }
}

/// The look-alikes of a class, from its page.
fn look_alikes(class: Class) -> impl Iterator<Item = String> {
    let page = class.page();
    let section = page.split("\n## What looks the same\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    section.split("\n- ").skip(1).map(|item| {
        let words: Vec<&str> = item.split_whitespace().collect();
        plain(words.join(" ").trim_end_matches('.'))
    })
}

/// Markdown without links and emphasis.
fn plain(markdown: &str) -> String {
    let mut out = String::new();
    let mut rest = markdown;
    while let Some(open) = rest.find('[') {
        let Some((text, after)) = rest.get(open + 1..).and_then(|inside| inside.split_once("](")) else {
            break;
        };
        let Some((_, after)) = after.split_once(')') else { break };
        out.push_str(rest.get(..open).unwrap_or_default());
        out.push_str(text);
        rest = after;
    }
    out.push_str(rest);
    out.replace(['*', '`'], "")
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
                chapter.first.flow.started.beside(ending.started),
                chapter.last.beside(ending.started),
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
    let mut lines = Vec::new();
    if ending.lost_events > 0 {
        lines.push(format!("{} were lost", count(ending.lost_events, "event")));
    }
    if ending.suppressed_events > 0 {
        lines.push(format!(
            "{} were suppressed by the kernel's limits",
            count(ending.suppressed_events, "event")
        ));
    }
    if ending.flows_evicted > 0 {
        lines.push(format!("{} were given up without a verdict", count(ending.flows_evicted, "flow")));
    }
    lines.extend(ending.gaps.iter().map(|gap| safe(gap).into_owned()));
    if lines.is_empty() && !story.chapters().is_empty() {
        return;
    }
    heading(out, paint, "What is not known");
    if lines.is_empty() {
        lines.push("no gap: every hook was attached and no event was lost".to_owned());
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
