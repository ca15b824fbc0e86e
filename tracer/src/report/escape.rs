//! Makes foreign text safe for a terminal, and fits text into columns.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Replaces what would move the cursor, recolour or reorder the line, or stay invisible: control characters, bidi
/// marks and overrides, line separators, zero-width and tag characters. They become `\u{…}`, which can be read.
pub fn safe(text: &str) -> Cow<'_, str> {
    if is_plain(text) || !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// Whether it is printable ASCII alone, as nearly every text is: told without a branch for each byte.
pub(super) fn is_plain(text: &str) -> bool {
    text.bytes().fold(true, |plain, byte| plain & (b' '..=b'~').contains(&byte))
}

/// Whether a terminal must not see this character as it is.
pub(super) fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Columns that the text takes in a terminal.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// Where a text that is too long is shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Names: their beginning and their end tell them apart.
    Middle,
    /// Sentences.
    End,
}

/// The text, shortened to at most `columns`, with `…` where something is missing.
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

/// Appends the text and blanks up to `columns`.
pub(super) fn push_padded(out: &mut String, text: &str, columns: usize) {
    out.push_str(text);
    out.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(text))));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hostile_names_become_visible() {
        assert_eq!(safe("shop/cart"), "shop/cart");
        assert_eq!(safe("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(safe("\u{202e}gnp.exe\r\n"), "\\u{202e}gnp.exe\\u{d}\\u{a}");
        assert_eq!(safe("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(safe("größe 価格"), "größe 価格");
    }

    #[test]
    fn shortening() {
        assert_eq!(fit("shop/cart-7d4b9c-x2k9f", 13, Cut::Middle), "shop/c…-x2k9f");
        assert_eq!(fit("no endpoint is ready", 10, Cut::End), "no endpoi…");
        assert_eq!(fit("cart", 4, Cut::End), "cart");
        assert_eq!(fit("cart", 0, Cut::End), "");
        assert_eq!(fit("価格価格", 4, Cut::End), "価…");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_is_left_and_nothing_is_too_wide(text in any::<String>(), columns in 0_usize..40) {
            let text = safe(&text);
            prop_assert!(!text.contains(is_unsafe));
            for cut in [Cut::End, Cut::Middle] {
                prop_assert!(width(&fit(&text, columns, cut)) <= columns);
            }
        }
    }
}
