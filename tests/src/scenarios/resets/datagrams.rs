//! UDP: answered, not answered, refused near and far, an entry that outlives its endpoint (C8), and two datagrams that
//! race for one entry (N10).

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, anyhow, bail, ensure};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    topology::Place,
    traffic::{
        Outcome, all_ended,
        queue::Queue,
        udp::{self, Answer, UdpServer},
    },
    world::Stage,
};

/// Masquerades what goes to the resolvers before kube-proxy's chains can, and lets it wait between NAT (priority 100) and
/// the confirmation of its entry, which comes last.
const MEETING: &str = "table ip meeting {
    chain nat { type nat hook postrouting priority 90; udp dport 53 masquerade; }
    chain wait { type filter hook postrouting priority 200; ct state new udp dport 53 queue num 53; }
}";
const MEETING_QUEUE: u16 = 53;

const DNS: &str = "kube-system/kube-dns";
/// A resolver's patience.
const PATIENCE: Duration = Duration::from_secs(6);

fn resolvers(stage: &Stage, answer: Answer) -> Result<[UdpServer; 2]> {
    let start = |pod| UdpServer::start(&stage.world.pod(pod)?.place, 53, answer);
    Ok([start("kube-system/coredns-1")?, start("kube-system/coredns-2")?])
}

/// The resolvers hear and say nothing: every question is a C29, for DNS answers.
pub(in crate::scenarios) fn unanswered(stage: &mut Stage) -> Result<()> {
    let [here, there] = resolvers(stage, Answer::Nothing)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let attempts = udp::ask(from, dns, 2, PATIENCE)?;
    all_ended(&attempts, &Outcome::Silent)?;
    stage.expect_by_server(&attempts, DNS, &[(&here, Class::C29), (&there, Class::C29)])
}

/// Answered datagrams are known to be: their verdict is certain although the trace ends at once.
pub(in crate::scenarios) fn answered(stage: &mut Stage) -> Result<()> {
    let [here, there] = resolvers(stage, Answer::Echo)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let attempts = udp::ask(from, dns, 10, Duration::from_secs(20))?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(&attempts, DNS, &[(&here, Class::Ok), (&there, Class::Ok)])?;
    stage.check(|records, _| {
        for record in records {
            ensure!(
                record.text("/confidence") == "high" && record.said().contains("had seen a reply"),
                "the answer was not seen: {record}; {}",
                record.said()
            );
        }
        Ok(())
    });
    Ok(())
}

/// Nothing listens in either Pod. The one on this node says so to its stack, the other by ICMP.
pub(in crate::scenarios) fn refused(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let endpoint = |pod| -> Result<SocketAddr> { Ok(SocketAddr::new(stage.place(pod)?.address, 53)) };
    let (here, there) = (endpoint("kube-system/coredns-1")?, endpoint("kube-system/coredns-2")?);
    let rules = stage.rules()?.clone();
    let only = |gone: &SocketAddr, kept: &SocketAddr| rules.with_endpoint_moved(gone.ip(), kept.ip());
    let plans = [(only(&there, &here), here), (only(&here, &there), there)];
    for (rules, endpoint) in plans {
        stage.break_rules(&rules)?;
        let attempts = udp::ask(from, dns, 3, PATIENCE)?;
        all_ended(&attempts, &Outcome::Refused)?;
        stage.expect(&attempts, DNS, Class::C28, &Endpoint::Is(endpoint));
    }
    stage.check(move |records, _| {
        let told = |record: &&crate::expect::Record| {
            record.said().contains(&format!("ICMP port unreachable from {}", there.ip()))
        };
        ensure!(records.iter().any(|record| told(&record)), "no ICMP error of the other node was seen");
        Ok(())
    });
    Ok(())
}

/// A sender that never hears anything keeps its entry alive beyond its endpoint's life, and no rule helps.
pub(in crate::scenarios) fn stale_entry(stage: &mut Stage) -> Result<()> {
    let [here, there] = resolvers(stage, Answer::Nothing)?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let sender = udp::keep_sending(from, dns)?;
    let chosen = crate::wait::until("the sender's first datagram", Duration::from_secs(20), || {
        [&here, &there].into_iter().find(|server| server.heard(sender.client))
    })?;
    let chosen = chosen.address();
    stage.watch()?;
    let slice = stage.world.cluster.slice_without(DNS, chosen.ip())?;
    stage.apply(slice)?;
    // kube-proxy writes the rules anew, and does not clean the entry.
    let other = if chosen == here.address() { there.address() } else { here.address() };
    let rules = stage.rules()?.clone().with_endpoint_moved(chosen.ip(), other.ip());
    stage.break_rules(&rules)?;
    stage.after_grace();
    stage.expect(&[sender.attempt()], DNS, Class::C8, &Endpoint::Is(chosen));
    stage.keep((sender, here, there));
    Ok(())
}

/// Two Pods ask from the same port, and a masquerade that keeps ports gives both the node's address: their entries expect
/// the same answer, and the second cannot be inserted. Nothing tells its client.
pub(in crate::scenarios) fn lost_race(stage: &mut Stage) -> Result<()> {
    let [here, _there] = resolvers(stage, Answer::Echo)?;
    let there = stage.world.pod("kube-system/coredns-2")?.place.address;
    let rules = stage.rules()?.clone().with_endpoint_moved(there, here.address().ip());
    stage.break_rules(&rules)?;
    stage.break_with(
        |world| world.topology.host.command("nft", &[MEETING]).map(drop),
        |world| world.topology.host.command("nft", &["delete", "table", "ip", "meeting"]).map(drop),
    )?;
    let mut queue = Queue::open(&stage.world.topology.host, MEETING_QUEUE)?;
    stage.watch()?;
    let (one, other) = (stage.place("shop/client-1")?, stage.place("shop/payments-1")?);
    udp::share_next_port(one, other);
    let dns = stage.vip(DNS, "dns")?;
    let ask = |place: &Place| {
        let place = place.clone();
        std::thread::spawn(move || udp::ask(&place, dns, 1, PATIENCE))
    };
    let first = ask(one);
    queue.holds(1)?;
    let second = ask(other);
    queue.holds(2)?;
    queue.let_go()?;
    for (asking, outcome, class) in
        [(first, Outcome::Done, Class::Ok), (second, Outcome::Silent, Class::C17a)]
    {
        let attempts = asking.join().map_err(|_| anyhow!("a client panicked"))??;
        all_ended(&attempts, &outcome)?;
        stage.expect(&attempts, DNS, class, &Endpoint::Is(here.address()));
    }
    stage.keep(queue);
    Ok(())
}

/// Pairs from one socket, sent by two threads at once, as a resolver asks for A and AAAA: some race for one entry.
pub(in crate::scenarios) fn race(stage: &mut Stage) -> Result<()> {
    let [_here, _there] = resolvers(stage, Answer::Echo)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let asked = udp::ask_in_pairs(from, dns, 500)?;
    let lost = asked.iter().filter(|pair| pair.answers < 2).count();
    stage.check(move |records, _| {
        let of = |class| records.iter().filter(|record| record.class() == Some(class)).count();
        let (resolved, insertion_failed) = (of(Class::N10), of(Class::C17a));
        crate::console::say(format!(
            "{resolved} races resolved, {insertion_failed} lost; {lost} pairs lack an answer"
        ));
        ensure!(resolved > 0, "no pair raced for an entry, or nobody saw it");
        if insertion_failed > lost {
            bail!("{insertion_failed} datagrams are said to be lost, {lost} were");
        }
        Ok(())
    });
    Ok(())
}
