//! Words: names made safe for a terminal and for a shell, durations as people say them.
//!
//! Object names come from an API server or a folder of files and comms from any process: nothing here trusts them.

use std::{fmt::Write as _, time::Duration};

/// Longest text of one field, in bytes: object names are at most 253.
const MAX_BYTES: usize = 2048;

/// The text with everything escaped that could move a cursor, reorder or hide letters.
pub(super) fn clean(text: &str) -> String {
    if text.len() < MAX_BYTES && is_plain(text) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if out.len() >= MAX_BYTES {
            out.push('…');
            break;
        }
        if is_deceptive(c) {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// As [`clean`], for a text that nobody else needs.
pub(super) fn cleaned(text: String) -> String {
    if text.len() < MAX_BYTES && is_plain(&text) { text } else { clean(&text) }
}

/// Whether nothing in it can deceive: printable ASCII, which nearly every name is, is told without a branch for each byte.
fn is_plain(text: &str) -> bool {
    let printable = text.bytes().fold(true, |plain, byte| plain & (b' '..=b'~').contains(&byte));
    printable || !text.chars().any(is_deceptive)
}

fn is_deceptive(c: char) -> bool {
    // Control characters; bidirectional marks, embeddings and isolates; zero-width characters; line separators.
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{061c}')
}

/// The name as one word of a shell command.
pub(super) fn word(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/');
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("'{}'", clean(name).replace('\'', "'\\''"))
    }
}

/// `340 ms`, `12.5 s`, `4 min 10 s`, `3 h 20 min`.
pub(super) fn length(duration: Duration) -> String {
    let secs = duration.as_secs();
    if secs >= 3600 {
        format!("{} h {} min", secs / 3600, secs / 60 % 60)
    } else if secs >= 60 {
        format!("{} min {} s", secs / 60, secs % 60)
    } else if secs >= 1 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

/// `once`, `3 times`.
pub(super) fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_harmless() {
        assert_eq!(clean("a\u{1b}[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
        assert_eq!(word("x; rm -rf /"), "'x; rm -rf /'");
        assert_eq!(word("it's"), "'it'\\''s'");
        assert_eq!(word("--all"), "'--all'");
        assert_eq!(word("shop"), "shop");
        assert!(clean(&"x".repeat(10_000)).len() < MAX_BYTES + 8);
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(length(Duration::from_millis(340)), "340 ms");
        assert_eq!(length(Duration::from_millis(12_500)), "12.5 s");
        assert_eq!(length(Duration::from_secs(250)), "4 min 10 s");
    }
}
