//! The root file system of a node: Debian packages, unpacked without being installed.
//!
//! The container runtime must fit the kubelet. A kubelet before 1.26 speaks CRI v1alpha2, which containerd 2 no longer
//! has; later ones speak CRI v1, and from 1.36 on take their cgroup driver from the runtime (KEP-4033), which containerd 1
//! cannot report.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Lists};
use crate::call::Call;
use crate::printer::Outcome;
use crate::stamp::Stamp;

use super::binaries::Version;

/// Change this with the build steps.
const RECIPE: &str = "recipe 1";

/// A node's packages beside Kubernetes. etcd runs on the host.
const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "busybox-static",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "coreutils",
    "crun",
    "etcd-server",
    "iproute2",
    "ipset",
    "iptables",
    "ipvsadm",
    "kmod",
    "mount",
    "nftables",
    "util-linux",
];

/// The first release whose kubelet speaks only CRI v1.
const CRI_V1: Version = Version::new(1, 26);
/// Suites with containerd 1.6 and with containerd 2.
const OLD_SUITES: &[&str] = &["bookworm"];
const NEW_SUITES: &[&str] = &["forky", "sid"];

/// Folders that no node needs.
const PRUNED: &[&str] = &[
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl",
    "usr/share/perl5",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/x86_64-linux-gnu/perl-base",
];

/// The folders that a merged /usr replaces by links.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];

/// The unpacked root of a suite.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) folder: PathBuf,
}

/// The suites whose containerd fits this kubelet; the first that has all packages is used.
fn suites(version: Version) -> &'static [&'static str] {
    if version < CRI_V1 { OLD_SUITES } else { NEW_SUITES }
}

/// Unpacks the packages unless that has been done.
pub(crate) fn ensure(cluster: &Path, version: Version) -> Result<(Root, Outcome)> {
    let mut stamp = Stamp::new(RECIPE);
    stamp.note(&PACKAGES.join(" "));
    let roots = cluster.join("root");
    let suites = suites(version);
    if let Some(suite) = suites.iter().find(|suite| stamp.is_fresh(&roots.join(suite))) {
        return Ok((Root { folder: roots.join(suite) }, Outcome::Skipped(format!("{suite} is unpacked"))));
    }
    let mut tried = Vec::new();
    for suite in suites {
        let folder = roots.join(suite);
        match unpack(cluster, suite, &folder) {
            Ok(count) => {
                stamp.keep(&folder)?;
                return Ok((Root { folder }, Outcome::Done(format!("{count} packages of {suite}"))));
            }
            Err(error) => tried.push(format!("{suite}: {error:#}")),
        }
    }
    bail!("no suite of Debian has the packages of a node\n{}\nhint: check the network", tried.join("\n"))
}

fn unpack(cluster: &Path, suite: &str, folder: &Path) -> Result<usize> {
    let lists = Lists::of(&apt::mirror()?, suite, &cluster.join("apt"))?;
    lists.refresh()?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    let packages = cluster.join("root").join(format!("{suite}-packages"));
    lists.download_closure(PACKAGES, &packages)?;
    let count = apt::unpack_into(&packages, folder)?;
    fs::remove_dir_all(&packages).with_context(|| format!("could not remove {}", packages.display()))?;
    for path in PRUNED.iter().map(|path| folder.join(path)).filter(|path| path.exists()) {
        fs::remove_dir_all(&path).with_context(|| format!("could not remove {}", path.display()))?;
    }
    merge_usr(folder)?;
    Ok(count)
}

/// Moves `/bin` and its like below `/usr`, and links them there. Packages before Debian 13 have files in both.
fn merge_usr(root: &Path) -> Result<()> {
    for name in MERGED {
        let (folder, merged) = (root.join(name), root.join("usr").join(name));
        if folder.is_symlink() {
            continue;
        }
        fs::create_dir_all(&merged).with_context(|| format!("could not create {}", merged.display()))?;
        if folder.is_dir() {
            Call::new("merge a folder into /usr", "cp")
                .arg("--archive")
                .arg(folder.join("."))
                .arg(&merged)
                .hint("check that the disk is not full")
                .read()?;
            fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
        }
        symlink(format!("usr/{name}"), &folder)
            .with_context(|| format!("could not create {}", folder.display()))?;
    }
    Ok(())
}

impl Root {
    /// The words that run a program of this root on the host, with the libraries of this root.
    pub(crate) fn command(&self, program: &str) -> Vec<OsString> {
        let at = |path: &str| self.folder.join(path).into_os_string();
        vec![
            at("usr/lib64/ld-linux-x86-64.so.2"),
            "--library-path".into(),
            at("usr/lib/x86_64-linux-gnu"),
            at(program),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_fits_the_kubelet() {
        assert_eq!(suites(Version::new(1, 20)), ["bookworm"]);
        assert_eq!(suites(Version::new(1, 25)), ["bookworm"]);
        assert_eq!(suites(Version::new(1, 36))[0], "forky");
    }

    #[test]
    fn usr_is_merged() {
        let here = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = here.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        write("bin/mount");
        write("usr/bin/env");
        write("lib/a/b");
        for _ in 0..2 {
            merge_usr(here.path()).unwrap();
            for path in ["bin/mount", "bin/env", "usr/bin/mount", "lib/a/b", "usr/lib/a/b"] {
                assert!(here.path().join(path).is_file(), "{path}");
            }
            assert!(MERGED.iter().all(|name| here.path().join(name).is_symlink()));
        }
    }
}
