//! Builds the newest complete Kubernetes that Debian ships as source: 1.20.2, in bookworm. Later suites cut the package
//! down to kubectl.
//!
//! All parts become one program (`hyperkube.go`) with a link for each. The result stays; sources, compiler and build
//! cache, 4 GB together, are removed afterwards.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::apt::{self, Lists};
use crate::call::Call;
use crate::disk;
use crate::printer::Outcome;
use crate::stamp::Stamp;

use super::binaries::PARTS;

const SUITE: &str = "bookworm";
const VERSION: &str = "1.20.2";
/// Its source package.
const SOURCE: &str = "kubernetes";
/// Go, whose two packages complete each other, and a library whose copy in the source does not work with this Go.
const PACKAGES: &[&str] = &["golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev"];
const GO: &str = "usr/lib/go-1.19";
const REFLECT2: &str = "src/github.com/modern-go/reflect2";
const HYPERKUBE: &str = include_str!("hyperkube.go");
/// Change this with the build steps.
const RECIPE: &str = "recipe 1";

/// The space that the build needs, in bytes.
const BUILD_BYTES: u64 = 8_000_000_000;

/// The folder with the built programs, laid out as upstream's server archive.
pub(crate) fn ensure(cluster: &Path) -> Result<(PathBuf, Outcome)> {
    let archive = cluster.join("kubernetes").join(VERSION);
    let mut stamp = Stamp::new(RECIPE);
    stamp.note(SOURCE);
    stamp.note(HYPERKUBE);
    if stamp.is_fresh(&archive) {
        return Ok((archive, Outcome::Skipped(format!("Kubernetes {VERSION} is built"))));
    }
    disk::require(cluster, BUILD_BYTES)?;
    let build = Build { folder: cluster.join("kubernetes/build") };
    build.clear()?;
    build.unpack(cluster)?;
    build.generate()?;
    build.compile(&archive.join("server/bin"))?;
    build.clear()?;
    stamp.keep(&archive)?;
    Ok((archive, Outcome::Done(format!("built Kubernetes {VERSION}"))))
}

/// The folder of one build.
struct Build {
    folder: PathBuf,
}

impl Build {
    fn gopath(&self) -> PathBuf {
        self.folder.join("gopath")
    }

    /// The place where Go expects the tree.
    fn tree(&self) -> PathBuf {
        self.gopath().join("src/k8s.io/kubernetes")
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    fn clear(&self) -> Result<()> {
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)
                .with_context(|| format!("could not remove {}", self.folder.display()))?;
        }
        Ok(())
    }

    /// Unpacks the sources and the compiler.
    fn unpack(&self, cluster: &Path) -> Result<()> {
        let (root, tree) = (self.root(), self.tree());
        let above = tree.parent().context("the tree has no parent")?;
        for folder in [root.as_path(), above] {
            fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
        }
        let lists = Lists::with_sources(&apt::mirror()?, SUITE, &cluster.join("apt"))?;
        lists.refresh()?;
        lists.download(PACKAGES, &root)?;
        apt::unpack(&root)?;
        lists.unpack_source(SOURCE, &tree)?;
        let vendored = tree.join("vendor").join(REFLECT2.trim_start_matches("src/"));
        fs::remove_dir_all(&vendored)
            .and_then(|()| fs::rename(root.join("usr/share/gocode").join(REFLECT2), &vendored))
            .with_context(|| format!("could not replace {}", vendored.display()))
    }

    fn go(&self, what: &str, program: impl AsRef<std::ffi::OsStr>) -> Call {
        Call::new(what, program)
            .env("GOROOT", self.root().join(GO))
            .env("GOPATH", self.gopath())
            .env("GOCACHE", self.folder.join("cache"))
            .env("GOTMPDIR", &self.folder)
            .env("GO111MODULE", "off")
            .env("GOFLAGS", "-trimpath")
            .env("CGO_ENABLED", "0")
            .directory(&self.tree())
            .hint("check that the disk is not full, then try again")
    }

    fn compiler(&self) -> PathBuf {
        self.root().join(GO).join("bin/go")
    }

    /// Generates the API's descriptions, which the source lacks: upstream's Makefile does it in each build.
    fn generate(&self) -> Result<()> {
        let generator = self.folder.join("openapi-gen");
        self.go("build the generator of the API's descriptions", self.compiler())
            .args(["build", "-o"])
            .arg(&generator)
            .arg("./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
            .read()?;
        let vendored = |package: &str| format!("k8s.io/kubernetes/vendor/k8s.io/{package}");
        let of_extensions = [
            "apimachinery/pkg/apis/meta/v1",
            "apimachinery/pkg/runtime",
            "apimachinery/pkg/version",
            "api/autoscaling/v1",
        ]
        .map(vendored);
        let outputs = [
            (self.described_packages()?, "k8s.io/kubernetes/pkg/generated/openapi".to_owned()),
            (of_extensions.to_vec(), vendored("apiextensions-apiserver/pkg/generated/openapi")),
        ];
        for (number, (inputs, output)) in outputs.iter().enumerate() {
            self.go("generate the API's descriptions", &generator)
                .args(["--logtostderr", "--input-dirs", &inputs.join(","), "--output-package", output])
                .args(["--output-file-base", "zz_generated.openapi"])
                .args(["--go-header-file", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"])
                .arg("--report-filename")
                .arg(self.folder.join(format!("violations-{number}")))
                .read()?;
        }
        Ok(())
    }

    /// The packages whose types the API describes: those with a `+k8s:openapi-gen=` mark.
    fn described_packages(&self) -> Result<Vec<String>> {
        let files = Call::new("find the API's types", "grep")
            .args(["--recursive", "--files-with-matches", "--include=*.go", "+k8s:openapi-gen="])
            .args(["pkg", "cmd", "plugin", "staging/src/k8s.io"])
            .directory(&self.tree())
            .read()?;
        Ok(packages(&files))
    }

    fn compile(&self, output: &Path) -> Result<()> {
        let main = self.tree().join("cmd/hyperkube");
        fs::create_dir_all(&main)
            .and_then(|()| fs::write(main.join("main.go"), HYPERKUBE))
            .with_context(|| format!("could not write {}", main.display()))?;
        if output.exists() {
            fs::remove_dir_all(output).with_context(|| format!("could not remove {}", output.display()))?;
        }
        fs::create_dir_all(output).with_context(|| format!("could not create {}", output.display()))?;
        let version = |name: &str, value: &str| {
            format!("-X k8s.io/kubernetes/vendor/k8s.io/component-base/version.{name}={value}")
        };
        let flags = [
            "-s -w".to_owned(),
            version("gitVersion", &format!("v{VERSION}")),
            version("gitMajor", "1"),
            version("gitMinor", "20"),
        ];
        self.go("build Kubernetes", self.compiler())
            .args(["build", "-ldflags", &flags.join(" "), "-o"])
            .arg(output.join("hyperkube"))
            .arg("./cmd/hyperkube")
            .read()?;
        for part in PARTS {
            let link = output.join(part);
            symlink("hyperkube", &link).with_context(|| format!("could not create {}", link.display()))?;
        }
        Ok(())
    }
}

/// The packages of these files, by their import paths, except those that no server serves.
fn packages(files: &str) -> Vec<String> {
    const FOREIGN: &[&str] =
        &["code-generator/", "sample-apiserver/", "_test.go", "/testdata/", "/test/", "zz_generated"];
    let own = files.lines().filter(|file| !FOREIGN.iter().any(|part| file.contains(part)));
    let mut packages: Vec<String> = own
        .filter_map(|file| {
            let folder = Path::new(file).parent()?.to_str()?;
            Some(match folder.strip_prefix("staging/src/") {
                Some(vendored) => format!("k8s.io/kubernetes/vendor/{vendored}"),
                None => format!("k8s.io/kubernetes/{folder}"),
            })
        })
        .collect();
    packages.sort();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_import_paths() {
        let files = "pkg/apis/abac/v1/types.go\npkg/apis/abac/v1/doc.go\nstaging/src/k8s.io/api/core/v1/types.go\n\
                     staging/src/k8s.io/code-generator/x/y.go\npkg/a/b_test.go\n";
        assert_eq!(
            packages(files),
            ["k8s.io/kubernetes/pkg/apis/abac/v1", "k8s.io/kubernetes/vendor/k8s.io/api/core/v1"]
        );
    }
}
