//! The section of one cause: what happened, who was hit, what changed, what to do, what would prove it wrong.

use super::{
    Page,
    commands::{self, steps},
    fact, list, records, section, time, title, way,
    writer::Html,
};
use crate::{
    called::as_typed,
    incident::{Chapter, Names},
    report::{
        outline,
        row::{self, detail},
    },
    text::count,
    verdict::{Evidence, EvidenceType, Step, Verdict},
};

/// The most names in a list.
const MAX_NAMES: usize = 20;

/// Writes the cause with this number, from 1.
pub(super) fn write(html: &mut Html, page: Page<'_>, number: usize, chapter: &Chapter) {
    let verdict = &chapter.verdict;
    let id = format!("cause-{number}");
    let heading = if page.chapters.len() > 1 {
        format!("{number}. {}", title(chapter))
    } else {
        "The cause".to_owned()
    };
    section(html, &id, &heading, |html| {
        html.leaf("h3", &[], outline::WHAT_HAPPENED);
        html.leaf("p", &[("class", &"cause")], detail(&verdict.root_cause));
        happened(html, page, chapter);
        let first = &chapter.first().flow;
        let which = if verdict.flow == *first {
            "first failed flow".to_owned()
        } else {
            format!(
                "failed flow of {}, which the evidence is about",
                verdict.flow.started.beside(page.ending.started)
            )
        };
        way::write(html, verdict, &which);
        html.leaf("h4", &[], "Evidence");
        evidence(html, page, &verdict.evidence);

        html.leaf("h3", &[], outline::WHO_WAS_HIT);
        html.block("div", &[("class", &"columns")], |html| {
            names(html, "Clients", &chapter.clients);
            names(html, "Endpoints", &chapter.endpoints);
            names(html, "Nodes", &chapter.nodes);
        });

        html.leaf("h3", &[], outline::WHAT_CHANGED);
        changes(html, page, chapter);
        html.leaf("h3", &[], outline::WHAT_TO_DO);
        to_do(html, verdict);
        html.leaf("h3", &[], outline::WHAT_WOULD_REFUTE);
        refutations(html, page, verdict);
        html.leaf("h3", &[], "Records");
        records::write(html, page, chapter);
    });
}

fn happened(html: &mut Html, page: Page<'_>, chapter: &Chapter) {
    let verdict = &chapter.verdict;
    html.block("dl", &[("class", &"facts")], |html| {
        html.block("div", &[], |html| {
            html.leaf("dt", &[], "Class");
            html.element("dd", &[], |html| {
                let link = format!("#class-{}", verdict.class);
                html.leaf("a", &[("href", &link)], outline::title(verdict.class));
            });
        });
        fact(html, "Domain", verdict.domain.as_str());
        fact(html, "Confidence", &verdict.confidence.to_string());
        fact(html, "Severity", &verdict.severity.to_string());
        fact(html, "Failed flows", &chapter.flows.to_string());
        fact(html, "First", &chapter.began().beside(page.ending.started));
        fact(html, "Last", &outline::last(chapter, page.ending));
        if let Some(bouts) = outline::bouts(chapter, page.ending) {
            fact(html, "Bouts", &bouts);
        }
        fact(html, "Ended", &outline::ended(page.story, chapter, page.ending));
        if let Some(mode) = &verdict.kube_proxy_mode {
            let version = verdict.kube_proxy_version.as_deref().unwrap_or("of unknown version");
            fact(html, "kube-proxy", &format!("{mode} mode, {version}"));
        }
    });
}

fn evidence(html: &mut Html, page: Page<'_>, pieces: &[Evidence]) {
    html.block("ul", &[("class", &"evidence")], |html| {
        for piece in pieces {
            html.element("li", &[], |html| {
                let origin = match piece.r#type {
                    EvidenceType::Kernel => "kernel",
                    EvidenceType::Api => "API",
                    EvidenceType::Node => "node",
                };
                html.element("span", &[("class", &"origin")], |html| html.text(origin));
                html.text(" ");
                html.element("span", &[], |html| {
                    if let Some(at) = piece.time {
                        time(html, at, page.ending.started);
                        html.text(" ");
                    }
                    html.text(&piece.content);
                });
            });
        }
    });
}

fn names(html: &mut Html, label: &str, names: &Names) {
    let all = names.by_count();
    if all.is_empty() {
        return;
    }
    html.block("div", &[], |html| {
        html.leaf("h4", &[], label);
        html.block("ul", &[("class", &"names")], |html| {
            for (name, count) in all.iter().take(MAX_NAMES) {
                html.element("li", &[], |html| {
                    html.element("span", &[("class", &"name")], |html| html.text(name));
                    html.element("span", &[("class", &"number")], |html| {
                        html.text(format_args!(" ({count})"));
                    });
                });
            }
            let hidden = all.len().saturating_sub(MAX_NAMES);
            if hidden > 0 {
                html.leaf("li", &[], format!("and {hidden} more"));
            }
            if names.others() > 0 {
                html.leaf("li", &[], format!("and {} of names beyond these", count(names.others(), "flow")));
            }
        });
    });
}

fn changes(html: &mut Html, page: Page<'_>, chapter: &Chapter) {
    let (windows, during) = outline::changes(chapter);
    let is_none = windows.is_empty();
    if is_none {
        html.leaf("p", &[], outline::NO_CHANGE);
    }
    let during = Some(("while it lasted", during)).filter(|(_, during)| !during.is_empty());
    for (label, changes) in windows.into_iter().chain(during) {
        html.leaf("h4", &[], label);
        html.block("ul", &[("class", &"changes")], |html| {
            for change in changes {
                html.element("li", &[], |html| {
                    if let Some(number) = page.changes.number(change) {
                        let link = format!("#change-{number}");
                        let label = format!("change {number} of the timeline");
                        let attributes: super::writer::Attributes =
                            &[("class", &"mark"), ("href", &link), ("aria-label", &label)];
                        html.element("a", attributes, |html| html.text(number));
                        html.text(" ");
                    }
                    html.text(outline::change(change, chapter));
                });
            }
        });
    }
}

fn to_do(html: &mut Html, verdict: &Verdict) {
    let mitigation = &verdict.mitigation;
    if mitigation.immediate.is_empty() {
        html.leaf("p", &[], format!("look at the page of the class: {}", row::more(verdict.class)));
    } else {
        html.leaf("p", &[], "Each step has in front what it can do to running traffic.");
        html.block("ol", &[("class", &"steps")], |html| {
            for Step { text, safety } in &*row::steps(mitigation) {
                html.element("li", &[], |html| {
                    html.element("strong", &[("class", &"safety")], |html| html.text(safety));
                    let mut before = ": ";
                    for step in steps(&as_typed(text).replace('`', "")) {
                        html.text(before);
                        sentence(html, &step);
                        before = if step.command.is_empty() { "; " } else { "" };
                    }
                });
            }
        });
    }
    if !mitigation.long_term.is_empty() {
        html.leaf("h4", &[], "Later");
        actions(html, &as_typed(&mitigation.long_term));
    }
}

fn actions(html: &mut Html, action: &str) {
    html.block("ol", &[("class", &"steps")], |html| {
        for step in steps(action) {
            html.element("li", &[], |html| sentence(html, &step));
        }
    });
}

/// A sentence, with its command in a box of its own.
fn sentence(html: &mut Html, step: &commands::Step<'_>) {
    html.text(step.text);
    if !step.command.is_empty() {
        html.text(if step.text.is_empty() { "" } else { ":" });
        html.element("pre", &[], |html| {
            html.element("code", &[], |html| html.text(step.command));
        });
    }
}

fn refutations(html: &mut Html, page: Page<'_>, verdict: &Verdict) {
    let like: Vec<String> =
        outline::look_alikes(verdict.class).map(|text| format!("if instead {text}")).collect();
    if verdict.against.is_empty() && verdict.unseen.is_empty() && like.is_empty() {
        html.leaf("p", &[], outline::NOTHING_OPEN);
    }
    if !verdict.against.is_empty() {
        html.leaf("h4", &[], "Evidence against it");
        evidence(html, page, &verdict.against);
    }
    if !verdict.unseen.is_empty() {
        html.leaf("h4", &[], "Not observed");
        let unseen: Vec<String> = verdict.unseen.iter().map(|unseen| as_typed(unseen).into_owned()).collect();
        list(html, &unseen, MAX_NAMES);
    }
    if !like.is_empty() {
        html.leaf("h4", &[], "Look-alikes");
        list(html, &like, MAX_NAMES);
    }
}
