//! The arguments for the source of the cluster's objects, which several verbs share.

use std::{env, path::PathBuf};

use clap::Args;

/// Where Kubernetes objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterSource {
    Api { kubeconfig: Option<PathBuf>, context: Option<String> },
    Folder(PathBuf),
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Source")]
pub(super) struct SourceArgs {
    /// The kubeconfig file [default: KUBECONFIG, else ~/.kube/config, else the Pod's service account]
    #[arg(long, value_name = "FILE", conflicts_with = "cluster_from")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig file [default: its current one]
    #[arg(long, value_name = "NAME", conflicts_with = "cluster_from")]
    context: Option<String>,
    /// Read the cluster's objects from the `kubectl get -o json` lists in this folder, not from the API server
    #[arg(long, value_name = "DIR")]
    cluster_from: Option<PathBuf>,
    /// The name of the node in Kubernetes [default: `NODE_NAME`, else this host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

impl SourceArgs {
    /// The source, and the node's name if it was given.
    pub(super) fn resolve(self) -> (ClusterSource, Option<String>) {
        let cluster = match self.cluster_from {
            Some(folder) => ClusterSource::Folder(folder),
            None => ClusterSource::Api { kubeconfig: self.kubeconfig, context: self.context },
        };
        (cluster, self.node.filter(|name| !name.is_empty()))
    }
}

/// This node's name: from its Pod's environment, or the host's.
pub(crate) fn own_name() -> Option<String> {
    env::var("NODE_NAME").ok().filter(|name| !name.is_empty()).or_else(host_name)
}

/// This host's name as kubelet would register it: in lower case.
fn host_name() -> Option<String> {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| env::var("HOSTNAME").ok())?;
    let name = name.trim().to_lowercase();
    (!name.is_empty()).then_some(name)
}
