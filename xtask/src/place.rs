//! Where things are: the repository, the target folder and what is kept below it.
//!
//! Asks cargo, so that `CARGO_TARGET_DIR` and `build.target-dir` are respected. Creates nothing.

use std::env;
use std::ffi::OsString;
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
            serde_json::from_str(&text).context("could not understand what `cargo metadata` printed")?;
        Ok(Self { repository: metadata.workspace_root, target: metadata.target_directory })
    }

    /// A binary of the release profile.
    pub(crate) fn release(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// Tools built for the build itself (bpf-linker).
    pub(crate) fn toolchain(&self) -> PathBuf {
        self.target.join("toolchain")
    }

    pub(crate) fn guest(&self) -> PathBuf {
        self.target.join("guest")
    }

    /// Where the files that a guest of this kernel sent are kept.
    pub(crate) fn guest_output(&self, kernel: &str) -> PathBuf {
        self.guest().join("out").join(kernel)
    }
}

/// A call of the cargo that started us, else of the one on the path.
///
/// What `cargo run` told us about our own package is not handed on: build scripts that watch those variables (ring's
/// does) would run again, with all that depends on them, whenever `cargo xtask` and a plain `cargo build` take turns.
pub(crate) fn cargo(what: impl Into<String>) -> Call {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    apart(Call::new(what, program))
}

/// A call of something that calls cargo in turn: what `cargo run` told us about our own package is not handed on.
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
    fn only_what_is_said_of_our_package_is_held_back() {
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
