//! `cargo xtask demo`: boots a guest that breaks a Service in each known way, and shows viptrace's verdicts live.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::apt;
use crate::image::Flavour;
use crate::kernels::{self, Series};
use crate::place::Place;
use crate::printer::{Printer, seconds};
use crate::setup;
use crate::vm::{self, Console, Ending, Guest};

const LIMIT: Duration = Duration::from_mins(20);
const SILENCE: Duration = Duration::from_mins(4);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The guest's kernel
    #[arg(long, value_name = "SERIES", value_parser = kernels::parse, default_value = kernels::DEFAULT)]
    kernel: &'static Series,
}

/// Runs the demo. Returns false if an expected verdict is missing.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<bool> {
    let place = Place::find()?;
    let series = options.kernel;
    setup::tools(printer, &place, &[apt::GUEST])?;
    setup::kernels(printer, &place, &[series])?;
    setup::binaries(printer, &place)?;
    let (kernel, image) = setup::guest_image(printer, &place, series, Flavour::Lab)?;
    printer.say(&format!("==> demo on {} (plain emulation; it boots in a few seconds)", kernel.release));
    let guest = Guest {
        name: format!("{} (demo)", series.name),
        kernel,
        image,
        emulator: vm::QEMU.into(),
        parameters: vec!["lab.mode=demo".to_owned()],
        counted: false,
        console: Console::Raw,
        limit: LIMIT,
        silence: SILENCE,
        output: place.guest_output(&format!("{}-demo", series.name)),
    };
    let run = vm::run(printer, &guest, |_| {})?;
    let took = seconds(run.took);
    match run.ending {
        Ending::Done(0) => {
            printer.say(&format!("==> demo: viptrace reported every expected verdict ({took})"));
            Ok(true)
        }
        Ending::Done(exit) => {
            printer.say(&format!(
                "==> demo: an expected verdict is missing (exit status {exit}, {took}); logs: {}",
                guest.output.display()
            ));
            Ok(false)
        }
        Ending::Died(_) | Ending::Stopped(_) => {
            let tail = run.last_words();
            bail!(
                "the demo's guest failed after {took}: {}; the last lines of its console:{tail}\nhint: run it again; \
                 the whole console is in {}",
                run.ending,
                guest.output.join("console.log").display()
            )
        }
    }
}
