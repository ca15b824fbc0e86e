//! The build of the kernel half, for the build script and for `cargo xtask package`.
//!
//! Equal sources and toolchains give equal objects, wherever they lie and whichever machine builds.

use std::{
    env,
    error::Error,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
};

use ::object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

const TARGET: &str = "bpfel-unknown-none";
const BINARY: &str = "viptrace-bpf";
/// Instructions of 32 bits, which every kernel since 5.1 takes (`Documentation/bpf/standardization/instruction-set.rst`). Without
/// them each number of 32 bits is truncated by two instructions.
const INSTRUCTIONS: &str = "v3";
/// Where a package has its objects.
pub(crate) const FOLDER: &str = "bpf";

/// The object's name in a package, for programs of one architecture as Rust names it.
pub(crate) fn file_name(architecture: &str) -> String {
    format!("viptrace-{architecture}.bpf.o")
}

/// Builds the object for the kernels of an architecture, and returns its path below `target_dir`, where the next build
/// replaces it.
pub(crate) fn build(
    workspace: &Path,
    target_dir: &Path,
    linker: &Path,
    architecture: &str,
) -> Result<PathBuf, String> {
    let mut cargo = toolchain()?;
    // The object names source files: not by the paths of this machine, so that equal sources give equal objects.
    let home = env::var("CARGO_HOME").or_else(|_| env::var("HOME").map(|home| format!("{home}/.cargo")));
    let mut rustflags = vec![
        format!("-Clinker={}", linker.display()),
        "-Cdebuginfo=2".to_owned(),
        format!("-Ctarget-cpu={INSTRUCTIONS}"),
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
            "viptrace-ebpf",
            "--bin",
            BINARY,
            "--features",
            "bpf",
        ])
        .args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags.join("\u{1f}"))
        .env("CARGO_PROFILE_RELEASE_STRIP", "false")
        // The programs read a function's arguments from the registers of the machine that runs viptrace, not of the one
        // that builds it.
        .env("AYA_BPF_TARGET_ARCH", architecture)
        .output()
        .map_err(|error| format!("cannot start cargo for the eBPF half: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "the eBPF half does not build:\n{}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        ));
    }
    let built = target_dir.join(TARGET).join("release").join(BINARY);
    let stripped = built.with_extension("o");
    strip(&built, &stripped).map_err(|error| format!("cannot strip {}: {error}", built.display()))?;
    Ok(stripped)
}

/// Leaves out the debug sections, of which the linker has made the BTF, and the lines of the source in its second section: nine
/// tenths of the object, which each trace would read through at its start.
fn strip(object: &Path, stripped: &Path) -> Result<(), Box<dyn Error>> {
    let bytes = fs::read(object)?;
    let mut object = Builder::read(&*bytes)?;
    for section in &mut object.sections {
        // The places in the BTF's second section are numbers there, besides being relocations.
        section.delete = [&b".debug_"[..], b".rel.debug_", b".rel.BTF.ext"]
            .iter()
            .any(|start| section.name.starts_with(start));
        if *section.name == *b".BTF.ext"
            && let SectionData::Data(data) = &mut section.data
        {
            *data = without_lines(data).ok_or("its .BTF.ext has another form")?.into();
        }
    }
    object.delete_orphans();
    // LLVM puts the names of sections into those of symbols, and the builder has a section of their own.
    let names = object.sections.add();
    names.name = ".shstrtab".into();
    names.sh_type = SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut bytes = Vec::new();
    object.write(&mut bytes)?;
    // Another build may read the last one.
    let made = stripped.with_extension(format!("o.{}", process::id()));
    fs::write(&made, bytes)?;
    Ok(fs::rename(made, stripped)?)
}

/// `.BTF.ext` with the list of functions only: its header has the offsets and lengths of the lists of functions, of lines and of
/// relocated fields (`struct btf_ext_header`, `tools/lib/bpf/libbpf_internal.h`). The programs have none of the last.
fn without_lines(section: &[u8]) -> Option<Vec<u8>> {
    const HEADER_BYTES: usize = 4;
    const FUNCTIONS: usize = 8;
    const LINES: usize = 16;
    const RELOCATED: usize = 24;
    let word = |at: usize| Some(u32::from_le_bytes(*section.get(at..)?.first_chunk()?));
    let (header, functions) = (word(HEADER_BYTES)?, word(FUNCTIONS + 4)?);
    if word(FUNCTIONS)? != 0 || word(LINES)? < functions || word(RELOCATED + 4)? != 0 {
        return None;
    }
    let mut left = section.get(..header.checked_add(functions)? as usize)?.to_vec();
    // Two empty lists behind the functions.
    for list in [LINES, RELOCATED] {
        let [offset, length] = left.get_mut(list..)?.first_chunk_mut::<8>()?.as_chunks_mut::<4>().0 else {
            return None;
        };
        (*offset, *length) = (functions.to_le_bytes(), [0; 4]);
    }
    Some(left)
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
