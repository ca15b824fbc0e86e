//! The arguments of `viptrace replay`.

use std::{borrow::Cow, path::PathBuf};

use clap::{Args, ValueEnum as _};

use super::{EXIT_STATUS, REPLAY_EXAMPLES, ViewArgs, target, usage};
use crate::{
    called,
    class::Class,
    cli::selection::{FlowAddresses, Selection},
    report::{Form, ReplayOutput},
    time::when::When,
};

#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES, after_long_help = format!("{REPLAY_EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct ReplayArgs {
    /// Recordings of `viptrace trace --record FILE`, segments of agents, and folders of them; of one node or of several
    #[arg(value_name = "FILE|DIR", required = true)]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    wanted: WantedArgs,
    /// Instead of rows, print the way of this flow's packets: each sighting on every node, the rules that decided, and what
    /// was not seen; ADDRESSES as for --flow
    #[arg(long, value_name = "ADDRESSES", value_parser = FlowAddresses::parse, conflicts_with_all = ["flow", "output", "all", "faults_only", "each"], help_heading = "Output")]
    path: Option<FlowAddresses>,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    output: ReplayOutput,
    /// With -o parquet: the folder of the files flows.parquet and changes.parquet
    #[arg(long, value_name = "DIR", help_heading = "Output", required_if_eq("output", "parquet"))]
    out: Option<PathBuf>,
    #[command(flatten)]
    view: ViewArgs,
}

/// Which flows are shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Flows")]
struct WantedArgs {
    /// Only flows of this Service: NAMESPACE/SERVICE, or with a port NAMESPACE/SERVICE:PORT [default: the recorded trace's target]
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// Only flows of this client: NAMESPACE/NAME of a Pod, IP, IP:PORT or [IPv6]:PORT
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
    /// The namespace of SERVICE and of CLIENT, if they are bare names
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only this flow, by its addresses with ports: CLIENT or CLIENT,TO such as 10.0.1.2:40000,10.96.0.10:80
    #[arg(long, value_name = "ADDRESSES", value_parser = FlowAddresses::parse)]
    flow: Option<FlowAddresses>,
    /// Only flows of these classes, such as C20 or ok; separate several by commas
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = class)]
    class: Vec<Class>,
    /// Only flows that were open since then: 2026-01-02T10:00:00Z, "2026-01-02 10:00" or 10:00:30 in UTC, or 15m for so
    /// long before the recording's end
    #[arg(long, value_name = "TIME", value_parser = When::parse, allow_hyphen_values = true)]
    since: Option<When>,
    /// Only flows that began until then; TIME as for --since
    #[arg(long, value_name = "TIME", value_parser = When::parse, allow_hyphen_values = true)]
    until: Option<When>,
}

/// The options of `viptrace replay`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Files and folders.
    pub files: Vec<PathBuf>,
    pub selection: Selection,
    pub output: ReplayOutput,
    /// The folder of an export.
    pub out: Option<PathBuf>,
    /// Show the ways of the selected flows' packets.
    pub paths: bool,
    /// Of the rows, for an output that has them.
    pub form: Form,
}

impl ReplayArgs {
    /// Resolves the arguments to options; the error is a usage error.
    pub fn resolve(self) -> Result<ReplayOptions, clap::Error> {
        if let Some(why) = ignored(&self.view, self.output) {
            return Err(usage("replay", why));
        }
        let form = Form { replayed: true, ..self.view.form(self.output.rows()) };
        let mut selection = self.wanted.resolve()?;
        selection.flow = selection.flow.or(self.path);
        let paths = self.path.is_some();
        if self.out.is_some() && !matches!(self.output, ReplayOutput::Parquet) {
            let why = "--out names the folder of -o parquet; other outputs go to standard output: add > FILE";
            return Err(usage("replay", why.to_owned()));
        }
        Ok(ReplayOptions { files: self.paths, selection, output: self.output, out: self.out, paths, form })
    }
}

/// The reason why a flag for rows has no effect with this output, if one was given.
fn ignored(view: &ViewArgs, output: ReplayOutput) -> Option<String> {
    let has = match output {
        ReplayOutput::Table | ReplayOutput::Wide | ReplayOutput::Json | ReplayOutput::Yaml => return None,
        ReplayOutput::Story | ReplayOutput::Html => "has the failed flows by their causes",
        ReplayOutput::Pcapng => "has the recorded packets",
        ReplayOutput::Parquet => "has every flow",
        ReplayOutput::Counts => "judges no flow",
    };
    let flag = view.given(output == ReplayOutput::Parquet)?;
    let name = output.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    Some(format!("{flag} has no effect with -o {name}, which {has}: leave one of them out"))
}

impl WantedArgs {
    fn resolve(self) -> Result<Selection, clap::Error> {
        let namespace = self.namespace.as_deref();
        if namespace.is_some() && self.service.is_none() && self.client.is_none() {
            let why = "-n names the namespace of --service or of --client: add one of them";
            return Err(usage("replay", why.to_owned()));
        }
        let (service, port) = self.service.as_deref().map_or((None, None), service_and_port);
        let service = target("replay", service, namespace)?;
        if port.is_some() && service.as_ref().is_some_and(|target| target.service().is_none()) {
            let why = "--service takes the port of a Service or of an address";
            return Err(usage("replay", why.to_owned()));
        }
        let client = self.client.as_deref().map(of_client);
        let client = target("replay", client.as_deref(), namespace)?;
        if client.as_ref().is_some_and(|client| client.service().is_some()) {
            let why = "--client takes a Pod or an address: write pod/NAMESPACE/NAME or an IP address";
            return Err(usage("replay", why.to_owned()));
        }
        if let Some(namespace) = namespace {
            // It is that of one of the two, and the other one may have a name of its own.
            let named = || [&service, &client].into_iter().flatten();
            if named().all(|target| target.fits(namespace).is_err())
                && let Some(why) = named().find_map(|target| target.fits(namespace).err())
            {
                return Err(usage("replay", why));
            }
        }
        Ok(Selection {
            port_names: Vec::new(),
            target: service,
            port: port.map(str::to_owned),
            client,
            flow: self.flow,
            classes: self.class,
            since: self.since,
            until: self.until,
        })
    }
}

/// The Service and its port, as the column SERVICE has them; an address keeps its port.
fn service_and_port(text: &str) -> (Option<&str>, Option<&str>) {
    match text.rsplit_once(':') {
        Some((service, port))
            if !service.is_empty() && !port.is_empty() && !service.contains([':', '.', '[']) =>
        {
            (Some(service), Some(port))
        }
        _ => (Some(text), None),
    }
}

/// A client that is named as in the column CLIENT is a Pod.
fn of_client(text: &str) -> Cow<'_, str> {
    let is_address =
        text.contains([':', '[']) || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let has_kind = ["pod", "pods", "po", "service", "services", "svc"]
        .iter()
        .any(|kind| text.strip_prefix(kind).is_some_and(|rest| rest.starts_with('/')));
    if is_address || has_kind { text.into() } else { format!("pod/{text}").into() }
}

/// A class by its name, in either case.
fn class(text: &str) -> Result<Class, String> {
    let known = Class::ALL.iter().find(|class| class.id().eq_ignore_ascii_case(text.trim()));
    known.copied().ok_or_else(|| format!("{text:?} is no class: `{} explain` lists them", called::name()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Cli, Verb};

    fn options(words: &str) -> Result<ReplayOptions, clap::Error> {
        match Cli::try_parse_from(["viptrace", "replay", "x.viptrace"].into_iter().chain(words.split(' ')))?
            .verb
        {
            Verb::Replay(args) => args.resolve(),
            other => panic!("not a replay: {other:?}"),
        }
    }

    #[test]
    fn a_flag_for_rows_beside_an_output_without_them_is_a_usage_error_that_names_both() {
        for output in ["story", "html", "pcapng", "counts"] {
            for flag in ["--all", "--each", "--faults-only"] {
                let error = options(&format!("-o {output} {flag}")).unwrap_err();
                let expected = format!("{flag} has no effect with -o {output}, which ");
                assert_eq!(error.exit_code(), 2);
                assert!(error.to_string().contains(&expected), "{error}");
            }
            options(&format!("-o {output}")).unwrap();
        }
        for output in ["table", "wide", "json", "yaml"] {
            for flag in ["--all", "--each", "--faults-only"] {
                options(&format!("-o {output} {flag}")).unwrap();
            }
        }
        // Each flow is a row there, as these flags want it.
        options("-o parquet --out d --all --each").unwrap();
        let error = options("-o parquet --out d --faults-only").unwrap_err();
        assert!(error.to_string().contains("--faults-only has no effect with -o parquet"), "{error}");
    }

    #[test]
    fn a_namespace_that_names_nothing_is_a_usage_error() {
        for words in [
            "-n shop --client 10.244.1.7",
            "-n shop --client other/web-0",
            "-n shop --service svc/other/cart",
            "-n shop --service 10.96.0.10:53 --client 10.244.1.7",
        ] {
            let error = options(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words}");
            assert!(error.to_string().contains("-n "), "{error}");
        }
        for words in
            ["-n shop --service cart --client other/web-0", "-n shop --service cart --client 10.244.1.7"]
        {
            options(words).unwrap();
        }
    }
}
