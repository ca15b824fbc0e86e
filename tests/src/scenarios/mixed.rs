//! 5,000 connections of every kind at once. The verdicts must match the generated traffic exactly. Nothing may be lost
//! or unexplained.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

use super::{alone::Alone, stale};
use viptrace_class::Class;

use crate::{
    console,
    dataplane::Family,
    expect::Endpoint,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Ending, Script},
        server::{self, EXCHANGE, Server},
        udp::{self, Answer},
    },
    world::{Stage, World},
};

/// The number of connections of each kind; 5,000 in total.
const CART: usize = 1_500;
const FRONTEND: usize = 1_000;
const PAYMENTS: usize = 600;
const DNS_UDP: usize = 100;
const DNS_TCP: usize = 100;
const REFUSED: usize = 700;
const NO_ENDPOINTS: usize = 700;
const PROBES: usize = 300;
const ALL: usize = 5_000;

/// One kind of traffic, ready to be sent.
type Kind<'k> = Box<dyn FnOnce() -> Result<Vec<Attempt>> + Send + 'k>;

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let cart_1 = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let cart_2 = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let cart_3 = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    let frontend = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    // This Service's only endpoint has no server.
    let refusing = Alone::new(stage)?;
    let ipv6 = stage.family() == Family::V6;
    // For IPv6, which shop/payments does not have, its connections go to shop/frontend.
    let payments = if ipv6 { None } else { Some(payments(stage)?) };
    let dns_1 = stage.serve("kube-system/coredns-1", 53, EXCHANGE)?;
    let dns_2 = stage.serve("kube-system/coredns-2", 53, EXCHANGE)?;
    let dns_udp_1 = stage.serve_udp("kube-system/coredns-1", 53, Answer::Echo)?;
    let dns_udp_2 = stage.serve_udp("kube-system/coredns-2", 53, Answer::Echo)?;
    // kubelet probes a Pod's first address.
    let watched_pod = &stage.world.pod("shop/client-1")?.place;
    let _talkative = Server::start(watched_pod, 8080, server::Script::Banner { bytes: 32 })?;
    stage.watch()?;
    // A node sends each client only one ICMP error a second; hundreds of them would take minutes.
    stage.break_with(|world| limit_errors(world, "0"), |world| limit_errors(world, "1000"))?;
    stale::remove_cart_2(stage)?;
    stage.after_grace();

    let vip = |service, port| stage.vip(service, port);
    let client = stage.place("shop/client-1")?;
    let other = stage.place("shop/slow-1")?;
    let node = stage.world.topology.gateway(Family::V4)?;
    let probe_target = SocketAddr::new(watched_pod.address, 8080);
    let usual = Script::exchange();
    let by_reset = Script::touch().ending(Ending::CloseUnread);
    let (cart, front) = (vip("shop/cart", "http")?, vip("shop/frontend", "http")?);
    let paid = if ipv6 { front } else { vip("shop/payments", "grpc")? };
    let (dns, dns_tcp) = (vip("kube-system/kube-dns", "dns")?, vip("kube-system/kube-dns", "dns-tcp")?);
    let checkout = vip("shop/checkout", "http")?;
    let slow = if ipv6 { checkout } else { vip("shop/slow", "http")? };

    // An ICMPv6 error arrives while connect holds the socket, and takes effect when the SYN is retransmitted a second
    // later.
    let at_once = if ipv6 { 16 } else { 1 };
    // All kinds at once, each from its own threads.
    let kinds: [Kind; 9] = [
        Box::new(|| client::connect(client, cart, CART, 3, usual)),
        Box::new(|| client::connect(other, front, FRONTEND, 2, usual)),
        Box::new(|| client::connect(client, paid, PAYMENTS, 1, usual)),
        Box::new(|| udp::query(other, dns, DNS_UDP, Duration::from_secs(20))),
        Box::new(|| client::connect(client, dns_tcp, DNS_TCP, 1, usual)),
        Box::new(|| client::connect(other, refusing.vip, REFUSED, 1, usual)),
        Box::new(|| client::connect(client, checkout, NO_ENDPOINTS / 2, at_once, usual)),
        Box::new(|| client::connect(other, slow, NO_ENDPOINTS / 2, at_once, usual)),
        Box::new(|| client::probe(node, probe_target, PROBES, by_reset)),
    ];
    let started = Instant::now();
    let tell = |kind: Kind| {
        let made = kind()?;
        if let Some(attempt) = made.first() {
            let seconds = started.elapsed().as_secs_f32();
            console::print(format!("mixed: {} made to {} ({seconds:.1} s)", made.len(), attempt.target));
        }
        Ok(made)
    };
    let made = thread::scope(|scope| {
        let threads: Vec<_> = kinds.into_iter().map(|kind| scope.spawn(|| tell(kind))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a generator's thread panicked"))?)
            .collect::<Result<Vec<_>>>()
    })?;
    let total: usize = made.iter().map(Vec::len).sum();
    let [
        cart_made,
        front_made,
        payments_made,
        dns_made,
        dns_tcp_made,
        api_made,
        checkout_made,
        slow_made,
        probes,
    ] = made.as_slice()
    else {
        bail!("a kind of traffic is missing");
    };
    if total != ALL {
        bail!("{total} connections were made, not {ALL}");
    }

    for served in [cart_made, front_made, payments_made, dns_made, dns_tcp_made, probes] {
        all_ended(served, &Outcome::Done)?;
    }
    for refused in [api_made, checkout_made, slow_made] {
        all_ended(refused, &Outcome::Refused)?;
    }
    let ok = Class::Ok;
    stage.expect_by_server(cart_made, "shop/cart", &[(&cart_1, ok), (&cart_2, Class::C6), (&cart_3, ok)])?;
    stage.expect_by_server(front_made, "shop/frontend", &[(&frontend, ok)])?;
    match &payments {
        Some([one, two]) => {
            stage.expect_by_server(payments_made, "shop/payments", &[(one, ok), (two, ok)])?;
        }
        None => stage.expect_by_server(payments_made, "shop/frontend", &[(&frontend, ok)])?,
    }
    stage.expect_by_server(dns_made, "kube-system/kube-dns", &[(&dns_udp_1, ok), (&dns_udp_2, ok)])?;
    stage.expect_by_server(dns_tcp_made, "kube-system/kube-dns", &[(&dns_1, ok), (&dns_2, ok)])?;
    stage.expect(api_made, refusing.service, Class::C28, &Endpoint::Is(refusing.endpoint));
    stage.expect(checkout_made, "shop/checkout", Class::C20, &Endpoint::Null);
    stage.expect(slow_made, if ipv6 { "shop/checkout" } else { "shop/slow" }, Class::C20, &Endpoint::Null);
    stage.expect_direct(probes, Class::N1);
    Ok(())
}

fn payments(stage: &Stage) -> Result<[Server; 2]> {
    Ok([stage.serve("shop/payments-1", 9090, EXCHANGE)?, stage.serve("shop/payments-2", 9090, EXCHANGE)?])
}

/// Sets the interval between ICMP errors to one client, in milliseconds.
fn limit_errors(world: &World, milliseconds: &str) -> Result<()> {
    let host = &world.topology.host;
    host.sysctl("net.ipv4.icmp_ratelimit", milliseconds)?;
    host.sysctl("net.ipv6.icmp.ratelimit", milliseconds)
}
