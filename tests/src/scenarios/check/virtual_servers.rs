//! The IPVS state that the capture reads over generic netlink equals the output of `ipvsadm`.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use super::capture;
use crate::world::Stage;

pub(in crate::scenarios) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let folder = Path::new("/tmp/captured-servers");
    let taken = capture(stage, folder)?;
    ensure!(taken.status == 0, "the capture failed: {taken:?}");
    let manifest =
        fs::read_to_string(folder.join("viptrace-capture.json")).context("reading the manifest")?;
    ensure!(manifest.contains("generic netlink of IPVS"), "the manifest names another source: {manifest}");
    let read = fs::read_to_string(folder.join("ipvsadm-save.txt")).context("reading the servers")?;
    let printed = stage.world.topology.host.command("ipvsadm", &["-Sn"])?;
    let (read, printed) = (sorted(&read), sorted(&printed));
    ensure!(read.len() > 10, "too few servers: {read:?}");
    ensure!(read == printed, "read {read:#?}\nprinted {printed:#?}");
    Ok(())
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.sort_unstable();
    lines
}
