//! Takes a snapshot of the rules of this network namespace: runs the tools that are there, within limits.
//!
//! A snapshot is taken on suspicion or for an audit, never on a timer: a listing takes seconds on large tables. A
//! command is run only where what it lists is in the kernel already; elsewhere listing would load kernel modules, and
//! the empty list would prove nothing. What could not be read is a named gap.

use std::{fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    net::Family,
    node::{
        Limits, Observed,
        command::{self, CommandError},
        ipvs, now, procfs,
    },
    rules::{self, Ruleset, Writer, ipset, iptables, nftables},
};

/// What was read at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    pub rules: Ruleset,
    /// What could not be read, each with the reason.
    pub gaps: Vec<String>,
    /// What was read, by command or file.
    pub sources: Vec<String>,
}

/// How and within what the rules are read.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// For one command.
    pub limits: Limits,
}

impl Default for Reader {
    fn default() -> Self {
        Self { limits: Limits { time: Duration::from_secs(5), bytes: 256 << 20 } }
    }
}

impl Reader {
    /// Reads the rules of every mode and of both families. Blocks, for the time limit of each command at most: call it
    /// off the event loop.
    pub fn read(&self) -> Observed<Snapshot> {
        let time = now();
        let mut snapshot = Snapshot::default();
        let nf_tables = has_nf_tables(Path::new("/"));
        for family in Family::ALL {
            self.iptables(family, nf_tables, &mut snapshot);
        }
        if nf_tables {
            self.nftables(&mut snapshot);
        }
        self.ipvs(&mut snapshot);
        let trie = procfs::read_text(Path::new("/proc/net/fib_trie"));
        let inet6 = procfs::read_text(Path::new("/proc/net/if_inet6")).unwrap_or_default();
        match trie {
            Ok(trie) => snapshot.rules.addresses = Some(procfs::parse_addresses(&trie, &inet6)),
            Err(error) => snapshot.gaps.push(format!("the node's addresses: /proc/net/fib_trie: {error}")),
        }
        Observed { time, value: snapshot }
    }

    /// The iptables rules of one family alone. The error is the gap's text.
    pub fn iptables_of(&self, family: Family) -> Result<Snapshot, String> {
        let mut snapshot = Snapshot::default();
        self.iptables(family, has_nf_tables(Path::new("/")), &mut snapshot);
        if !snapshot.sources.is_empty() {
            return Ok(snapshot);
        }
        Err(snapshot.gaps.pop().unwrap_or_else(|| {
            format!(
                "{family} rules of iptables: neither nf_tables nor legacy tables are known to be in this kernel, so no \
                 command was run"
            )
        }))
    }

    fn iptables(&self, family: Family, nf_tables: bool, snapshot: &mut Snapshot) {
        let prefix = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
        let legacy = has_legacy_tables(prefix);
        let mut read = false;
        let mut missing = Vec::new();
        for (flavour, writer, present) in
            [("-nft", Writer::IptablesNft, nf_tables), ("-legacy", Writer::IptablesLegacy, legacy)]
        {
            if present {
                let hint = iptables::Hint { family: Some(family), writer: Some(writer) };
                match self.save(&format!("{prefix}{flavour}-save"), hint, snapshot) {
                    Ok(()) => read = true,
                    Err(error) => missing.push((writer, error)),
                }
            }
        }
        if read || !(nf_tables || legacy) {
            for (writer, error) in missing {
                snapshot.gaps.push(format!("{family} rules of {writer}: {error}"));
            }
            return;
        }
        // Images with one backend only often have no flavoured names.
        let hint = iptables::Hint { family: Some(family), writer: None };
        if let Err(error) = self.save(&format!("{prefix}-save"), hint, snapshot) {
            snapshot.gaps.push(format!("{prefix} rules: {error}"));
        }
    }

    fn save(&self, program: &str, hint: iptables::Hint, snapshot: &mut Snapshot) -> Result<(), CommandError> {
        let output = command::run(program, &[], self.limits)?;
        snapshot.rules.absorb(iptables::parse(&String::from_utf8_lossy(&output), hint));
        snapshot.sources.push(program.to_owned());
        Ok(())
    }

    fn nftables(&self, snapshot: &mut Snapshot) {
        let tables = match command::run("nft", &["list", "tables"], self.limits) {
            Ok(output) => String::from_utf8_lossy(&output).into_owned(),
            Err(error) => {
                snapshot.gaps.push(format!("nftables rules: {error}"));
                return;
            }
        };
        for (family, name) in [("ip", "table ip kube-proxy"), ("ip6", "table ip6 kube-proxy")] {
            if !tables.lines().any(|line| line.trim() == name) {
                continue;
            }
            let listed = command::run("nft", &["-j", "list", "table", family, "kube-proxy"], self.limits);
            let rules = match listed {
                Ok(output) => nftables::parse(&output),
                // An nft without JSON prints text all the same.
                Err(CommandError::Failed { .. }) => {
                    command::run("nft", &["list", "table", family, "kube-proxy"], self.limits)
                        .map_err(|error| error.to_string())
                        .and_then(|output| nftables::parse(&output))
                }
                Err(error) => Err(error.to_string()),
            };
            match rules {
                Ok(rules) => {
                    snapshot.rules.absorb(rules);
                    snapshot.sources.push(format!("nft list {name}"));
                }
                Err(error) => snapshot.gaps.push(format!("nftables rules: {name}: {error}")),
            }
        }
    }

    fn ipvs(&self, snapshot: &mut Snapshot) {
        let proc = Path::new("/proc");
        if !proc.join("net/ip_vs").exists() {
            return;
        }
        match ipvs::read(proc, self.limits) {
            Ok(list) => {
                snapshot.rules.servers = Some(rules::ipvs::parse(&list.text));
                snapshot.sources.push(list.source);
            }
            Err(error) => snapshot.gaps.push(format!("IPVS: {error}")),
        }
        match command::run("ipset", &["save"], self.limits) {
            Ok(output) => {
                snapshot.rules.absorb(ipset::parse(&String::from_utf8_lossy(&output)));
                snapshot.sources.push("ipset save".to_owned());
            }
            Err(error) => {
                snapshot.gaps.push(format!("ipsets, which say what IPVS mode masquerades: {error}"));
            }
        }
    }
}

/// Whether `nf_tables` is in the kernel, loaded or built in.
pub(in crate::node) fn has_nf_tables(root: &Path) -> bool {
    if root.join("sys/module/nf_tables").exists() {
        return true;
    }
    let Ok(release) = fs::read_to_string(root.join("proc/sys/kernel/osrelease")) else { return false };
    let builtin = root.join("lib/modules").join(release.trim()).join("modules.builtin");
    fs::read_to_string(builtin).is_ok_and(|list| list.contains("/nf_tables.ko"))
        || fs::read_to_string(root.join("proc/kallsyms"))
            .is_ok_and(|symbols| symbols.contains(" nft_do_chain\n"))
}

fn has_legacy_tables(prefix: &str) -> bool {
    let names = if prefix == "iptables" { "ip_tables_names" } else { "ip6_tables_names" };
    fs::read_to_string(Path::new("/proc/net").join(names)).is_ok_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nf_tables_is_found_loaded_and_built_in() {
        let root = tempfile::tempdir().unwrap();
        assert!(!has_nf_tables(root.path()));
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::create_dir_all(root.path().join("lib/modules/6.1.0")).unwrap();
        fs::write(root.path().join("proc/sys/kernel/osrelease"), "6.1.0\n").unwrap();
        fs::write(root.path().join("proc/kallsyms"), "0 t nft_do_chain_ipv4\t[nf_tables]\n").unwrap();
        assert!(!has_nf_tables(root.path()));
        let list = root.path().join("lib/modules/6.1.0/modules.builtin");
        fs::write(list, "kernel/net/netfilter/nf_tables.ko\n").unwrap();
        assert!(has_nf_tables(root.path()));
        fs::create_dir_all(root.path().join("sys/module/nf_tables")).unwrap();
        assert!(has_nf_tables(root.path()));
    }
}
