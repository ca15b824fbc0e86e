//! The files of fetched segments: DIR/NODE/SEGMENT.
//!
//! Owns that a file has its name only if it is whole, and that a whole one stays.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;

use crate::{
    agent::recorder::Segment,
    platform,
    plugin::segments::{AgentSegments, FetchError},
    recording::PART,
};

/// The folder of one node.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Creates the folder.
    pub(super) fn of(folder: &Path, node: &str) -> anyhow::Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        if node.is_empty() || node.starts_with('.') || !node.bytes().all(is_plain) {
            bail!("{node:?} is no name of a node");
        }
        let path = folder.join(node);
        platform::private_folder(&mut fs::DirBuilder::new())
            .recursive(true)
            .create(&path)
            .with_context(|| format!("cannot create the folder {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether the whole segment is here. One that was open when it was fetched has grown since.
    pub(super) fn has(&self, segment: &Segment) -> bool {
        !segment.open
            && fs::metadata(self.0.join(&segment.name))
                .is_ok_and(|meta| meta.is_file() && meta.len() == segment.bytes)
    }

    /// Fetches a segment into its file. Returns its bytes.
    pub(super) async fn fetch(&self, agent: &AgentSegments, segment: &Segment) -> Result<u64, FetchError> {
        let path = self.0.join(&segment.name);
        let mut part = path.clone().into_os_string();
        part.push(format!(".{PART}"));
        let part = Part { path: part.into(), is_whole: false };
        let mut options = OpenOptions::new();
        let file = platform::private(options.write(true).create(true).truncate(true))
            .open(&part.path)
            .map_err(FetchError::Write)?;
        let mut file = tokio::fs::File::from_std(file);
        let got = agent.fetch(segment, &mut file).await?;
        file.shutdown().await.map_err(FetchError::Write)?;
        file.sync_all().await.map_err(FetchError::Write)?;
        drop(file);
        part.rename(&path).map_err(FetchError::Write)?;
        Ok(got)
    }
}

/// A file that is not whole yet. It is removed if it does not become whole.
struct Part {
    path: PathBuf,
    is_whole: bool,
}

impl Part {
    fn rename(mut self, to: &Path) -> std::io::Result<()> {
        fs::rename(&self.path, to)?;
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_whole {
            // Left over, it is no recording for a replay, and the next run overwrites it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Bytes for people: `812 kB`, `45.2 MB`, `3.1 GB`.
pub(super) fn size(bytes: u64) -> String {
    let tenths = |unit: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{} MB", tenths(1_000_000)),
        _ => format!("{} GB", tenths(1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    #[test]
    fn sizes_are_for_people() {
        let all = [0, 1, 999_999, 1_000_000, 45_260_000, 3_100_000_000].map(size);
        assert_eq!(all, ["0 kB", "1 kB", "1000 kB", "1.0 MB", "45.2 MB", "3.1 GB"]);
    }

    #[test]
    fn a_folder_is_one_below_the_users() {
        let dir = tempfile::tempdir().unwrap();
        for node in ["", ".", "..", "a/b", "a\\b", "a b"] {
            Folder::of(dir.path(), node).unwrap_err();
        }
        let folder = Folder::of(dir.path(), "worker-1.example.org").unwrap();
        let mut segment = Segment {
            name: "00000001-20260102T100000123Z.viptrace".to_owned(),
            bytes: 3,
            modified: Timestamp::MIN,
            open: false,
        };
        assert!(!folder.has(&segment));
        fs::write(folder.path().join(&segment.name), "abc").unwrap();
        assert!(folder.has(&segment));
        segment.open = true;
        assert!(!folder.has(&segment), "an open segment grows");
    }
}
