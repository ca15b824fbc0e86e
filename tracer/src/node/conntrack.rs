//! Conntrack's counters: `/proc/net/stat/nf_conntrack` and their growth between two reads (K8).
//!
//! Owns the table's text form. Columns are found by name: kernels differ in them, and some columns mislead
//! (`chainlength` counts chains that were too long; `new`, `ignore` and `delete` stay 0 on 6.x).

use std::{collections::BTreeMap, fmt::Write as _, fs, io, path::Path};

use crate::{node::procfs, platform::inode};

mod statistics;

pub use statistics::parse_ctnetlink;
pub(crate) use statistics::read;

/// The most CPUs of one table.
const MAX_CPUS: usize = 8192;
/// The most columns of one table.
const MAX_COLUMNS: usize = 64;

/// The table: one row for each possible CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    columns: Vec<String>,
    rows: Vec<Vec<u64>>,
}

impl Counters {
    /// Parses the names and the hexadecimal rows. `None` if the first line has no known column. A field that is not a
    /// number counts as 0, and a short row is filled with zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let columns: Vec<String> =
            lines.next()?.split_ascii_whitespace().take(MAX_COLUMNS).map(str::to_owned).collect();
        if !columns.iter().any(|name| name == "entries" || name == "drop") {
            return None;
        }
        let rows = lines
            .take(MAX_CPUS)
            .map(|line| {
                let mut fields =
                    line.split_ascii_whitespace().map(|field| u64::from_str_radix(field, 16).unwrap_or(0));
                columns.iter().map(|_| fields.next().unwrap_or(0)).collect()
            })
            .collect();
        Some(Self { columns, rows })
    }

    /// The kernel's form.
    pub fn to_text(&self) -> String {
        let mut text = self.columns.join(" ");
        text.push('\n');
        for row in &self.rows {
            let fields: Vec<String> = row.iter().map(|value| format!("{value:08x}")).collect();
            text.push_str(&fields.join(" "));
            text.push('\n');
        }
        text
    }

    /// The entries of this network namespace: the same number in each row.
    pub fn entries(&self) -> Option<u64> {
        let at = self.columns.iter().position(|name| name == "entries")?;
        self.rows.first()?.get(at).copied()
    }

    /// The growth of each counter since `earlier`, and the number of CPUs with growth. The counters have 32 bits and
    /// wrap.
    pub fn growth(&self, earlier: &Self) -> BTreeMap<&str, Growth> {
        let mut grown = BTreeMap::new();
        if self.columns != earlier.columns || self.rows.len() != earlier.rows.len() {
            return grown;
        }
        for (at, name) in self.columns.iter().enumerate().filter(|(_, name)| *name != "entries") {
            let mut growth = Growth::default();
            for (now, then) in self.rows.iter().zip(&earlier.rows) {
                let (Some(now), Some(then)) = (now.get(at), then.get(at)) else { continue };
                let by = u64::from((*now as u32).wrapping_sub(*then as u32));
                if by > 0 {
                    growth.by = growth.by.saturating_add(by);
                    growth.cpus += 1;
                }
            }
            if growth.by > 0 {
                grown.insert(name.as_str(), growth);
            }
        }
        grown
    }
}

/// The growth of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    pub by: u64,
    /// The number of CPUs on which it grew.
    pub cpus: usize,
}

/// The number of entries of a network namespace, and a process in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its inode number.
    pub netns: u64,
    pub entries: u64,
    pub process: String,
}

/// The first line of the list of namespaces.
const NAMESPACES_HEAD: &str = "# netns entries process";
/// The most processes examined for other namespaces, and the most namespaces kept.
const MAX_PROCESSES: usize = 100_000;
const MAX_NAMESPACES: usize = 4096;

/// The namespaces of the processes below `root` (`/proc`) with a conntrack table. Blocks briefly.
pub fn namespaces(root: &Path) -> io::Result<Vec<Namespace>> {
    let mut found = BTreeMap::<u64, Namespace>::new();
    for entry in fs::read_dir(root)?.flatten().take(MAX_PROCESSES) {
        let folder = entry.path();
        // Only the folders of processes have this file.
        let Ok(meta) = fs::metadata(folder.join("ns/net")) else { continue };
        let netns = inode(&meta);
        if found.contains_key(&netns) || found.len() >= MAX_NAMESPACES {
            continue;
        }
        let stat = procfs::read_text(&folder.join("net/stat/nf_conntrack")).ok();
        let Some(entries) = stat.and_then(|text| Counters::parse(&text)?.entries()) else { continue };
        let process = procfs::read_text(&folder.join("comm")).unwrap_or_default().trim().to_owned();
        found.insert(netns, Namespace { netns, entries, process });
    }
    Ok(found.into_values().collect())
}

/// One line per namespace.
pub fn namespaces_to_text(namespaces: &[Namespace]) -> String {
    let mut text = format!("{NAMESPACES_HEAD}\n");
    for Namespace { netns, entries, process } in namespaces {
        let process: String = process.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{netns} {entries} {process}");
    }
    text
}

/// Parses the output of [`namespaces_to_text`]; ignores other lines.
pub fn parse_namespaces(text: &str) -> Vec<Namespace> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (netns, entries) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Namespace { netns, entries, process: words.next().unwrap_or_default().to_owned() })
    };
    text.lines().filter_map(line).take(MAX_NAMESPACES).collect()
}

/// One counter of `/proc/net/netstat` or `/proc/net/snmp`: `netstat(text, "TcpExt", "IPReversePathFilter")`. Each group
/// has two lines: the names, then the numbers.
pub fn netstat(text: &str, group: &str, name: &str) -> Option<u64> {
    let of_group = |line: &&str| line.split_once(':').is_some_and(|(begin, _)| begin == group);
    let mut lines = text.lines().filter(of_group);
    let names = lines.next()?;
    let values = lines.next()?;
    let at = names.split_ascii_whitespace().position(|candidate| candidate == name)?;
    values.split_ascii_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const OLD: &str = "entries  searched found new invalid ignore delete delete_list insert insert_failed drop \
        early_drop icmp_error  expect_new expect_create expect_delete search_restart\n\
        0000000f 0 0 0 00000002 0 0 0 0 00000001 fffffffe 00000003 0 0 0 0 0\n\
        0000000f 0 0 0 00000001 0 0 0 0 00000000 00000006 00000000 0 0 0 0 0\n";

    #[test]
    fn columns_go_by_name_and_counters_wrap() {
        let before = Counters::parse(OLD).unwrap();
        assert_eq!((before.rows.len(), before.entries()), (2, Some(15)));
        let after = Counters::parse(&OLD.replace("fffffffe", "00000002")).unwrap();
        let growth = after.growth(&before);
        assert_eq!(growth.get("drop"), Some(&Growth { by: 4, cpus: 1 }));
        assert_eq!(growth.len(), 1);
        assert_eq!(Counters::parse("nothing here\n0 0\n"), None);
        assert_eq!(Counters::parse(""), None);
    }

    #[test]
    fn counters_of_the_stack() {
        let text = "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 0 7\nIpExt: InNoRoutes\nIpExt: 3\n";
        assert_eq!(netstat(text, "TcpExt", "IPReversePathFilter"), Some(7));
        assert_eq!(netstat(text, "IpExt", "InNoRoutes"), Some(3));
        assert_eq!(netstat(text, "TcpExt", "Nothing"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(rows in vec(vec(0_u64..=0xffff_ffff, 3), 0..9)) {
            let columns = ["entries", "drop", "insert_failed"].map(str::to_owned).to_vec();
            let counters = Counters { columns, rows };
            prop_assert_eq!(Counters::parse(&counters.to_text()), Some(counters));
        }

        #[test]
        fn namespaces_are_read_as_they_are_written(list in vec((any::<u64>(), any::<u64>(), "[a-z: ]{0,15}"), 0..9)) {
            let list: Vec<_> = list.into_iter().map(|(netns, entries, process)| Namespace { netns, entries, process }).collect();
            prop_assert_eq!(parse_namespaces(&namespaces_to_text(&list)), list);
        }

        #[test]
        fn any_table_is_read(text in "(entries|drop|x)( [a-z]{0,6}){0,9}\n([0-9a-fxyz -]{0,60}\n){0,9}") {
            if let Some(read) = Counters::parse(&text) {
                prop_assert!(read.growth(&read).is_empty());
            }
        }
    }
}
