//! The sentences about an incident that its text and its page share.
//!
//! Owns the words and their order within a part. The text and the page decide how much of each part they show, and where.
//! Every name in a sentence is safe for a terminal.

use std::time::Duration;

use crate::{
    class::Class,
    incident::{APART, Bout, Change, Chapter, Ended, Rate, Story},
    session::{Ending, SelectedFlows},
    text::{count, length, safe},
    verdict::ServiceRef,
};

pub(super) const WHAT_HAPPENED: &str = "What happened";
pub(super) const WHO_WAS_HIT: &str = "Who was hit";
pub(super) const WHAT_CHANGED: &str = "What changed around it (a correlation, not a cause)";
pub(super) const NO_CHANGE: &str =
    "nothing that is known in the hour before, as far as the recording reaches";
pub(super) const WHAT_TO_DO: &str = "What to do";
pub(super) const WHAT_WOULD_REFUTE: &str = "What would prove this wrong";
pub(super) const NOTHING_OPEN: &str = "nothing that this recording leaves open";
pub(super) const NOT_KNOWN: &str = "What is not known";
pub(super) const NO_GAP: &str = "no gap: every hook was attached and no event was lost";
pub(super) const UNCOUNTED: &str = "an unknown number of events in damaged or missing parts of the recording";
pub(super) const NO_FAILURE: &str = "No flow failed in what was observed";

/// The windows in which changes are listed (K14), the nearest first.
const WINDOWS: [(Duration, &str); 3] = [
    (Duration::from_mins(5), "in the 5 min before"),
    (Duration::from_mins(30), "in the 30 min before"),
    (Duration::from_hours(1), "in the hour before"),
];

/// The most bouts that are listed.
const MAX_BOUTS: usize = 4;

/// `C6 stale endpoint in the rules`.
pub(super) fn title(class: Class) -> String {
    match class {
        Class::Unknown => class.title().to_owned(),
        class => format!("{class} {}", class.title()),
    }
}

pub(super) fn service(service: Option<&ServiceRef>) -> Option<String> {
    service.map(|service| safe(&service.to_string()).into_owned())
}

/// The time of the last failed flow, and how long after the first it came.
pub(super) fn last(chapter: &Chapter, ending: &Ending) -> String {
    let lasted = chapter.last().since(chapter.began());
    format!("{}, {} later", chapter.last().beside(ending.started), length(lasted))
}

/// The times in which flows failed, if there were long pauses between them: `2, at least 10 min apart: …`.
pub(super) fn bouts(chapter: &Chapter, ending: &Ending) -> Option<String> {
    let all: Vec<Bout> = chapter.bouts().collect();
    if all.len() < 2 {
        return None;
    }
    let mut listed: Vec<String> = Vec::new();
    for Bout { first, last, flows } in all.iter().take(MAX_BOUTS) {
        let until = if last > first { format!(" to {}", last.beside(*first)) } else { String::new() };
        listed.push(format!("{}{until} ({})", first.beside(ending.started), count(*flows, "flow")));
    }
    let hidden = all.len().saturating_sub(MAX_BOUTS);
    if hidden > 0 {
        listed.push(format!("and {hidden} more"));
    }
    let minutes = APART.as_secs() / 60;
    Some(format!("{}, at least {minutes} min apart: {}", all.len(), listed.join(", ")))
}

/// The flows that the story is of, if it is not of all.
pub(super) fn only(ending: &Ending) -> Option<String> {
    let SelectedFlows { only, others } = ending.selected.as_ref()?;
    let others = match others {
        None | Some(0) => String::new(),
        Some(1) => "; 1 other flow was not selected".to_owned(),
        Some(others) => format!("; {others} other flows were not selected"),
    };
    Some(format!("only: {}{others}", safe(only)))
}

/// The heading of a story without failures.
pub(super) const fn no_failure(ending: &Ending) -> &'static str {
    if ending.selected.is_some() { "No selected flow failed" } else { NO_FAILURE }
}

/// When the failures ended.
pub(super) fn ended(story: &Story, chapter: &Chapter, ending: &Ending) -> String {
    match story.ended(chapter, ending.ended) {
        Ended::Answered(time) => {
            format!("the flow at {} was answered, and none failed after it", time.beside(ending.started))
        }
        Ended::OthersFailed(time) => {
            let time = time.beside(ending.started);
            format!("the flow at {time} was answered; flows of the Service failed after it for other causes")
        }
        Ended::Quiet(time) => {
            let time = time.beside(ending.started);
            format!("perhaps: the flow at {time} was answered, and no later one of the Service was observed")
        }
        Ended::Open if ending.selected.is_some() => {
            "not among the selected flows: they failed until shortly before the end of what was selected"
                .to_owned()
        }
        Ended::Open => "not in this recording: flows failed until shortly before its end".to_owned(),
        Ended::NoFlow if ending.selected.is_some() => {
            "unknown: no later flow of the Service was answered among the selected ones".to_owned()
        }
        Ended::NoFlow => "unknown: no later flow of the Service was answered".to_owned(),
    }
}

/// How many of a Service's flows failed.
pub(super) fn failed(rate: &Rate) -> String {
    let failed: u64 = rate.spans().map(|(_, span)| span.failed).sum();
    let all: u64 = rate.spans().map(|(_, span)| span.failed + span.others).sum();
    format!("{failed} of {all} failed")
}

/// The changes before the first failure by their windows, in each the nearest first; and those after it, in the order of
/// time.
pub(super) fn changes(chapter: &Chapter) -> (Vec<(&'static str, Vec<&Change>)>, Vec<&Change>) {
    let began = chapter.began();
    let (before, during): (Vec<&Change>, Vec<&Change>) =
        chapter.changes.iter().partition(|it| it.earliest() <= began);
    let mut from = Duration::ZERO;
    let mut windows = Vec::new();
    for (window, label) in WINDOWS {
        let inside = |it: &&Change| {
            let apart = began.since(it.change.time);
            apart <= window && (apart > from || from.is_zero())
        };
        let inside: Vec<&Change> = before.iter().rev().copied().filter(inside).collect();
        if !inside.is_empty() {
            windows.push((label, inside));
        }
        from = window;
    }
    (windows, during)
}

/// A change with its distance from the first or the last failed flow.
pub(super) fn change(change: &Change, chapter: &Chapter) -> String {
    let began = chapter.began();
    let text = change_alone(change);
    let change = &change.change;
    let when = if let Some(after) = change.after {
        format!("between {} and {}", after.beside(began), change.time.beside(began))
    } else if change.time <= began {
        format!("{} before", length(began.since(change.time)))
    } else if change.time > chapter.last() {
        format!("{} after the last failed flow", length(change.time.since(chapter.last())))
    } else {
        format!("{} after the first failed flow", length(change.time.since(began)))
    };
    format!("{when}: {text}")
}

/// A change with the node that noticed it, if it concerns that node only, and the version of its API object.
pub(super) fn change_alone(Change { node, change }: &Change) -> String {
    let node = node.as_deref().map_or_else(String::new, |node| format!("{}: ", safe(node)));
    let version = change.resource_version.map(|version| format!(" (resourceVersion {version})"));
    format!("{node}{}{}", safe(&change.text), version.unwrap_or_default())
}

/// The look-alikes of a class, from its page.
pub(super) fn look_alikes(class: Class) -> impl Iterator<Item = String> {
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

/// What the recordings do not show.
pub(super) fn gaps(story: &Story, ending: &Ending) -> Vec<String> {
    let mut lines = Vec::new();
    if story.uncertain > 0 {
        lines.push(format!(
            "{} without a fault, but near lost events: not called healthy",
            count(story.uncertain, "flow")
        ));
    }
    if ending.lost_events > 0 {
        lines.push(format!("{} lost", count(ending.lost_events, "event")));
    }
    if ending.uncounted_losses > 0 {
        lines.push(UNCOUNTED.to_owned());
    }
    if ending.suppressed_events > 0 {
        lines.push(format!("{} suppressed by the kernel's limits", count(ending.suppressed_events, "event")));
    }
    if ending.flows_evicted > 0 {
        lines.push(format!("{} given up without a verdict", count(ending.flows_evicted, "flow")));
    }
    lines.extend(ending.gaps.iter().map(|gap| safe(gap).into_owned()));
    lines
}

/// What only the wide form of an output has: `2 notes: -o wide shows them`.
pub(super) fn only_in_wide(number: usize, noun: &str, behind: &str) -> String {
    let them = if number == 1 { "it" } else { "them" };
    format!("{}{behind}: -o wide shows {them}", count(number, noun))
}

/// The observed time.
pub(super) fn span(ending: &Ending) -> String {
    format!("{} to {}", ending.started.to_the_millisecond(), ending.ended.beside(ending.started))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_wide_form_has_is_named_in_one_way() {
        assert_eq!(only_in_wide(1, "note", ""), "1 note: -o wide shows it");
        assert_eq!(
            only_in_wide(2, "more piece", " of evidence"),
            "2 more pieces of evidence: -o wide shows them"
        );
    }
}
