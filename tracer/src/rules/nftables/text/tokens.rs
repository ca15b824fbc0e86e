//! Splits a listing into words, quoted strings, braces, commas and line ends.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Quoted(&'a str),
    Open,
    Close,
    Comma,
    /// The end of a line, or `;`.
    End,
}

impl<'a> Token<'a> {
    pub(super) fn is(&self, word: &str) -> bool {
        *self == Token::Word(word)
    }

    pub(super) const fn text(&self) -> Option<&'a str> {
        match self {
            Self::Word(text) | Self::Quoted(text) => Some(text),
            _ => None,
        }
    }
}

pub(super) fn tokens(text: &str) -> VecDeque<Token<'_>> {
    let mut found = VecDeque::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '\n' | ';' => (Some(Token::End), 1),
            '{' => (Some(Token::Open), 1),
            '}' => (Some(Token::Close), 1),
            ',' => (Some(Token::Comma), 1),
            '"' => {
                let inner = rest.get(1..).unwrap_or_default();
                let end = inner.find('"').unwrap_or(inner.len());
                (inner.get(..end).map(Token::Quoted), end + 2)
            }
            // A match or target of iptables that nft cannot list (`xt_stmt_print` in nftables' src/xt.c). The rule goes on.
            '#' if rest.starts_with("# xt_") => (None, 2),
            '#' => (None, rest.find('\n').unwrap_or(rest.len())),
            blank if blank.is_whitespace() => (None, blank.len_utf8()),
            _ => {
                let ends = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ',' | ';' | '"');
                let end = rest.find(ends).unwrap_or(rest.len());
                (rest.get(..end).map(Token::Word), end)
            }
        };
        found.extend(token);
        rest = rest.get(length..).unwrap_or_default();
    }
    found
}
