//! `trace --path` prints the way of one connection while it happens: as `replay --path` prints it from the recording of
//! the same trace.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::{
    replay,
    tool::{Options, Tool},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::{GRACE, NODE, Stage},
};

const RECORDING: &str = "/tmp/path.viptrace";
/// A way is complete 2 s after its flow's end; a trace on an emulated machine may lag.
const WAY_LIMIT: Duration = Duration::from_mins(1);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let _served = ["shop/cart-1", "shop/cart-2", "shop/cart-3"]
        .into_iter()
        .map(|pod| stage.serve(pod, 8080, EXCHANGE))
        .collect::<Result<Vec<_>>>()?;
    let kubeconfig = stage.kubeconfig()?;
    let cart = stage.vip("shop/cart", "http")?;
    let from = stage.place("shop/client-1")?;
    // The connections of a place take one port after the other.
    let flow = SocketAddr::new(from.address, from.next_port.load(Ordering::Relaxed));
    let (flow_text, grace) = (flow.to_string(), format!("{}s", GRACE.as_secs()));
    let arguments = ["--grace", &grace, "--path", &flow_text, "--force", "--record", RECORDING];
    let tool = Tool::start(&Options {
        node: NODE.to_owned(),
        kubeconfig,
        arguments: arguments.map(str::to_owned).into(),
        show: false,
        terminal: false,
        capabilities: None,
    })?;
    let attempts = client::connect(from, cart, 4, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    ensure!(attempts.iter().any(|attempt| attempt.client == flow), "no connection came from {flow}");

    let is_last = |line: &str| line.contains("attached on");
    let complete = tool.wait_for(WAY_LIMIT, is_last);
    let ended = tool.stop()?;
    let live = ended.stdout.join("\n");
    ensure!(complete, "the way is not complete: {live}\n{}", ended.stderr);
    let confirmed = ended.stdout.iter().find(|line| line.contains("__nf_conntrack_confirm"));
    let confirmed = confirmed.with_context(|| format!("the way has no decision: {live}"))?;
    ensure!(confirmed.contains(&cart.to_string()), "the decision is about another address: {confirmed}");
    let others = attempts.iter().filter(|attempt| attempt.client != flow);
    for other in others {
        ensure!(
            !live.contains(&other.client.to_string()),
            "the way of another connection is printed: {live}"
        );
    }

    let replayed = replay::run(RECORDING, &["--path", &flow_text])?;
    ensure!(
        replayed.stdout == ended.stdout,
        "the replay's way differs.\nlive:\n{live}\nreplayed:\n{}",
        replayed.stdout.join("\n")
    );
    Ok(())
}
