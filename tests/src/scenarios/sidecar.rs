//! A service mesh: rules in the client's own namespace redirect what its programs send to a proxy there. kube-proxy's rules
//! are not asked, and the record names the proxy.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    topology::Place,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::{EXCHANGE, Server},
    },
    world::Stage,
};

const PROXY_PORT: u16 = 15_001;

pub(super) fn traced(stage: &mut Stage) -> Result<()> {
    redirect(stage)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let proxy = Place { address: IpAddr::V4(Ipv4Addr::LOCALHOST), ..from.clone() };
    let served = {
        let _proxy = Server::start(&proxy, PROXY_PORT, EXCHANGE)?;
        client::connect(from, stage.vip("shop/cart", "http")?, 3, 1, Script::exchange())?
    };
    all_ended(&served, &Outcome::Done)?;
    stage.expect(&served, "shop/cart", Class::Ok, &Endpoint::Null);
    refuse(stage)
}

/// The kernel hands the redirection over with the failure, and counts no connection to the Service.
pub(super) fn recorded(stage: &mut Stage) -> Result<()> {
    redirect(stage)?;
    stage.watch_with(&["--hooks", "failures", "--sample", "0"])?;
    stage.ends_are_unseen();
    stage.check(|_, ended| {
        ensure!(
            !ended.stderr.contains("Connections started"),
            "connections to a proxy were counted as a Service's: {}",
            ended.stderr
        );
        Ok(())
    });
    refuse(stage)
}

/// Redirects what `shop/client-1` sends to `shop/cart`.
fn redirect(stage: &mut Stage) -> Result<()> {
    let netns = stage.place("shop/client-1")?.netns.clone();
    let (vip, port) = (stage.vip("shop/cart", "http")?.ip().to_string(), format!("--to-ports={PROXY_PORT}"));
    let change = move |verb: &str| -> Result<()> {
        let rule = ["-t", "nat", verb, "OUTPUT", "-p", "tcp", "-d", &vip, "-j", "REDIRECT", &port];
        netns.command("iptables", &rule).map(drop)
    };
    let repair = change.clone();
    stage.other_rules_decide();
    stage.break_with(move |_| change("-A"), move |_| repair("-D"))
}

/// The proxy does not run.
fn refuse(stage: &mut Stage) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let refused = client::connect(from, stage.vip("shop/cart", "http")?, 2, 1, Script::exchange())?;
    all_ended(&refused, &Outcome::Refused)?;
    stage.expect(&refused, "shop/cart", Class::Unknown, &Endpoint::Null);
    stage.check(|records, _| {
        for record in records.iter().filter(|record| record.class() == Some(Class::Unknown)) {
            ensure!(
                record.statements().contains("a proxy in the client's own Pod (127.0.0.1:15001"),
                "the record does not name the proxy: {record}"
            );
        }
        Ok(())
    });
    Ok(())
}
