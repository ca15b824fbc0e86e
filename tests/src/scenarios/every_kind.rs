//! Every kind of Service over every protocol, all served: through its cluster IP, from outside through a node port and
//! a load balancer IP, through an external IP, and with a manual slice whose address belongs to no Pod. The kinds
//! without an address, headless and `ExternalName` (C27), are reached at the address that DNS would return. A trace of
//! them is refused with the reason.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use viptrace_class::Class;

use crate::{
    command,
    dataplane::Family,
    expect::Endpoint,
    invocation::Invocation,
    published::{Member, Port, Published},
    topology::Place,
    traffic::{
        Attempt, Outcome, Transport, all_ended,
        client::{self, Script},
        sctp::{self, SctpServer},
        server::{EXCHANGE, Server},
        udp::{self, Answer, UdpServer},
    },
    world::{NODE, Stage},
};

/// The ports of each Service and of its server.
const NUMBER: u16 = 707;
const TARGET: u16 = 7070;
const NODE_PORT: u16 = 30_707;
const PROTOCOLS: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::Sctp];
/// The number of attempts at each address.
const ATTEMPTS: usize = 2;
/// The limit for a datagram's answer on an emulated machine.
const LIMIT: Duration = Duration::from_secs(20);
/// The limit for the refusal of a trace on an emulated machine.
const REFUSAL_LIMIT: Duration = Duration::from_mins(1);
const POD: &str = "shop/api-1";

/// Addresses that no captured Service has.
struct Addresses {
    cluster: IpAddr,
    by_hand: IpAddr,
    external: IpAddr,
    load_balancer: IpAddr,
    /// The prefix of the last two addresses, which the outside must route to the node.
    range: &'static str,
}

fn addresses(family: Family) -> Result<Addresses> {
    let [cluster, by_hand, external, load_balancer, range] = match family {
        Family::V4 => ["10.96.10.90", "10.96.10.91", "203.0.113.51", "203.0.113.81", "203.0.113.0/24"],
        Family::V6 => {
            ["fd00:96::90", "fd00:96::91", "2001:db8:113::51", "2001:db8:113::81", "2001:db8:113::/48"]
        }
    };
    Ok(Addresses {
        cluster: cluster.parse()?,
        by_hand: by_hand.parse()?,
        external: external.parse()?,
        load_balancer: load_balancer.parse()?,
        range,
    })
}

/// One port for each protocol, all with the same number.
fn ports(node_port: Option<u16>) -> Vec<Port> {
    let name = |protocol| match protocol {
        Transport::Tcp => "by-tcp",
        Transport::Udp => "by-udp",
        Transport::Sctp => "by-sctp",
    };
    let port = |protocol| Port { name: name(protocol), protocol, number: NUMBER, target: TARGET, node_port };
    PROTOCOLS.into_iter().map(port).collect()
}

/// `shop/relay` with every address that a Service can have, `shop/handmade` and `shop/bare`.
fn services(stage: &Stage, addresses: &Addresses, outside: IpAddr) -> Result<[Published; 3]> {
    let pod = Member { address: stage.place(POD)?.address, pod: Some(POD) };
    let plain = |name: &str, cluster_ip, endpoint, selects| Published {
        name: name.to_owned(),
        cluster_ip,
        external_ip: None,
        load_balancer_ip: None,
        ports: ports(None),
        family: stage.family(),
        endpoint: Some(endpoint),
        selects,
    };
    let relay = Published {
        external_ip: Some(addresses.external),
        load_balancer_ip: Some(addresses.load_balancer),
        ports: ports(Some(NODE_PORT)),
        ..plain("relay", Some(addresses.cluster), pod, true)
    };
    let elsewhere = Member { address: outside, pod: None };
    Ok([relay, plain("handmade", Some(addresses.by_hand), elsewhere, false), plain("bare", None, pod, true)])
}

/// Servers for all three protocols at one address, until the value is dropped.
struct Servers(Server, UdpServer, SctpServer);

impl Servers {
    fn start(place: &Place) -> Result<Self> {
        Ok(Self(
            Server::start(place, TARGET, EXCHANGE)?,
            UdpServer::start(place, TARGET, Answer::Echo)?,
            SctpServer::start(place, TARGET)?,
        ))
    }

    fn address(&self) -> SocketAddr {
        let Self(tcp, udp, sctp) = self;
        debug_assert!(tcp.address() == udp.address() && tcp.address() == sctp.address(), "one for all");
        tcp.address()
    }
}

fn send(protocol: Transport, from: &Place, target: SocketAddr) -> Result<Vec<Attempt>> {
    let attempts = match protocol {
        Transport::Tcp => client::connect(from, target, ATTEMPTS, 1, Script::exchange()),
        Transport::Udp => udp::query(from, target, ATTEMPTS, LIMIT),
        Transport::Sctp => sctp::connect(from, target, ATTEMPTS),
    }?;
    all_ended(&attempts, &Outcome::Done)
        .with_context(|| format!("over {} from {} to {target}", protocol.as_str(), from.address))?;
    Ok(attempts)
}

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    command::run("modprobe", &["sctp"])?;
    let addresses = addresses(stage.family())?;
    let topology = &stage.world.topology;
    let (node, outside) = (topology.node_at(stage.family())?, topology.outside(stage.family())?);
    let route = |verb: &str| [format!("route {verb} {} via {}", addresses.range, node.address)];
    let (add, delete) = (route("add"), route("del"));
    stage.break_with(
        move |world| world.topology.fabric.ip_batch(&add),
        move |world| world.topology.fabric.ip_batch(&delete),
    )?;
    let services = services(stage, &addresses, outside.address)?;
    stage.publish(&services)?;
    stage.apply(json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "abroad", "uid": "00000000-0000-0000-0000-00000000ab0a",
            "resourceVersion": "1", "creationTimestamp": "2025-01-01T00:00:00Z"},
        "spec": {"type": "ExternalName", "externalName": "relay.example.com"}}))?;
    let here = Servers::start(stage.place(POD)?)?;
    let abroad = Servers::start(outside)?;
    stage.watch()?;

    let pod = stage.place("shop/client-1")?;
    let ways = [
        (pod, SocketAddr::new(addresses.cluster, NUMBER), "relay", &here),
        (outside, SocketAddr::new(node.address, NODE_PORT), "relay", &here),
        (outside, SocketAddr::new(addresses.load_balancer, NUMBER), "relay", &here),
        (pod, SocketAddr::new(addresses.external, NUMBER), "relay", &here),
        (pod, SocketAddr::new(addresses.by_hand, NUMBER), "handmade", &abroad),
    ];
    for protocol in PROTOCOLS {
        for (from, target, service, servers) in ways {
            let attempts = send(protocol, from, target)?;
            let endpoint = Endpoint::Is(servers.address());
            stage.expect(&attempts, &format!("shop/{service}"), Class::Ok, &endpoint);
        }
        // The addresses that DNS returns for `shop/bare` and `shop/abroad`.
        for servers in [&here, &abroad] {
            let attempts = send(protocol, pod, servers.address())?;
            stage.expect_no_service(&attempts);
        }
    }
    expect_port_names(stage);
    for (target, words) in [("shop/bare", "headless"), ("shop/abroad", "relay.example.com")] {
        refused(stage, target, words)?;
    }
    stage.keep((here, abroad));
    Ok(())
}

/// Each flow is attributed to the Service port of its protocol.
fn expect_port_names(stage: &mut Stage) {
    stage.check(|records, _| {
        for record in records {
            let wanted = format!("by-{}", record.text("/flow/protocol").to_ascii_lowercase());
            let port = record.text("/service/port");
            ensure!(
                record.text("/service/name").is_empty() || port == wanted,
                "the port is {port}, expected {wanted}: {record}"
            );
        }
        Ok(())
    });
}

/// A trace of a Service without an address is refused with the reason and a hint.
fn refused(stage: &Stage, target: &str, words: &str) -> Result<()> {
    stage.needs_viptrace()?;
    let kubeconfig = stage.kubeconfig()?.display().to_string();
    let arguments = ["trace", "--node", NODE, "--kubeconfig", &kubeconfig, target];
    let ended = Invocation::start(&arguments)?.end(REFUSAL_LIMIT)?;
    for part in [target, words, "C27", "hint: "] {
        ensure!(ended.stderr.contains(part), "{target}: {part:?} is missing: {}", ended.stderr);
    }
    ensure!(ended.status == 1, "{target}: the exit status is {}: {}", ended.status, ended.stderr);
    Ok(())
}
