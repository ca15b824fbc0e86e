//! The paths of the repository, of the target folder and of the files below it.
//!
//! `cargo metadata` supplies them, so that `CARGO_TARGET_DIR` and `build.target-dir` are respected. Creates only empty
//! folders.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::call::Call;

/// The folders that the tasks work in.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) repository: PathBuf,
    pub(crate) target: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Place {
    pub(crate) fn find() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let text = cargo("find the target folder")
            .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
            .arg(manifest)
            .read()?;
        let metadata: Metadata =
            serde_json::from_str(&text).context("could not parse the output of `cargo metadata`")?;
        Ok(Self { repository: metadata.workspace_root, target: metadata.target_directory })
    }

    /// A binary of the release profile.
    pub(crate) fn release(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// The folder of the tools for the build and for fuzzing (bpf-linker, cargo-fuzz).
    pub(crate) fn toolchain(&self) -> PathBuf {
        self.target.join("toolchain")
    }

    /// The target folder of the checks for other systems.
    pub(crate) fn portable(&self) -> PathBuf {
        self.target.join("portable")
    }

    pub(crate) fn guest(&self) -> PathBuf {
        self.target.join("guest")
    }

    /// The last results of the scenarios, for the scoreboard.
    pub(crate) fn scores(&self) -> PathBuf {
        self.guest().join("out/scores.json")
    }

    /// The folder of the logs and files of this guest.
    pub(crate) fn guest_output(&self, guest: &str) -> PathBuf {
        self.guest().join("out").join(guest)
    }
}

/// Makes the folder, empty: what an earlier run left there is removed.
pub(crate) fn make_empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))
}

/// The paths in a folder, sorted.
pub(crate) fn listing(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = read().with_context(|| format!("could not list {}", folder.display()))?;
    paths.sort();
    Ok(paths)
}

/// A command that runs the cargo that started this process, or else the one on the path.
///
/// It does not pass on `cargo run`'s variables about this package: build scripts that watch them (as ring's does) would
/// run again, with all crates that depend on them, whenever `cargo xtask` and a plain `cargo build` alternate.
pub(crate) fn cargo(what: impl Into<String>) -> Call {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    apart(Call::new(what, program))
}

/// A command that runs a program that calls cargo, without `cargo run`'s variables about this package.
pub(crate) fn apart(call: Call) -> Call {
    let ours =
        env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_of_package(name));
    ours.fold(call, |call, name| call.without_env(&name))
}

fn is_of_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|prefix| variable.starts_with(prefix))
        || matches!(variable, "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE" | "OUT_DIR")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_variables_of_this_package_are_removed() {
        assert!(is_of_package("CARGO_PKG_NAME") && is_of_package("CARGO_MANIFEST_DIR"));
        assert!(
            !is_of_package("CARGO_TARGET_DIR") && !is_of_package("CARGO_HOME") && !is_of_package("CARGO")
        );
    }

    #[test]
    fn the_repository_holds_this_package() {
        let place = Place::find().unwrap();
        assert!(place.repository.join("xtask/Cargo.toml").is_file());
        assert!(place.release("x").starts_with(&place.target));
    }
}
