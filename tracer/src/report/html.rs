//! Lays out the story of an incident as one HTML file, for somebody who was not there.
//!
//! The file refers to nothing outside it, runs no script, and says so to the browser (`Content-Security-Policy`). Owns the
//! order of the page's parts; each has a file below. The sentences are those of the outline, and nothing is decided here.

mod chapter;
mod commands;
mod records;
#[cfg(test)]
mod tests;
mod timeline;
mod way;
mod writer;

use data_encoding::BASE64;
use ring::digest::{SHA256, digest};

use self::{timeline::Changes, writer::Html};
use crate::{
    called::as_typed,
    class::Class,
    incident::{Chapter, Story},
    report::{
        outline,
        row::{self, detail},
    },
    session::Ending,
    text::count,
    time::Timestamp,
};

/// The most messages about the recordings, and the most gaps.
const MAX_MESSAGES: usize = 100;

const STYLE: &str = include_str!("html/style.css");

/// What the replay reported about the recordings.
#[derive(Clone, Debug, Default)]
pub struct Messages {
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
}

/// What every part of the page needs.
#[derive(Clone, Copy)]
struct Page<'a> {
    story: &'a Story,
    chapters: &'a [&'a Chapter],
    ending: &'a Ending,
    changes: &'a Changes<'a>,
}

/// The file. `nodes` are the names of the recorded ones.
pub fn render(story: &Story, nodes: &[String], ending: &Ending, messages: &Messages) -> String {
    let chapters = story.chapters();
    let changes = Changes::of(&chapters);
    let page = Page { story, chapters: &chapters, ending, changes: &changes };
    let mut html = Html::document();
    html.element("html", &[("lang", &"en")], |html| {
        html.block("head", &[], |html| page.head(html));
        html.block("body", &[], |html| {
            html.leaf("a", &[("class", &"skip"), ("href", &"#main")], "Skip to the report");
            html.block("header", &[], |html| page.header(html, nodes));
            html.block("main", &[("id", &"main")], |html| page.main(html, messages));
            html.block("footer", &[], |html| {
                html.leaf("p", &[], format!("Written by viptrace {}.", env!("CARGO_PKG_VERSION")));
            });
        });
    });
    html.into_string()
}

impl Page<'_> {
    fn head(self, html: &mut Html) {
        let hash = BASE64.encode(digest(&SHA256, STYLE.as_bytes()).as_ref());
        let policy =
            format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'");
        html.void("meta", &[("charset", &"utf-8")]);
        html.void("meta", &[("http-equiv", &"Content-Security-Policy"), ("content", &policy)]);
        html.void("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
        html.void("meta", &[("name", &"color-scheme"), ("content", &"light dark")]);
        html.void("meta", &[("name", &"referrer"), ("content", &"no-referrer")]);
        html.void(
            "meta",
            &[("name", &"generator"), ("content", &concat!("viptrace ", env!("CARGO_PKG_VERSION")))],
        );
        html.leaf("title", &[], format!("{} · viptrace", self.title()));
        html.style(STYLE);
    }

    fn title(self) -> String {
        self.chapters
            .first()
            .map_or_else(|| outline::no_failure(self.ending).to_owned(), |first| title(first))
    }

    /// The answer in a few lines, and the contents.
    fn header(self, html: &mut Html, nodes: &[String]) {
        html.leaf("p", &[("class", &"kicker")], "viptrace: report of an incident");
        html.leaf("h1", &[], self.title());
        if let Some(first) = self.chapters.first() {
            html.leaf("p", &[("class", &"lead")], detail(&first.verdict.root_cause));
        }
        html.block("dl", &[("class", &"facts")], |html| {
            if let Some(first) = self.chapters.first() {
                fact(html, "First failed flow", &first.began().beside(self.ending.started));
                fact(html, "Last failed flow", &outline::last(first, self.ending));
                fact(html, "Ended", &outline::ended(self.story, first, self.ending));
                let rate = first.verdict.service.as_ref().and_then(|service| self.story.rate_of(service));
                let flows = rate.map_or_else(|| count(first.flows, "failed flow"), outline::failed);
                fact(html, "Flows", &flows);
                fact(html, "Confidence", &first.verdict.confidence.to_string());
            }
            let observed = format!("{} UTC, on {}", outline::span(self.ending), named(nodes));
            fact(html, "Observed", &observed);
            if let Some(only) = outline::only(self.ending) {
                fact(html, "Selected", &only);
            }
        });
        html.block("nav", &[("aria-label", &"Contents")], |html| {
            html.block("ul", &[], |html| {
                let mut entry = |to: &str, text: &str| {
                    html.element("li", &[], |html| html.leaf("a", &[("href", &format_args!("#{to}"))], text));
                };
                if !self.chapters.is_empty() {
                    entry("timeline", "Timeline");
                }
                match self.chapters {
                    [] => {}
                    [_] => entry("cause-1", "The cause"),
                    several => entry("causes", &count(several.len(), "cause")),
                }
                entry("not-known", outline::NOT_KNOWN);
                entry("recordings", "Recordings");
                if !self.chapters.is_empty() {
                    entry("classes", "About the classes");
                }
            });
        });
    }

    fn main(self, html: &mut Html, messages: &Messages) {
        if !self.chapters.is_empty() {
            timeline::write(html, self);
        }
        if self.chapters.len() > 1 {
            self.causes(html);
        }
        for (index, chapter) in self.chapters.iter().enumerate() {
            chapter::write(html, self, index + 1, chapter);
        }
        section(html, "not-known", outline::NOT_KNOWN, |html| {
            let mut gaps = outline::gaps(self.story, self.ending);
            if gaps.is_empty() {
                gaps.push(outline::NO_GAP.to_owned());
            }
            list(html, &gaps, MAX_MESSAGES);
        });
        section(html, "recordings", "Recordings", |html| {
            list(html, &messages.notes, MAX_MESSAGES);
            if !messages.warnings.is_empty() {
                html.leaf("h3", &[], "Warnings");
                list(html, &messages.warnings, MAX_MESSAGES);
            }
        });
        if !self.chapters.is_empty() {
            section(html, "classes", "About the classes", |html| self.classes(html));
        }
    }

    /// All causes, in the order in which to examine them.
    fn causes(self, html: &mut Html) {
        section(html, "causes", "Causes", |html| {
            let heads = ["Cause", "Failed flows", "Service", "First", "Last", "Explanation"];
            table(html, "The causes, in the order in which to examine them", &heads, |html| {
                for (index, chapter) in self.chapters.iter().enumerate() {
                    html.block("tr", &[], |html| {
                        html.element("th", &[("scope", &"row")], |html| {
                            let link = format!("#cause-{}", index + 1);
                            html.leaf("a", &[("href", &link)], outline::title(chapter.verdict.class));
                        });
                        let service = outline::service(chapter.verdict.service.as_ref());
                        html.leaf("td", &[("class", &"number")], chapter.flows);
                        html.leaf("td", &[], service.as_deref().unwrap_or("-"));
                        for at in [chapter.began(), chapter.last()] {
                            html.element("td", &[], |html| time(html, at, self.ending.started));
                        }
                        html.leaf("td", &[("class", &"long")], detail(&chapter.verdict.root_cause));
                    });
                }
            });
            if self.story.left_out > 0 {
                let more = format!("{} of further causes", count(self.story.left_out, "failed flow"));
                html.leaf("p", &[], more);
            }
        });
    }

    /// The page of each class that is a cause.
    fn classes(self, html: &mut Html) {
        let mut classes: Vec<Class> = self.chapters.iter().map(|chapter| chapter.verdict.class).collect();
        classes.sort_unstable();
        classes.dedup();
        for class in classes {
            html.block("details", &[], |html| {
                html.element("summary", &[], |html| {
                    html.text(format_args!("{}, as ", outline::title(class)));
                    html.element("code", &[], |html| html.text(row::more(class)));
                    html.text(" prints it");
                });
                // A link to it opens the details.
                html.element("pre", &[("id", &format_args!("class-{class}")), ("class", &"page")], |html| {
                    html.lines(&as_typed(class.page()));
                });
            });
        }
    }
}

/// `shop/cart:http: stale endpoint in the rules`.
fn title(chapter: &Chapter) -> String {
    let service = outline::service(chapter.verdict.service.as_ref());
    let service = service.map_or_else(String::new, |service| format!("{service}: "));
    format!("{service}{}", chapter.verdict.class.title())
}

fn named(nodes: &[String]) -> String {
    const MAX: usize = 3;
    let shown = nodes.get(..MAX.min(nodes.len())).unwrap_or_default().join(", ");
    match nodes.len().saturating_sub(MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn section(html: &mut Html, id: &str, heading: &str, inside: impl FnOnce(&mut Html)) {
    let label = format!("{id}-heading");
    html.block("section", &[("id", &id), ("aria-labelledby", &label)], |html| {
        html.leaf("h2", &[("id", &label)], heading);
        inside(html);
    });
}

fn fact(html: &mut Html, name: &str, value: &str) {
    html.block("div", &[], |html| {
        html.leaf("dt", &[], name);
        html.leaf("dd", &[], value);
    });
}

fn list(html: &mut Html, lines: &[String], most: usize) {
    html.block("ul", &[], |html| {
        for text in lines.iter().take(most) {
            html.leaf("li", &[], text);
        }
        let hidden = lines.len().saturating_sub(most);
        if hidden > 0 {
            html.leaf("li", &[], format!("and {hidden} more"));
        }
    });
}

/// A table in a box that scrolls by itself where the page is narrower.
fn table(html: &mut Html, caption: &str, heads: &[&str], rows: impl FnOnce(&mut Html)) {
    let region: writer::Attributes =
        &[("class", &"scroll"), ("role", &"region"), ("aria-label", &caption), ("tabindex", &"0")];
    html.block("div", region, |html| {
        html.block("table", &[], |html| {
            html.leaf("caption", &[], caption);
            html.block("thead", &[], |html| {
                html.element("tr", &[], |html| {
                    for head in heads {
                        html.leaf("th", &[("scope", &"col")], head);
                    }
                });
            });
            html.block("tbody", &[], rows);
        });
    });
}

/// A time for a person who reads of `other`, and for a program.
fn time(html: &mut Html, time: Timestamp, other: Timestamp) {
    html.element("time", &[("datetime", &time)], |html| html.text(time.beside(other)));
}
