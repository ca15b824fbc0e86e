//! The command line: its arguments, their help texts, and the options that they resolve to.

mod agent;
mod check;
mod explain_pcap;
mod path;
mod redact;
mod replay;
mod source;

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::{
    ArgAction, Args, CommandFactory, Parser, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
};

pub(crate) use crate::cli::explain::ExplainArgs;
pub(crate) use agent::{AgentArgs, AgentVerb, StreamArgs};
pub(crate) use check::{CaptureArgs, CaptureOptions, CheckArgs, CheckOptions, PagesArgs, Record, SchemaArgs};
pub(crate) use explain_pcap::{ExplainPcapArgs, ExplainPcapOptions};
pub(crate) use path::{PathArgs, PathOptions};
pub(crate) use redact::RedactArgs;
pub use replay::{ReplayArgs, ReplayOptions};
pub(crate) use source::ClusterSource;
use source::SourceArgs;
pub(crate) use source::own_name;

use crate::{
    cli::{
        selection::{FlowAddresses, Selection},
        target::Target,
    },
    kernel::plan::Tiers,
    parse::units,
    report::{Form, Output, Verbosity, View, printer::ColorChoice},
    sighting::Hook,
};

const EXIT_STATUS: &str = "Exit status:
  0  nothing broken was found; the output names what could not be observed
  1  could not run
  2  wrong usage
  3  faults found
  4  nothing broken was found for certain, but something may be broken (check),
     or a part that matters could not be read (check: Services, endpoints,
     rules; replay: the recording)";

const TRACE_EXAMPLES: &str = "Examples:
  viptrace trace                          every Service on this node
  viptrace trace shop/cart                one Service
  viptrace trace -n shop cart             the same
  viptrace trace pod/shop/cart-0          every flow of one Pod
  viptrace trace 10.96.0.10:53            one address and port
  viptrace trace --duration 30s -o json   faults as records, for half a minute
  viptrace trace --cluster-from dump/     with saved lists, not the API server
  viptrace trace --record incident.viptrace
                                          recorded, for viptrace replay
  viptrace trace --path 10.244.1.7:40000  the way of one connection's packets

To see a Service fail, connect to it while the trace runs: decisions taken
before the trace started are not observed.";

const TOP_EXAMPLES: &str = "Examples:
  viptrace top                                  every Service on this node
  viptrace top shop/cart                        one Service
  viptrace top --recording incident.viptrace    an incident, afterwards

Keys: arrows select, Enter opens a flow's evidence or a Service's flows, Tab changes the list, q ends.";

const REPLAY_EXAMPLES: &str = "Examples:
  viptrace replay incident.viptrace                the verdicts of the trace
  viptrace replay worker-1/ worker-2/ -o story     what happened, on one screen
  viptrace replay worker-1/ --since 10m            the last ten minutes
  viptrace replay incident.viptrace -o json --all  every flow as a record
  viptrace replay incident.viptrace -o html > report.html
                                                   a report to send
  viptrace replay incident.viptrace -o pcapng > packets.pcapng
                                                   packets, for Wireshark
  viptrace replay incident.viptrace -o parquet --out incident/
                                                   tables, for DuckDB";

/// With `--hooks failures`, one of so many healthy connections has a record.
const SAMPLE: u32 = 100;

/// The version, and which eBPF object the program has (`build.rs`).
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\neBPF object: ", env!("VIPTRACE_BPF_ORIGIN"));

/// Finds the hop that broke a Kubernetes Service
///
/// viptrace observes how this node's kernel handles connections to Services (NAT, conntrack, resets, drops), joins each
/// decision with the cluster's objects of that moment, and names the cause with its evidence, or reports that it cannot.
/// It only reads: it changes neither the node nor the cluster.
#[derive(Debug, Parser)]
#[command(name = "viptrace", version, long_version = LONG_VERSION, after_help = EXIT_STATUS, max_term_width = 100)]
#[command(subcommand_required = true)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
    #[command(flatten)]
    pub global: Global,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Watch the connections to Services on this node and judge each
    Trace(Box<TraceArgs>),
    /// Watch them on a screen: the Services by failures, the latest failed flows, the evidence of each
    Top(Box<TopArgs>),
    /// Judge the connections on this node for months: failures always, figures for Prometheus, the last hours on disk
    Agent(Box<AgentArgs>),
    /// Judge a recording of `viptrace trace --record`, on any machine
    Replay(Box<ReplayArgs>),
    /// Copy a recording with other names and addresses, to attach it to an issue
    Redact(RedactArgs),
    /// Find what is wrong with Services on this node without any traffic, or whether tracing can run
    Check(Box<CheckArgs>),
    /// Show the way of a packet through this node's rules, without sending it
    Path(Box<PathArgs>),
    /// Save everything that a check reads in a folder, for check --from on any machine
    Capture(CaptureArgs),
    /// Explain a class of the verdicts: its mechanism, how it is recognised, what to do
    Explain(ExplainArgs),
    /// Give the connections of a packet capture the verdicts of recordings, packets seen twice counted once
    #[command(name = "explain-pcap")]
    ExplainPcap(ExplainPcapArgs),
    /// Print the JSON Schema of the records that -o json and -o yaml write
    Schema(SchemaArgs),
    /// Write the man pages and shell completions, for a package
    #[command(hide = true)]
    Pages(PagesArgs),
    /// Do what the plugin requests on standard input
    #[command(hide = true)]
    Node(NodeArgs),
}

/// Flags of every verb.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub struct Global {
    /// Print only errors on standard error; standard output stays as it is
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Report each step; twice to include the libraries' messages
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

impl Global {
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) => Verbosity::Normal,
            (false, 1) => Verbosity::Verbose,
            (false, _) => Verbosity::Debug,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES, after_long_help = format!("{TRACE_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct TraceArgs {
    /// Only flows of this Service, Pod or address: NAMESPACE/SERVICE, pod/NAMESPACE/NAME, IP, IP:PORT or [IPv6]:PORT
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// The namespace of TARGET, if TARGET is a bare name
    #[arg(short, long, value_name = "NAMESPACE", requires = "target")]
    namespace: Option<String>,

    #[command(flatten)]
    shown: ShownArgs,
    /// Instead of rows, print the way of this flow's packets once the flow is judged: each sighting on this node, the rules
    /// that decided, and what was not seen; ADDRESSES is CLIENT or CLIENT,TO such as 10.0.1.2:40000,10.96.0.10:80
    #[arg(long, value_name = "ADDRESSES", value_parser = FlowAddresses::parse, conflicts_with_all = ["output", "all", "faults_only", "each"], help_heading = "Output")]
    path: Option<FlowAddresses>,

    #[command(flatten)]
    run: RunArgs,
}

/// The flags of a trace that a recording has no use for.
const ATTACHING: [&str; 15] = [
    "duration",
    "ready_file",
    "record",
    "force",
    "kubeconfig",
    "context",
    "cluster_from",
    "node",
    "grace",
    "hooks",
    "sample",
    "attach",
    "without_hook",
    "max_flows",
    "buffer",
];

/// A screen of the Services and the latest failed flows.
#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES, after_long_help = format!("{TOP_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct TopArgs {
    /// Only flows of this Service, Pod or address, as for `viptrace trace`
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// The namespace of TARGET, if TARGET is a bare name
    #[arg(short, long, value_name = "NAMESPACE", requires = "target")]
    namespace: Option<String>,
    /// Show a recording of `viptrace trace --record`, on any machine, and attach nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ATTACHING)]
    recording: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

/// How to trace.
#[derive(Debug, Args)]
struct RunArgs {
    /// Stop after this time, such as 30s or 5m; without it, Ctrl-C stops
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, help_heading = "Run")]
    duration: Option<Duration>,
    /// Write this file when every hook is attached and the metadata is complete: the trace observes everything from then on
    #[arg(long, value_name = "PATH", help_heading = "Run")]
    ready_file: Option<PathBuf>,
    /// Record everything that the trace receives in this file, for `viptrace replay`. Only its owner may read it: it names
    /// Pods and their peers
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    record: Option<PathBuf>,
    /// With --record: overwrite the file
    #[arg(long, help_heading = "Run", requires = "record")]
    force: bool,

    #[command(flatten)]
    source: SourceArgs,
    /// How long kube-proxy may take to write a change before its rules count as wrong; by default 5s, or longer if its
    /// configuration or its metrics show a slower pace
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "Run")]
    grace: Option<Duration>,

    /// Which kernel hooks to attach
    #[arg(long, value_name = "SET", default_value = "full", help_heading = "Kernel")]
    hooks: Hooks,
    /// With --hooks failures: report one of N healthy connections, chosen by the client's address and port; 0 for none
    /// [default: 100]
    #[arg(long, value_name = "N", help_heading = "Kernel")]
    sample: Option<u32>,
    /// How to reach kernel functions
    #[arg(long, value_name = "TIER", default_value = "auto", help_heading = "Kernel")]
    attach: Attach,
    /// Do not attach this kernel hook, by its name in `viptrace check --kernel`; verdicts that need it name the gap. Can be
    /// repeated
    #[arg(long, value_name = "HOOK", value_parser = hook(), hide_possible_values = true, help_heading = "Kernel")]
    without_hook: Vec<Hook>,
    /// Flows kept in memory; the oldest half-open ones beyond it are dropped and counted
    #[arg(long, value_name = "COUNT", default_value = "65536", value_parser = max_flows, help_heading = "Kernel")]
    max_flows: usize,
    /// The size of the buffer between kernel and viptrace; a larger one loses fewer events in bursts
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = units::size, help_heading = "Kernel")]
    buffer: usize,
}

/// How verdicts are written, and which.
#[derive(Debug, Args)]
pub(crate) struct ShownArgs {
    /// How to print verdicts
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    output: Output,
    #[command(flatten)]
    view: ViewArgs,
}

/// Which verdicts are written.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// Show every flow, the healthy and normal ones (N…) too; by default tables only count the healthy ones
    #[arg(long, help_heading = "Output", conflicts_with = "faults_only")]
    all: bool,
    /// Show only flows that are faulty or unexplained
    #[arg(long, help_heading = "Output")]
    faults_only: bool,
    /// Show each failed flow on a line of its own; by default tables show those of one cause on one line with their count
    #[arg(long, help_heading = "Output")]
    each: bool,
}

impl ShownArgs {
    pub(crate) fn form(&self) -> Form {
        self.view.form(self.output)
    }
}

impl ViewArgs {
    /// The first of these flags that was given. With `each_is_a_row`, those that add rows have what they want.
    fn given(&self, each_is_a_row: bool) -> Option<&'static str> {
        let more = [("--all", self.all && !each_is_a_row), ("--each", self.each && !each_is_a_row)];
        let flags = [("--faults-only", self.faults_only)].into_iter().chain(more);
        flags.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
    }

    pub(crate) fn form(&self, output: Output) -> Form {
        let view = match (self.all, self.faults_only) {
            (true, _) => View::All,
            (false, true) => View::FaultsOnly,
            (false, false) => View::Default,
        };
        Form { output, view, each: self.each, ..Form::default() }
    }
}

/// The only target of a verb, or an error of that verb's usage.
fn only_target(
    verb: &str,
    text: Option<&str>,
    namespace: Option<&str>,
) -> Result<Option<Target>, clap::Error> {
    let target = target(verb, text, namespace)?;
    if let (Some(target), Some(namespace)) = (&target, namespace) {
        target.fits(namespace).map_err(|why| usage(verb, why))?;
    }
    Ok(target)
}

/// The target of a verb, or an error of that verb's usage.
fn target(verb: &str, text: Option<&str>, namespace: Option<&str>) -> Result<Option<Target>, clap::Error> {
    let Some(text) = text else { return Ok(None) };
    Target::parse(text, namespace).map(Some).map_err(|why| usage(verb, why))
}

/// An error of this verb's usage.
pub(crate) fn usage(verb: &str, why: String) -> clap::Error {
    let mut command = Cli::command();
    command.build();
    match command.find_subcommand_mut(verb) {
        Some(verb) => verb.error(ErrorKind::ValueValidation, why),
        None => command.error(ErrorKind::ValueValidation, why),
    }
}

/// Where to record a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    pub path: PathBuf,
    /// Whether to overwrite an existing file.
    pub force: bool,
}

/// A set of kernel hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Hooks {
    /// All: failures, new connections, socket states, ends
    #[default]
    Full,
    /// Failing connections and a sample of the others (--sample); the kernel counts all. The cheapest: for a busy node
    Failures,
    /// New connections and failures only: cheaper, without connect times and without the ends of healthy flows
    Lean,
}

/// How programs attach to kernel functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// Each function by fentry where this kernel allows it, else by a kprobe
    #[default]
    Auto,
    /// By fentry only: a function without fentry is not observed
    Fentry,
    /// By kprobes only
    Kprobe,
}

impl From<Attach> for Tiers {
    fn from(attach: Attach) -> Self {
        match attach {
            Attach::Auto => Self::Auto,
            Attach::Fentry => Self::Fentry,
            Attach::Kprobe => Self::Kprobe,
        }
    }
}

/// The options of `viptrace trace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    pub target: Option<Target>,
    /// The flow whose way is printed instead of rows.
    pub path: Option<FlowAddresses>,
    pub form: Form,
    pub duration: Option<Duration>,
    pub ready_file: Option<PathBuf>,
    pub record: Option<RecordOptions>,
    pub cluster: ClusterSource,
    /// This node's name in Kubernetes, if known; the object list may show that there is no such node.
    pub node: Option<String>,
    /// `None`: as kube-proxy's pace requires.
    pub grace: Option<Duration>,
    pub hooks: Hooks,
    /// One of so many healthy connections has a record where only failures have; 0 for none.
    pub sample: u32,
    /// Decisions that the kernel keeps where only failures have records; `None`: as many as by default.
    pub decisions: Option<u32>,
    pub attach: Attach,
    pub without_hooks: Vec<Hook>,
    pub max_flows: usize,
    /// In bytes, before rounding to a valid size.
    pub buffer_bytes: usize,
}

impl TraceArgs {
    /// Resolves the arguments to options; the error is a usage error.
    pub fn resolve(self) -> Result<TraceOptions, clap::Error> {
        let target = only_target("trace", self.target.as_deref(), self.namespace.as_deref())?;
        let mut form = self.shown.form();
        if self.path.is_some() {
            // Texts one after the other, and no table that is updated in place.
            form.output = Output::Wide;
        }
        Ok(TraceOptions { path: self.path, ..self.run.resolve("trace", target, form)? })
    }
}

impl TopArgs {
    /// Whether it shows a recording, and needs no kernel.
    pub(crate) fn has_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Resolves the arguments to the options of a replay; the error is a usage error.
    pub(crate) fn resolve_recording(self) -> Result<ReplayOptions, clap::Error> {
        let target = only_target("top", self.target.as_deref(), self.namespace.as_deref())?;
        let files = self.recording.into_iter().collect();
        Ok(ReplayOptions { files, selection: Selection::of(target), ..ReplayOptions::default() })
    }

    /// Resolves the arguments to the options of a trace; the error is a usage error.
    pub(crate) fn resolve(self) -> Result<TraceOptions, clap::Error> {
        let target = only_target("top", self.target.as_deref(), self.namespace.as_deref())?;
        self.run.resolve("top", target, Form::default())
    }
}

impl RunArgs {
    /// The error is one of this verb's usage.
    fn resolve(self, verb: &str, target: Option<Target>, form: Form) -> Result<TraceOptions, clap::Error> {
        if self.sample.is_some() && self.hooks != Hooks::Failures {
            return Err(usage(
                verb,
                "--sample is for --hooks failures: other sets report every connection".to_owned(),
            ));
        }
        let force = self.force;
        let (cluster, node) = self.source.resolve();
        Ok(TraceOptions {
            target,
            path: None,
            form,
            duration: self.duration,
            ready_file: self.ready_file,
            record: self.record.map(|path| RecordOptions { path, force }),
            cluster,
            node: node.or_else(own_name),
            grace: self.grace,
            hooks: self.hooks,
            sample: self.sample.unwrap_or(SAMPLE),
            decisions: None,
            attach: self.attach,
            without_hooks: self.without_hook,
            max_flows: self.max_flows,
            buffer_bytes: self.buffer,
        })
    }
}

/// The arguments of what the plugin runs on a node.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Only wait until standard input ends
    #[arg(long)]
    pub hold: bool,
    /// Only connect to these addresses, and leave the results as the container's termination message
    #[arg(long, value_name = "IP:PORT,…", value_delimiter = ',', conflicts_with = "hold")]
    pub connect: Vec<SocketAddr>,
}

/// A hook by its kernel name.
fn hook() -> impl TypedValueParser<Value = Hook> {
    let names = PossibleValuesParser::new(Hook::ALL.iter().map(|hook| hook.symbol()));
    names.try_map(|name| Hook::from_symbol(&name).ok_or("no such hook"))
}

/// The limit of `--max-flows`.
fn max_flows(text: &str) -> Result<usize, String> {
    const RANGE: RangeInclusive<usize> = 16..=16_777_216;
    let count = text.parse().ok().filter(|count| RANGE.contains(count));
    count.ok_or_else(|| format!("write a number from {} to {}", RANGE.start(), RANGE.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<TraceOptions, clap::Error> {
        let args = ["viptrace", "trace"].iter().chain(args);
        match Cli::try_parse_from(args)?.verb {
            Verb::Trace(args) => args.resolve(),
            other => panic!("not a trace: {other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let options = options(&["--node", "worker-1"]).unwrap();
        assert_eq!(options.target, None);
        assert_eq!(options.form.view, View::Default);
        assert_eq!(options.form.output, Output::Table);
        assert_eq!(options.grace, None);
        assert_eq!(options.cluster, ClusterSource::Api { kubeconfig: None, context: None });
        assert_eq!((options.max_flows, options.buffer_bytes), (65536, 8 << 20));
        assert_eq!(options.node.as_deref(), Some("worker-1"));
    }

    #[test]
    fn everything_at_once() {
        let options = options(&[
            "cart",
            "-n",
            "shop",
            "-o",
            "json",
            "--all",
            "--duration",
            "1m30s",
            "--ready-file",
            "/run/ready",
            "--cluster-from",
            "dump",
            "--grace",
            "0s",
            "--hooks",
            "lean",
            "--max-flows",
            "100",
            "--buffer",
            "1M",
        ])
        .unwrap();
        assert_eq!(options.target.unwrap().to_string(), "service/shop/cart");
        assert_eq!(options.form.view, View::All);
        assert_eq!(options.duration, Some(Duration::from_secs(90)));
        assert_eq!(options.cluster, ClusterSource::Folder("dump".into()));
        assert_eq!(options.hooks, Hooks::Lean);
    }

    #[test]
    fn contradictions_and_nonsense_are_usage_errors() {
        for args in [
            &["--all", "--faults-only"][..],
            &["--cluster-from", "d", "--context", "c"],
            &["--duration", "0s"],
            &["--duration", "soon"],
            &["-n", "shop"],
            &["cart"],
            &["--max-flows", "0"],
            &["--buffer", "1"],
            &["-q", "-v"],
            &["a", "b"],
            &["--force"],
            &["-n", "shop", "pod/other/cart-0"],
            &["-n", "shop", "svc/other/cart"],
            &["-n", "shop", "10.96.0.10:53"],
            &["--path", "10.0.1.2:40000", "--each"],
            &["--path", "10.0.1.2:40000", "-o", "json"],
            &["--sample", "5"],
            &["--hooks", "lean", "--sample", "0"],
        ] {
            let error = options(args).unwrap_err();
            assert!(error.use_stderr(), "{args:?}");
        }
        assert_eq!(
            options(&["-n", "shop", "pod/shop/cart-0"]).unwrap().target.unwrap().to_string(),
            "pod/shop/cart-0"
        );
        assert_eq!(options(&["--hooks", "failures", "--sample", "5"]).unwrap().sample, 5);
        assert_eq!(options(&["--hooks", "failures"]).unwrap().sample, 100);
    }

    #[test]
    fn a_recording_on_the_screen_has_no_use_for_the_flags_of_a_trace() {
        let parse = |more: &[&str]| {
            let words = ["viptrace", "top", "--recording", "x.viptrace"];
            Cli::try_parse_from(words.iter().chain(more)).map(drop)
        };
        parse(&["shop/cart"]).unwrap();
        for more in [
            &["--duration", "5s"][..],
            &["--hooks", "full"],
            &["--kubeconfig", "k"],
            &["--cluster-from", "d"],
            &["--node", "n"],
            &["--buffer", "1M"],
            &["--force"],
        ] {
            assert_eq!(parse(more).unwrap_err().exit_code(), 2, "{more:?}");
        }
    }
}
