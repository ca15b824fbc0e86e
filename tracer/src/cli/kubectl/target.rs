//! The meaning of a name on the command line in this cluster.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};

use super::args::Name;
use crate::{
    cli::{ResultExt as _, target::Target},
    cluster::{History, Key, request_error},
    text::{count, list},
    verdict::Verdict,
};

/// The flows that a trace shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) target: Option<Target>,
    /// Services of this namespace only.
    pub(super) namespace: Option<String>,
    /// Services with all of these labels only.
    pub(super) services: Option<Vec<Key>>,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, &self.services, &self.namespace) {
            (Some(target), _, _) => target.fmt(f),
            (None, Some(services), _) => f.write_str(&count(services.len(), "Service")),
            (None, None, Some(namespace)) => write!(f, "the Services of {namespace}"),
            (None, None, None) => f.write_str("every Service"),
        }
    }
}

impl Filter {
    /// The Service, if the target is one.
    pub(super) fn service(&self) -> Option<Key> {
        self.target.as_ref().and_then(Target::service)
    }

    pub(super) fn shows(&self, verdict: &Verdict) -> bool {
        let service = verdict.service.as_ref();
        self.target.as_ref().is_none_or(|target| target.matches(verdict))
            && self.namespace.as_deref().is_none_or(|wanted| service.is_some_and(|s| &*s.namespace == wanted))
            && self.services.as_ref().is_none_or(|wanted| {
                service.is_some_and(|s| wanted.contains(&Key::new(&s.namespace, &s.name)))
            })
    }
}

/// The Service or other target behind a name. A Deployment stands for the Service that selects its Pods.
pub(super) async fn resolve(
    name: Name,
    client: &Client,
    history: &History,
) -> anyhow::Result<Option<Target>> {
    let key = match name {
        Name::Target(target) => return Ok(Some(target)),
        Name::Node(_) => return Ok(None),
        Name::Deployment(key) => key,
    };
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &key.namespace);
    let found = deployments
        .get(&key.name)
        .await
        .map_err(|error| anyhow::anyhow!("cannot read the Deployment {key}: {}", request_error(&error)))?;
    let labels = found.spec.and_then(|spec| spec.template.metadata).and_then(|metadata| metadata.labels);
    let services = selecting(history, &key.namespace, &labels.unwrap_or_default());
    match services.as_slice() {
        [only] => {
            Ok(Some(Target::Service { namespace: only.namespace.to_string(), name: only.name.to_string() }))
        }
        [] => Err(anyhow::anyhow!("no Service selects the Pods of the Deployment {key}")).hint(|| {
            "compare `kubectl get service -o wide` with the labels of the Deployment's Pods".to_owned()
        }),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(anyhow::anyhow!("several Services select the Pods of the Deployment {key}: {}", list(&names)))
                .hint(|| "name one of them".to_owned())
        }
    }
}

/// The Services of a namespace whose selector fits these labels.
fn selecting(history: &History, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Key> {
    let fits = |service: &&std::sync::Arc<crate::cluster::model::Service>| {
        &*service.key.namespace == namespace
            && !service.selector.is_empty()
            && service
                .selector
                .iter()
                .all(|(name, value)| labels.get(name).is_some_and(|label| label == value))
    };
    history.services().filter(fits).map(|service| service.key.clone()).collect()
}
