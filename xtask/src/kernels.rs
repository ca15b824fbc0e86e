//! Guest kernels: Debian's, downloaded as packages and unpacked below the target folder, never installed.
//!
//! The table `SERIES` lists the kernels and their Debian suites. The package lists of suites that this machine does not
//! use are below the target folder too, apart from the machine's own apt. `modules` chooses the modules for the image.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::apt::{self, Lists};
use crate::call::Call;
use crate::place::{Place, listing};
use crate::printer::Outcome;

/// One kernel series that the guests can run.
#[derive(Debug)]
pub(crate) struct Series {
    /// The value of `--kernel`.
    pub(crate) name: &'static str,
    /// The package that depends on the newest build of the series.
    metapackage: &'static str,
    /// The prefix of the builds' package names.
    build_prefix: &'static str,
    /// The suites to search, in this order. If there are none, this machine's own sources.
    suites: &'static [&'static str],
}

impl Series {
    /// Whether it has kprobe.multi links (`CONFIG_FPROBE`), with which a process without `CAP_SYS_ADMIN` can probe modules
    /// where `kernel.perf_event_paranoid` is 3, Debian's default.
    pub(crate) fn has_kprobe_multi(&self) -> bool {
        !matches!(self.name, "5.10" | "6.1")
    }
}

/// Debian 11's kernel, Debian 12's own, the newer one in Debian 12's security archive, its `PREEMPT_RT` build, and the
/// newest of all.
pub(crate) const SERIES: &[Series] = &[
    Series {
        name: "5.10",
        metapackage: "linux-image-cloud-amd64",
        build_prefix: "linux-image-5.10.",
        suites: &["bullseye"],
    },
    Series {
        name: "6.1",
        metapackage: "linux-image-cloud-amd64",
        build_prefix: "linux-image-6.1.",
        suites: &[],
    },
    Series {
        name: "6.12",
        metapackage: "linux-image-6.12-cloud-amd64",
        build_prefix: "linux-image-6.12.",
        suites: &[],
    },
    Series {
        name: "6.12-rt",
        metapackage: "linux-image-6.12-rt-amd64",
        build_prefix: "linux-image-6.12.",
        suites: &[],
    },
    Series {
        name: "7.2",
        metapackage: "linux-image-cloud-amd64",
        build_prefix: "linux-image-7.2.",
        suites: &["trixie-backports", "forky", "sid"],
    },
];

/// The default series of the demo and the benchmark.
pub(crate) const DEFAULT: &str = "6.12";

/// The name prefixes of the packages that newer Debian kernels split off from the image.
const SPLIT_OFF: &[&str] = &["linux-base-", "linux-modules-", "linux-binary-"];

/// An unpacked kernel that can be started.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    pub(crate) series: &'static str,
    /// As `uname -r` prints it.
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// The folder with `kernel/`, `modules.order` and so on.
    pub(crate) modules: PathBuf,
}

/// Parses the value of `--kernel`.
pub(crate) fn parse(name: &str) -> Result<&'static Series, String> {
    let names = || SERIES.iter().map(|series| series.name).collect::<Vec<_>>().join(", ");
    SERIES.iter().find(|series| series.name == name).ok_or_else(|| format!("known kernels are {}", names()))
}

impl Kernel {
    /// A kernel that `ensure` has unpacked.
    pub(crate) fn find(place: &Place, series: &Series) -> Result<Self> {
        Self::unpacked(&directory(place, series), series)
            .with_context(|| format!("kernel {} is not unpacked\nhint: type: cargo xtask setup", series.name))
    }

    fn unpacked(directory: &Path, series: &Series) -> Option<Self> {
        // Written last, so that an interrupted download does not count as a kernel.
        let release = fs::read_to_string(directory.join("release")).ok()?.trim().to_owned();
        let modules = modules_folder(directory)?.join(&release);
        // Since Debian 14 the image is beside its modules, and the installation copies it to /boot.
        let places = [directory.join("boot").join(format!("vmlinuz-{release}")), modules.join("vmlinuz")];
        let image = places.into_iter().find(|path| path.is_file())?;
        modules.is_dir().then_some(Self { series: series.name, release, image, modules })
    }
}

/// Downloads and unpacks the newest build of the series, unless one is unpacked already.
pub(crate) fn ensure(place: &Place, series: &Series) -> Result<Outcome> {
    let directory = directory(place, series);
    if let Some(kernel) = Kernel::unpacked(&directory, series) {
        return Ok(Outcome::Skipped(format!("{} is unpacked", kernel.release)));
    }
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("could not remove {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("could not create {}", directory.display()))?;
    let packages = match series.suites {
        [] => apt::from_own(|lists| fetch(lists, series, &directory))?,
        suites => fetch_from_suites(place, series, suites, &directory)?,
    };
    apt::unpack(&directory)?;
    let release = release(&directory)?;
    let record = directory.join("release");
    fs::write(&record, &release).with_context(|| format!("could not write {}", record.display()))?;
    Kernel::unpacked(&directory, series)
        .with_context(|| format!("no bootable kernel in {}", packages.join(" and ")))?;
    Ok(Outcome::Done(format!("unpacked {release}")))
}

fn directory(place: &Place, series: &Series) -> PathBuf {
    place.guest().join("kernels").join(series.name)
}

/// Downloads from the first of the suites that has the series.
fn fetch_from_suites(
    place: &Place,
    series: &Series,
    suites: &[&str],
    directory: &Path,
) -> Result<Vec<String>> {
    let mirror = apt::mirror()?;
    let mut tried = Vec::new();
    for suite in suites {
        let attempt = || {
            let lists = Lists::of(&mirror, suite, &place.guest().join("apt"))?;
            lists.refresh()?;
            fetch(&lists, series, directory)
        };
        match attempt() {
            Ok(packages) => return Ok(packages),
            Err(error) => tried.push(format!("{suite} of {mirror}: {error:#}")),
        }
    }
    bail!(
        "kernel {} cannot be downloaded: none of its Debian suites has it\n{}\nhint: check the network; if a suite was \
         removed or has a newer kernel, change xtask/src/kernels.rs; `--kernel` selects other kernels",
        series.name,
        tried.join("\n")
    )
}

fn fetch(lists: &Lists, series: &Series, directory: &Path) -> Result<Vec<String>> {
    let packages = resolve(lists, series)?;
    lists.download(&packages, directory)?;
    Ok(packages)
}

/// The packages that make up the newest build of the series.
fn resolve(lists: &Lists, series: &Series) -> Result<Vec<String>> {
    let wanted = |name: &String| name.starts_with(series.build_prefix);
    let Some(image) = depends(lists, series.metapackage)?.into_iter().find(wanted) else {
        bail!(
            "`apt-cache depends {}` lists no {}*, so kernel {} cannot be downloaded{}",
            series.metapackage,
            series.build_prefix,
            series.name,
            if series.suites.is_empty() { OWN_HINT } else { "" }
        );
    };
    let parts = depends(lists, &image)?;
    let parts = parts.into_iter().filter(|name| SPLIT_OFF.iter().any(|prefix| name.starts_with(prefix)));
    Ok(std::iter::once(image.clone()).chain(parts).collect())
}

const OWN_HINT: &str =
    "\nhint: on Debian 12 with bookworm-security in /etc/apt/sources.list, type: apt-get update";

fn depends(lists: &Lists, package: &str) -> Result<Vec<String>> {
    let text = Call::new("look up a kernel package", "apt-cache")
        .args(lists.options())
        .args(["depends", "--important", package])
        .read()?;
    Ok(parse_depends(&text))
}

/// Reads the "Depends: NAME" lines of `apt-cache depends`.
fn parse_depends(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.trim().trim_start_matches('|').strip_prefix("Depends: "));
    names.map(|name| name.trim().to_owned()).filter(|name| !name.starts_with('<')).collect()
}

/// The release, which is the name of the modules' folder.
fn release(directory: &Path) -> Result<String> {
    let modules =
        modules_folder(directory).with_context(|| format!("no lib/modules below {}", directory.display()))?;
    let name = listing(&modules)?.into_iter().find_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    name.with_context(|| format!("no release in {}", modules.display()))
}

/// `lib/modules`, or `usr/lib/modules` since Debian merged them.
fn modules_folder(directory: &Path) -> Option<PathBuf> {
    ["lib/modules", "usr/lib/modules"].map(|path| directory.join(path)).into_iter().find(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_is_read_from_the_dependencies() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n |Depends: a\n  Depends: <virtual>\n  Suggests: b\n";
        assert_eq!(parse_depends(text), ["linux-image-6.1.0-56-cloud-amd64", "a"]);
        assert!(parse_depends("").is_empty());
    }

    #[test]
    fn a_prefix_matches_one_series() {
        let of = |name: &str| {
            let matching = SERIES.iter().filter(|series| name.starts_with(series.build_prefix));
            matching.map(|series| series.build_prefix).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!(of("linux-image-6.1.0-56-cloud-amd64"), 1);
        assert_eq!(of("linux-image-6.12.117+deb12-cloud-amd64"), 1);
        assert_eq!(of("linux-image-5.10.0-32-cloud-amd64"), 1);
        assert_eq!(of("linux-image-7.2.12+deb13-cloud-amd64"), 1);
    }

    #[test]
    fn only_known_kernels_are_accepted() {
        assert_eq!(parse("6.12").unwrap().name, "6.12");
        assert_eq!(parse("6").unwrap_err(), "known kernels are 5.10, 6.1, 6.12, 6.12-rt, 7.2");
        assert!(parse(DEFAULT).is_ok());
    }

    #[test]
    fn an_interrupted_download_is_not_a_kernel() {
        let here = tempfile::tempdir().unwrap();
        let series = &SERIES[0];
        let put = |path: &str| {
            let path = here.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "6.1.0-1-cloud-amd64\n").unwrap();
        };
        put("boot/vmlinuz-6.1.0-1-cloud-amd64");
        put("lib/modules/6.1.0-1-cloud-amd64/modules.order");
        assert_eq!(release(here.path()).unwrap(), "6.1.0-1-cloud-amd64");
        assert!(Kernel::unpacked(here.path(), series).is_none());
        put("release");
        assert_eq!(Kernel::unpacked(here.path(), series).unwrap().release, "6.1.0-1-cloud-amd64");
    }

    #[test]
    fn a_kernel_may_be_beside_its_modules() {
        let here = tempfile::tempdir().unwrap();
        let modules = here.path().join("usr/lib/modules/7.2.1-cloud");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("vmlinuz"), "").unwrap();
        fs::write(here.path().join("release"), release(here.path()).unwrap()).unwrap();
        let kernel = Kernel::unpacked(here.path(), &SERIES[0]).unwrap();
        assert_eq!((kernel.release.as_str(), kernel.image), ("7.2.1-cloud", modules.join("vmlinuz")));
    }
}
