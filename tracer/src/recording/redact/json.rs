//! The JSON of an item with other names and addresses.
//!
//! Owns which field holds which sort of name. A text in a field that is not listed is a text for people, of which only
//! known words stay, unless the field is one of [`FIXED`]: those have only values of viptrace's own types. Whether the
//! result still is an item is for the caller to check.

use serde_json::{Map, Value};

use super::names::{Names, Sort};
use crate::rules::AddressRange;

/// Fields whose texts are variants of viptrace's own types.
const FIXED: [&str; 23] = [
    "kind",
    "type",
    "writer",
    "family",
    "hook",
    "phase",
    "handler",
    "address_type",
    "subject",
    "event",
    "origin",
    "steps",
    "elements",
    "ranges",
    "Do",
    "new",
    "established",
    "fields",
    "sides",
    "dimensions",
    "external_traffic_policy",
    "internal_traffic_policy",
    "to",
];
/// Schedulers of IPVS.
const SCHEDULERS: [&str; 14] =
    ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "twos"];
/// Reasons of containers and of Pods, and conditions of nodes.
const REASONS: [&str; 24] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImagePull",
    "OOMKilled",
    "Evicted",
    "Error",
    "Completed",
    "ContainerCreating",
    "PodInitializing",
    "ContainerCannotRun",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "InvalidImageName",
    "DeadlineExceeded",
    "NodeLost",
    "Preempting",
    "Terminated",
    "NodeShutdown",
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
    "Unknown",
];
const DISTRIBUTIONS: [&str; 6] =
    ["PreferClose", "PreferSameZone", "PreferSameNode", "Auto", "auto", "Disabled"];
const ADDRESS_TYPES: [&str; 6] = ["LOCAL", "UNICAST", "BROADCAST", "MULTICAST", "local", "multicast"];
const PROGRAMS: [&str; 6] = ["k3s", "kubelite", "k0s", "rke2", "microk8s", "kube-proxy"];
const DATAPLANES: [&str; 5] =
    ["Cilium", "Calico's eBPF dataplane", "kube-router", "Antrea", "OVN-Kubernetes"];

/// The fields around a value, the innermost last.
type Path<'p> = Vec<&'p str>;

impl Names {
    /// The same value with other names and addresses.
    pub(super) fn value(&mut self, value: &Value) -> Value {
        self.at(&mut Path::new(), value)
    }

    fn at<'v>(&mut self, path: &mut Path<'v>, value: &'v Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
            Value::String(text) => Value::String(self.field(path, text)),
            Value::Array(values) => self.list(path, values),
            Value::Object(fields) => self.object(path, fields),
        }
    }

    fn list<'v>(&mut self, path: &mut Path<'v>, values: &'v [Value]) -> Value {
        // A deleted object: its kind and its key.
        if let ([.., "Delete"], [Value::String(kind), Value::Object(key)]) = (path.as_slice(), values) {
            path.push(kind);
            let key = self.object(path, key);
            path.pop();
            return Value::Array(vec![Value::String(kind.clone()), key]);
        }
        let mut others = Vec::with_capacity(values.len());
        for value in values {
            if let Some(ranges) = self.ranges(value) {
                others.extend(ranges.iter().filter_map(|range| serde_json::to_value(range).ok()));
            } else if let Value::Array(pair) = value
                && let [Value::Array(key), verdict] = pair.as_slice()
                && let [.., "ranges"] = path.as_slice()
            {
                // An element of a set: as many as its ranges need.
                let verdict = self.at(path, verdict);
                let mut keys = vec![Vec::new()];
                for datum in key {
                    let data = match datum.get("Range").and_then(|range| self.ranges(range)) {
                        Some(ranges) => {
                            ranges.iter().map(|range| serde_json::json!({ "Range": range })).collect()
                        }
                        None => vec![self.at(path, datum)],
                    };
                    keys = keys
                        .iter()
                        .flat_map(|key: &Vec<Value>| {
                            data.iter().map(move |datum| key.iter().cloned().chain([datum.clone()]).collect())
                        })
                        .collect();
                }
                let with = |key| Value::Array(vec![Value::Array(key), verdict.clone()]);
                others.extend(keys.into_iter().map(with));
            } else {
                others.push(self.at(path, value));
            }
        }
        Value::Array(others)
    }

    /// A range of addresses; `None` for any other value.
    fn ranges(&mut self, value: &Value) -> Option<Vec<AddressRange>> {
        let Value::Object(fields) = value else { return None };
        let (Value::String(_), Value::String(_), 2) =
            (fields.get("first")?, fields.get("last")?, fields.len())
        else {
            return None;
        };
        let range: AddressRange = serde_json::from_value(value.clone()).ok()?;
        Some(self.addresses.ranges(range))
    }

    fn object<'v>(&mut self, path: &mut Path<'v>, fields: &'v Map<String, Value>) -> Value {
        if let (Some(Value::String(namespace)), Some(Value::String(name)), 2) =
            (fields.get("namespace"), fields.get("name"), fields.len())
        {
            let sort = path.iter().rev().find_map(|field| match *field {
                "service" | "Service" => Some(Sort::Service),
                "pod" | "Pod" => Some(Sort::Pod),
                "EndpointSlice" => Some(Sort::Slice),
                "Node" => Some(Sort::Node),
                _ => None,
            });
            let namespace = self.namespace(namespace);
            let name = self.of(sort.unwrap_or(Sort::Word), name);
            return serde_json::json!({ "namespace": namespace, "name": name });
        }
        if let (Some(Value::String(base)), Some(Value::Number(prefix)), 2) =
            (fields.get("base"), fields.get("prefix"), fields.len())
            && let (Ok(base), Some(bits)) = (base.parse(), prefix.as_u64())
        {
            let base = self.addresses.range(base, u8::try_from(bits).unwrap_or(u8::MAX));
            return serde_json::json!({ "base": base, "prefix": prefix });
        }
        let mut others = Map::new();
        for (field, value) in fields {
            match (path.last().copied(), value) {
                (Some("labels" | "selector"), Value::String(value)) => {
                    let (label, value) = self.label(field, value);
                    others.insert(label, Value::String(value));
                }
                (Some("mtus"), value) => {
                    let interface = self.interface(field);
                    // A reading with its time, in the changes.
                    path.push("mtu");
                    let value = self.at(path, value);
                    path.pop();
                    others.insert(interface, value);
                }
                _ => {
                    path.push(field);
                    let value = self.at(path, value);
                    path.pop();
                    others.insert(field.clone(), value);
                }
            }
        }
        Value::Object(others)
    }

    fn field(&mut self, path: &Path<'_>, text: &str) -> String {
        let known = |list: &[&str]| list.contains(&text);
        match path.as_slice() {
            [.., "ports", "name"] | [.., "target", "Name"] => self.port(text),
            [.., "node" | "for_nodes" | "node_name"] | [.., "subject", "Node"] => self.of(Sort::Node, text),
            [.., "zone" | "for_zones"] => self.of(Sort::Zone, text),
            [.., "uid"] => self.uid(text),
            [.., "external_name"] => self.of(Sort::Host, text),
            [.., "proxy_name"] => self.of(Sort::Value, text),
            [.., "ApiServer"] => "https://api-server/".to_owned(),
            [.., "kubelet_version" | "kube_proxy_version"]
            | [.., "kube_proxy_version" | "version", "value"] => Self::version(text),
            [.., "Interface", "name"] | [.., "Devices", "names"] | [.., "device"] => self.interface(text),
            [.., "tables" | "others" | "chains" | "sets", "name"]
            | [.., "Jump" | "Goto" | "set" | "map" | "list" | "Remember"] => self.rule(text),
            [.., "AddressType", "kind"] if known(&ADDRESS_TYPES) => text.to_owned(),
            [.., "AddressType", "kind"] => self.text(text),
            [.., "trouble" | "pressure"] if known(&REASONS) => text.to_owned(),
            [.., "traffic_distribution"] if known(&DISTRIBUTIONS) => text.to_owned(),
            [.., "scheduler"] if known(&SCHEDULERS) => text.to_owned(),
            [.., "embedded_in"] if known(&PROGRAMS) => text.to_owned(),
            [.., "other_dataplane", "value"] if known(&DATAPLANES) => text.to_owned(),
            [.., "kube_proxy_mode" | "mode", "value"] | [.., "listings" | "presence", _] => text.to_owned(),
            [.., field] if FIXED.contains(field) => text.to_owned(),
            _ => match self.address(text) {
                Some(address) => address,
                None => self.text(text),
            },
        }
    }
}
