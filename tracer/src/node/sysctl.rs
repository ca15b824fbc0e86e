//! The kernel settings that Services depend on (K8, K11).
//!
//! Owns the text form of `sysctl -a` and the list of settings. `triage` interprets the values.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::node::procfs;

/// The most settings kept of one text: a node with thousands of interfaces has some for each.
const MAX_SETTINGS: usize = 200_000;
/// A longer value is not a setting used here.
const MAX_VALUE_BYTES: usize = 256;

/// Folders below `/proc/sys` that are read completely.
const FOLDERS: [&str; 3] = ["net/netfilter", "net/bridge", "net/ipv4/vs"];
/// The settings for a trace: conntrack's use and IPVS's settings.
const FEW: [&str; 5] = [
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/ipv4/vs/conntrack",
    "net/ipv4/vs/expire_nodest_conn",
    "net/ipv4/vs/conn_reuse_mode",
];
/// Single settings.
const SINGLE: [&str; 3] = ["net/ipv4/ip_forward", "net/ipv4/ip_nonlocal_bind", "kernel/osrelease"];
/// The settings of each interface, and their folders.
const PER_INTERFACE: [(&str, &[&str]); 2] = [
    ("net/ipv4/conf", &["rp_filter", "route_localnet", "forwarding", "arp_ignore", "arp_announce"]),
    ("net/ipv6/conf", &["forwarding", "disable_ipv6"]),
];
/// The most interfaces whose settings are read.
const MAX_INTERFACES: usize = 20_000;

/// Settings by their path below `/proc/sys`, with `/` between the parts: an interface's name may contain dots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls(BTreeMap<String, String>);

impl Sysctls {
    /// Parses `NAME = VALUE` lines. As in sysctl(8), the first separator determines the form of a name: with dots, a
    /// `/` stands for a dot inside a part (`net.ipv4.conf.eth0/100.rp_filter`).
    pub fn parse(text: &str) -> Self {
        let mut found = BTreeMap::new();
        for line in text.lines().take(MAX_SETTINGS) {
            let Some((name, value)) = line.split_once('=') else { continue };
            let (name, value) = (name.trim(), value.trim());
            if name.is_empty() || name.contains(char::is_whitespace) || value.len() > MAX_VALUE_BYTES {
                continue;
            }
            found.insert(path_of(name), value.to_owned());
        }
        Self(found)
    }

    /// The text form that [`Self::parse`] reads.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (path, value) in &self.0 {
            // Dots and separators are exchanged.
            let swapped = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            text.extend(path.chars().map(swapped));
            text.push_str(" = ");
            text.push_str(value);
            text.push('\n');
        }
        text
    }

    /// Reads the settings that Services depend on below `root` (`/proc`). Blocks briefly.
    pub fn read(root: &Path) -> io::Result<Self> {
        let sys = root.join("sys");
        let mut found = Self::default();
        fs::read_dir(sys.join("net"))?;
        for path in SINGLE {
            found.take(&sys, path);
        }
        for folder in FOLDERS {
            for name in names(&sys.join(folder)) {
                found.take(&sys, &format!("{folder}/{name}"));
            }
        }
        for (folder, settings) in PER_INTERFACE {
            for interface in names(&sys.join(folder)).into_iter().take(MAX_INTERFACES) {
                for setting in settings {
                    found.take(&sys, &format!("{folder}/{interface}/{setting}"));
                }
            }
        }
        Ok(found)
    }

    /// Reads only the settings that a trace needs below `root` (`/proc`). Blocks briefly.
    pub fn read_few(root: &Path) -> io::Result<Self> {
        let sys = root.join("sys");
        let mut found = Self::default();
        fs::read_dir(sys.join("net"))?;
        for path in FEW {
            found.take(&sys, path);
        }
        Ok(found)
    }

    fn take(&mut self, sys: &Path, path: &str) {
        let file = sys.join(path);
        // Folders (`nf_log`) and write-only settings are skipped.
        if file.is_file()
            && let Ok(text) = procfs::read_text(&file)
            && text.trim().len() <= MAX_VALUE_BYTES
            && !text.trim().contains('\n')
        {
            self.0.insert(path.to_owned(), text.trim().to_owned());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of `net/ipv4/ip_forward`.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// The value as a number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.get(path)?.parse().ok()
    }

    /// Whether any setting lies below this folder: that part of the kernel is present.
    pub fn has_folder(&self, folder: &str) -> bool {
        let begin = format!("{folder}/");
        self.0.range(begin.clone()..).next().is_some_and(|(path, _)| path.starts_with(&begin))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, value)| (path.as_str(), value.as_str()))
    }
}

fn path_of(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.get(at..).is_some_and(|rest| rest.starts_with('.')) => {
            let swapped = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            name.chars().map(swapped).collect()
        }
        _ => name.to_owned(),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*};

    use super::*;

    #[test]
    fn both_ways_of_writing_a_name() {
        let settings = Sysctls::parse(
            "net.ipv4.ip_forward = 1\nnet/ipv4/conf/eth0.100/rp_filter = 2\n\
             net.ipv4.conf.eth1/7.rp_filter=1\nnonsense\nnet.ipv4.vs.sync_threshold = 3\t50\n",
        );
        assert_eq!(settings.number("net/ipv4/ip_forward"), Some(1));
        assert_eq!(settings.get("net/ipv4/vs/sync_threshold"), Some("3\t50"));
        assert!(settings.has_folder("net/ipv4/vs") && !settings.has_folder("net/bridge"));
        assert_eq!(settings.number("net/ipv4/conf/eth0.100/rp_filter"), Some(2));
        assert_eq!(settings.number("net/ipv4/conf/eth1.7/rp_filter"), Some(1));
    }

    #[test]
    fn only_what_services_depend_on_is_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, value: &str| {
            let file = root.path().join("sys").join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, value).unwrap();
        };
        write("net/ipv4/ip_forward", "0\n");
        write("net/ipv4/conf/cni0/rp_filter", "1\n");
        write("net/ipv4/conf/cni0/tag", "5\n");
        write("net/netfilter/nf_log/0", "NONE\n");
        write("net/netfilter/nf_conntrack_max", "262144\n");
        let read = Sysctls::read(root.path()).unwrap();
        assert_eq!(read.iter().count(), 3, "{read:?}");
        assert_eq!(read.number("net/netfilter/nf_conntrack_max"), Some(262_144));
        assert_eq!(Sysctls::read_few(root.path()).unwrap().iter().count(), 1);
        assert!(Sysctls::read(&root.path().join("nowhere")).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(settings in btree_map("net/[a-z0-9]{1,8}(/[a-z0-9._-]{1,9}){1,3}", "[0-9 \t]{0,8}[0-9]", 0..20)) {
            let settings = Sysctls(settings.into_iter().map(|(name, value)| (name, value.trim().to_owned())).collect());
            prop_assert_eq!(Sysctls::parse(&settings.to_text()), settings);
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let read = Sysctls::parse(&text);
            prop_assert!(read.iter().all(|(name, _)| !name.is_empty()));
        }
    }
}
