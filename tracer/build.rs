//! Finds the kernel half and hands its path to the program.
//!
//! A checkout has the sources of the kernel half beside it, which are built here (`build/object.rs`). A package has the
//! built objects instead, because neither its Rust nor its machine need be able to build BPF. A checkout on a host
//! that cannot build BPF still gives a program, without the object: the build says so once, with the command to type, and
//! `viptrace trace` says it again. Nothing is downloaded here; `cargo xtask setup` does that.

#[path = "build/object.rs"]
mod object;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use object::{FOLDER, file_name};

/// The sources of the kernel half, in a checkout.
const SOURCES: &str = "tracer-ebpf/src";

/// An object, and its origin as `viptrace --version` prints it.
struct Found {
    object: PathBuf,
    origin: String,
}

fn main() {
    rerun_if_changed(&["build.rs", "build"]);
    println!("cargo::rerun-if-env-changed=VIPTRACE_BPF_LINKER");
    println!("cargo::rustc-check-cfg=cfg(viptrace_without_bpf)");
    // Only the verbs that need a node's kernel load the object, and they exist on Linux only.
    if env::var_os("CARGO_CFG_TARGET_OS").is_none_or(|system| system != "linux") {
        println!("cargo::rustc-env=VIPTRACE_BPF_ORIGIN=none: this system traces nothing");
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // Asked when it runs, not when it was compiled: a target folder may have come from another checkout.
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let workspace = package.parent().filter(|parent| parent.join(SOURCES).is_dir());
    let found = match workspace {
        Some(workspace) => build(workspace, &out, &architecture),
        None if !package.join(FOLDER).is_dir() => {
            println!("cargo::error=this package has no eBPF objects\nhint: make it by `cargo xtask package`");
            return;
        }
        None => packaged(&package, &architecture),
    };
    match found {
        Ok(Found { object, origin }) => {
            println!("cargo::rustc-env=VIPTRACE_BPF_OBJECT={}", object.display());
            println!("cargo::rustc-env=VIPTRACE_BPF_ORIGIN={origin}");
        }
        Err(reason) => {
            println!("cargo::rustc-cfg=viptrace_without_bpf");
            println!("cargo::rustc-env=VIPTRACE_BPF_ORIGIN=none: `viptrace trace` cannot run");
            println!(
                "cargo::warning=built without the eBPF object, so `viptrace trace` cannot run: {}",
                reason.trim_end().replace('\n', "\ncargo::warning=")
            );
        }
    }
}

fn build(workspace: &Path, out: &Path, architecture: &str) -> Result<Found, String> {
    const HINT: &str = "to install what is missing and build again: `cargo xtask setup` (root, Debian)";
    rerun_if_changed(&["../tracer-ebpf/src", "../tracer-ebpf/Cargo.toml"]);
    // Shared by all profiles, and apart from the rest of the target folder, whose lock the outer cargo holds.
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    let target_dir = out.ancestors().nth(4).unwrap_or(out).join("bpf");
    let built = linker(out).and_then(|linker| object::build(workspace, &target_dir, &linker, architecture));
    let built = built.map_err(|reason| format!("{reason}\n{HINT}"))?;
    let object = out.join("viptrace.bpf.o");
    fs::copy(&built, &object).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    Ok(Found { object, origin: "built from source".to_owned() })
}

/// A path that does not exist would let cargo run this each time.
fn rerun_if_changed(paths: &[&str]) {
    for path in paths {
        println!("cargo::rerun-if-changed={path}");
    }
}

/// The object of the package for this architecture, whose registers the programs read.
fn packaged(package: &Path, architecture: &str) -> Result<Found, String> {
    rerun_if_changed(&[FOLDER]);
    let object = package.join(FOLDER).join(file_name(architecture));
    if !object.is_file() {
        return Err(format!("the package has none for {architecture}"));
    }
    println!("cargo::warning=the eBPF object is that of the package: {}", object.display());
    Ok(Found { object, origin: "from the package".to_owned() })
}

/// Where `cargo xtask setup` puts `bpf-linker`, in the target folder.
const KEPT: &str = "toolchain/bin";

/// `bpf-linker`: where `cargo xtask setup` puts it, or on the path.
fn linker(out: &Path) -> Result<PathBuf, String> {
    if let Some(named) = env::var_os("VIPTRACE_BPF_LINKER") {
        return Ok(PathBuf::from(named));
    }
    // OUT_DIR lies below the target folder, however deep.
    let kept = out.ancestors().map(|folder| folder.join(KEPT).join("bpf-linker")).find(|path| path.is_file());
    let on_path = || {
        env::split_paths(&env::var_os("PATH")?)
            .map(|folder| folder.join("bpf-linker"))
            .find(|path| path.is_file())
    };
    kept.or_else(on_path).ok_or_else(|| {
        // So that cargo runs this again once it is there.
        let target = env::var_os("TARGET");
        let of_triple = |folder: &&Path| folder.file_name() != target.as_deref();
        let folder = out.ancestors().skip(4).find(of_triple).unwrap_or(out).join(KEPT);
        if fs::create_dir_all(&folder).is_ok() {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
        "bpf-linker is not installed".to_owned()
    })
}
