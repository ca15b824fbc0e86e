//! The arguments of `check`, `capture`, `schema` and `pages`, and the options that they resolve to.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{
    Attach, EXIT_STATUS,
    source::{ClusterSource, SourceArgs, own_name},
};
use crate::{cli::target::Target, report::Output};

const CHECK_EXAMPLES: &str = "Examples:
  viptrace check                          Services, kube-proxy, rules, conntrack
  viptrace check shop/cart                only what concerns one Service
  viptrace check -o wide                  with notes and the runbooks' procedures
  viptrace check --save worker-1.json     saved, to compare with another node
  viptrace check --compare worker-1.json  on the other node: what differs
  viptrace check --from must-gather/      a folder of a node's files, anywhere
  viptrace check --kernel                 whether tracing can run on this node

Nothing is changed, on the node or in the cluster.";

const CAPTURE_EXAMPLES: &str = "Examples:
  viptrace capture worker-1/       save everything that a check reads
  viptrace check --from worker-1/  check it, anywhere

Secrets are not read. Pods' environment values and kubeconfigs are left out.";

/// The flags that `--kernel`, which reads no cluster and has no findings, has no use for.
const NOT_OF_KERNEL: [&str; 11] = [
    "target",
    "service",
    "namespace",
    "output",
    "compare",
    "save",
    "from",
    "kubeconfig",
    "context",
    "cluster_from",
    "node",
];

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES, after_long_help = format!("{CHECK_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct CheckArgs {
    /// Only what concerns this Service: NAMESPACE/SERVICE
    #[arg(value_name = "SERVICE")]
    target: Option<String>,
    /// The same, as a flag
    #[arg(long, value_name = "SERVICE", conflicts_with = "target")]
    service: Option<String>,
    /// The namespace, where the Service is a bare name
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// How to print the findings
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    output: Output,
    /// Compare with another node's check, saved by --save or -o json
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    compare: Option<PathBuf>,
    /// Save the check as JSON in this file as well
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    save: Option<PathBuf>,

    /// Check this folder of a node's files (viptrace capture, a must-gather), not this node
    #[arg(long, value_name = "DIR", help_heading = "Source", conflicts_with_all = ["kubeconfig", "context"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,

    /// Print each kernel hook: how it attaches here, and what its absence costs
    #[arg(long, help_heading = "Kernel", conflicts_with_all = NOT_OF_KERNEL)]
    pub kernel: bool,
    /// With --kernel: how to reach kernel functions
    #[arg(long, value_name = "TIER", default_value = "auto", help_heading = "Kernel", requires = "kernel")]
    pub attach: Attach,
}

/// The options of `viptrace check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Namespace and name.
    pub service: Option<(String, String)>,
    pub output: Output,
    pub compare: Option<PathBuf>,
    pub save: Option<PathBuf>,
    /// A captured folder; without it, this node is checked.
    pub from: Option<PathBuf>,
    pub cluster: ClusterSource,
    pub node: Option<String>,
}

impl CheckArgs {
    /// Whether a folder is checked, on any machine.
    pub(crate) fn has_folder(&self) -> bool {
        self.from.is_some()
    }

    /// Resolves the arguments to options; the error is a usage error.
    pub fn resolve(self) -> Result<CheckOptions, clap::Error> {
        let usage = |why: String| super::usage("check", why);
        let service = match self.target.or(self.service) {
            Some(text) => {
                let target = Target::parse(&text, self.namespace.as_deref()).map_err(usage)?;
                let Target::Service { namespace, name } = &target else {
                    return Err(usage(format!("{text:?} is not a Service: write NAMESPACE/SERVICE")));
                };
                if let Some(given) = &self.namespace {
                    target.fits(given).map_err(usage)?;
                }
                Some((namespace.clone(), name.clone()))
            }
            None if self.namespace.is_some() => {
                return Err(usage("-n NAMESPACE needs a Service: write NAMESPACE/SERVICE".to_owned()));
            }
            None => None,
        };
        let (cluster, node) = self.source.resolve();
        // The environment describes this node, not the folder's.
        let node = if self.from.is_some() { node } else { node.or_else(own_name) };
        Ok(CheckOptions {
            service,
            output: self.output,
            compare: self.compare,
            save: self.save,
            from: self.from,
            cluster,
            node,
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = CAPTURE_EXAMPLES)]
pub struct CaptureArgs {
    /// The folder: a new or empty one, or an earlier capture, which is replaced
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    source: SourceArgs,
}

/// The options of `viptrace capture`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    pub folder: PathBuf,
    pub cluster: ClusterSource,
    pub node: Option<String>,
}

impl CaptureArgs {
    pub fn resolve(self) -> CaptureOptions {
        let (cluster, node) = self.source.resolve();
        CaptureOptions { folder: self.folder, cluster, node: node.or_else(own_name) }
    }
}

#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// The record whose schema is printed
    #[arg(value_name = "RECORD", default_value = "verdict")]
    pub record: Record,
}

#[derive(Debug, Args)]
pub struct PagesArgs {
    /// The folder; `man1/` and `completions/` in it are made
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// A kind of record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Record {
    /// What trace writes, one for each flow
    #[default]
    Verdict,
    /// What check writes
    Check,
    /// What explain writes of one class
    Explain,
    /// What path writes
    Path,
    /// What explain-pcap writes, one for each connection
    Pcap,
    /// What `kubectl viptrace check` writes
    Nodes,
    /// What `kubectl viptrace why` writes
    Why,
    /// The configuration of the agent
    Agent,
}
