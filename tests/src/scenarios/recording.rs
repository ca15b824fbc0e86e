//! Recordings of failures: viptrace is killed, the disk is full, events are lost. A replay judges the intact part and
//! reports the missing part. Every scenario checks that a complete recording replays to its trace's output.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use crate::{
    command,
    expect::Record,
    replay,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    wait,
    world::Stage,
};

const LIMIT: Duration = Duration::from_mins(1);

/// viptrace is killed before it can end its file. A replay judges the written part and reports the missing end.
pub(super) fn cut_off(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let from = stage.world.pod("shop/client-1")?.place.clone();
    let frontend = stage.world.cluster.vip("shop/frontend", "http")?;
    let attempts = client::connect(&from, frontend, 20, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let Some(tool) = stage.tool() else { return Ok(()) };
    // A later block records the time at which the flows were judged.
    ensure!(tool.wait_for(LIMIT, |line| Record::parse(line).is_some()), "no record came");
    let size = || fs::metadata(replay::RECORDING).map_or(0, |meta| meta.len());
    wait::until("the recording to have it", LIMIT, || {
        let replayed = replay::run(replay::RECORDING, &["-o", "json", "--all"]);
        replayed.is_ok_and(|replayed| replayed.stdout.len() >= attempts.len()).then_some(())
    })?;
    let live = stage.kill_watching()?;
    ensure!(!live.stderr.contains("viptrace::bpf"), "a program writes messages unasked: {}", live.stderr);
    let replayed = replay::run(replay::RECORDING, &["-o", "json", "--all"])?;
    ensure!(
        replayed.stderr.contains("it was cut off at"),
        "the replay does not report the missing end: {}",
        replayed.stderr
    );
    ensure!(replayed.status == 4, "the replay's exit status is {}", replayed.status);
    for record in live.records() {
        let again = replayed.records().iter().any(|other| other.key() == record.key());
        ensure!(again, "the replay has no record like {record}");
    }
    // The file loses its last bytes, as in an incomplete copy.
    let bytes = fs::read(replay::RECORDING).context("reading the recording")?;
    let half = "/tmp/half.viptrace";
    fs::write(half, bytes.get(..bytes.len() - 20).unwrap_or_default()).context("writing a part of it")?;
    let replayed = replay::run(half, &["-o", "json", "--all"])?;
    ensure!(
        replayed.stderr.contains("at byte ") && replayed.stderr.contains("the file ends within a block"),
        "the replay does not report where the file is damaged: {}",
        replayed.stderr
    );
    ensure!(size() > 0 && replayed.status == 4, "the replay's exit status is {}", replayed.status);
    drop(serving);
    Ok(())
}

/// The file system is full: the trace continues and reports it once, and the replay ends at the end of the file.
pub(super) fn disk_full(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    let folder = "/run/small";
    let recording = "/run/small/trace.viptrace";
    fs::create_dir_all(folder).context("creating a folder")?;
    stage.break_with(
        |_| command::run("mount", &["-t", "tmpfs", "-o", "size=8k", "small", folder]).map(drop),
        |_| command::run("umount", &[folder]).map(drop),
    )?;
    stage.watch_recorded(recording, &[])?;
    let from = stage.world.pod("shop/client-1")?.place.clone();
    let frontend = stage.world.cluster.vip("shop/frontend", "http")?;
    let mut attempts = Vec::new();
    for _ in 0..4 {
        attempts.extend(client::connect(&from, frontend, 60, 2, Script::exchange())?);
        // viptrace writes a block each second.
        wait::until_older_than(Instant::now(), Duration::from_millis(1200));
    }
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(&attempts, "shop/frontend", &[(&serving, Class::Ok)])?;
    stage.check(move |records, ended| {
        ensure!(ended.stderr.matches("the trace goes on without it").count() == 1, "{}", ended.stderr);
        ensure!(ended.stderr.contains("No space left"), "{}", ended.stderr);
        ensure!(
            ended.stderr.matches("the recording /run/small/trace.viptrace ends at").count() == 2,
            "{}",
            ended.stderr
        );
        let replayed = replay::run(recording, &["-o", "json", "--all"])?;
        ensure!(replayed.stderr.contains("it was cut off at"), "{}", replayed.stderr);
        ensure!(replayed.stdout.len() < records.len(), "the replay has all {} records", records.len());
        Ok(())
    });
    Ok(())
}

/// A buffer that is far too small: events are lost, the programs log it for a developer, and the replay reports the same
/// losses.
pub(super) fn losses(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch_with(&["--buffer", "4K", "-vv"])?;
    let from = stage.world.pod("shop/client-1")?.place.clone();
    let frontend = stage.world.cluster.vip("shop/frontend", "http")?;
    let attempts = client::connect(&from, frontend, 300, 4, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    drop(serving);
    stage.needs_viptrace()?;
    // The affected flows are random: only the trace and its replay are compared.
    let live = stage.stop_watching()?;
    ensure!(live.stderr.contains("lost"), "nothing was lost: {}", live.stderr);
    let is_logged =
        |line: &str| line.contains("DEBUG viptrace::bpf: no room for a record") && line.contains("hook=");
    ensure!(live.stderr.lines().any(is_logged), "no program logged that it found no room: {}", live.stderr);
    replay::check("recording-losses", replay::RECORDING, &live)
}
