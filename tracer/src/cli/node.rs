//! `viptrace node`: what the plugin runs on a node, in a Pod of its own or in the agent's.
//!
//! Does one task and answers on standard output (`plugin/wire.rs`). With `--hold` it only keeps its Pod alive until standard
//! input ends, so that the Pod ends with the plugin that attached to it.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Parser as _;
use futures::StreamExt as _;
use tokio::{
    io::{self, AsyncReadExt as _},
    net::TcpSocket,
    sync::mpsc,
    time::timeout,
};

use crate::{
    called,
    cli::{
        Outcome,
        args::{Cli, NodeArgs, TraceOptions, Verb},
        block_on, hint,
        stop::Stop,
        trace::{Sink, Trace},
    },
    cluster::{self, Opened},
    error::sentence,
    incident::Found,
    kernel::{allocator, tracer::Tracer},
    node::{self, Collector},
    plugin::wire::{self, Answer, Connected, Connection, Order, Request, Task, VERSION},
    recording::{Header, Recorded},
    report::{Paint, trail, write_record},
    session::{Judgements, Pair, Pipeline},
    time::Timestamp,
};

/// The longest wait for the request.
const REQUEST_LIMIT: Duration = Duration::from_mins(1);
/// The longest wait for the plugin in a Pod that runs.
const ATTACH_LIMIT: Duration = Duration::from_mins(2);
/// The longest wait for an answer to a connection: of three SYNs, the third is sent after 3 s.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// The objects that wait to be applied.
const QUEUE: usize = 4096;
/// A container's termination message (`terminationMessagePath`'s default), of which the kubelet takes the last 4 KiB.
const TERMINATION_MESSAGE: &str = "/dev/termination-log";
/// The interval of [`Answer::Status`].
const STATUS: Duration = Duration::from_secs(1);

/// Does the task of the first line. Errors go to the plugin, as the last line.
pub(super) fn run(args: &NodeArgs) -> anyhow::Result<Outcome> {
    allocator::keep_little();
    called::by_plugin();
    block_on(2, async {
        if args.hold {
            hold().await?;
        } else if !args.connect.is_empty() {
            connect_for_message(&args.connect).await?;
        } else if let Err(error) = Box::pin(serve()).await {
            send(&Answer::Failed { error: sentence(&*error), hint: hint::hint(&error) })?;
        }
        Ok(Outcome::Clean)
    })
}

/// Waits for the end of standard input, or for a signal.
async fn hold() -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    tokio::select! {
        () = stop.wanted() => {}
        () = until_abandoned(io::stdin()) => {}
    }
    Ok(())
}

/// Waits for the end of the input, to which the plugin writes as soon as it has attached. A plugin that was killed between the
/// creation of the Pod and that never does.
async fn until_abandoned(mut input: impl io::AsyncRead + Unpin) {
    let mut ignored = [0; 64];
    let first = timeout(ATTACH_LIMIT, input.read(&mut ignored)).await;
    let mut read = first.map_or(0, |read| read.unwrap_or(0));
    while read > 0 {
        read = input.read(&mut ignored).await.unwrap_or(0);
    }
}

async fn serve() -> anyhow::Result<()> {
    let mut lines = wire::lines(io::stdin());
    send(&Answer::Hello { viptrace: VERSION, version: env!("CARGO_PKG_VERSION").to_owned() })?;
    let Ok(first) = timeout(REQUEST_LIMIT, lines.next()).await else {
        bail!("no request came within {} s", REQUEST_LIMIT.as_secs());
    };
    let Some(first) = first else { return Ok(()) };
    let request: Request = wire::message(&first?)?;
    if request.viptrace != VERSION {
        bail!(
            "this is viptrace {}, which speaks version {VERSION} of the plugin's protocol, not {}",
            env!("CARGO_PKG_VERSION"),
            request.viptrace
        );
    }
    match request.task {
        Task::Capture => capture().await,
        Task::Trace { server, node, args } => {
            let options = options(&args, node)?;
            let (updates, received) = mpsc::channel(QUEUE);
            let (stops, stopped) = mpsc::channel(1);
            tokio::spawn(async move {
                while let Some(Ok(line)) = lines.next().await {
                    // An order of a later version is skipped.
                    let Ok(order) = wire::message(&line) else { continue };
                    match order {
                        // The receivers end with the trace.
                        Order::Update(update) => drop(updates.send(update.relayed()).await),
                        Order::Stop => drop(stops.send(()).await),
                        Order::Connect(to) => drop(tokio::spawn(connect(to))),
                    }
                }
            });
            let mut stop = Stop::listen()?;
            stop.also_by(stopped);
            Box::pin(trace(&options, Opened::relayed(&server, cluster::LOOK_BACK, received), stop)).await
        }
    }
}

/// The options of a trace with these arguments.
fn options(args: &[String], node: String) -> anyhow::Result<TraceOptions> {
    let words = ["viptrace", "trace"].into_iter().chain(args.iter().map(String::as_str));
    let parsed = Cli::try_parse_from(words).and_then(|cli| match cli.verb {
        Verb::Trace(args) => args.resolve().map(Some),
        _ => Ok(None),
    });
    let options = parsed.map_err(|error| anyhow::anyhow!("{}", error.render()))?;
    let options = options.context("the arguments are not those of a trace")?;
    Ok(TraceOptions { node: Some(node), ..options })
}

async fn capture() -> anyhow::Result<()> {
    let capture = Collector::default().collect(node::Request::Check).await;
    for artifact in capture.artifacts {
        send(&Answer::Artifact(Box::new(artifact)))?;
    }
    for gap in capture.gaps {
        send(&Answer::Gap(gap))?;
    }
    send(&Answer::Captured { taken: node::now() })
}

async fn trace(options: &TraceOptions, opened: Opened, mut stop: Stop) -> anyhow::Result<()> {
    let mut sink = Relay { status: None };
    let mut trace = Trace::begin_with(options, opened, &mut sink, &mut stop).await?;
    trace.watch(&mut sink, &mut stop).await?;
    let (ending, _) = Box::pin(trace.finish(&mut sink, &mut stop)).await?;
    send(&Answer::Ended(Box::new(ending)))
}

/// Connects, and writes the results to where the kubelet reads them.
async fn connect_for_message(to: &[SocketAddr]) -> anyhow::Result<()> {
    let results = futures::future::join_all(to.iter().map(|to| connection(*to))).await;
    let lines = results.iter().map(wire::line).collect::<Result<String, _>>()?;
    std::fs::write(TERMINATION_MESSAGE, lines)
        .with_context(|| format!("cannot write the result to {TERMINATION_MESSAGE}"))
}

/// Makes one connection and reports its result.
async fn connect(to: SocketAddr) {
    // A closed output ends the trace, too.
    drop(send(&Answer::Connected(connection(to).await)));
}

/// Makes one connection and closes it at once.
async fn connection(to: SocketAddr) -> Connection {
    // Reserved before it connects, so that the port of a connection that fails is known too.
    let reserved = reserve(to);
    let port = reserved.as_ref().ok().map(|(_, port)| *port);
    let began = Instant::now();
    let connecting = async { reserved?.0.connect(to).await };
    let result = match timeout(CONNECT_LIMIT, connecting).await {
        Ok(Ok(_)) => Connected::Established,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Connected::Refused,
        Ok(Err(error)) => Connected::Failed(sentence(&error)),
        Err(_) => Connected::TimedOut,
    };
    Connection { to, port, result, took: began.elapsed() }
}

/// A socket for a connection to that address, with its local port.
fn reserve(to: SocketAddr) -> io::Result<(TcpSocket, u16)> {
    let (socket, any) = match to {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into()),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, Ipv6Addr::UNSPECIFIED.into()),
    };
    socket.bind(SocketAddr::new(any, 0))?;
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

/// Writes an answer to standard output at once. A reader that takes none blocks the caller: what the kernel reports
/// meanwhile is counted as lost.
fn send(answer: &Answer) -> anyhow::Result<()> {
    Ok(write_record(&wire::line(answer)?)?)
}

/// Sends the results of a trace to the plugin.
struct Relay {
    /// When the last status was sent.
    status: Option<Instant>,
}

impl Sink for Relay {
    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        send(&Answer::Warning(text.to_owned()))
    }

    fn attached(&mut self, tracer: &Tracer, _: Header) -> anyhow::Result<()> {
        send(&Answer::Attached { hooks: tracer.attached().len() })
    }

    /// The ending names it.
    fn hook_changed(&mut self, _: &str) {}

    fn hooks_are(&mut self, _: Header) {}

    fn show(&mut self, judgements: Judgements, pipeline: &Pipeline, _: Timestamp) -> anyhow::Result<()> {
        // The plugin chooses among them.
        for judged in judgements.judged {
            send(&Answer::Judged(Box::new(judged)))?;
        }
        for folded in judgements.folded {
            send(&Answer::Folded(Box::new(folded)))?;
        }
        for flows in judgements.unjudged {
            send(&Answer::Unjudged(flows))?;
        }
        for arrival in judgements.arrivals {
            send(&Answer::Arrived(arrival))?;
        }
        if self.status.is_none_or(|sent| sent.elapsed() >= STATUS) {
            self.status = Some(Instant::now());
            send(&Answer::Status { open: pipeline.counters().open, lost_events: pipeline.lost_events() })?;
        }
        Ok(())
    }

    fn way(&mut self, found: &Found) -> anyhow::Result<()> {
        let is_fault = found.verdict().is_fault();
        send(&Answer::Way { text: trail::render_found(found, Paint::default()), is_fault })
    }

    fn started(&mut self, _: Option<Pair>, _: u64) {}

    fn uncounted(&mut self, _: u64) {}

    fn turned(&mut self, _: &mut Recorded, _: Option<&Tracer>, _: Timestamp) -> anyhow::Result<()> {
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    async fn wanted(&mut self) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, time::sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_ends_with_its_plugin_and_without_one() {
        let (input, read) = io::duplex(64);
        timeout(ATTACH_LIMIT * 2, until_abandoned(read)).await.expect("nobody attaches");
        drop(input);
        let (mut input, read) = io::duplex(64);
        let held = tokio::spawn(until_abandoned(read));
        input.write_all(b"\n").await.unwrap();
        sleep(ATTACH_LIMIT * 10).await;
        assert!(!held.is_finished(), "a plugin has attached");
        drop(input);
        held.await.unwrap();
    }
}
