//! The cluster from a folder: `kubectl get -o json` lists and watch streams, for air-gapped and post-incident use.
//!
//! Owns the recognition of files and the times of their objects. Must not contact an API server. An unreadable file is
//! a warning that names it. Only a folder without anything usable is an error.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    cluster::{
        history::History,
        model::{Change, Key, Kind, Trimmed},
        trim::{Oddity, key_of, trim},
    },
    error::Hint,
    parse::ParseError,
    text,
    time::Timestamp,
};

#[cfg(test)]
mod tests;

/// Larger files are skipped with a warning: parsing takes several times a file's size in memory.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The maximum number of warnings of one kind for a file. The rest is counted.
const MAX_WARNINGS: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("cannot read the folder {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("no Services, EndpointSlices, Pods or Nodes in {path}{why}")]
    Empty { path: PathBuf, why: String },
}

impl Hint for FolderError {
    fn hint(&self) -> Option<String> {
        let command = "kubectl get services,endpointslices,pods,nodes -A -o json > DIR/objects.json";
        Some(format!("`{command}` saves the lists in a folder"))
    }
}

/// The result of reading a folder.
#[derive(Debug)]
pub struct Folder {
    pub history: History,
    /// When the files were written: the oldest file's modification time. `None` if the file system has none.
    pub taken: Option<Timestamp>,
    pub warnings: Vec<Warning>,
    /// The number of skipped parts of objects.
    pub oddities: u64,
}

/// A list, or a single object. Its items are read later, each by its kind.
#[derive(Deserialize)]
struct Document<'t> {
    #[serde(borrow, default)]
    kind: Option<Cow<'t, str>>,
    #[serde(default)]
    metadata: Option<ListMeta>,
    #[serde(borrow, default)]
    items: Option<Vec<&'t RawValue>>,
}

/// An item of a list of several kinds.
#[derive(Deserialize)]
struct Item<'t> {
    #[serde(borrow, default)]
    kind: Option<Cow<'t, str>>,
}

impl Item<'_> {
    fn kind_of(item: &RawValue) -> Option<Kind> {
        let item: Item<'_> = serde_json::from_str(item.get()).ok()?;
        item.kind?.parse().ok()
    }
}

/// A file, or a part of it, that could not be read or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error("{name}: {why}")]
    Unusable { name: String, why: String },
    #[error("{name} is unreadable at {error}")]
    Unparsable { name: String, error: ParseError },
    /// One line of a watch stream.
    #[error("{name} is unreadable at {error}; the line is skipped")]
    Line { name: String, error: ParseError },
    #[error("{name}: {count} more lines skipped")]
    MoreLines { name: String, count: usize },
    #[error("no list of {} in the folder: what depends on it is not known", kind.resource())]
    NoList { kind: Kind },
    #[error("{oddity}")]
    Oddity { oddity: Oddity },
    #[error("{count} more parts of objects could not be used")]
    MoreOddities { count: usize },
}

/// One line of a watch stream.
struct Event {
    kind: Kind,
    deleted: bool,
    /// Comparable as an integer (Kubernetes promises it since 1.35, etcd has always made it so).
    version: Option<u64>,
    object: Value,
}

/// The state of a kind's lists.
#[derive(Clone, Copy, Default)]
struct Listed {
    seen: bool,
    /// The list's resourceVersion, if it has one.
    version: Option<u64>,
}

#[derive(Default)]
struct Reader<'t> {
    lists: Vec<(Kind, &'t RawValue)>,
    /// By [`Kind::index`].
    listed: [Listed; Kind::ALL.len()],
    events: Vec<Event>,
    taken: Option<Timestamp>,
    warnings: Vec<Warning>,
}

/// Reads the folder (not its subfolders). Keeps versions older than the look-back before the newest change: the caller
/// requested them.
pub fn read(dir: &Path, look_back: std::time::Duration) -> Result<Folder, FolderError> {
    let unreadable = |source| FolderError::Unreadable { path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        files.push(entry.map_err(unreadable)?.path());
    }
    // Directories have no order. The result must not depend on it.
    files.sort();
    let mut texts = Vec::new();
    let mut warnings = Vec::new();
    for path in files {
        let is_stream = path.to_str().is_some_and(|name| name.ends_with(".watch.jsonl"));
        if !is_stream && path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match text_of(&path) {
            Ok((text, written)) => texts.push((path, is_stream, text, written)),
            Err(why) => warnings.push(Warning::Unusable { name: path.display().to_string(), why }),
        }
    }
    let mut reader = Reader { warnings, ..Reader::default() };
    for (path, is_stream, text, written) in &texts {
        let is_ours = if *is_stream {
            reader.lines(&path.display().to_string(), text);
            true
        } else {
            reader.take(text).unwrap_or_else(|error| {
                let name = path.display().to_string();
                reader.warnings.push(Warning::Unparsable { name, error: error.into() });
                false
            })
        };
        // The age of an unrelated file does not date the objects.
        if is_ours && let Some(written) = written {
            reader.taken = Some(reader.taken.map_or(*written, |oldest| oldest.min(*written)));
        }
    }
    if reader.lists.is_empty() && reader.events.is_empty() && !reader.listed.iter().any(|listed| listed.seen)
    {
        let why = reader.warnings.first().map(|first| format!(": {first}")).unwrap_or_default();
        return Err(FolderError::Empty { path: dir.to_owned(), why });
    }
    Ok(reader.into_folder(History::new(look_back)))
}

/// A file's text, and the time of its last change.
fn text_of(path: &Path) -> Result<(String, Option<Timestamp>), String> {
    let mut file = File::open(path).map_err(|error| format!("cannot open it: {error}"))?;
    let meta = file.metadata().map_err(|error| format!("cannot examine it: {error}"))?;
    if !meta.is_file() {
        return Err("not a regular file".to_owned());
    }
    if meta.len() > MAX_FILE_BYTES {
        return Err(format!(
            "{} bytes are more than {MAX_FILE_BYTES}: split it into several lists",
            meta.len()
        ));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| format!("cannot read it: {error}"))?;
    Ok((text::of_bytes(bytes), meta.modified().ok().and_then(Timestamp::from_system_time)))
}

/// The history from lists and watch streams. Each text comes with its name for warnings.
pub fn from_texts<'t>(
    lists: impl IntoIterator<Item = (&'t str, &'t str)>,
    streams: impl IntoIterator<Item = (&'t str, &'t str)>,
    look_back: std::time::Duration,
) -> Folder {
    let mut reader = Reader::default();
    for (name, text) in lists {
        let unparsable = |error| Warning::Unparsable { name: name.to_owned(), error };
        match reader.take(text) {
            Ok(true) => {}
            Ok(false) => {
                let why = "it holds no Services, EndpointSlices, Pods or Nodes";
                reader.warnings.push(unparsable(ParseError::new(1, why)));
            }
            Err(error) => reader.warnings.push(unparsable(error.into())),
        }
    }
    for (name, text) in streams {
        reader.lines(name, text);
    }
    reader.into_folder(History::new(look_back))
}

impl<'t> Reader<'t> {
    /// Takes a list or an object. Returns whether its kind is followed. A text that is not JSON is an error.
    fn take(&mut self, text: &'t str) -> serde_json::Result<bool> {
        let document: Document<'t> = match serde_json::from_str(text) {
            Ok(document) => document,
            Err(error) if error.is_data() => return Ok(false),
            Err(error) => return Err(error),
        };
        let kind_name = document.kind.unwrap_or_default();
        if let Ok(kind) = kind_name.parse() {
            self.list_seen(kind, None);
            self.lists.push((kind, serde_json::from_str(text)?));
            return Ok(true);
        }
        let Some(item_kind) = kind_name.strip_suffix("List") else { return Ok(false) };
        let list_kind: Option<Kind> = item_kind.parse().ok();
        let version = document.metadata.and_then(|metadata| metadata.resource_version?.parse().ok());
        if let Some(kind) = list_kind {
            self.list_seen(kind, version);
        }
        let mut taken = list_kind.is_some();
        for item in document.items.into_iter().flatten() {
            if let Some(kind) = list_kind.or_else(|| Item::kind_of(item)) {
                self.list_seen(kind, version);
                self.lists.push((kind, item));
                taken = true;
            }
        }
        Ok(taken)
    }

    fn list_seen(&mut self, kind: Kind, version: Option<u64>) {
        if let Some(listed) = self.listed.get_mut(kind.index()) {
            *listed = Listed { seen: true, version: listed.version.max(version) };
        }
    }

    fn lines(&mut self, name: &str, text: &str) {
        let name = || name.to_owned();
        let mut bad = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = |why: String| ParseError::new(index + 1, why);
            match event(line) {
                Ok(event) => self.events.extend(event),
                Err(why) => bad.push(Warning::Line { name: name(), error: at(why) }),
            }
        }
        let count = bad.len().saturating_sub(MAX_WARNINGS);
        self.warnings.extend(bad.into_iter().take(MAX_WARNINGS));
        if count > 0 {
            self.warnings.push(Warning::MoreLines { name: name(), count });
        }
    }

    fn into_folder(mut self, mut history: History) -> Folder {
        let mut odd = Vec::new();
        let mut events = std::mem::take(&mut self.events);
        if events.iter().all(|event| event.version.is_some()) {
            events.sort_by_key(|event| event.version);
        }
        // The list is newer than its stream: the stream is the older part of the history.
        let listed = self.listed;
        let precedes_list = |event: &Event| {
            let list = listed.get(event.kind.index()).and_then(|listed| listed.version);
            matches!((event.version, list), (Some(event), Some(list)) if event <= list)
        };
        let (earlier, later): (Vec<_>, Vec<_>) = events.into_iter().partition(precedes_list);
        let mut clock = Timestamp::MIN;
        let mut unlisted = BTreeSet::new();
        for event in earlier {
            let touched = replay(&mut history, event, &mut clock, &mut odd);
            unlisted.extend(touched);
        }
        for (kind, item) in self.lists {
            let Some(trimmed) = trim(kind, item, &mut odd) else { continue };
            let from = trimmed.changed.unwrap_or(Timestamp::MIN);
            unlisted.remove(&(kind, trimmed.object.key().clone()));
            clock = clock.max(from);
            // There is no clock to compare with: the objects have only their own times.
            history.apply_listed(Timestamp::from_unix_ns(u64::MAX), trimmed);
        }
        for (kind, key) in unlisted {
            history.apply(clock, Change::Delete(kind, key));
        }
        for kind in Kind::ALL {
            if self.listed.get(kind.index()).is_some_and(|listed| listed.seen) {
                history.mark_known(kind);
            } else {
                self.warnings.push(Warning::NoList { kind });
            }
        }
        for event in later {
            replay(&mut history, event, &mut clock, &mut odd);
        }
        let oddities = odd.len();
        let first = odd.into_iter().take(MAX_WARNINGS);
        self.warnings.extend(first.map(|oddity| Warning::Oddity { oddity }));
        if let Some(count) = oddities.checked_sub(MAX_WARNINGS).filter(|count| *count > 0) {
            self.warnings.push(Warning::MoreOddities { count });
        }
        Folder { history, taken: self.taken, warnings: self.warnings, oddities: oddities as u64 }
    }
}

/// One line of a stream; `Ok(None)` for bookmarks, errors and kinds that are not followed.
fn event(line: &str) -> Result<Option<Event>, String> {
    let mut value: Value = serde_json::from_str(line).map_err(|error| ParseError::from(error).why)?;
    let deleted = match value.get("type").and_then(Value::as_str) {
        Some("ADDED" | "MODIFIED") => false,
        Some("DELETED") => true,
        Some(_) => return Ok(None),
        None => return Err("no \"type\": a line is {\"type\":…,\"object\":…}".to_owned()),
    };
    let object = value.get_mut("object").map(Value::take).unwrap_or_default();
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let Ok(kind) = kind.parse() else { return Ok(None) };
    let version = object.pointer("/metadata/resourceVersion").and_then(resource_version);
    Ok(Some(Event { kind, deleted, version, object }))
}

/// Applies one event. Its time is the object's own record of its latest change. If that is not newer than the events
/// before it (a deletion leaves no trace on a Service), the event counts as directly after them.
fn replay(
    history: &mut History,
    event: Event,
    clock: &mut Timestamp,
    odd: &mut Vec<Oddity>,
) -> Option<(Kind, Key)> {
    let Event { kind, deleted, object, .. } = event;
    let fallback = key_of(kind, &object);
    let trimmed = trim(kind, &object, odd);
    let own = trimmed.as_ref().and_then(|trimmed: &Trimmed| trimmed.changed).unwrap_or(Timestamp::MIN);
    let at = if deleted { own.max(*clock) } else { own };
    *clock = (*clock).max(own);
    let key = trimmed.as_ref().map(|trimmed| trimmed.object.key().clone()).or(fallback)?;
    match trimmed {
        Some(trimmed) if !deleted => history.apply(at, Change::Put(trimmed)),
        _ if deleted => history.apply(at, Change::Delete(kind, key.clone())),
        _ => return None,
    }
    Some((kind, key))
}

fn resource_version(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}
