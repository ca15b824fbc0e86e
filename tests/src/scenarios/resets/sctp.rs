//! SCTP: an additional Service in kube-proxy's form. Accepted, refused, and without endpoints.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use viptrace_class::Class;

use crate::{
    command,
    expect::Endpoint,
    published::{Member, Port, Published},
    traffic::{
        Outcome, Transport, all_ended,
        sctp::{self, SctpServer},
    },
    world::Stage,
};

const SERVICE: &str = "shop/signal";
const PORT: u16 = 3868;
const POD: &str = "shop/api-1";

/// Adds the Service `shop/signal` with this endpoint, or without one, to the API and to the rules.
fn service(stage: &mut Stage, endpoint: Option<IpAddr>) -> Result<SocketAddr> {
    command::run("modprobe", &["sctp"])?;
    let vip = SocketAddr::new([10, 96, 10, 70].into(), PORT);
    let port =
        Port { name: "diameter", protocol: Transport::Sctp, number: PORT, target: PORT, node_port: None };
    stage.publish(&[Published {
        name: "signal".to_owned(),
        cluster_ip: Some(vip.ip()),
        external_ip: None,
        load_balancer_ip: None,
        ports: vec![port],
        family: stage.family(),
        endpoint: endpoint.map(|address| Member { address, pod: Some(POD) }),
        selects: true,
    }])?;
    Ok(vip)
}

fn pod(stage: &Stage) -> Result<SocketAddr> {
    Ok(SocketAddr::new(stage.place(POD)?.address, PORT))
}

pub(in crate::scenarios) fn healthy(stage: &mut Stage) -> Result<()> {
    let endpoint = pod(stage)?;
    let vip = service(stage, Some(endpoint.ip()))?;
    let server = SctpServer::start(stage.place(POD)?, PORT)?;
    stage.watch()?;
    let attempts = sctp::connect(stage.place("shop/client-1")?, vip, 3)?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect(&attempts, SERVICE, Class::Ok, &Endpoint::Is(server.address()));
    Ok(())
}

pub(in crate::scenarios) fn refused(stage: &mut Stage) -> Result<()> {
    let endpoint = pod(stage)?;
    let vip = service(stage, Some(endpoint.ip()))?;
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
    // An SCTP client goes on after "port unreachable" (`sctp_err_finish`, net/sctp/input.c).
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    stage.expect(&attempts, SERVICE, Class::C20, &Endpoint::Null);
    Ok(())
}
