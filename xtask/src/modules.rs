//! The kernel modules in an image, with all their dependencies, uncompressed.
//!
//! They are uncompressed because kmod would spend seconds on xz under emulation. `depmod` runs again on the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::call::Call;
use crate::cpio::Archive;
use crate::kernels::Kernel;

/// The network's modules, by path prefixes below the release's folder.
pub(crate) const NETWORK: &[&str] = &[
    "kernel/net/802/",
    "kernel/net/8021q/",
    "kernel/net/bridge/",
    "kernel/net/core/",
    "kernel/net/ipv4/",
    "kernel/net/ipv6/",
    "kernel/net/llc/",
    "kernel/net/netfilter/",
    "kernel/net/netlink/",
    "kernel/net/packet/",
    "kernel/net/sched/",
    "kernel/net/sctp/",
    "kernel/net/unix/",
    "kernel/net/xfrm/",
    // nf_conntrack has a soft dependency on crc32c, which depmod's list does not contain.
    "kernel/lib/",
    "kernel/crypto/crc",
    "kernel/arch/x86/crypto/crc",
    "kernel/drivers/net/dummy",
    "kernel/drivers/net/ifb",
    "kernel/drivers/net/ipvlan/",
    "kernel/drivers/net/macvlan",
    "kernel/drivers/net/tun",
    "kernel/drivers/net/veth",
    "kernel/drivers/net/vxlan",
];

/// Files that `depmod` reads beside the modules, and from which modprobe knows the built-in ones.
const LISTS: &[&str] = &["modules.order", "modules.builtin", "modules.builtin.modinfo"];

/// Adds the modules of `kernel` whose paths have these prefixes to the archive, with all their dependencies, and returns
/// their number. `scratch` is a work folder, which is cleared first and must stay until the archive is written, since the
/// archive reads the files only then.
pub(crate) fn add(archive: &mut Archive, kernel: &Kernel, wanted: &[&str], scratch: &Path) -> Result<usize> {
    if scratch.exists() {
        fs::remove_dir_all(scratch).with_context(|| format!("could not remove {}", scratch.display()))?;
    }
    let inside = format!("lib/modules/{}", kernel.release);
    let stage = scratch.join(&inside);
    fs::create_dir_all(&stage).with_context(|| format!("could not create {}", stage.display()))?;
    let dependencies = dependencies(kernel)?;
    let chosen = closure(&dependencies, wanted);
    if chosen.is_empty() {
        bail!("kernel {} has none of the modules that a node needs", kernel.release);
    }
    let mut compressed = Vec::new();
    for path in &chosen {
        let copy = stage.join(path);
        copy_file(&kernel.modules.join(path), &copy)?;
        match Path::new(path).extension().and_then(|kind| kind.to_str()) {
            Some("ko") => {}
            Some("xz") => compressed.push(copy),
            _ => bail!("module {path} has an unknown compression (only xz is supported)"),
        }
    }
    if !compressed.is_empty() {
        Call::new("unpack kernel modules", "xz")
            .args(["--decompress", "--threads=1"])
            .args(&compressed)
            .hint("check that the disk is not full")
            .read()?;
    }
    for name in LISTS {
        copy_file(&kernel.modules.join(name), &stage.join(name))?;
    }
    Call::new("index kernel modules", "depmod").arg("-b").arg(scratch).arg(&kernel.release).read()?;
    for path in files_below(&stage)? {
        let relative = path.strip_prefix(&stage).unwrap_or(&path).to_string_lossy().into_owned();
        archive.file(&format!("usr/{inside}/{relative}"), &path, 0o644);
    }
    Ok(chosen.len())
}

/// The dependencies of each module, from `depmod` on the kernel as Debian ships it.
fn dependencies(kernel: &Kernel) -> Result<BTreeMap<String, Vec<String>>> {
    let root = kernel.modules.ancestors().nth(3).context("the module folder has no root")?;
    Call::new("index kernel modules", "depmod").arg("-b").arg(root).arg(&kernel.release).read()?;
    let list = kernel.modules.join("modules.dep");
    let text = fs::read_to_string(&list).with_context(|| format!("could not read {}", list.display()))?;
    Ok(parse_dependencies(&text))
}

/// Parses modules.dep (modules.dep(5)): "path: path path …".
fn parse_dependencies(text: &str) -> BTreeMap<String, Vec<String>> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(path, needs)| (path.to_owned(), needs.split_whitespace().map(str::to_owned).collect()))
        .collect()
}

/// The modules whose path begins with one of `prefixes`, and all their dependencies.
fn closure(dependencies: &BTreeMap<String, Vec<String>>, prefixes: &[&str]) -> BTreeSet<String> {
    let wanted = |path: &&String| prefixes.iter().any(|prefix| path.starts_with(prefix));
    let mut open: Vec<&String> = dependencies.keys().filter(wanted).collect();
    let mut chosen = BTreeSet::new();
    while let Some(path) = open.pop() {
        if chosen.insert(path.clone()) {
            open.extend(dependencies.get(path).into_iter().flatten());
        }
    }
    chosen
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let copy = || {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from, to)
    };
    copy().map(drop).with_context(|| format!("could not copy {} to {}", from.display(), to.display()))
}

/// All files below a folder, sorted.
pub(crate) fn files_below(directory: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("could not list {}", directory.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("could not list {}", directory.display()))?.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_added_and_cycles_end() {
        let text = "kernel/net/a.ko: kernel/lib/b.ko.xz kernel/x/c.ko\nkernel/x/c.ko: kernel/x/d.ko\nkernel/x/d.ko: kernel/x/c.ko\n\
            kernel/lib/b.ko.xz:\nkernel/y/e.ko:\n";
        let chosen = closure(&parse_dependencies(text), &["kernel/net/"]);
        let paths: Vec<&str> = chosen.iter().map(String::as_str).collect();
        assert_eq!(paths, ["kernel/lib/b.ko.xz", "kernel/net/a.ko", "kernel/x/c.ko", "kernel/x/d.ko"]);
    }

    #[test]
    fn files_are_found_at_any_depth() {
        let here = tempfile::tempdir().unwrap();
        copy_file(Path::new("/etc/hostname"), &here.path().join("a/b/c")).unwrap();
        copy_file(Path::new("/etc/hostname"), &here.path().join("a/d")).unwrap();
        let found = files_below(here.path()).unwrap();
        assert_eq!(found, [here.path().join("a/b/c"), here.path().join("a/d")]);
    }
}
