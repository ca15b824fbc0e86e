//! `cargo xtask shell`: runs a guest with a shell on this terminal.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::apt;
use crate::image::{Flavour, SHELL_INIT_PATH};
use crate::kernels::{self, Series};
use crate::place::Place;
use crate::printer::Printer;
use crate::setup;
use crate::vm::{self, Console, Guest};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The guest's kernel
    #[arg(long, value_name = "SERIES", value_parser = kernels::parse, default_value = kernels::DEFAULT)]
    kernel: &'static Series,
}

/// Runs the shell until its user leaves it. Returns false if QEMU failed.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<bool> {
    let place = Place::find()?;
    setup::tools(printer, &place, &[apt::GUEST])?;
    setup::kernels(printer, &place, &[options.kernel])?;
    setup::binaries(printer, &place)?;
    let (kernel, image) = setup::guest_image(printer, &place, options.kernel, Flavour::Lab)?;
    let guest = Guest {
        name: options.kernel.name.to_owned(),
        kernel,
        image,
        emulator: vm::QEMU.into(),
        parameters: vec![format!("rdinit={SHELL_INIT_PATH}")],
        counted: false,
        console: Console::Raw,
        limit: Duration::MAX,
        silence: Duration::MAX,
        output: place.guest_output(options.kernel.name),
    };
    // Control keys go to the guest; Ctrl-A X ends QEMU.
    let serial = [OsString::from("mon:stdio"), OsString::from("null")];
    let status = std::process::Command::new(vm::QEMU)
        .args(vm::arguments(&guest, serial))
        .status()
        .with_context(|| format!("could not start `{}`\nhint: type: cargo xtask setup", vm::QEMU))?;
    Ok(status.success())
}
