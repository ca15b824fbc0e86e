//! `cargo xtask package`: the crates for a registry, from which `cargo install viptrace` builds on a machine that cannot build
//! BPF. The crate carries the built eBPF objects in `tracer/bpf`, which git ignores and a build in the checkout does not
//! read.
//!
//! It shows that a second build elsewhere gives equal objects, and installs viptrace from the crates without a BPF
//! linker. `dist` writes the crates without these checks.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::apt;
use crate::call::Call;
use crate::object;
use crate::place::{Place, cargo};
use crate::printer::{Outcome, Printer};
use crate::setup;
use crate::tally::Tally;

/// The architectures whose registers the programs can read.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
/// In the order in which they are published.
const CRATES: [&str; 3] = ["viptrace-class", "viptrace-ebpf", "viptrace"];
/// The parts of the workspace that cargo reads for a build of the objects.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "tracer", "tracer-ebpf", "xtask", "tests"];
/// Recordings and other data of tests.
const NO_SOURCES: [&str; 3] = [":!tests/corpus", ":!tests/fixtures", ":!tests/fuzz"];
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The most bytes that the registry accepts for a crate.
const MAX_CRATE_BYTES: u64 = 10 << 20;

/// Writes the crates and checks them. Returns false if a check failed.
pub(crate) fn run(printer: &Printer) -> bool {
    let mut tally = Tally::default();
    if let Err(error) = Place::find().and_then(|place| checked(printer, &place, &mut tally)) {
        printer.error(&error);
        tally.failed += 1;
    }
    printer.failures();
    printer.data(&tally.line());
    tally.is_good()
}

fn checked(printer: &Printer, place: &Place, tally: &mut Tally) -> Result<()> {
    setup::tools(printer, place, &[apt::GUEST])?;
    write(printer, place)?;
    printer.say("==> the objects once more, from a copy of the sources");
    tally.check(printer, "a second build gives equal eBPF objects", rebuild(place));
    printer.say("==> an installation from the crates");
    tally.check(printer, "viptrace is installed from its crates without a BPF linker", install(place));
    Ok(())
}

/// Builds the objects, and returns the paths of the crates that have them.
pub(crate) fn write(printer: &Printer, place: &Place) -> Result<Vec<PathBuf>> {
    printer.step("eBPF objects", || {
        let folder = kept(place);
        fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
        for architecture in ARCHITECTURES {
            let built = build(place, &place.repository, &folder_of(place, architecture), architecture)?;
            let path = folder.join(object::file_name(architecture));
            fs::copy(&built, &path).with_context(|| format!("could not write {}", path.display()))?;
        }
        Ok(Outcome::Done(format!("for {} in {}", ARCHITECTURES.join(" and "), folder.display())))
    })?;
    let paths = CRATES.map(|name| place.target.join(format!("package/{name}-{VERSION}.crate")));
    printer.step("crates", || {
        let packages = CRATES.iter().flat_map(|name| ["--package", name]);
        // `cargo publish` refuses a checkout with changes.
        let call = cargo("write the crates").args(["package", "--locked", "--no-verify", "--allow-dirty"]);
        call.args(packages).directory(&place.repository).read()?;
        for path in &paths {
            let bytes = fs::metadata(path).with_context(|| format!("no {}", path.display()))?.len();
            ensure!(bytes <= MAX_CRATE_BYTES, "{} has {bytes} bytes", path.display());
        }
        Ok(Outcome::Done(place.target.join("package").display().to_string()))
    })?;
    Ok(paths.to_vec())
}

/// Where the crate takes the objects from.
fn kept(place: &Place) -> PathBuf {
    place.repository.join("tracer").join(object::FOLDER)
}

fn folder_of(place: &Place, name: &str) -> PathBuf {
    place.target.join("objects").join(name)
}

fn build(place: &Place, workspace: &Path, target: &Path, architecture: &str) -> Result<PathBuf> {
    let linker = place.toolchain().join("bin/bpf-linker");
    object::build(workspace, target, &linker, architecture).map_err(anyhow::Error::msg)
}

/// Builds the objects in another folder, from nothing, and compares them.
fn rebuild(place: &Place) -> Result<Outcome> {
    let folder = folder_of(place, "second");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    let workspace = folder.join("a copy");
    copy_sources(place, &workspace)?;
    for architecture in ARCHITECTURES {
        let path = kept(place).join(object::file_name(architecture));
        let first = fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
        let second = build(place, &workspace, &folder.join("target"), architecture)?;
        let again = fs::read(&second).with_context(|| format!("could not read {}", second.display()))?;
        ensure!(
            first == again,
            "the builds differ: {} and {}\nhint: compare them by `readelf --all`, or `cmp`",
            path.display(),
            second.display()
        );
    }
    fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    Ok(Outcome::Done(String::new()))
}

fn copy_sources(place: &Place, to: &Path) -> Result<()> {
    let call = Call::new("list the sources", "git").args(["ls-files", "-z", "--"]);
    let listed = call.args(SOURCES).args(NO_SOURCES).directory(&place.repository).read()?;
    for name in listed.split_terminator('\0') {
        let (from, to) = (place.repository.join(name), to.join(name));
        // Links to folders, and files that were removed.
        if !from.is_file() {
            continue;
        }
        let parent = to.parent().unwrap_or(&to);
        fs::create_dir_all(parent).with_context(|| format!("could not create {}", parent.display()))?;
        fs::copy(&from, &to).with_context(|| format!("could not copy {}", from.display()))?;
    }
    Ok(())
}

/// Installs viptrace from the unpacked crates, as from a registry.
fn install(place: &Place) -> Result<Outcome> {
    let folder = place.target.join("package/installed");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    let unpacked = |name: &str| folder.join(format!("{name}-{VERSION}"));
    let mut call = cargo("install viptrace from its crates").arg("install");
    for name in CRATES {
        let file = place.target.join(format!("package/{name}-{VERSION}.crate"));
        Call::new("unpack a crate", "tar").arg("-xzf").arg(file).directory(&folder).read()?;
        if name != "viptrace" {
            let path = toml_string(&unpacked(name));
            call = call.args(["--config", &format!("patch.crates-io.{name}.path={path}")]);
        }
    }
    call.args(["--debug", "--path"])
        .arg(unpacked("viptrace"))
        .arg("--root")
        .arg(&folder)
        .arg("--target-dir")
        .arg(place.target.join("package/target"))
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        // An attempt to build BPF fails.
        .env("VIPTRACE_BPF_LINKER", "/nonexistent/bpf-linker")
        .directory(&folder)
        .stream()?;
    let viptrace = folder.join("bin/viptrace");
    let version = Call::new("start the installed viptrace", &viptrace).arg("--version").read()?;
    let expected = format!("viptrace {VERSION}\neBPF object: from the package\n");
    ensure!(version == expected, "`viptrace --version` printed {version:?}, expected {expected:?}");
    let read = |path: &Path| fs::read(path).with_context(|| format!("could not read {}", path.display()));
    let object = read(&kept(place).join(object::file_name(ARCH)))?;
    if !contains(&read(&viptrace)?, &object) {
        bail!("{} does not have the package's eBPF object", viptrace.display());
    }
    Ok(Outcome::Done(String::new()))
}

/// A path in cargo's configuration.
fn toml_string(path: &Path) -> String {
    let text = path.display().to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    let Some(&first) = part.first() else { return false };
    let mut places = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
    places.any(|(at, _)| bytes.get(at..).is_some_and(|rest| rest.starts_with(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_where_it_is_whole() {
        assert!(contains(b"aabbaabc", b"aabc"));
        assert!(!contains(b"aabbaab", b"aabc"));
        assert!(!contains(b"abc", b""));
    }

    /// Files outside a crate's folder come by links.
    #[test]
    fn each_crate_has_what_its_build_reads() {
        let place = Place::find().unwrap();
        for (name, expected) in [
            ("viptrace-class", ["LICENSE", "pages/C1.md", "src/lib.rs"]),
            ("viptrace-ebpf", ["LICENSE", "src/lib.rs", "src/main.rs"]),
            ("viptrace", ["LICENSE", "build/object.rs", "src/report/html/style.css"]),
        ] {
            let call =
                cargo("list a crate's files").args(["package", "--list", "--allow-dirty", "--package", name]);
            let listed = call.directory(&place.repository).read().unwrap();
            let files: Vec<&str> = listed.lines().collect();
            for file in expected {
                assert!(files.contains(&file), "{name} has no {file}: {files:?}");
            }
        }
    }

    #[test]
    fn a_copy_of_the_sources_has_what_cargo_reads() {
        let place = Place::find().unwrap();
        let folder = tempfile::tempdir().unwrap();
        copy_sources(&place, folder.path()).unwrap();
        assert!(folder.path().join("tracer-ebpf/src/main.rs").is_file());
        assert!(!folder.path().join("tests/fixtures").exists());
        let text = cargo("read the copy").args(["metadata", "--no-deps", "--format-version=1"]);
        assert!(text.directory(folder.path()).read().unwrap().contains("viptrace-ebpf"));
    }
}
