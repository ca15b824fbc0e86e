//! How an error reaches the user: as one sentence, and with one hint.
//!
//! An error's `Display` says what happened and to what; what to do about it is its [`Hint`]. The command line collects the
//! hint and prints it on a line of its own.

use std::error::Error;

/// An error that knows what its reader can do about it.
pub trait Hint: Error {
    /// A command or a flag to type, without a full stop; `None` where nothing helps.
    fn hint(&self) -> Option<String>;
}

/// The error with its causes as one sentence in one line. What a cause repeats is said once, and the numbers of the
/// operating system's errors are left out.
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

/// What lies at the bottom of an error: of a client's layers the only one that says what happened.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(|cause| plain(&cause.to_string())).unwrap_or_default()
}

/// The error and what is below it.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// One line without ` (os error 2)`.
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
    fn a_sentence_says_each_thing_once() {
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
    fn numbers_of_errors_are_for_programs() {
        assert_eq!(plain("a (os error 2): b (os error 13)"), "a: b");
        assert_eq!(plain("cut (os error "), "cut (os error");
    }
}
