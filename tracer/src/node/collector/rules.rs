//! The lists of rules: each from the command or netlink request that lists it, if its part of the kernel is loaded.

use super::{Reading, Request, now};
use crate::{
    kernel::environment::{Capability, capabilities},
    net::Family,
    node::{capture::Kind, gap::Reason, ipvs, loaded::Part},
    rules::{IPTABLES_TABLES, NFTABLES_TABLE, Writer},
};

/// kube-proxy's own tables in nftables mode, as in `nft list tables`, with their families.
const TABLES: [(&str, &str); 2] = [("table ip kube-proxy", "ip"), ("table ip6 kube-proxy", "ip6")];

/// The command and its output.
type Listed = Result<(String, String), Reason>;

/// The most tables of other programs that are listed.
const MAX_OTHER_TABLES: usize = 64;

/// The family and name of a table in a line of `nft list tables` that only other programs than kube-proxy and iptables
/// write, and that IP packets pass.
fn other_table(line: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["table", family @ ("ip" | "ip6" | "inet"), name] = words.as_slice() else { return None };
    let is_known = *family != "inet" && (*name == NFTABLES_TABLE || IPTABLES_TABLES.contains(name));
    (!is_known).then_some((*family, *name))
}

impl Reading {
    /// Everything that can contain rules of kube-proxy.
    pub(super) fn rules(&mut self, request: Request) {
        for family in Family::ALL {
            self.iptables(family, request);
        }
        let tables = self.nft_tables(request);
        self.nftables(request, &tables);
        self.other_tables(request, &tables);
        self.ipvs(request);
    }

    /// The lists that show kube-proxy's mode if its port does not answer and IPVS's device is missing: the smaller list
    /// first.
    pub(super) fn rules_of_mode(&mut self, request: Request) {
        let tables = self.nft_tables(request);
        self.nftables(request, &tables);
        if self.capture.get(Kind::NftRulesetJson).is_none() {
            self.iptables(Family::Ipv4, request);
        }
    }

    /// Each backend by its own name; images with only one backend often have only the plain name.
    fn iptables(&mut self, family: Family, request: Request) {
        let [_, nft, legacy] = match family {
            Family::Ipv4 => Kind::IPTABLES,
            Family::Ipv6 => Kind::IP6TABLES,
        };
        let backends = [
            (nft, Writer::IptablesNft, Part::NfTables),
            (legacy, Writer::IptablesLegacy, Part::LegacyTables(family)),
        ];
        // The counters are for a reader of the capture.
        let counted: &[&str] = if request == Request::Check { &["-c"] } else { &[] };
        let plain = Writer::Iptables.save_command(family);
        for (kind, backend, part) in backends {
            self.take(kind, |reading| {
                part.require(&reading.collector.root)?;
                match reading.list(request, backend.save_command(family), counted) {
                    Err(Reason::CommandMissing { .. })
                        if reading.backend(request, plain) == Some(backend) =>
                    {
                        reading.list(request, plain, counted)
                    }
                    own => own,
                }
            });
        }
    }

    /// The backend of the plain name, which it prints first: `iptables-save v1.8.9 (nf_tables)`. Releases before 1.8 do
    /// not print it, and belong to the legacy backend.
    fn backend(&self, request: Request, program: &str) -> Option<Writer> {
        match self.commands(request).run(program, &["-V"]) {
            Err(Reason::CommandMissing { .. }) => None,
            Ok(version) if version.contains("(nf_tables)") => Some(Writer::IptablesNft),
            _ => Some(Writer::IptablesLegacy),
        }
    }

    /// The list of all tables.
    fn nft_tables(&self, request: Request) -> Listed {
        Part::NfTables.require(&self.collector.root)?;
        self.list(request, "nft", &["list", "tables"])
    }

    /// Only kube-proxy's own tables: nft also lists iptables' rules, without their matches. If there are none, the list
    /// of tables is the proof.
    fn nftables(&mut self, request: Request, tables: &Listed) {
        let all = tables.as_ref().map_or("", |(_, text)| text);
        let own = TABLES.iter().filter(|(line, _)| all.lines().any(|other| other.trim() == *line));
        let own: Vec<_> = own.map(|(_, family)| (*family, NFTABLES_TABLE)).collect();
        if own.is_empty() {
            self.take(Kind::NftRuleset, |_| tables.clone());
            return;
        }
        let (kind, read) = match self.list_tables(request, &["-j"], &own) {
            // An nft without JSON support prints text.
            Err(Reason::CommandFailed { .. }) => (Kind::NftRuleset, self.list_tables(request, &[], &own)),
            read => (Kind::NftRulesetJson, read),
        };
        self.take(kind, |_| read);
    }

    /// These tables, by family and name, one after the other.
    fn list_tables(&self, request: Request, options: &[&str], tables: &[(&str, &str)]) -> Listed {
        let mut all = (String::new(), String::new());
        for (family, name) in tables {
            let (source, text) =
                self.list(request, "nft", &[options, &["list", "table", family, name]].concat())?;
            all.0 += if all.0.is_empty() { "" } else { "; " };
            all.0 += &source;
            // The first text is not copied: that of a large cluster is tens of megabytes.
            if all.1.is_empty() {
                all.1 = text;
            } else {
                all.1 += &text;
            }
            all.1.push('\n');
        }
        Ok(all)
    }

    /// IPVS over generic netlink, or else through `ipvsadm`, or else from the kernel's file, which lacks the time of
    /// session affinity. The sets show the masqueraded connections.
    fn ipvs(&mut self, request: Request) {
        let root = self.collector.root.clone();
        if let Err(reason) = Part::Ipvs.require(&root) {
            self.capture.miss(Kind::IpvsSave, reason.clone());
            // The rules of other programs use sets too.
            if request == Request::Check || self.names_ipsets() {
                self.ipsets(request);
            } else {
                self.capture.miss(Kind::IpsetSave, reason);
            }
            return;
        }
        self.take(Kind::IpvsSave, |reading| match ipvs::saved(&root, request.listing()) {
            Ok(text) => Ok(("generic netlink of IPVS".to_owned(), text)),
            Err(_) => reading.list(request, "ipvsadm", &["-Sn"]),
        });
        if self.capture.get(Kind::IpvsSave).is_none() {
            self.take_file(Kind::IpvsList, &root.join("proc/net/ip_vs"));
        }
        self.ipsets(request);
    }

    fn ipsets(&mut self, request: Request) {
        self.take(Kind::IpsetSave, |reading| {
            Part::IpSet.require(&reading.collector.root)?;
            reading.list(request, "ipset", &["save"])
        });
    }

    /// Whether a rule of iptables that was read asks for a set.
    fn names_ipsets(&self) -> bool {
        let mut kinds = Kind::IPTABLES.into_iter().chain(Kind::IP6TABLES);
        kinds.any(|kind| self.capture.text(kind).is_some_and(|text| text.contains("--match-set ")))
    }

    /// The tables that neither kube-proxy nor iptables wrote. One that cannot be listed is missing, for its reason.
    fn other_tables(&mut self, request: Request, tables: &Listed) {
        let begun = now();
        let text = match tables {
            Ok((_, text)) => text,
            Err(reason) => {
                // A trace reports the reason once, for kube-proxy's table.
                if request == Request::Check || matches!(reason, Reason::NotInKernel { .. }) {
                    self.capture.miss(Kind::NftOthers, reason.clone());
                }
                return;
            }
        };
        let others: Vec<_> = text.lines().filter_map(other_table).take(MAX_OTHER_TABLES).collect();
        if others.is_empty() {
            let none = "{\"nftables\": []}\n".to_owned();
            self.capture.put_read(Kind::NftOthers, "nft list tables", none, Some(begun));
            return;
        }
        let list = |options: &[&str]| -> Vec<Listed> {
            others
                .iter()
                .map(|table| self.list_tables(request, options, std::slice::from_ref(table)))
                .collect()
        };
        let mut listed = list(&["-j"]);
        // An nft without JSON support prints text.
        if listed.iter().all(|one| matches!(one, Err(Reason::CommandFailed { .. }))) {
            listed = list(&[]);
        }
        let why = listed.iter().find_map(|one| one.as_ref().err().cloned());
        let read: Vec<(String, String)> = listed.into_iter().flatten().collect();
        if !read.is_empty() {
            let (sources, texts): (Vec<_>, Vec<_>) = read.into_iter().unzip();
            self.capture.put_read(Kind::NftOthers, sources.join("; "), texts.concat(), Some(begun));
        }
        if let Some(reason) = why {
            self.capture.miss(Kind::NftOthers, reason);
        }
    }

    /// Runs a command that lists something.
    fn list(&self, request: Request, program: &str, arguments: &[&str]) -> Listed {
        let source = [&[program], arguments].concat().join(" ");
        match self.commands(request).run(program, arguments) {
            Ok(text) => Ok((source, text)),
            Err(Reason::CommandFailed { .. }) if !self.may_list() => {
                Err(Reason::NotPermitted { place: format!("`{source}`") })
            }
            Err(reason) => Err(reason),
        }
    }

    /// Whether this process may list rules; if unknown, this returns true.
    fn may_list(&self) -> bool {
        let held = capabilities(&self.root("proc/self/status"));
        held.is_none_or(|held| held.has(Capability::NetAdmin))
    }
}
