//! The exit status, for scripts: 0 no fault, 1 could not run, 2 usage, 3 faults found. (Every scenario checks that
//! faults return 3 and health returns 0. The other cases are here.)

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    apiserver::{self, Absence},
    invocation::Invocation,
    tool::Ended,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::{NODE, Stage},
};

/// The limit for a trace that ends by itself, on an emulated machine.
const LIMIT: Duration = Duration::from_secs(90);
/// viptrace gives up waiting for an API server after a minute; the guest is busy with other scenarios meanwhile.
const UNANSWERED_LIMIT: Duration = Duration::from_mins(3);
/// Ctrl-C takes effect at once.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let kubeconfig = stage.kubeconfig()?.display().to_string();
    let trace = ["trace", "--node", NODE, "--kubeconfig", &kubeconfig];

    usage(&trace)?;
    healthy_for_a_while(stage, &trace)?;
    let nowhere = end_of(&[&trace[..], &["shop/no-such-service"]].concat())?;
    expect_status(&nowhere, 1)?;
    ensure!(nowhere.stderr.contains("shop/no-such-service"), "the Service is not named: {}", nowhere.stderr);

    stage.api.go_away(Absence::Hung);
    interrupted(stage, &trace)
}

/// No server listens at the kubeconfig's address. Uses nothing of the node, and takes a minute.
pub(super) fn unanswered() -> Result<()> {
    // A port that was free a moment ago.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for a free port")?;
    let address = closed.local_addr().context("looking for a free port")?;
    drop(closed);
    let kubeconfig = "/run/lab-unanswered.kubeconfig";
    fs::write(kubeconfig, apiserver::kubeconfig(address)).with_context(|| format!("writing {kubeconfig}"))?;
    let arguments = ["trace", "--node", NODE, "--kubeconfig", kubeconfig];
    let ended = Invocation::start(&arguments)?.end(UNANSWERED_LIMIT)?;
    expect_status(&ended, 1)?;
    ensure!(ended.stderr.contains(&address.to_string()), "{address} is not named: {}", ended.stderr);
    Ok(())
}

fn usage(trace: &[&str]) -> Result<()> {
    let wrong: [&[&str]; 4] = [&["--no-such-flag"], &["a/b/c"], &["-o", "xml"], &["--duration", "soon"]];
    for arguments in wrong {
        let ended = end_of(&[trace, arguments].concat())?;
        expect_status(&ended, 2)?;
        ensure!(!ended.stderr.is_empty(), "{arguments:?} is refused silently");
        ensure!(ended.stdout.is_empty(), "{arguments:?}: an error on standard output: {:?}", ended.stdout);
    }
    expect_status(&end_of(&[])?, 2)
}

/// Ends after `--duration` without a fault.
fn healthy_for_a_while(stage: &Stage, trace: &[&str]) -> Result<()> {
    let _serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    let ready = "/run/exit-status.ready";
    let timed = [trace, &["--duration", "3s", "--ready-file", ready]].concat();
    let running = Invocation::start(&timed)?;
    crate::wait::until("viptrace's ready file", LIMIT, || {
        std::path::Path::new(ready).exists().then_some(())
    })?;
    let from = stage.place("shop/client-1")?;
    let frontend = stage.vip("shop/frontend", "http")?;
    let attempts = client::connect(from, frontend, 5, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let ended = running.end(LIMIT)?;
    expect_status(&ended, 0)?;
    let output = ended.stdout.join("\n") + &ended.stderr;
    ensure!(output.contains("5 flows") && output.contains("no fault"), "unexpected summary: {output}");
    Ok(())
}

/// Ctrl-C while viptrace waits for the API server.
fn interrupted(stage: &Stage, trace: &[&str]) -> Result<()> {
    let before = stage.api.waiting();
    let waiting = Invocation::start(trace)?;
    crate::wait::until("viptrace's request to the hung API server", LIMIT, || {
        (stage.api.waiting() > before).then_some(())
    })?;
    waiting.interrupt()?;
    let ended = waiting.end(INTERRUPT_LIMIT)?;
    // It observed nothing, so it must not report health. Whether it returns 0 or 1 is not checked.
    let output = ended.stdout.join("\n") + &ended.stderr;
    ensure!(ended.status < 2, "the exit status is {}: {output}", ended.status);
    ensure!(!output.contains("no fault\n"), "it reports health: {output}");
    Ok(())
}

fn end_of(arguments: &[&str]) -> Result<Ended> {
    Invocation::start(arguments)?.end(LIMIT)
}

fn expect_status(ended: &Ended, status: i32) -> Result<()> {
    if ended.status != status {
        bail!("the exit status is {}, expected {status}: {ended:?}", ended.status);
    }
    Ok(())
}
