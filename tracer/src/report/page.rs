//! A page of the knowledge base as a person reads it in a terminal: markdown as text, wrapped at its width.
//!
//! Owns as much of markdown as docs/classes uses: headings, paragraphs, lists, emphasis, links, code. A command stays on
//! one line where it fits in one.

use crate::report::{Paint, fit::width, printer::Style};

/// The text, each line ended and at most `columns` wide, unless a word is longer.
pub fn text(markdown: &str, columns: usize, paint: Paint) -> String {
    let mut out = String::new();
    let mut block: Option<Block> = None;
    for line in markdown.lines() {
        let trimmed = line.trim_start();
        let is_comment = trimmed.starts_with("<!--");
        let heading = trimmed.strip_prefix("## ").or_else(|| trimmed.strip_prefix("# "));
        let item = item(trimmed);
        let ends = trimmed.is_empty() || is_comment || heading.is_some() || item.is_some();
        if ends && let Some(block) = block.take() {
            block.write(&mut out, columns, paint);
        }
        if let Some(heading) = heading {
            out.push_str(&paint.text(Style::Heading, heading));
            out.push('\n');
        } else if let Some(mark) = item {
            let indent = line.len() - trimmed.len();
            let text = trimmed.get(mark.len()..).unwrap_or_default();
            block = Some(Block { first: " ".repeat(indent) + mark, text: text.to_owned() });
        } else if trimmed.is_empty() && !out.is_empty() && !out.ends_with("\n\n") {
            out.push('\n');
        } else if !trimmed.is_empty() && !is_comment {
            let block = block.get_or_insert_with(|| Block { first: String::new(), text: String::new() });
            block.text.push(' ');
            block.text.push_str(trimmed);
        }
    }
    if let Some(block) = block {
        block.write(&mut out, columns, paint);
    }
    out
}

/// The mark of a list's item, with the space behind it.
fn item(line: &str) -> Option<&str> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let mark = if digits > 0 { line.get(digits..)?.starts_with(". ").then_some(digits + 2) } else { None };
    line.get(..mark.or_else(|| line.starts_with("- ").then_some(2))?)
}

/// A paragraph, or an item of a list.
struct Block {
    /// What stands before the first line; the others are as far to the right.
    first: String,
    text: String,
}

impl Block {
    fn write(&self, out: &mut String, columns: usize, paint: Paint) {
        let indent = self.first.len();
        let room = columns.saturating_sub(indent).max(20);
        out.push_str(&self.first);
        let mut used = 0;
        for word in words(&plain(&self.text), room) {
            let visible = width(&word.replace("**", ""));
            if used > 0 && used + 1 + visible > room {
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                used = 0;
            } else if used > 0 {
                out.push(' ');
                used += 1;
            }
            out.push_str(&word);
            used += visible;
        }
        out.push('\n');
        // Strong words span several, so that they are marked in the whole text.
        while let Some(at) = out.find("**") {
            let Some(length) = out.get(at + 2..).and_then(|rest| rest.find("**")) else { break };
            let strong = out.get(at + 2..at + 2 + length).unwrap_or_default();
            let marked = paint.text(Style::Heading, strong);
            out.replace_range(at..at + 4 + length, &marked);
        }
    }
}

/// Words, of which a code span is one if it fits in a line.
fn words(text: &str, room: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut in_code = false;
    for word in text.split_whitespace() {
        match out.last_mut().filter(|span| in_code && width(span) + 1 + width(word) <= room) {
            Some(span) => {
                span.push(' ');
                span.push_str(word);
            }
            None => out.push(word.to_owned()),
        }
        in_code ^= word.matches('`').count() % 2 == 1;
    }
    out
}

/// Without links and without the emphasis of single stars; code keeps its marks.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        if index > 0 {
            out.push('`');
        }
        if index % 2 == 1 {
            out.push_str(part);
            continue;
        }
        let mut rest = part;
        while let Some((before, after)) = rest.split_once('[') {
            let link =
                after.split_once("](").and_then(|(name, target)| Some((name, target.split_once(')')?.1)));
            let (name, behind) = link.unwrap_or(("[", after));
            out.push_str(&unstarred(before));
            out.push_str(name);
            rest = behind;
        }
        out.push_str(&unstarred(rest));
    }
    out
}

fn unstarred(text: &str) -> String {
    text.replace("**", "\u{0}").replace('*', "").replace('\u{0}', "**")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# C6: stale\n<!-- class: generated -->\n\n- **Domain:** stale_endpoints\n<!-- end -->\n\n\
        ## What to do\n\nSee [C2](C2.md), *not* [C4](C4.md).\n\n1. `kubectl -n NAMESPACE get endpointslices` shows\n   \
        what the API lists.\n2. Wait.\n";

    #[test]
    fn a_page_is_readable_without_markup() {
        assert_eq!(
            text(PAGE, 44, Paint(false)),
            "C6: stale\n\n- Domain: stale_endpoints\n\nWhat to do\n\nSee C2, not C4.\n\n\
             1. `kubectl -n NAMESPACE get endpointslices`\n   shows what the API lists.\n2. Wait.\n"
        );
        let colours = text(PAGE, 44, Paint(true));
        assert!(
            colours.contains("\u{1b}[1mC6: stale") && colours.contains("\u{1b}[1mDomain:"),
            "{colours:?}"
        );
    }

    #[test]
    fn a_command_is_broken_only_where_no_line_holds_it() {
        let long = format!("x `{}` y", "abc ".repeat(20).trim());
        assert!(text(&long, 30, Paint(false)).lines().all(|line| line.len() <= 30));
        assert!(text("- [ ] a `[b](c)` d", 80, Paint(false)).contains("[ ] a `[b](c)` d"));
    }
}
