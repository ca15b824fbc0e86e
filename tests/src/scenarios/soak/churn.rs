//! Pods and Services that come and go during the soak: a rolling update of `shop/workers`, one Pod after the other, with a
//! kube-proxy that is late, and a Service `shop/task-N` that exists for seconds. It owns their objects, rules and servers.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{
    agent::Agent,
    dataplane::Family,
    published::{Member, Port, Published},
    topology::Pod,
    traffic::{
        Outcome, Transport, all_ended,
        client::{self, Script},
        server::{EXCHANGE, Server},
    },
    world::{NODE, Stage},
};

const WORKERS: Ipv4Addr = Ipv4Addr::new(10, 96, 10, 93);
const NUMBER: u16 = 80;
const TARGET: u16 = 8080;
/// Connections to each Service in a round.
const SERVED: usize = 8;
/// Connections to the endpoint that left.
const STALE: usize = 2;
/// The agent's `metrics.keep`, and the limit from a deletion to the removal of the series: the agent compares them with the
/// cluster every 30 s, and removes those that it has missed for longer than `KEEP`.
pub(super) const KEEP: Duration = Duration::from_mins(1);
const GONE: Duration = Duration::from_secs(150);

/// One Pod of `shop/workers`, and the Service that exists only in its round.
#[derive(Debug)]
struct Worker {
    pod: Pod,
    server: Server,
    task: Published,
}

/// The rounds so far.
#[derive(Debug, Default)]
pub(super) struct Churn {
    round: usize,
    present: Option<Worker>,
    /// The deleted Services whose series have not been missed yet, with the time of their deletion.
    deleted: Vec<(String, Instant)>,
    /// The others.
    removed: usize,
    /// Healthy connections, and those to an endpoint that had left.
    pub(super) served: usize,
    pub(super) stale: usize,
}

impl Churn {
    /// Replaces the Pod of `shop/workers`, as a rolling update does, and runs a task on the new one.
    pub(super) fn round(&mut self, stage: &mut Stage) -> Result<()> {
        self.check()?;
        let worker = Worker::start(stage, self.round)?;
        self.round += 1;
        let workers = service("workers".to_owned(), WORKERS, &worker.pod);
        apply(stage, &workers, &worker.pod)?;
        let from = stage.place("shop/client-1")?;
        if let Some(last) = self.present.take() {
            last.stop(stage)?;
            // kube-proxy has not replaced the old endpoint yet.
            stage.after_grace();
            let at = SocketAddr::new(WORKERS.into(), NUMBER);
            let late = client::connect(from, at, STALE, STALE, Script::exchange())?;
            all_ended(&late, &Outcome::HostUnreachable).context("connections to a Pod that is gone")?;
            self.stale += STALE;
        }
        apply(stage, &worker.task, &worker.pod)?;
        let node = stage.world.topology.node_at(stage.family())?.address;
        let rules = stage.rules()?.with_published(&workers, node).with_published(&worker.task, node);
        rules.restore(&stage.world.topology.host)?;
        for service in [&workers, &worker.task] {
            let at = SocketAddr::new(service.cluster_ip.context("it has an address")?, NUMBER);
            let served = client::connect(from, at, SERVED, 2, Script::exchange())?;
            all_ended(&served, &Outcome::Done)
                .with_context(|| format!("connections to {}", service.key()))?;
            self.served += SERVED;
        }
        // Its last connections are not counted yet.
        stage.delete("EndpointSlice", &format!("{}-x", worker.task.key()))?;
        stage.delete("Service", &worker.task.key())?;
        self.deleted.push((worker.task.name.clone(), Instant::now()));
        // Now, because the series of the deleted Service is kept only for a minute.
        worker.are_counted()?;
        self.present = Some(worker);
        Ok(())
    }

    /// Checks that the series of Services that were deleted long ago are gone.
    pub(super) fn check(&mut self) -> Result<()> {
        while let Some((task, deleted)) = self.deleted.first().filter(|(_, deleted)| deleted.elapsed() > GONE)
        {
            let left = Agent::sum("viptrace_connections_total", &[&format!("service=\"{task}\"")])?;
            ensure!(left == 0, "{task} was deleted {} s ago, and has series", deleted.elapsed().as_secs());
            self.removed += 1;
            self.deleted.remove(0);
        }
        Ok(())
    }

    /// Removes the last Pod. Returns the number of Services whose series disappeared.
    pub(super) fn end(mut self, stage: &mut Stage) -> Result<usize> {
        self.check()?;
        self.present.take().map_or(Ok(()), |last| last.stop(stage))?;
        Ok(self.removed)
    }
}

impl Worker {
    /// Starts the Pod `shop/worker-N` with its server, and adds it to the API.
    fn start(stage: &mut Stage, round: usize) -> Result<Self> {
        let [pod_ip, task_ip] = [150, 1].map(|first| first + u8::try_from(round % 100).unwrap_or_default());
        let address = IpAddr::from([10, 244, 1, pod_ip]);
        let pod = stage.world.topology.start_pod(&format!("shop/worker-{round}"), address, round)?;
        let server = Server::start(pod.at(stage.family())?, TARGET, EXCHANGE)?;
        let pods = &stage.world.cluster.pods;
        let mut object = pods.iter().find(|pod| pod["metadata"]["name"] == "cart-1").cloned();
        let object = object.as_mut().context("the cluster has no Pod cart-1")?;
        object["metadata"] =
            json!({"namespace": "shop", "name": format!("worker-{round}"), "labels": {"app": "workers"}});
        object["status"]["podIP"] = json!(address.to_string());
        object["status"]["podIPs"] = json!([{"ip": address.to_string()}]);
        stage.apply(object.take())?;
        let task = service(format!("task-{round}"), Ipv4Addr::new(10, 96, 20, task_ip), &pod);
        Ok(Self { pod, server, task })
    }

    /// Waits until the connections of its round are counted, and checks their number.
    fn are_counted(&self) -> Result<()> {
        let endpoint = format!("endpoint=\"{}\"", self.server.address());
        for service in ["workers", &self.task.name] {
            let service = format!("service=\"{service}\"");
            let labels = [service.as_str(), &endpoint];
            let counted = Agent::wait_for("viptrace_connections_total", &labels, SERVED as u64)?;
            ensure!(
                counted == SERVED as u64,
                "{counted} connections with {labels:?} were counted, {SERVED} made"
            );
        }
        Ok(())
    }

    /// Removes the Pod from the API and from the node.
    fn stop(self, stage: &mut Stage) -> Result<()> {
        stage.delete("Pod", &self.pod.key)?;
        drop(self.server);
        self.pod.stop()
    }
}

/// A Service whose only endpoint is this Pod.
fn service(name: String, cluster_ip: Ipv4Addr, pod: &Pod) -> Published {
    let port =
        Port { name: "http", protocol: Transport::Tcp, number: NUMBER, target: TARGET, node_port: None };
    Published {
        name,
        cluster_ip: Some(cluster_ip.into()),
        external_ip: None,
        load_balancer_ip: None,
        ports: vec![port],
        family: Family::of(pod.place.address),
        endpoint: Some(Member { address: pod.place.address, pod: None }),
        selects: true,
    }
}

/// Applies the Service and its slice, whose endpoint is this Pod.
fn apply(stage: &mut Stage, service: &Published, pod: &Pod) -> Result<()> {
    let (namespace, name) = pod.key.split_once('/').context("a Pod is named namespace/name")?;
    let [service, mut slice] = service.objects();
    slice["endpoints"][0]["nodeName"] = json!(NODE);
    slice["endpoints"][0]["targetRef"] = json!({"kind": "Pod", "namespace": namespace, "name": name});
    stage.apply(service)?;
    stage.apply(slice)
}
