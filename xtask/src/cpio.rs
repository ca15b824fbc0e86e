//! Writes initramfs archives: the "newc" format of the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
//!
//! Archives are not compressed: under emulation the kernel needs several times longer to unpack than to copy them.
//! The kernel accepts several archives in one file, and a later one overrides an earlier one. An image joins a large
//! part that rarely changes to a small one that often changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// One entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Directory,
    Symlink(String),
    Text { bytes: Vec<u8>, mode: u32 },
    File { source: PathBuf, mode: u32 },
    Character { major: u32, minor: u32 },
}

/// The contents of an archive, by path without a leading slash. Parent folders are added automatically.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    // Ordered, so that a folder precedes its contents and equal inputs give equal bytes.
    nodes: BTreeMap<String, Node>,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn directory(&mut self, path: &str) {
        self.insert(path, Node::Directory);
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.insert(path, Node::Symlink(target.to_owned()));
    }

    /// A file with these bytes; `mode` is the permission bits.
    pub(crate) fn text(&mut self, path: &str, bytes: impl Into<Vec<u8>>, mode: u32) {
        self.insert(path, Node::Text { bytes: bytes.into(), mode });
    }

    /// A copy of a host file, read when the archive is written.
    pub(crate) fn file(&mut self, path: &str, source: &Path, mode: u32) {
        self.insert(path, Node::File { source: source.to_owned(), mode });
    }

    pub(crate) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.insert(path, Node::Character { major, minor });
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(path.trim_start_matches('/'))
    }

    /// All entries by path, a folder before its contents.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// The host files that the archive contains.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Path> {
        self.nodes.values().filter_map(|node| match node {
            Node::File { source, .. } => Some(source.as_path()),
            _ => None,
        })
    }

    fn insert(&mut self, path: &str, node: Node) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            self.nodes.entry(path[..end].to_owned()).or_insert(Node::Directory);
        }
        self.nodes.insert(path.to_owned(), node);
    }

    /// Writes the archive with its trailer, padded to 4 bytes so that another archive can follow.
    pub(crate) fn write(&self, output: &mut impl Write) -> Result<()> {
        let mut writer = Writer { output, inode: 0 };
        for (path, node) in &self.nodes {
            match node {
                Node::Directory => writer.entry(path, DIRECTORY | 0o755, (0, 0), &[]),
                Node::Symlink(target) => writer.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes()),
                Node::Text { bytes, mode } => writer.entry(path, REGULAR | mode, (0, 0), bytes),
                Node::Character { major, minor } => {
                    writer.entry(path, CHARACTER | 0o600, (*major, *minor), &[])
                }
                Node::File { source, mode } => {
                    let bytes =
                        fs::read(source).with_context(|| format!("could not read {}", source.display()))?;
                    writer.entry(path, REGULAR | mode, (0, 0), &bytes)
                }
            }
            .with_context(|| format!("could not write {path} to the guest image"))?;
        }
        writer.entry(TRAILER, 0, (0, 0), &[]).context("could not end the guest image")
    }

    /// Writes the contents into a folder, over what is there. Devices are left out.
    pub(crate) fn extract(&self, folder: &Path) -> Result<()> {
        for (path, node) in &self.nodes {
            let place = folder.join(path);
            let write = || -> io::Result<()> {
                if !matches!(node, Node::Directory) && place.symlink_metadata().is_ok() {
                    fs::remove_file(&place)?;
                }
                match node {
                    Node::Directory => fs::create_dir_all(&place),
                    Node::Symlink(target) => symlink(target, &place),
                    Node::Text { bytes, mode } => {
                        fs::write(&place, bytes)?;
                        fs::set_permissions(&place, Permissions::from_mode(*mode))
                    }
                    Node::File { source, mode } => {
                        fs::copy(source, &place)?;
                        fs::set_permissions(&place, Permissions::from_mode(*mode))
                    }
                    Node::Character { .. } => Ok(()),
                }
            };
            write().with_context(|| format!("could not write {}", place.display()))?;
        }
        Ok(())
    }
}

struct Writer<'a, W> {
    output: &'a mut W,
    inode: u32,
}

impl<W: Write> Writer<'_, W> {
    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> Result<()> {
        let Ok(size) = u32::try_from(data.len()) else {
            bail!("{} bytes exceed the format's limit", data.len());
        };
        self.inode += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let name_size = path.len() as u32 + 1;
        // inode, mode, uid, gid, links, time, size, device, device number, length of the name, check.
        // Times are zero, so that an image depends on its contents alone.
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        let mut header = String::from(MAGIC);
        for field in fields {
            let _ = write!(header, "{field:08X}");
        }
        self.output.write_all(header.as_bytes())?;
        self.output.write_all(path.as_bytes())?;
        self.output.write_all(&[0])?;
        self.pad(header.len() + path.len() + 1)?;
        self.output.write_all(data)?;
        self.pad(data.len())?;
        Ok(())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        let zeros = [0_u8; 3];
        self.output.write_all(&zeros[..written.wrapping_neg() % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(archive: &Archive) -> Vec<u8> {
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();
        bytes
    }

    type Read = (String, u32, (u32, u32), Vec<u8>);

    /// Reads an archive back: path, mode, device and data of each entry, the trailer included.
    fn entries(mut rest: &[u8]) -> Vec<Read> {
        let mut entries = Vec::new();
        while !rest.is_empty() {
            assert_eq!(&rest[..6], MAGIC.as_bytes());
            let field = |n: usize| {
                u32::from_str_radix(std::str::from_utf8(&rest[6 + 8 * n..14 + 8 * n]).unwrap(), 16).unwrap()
            };
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let name = std::str::from_utf8(&rest[110..110 + name_size - 1]).unwrap().to_owned();
            assert_eq!(rest[110 + name_size - 1], 0);
            let start = (110 + name_size).next_multiple_of(4);
            entries.push((name, field(1), (field(9), field(10)), rest[start..start + size].to_vec()));
            rest = &rest[(start + size).next_multiple_of(4)..];
        }
        entries
    }

    #[test]
    fn an_archive_reads_back() {
        let here = tempfile::tempdir().unwrap();
        let source = here.path().join("tool");
        fs::write(&source, "binary").unwrap();
        let mut archive = Archive::new();
        archive.text("/etc/hosts", "127.0.0.1 localhost\n", 0o644);
        archive.symlink("bin", "usr/bin");
        archive.file("usr/bin/tool", &source, 0o755);
        archive.character_device("dev/console", 5, 1);
        let read = entries(&bytes(&archive));
        let names: Vec<&str> = read.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(
            names,
            ["bin", "dev", "dev/console", "etc", "etc/hosts", "usr", "usr/bin", "usr/bin/tool", TRAILER]
        );
        assert_eq!(read[0], ("bin".into(), 0o120_777, (0, 0), b"usr/bin".to_vec()));
        assert_eq!(read[2], ("dev/console".into(), 0o020_600, (5, 1), vec![]));
        assert_eq!(read[4], ("etc/hosts".into(), 0o100_644, (0, 0), b"127.0.0.1 localhost\n".to_vec()));
        assert_eq!(read[6].1, 0o040_755);
        assert_eq!(read[7], ("usr/bin/tool".into(), 0o100_755, (0, 0), b"binary".to_vec()));
        assert!(archive.contains("/etc/hosts") && !archive.contains("etc/host"));
        assert_eq!(archive.sources().collect::<Vec<_>>(), [source.as_path()]);
    }

    #[test]
    fn every_length_is_padded_so_that_archives_can_be_joined() {
        for length in 0..9 {
            let mut archive = Archive::new();
            archive.text(&"n".repeat(length + 1), vec![7; length], 0o600);
            let one = bytes(&archive);
            assert_eq!(one.len() % 4, 0);
            let both = [one.clone(), one].concat();
            assert_eq!(entries(&both).len(), 4);
        }
    }

    #[test]
    fn an_explicit_folder_keeps_its_files() {
        let mut archive = Archive::new();
        archive.text("run/file", "x", 0o600);
        archive.directory("run");
        assert_eq!(entries(&bytes(&archive)).len(), 3);
    }

    #[test]
    fn an_archive_replaces_what_a_folder_has() {
        let here = tempfile::tempdir().unwrap();
        fs::create_dir_all(here.path().join("usr/lib")).unwrap();
        symlink("usr/lib", here.path().join("lib")).unwrap();
        symlink("/nonexistent", here.path().join("usr/lib/a")).unwrap();
        let mut archive = Archive::new();
        archive.text("lib/a", "text", 0o750);
        archive.symlink("b/c", "../lib/a");
        archive.character_device("dev/console", 5, 1);
        for _ in 0..2 {
            archive.extract(here.path()).unwrap();
        }
        assert_eq!(fs::read_to_string(here.path().join("b/c")).unwrap(), "text");
        let mode = fs::metadata(here.path().join("usr/lib/a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut archive = Archive::new();
        archive.file("x", Path::new("/nonexistent/x"), 0o600);
        let error = archive.write(&mut Vec::new()).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/x"));
    }
}
