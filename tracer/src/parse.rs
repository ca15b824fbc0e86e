//! The error of a text that cannot be parsed, with its place; durations and sizes as people type them.

pub(crate) mod units;

/// Why a text could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ParseError {
    /// The first line that was not understood, counted from 1.
    pub line: u64,
    pub why: String,
}

impl ParseError {
    pub fn new(line: usize, why: impl Into<String>) -> Self {
        Self { line: line as u64, why: why.into() }
    }

    /// For a text of which no line was understood: the first line that is not empty.
    pub fn nothing_in(text: &str, wanted: &str) -> Self {
        let line = text.lines().position(|line| !line.trim().is_empty()).map_or(1, |at| at + 1);
        let why = if text.trim().is_empty() {
            "the text is empty".to_owned()
        } else {
            format!("it is not {wanted}")
        };
        Self::new(line, why)
    }
}

impl From<serde_json::Error> for ParseError {
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let place = format!(" at line {line} column {column}");
        let why = text.strip_suffix(&place).unwrap_or(&text);
        Self::new(line.max(1), format!("{why} (column {column})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_error_says_its_place_once() {
        let error = serde_json::from_str::<serde_json::Value>("{\n  \"a\": }").unwrap_err();
        assert_eq!(ParseError::from(error), ParseError::new(2, "expected value (column 8)"));
    }

    #[test]
    fn the_first_line_with_text_is_named() {
        let error = ParseError::nothing_in("\n\nhello\n", "a list of settings");
        assert_eq!(error, ParseError::new(3, "it is not a list of settings"));
        assert_eq!(ParseError::nothing_in("", "a list").why, "the text is empty");
    }
}
