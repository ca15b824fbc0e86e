//! The modules whose functions hooks need: which are loaded now, and which of them came or went since the last look.
//!
//! It reads a few files below `/sys/module`, which costs microseconds. It attaches nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use tracer_ebpf::Hook;

/// A change of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModuleChange {
    Loaded(&'static str),
    Unloaded(&'static str),
}

/// The modules with hooks, as they were last read.
#[derive(Debug)]
pub(super) struct Modules {
    root: PathBuf,
    /// The modules of the table of hooks.
    names: BTreeSet<&'static str>,
    /// The inode number of each loaded module's folder: a module that was loaded again has another one.
    loaded: BTreeMap<&'static str, u64>,
}

impl Modules {
    /// Reads which modules are loaded below `root`, which holds `sys`. A module that `is_planned` does not know counts as
    /// loaded later: the plan is older than this.
    pub(super) fn read(root: impl Into<PathBuf>, is_planned: impl Fn(&str) -> bool) -> Self {
        let names = Hook::ALL.iter().filter_map(|hook| hook.spec().module).collect();
        let mut modules = Self { root: root.into(), names, loaded: BTreeMap::new() };
        modules.changes();
        modules.loaded.retain(|name, _| is_planned(name));
        modules
    }

    /// The changes since the last call.
    pub(super) fn changes(&mut self) -> Vec<ModuleChange> {
        let mut changes = Vec::new();
        for name in self.names.iter().copied() {
            let found = self.inode(name);
            let before = match found {
                Some(inode) => self.loaded.insert(name, inode),
                None => self.loaded.remove(name),
            };
            if before.is_some() && before != found {
                changes.push(ModuleChange::Unloaded(name));
            }
            if found.is_some() && before != found {
                changes.push(ModuleChange::Loaded(name));
            }
        }
        changes
    }

    /// The inode number of a loaded module's folder.
    fn inode(&self, name: &str) -> Option<u64> {
        is_live(&self.root, name).then_some(())?;
        fs::metadata(folder(&self.root, name)).ok().map(|folder| folder.ino())
    }
}

fn folder(root: &Path, name: &str) -> PathBuf {
    root.join("sys/module").join(name)
}

/// Whether a module is loaded below `root`, which holds `sys`. A module that is still being loaded has no functions yet
/// (`show_initstate`, kernel/module/main.c), and built-in code has no such file.
pub(crate) fn is_live(root: &Path, name: &str) -> bool {
    fs::read_to_string(folder(root, name).join("initstate")).is_ok_and(|state| state.trim() == "live")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn put(root: &TempDir, name: &str, state: &str) {
        let folder = root.path().join("sys/module").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("initstate"), state).unwrap();
    }

    fn remove(root: &TempDir, name: &str) {
        // Another folder takes its place, so that the next one gets another inode number.
        let folder = root.path().join("sys/module").join(name);
        fs::rename(&folder, root.path().join(format!("old-{name}"))).unwrap();
    }

    #[test]
    fn a_module_that_comes_goes_or_comes_again_is_noticed() {
        let root = TempDir::new().unwrap();
        put(&root, "nf_conntrack", "live\n");
        put(&root, "nf_nat", "coming\n");
        put(&root, "of_no_interest", "live\n");
        let mut modules = Modules::read(root.path(), |_| true);
        assert_eq!(modules.changes(), []);
        // It was loaded after the plan had been made.
        let mut late = Modules::read(root.path(), |_| false);
        assert_eq!(late.changes(), [ModuleChange::Loaded("nf_conntrack")]);
        put(&root, "nf_nat", "live\n");
        put(&root, "of_another", "live\n");
        assert_eq!(modules.changes(), [ModuleChange::Loaded("nf_nat")]);
        remove(&root, "nf_nat");
        assert_eq!(modules.changes(), [ModuleChange::Unloaded("nf_nat")]);
        remove(&root, "nf_conntrack");
        put(&root, "nf_conntrack", "live\n");
        let again = [ModuleChange::Unloaded("nf_conntrack"), ModuleChange::Loaded("nf_conntrack")];
        assert_eq!(modules.changes(), again);
        assert_eq!(modules.changes(), []);
    }
}
