//! The Pod that runs viptrace on a node for a while.
//!
//! It has what `deploy/viptrace.yaml` gives an agent, without an account, a volume or a port, and it ends by itself: when the
//! standard input that the plugin attached closes, or at its deadline.

use std::time::Duration;

use serde_json::{Value, json};

/// The container's name.
pub(crate) const CONTAINER: &str = "viptrace";
/// The program in the image.
pub(crate) const PROGRAM: &str = "/usr/bin/viptrace";
/// The label that every Pod of the plugin has.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "kubectl-viptrace");
/// The label with the number of one run of the plugin.
pub(crate) const RUN: &str = "kubectl-viptrace/run";
/// The namespace of the Pods, unless the user names another.
pub(crate) const NAMESPACE: &str = "kube-system";
/// The image of this version.
pub(crate) const IMAGE: &str = concat!("viptrace:", env!("CARGO_PKG_VERSION"), "-tools");

/// What the user can choose about the Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodOptions {
    pub(crate) image: String,
    /// Names of Secrets in the Pods' namespace.
    pub(crate) pull_secrets: Vec<String>,
    pub(crate) namespace: String,
    /// Empty: every taint is tolerated.
    pub(crate) tolerations: Vec<Toleration>,
    /// Adds `CAP_SYS_ADMIN`, for kernels that refuse their probes to the other capabilities (docs/limits.md).
    pub(crate) sys_admin: bool,
    /// The cluster ends a Pod after this time, whatever happens to the plugin.
    pub(crate) deadline: Duration,
}

/// A taint that the Pods tolerate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Toleration {
    pub(crate) key: String,
    /// `None`: every value.
    pub(crate) value: Option<String>,
    /// `None`: every effect.
    pub(crate) effect: Option<String>,
}

impl Toleration {
    /// Parses `KEY[=VALUE][:EFFECT]`, as `kubectl taint` writes a taint. The error is for the user.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (taint, effect) = match text.split_once(':') {
            Some((taint, effect)) => (taint, Some(effect)),
            None => (text, None),
        };
        if effect.is_some_and(|effect| !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)) {
            return Err(format!("{text:?}: the effect is NoSchedule, PreferNoSchedule or NoExecute"));
        }
        let (key, value) = match taint.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (taint, None),
        };
        if key.is_empty() {
            return Err(format!("{text:?} is not a taint: write KEY[=VALUE][:EFFECT]"));
        }
        let owned = |text: &str| text.to_owned();
        Ok(Self { key: owned(key), value: value.map(owned), effect: effect.map(owned) })
    }

    fn value(&self) -> Value {
        let mut value = match &self.value {
            Some(wanted) => json!({"key": self.key, "operator": "Equal", "value": wanted}),
            None => json!({"key": self.key, "operator": "Exists"}),
        };
        if let Some(effect) = &self.effect {
            value["effect"] = json!(effect);
        }
        value
    }
}

/// The label of everything that `deploy/` installs.
pub(crate) const NAME: (&str, &str) = ("app.kubernetes.io/name", "viptrace");
/// The agent's container in its Pods.
pub(crate) const AGENT: &str = "agent";

/// The labels by which the Pods of one run are found, or those of every run.
pub(crate) fn selector(run: Option<&str>) -> String {
    let all = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    run.map_or_else(|| all.clone(), |run| format!("{all},{RUN}={run}"))
}

/// The name of a run's Pod with this number.
pub(crate) fn name(run: &str, number: usize) -> String {
    format!("viptrace-{run}-{number}")
}

/// A Pod's manifest.
pub(crate) fn manifest(options: &PodOptions, name: &str, node: &str, run: &str) -> Value {
    let tolerations: Vec<Value> = match options.tolerations.as_slice() {
        [] => vec![json!({"operator": "Exists"})],
        chosen => chosen.iter().map(Toleration::value).collect(),
    };
    let mut capabilities = vec!["BPF", "NET_ADMIN", "PERFMON"];
    if options.sys_admin {
        capabilities.push("SYS_ADMIN");
    }
    let secrets: Vec<Value> = options.pull_secrets.iter().map(|name| json!({"name": name})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": options.namespace,
            "labels": {
                // Another name than the agent's: what selects agents must not find these.
                NAME.0: "kubectl-viptrace",
                "app.kubernetes.io/component": "visit",
                "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
                MANAGED_BY.0: MANAGED_BY.1,
                RUN: run,
            },
        },
        "spec": {
            // The scheduler is left out: a cordoned or full node has to be reached, too.
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": options.deadline.as_secs().max(1),
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            // Conntrack, the rules and kube-proxy's local ports are those of the node's network namespace.
            "hostNetwork": true,
            "hostPID": true,
            "dnsPolicy": "Default",
            "tolerations": tolerations,
            "imagePullSecrets": secrets,
            "containers": [{
                "name": CONTAINER,
                "image": options.image,
                "imagePullPolicy": "IfNotPresent",
                "command": [PROGRAM, "node", "--hold"],
                "stdin": true,
                "stdinOnce": true,
                // What the runtime writes if the program cannot start, such as on a node of another architecture.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "env": [{"name": "NODE_NAME", "value": node}],
                "securityContext": {
                    "privileged": false,
                    // The API server refuses `false` together with CAP_SYS_ADMIN.
                    "allowPrivilegeEscalation": options.sys_admin,
                    "readOnlyRootFilesystem": true,
                    // A capability that the runtime adds is effective for root only.
                    "runAsUser": 0,
                    "runAsGroup": 0,
                    "capabilities": {"drop": ["ALL"], "add": capabilities},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "resources": {
                    "requests": {"cpu": "50m", "memory": "64Mi"},
                    "limits": {"memory": "512Mi"},
                },
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> PodOptions {
        PodOptions {
            image: IMAGE.to_owned(),
            pull_secrets: vec!["registry".to_owned()],
            namespace: "kube-system".to_owned(),
            tolerations: Vec::new(),
            sys_admin: false,
            deadline: Duration::from_hours(1),
        }
    }

    #[test]
    fn the_manifest_is_a_pod_with_the_agents_privileges() {
        let pod = manifest(&options(), "viptrace-1", "worker-1", "7f3a");
        let parsed: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(parsed.spec.unwrap().active_deadline_seconds, Some(3600));
        let agent = include_str!("../../../deploy/viptrace.yaml");
        assert!(agent.contains(r#"add: ["BPF","NET_ADMIN","PERFMON"]"#), "the agent's capabilities differ");
        assert!(agent.contains(&format!("image: \"{IMAGE}\"")), "the agent's image differs");
        let context = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(context["capabilities"]["add"], json!(["BPF", "NET_ADMIN", "PERFMON"]));
        assert_eq!(
            (&context["privileged"], &pod["spec"]["automountServiceAccountToken"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(pod["spec"]["tolerations"], json!([{"operator": "Exists"}]));
    }

    #[test]
    fn a_pod_gets_more_privileges_only_on_request() {
        let pod = manifest(&PodOptions { sys_admin: true, ..options() }, "viptrace-1", "worker-1", "7f3a");
        let context = &pod["spec"]["containers"][0]["securityContext"];
        assert_eq!(context["capabilities"]["add"], json!(["BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"]));
        assert_eq!(
            (&context["privileged"], &context["allowPrivilegeEscalation"]),
            (&json!(false), &json!(true))
        );
    }

    #[test]
    fn tolerations_are_written_as_taints() {
        let value = |text| Toleration::parse(text).unwrap().value();
        assert_eq!(value("a"), json!({"key": "a", "operator": "Exists"}));
        assert_eq!(
            value("a/b=c:NoExecute"),
            json!({"key": "a/b", "operator": "Equal", "value": "c", "effect": "NoExecute"})
        );
        for wrong in ["", "=c", "a:Never"] {
            Toleration::parse(wrong).unwrap_err();
        }
        let chosen = PodOptions { tolerations: vec![Toleration::parse("a").unwrap()], ..options() };
        assert_eq!(
            manifest(&chosen, "p", "n", "r")["spec"]["tolerations"],
            json!([{"key": "a", "operator": "Exists"}])
        );
    }
}
