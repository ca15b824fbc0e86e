//! Checks the free disk space before a download or a build. A disk that fills up half-way causes errors that do not
//! name the disk.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::call::Call;

/// The space for a first run, in bytes: build output about 6 GB with cargo's data for incremental builds, packages 1 GB,
/// kernels and images 1 GB.
pub(crate) const COLD_BYTES: u64 = 8_000_000_000;
/// The space for a run that finds everything in place, in bytes.
pub(crate) const WARM_BYTES: u64 = 1_000_000_000;

/// Returns the free bytes on the file system of `directory`, which is created if it is missing. Fails if fewer than
/// `needed_bytes` are free.
pub(crate) fn require(directory: &Path, needed_bytes: u64) -> Result<u64> {
    fs::create_dir_all(directory).with_context(|| format!("could not create {}", directory.display()))?;
    let text = Call::new("read the free disk space", "df")
        .args(["--block-size=1", "--output=avail"])
        .arg(directory)
        .read()?;
    let free = available(&text).with_context(|| format!("could not parse the output of `df`: {text:?}"))?;
    if free < needed_bytes {
        bail!(
            "the disk of {} has {} free, but this run needs {}\nhint: free some space, or use another target folder: \
             CARGO_TARGET_DIR=FOLDER cargo xtask setup",
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

/// A size in decimal gigabytes with one digit after the point.
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
        assert!(message.contains(" free, but this run needs 18446744073.7 GB\nhint: "), "{message}");
    }
}
