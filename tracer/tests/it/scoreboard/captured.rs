//! A captured node with a cause cut into it, and the edits that the groups share.

use std::{collections::BTreeMap, sync::OnceLock};

use serde_json::{Value, json};
use viptrace::{
    cluster::Key,
    diagnosis::triage::{Facts, Scope, triage_without},
    node::ProxyMode,
    time::Timestamp,
};

use super::{
    Iptables, Ipvs, Nftables,
    case::{Judged, Name, Omits},
};
use crate::{
    check_faults::{self, complete},
    check_neighbours::edit_items,
    check_support::{Gathered, name},
};

/// The rules of kube-proxy in this mode, as text that can be edited.
pub(super) const fn rules_file(mode: ProxyMode) -> &'static str {
    match mode {
        Iptables => "node/iptables-save.txt",
        Nftables => "node/nft-ruleset.txt",
        Ipvs => "node/ipvsadm-save.txt",
    }
}

/// worker-1 in this mode with everything that a live check reads, and only the faults by design.
pub(super) fn node(mode: ProxyMode) -> Gathered {
    let node = match mode {
        Iptables => check_faults::node(),
        _ => complete(Gathered::new(&[&format!("kube-proxy/worker-1/{mode}")])),
    };
    if mode == Iptables || mode == Nftables {
        // The text is edited; the JSON would win.
        node.remove("node/nft-ruleset.json");
    }
    if mode == Ipvs {
        node.remove("node/ipvsadm-list.txt");
    }
    node
}

/// The findings about a node, less those of the same node without the cause.
pub(super) struct Checked {
    facts: Facts,
    scope: Scope,
    besides: Vec<String>,
}

fn names(facts: &Facts, scope: &Scope, omits: Omits<'_>) -> Vec<Name> {
    let findings = triage_without(facts, scope, &omits).findings;
    findings.iter().map(|finding| Name::read(&name(finding))).collect()
}

/// The findings on a node as it was captured.
fn by_design(mode: ProxyMode) -> &'static [Name] {
    static FOUND: OnceLock<BTreeMap<&'static str, Vec<Name>>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let of =
            |mode: ProxyMode| (mode.as_str(), names(&node(mode).facts(), &Scope::default(), &|_, _| false));
        ProxyMode::ALL.map(of).into()
    });
    &found[mode.as_str()]
}

impl Checked {
    pub(super) fn of(mode: ProxyMode, node: &Gathered) -> Self {
        Self::with(mode, node.facts())
    }

    fn with(mode: ProxyMode, facts: Facts) -> Self {
        let besides = by_design(mode).iter().map(ToString::to_string).collect();
        Self { facts, scope: Scope::default(), besides }
    }

    /// At this time, in seconds of kube-proxy's clock.
    pub(super) fn at(mode: ProxyMode, node: &Gathered, secs: u64) -> Self {
        let mut facts = node.facts();
        facts.taken = Some(Timestamp::from_unix_secs(secs));
        Self::with(mode, facts)
    }

    /// Only about one Service of the namespace shop.
    pub(super) fn about(mode: ProxyMode, node: &Gathered, service: &str) -> Self {
        let mut checked = Self::of(mode, node);
        checked.scope = Scope { service: Some(Key::new("shop", service)) };
        checked
    }

    /// One of the faults by design counts as the case's cause.
    pub(super) fn by_design(mode: ProxyMode, name: &str) -> Self {
        let mut checked = Self::of(mode, &node(mode));
        checked.besides.retain(|known| known != name);
        checked
    }

    /// Compared with another node as it was captured.
    pub(super) fn beside(unedited: &Gathered, edited: &Gathered) -> Self {
        let besides = names(&unedited.facts(), &Scope::default(), &|_, _| false);
        let besides = besides.iter().map(ToString::to_string).collect();
        Self { facts: edited.facts(), scope: Scope::default(), besides }
    }
}

impl Judged for Checked {
    fn found(&self, omits: Omits<'_>) -> Vec<Name> {
        let mut besides = self.besides.clone();
        let mut found = names(&self.facts, &self.scope, omits);
        found.retain(|name| match besides.iter().position(|known| *known == name.to_string()) {
            Some(position) => {
                besides.swap_remove(position);
                false
            }
            None => true,
        });
        found.sort();
        found.dedup();
        found
    }
}

/// The lines for which this holds.
pub(super) fn kept(text: &str, keeps: impl Fn(&str) -> bool) -> String {
    text.split_inclusive('\n').filter(|line| keeps(line)).collect()
}

/// Removes the lines that contain this text.
pub(super) fn without_lines(node: &Gathered, file: &str, part: &str) {
    node.edit(file, |text| kept(&text, |line| !line.contains(part)));
}

pub(super) fn replace(node: &Gathered, file: &str, from: &str, to: &str) {
    node.edit(file, |text| text.replace(from, to));
}

/// A line at the end of kube-proxy's log, at this time of the day of the captures.
pub(super) fn log(node: &Gathered, time: &str, message: &str) {
    node.edit("node/kube-proxy.log", |text| {
        format!("{text}E1120 {time}.000000   27071 reflector.go:205] {message}\n")
    });
}

/// A kernel setting.
pub(super) fn set(node: &Gathered, name: &str, value: &str) {
    node.edit("node/sysctl.txt", |text| {
        kept(&text, |line| !line.starts_with(&format!("{name} = "))) + &format!("{name} = {value}\n")
    });
}

/// When kube-proxy was started, last queued an update and last wrote its rules.
pub(super) fn times(node: &Gathered, started: &str, queued: &str, synced: &str) {
    node.edit("node/metrics.txt", |text| {
        let others = kept(&text, |line| {
            !line.starts_with("process_start_time_seconds") && !line.contains("_timestamp_seconds ")
        });
        format!(
            "{others}process_start_time_seconds {started}\n\
             kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds {queued}\n\
             kubeproxy_sync_proxy_rules_last_timestamp_seconds {synced}\n"
        )
    });
}

/// Changes a Service of the namespace shop.
pub(super) fn edit_service(node: &Gathered, service: &str, change: impl Fn(&mut Value)) {
    edit_items(node, "services", |item| {
        if item["metadata"]["name"] == service {
            change(item);
        }
    });
}

/// Changes the slices of a Service, at this time.
pub(super) fn edit_slices(node: &Gathered, service: &str, changed: &str, change: impl Fn(&mut Value)) {
    edit_items(node, "endpointslices", |slice| {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] == service {
            change(slice);
            slice["metadata"]["managedFields"] = json!([{"time": changed}]);
        }
    });
}

/// The endpoint of cart leaves the slices at this time.
pub(super) fn leaves(node: &Gathered, address: &str, changed: &str) {
    edit_slices(node, "cart", changed, |slice| {
        slice["endpoints"].as_array_mut().unwrap().retain(|endpoint| endpoint["addresses"][0] != address);
    });
}

/// cart gets an endpoint at this time.
pub(super) fn arrives(node: &Gathered, address: &str, changed: &str) {
    edit_slices(node, "cart", changed, |slice| {
        let mut endpoint = slice["endpoints"][0].clone();
        endpoint["addresses"] = json!([address]);
        slice["endpoints"].as_array_mut().unwrap().push(endpoint);
    });
}

/// No process of kube-proxy, and nothing answers.
pub(super) fn without_process(node: &Gathered) {
    node.write("node/kube-proxy.process.json", "{\"complete\": true}");
    for file in ["proxyMode.txt", "metrics.txt", "healthz.txt", "livez.txt"] {
        if node.path().join("node").join(file).exists() {
            node.remove(&format!("node/{file}"));
        }
    }
}

pub(super) const NO_RULES: &str = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n";

/// The lists of a node on which kube-proxy's mode has no rules.
pub(super) fn without_rules(node: &Gathered, mode: ProxyMode) {
    match mode {
        Iptables => {
            without_lines(node, rules_file(mode), "KUBE-");
            node.remove("node/nft-ruleset.txt");
        }
        Nftables => node.write(rules_file(mode), "table ip other {\n}\n"),
        Ipvs => node.write(rules_file(mode), ""),
    }
}
