//! Connections that conntrack breaks: it classifies an answer as invalid (C18), or it loses the entry (C19).

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    matrix::Family,
    rules,
    scenarios::check_kernel::modules_have_btf,
    topology::Place,
    traffic::{
        Outcome,
        client::{self, Ending, Held, Script},
        raw,
        server::{self, Server},
    },
    world::Stage,
};

const CHAT: server::Script = server::Script::Chat { request: client::REQUEST, response: client::RESPONSE };
/// Far outside any window.
const FAR: u32 = 500_000_000;

fn hold(stage: &Stage, service: &str, port: &str) -> Result<Held> {
    let vip = stage.vip(service, port)?;
    client::hold(stage.place("shop/client-1")?, vip, Script::exchange())
}

/// Sends an answer far outside the window from the Pod's network, like a late segment or one from faulty offloading.
fn answer_out_of_window(stage: &Stage, server: &Server, held: &Held) -> Result<()> {
    let (sent, expected) = held.sequences()?;
    let place = stage.place("shop/api-1")?;
    raw::send_segment(place, server.address(), held.client, expected.wrapping_add(FAR), sent)
}

/// Whether the place has an established TCP socket with this port at the other end.
fn is_connected(place: &Place, port: u16) -> Result<bool> {
    let table = place.netns.run(|| fs::read_to_string("/proc/thread-self/net/tcp"))??;
    // local_address rem_address st, in hexadecimal (proc(5)).
    let port = format!(":{port:04X}");
    Ok(table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|peer| peer.ends_with(&port)) && fields.next() == Some("01")
    }))
}

/// The rules of a mode or kube-proxy version that does not drop invalid packets.
pub(in crate::scenarios) fn out_of_window(stage: &mut Stage) -> Result<()> {
    let server = stage.serve("shop/api-1", 8443, CHAT)?;
    stage.break_rules(&stage.rules()?.clone().without_line("--ctstate INVALID -j DROP"))?;
    stage.watch()?;
    let mut held = hold(stage, "shop/api", "https")?;
    answer_out_of_window(stage, &server, &held)?;
    let place = stage.place("shop/api-1")?;
    crate::wait::until("the client's stack to reset the endpoint", Duration::from_secs(20), || {
        is_connected(place, held.client.port()).is_ok_and(|connected| !connected).then_some(())
    })?;
    let seen = held.exchange(&Script::exchange());
    if seen != Outcome::Reset {
        bail!("the connection ended as {seen:?}, expected a reset");
    }
    let attempt = held.end(Ending::Close, seen);
    stage.expect(&[attempt], "shop/api", Class::C18, &Endpoint::Is(server.address()));
    stage.check(|records, _| {
        let text = records.iter().map(crate::expect::Record::statements).collect::<String>();
        let mut wanted = vec!["that came from the endpoint's own address"];
        if modules_have_btf() {
            wanted.extend(["SEQ is ", "conntrack called an answer"]);
        } else {
            let gap = "whether conntrack called the answer invalid";
            ensure!(
                records.iter().any(|record| record.unobserved().contains(gap)),
                "the records lack {gap:?}"
            );
        }
        for what in wanted {
            ensure!(text.contains(what), "the record lacks {what:?}: {text}");
        }
        Ok(())
    });
    Ok(())
}

/// With the rule: the answer is dropped, and nothing breaks.
pub(in crate::scenarios) fn dropped(stage: &mut Stage) -> Result<()> {
    let server = stage.serve("shop/api-1", 8443, CHAT)?;
    stage.watch()?;
    let mut held = hold(stage, "shop/api", "https")?;
    answer_out_of_window(stage, &server, &held)?;
    let seen = held.exchange(&Script::exchange());
    if seen != Outcome::Done {
        bail!("the connection ended as {seen:?}, expected to survive");
    }
    let attempt = held.end(Ending::Close, seen);
    stage.expect(&[attempt], "shop/api", Class::Ok, &Endpoint::Is(server.address()));
    Ok(())
}

/// The table is flushed. Conntrack picks up the next segment mid-stream, and NAT chooses an endpoint again.
pub(in crate::scenarios) fn flushed(stage: &mut Stage) -> Result<()> {
    let first = stage.serve("shop/api-1", 8443, CHAT)?;
    stage.watch()?;
    let mut held = hold(stage, "shop/api", "https")?;
    // The API and the rules name another valid endpoint before the connection continues.
    let (from, to) = (stage.place("shop/api-1")?.address, stage.place("shop/payments-1")?.address);
    let mut slice = stage.world.cluster.slice_of("shop/api", Family::V4)?;
    let endpoints = slice["endpoints"].as_array_mut().context("the slice has no endpoints")?;
    let mut other = endpoints.first().cloned().context("the slice has no endpoint")?;
    other["addresses"][0] = to.to_string().into();
    if let Some(other) = other.as_object_mut() {
        other.remove("targetRef");
    }
    endpoints.push(other);
    stage.apply(slice)?;
    let second = stage.serve("shop/payments-1", 8443, CHAT)?;
    stage.break_rules(&stage.rules()?.clone().with_endpoint_moved(from, to))?;
    stage.after_grace();
    rules::flush_conntrack(&stage.world.topology.host)?;
    let seen = held.exchange(&Script::exchange());
    if seen != Outcome::Reset {
        bail!("the connection ended as {seen:?}, expected a reset");
    }
    let attempt = held.end(Ending::Close, seen);
    stage.expect(&[attempt], "shop/api", Class::C19, &Endpoint::Is(first.address()));
    let chosen = second.address().to_string();
    stage.check(move |records, _| {
        let text = records.iter().map(crate::expect::Record::statements).collect::<String>();
        for what in ["mid-stream", "was deleted through netlink", chosen.as_str()] {
            ensure!(text.contains(what), "the record lacks {what:?}: {text}");
        }
        Ok(())
    });
    Ok(())
}
