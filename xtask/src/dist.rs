//! `cargo xtask dist`: writes the contents of a package below the target folder: the stripped binary, its man pages and
//! shell completions, the licence, and a checksum of each file.
//!
//! The binary itself prints the pages, so that they match its version and this crate need not link it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::call::Call;
use crate::place::{Place, cargo};
use crate::printer::{Outcome, Printer};
use crate::setup;

const CHECKSUMS: &str = "SHA256SUMS";

/// Replaces `target/dist`.
pub(crate) fn run(printer: &Printer) -> Result<()> {
    let place = Place::find()?;
    setup::tools(printer, &place, &[])?;
    printer.step("release binary", || {
        // The release profile strips it.
        cargo("build viptrace")
            .args(["build", "--release", "--locked", "-p", "viptrace"])
            .directory(&place.repository)
            .hint("read the compiler's message above; `cargo xtask setup` installs a missing BPF toolchain")
            .stream()?;
        Ok(Outcome::Done("built viptrace".into()))
    })?;
    let folder = place.target.join("dist");
    printer.step("package", || {
        let files = fill(&place, &folder)?;
        Ok(Outcome::Done(format!("{files} files in {}", folder.display())))
    })
}

/// Returns the number of files, the checksums among them.
fn fill(place: &Place, folder: &Path) -> Result<usize> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    let binary = folder.join("viptrace");
    fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
    fs::copy(place.release("viptrace"), &binary).context("could not copy the binary")?;
    fs::copy(place.repository.join("LICENSE"), folder.join("LICENSE"))
        .context("could not copy the licence")?;
    Call::new("write the man pages and completions", &binary).arg("pages").arg(folder).read()?;
    let files = files(folder, folder)?;
    let sums =
        Call::new("compute the checksums", "sha256sum").arg("--").args(&files).directory(folder).read()?;
    fs::write(folder.join(CHECKSUMS), sums).context("could not write the checksums")?;
    Ok(files.len() + 1)
}

/// The files below `folder` by their paths in `root`, sorted.
fn files(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("could not read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(root, &path)?);
        } else {
            found.push(path.strip_prefix(root)?.to_owned());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The program in the release folder only writes pages.
    #[test]
    fn a_package_holds_the_binary_its_pages_and_correct_checksums() {
        let target = tempfile::tempdir().unwrap();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
        let place = Place { repository, target: target.path().to_owned() };
        let binary = place.release("viptrace");
        fs::create_dir_all(binary.parent().unwrap()).unwrap();
        fs::write(&binary, "#!/bin/sh\n[ \"$1\" = pages ] && mkdir \"$2/man1\" && echo > \"$2/man1/a.1\"\n")
            .unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = target.path().join("dist");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("stale"), "").unwrap();
        assert_eq!(fill(&place, &folder).unwrap(), 4);
        let found = files(&folder, &folder).unwrap();
        assert_eq!(found, ["LICENSE", CHECKSUMS, "man1/a.1", "viptrace"].map(PathBuf::from));
        let sums = Call::new("verify the checksums", "sha256sum")
            .args(["--check", CHECKSUMS])
            .directory(&folder)
            .read();
        assert_eq!(
            sums.unwrap().lines().collect::<Vec<_>>(),
            ["LICENSE: OK", "man1/a.1: OK", "viptrace: OK"]
        );
    }
}
