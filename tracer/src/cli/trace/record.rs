//! `--record`: the recording's file, and the messages about it.

use std::{fs, path::Path};

use crate::{
    cli::args::RecordOptions,
    recording::{self, Addresses, CreateError, Failure, Finished, Header, Recorder},
    text::count,
};

/// The recording's empty file.
#[derive(Debug)]
pub(super) struct NewFile<'a> {
    path: &'a Path,
    file: fs::File,
}

impl<'a> NewFile<'a> {
    pub(super) fn create(options: &'a RecordOptions) -> anyhow::Result<Self> {
        let file = recording::create(&options.path, options.force)?;
        Ok(Self { path: &options.path, file })
    }

    pub(super) fn begin(self, header: &Header) -> anyhow::Result<Recorder> {
        Ok(Recorder::begin(self.path, self.file, header, Addresses::default())?)
    }

    /// Removes the empty file if the trace cannot start.
    pub(super) fn discard(self) {
        if self.file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
            let _ = fs::remove_file(self.path);
        }
    }
}

/// Checks before the start whether the recording may be created.
pub(super) fn check(options: &RecordOptions) -> anyhow::Result<()> {
    if !options.force && fs::symlink_metadata(&options.path).is_ok() {
        return Err(CreateError::Exists { path: options.path.clone() }.into());
    }
    Ok(())
}

/// The warning when the file cannot be written.
pub(super) fn failed(path: &Path, failure: &Failure) -> String {
    format!(
        "the recording {} ends at {}: {}; the trace goes on without it",
        path.display(),
        failure.covered.to_the_millisecond(),
        failure.error
    )
}

/// What a recording that could not be written to its end lacks.
pub(super) fn broken_off(what: &str, failure: &Failure) -> String {
    format!("{what} ends at {}: {}", failure.covered.to_the_millisecond(), failure.error)
}

/// The message at the end, and the gaps for the summary.
pub(super) fn ended(path: &Path, finished: &Finished) -> (String, Vec<String>) {
    let Finished { bytes, records, dropped, failure } = finished;
    let path = path.display();
    let mut gaps = Vec::new();
    if let Some(failure) = failure {
        gaps.push(broken_off(&format!("the recording {path}"), failure));
    }
    if dropped.records > 0 || dropped.others > 0 {
        gaps.push(format!(
            "the recording {path} lacks {} and {} from {} to {}: the disk was too slow",
            count(dropped.records, "event"),
            count(dropped.others, "other item"),
            dropped.from.to_the_millisecond(),
            dropped.to.to_the_millisecond()
        ));
    }
    let events = count(*records, "event");
    (format!("recorded {events} in {bytes} bytes; `viptrace replay {path}` shows them"), gaps)
}
