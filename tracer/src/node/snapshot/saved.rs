//! A trace's snapshot in recordings: the form of the first version, with later typed fields added.
//!
//! Owns the conversion in both directions. Facts that only a check reads are not stored.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ConntrackUse, Listing, Listings, Presence, ProxyReport, ProxyRules, Snapshot};
use crate::{
    net::Family,
    node::{
        Observed, Version, gap::Gap, interfaces::Dataplane, ipvs::IpvsSettings, kube_proxy::ProxyMode,
        routes::Routes,
    },
    rules::Ruleset,
    time::Timestamp,
};

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Saved<'s> {
    state: State<'s>,
    rules: Option<Observed<Rules<'s>>>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct State<'s> {
    kube_proxy_mode: Option<Observed<ProxyMode>>,
    kube_proxy_version: Option<Observed<String>>,
    kube_proxy_running: Option<Observed<bool>>,
    other_dataplane: Option<Observed<Cow<'static, str>>>,
    conntrack_use: Option<Observed<ConntrackUse>>,
    ipvs_settings: Option<Observed<IpvsSettings>>,
    addresses: Option<Observed<BTreeSet<IpAddr>>>,
    /// In the first version, which stored it if the rules themselves were not read.
    proxy_rules: Option<Observed<bool>>,
    gaps: Vec<String>,
    /// Not in the first version.
    presence: Option<ProxyRules>,
    missing: Vec<Gap>,
    report: ProxyReport,
    routes: Option<Cow<'s, Routes>>,
    mtus: BTreeMap<String, u64>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Rules<'s> {
    rules: Cow<'s, Ruleset>,
    /// Not in the first version.
    listings: Option<Listings>,
}

fn at<T>(time: Timestamp, value: Option<T>) -> Option<Observed<T>> {
    value.map(|value| Observed { time, value })
}

fn value<T>(observed: Option<Observed<T>>) -> Option<T> {
    observed.map(|observed| observed.value)
}

impl<'s> From<&'s Snapshot> for Saved<'s> {
    fn from(snapshot: &'s Snapshot) -> Self {
        let time = snapshot.read_at().unwrap_or_default();
        let state = State {
            kube_proxy_mode: at(time, snapshot.mode),
            kube_proxy_version: at(time, snapshot.version.as_deref().map(str::to_owned)),
            kube_proxy_running: at(time, snapshot.running),
            other_dataplane: at(time, snapshot.other_dataplane.map(|found| found.as_str().into())),
            conntrack_use: snapshot.conntrack_use,
            ipvs_settings: at(time, snapshot.ipvs_settings),
            addresses: at(time, snapshot.rules.addresses.clone()),
            proxy_rules: None,
            gaps: snapshot.recorded_gaps.clone(),
            presence: Some(snapshot.proxy_rules),
            missing: snapshot.gaps.clone(),
            report: snapshot.report.clone(),
            routes: snapshot.routes.as_ref().map(Cow::Borrowed),
            mtus: snapshot.mtus.clone(),
        };
        let rules = Rules { rules: Cow::Borrowed(&snapshot.rules), listings: Some(snapshot.listings) };
        Self { state, rules: snapshot.rules_time.map(|time| Observed { time, value: rules }) }
    }
}

impl From<Saved<'_>> for Snapshot {
    fn from(Saved { state, rules }: Saved<'_>) -> Self {
        let rules_time = rules.as_ref().map(|rules| rules.time);
        let (rules, listings) = value(rules).map_or_else(Default::default, |Rules { rules, listings }| {
            let listings = listings.unwrap_or_else(|| listings_of(&rules));
            (rules.into_owned(), Some(listings))
        });
        let dataplane = value(state.other_dataplane);
        let mut snapshot = Self {
            mode: value(state.kube_proxy_mode),
            version: value(state.kube_proxy_version).map(Version::from),
            running: value(state.kube_proxy_running),
            other_dataplane: Dataplane::ALL
                .into_iter()
                .find(|one| dataplane.as_deref() == Some(one.as_str())),
            conntrack_use: state.conntrack_use,
            ipvs_settings: value(state.ipvs_settings),
            rules,
            listings: listings.unwrap_or_default(),
            rules_time,
            gaps: state.missing,
            recorded_gaps: state.gaps,
            report: state.report,
            routes: state.routes.map(Cow::into_owned),
            mtus: state.mtus,
            ..Self::default()
        };
        let addresses = value(state.addresses);
        snapshot.rules.addresses = snapshot.rules.addresses.take().or(addresses);
        snapshot.proxy_rules = state.presence.unwrap_or_else(|| {
            let found = snapshot.find_proxy_rules();
            match value(state.proxy_rules) {
                Some(there) if found.any() == Presence::Unknown => {
                    let v4 = if there { Presence::Present } else { Presence::Absent };
                    ProxyRules { v4, ..found }
                }
                _ => found,
            }
        });
        snapshot
    }
}

/// The lists that the first version read, judged by their content: it did not store which lists were empty.
fn listings_of(rules: &Ruleset) -> Listings {
    let iptables = |family| {
        let read = rules.tables.iter().any(|table| table.family == family && table.writer.is_iptables());
        if read { Listing::Read } else { Listing::Failed }
    };
    Listings {
        iptables_v4: iptables(Family::Ipv4),
        iptables_v6: iptables(Family::Ipv6),
        nftables: Listing::Read,
        others: Listing::NotTried,
        ipvs: if rules.servers.is_some() { Listing::Read } else { Listing::Failed },
        ipset: Listing::Read,
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Saved::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Saved::deserialize(deserializer).map(Self::from)
    }
}
