//! `cargo xtask portable`: compiles viptrace for macOS and Windows, where the plugin runs, and counts each as one test.
//!
//! It shows that the code compiles there, and no more: nothing is linked, and no code is generated. Cargo compiles
//! these systems' standard library from the sources that the eBPF build needs anyway.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::place::Place;
use crate::printer::{Outcome, Printer};
use crate::setup;
use crate::tally::Tally;
use crate::toolchain;

const TARGETS: [(&str, &str); 2] = [("macOS", "aarch64-apple-darwin"), ("Windows", "x86_64-pc-windows-msvc")];

/// Stands in for the C compilers and archivers of these systems, since nothing is linked. Build scripts copy the
/// library that `lib.exe` would write.
const C_TOOL: &str = "#!/bin/sh
for word in \"$@\"; do
    case \"$word\" in [-/]out:*) : >\"${word#?out:}\" ;; esac
done
";

/// Checks all systems. Returns false if one failed.
pub(crate) fn run(printer: &Printer) -> bool {
    let mut tally = Tally::default();
    if let Err(error) = Place::find().and_then(|place| check_all(printer, &place, &mut tally)) {
        printer.error(&error);
        tally.failed += 1;
    }
    printer.failures();
    printer.data(&tally.line());
    tally.is_good()
}

fn check_all(printer: &Printer, place: &Place, tally: &mut Tally) -> Result<()> {
    setup::packages(printer, &toolchain::packages())?;
    let tool = c_tool(&place.portable())?;
    for (system, target) in TARGETS {
        printer.say(&format!("==> viptrace for {system} ({target})"));
        let checked = check(place, target, &tool).map(|()| Outcome::Done(String::new()));
        tally.check(printer, &format!("viptrace compiles for {system}"), checked);
    }
    Ok(())
}

fn check(place: &Place, target: &str, tool: &Path) -> Result<()> {
    let of_target = |name: &str| format!("{name}_{}", target.replace('-', "_"));
    toolchain::unstable_cargo(format!("compile viptrace for {target}"))
        .args(["check", "--locked", "--package", "viptrace", "--target", target])
        .args(["-Zbuild-std=std,panic_abort", "--target-dir"])
        .arg(place.portable())
        // Only the standard library would have any.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Zno-codegen")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env(&of_target("CC"), tool)
        .env(&of_target("AR"), tool)
        // Without it, build scripts look for Xcode.
        .env("SDKROOT", "/")
        .directory(&place.repository)
        .hint("read the compiler's message above: code that needs Linux stands behind cfg(target_os = \"linux\")")
        .stream()
}

/// Writes the C tool below `folder`.
fn c_tool(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("c-tool");
    let write = || {
        fs::create_dir_all(folder)?;
        fs::write(&path, C_TOOL)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    };
    write().with_context(|| format!("could not write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use crate::call::Call;

    use super::*;

    #[test]
    fn the_c_tool_writes_the_library_that_lib_exe_would() {
        let folder = tempfile::tempdir().unwrap();
        let tool = c_tool(folder.path()).unwrap();
        let library = folder.path().join("a b.lib");
        let call = Call::new("archive", &tool).arg(format!("-out:{}", library.display())).arg("a.o");
        call.read().unwrap();
        assert_eq!(fs::read(library).unwrap(), b"");
        Call::new("compile", &tool).args(["-c", "a.c", "-o", "a.o"]).read().unwrap();
    }
}
