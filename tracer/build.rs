//! Builds the kernel half for `bpfel-unknown-none` and hands its path to the program.
//!
//! A host that cannot build BPF still gets a program, without the object: the build says so once, with the
//! command to type, and `viptrace trace` says it again. Nothing is downloaded here; `cargo xtask setup` does that.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "bpfel-unknown-none";
const BINARY: &str = "viptrace-bpf";

fn main() {
    println!("cargo::rerun-if-changed=../tracer-ebpf/src");
    println!("cargo::rerun-if-changed=../tracer-ebpf/Cargo.toml");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=VIPTRACE_BPF_LINKER");
    println!("cargo::rustc-check-cfg=cfg(viptrace_without_bpf)");
    // Only the verbs that need a node's kernel load the object, and they exist on Linux only.
    if env::var_os("CARGO_CFG_TARGET_OS").is_none_or(|system| system != "linux") {
        return;
    }

    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    match build(&out) {
        Ok(object) => println!("cargo::rustc-env=VIPTRACE_BPF_OBJECT={}", object.display()),
        Err(reason) => {
            println!("cargo::rustc-cfg=viptrace_without_bpf");
            for line in [
                format!("built without the eBPF object, so `viptrace trace` cannot run: {reason}"),
                "to install what is missing and build again: `cargo xtask setup` (root, Debian)".to_owned(),
            ] {
                println!("cargo::warning={line}");
            }
        }
    }
}

fn build(out: &Path) -> Result<PathBuf, String> {
    // Asked when it runs, not when it was compiled: a target folder may have come from another checkout.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let workspace =
        Path::new(&manifest).parent().ok_or_else(|| "the workspace folder cannot be told".to_owned())?;
    let linker = linker(out)?;
    let mut cargo = toolchain()?;
    // Shared by all profiles, and apart from the rest of the target folder, whose lock the outer cargo holds.
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    let target_dir = out.ancestors().nth(4).unwrap_or(out).join("bpf");
    // The object names source files: not by the paths of this machine, so that equal sources give equal objects.
    let home = env::var("CARGO_HOME").or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut rustflags = vec![
        format!("-Clinker={}", linker.display()),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("--remap-path-prefix={}=/viptrace", workspace.display()),
    ];
    rustflags.extend(home.ok().map(|home| format!("--remap-path-prefix={home}=/cargo")));
    let output = cargo
        .current_dir(workspace)
        .args([
            "build",
            "--release",
            "--locked",
            "--package",
            "tracer-ebpf",
            "--bin",
            BINARY,
            "--features",
            "bpf",
        ])
        .args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\u{1f}"))
        .env("CARGO_PROFILE_RELEASE_STRIP", "false")
        // The programs read a function's arguments from the registers of the machine that runs viptrace, not of the one
        // that builds it.
        .env("AYA_BPF_TARGET_ARCH", env::var_os("CARGO_CFG_TARGET_ARCH").unwrap_or_default())
        .output()
        .map_err(|error| format!("cannot start cargo for the eBPF half: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "the eBPF half does not build:\n{}",
            String::from_utf8_lossy(&output.stderr).trim_end().replace('\n', "\ncargo::warning=")
        ));
    }
    let built = target_dir.join(TARGET).join("release").join(BINARY);
    let object = out.join("viptrace.bpf.o");
    fs::copy(&built, &object).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    Ok(object)
}

/// `cargo` with a compiler that can build `core` for BPF: rustup's nightly where it has rust-src, else Debian's
/// rustc-web, whose sources are in rust-web-src.
fn toolchain() -> Result<Command, String> {
    const SOURCES: &str = "lib/rustlib/src/rust/library/Cargo.lock";
    let mut sysroot = Command::new("rustup");
    sysroot.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    if let Ok(output) = clean(&mut sysroot).output()
        && output.status.success()
        && Path::new(String::from_utf8_lossy(&output.stdout).trim()).join(SOURCES).exists()
    {
        let mut cargo = Command::new("rustup");
        clean(&mut cargo).args(["run", "nightly", "cargo"]);
        return Ok(cargo);
    }
    let rustc = Path::new("/usr/bin/rustc");
    if rustc.exists() && Path::new("/usr").join(SOURCES).exists() {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
        clean(&mut cargo).env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
        return Ok(cargo);
    }
    Err("neither rustup's nightly with rust-src nor Debian's rustc-web with rust-web-src is installed"
        .to_owned())
}

/// The outer build's settings are the host's, not the kernel's.
fn clean(command: &mut Command) -> &mut Command {
    for name in [
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
        "HOST",
    ] {
        command.env_remove(name);
    }
    command
}

/// `bpf-linker`: where `cargo xtask setup` puts it, or on the path.
fn linker(out: &Path) -> Result<PathBuf, String> {
    if let Some(named) = env::var_os("VIPTRACE_BPF_LINKER") {
        return Ok(PathBuf::from(named));
    }
    // OUT_DIR lies below the target folder, however deep.
    let kept =
        out.ancestors().map(|folder| folder.join("toolchain/bin/bpf-linker")).find(|path| path.is_file());
    let on_path = || {
        env::split_paths(&env::var_os("PATH")?)
            .map(|folder| folder.join("bpf-linker"))
            .find(|path| path.is_file())
    };
    kept.or_else(on_path).ok_or_else(|| "bpf-linker is not installed".to_owned())
}
