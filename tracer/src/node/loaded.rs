//! The parts of the kernel that are present.
//!
//! Owns the evidence for each part whose listing command or netlink request would load it where it is absent:
//! nfnetlink, generic netlink and the tools themselves request the module. Check here before running such a command. A
//! listing of an absent part would be empty and prove nothing.

use std::{
    borrow::Cow,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::Path,
    sync::OnceLock,
};

use crate::{
    net::Family,
    node::{gap::Reason, procfs},
};

/// A part of the kernel that reading would load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    NfTables,
    /// Tables of iptables' legacy backend.
    LegacyTables(Family),
    Ipvs,
    IpSet,
    Ctnetlink,
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Self::NfTables => "nf_tables",
            Self::LegacyTables(Family::Ipv4) => "ip_tables with a table",
            Self::LegacyTables(Family::Ipv6) => "ip6_tables with a table",
            Self::Ipvs => "IPVS",
            Self::IpSet => "ip_set",
            Self::Ctnetlink => "nf_conntrack_netlink",
        }
    }

    /// Whether it is in the kernel whose file systems are mounted below `root`, loaded or built in.
    pub(super) fn is_in(self, root: &Path) -> bool {
        match self {
            Self::NfTables => has_module(root, "nf_tables", NF_TABLES),
            // The file lists the tables that are loaded; listing another one would load it.
            Self::LegacyTables(family) => {
                let names = match family {
                    Family::Ipv4 => "proc/net/ip_tables_names",
                    Family::Ipv6 => "proc/net/ip6_tables_names",
                };
                procfs::read_text(&root.join(names)).is_ok_and(|text| !text.trim().is_empty())
            }
            Self::Ipvs => root.join("proc/net/ip_vs").exists(),
            Self::IpSet => has_module(root, "ip_set", IP_SET),
            // Loading it would load conntrack as well.
            Self::Ctnetlink => {
                root.join("proc/sys/net/netfilter/nf_conntrack_count").exists()
                    && has_module(root, "nf_conntrack_netlink", CTNETLINK)
            }
        }
    }

    /// The reason why it cannot be read, if it is absent.
    pub(super) fn require(self, root: &Path) -> Result<(), Reason> {
        if self.is_in(root) { Ok(()) } else { Err(Reason::NotInKernel { part: self.name().to_owned() }) }
    }
}

/// Whether the module is loaded or built in. `symbol` is a function of it that no other module has: if the list of
/// built-in modules is not installed, as in a container, the kernel's symbols decide.
fn has_module(root: &Path, module: &str, symbol: &str) -> bool {
    if root.join("sys/module").join(module).exists() {
        return true;
    }
    let release = fs::read_to_string(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let built_in = root.join("lib/modules").join(release.trim()).join("modules.builtin");
    if let Ok(list) = fs::read_to_string(built_in) {
        return list.contains(&format!("/{module}.ko"));
    }
    let symbols = if root == Path::new("/") {
        Cow::Borrowed(RUNNING.get_or_init(|| built_in_symbols(root)))
    } else {
        Cow::Owned(built_in_symbols(root))
    };
    symbols.contains(&symbol)
}

/// A function of each module that [`has_module`] looks for.
const SYMBOLS: [&str; 3] = [NF_TABLES, IP_SET, CTNETLINK];
const NF_TABLES: &str = "nft_do_chain";
const IP_SET: &str = "ip_set_test";
const CTNETLINK: &str = "ctnetlink_dump_table";

/// [`built_in_symbols`] of the running kernel, which stay as they are. To read them takes a tenth of a second.
static RUNNING: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Those of [`SYMBOLS`] that are built in.
fn built_in_symbols(root: &Path) -> Vec<&'static str> {
    let Ok(symbols) = File::open(root.join("proc/kallsyms")) else { return Vec::new() };
    let mut symbols = BufReader::new(symbols);
    let mut found = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if symbols.read_until(b'\n', &mut line).unwrap_or_default() == 0 {
            return found;
        }
        // After a loadable module's symbol the line has the module's name: only built-in symbols match.
        let line = line.trim_ascii_end();
        let is_of =
            |symbol: &&&str| line.strip_suffix(symbol.as_bytes()).is_some_and(|rest| rest.ends_with(b" "));
        found.extend(SYMBOLS.iter().find(is_of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn a_module_is_found_loaded_and_built_in() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(!Part::NfTables.is_in(root));
        write(root, "proc/sys/kernel/osrelease", "6.1.0\n");
        write(root, "proc/kallsyms", "0 t nft_do_chain_ipv4\n0 T nft_do_chain\t[nf_tables]\n");
        assert!(!Part::NfTables.is_in(root));
        write(root, "proc/kallsyms", "0 T nft_do_chain\n");
        assert!(Part::NfTables.is_in(root));
        write(root, "lib/modules/6.1.0/modules.builtin", "kernel/net/netfilter/ipset/ip_set.ko\n");
        assert!(!Part::NfTables.is_in(root) && Part::IpSet.is_in(root));
        fs::create_dir_all(root.join("sys/module/nf_tables")).unwrap();
        assert!(Part::NfTables.is_in(root));
    }

    #[test]
    fn ctnetlink_needs_conntrack() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("sys/module/nf_conntrack_netlink")).unwrap();
        assert!(!Part::Ctnetlink.is_in(root));
        write(root, "proc/sys/net/netfilter/nf_conntrack_count", "0\n");
        assert!(Part::Ctnetlink.is_in(root));
        fs::remove_dir(root.join("sys/module/nf_conntrack_netlink")).unwrap();
        assert_eq!(
            Part::Ctnetlink.require(root),
            Err(Reason::NotInKernel { part: "nf_conntrack_netlink".into() })
        );
    }

    #[test]
    fn legacy_tables_count_where_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "proc/net/ip_tables_names", "");
        assert!(!Part::LegacyTables(Family::Ipv4).is_in(dir.path()));
        write(dir.path(), "proc/net/ip_tables_names", "nat\n");
        assert!(Part::LegacyTables(Family::Ipv4).is_in(dir.path()));
        assert!(!Part::LegacyTables(Family::Ipv6).is_in(dir.path()));
    }
}
