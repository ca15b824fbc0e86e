//! `viptrace agent`: drives a trace, or a replay, for the agent; and `viptrace agent stream`.
//!
//! Owns the signals and the order of start and end. The agent's parts are in the room `agent`.

mod live;
mod replayed;

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
    time::Instant,
};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    agent::{
        Agent, LAST_WORDS,
        config::Config,
        stream::{Want, client},
    },
    cli::{
        Outcome, ResultExt as _,
        args::{AgentArgs, AgentVerb, StreamArgs, own_name},
        block_on,
        stop::Stop,
    },
    kernel::allocator,
    report::{OutputError, Printer},
    text::count,
};

/// Runs until a signal ends it.
pub(super) fn run(args: &AgentArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    if let Some(AgentVerb::Stream(args)) = &args.verb {
        return stream(args, printer);
    }
    let config = Config::read(&args.config)?;
    if args.check_config {
        printer.note(&format!("{} is valid", args.config.display()));
        return Ok(Outcome::Clean);
    }
    allocator::keep_little();
    // The event loop runs on this thread, the servers on another: a scrape is answered while flows are judged.
    block_on(1, agent(args, config))
}

async fn agent(args: &AgentArgs, config: Config) -> anyhow::Result<Outcome> {
    let mut stop = Stop::listen()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let node = config.node.clone().or_else(own_name);
    let agent = Agent::start(config.clone(), &args.config, node.clone())?;
    let log = Arc::clone(agent.log());
    let ran = match &args.from {
        Some(recording) => replayed::run(agent, recording, &mut stop, &mut hangup).await,
        None => Box::pin(live::run(agent, &config, args.attach, node, &mut stop, &mut hangup)).await,
    };
    log.close(Instant::now() + LAST_WORDS);
    ran?;
    Ok(Outcome::Clean)
}

/// Prints the answer of the agent in this container.
fn stream(args: &StreamArgs, mut printer: Printer) -> anyhow::Result<Outcome> {
    let want = match &args.segment {
        Some(_) if io::stdout().is_terminal() => {
            return Err(anyhow::anyhow!("a segment is not text: standard output is a terminal"))
                .hint(|| "viptrace agent stream --segment NAME > FILE".to_owned());
        }
        Some(name) => Want::Segment { name: name.clone() },
        None if args.counts => Want::Counts,
        None if args.segments => Want::Segments,
        None => Want::Verdicts { heartbeat: args.heartbeat },
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let read = runtime.block_on(client::read(&args.socket, want, &mut io::stdout().lock()));
    let lost = match read {
        Err(client::StreamError::Write(error)) => return Err(OutputError::from(error).into()),
        read => read?,
    };
    if lost > 0 {
        printer.warn(&format!("{} left out: this reader was too slow", count(lost, "verdict")));
    }
    Ok(Outcome::Clean)
}
