//! A capture as a folder: written by `viptrace capture`, and read from any folder of captured files (a must-gather).
//!
//! Owns the walk, its limits and the handling of several files of one kind. Unusable files are named; the audit reports
//! missing ones. Only a folder without any usable file is an error.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Artifact, Capture, Entry, Kind, MANIFEST, Manifest, manifest::Missing, recognise::recognise};
use crate::{
    node::gap::Reason,
    platform,
    text::{self, count, shortened},
    time::Timestamp,
};

/// Larger files are skipped: parsing takes several times a file's size in memory.
const MAX_FILE_BYTES: u64 = 512 << 20;
const MAX_FILES: usize = 20_000;
const MAX_DEPTH: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot read the folder {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "nothing in {path} can be checked: it has no rules, no list of objects and no file of kube-proxy in {}",
        count(*seen, "file")
    )]
    Empty { path: PathBuf, seen: usize },
    #[error("{path} has no node {node}: it is a capture of {captured}")]
    OtherNode { path: PathBuf, node: String, captured: String },
    #[error("{path} is not empty and is not a capture of viptrace")]
    Occupied { path: PathBuf },
    #[error("cannot write {path}: {source}")]
    Unwritable { path: PathBuf, source: io::Error },
}

/// The result of reading a folder.
#[derive(Clone, Debug)]
pub struct ReadFolder {
    pub capture: Capture,
    /// The unusable files, in words.
    pub warnings: Vec<String>,
}

struct Found {
    kind: Kind,
    path: PathBuf,
    text: String,
    modified: Option<Timestamp>,
}

/// Reads every file below `dir`. If there are files of several nodes, those in a folder named `node` count. If there
/// are still two files of one kind, neither is used, because it is unknown which one is meant. Captures of other nodes
/// only are an error.
pub fn read(dir: &Path, node: Option<&str>) -> Result<ReadFolder, FolderError> {
    let mut paths = Vec::new();
    let mut warnings = Vec::new();
    walk(dir, 0, &mut paths).map_err(|source| FolderError::Unreadable { path: dir.to_owned(), source })?;
    // The order of a directory is random; the result must not be.
    paths.sort();
    if paths.len() > MAX_FILES {
        warnings.push(format!("{}: only the first {MAX_FILES} files are read", dir.display()));
        paths.truncate(MAX_FILES);
    }
    let mut found = Vec::new();
    let mut misfits = Vec::new();
    let mut manifests = Vec::new();
    for path in &paths {
        match read_file(path) {
            Ok((text, modified)) => {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if name == MANIFEST {
                    manifests.extend(Manifest::parse(&text).map(|manifest| (path.clone(), manifest)));
                } else if let Some(kind) = recognise(name, &text) {
                    found.push(Found { kind, path: path.clone(), text, modified });
                } else if let Some(kind) = Kind::named(name) {
                    misfits.push(Found { kind, path: path.clone(), text, modified });
                }
            }
            Err(why) => warnings.push(format!("{}: {why}", path.display())),
        }
    }
    // A file with a kind's name and another form is a damaged file of that kind, if there is no other.
    misfits.retain(|misfit| !found.iter().any(|file: &Found| file.kind == misfit.kind));
    found.append(&mut misfits);
    if found.is_empty() {
        return Err(FolderError::Empty { path: dir.to_owned(), seen: paths.len() });
    }
    let mut called = node;
    if let Some(node) = node {
        let captured: BTreeSet<&str> =
            manifests.iter().filter_map(|(_, manifest)| manifest.node.as_deref()).collect();
        let is_here = captured.contains(node) || found.iter().any(|file| is_below(dir, &file.path, node));
        if !is_here && !captured.is_empty() {
            if !is_name_of_host(&captured, node, &found) {
                let captured = shortened(&captured);
                return Err(FolderError::OtherNode { path: dir.to_owned(), node: node.to_owned(), captured });
            }
            called = None;
        }
    }
    let manifest = choose_manifest(&manifests, called);
    let mut capture = Capture { node: node.map(str::to_owned), ..Capture::default() };
    if let Some(manifest) = manifest {
        capture.taken = Some(Timestamp::from_unix_ns(manifest.taken_ns));
        capture.node = capture.node.or_else(|| manifest.node.clone());
        capture.gaps = manifest.gaps.iter().filter_map(Missing::gap).collect();
    }
    choose(dir, found, &mut capture, &mut warnings);
    Ok(ReadFolder { capture, warnings })
}

fn choose_manifest<'m>(manifests: &'m [(PathBuf, Manifest)], node: Option<&str>) -> Option<&'m Manifest> {
    match manifests {
        [(_, only)] if node.is_none() || only.node.is_none() => Some(only),
        several => several
            .iter()
            .map(|(_, manifest)| manifest)
            .find(|manifest| node.is_some() && manifest.node.as_deref() == node),
    }
}

/// Whether the only capture is named after its host, as without `--node`, and the lists know that host by the node's name.
fn is_name_of_host(captured: &BTreeSet<&str>, node: &str, found: &[Found]) -> bool {
    let lists = found.iter().filter(|file| file.kind == Kind::Nodes);
    let lists: Vec<Value> = lists.filter_map(|file| serde_json::from_str(&file.text).ok()).collect();
    let items = lists.iter().filter_map(|list| list.get("items")?.as_array()).flatten();
    let names: BTreeSet<&str> = items.filter_map(|item| item.pointer("/metadata/name")?.as_str()).collect();
    captured.len() == 1 && names.contains(node) && names.is_disjoint(captured)
}

/// Whether the file is in a folder of `dir` with the node's name.
fn is_below(dir: &Path, file: &Path, node: &str) -> bool {
    let inside = file.strip_prefix(dir).unwrap_or(file);
    inside.components().any(|part| part.as_os_str() == node)
}

/// Moves the files into the capture: one of each kind that belongs to a node.
fn choose(dir: &Path, mut found: Vec<Found>, capture: &mut Capture, warnings: &mut Vec<String>) {
    let node = capture.node.clone();
    let below = |file: &Found| node.as_deref().is_some_and(|node| is_below(dir, &file.path, node));
    let nodes = of_several_nodes(&found, below);
    let mut newest = None;
    for kind in Kind::ALL {
        let mut of_kind: Vec<Found> = found.extract_if(.., |file| file.kind == kind).collect();
        if of_kind.iter().any(below) {
            of_kind.retain(below);
        }
        let is_of_nodes = nodes.len() > 1 && folders_of(&of_kind, &nodes).len() > 1;
        // Kubelet rotates logs: all parts together are the log, but not those of several nodes.
        let is_log = matches!(kind, Kind::ProxyLog | Kind::ProxyLogPrevious) && !is_of_nodes;
        if kind.is_of_node() && of_kind.len() > 1 && !is_log {
            let names: Vec<String> =
                of_kind.iter().take(3).map(|file| file.path.display().to_string()).collect();
            let (count, about, list) = (of_kind.len(), kind.about(), names.join(", "));
            if !is_of_nodes {
                warnings
                    .push(format!("{count} files could be {about}: {list}; none is used: keep one of them"));
            }
            capture.miss(kind, Reason::Ambiguous { count, examples: names });
            continue;
        }
        for file in of_kind {
            newest = newest.max(file.modified);
            capture.artifacts.push(Artifact {
                kind,
                text: file.text,
                source: file.path.display().to_string(),
                read: None,
            });
        }
    }
    if nodes.len() > 1 {
        warnings.push(several_nodes(dir, &nodes));
    }
    // Without a manifest: the files are as old as the newest of them, unless they were copied since.
    capture.taken = capture.taken.or(newest);
}

/// The folders next to each other that hold the files of one kind, of several nodes or of several times.
fn of_several_nodes(found: &[Found], is_chosen: impl Fn(&Found) -> bool) -> BTreeSet<PathBuf> {
    let mut parents = BTreeSet::new();
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_of_node()) {
        let of_kind: Vec<&Found> = found.iter().filter(|file| file.kind == kind).collect();
        let is_log = matches!(kind, Kind::ProxyLog | Kind::ProxyLogPrevious);
        if is_log || of_kind.iter().any(|file| is_chosen(file)) {
            continue;
        }
        let folders: BTreeSet<&Path> = of_kind.iter().filter_map(|file| file.path.parent()).collect();
        if folders.len() > 1 {
            parents.extend(folders);
        }
    }
    let Some(first) = parents.first() else { return BTreeSet::new() };
    let common = first.ancestors().find(|above| parents.iter().all(|parent| parent.starts_with(above)));
    let Some(common) = common else { return BTreeSet::new() };
    let below = |parent: &&Path| {
        let next = parent.strip_prefix(common).ok()?.components().next();
        Some(next.map_or_else(|| common.to_owned(), |next| common.join(next)))
    };
    parents.iter().filter_map(below).collect()
}

/// Those of these folders that the files are in.
fn folders_of<'n>(files: &[Found], nodes: &'n BTreeSet<PathBuf>) -> BTreeSet<&'n PathBuf> {
    let deepest = |file: &Found| nodes.iter().filter(|node| file.path.starts_with(node)).max();
    files.iter().filter_map(deepest).collect()
}

/// One sentence for all their files, with the command that chooses one.
fn several_nodes(dir: &Path, nodes: &BTreeSet<PathBuf>) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.display().to_string()).collect();
    let example = names.first().map(String::as_str).unwrap_or_default();
    format!(
        "{} has the files of several nodes, or of several times, and none of these is used: {}; check one at a time with \
         `--from {}`, and with `--cluster-from DIR` if the lists are in another folder",
        dir.display(),
        shortened(&names.iter().map(String::as_str).collect()),
        text::word(example)
    )
}

fn walk(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() && depth < MAX_DEPTH {
            // An unreadable folder does not affect the others.
            let _ = walk(&entry.path(), depth + 1, found);
        } else if kind.is_file() && found.len() <= MAX_FILES {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<(String, Option<Timestamp>), String> {
    let cannot = |error: io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(cannot)?;
    let meta = file.metadata().map_err(cannot)?;
    if meta.len() > MAX_FILE_BYTES {
        return Err(format!("has {} bytes, more than {MAX_FILE_BYTES}; left out", meta.len()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default());
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(cannot)?;
    Ok((text::of_bytes(bytes), meta.modified().ok().and_then(Timestamp::from_system_time)))
}

/// Writes the capture into `dir`, which must be new, empty or an earlier capture of viptrace. Files are readable for
/// their owner only. Returns the manifest.
pub fn write(dir: &Path, capture: &Capture, taken: Timestamp) -> Result<Manifest, FolderError> {
    prepare(dir)?;
    let mut manifest = Manifest::new(taken, capture.node.clone());
    for artifact in &capture.artifacts {
        let same =
            manifest.files.iter().filter(|entry| entry.name.ends_with(artifact.kind.file_name())).count();
        let name = match same {
            0 => artifact.kind.file_name().to_owned(),
            more => format!("{more}-{}", artifact.kind.file_name()),
        };
        write_file(&dir.join(&name), &artifact.text)?;
        manifest.files.push(Entry {
            name,
            source: artifact.source.clone(),
            bytes: artifact.text.len() as u64,
        });
    }
    manifest.gaps = capture.gaps.iter().map(Missing::from).collect();
    let text = serde_json::to_string_pretty(&manifest).unwrap_or_default();
    write_file(&dir.join(MANIFEST), &(text + "\n"))?;
    Ok(manifest)
}

/// Creates the folder, or removes an earlier capture's files from it.
pub fn prepare(dir: &Path) -> Result<(), FolderError> {
    let unwritable = |source| FolderError::Unwritable { path: dir.to_owned(), source };
    match platform::private_folder(&mut fs::DirBuilder::new()).recursive(true).create(dir) {
        Ok(()) => {}
        Err(source) => return Err(unwritable(source)),
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(unwritable)? {
        names.push(entry.map_err(unwritable)?.file_name());
    }
    if names.is_empty() {
        return Ok(());
    }
    let own = fs::read_to_string(dir.join(MANIFEST)).ok().and_then(|text| Manifest::parse(&text));
    let Some(own) = own else { return Err(FolderError::Occupied { path: dir.to_owned() }) };
    let written = |name: &std::ffi::OsString| {
        name == MANIFEST || own.files.iter().any(|entry| name.to_str() == Some(entry.name.as_str()))
    };
    if !names.iter().all(written) {
        return Err(FolderError::Occupied { path: dir.to_owned() });
    }
    for name in names {
        fs::remove_file(dir.join(name)).map_err(unwritable)?;
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<(), FolderError> {
    let write = || {
        let mut file =
            platform::private(&mut fs::OpenOptions::new()).write(true).create_new(true).open(path)?;
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| FolderError::Unwritable { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture() -> Capture {
        let mut capture = Capture { node: Some("worker-1".into()), ..Capture::default() };
        capture.put(Kind::ProxyMode, "http://127.0.0.1:10249/proxyMode", "ipvs".into());
        capture.put(Kind::Sysctls, "/proc/sys", "net.ipv4.ip_forward = 1\n".into());
        capture.put(Kind::ProxyLog, "0.log", "I1120 23:24:57.911600   1 proxier.go:1] a\n".into());
        capture.put(Kind::ProxyLog, "1.log", "I1120 23:24:58.911600   1 proxier.go:1] b\n".into());
        capture.miss(Kind::IpsetSave, Reason::CommandMissing { command: "ipset".into() });
        capture
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new");
        let taken = Timestamp::from_unix_secs(1_700_000_000);
        let written = write(&folder, &capture(), taken).unwrap();
        assert_eq!((written.files.len(), written.gaps.len()), (4, 1));
        let read = read(&folder, None).unwrap();
        assert!(read.warnings.is_empty(), "{:?}", read.warnings);
        let read = read.capture;
        assert_eq!((read.taken, read.node.as_deref()), (Some(taken), Some("worker-1")));
        assert_eq!(read.text(Kind::ProxyMode), Some("ipvs"));
        assert_eq!(read.all(Kind::ProxyLog).count(), 2);
        assert_eq!(
            read.why_missing(Kind::IpsetSave),
            Some(&Reason::CommandMissing { command: "ipset".into() })
        );
    }

    #[test]
    fn a_file_with_a_kinds_name_is_that_kinds_where_no_other_is() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("services.json"), "{\"kind\": \"ServiceLi").unwrap();
        fs::write(dir.path().join("proxyMode.txt"), "ipvs").unwrap();
        assert!(read(dir.path(), None).unwrap().capture.get(Kind::Services).is_some());
        fs::write(dir.path().join("all.json"), "{\"kind\": \"ServiceList\", \"items\": []}").unwrap();
        let read = read(dir.path(), None).unwrap().capture;
        let sources: Vec<_> = read.all(Kind::Services).map(|artifact| artifact.source.as_str()).collect();
        assert!(matches!(sources.as_slice(), [only] if only.ends_with("all.json")), "{sources:?}");
    }

    #[test]
    fn only_its_own_folder_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &capture(), Timestamp::MIN).unwrap();
        write(dir.path(), &capture(), Timestamp::MIN).unwrap();
        fs::write(dir.path().join("precious.txt"), "x").unwrap();
        let refused = write(dir.path(), &capture(), Timestamp::MIN);
        assert!(matches!(refused, Err(FolderError::Occupied { .. })), "{refused:?}");
        assert!(dir.path().join("precious.txt").exists() && dir.path().join("sysctl.txt").exists());
    }

    #[test]
    fn two_nodes_in_one_folder_are_told_apart_by_name_only() {
        let dir = tempfile::tempdir().unwrap();
        for (node, mode) in [("worker-1", "ipvs"), ("worker-2", "iptables")] {
            fs::create_dir_all(dir.path().join(node)).unwrap();
            fs::write(dir.path().join(node).join("proxyMode.txt"), mode).unwrap();
        }
        let one = read(dir.path(), Some("worker-2")).unwrap().capture;
        assert_eq!(one.text(Kind::ProxyMode), Some("iptables"));
        let either = read(dir.path(), None).unwrap();
        assert_eq!(either.capture.text(Kind::ProxyMode), None);
        let why = either.capture.why_missing(Kind::ProxyMode);
        assert!(matches!(why, Some(Reason::Ambiguous { count: 2, .. })), "{why:?}");
        // One line for all their files, with a command; and their logs are not one.
        for node in ["worker-1", "worker-2"] {
            fs::write(dir.path().join(node).join("livez.txt"), "ok\n200").unwrap();
            let log = "I1120 23:24:57.911600   1 proxier.go:1] a\n";
            fs::write(dir.path().join(node).join("kube-proxy.log"), log).unwrap();
        }
        let both = read(dir.path(), None).unwrap();
        let [warning] = both.warnings.as_slice() else { panic!("{:?}", both.warnings) };
        let command = format!("--from {}`", dir.path().join("worker-1").display());
        assert!(warning.contains("the files of several nodes") && warning.contains(&command), "{warning}");
        assert!(both.capture.get(Kind::ProxyLog).is_none(), "{:?}", both.capture.artifacts);
        // A folder of a node has folders of its own.
        for node in ["worker-1", "worker-2"] {
            fs::create_dir_all(dir.path().join(node).join("net")).unwrap();
            fs::write(dir.path().join(node).join("net").join("sysctl.txt"), "net.ipv4.ip_forward = 1\n")
                .unwrap();
        }
        let warnings = read(dir.path(), None).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains(&command), "{warnings:?}");
        // Without a manifest nothing says which nodes are in it: the name may be that of the files' node.
        assert!(read(dir.path(), Some("worker-3")).is_ok());
        assert!(matches!(read(tempfile::tempdir().unwrap().path(), None), Err(FolderError::Empty { .. })));
    }

    #[test]
    fn a_capture_of_another_node_is_not_of_the_named_one() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a"), &capture(), Timestamp::MIN).unwrap();
        assert!(read(dir.path(), Some("worker-1")).is_ok());
        let refused = read(dir.path(), Some("worker-9")).unwrap_err().to_string();
        assert!(refused.ends_with(" has no node worker-9: it is a capture of worker-1"), "{refused}");
        let other = Capture { node: Some("worker-2".into()), ..capture() };
        write(&dir.path().join("b"), &other, Timestamp::MIN).unwrap();
        let refused = read(dir.path(), Some("worker-9")).unwrap_err().to_string();
        assert!(refused.ends_with("it is a capture of worker-1 and worker-2"), "{refused}");
        // Files that another program saved in the folder of the named node are that node's.
        fs::create_dir_all(dir.path().join("worker-9")).unwrap();
        fs::write(dir.path().join("worker-9").join("proxyMode.txt"), "iptables").unwrap();
        let read = read(dir.path(), Some("worker-9")).unwrap().capture;
        assert_eq!(read.text(Kind::ProxyMode), Some("iptables"));
        assert_eq!(read.why_missing(Kind::IpsetSave), None, "the gaps of another node's capture");
    }
}
