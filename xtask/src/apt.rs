//! The Debian packages that the build and the guests need: finds those that are missing and installs only these.
//!
//! If nothing is missing, it does not call apt. It does not install kernels: `kernels` downloads and unpacks them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::call::Call;
use crate::place::listing;
use crate::printer::Outcome;

/// To link Rust programs, and to build bpf-linker against Debian's LLVM.
pub(crate) const BUILD: &[&str] =
    &["gcc", "libc6-dev", "llvm-22-dev", "libpolly-22-dev", "zlib1g-dev", "libzstd-dev", "libxml2-dev"];
/// To build for the BPF target if rustup has no nightly with rust-src.
pub(crate) const BPF_COMPILER: &[&str] = &["rustc-web", "rust-web-src"];
/// To start guests and to fill their image. `xz-utils` unpacks Debian's kernel modules.
pub(crate) const GUEST: &[&str] = &[
    "qemu-system-x86",
    "xz-utils",
    "busybox-static",
    "kmod",
    "iproute2",
    "iptables",
    "nftables",
    "conntrack",
    "ipset",
    "ipvsadm",
    "tcpdump",
];
/// To fill the container image that reads rules.
pub(crate) const IMAGE: &[&str] = &["iptables", "nftables", "ipset", "netbase"];
/// To test on the host that the commands that viptrace prints are valid. Other packages have `kubectl` as well.
pub(crate) const HOST_TESTS: &[&str] = &["kubernetes-client"];
/// To fetch Helm and the API's schemas, if Python cannot make an environment.
pub(crate) const DEPLOY: &[&str] = &["python3-venv"];
/// To read the exports of a recording.
pub(crate) const EXPORTS: &[&str] = &["tshark"];
/// To open the page of an incident as its readers do.
pub(crate) const BROWSER: &[&str] = &["chromium"];
/// To build libFuzzer from source and to link it.
pub(crate) const FUZZ: &[&str] = &["gcc", "g++", "libc6-dev"];
/// The tools that the benchmark compares with.
pub(crate) const BENCH: &[&str] = &["bpftrace"];
/// To start a cluster's nodes and to make their disk. `dpkg-dev` unpacks the source of Kubernetes.
pub(crate) const CLUSTER: &[&str] = &[
    "qemu-system-x86",
    "xz-utils",
    "busybox-static",
    "kmod",
    "iproute2",
    "e2fsprogs",
    "util-linux",
    "dpkg-dev",
];

/// Installs those of `packages` that are missing.
pub(crate) fn ensure(packages: &[&str]) -> Result<Outcome> {
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(Outcome::Skipped(format!("all {} packages are installed", packages.len())));
    }
    let install = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    if let Some(problem) =
        cannot_install(&read_or_empty("/etc/os-release"), &read_or_empty("/proc/self/status"))
    {
        bail!("packages are missing ({}) and {problem}\nhint: {}", missing.join(" "), by_hand(&install));
    }
    refresh()?;
    Call::new("install packages", "apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Wait for another apt (unattended upgrades on a fresh machine); the unit is seconds.
        .args(["--option", "DPkg::Lock::Timeout=120"])
        .args(["install", "-y", "--no-install-recommends"])
        .args(&missing)
        .hint(install_hint(&missing))
        .read()?;
    Ok(Outcome::Done(format!("installed {}", missing.join(" "))))
}

/// Fetches this machine's package lists. Needs root.
fn refresh() -> Result<()> {
    Lists::own().refresh()
}

/// The mirror of Debian's archive in this machine's own sources. Other suites are fetched from it.
pub(crate) fn mirror() -> Result<String> {
    let text = Call::new("list this machine's apt sources", "apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"])
        .hint("check the addresses in /etc/apt/sources.list")
        .read()?;
    mirror_of(&text).context(
        "no source of this machine is a mirror of Debian\nhint: add one to /etc/apt/sources.list, then type: apt-get update",
    )
}

/// The first source that is not only an archive of updates.
fn mirror_of(targets: &str) -> Option<String> {
    targets.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        [uri, release, "main"] if !release.contains("-security") && !release.contains("-updates") => {
            Some((*uri).trim_end_matches('/').to_owned())
        }
        _ => None,
    })
}

/// The keys of every Debian suite, from the package debian-archive-keyring, which every Debian has.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Package lists: this machine's, or those of one suite in a separate folder.
#[derive(Debug)]
pub(crate) struct Lists {
    options: Vec<String>,
    hint: &'static str,
}

impl Lists {
    pub(crate) fn own() -> Self {
        let hint = "check the network and the addresses in /etc/apt/sources.list, then type: apt-get update";
        Self { options: Vec::new(), hint }
    }

    /// The lists of one suite of a mirror, kept below `folder`.
    pub(crate) fn of(mirror: &str, suite: &str, folder: &Path) -> Result<Self> {
        Self::written(&folder.join(suite), &[format!("deb [signed-by={KEYRING}] {mirror} {suite} main")])
    }

    /// The same with the lists of source packages.
    pub(crate) fn with_sources(mirror: &str, suite: &str, folder: &Path) -> Result<Self> {
        let line = |kind: &str| format!("{kind} [signed-by={KEYRING}] {mirror} {suite} main");
        Self::written(&folder.join(format!("{suite}-sources")), &[line("deb"), line("deb-src")])
    }

    fn written(folder: &Path, lines: &[String]) -> Result<Self> {
        let write = || {
            fs::create_dir_all(folder.join("lists/partial"))?;
            fs::create_dir_all(folder.join("cache/archives/partial"))?;
            fs::write(folder.join("sources.list"), lines.join("\n") + "\n")
        };
        write().with_context(|| format!("could not write {}", folder.join("sources.list").display()))?;
        let at = |option: &str, path: &str| format!("{option}={}", folder.join(path).display());
        let settings = [
            at("Dir::Etc::SourceList", "sources.list"),
            "Dir::Etc::SourceParts=-".to_owned(),
            at("Dir::State::Lists", "lists"),
            at("Dir::Cache", "cache"),
            "APT::Sandbox::User=root".to_owned(),
            // A missing suite is an error, not a warning.
            "APT::Update::Error-Mode=any".to_owned(),
            // No translations and no icons.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // The signature of a release that is no longer maintained expires.
            "Acquire::Check-Valid-Until=false".to_owned(),
        ];
        let options = settings.into_iter().flat_map(|setting| ["--option".to_owned(), setting]).collect();
        Ok(Self { options, hint: "check the network" })
    }

    /// The options with which apt-get and apt-cache use these lists.
    pub(crate) fn options(&self) -> &[String] {
        &self.options
    }

    /// Downloads packages into a folder, without installing them.
    pub(crate) fn download(&self, packages: &[impl AsRef<OsStr>], folder: &Path) -> Result<()> {
        Call::new("download packages", "apt-get")
            .args(&self.options)
            // apt's sandbox user often may not write below the target folder.
            .args(["--option", "APT::Sandbox::User=root", "download"])
            .args(packages)
            .directory(folder)
            .hint("check the network, the disk and /etc/apt/sources.list, then type: apt-get update")
            .read()
            .map(drop)
    }

    /// Downloads packages and everything that they depend on, as for a machine that has no package, into a folder.
    pub(crate) fn download_closure(&self, packages: &[&str], folder: &Path) -> Result<()> {
        let status = folder.join("status");
        fs::create_dir_all(folder.join("partial"))
            .and_then(|()| fs::write(&status, ""))
            .with_context(|| format!("could not write {}", status.display()))?;
        let at = |option: &str, path: &Path| ["--option".to_owned(), format!("{option}={}", path.display())];
        Call::new("download packages with their dependencies", "apt-get")
            .args(&self.options)
            .args(at("Dir::State::status", &status))
            .args(at("Dir::Cache::archives", folder))
            .args(["install", "--download-only", "--yes", "--no-install-recommends"])
            .args(packages)
            .hint(self.hint)
            .read()
            .map(drop)
    }

    /// Downloads a source package and unpacks it, with Debian's patches, as `folder`, whose parent exists.
    pub(crate) fn unpack_source(&self, package: &str, folder: &Path) -> Result<()> {
        let parent = folder.parent().with_context(|| format!("{} has no parent", folder.display()))?;
        Call::new("download a source package", "apt-get")
            .args(&self.options)
            .args(["source", "--download-only", package])
            .directory(parent)
            .hint(self.hint)
            .read()?;
        let is_description = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "dsc");
        let description = listing(parent)?.into_iter().find(is_description);
        // apt has verified the files against the suite's signature.
        Call::new("unpack a source package", "dpkg-source")
            .args(["--no-check", "--extract"])
            .arg(description.with_context(|| format!("apt-get left no .dsc in {}", parent.display()))?)
            .arg(folder)
            .hint("check that the disk is not full")
            .read()
            .map(drop)
    }

    /// Fetches the lists again.
    pub(crate) fn refresh(&self) -> Result<()> {
        Call::new("fetch Debian's package lists", "apt-get")
            .args(&self.options)
            .args(["update"])
            .hint(self.hint)
            .read()
            .map(drop)
    }
}

/// Fetches with this machine's own lists. Outdated lists name files that the archive has removed: if this process may, it
/// refreshes them and tries once more.
pub(crate) fn from_own<T>(fetch: impl Fn(&Lists) -> Result<T>) -> Result<T> {
    let lists = Lists::own();
    match fetch(&lists) {
        Err(error) if !is_root() => {
            Err(error.context("the package lists may be too old\nhint: as root, type: apt-get update"))
        }
        Err(_) => {
            lists.refresh()?;
            fetch(&lists)
        }
        fetched => fetched,
    }
}

/// Unpacks the packages in a folder there, and removes their files.
pub(crate) fn unpack(folder: &Path) -> Result<()> {
    unpack_into(folder, folder).map(drop)
}

/// Unpacks the packages in a folder into another one, which is created, removes their files and returns their number.
pub(crate) fn unpack_into(packages: &Path, folder: &Path) -> Result<usize> {
    let mut packages = listing(packages)?;
    packages.retain(|path| path.extension().is_some_and(|kind| kind == "deb"));
    for package in &packages {
        Call::new("unpack a package", "dpkg-deb")
            .arg("--extract")
            .args([package.as_path(), folder])
            .hint("check that the disk is not full")
            .read()?;
        fs::remove_file(package).with_context(|| format!("could not remove {}", package.display()))?;
    }
    Ok(packages.len())
}

/// Whether this process may install or update packages.
pub(crate) fn is_root() -> bool {
    effective_uid(&read_or_empty("/proc/self/status")) == Some(0)
}

fn missing<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let output = Call::new("list the installed packages", "dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Abbrev}\\n"])
        .args(packages)
        .hint(by_hand(&format!("apt-get install -y --no-install-recommends {}", packages.join(" "))))
        .output()?;
    // dpkg-query exits with 1 if any package is unknown; its output is right in both cases.
    let installed = installed(&String::from_utf8_lossy(&output.stdout));
    Ok(packages.iter().copied().filter(|package| !installed.contains(*package)).collect())
}

/// Reads the lines "package status" of `dpkg-query`; "ii" means wanted and installed.
fn installed(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, status)| status.trim() == "ii").map(|(name, _)| name.to_owned()).collect()
}

/// The reason why packages cannot be installed here, if there is one.
fn cannot_install(os_release: &str, status: &str) -> Option<&'static str> {
    if !is_debian(os_release) {
        return Some("this system is not Debian, so they cannot be installed");
    }
    (effective_uid(status) != Some(0)).then_some("installing them needs root")
}

fn by_hand(install: &str) -> String {
    format!("as root on Debian 12, type: apt-get update && {install}")
}

fn install_hint(missing: &[&str]) -> String {
    let mut hint = String::from("check the network, the disk and /etc/apt/sources.list");
    if missing.iter().any(|package| BPF_COMPILER.contains(package)) {
        hint.push_str(
            "; rustc-web comes from bookworm-security, and is not needed after: \
             rustup toolchain install nightly --component rust-src",
        );
    } else if missing.iter().any(|package| package.contains("-22-dev")) {
        hint.push_str("; LLVM 22 comes from bookworm-security");
    }
    hint
}

fn is_debian(os_release: &str) -> bool {
    let values = os_release.lines().filter_map(|line| line.split_once('='));
    values
        .filter(|(name, _)| matches!(*name, "ID" | "ID_LIKE"))
        .any(|(_, value)| value.trim_matches('"').split_whitespace().any(|id| id == "debian"))
}

/// The second number of `Uid:` in /proc/PID/status (see `proc_pid_status(5)`).
fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn read_or_empty(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let text = "gcc ii \nlibc6-dev ii \nkmod rc \nnftables un \nconntrack iU \n";
        assert_eq!(installed(text).into_iter().collect::<Vec<_>>(), ["gcc", "libc6-dev"]);
    }

    #[test]
    fn another_suite_leaves_the_machine_alone() {
        let here = tempfile::tempdir().unwrap();
        let lists = Lists::of("http://mirror.invalid/debian", "sid", here.path()).unwrap();
        let folder = here.path().join("sid");
        let source = fs::read_to_string(folder.join("sources.list")).unwrap();
        assert!(source.starts_with("deb [signed-by=/") && source.ends_with(" sid main\n"), "{source}");
        let has = |text: String| lists.options().contains(&text);
        assert!(has(format!("Dir::State::Lists={}", folder.join("lists").display())));
        assert!(has("Dir::Etc::SourceParts=-".to_owned()));
        assert!(Lists::own().options().is_empty());
    }

    #[test]
    fn the_machines_own_mirror_is_used() {
        let text = "http://a.invalid/debian-security/ bookworm-security main\nhttp://b.invalid/debian/ bookworm-updates main\n\
                    http://b.invalid/debian/ bookworm contrib\nhttp://b.invalid/debian/ bookworm main\n";
        assert_eq!(mirror_of(text).as_deref(), Some("http://b.invalid/debian"));
        assert_eq!(mirror_of("malformed\n\n"), None);
    }

    #[test]
    fn debian_and_its_derivatives_are_recognised() {
        assert!(is_debian("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=\"debian\"\n"));
        assert!(!is_debian("ID=fedora\nNAME=debian\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn the_effective_user_counts() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t0\t0\n"), Some(0));
        assert_eq!(effective_uid("Uid:\tx\n"), None);
    }

    #[test]
    fn the_obstacle_to_an_installation_is_named() {
        let (root, user) = ("Uid:\t0\t0\t0\t0\n", "Uid:\t1000\t1000\t1000\t1000\n");
        assert_eq!(cannot_install("ID=debian\n", root), None);
        assert_eq!(cannot_install("ID=debian\n", user), Some("installing them needs root"));
        assert!(cannot_install("ID=alpine\n", root).unwrap().contains("not Debian"));
    }

    #[test]
    fn hints_name_the_source_of_the_compiler() {
        assert!(install_hint(&["rustc-web"]).contains("rustup toolchain install nightly"));
        assert!(!install_hint(&["gcc"]).contains("rustup"));
    }
}
