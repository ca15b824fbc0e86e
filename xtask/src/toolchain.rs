//! The tools that build BPF and the fuzz targets, and the build of the guests' binaries.
//!
//! The tracer's build script builds the BPF object. It needs the same two things as this file: `bpf-linker` below the
//! target folder, and a compiler with unstable features and core's source.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::apt;
use crate::call::Call;
use crate::disk;
use crate::place::{Place, apart, cargo};
use crate::printer::Outcome;

/// bpf-linker reads rustc's bitcode, so its LLVM must be at least as new: LLVM 22 is right for rustc 1.95 to 1.97.
const BPF_LINKER_VERSION: &str = "0.13.0";
/// Builds the fuzz targets with any compiler from 1.95 on.
const CARGO_FUZZ_VERSION: &str = "0.13.2";
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";

/// The packages that a build needs here. rustup's nightly with rust-src replaces Debian's compiler.
pub(crate) fn packages() -> Vec<&'static str> {
    let mut packages = apt::BUILD.to_vec();
    if !has_nightly_with_source() {
        packages.extend_from_slice(apt::BPF_COMPILER);
    }
    packages
}

fn has_nightly_with_source() -> bool {
    let sysroot = Call::new("find a nightly toolchain of rustup", "rustup")
        .args(["run", "nightly", "rustc", "--print", "sysroot"])
        .read();
    sysroot.is_ok_and(|path| Path::new(path.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file())
}

/// A cargo that takes unstable options and can compile the standard library: that of [`packages`].
pub(crate) fn unstable_cargo(what: impl Into<String>) -> Call {
    if has_nightly_with_source() {
        return apart(Call::new(what, "rustup").args(["run", "nightly", "cargo"]))
            .without_env("RUSTC")
            .without_env("RUSTUP_TOOLCHAIN");
    }
    cargo(what).env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1")
}

/// Builds bpf-linker once and keeps it below the target folder.
pub(crate) fn ensure_bpf_linker(place: &Place) -> Result<Outcome> {
    let root = place.toolchain();
    let binary = root.join("bin/bpf-linker");
    if let Some(version) = version(&binary, BPF_LINKER_VERSION) {
        return Ok(Outcome::Skipped(format!("{version} is built")));
    }
    disk::require(&place.target, disk::COLD_BYTES)?;
    // A separate target folder avoids the lock of the project's. It is removed after the build.
    let build = root.join("build");
    cargo("build bpf-linker")
        .args(["install", "bpf-linker", "--version", BPF_LINKER_VERSION, "--locked", "--force"])
        .args(["--no-default-features", "--features", "llvm-22", "--root"])
        .arg(&root)
        .arg("--target-dir")
        .arg(&build)
        .env("LLVM_PREFIX", LLVM_PREFIX)
        // The build must be fast; the linker need not be.
        .env("CARGO_PROFILE_RELEASE_LTO", "false")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .hint(
            "check that the registry of crates can be reached and that the disk is not full, then try again",
        )
        .stream()?;
    remove(&build)?;
    Ok(Outcome::Done(format!("built bpf-linker {BPF_LINKER_VERSION}")))
}

/// Builds cargo-fuzz once and keeps it below the target folder.
pub(crate) fn ensure_cargo_fuzz(place: &Place) -> Result<Outcome> {
    let root = place.toolchain();
    if let Some(version) = version(&root.join("bin/cargo-fuzz"), CARGO_FUZZ_VERSION) {
        return Ok(Outcome::Skipped(format!("{version} is built")));
    }
    disk::require(&place.target, disk::WARM_BYTES)?;
    let build = root.join("build");
    cargo("build cargo-fuzz")
        .args(["install", "cargo-fuzz", "--version", CARGO_FUZZ_VERSION, "--locked", "--force", "--root"])
        .arg(&root)
        .arg("--target-dir")
        .arg(&build)
        .hint(
            "check that the registry of crates can be reached and that the disk is not full, then try again",
        )
        .stream()?;
    remove(&build)?;
    Ok(Outcome::Done(format!("built cargo-fuzz {CARGO_FUZZ_VERSION}")))
}

fn remove(build: &Path) -> Result<()> {
    if build.exists() {
        fs::remove_dir_all(build).with_context(|| format!("could not remove {}", build.display()))?;
    }
    Ok(())
}

/// The output of `--version`, if the program exists and has the wanted version.
fn version(binary: &Path, wanted: &str) -> Option<String> {
    if !binary.is_file() {
        return None;
    }
    let text = Call::new(format!("start {}", binary.display()), binary).arg("--version").read().ok()?;
    let text = text.trim();
    text.ends_with(wanted).then(|| text.to_owned())
}

/// Builds the guests' binaries in the release profile.
pub(crate) fn build_binaries(place: &Place) -> Result<Outcome> {
    cargo("build viptrace and the lab")
        .args(["build", "--release", "--locked", "-p", "viptrace", "-p", "viptrace-lab"])
        .directory(&place.repository)
        .hint("read the compiler's message above; for a missing BPF toolchain, type: cargo xtask setup")
        .stream()?;
    Ok(Outcome::Done("built viptrace and viptrace-lab".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_linker_has_no_version() {
        for path in ["/nonexistent/bpf-linker", "/bin/false", "/bin/true"] {
            assert_eq!(version(Path::new(path), BPF_LINKER_VERSION), None);
        }
    }

    #[test]
    fn the_build_packages_are_always_wanted() {
        let packages = packages();
        assert!(apt::BUILD.iter().all(|package| packages.contains(package)));
    }
}
