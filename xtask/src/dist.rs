//! `cargo xtask dist`: writes the contents of a package below the target folder: the static binary, its man pages and
//! shell completions, the licence, and a checksum of each file; the container images as OCI archives; the plugin's archives
//! with krew's manifest; and the crates for a registry.
//!
//! The binary itself prints the pages, so that they match its version and this crate need not link it. It is linked with
//! glibc: a static musl has a slow allocator, and since glibc 2.34 names are resolved without shared libraries. It depends
//! on the sources and the toolchain, not on the paths of this machine.

use std::env;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::apt;
use crate::call::Call;
use crate::cpio::Archive;
use crate::image;
use crate::krew::{self, Release};
use crate::oci::Image;
use crate::package;
use crate::place::{Place, cargo};
use crate::printer::{Outcome, Printer};
use crate::setup;

const CHECKSUMS: &str = "SHA256SUMS";
const ENTRYPOINT: &str = "/usr/bin/viptrace";

/// The architectures of images, as Rust and as Go name them.
const ARCHITECTURES: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// Replaces `target/dist`.
pub(crate) fn run(printer: &Printer) -> Result<()> {
    let place = Place::find()?;
    setup::tools(printer, &place, &[apt::IMAGE])?;
    let folder = place.target.join("dist");
    let origin = Origin::of(&place);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    let mut plugin = Release::new(env!("CARGO_PKG_VERSION"), origin.time);
    for (rust, go) in ARCHITECTURES {
        if let Some(obstacle) = obstacle(rust) {
            printer.say(&format!("==> binary and images for {go}\n    skipped: {obstacle}"));
            continue;
        }
        let mut binary = PathBuf::new();
        printer.step(&format!("static binary for {go}"), || {
            binary = build(&place, rust)?;
            Ok(Outcome::Done(format!("built {}", binary.display())))
        })?;
        printer.step(&format!("plugin for {go}"), || {
            let licence = place.repository.join("LICENSE");
            Ok(Outcome::Done(plugin.pack(("linux", go), &binary, &licence, &folder)?))
        })?;
        let bare = bare(&place, &binary);
        if rust == ARCH {
            printer.step("package", || {
                fill(&place, &binary, &folder)?;
                Ok(Outcome::Done(folder.display().to_string()))
            })?;
            let listers = image::rule_listers()?;
            write_image(printer, &folder, &origin.image("-tools", go), &[&listers, &bare])?;
        } else {
            printer.say(&format!(
                "    no image with tools for {go}: they are this machine's own programs; build it on such a machine"
            ));
        }
        write_image(printer, &folder, &origin.image("", go), &[&bare])?;
    }
    let crates = package::write(printer, &place)?;
    for file in &crates {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, folder.join(name)).with_context(|| format!("could not copy {}", file.display()))?;
    }
    printer.step("krew's manifest", || {
        plugin.write_manifest(&folder)?;
        Ok(Outcome::Done(format!("{}.yaml", krew::NAME)))
    })?;
    printer.step("checksums", || Ok(Outcome::Done(format!("of {} files", checksums(&folder)?))))
}

fn target(architecture: &str) -> String {
    format!("{architecture}-unknown-linux-gnu")
}

/// Why viptrace cannot be built for this architecture here.
fn obstacle(architecture: &str) -> Option<String> {
    if architecture == ARCH {
        return None;
    }
    let target = target(architecture);
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Call::new("find the compiler's libraries", rustc).args(["--print", "sysroot"]).read();
    let sysroot = sysroot.unwrap_or_default();
    if !Path::new(sysroot.trim()).join("lib/rustlib").join(&target).join("lib").is_dir() {
        return Some(format!(
            "Rust's library for {target} is not installed\n    hint: rustup target add {target}"
        ));
    }
    let gcc = format!("{architecture}-linux-gnu-gcc");
    let found = Call::new("find a cross compiler", &gcc).arg("--version").read();
    found
        .is_err()
        .then(|| format!("{gcc} is not installed\n    hint: apt-get install gcc-{architecture}-linux-gnu"))
}

/// Builds viptrace without shared libraries.
fn build(place: &Place, architecture: &str) -> Result<PathBuf> {
    let target = target(architecture);
    let setting = |name: &str| format!("CARGO_TARGET_{}_{name}", target.to_uppercase().replace('-', "_"));
    let cargo_home =
        env::var("CARGO_HOME").or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")));
    // With a named target, the flags do not reach build scripts and macros.
    let mut call = cargo("build viptrace")
        // The profile strips it.
        .args(["build", "--profile=dist", "--locked", "-p", "viptrace", "--target", &target])
        .env("CARGO_ENCODED_RUSTFLAGS", flags(place, &cargo_home.unwrap_or_default()))
        .directory(&place.repository)
        .hint("read the compiler's message above; `cargo xtask setup` installs a missing BPF toolchain");
    if architecture != ARCH {
        call = call.env(&setting("LINKER"), format!("{architecture}-linux-gnu-gcc"));
    }
    call.stream()?;
    let binary = place.target.join(&target).join("dist/viptrace");
    let headers =
        Call::new("read the binary's headers", "readelf").arg("--program-headers").arg(&binary).read()?;
    if headers.contains("INTERP") {
        bail!("{} needs shared libraries", binary.display());
    }
    Ok(binary)
}

/// The compiler's flags, as cargo reads them from `CARGO_ENCODED_RUSTFLAGS`: a path may contain spaces.
///
/// Of several prefixes of a path, the compiler replaces the last one in the list ("--remap-path-prefix", The rustc book),
/// and the target folder is usually below the repository.
fn flags(place: &Place, cargo_home: &str) -> String {
    let remapped = [
        (place.repository.display().to_string(), "/viptrace"),
        (place.target.display().to_string(), "/target"),
        (cargo_home.to_owned(), "/cargo"),
    ];
    let remapped = remapped.iter().filter(|(from, _)| !from.is_empty());
    let remapped = remapped.map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    let flags: Vec<String> =
        std::iter::once("-Ctarget-feature=+crt-static".to_owned()).chain(remapped).collect();
    flags.join("\u{1f}")
}

/// The commit that an image was built from.
struct Origin {
    revision: Option<String>,
    /// In seconds since 1970: `SOURCE_DATE_EPOCH`, or the commit's time.
    time: u64,
}

impl Origin {
    fn of(place: &Place) -> Self {
        let git = |format: &str| {
            let call = Call::new("read the commit", "git").args(["log", "-1", &format!("--format={format}")]);
            call.directory(&place.repository).read().ok().map(|text| text.trim().to_owned())
        };
        let time =
            env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git("%ct")).and_then(|text| text.parse().ok());
        Self { revision: git("%H"), time: time.unwrap_or(0) }
    }

    fn image(&self, suffix: &str, architecture: &'static str) -> Image {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Image {
            title: "viptrace",
            licence: "Apache-2.0",
            repository: None,
            tag: format!("{version}{suffix}"),
            version,
            architecture,
            revision: self.revision.clone(),
            time: self.time,
            entrypoint: &[ENTRYPOINT],
            compressed: true,
        }
    }
}

/// The layer with viptrace alone.
fn bare(place: &Place, binary: &Path) -> Archive {
    let mut layer = Archive::new();
    layer.file(ENTRYPOINT, binary, 0o755);
    layer.file("usr/share/doc/viptrace/LICENSE", &place.repository.join("LICENSE"), 0o644);
    layer
}

fn write_image(printer: &Printer, folder: &Path, image: &Image, layers: &[&Archive]) -> Result<()> {
    let file = folder.join(format!("viptrace-{}-{}.oci.tar", image.tag, image.architecture));
    printer.step(&format!("image {} for {}", image.tag, image.architecture), || {
        let bytes = image.archive(layers)?;
        fs::write(&file, &bytes).with_context(|| format!("could not write {}", file.display()))?;
        Ok(Outcome::Done(format!("{} MB in {}", bytes.len() / 1_000_000, file.display())))
    })
}

/// Writes everything but the images and the checksums.
fn fill(place: &Place, source: &Path, folder: &Path) -> Result<()> {
    let binary = folder.join("viptrace");
    fs::copy(source, &binary).context("could not copy the binary")?;
    fs::copy(place.repository.join("LICENSE"), folder.join("LICENSE"))
        .context("could not copy the licence")?;
    Call::new("write the man pages and completions", &binary).arg("pages").arg(folder).read().map(drop)
}

/// Writes the checksum of every file below `folder`, and returns their number.
fn checksums(folder: &Path) -> Result<usize> {
    let files = files(folder, folder)?;
    let sums =
        Call::new("compute the checksums", "sha256sum").arg("--").args(&files).directory(folder).read()?;
    fs::write(folder.join(CHECKSUMS), sums).context("could not write the checksums")?;
    Ok(files.len())
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

    /// The compiler itself replaces the prefixes of a file in a target folder with a space.
    #[test]
    fn a_binary_names_no_path_of_this_machine() {
        let repository = tempfile::tempdir().unwrap();
        let place =
            Place { target: repository.path().join("my target"), repository: repository.path().to_owned() };
        fs::create_dir(&place.target).unwrap();
        let source = place.target.join("made.rs");
        fs::write(&source, "pub const PLACE: &str = file!();").unwrap();
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let flags = flags(&place, "");
        let call = Call::new("compile a file", rustc).args(flags.split('\u{1f}')).arg(&source);
        let made = place.target.join("made");
        call.args(["--crate-type=lib", "--emit=mir", "-o"]).arg(&made).read().unwrap();
        let text = fs::read_to_string(&made).unwrap();
        assert!(text.contains("\"/target/made.rs\""), "{text}");
    }

    /// The program only writes pages.
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
        fill(&place, &binary, &folder).unwrap();
        assert_eq!(checksums(&folder).unwrap(), 3);
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
