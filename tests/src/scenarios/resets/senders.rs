//! The sender of a RST: the client, the endpoint, or one of two hosts whose connection only passes through this node.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use crate::{
    expect::{Endpoint, Record},
    matrix::Family,
    traffic::{
        Outcome, all_ended,
        client::{self, Ending, Script},
        server::{self, EXCHANGE},
    },
    world::Stage,
};

pub(in crate::scenarios) fn check_statement(stage: &mut Stage, what: &'static str) {
    stage.check(move |records, _| {
        let text = records.iter().map(Record::statements).collect::<Vec<_>>().join("\n---\n");
        ensure!(text.contains(what), "the record lacks {what:?}: {text}");
        Ok(())
    });
}

/// One client closes with linger 0, another leaves received data unread.
pub(in crate::scenarios) fn client(stage: &mut Stage) -> Result<()> {
    let server = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    let banner = stage.serve("shop/payments-1", 9090, server::Script::Banner { bytes: 64 })?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let api = stage.vip("shop/api", "https")?;
    let attempts = client::connect(from, api, 4, 2, Script::exchange().ending(Ending::Reset))?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect(&attempts, "shop/api", Class::N4, &Endpoint::Is(server.address()));

    let rules = stage.rules()?.clone();
    let there = stage.place("shop/payments-2")?.address;
    stage.break_rules(&rules.with_endpoint_moved(there, banner.address().ip()))?;
    let payments = stage.vip("shop/payments", "grpc")?;
    // The client sends data first: a client that sends nothing may have tried several addresses at once (N17).
    let script = Script { response: 0, ..Script::exchange() }.ending(Ending::CloseUnread);
    let attempts = client::connect(from, payments, 2, 1, script)?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect(&attempts, "shop/payments", Class::N4, &Endpoint::Is(banner.address()));
    check_statement(stage, "the client's socket sent a RST");
    check_statement(stage, "the endpoint's socket received a RST");
    Ok(())
}

/// An application resets the connection that it accepted: the dataplane worked.
pub(in crate::scenarios) fn endpoint(stage: &mut Stage) -> Result<()> {
    let resets = server::Script::ResetOnRequest { request: client::REQUEST };
    let server = stage.serve("shop/api-1", 8443, resets)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let api = stage.vip("shop/api", "https")?;
    let attempts = client::connect(from, api, 4, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Reset)?;
    stage.expect(&attempts, "shop/api", Class::Ok, &Endpoint::Is(server.address()));
    check_statement(stage, "the endpoint's socket sent a RST");
    check_statement(stage, "the client's socket received a RST");
    check_statement(stage, "reset by the endpoint: check the application there");
    Ok(())
}

/// A client on another node uses this node's port, and the endpoint is on another node too: neither socket is here, and
/// the trace of the Service observes that the RST passes.
pub(in crate::scenarios) fn transit(stage: &mut Stage) -> Result<()> {
    let resets = server::Script::ResetOnRequest { request: client::REQUEST };
    let server = stage.serve("shop/frontend-1", 8443, resets)?;
    let (from, to) = (stage.place("shop/api-1")?.address, server.address().ip());
    let mut slice = stage.world.cluster.slice_of("shop/api", Family::V4)?;
    let endpoint = slice.pointer_mut("/endpoints/0").context("the slice has no endpoint")?;
    endpoint["addresses"][0] = to.to_string().into();
    endpoint["nodeName"] = "worker-2".into();
    if let Some(endpoint) = endpoint.as_object_mut() {
        endpoint.remove("targetRef");
    }
    stage.apply(slice)?;
    stage.break_rules(&stage.rules()?.clone().with_endpoint_moved(from, to))?;
    stage.after_grace();
    stage.watch_with(&["shop/api"])?;
    let client = stage.place("shop/cache-1")?;
    let node_port = SocketAddr::new(stage.world.topology.node.network(Family::V4)?.address, 30443);
    let attempts = client::connect(client, node_port, 3, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Reset)?;
    stage.expect(&attempts, "shop/api", Class::Ok, &Endpoint::Is(server.address()));
    check_statement(stage, "a RST from the endpoint's side passed");
    Ok(())
}
