//! Fits text into columns of a terminal.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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
    fn shortening() {
        assert_eq!(fit("shop/cart-7d4b9c-x2k9f", 13, Cut::Middle), "shop/c…-x2k9f");
        assert_eq!(fit("no endpoint is ready", 10, Cut::End), "no endpoi…");
        assert_eq!(fit("cart", 4, Cut::End), "cart");
        assert_eq!(fit("cart", 0, Cut::End), "");
        assert_eq!(fit("価格価格", 4, Cut::End), "価…");
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
