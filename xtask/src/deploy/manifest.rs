//! The rules that every rendering of the chart holds, for all values: the agent's privileges, its mounts, its permissions.
//!
//! Owns the reading of manifests. A value may add a capability that has a switch, and nothing else.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// The capabilities that the agent cannot do without.
pub(super) const NEEDED: [&str; 3] = ["BPF", "NET_ADMIN", "PERFMON"];
/// Those that a switch adds.
const SWITCHED: [&str; 5] = ["NET_RAW", "SYSLOG", "SYS_ADMIN", "SYS_PTRACE", "SYS_RESOURCE"];

/// What an agent creates that requires tokens.
const REVIEWS: [&str; 2] =
    ["subjectaccessreviews.authorization.k8s.io", "tokenreviews.authentication.k8s.io"];

/// The objects of some manifests, in their order.
#[derive(Debug)]
pub(super) struct Rendering(pub(super) Vec<Value>);

impl Rendering {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(text).map_err(|error| anyhow::anyhow!("not YAML: {error}"))?;
        Ok(Self(objects.into_iter().filter(|object| !object.is_null()).collect()))
    }

    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// The number of objects that are not custom resources.
    pub(super) fn core(&self) -> usize {
        let is_custom = |object: &&Value| {
            object["apiVersion"].as_str().is_some_and(|version| version.starts_with("monitoring.coreos.com/"))
        };
        self.0.len() - self.0.iter().filter(is_custom).count()
    }

    /// The agent's configuration.
    pub(super) fn configuration(&self) -> Option<&str> {
        self.of_kind("ConfigMap").find_map(|map| map["data"]["agent.yaml"].as_str())
    }

    /// The names of the capabilities that the agent's container adds.
    pub(super) fn capabilities(&self) -> Result<Vec<&str>> {
        let added = self.container()?["securityContext"]["capabilities"]["add"].as_array();
        Ok(added.context("no capabilities")?.iter().filter_map(Value::as_str).collect())
    }

    fn pod(&self) -> Result<&Value> {
        let mut sets = self.of_kind("DaemonSet");
        let set = sets.next().context("no DaemonSet")?;
        ensure!(sets.next().is_none(), "more than one DaemonSet");
        Ok(&set["spec"]["template"]["spec"])
    }

    fn container(&self) -> Result<&Value> {
        let pod = self.pod()?;
        ensure!(pod.get("initContainers").is_none(), "an init container");
        match pod["containers"].as_array().map(Vec::as_slice) {
            Some([agent]) => Ok(agent),
            _ => bail!("not exactly one container"),
        }
    }

    /// Checks every rule.
    pub(super) fn examine(&self) -> Result<()> {
        self.examine_privileges()?;
        self.examine_mounts()?;
        self.examine_permissions()?;
        self.examine_monitoring()
    }

    fn examine_privileges(&self) -> Result<()> {
        let (pod, container) = (self.pod()?, self.container()?);
        let security = &container["securityContext"];
        ensure!(security["privileged"] == false, "the container is privileged");
        ensure!(security["readOnlyRootFilesystem"] == true, "the root file system can be written");
        ensure!(
            security["capabilities"]["drop"] == serde_json::json!(["ALL"]),
            "capabilities are not dropped"
        );
        let added = self.capabilities()?;
        for capability in NEEDED {
            ensure!(added.contains(&capability), "{capability} is missing");
        }
        if let Some(other) = added.iter().find(|name| !NEEDED.contains(name) && !SWITCHED.contains(name)) {
            bail!("{other} has no switch");
        }
        let escalates = security["allowPrivilegeEscalation"] == true;
        ensure!(escalates == added.contains(&"SYS_ADMIN"), "allowPrivilegeEscalation without need");
        ensure!(pod["hostNetwork"] == true, "not in the node's network namespace");
        ensure!(pod["hostIPC"].is_null(), "in the node's IPC namespace");
        ensure!(!security["seccompProfile"]["type"].is_null(), "no seccomp profile");
        let limits = &container["resources"]["limits"];
        ensure!(!limits["cpu"].is_null() && !limits["memory"].is_null(), "CPU or memory has no limit");
        Ok(())
    }

    /// Of the node only the folder of recordings, and only that and the socket's folder can be written.
    fn examine_mounts(&self) -> Result<()> {
        let (pod, container) = (self.pod()?, self.container()?);
        let volumes = pod["volumes"].as_array().context("no volumes")?;
        for volume in volumes.iter().filter(|volume| !volume["hostPath"].is_null()) {
            ensure!(volume["name"] == "recordings", "another folder of the node: {volume}");
        }
        for mount in container["volumeMounts"].as_array().context("no mounts")? {
            let name = mount["name"].as_str().unwrap_or_default();
            ensure!(volumes.iter().any(|volume| volume["name"] == name), "no volume {name}");
            let writes = ["run", "recordings"].contains(&name);
            ensure!(writes || mount["readOnly"] == true, "{name} can be written");
        }
        let port = |name: &str| {
            let ports = container["ports"].as_array()?;
            ports.iter().find(|port| port["name"] == name).map(|port| &port["containerPort"])
        };
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let request = &container[probe]["httpGet"];
            ensure!(request["port"].is_null() == port("health").is_none(), "{probe} and the port differ");
            ensure!(
                request["port"].is_null() || Some(&request["port"]) == port("health"),
                "{probe} has another port"
            );
        }
        Ok(())
    }

    /// Nothing but reading, except the two reviews, which store nothing, for an agent that requires tokens.
    fn examine_permissions(&self) -> Result<()> {
        let mut created = BTreeSet::new();
        for role in self.of_kind("ClusterRole") {
            for rule in role["rules"].as_array().context("a role without rules")? {
                let texts = |key: &str| -> Vec<&str> {
                    rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
                };
                let resources = texts("resources");
                for forbidden in ["*", "secrets", "configmaps"] {
                    ensure!(!resources.contains(&forbidden), "a role for {forbidden}");
                }
                for verb in texts("verbs") {
                    if verb == "create" {
                        let groups = texts("apiGroups");
                        ensure!(!groups.is_empty() && !resources.is_empty(), "a role may create a path");
                        created.extend(groups.into_iter().flat_map(|group| {
                            resources.iter().map(move |resource| {
                                format!("{resource}.{group}").trim_end_matches('.').to_owned()
                            })
                        }));
                    } else {
                        let reads = ["get", "list", "watch"].contains(&verb);
                        ensure!(reads, "a role may {verb} {resources:?}");
                    }
                }
            }
        }
        self.examine_reviews(&created)?;
        for kind in ["Role", "Secret", "Service"] {
            ensure!(self.of_kind(kind).next().is_none(), "an object of kind {kind}");
        }
        Ok(())
    }

    /// What the agent may create: the reviews exactly if its configuration requires tokens. The configuration of a
    /// Secret is not part of a rendering.
    fn examine_reviews(&self, created: &BTreeSet<String>) -> Result<()> {
        let reviews = BTreeSet::from(REVIEWS.map(str::to_owned));
        let requires_tokens = match self.configuration() {
            Some(text) => {
                let config: Value =
                    serde_saphyr::from_str(text).map_err(|error| anyhow::anyhow!("agent.yaml: {error}"))?;
                config["metrics"]["authorization"] == "token"
            }
            None => !created.is_empty(),
        };
        // A rendering without its own roles has nothing to compare.
        let expected = if requires_tokens && self.of_kind("ClusterRole").next().is_some() {
            reviews
        } else {
            BTreeSet::new()
        };
        ensure!(*created == expected, "roles may create {created:?}, and the agent needs {expected:?}");
        Ok(())
    }

    /// The custom resources, whose schema the API's do not have.
    fn examine_monitoring(&self) -> Result<()> {
        for monitor in self.of_kind("PodMonitor") {
            let spec = &monitor["spec"];
            let endpoints = spec["podMetricsEndpoints"].as_array().context("no endpoints")?;
            let [endpoint] = endpoints.as_slice() else { bail!("not exactly one endpoint") };
            ensure!(endpoint["port"] == "metrics" && endpoint["path"] == "/metrics", "another endpoint");
            ensure!(endpoint["honorLabels"] == true, "the Service's namespace is overwritten");
            let set = self.of_kind("DaemonSet").next().context("no DaemonSet")?;
            let labels = &set["spec"]["template"]["metadata"]["labels"];
            let selected = spec["selector"]["matchLabels"].as_object().context("no selector")?;
            ensure!(selected.iter().all(|(name, value)| labels[name] == *value), "selects other Pods");
        }
        for rule in self.of_kind("PrometheusRule") {
            ensure!(rule["spec"]["groups"].as_array().is_some_and(|groups| groups.len() > 2), "no alerts");
        }
        Ok(())
    }
}
