//! The agent with a recording as its source, to try out alerts and the dashboard.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use tokio::signal::unix::Signal;

use crate::{
    agent::Agent,
    cli::{recording_file, stop::Stop},
    recording::{Player, Step},
    session::Detail,
};

/// After this many steps the writer of segments gets time: a replay is faster than any node.
const STEPS: usize = 512;
const PAUSE: Duration = Duration::from_millis(2);

/// Plays the recording to its end, and then serves its figures until a signal ends it.
pub(super) async fn run(
    mut agent: Agent,
    path: &Path,
    stop: &mut Stop,
    hangup: &mut Signal,
) -> anyhow::Result<()> {
    let place = || format!("cannot replay {}", path.display());
    let file = recording_file(path, place)?;
    let mut player = Player::open(file, Detail::Faults).with_context(place)?;
    agent.ready(player.header().clone());
    let mut steps = 0;
    let mut stopped = false;
    while !stopped && let Some(step) = player.step().with_context(place)? {
        match step {
            Step::Judged { judgements, .. } => agent.show(&judgements)?,
            Step::Ended(end) => agent.ended(&end.gaps),
        }
        let now = player.now();
        if player.has_started() {
            agent.turned(player.recorded(), now);
        }
        steps += 1;
        if steps % STEPS == 0 {
            tokio::select! {
                () = stop.wanted() => stopped = true,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
    while let Some(judgements) = player.cut_off() {
        agent.show(&judgements)?;
    }
    let now = player.now();
    agent.log().info("replay", &format!("{} ends at {}", path.display(), now.to_the_millisecond()));
    while !stopped {
        agent.turned(player.recorded(), now);
        tokio::select! {
            () = stop.wanted() => stopped = true,
            _ = hangup.recv() => agent.reload(player.recorded(), now),
            () = tokio::time::sleep_until(agent.deadline().into()) => {}
        }
    }
    agent.draining();
    agent.close_recording(player.recorded(), now);
    agent.finish().await;
    Ok(())
}
