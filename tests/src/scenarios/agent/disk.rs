//! A disk that is full, or that cannot be written: the agent judges all the same, reports it, and records again once it can.

use std::fs;

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use super::{REFUSED, all_of, expect_faults, expect_stored, fresh, refused, stop, traffic};
use crate::{agent::Agent, sys, world::Stage};

/// The disk is full from the start and has room later: the agent judges all the same, reports it and records again.
pub(in crate::scenarios) fn full(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let folder = fresh("/tmp/small")?;
    sys::mount_with("tmpfs", &folder, "size=4m").context("mounting a small file system")?;
    let unmounted = folder.clone();
    stage.break_with(|_| Ok(()), move |_| sys::unmount(&unmounted).context("unmounting it"))?;
    let filler = folder.join("filler");
    fs::write(&filler, vec![1; 4 << 20]).or_else(|error| {
        // The disk is to be full.
        if error.raw_os_error() == Some(28) { Ok(()) } else { Err(error) }
    })?;
    let agent = Agent::start(&stage.kubeconfig()?, &folder.join("segments"), "")?;
    Agent::wait_for("viptrace_recorder_failures_total", &[], 1)?;
    traffic(stage)?;
    expect_faults("api", Class::C28, REFUSED)?;
    ensure!(Agent::sum("viptrace_recorder_up", &[])? == 0, "the recorder writes to a full disk");
    fs::remove_file(&filler).context("making room")?;
    Agent::wait_for("viptrace_recorder_up", &[], 1)?;
    let ended = stop(agent)?;
    ensure!(
        ended.stderr.contains("No space left on device"),
        "the log does not name the disk: {}",
        ended.stderr
    );
    ensure!(!Agent::stored(&folder.join("segments"))?.is_empty(), "nothing was recorded once there was room");
    Ok(())
}

/// The file system is read-only when the agent starts, and again while a segment is open.
///
/// The kernel refuses to remount a file system with a file that is open for writing (`sb_prepare_remount_readonly`,
/// `fs/namespace.c`), and only an error of the disk forces it. A read-only file system that covers the folder has the same
/// effect on the next segment.
pub(in crate::scenarios) fn read_only(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let folder = fresh("/tmp/small")?;
    let (below, above) = (folder.clone(), folder.clone());
    stage.break_with(
        move |_| sys::mount_with("tmpfs", &below, "ro,size=8m").context("mounting a read-only file system"),
        move |_| sys::unmount(&above).context("unmounting it"),
    )?;
    let agent = Agent::start(&stage.kubeconfig()?, &folder, "")?;
    expect_unwritable()?;
    let mut faults = traffic(stage)?.len();
    expect_faults("api", Class::C28, REFUSED)?;
    sys::remount_writable(&folder).context("making the file system writable")?;
    Agent::wait_for("viptrace_recorder_up", &[], 1)?;

    let failures = Agent::sum("viptrace_recorder_failures_total", &[])?;
    sys::mount_with("tmpfs", &folder, "ro").context("covering the folder")?;
    // The open segment ends by its age.
    Agent::wait_for("viptrace_recorder_failures_total", &[], failures + 1)?;
    expect_unwritable()?;
    faults += refused(stage, REFUSED)?.len();
    expect_faults("api", Class::C28, 2 * REFUSED)?;
    ensure!(Agent::stored(&folder)?.is_empty(), "a segment is on a read-only file system");
    sys::unmount(&folder).context("uncovering the folder")?;
    Agent::wait_for("viptrace_recorder_up", &[], 1)?;
    let recorded = refused(stage, REFUSED)?;
    expect_faults("api", Class::C28, 3 * REFUSED)?;

    let dropped = Agent::sum("viptrace_recorder_dropped_events_total", &[])?;
    ensure!(
        dropped >= faults as u64,
        "{dropped} events are in no segment, {faults} faults were caused meanwhile"
    );
    let ended = stop(agent)?;
    for text in ["Read-only file system", "can be written again"] {
        ensure!(
            ended.stderr.matches(text).count() >= 2,
            "the log has `{text}` less than twice: {}",
            ended.stderr
        );
    }
    expect_stored(&folder, &all_of(Class::C28, recorded))
}

/// The metrics report that nothing is recorded, and the agent is ready nevertheless.
fn expect_unwritable() -> Result<()> {
    Agent::wait_for("viptrace_recorder_failures_total", &[], 1)?;
    ensure!(Agent::sum("viptrace_recorder_up", &[])? == 0, "the recorder writes to a read-only disk");
    ensure!(Agent::is_ready(), "a disk that cannot be written makes the agent unready");
    Ok(())
}
