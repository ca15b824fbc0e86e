//! The test API server's objects and the log of their changes.
//!
//! Owns resourceVersions. Must not know HTTP.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The resources that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Services,
    Pods,
    Nodes,
    Namespaces,
    EndpointSlices,
}

impl Resource {
    pub(super) const ALL: [Self; 5] =
        [Self::Services, Self::Pods, Self::Nodes, Self::Namespaces, Self::EndpointSlices];

    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Services => "Service",
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::Namespaces => "Namespace",
            Self::EndpointSlices => "EndpointSlice",
        }
    }

    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::EndpointSlices => "endpointslices",
        }
    }

    pub(super) const fn api_version(self) -> &'static str {
        match self {
            Self::EndpointSlices => "discovery.k8s.io/v1",
            _ => "v1",
        }
    }

    pub(super) const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::Namespaces)
    }

    pub(super) fn of_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.kind() == kind)
    }

    pub(super) fn of_plural(api_version: &str, plural: &str) -> Option<Self> {
        let served = |resource: &Self| resource.plural() == plural && resource.api_version() == api_version;
        Self::ALL.into_iter().find(served)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) version: u64,
    pub(super) resource: Resource,
    pub(super) namespace: String,
    /// `ADDED`, `MODIFIED`, `DELETED`.
    pub(super) what: &'static str,
    pub(super) object: Value,
}

type Name = (Resource, String, String);

#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<Name, Value>,
    log: Vec<Logged>,
    version: u64,
    /// Watches from before this version get 410 Gone.
    oldest: u64,
    /// By kind: the HTTP status and message that refuse lists and watches.
    refused: BTreeMap<String, (u16, String)>,
    served: BTreeMap<&'static str, (u64, u64)>,
}

impl Store {
    /// Loads a list and keeps its objects' own versions and times.
    pub(super) fn load(&mut self, mut list: Value) -> Result<(), String> {
        let list_kind = text(&list, "/kind").strip_suffix("List").unwrap_or_default().to_owned();
        let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
            return Err(format!("{list_kind:?} is not a list: it has no items"));
        };
        self.version = self.version.max(number(&list, "/metadata/resourceVersion"));
        for mut item in items {
            let kind = if list_kind.is_empty() { text(&item, "/kind") } else { list_kind.clone() };
            // A fixture folder may hold lists of other kinds.
            let Some(resource) = Resource::of_kind(&kind) else { continue };
            self.version = self.version.max(number(&item, "/metadata/resourceVersion"));
            let name = name_of(resource, &item)?;
            complete(&mut item, resource)?;
            self.objects.insert(name, item);
        }
        self.oldest = self.version;
        Ok(())
    }

    pub(super) fn apply(&mut self, mut object: Value) -> Result<(), String> {
        let kind = text(&object, "/kind");
        let resource = Resource::of_kind(&kind).ok_or_else(|| format!("kind {kind:?} is not served"))?;
        let name = name_of(resource, &object)?;
        let old = self.objects.get(&name);
        let version = self.version + 1;
        // Whole seconds, as the API writes `metav1.Time`.
        let now = format!("{:.0}", jiff::Timestamp::now());
        let kept = |field: &str| old.and_then(|old| old.pointer(field)).cloned();
        let created = kept("/metadata/creationTimestamp").unwrap_or_else(|| json!(now));
        let uid =
            kept("/metadata/uid").unwrap_or_else(|| json!(format!("00000000-0000-4000-8000-{version:012}")));
        complete(&mut object, resource)?;
        let meta = object
            .pointer_mut("/metadata")
            .and_then(Value::as_object_mut)
            .ok_or("metadata is not an object")?;
        meta.entry("creationTimestamp").or_insert(created);
        meta.entry("uid").or_insert(uid);
        meta.insert("resourceVersion".to_owned(), json!(version.to_string()));
        let managed = json!({"manager": "lab", "operation": "Update", "apiVersion": resource.api_version(), "time": now});
        meta.insert("managedFields".to_owned(), json!([managed]));
        let what = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.version = version;
        self.log.push(Logged { version, resource, namespace: name.1.clone(), what, object: object.clone() });
        self.objects.insert(name, object);
        Ok(())
    }

    pub(super) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        self.objects.get(&(resource, namespace.to_owned(), name.to_owned())).cloned()
    }

    pub(super) fn delete(&mut self, resource: Resource, namespace: &str, name: &str) -> bool {
        let Some(mut object) = self.objects.remove(&(resource, namespace.to_owned(), name.to_owned())) else {
            return false;
        };
        self.version += 1;
        if let Some(version) = object.pointer_mut("/metadata/resourceVersion") {
            *version = json!(self.version.to_string());
        }
        let namespace = namespace.to_owned();
        self.log.push(Logged { version: self.version, resource, namespace, what: "DELETED", object });
        true
    }

    pub(super) fn compact(&mut self) {
        self.log.clear();
        self.oldest = self.version;
    }

    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Whether a watch from this version can no longer be served.
    pub(super) const fn is_gone(&self, version: u64) -> bool {
        version < self.oldest
    }

    /// At most `limit` (0: all) objects after `after`, ordered by namespace and name, and whether more follow.
    pub(super) fn list(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        after: Option<&(String, String)>,
        limit: usize,
    ) -> (Vec<Value>, Option<(String, String)>) {
        let matching = self.objects.iter().filter(|((of, ns, name), _)| {
            *of == resource
                && namespace.is_none_or(|wanted| wanted == ns)
                && after.is_none_or(|(after_ns, after)| (ns, name) > (after_ns, after))
        });
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut page: Vec<_> = matching.take(limit.saturating_add(1)).collect();
        let more = page.len() > limit;
        page.truncate(limit);
        let last = page.last().map(|((_, ns, name), _)| (ns.clone(), name.clone())).filter(|_| more);
        (page.into_iter().map(|(_, object)| object.clone()).collect(), last)
    }

    /// The changes of a resource after a version.
    pub(super) fn since(&self, resource: Resource, namespace: Option<&str>, version: u64) -> Vec<Logged> {
        let first = self.log.partition_point(|logged| logged.version <= version);
        let later = self.log.iter().skip(first).filter(|logged| logged.resource == resource);
        later.filter(|logged| namespace.is_none_or(|wanted| wanted == logged.namespace)).cloned().collect()
    }

    pub(super) fn refuse(&mut self, kind: &str, code: u16, message: String) {
        self.refused.insert(kind.to_owned(), (code, message));
    }

    pub(super) fn permit(&mut self, kind: &str) {
        self.refused.remove(kind);
    }

    pub(super) fn refusal(&self, resource: Resource) -> Option<(u16, String)> {
        self.refused.get(resource.kind()).cloned()
    }

    pub(super) fn count_list(&mut self, resource: Resource) {
        self.served.entry(resource.kind()).or_default().0 += 1;
    }

    pub(super) fn count_watch(&mut self, resource: Resource) {
        self.served.entry(resource.kind()).or_default().1 += 1;
    }

    pub(super) fn served(&self, kind: &str) -> (u64, u64) {
        self.served.get(kind).copied().unwrap_or_default()
    }
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value, pointer: &str) -> u64 {
    text(value, pointer).parse().unwrap_or(0)
}

fn name_of(resource: Resource, object: &Value) -> Result<Name, String> {
    let name = text(object, "/metadata/name");
    if name.is_empty() {
        return Err(format!("a {} without metadata.name", resource.kind()));
    }
    let namespace =
        if resource.is_namespaced() { text(object, "/metadata/namespace") } else { String::new() };
    Ok((resource, namespace, name))
}

/// List items have no `kind` and `apiVersion`; objects in a watch have them.
fn complete(object: &mut Value, resource: Resource) -> Result<(), String> {
    let object = object.as_object_mut().ok_or("not an object")?;
    object.insert("kind".to_owned(), json!(resource.kind()));
    object.insert("apiVersion".to_owned(), json!(resource.api_version()));
    Ok(())
}
