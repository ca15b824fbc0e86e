//! Writes container images as OCI archives, without a container engine: the image layout of the OCI's image
//! specification 1.1 in one tar file, which `skopeo copy oci-archive:FILE`, `podman load` and `ctr images import` read.
//!
//! An archive depends on its inputs alone: owners are root, times are the given one, and entries are sorted.

use std::fs;
use std::io::Write as _;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::cpio::{Archive, Node};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const COMPRESSED_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The facts of an image besides its layers.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) title: &'static str,
    /// The licence of its contents.
    pub(crate) licence: &'static str,
    /// The name under which containerd imports it (`docker.io/library/viptrace`); else the importer chooses one.
    pub(crate) repository: Option<&'static str>,
    /// The tag.
    pub(crate) tag: String,
    pub(crate) version: String,
    /// As Go names it: `amd64`, `arm64`.
    pub(crate) architecture: &'static str,
    /// The commit, if it is known.
    pub(crate) revision: Option<String>,
    /// The time of every file and of the image, in seconds since 1970.
    pub(crate) time: u64,
    pub(crate) entrypoint: &'static [&'static str],
    /// Whether the layers are compressed: smaller, but slower to write and to import.
    pub(crate) compressed: bool,
}

/// A part of an image, found by the digest of its bytes.
struct Blob {
    kind: &'static str,
    bytes: Vec<u8>,
}

impl Blob {
    fn json(kind: &'static str, value: &Value) -> Result<Self> {
        Ok(Self { kind, bytes: serde_json::to_vec(value)? })
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.kind, "digest": digest(&self.bytes), "size": self.bytes.len()})
    }
}

/// `sha256:…` of these bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().fold(String::from("sha256:"), |text, byte| text + &format!("{byte:02x}"))
}

impl Image {
    /// The OCI archive of an image with these layers, the lowest first.
    pub(crate) fn archive(&self, layers: &[&Archive]) -> Result<Vec<u8>> {
        let mut blobs = Vec::new();
        let mut contents = Vec::new();
        for layer in layers {
            let tar = tar(layer, self.time)?;
            contents.push(digest(&tar));
            blobs.push(if self.compressed {
                Blob { kind: COMPRESSED_LAYER, bytes: compressed(&tar)? }
            } else {
                Blob { kind: LAYER, bytes: tar }
            });
        }
        let layers: Vec<Value> = blobs.iter().map(Blob::descriptor).collect();
        let config = Blob::json(CONFIG, &self.config(&contents)?)?;
        let manifest = Blob::json(
            MANIFEST,
            &json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config.descriptor(),
                "layers": layers,
                "annotations": self.labels(),
            }),
        )?;
        let mut listed = manifest.descriptor();
        listed["platform"] = json!({"os": "linux", "architecture": self.architecture});
        listed["annotations"] = json!({"org.opencontainers.image.ref.name": self.tag});
        if let Some(repository) = self.repository {
            listed["annotations"]["io.containerd.image.name"] = json!(format!("{repository}:{}", self.tag));
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [listed]});
        blobs.extend([config, manifest]);

        let mut outer = Archive::new();
        outer.text("oci-layout", serde_json::to_vec(&json!({"imageLayoutVersion": "1.0.0"}))?, 0o644);
        outer.text("index.json", serde_json::to_vec(&index)?, 0o644);
        for blob in blobs {
            let path = format!("blobs/{}", digest(&blob.bytes).replace(':', "/"));
            outer.text(&path, blob.bytes, 0o644);
        }
        tar(&outer, self.time)
    }

    fn labels(&self) -> Value {
        let mut labels = json!({
            "org.opencontainers.image.title": self.title,
            "org.opencontainers.image.version": self.version,
            "org.opencontainers.image.licenses": self.licence,
            "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
        });
        if let Some(revision) = &self.revision {
            labels["org.opencontainers.image.revision"] = json!(revision);
        }
        labels
    }

    fn created(&self) -> Result<String> {
        let seconds = i64::try_from(self.time).context("the image's time is too large")?;
        Ok(jiff::Timestamp::from_second(seconds)?.to_string())
    }

    fn config(&self, contents: &[String]) -> Result<Value> {
        Ok(json!({
            "created": self.created()?,
            "os": "linux",
            "architecture": self.architecture,
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/sbin:/usr/bin"],
                "User": "0:0",
                "Labels": self.labels(),
            },
            "rootfs": {"type": "layers", "diff_ids": contents},
        }))
    }
}

/// The contents as a tar file, whose files have this time, in seconds since 1970.
pub(crate) fn tar(archive: &Archive, time: u64) -> Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for (path, node) in archive.nodes() {
        let read;
        let (kind, mode, data, link) = match node {
            Node::Directory => (EntryType::Directory, 0o755, [].as_slice(), None),
            Node::Symlink(target) => (EntryType::Symlink, 0o777, [].as_slice(), Some(target)),
            Node::Text { bytes, mode } => (EntryType::Regular, *mode, bytes.as_slice(), None),
            Node::File { source, mode } => {
                read = fs::read(source).with_context(|| format!("could not read {}", source.display()))?;
                (EntryType::Regular, *mode, read.as_slice(), None)
            }
            Node::Character { .. } => anyhow::bail!("{path}: an archive has no devices"),
        };
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(time);
        header.set_size(data.len() as u64);
        if let Some(target) = link {
            header.set_link_name(target).with_context(|| format!("{path}: {target}"))?;
        }
        builder.append_data(&mut header, path, data).with_context(|| format!("could not add {path}"))?;
    }
    builder.into_inner().context("could not end the archive")
}

/// gzip without a name and a time.
pub(crate) fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish().context("could not compress an archive")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;
    use std::path::Path;

    use super::*;

    fn image() -> Image {
        Image {
            title: "viptrace",
            licence: "Apache-2.0",
            repository: Some("docker.io/library/viptrace"),
            tag: "0.1.0".into(),
            version: "0.1.0".into(),
            architecture: "amd64",
            revision: Some("abc".into()),
            time: 1_700_000_000,
            entrypoint: &["/usr/bin/viptrace"],
            compressed: true,
        }
    }

    fn layers(folder: &Path) -> [Archive; 2] {
        let binary = folder.join("viptrace");
        fs::write(&binary, "binary").unwrap();
        let mut first = Archive::new();
        first.file("usr/bin/viptrace", &binary, 0o755);
        let mut second = Archive::new();
        second.symlink("lib", "usr/lib");
        second.text("etc/protocols", "tcp 6\n", 0o644);
        [first, second]
    }

    /// The entries of a tar file: path to mode, owner, time and bytes.
    fn entries(bytes: &[u8]) -> BTreeMap<String, (u32, u64, u64, Vec<u8>)> {
        let mut archive = tar::Archive::new(bytes);
        let read = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            let header = entry.header();
            (path, (header.mode().unwrap(), header.uid().unwrap(), header.mtime().unwrap(), data))
        });
        read.collect()
    }

    #[test]
    fn equal_inputs_give_equal_bytes_whatever_the_files_times() {
        let here = tempfile::tempdir().unwrap();
        let [first, second] = layers(here.path());
        let once = image().archive(&[&first, &second]).unwrap();
        let file = fs::File::options().write(true).open(here.path().join("viptrace")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(once == image().archive(&[&first, &second]).unwrap(), "another archive");
        fs::write(here.path().join("viptrace"), "changed").unwrap();
        assert!(once != image().archive(&[&first, &second]).unwrap(), "the same archive");
    }

    /// Follows the digests from the index to the files of the layers.
    #[test]
    fn an_archive_is_a_complete_image_layout() {
        let here = tempfile::tempdir().unwrap();
        let [first, second] = layers(here.path());
        let outer = entries(&image().archive(&[&first, &second]).unwrap());
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let blob = |descriptor: &Value| {
            let name = descriptor["digest"].as_str().unwrap();
            let (_, _, _, bytes) = &outer[&format!("blobs/{}", name.replace(':', "/"))];
            assert_eq!(
                (digest(bytes).as_str(), bytes.len()),
                (name, descriptor["size"].as_u64().unwrap() as usize)
            );
            bytes.clone()
        };
        assert_eq!(json(&outer["oci-layout"].3), json!({"imageLayoutVersion": "1.0.0"}));
        let listed = &json(&outer["index.json"].3)["manifests"][0];
        assert_eq!(listed["annotations"]["org.opencontainers.image.ref.name"], "0.1.0");
        assert_eq!(listed["annotations"]["io.containerd.image.name"], "docker.io/library/viptrace:0.1.0");
        let manifest = json(&blob(listed));
        let config = json(&blob(&manifest["config"]));
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        assert_eq!(config["config"]["Entrypoint"], json!(["/usr/bin/viptrace"]));
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.revision"], "abc");
        let mut files = BTreeMap::new();
        for (number, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
            let mut tar = Vec::new();
            flate2::read::GzDecoder::new(blob(layer).as_slice()).read_to_end(&mut tar).unwrap();
            assert_eq!(config["rootfs"]["diff_ids"][number], digest(&tar));
            files.extend(entries(&tar));
        }
        assert_eq!(files["usr/bin/viptrace"], (0o755, 0, 1_700_000_000, b"binary".to_vec()));
        assert_eq!(files["etc/protocols"].3, b"tcp 6\n");
        assert_eq!(files["lib"].0, 0o777);
        assert_eq!(files["usr/bin"].0, 0o755);
    }

    #[test]
    fn a_layer_may_be_left_uncompressed() {
        let here = tempfile::tempdir().unwrap();
        let [first, _] = layers(here.path());
        let image = Image { compressed: false, ..image() };
        let outer = entries(&image.archive(&[&first]).unwrap());
        let is_layer = |bytes: &[u8]| entries(bytes).contains_key("usr/bin/viptrace");
        assert!(outer.iter().any(|(path, (_, _, _, bytes))| {
            path.starts_with("blobs/") && !bytes.starts_with(b"{") && is_layer(bytes)
        }));
    }

    #[test]
    fn a_missing_file_is_named() {
        let mut layer = Archive::new();
        layer.file("x", Path::new("/nonexistent/x"), 0o755);
        let error = image().archive(&[&layer]).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/x"), "{error:#}");
    }
}
