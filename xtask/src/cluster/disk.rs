//! The disk that every node starts from, and the initramfs that hands over to it.
//!
//! The disk changes only with Debian's packages, Kubernetes and the kernel. What changes with each build or run (viptrace,
//! the lab, certificates, settings) comes with the initramfs, which copies it onto the disk. A node's own writes are lost
//! when it ends.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::call::Call;
use crate::cpio::Archive;
use crate::image;
use crate::kernels::Kernel;
use crate::modules;
use crate::printer::Outcome;
use crate::stamp::Stamp;

use super::binaries::Binaries;
use super::root::Root;

/// Change this with the build steps.
const RECIPE: &str = "recipe 2";
/// The size of the disk, of which a new one uses 0.5 GB.
const SIZE: &str = "6G";
/// The folder of the initramfs whose contents are copied onto the disk.
pub(crate) const OVERLAY: &str = "node";
/// The folder of container images on the disk.
pub(crate) const IMAGES: &str = "var/lib/images";

/// Modules beside the network's: what containers and the machine need.
const MODULES: &[&str] =
    &["kernel/fs/overlayfs/", "kernel/drivers/net/virtio_net", "kernel/drivers/char/hw_random/virtio"];
/// Modules to reach the disk and the host, unless the kernel has them built in, as 6.12 has those of the bus and the console.
const DISK_MODULES: &[&str] = &[
    "kernel/drivers/virtio/virtio_pci",
    "kernel/drivers/char/virtio_console",
    "kernel/drivers/block/virtio_blk",
    "kernel/fs/ext4/",
    "kernel/crypto/crc32c",
];
const DISK_MODULE_NAMES: &str = "virtio_pci virtio_console virtio_blk crc32c_generic ext4";

const ETC: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nprotocols: files\nservices: files\n"),
    ("etc/resolv.conf", ""),
];

/// The files of a node's start.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    pub(crate) image: PathBuf,
    /// The first part of the initramfs; a node's own files follow it.
    pub(crate) boot: PathBuf,
}

/// Makes the disk and the initramfs unless they are fresh.
pub(crate) fn ensure(
    cluster: &Path,
    root: &Root,
    binaries: &Binaries,
    kernel: &Kernel,
    images: &[&Path],
) -> Result<(Disk, Outcome)> {
    let folder = cluster.join("disks").join(kernel.series);
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    let disk = Disk {
        image: folder.join(format!("{}.ext4", binaries.version)),
        boot: folder.join(format!("{}.cpio", binaries.version)),
    };

    let mut contents = Archive::new();
    for (path, text) in ETC {
        contents.text(path, *text, 0o644);
    }
    for part in ["kubelet", "kube-proxy"] {
        program(&mut contents, &binaries.part(part))?;
    }
    for image in images {
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        contents.file(&format!("{IMAGES}/{name}"), image, 0o644);
    }
    let mut stamp = Stamp::new(RECIPE);
    stamp.note(&kernel.release);
    stamp.file(&root.folder)?;
    stamp.file(&root.folder.with_added_extension("stamp"))?;
    for source in contents.sources() {
        stamp.file(source)?;
    }
    if stamp.is_fresh(&disk.image) && stamp.is_fresh(&disk.boot) {
        return Ok((disk, Outcome::Skipped("no part has changed".to_owned())));
    }

    let scratch = folder.join("scratch");
    image::iptables_names(&mut contents, &["", "-save", "-restore"]);
    let wanted = [modules::NETWORK, MODULES, DISK_MODULES].concat();
    modules::add(&mut contents, kernel, &wanted, &scratch.join("modules"))?;
    write_disk(root, &mut contents, &scratch.join("root"), &disk.image)?;
    write_boot(kernel, &scratch.join("boot-modules"), &disk.boot)?;
    fs::remove_dir_all(&scratch).with_context(|| format!("could not remove {}", scratch.display()))?;
    stamp.keep(&disk.boot)?;
    stamp.keep(&disk.image)?;
    Ok((disk, Outcome::Done(String::new())))
}

/// Adds a program, and its name if that is a link to another file.
fn program(contents: &mut Archive, path: &Path) -> Result<()> {
    let real = path.canonicalize().with_context(|| format!("could not find {}", path.display()))?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    contents.file(&format!("usr/local/bin/{}", name(&real)), &real, 0o755);
    if name(path) != name(&real) {
        contents.symlink(&format!("usr/local/bin/{}", name(path)), &name(&real));
    }
    Ok(())
}

fn write_disk(root: &Root, contents: &mut Archive, stage: &Path, image: &Path) -> Result<()> {
    if stage.exists() {
        fs::remove_dir_all(stage).with_context(|| format!("could not remove {}", stage.display()))?;
    }
    Call::new("copy the root of a node", "cp")
        .arg("--archive")
        .args([root.folder.as_path(), stage])
        .hint("check that the disk is not full")
        .read()?;
    // busybox completes the packages' programs.
    let has = |name: &str| {
        let places = ["usr/bin", "usr/sbin", "usr/local/bin"].map(|folder| format!("{folder}/{name}"));
        places.iter().any(|path| contents.contains(path) || stage.join(path).symlink_metadata().is_ok())
    };
    let mut missing = image::busybox_applets(&image::find(image::BUSYBOX)?)?;
    missing.retain(|name| !has(name));
    for name in missing {
        contents.symlink(&format!("usr/bin/{name}"), "busybox");
    }
    for folder in ["dev", "mnt", "proc", "root", "run", "sys", "tmp"] {
        contents.directory(folder);
    }
    contents.extract(stage)?;
    let draft = image.with_added_extension("draft");
    Call::new("make the disk of a node", "mke2fs")
        // Nothing on it outlives a run. Checksums cost time under emulation.
        .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal,^metadata_csum,^64bit"])
        .args(["-E", "lazy_itable_init=0,root_owner=0:0", "-d"])
        .args([stage, &draft])
        .arg(SIZE)
        .hint("check that the disk is not full")
        .read()?;
    fs::rename(&draft, image).with_context(|| format!("could not write {}", image.display()))
}

/// Writes the part of the initramfs that is the same for all nodes.
fn write_boot(kernel: &Kernel, scratch: &Path, file: &Path) -> Result<()> {
    let mut archive = Archive::new();
    archive.text(
        "init",
        format!("{INIT_HEAD}modprobe -a {DISK_MODULE_NAMES} 2>/dev/null\n{INIT_TAIL}"),
        0o755,
    );
    archive.file("bin/busybox", &image::find(image::BUSYBOX)?, 0o755);
    for name in ["sh", "mount", "umount", "modprobe", "cp", "rm", "sleep", "switch_root"] {
        archive.symlink(&format!("bin/{name}"), "busybox");
    }
    for folder in ["dev", "proc", "root"] {
        archive.directory(folder);
    }
    archive.symlink("lib", "usr/lib");
    // The kernel opens the console before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    modules::add(&mut archive, kernel, DISK_MODULES, scratch)?;
    image::write_archive(&archive, file)
}

const INIT_HEAD: &str = "#!/bin/sh
mount -t devtmpfs dev /dev
mount -t proc proc /proc
";
/// Mounts the disk, puts the node's own files onto it and makes the lab process 1.
const INIT_TAIL: &str = "for attempt in 1 2 3 4 5 6 7 8 9 10; do
    mount -t ext4 /dev/vda /root && break
    sleep 0.5
done
cp -a /node/. /root/
umount /proc /dev
exec switch_root /root /usr/bin/viptrace-lab
";
