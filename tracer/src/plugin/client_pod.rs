//! Connections from inside a client's Pod: an ephemeral container makes them, and leaves their results as its termination
//! message. The API cannot remove it from the Pod's spec again.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::sleep;

use super::{
    pod::{CONTAINER, PROGRAM},
    visit::{NOT_STARTED, VisitError, polled, within, words},
    wire::{self, Connection},
};
use crate::{cluster::Key, text::clean};

/// The time between two reads of the Pod.
const POLL: Duration = Duration::from_millis(500);
/// The API server's message for a path that it does not serve.
const NO_RESOURCE: &str = "the requested resource";
/// A user without rights, which Pod Security's level `restricted` demands.
const NOBODY: u32 = 65_534;

/// Why a client's Pod made no connection.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error("this cluster has no ephemeral containers: Kubernetes 1.23 and later have them")]
    NotSupported,
    #[error("{pod}: {error}")]
    Request { pod: Key, error: VisitError },
    #[error("the ephemeral container in {pod} does not start: {why}")]
    NotStarted { pod: Key, why: String },
    #[error("the ephemeral container in {pod} ended without a result: {why}")]
    NoResult { pod: Key, why: String },
}

/// Whether the cluster has ephemeral containers in the form of Kubernetes 1.22 and later: the subresource takes a Pod.
pub(crate) async fn is_supported(client: &Client) -> Result<bool, VisitError> {
    let resources = within(client.list_core_api_resources("v1")).await?;
    let is_meant = |name: &str, kind: &str| name == "pods/ephemeralcontainers" && kind == "Pod";
    Ok(resources.resources.iter().any(|resource| is_meant(&resource.name, &resource.kind)))
}

/// Connects from this Pod to each address. Waits at most `patience` for the container to start, pull included, and to end.
pub(crate) async fn connect(
    client: &Client,
    pod: &Key,
    image: &str,
    run: &str,
    to: &[SocketAddr],
    patience: Duration,
) -> Result<Vec<Connection>, ClientError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let failed = |error| ClientError::Request { pod: pod.clone(), error };
    let name = format!("{CONTAINER}-{run}");
    let patch = json!({"spec": {"ephemeralContainers": [container(&name, image, to)]}});
    let patched = within(async {
        let patch = Patch::Strategic(patch);
        match pods.patch_ephemeral_containers(&pod.name, &PatchParams::default(), &patch).await {
            // A feature gate can switch the subresource off. A missing Pod's message names the Pod.
            Err(kube::Error::Api(status)) if status.code == 404 && status.message.contains(NO_RESOURCE) => {
                Ok(None)
            }
            patched => patched.map(Some),
        }
    });
    patched.await.map_err(failed)?.ok_or(ClientError::NotSupported)?;
    let began = Instant::now();
    loop {
        let why = match polled(&pods, &pod.name).await.map_err(failed)?.map(|pod| State::of(&pod, &name)) {
            Ok(State::Ended(message)) => return results(pod, &message),
            Ok(State::Waiting(why)) | Err(why) => why,
        };
        if began.elapsed() >= patience {
            let why = format!("{why}, after {} s", patience.as_secs());
            return Err(ClientError::NotStarted { pod: pod.clone(), why });
        }
        sleep(POLL).await;
    }
}

/// The container, with which the strictest admission has nothing to find fault.
fn container(name: &str, image: &str, to: &[SocketAddr]) -> Value {
    let to: Vec<String> = to.iter().map(ToString::to_string).collect();
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [PROGRAM, "node", "--connect", to.join(",")],
        "terminationMessagePolicy": "File",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

/// The state of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Waiting(String),
    /// With its termination message, or the reason of its end.
    Ended(String),
}

impl State {
    fn of(pod: &Pod, name: &str) -> Self {
        let statuses = pod.status.as_ref().and_then(|status| status.ephemeral_container_statuses.as_ref());
        let own = statuses.into_iter().flatten().find(|status| status.name == name);
        let state = own.and_then(|status| status.state.clone());
        match state.unwrap_or_default() {
            ContainerState { terminated: Some(ended), .. } => {
                let exit = format!("exit status {}", ended.exit_code);
                Self::Ended(ended.message.or(ended.reason).unwrap_or(exit))
            }
            ContainerState { waiting: Some(waiting), .. } => {
                Self::Waiting(words(waiting.reason, waiting.message))
            }
            ContainerState { running: Some(_), .. } => Self::Waiting("it runs without a result".to_owned()),
            _ => Self::Waiting(NOT_STARTED.to_owned()),
        }
    }
}

fn results(pod: &Key, message: &str) -> Result<Vec<Connection>, ClientError> {
    let lines = message.lines().filter(|line| !line.trim().is_empty());
    let results: Vec<Connection> = lines.filter_map(|line| wire::message(line).ok()).collect();
    if results.is_empty() {
        let why = clean(message.to_owned());
        return Err(ClientError::NoResult { pod: pod.clone(), why });
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::wire::Connected;

    fn state(status: &Value) -> State {
        let pod = json!({"metadata": {"name": "web-0"}, "status": {"ephemeralContainerStatuses": [{
            "name": "viptrace-1", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": status,
        }]}});
        State::of(&serde_json::from_value(pod).unwrap(), "viptrace-1")
    }

    #[test]
    fn the_container_passes_the_strictest_admission() {
        let to = ["10.96.0.1:80".parse().unwrap(), "[fd00::1]:80".parse().unwrap()];
        let container = container("viptrace-1", "viptrace:1", &to);
        assert_eq!(container["command"][3], "10.96.0.1:80,[fd00::1]:80");
        assert_eq!(container["securityContext"]["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(container["securityContext"]["runAsNonRoot"], true);
        // Fields that an ephemeral container may not have.
        for field in ["ports", "livenessProbe", "resources", "lifecycle"] {
            assert!(container.get(field).is_none());
        }
    }

    #[test]
    fn a_state_is_read_and_its_results_too() {
        assert_eq!(state(&json!({})), State::Waiting("the kubelet has not started it".into()));
        let waiting = state(&json!({"waiting": {"reason": "ErrImagePull", "message": "not\u{1b}found"}}));
        assert!(
            matches!(waiting, State::Waiting(why) if why.starts_with("ErrImagePull: not") && !why.contains('\u{1b}'))
        );
        let connection = Connection {
            to: "10.96.0.1:80".parse().unwrap(),
            port: Some(40_000),
            result: Connected::Refused,
            took: Duration::from_millis(3),
        };
        let message = wire::line(&connection).unwrap();
        let ended = state(&json!({"terminated": {"exitCode": 0, "message": message}}));
        let State::Ended(message) = ended else { panic!("{ended:?}") };
        let pod = Key::new("shop", "web-0");
        assert_eq!(results(&pod, &message).unwrap(), [connection]);
        let State::Ended(reason) = state(&json!({"terminated": {"exitCode": 2, "reason": "Error"}})) else {
            panic!("it has ended")
        };
        let error = results(&pod, &reason).unwrap_err();
        assert_eq!(error.to_string(), "the ephemeral container in shop/web-0 ended without a result: Error");
    }
}
