//! The container images of the cluster, written without a registry: busybox, which is also the sandbox of every Pod, and
//! viptrace as the manifests name it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cpio::Archive;
use crate::image;
use crate::oci::Image;
use crate::place::Place;
use crate::stamp::Stamp;

/// The image of test Pods: busybox with all its names. Its own command sleeps, which is what a sandbox does.
pub(crate) const BUSYBOX: &str = "docker.io/library/busybox:lab";
const RECIPE: &str = "recipe 1";

/// Writes busybox's image unless it is fresh.
pub(crate) fn busybox(cluster: &Path) -> Result<PathBuf> {
    let binary = image::find(image::BUSYBOX)?;
    let mut layer = Archive::new();
    layer.file("usr/bin/busybox", &binary, 0o755);
    for applet in image::busybox_applets(&binary)? {
        layer.symlink(&format!("usr/bin/{applet}"), "busybox");
    }
    layer.symlink("bin", "usr/bin");
    layer.text("etc/passwd", "root:x:0:0:root:/:/bin/sh\n", 0o644);
    layer.text("etc/group", "root:x:0:\n", 0o644);
    layer.directory("tmp");
    let image = Image {
        title: "busybox",
        licence: "GPL-2.0-only",
        repository: Some("docker.io/library/busybox"),
        tag: "lab".to_owned(),
        entrypoint: &["/usr/bin/busybox", "sleep", "infinity"],
        ..plain()
    };
    ensure(cluster, &image, &[&layer])
}

/// Writes viptrace's image unless it is fresh: the programs that list rules, and the binary that guests run.
pub(crate) fn viptrace(place: &Place, cluster: &Path) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let image = Image {
        title: "viptrace",
        licence: "Apache-2.0",
        repository: Some("docker.io/library/viptrace"),
        tag: format!("{version}-tools"),
        entrypoint: &["/usr/bin/viptrace"],
        ..plain()
    };
    ensure(cluster, &image, &[&image::rule_listers()?, &image::viptrace(place)?])
}

/// The facts that the images have in common.
fn plain() -> Image {
    Image {
        title: "",
        licence: "",
        repository: None,
        tag: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: "amd64",
        revision: None,
        time: 0,
        entrypoint: &[],
        compressed: false,
    }
}

fn ensure(cluster: &Path, image: &Image, layers: &[&Archive]) -> Result<PathBuf> {
    let folder = cluster.join("images");
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    let file = folder.join(format!("{}.tar", image.title));
    let mut stamp = Stamp::new(RECIPE);
    for layer in layers {
        for (path, _) in layer.nodes() {
            stamp.note(path);
        }
        for source in layer.sources() {
            stamp.file(source)?;
        }
    }
    if !stamp.is_fresh(&file) {
        let bytes = image.archive(layers)?;
        fs::write(&file, bytes).with_context(|| format!("could not write {}", file.display()))?;
        stamp.keep(&file)?;
    }
    Ok(file)
}
