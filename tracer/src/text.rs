//! Text for people: names made safe for a terminal and for a shell, counts that agree with their nouns, durations.
//!
//! Object names come from an API server or a folder of files, and a process chooses its own name: nothing here trusts
//! them.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt::{self, Display, Write as _},
    time::Duration,
};

/// The longest text of a record's field, in bytes. Object names have at most 253.
const MAX_BYTES: usize = 2048;

/// The capacity of a [`sentence`]: evidence with two IPv4 addresses has less.
const SENTENCE_BYTES: usize = 128;

/// Replaces characters that would move the cursor, recolour or reorder the line, or stay invisible: control characters,
/// bidi marks and overrides, line separators, zero-width and tag characters. They become a visible `\u{…}`.
pub fn safe(text: &str) -> Cow<'_, str> {
    if is_plain(text) || !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    text.chars().for_each(|character| push_safe(&mut out, character));
    Cow::Owned(out)
}

/// As [`safe`], for a field of a record: at most about [`MAX_BYTES`] long. Nearly every text is returned as it is.
pub fn clean<T: AsRef<str> + From<String>>(text: T) -> T {
    let whole = text.as_ref();
    if whole.len() < MAX_BYTES && (is_plain(whole) || !whole.contains(is_unsafe)) {
        return text;
    }
    let mut out = String::with_capacity(whole.len().min(MAX_BYTES) + 16);
    for character in whole.chars() {
        if out.len() >= MAX_BYTES {
            out.push('…');
            break;
        }
        push_safe(&mut out, character);
    }
    out.into()
}

/// Whether the text has this name as a whole: `10.0.0.1` is not in `10.0.0.12`.
pub fn mentions(text: &str, name: &str) -> bool {
    let goes_on = |character: char| character.is_alphanumeric() || matches!(character, '.' | '-' | '_');
    !name.is_empty()
        && text.match_indices(name).any(|(at, _)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let behind = text.get(at + name.len()..).and_then(|behind| behind.chars().next());
            !before.is_some_and(goes_on) && !behind.is_some_and(goes_on)
        })
}

fn push_safe(out: &mut String, character: char) {
    if is_unsafe(character) {
        out.extend(character.escape_unicode());
    } else {
        out.push(character);
    }
}

/// The text, in a single allocation if it has the length of a sentence: it begins with that capacity.
pub fn sentence(parts: fmt::Arguments<'_>) -> String {
    let mut out = String::with_capacity(SENTENCE_BYTES);
    // Writing to a String returns an error only if a part does, and none of ours does.
    let _ = out.write_fmt(parts);
    out
}

/// As `format!`, for a [`sentence`].
macro_rules! phrase {
    ($($part:tt)*) => {
        $crate::text::sentence(format_args!($($part)*))
    };
}
pub(crate) use phrase;

/// Makes a text of these bytes. Bytes that are not UTF-8 are replaced. Nearly every text is UTF-8 and is not copied.
pub fn of_bytes(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Whether the text is only printable ASCII, as nearly every text is. The check has no branch for each byte.
pub fn is_plain(text: &str) -> bool {
    text.bytes().fold(true, |plain, byte| plain & (b' '..=b'~').contains(&byte))
}

/// Whether this character must be replaced before it reaches a terminal.
pub fn is_unsafe(character: char) -> bool {
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

/// The name as one word of a shell command.
pub fn word(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/');
    if !name.is_empty() && !name.starts_with('-') && name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("'{}'", clean(name.to_owned()).replace('\'', "'\\''"))
    }
}

/// `1 endpoint`, `2 endpoints`, `3 entries`, `4 addresses`: the count and its noun. The caller passes the singular.
pub fn count(count: impl TryInto<u64>, noun: &str) -> String {
    counted(count.try_into().unwrap_or(u64::MAX), noun).to_string()
}

/// As [`count`], inside a sentence.
pub fn counted(count: u64, noun: &str) -> impl Display {
    fmt::from_fn(move |f| match noun.strip_suffix('y') {
        _ if count == 1 => write!(f, "1 {noun}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => write!(f, "{count} {stem}ies"),
        _ if noun.ends_with('s') => write!(f, "{count} {noun}es"),
        _ => write!(f, "{count} {noun}s"),
    })
}

/// `Services`, `Services and Pods`, `Services, Pods and Nodes`.
pub fn list(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        names => names.concat(),
    }
}

/// `a, b and c`; of many names the first and the number of the others.
pub(crate) fn shortened(names: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> = names.iter().take(SHOWN).map(|name| (*name).to_owned()).collect();
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => list(&first),
        Some(more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// `once`, `3 times`.
pub fn times(count: impl Into<u64>) -> Cow<'static, str> {
    match count.into() {
        1 => Cow::Borrowed("once"),
        count => Cow::Owned(format!("{count} times")),
    }
}

/// Another program's time in its own form, cut to milliseconds.
pub fn to_the_millisecond(time: &str) -> String {
    let Some((whole, fraction)) = time.split_once('.') else { return time.to_owned() };
    let zone = fraction.trim_start_matches(|character: char| character.is_ascii_digit());
    let digits = fraction.strip_suffix(zone).unwrap_or_default();
    format!("{whole}.{}{zone}", digits.get(..3).unwrap_or(digits))
}

/// A duration in its leading units: `340 ms`, `12.5 s`, `4 min 10 s`, `3 h 20 min`.
pub fn length(duration: Duration) -> impl Display {
    fmt::from_fn(move |f| match duration.as_secs() {
        0 => write!(f, "{} ms", duration.as_millis()),
        1..60 => write!(f, "{:.1} s", duration.as_secs_f64()),
        secs @ 60..3600 => write!(f, "{} min {} s", secs / 60, secs % 60),
        secs => write!(f, "{} h {} min", secs / 3600, secs / 60 % 60),
    })
}

/// An age in one unit, because it grows while a person reads it: `3 s`, `4 min`, `2 h`, `3 d`.
pub fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// A measured time to about three digits: `0.31 ms`, `14 ms`, `12.0 s`.
pub fn measured(time: Duration) -> String {
    match time.as_secs_f64() * 1e3 {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1e3),
    }
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
        assert_eq!(clean("a\u{1b}[2Jb\u{202e}c".to_owned()), "a\\u{1b}[2Jb\\u{202e}c");
        assert!(clean("x".repeat(10_000)).len() < MAX_BYTES + 8);
    }

    #[test]
    fn names_are_one_word_of_a_command() {
        assert_eq!(word("x; rm -rf /"), "'x; rm -rf /'");
        assert_eq!(word("it's"), "'it'\\''s'");
        assert_eq!(word("--all"), "'--all'");
        assert_eq!(word("shop"), "shop");
    }

    #[test]
    fn a_name_is_mentioned_as_a_whole() {
        assert!(
            mentions("source 10.0.0.1 is not admitted", "10.0.0.1") && mentions("10.0.0.1:80", "10.0.0.1")
        );
        assert!(mentions("Pod shop/a-1 and shop/a", "shop/a"));
        for text in ["10.0.0.12", "110.0.0.1", "10.0.0.1.2", "", "é10.0.0.1"] {
            assert!(!mentions(text, "10.0.0.1"), "{text}");
        }
        assert!(!mentions("text", ""));
    }

    #[test]
    fn counts_agree() {
        assert_eq!(count(0, "usable endpoint"), "0 usable endpoints");
        assert_eq!(count(1, "entry"), "1 entry");
        assert_eq!(count(2, "entry"), "2 entries");
        assert_eq!(count(2, "day"), "2 days");
        assert_eq!((&*times(1_u32), &*times(2_u32)), ("once", "2 times"));
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(length(Duration::from_millis(340)).to_string(), "340 ms");
        assert_eq!(length(Duration::from_millis(12_500)).to_string(), "12.5 s");
        assert_eq!(length(Duration::from_secs(250)).to_string(), "4 min 10 s");
        assert_eq!(age(Duration::from_secs(250)), "4 min");
        assert_eq!(measured(Duration::from_micros(310)), "0.31 ms");
        assert_eq!(measured(Duration::from_secs(12)), "12.0 s");
    }

    proptest! {
        #[test]
        fn nothing_unsafe_is_left(text in any::<String>()) {
            prop_assert!(!safe(&text).contains(is_unsafe));
            prop_assert!(!clean(text).contains(is_unsafe));
        }
    }
}
