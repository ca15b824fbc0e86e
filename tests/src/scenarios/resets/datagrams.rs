//! UDP: answered, not answered, refused near and far, an entry that outlives its endpoint (C8), and two datagrams that
//! race for one entry (N10).

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, bail, ensure};

use crate::{
    expect::{Class, Endpoint},
    traffic::{
        Outcome, all_ended,
        udp::{self, Answer, UdpServer},
    },
    world::Stage,
};

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

/// Pairs from one socket, sent by two threads at once, as a resolver asks for A and AAAA: some race for one entry.
pub(in crate::scenarios) fn race(stage: &mut Stage) -> Result<()> {
    let [_here, _there] = resolvers(stage, Answer::Echo)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let asked = udp::ask_in_pairs(from, dns, 500)?;
    let lost = asked.iter().filter(|pair| pair.answers < 2).count();
    stage.check(move |records, _| {
        let of = |class: &str| records.iter().filter(|record| record.class() == class).count();
        let (resolved, insertion_failed) = (of("N10"), of("C17a"));
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
