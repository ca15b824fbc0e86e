//! Fits text into columns of a terminal.

use std::borrow::Cow;

use strum::VariantArray as _;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::{
    class::Safety,
    report::{
        page::{MIN_ROOM, lines},
        printer::{Paint, Style},
        row::DO,
    },
};

/// The width of the text in a terminal, in columns.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Where a text that is too long is shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// For names, which are distinguished by their beginning and end.
    Middle,
    /// For sentences.
    End,
}

/// The text, shortened to at most `columns`, with `…` in place of the removed part.
pub(super) fn fit(text: &str, columns: usize, cut: Cut) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(1) else { return Cow::Borrowed("") };
    let (head, tail) = match cut {
        Cut::End => (room, 0),
        Cut::Middle => (room - room / 2, room / 2),
    };
    let head: String = take(text.chars(), head).collect();
    let tail: Vec<char> = take(text.chars().rev(), tail).collect();
    Cow::Owned(head + "…" + &tail.into_iter().rev().collect::<String>())
}

/// The first characters that fit into `columns`.
fn take(characters: impl Iterator<Item = char>, columns: usize) -> impl Iterator<Item = char> {
    let mut used = 0;
    characters.take_while(move |character| {
        used += character.width().unwrap_or(0);
        used <= columns
    })
}

/// A text of several lines for a terminal: long lines are broken between words and continue indented. An action is broken
/// so that its commands can be pasted.
pub(super) fn wrap(text: &str, columns: usize) -> String {
    let mut out = String::with_capacity(text.len() + 256);
    for line in text.lines() {
        let wrapped: Cow<'_, str> = if width(line) <= columns {
            line.into()
        } else if let Some((before, action)) = action(line) {
            wrap_action(before, action, columns).into()
        } else {
            let indent = line.len() - line.trim_start().len() + 4;
            let behind = " ".repeat(indent.min(columns / 2));
            textwrap::fill(line, textwrap::Options::new(columns).subsequent_indent(&behind)).into()
        };
        out.push_str(&wrapped);
        out.push('\n');
    }
    out
}

/// The line of an action, divided before its risk.
fn action(line: &str) -> Option<(&str, &str)> {
    let at = Safety::VARIANTS.iter().filter_map(|risk| line.find(&format!("[{risk}] "))).min()?;
    let (before, action) = line.split_at(at);
    let label = before.trim();
    let is_label = label.is_empty() || label == DO || label == Paint(true).text(Style::Heading, DO);
    is_label.then_some((before, action))
}

/// The lines of an action, which continue behind their label.
fn wrap_action(before: &str, action: &str, columns: usize) -> String {
    let indent = before.len() - before.trim_start().len();
    let indent = if before.trim().is_empty() { indent } else { indent + DO.len() + 1 } + 2;
    let room = columns.saturating_sub(indent).max(MIN_ROOM);
    format!("{before}{}", lines(action, room).join(&format!("\n{:indent$}", "")))
}

/// Appends the text and pads it with spaces to `columns`.
pub(super) fn push_padded(out: &mut String, text: &str, columns: usize) {
    out.push_str(text);
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(text))));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shortening() {
        assert_eq!(fit("shop/cart-7d4b9c-x2k9f", 13, Cut::Middle), "shop/c…-x2k9f");
        assert_eq!(fit("no endpoint is ready", 10, Cut::End), "no endpoi…");
        assert_eq!(fit("cart", 4, Cut::End), "cart");
        assert_eq!(fit("cart", 0, Cut::End), "");
        assert_eq!(fit("価格価格", 4, Cut::End), "価…");
    }

    #[test]
    fn long_lines_go_on_indented_and_commands_stay_whole() {
        let text = "Then\n  4  C20  shop/slow:http  has no usable endpoint\n";
        let wrapped = "Then\n  4  C20  shop/slow:http  has\n      no usable endpoint\n";
        assert_eq!(wrap(text, 30), wrapped);
        let wrapped = "  do: [read-only] compare the\n        labels:\n          kubectl get pods \\\n            \
                       -l app=cart\n        then the ports\n      [disruptive] restart it\n";
        for label in ["do:", "\u{1b}[1mdo:\u{1b}[0m"] {
            let text = format!(
                "  {label} [read-only] compare the labels: `kubectl get pods -l app=cart`, then the ports\n      \
                 [disruptive] restart it\n"
            );
            assert_eq!(wrap(&text, 31), wrapped.replace("do:", label));
        }
        let text = "  against: the log says [read-only] `no such file`";
        assert_eq!(wrap(text, 30), "  against: the log says [read-\n      only] `no such file`\n");
    }

    proptest! {
        #[test]
        fn nothing_is_too_wide(text in any::<String>(), columns in 0_usize..40) {
            let text = crate::text::safe(&text);
            for cut in [Cut::End, Cut::Middle] {
                prop_assert!(width(&fit(&text, columns, cut)) <= columns);
            }
        }
    }
}
