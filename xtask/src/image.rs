//! The guest's image: an initramfs with the whole guest, joined from parts. A part is rebuilt only when its inputs
//! change.
//!
//! | part | holds | changes with |
//! |---|---|---|
//! | base | tools, libraries, kernel modules | the host's packages, the kernel |
//! | bench | the peers that the benchmark measures | the host's packages |
//! | work | viptrace, the lab (as /init), the fixtures | every build |
//!
//! The parts are archives, one after the other in one file, which the kernel accepts.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::call::Call;
use crate::cpio::Archive;
use crate::kernels::Kernel;
use crate::libraries;
use crate::modules;
use crate::place::Place;
use crate::printer::Outcome;
use crate::stamp::Stamp;

/// Change this with the build steps, so that parts from the old steps are rebuilt.
const RECIPE: &str = "recipe 1";

pub(crate) const BUSYBOX: &[&str] = &["/usr/bin/busybox", "/bin/busybox"];
/// Host programs that a node has, beside the rule listers. Several paths mean that distributions differ.
const TOOLS: &[&[&str]] = &[
    BUSYBOX,
    &["/usr/bin/ip", "/bin/ip", "/sbin/ip"],
    &["/usr/bin/kmod", "/bin/kmod"],
    &["/usr/sbin/conntrack"],
    &["/usr/sbin/ipvsadm", "/sbin/ipvsadm"],
    &["/usr/bin/tcpdump", "/usr/sbin/tcpdump"],
];
/// Host programs that list a node's rules, which have no other reader.
const RULE_LISTERS: &[&[&str]] = &[
    &["/usr/sbin/xtables-nft-multi"],
    &["/usr/sbin/xtables-legacy-multi"],
    &["/usr/sbin/nft"],
    &["/usr/sbin/ipset", "/sbin/ipset"],
];
/// Programs that only the benchmark runs.
const BENCH_TOOLS: &[&[&str]] = &[&["/usr/bin/bpftrace"]];
/// kmod's function depends on the name by which it is called. The kernel loads modules with /sbin/modprobe.
const KMOD_NAMES: &[&str] = &["depmod", "insmod", "lsmod", "modinfo", "modprobe", "rmmod"];

/// Files of the guest's /etc. tcpdump changes from root to the user `tcpdump`, which must exist.
const ETC: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ntcpdump:x:100:100::/:/bin/false\n"),
    ("etc/group", "root:x:0:\ntcpdump:x:100:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nprotocols: files\nservices: files\n"),
];

/// /init of the guest of `cargo xtask shell`; it needs nothing that is built here.
const SHELL_INIT: &str = "#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
ip link set lo up
echo 'A shell in the guest; exit ends it. viptrace, iptables, nft, conntrack and ip are here.'
setsid -c sh
sync
poweroff -f
";
/// The path of `SHELL_INIT`, for the kernel's `rdinit=`.
pub(crate) const SHELL_INIT_PATH: &str = "/usr/lib/shell-init";

/// The purpose of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Lab,
    Bench,
}

/// Makes the image for this kernel unless it is fresh. The binaries must be built already.
pub(crate) fn ensure(place: &Place, kernel: &Kernel, flavour: Flavour) -> Result<(PathBuf, Outcome)> {
    let directory = place.guest().join("images").join(kernel.series);
    fs::create_dir_all(&directory).with_context(|| format!("could not create {}", directory.display()))?;
    let mut parts = vec![base(&directory, kernel)?];
    if flavour == Flavour::Bench {
        parts.push(bench(&directory)?);
    }
    parts.push(work(place, &directory)?);
    let name = match flavour {
        Flavour::Lab => "lab.cpio",
        Flavour::Bench => "bench.cpio",
    };
    let image = directory.join(name);
    let mut stamp = Stamp::new(RECIPE);
    for part in &parts {
        stamp.file(part)?;
    }
    if stamp.is_fresh(&image) {
        return Ok((image, Outcome::Skipped("no part has changed".into())));
    }
    let bytes = write_whole(&image, |output| {
        for part in &parts {
            let mut input = File::open(part)?;
            io::copy(&mut input, output)?;
        }
        Ok(())
    })?;
    stamp.keep(&image)?;
    Ok((image, Outcome::Done(format!("{} MB", bytes / 1_000_000))))
}

/// Tools, their libraries, and the kernel's modules.
fn base(directory: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let part = directory.join("base.part");
    let tools = find_all(&[TOOLS, RULE_LISTERS].concat())?;
    let extensions = xtables_extensions(&tools)?;
    let mut archive = Archive::new();
    skeleton(&mut archive);
    programs(&mut archive, &[tools, extensions].concat())?;
    iptables_names(&mut archive, &["", "-save", "-restore"]);
    for name in KMOD_NAMES {
        archive.symlink(&format!("usr/sbin/{name}"), "/usr/bin/kmod");
    }
    applets(&mut archive)?;

    let mut stamp = Stamp::new(RECIPE);
    stamp.note(&kernel.release);
    stamp.note(SHELL_INIT);
    for source in archive.sources() {
        stamp.file(source)?;
    }
    if !stamp.is_fresh(&part) {
        let scratch = directory.join("modules");
        modules::add(&mut archive, kernel, modules::NETWORK, &scratch)?;
        write_archive(&archive, &part)?;
        fs::remove_dir_all(&scratch).with_context(|| format!("could not remove {}", scratch.display()))?;
        stamp.keep(&part)?;
    }
    Ok(part)
}

fn bench(directory: &Path) -> Result<PathBuf> {
    let mut archive = Archive::new();
    programs(&mut archive, &find_all(BENCH_TOOLS)?)?;
    write_if_stale(&archive, &directory.join("bench.part"))
}

/// The part that changes with every build: the binaries under test and the fixtures.
fn work(place: &Place, directory: &Path) -> Result<PathBuf> {
    let mut archive = Archive::new();
    let binaries = ["viptrace", "viptrace-lab"].map(|name| place.release(name));
    for binary in &binaries {
        let name = binary.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("usr/bin/{name}"), binary, 0o755);
    }
    shared_libraries(&mut archive, &binaries)?;
    archive.symlink("init", "usr/bin/viptrace-lab");
    let fixtures = place.repository.join("tests/fixtures");
    if fixtures.is_dir() {
        for path in modules::files_below(&fixtures)? {
            let relative = path.strip_prefix(&fixtures).unwrap_or(&path).to_string_lossy().into_owned();
            archive.file(&format!("fixtures/{relative}"), &path, 0o644);
        }
    }
    write_if_stale(&archive, &directory.join("work.part"))
}

/// The names of iptables's programs, each with these endings.
pub(crate) fn iptables_names(archive: &mut Archive, verbs: &[&str]) {
    for program in ["xtables-nft-multi", "xtables-legacy-multi"] {
        let backend = if program.contains("nft") { "-nft" } else { "-legacy" };
        for family in ["iptables", "ip6tables"] {
            for verb in verbs {
                archive.symlink(&format!("usr/sbin/{family}{backend}{verb}"), program);
                if backend == "-nft" {
                    // Debian's default, and the choice of kube-proxy's image on an empty node.
                    archive.symlink(&format!("usr/sbin/{family}{verb}"), program);
                }
            }
        }
    }
}

/// The programs that list a node's rules, with their libraries, plug-ins and licences, for a container's image.
pub(crate) fn rule_listers() -> Result<Archive> {
    let tools = find_all(RULE_LISTERS)?;
    let mut archive = Archive::new();
    merged_usr(&mut archive);
    programs(&mut archive, &[xtables_extensions(&tools)?, tools].concat())?;
    iptables_names(&mut archive, &["-save"]);
    protocols(&mut archive);
    let sources: Vec<PathBuf> = archive.sources().map(Path::to_owned).collect();
    for (package, file) in libraries::licences(&sources)? {
        archive.file(&format!("usr/share/doc/{package}/copyright"), &file, 0o644);
    }
    Ok(archive)
}

/// viptrace as the guests run it, with its libraries, for a container's image.
pub(crate) fn viptrace(place: &Place) -> Result<Archive> {
    let mut archive = Archive::new();
    let binary = place.release("viptrace");
    archive.file("usr/bin/viptrace", &binary, 0o755);
    shared_libraries(&mut archive, &[binary])?;
    Ok(archive)
}

fn merged_usr(archive: &mut Archive) {
    for (link, target) in
        [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
    {
        archive.symlink(link, target);
    }
}

/// The names of protocols and ports, which nft prints.
fn protocols(archive: &mut Archive) {
    for path in ["/etc/protocols", "/etc/services"] {
        if Path::new(path).is_file() {
            archive.file(path, Path::new(path), 0o644);
        }
    }
}

fn skeleton(archive: &mut Archive) {
    merged_usr(archive);
    for path in
        ["dev", "proc", "sys", "run", "tmp", "root", "mnt", "var/log", "usr/bin", "usr/sbin", "usr/lib64"]
    {
        archive.directory(path);
    }
    archive.symlink("var/run", "/run");
    // The kernel opens the console before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    for (path, text) in ETC {
        archive.text(path, *text, 0o644);
    }
    protocols(archive);
    archive.text(SHELL_INIT_PATH, SHELL_INIT, 0o755);
}

/// The programs at their paths on the host, and all libraries that they need.
fn programs(archive: &mut Archive, paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        archive.file(&libraries::place(path)?, path, 0o755);
    }
    shared_libraries(archive, paths)
}

fn shared_libraries(archive: &mut Archive, paths: &[PathBuf]) -> Result<()> {
    for library in libraries::of(paths)? {
        archive.file(&libraries::place(&library)?, &library, 0o755);
    }
    Ok(())
}

/// Links busybox under each of its names that no other program has.
fn applets(archive: &mut Archive) -> Result<()> {
    let busybox = find(BUSYBOX)?;
    for name in busybox_applets(&busybox)? {
        let taken =
            ["usr/bin", "usr/sbin"].iter().any(|folder| archive.contains(&format!("{folder}/{name}")));
        if !taken {
            archive.symlink(&format!("usr/bin/{name}"), "/usr/bin/busybox");
        }
    }
    Ok(())
}

/// The names under which busybox can be called.
pub(crate) fn busybox_applets(busybox: &Path) -> Result<Vec<String>> {
    let list = Call::new("list busybox's commands", busybox).arg("--list").read()?;
    let names = list.split_whitespace().filter(|name| !name.contains('/') && *name != "busybox");
    Ok(names.map(str::to_owned).collect())
}

/// The plug-ins of iptables: `xtables/` in the folder of its library.
fn xtables_extensions(tools: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let libraries = libraries::of(tools)?;
    let folders = libraries.iter().filter_map(|library| {
        library
            .file_name()?
            .to_str()?
            .starts_with("libxtables.so")
            .then_some(library.parent()?.join("xtables"))
    });
    // `ldd` may list the library below /lib while the plug-ins are only below /usr/lib.
    let merged =
        |folder: PathBuf| [Path::new("/usr").join(folder.strip_prefix("/").unwrap_or(&folder)), folder];
    let Some(folder) = folders.flat_map(merged).find(|folder| folder.is_dir()) else {
        bail!("the plug-ins of iptables are missing\nhint: type: apt-get install --reinstall iptables");
    };
    modules::files_below(&folder)
}

fn find_all(tools: &[&[&str]]) -> Result<Vec<PathBuf>> {
    tools.iter().map(|places| find(places)).collect()
}

pub(crate) fn find(places: &[&str]) -> Result<PathBuf> {
    let found = places.iter().map(PathBuf::from).find(|path| path.is_file());
    found.with_context(|| format!("{} is missing\nhint: type: cargo xtask setup", places.join(" or ")))
}

fn write_if_stale(archive: &Archive, part: &Path) -> Result<PathBuf> {
    let mut stamp = Stamp::new(RECIPE);
    for source in archive.sources() {
        stamp.file(source)?;
    }
    if !stamp.is_fresh(part) {
        write_archive(archive, part)?;
        stamp.keep(part)?;
    }
    Ok(part.to_owned())
}

pub(crate) fn write_archive(archive: &Archive, part: &Path) -> Result<()> {
    write_whole(part, |output| archive.write(output)).map(drop)
}

/// Writes a file beside `path` and renames it to `path` when it is complete. Returns its size in bytes.
pub(crate) fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<()>,
) -> Result<u64> {
    let draft = path.with_added_extension("draft");
    let attempt = || {
        let mut output = BufWriter::new(File::create(&draft)?);
        write(&mut output)?;
        output.flush()?;
        let bytes = output.get_ref().metadata()?.len();
        fs::rename(&draft, path)?;
        Ok::<u64, anyhow::Error>(bytes)
    };
    attempt()
        .with_context(|| format!("could not write {}\nhint: check that the disk is not full", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_written_only_when_an_input_changed() {
        let here = tempfile::tempdir().unwrap();
        let (input, part) = (here.path().join("input"), here.path().join("x.part"));
        let write = || {
            let mut archive = Archive::new();
            archive.file("x", &input, 0o644);
            write_if_stale(&archive, &part).unwrap();
            fs::metadata(&part).unwrap().len()
        };
        fs::write(&input, "a").unwrap();
        let first = write();
        fs::write(&part, "kept").unwrap();
        assert_eq!(write(), 4);
        fs::write(&input, "longer than before").unwrap();
        assert!(write() > first);
        assert!(!here.path().join("x.part.draft").exists());
    }

    #[test]
    fn the_skeleton_can_start() {
        let mut archive = Archive::new();
        skeleton(&mut archive);
        for path in ["dev/console", "bin", "lib64", "etc/passwd", SHELL_INIT_PATH] {
            assert!(archive.contains(path), "{path}");
        }
    }

    #[test]
    fn a_missing_tool_is_named() {
        assert!(
            find(&["/nonexistent/a", "/nonexistent/b"])
                .unwrap_err()
                .to_string()
                .contains("a or /nonexistent/b")
        );
    }
}
