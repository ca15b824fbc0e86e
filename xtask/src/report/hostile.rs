//! Makes a recording hostile: its names become markup.
//!
//! Knows of the format only its frames (`tracer/src/recording/mod.rs`). Each name is replaced by one of its length, so that
//! the lengths inside the frames stay.

use anyhow::{Context as _, Result, bail};
use flate2::Crc;
use serde_json::Value;

const FILE_MAGIC: usize = 16;
const FRAME_MAGIC: &[u8; 8] = b"\xf1VTBLK\r\n";
const HEADER_BYTES: usize = 32;
const KIND_HEADER: u32 = 0;

/// The names in the recording, and the markup in their place.
const REPLACED: [(&str, &str); 3] =
    [("v0.0.0-master+$Format:%H$", "<script>alert(1)</script>"), ("shop", "<a/>"), ("client-1", "<!-- -->")];
const NODE: &str = "</title><img src=http://192.0.2.1/x>\u{202e}";

/// Texts that a report of the hostile recording contains, escaped.
pub(super) const NAMES: [&str; 4] =
    ["<script>alert(1)</script>", "<a/>/", "<!-- -->", "</title><img src=http://192.0.2.1/x>\\u{202e}"];

/// The recording with hostile names.
pub(super) fn spoil(recording: &[u8]) -> Result<Vec<u8>> {
    let (magic, mut rest) = recording.split_at_checked(FILE_MAGIC).context("the recording is empty")?;
    let mut out = magic.to_vec();
    while !rest.is_empty() {
        let (header, behind) =
            rest.split_at_checked(HEADER_BYTES).context("the recording ends in a frame")?;
        if !header.starts_with(FRAME_MAGIC) {
            bail!("the recording has no frame where one should begin");
        }
        let number = |at: usize| header[at..at + 4].try_into().map(u32::from_le_bytes);
        let (kind, sequence, length) = (number(8)?, number(12)?, number(16)?);
        let (body, behind) =
            behind.split_at_checked(length as usize).context("the recording ends in a frame")?;
        let payload = spoiled(kind, zstd::decode_all(body)?)?;
        let body = zstd::encode_all(payload.as_slice(), 3)?;
        let mut header = FRAME_MAGIC.to_vec();
        for part in [kind, sequence, body.len().try_into()?, payload.len().try_into()?, checksum(&body)] {
            header.extend(part.to_le_bytes());
        }
        header.extend(checksum(&header).to_le_bytes());
        out.extend(header);
        out.extend(body);
        rest = behind;
    }
    Ok(out)
}

fn spoiled(kind: u32, mut payload: Vec<u8>) -> Result<Vec<u8>> {
    if kind == KIND_HEADER {
        let mut header: Value = serde_json::from_slice(&payload)?;
        header["node_name"] = NODE.into();
        return Ok(serde_json::to_vec(&header)?);
    }
    for (name, markup) in REPLACED {
        let (name, markup) = (name.as_bytes(), markup.as_bytes());
        let mut at = 0;
        while let Some(found) = payload[at..].windows(name.len()).position(|window| window == name) {
            at += found;
            payload[at..at + name.len()].copy_from_slice(markup);
            at += name.len();
        }
    }
    Ok(payload)
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_as_long_as_the_name() {
        for (name, markup) in REPLACED {
            assert_eq!(name.len(), markup.len(), "{name}");
        }
        assert!(spoil(b"short").is_err());
        assert!(spoil(&[0; 100]).is_err());
    }
}
