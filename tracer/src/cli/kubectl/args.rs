//! The command line of `kubectl viptrace`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    cli::{
        args::{ExplainArgs, Global, Hooks, ReplayArgs, SchemaArgs, ShownArgs},
        selection::FlowAddresses,
        target::Target,
    },
    cluster::{Access, Key},
    parse::units,
    plugin::{
        nodes::Wish,
        pod::{IMAGE, NAMESPACE, PodOptions, Toleration},
    },
    report::Output,
    text::length,
    time::when::When,
};

const EXIT_STATUS: &str = "Exit status:
  0  nothing broken was found; the output names what could not be observed
  1  could not run
  2  wrong usage
  3  faults found
  4  nothing broken was found for certain, but something may be broken (check,
     why), or a part that matters could not be read";

const TRACE_EXAMPLES: &str = "Examples:
  kubectl viptrace trace shop/cart                  one Service
  kubectl viptrace trace svc/cart -n shop           the same
  kubectl viptrace trace deploy/cart -n shop        the Service in front of it
  kubectl viptrace trace shop/cart --client pod/shop/web-0
                                                    as this client's node sees it
  kubectl viptrace trace --node worker-1            every Service on one node
  kubectl viptrace trace shop/cart --duration 30s -o json
                                                    faults as records, for half a minute

It runs a Pod on each of these nodes and removes it at the end. Decisions taken before the trace
started are not observed.";

const TOP_EXAMPLES: &str = "Examples:
  kubectl viptrace top shop/cart          one Service
  kubectl viptrace top --all-nodes        every Service, on every node

Keys: arrows select, Enter opens a flow's evidence or a Service's flows, Tab changes the list, q ends.";

const CHECK_EXAMPLES: &str = "Examples:
  kubectl viptrace check                   every node
  kubectl viptrace check shop/cart         only what concerns one Service
  kubectl viptrace check --node worker-1   one node
  kubectl viptrace check node/worker-1     the same
  kubectl viptrace check -o wide           with notes and the runbooks' procedures

Nothing is changed, on the nodes or in the cluster, but for the Pods that read the nodes.";

const WHY_EXAMPLES: &str = "Examples:
  kubectl viptrace why shop/cart                 check the nodes, trace what clients do
  kubectl viptrace why shop/cart --probe         and connect to it once, from each node
  kubectl viptrace why shop/cart --client pod/shop/web-0 --probe
                                                 on this client's node
  kubectl viptrace why shop/cart --probe-from pod/shop/web-0
                                                 from inside this client";

const COLLECT_EXAMPLES: &str = "Examples:
  kubectl viptrace collect incident                      the recordings of every node's agent
  kubectl viptrace collect incident --service shop/cart --since 30m
                                                         of the nodes of this Service's endpoints and clients
  viptrace replay incident -o story                      what happened

A segment that is in DIR already is not fetched again. Nothing is created in the cluster.";

/// Finds the hop that broke a Kubernetes Service, from anywhere
///
/// Runs viptrace on the nodes that matter, in Pods that it removes afterwards, and prints one merged result. It reads the
/// cluster with your own credentials; the Pods have none.
#[derive(Debug, Parser)]
#[command(
    name = "viptrace",
    bin_name = "kubectl viptrace",
    display_name = "kubectl viptrace",
    version,
    after_help = EXIT_STATUS,
    max_term_width = 100,
    subcommand_required = true
)]
pub struct Plugin {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) global: Global,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Say why a Service fails: check the nodes that matter, watch its connections, name the first cause
    Why(Box<WhyArgs>),
    /// Watch the connections to Services on the nodes that matter and judge each
    Trace(Box<TraceArgs>),
    /// Watch them on a screen: the Services by failures, the latest failed flows, the evidence of each
    Top(Box<TopArgs>),
    /// Find what is wrong with Services on every node without any traffic
    Check(Box<CheckArgs>),
    /// Save everything that a check reads in a folder for each node, for viptrace check --from
    Capture(Box<CaptureArgs>),
    /// Fetch the recordings of the nodes' agents into a folder for each node, for viptrace replay
    Collect(CollectArgs),
    /// Remove Pods that a crash left behind
    Cleanup(CleanupArgs),
    /// Judge a recording, on this machine
    Replay(Box<ReplayArgs>),
    /// Explain a class of the verdicts: its mechanism, how it is recognised, what to do
    Explain(ExplainArgs),
    /// Print the JSON Schema of the records that -o json and -o yaml write
    Schema(SchemaArgs),
}

/// How to reach the API server: kubectl's flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ServerArgs {
    /// The kubeconfig file [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig file [default: its current one]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The namespace of bare names [default: that of the context]
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// The user in whose name every request is made
    #[arg(long = "as", global = true, value_name = "USER")]
    user: Option<String>,
    /// A group of that user; can be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "user")]
    groups: Vec<String>,
}

impl ServerArgs {
    /// Refuses `-n` where it has no effect, for this reason. The error is for the user.
    pub(crate) fn without_namespace(&self, why: &str) -> Result<(), String> {
        match &self.namespace {
            Some(_) => Err(format!("-n has no effect here: {why}")),
            None => Ok(()),
        }
    }

    pub(crate) fn access(&self) -> Access {
        Access {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            user: self.user.clone(),
            groups: self.groups.clone(),
            ..Access::default()
        }
    }
}

/// The nodes of a check, unless the user chose.
const NODES_OF_CHECK: &str = "Visit this node; can be repeated [default: every node; with a Service, all nodes of a cluster \
    with up to 10, else those of the Service's endpoints]";
/// The nodes of a capture, unless the user chose.
const NODES_OF_CAPTURE: &str = "Visit this node; can be repeated [default: every node]";
/// The nodes of `why`, unless the user chose.
const NODES_OF_WHY: &str = "Visit this node; can be repeated [default: all nodes of a cluster with up to 10, else those of the \
    Service's endpoints]";
/// Of a verb that visits every node without it, too.
const ALL_NODES_BY_DEFAULT: &str = "Visit every node; this is the default";

/// Which nodes to visit.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Nodes")]
pub(crate) struct NodeChoice {
    /// Visit this node; can be repeated [default: all nodes of a cluster with up to 10, else those of the Service's endpoints
    /// and of its clients]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Vec<String>,
    /// Visit every node
    #[arg(long, conflicts_with = "node")]
    pub(crate) all_nodes: bool,
    /// Visit the node of this client
    #[arg(long, value_name = "pod/NAMESPACE/NAME", conflicts_with_all = ["node", "all_nodes"])]
    pub(crate) client: Option<String>,
}

impl NodeChoice {
    /// The error is for the user.
    pub(crate) fn wish(&self, namespace: &str) -> Result<Wish, String> {
        let client = self.client.as_deref().map(|text| pod(text, namespace)).transpose()?;
        Ok(Wish { nodes: self.node.clone(), all: self.all_nodes, client })
    }

    /// Refuses a target that is a node beside another choice of nodes, of which one would be ignored.
    pub(crate) fn fits(&self, target: Option<&str>) -> Result<(), String> {
        let Some(text) = target else { return Ok(()) };
        let other = match (self.all_nodes, &self.client) {
            (true, _) => "--all-nodes",
            (false, Some(_)) => "--client",
            (false, None) => return Ok(()),
        };
        match name(text, "") {
            Ok(Name::Node(_)) => {
                Err(format!("{text} chooses one node and {other} others: leave out one of them"))
            }
            _ => Ok(()),
        }
    }
}

/// The namespace (`-n`) beside a target that has none; a client may be a bare name of that namespace. The error is for the user.
pub(crate) fn fits_namespace(
    namespace: Option<&str>,
    target: Option<&str>,
    nodes: &NodeChoice,
) -> Result<(), String> {
    let (Some(namespace), Some(text), None) = (namespace, target, &nodes.client) else { return Ok(()) };
    match name(text, namespace)? {
        Name::Node(node) => Err(format!(
            "-n has no effect with {text}, whose flows are those of every namespace: write --node {node} -n {namespace}"
        )),
        Name::Target(target @ Target::Address { .. }) => target.fits(namespace),
        Name::Target(_) | Name::Deployment(_) => Ok(()),
    }
}

/// The Pod that the user named. The error is for the user.
pub(crate) fn pod(text: &str, namespace: &str) -> Result<Key, String> {
    match name(text, namespace)? {
        Name::Target(Target::Pod { namespace, name }) => Ok(Key::new(&namespace, &name)),
        _ => Err(format!("{text:?} is not a Pod: write pod/NAMESPACE/NAME")),
    }
}

/// The Pods that are created.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pods")]
pub(crate) struct PodArgs {
    /// The image of the Pods
    #[arg(long, value_name = "IMAGE", default_value = IMAGE)]
    image: String,
    /// A Secret for the image's registry, in the Pods' namespace; can be repeated
    #[arg(long, value_name = "SECRET")]
    image_pull_secret: Vec<String>,
    /// The namespace of the Pods; its Pod Security level has to be `privileged`
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    pub(crate) pod_namespace: String,
    /// Tolerate this taint only: KEY[=VALUE][:EFFECT]; can be repeated [default: every taint]
    #[arg(long, value_name = "TAINT", value_parser = Toleration::parse)]
    toleration: Vec<Toleration>,
    /// Give the Pods the capability `SYS_ADMIN` as well, for kernels that refuse probes without it, such as Debian 12's
    #[arg(long)]
    sys_admin: bool,
    /// How long a Pod may take to start
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::positive_duration)]
    pub(crate) pod_timeout: Duration,
    /// The cluster ends the Pods after this time, whatever happens to the plugin
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::positive_duration)]
    pod_deadline: Duration,
    /// With `client`: print the Pods that would be created, as YAML or with -o json as JSON, and create nothing
    #[arg(long, value_name = "WHERE")]
    dry_run: Option<DryRun>,
}

impl Default for PodArgs {
    /// Those of the command line, for what creates no Pod.
    fn default() -> Self {
        Self {
            image: IMAGE.to_owned(),
            image_pull_secret: Vec::new(),
            pod_namespace: NAMESPACE.to_owned(),
            toleration: Vec::new(),
            sys_admin: false,
            pod_timeout: Duration::from_mins(1),
            pod_deadline: Duration::from_hours(1),
            dry_run: None,
        }
    }
}

impl PodArgs {
    /// Refuses to watch for longer than the Pods live.
    pub(crate) fn allow(&self, duration: Option<Duration>) -> Result<(), String> {
        match duration {
            Some(duration) if duration >= self.pod_deadline => Err(format!(
                "--duration {} is not shorter than --pod-deadline {}, which ends the Pods: raise that",
                length(duration),
                length(self.pod_deadline)
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }

    pub(crate) fn options(&self) -> PodOptions {
        PodOptions {
            image: self.image.clone(),
            pull_secrets: self.image_pull_secret.clone(),
            namespace: self.pod_namespace.clone(),
            tolerations: self.toleration.clone(),
            sys_admin: self.sys_admin,
            deadline: self.pod_deadline,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Nothing is sent to the API server but reads
    Client,
}

#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES, after_long_help = format!("{TRACE_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) followed: FollowArgs,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
    /// Instead of rows, print the way of this flow's packets on its client's node, once the flow is judged: each sighting,
    /// the rules that decided, and what was not seen; ADDRESSES is CLIENT or CLIENT,TO such as
    /// 10.0.1.2:40000,10.96.0.10:80. Traces in Pods of its own, as --own-pods
    #[arg(long, value_name = "ADDRESSES", value_parser = FlowAddresses::parse, conflicts_with_all = ["output", "all", "faults_only", "each"], help_heading = "Output")]
    pub(crate) path: Option<FlowAddresses>,
}

#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES, after_long_help = format!("{TOP_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) followed: FollowArgs,
}

/// The flows that are followed, and how.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// Only flows of this Service, Pod or address: NAMESPACE/SERVICE, svc/NAME, pod/NAME, deploy/NAME, node/NAME, IP or IP:PORT
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// Only Services with these labels
    #[arg(short = 'l', long, value_name = "KEY=VALUE,…", conflicts_with = "target")]
    pub(crate) selector: Option<String>,
    /// Services of every namespace, without a TARGET [default: those of -n, else every namespace]
    #[arg(short = 'A', long, conflicts_with = "target")]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeChoice,
    /// Stop after this time, such as 30s or 5m; without it, Ctrl-C stops
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, help_heading = "Run")]
    pub(crate) duration: Option<Duration>,
    /// Which kernel hooks to attach [default: full]
    #[arg(long, value_name = "SET", help_heading = "Run")]
    pub(crate) hooks: Option<Hooks>,
    /// Trace every flow in Pods of its own; by default, a node with an agent hands out the agent's failures and samples
    #[arg(long, help_heading = "Run")]
    pub(crate) own_pods: bool,
    #[command(flatten)]
    pub(crate) pods: PodArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = CHECK_EXAMPLES,
    after_long_help = format!("{CHECK_EXAMPLES}\n\n{EXIT_STATUS}"),
    mut_arg("node", |node| node.help(NODES_OF_CHECK))
)]
pub(crate) struct CheckArgs {
    /// Only what concerns this Service (NAMESPACE/SERVICE, svc/NAME, deploy/NAME), or one node (node/NAME)
    #[arg(value_name = "TARGET")]
    pub(crate) target: Option<String>,
    /// How to print the findings
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) nodes: NodeChoice,
    #[command(flatten)]
    pub(crate) pods: PodArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = WHY_EXAMPLES,
    after_long_help = format!("{WHY_EXAMPLES}\n\n{EXIT_STATUS}"),
    mut_arg("node", |node| node.help(NODES_OF_WHY))
)]
pub(crate) struct WhyArgs {
    /// The Service: NAMESPACE/SERVICE, svc/NAME or deploy/NAME
    #[arg(value_name = "SERVICE")]
    pub(crate) target: String,
    /// Connect to each TCP port of the Service once, from each node's own network; on a terminal it asks first
    #[arg(long, group = "probing")]
    pub(crate) probe: bool,
    /// Connect from this client's Pod instead, by an ephemeral container, which stays in the Pod's spec; on a terminal it asks
    /// first. Kubernetes 1.23 and later
    #[arg(long, value_name = "pod/NAMESPACE/NAME", group = "probing", conflicts_with_all = ["client", "node", "all_nodes"])]
    pub(crate) probe_from: Option<String>,
    /// Do not ask before it connects
    #[arg(short, long, requires = "probing")]
    pub(crate) yes: bool,
    /// How long to watch the connections of its clients
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::positive_duration)]
    pub(crate) duration: Duration,
    /// How to print the result
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) nodes: NodeChoice,
    #[command(flatten)]
    pub(crate) pods: PodArgs,
}

#[derive(Debug, Args)]
#[command(
    mut_arg("node", |node| node.help(NODES_OF_CAPTURE)),
    mut_arg("all_nodes", |all| all.help(ALL_NODES_BY_DEFAULT))
)]
pub(crate) struct CaptureArgs {
    /// The folder: each node gets one of its own in it
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    #[command(flatten)]
    pub(crate) nodes: NodeChoice,
    #[command(flatten)]
    pub(crate) pods: PodArgs,
}

#[derive(Debug, Args)]
#[command(after_help = COLLECT_EXAMPLES, after_long_help = format!("{COLLECT_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct CollectArgs {
    /// The folder: each node gets one of its own in it
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Only of this node; can be repeated [default: every node with an agent]
    #[arg(long, value_name = "NAME", conflicts_with = "service")]
    pub(crate) node: Vec<String>,
    /// Only of the nodes that run endpoints of this Service, or clients that connected to it: NAMESPACE/SERVICE, svc/NAME or
    /// deploy/NAME
    #[arg(long, value_name = "SERVICE")]
    pub(crate) service: Option<String>,
    /// Only segments that were written since then: 2026-01-02T10:00:00Z, "2026-01-02 10:00" or 10:00:30 in UTC, or 15m for so
    /// long ago
    #[arg(long, value_name = "TIME", value_parser = When::parse_until_now, allow_hyphen_values = true)]
    pub(crate) since: Option<When>,
    /// Only segments that began until then; TIME as for --since
    #[arg(long, value_name = "TIME", value_parser = When::parse_until_now, allow_hyphen_values = true)]
    pub(crate) until: Option<When>,
}

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    /// The namespace of the Pods
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE)]
    pub(crate) pod_namespace: String,
    /// Remove also the Pods that have not ended: another run of the plugin that uses them fails
    #[arg(long)]
    pub(crate) all: bool,
}

/// What a user named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Target(Target),
    Deployment(Key),
    Node(String),
}

/// Reads a name as kubectl's users write it. The error is for the user.
pub(crate) fn name(text: &str, namespace: &str) -> Result<Name, String> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        ["node" | "nodes" | "no", node] if !node.is_empty() => Ok(Name::Node((*node).to_owned())),
        ["deploy" | "deployment" | "deployments", name] => Ok(Name::Deployment(Key::new(namespace, name))),
        ["deploy" | "deployment" | "deployments", namespace, name] => {
            Ok(Name::Deployment(Key::new(namespace, name)))
        }
        // A whole name is not one of this namespace.
        [kind, _] if !is_kind(kind) => Target::parse(text, None).map(Name::Target),
        [_, _, _] => Target::parse(text, None).map(Name::Target),
        _ => Target::parse(text, Some(namespace)).map(Name::Target),
    }
}

/// Whether the name is a node's.
pub(crate) fn is_node(text: &str) -> bool {
    matches!(name(text, ""), Ok(Name::Node(_)))
}

fn is_kind(text: &str) -> bool {
    ["pod", "pods", "po", "service", "services", "svc"].contains(&text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Plugin::command().debug_assert();
    }

    #[test]
    fn names_are_read_as_kubectl_reads_them() {
        let read = |text: &str| match name(text, "shop") {
            Ok(Name::Target(target)) => target.to_string(),
            Ok(Name::Deployment(key)) => format!("deployment/{key}"),
            Ok(Name::Node(node)) => format!("node/{node}"),
            Err(error) => format!("error: {error}"),
        };
        for (text, expected) in [
            ("cart", "service/shop/cart"),
            ("svc/cart", "service/shop/cart"),
            ("service/cart", "service/shop/cart"),
            ("other/cart", "service/other/cart"),
            ("svc/other/cart", "service/other/cart"),
            ("pod/cart-0", "pod/shop/cart-0"),
            ("po/other/cart-0", "pod/other/cart-0"),
            ("deploy/cart", "deployment/shop/cart"),
            ("deployment/other/cart", "deployment/other/cart"),
            ("node/worker-1", "node/worker-1"),
            ("10.96.0.10:53", "10.96.0.10:53"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        assert!(read("a/b/c/d").starts_with("error: "));
        assert!(read("Cart").contains("cannot be the name of a Service"));
    }

    #[test]
    fn a_node_as_the_target_beside_another_choice_of_nodes_is_refused() {
        let choice = |words: &[&str]| {
            let words = ["viptrace", "check"].iter().chain(words);
            match Plugin::try_parse_from(words).unwrap().verb {
                Verb::Check(args) => args.nodes.fits(args.target.as_deref()),
                other => panic!("{other:?}"),
            }
        };
        let refused = choice(&["node/worker-1", "--all-nodes"]).unwrap_err();
        assert_eq!(refused, "node/worker-1 chooses one node and --all-nodes others: leave out one of them");
        assert!(choice(&["no/worker-1", "--client", "pod/shop/web-0"]).unwrap_err().contains("--client"));
        for accepted in [&["node/worker-1"][..], &["node/a", "--node", "b"], &["shop/cart", "--all-nodes"]] {
            choice(accepted).unwrap();
        }
    }

    #[test]
    fn a_namespace_beside_a_target_without_one_is_refused() {
        let fitting = |words: &[&str]| {
            let words = ["viptrace", "trace", "-n", "shop"].iter().chain(words);
            let Plugin { verb, server, .. } = Plugin::try_parse_from(words).unwrap();
            match verb {
                Verb::Trace(args) => {
                    let FollowArgs { target, nodes, .. } = &args.followed;
                    fits_namespace(server.namespace.as_deref(), target.as_deref(), nodes)
                }
                other => panic!("{other:?}"),
            }
        };
        assert!(fitting(&["node/worker-1"]).unwrap_err().contains("write --node worker-1 -n shop"));
        assert!(fitting(&["10.96.0.10:53"]).unwrap_err().contains("-n has no effect with 10.96.0.10:53"));
        for accepted in [&["cart"][..], &["other/cart"], &[], &["10.96.0.10", "--client", "pod/web-0"]] {
            fitting(accepted).unwrap();
        }
    }

    #[test]
    fn nothing_is_watched_for_longer_than_the_pods_live() {
        let pods = PodArgs::default();
        pods.allow(None).unwrap();
        pods.allow(Some(Duration::from_mins(59))).unwrap();
        let refused = pods.allow(Some(Duration::from_hours(2))).unwrap_err();
        assert!(
            refused.contains("--duration 2 h 0 min is not shorter than --pod-deadline 1 h 0 min"),
            "{refused}"
        );
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for words in [
            &["trace", "--path", "10.0.1.2:40000", "--each"][..],
            &["trace", "--path", "10.0.1.2:40000", "--all"],
            &["trace", "--path", "10.0.1.2:40000", "--faults-only"],
            &["check", "--all-nodes", "--node", "a"],
            &["why", "shop/cart", "--probe-from", "pod/shop/a", "--node", "a"],
            &["replay", "x.viptrace", "--path", "10.0.1.2:40000", "--all"],
        ] {
            let error = Plugin::try_parse_from(["viptrace"].iter().chain(words)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn kubectls_flags_are_taken_before_and_after_the_verb() {
        let parse = |words: &[&str]| Plugin::try_parse_from(["viptrace"].iter().chain(words)).unwrap();
        let before = parse(&["--context", "lab", "-n", "shop", "trace", "cart"]);
        let after =
            parse(&["trace", "cart", "--context", "lab", "-n", "shop", "--as", "eve", "--as-group", "ops"]);
        assert_eq!(before.server.namespace, after.server.namespace);
        assert_eq!(after.server.access().user.as_deref(), Some("eve"));
        assert_eq!(after.server.access().groups, ["ops"]);
    }
}
