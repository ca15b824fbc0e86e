//! The plugin for krew, kubectl's plugin manager: an archive for each system, and the manifest that names them with their
//! checksums, by the rules of krew's validation (`pkg/index/validation`, krew 0.4).
//!
//! Both depend on their inputs alone. krew installs one program: it does not install the one that completes names.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cpio::Archive;
use crate::oci;

/// The plugin's name, and that of its manifest's file.
pub(crate) const NAME: &str = "viptrace";
const PROGRAM: &str = "kubectl-viptrace";
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// A version of the plugin.
#[derive(Debug)]
pub(crate) struct Release {
    /// Without a leading `v`.
    pub(crate) version: String,
    /// The time of every file, in seconds since 1970.
    pub(crate) time: u64,
    platforms: Vec<Value>,
}

impl Release {
    pub(crate) fn new(version: &str, time: u64) -> Self {
        Self { version: version.to_owned(), time, platforms: Vec::new() }
    }

    /// Writes the archive of a program, for a system and an architecture as Go names them, into `folder`. Returns its name.
    pub(crate) fn pack(
        &mut self,
        (system, architecture): (&str, &str),
        program: &Path,
        licence: &Path,
        folder: &Path,
    ) -> Result<String> {
        let name = format!("{NAME}-v{}-{system}-{architecture}.tar.gz", self.version);
        let mut archive = Archive::new();
        archive.file(PROGRAM, program, 0o755);
        // krew's rules require it.
        archive.file("LICENSE", licence, 0o644);
        let bytes = oci::compressed(&oci::tar(&archive, self.time)?)?;
        let file = folder.join(&name);
        fs::write(&file, &bytes).with_context(|| format!("could not write {}", file.display()))?;
        let files: Vec<Value> =
            [PROGRAM, "LICENSE"].iter().map(|name| json!({"from": name, "to": "."})).collect();
        self.platforms.push(json!({
            "selector": {"matchLabels": {"os": system, "arch": architecture}},
            "uri": format!("{REPOSITORY}/releases/download/v{}/{name}", self.version),
            "sha256": oci::digest(&bytes).trim_start_matches("sha256:"),
            "files": files,
            "bin": PROGRAM,
        }));
        Ok(name)
    }

    /// Writes the manifest of all packed archives into `folder`.
    pub(crate) fn write_manifest(&self, folder: &Path) -> Result<()> {
        let file = folder.join(format!("{NAME}.yaml"));
        let text = serde_saphyr::to_string(&self.manifest()).context("could not write krew's manifest")?;
        fs::write(&file, text).with_context(|| format!("could not write {}", file.display()))
    }

    fn manifest(&self) -> Value {
        json!({
            "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
            "kind": "Plugin",
            "metadata": {"name": NAME},
            "spec": {
                "version": format!("v{}", self.version),
                "homepage": REPOSITORY,
                "shortDescription": "Find the hop that broke a Service",
                "description": "Runs viptrace on the nodes that matter, in Pods that it removes afterwards, watches what \
                                their kernels do with connections to a Service, and names the cause with its evidence.\n",
                "caveats": "The Pods need the nodes' network and the capabilities BPF, PERFMON and NET_ADMIN:\n\
                            their namespace (--pod-namespace, kube-system) needs the Pod Security level privileged.\n",
                "platforms": self.platforms,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::call::Call;

    use super::*;

    /// The rules of `ValidatePlugin` and `ValidatePlatform` in krew, and those of its index for names and texts.
    fn validate(manifest: &Value, file: &str) {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
        assert_eq!(manifest["kind"], "Plugin");
        let name = text(&manifest["metadata"]["name"]);
        assert_eq!(format!("{name}.yaml"), file);
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !name.starts_with("kube"));
        let spec = &manifest["spec"];
        let version = text(&spec["version"]);
        let numbers: Vec<&str> = version.strip_prefix('v').unwrap().splitn(3, '.').collect();
        assert_eq!(numbers.len(), 3, "{version}");
        let short = text(&spec["shortDescription"]);
        assert!(!short.is_empty() && short.len() <= 50 && !short.contains('\n') && !short.ends_with('.'));
        assert!(!text(&spec["description"]).is_empty() && text(&spec["homepage"]).starts_with("https://"));
        let platforms = spec["platforms"].as_array().unwrap();
        assert!(!platforms.is_empty());
        let mut selected = Vec::new();
        for platform in platforms {
            let labels = &platform["selector"]["matchLabels"];
            assert!(!selected.contains(labels), "two archives for {labels}");
            selected.push(labels.clone());
            assert!(["linux", "darwin", "windows"].contains(&labels["os"].as_str().unwrap()));
            assert!(["amd64", "arm64"].contains(&labels["arch"].as_str().unwrap()));
            let uri = text(&platform["uri"]);
            assert!(uri.starts_with("https://") && uri.contains(&version) && uri.ends_with(".tar.gz"));
            let sum = text(&platform["sha256"]);
            assert!(sum.len() == 64 && sum.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)));
            let files = platform["files"].as_array().unwrap();
            let is_relative = |path: &Value| !text(path).starts_with('/') && !text(path).contains("..");
            assert!(files.iter().all(|file| is_relative(&file["from"]) && is_relative(&file["to"])));
            assert!(
                files.iter().any(|file| file["from"] == platform["bin"]) && is_relative(&platform["bin"])
            );
        }
    }

    #[test]
    fn the_manifest_keeps_krews_rules_and_names_the_archives() {
        let folder = tempfile::tempdir().unwrap();
        let [program, licence] = ["viptrace", "LICENSE"].map(|name| folder.path().join(name));
        fs::write(&program, "program").unwrap();
        fs::write(&licence, "licence").unwrap();
        let mut release = Release::new(env!("CARGO_PKG_VERSION"), 1_700_000_000);
        let mut names = Vec::new();
        for architecture in ["amd64", "arm64"] {
            names.push(release.pack(("linux", architecture), &program, &licence, folder.path()).unwrap());
        }
        release.write_manifest(folder.path()).unwrap();
        let text = fs::read_to_string(folder.path().join("viptrace.yaml")).unwrap();
        let manifest: Value = serde_saphyr::from_str(&text).unwrap();
        validate(&manifest, "viptrace.yaml");

        let platforms = manifest["spec"]["platforms"].as_array().unwrap();
        for (platform, name) in platforms.iter().zip(&names) {
            assert!(platform["uri"].as_str().unwrap().ends_with(name), "{platform}");
            let call = Call::new("compute a checksum", "sha256sum").arg(name).directory(folder.path());
            let sum = call.read().unwrap();
            assert_eq!(sum.split_whitespace().next(), platform["sha256"].as_str());
            let list = ["--list", "--verbose", "--file", name];
            let call = Call::new("list an archive", "tar").args(list).directory(folder.path());
            let listed = call.read().unwrap();
            assert!(listed.contains("-rwxr-xr-x 0/0") && listed.contains(" kubectl-viptrace\n"), "{listed}");
            assert!(listed.contains(" LICENSE\n"), "{listed}");
        }
    }
}
