//! The lists of rules that were read, and the writers of their rules.

use serde::{Deserialize, Serialize};

use super::{Capture, Gap, Kind, ProxyMode, Reader, Reason, Snapshot};
use crate::{
    net::Family,
    node::interfaces::{Dataplane, IPVS_DEVICE},
    rules::{
        IPTABLES_TABLES, Ruleset, Table, Writer, chains, frontends, ipset, iptables, ipvs, nftables,
        walk::Walker,
    },
};

/// The kinds of each list of rules, in the order of [`Listings`].
const LISTS: [&[Kind]; 5] =
    [&Kind::IPTABLES, &Kind::IP6TABLES, &Kind::NFTABLES, &Kind::IPVS, &[Kind::IpsetSave]];

/// Whether a list of rules was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listing {
    /// It was not requested, or the folder lacks it.
    #[default]
    NotTried,
    Failed,
    /// Its part of the kernel is absent.
    NotInKernel,
    Read,
}

impl Listing {
    /// Whether a rule missing from this list is missing from the kernel.
    pub const fn is_conclusive(self) -> bool {
        matches!(self, Self::Read | Self::NotInKernel)
    }
}

/// The lists of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listings {
    /// From any backend of iptables.
    pub iptables_v4: Listing,
    pub iptables_v6: Listing,
    pub nftables: Listing,
    pub ipvs: Listing,
    pub ipset: Listing,
    /// The nftables tables of other programs. Not in the first version of recordings.
    #[serde(default)]
    pub others: Listing,
}

impl Listings {
    pub const fn iptables(self, family: Family) -> Listing {
        match family {
            Family::Ipv4 => self.iptables_v4,
            Family::Ipv6 => self.iptables_v6,
        }
    }

    /// The list that kube-proxy writes in this mode.
    const fn of(self, mode: ProxyMode, family: Family) -> Listing {
        match mode {
            ProxyMode::Iptables => self.iptables(family),
            ProxyMode::Nftables => self.nftables,
            ProxyMode::Ipvs => self.ipvs,
        }
    }
}

/// Whether there are rules of kube-proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    #[default]
    Unknown,
    Absent,
    Present,
}

/// Whether rules of kube-proxy, of any mode, are in the kernel and packets reach them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyRules {
    pub v4: Presence,
    pub v6: Presence,
}

impl ProxyRules {
    pub const fn of(self, family: Family) -> Presence {
        match family {
            Family::Ipv4 => self.v4,
            Family::Ipv6 => self.v6,
        }
    }

    /// In either family. Many nodes have no IPv6: IPv4 alone can show absence, IPv6 alone cannot.
    pub const fn any(self) -> Presence {
        match (self.v4, self.v6) {
            (Presence::Present, _) | (_, Presence::Present) => Presence::Present,
            (v4, _) => v4,
        }
    }
}

impl Reader<'_> {
    pub(super) fn rules(&mut self) {
        self.iptables(Family::Ipv4, Kind::IPTABLES);
        self.iptables(Family::Ipv6, Kind::IP6TABLES);
        let read = Kind::NFTABLES.iter().find_map(|kind| self.parse(*kind, nftables::parse));
        self.snapshot.rules.absorb(read.unwrap_or_default());
        self.snapshot.rules.servers = Kind::IPVS.iter().find_map(|kind| self.parse(*kind, ipvs::parse_whole));
        let sets = self.parse(Kind::IpsetSave, ipset::parse_whole);
        self.snapshot.rules.absorb(sets.unwrap_or_default());
        let [v4, v6, nftables, ipvs, ipset] = LISTS;
        let [iptables_v4, iptables_v6] = [v4, v6].map(|kinds| self.listing(kinds, false));
        let [nftables, ipvs, ipset] = [nftables, ipvs, ipset].map(|kinds| self.listing(kinds, true));
        let others = self.parse(Kind::NftOthers, nftables::parse_others);
        let others = others.map(|others| others.tables).unwrap_or_default();
        self.snapshot.rules.others = others;
        let others = self.listing(&[Kind::NftOthers], false);
        self.snapshot.listings = Listings { iptables_v4, iptables_v6, nftables, ipvs, ipset, others };
        let kinds = LISTS.into_iter().flatten().filter(|kind| self.capture.get(**kind).is_some());
        let times = kinds.map(|kind| self.time(*kind));
        self.snapshot.rules_time = times.min();
    }

    fn iptables(&mut self, family: Family, [plain, nft, legacy]: [Kind; 3]) {
        let hint = |writer| iptables::Hint { family: Some(family), writer };
        let legacy =
            self.parse(legacy, |text| iptables::parse_whole(text, hint(Some(Writer::IptablesLegacy))));
        // kube-proxy writes to one backend. Where its rules were read in one, what the list of the other lacks is not its.
        let is_in_legacy = legacy.as_ref().is_some_and(leads_to_services);
        let mut parse = |kind, writer| {
            self.parse(kind, |text| {
                if is_in_legacy
                    && iptables::hides(text, "filter")
                    && let Ok(rules) = iptables::parse_beside(text, hint(writer))
                    && !leads_to_services(&rules)
                {
                    return Ok(rules);
                }
                iptables::parse_whole(text, hint(writer))
            })
        };
        let nft = parse(nft, Some(Writer::IptablesNft));
        // The plain name is one of the two backends: it may add rules to the other's list.
        let plain = if nft.is_none() {
            parse(plain, legacy.as_ref().map(|_| Writer::IptablesNft)).filter(|plain| {
                legacy.as_ref().is_none_or(|legacy| service_chains(legacy) != service_chains(plain))
            })
        } else {
            None
        };
        for read in [nft, legacy, plain].into_iter().flatten() {
            self.snapshot.rules.absorb(read);
        }
    }

    /// Whether these kinds were read: one of them if they are forms of one list (`either`), otherwise all.
    fn listing(&self, kinds: &[Kind], either: bool) -> Listing {
        let gaps = || self.snapshot.gaps.iter().filter(|gap| kinds.contains(&gap.kind));
        let absent = |reason: &Reason| matches!(reason, Reason::NotInKernel { .. });
        let unparsable = |kind: Kind| {
            gaps().any(|gap| gap.kind == kind && matches!(gap.reason, Reason::Unparsable { .. }))
        };
        let read = kinds.iter().any(|kind| self.capture.get(*kind).is_some() && !unparsable(*kind));
        let failed = gaps().any(|gap| !absent(&gap.reason));
        match (read, failed) {
            (true, failed) if either || !failed => Listing::Read,
            (_, true) => Listing::Failed,
            _ if gaps().next().is_some() => Listing::NotInKernel,
            _ => Listing::NotTried,
        }
    }
}

impl Snapshot {
    /// The mode of the rules, if they belong to only one. IPVS's device counts as a rule.
    pub fn mode_of_rules(&self) -> Option<ProxyMode> {
        let device = self.has_ipvs_device();
        let mut found = ProxyMode::ALL.into_iter().filter(|mode| {
            self.has_rules_of(*mode) == Presence::Present || device && *mode == ProxyMode::Ipvs
        });
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Whether kube-proxy's IPVS device exists, if the interfaces were read.
    pub(crate) fn has_ipvs_device(&self) -> bool {
        self.interfaces.as_ref().is_some_and(|list| list.get(IPVS_DEVICE).is_some())
    }

    /// Whether the virtual servers are those of kube-router's service proxy, which has an interface of its own for the
    /// addresses of Services (`KubeDummyIf` in `pkg/controllers/proxy/network_services_controller.go`). kube-proxy's ipvs mode
    /// has kube-ipvs0.
    fn has_servers_of_kube_router(&self) -> bool {
        self.other_dataplane == Some(Dataplane::KubeRouter) && !self.has_ipvs_device()
    }

    /// Whether there are rules that kube-proxy writes only in this mode, reached or not.
    pub fn has_rules_of(&self, mode: ProxyMode) -> Presence {
        let here = match mode {
            // Without any endpoint in the cluster, only rules that refuse name Services.
            ProxyMode::Iptables => service_chains(&self.rules) > 0 || names_services(&self.rules),
            ProxyMode::Nftables => self.rules.tables.iter().any(|table| table.writer == Writer::Nftables),
            ProxyMode::Ipvs => {
                self.rules.servers.iter().flatten().next().is_some() && !self.has_servers_of_kube_router()
            }
        };
        // Many nodes have no IPv6, and their folders no list of it; IPv4's list is required.
        let [v4, v6] = [Family::Ipv4, Family::Ipv6].map(|family| self.listings.of(mode, family));
        let is_known = v4.is_conclusive() && v6 != Listing::Failed;
        match (here, is_known) {
            (true, _) => Presence::Present,
            (false, true) => Presence::Absent,
            (false, false) => Presence::Unknown,
        }
    }

    /// Whether the rules that kube-proxy writes for this family were read: then a missing rule does not exist. Rules of
    /// another mode do not show this.
    pub fn knows_rules(&self, family: Family) -> bool {
        self.proxy_rules.of(family) != Presence::Unknown
            && self.mode.is_none_or(|mode| self.has_rules_of(mode) != Presence::Unknown)
    }

    /// Takes the rules out of this snapshot and adds the other programs' tables in the capture's list of kube-proxy's. nft
    /// also lists the tables of iptables, without their matches; those are left out if iptables itself listed them.
    pub fn take_everyones_rules(&mut self, capture: &Capture) -> (Ruleset, Vec<Gap>) {
        let (mut all, mut gaps) = (std::mem::take(&mut self.rules), Vec::new());
        for kind in [Kind::NftRulesetJson, Kind::NftRuleset] {
            let Some(read) = capture.parse(kind, nftables::parse_others) else { continue };
            let mut others = match read {
                Ok(others) => others,
                Err(gap) => {
                    gaps.push(gap);
                    continue;
                }
            };
            let is_new = |table: &Table| {
                let is_known_by = |writers: &[Writer]| {
                    let mut namesakes = all
                        .all_tables()
                        .filter(|known| known.family == table.family && known.name == table.name);
                    namesakes.any(|known| writers.contains(&known.writer))
                };
                // The legacy backend's tables are not nft's, and iptables may not print one of the other's.
                let of_iptables = IPTABLES_TABLES.contains(&table.name.as_ref())
                    && self.listings.iptables(table.family) == Listing::Read
                    && (is_known_by(&[Writer::Iptables, Writer::IptablesNft])
                        || !Self::hides(capture, table.family, &table.name));
                !of_iptables && !is_known_by(&[Writer::Nftables])
            };
            others.tables.retain(is_new);
            all.others.append(&mut others.tables);
            all.absorb(others);
        }
        (all, gaps)
    }

    /// Whether a list of iptables says that it leaves this table out, because iptables cannot print it.
    pub fn hides(capture: &Capture, family: Family, table: &str) -> bool {
        let kinds = match family {
            Family::Ipv4 => Kind::IPTABLES,
            Family::Ipv6 => Kind::IP6TABLES,
        };
        kinds.iter().filter_map(|kind| capture.text(*kind)).any(|text| iptables::hides(text, table))
    }

    /// Whether a list of rules exists but cannot be parsed in any form. In nftables mode iptables' lists do not have kube-proxy's.
    pub fn has_damaged_rules(&self) -> bool {
        let Listings { iptables_v4, iptables_v6, nftables, ipvs, ipset, others: _ } = self.listings;
        let listings = [iptables_v4, iptables_v6, nftables, ipvs, ipset];
        let damaged = |kinds: &[Kind]| {
            let unparsable = |gap: &Gap| matches!(gap.reason, Reason::Unparsable { .. });
            self.gaps.iter().any(|gap| kinds.contains(&gap.kind) && unparsable(gap))
        };
        let of_mode = if self.mode == Some(ProxyMode::Nftables) { 2 } else { 0 };
        let lists = LISTS.into_iter().zip(listings).skip(of_mode);
        lists.into_iter().any(|(kinds, listing)| listing == Listing::Failed && damaged(kinds))
    }

    /// The Service chains in this backend of iptables.
    pub fn service_chains(&self, is_backend: impl Fn(Writer) -> bool) -> usize {
        count_service_chains(&self.rules, is_backend)
    }

    pub(super) fn find_proxy_rules(&self) -> ProxyRules {
        ProxyRules { v4: self.presence(Family::Ipv4), v6: self.presence(Family::Ipv6) }
    }

    fn presence(&self, family: Family) -> Presence {
        let mut writers = self.rules.writers(family);
        if self.has_servers_of_kube_router() {
            writers.retain(|writer| *writer != Writer::Ipvs);
        }
        // IPVS needs no chain that leads to it.
        if writers.contains(&Writer::Ipvs)
            || !writers.is_empty() && Walker::new(&self.rules, family).enters_any()
        {
            return Presence::Present;
        }
        let Listings { nftables, ipvs, .. } = self.listings;
        let iptables = self.listings.iptables(family);
        // The absence of rules means something only if kube-proxy's lists were read.
        let is_known = match self.mode {
            Some(mode) => self.listings.of(mode, family).is_conclusive(),
            None => iptables == Listing::Read && nftables.is_conclusive() && ipvs.is_conclusive(),
        };
        if is_known { Presence::Absent } else { Presence::Unknown }
    }
}

/// Chains that kube-proxy creates for Services in iptables mode. IPVS mode has none of them.
fn service_chains(rules: &Ruleset) -> usize {
    count_service_chains(rules, |_| true)
}

/// Whether kube-proxy's chain of all Services has rules, as in iptables and ipvs mode, or chains of Services are left.
fn leads_to_services(rules: &Ruleset) -> bool {
    let chains = rules.tables.iter().filter(|table| &*table.name == "nat").flat_map(|table| &table.chains);
    let mut shared = chains.filter(|chain| &*chain.name == "KUBE-SERVICES");
    service_chains(rules) > 0 || shared.any(|chain| !chain.rules.is_empty())
}

/// Whether a chain that all Services share has a rule for an address of one. IPVS mode names Services in sets.
fn names_services(rules: &Ruleset) -> bool {
    let shared = |name: &str| matches!(name, "KUBE-SERVICES" | "KUBE-EXTERNAL-SERVICES");
    let tables = rules.tables.iter().filter(|table| table.writer.is_iptables());
    let mut chains = tables.flat_map(|table| &table.chains).filter(|chain| shared(&chain.name));
    chains.any(|chain| chain.rules.iter().any(|rule| frontends::of_rule(rule).is_some()))
}

fn count_service_chains(rules: &Ruleset, is_backend: impl Fn(Writer) -> bool) -> usize {
    let tables = rules.tables.iter().filter(|table| is_backend(table.writer));
    tables.flat_map(|table| &table.chains).filter(|chain| chains::is_of_service(&chain.name)).count()
}
