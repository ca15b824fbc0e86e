//! The cluster's objects in the API server's JSON, listed once: for the audit and for a capture.
//!
//! Owns the list of requests. It requests no Secrets, keeps only kube-proxy's configuration of a `ConfigMap`, and
//! removes the values of Pods' environment variables, which may be passwords.

use std::time::Duration;

use http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::{
    answer,
    watch::{Access, AccessError},
};

/// The page size of a list, in objects.
const PAGE: u32 = 500;
/// The maximum number of pages of one list: 500,000 objects.
const MAX_PAGES: usize = 1000;
/// The maximum number of lines of a log.
const LOG_LINES: u32 = 5000;
/// The maximum size of a log, in bytes.
const LOG_BYTES: u32 = 16 << 20;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Services,
    EndpointSlices,
    Pods,
    Nodes,
    /// In kube-system.
    DaemonSets,
    /// In kube-system.
    Events,
    /// kube-system/kube-proxy.
    ProxyConfig,
    Version,
}

impl Ask {
    pub(crate) const ALL: [Self; 8] = [
        Self::Services,
        Self::EndpointSlices,
        Self::Pods,
        Self::Nodes,
        Self::DaemonSets,
        Self::Events,
        Self::ProxyConfig,
        Self::Version,
    ];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Services => "/api/v1/services",
            Self::EndpointSlices => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Pods => "/api/v1/pods",
            Self::Nodes => "/api/v1/nodes",
            Self::DaemonSets => "/apis/apps/v1/namespaces/kube-system/daemonsets",
            Self::Events => "/api/v1/namespaces/kube-system/events",
            Self::ProxyConfig => "/api/v1/namespaces/kube-system/configmaps/kube-proxy",
            Self::Version => "/version",
        }
    }

    const fn is_list(self) -> bool {
        !matches!(self, Self::ProxyConfig | Self::Version)
    }
}

/// A connection to the API server for lists.
pub(crate) struct Lister {
    client: Client,
    server: String,
    limit: Duration,
}

impl std::fmt::Debug for Lister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lister").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Lister {
    /// Reads the configuration. The first request shows whether the server answers.
    pub(crate) async fn open(access: &Access) -> Result<Self, AccessError> {
        let (client, server) = access.client().await?;
        Ok(Self { client, server, limit: access.limits.request })
    }

    /// Sends one request. The error is for a person.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Value, String> {
        let mut answer =
            if ask.is_list() { self.list(ask.path()).await? } else { self.get(ask.path()).await? };
        match ask {
            Ask::Pods => each(&mut answer, &hide_environment),
            Ask::ProxyConfig => answer = only_configuration(&answer),
            _ => {}
        }
        // The annotation of `kubectl apply` repeats the whole object, including the environment.
        each(&mut answer, &|item| {
            if let Some(annotations) =
                item.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
            {
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            }
        });
        Ok(answer)
    }

    /// The end of a container's log, or of the log before its last restart.
    pub(crate) async fn log(&self, namespace: &str, pod: &str, previous: bool) -> Result<String, String> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{pod}/log?tailLines={LOG_LINES}&limitBytes={LOG_BYTES}\
                &previous={previous}"
        );
        let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.within(self.client.request_text(request)).await
    }

    async fn list(&self, path: &str) -> Result<Value, String> {
        let mut whole = self.get(&format!("{path}?limit={PAGE}")).await?;
        let mut next = token(&whole);
        for _ in 0..MAX_PAGES {
            let Some(token) = next else { return Ok(whole) };
            let mut page = self.get(&format!("{path}?limit={PAGE}&continue={token}")).await?;
            next = self::token(&page);
            if let (Some(Value::Array(items)), Some(more)) =
                (whole.get_mut("items"), page.get_mut("items").and_then(Value::as_array_mut))
            {
                items.append(more);
            }
        }
        Err(format!("{path} has more than {MAX_PAGES} pages"))
    }

    async fn get(&self, path: &str) -> Result<Value, String> {
        let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.within(self.client.request::<Value>(request)).await
    }

    async fn within<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
        match timeout(self.limit, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(format!("{}: {}", self.server, answer::of_request(&error))),
            Err(_) => Err(format!("{}: no answer within {} s", self.server, self.limit.as_secs_f64())),
        }
    }
}

/// The beginning of the next page. A token contains only letters, digits and `-_=`; any other is not used.
fn token(page: &Value) -> Option<String> {
    let token = page.pointer("/metadata/continue")?.as_str()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.".contains(c);
    (!token.is_empty() && token.chars().all(plain)).then(|| token.to_owned())
}

fn each(answer: &mut Value, change: &dyn Fn(&mut Value)) {
    match answer.get_mut("items").and_then(Value::as_array_mut) {
        Some(items) => items.iter_mut().for_each(change),
        None => change(answer),
    }
}

fn hide_environment(pod: &mut Value) {
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = pod.pointer_mut(&format!("/spec/{kind}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(variable) = variable.as_object_mut()
                    && variable.contains_key("value")
                {
                    variable.insert("value".to_owned(), json!("(hidden)"));
                }
            }
        }
    }
}

/// The `ConfigMap` with only the `KubeProxyConfiguration`: it also contains a kubeconfig.
fn only_configuration(map: &Value) -> Value {
    let data = map.get("data").and_then(Value::as_object);
    let kept: serde_json::Map<String, Value> = data
        .into_iter()
        .flatten()
        .filter(|(_, text)| text.as_str().is_some_and(|text| text.contains("KubeProxyConfiguration")))
        .map(|(name, text)| (name.clone(), text.clone()))
        .collect();
    json!({
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"namespace": "kube-system", "name": "kube-proxy"},
        "data": kept,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_removed() {
        let mut pods = json!({"items": [{"spec": {"containers": [
            {"env": [{"name": "PASSWORD", "value": "hunter2"}, {"name": "IP", "valueFrom": {"fieldRef": {}}}]}
        ]}}]});
        each(&mut pods, &hide_environment);
        let text = pods.to_string();
        assert!(
            !text.contains("hunter2") && text.contains("PASSWORD") && text.contains("fieldRef"),
            "{text}"
        );
        let map =
            json!({"data": {"config.conf": "kind: KubeProxyConfiguration", "kubeconfig.conf": "token: x"}});
        let kept = only_configuration(&map).to_string();
        assert!(kept.contains("KubeProxyConfiguration") && !kept.contains("token"), "{kept}");
    }

    #[test]
    fn only_a_plain_token_is_used() {
        let page = |token: &str| json!({"metadata": {"continue": token}});
        assert_eq!(token(&page("eyJ2-_=")).as_deref(), Some("eyJ2-_="));
        assert_eq!(token(&page("")), None);
        assert_eq!(token(&page("a&fieldSelector=x")), None);
    }
}
