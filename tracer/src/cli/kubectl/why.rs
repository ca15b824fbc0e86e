//! `kubectl viptrace why`: the check of the nodes that matter and a short trace there, joined to one answer.

use std::{
    collections::BTreeSet,
    future,
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use tokio::{sync::oneshot, time::timeout};

use super::{
    Follows, Progress, Session,
    args::{ServerArgs, WhyArgs, name, pod},
    check::{check_visited, service},
    print,
    target::Filter,
    trace::{task_args, usage},
    traces::{Results, Traces},
    unless_stopped, with_session,
};
use crate::{
    class::Class,
    cli::{Outcome, ResultExt as _, args::Hooks, hint::hint, stop::Stop, target::Target},
    cluster::{Cluster, Key},
    diagnosis::{
        cause_behind,
        triage::{Scope, nodes::NodesReport},
    },
    kernel::now,
    net::Protocol,
    plugin::{
        client_pod::{self, ClientError},
        nodes::choose,
        permissions,
        wire::{Connected, Connection},
    },
    report::{self, Printer, View},
    session::{
        Arrival, Folded, Judged, NotJudged, Summary,
        why::{Ends, FarEnd, Observed, Probe, Why, broken, may_lag},
    },
    text::{count, list},
    verdict::Verdict,
};

/// How long the probes' flows may take to be judged after their results, and other clients' to meet a fault.
const JUDGED: Duration = Duration::from_secs(4);
/// How long the results of the probes may take.
const PROBED: Duration = Duration::from_secs(8);
/// How long the checks wait for the hooks. They take the same CPU, and can be done while the probes wait for an answer.
const ATTACH: Duration = Duration::from_secs(5);
/// The interval at which the end of a connection from a Pod is noticed.
const TURN: Duration = Duration::from_millis(200);
/// The most failed flows that are compared with their endpoint's node.
const MAX_FAULTS: usize = 1024;
/// The most judged flows among which the probes' are looked for.
const MAX_JUDGED: usize = 1 << 16;
/// The most addresses and ports of a Service that are probed.
const MAX_PROBES: usize = 8;

/// Answers why a Service fails.
pub(super) async fn run(
    args: &WhyArgs,
    server: &ServerArgs,
    mut printer: Printer,
    progress: &Arc<Progress>,
) -> anyhow::Result<Outcome> {
    args.pods.allow(Some(args.duration)).map_err(usage)?;
    let (mut session, objects) =
        Session::begin(server, &args.pods, Follows::Visits, &mut printer, progress).await?;
    let named = name(&args.target, &session.namespace).map_err(usage)?;
    let key = service(named, &args.target, &session, &objects).await?;
    let mut wish = args.nodes.wish(&session.namespace).map_err(usage)?;
    let client = args.probe_from.as_deref().map(|text| pod(text, &session.namespace));
    let client = client.transpose().map_err(usage)?;
    wish.client = wish.client.or_else(|| client.clone());
    let choice = choose(&objects.cluster.history, &wish, Some(&key), now()).map_err(|why| anyhow!(why))?;
    if args.pods.is_dry_run() {
        return session.print_pods(&choice.nodes, args.output, &mut printer);
    }
    let is_probed = args.probe || client.is_some();
    let to = if is_probed { addresses(&objects.cluster, &key)? } else { Vec::new() };
    if let Some(pod) = &client {
        prepare(pod, &session, &mut printer).await?;
    }
    if is_probed && !args.yes {
        agree(&to, &choice.nodes, client.as_ref())?;
    }
    let probes = Probes { to, client };
    progress.say(&format!(
        "visits {}: {} ({})",
        count(choice.nodes.len(), "node"),
        list(&choice.nodes),
        choice.why
    ));
    session.protect()?;
    with_session(session, &mut printer, async |session, stop, printer| {
        let mut visits = Session::not_reached(&choice);
        visits
            .extend(unless_stopped(stop, async { Ok(session.reach(&choice.nodes, progress).await) }).await?);
        let filter = Filter {
            target: Some(Target::Service {
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
            }),
            ..Filter::default()
        };
        let scope = Scope { service: Some(key.clone()) };
        let mut seen = Seen::new(filter, &probes.to);
        let words = task_args(&seen.filter, View::All, None, None, Hooks::Full);
        let mut trace = Traces::on(session, progress, objects, &visits, words);
        // Closed when the checks are done.
        let (met, when_met) = oneshot::channel();
        let when_met = async {
            match when_met.await {
                Ok(classes) => classes,
                Err(_) => future::pending().await,
            }
        };
        // Ends when it is dropped: the hooks are attached, or the trace failed.
        let (attached, when_attached) = oneshot::channel::<()>();
        let checks = async {
            if !probes.to.is_empty() {
                drop(timeout(ATTACH, when_attached).await);
            }
            check_visited(session, progress, visits, &scope, when_met).await
        };
        let observed = async {
            let is_attached = attach(&mut trace, &mut seen, stop).await?;
            drop(attached);
            let is_over = !is_attached
                || observe(&mut trace, &mut seen, stop, args.duration, &probes, session, progress).await?;
            if !is_over {
                until_judged(&mut trace, &mut seen, stop, args.duration).await?;
            }
            if let Some(cause) = seen.first_fault().filter(|_| !met.is_closed()) {
                let so_far = broken(&key.to_string(), &cause.root_cause);
                progress.say(&format!("so far: {so_far}; the checks go on"));
            }
            // The checks may have ended without them.
            drop(met.send(seen.met()));
            trace.finish(&mut seen, stop).await
        };
        let (checks, ending) = tokio::join!(checks, observed);
        let far_end = seen.far_end(&trace);
        let (no_trace, gaps) = match ending {
            Ok(ending) => (None, ending.gaps),
            // The checks may still answer.
            Err(error) => {
                let todo = hint(&error).map(|hint| format!("; {hint}")).unwrap_or_default();
                (Some(format!("{error:#}{todo}")), Vec::new())
            }
        };
        let check = NodesReport::of(checks, now());
        let causes = seen.summary.causes();
        let observed = Observed {
            causes: &causes,
            counts: seen.summary.counts(),
            probes: seen.probes,
            no_trace,
            gaps: gaps.into_iter().chain(seen.warnings).collect(),
        };
        let mut why = Why::of(key.to_string(), check, observed);
        if let Some(far_end) = &far_end {
            why.add_far_end(far_end);
        }
        print(&why, report::why::text, args.output, printer)?;
        Ok(Outcome::of(why.state, why.is_possibly_broken()))
    })
    .await
}

/// The addresses and TCP ports to connect to.
fn addresses(cluster: &Cluster, key: &Key) -> anyhow::Result<Vec<SocketAddr>> {
    let service = cluster.history.service(key, now()).ok_or_else(|| anyhow!("there is no Service {key}"))?;
    let ports = service.ports.iter().filter(|port| port.protocol == Protocol::TCP);
    let all: Vec<SocketAddr> = ports
        .flat_map(|port| service.cluster_ips.iter().map(move |ip| SocketAddr::new(*ip, port.port)))
        .take(MAX_PROBES)
        .collect();
    if all.is_empty() {
        return Err(anyhow!("{key} has no ClusterIP with a TCP port: there is nothing to connect to"))
            .hint(|| "leave --probe out, and let a client connect".to_owned());
    }
    Ok(all)
}

/// The connections that the plugin makes itself.
#[derive(Debug)]
struct Probes {
    /// Empty without probes.
    to: Vec<SocketAddr>,
    /// The Pod from which they are made; `None`: each node.
    client: Option<Key>,
}

/// The addresses as a list for a person.
fn places(probed: &[SocketAddr]) -> String {
    list(&probed.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// Fails unless the cluster has ephemeral containers, and the user may add one to this Pod.
async fn prepare(pod: &Key, session: &Session, printer: &mut Printer) -> anyhow::Result<()> {
    session.require(permissions::to_connect_from(&pod.namespace), printer).await?;
    if !client_pod::is_supported(&session.client).await? {
        return Err(ClientError::NotSupported)
            .hint(|| format!("--client pod/{pod} --probe connects from the node of that Pod"));
    }
    Ok(())
}

/// Asks before it connects. Without a terminal the flag is the consent.
fn agree(probed: &[SocketAddr], nodes: &[String], client: Option<&Key>) -> anyhow::Result<()> {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Ok(());
    }
    let places = places(probed);
    let plan = match client {
        Some(pod) => format!(
            "add an ephemeral container to the Pod {pod}, where it stays in the spec, and connect from it once to {places}"
        ),
        None => format!(
            "make {}, to {places} from each of the nodes {}, and close them at once",
            count(probed.len() * nodes.len(), "connection"),
            list(nodes)
        ),
    };
    let mut err = io::stderr().lock();
    write!(err, "viptrace will {plan}. Go on? [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was done");
    }
    Ok(())
}

/// Waits until every node observes. False if the trace is over before, or no node can be traced.
async fn attach(trace: &mut Traces<'_>, seen: &mut Seen, stop: &mut Stop) -> anyhow::Result<bool> {
    while !trace.is_settled() {
        if trace.turn(seen, stop, None).await? {
            return Ok(false);
        }
    }
    Ok(trace.has_any())
}

/// Connects, or watches the clients for a while. True if the trace is over.
async fn observe(
    trace: &mut Traces<'_>,
    seen: &mut Seen,
    stop: &mut Stop,
    duration: Duration,
    probes: &Probes,
    session: &Session,
    progress: &Progress,
) -> anyhow::Result<bool> {
    let Probes { to, client } = probes;
    match client {
        _ if to.is_empty() => {
            progress.say(&format!("watches the connections of its clients for {} s", duration.as_secs_f64()));
            let until = Instant::now() + duration;
            while !trace.turn(seen, stop, Some(until)).await? {}
            Ok(true)
        }
        Some(pod) => connect_from(pod, to, trace, seen, stop, session, progress).await,
        None => connect_from_nodes(to, trace, seen, stop, progress).await,
    }
}

/// Watches until every probe is judged and a fault was met. Without a fault it takes its time: other clients' connections may
/// meet one.
async fn until_judged(
    trace: &mut Traces<'_>,
    seen: &mut Seen,
    stop: &mut Stop,
    duration: Duration,
) -> anyhow::Result<()> {
    let until = Instant::now() + JUDGED.min(duration);
    while !(seen.judged.are_all() && seen.first_fault().is_some()) {
        if trace.turn(seen, stop, Some(until)).await? {
            break;
        }
    }
    Ok(())
}

/// Connects from each node. True if the trace is over.
async fn connect_from_nodes(
    probed: &[SocketAddr],
    trace: &mut Traces<'_>,
    seen: &mut Seen,
    stop: &mut Stop,
    progress: &Progress,
) -> anyhow::Result<bool> {
    let attached = trace.attached();
    progress.say(&format!("connects to {} from {}", places(probed), list(&attached)));
    for to in probed {
        trace.connect(*to).await;
    }
    let until = Instant::now() + PROBED;
    while seen.probes.len() < probed.len() * attached.len() && Instant::now() < until {
        if trace.turn(seen, stop, Some(until)).await? && Instant::now() < until {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Connects from a client's Pod. True if the trace is over.
async fn connect_from(
    pod: &Key,
    probed: &[SocketAddr],
    trace: &mut Traces<'_>,
    seen: &mut Seen,
    stop: &mut Stop,
    session: &Session,
    progress: &Progress,
) -> anyhow::Result<bool> {
    progress.say(&format!("connects to {} from an ephemeral container in {pod}", places(probed)));
    let node = trace.attached().into_iter().next().unwrap_or_default();
    let (client, pods, run) = (session.client.clone(), &session.pods, session.run().to_owned());
    let (image, patience) = (pods.options().image, pods.pod_timeout);
    let (pod_of_task, to) = (pod.clone(), probed.to_vec());
    let connecting =
        tokio::spawn(
            async move { client_pod::connect(&client, &pod_of_task, &image, &run, &to, patience).await },
        );
    while !connecting.is_finished() {
        let until = Instant::now() + TURN;
        if trace.turn(seen, stop, Some(until)).await? && Instant::now() < until {
            return Ok(true);
        }
    }
    match connecting.await? {
        Ok(connections) => {
            for connection in connections {
                seen.add_probe(&node, Some(pod.to_string()), connection);
            }
        }
        // The checks may still answer.
        Err(error) => seen.warnings.push(error.to_string()),
    }
    Ok(false)
}

/// What the trace has shown.
struct Seen {
    filter: Filter,
    summary: Summary,
    ends: Ends,
    /// The first failed flows, at most [`MAX_FAULTS`].
    faults: Vec<Verdict>,
    probes: Vec<Probe>,
    judged: JudgedProbes,
    warnings: Vec<String>,
}

impl Seen {
    fn new(filter: Filter, probed: &[SocketAddr]) -> Self {
        Self {
            filter,
            summary: Summary::default(),
            ends: Ends::default(),
            faults: Vec::new(),
            probes: Vec::new(),
            judged: JudgedProbes::of(probed),
            warnings: Vec::new(),
        }
    }

    /// A flow of the first cause as its endpoint's node observed it.
    fn far_end(&self, trace: &Traces<'_>) -> Option<FarEnd> {
        let first = self.first_fault()?;
        let others = self.faults.iter().filter(|verdict| verdict.root_cause == first.root_cause);
        self.ends.first_of(std::iter::once(first).chain(others), |ip, flow| trace.node_of(ip, flow))
    }

    fn first_fault(&self) -> Option<&Verdict> {
        let causes = self.summary.causes().into_iter();
        causes.map(|cause| &cause.verdict).find(|verdict| verdict.class.is_fault())
    }

    /// The classes of the faults that flows met; none if a second reading may show a cause behind them.
    fn met(&self) -> BTreeSet<Class> {
        let causes = self.summary.causes();
        let faults = || causes.iter().map(|cause| &cause.verdict).filter(|verdict| verdict.class.is_fault());
        if faults().any(may_lag) {
            return BTreeSet::new();
        }
        faults().flat_map(|verdict| [Some(verdict.class), cause_behind(verdict)]).flatten().collect()
    }

    fn add_probe(&mut self, node: &str, pod: Option<String>, connection: Connection) {
        self.judged.connected(node, &connection);
        let (is_established, result) = match connection.result {
            Connected::Established => (true, "established".to_owned()),
            Connected::Refused => (false, "refused".to_owned()),
            Connected::TimedOut => (false, "no answer".to_owned()),
            Connected::Failed(why) => (false, why),
        };
        self.probes.push(Probe::new(node, pod, connection.to, is_established, result, connection.took));
    }
}

/// A connection of the plugin, as its verdict shows it too: its node, its local port and its destination.
type ProbeKey = (String, u16, SocketAddr);

/// The plugin's own connections, and those of them that have a verdict.
#[derive(Debug)]
struct JudgedProbes {
    /// The addresses that they go to.
    to: Vec<SocketAddr>,
    /// The flows to these addresses that were judged, at most [`MAX_JUDGED`]. A verdict may come before the result.
    judged: BTreeSet<ProbeKey>,
    /// The connections; `None`: one whose flow cannot be recognised.
    made: Vec<Option<ProbeKey>>,
}

impl JudgedProbes {
    fn of(to: &[SocketAddr]) -> Self {
        Self { to: to.to_vec(), judged: BTreeSet::new(), made: Vec::new() }
    }

    fn connected(&mut self, node: &str, connection: &Connection) {
        self.made.push(connection.port.map(|port| (node.to_owned(), port, connection.to)));
    }

    fn judged(&mut self, node: &str, verdict: &Verdict) {
        let Some(vip) = verdict.flow.vip.filter(|vip| self.to.contains(vip)) else { return };
        if self.judged.len() < MAX_JUDGED {
            self.judged.insert((node.to_owned(), verdict.flow.client.port(), vip));
        }
    }

    /// Whether each connection that was made has a verdict.
    fn are_all(&self) -> bool {
        self.made.iter().all(|key| key.as_ref().is_some_and(|key| self.judged.contains(key)))
    }
}

impl Results for Seen {
    fn judged(&mut self, node: &str, judged: Judged) -> anyhow::Result<()> {
        self.judged.judged(node, &judged.verdict);
        if self.filter.shows(&judged.verdict) {
            self.summary.add(&judged);
            if judged.verdict.class.is_fault() && self.faults.len() < MAX_FAULTS {
                self.faults.push(judged.verdict);
            }
        }
        Ok(())
    }

    /// `why` requests none.
    fn way(&mut self, _: &str, _: bool) -> anyhow::Result<()> {
        Ok(())
    }

    fn folded(&mut self, folded: Folded) {
        self.summary.add_folded(&folded);
    }

    fn unjudged(&mut self, flows: &NotJudged) {
        self.summary.add_unjudged(flows);
    }

    fn arrived(&mut self, node: &str, arrival: &Arrival) {
        self.ends.add(node, arrival);
    }

    fn connected(&mut self, node: &str, connection: Connection) {
        self.add_probe(node, None, connection);
    }

    fn attached(&mut self, _: &str, _: usize) -> anyhow::Result<()> {
        Ok(())
    }

    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.warnings.push(text.to_owned());
        Ok(())
    }

    fn turned(&mut self, _: &Cluster, _: u64, _: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn flows_that_fail_by_lagging_rules_confirm_nothing() {
        let of = |classes: &[Class]| {
            let mut seen = Seen::new(Filter::default(), &[]);
            for class in classes {
                let verdict =
                    Verdict { class: *class, root_cause: class.to_string().into(), ..fixture::fault() };
                seen.judged("a", fixture::judged(verdict)).unwrap();
            }
            seen.met()
        };
        assert_eq!(of(&[Class::C20, Class::Ok]), BTreeSet::from([Class::C20]));
        assert_eq!(of(&[Class::C20, Class::C6]), BTreeSet::new());
    }

    #[test]
    fn each_probe_waits_for_the_verdict_on_its_own_flow() {
        let (first, second) = (fixture::ok(40_001), fixture::ok(40_002));
        let to = first.flow.vip.unwrap();
        let made = |port| Connection { to, port, result: Connected::TimedOut, took: Duration::from_secs(4) };
        let mut probes = JudgedProbes::of(&[to]);
        // Another client's, and another node's with the port of a probe.
        probes.judged("a", &fixture::ok(50_000));
        probes.judged("b", &second);
        probes.connected("a", &made(Some(40_001)));
        assert!(!probes.are_all());
        probes.judged("a", &first);
        assert!(probes.are_all());
        // A verdict that comes before the result.
        probes.judged("a", &second);
        probes.connected("a", &made(Some(40_002)));
        assert!(probes.are_all());
        // A flow that cannot be recognised, of an older image for example.
        probes.connected("a", &made(None));
        assert!(!probes.are_all());
    }
}
