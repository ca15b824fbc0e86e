//! The command line: one file for each verb, and here the common parts: parsing, logging, errors and exit statuses.
//!
//! Exit status: 0 nothing broken, 1 could not run, 2 usage, 3 faults found, 4 nothing certainly broken in what could be
//! read, but it may be (checks), or a part is missing. A closed output is not a failure.

pub mod args;
mod capture;
pub(crate) mod check;
pub(crate) mod explain;
mod explain_pcap;
mod export;
mod hint;
pub mod kubectl;
mod pages;
mod path;
mod redact;
mod replay;
mod schema;
pub mod selection;
mod show;
mod stop;
pub mod target;
mod top;

// The verbs that attach to the kernel, and the sentence in their place.
#[cfg(target_os = "linux")]
mod agent;
#[cfg(any(test, not(target_os = "linux")))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
pub(crate) mod trace;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser as _;

use hint::ResultExt;

use crate::{
    called,
    cli::args::{Cli, Global, Verb},
    diagnosis::triage::State,
    error::sentence,
    plugin::guard,
    recording::is_irregular,
    report::{OutputError, Printer, Verbosity},
};

/// The result of a verb that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No fault was found.
    Clean,
    /// The verb ran, and its result is that tracing cannot run here.
    Unable,
    /// Faults were found.
    Faults,
    /// No fault was found in what could be read, but a part of the recording, or a fact that a check needs, could not
    /// be read; or something may be broken now.
    Incomplete,
}

impl Outcome {
    /// Of a check. A script that reads only the status must not take what may be broken for healthy.
    fn of(state: State, is_possibly_broken: bool) -> Self {
        match state {
            State::Broken => Self::Faults,
            State::Unknown => Self::Incomplete,
            State::Warnings if is_possibly_broken => Self::Incomplete,
            State::Warnings | State::Healthy => Self::Clean,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Clean => Self::SUCCESS,
            Outcome::Unable => Self::from(1),
            Outcome::Faults => Self::from(3),
            Outcome::Incomplete => Self::from(4),
        }
    }
}

/// Runs the command with these arguments, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<_> = args.into_iter().collect();
    let name = args.first().map(Path::new).and_then(Path::file_stem).and_then(OsStr::to_str);
    match name {
        Some("kubectl-viptrace") => return kubectl::run(args),
        Some(kubectl::COMPLETER) => return kubectl::complete(args),
        // The guard is the same program without another name.
        _ if args.get(1).is_some_and(|word| word == guard::VERB) => return kubectl::run(args),
        _ => {}
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let verbosity = cli.global.verbosity();
    let printer = Printer::new(verbosity, cli.global.color);
    log_to_stderr(verbosity);

    match run_verb(cli.verb, printer) {
        Ok(result) => end(result, &cli.global),
        Err(error) => usage(&error),
    }
}

/// Runs a verb; the outer error is a usage error. The verbs that observe the node on which they run do so on Linux.
fn run_verb(verb: Verb, printer: Printer) -> Result<anyhow::Result<Outcome>, clap::Error> {
    Ok(match verb {
        Verb::Replay(args) => replay::run(&args.resolve()?, printer),
        Verb::Redact(args) => redact::run(&args, printer),
        Verb::Top(args) if args.has_recording() => top::recording(&args.resolve_recording()?, printer),
        Verb::Check(args) if args.has_folder() => check::audit::run(&args.resolve()?, printer),
        Verb::Path(args) if args.has_folder() => path::run(&args.resolve()?, printer),
        Verb::Explain(args) => explain::run(&args, printer),
        Verb::ExplainPcap(args) => explain_pcap::run(&args.resolve(), printer),
        Verb::Schema(args) => schema::run(&args, printer),
        Verb::Pages(args) => pages::run(&args),
        #[cfg(not(target_os = "linux"))]
        verb => elsewhere::refuse(&verb),
        #[cfg(target_os = "linux")]
        Verb::Trace(args) => trace::run(&args.resolve()?, printer),
        #[cfg(target_os = "linux")]
        Verb::Top(args) => top::trace(&args.resolve()?, printer),
        #[cfg(target_os = "linux")]
        Verb::Agent(args) => agent::run(&args, printer),
        #[cfg(target_os = "linux")]
        Verb::Check(args) if args.kernel => check::kernel::run(args.attach.into(), printer),
        #[cfg(target_os = "linux")]
        Verb::Check(args) => check::audit::run(&args.resolve()?, printer),
        #[cfg(target_os = "linux")]
        Verb::Path(args) => path::run(&args.resolve()?, printer),
        #[cfg(target_os = "linux")]
        Verb::Capture(args) => capture::run(&args.resolve(), printer),
        #[cfg(target_os = "linux")]
        Verb::Node(args) => node::run(&args),
    })
}

/// The exit status of a verb, once its error is printed.
fn end(result: anyhow::Result<Outcome>, global: &Global) -> ExitCode {
    match result {
        Ok(outcome) => outcome.into(),
        Err(error) if is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Some mistakes show only beside the recording.
            if let Some(error) = error.downcast_ref() {
                return usage(error);
            }
            let mut printer = Printer::new(global.verbosity(), global.color);
            printer.error(&sentence(&*error), hint::hint(&error).as_deref());
            ExitCode::from(1)
        }
    }
}

/// Runs a verb's work on this thread, beside so many others. What still hangs at its end, such as a read of the node or of
/// standard input, is abandoned.
fn block_on<T>(others: usize, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(others)
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Prints help, version or a usage error.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        return ExitCode::from(2);
    }
    match printed.map_err(OutputError::from) {
        Ok(()) | Err(OutputError::Closed) => ExitCode::SUCCESS,
        Err(OutputError::Io(_)) => ExitCode::from(1),
    }
}

/// Opens a recording that is read from one file. `place` begins the error.
fn recording_file(path: &Path, place: impl Fn() -> String) -> anyhow::Result<File> {
    if is_irregular(path) {
        return Err(anyhow::anyhow!("{}: it is not a regular file", place()))
            .hint(|| "store the recording in a file first".to_owned());
    }
    File::open(path).with_context(place).hint(called::source_of_recordings)
}

fn is_closed_output(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(OutputError::Closed)))
}

/// Writes the libraries' log lines if the user requested them; `VIPTRACE_LOG` overrides (`kube=debug`).
fn log_to_stderr(verbosity: Verbosity) {
    let default = match verbosity {
        Verbosity::Quiet | Verbosity::Normal => "off",
        Verbosity::Verbose => "warn,viptrace=info",
        Verbosity::Debug => "info,viptrace=debug,kube=debug",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("VIPTRACE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // A second call in one process (tests) keeps the first log.
    let _ = subscriber.try_init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_closed_pipe_is_found_anywhere_in_the_chain() {
        let error = anyhow::Error::new(OutputError::Closed).context("print the summary");
        assert!(is_closed_output(&error));
        let kube = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(!is_closed_output(&anyhow::Error::new(kube)));
    }
}
