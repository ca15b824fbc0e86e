//! How an error reaches the user: as one sentence and one hint.
//!
//! An error's `Display` states what happened and to what. Its [`Hint`] states what to do. The command line prints the
//! hint on its own line.

use std::error::Error;

/// An error with a remedy.
pub trait Hint: Error {
    /// A command or flag to type, without a full stop; `None` if there is no remedy.
    fn hint(&self) -> Option<String>;
}

/// The error with its causes as one sentence on one line, without repetitions and without the numbers of the operating
/// system's errors.
pub fn sentence(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error).map(|cause| plain(&cause.to_string())) {
        if cause.starts_with(&text) {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The innermost cause, which is the specific one in a client library's chain.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(|cause| plain(&cause.to_string())).unwrap_or_default()
}

/// The error and all its causes.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The text on one line, without ` (os error 2)`.
fn plain(text: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(begin) = line.find(NUMBER) {
        let Some(length) = line.get(begin..).and_then(|rest| rest.find(')')) else { break };
        line.replace_range(begin..=begin + length, "");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<dyn Error + Send + Sync>>,
    }

    fn layers(texts: &[&'static str], innermost: io::Error) -> Box<dyn Error + Send + Sync> {
        texts
            .iter()
            .rev()
            .fold(innermost.into(), |source, text| Box::new(Layer { text, source: Some(source) }))
    }

    #[test]
    fn a_sentence_repeats_nothing() {
        let gone = || io::Error::from_raw_os_error(2);
        let error = layers(&["cannot read x", "reading\nfailed", "cannot"], gone());
        assert_eq!(sentence(&*error), "cannot read x: reading failed: No such file or directory");
        let error = layers(&["cannot read x: No such file or directory (os error 2)"], gone());
        assert_eq!(sentence(&*error), "cannot read x: No such file or directory");
        let error = layers(&["refused", "refused: by the server"], gone());
        assert_eq!(sentence(&*error), "refused: by the server: No such file or directory");
        assert_eq!(root_cause(&*error), "No such file or directory");
    }

    #[test]
    fn error_numbers_are_left_out() {
        assert_eq!(plain("a (os error 2): b (os error 13)"), "a: b");
        assert_eq!(plain("cut (os error "), "cut (os error");
    }
}
