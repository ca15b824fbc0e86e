//! The project's own tasks, `cargo xtask VERB`: set-up, test, demo, bench, fuzzing, a guest shell, packages.
//!
//! This file owns the command line and the exit status (0 done, 1 failed; clap's own 2 for usage). What a verb does
//! lives in its own file; nothing here starts a program.

mod apt;
mod bench;
mod call;
mod cpio;
mod demo;
mod disk;
mod dist;
mod event;
mod fuzz;
mod host_tests;
mod image;
mod kernels;
mod libraries;
mod matrix;
mod modules;
mod place;
mod printer;
mod replay;
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
    /// Install and build all that the other verbs need; a second run does nothing
    Setup,
    /// Formatting, lints, the host's tests, and every scenario in a guest of each kernel
    Test(test::Options),
    /// Break a Service in every way known and show what viptrace says about it
    Demo(demo::Options),
    /// Measure what tracing costs
    #[command(subcommand)]
    Bench(bench::What),
    /// Give every reader the inputs that a fuzzer makes up
    Fuzz(fuzz::Options),
    /// A shell in a guest, for looking around
    Shell(shell::Options),
    /// Fill target/dist with what a package holds: binary, man pages, completions, licence, checksums
    Dist,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let printer = Printer::new();
    let outcome = match &arguments.verb {
        Verb::Setup => setup::everything(&printer).map(|()| true),
        Verb::Test(options) => Ok(test::run(&printer, options)),
        Verb::Demo(options) => demo::run(&printer, options),
        Verb::Bench(what) => bench::run(&printer, what),
        Verb::Fuzz(options) => fuzz::run(&printer, options),
        Verb::Shell(options) => shell::run(&printer, options),
        Verb::Dist => dist::run(&printer).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            printer.error(&error);
            ExitCode::FAILURE
        }
    }
}
