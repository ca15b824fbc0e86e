//! Free space, asked for before anything is downloaded or built, since a disk that fills up half-way ends in errors
//! that name everything but the disk.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::call::Call;

/// What a first run takes, in bytes: build output about 4 GB, packages 1 GB, kernels and images 0.5 GB.
pub(crate) const COLD_BYTES: u64 = 6_000_000_000;
/// What a run takes that finds everything in place, in bytes.
pub(crate) const WARM_BYTES: u64 = 1_000_000_000;

/// Fails unless the file system of `directory` (made if it is missing) has `needed_bytes` free. Returns what is free.
pub(crate) fn require(directory: &Path, needed_bytes: u64) -> Result<u64> {
    fs::create_dir_all(directory).with_context(|| format!("could not create {}", directory.display()))?;
    let text = Call::new("ask for free disk space", "df")
        .args(["--block-size=1", "--output=avail"])
        .arg(directory)
        .read()?;
    let free =
        available(&text).with_context(|| format!("could not understand what `df` printed: {text:?}"))?;
    if free < needed_bytes {
        bail!(
            "the disk of {} has {} free, but {} are needed\nhint: free some space, or put the target folder elsewhere: \
             CARGO_TARGET_DIR=/some/where cargo xtask setup",
            directory.display(),
            gigabytes(free),
            gigabytes(needed_bytes)
        );
    }
    Ok(free)
}

/// Reads the output of `df --output=avail`: a heading, then a number.
fn available(text: &str) -> Option<u64> {
    text.lines().nth(1)?.trim().parse().ok()
}

/// A size as people read it, in decimal gigabytes with one digit after the point.
pub(crate) fn gigabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000_000;
    format!("{}.{} GB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_df() {
        assert_eq!(available("       Avail\n83000000000\n"), Some(83_000_000_000));
        assert_eq!(available("Avail\n"), None);
        assert_eq!(available(""), None);
    }

    #[test]
    fn a_full_disk_is_one_clear_error() {
        let here = tempfile::tempdir().unwrap();
        assert!(require(here.path(), 0).is_ok());
        let message = require(here.path(), u64::MAX).unwrap_err().to_string();
        assert!(message.contains(" free, but 18446744073.7 GB are needed\nhint: "), "{message}");
    }
}
