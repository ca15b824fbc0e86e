//! The project's own tasks, `cargo xtask VERB`: set-up, test, demo, bench, fuzzing, a guest shell, a cluster,
//! manifests, packages.
//!
//! This file owns the command line and the exit status (0 success, 1 failure, 2 wrong usage, from clap). Each verb has
//! its own file; this one must not start a program.

mod apt;
mod bench;
mod call;
mod cluster;
mod cpio;
mod demo;
mod deploy;
mod disk;
mod dist;
mod event;
mod exports;
mod fuzz;
mod host_tests;
mod image;
mod kernels;
mod krew;
mod libraries;
mod matrix;
mod memory;
mod modules;
#[path = "../../tracer/build/object.rs"]
mod object;
mod oci;
mod package;
mod place;
mod portable;
mod printer;
mod replay;
mod report;
mod scoreboard;
mod scores;
mod setup;
mod shell;
mod stamp;
mod tally;
mod test;
mod toolchain;
mod vm;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::printer::Printer;

/// The project's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install and build everything that the other verbs need; a second run does nothing
    Setup,
    /// Check formatting and lints, run the host's tests, and run the scenarios in a guest of each kernel
    Test(test::Options),
    /// Break a Service in every known way and show viptrace's verdicts
    Demo(demo::Options),
    /// Count for each class how often it was caused, detected and missed; writes docs/scoreboard.md
    Scoreboard(scoreboard::Options),
    /// Measure the cost of tracing, replay and audit
    #[command(subcommand)]
    Bench(bench::What),
    /// Feed a fuzzer's inputs to every parser
    Fuzz(fuzz::Options),
    /// Open a shell in a guest
    Shell(shell::Options),
    /// Run a real Kubernetes with two nodes in guests, until Ctrl-C or for one command
    Cluster(cluster::Options),
    /// Serve discovery.k8s.io/v1 for an API server without it; `cluster` starts this
    #[command(name = cluster::slices::VERB, hide = true)]
    ServeSlices(cluster::slices::Options),
    /// Write the crates for a registry, with the built eBPF objects, and install viptrace from them without a BPF linker
    Package,
    /// Compile viptrace for macOS and Windows, where the plugin runs, without linking it
    Portable,
    /// Write deploy/viptrace.yaml from the chart
    Render,
    /// Fill target/dist with the contents of a package (static binary, man pages, completions, licence, checksums) and
    /// the container images as OCI archives, the plugin's archives with their krew manifest, and the crates
    Dist,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let printer = Printer::new();
    let outcome = match &arguments.verb {
        // The command's own exit status.
        Verb::Cluster(options) => return exit(&printer, cluster::run(&printer, options)),
        Verb::Setup => setup::everything(&printer).map(|()| true),
        Verb::Test(options) => Ok(test::run(&printer, options)),
        Verb::Demo(options) => demo::run(&printer, options),
        Verb::Scoreboard(options) => scoreboard::run(&printer, options),
        Verb::Bench(what) => bench::run(&printer, what),
        Verb::Fuzz(options) => fuzz::run(&printer, options),
        Verb::Shell(options) => shell::run(&printer, options),
        Verb::ServeSlices(options) => cluster::slices::serve(options).map(|()| true),
        Verb::Package => Ok(package::run(&printer)),
        Verb::Portable => Ok(portable::run(&printer)),
        Verb::Render => deploy::write_plain(&printer).map(|()| true),
        Verb::Dist => dist::run(&printer).map(|()| true),
    };
    exit(&printer, outcome.map(|good| if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

fn exit(printer: &Printer, outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        printer.error(&error);
        ExitCode::FAILURE
    })
}
