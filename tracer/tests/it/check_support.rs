//! Captured folders for tests of `viptrace check`: real captures in the form of a must-gather, and edited copies.
use std::{
    fs,
    path::{Path, PathBuf},
};

use viptrace::{
    class::Class,
    cluster::Key,
    diagnosis::triage::{CheckReport, Facts, FindingRecord, Level, Scope, triage},
    node::capture::folder,
};

use crate::terminal_support::copy;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

/// A folder made of captures.
pub(crate) struct Gathered(tempfile::TempDir);

impl Gathered {
    /// The lists of the small cluster, and in `node/` the files of these captures. A later capture's files replace
    /// an earlier one's, including the cluster's.
    pub(crate) fn new(captures: &[&str]) -> Self {
        Self::of("cluster", captures)
    }

    /// With the lists of another cluster.
    pub(crate) fn of(cluster: &str, captures: &[&str]) -> Self {
        let gathered = Self(tempfile::tempdir().unwrap());
        for name in ["services", "endpointslices", "pods", "nodes", "daemonsets"] {
            let list = format!("{name}.json");
            let from = fixtures().join(cluster).join(&list);
            if from.exists() {
                gathered.copy(&from, &format!("cluster/{list}"));
            }
        }
        for capture in captures {
            let folder = fixtures().join(capture);
            let mut files: Vec<_> =
                fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
            files.sort();
            for file in files {
                let name = file.file_name().unwrap().to_str().unwrap().to_owned();
                let is_list = gathered.path().join("cluster").join(&name).exists();
                gathered
                    .copy(&file, &if is_list { format!("cluster/{name}") } else { format!("node/{name}") });
            }
        }
        gathered
    }

    fn copy(&self, from: &Path, to: &str) {
        self.write(to, &fs::read_to_string(from).unwrap());
    }

    pub(crate) fn copy_to(&self, folder: &Path) {
        copy(self.path(), folder);
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(String) -> String) {
        let path = self.path().join(name);
        let before = fs::read_to_string(&path).unwrap();
        let after = change(before.clone());
        assert_ne!(before, after, "the edit of {name} changes nothing");
        fs::write(path, after).unwrap();
    }

    pub(crate) fn facts(&self) -> Facts {
        let read = folder::read(self.path(), None).unwrap();
        assert!(read.warnings.is_empty(), "{:?}", read.warnings);
        Facts::read(&read.capture)
    }

    pub(crate) fn check(&self) -> CheckReport {
        let facts = self.facts();
        let mut report = triage(&facts, &Scope::default());
        report.facts = facts.digest();
        report
    }

    pub(crate) fn check_service(&self, namespace: &str, name: &str) -> CheckReport {
        triage(&self.facts(), &Scope { service: Some(Key::new(namespace, name)) })
    }
}

/// `C20 shop/checkout`, or `C2` for a finding about the node.
pub(crate) fn name(finding: &FindingRecord) -> String {
    match &finding.service {
        Some(service) => format!("{} {}/{}", finding.class, service.namespace, service.name),
        None => finding.class.to_string(),
    }
}

/// The findings other than notes, in the order of their names.
pub(crate) fn named(report: &CheckReport) -> Vec<String> {
    let mut names: Vec<String> =
        report.findings.iter().filter(|finding| finding.level != Level::Note).map(name).collect();
    names.sort();
    names
}

/// Only the faults.
pub(crate) fn faults(report: &CheckReport) -> Vec<String> {
    report.findings.iter().filter(|finding| finding.level == Level::Fault).map(name).collect()
}

/// The only finding of this class.
pub(crate) fn only(report: &CheckReport, class: Class) -> &FindingRecord {
    let found: Vec<&FindingRecord> =
        report.findings.iter().filter(|finding| finding.class == class).collect();
    assert_eq!(found.len(), 1, "{class}: {:#?}", report.findings);
    found[0]
}

/// Whether any evidence for the finding contains this text.
pub(crate) fn says(finding: &FindingRecord, text: &str) -> bool {
    finding.evidence.iter().any(|evidence| evidence.content.contains(text))
}
