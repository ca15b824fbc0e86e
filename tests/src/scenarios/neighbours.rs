//! Several nodes on one kernel, as kind, k3d and minikube set them up: the programs observe the traffic of all of them,
//! and each flow is its own node's to report.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use viptrace_class::Class;

use super::failures::started;
use crate::{
    expect::{Endpoint, Record},
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Script},
        server::{EXCHANGE, Server},
        udp::{self, Answer},
    },
    world::{Reached, Stage},
};

/// Connections of this node to `shop/cart`.
const SERVED: usize = 6;
/// Connections of each node to each Service that refuses them.
const REFUSED: usize = 2;

/// Every flow of this node has its record, and none of the other one's.
pub(super) fn traced(stage: &mut Stage) -> Result<()> {
    let [first, second, third] = serve(stage)?;
    stage.watch()?;
    let served = traffic(stage)?;
    let by = [&first, &second, &third].map(|server| (server as &dyn Reached, Class::Ok));
    stage.expect_by_server(&served, "shop/cart", &by)?;
    leave_to_neighbour(stage)
}

/// The kernel keeps and counts the decisions of this node only. A connection that fails on the other node has that of this
/// one, although the other node confirmed it later.
pub(super) fn recorded(stage: &mut Stage) -> Result<()> {
    let _servers = serve(stage)?;
    stage.watch_with(&["--hooks", "failures", "--sample", "0"])?;
    stage.ends_are_unseen();
    let served = traffic(stage)?;
    stage.expect_hardly_recorded(&served);
    stage.check(|_, ended| {
        for (service, made) in
            [("shop/cart:http", SERVED), ("shop/frontend:http", REFUSED), ("shop/api:https", REFUSED)]
        {
            let counted = started(&ended.stderr, service)?;
            ensure!(
                counted == made,
                "{counted} connections to {service} were counted, this node made {made}"
            );
        }
        Ok(())
    });
    leave_to_neighbour(stage)
}

/// Two Pods whose own namespaces track connections, as a sidecar's redirections make them.
const TRACKING: [&str; 2] = ["shop/client-1", "shop/api-1"];
const REDIRECTION: [&str; 8] =
    ["PREROUTING", "-p", "tcp", "--dport", "15008", "-j", "REDIRECT", "--to-ports=15006"];

/// Gives the other node kube-proxy's rules and two Pods rules of their own, and starts the servers. `shop/frontend`
/// refuses, on the other node.
fn serve(stage: &mut Stage) -> Result<[Server; 3]> {
    let server = |pod| stage.serve(pod, 8080, EXCHANGE);
    let servers = [server("shop/cart-1")?, server("shop/cart-2")?, server("shop/cart-3")?];
    stage.keep_serving_udp(&["kube-system/coredns-1", "kube-system/coredns-2"], 53, Answer::Echo)?;
    let other = stage.world.pod("shop/frontend-1")?.node.clone();
    let (rules, node) = (stage.rules()?.clone(), other.clone());
    let installed = rules.clone();
    stage.break_with(move |_| installed.restore(&node), move |_| rules.clear(&other))?;
    for pod in TRACKING {
        let netns = stage.place(pod)?.netns.clone();
        let change = move |verb: &str| -> Result<()> {
            netns.command("iptables", &[&["-t", "nat", verb], REDIRECTION.as_slice()].concat()).map(drop)
        };
        let repair = change.clone();
        stage.break_with(move |_| change("-A"), move |_| repair("-D"))?;
    }
    Ok(servers)
}

/// Connections of both nodes' Pods. Returns those of this node to `shop/cart`; the other node's concern no record.
fn traffic(stage: &mut Stage) -> Result<Vec<Attempt>> {
    let neighbour = "shop/db-0";
    connect(stage, neighbour, ("shop/cart", "http"), SERVED + 3, &Outcome::Done)?;
    for service in [("shop/api", "https"), ("shop/frontend", "http"), ("shop/checkout", "http")] {
        connect(stage, neighbour, service, REFUSED, &Outcome::Refused)?;
    }
    let dns = stage.vip("kube-system/kube-dns", "dns")?;
    all_ended(&udp::query(stage.place(neighbour)?, dns, 10, Duration::from_secs(20))?, &Outcome::Done)?;

    let own = "shop/client-1";
    let without = connect(stage, own, ("shop/checkout", "http"), REFUSED, &Outcome::Refused)?;
    stage.expect(&without, "shop/checkout", Class::C20, &Endpoint::Null);
    for (service, port, pod, target) in
        [("shop/api", "https", "shop/api-1", 8443), ("shop/frontend", "http", "shop/frontend-1", 8080)]
    {
        let refused = connect(stage, own, (service, port), REFUSED, &Outcome::Refused)?;
        let endpoint = SocketAddr::new(stage.place(pod)?.address, target);
        stage.expect(&refused, service, Class::C28, &Endpoint::Is(endpoint));
    }
    connect(stage, own, ("shop/cart", "http"), SERVED, &Outcome::Done)
}

fn connect(
    stage: &Stage,
    client: &str,
    (service, port): (&str, &str),
    count: usize,
    outcome: &Outcome,
) -> Result<Vec<Attempt>> {
    let attempts =
        client::connect(stage.place(client)?, stage.vip(service, port)?, count, 1, Script::exchange())?;
    all_ended(&attempts, outcome)?;
    Ok(attempts)
}

/// Expects no record of the other node's connections, and a line that says so.
fn leave_to_neighbour(stage: &mut Stage) -> Result<()> {
    let neighbour = format!("{}:", stage.place("shop/db-0")?.address);
    stage.check(move |records, ended| {
        let of_neighbour = |record: &&Record| record.text("/flow/client").starts_with(&neighbour);
        let theirs: Vec<String> = records.iter().filter(of_neighbour).map(ToString::to_string).collect();
        ensure!(theirs.is_empty(), "records of another node's connections:\n{}", theirs.join("\n"));
        ensure!(
            ended.stderr.contains(" of worker-2, on the same kernel as this node"),
            "the summary does not say that flows were left to another node: {}",
            ended.stderr
        );
        Ok(())
    });
    Ok(())
}
