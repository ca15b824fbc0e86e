//! The world of a run and the stage of a scenario. The world is built once: node, Pods, captured rules. A stage lends
//! it to one scenario, with an API server that has the cluster's objects, a running viptrace, the list of repairs for
//! what the scenario broke, and the expected records.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    fmt, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::json;
use viptrace_class::Class;

use crate::{
    apiserver::ApiServer,
    cluster::Cluster,
    console,
    dataplane::{Family, Mode, Variant},
    expect::{self, Endpoint, Expected, Incomplete, Record},
    kube_proxy::KubeProxy,
    matrix::Skip,
    predicted,
    published::Published,
    replay,
    rules::{self, Rules},
    score::{Scores, Verb},
    tool::{Ended, Options, Tool},
    topology::{Place, Pod, Topology},
    traffic::{
        Attempt, Transport,
        server::{Script, Server},
        udp::{Answer, UdpServer},
    },
    wait,
};

/// The traced node of the fixture cluster.
pub const NODE: &str = "worker-1";
/// The lab's traces treat younger removals as lag and not as faults.
pub const GRACE: Duration = Duration::from_secs(1);
/// The limit from the end of a scenario's traffic to the last verdict.
const VERDICT_LIMIT: Duration = Duration::from_secs(90);
/// Enough for all traffic of the lab.
pub const CONNTRACK_MAX: &str = "131072";

/// State that outlives a scenario.
#[derive(Debug)]
pub struct World {
    pub topology: Topology,
    pub cluster: Cluster,
    /// kube-proxy's rules for each mode.
    rules: BTreeMap<Mode, Rules>,
    captures: PathBuf,
    /// The mode whose rules are on the node.
    installed: Mutex<Option<Mode>>,
}

impl World {
    /// Builds the world from the fixtures in `folder`.
    pub fn build(folder: &Path) -> Result<Self> {
        let captures = folder.to_owned();
        let cluster = Cluster::read(&folder.join("cluster"))?;
        let topology = Topology::build(&cluster, NODE)?;
        let mut world =
            Self { topology, cluster, rules: BTreeMap::new(), captures, installed: Mutex::default() };
        for mode in Mode::ALL {
            let capture = world.capture(mode);
            if capture.is_dir() {
                world.rules.insert(mode, Rules::read(&capture, mode)?);
            }
        }
        world.switch(Mode::Iptables)?;
        world.topology.host.sysctl("net.netfilter.nf_conntrack_max", CONNTRACK_MAX)?;
        Ok(world)
    }

    /// The folder with kube-proxy's output and rules for this node in this mode.
    pub fn capture(&self, mode: Mode) -> PathBuf {
        // The capture of ipvs mode is of the same cluster with IPv4 only.
        let single = self.captures.parent().filter(|_| mode == Mode::Ipvs);
        single.unwrap_or(&self.captures).join("kube-proxy").join(NODE).join(mode.capture())
    }

    /// The same folder for a newer kube-proxy.
    pub fn newer_capture(&self, mode: Mode) -> PathBuf {
        self.captures.join("kube-proxy-v1.36").join(NODE).join(mode.capture())
    }

    /// All rules that kube-proxy wrote in this mode.
    pub fn rules(&self, mode: Mode) -> Result<&Rules> {
        self.rules.get(&mode).with_context(|| format!("there is no capture of {mode} mode"))
    }

    /// Gives the node the rules of this mode only, unless it already has them.
    pub fn switch(&self, mode: Mode) -> Result<()> {
        let mut installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        if *installed == Some(mode) {
            return Ok(());
        }
        let host = &self.topology.host;
        // If this fails half-way, the node's mode is unknown.
        if let Some(old) = installed.take() {
            self.rules(old)?.clear(host).with_context(|| format!("clearing the rules of {old} mode"))?;
        }
        self.rules(mode)?.restore(host).with_context(|| format!("restoring the rules of {mode} mode"))?;
        *installed = Some(mode);
        Ok(())
    }

    pub fn pod(&self, key: &str) -> Result<&Pod> {
        self.topology.pod(key)
    }

    fn api_server(&self) -> Result<ApiServer> {
        let mut lists = Vec::new();
        let kinds = [
            ("v1", "ServiceList", &self.cluster.services),
            ("v1", "PodList", &self.cluster.pods),
            ("v1", "NodeList", &self.cluster.nodes),
            ("discovery.k8s.io/v1", "EndpointSliceList", &self.cluster.endpoint_slices),
        ];
        for (version, kind, items) in kinds {
            lists.push(json!({"apiVersion": version, "kind": kind, "metadata": {}, "items": items}));
        }
        ApiServer::start((Ipv4Addr::LOCALHOST, 0).into(), lists).context("starting the lab's API server")
    }
}

/// How viptrace watches the traffic of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// viptrace does not run: only the clients' results are checked.
    Nobody,
    /// `viptrace trace -o json --all`.
    Json,
    /// `viptrace trace` as a user types it, printed on the console.
    Table,
}

type Repair<'w> = Box<dyn FnOnce(&World) -> Result<()> + 'w>;
type Check<'w> = Box<dyn FnOnce(&[Record], &Ended) -> Result<()> + 'w>;

/// The access of one scenario to the world.
pub struct Stage<'w> {
    pub world: &'w World,
    pub variant: Variant,
    pub api: ApiServer,
    pub kube_proxy: KubeProxy,
    watch: Watch,
    tool: Option<Tool>,
    /// The verdicts expected so far.
    pub expected: Vec<Expected>,
    repairs: Vec<Repair<'w>>,
    checks: Vec<Check<'w>>,
    /// The time of the last change of an object, for [`Stage::after_grace`].
    changed: Option<Instant>,
    /// Whether viptrace sees the ends of healthy TCP flows.
    sees_ends: bool,
    /// The only capabilities of viptrace, by their numbers; `None` for all.
    capabilities: Option<&'static [u32]>,
    /// The arguments that choose the trace's hooks, unless the scenario chooses them.
    hooks: &'static [&'static str],
    /// The path of the trace's recording, which is replayed and compared at the end.
    recording: Option<&'static str>,
    /// Whether nothing was broken or repaired between the flows, so that all of them met the last rules.
    rules_stay: bool,
    /// The causes and the reports so far.
    scores: RefCell<Scores>,
    /// Values that must live until the judgement.
    kept: Vec<Box<dyn std::any::Any>>,
}

impl fmt::Debug for Stage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("watch", &self.watch)
            .field("expected", &self.expected)
            .finish_non_exhaustive()
    }
}

impl<'w> Stage<'w> {
    /// A complete node and cluster, before viptrace starts.
    pub fn set(world: &'w World, watch: Watch, variant: Variant) -> Result<Self> {
        world.switch(variant.mode)?;
        rules::flush_conntrack(&world.topology.host)?;
        Ok(Self {
            world,
            variant,
            api: world.api_server()?,
            kube_proxy: KubeProxy::start(&world.capture(variant.mode))?,
            watch,
            tool: None,
            expected: Vec::new(),
            repairs: Vec::new(),
            checks: Vec::new(),
            changed: None,
            sees_ends: true,
            capabilities: None,
            hooks: &[],
            recording: None,
            rules_stay: true,
            scores: RefCell::default(),
            kept: Vec::new(),
        })
    }

    /// Traces with an agent's hooks, and hands over every flow.
    pub fn with_hooks_of_failures(&mut self) {
        self.hooks = &["--hooks", "failures", "--sample", "1"];
        self.ends_are_unseen();
    }

    /// Starts viptrace, if the stage uses it, and waits until it is ready.
    pub fn watch(&mut self) -> Result<()> {
        self.watch_with(&[])
    }

    /// Starts viptrace with further arguments.
    pub fn watch_with(&mut self, arguments: &[&str]) -> Result<()> {
        self.recording = Some(replay::RECORDING);
        self.watch_recorded(replay::RECORDING, arguments)
    }

    /// Starts viptrace with these capabilities only, by their numbers, as in a Pod.
    pub fn watch_with_only(&mut self, capabilities: &'static [u32]) -> Result<()> {
        self.capabilities = Some(capabilities);
        self.watch()
    }

    /// Starts viptrace with a recording at another path. That recording is not compared with the trace.
    pub fn watch_recorded(&mut self, recording: &str, arguments: &[&str]) -> Result<()> {
        if self.watch == Watch::Nobody {
            return Ok(());
        }
        let grace = format!("{}s", GRACE.as_secs());
        let mut all = vec!["--grace", grace.as_str()];
        if self.watch == Watch::Json {
            all.extend(["-o", "json", "--all", "--force", "--record", recording]);
        }
        if !arguments.contains(&"--hooks") {
            all.extend(self.hooks);
        }
        all.extend(arguments);
        self.start(&all, false)
    }

    /// Starts viptrace as a user types it, on a terminal.
    pub fn watch_on_terminal(&mut self) -> Result<()> {
        if self.watch == Watch::Nobody { Ok(()) } else { self.start(&[], true) }
    }

    fn start(&mut self, arguments: &[&str], terminal: bool) -> Result<()> {
        self.tool = Some(Tool::start(&Options {
            node: NODE.to_owned(),
            kubeconfig: self.kubeconfig()?,
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            show: self.watch == Watch::Table,
            terminal,
            capabilities: self.capabilities,
        })?);
        Ok(())
    }

    /// A kubeconfig file that points to the stage's API server.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        let path = PathBuf::from("/run/lab/kubeconfig");
        fs::create_dir_all("/run/lab")
            .and_then(|()| fs::write(&path, self.api.kubeconfig()))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Skips the scenario in a run that checks only the clients' results.
    pub fn needs_viptrace(&self) -> Result<()> {
        if self.watch == Watch::Nobody {
            Err(Skip("viptrace is not part of this run".to_owned()).into())
        } else {
            Ok(())
        }
    }

    pub fn tool(&self) -> Option<&Tool> {
        self.tool.as_ref()
    }

    /// Starts the TCP server that acts as the Pod's application.
    pub fn serve(&self, pod: &str, port: u16, script: Script) -> Result<Server> {
        Server::start(self.place(pod)?, port, script)
    }

    /// Starts the TCP server that acts as the Pod's application, on a dual-stack socket.
    pub fn serve_dual_stack(&self, pod: &str, port: u16, script: Script) -> Result<Server> {
        Server::start_dual_stack(self.place(pod)?, port, script)
    }

    /// Starts the UDP server that acts as the Pod's application.
    pub fn serve_udp(&self, pod: &str, port: u16, answer: Answer) -> Result<UdpServer> {
        UdpServer::start(self.place(pod)?, port, answer)
    }

    pub fn family(&self) -> Family {
        self.variant.family
    }

    pub fn mode(&self) -> Mode {
        self.variant.mode
    }

    /// The Pod at its address in the scenario's family.
    pub fn place(&self, pod: &str) -> Result<&'w Place> {
        self.at(self.world.pod(pod)?)
    }

    /// The Pod at its address in the scenario's family.
    pub fn at(&self, pod: &'w Pod) -> Result<&'w Place> {
        pod.at(self.family())
    }

    /// The node as the source of kubelet's probes.
    pub fn gateway(&self) -> Result<&'w Place> {
        self.world.topology.gateway(self.family())
    }

    /// The `ClusterIP` and port in the scenario's family.
    pub fn vip(&self, service: &str, port: &str) -> Result<SocketAddr> {
        self.world.cluster.vip_of(service, port, self.family())
    }

    /// kube-proxy's rules in the scenario's mode.
    pub fn rules(&self) -> Result<&'w Rules> {
        self.world.rules(self.mode())
    }

    /// Breaks something and keeps the function that repairs it.
    pub fn break_with(
        &mut self,
        fault: impl FnOnce(&World) -> Result<()>,
        repair: impl FnOnce(&World) -> Result<()> + 'w,
    ) -> Result<()> {
        // Flows before and after it may meet different rules.
        self.rules_stay &= self.expected.is_empty();
        // The repair runs even if the fault was applied only half-way.
        self.repairs.push(Box::new(repair));
        fault(self.world)
    }

    /// Replaces the node's rules for this scenario.
    pub fn break_rules(&mut self, rules: &Rules) -> Result<()> {
        let (rules, mode) = (rules.clone(), self.mode());
        self.break_with(
            move |world| rules.restore(&world.topology.host),
            move |world| world.rules(mode)?.restore(&world.topology.host),
        )
    }

    /// Adds these Services for this scenario: to the API and, unless they have no address, to the node's rules.
    pub fn publish(&mut self, services: &[Published]) -> Result<()> {
        let node = self.world.topology.node_at(self.family())?.address;
        let mut rules = self.rules()?.clone();
        for service in services {
            for object in service.objects() {
                self.apply(object)?;
            }
            if service.cluster_ip.is_some() {
                rules = rules.with_published(service, node);
            }
        }
        self.break_rules(&rules)
    }

    /// Applies an object to the API server.
    pub fn apply(&mut self, object: serde_json::Value) -> Result<()> {
        self.api.apply(object).context("applying an object to the lab's API server")?;
        self.changed_now();
        Ok(())
    }

    /// Records that an object changes now, as viptrace sees it.
    pub fn changed_now(&mut self) {
        self.changed = Some(Instant::now());
    }

    pub fn delete(&mut self, kind: &str, key: &str) -> Result<()> {
        let (namespace, name) = key.split_once('/').context("an object is named namespace/name")?;
        if !self.api.delete(kind, namespace, name) {
            bail!("the lab's API server has no {kind} {key}");
        }
        self.changed_now();
        Ok(())
    }

    /// Waits until the last change of an object is older than viptrace's grace, plus one second in which an emulated
    /// machine can deliver the change.
    pub fn after_grace(&self) {
        if let Some(changed) = self.changed {
            wait::until_older_than(changed, GRACE.saturating_add(Duration::from_secs(1)));
        }
    }

    /// Starts the TCP servers of these Pods, until the scenario ends.
    pub fn keep_serving(&mut self, pods: &[&str], port: u16, script: Script) -> Result<()> {
        for pod in pods {
            let server = self.serve(pod, port, script)?;
            self.keep(server);
        }
        Ok(())
    }

    /// Starts the UDP servers of these Pods, until the scenario ends.
    pub fn keep_serving_udp(&mut self, pods: &[&str], port: u16, answer: Answer) -> Result<()> {
        for pod in pods {
            let server = self.serve_udp(pod, port, answer)?;
            self.keep(server);
        }
        Ok(())
    }

    /// Keeps traffic or a server running until the verdicts are complete.
    pub fn keep(&mut self, what: impl std::any::Any) {
        self.kept.push(Box::new(what));
    }

    /// Declares that the flows meet other rules than the node's, which `viptrace path` does not know.
    pub fn other_rules_decide(&mut self) {
        self.rules_stay = false;
    }

    /// Declares that the trace has no hook for the ends of flows: as with UDP, a healthy flow has its record at the
    /// end.
    pub fn ends_are_unseen(&mut self) {
        self.sees_ends = false;
    }

    /// Counts a finding of a check, or a cause that it did not find.
    pub fn count_finding(&self, caused: Option<Class>, found: Option<Class>) {
        self.scores.borrow_mut().count(Verb::Check, caused, found);
    }

    /// Expects the same verdict for each of these attempts.
    pub fn expect(&mut self, attempts: &[Attempt], service: &str, class: Class, endpoint: &Endpoint) {
        self.expected.extend(
            attempts.iter().map(|attempt| Expected::to_service(attempt, service, class, endpoint.clone())),
        );
    }

    /// Expects the same verdict for each of these direct connections to a Pod.
    pub fn expect_direct(&mut self, attempts: &[Attempt], class: Class) {
        self.expected.extend(attempts.iter().map(|attempt| Expected::to_pod(attempt, class)));
    }

    /// Expects each attempt to be judged by the endpoint that it reached: `classes` has the class for each server.
    /// Fails if an attempt reached none of them, because its expected verdict is unknown.
    pub fn expect_by_server(
        &mut self,
        attempts: &[Attempt],
        service: &str,
        classes: &[(&dyn Reached, Class)],
    ) -> Result<()> {
        for attempt in attempts {
            let (server, class) = classes
                .iter()
                .find(|(server, _)| server.reached_by(attempt.client))
                .with_context(|| format!("no server was reached by {attempt:?}"))?;
            let endpoint = Endpoint::Is(server.at());
            self.expected.push(Expected::to_service(attempt, service, *class, endpoint));
        }
        Ok(())
    }

    /// Waits for the record of one attempt; `None` if viptrace does not run.
    pub fn record_of(&self, attempt: &Attempt) -> Result<Option<Record>> {
        self.record_within(attempt, VERDICT_LIMIT)
    }

    /// As [`Self::record_of`], with another limit.
    pub fn record_within(&self, attempt: &Attempt, limit: Duration) -> Result<Option<Record>> {
        let Some(tool) = &self.tool else { return Ok(None) };
        let key = Expected::to_pod(attempt, Class::Ok).key();
        let mut found = None;
        tool.wait_for(limit, |line| {
            found = Record::parse(line).filter(|record| record.key().as_ref() == Some(&key));
            found.is_some()
        });
        found.map(Some).with_context(|| format!("there is no record for {attempt:?}"))
    }

    /// Expects no record for these attempts, which are outside the trace's target.
    pub fn expect_unrecorded(&mut self, attempts: &[Attempt]) {
        let keys: HashSet<_> =
            attempts.iter().map(|attempt| Expected::to_pod(attempt, Class::Ok).key()).collect();
        self.check(move |records, _| {
            let recorded = records.iter().find(|record| record.key().is_some_and(|key| keys.contains(&key)));
            recorded.map_or(Ok(()), |record| bail!("a record outside the trace's target: {record}"))
        });
    }

    /// Expects that few of these healthy attempts have a record, because a failure met them: a busy machine repeats a
    /// segment now and then. A record calls them healthy.
    pub fn expect_hardly_recorded(&mut self, attempts: &[Attempt]) {
        let keys: HashSet<_> =
            attempts.iter().map(|attempt| Expected::to_pod(attempt, Class::Ok).key()).collect();
        self.check(move |records, _| {
            let is_of = |record: &&Record| record.key().is_some_and(|key| keys.contains(&key));
            let found: Vec<&Record> = records.iter().filter(is_of).collect();
            if let Some(record) = found.iter().find(|record| record.class() != Some(Class::Ok)) {
                bail!("a healthy connection is called otherwise: {record}");
            }
            if found.len() * 10 > keys.len() {
                bail!("{} of {} healthy connections have a record", found.len(), keys.len());
            }
            Ok(())
        });
    }

    /// Expects that these attempts, which use no Service address, are attributed to no Service and to no fault.
    pub fn expect_no_service(&mut self, attempts: &[Attempt]) {
        let keys: HashSet<_> =
            attempts.iter().map(|attempt| Expected::to_pod(attempt, Class::Ok).key()).collect();
        self.check(move |records, _| {
            let of_them = records.iter().filter(|record| record.key().is_some_and(|key| keys.contains(&key)));
            for record in of_them {
                let direct = record.text("/flow/vip").is_empty() && record.text("/service/name").is_empty();
                if !direct || record.reports_failure() {
                    bail!("a direct flow is attributed to a Service or to a fault: {record}");
                }
            }
            Ok(())
        });
    }

    /// Adds a check of the records at the end.
    pub fn check(&mut self, check: impl FnOnce(&[Record], &Ended) -> Result<()> + 'w) {
        self.checks.push(Box::new(check));
    }

    /// Waits until every expected flow has a record, stops viptrace and compares everything.
    fn judge(&mut self, name: &str) -> Result<()> {
        let Some(tool) = self.tool.take() else { return Ok(()) };
        // A healthy UDP flow ends without a packet; its record appears when the trace ends.
        let ends = |transport| transport == Transport::Tcp && self.sees_ends;
        let has_an_end = |flow: &&Expected| ends(flow.transport) || flow.class.is_fault();
        let mut missing: HashSet<_> = self.expected.iter().filter(has_an_end).map(Expected::key).collect();
        let complete = missing.is_empty()
            || tool.wait_for(VERDICT_LIMIT, |line| {
                if let Some(key) = Record::parse(line).and_then(|record| record.key()) {
                    missing.remove(&key);
                }
                missing.is_empty()
            });
        let ended = tool.stop()?;
        let records = ended.records();
        let incomplete = expect::may_be_incomplete(&self.expected, &ended.stderr);
        let mut found = Vec::new();
        if !complete && missing.len() > incomplete {
            found.push(format!(
                "after {} s, {} of {} flows had no record yet",
                VERDICT_LIMIT.as_secs(),
                missing.len(),
                self.expected.len()
            ));
        }
        found.push(expect::disagreements(&self.expected, &records, incomplete));
        expect::count(&self.expected, &records, self.scores.get_mut());
        // Of a Pod's few capabilities none may be enough.
        if self.capabilities.is_none() {
            let refused = ended.stderr.lines().filter(|line| line.contains("the kernel refused to load"));
            found.extend(refused.map(str::to_owned));
        }
        if self.rules_stay && self.watch == Watch::Json {
            found.extend(predicted::differences(&self.expected, &self.kubeconfig()?)?);
        }
        let faults = self.expected.iter().any(|expected| expected.class.is_fault());
        let status = if faults { 3 } else { 0 };
        if ended.status != status {
            found.push(format!("viptrace's exit status is {}, expected {status}", ended.status));
        }
        if let Some(recording) = self.recording.take().filter(|_| self.watch == Watch::Json) {
            found.extend(replay::check(name, recording, &ended).err().map(|error| format!("{error:#}")));
        }
        for check in self.checks.drain(..) {
            found.extend(check(&records, &ended).err().map(|error| format!("{error:#}")));
        }
        found.retain(|disagreement| !disagreement.is_empty());
        if found.is_empty() {
            return Ok(());
        }
        // An event that the kernel skipped can explain a difference.
        for line in ended.stderr.lines().filter(|line| line.contains("missed because its programs")) {
            console::print(format!("{name}: {}", line.trim()));
        }
        hand_over(name, &ended);
        let differences = found.join("\n");
        match expect::events_left_out(&ended.stderr) {
            0 => bail!("{differences}"),
            events => Err(Incomplete { events, differences }.into()),
        }
    }

    /// Stops viptrace with SIGINT, for a mode that judges the result itself.
    pub fn stop_watching(&mut self) -> Result<Ended> {
        self.tool.take().context("viptrace does not run")?.stop()
    }

    /// Kills viptrace without warning. Its recording is not compared with its output.
    pub fn kill_watching(&mut self) -> Result<Ended> {
        self.recording = None;
        self.tool.take().context("viptrace does not run")?.kill()
    }

    /// Repairs everything that was broken, in reverse order.
    pub fn repair(&mut self) -> Result<()> {
        self.rules_stay &= self.repairs.is_empty();
        let mut result = Ok(());
        while let Some(repair) = self.repairs.pop() {
            if let Err(error) = repair(self.world) {
                result = Err(error.context("repairing the node after the scenario"));
            }
        }
        result
    }

    /// Plays a scenario: the story, the judgement and the repairs. Returns the causes and the reports.
    pub fn play(mut self, name: &str, story: fn(&mut Stage) -> Result<()>) -> (Result<()>, Scores) {
        let judged = story(&mut self).and_then(|()| self.judge(name));
        // After a failed story viptrace still runs. Its records may explain the failure.
        if let Some(ended) = self.tool.take().and_then(|tool| tool.stop().ok()) {
            hand_over(name, &ended);
        }
        let repaired = self.repair();
        (judged.and(repaired), self.scores.take())
    }
}

/// Sends viptrace's output to the host, to explain a failure.
fn hand_over(name: &str, ended: &Ended) {
    console::file(&format!("{name}.jsonl"), &(ended.stdout.join("\n") + "\n"));
    console::file(&format!("{name}.stderr"), &ended.stderr);
}

/// A server that knows its clients.
pub trait Reached {
    fn at(&self) -> SocketAddr;
    fn reached_by(&self, client: SocketAddr) -> bool;
}

impl Reached for Server {
    fn at(&self) -> SocketAddr {
        self.address()
    }

    fn reached_by(&self, client: SocketAddr) -> bool {
        self.accepted(client)
    }
}

impl Reached for UdpServer {
    fn at(&self) -> SocketAddr {
        self.address()
    }

    fn reached_by(&self, client: SocketAddr) -> bool {
        self.received_from(client)
    }
}
