//! The programs of Kubernetes: those of a folder laid out as upstream's server archive, or Debian's, built once
//! (`source`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

use crate::call::Call;
use crate::printer::{Outcome, Printer};

use super::source;

/// The programs that a cluster needs. `kubectl` may come from elsewhere.
pub(crate) const PARTS: &[&str] =
    &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"];

/// The places of the programs in a folder, the folder itself first.
const LAYOUTS: &[&str] = &["", "server/bin", "kubernetes/server/bin"];

/// A release of Kubernetes, by its first two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    pub(crate) const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = anyhow::Error;

    /// Reads the output of `kubelet --version`: "Kubernetes v1.36.2".
    fn from_str(text: &str) -> Result<Self> {
        let numbers = || {
            let mut numbers = text.trim().rsplit('v').next()?.split('.').map(str::parse);
            Some(Self { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
        };
        numbers().with_context(|| format!("{text:?} has no version of Kubernetes"))
    }
}

/// A complete set of programs of one release.
#[derive(Debug, Clone)]
pub(crate) struct Binaries {
    folder: PathBuf,
    kubectl: PathBuf,
    pub(crate) version: Version,
}

impl Binaries {
    /// The programs in `given`, or else Debian's.
    pub(crate) fn ensure(printer: &Printer, cluster: &Path, given: Option<&Path>) -> Result<Self> {
        let mut found = None;
        printer.step("Kubernetes", || {
            let (folder, outcome) = match given {
                Some(folder) => (folder.to_owned(), None),
                None => source::ensure(cluster).map(|(folder, outcome)| (folder, Some(outcome)))?,
            };
            let binaries = Self::find(&folder)?;
            let outcome = outcome.unwrap_or_else(|| {
                Outcome::Done(format!("{} in {}", binaries.version, binaries.folder.display()))
            });
            found = Some(binaries);
            Ok(outcome)
        })?;
        found.context("no programs of Kubernetes were found")
    }

    fn find(folder: &Path) -> Result<Self> {
        let places = LAYOUTS.iter().map(|layout| folder.join(layout));
        let Some(folder) = places.into_iter().find(|place| place.join("kubelet").is_file()) else {
            bail!(
                "{} has no kubelet, nor has server/bin or kubernetes/server/bin below it\nhint: unpack upstream's server \
                 archive (kubernetes-server-linux-amd64.tar.gz) there",
                folder.display()
            );
        };
        let folder =
            folder.canonicalize().with_context(|| format!("could not resolve {}", folder.display()))?;
        let missing: Vec<&str> =
            PARTS.iter().copied().filter(|part| *part != "kubectl" && !folder.join(part).is_file()).collect();
        if !missing.is_empty() {
            bail!("{} has no {}", folder.display(), missing.join(", "));
        }
        let beside = folder.join("kubectl");
        let kubectl = if beside.is_file() { beside } else { on_path("kubectl")? };
        let version =
            Call::new("read the version of Kubernetes", folder.join("kubelet")).arg("--version").read()?;
        Ok(Self { version: version.parse()?, folder, kubectl })
    }

    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn kubectl(&self) -> &Path {
        &self.kubectl
    }
}

fn on_path(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.with_context(|| {
        format!(
            "{program} is neither beside kubelet nor on the PATH\nhint: apt-get install kubernetes-client"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_version_is_two_numbers() {
        let version = |text: &str| text.parse::<Version>();
        assert_eq!(version("Kubernetes v1.36.2\n").unwrap(), Version::new(1, 36));
        assert_eq!(version("Kubernetes v1.37.0-alpha.1").unwrap().to_string(), "1.37");
        assert!(version("v1.9").unwrap() < Version::new(1, 20));
        assert!(version("Kubernetes").is_err());
    }

    #[test]
    fn the_layout_of_the_server_archive_is_accepted_at_each_level() {
        let here = tempfile::tempdir().unwrap();
        let bin = here.path().join("kubernetes/server/bin");
        fs::create_dir_all(&bin).unwrap();
        for part in PARTS {
            let file = bin.join(part);
            // `touch` and not `fs::write`: see the tests of `vm`.
            Call::new("write", "sh")
                .args(["-c", "printf '#!/bin/sh\\necho Kubernetes v1.30.1\\n' >\"$0\""])
                .arg(&file)
                .read()
                .unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for level in ["", "kubernetes", "kubernetes/server/bin"] {
            let binaries = Binaries::find(&here.path().join(level)).unwrap();
            assert_eq!(binaries.version, Version::new(1, 30));
            assert_eq!(binaries.kubectl(), binaries.part("kubectl"));
        }
        fs::remove_file(bin.join("kube-scheduler")).unwrap();
        assert!(Binaries::find(here.path()).unwrap_err().to_string().ends_with("has no kube-scheduler"));
        assert!(Binaries::find(&here.path().join("kubernetes/server/x")).is_err());
    }
}
