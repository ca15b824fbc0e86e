//! One YAML document for each verdict, with the fields of the JSON record in their order.

use std::{fmt::Write as _, io};

use serde::Serialize;

use crate::text::is_unsafe;

/// The record as a document, with its leading `---` and a line end.
pub(crate) fn document(record: &impl Serialize) -> io::Result<String> {
    let text = serde_saphyr::to_string(record).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(guard(&text))
}

/// Escapes characters that the serializer kept but a terminal must not receive. `\uXXXX` is restored inside double
/// quotes; elsewhere it stays readable text.
fn guard(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    out.push_str("---\n");
    for character in text.chars() {
        if character == '\n' || !is_unsafe(character) {
            out.push(character);
            continue;
        }
        let code = u32::from(character);
        // Writing to a String cannot fail.
        let _ = if code > 0xffff { write!(out, "\\U{code:08x}") } else { write!(out, "\\u{code:04x}") };
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_document_reads_back_as_the_json_record() {
        let verdict = fixture::fault();
        let text = document(&verdict).unwrap();
        assert!(text.starts_with("---\ntime: "), "{text}");
        let from_yaml: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(from_yaml, serde_json::to_value(&verdict).unwrap());
    }

    #[test]
    fn hostile_names_cannot_leave_their_field_or_reach_the_terminal() {
        let mut verdict = fixture::fault();
        verdict.root_cause = "no_endpoints — x\n---\nroot_cause: forged".into();
        verdict.flow.client_pod = Some("a\u{1b}[2J\u{202e}b".into());
        verdict.flow.node = Some("yes".into());
        let text = document(&verdict).unwrap();
        assert!(!text.replace('\n', "").contains(is_unsafe), "{text}");
        assert_eq!(text.matches("\n---").count(), 0, "{text}");
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(value["root_cause"], *verdict.root_cause);
        assert_eq!(value["flow"]["node"], "yes");
    }
}
