//! C30: a rule of the host, which is not kube-proxy's, stops packets on their way to the endpoint: it drops them, or
//! refuses them with an error. NAT had chosen the endpoint; no entry is confirmed, because the rule comes first.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use viptrace_class::Class;

use super::alone::Alone;
use crate::{
    expect::Endpoint,
    rules::Rules,
    traffic::{
        Outcome, Transport, all_ended,
        client::{self, Script},
        server::EXCHANGE,
        udp::{self, Answer},
    },
    world::Stage,
};

/// Enough for two retransmissions of the SYN.
const PATIENCE: Duration = Duration::from_secs(4);
/// Enough to meet both of two endpoints.
const QUERIES: usize = 12;

pub(super) fn dropped(stage: &mut Stage) -> Result<()> {
    stopped(stage, |rules, endpoint| rules.with_drop_to(endpoint, Transport::Tcp))
}

/// The rule refuses with a RST that it forges. It comes from the endpoint's own address, because NAT does not turn back what
/// belongs to an unconfirmed entry: the client's socket does not know it, and waits.
pub(super) fn reset(stage: &mut Stage) -> Result<()> {
    stopped(stage, Rules::with_reset_to)
}

/// Connections to the Service's only endpoint meet the rule that is added here.
fn stopped(stage: &mut Stage, firewall: impl Fn(&Rules, SocketAddr) -> Rules) -> Result<()> {
    let alone = Alone::new(stage)?;
    let _unreached = stage.serve(alone.pod, alone.endpoint.port(), EXCHANGE)?;
    stage.watch()?;
    let rules = firewall(&alone.rules(stage)?, alone.endpoint);
    stage.break_rules(&rules)?;

    let from = stage.place("shop/client-1")?;
    let attempts = client::connect(from, alone.vip, 4, 4, Script::exchange().connect_limit(PATIENCE))?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    stage.expect(&attempts, alone.service, Class::C30, &Endpoint::Is(alone.endpoint));
    Ok(())
}

/// Queries that NAT sends to one resolver meet the rule; the other resolver answers.
pub(super) fn dropped_datagrams(stage: &mut Stage) -> Result<()> {
    const DNS: &str = "kube-system/kube-dns";
    let here = stage.serve_udp("kube-system/coredns-1", 53, Answer::Echo)?;
    let there = stage.serve_udp("kube-system/coredns-2", 53, Answer::Echo)?;
    stage.watch()?;
    let stopped = there.address();
    let rules = stage.rules()?.with_drop_to(stopped, Transport::Udp);
    stage.break_rules(&rules)?;

    let from = stage.place("shop/client-1")?;
    let dns = stage.vip(DNS, "dns")?;
    let mut answered_queries = 0;
    for _ in 0..QUERIES {
        let attempts = udp::query(from, dns, 1, Duration::from_secs(2))?;
        for attempt in &attempts {
            let answered = here.received_from(attempt.client);
            answered_queries += usize::from(answered);
            let (class, endpoint) =
                if answered { (Class::Ok, here.address()) } else { (Class::C30, stopped) };
            stage.expect(std::slice::from_ref(attempt), DNS, class, &Endpoint::Is(endpoint));
        }
    }
    ensure!(
        (1..QUERIES).contains(&answered_queries),
        "{answered_queries} of {QUERIES} queries were answered"
    );
    Ok(())
}
