//! The uid of an object: 16 bytes instead of a text of 36 that no two objects share.

use std::{fmt, sync::Arc};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

/// The characters of a UUID between hyphens (RFC 9562).
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// `metadata.uid`, in the form in which the API server wrote it. Empty if it is not known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Uid(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// A UUID in small letters, as API servers write it.
    Uuid([u8; 16]),
    /// Anything else.
    Text(Arc<str>),
}

impl Uid {
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Form::Text(text) if text.is_empty())
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(uuid(text).map_or_else(|| Form::Text(text.into()), Form::Uuid))
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> Self {
        uid.to_string()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match &self.0 {
            Form::Text(text) => return f.write_str(text),
            Form::Uuid(bytes) => bytes,
        };
        let text = HEXLOWER.encode(bytes);
        let mut rest = text.as_str();
        for (index, length) in GROUPS.into_iter().enumerate() {
            let (group, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            f.write_str(if index > 0 { "-" } else { "" })?;
            f.write_str(group)?;
            rest = after;
        }
        Ok(())
    }
}

/// The bytes of a UUID whose only form is `text`.
fn uuid(text: &str) -> Option<[u8; 16]> {
    if !text.split('-').map(str::len).eq(GROUPS) {
        return None;
    }
    let digits = text.replace('-', "");
    let mut bytes = [0; 16];
    HEXLOWER.decode_mut(digits.as_bytes(), &mut bytes).ok().map(|_| bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uuid_takes_no_allocation_and_keeps_its_form() {
        let text = "4022da8d-a23b-4068-bcd4-240fd39feb28";
        let uid = Uid::from(text);
        assert!(matches!(uid.0, Form::Uuid(_)) && !uid.is_empty());
        assert_eq!(serde_json::to_string(&uid).unwrap(), format!("{text:?}"));
        for other in
            ["", "new", "4022DA8D-a23b-4068-bcd4-240fd39feb28", "4022da8da-23b-4068-bcd4-240fd39feb28"]
        {
            assert!(matches!(Uid::from(other).0, Form::Text(_)), "{other}");
        }
        assert!(Uid::from("").is_empty());
    }

    proptest! {
        #[test]
        fn every_text_is_read_back(text in "[0-9a-fA-F-]{36}|.{0,40}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}") {
            prop_assert_eq!(Uid::from(text.as_str()).to_string(), text);
        }
    }
}
