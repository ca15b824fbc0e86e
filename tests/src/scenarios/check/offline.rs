//! A check of a capture and a check of the node report the same, for a healthy and for a broken node.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};

use super::{Checked, capture, check, check_from};
use crate::{invocation::Invocation, world::Stage};

pub(in crate::scenarios) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let folder = Path::new("/tmp/captured");
    same(stage, folder)?;
    let manifest =
        fs::read_to_string(folder.join("viptrace-capture.json")).context("reading the manifest")?;
    for name in ["services.json", "iptables-nft-save.txt", "metrics.txt", "sysctl.txt"] {
        ensure!(manifest.contains(name), "{name} is not in the manifest: {manifest}");
    }

    // A capture replaces its own folder, and never a folder with other files.
    stage.kube_proxy.kill();
    same(stage, folder)?;
    fs::write(folder.join("precious.txt"), "x").context("writing beside the capture")?;
    let refused = capture(stage, folder)?;
    ensure!(refused.status == 1, "a folder with other files was overwritten: {refused:?}");
    ensure!(folder.join("precious.txt").exists() && folder.join("sysctl.txt").exists(), "files are gone");

    let missing = Invocation::start(&["check", "--from", "/run/lab-nowhere"])?.end(Duration::from_mins(1))?;
    ensure!(missing.status == 1, "a missing folder was checked: {missing:?}");
    Ok(())
}

/// Checks the node and a capture of it and compares the results.
fn same(stage: &Stage, folder: &Path) -> Result<()> {
    let taken = capture(stage, folder)?;
    ensure!(taken.status == 0, "the capture failed: {taken:?}");
    let (live, saved) = (check(stage, &[])?, check_from(folder)?);
    let findings = |checked: &Checked| checked.findings.clone();
    ensure!(
        findings(&live) == findings(&saved),
        "live {:#?}\nfrom the folder {:#?}",
        live.findings,
        saved.findings
    );
    ensure!(
        live.report["gaps"] == saved.report["gaps"],
        "gaps: live {}, from the folder {}",
        live.report["gaps"],
        saved.report["gaps"]
    );
    ensure!(live.ended.status == saved.ended.status, "the exit statuses differ");
    Ok(())
}
