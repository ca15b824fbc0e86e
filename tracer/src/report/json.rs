//! One JSON object a line.
//!
//! Strings contain exactly the record's text; characters that could trick a terminal are written as `\u` escapes, which
//! every JSON reader restores.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Serializer, ser::Formatter};

use crate::text::{is_plain, is_unsafe};

/// The usual size of a healthy flow's record.
const USUAL_BYTES: usize = 3072;

/// The record, with a line end.
pub(crate) fn line(record: &impl Serialize) -> io::Result<String> {
    let mut out = Vec::with_capacity(USUAL_BYTES);
    record.serialize(&mut Serializer::with_formatter(&mut out, Safe))?;
    out.push(b'\n');
    String::from_utf8(out).map_err(io::Error::other)
}

struct Safe;

impl Formatter for Safe {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if is_plain(fragment) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some((at, character)) = rest.char_indices().find(|(_, character)| is_unsafe(*character)) {
            let (before, from) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = from.get(character.len_utf8()..).unwrap_or_default();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn hostile_text_is_escaped_and_comes_back_whole() {
        let mut verdict = fixture::fault();
        let hostile = "a\u{1b}[2J\u{202e}b\u{e0041}\"\\\n価\u{9b}";
        verdict.flow.client_pod = Some(hostile.into());
        let line = line(&verdict).unwrap();
        assert!(!line.trim_end_matches('\n').contains(is_unsafe), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["flow"]["client_pod"], hostile);
        assert_eq!(value["flow"]["vip"], "10.96.10.20:80");
        assert_eq!(value["flow"]["endpoint"], serde_json::Value::Null);
    }
}
