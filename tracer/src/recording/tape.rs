//! Several files as the traces that they are parts of.
//!
//! The agent's flight recorder writes one trace into many segments, and every node has its own. Owns which files are one
//! trace, their order, and the account of those that cannot be read. Each [`Tape`] plays the files of one trace as one
//! recording. Compares no clocks and prints nothing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use super::{
    End, Header, OpenError, Player, Step,
    frame::FILE_MAGIC,
    item::Assembler,
    reader::{Block, Damage, Reader, Reading},
};
use crate::{
    called,
    cluster::model::Object,
    error::{Hint, sentence},
    session::{Detail, Judgements, WallStep},
    time::Timestamp,
};

/// How deep folders are searched. A link to a folder is not followed, so that no loop is endless.
const MAX_DEPTH: usize = 16;
/// The most files of one replay.
const MAX_FILES: usize = 65_536;
/// The extension of a file that is being written, and that a killed process may have left. Not found in folders.
pub(crate) const PART: &str = "part";
/// The extension that viptrace gives to recordings.
const EXTENSION: &str = "viptrace";
/// The most skipped files and uncovered times named; the others are counted.
const MAX_NAMED: usize = 64;

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot replay {path}: {why}")]
pub struct UnusableFile {
    pub path: PathBuf,
    pub why: String,
    hint: Option<String>,
}

impl Hint for UnusableFile {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

impl UnusableFile {
    fn new(path: PathBuf, why: String) -> Self {
        Self { path, why, hint: None }
    }

    pub(crate) fn io(path: &Path, error: &io::Error) -> Self {
        let hint = Some(called::source_of_recordings());
        Self { path: path.to_owned(), why: sentence(error), hint }
    }

    pub(crate) fn open(path: &Path, error: &OpenError) -> Self {
        Self { path: path.to_owned(), why: sentence(error), hint: error.hint() }
    }
}

/// Whether a file has an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexState {
    Usable,
    /// It is damaged or contradicts itself.
    Damaged,
    /// The file was cut off, or an older viptrace wrote it.
    Missing,
}

/// The traces in files and folders.
#[derive(Debug, Default)]
pub struct Tapes {
    /// By the time of their beginnings.
    pub tapes: Vec<Tape>,
    /// Files that look like recordings and could not be used: the first ones.
    pub skipped: Vec<UnusableFile>,
    /// Further ones of these.
    pub skipped_more: u64,
    /// Files of which another one has as much: the first ones.
    pub copies: Vec<LeftOut>,
    /// Other files in the folders.
    pub others: u64,
}

/// A file that is not played, because another one has as much of the same recording: nothing is missing without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub path: PathBuf,
    pub copy_of: PathBuf,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, copy_of } = self;
        write!(f, "{} begins as {} does: left out as its copy", path.display(), copy_of.display())
    }
}

/// The files of one trace, in their order.
#[derive(Debug)]
pub struct Tape {
    header: Header,
    files: VecDeque<PathBuf>,
    /// All its files.
    all: Vec<PathBuf>,
    playing: Option<Playing>,
    detail: Detail,
    uncovered: Vec<(Timestamp, Timestamp)>,
    /// The damage of the files before this one: the first parts, and their number.
    damaged: Vec<(PathBuf, Damage)>,
    damaged_count: u64,
    skipped: Vec<UnusableFile>,
}

#[derive(Debug)]
struct Playing {
    player: Player<File>,
    path: PathBuf,
    end: Option<End>,
}

impl Tapes {
    /// Finds the recordings among these paths, and in the folders among them; reads their headers. Fails if a path is not
    /// there, or a folder among them cannot be listed.
    pub fn find(paths: &[PathBuf], detail: Detail) -> Result<Self, UnusableFile> {
        let mut found = Self::default();
        let mut files = Vec::new();
        for path in paths {
            let failed = |error: io::Error| UnusableFile::io(path, &error);
            if fs::metadata(path).map_err(failed)?.is_dir() {
                found.search(path, 0, &mut files).map_err(failed)?;
            } else {
                files.push(path.clone());
            }
        }
        found.sort(files, detail);
        Ok(found)
    }

    fn search(&mut self, folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                self.found(path, files);
            } else if depth == MAX_DEPTH {
                self.skip(UnusableFile::new(path, format!("more than {MAX_DEPTH} folders are around it")));
            } else if let Err(error) = self.search(&path, depth + 1, files) {
                self.skip(UnusableFile::io(&path, &error));
            }
        }
        Ok(())
    }

    /// Takes a file of a folder, if it is or should be a recording.
    fn found(&mut self, path: PathBuf, files: &mut Vec<PathBuf>) {
        if !should_be_recording(&path) {
            self.others += 1;
        } else if files.len() == MAX_FILES {
            self.skip(UnusableFile::new(path, format!("a replay reads at most {MAX_FILES} files")));
        } else {
            files.push(path);
        }
    }

    /// Sorts files by trace and time.
    fn sort(&mut self, files: Vec<PathBuf>, detail: Detail) {
        let mut traces: BTreeMap<_, BTreeMap<Timestamp, (PathBuf, Header)>> = BTreeMap::new();
        let mut known = BTreeSet::new();
        for path in files {
            // One file by two names, or named twice, is no copy.
            if fs::canonicalize(&path).is_ok_and(|path| !known.insert(path)) {
                continue;
            }
            let opened = regular(&path)
                .and_then(|file| Reader::open(file).map_err(|error| UnusableFile::open(&path, &error)));
            let header = match opened {
                Ok((_, header)) => header,
                Err(file) => {
                    self.skip(file);
                    continue;
                }
            };
            // A trace has its own clock: the distance is measured once, to the nanosecond.
            let trace = (header.node_name.clone(), header.clock_offset_ns);
            let of_trace = traces.entry(trace).or_default();
            let began = header.started;
            let Some((first, of_first)) = of_trace.remove(&began) else {
                of_trace.insert(began, (path, header));
                continue;
            };
            let (kept, left_out) = if Wholeness::of(&first) < Wholeness::of(&path) {
                ((path, header), first)
            } else {
                ((first, of_first), path)
            };
            if self.copies.len() < MAX_NAMED {
                self.copies.push(LeftOut { path: left_out, copy_of: kept.0.clone() });
            }
            of_trace.insert(began, kept);
        }
        let tape = |files: BTreeMap<Timestamp, (PathBuf, Header)>| {
            let (paths, headers): (VecDeque<_>, Vec<_>) = files.into_values().unzip();
            let header = headers.into_iter().next()?;
            Some(Tape::new(header, paths, detail))
        };
        self.tapes = traces.into_values().filter_map(tape).collect();
        self.tapes.sort_by_key(|tape| tape.header.started);
    }

    fn skip(&mut self, file: UnusableFile) {
        if self.skipped.len() < MAX_NAMED {
            self.skipped.push(file);
        } else {
            self.skipped_more += 1;
        }
    }
}

/// How much of a recording a file has, compared with its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wholeness {
    has_index: bool,
    has_end: bool,
    bytes: u64,
}

impl Wholeness {
    fn of(path: &Path) -> Self {
        Self {
            has_index: index_state(path) == IndexState::Usable,
            has_end: File::open(path).is_ok_and(super::reader::has_end),
            bytes: fs::metadata(path).map_or(0, |meta| meta.len()),
        }
    }
}

/// The state of a file's index.
fn index_state(path: &Path) -> IndexState {
    let opened = regular(path).ok().and_then(|file| Reader::open(file).ok());
    let Some((mut reader, _)) = opened else { return IndexState::Missing };
    match reader.narrow(|_, _| false) {
        Ok(()) if reader.is_planned() => IndexState::Usable,
        Ok(()) if reader.reading().is_index_unusable => IndexState::Damaged,
        Ok(()) | Err(_) => IndexState::Missing,
    }
}

/// Whether a file of a folder begins as a recording or has the name of one, and is not a part of one that is being fetched. A
/// file that cannot be read counts as one, since it may be one.
fn should_be_recording(path: &Path) -> bool {
    let has_extension = |wanted| path.extension().is_some_and(|extension| extension == wanted);
    if has_extension(PART) {
        return false;
    }
    has_extension(EXTENSION) || !is_irregular(path) && begins_as_recording(path).unwrap_or(true)
}

fn begins_as_recording(path: &Path) -> io::Result<bool> {
    let mut magic = [0; FILE_MAGIC.len()];
    match File::open(path)?.read_exact(&mut magic) {
        Ok(()) => Ok(magic == FILE_MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether it is there and no regular file, such as a pipe, which would wait for its writer if it was opened.
pub(crate) fn is_irregular(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| !meta.is_file())
}

/// Opens a regular file: a pipe cannot be read twice.
fn regular(path: &Path) -> Result<File, UnusableFile> {
    if is_irregular(path) {
        let hint = Some("store the recording in a file first".to_owned());
        return Err(UnusableFile {
            hint,
            ..UnusableFile::new(path.to_owned(), "it is not a regular file".to_owned())
        });
    }
    File::open(path).map_err(|error| UnusableFile::io(path, &error))
}

impl Tape {
    fn new(header: Header, files: VecDeque<PathBuf>, detail: Detail) -> Self {
        let all = files.iter().cloned().collect();
        Self {
            header,
            files,
            all,
            playing: None,
            detail,
            uncovered: Vec::new(),
            damaged: Vec::new(),
            damaged_count: 0,
            skipped: Vec::new(),
        }
    }

    /// The header of the first file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The number of its files.
    pub fn files(&self) -> usize {
        self.all.len()
    }

    /// Its files in their order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.all
    }

    /// The same trace from its beginning, not yet played.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.header.clone(), self.all.iter().cloned().collect(), self.detail)
    }

    /// How much of its files was read so far.
    pub(crate) fn reading(&self) -> Reading {
        self.player().map(Player::reading).unwrap_or_default()
    }

    /// Passes the cluster's objects in its files to `take`, every version of each: those of the beginning, and those that
    /// arrived later.
    pub(crate) fn objects(&self, mut take: impl FnMut(&Object)) -> Result<(), UnusableFile> {
        self.items(|assembler, mut items| {
            while let Some(item) = assembler.next(&mut items) {
                if let Ok(item) = item {
                    item.objects(&mut take);
                }
            }
        })
    }

    /// Passes the steps of the wall clock in its files to `take`. With an index that reads a small part of them.
    pub(crate) fn wall_steps(&self, mut take: impl FnMut(WallStep)) -> Result<(), UnusableFile> {
        self.items(|assembler, mut items| {
            while let Some(step) = assembler.next_wall_step(&mut items) {
                step.into_iter().for_each(&mut take);
            }
        })
    }

    /// Passes the items of each block in its files to `take`, without the records.
    fn items(&self, mut take: impl FnMut(&mut Assembler, &[u8])) -> Result<(), UnusableFile> {
        for path in &self.all {
            let opened = regular(path)
                .and_then(|file| Reader::open(file).map_err(|error| UnusableFile::open(path, &error)));
            // A replay says that this file cannot be read.
            let Ok((mut reader, _)) = opened else { continue };
            let failed = |error: io::Error| UnusableFile::io(path, &error);
            reader.narrow(|_, _| false).map_err(failed)?;
            let (mut block, mut assembler) = (Block::default(), Assembler::default());
            while reader.next_items(&mut block).map_err(failed)? {
                if block.after_damage {
                    assembler.forget();
                }
                take(&mut assembler, &block.items);
            }
        }
        Ok(())
    }

    /// Before the first step: how healthy flows are reported.
    pub fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
    }

    /// The player, after the first step.
    pub fn player(&self) -> Option<&Player<File>> {
        self.playing.as_ref().map(|playing| &playing.player)
    }

    /// The same, to read what its pipeline noted.
    pub(crate) fn player_mut(&mut self) -> Option<&mut Player<File>> {
        self.playing.as_mut().map(|playing| &mut playing.player)
    }

    /// The state of its first file's index.
    pub(crate) fn index(&self) -> IndexState {
        self.all.first().map_or(IndexState::Missing, |path| index_state(path))
    }

    /// The latest time so far.
    pub fn now(&self) -> Timestamp {
        self.player().map_or(self.header.started, Player::now)
    }

    /// The times that no file covers, between two files.
    pub fn uncovered(&self) -> &[(Timestamp, Timestamp)] {
        &self.uncovered
    }

    /// Files that could not be read any more when their turn came.
    pub fn skipped(&self) -> &[UnusableFile] {
        &self.skipped
    }

    /// The damaged parts of its files so far: the first ones, and the number of all.
    pub fn damage(&self) -> (Vec<(&Path, Damage)>, u64) {
        let (own, found) = self.player().map(Player::damage).unwrap_or_default();
        let path = self.playing.as_ref().map_or(Path::new(""), |playing| &playing.path);
        let before = self.damaged.iter().map(|(path, damage)| (path.as_path(), *damage));
        let all = before.chain(own.iter().map(|damage| (path, *damage))).take(MAX_NAMED);
        (all.collect(), self.damaged_count + found)
    }

    /// The time at which its last file ends, from the last blocks of that file; `None` if they are damaged.
    pub fn last_time(&self) -> Option<Timestamp> {
        let path = self.files.back().or_else(|| self.playing.as_ref().map(|playing| &playing.path))?;
        super::reader::last_time(File::open(path).ok()?)
    }

    /// The end of the trace, if the last file has it.
    pub fn end(&self) -> Option<&End> {
        self.playing.as_ref()?.end.as_ref()
    }

    /// Opens the first file, and applies `prepare` to its player.
    pub(crate) fn open(&mut self, prepare: impl Fn(&mut Player<File>)) {
        while self.playing.is_none()
            && let Some(path) = self.files.pop_front()
        {
            let opened = regular(&path).and_then(|file| {
                Player::open(file, self.detail).map_err(|error| UnusableFile::open(&path, &error))
            });
            match opened {
                Ok(mut player) => {
                    prepare(&mut player);
                    self.playing = Some(Playing { player, path, end: None });
                }
                Err(file) => self.skipped.push(file),
            }
        }
    }

    /// Plays until there are judgements; `None` after the last file. Open flows are judged with the last file.
    pub fn step(&mut self) -> Result<Option<(Judgements, Timestamp)>, UnusableFile> {
        self.open(|_| {});
        loop {
            let Some(playing) = &mut self.playing else { return Ok(None) };
            let step = playing.player.step().map_err(|error| UnusableFile::io(&playing.path, &error))?;
            match step {
                Some(Step::Judged { judgements, now }) => return Ok(Some((judgements, now))),
                Some(Step::Ended(end)) => playing.end = Some(end),
                None => {
                    if !self.next_file() {
                        break;
                    }
                }
            }
        }
        let last = self.playing.as_mut().and_then(|playing| {
            let judgements = playing.player.cut_off()?;
            Some((judgements, playing.player.now()))
        });
        Ok(last)
    }

    /// Goes on with the next file; false if there is none.
    fn next_file(&mut self) -> bool {
        let Some(playing) = &mut self.playing else { return false };
        let mut damage = Some(playing.player.damage()).map(|(parts, count)| (parts.to_vec(), count));
        while let Some(path) = self.files.pop_front() {
            let went_on = regular(&path).and_then(|file| {
                playing.player.go_on(file).map_err(|error| UnusableFile::open(&path, &error))
            });
            match went_on {
                Ok(gap) => {
                    let (parts, count) = damage.take().unwrap_or_default();
                    let room = MAX_NAMED.saturating_sub(self.damaged.len());
                    self.damaged.extend(parts.into_iter().take(room).map(|it| (playing.path.clone(), it)));
                    self.damaged_count += count;
                    self.uncovered.extend(gap.filter(|_| self.uncovered.len() < MAX_NAMED));
                    (playing.path, playing.end) = (path, None);
                    return true;
                }
                Err(file) => self.skipped.push(file),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
