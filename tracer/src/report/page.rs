//! A page of the knowledge base for a terminal: markdown as text, wrapped at the terminal's width.
//!
//! Owns the subset of markdown that docs/classes uses: headings, paragraphs, lists, emphasis, links, code. A command
//! stays on one line if it fits; a longer one has its own lines, which a shell reads as one command when they are
//! pasted.

use crate::report::{Paint, fit::width, printer::Style};

/// The text, with a line end after each line. A line is at most `columns` wide unless a word is longer.
pub(crate) fn text(markdown: &str, columns: usize, paint: Paint) -> String {
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

/// The mark of a list's item, with the following space.
fn item(line: &str) -> Option<&str> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let mark = if digits > 0 { line.get(digits..)?.starts_with(". ").then_some(digits + 2) } else { None };
    line.get(..mark.or_else(|| line.starts_with("- ").then_some(2))?)
}

/// A paragraph, or an item of a list.
struct Block {
    /// The text before the first line; the others are indented as far.
    first: String,
    text: String,
}

impl Block {
    fn write(&self, out: &mut String, columns: usize, paint: Paint) {
        let indent = " ".repeat(self.first.len());
        let room = columns.saturating_sub(indent.len()).max(MIN_ROOM);
        out.push_str(&self.first);
        out.push_str(&strong(&lines(&plain(&self.text), room).join(&format!("\n{indent}")), paint));
        out.push('\n');
    }
}

/// A text in lines of at most `room` columns unless a word is longer; a long command has its own lines.
pub(super) fn lines(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for piece in pieces(text, room) {
        match piece {
            Piece::Word(word) => {
                let columns = width(&word.replace("**", ""));
                if used > 0 && used + 1 + columns > room {
                    lines.push(String::new());
                    used = 0;
                }
                if let Some(line) = lines.last_mut() {
                    line.push_str(if used > 0 { " " } else { "" });
                    line.push_str(&word);
                }
                used += columns + usize::from(used > 0);
            }
            Piece::Command(command) => {
                let is_first = lines.iter().all(String::is_empty);
                lines.extend(broken(&command, room));
                if let Some(line) = lines.get_mut(1).filter(|_| is_first) {
                    // Beside the mark of its item.
                    *line = line.trim_start().to_owned();
                }
                lines.push(String::new());
                used = 0;
            }
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// The minimum width of text, however deep its list and however narrow the terminal.
pub(super) const MIN_ROOM: usize = 20;

/// A part of a text.
enum Piece {
    /// A part for one line: a word, or a whole code span with adjacent text.
    Word(String),
    /// A code span that does not fit on one line.
    Command(String),
}

fn pieces(text: &str, room: usize) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let mut is_code = false;
        let end = rest.find(|c: char| {
            is_code ^= c == '`';
            c.is_whitespace() && !is_code
        });
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let word = word.split_whitespace().collect::<Vec<_>>().join(" ");
        rest = behind.trim_start();
        let mut parts = word.splitn(3, '`');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(before), Some(code), Some(after)) if width(&word) > room && code.contains(' ') => {
                out.extend(
                    Some(before).filter(|before| !before.is_empty()).map(|word| Piece::Word(word.into())),
                );
                out.push(Piece::Command(code.to_owned()));
                // The end of the line replaces the mark.
                let after = after.trim_start_matches([',', ';', '.', ':']);
                out.extend(
                    Some(after).filter(|after| !after.is_empty()).map(|word| Piece::Word(word.into())),
                );
            }
            _ => out.push(Piece::Word(word)),
        }
    }
    out
}

/// The lines of a command: each except the last ends in a backslash. No line ends within quotes, or between an option
/// and its value.
fn broken(command: &str, room: usize) -> Vec<String> {
    const FIRST: &str = "  ";
    const NEXT: &str = "    ";
    let mut is_quoted = false;
    let words = command.split(|c: char| {
        is_quoted ^= c == '\'';
        c == ' ' && !is_quoted
    });
    let mut units: Vec<String> = Vec::new();
    for word in words {
        match units.last_mut() {
            Some(option)
                if option.starts_with('-') && !option.contains(' ') && !word.starts_with(['-', '|']) =>
            {
                option.push(' ');
                option.push_str(word);
            }
            _ => units.push(word.to_owned()),
        }
    }
    let mut lines = vec![FIRST.to_owned()];
    for unit in units {
        let Some(line) = lines.last_mut() else { continue };
        let is_empty = line.trim_start().is_empty();
        // A space before it, and a space and a backslash after it.
        if !is_empty && width(line) + width(&unit) + 3 > room {
            line.push_str(" \\");
            lines.push(format!("{NEXT}{unit}"));
        } else {
            line.push_str(if is_empty { "" } else { " " });
            line.push_str(&unit);
        }
    }
    lines
}

/// Strong words in the style of a heading, without their stars.
fn strong(text: &str, paint: Paint) -> String {
    let parts = text.split("**").enumerate();
    parts
        .map(|(index, part)| if index % 2 == 1 { paint.text(Style::Heading, part) } else { part.to_owned() })
        .collect()
}

/// Removes links and the emphasis of single stars; code keeps its marks.
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
            text(PAGE, 50, Paint(false)),
            "C6: stale\n\n- Domain: stale_endpoints\n\nWhat to do\n\nSee C2, not C4.\n\n\
             1. `kubectl -n NAMESPACE get endpointslices` shows\n   what the API lists.\n2. Wait.\n"
        );
        let colours = text(PAGE, 44, Paint(true));
        assert!(
            colours.contains("\u{1b}[1mC6: stale") && colours.contains("\u{1b}[1mDomain:"),
            "{colours:?}"
        );
    }

    #[test]
    fn a_long_command_can_be_pasted() {
        let long = "1. Type `kubectl -n NAMESPACE get endpointslices | grep -e 'a b c d e f g'`; then wait.";
        assert_eq!(
            text(long, 34, Paint(false)),
            "1. Type\n     kubectl -n NAMESPACE get \\\n       endpointslices | grep \\\n       -e 'a b c d e f g'\n   \
             then wait.\n"
        );
        assert_eq!(
            text("- `a b c d e f g h i j k`", 20, Paint(false)),
            "- a b c d e f g h \\\n      i j k\n"
        );
        assert!(text("- [ ] a `[b](c)` d", 80, Paint(false)).contains("[ ] a `[b](c)` d"));
    }
}
