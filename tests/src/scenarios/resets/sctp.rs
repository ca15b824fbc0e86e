//! SCTP: a Service port of its own beside the captured ones, in kube-proxy's own form. Accepted, refused, and without
//! endpoints.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    command,
    expect::{Class, Endpoint},
    traffic::{
        Outcome, all_ended,
        sctp::{self, SctpServer},
    },
    world::Stage,
};

const SERVICE: &str = "shop/signal";
const PORT: u16 = 3868;

/// A Service `shop/signal` with this endpoint, or none: in the API and in the rules.
fn service(stage: &mut Stage, endpoint: Option<SocketAddr>) -> Result<SocketAddr> {
    command::run("modprobe", &["sctp"])?;
    let vip = SocketAddr::new([10, 96, 10, 70].into(), PORT);
    let meta = |name: &str| {
        json!({"namespace": "shop", "name": name, "uid": format!("00000000-0000-0000-0000-{PORT:012}"),
            "resourceVersion": "1", "creationTimestamp": "2025-01-01T00:00:00Z",
            "labels": {"kubernetes.io/service-name": "signal"}})
    };
    stage.apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": meta("signal"), "spec": {
        "type": "ClusterIP", "clusterIP": vip.ip().to_string(), "clusterIPs": [vip.ip().to_string()],
        "ipFamilies": ["IPv4"], "selector": {"app": "signal"},
        "ports": [{"name": "diameter", "protocol": "SCTP", "port": PORT, "targetPort": PORT}]}}))?;
    let endpoints: Vec<_> = endpoint
        .iter()
        .map(|endpoint| {
            json!({"addresses": [endpoint.ip().to_string()], "nodeName": "worker-1",
                "conditions": {"ready": true, "serving": true, "terminating": false}})
        })
        .collect();
    stage.apply(
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("signal-x"),
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "diameter", "protocol": "SCTP", "port": PORT}]}),
    )?;
    let rules = stage.rules()?.clone().with_service("shop/signal:diameter", "sctp", vip, endpoint);
    stage.break_rules(&rules)?;
    Ok(vip)
}

fn pod(stage: &Stage) -> Result<SocketAddr> {
    Ok(SocketAddr::new(stage.place("shop/api-1")?.address, PORT))
}

pub(in crate::scenarios) fn healthy(stage: &mut Stage) -> Result<()> {
    let endpoint = pod(stage)?;
    let vip = service(stage, Some(endpoint))?;
    let server = SctpServer::start(stage.place("shop/api-1")?, PORT)?;
    stage.watch()?;
    let attempts = sctp::connect(stage.place("shop/client-1")?, vip, 3)?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect(&attempts, SERVICE, Class::Ok, &Endpoint::Is(server.address()));
    Ok(())
}

pub(in crate::scenarios) fn refused(stage: &mut Stage) -> Result<()> {
    let endpoint = pod(stage)?;
    let vip = service(stage, Some(endpoint))?;
    stage.watch()?;
    let attempts = sctp::connect(stage.place("shop/client-1")?, vip, 3)?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, SERVICE, Class::C28, &Endpoint::Is(endpoint));
    Ok(())
}

pub(in crate::scenarios) fn no_endpoints(stage: &mut Stage) -> Result<()> {
    let vip = service(stage, None)?;
    stage.watch()?;
    let attempts = sctp::connect(stage.place("shop/client-1")?, vip, 2)?;
    attempts.first().context("no attempt was made")?;
    stage.expect(&attempts, SERVICE, Class::C20, &Endpoint::Null);
    Ok(())
}
