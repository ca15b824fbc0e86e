//! The exit status, for scripts: 0 nothing broken, 1 could not run, 2 usage, 3 faults found. (That faults give 3 and
//! health gives 0 is judged in every scenario; here is the rest.)

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

/// A trace that ends by itself, on an emulated machine.
const LIMIT: Duration = Duration::from_secs(90);
/// Waiting for an API server is given up after a minute; the guest has other things to do meanwhile.
const UNANSWERED_LIMIT: Duration = Duration::from_mins(3);
/// Ctrl-C is answered at once.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    if !stage.is_watched() {
        return Ok(());
    }
    let kubeconfig = stage.kubeconfig()?.display().to_string();
    let trace = ["trace", "--node", NODE, "--kubeconfig", &kubeconfig];

    usage(&trace)?;
    healthy_for_a_while(stage, &trace)?;
    let nowhere = end_of(&[&trace[..], &["shop/no-such-service"]].concat())?;
    expect_status(&nowhere, 1)?;
    ensure!(nowhere.stderr.contains("shop/no-such-service"), "it is not named: {}", nowhere.stderr);

    stage.api.go_away(Absence::Hung);
    interrupted(stage, &trace)
}

/// Nobody answers where the kubeconfig leads. Needs nothing of the node, and a minute.
pub(super) fn unanswered() -> Result<()> {
    // A port that was free just now.
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
        ensure!(!ended.stderr.is_empty(), "{arguments:?} is refused without a word");
        ensure!(ended.stdout.is_empty(), "{arguments:?}: an error on standard output: {:?}", ended.stdout);
    }
    expect_status(&end_of(&[])?, 2)
}

/// Ends by its own clock, with only health seen.
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
    let said = ended.stdout.join("\n") + &ended.stderr;
    ensure!(said.contains("5 flows") && said.contains("no fault"), "the summary is another: {said}");
    Ok(())
}

/// Ctrl-C while the API server keeps viptrace waiting.
fn interrupted(stage: &Stage, trace: &[&str]) -> Result<()> {
    let asked = stage.api.waiting();
    let waiting = Invocation::start(trace)?;
    crate::wait::until("viptrace to ask the hung API server", LIMIT, || {
        (stage.api.waiting() > asked).then_some(())
    })?;
    waiting.interrupt()?;
    let ended = waiting.end(INTERRUPT_LIMIT)?;
    // It saw nothing, so it may not claim health; what it says is checked, not which of the two it chose.
    let said = ended.stdout.join("\n") + &ended.stderr;
    ensure!(ended.status < 2, "the exit status is {}: {said}", ended.status);
    ensure!(!said.contains("no fault\n"), "it claims health: {said}");
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
