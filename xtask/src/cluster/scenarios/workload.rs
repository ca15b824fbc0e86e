//! The workload of most scenarios: a Service with two Pods behind it on one node, and a client Pod on the other one, so that
//! each connection crosses from node to node.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::super::Cluster;

/// The longest time until Pods are ready. It takes 20 s.
pub(crate) const PODS: Duration = Duration::from_mins(3);
/// The longest time until kube-proxy has written a change.
const RULES: Duration = Duration::from_secs(30);

/// The Service `web` with its Pods, and the client.
#[derive(Debug)]
pub(crate) struct Workload<'a> {
    namespace: &'a str,
    /// The `ClusterIP` of the Service, whose port is 80.
    pub(crate) vip: String,
}

/// busybox ignores SIGTERM as process 1, so a Pod serves until the end of its grace period, as a server that stops
/// gracefully does.
const OBJECTS: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node2}
      terminationGracePeriodSeconds: 15
      containers:
        - name: web
          image: docker.io/library/busybox:lab
          command: [sh, -c, "mkdir /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www"]
          ports: [{containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 2, timeoutSeconds: 5}
          livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 5, timeoutSeconds: 5}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "docker.io/library/busybox:lab"}]
"#;

/// Connects again and again until the file `stop` exists, and then writes how many connections succeeded and failed.
const LOAD: &str = "cd /tmp; rm -f stop load; (
    good=0; bad=0
    until [ -e stop ]; do
        if timeout 5 wget -q -O /dev/null http://VIP/; then good=$((good+1)); else bad=$((bad+1)); fi
        sleep 0.2
    done
    echo $good $bad >load
) </dev/null >/dev/null 2>&1 &";
/// The longest time until the load has stopped.
const LOAD_END: Duration = Duration::from_secs(30);

/// The connections of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
}

impl Load {
    fn parse(text: &str) -> Option<Self> {
        let (succeeded, failed) = text.trim().split_once(' ')?;
        Some(Self { succeeded: succeeded.parse().ok()?, failed: failed.parse().ok()? })
    }
}

impl<'a> Workload<'a> {
    /// Creates the workload and waits until a connection to the Service succeeds.
    pub(crate) fn create(cluster: &mut Cluster, namespace: &'a str) -> Result<Self> {
        cluster.apply_in(namespace, OBJECTS)?;
        let limit = format!("--timeout={}s", PODS.as_secs());
        cluster.kubectl(["--namespace", namespace, "wait", "--for=condition=Ready", "pod/client", &limit])?;
        cluster.kubectl(["--namespace", namespace, "rollout", "status", "deployment/web", &limit])?;
        let get =
            ["--namespace", namespace, "get", "service", "web", "--output", "jsonpath={.spec.clusterIP}"];
        let workload = Self { namespace, vip: cluster.kubectl(get)? };
        cluster.wait_for("the Service to answer", RULES, |cluster| Ok(workload.connect(cluster).ok()))?;
        Ok(workload)
    }

    /// Connects from the client to the Service and returns the name of the Pod that answered.
    pub(crate) fn connect(&self, cluster: &Cluster) -> Result<String> {
        // The option -T of Debian's static wget ends it with a segmentation fault.
        let url = format!("http://{}/", self.vip);
        let name = self.in_client(cluster, &["timeout", "5", "wget", "-q", "-O", "-", &url])?;
        let name = name.trim();
        if !name.starts_with("web-") {
            bail!("{url} answered {name:?}");
        }
        Ok(name.to_owned())
    }

    /// Runs a command in the client.
    pub(crate) fn in_client(&self, cluster: &Cluster, words: &[&str]) -> Result<String> {
        let exec = ["--namespace", self.namespace, "exec", "client", "--"];
        cluster.kubectl(exec.iter().chain(words))
    }

    /// Lets the client connect to the Service again and again.
    pub(crate) fn start_load(&self, cluster: &Cluster) -> Result<()> {
        self.in_client(cluster, &["sh", "-c", &LOAD.replace("VIP", &self.vip)]).map(drop)
    }

    /// Ends the load and returns what became of its connections.
    pub(crate) fn stop_load(&self, cluster: &mut Cluster) -> Result<Load> {
        self.in_client(cluster, &["touch", "/tmp/stop"])?;
        let text = cluster.wait_for("the end of the load", LOAD_END, |cluster| {
            Ok(self.in_client(cluster, &["cat", "/tmp/load"]).ok().filter(|text| !text.is_empty()))
        })?;
        Load::parse(&text).with_context(|| format!("the load printed {text:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_two_numbers() {
        assert_eq!(Load::parse("31 2\n"), Some(Load { succeeded: 31, failed: 2 }));
        assert_eq!(Load::parse("31"), None);
    }
}
