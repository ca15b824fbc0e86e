//! The steps that prepare a bare Debian, in order. A step is skipped if its result is already there.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::apt;
use crate::disk;
use crate::image::{self, Flavour};
use crate::kernels::{self, Kernel, SERIES, Series};
use crate::place::Place;
use crate::printer::{Outcome, Printer};
use crate::toolchain;

/// Prepares everything for `test`, `demo` and `shell`; `bench` adds its own packages.
pub(crate) fn everything(printer: &Printer) -> Result<()> {
    let place = Place::find()?;
    tools(printer, &place, &[apt::GUEST])?;
    kernels(printer, &place, &SERIES.iter().collect::<Vec<_>>())?;
    binaries(printer, &place)?;
    for series in SERIES {
        guest_image(printer, &place, series, Flavour::Lab)?;
    }
    Ok(())
}

/// Checks the disk space, and installs the packages (those of the build and the given ones) and bpf-linker.
pub(crate) fn tools(printer: &Printer, place: &Place, packages: &[&[&str]]) -> Result<()> {
    printer.step("disk space", || {
        let warm = place.toolchain().is_dir() && place.release("viptrace").is_file();
        let free = disk::require(&place.target, if warm { disk::WARM_BYTES } else { disk::COLD_BYTES })?;
        Ok(Outcome::Done(format!("{} free for {}", disk::gigabytes(free), place.target.display())))
    })?;
    self::packages(printer, &toolchain::packages().into_iter().chain(packages.concat()).collect::<Vec<_>>())?;
    printer.step("bpf-linker", || toolchain::ensure_bpf_linker(place))
}

pub(crate) fn packages(printer: &Printer, all: &[&str]) -> Result<()> {
    printer.step("packages", || apt::ensure(all))
}

pub(crate) fn kernels(printer: &Printer, place: &Place, all: &[&Series]) -> Result<()> {
    for series in all {
        printer.step(&format!("guest kernel {}", series.name), || kernels::ensure(place, series))?;
    }
    Ok(())
}

pub(crate) fn binaries(printer: &Printer, place: &Place) -> Result<()> {
    printer.step("binaries for the guests", || toolchain::build_binaries(place))
}

/// The unpacked kernel and the image for it.
pub(crate) fn guest_image(
    printer: &Printer,
    place: &Place,
    series: &Series,
    flavour: Flavour,
) -> Result<(Kernel, PathBuf)> {
    let kernel = Kernel::find(place, series)?;
    let mut image = None;
    printer.step(&format!("guest image for {}", series.name), || {
        let (path, outcome) = image::ensure(place, &kernel, flavour)?;
        image = Some(path);
        Ok(outcome)
    })?;
    Ok((kernel, image.context("the guest image was not made")?))
}
