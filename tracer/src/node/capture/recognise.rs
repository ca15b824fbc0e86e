//! Recognises the kind of a file by its name, or if the name is not enough, by its content.
//!
//! Owns only the recognition. Must-gathers name files in many ways, so the content decides whenever it can.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer as _,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};

use super::Kind;
use crate::node::routes;

/// The number of bytes examined if the content must decide.
const HEAD_BYTES: usize = 64 << 10;

/// The kind of a file with this name and text; `None` for any other file.
pub fn recognise(name: &str, text: &str) -> Option<Kind> {
    let head = head(text);
    if text.trim().is_empty() {
        // An empty list is a list: no rules, no virtual server. Only the exact name identifies it. JSON and IPVS's own
        // list are never empty.
        let lists = [Kind::NftRuleset, Kind::IpvsSave, Kind::IpsetSave];
        let of_rules = |kind: &Kind| {
            Kind::IPTABLES.contains(kind) || Kind::IP6TABLES.contains(kind) || lists.contains(kind)
        };
        return Kind::named(name).filter(of_rules);
    }
    let name = name.to_ascii_lowercase();
    if name.ends_with(".watch.jsonl") {
        return Some(Kind::Watch);
    }
    match head.trim_start().as_bytes().first() {
        Some(b'{' | b'[') => json(&name, text).or_else(|| plain(&name, head)),
        _ => plain(&name, head),
    }
}

/// The kind of a JSON document, and of the items that stand before it or in a plain `List`.
#[derive(Default)]
struct Document<'t> {
    kind: Option<Cow<'t, str>>,
    items: Vec<Item<'t>>,
}

impl<'t> Document<'t> {
    /// Reads as far as the kind: what follows it matters only in a `List`, and a damaged rest is reported by the reader
    /// of this kind. `None` for a text that is not JSON up to there.
    fn read(text: &'t str) -> Option<Self> {
        let mut document = Self::default();
        let mut json = serde_json::Deserializer::from_str(text);
        // A visitor can only stop early by an error.
        let read = json.deserialize_map(&mut document);
        (read.is_ok() || document.is_decided()).then_some(document)
    }

    fn is_decided(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind != "List" || !self.items.is_empty())
    }
}

impl<'t> Visitor<'t> for &mut Document<'t> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an API object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = fields.next_key()? {
            match &*name {
                "kind" => self.kind = fields.next_value::<Option<Text<'t>>>()?.map(|Text(kind)| kind),
                "items" => self.items = fields.next_value::<Option<_>>()?.unwrap_or_default(),
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
            if self.is_decided() {
                return Err(A::Error::custom("the kind is known"));
            }
        }
        Ok(())
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

#[derive(Deserialize)]
struct Item<'t> {
    #[serde(borrow, default)]
    kind: Option<Cow<'t, str>>,
}

fn json(name: &str, text: &str) -> Option<Kind> {
    let head = head(text);
    if head.contains("\"nftables\"") {
        return Some(if is_of_others(name) { Kind::NftOthers } else { Kind::NftRulesetJson });
    }
    if head.contains("\"ifname\"") {
        return Some(Kind::Interfaces);
    }
    if head.contains("\"lastUpdated\"") {
        let live = name.contains("livez") || !head.contains("nodeEligible") && !name.contains("healthz");
        return Some(if live { Kind::ProxyLivez } else { Kind::ProxyHealthz });
    }
    if head.contains("\"gitVersion\"") && !head.contains("\"items\"") {
        return Some(Kind::ApiVersion);
    }
    if name == Kind::Process.file_name() {
        return Some(Kind::Process);
    }
    let document = Document::read(text)?;
    match document.kind.as_deref()? {
        "ServiceList" => Some(Kind::Services),
        "EndpointSliceList" => Some(Kind::EndpointSlices),
        "PodList" => Some(Kind::Pods),
        "NodeList" => Some(Kind::Nodes),
        "DaemonSetList" => Some(Kind::DaemonSets),
        "EventList" => Some(Kind::Events),
        "ConfigMap" | "ConfigMapList"
            if head.contains("KubeProxyConfiguration") || text.contains("KubeProxyConfiguration") =>
        {
            Some(Kind::ProxyConfig)
        }
        "KubeProxyConfiguration" => Some(Kind::ProxyConfig),
        "List" => list(&document.items),
        "Service" | "EndpointSlice" | "Pod" | "Node" => Some(Kind::Objects),
        _ => None,
    }
}

/// Whether a list of nftables, in JSON or as text, is that of other programs' tables.
fn is_of_others(name: &str) -> bool {
    name.ends_with(Kind::NftOthers.file_name())
}

/// `kubectl get A,B -o json` writes a plain List.
fn list(items: &[Item<'_>]) -> Option<Kind> {
    let kinds: Vec<&str> = items.iter().filter_map(|item| item.kind.as_deref()).collect();
    let first = *kinds.first()?;
    if kinds.iter().any(|kind| *kind != first) {
        let known = ["Service", "EndpointSlice", "Pod", "Node"];
        return kinds.iter().any(|kind| known.contains(kind)).then_some(Kind::Objects);
    }
    match first {
        "Service" => Some(Kind::Services),
        "EndpointSlice" => Some(Kind::EndpointSlices),
        "Pod" => Some(Kind::Pods),
        "Node" => Some(Kind::Nodes),
        "DaemonSet" => Some(Kind::DaemonSets),
        "Event" => Some(Kind::Events),
        "ConfigMap" => Some(Kind::ProxyConfig),
        _ => None,
    }
}

fn plain(name: &str, head: &str) -> Option<Kind> {
    let line = |test: &dyn Fn(&str) -> bool| head.lines().any(test);
    if line(&|line| line == "*nat" || line == "*filter" || line == "*mangle") && head.contains(':') {
        return Some(iptables(name, head));
    }
    if line(&|line| ["table ip ", "table ip6 ", "table inet "].iter().any(|begin| line.starts_with(begin))) {
        return Some(if is_of_others(name) { Kind::NftOthers } else { Kind::NftRuleset });
    }
    if head.contains("IP Virtual Server version") {
        return Some(Kind::IpvsList);
    }
    if line(&|line| {
        ["-A -t ", "-A -u ", "-A --sctp-service ", "-A -f "].iter().any(|begin| line.starts_with(begin))
    }) {
        return Some(Kind::IpvsSave);
    }
    if line(&|line| line.starts_with("create ") && line.contains("hash") || line.starts_with("create KUBE-"))
    {
        return Some(Kind::IpsetSave);
    }
    if is_routes(head) {
        return Some(Kind::Routes);
    }
    if head.starts_with("entries ") {
        return Some(if name.contains("later") { Kind::ConntrackStatLater } else { Kind::ConntrackStat });
    }
    if head.starts_with("# netns entries ") {
        return Some(Kind::ConntrackNamespaces);
    }
    if head.starts_with("TcpExt:") {
        return Some(if name.contains("later") { Kind::NetstatLater } else { Kind::Netstat });
    }
    if line(&|line| line.starts_with("kubeproxy_") || line.starts_with("# HELP kubeproxy_"))
        || is_metrics(name, head)
    {
        return Some(Kind::ProxyMetrics);
    }
    if line(&|line| line.trim() == "kind: KubeProxyConfiguration") {
        return Some(Kind::ProxyConfig);
    }
    if line(&|line| {
        line.starts_with("net.") && line.contains(" = ") || line.starts_with("net.ipv4.ip_forward=")
    }) {
        return Some(Kind::Sysctls);
    }
    if matches!(head.trim(), "iptables" | "nftables" | "ipvs" | "userspace" | "kernelspace") {
        return Some(Kind::ProxyMode);
    }
    if name.contains("livez") {
        return Some(Kind::ProxyLivez);
    }
    if name.contains("healthz") {
        return Some(Kind::ProxyHealthz);
    }
    if is_modules(head) {
        return Some(Kind::Modules);
    }
    is_log(name, head).then(
        || {
            if name.contains("previous") { Kind::ProxyLogPrevious } else { Kind::ProxyLog }
        },
    )
}

/// The backend and the family, from the name and from the tool's first line.
fn iptables(name: &str, head: &str) -> Kind {
    let six = name.contains("ip6") || head.contains("Generated by ip6tables-save") || head.contains("/128 ");
    match (six, name.contains("legacy"), name.contains("nft")) {
        (false, true, _) => Kind::IptablesLegacySave,
        (false, _, true) => Kind::IptablesNftSave,
        (false, ..) => Kind::IptablesSave,
        (true, true, _) => Kind::Ip6tablesLegacySave,
        (true, _, true) => Kind::Ip6tablesNftSave,
        (true, ..) => Kind::Ip6tablesSave,
    }
}

/// A metrics page of kube-proxy whose own metrics come late, after Go's.
fn is_metrics(name: &str, head: &str) -> bool {
    name.contains("metrics") && head.starts_with("# HELP ")
}

/// The lines of `ip route`: a destination first, and a device.
fn is_routes(head: &str) -> bool {
    let first = head.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut words = first.split_ascii_whitespace();
    let to = words.next().unwrap_or_default();
    routes::destination(to, None).is_some() && words.any(|word| word == "dev")
}

fn is_modules(head: &str) -> bool {
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    if first.starts_with("Module ") && first.contains("Size") {
        return true;
    }
    let fields: Vec<&str> = first.split_ascii_whitespace().collect();
    fields.len() >= 6 && fields.contains(&"Live")
}

/// A log is kube-proxy's by its name, or by messages that only kube-proxy writes.
fn is_log(name: &str, head: &str) -> bool {
    let is_log = name.contains(".log") || name.contains(".txt") || !name.contains('.');
    let named = name.contains("kube-proxy") || name.contains("kube_proxy") || name.contains("kubeproxy");
    let said = [
        "proxier.go:",
        "server_linux.go:",
        "kube-proxy running in",
        "Running ProxyServer",
        "Error running ProxyServer",
    ];
    is_log && (named && name.contains("log") || said.iter().any(|text| head.contains(text)))
}

fn head(text: &str) -> &str {
    let end = (0..=HEAD_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.get(..end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn by_content_where_the_name_does_not_tell() {
        for (name, text, kind) in [
            (
                "a",
                "# Generated by ip6tables-save v1.8\n*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n",
                Some(Kind::Ip6tablesSave),
            ),
            ("node/legacy.out", "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", Some(Kind::IptablesLegacySave)),
            ("x", "table ip kube-proxy {\n}\n", Some(Kind::NftRuleset)),
            ("x.json", "{\"nftables\": []}", Some(Kind::NftRulesetJson)),
            ("x", "IP Virtual Server version 1.2.1 (size=4096)\n", Some(Kind::IpvsList)),
            ("x", "-A -t 10.96.0.1:443 -s rr\n", Some(Kind::IpvsSave)),
            ("x", "create KUBE-CLUSTER-IP hash:ip,port family inet\n", Some(Kind::IpsetSave)),
            ("svc", "{\"kind\": \"List\", \"items\": [{\"kind\": \"Service\"}]}", Some(Kind::Services)),
            (
                "all",
                "{\"kind\": \"List\", \"items\": [{\"kind\": \"Service\"}, {\"kind\": \"Pod\"}]}",
                Some(Kind::Objects),
            ),
            // Damaged after its kind: the reader of the list reports where.
            ("a.json", "{\"kind\": \"PodList\", \"items\": [{\"meta", Some(Kind::Pods)),
            (
                "a.json",
                "{\"items\": [{\"kind\": \"Pod\", \"x\": [1]}], \"kind\": \"List\"}",
                Some(Kind::Pods),
            ),
            ("a.json", "{\"items\": [{}], \"kind\": \"NodeList\"}", Some(Kind::Nodes)),
            ("a.json", "{\"items\": [{\"kind\": \"Pod\"", None),
            ("a.json", "[1]", None),
            ("secrets.json", "{\"kind\": \"SecretList\", \"items\": []}", None),
            (
                "cm.json",
                "{\"kind\": \"ConfigMap\", \"data\": {\"a\": \"kind: KubeProxyConfiguration\"}}",
                Some(Kind::ProxyConfig),
            ),
            ("x.yaml", "kind: KubeProxyConfiguration\n", Some(Kind::ProxyConfig)),
            ("0.log", "I1120 23:24:57.911600   27071 proxier.go:266] \"x\"\n", Some(Kind::ProxyLog)),
            ("kubelet.log", "I1120 23:24:57.911600   27071 kubelet.go:266] \"x\"\n", None),
            ("mode", "ipvs\n", Some(Kind::ProxyMode)),
            ("x", "{\"lastUpdated\": \"x\"}\n200", Some(Kind::ProxyLivez)),
            ("x", "{\"lastUpdated\": \"x\", \"nodeEligible\": true}\n200", Some(Kind::ProxyHealthz)),
            ("routes", "default via 192.0.2.1 dev eth0 proto dhcp\n", Some(Kind::Routes)),
            ("nft-others.json", "{\"nftables\": []}", Some(Kind::NftOthers)),
            ("nft-others.json", "table inet firewalld {\n}\n", Some(Kind::NftOthers)),
            ("x", "nf_nat 65536 2 a,b, Live 0xffffffffc050d000\n", Some(Kind::Modules)),
            ("README.md", "# Fixtures\n", None),
            ("ipvsadm-save.txt", "", Some(Kind::IpvsSave)),
            ("metrics.txt", "", None),
        ] {
            assert_eq!(recognise(name, text), kind, "{name}: {text}");
        }
    }

    proptest! {
        #[test]
        fn any_file_is_looked_at(name in "[ -~]{0,20}", text in any::<String>()) {
            let _ = recognise(&name, &text);
        }
    }
}
