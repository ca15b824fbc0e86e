//! Hints: adds them to errors of a verb, and finds the hint of an error.

use std::{error::Error, fmt};

use crate::{
    agent::{config::ConfigError, stream::client::StreamError},
    cli::stop::StoppedEarly,
    cluster::{AccessError, FolderError, OpenError as ClusterError, SyncError},
    diagnosis::path::NoPacket,
    error::Hint,
    kernel::running::KernelError,
    pcap::CaptureError,
    plugin::visit::VisitError,
    recording::{CreateError, OpenError as RecordingError, UnusableFile},
};

/// Every library error that has a hint.
const KNOWN: &[fn(&(dyn Error + 'static)) -> Option<String>] = &[
    hint_of::<Hinted>,
    #[cfg(target_os = "linux")]
    hint_of::<crate::cli::check::kernel::Obstacle>,
    hint_of::<StoppedEarly>,
    hint_of::<ClusterError>,
    hint_of::<AccessError>,
    hint_of::<FolderError>,
    hint_of::<SyncError>,
    hint_of::<KernelError>,
    #[cfg(target_os = "linux")]
    hint_of::<crate::kernel::attach::AttachError>,
    hint_of::<CreateError>,
    hint_of::<RecordingError>,
    hint_of::<UnusableFile>,
    hint_of::<CaptureError>,
    hint_of::<NoPacket>,
    hint_of::<ConfigError>,
    hint_of::<StreamError>,
    hint_of::<VisitError>,
];

fn hint_of<E: Hint + 'static>(error: &(dyn Error + 'static)) -> Option<String> {
    error.downcast_ref::<E>()?.hint()
}

/// The remedy for this error: the hint nearest to its cause.
pub(super) fn hint(error: &anyhow::Error) -> Option<String> {
    error.chain().filter_map(|cause| KNOWN.iter().find_map(|hint| hint(cause))).last()
}

/// An error with a hint, for errors without their own. Its text is that of the error.
#[derive(Debug)]
struct Hinted {
    error: anyhow::Error,
    text: String,
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Hinted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl Hint for Hinted {
    fn hint(&self) -> Option<String> {
        hint(&self.error).or_else(|| Some(self.text.clone()))
    }
}

/// Adds a hint to an error.
pub(super) trait ResultExt<T> {
    /// The hint is a command or a flag to type, without a full stop.
    fn hint(self, text: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> ResultExt<T> for Result<T, E> {
    fn hint(self, text: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| Hinted { error: error.into(), text: text() }.into())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use anyhow::Context as _;

    use super::*;
    use crate::kernel::attach::AttachError;

    /// The agent tells a stop from a failure by the error's type.
    #[test]
    fn a_stop_during_the_first_lists_keeps_its_type_and_its_hint() {
        let error = anyhow::Error::from(StoppedEarly);
        assert!(error.is::<StoppedEarly>());
        assert!(hint(&error).is_some_and(|hint| hint.contains("kubectl get services")));
    }

    #[test]
    fn the_hint_is_found_below_other_context() {
        let result: anyhow::Result<()> = Err(anyhow::anyhow!("no BTF"))
            .hint(|| "run viptrace check --kernel".into())
            .context("load the hooks");
        let error = result.unwrap_err();
        assert_eq!(hint(&error).as_deref(), Some("run viptrace check --kernel"));
        assert_eq!(format!("{error:#}"), "load the hooks: no BTF");
    }

    #[test]
    fn the_cause_s_own_hint_comes_first() {
        let result: anyhow::Result<()> = Err(AttachError::NoObject).hint(|| "something general".into());
        assert_eq!(hint(&result.unwrap_err()), AttachError::NoObject.hint());
    }

    fn implementations(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let count = |path: &Path| {
            let text = fs::read_to_string(path).unwrap();
            text.lines().filter(|line| line.starts_with("impl Hint for ")).count()
        };
        entries.map(|path| if path.is_dir() { implementations(&path) } else { count(&path) }).sum()
    }

    #[test]
    fn no_error_with_a_hint_is_forgotten() {
        assert_eq!(implementations(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")), KNOWN.len());
    }
}
