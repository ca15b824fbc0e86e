//! UDP: answered, not answered, refused on this node and on another, an entry that outlives its endpoint (C8), and two
//! datagrams that race for one entry (N10).

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

/// Masquerades traffic to the resolvers before kube-proxy's chains do, and queues it between NAT (priority 100) and the
/// confirmation of its entry, which is last.
const MEETING: &str = "table ip meeting {
    chain nat { type nat hook postrouting priority 90; udp dport 53 masquerade; }
    chain wait { type filter hook postrouting priority 200; ct state new udp dport 53 queue num 53; }
}";
const MEETING_QUEUE: u16 = 53;

const DNS: &str = "kube-system/kube-dns";
/// A resolver's timeout.
const PATIENCE: Duration = Duration::from_secs(6);

fn resolvers(stage: &Stage, answer: Answer) -> Result<[UdpServer; 2]> {
    let start = |pod| UdpServer::start(&stage.world.pod(pod)?.place, 53, answer);
    Ok([start("kube-system/coredns-1")?, start("kube-system/coredns-2")?])
}

/// The resolvers receive and never answer: every query is a C29, because DNS servers answer.
pub(in crate::scenarios) fn unanswered(stage: &mut Stage) -> Result<()> {
    let [here, there] = resolvers(stage, Answer::Nothing)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let attempts = udp::query(from, dns, 2, PATIENCE)?;
    all_ended(&attempts, &Outcome::Silent)?;
    stage.expect_by_server(&attempts, DNS, &[(&here, Class::C29), (&there, Class::C29)])
}

/// The verdict of an answered datagram is certain even if the trace ends at once.
pub(in crate::scenarios) fn answered(stage: &mut Stage) -> Result<()> {
    let [here, there] = resolvers(stage, Answer::Echo)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let attempts = udp::query(from, dns, 10, Duration::from_secs(20))?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(&attempts, DNS, &[(&here, Class::Ok), (&there, Class::Ok)])?;
    stage.check(|records, _| {
        for record in records {
            ensure!(
                record.text("/confidence") == "high" && record.statements().contains("had seen a reply"),
                "the answer was not observed: {record}; {}",
                record.statements()
            );
        }
        Ok(())
    });
    Ok(())
}

/// Nothing listens in either Pod. On this node the stack refuses directly, on the other one by ICMP.
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
        let attempts = udp::query(from, dns, 3, PATIENCE)?;
        all_ended(&attempts, &Outcome::Refused)?;
        stage.expect(&attempts, DNS, Class::C28, &Endpoint::Is(endpoint));
    }
    stage.check(move |records, _| {
        let is_reported = |record: &&crate::expect::Record| {
            record.statements().contains(&format!("ICMP port unreachable from {}", there.ip()))
        };
        ensure!(
            records.iter().any(|record| is_reported(&record)),
            "no ICMP error of the other node was observed"
        );
        Ok(())
    });
    Ok(())
}

/// A sender that receives no answer keeps its entry alive after the endpoint has gone, and new rules do not affect it.
pub(in crate::scenarios) fn stale_entry(stage: &mut Stage) -> Result<()> {
    stale(stage, Answer::Nothing)
}

/// The same after answers: the Pod ended, and nothing that the trace observes of the entry changed.
pub(in crate::scenarios) fn stale_answered_entry(stage: &mut Stage) -> Result<()> {
    stale(stage, Answer::First(3))
}

fn stale(stage: &mut Stage, answer: Answer) -> Result<()> {
    let [here, there] = resolvers(stage, answer)?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let sender = udp::keep_sending(from, dns)?;
    let chosen = crate::wait::until("the sender's first datagram", Duration::from_secs(20), || {
        [&here, &there].into_iter().find(|server| server.received_from(sender.client))
    })?;
    let pod =
        if chosen.address() == here.address() { "kube-system/coredns-1" } else { "kube-system/coredns-2" };
    let chosen = chosen.address();
    stage.watch()?;
    let slice = stage.world.cluster.slice_without(DNS, chosen.ip())?;
    stage.apply(slice)?;
    stage.delete("Pod", pod)?;
    // kube-proxy rewrites the rules and does not delete the entry.
    let other = if chosen == here.address() { there.address() } else { here.address() };
    let rules = stage.rules()?.clone().with_endpoint_moved(chosen.ip(), other.ip());
    stage.break_rules(&rules)?;
    stage.after_grace();
    stage.expect(&[sender.attempt()], DNS, Class::C8, &Endpoint::Is(chosen));
    stage.keep((sender, here, there));
    Ok(())
}

/// Two Pods send from the same port, and a masquerade that keeps ports gives both the node's address: their entries
/// expect the same answer, and the second cannot be inserted. Its client gets no error.
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
    let send = |place: &Place| {
        let place = place.clone();
        std::thread::spawn(move || udp::query(&place, dns, 1, PATIENCE))
    };
    let first = send(one);
    queue.holds(1)?;
    let second = send(other);
    queue.holds(2)?;
    queue.release()?;
    for (client, outcome, class) in
        [(first, Outcome::Done, Class::Ok), (second, Outcome::Silent, Class::C17a)]
    {
        let attempts = client.join().map_err(|_| anyhow!("a client panicked"))??;
        all_ended(&attempts, &outcome)?;
        stage.expect(&attempts, DNS, class, &Endpoint::Is(here.address()));
    }
    stage.keep(queue);
    Ok(())
}

/// Pairs from one socket, sent by two threads at once, as a resolver queries A and AAAA: some race for one entry.
pub(in crate::scenarios) fn race(stage: &mut Stage) -> Result<()> {
    let [_here, _there] = resolvers(stage, Answer::Echo)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let pairs = udp::query_in_pairs(from, dns, 500)?;
    let lost = pairs.iter().filter(|pair| pair.answers < 2).count();
    stage.check(move |records, _| {
        let of = |class| records.iter().filter(|record| record.class() == Some(class)).count();
        let (resolved, insertion_failed) = (of(Class::N10), of(Class::C17a));
        crate::console::print(format!(
            "{resolved} races resolved, {insertion_failed} lost; {lost} pairs without an answer"
        ));
        ensure!(resolved > 0, "no race for an entry was observed");
        if insertion_failed > lost {
            bail!("{insertion_failed} datagrams are reported as lost, but {lost} were");
        }
        Ok(())
    });
    Ok(())
}
