//! kube-proxy's configuration: `KubeProxyConfiguration` as YAML or JSON, alone, in the `ConfigMap`
//! kube-system/kube-proxy, or as flags of the command line (K3).
//!
//! Owns its parsing. Unknown fields are ignored in every version of the type; a field of another form counts as unset.

use std::time::Duration;

use serde_json::Value;

use super::process::ProcessList;
use crate::parse::ParseError;

/// Larger texts are not a configuration.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The fields that the triage uses. `None` means kube-proxy's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// `iptables`, `nftables`, `ipvs`, in the configuration's spelling.
    pub mode: Option<String>,
    pub cluster_cidrs: Vec<String>,
    pub hostname_override: Option<String>,
    pub node_port_addresses: Vec<String>,
    pub feature_gates: Vec<(String, bool)>,
    pub metrics_bind_address: Option<String>,
    pub healthz_bind_address: Option<String>,
    /// `bindAddress`: unless it is unspecified, the node's address in its family.
    pub bind_address: Option<String>,
    /// `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`.
    pub detect_local_mode: Option<String>,
    /// `detectLocal.bridgeInterface`.
    pub bridge_interface: Option<String>,
    /// `detectLocal.interfaceNamePrefix`.
    pub interface_name_prefix: Option<String>,
    /// `iptables.localhostNodePorts`.
    pub localhost_node_ports: Option<bool>,
    /// `masqueradeAll` of the section that counts for the mode.
    pub masquerade_all: Option<bool>,
    pub sync_period: Option<Duration>,
    pub min_sync_period: Option<Duration>,
    pub ipvs_scheduler: Option<String>,
    /// `ipvs.excludeCIDRs`: kube-proxy leaves virtual servers in these ranges alone.
    pub ipvs_excluded_cidrs: Vec<String>,
    /// `ipvs.tcpTimeout`; 0 leaves the kernel's.
    pub ipvs_tcp_timeout: Option<Duration>,
    /// `conntrack.maxPerCore`; 0 leaves the limit as it is.
    pub conntrack_max_per_core: Option<u64>,
    pub conntrack_min: Option<u64>,
    pub tcp_be_liberal: Option<bool>,
}

impl Config {
    /// How long IPVS keeps the entry of an idle TCP connection; `None` where the kernel's 900 s apply.
    pub fn ipvs_idle_timeout(&self) -> Option<Duration> {
        self.ipvs_tcp_timeout.filter(|timeout| !timeout.is_zero())
    }

    /// Parses a `KubeProxyConfiguration` or a `ConfigMap` that contains one (`config.conf`).
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let value = read(text)?;
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "KubeProxyConfiguration" => Ok(Self::from_value(&value)),
            "ConfigMap" => Self::from_map(&value),
            "ConfigMapList" | "List" => {
                let items = value.get("items").and_then(Value::as_array);
                let found = items.into_iter().flatten().find_map(|item| Self::from_map(item).ok());
                found.ok_or_else(|| not_one("no ConfigMap in the list contains a KubeProxyConfiguration"))
            }
            "" => Err(not_one("it has no kind, expected KubeProxyConfiguration")),
            other => {
                Err(not_one(&format!("it is a {}, expected KubeProxyConfiguration", other.escape_default())))
            }
        }
    }

    /// The settings in the flags, if kube-proxy was started without `--config`, which overrides nearly all others. A
    /// command line without any flag says nothing: every installation sets some, and a wrapper can hide them.
    pub fn from_flags(process: &ProcessList) -> Option<Self> {
        let has_flags = process.arguments.iter().skip(1).any(|argument| argument.starts_with('-'));
        if !has_flags || process.flag("config").is_some() {
            return None;
        }
        let flag = |name: &str| process.flag(name).filter(|value| !value.is_empty());
        let text = |name: &str| flag(name).map(str::to_owned);
        let list = |name: &str| flag(name).map(split).unwrap_or_default();
        // Each mode has its own.
        let [sync_period, min_sync_period] = match flag("proxy-mode") {
            Some("ipvs") => ["ipvs-sync-period", "ipvs-min-sync-period"],
            _ => ["iptables-sync-period", "iptables-min-sync-period"],
        };
        Some(Self {
            mode: text("proxy-mode"),
            cluster_cidrs: list("cluster-cidr"),
            hostname_override: text("hostname-override"),
            node_port_addresses: list("nodeport-addresses"),
            feature_gates: list("feature-gates")
                .iter()
                .filter_map(|gate| gate.split_once('='))
                .filter_map(|(name, on)| Some((name.to_owned(), on.parse().ok()?)))
                .collect(),
            metrics_bind_address: text("metrics-bind-address"),
            healthz_bind_address: text("healthz-bind-address"),
            bind_address: text("bind-address"),
            detect_local_mode: text("detect-local-mode"),
            bridge_interface: text("pod-bridge-interface"),
            interface_name_prefix: text("pod-interface-name-prefix"),
            localhost_node_ports: process.switch("iptables-localhost-nodeports"),
            masquerade_all: process.switch("masquerade-all"),
            sync_period: flag(sync_period).and_then(duration),
            min_sync_period: flag(min_sync_period).and_then(duration),
            ipvs_scheduler: text("ipvs-scheduler"),
            ipvs_excluded_cidrs: list("ipvs-exclude-cidrs"),
            ipvs_tcp_timeout: flag("ipvs-tcp-timeout").and_then(duration),
            conntrack_max_per_core: flag("conntrack-max-per-core").and_then(|value| value.parse().ok()),
            conntrack_min: flag("conntrack-min").and_then(|value| value.parse().ok()),
            tcp_be_liberal: process.switch("conntrack-tcp-be-liberal"),
        })
    }

    fn from_map(map: &Value) -> Result<Self, ParseError> {
        let data = map.get("data").and_then(Value::as_object);
        let texts = || data.into_iter().flat_map(|data| data.values()).filter_map(Value::as_str);
        let is_config = |text: &&str| text.contains("KubeProxyConfiguration");
        match texts().find(is_config) {
            Some(text) => {
                let value = read(text)?;
                if value.get("kind").and_then(Value::as_str) == Some("KubeProxyConfiguration") {
                    Ok(Self::from_value(&value))
                } else {
                    Err(not_one("the ConfigMap's text is not a KubeProxyConfiguration"))
                }
            }
            None => Err(not_one("the ConfigMap contains no KubeProxyConfiguration")),
        }
    }

    fn from_value(value: &Value) -> Self {
        let text = |pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let flag = |pointer: &str| value.pointer(pointer).and_then(Value::as_bool);
        let number = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64);
        let time = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).and_then(duration);
        let list = |pointer: &str| match value.pointer(pointer) {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(Value::String(text)) => split(text),
            _ => Vec::new(),
        };
        let mode = text("/mode");
        let section = mode.as_deref().unwrap_or("iptables");
        // Convert_v1alpha1_KubeProxyConfiguration_To_config_KubeProxyConfiguration in
        // pkg/proxy/apis/config/v1alpha1/conversion.go: IPVS mode has no masqueradeAll of its own.
        let masquerade_all = match section {
            "nftables" => "/nftables/masqueradeAll",
            _ => "/iptables/masqueradeAll",
        };
        let gates = value.get("featureGates").and_then(Value::as_object);
        // v1alpha2 moves the fields that all Linux modes share to `linux`, and the periods to the top.
        let conntrack = |name: &str| {
            value
                .pointer(&format!("/linux/conntrack/{name}"))
                .or_else(|| value.pointer(&format!("/conntrack/{name}")))
        };
        Self {
            cluster_cidrs: match value.get("clusterCIDR") {
                Some(_) => list("/clusterCIDR"),
                None => list("/detectLocal/clusterCIDRs"),
            },
            hostname_override: text("/hostnameOverride"),
            node_port_addresses: list("/nodePortAddresses"),
            feature_gates: gates
                .into_iter()
                .flatten()
                .filter_map(|(name, on)| Some((name.clone(), on.as_bool()?)))
                .collect(),
            metrics_bind_address: text("/metricsBindAddress"),
            healthz_bind_address: text("/healthzBindAddress"),
            bind_address: text("/bindAddress"),
            detect_local_mode: text("/detectLocalMode"),
            bridge_interface: text("/detectLocal/bridgeInterface"),
            interface_name_prefix: text("/detectLocal/interfaceNamePrefix"),
            localhost_node_ports: flag("/iptables/localhostNodePorts"),
            masquerade_all: flag(masquerade_all).or_else(|| flag("/linux/masqueradeAll")),
            sync_period: time(&format!("/{section}/syncPeriod")).or_else(|| time("/syncPeriod")),
            min_sync_period: time(&format!("/{section}/minSyncPeriod")).or_else(|| time("/minSyncPeriod")),
            ipvs_scheduler: text("/ipvs/scheduler"),
            ipvs_excluded_cidrs: list("/ipvs/excludeCIDRs"),
            ipvs_tcp_timeout: time("/ipvs/tcpTimeout"),
            conntrack_max_per_core: conntrack("maxPerCore").and_then(Value::as_u64),
            conntrack_min: conntrack("min").and_then(Value::as_u64).or_else(|| number("/conntrack/min")),
            tcp_be_liberal: conntrack("tcpBeLiberal").and_then(Value::as_bool),
            mode,
        }
    }

    /// The value to which kube-proxy raises `nf_conntrack_max` on a machine with this many CPUs: `max(maxPerCore ×
    /// CPUs, min)`; `None` if it keeps the limit (`maxPerCore: 0`). Defaults: 32768 and 131072
    /// (`pkg/proxy/apis/config`).
    pub fn wanted_conntrack_max(&self, cpus: u64) -> Option<u64> {
        let per_core = self.conntrack_max_per_core.unwrap_or(32_768);
        (per_core > 0).then(|| per_core.saturating_mul(cpus).max(self.conntrack_min.unwrap_or(131_072)))
    }
}

/// A valid text of another kind.
fn not_one(why: &str) -> ParseError {
    ParseError::new(1, why)
}

fn read(text: &str) -> Result<Value, ParseError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(not_one(&format!("it has {} bytes, more than {MAX_TEXT_BYTES}", text.len())));
    }
    if text.trim_start().starts_with('{') {
        return Ok(serde_json::from_str(text)?);
    }
    serde_saphyr::from_str(text).map_err(|error: serde_saphyr::Error| {
        let line = error.location().map_or(1, |location| location.line().max(1));
        // Only the first line of the error: the parser quotes the text below it.
        let why = error.to_string().lines().next().unwrap_or_default().to_owned();
        ParseError { line, why: format!("it is not YAML: {why}") }
    })
}

fn split(text: &str) -> Vec<String> {
    text.trim_matches(['[', ']'])
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Go's form: `1h30m`, `500ms`, `0s`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest == "0" {
        return Some(total);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at_checked(digits)?;
        let number: f64 = number.parse().ok()?;
        let unit_end = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(unit_end)?;
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = behind;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    #[test]
    fn a_configuration_alone_and_in_its_config_map() {
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"ipvs\"\n\
            clusterCIDR: 10.244.0.0/16,fd00::/48\nconntrack: {maxPerCore: 0}\n\
            featureGates: {NFTablesProxyMode: true}\nipvs: {syncPeriod: 500ms, scheduler: lc, excludeCIDRs: [192.0.2.0/28], tcpTimeout: 24h0m0s}\n\
            nodePortAddresses: [primary]\nsomethingNew: {deep: [1]}\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.mode.as_deref(), Some("ipvs"));
        assert_eq!(config.cluster_cidrs, ["10.244.0.0/16", "fd00::/48"]);
        assert_eq!(config.sync_period, Some(Duration::from_millis(500)));
        assert_eq!(config.ipvs_excluded_cidrs, ["192.0.2.0/28"]);
        assert_eq!(config.ipvs_tcp_timeout, Some(Duration::from_hours(24)));
        assert_eq!((config.wanted_conntrack_max(64), config.ipvs_scheduler.as_deref()), (None, Some("lc")));
        let map = serde_json::json!({"kind": "ConfigMap", "data": {"kubeconfig.conf": "kind: Config", "config.conf": text}});
        assert_eq!(Config::parse(&map.to_string()).unwrap(), config);
        let list = serde_json::json!({"kind": "ConfigMapList", "items": [{"data": {}}, map]});
        assert_eq!(Config::parse(&list.to_string()).unwrap(), config);
    }

    #[test]
    fn masquerade_all_belongs_to_a_section() {
        let of = |mode: &str, section: &str| {
            let text =
                format!("kind: KubeProxyConfiguration\nmode: {mode}\n{section}: {{masqueradeAll: true}}\n");
            Config::parse(&text).unwrap().masquerade_all
        };
        assert_eq!((of("ipvs", "iptables"), of("ipvs", "ipvs")), (Some(true), None));
        assert_eq!((of("\"\"", "iptables"), of("iptables", "nftables")), (Some(true), None));
        assert_eq!((of("nftables", "nftables"), of("nftables", "iptables")), (Some(true), None));
        assert_eq!(of("ipvs", "linux"), Some(true), "v1alpha2");
    }

    #[test]
    fn texts_without_a_configuration_are_refused() {
        assert!(Config::parse("kind: Deployment").unwrap_err().why.contains("Deployment"));
        assert!(Config::parse("").unwrap_err().why.contains("no kind"));
        assert!(Config::parse("a: [").unwrap_err().why.contains("not YAML"));
        assert!(Config::parse("{\"kind\": \"ConfigMap\"}").unwrap_err().why.contains("contains no"));
    }

    #[test]
    fn defaults_and_flags() {
        let config = Config::parse("kind: KubeProxyConfiguration").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(
            (config.wanted_conntrack_max(2), config.wanted_conntrack_max(64)),
            (Some(131_072), Some(2_097_152))
        );
        let arguments = [
            "kube-proxy",
            "--proxy-mode=nftables",
            "--nodeport-addresses",
            "192.0.2.0/24,primary",
            "--feature-gates=A=true,B=x",
        ];
        let process =
            ProcessList { arguments: arguments.map(str::to_owned).to_vec(), ..ProcessList::default() };
        let config = Config::from_flags(&process).unwrap();
        assert_eq!(config.mode.as_deref(), Some("nftables"));
        assert_eq!(config.node_port_addresses, ["192.0.2.0/24", "primary"]);
        assert_eq!(config.feature_gates, [("A".to_owned(), true)]);
        let of = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            Config::from_flags(&ProcessList { arguments, ..ProcessList::default() }).unwrap()
        };
        let bare = of(&[
            "kube-proxy",
            "--masquerade-all",
            "--cluster-cidr=10.0.0.0/8",
            "--conntrack-tcp-be-liberal=1",
        ]);
        assert_eq!((bare.masquerade_all, bare.tcp_be_liberal), (Some(true), Some(true)));
        assert_eq!(bare.cluster_cidrs, ["10.0.0.0/8"]);
        assert_eq!(of(&["kube-proxy", "--masquerade-all=F"]).masquerade_all, Some(false));
        let periods = ["--ipvs-min-sync-period=10s", "--iptables-min-sync-period=2s"];
        let with = |mode| of(&["kube-proxy", mode, periods[0], periods[1]]).min_sync_period;
        assert_eq!(with("--proxy-mode=ipvs"), Some(Duration::from_secs(10)));
        assert_eq!(with("--proxy-mode=iptables"), Some(Duration::from_secs(2)));
        for arguments in [&["kube-proxy", "--config=/x"][..], &["/usr/local/bin/kube-proxy"], &[]] {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            assert_eq!(Config::from_flags(&ProcessList { arguments, ..ProcessList::default() }), None);
        }
    }

    #[test]
    fn durations_as_go_writes_them() {
        assert_eq!(duration("1h30m0.5s"), Some(Duration::from_millis(5_400_500)));
        assert_eq!(duration("0s"), Some(Duration::ZERO));
        assert_eq!((duration("5"), duration("h"), duration("-1s"), duration("")), (None, None, None, None));
        assert_eq!(duration("99999999999999999999999h"), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(mode in select(vec!["iptables", "nftables", "ipvs"]), cidrs in vec("10\\.[0-9]{1,2}\\.0\\.0/16", 0..3), minimum in any::<u32>(), seconds in 0_u64..1_000_000) {
            let value = serde_json::json!({
                "kind": "KubeProxyConfiguration", "mode": mode, "clusterCIDR": cidrs.join(","),
                "conntrack": {"min": minimum}, mode: {"syncPeriod": format!("{seconds}s")},
            });
            let yaml = serde_saphyr::to_string(&value).unwrap();
            for text in [value.to_string(), yaml] {
                let config = Config::parse(&text).unwrap();
                prop_assert_eq!(config.mode.as_deref(), Some(mode));
                prop_assert_eq!(&config.cluster_cidrs, &cidrs);
                prop_assert_eq!(config.conntrack_min, Some(u64::from(minimum)));
                prop_assert_eq!(config.sync_period, Some(Duration::from_secs(seconds)));
            }
        }

        #[test]
        fn any_text_is_read(text in "[a-z:{}\\[\\]\n \"&*!|>-]{0,80}") {
            let _ = Config::parse(&text);
        }
    }
}
