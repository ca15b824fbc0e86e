//! Splits a rule into words, as the shell would: at blanks, with double quotes and backslashes.

use std::borrow::Cow;

/// The words of a line. A word without quotes and backslashes is not copied.
#[derive(Clone, Debug)]
pub(super) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub(super) const fn new(line: &'a str) -> Self {
        Self { rest: line }
    }

    pub(super) fn peek(&self) -> Option<Cow<'a, str>> {
        self.clone().next()
    }

    /// Takes the next word if it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let mut after = self.clone();
        let same = after.next().is_some_and(|next| next == word);
        if same {
            *self = after;
        }
        same
    }

    /// Takes a `!` that negates an argument, and not the option after it.
    pub(super) fn take_negation(&mut self) -> bool {
        let mut after = self.clone();
        let negates = after.next().is_some_and(|next| next == "!")
            && after.peek().is_some_and(|next| !next.starts_with('-'));
        if negates {
            *self = after;
        }
        negates
    }

    /// Takes the words up to the next option and adds them to `text`.
    pub(super) fn arguments(&mut self, text: &mut String) {
        while let Some(word) = self.peek() {
            if word == "!" || word.starts_with('-') {
                return;
            }
            self.next();
            text.push(' ');
            text.push_str(&word);
        }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        let text = self.rest.trim_ascii_start();
        if text.is_empty() {
            self.rest = "";
            return None;
        }
        let end = text.find([' ', '\t', '"', '\\']).unwrap_or(text.len());
        let (word, rest) = text.split_at_checked(end)?;
        if !rest.starts_with(['"', '\\']) {
            self.rest = rest;
            return Some(Cow::Borrowed(word));
        }
        let mut word = word.to_owned();
        let mut quoted = false;
        let mut characters = rest.char_indices();
        let mut end = rest.len();
        while let Some((position, character)) = characters.next() {
            match character {
                '\\' => word.extend(characters.next().map(|(_, escaped)| escaped)),
                '"' => quoted = !quoted,
                ' ' | '\t' if !quoted => {
                    end = position;
                    break;
                }
                other => word.push(other),
            }
        }
        self.rest = rest.get(end..).unwrap_or_default();
        Some(Cow::Owned(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting() {
        let words = |line| Words::new(line).collect::<Vec<_>>();
        assert_eq!(
            words(r#"-m comment --comment "a \"b\" c" -j X"#),
            ["-m", "comment", "--comment", "a \"b\" c", "-j", "X"]
        );
        assert_eq!(words("\"open"), ["open"]);
        assert_eq!(words("a\"b c\"d  e"), ["ab cd", "e"]);
        assert_eq!(words("  "), [""; 0]);
        assert_eq!(words("end\\"), ["end"]);
    }
}
