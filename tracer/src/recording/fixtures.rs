//! The recordings of real kernels that tests read.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// All of them, in the order of their names.
pub(crate) fn recordings() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/recordings");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "viptrace")).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}
