//! The demo: one `viptrace trace` as a user types it, over a healthy Service and a series of faults. A heading names
//! each fault and the expected verdict. It succeeds only if every expected verdict was shown.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use viptrace_class::Class;

use crate::{
    console,
    dataplane::Variant,
    scenarios::silent,
    tool::Tool,
    traffic::{
        client::{self, Ending, Script},
        server::{self, EXCHANGE, Server},
        udp::{self, Answer, UdpServer},
    },
    wait,
    world::{Stage, Watch, World},
};

/// The limit from a step's traffic to the line with its verdict.
const SHOWN_WITHIN: Duration = Duration::from_mins(1);
/// A step's output has ended after this time without a new line.
const QUIET: Duration = Duration::from_millis(600);
/// How long a client waits for an answer: enough for two retransmissions of its SYN.
const PATIENCE: Duration = Duration::from_secs(4);

/// One step: an action, and the line that viptrace must show for it.
struct Step {
    title: &'static str,
    expect: &'static str,
    class: Class,
    /// Words that the line must contain besides the class.
    words: &'static [&'static str],
    play: fn(&mut Stage, &mut Actors) -> Result<()>,
}

/// The applications that run through all steps.
struct Actors {
    cart: Vec<Server>,
    frontend: Option<Server>,
    dns: Vec<UdpServer>,
    held: Vec<client::Held>,
}

const STEPS: &[Step] = &[
    Step {
        title: "A healthy Service: 12 connections to shop/cart, whose three Pods run on two nodes",
        expect: "ok, and which endpoint served each",
        class: Class::Ok,
        words: &["shop/cart"],
        play: healthy,
    },
    Step {
        title: "A healthy UDP Service: 4 queries to kube-system/kube-dns",
        expect: "ok",
        class: Class::Ok,
        words: &["shop/cart"],
        play: healthy_udp,
    },
    Step {
        title: "kubelet probes a Pod, and resets the connection because the server speaks first",
        expect: "N1, a normal look-alike, and no fault",
        class: Class::N1,
        words: &[],
        play: probes,
    },
    Step {
        title: "shop/checkout has a selector that matches no Pod",
        expect: "C20 no endpoints, with that reason",
        class: Class::C20,
        words: &["shop/checkout"],
        play: no_endpoints,
    },
    Step {
        title: "shop/api-1 runs, but nothing listens on its port",
        expect: "C28, the backend refuses",
        class: Class::C28,
        words: &["shop/api"],
        play: refused,
    },
    Step {
        title: "Packets to shop/payments' Pods are lost, as with a wrong neighbour entry or a broken tunnel",
        expect: "C29, the backend is silent",
        class: Class::C29,
        words: &["shop/payments"],
        play: silence,
    },
    Step {
        title: "shop/cart-2 leaves its EndpointSlice, kube-proxy's rules keep it, and its Pod still answers",
        expect: "C6 stale endpoint, although the clients notice nothing; the connection from before is N9",
        class: Class::C6,
        words: &["shop/cart"],
        play: stale,
    },
    Step {
        title: "The conntrack table is full",
        expect: "C16: new connections fail, standing ones live on",
        class: Class::C16,
        words: &[],
        play: table_full,
    },
    Step {
        title: "The rules of shop/cart are gone, those of the other Services are there",
        expect: "C5, no rule translates this address",
        class: Class::C5,
        words: &["shop/cart"],
        play: one_without_rules,
    },
    Step {
        title: "kube-proxy is dead and all its rules are gone",
        expect: "C1, no rule translates any address",
        class: Class::C1,
        words: &[],
        play: all_without_rules,
    },
];

/// Plays all steps and returns whether every expected verdict was shown.
pub(super) fn run(world: &World) -> Result<bool> {
    let mut stage = Stage::set(world, Watch::Table, Variant::DEFAULT)?;
    let chat = server::Script::Chat { request: client::REQUEST, response: client::RESPONSE };
    let mut actors = Actors {
        cart: vec![
            stage.serve("shop/cart-1", 8080, EXCHANGE)?,
            stage.serve(
                "shop/cart-2",
                8080,
                server::Script::ServeOnceThenReset { request: client::REQUEST, response: client::RESPONSE },
            )?,
            stage.serve("shop/cart-3", 8080, EXCHANGE)?,
        ],
        frontend: Some(stage.serve("shop/frontend-1", 8080, chat)?),
        dns: vec![
            UdpServer::start(stage.place("kube-system/coredns-1")?, 53, Answer::Echo)?,
            UdpServer::start(stage.place("kube-system/coredns-2")?, 53, Answer::Echo)?,
        ],
        held: Vec::new(),
    };
    console::print("");
    console::print("# viptrace trace --all");
    stage.watch_with(&["--all"])?;
    let mut missing = Vec::new();
    for (number, step) in STEPS.iter().enumerate() {
        console::print("");
        console::print(format!("── {}. {}", number + 1, step.title));
        console::print(format!("   expected: {}", step.expect));
        let before = stage.tool().map_or(0, Tool::line_count);
        (step.play)(&mut stage, &mut actors)?;
        let shown = wait::until("the verdict", SHOWN_WITHIN, || {
            let tool = stage.tool()?;
            tool.lines_from(before).iter().any(|line| shows(line, step)).then_some(())
        });
        if shown.is_err() {
            console::print(format!("   MISSING: no line shows {} within {SHOWN_WITHIN:?}", step.class));
            missing.push(step.class.id());
        }
        settle(&stage);
        stage.repair()?;
    }
    drop(actors);
    console::print("");
    console::print("── Ctrl-C: the summary");
    console::print("");
    let ended = stage.stop_watching()?;
    console::print("");
    if ended.status != 3 {
        console::print(format!("viptrace's exit status is {}, expected 3 (faults found)", ended.status));
        missing.push("exit status 3");
    }
    if missing.is_empty() {
        console::print("Every expected verdict was shown.");
    } else {
        console::print(format!("Expected and not shown: {}", missing.join(", ")));
    }
    Ok(missing.is_empty())
}

/// Waits until the lines of a step have ended before the next heading.
fn settle(stage: &Stage) {
    let Some(tool) = stage.tool() else { return };
    let (mut lines, mut since) = (tool.line_count(), Instant::now());
    // Lines that never end are no reason to stop the demo.
    let _ended = wait::until("the lines to end", SHOWN_WITHIN, || {
        if tool.line_count() != lines {
            (lines, since) = (tool.line_count(), Instant::now());
        }
        (since.elapsed() > QUIET).then_some(())
    });
}

/// Whether a table line contains the step's class as a word, and its other words.
fn shows(line: &str, step: &Step) -> bool {
    line.split_whitespace().any(|word| word == step.class.id())
        && step.words.iter().all(|word| line.contains(word))
}

fn send(stage: &Stage, service: &str, port: &str, count: usize, script: Script) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let vip = stage.vip(service, port)?;
    let attempts = client::connect(from, vip, count, count.min(4), script)?;
    let mut outcomes: Vec<_> = crate::traffic::count(&attempts).into_iter().collect();
    outcomes.sort();
    let counts: Vec<String> =
        outcomes.iter().map(|(outcome, times)| format!("{outcome:?} {times}×")).collect();
    console::print(format!("   the clients of {service} saw: {}", counts.join(", ")));
    Ok(())
}

fn healthy(stage: &mut Stage, actors: &mut Actors) -> Result<()> {
    // One connection stays open to the endpoint that leaves later.
    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    for _ in 0..60 {
        let held = client::hold(from, cart, Script::exchange())?;
        if actors.cart.get(1).is_some_and(|leaving| leaving.accepted(held.client)) {
            actors.held.push(held);
            break;
        }
    }
    send(stage, "shop/cart", "http", 12, Script::exchange())
}

fn healthy_udp(stage: &mut Stage, actors: &mut Actors) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip("kube-system/kube-dns", "dns")?;
    let attempts = udp::query(from, dns, 4, Duration::from_secs(10))?;
    let answered = attempts
        .iter()
        .filter(|attempt| actors.dns.iter().any(|server| server.received_from(attempt.client)))
        .count();
    console::print(format!("   {answered} of 4 queries reached a DNS Pod"));
    // The verdict of a UDP flow appears only in the summary, because the flow ends without a packet. This connection
    // ends visibly and completes the step.
    send(stage, "shop/cart", "http", 1, Script::exchange())
}

fn probes(stage: &mut Stage, _actors: &mut Actors) -> Result<()> {
    let _talkative = stage.serve("shop/client-1", 8080, server::Script::Banner { bytes: 32 })?;
    let target = SocketAddr::new(stage.place("shop/client-1")?.address, 8080);
    let script = Script::touch().ending(Ending::CloseUnread);
    client::probe(stage.gateway()?, target, 3, script).map(drop)
}

fn no_endpoints(stage: &mut Stage, _actors: &mut Actors) -> Result<()> {
    send(stage, "shop/checkout", "http", 3, Script::exchange())
}

fn refused(stage: &mut Stage, _actors: &mut Actors) -> Result<()> {
    send(stage, "shop/api", "https", 3, Script::exchange())
}

fn silence(stage: &mut Stage, _actors: &mut Actors) -> Result<()> {
    for pod in ["shop/payments-1", "shop/payments-2"] {
        silent::misdeliver(stage, stage.world.pod(pod)?)?;
    }
    send(stage, "shop/payments", "grpc", 2, Script::exchange().connect_limit(PATIENCE))
}

fn stale(stage: &mut Stage, actors: &mut Actors) -> Result<()> {
    let address = stage.place("shop/cart-2")?.address;
    let slice = stage.world.cluster.slice_without("shop/cart", address)?;
    stage.apply(slice)?;
    stage.after_grace();
    for mut held in actors.held.drain(..) {
        let outcome = held.exchange(&Script::exchange());
        held.end(Ending::Close, outcome);
    }
    send(stage, "shop/cart", "http", 16, Script::exchange())
}

fn table_full(stage: &mut Stage, _actors: &mut Actors) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let frontend = stage.vip("shop/frontend", "http")?;
    let mut standing = Vec::new();
    for _ in 0..12 {
        standing.push(client::hold(from, frontend, Script::exchange())?);
    }
    let max = "net.netfilter.nf_conntrack_max";
    stage.break_with(
        |world| world.topology.host.sysctl(max, "8"),
        |world| world.topology.host.sysctl(max, crate::world::CONNTRACK_MAX),
    )?;
    send(stage, "shop/cart", "http", 2, Script::exchange().connect_limit(PATIENCE))?;
    let alive = standing.iter_mut().map(|held| held.exchange(&Script::exchange()));
    let alive = alive.filter(|outcome| *outcome == crate::traffic::Outcome::Done).count();
    console::print(format!("   {alive} of 12 standing connections still work"));
    Ok(())
}

fn one_without_rules(stage: &mut Stage, _actors: &mut Actors) -> Result<()> {
    let cart = stage.vip("shop/cart", "http")?;
    let cut = stage.rules()?.without_service(cart);
    stage.break_rules(&cut)?;
    send(stage, "shop/frontend", "http", 2, Script::exchange())?;
    send(stage, "shop/cart", "http", 2, Script::exchange().connect_limit(PATIENCE))
}

fn all_without_rules(stage: &mut Stage, actors: &mut Actors) -> Result<()> {
    stage.kube_proxy.kill();
    let flushed = stage.rules()?.without_kube_proxy();
    stage.break_rules(&flushed)?;
    actors.frontend = None;
    send(stage, "shop/cart", "http", 2, Script::exchange().connect_limit(PATIENCE))?;
    send(stage, "shop/frontend", "http", 2, Script::exchange().connect_limit(PATIENCE))
}
