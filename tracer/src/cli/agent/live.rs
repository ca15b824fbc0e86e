//! The agent on a node: a trace whose results go to the agent.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use tokio::signal::unix::Signal;

use crate::{
    agent::{
        Agent,
        config::{AttachChoice, Config, HookChoice},
    },
    cli::{
        ResultExt as _,
        args::{Attach, ClusterSource, Hooks, TraceOptions},
        check::kernel::Kernel,
        stop::{Stop, StoppedEarly},
        trace::{Sink, Trace},
    },
    kernel::{
        environment::Environment,
        modules::is_live,
        plan::{HookSet, Tiers},
        tracer::{Tracer, measure_runs},
    },
    recording::{Header, HookState, Recorded},
    report::{Form, Output},
    session::{Judgements, Pair, Pipeline},
    sighting::Hook,
    time::Timestamp,
};

/// The metrics' name for the programs that hooks share, in place of a hook's.
const SHARED_PROGRAM: &str = "failing functions";

/// How often the kernel's counts about the hooks' programs are read.
const READ_RUNS: Duration = Duration::from_secs(10);

/// How often the agent looks for the module that it waits for.
const LOOK_FOR_MODULE: Duration = Duration::from_secs(1);

/// Observes the node until a signal ends it.
pub(super) async fn run(
    agent: Agent,
    config: &Config,
    attach: Option<Attach>,
    node: Option<String>,
    stop: &mut Stop,
    hangup: &mut Signal,
) -> anyhow::Result<()> {
    check_capabilities(&Environment::inspect())?;
    let options = options(config, attach, node);
    if !wait_for_modules(&agent, options.attach.into(), stop).await {
        agent.finish().await;
        return Ok(());
    }
    let _measured = config.kernel_stats.then(|| measure(&agent)).flatten();
    let mut sink = AgentSink { agent, hangup, reload: false, read_runs: None };
    let begun = Trace::begin(&options, &mut sink, stop).await;
    let mut trace = match begun {
        Ok(trace) => trace,
        // A rollout or a drain while the first lists arrive.
        Err(error) if error.is::<StoppedEarly>() => {
            sink.agent.log().warn("stop", &error.to_string());
            sink.agent.finish().await;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    trace.watch(&mut sink, stop).await?;
    sink.agent.draining();
    let limit = sink.agent.drain_limit();
    if let Ok(finished) = tokio::time::timeout(limit, Box::pin(trace.finish(&mut sink, stop))).await {
        let (ending, _) = finished?;
        sink.agent.ended(&ending.gaps);
    } else {
        let text = format!("the open flows were not judged within {} s", limit.as_secs_f64());
        sink.agent.log().warn("stop", &text);
    }
    sink.agent.finish().await;
    Ok(())
}

/// Refuses to run without a capability without which a trace by hand goes on: nobody reads for months what it lacks.
fn check_capabilities(environment: &Environment) -> anyhow::Result<()> {
    let Some(gap) = environment.net_admin_gap() else { return Ok(()) };
    Err(anyhow::anyhow!("{}: {}", gap.what, gap.why)).hint(|| gap.remedy.to_owned())
}

/// Waits for the module without which the kernel tracks no connection: on a node that has just started, kube-proxy's first
/// rules load it, often after the agent has begun. Returns false if a stop request came first.
async fn wait_for_modules(agent: &Agent, tiers: Tiers, stop: &mut Stop) -> bool {
    let is_loaded = |module: &str| is_live(Path::new("/"), module);
    // On nearly every node it is loaded, and the kernel need not be inspected for it.
    if Hook::Confirm.spec().module.is_some_and(is_loaded) {
        return true;
    }
    let inspected = Kernel::inspect(Environment::inspect(), HookSet::Failures, tiers);
    let Some(module) = inspected.awaited_module() else { return true };
    agent.waits_for(Some(module));
    while !is_loaded(module) {
        tokio::select! {
            () = stop.wanted() => return false,
            () = tokio::time::sleep(LOOK_FOR_MODULE) => {}
        }
    }
    agent.waits_for(None);
    true
}

/// Makes the kernel measure the run times of programs while the result lives.
fn measure(agent: &Agent) -> Option<std::os::fd::OwnedFd> {
    match measure_runs() {
        Ok(measuring) => Some(measuring),
        Err(why) => {
            agent.log().warn("kernel", &format!("run times are not measured: {why}"));
            None
        }
    }
}

/// The trace that the agent runs; `attach` replaces the configuration's.
fn options(config: &Config, attach: Option<Attach>, node: Option<String>) -> TraceOptions {
    let cluster = match &config.cluster.folder {
        Some(folder) => ClusterSource::Folder(folder.clone()),
        None => ClusterSource::Api {
            kubeconfig: config.cluster.kubeconfig.clone(),
            context: config.cluster.context.clone(),
        },
    };
    TraceOptions {
        path: None,
        target: None,
        form: Form { output: Output::Json, ..Form::default() },
        duration: None,
        ready_file: None,
        record: None,
        cluster,
        node,
        grace: config.grace.map(crate::agent::config::Span::get),
        hooks: match config.hooks {
            HookChoice::Failures => Hooks::Failures,
            HookChoice::Lean => Hooks::Lean,
            HookChoice::Full => Hooks::Full,
        },
        sample: config.sample.denominator(),
        decisions: u32::try_from(config.decisions.get()).ok(),
        attach: attach.unwrap_or(match config.attach {
            AttachChoice::Auto => Attach::Auto,
            AttachChoice::Fentry => Attach::Fentry,
            AttachChoice::Kprobe => Attach::Kprobe,
        }),
        without_hooks: Vec::new(),
        max_flows: config.max_flows.as_usize(),
        buffer_bytes: usize::try_from(config.buffer.get()).unwrap_or(usize::MAX),
    }
}

/// Hands the results of the trace to the agent.
struct AgentSink<'a> {
    agent: Agent,
    hangup: &'a mut Signal,
    /// SIGHUP came.
    reload: bool,
    read_runs: Option<Instant>,
}

impl Sink for AgentSink<'_> {
    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        self.agent.log().warn("start", text);
        Ok(())
    }

    fn gap(&mut self, text: &str) {
        self.agent.log().warn("gap", text);
    }

    fn limit(&mut self, text: &str) {
        self.agent.log().info("kernel", text);
    }

    fn time_for_disk(&self) -> Duration {
        self.agent.time_left()
    }

    fn services_refused(&mut self, count: u64, text: &str) -> anyhow::Result<()> {
        self.agent.services_refused(count);
        if count > 0 {
            self.agent.log().warn("kernel", text);
        } else {
            self.agent.log().info("kernel", text);
        }
        Ok(())
    }

    fn attached(&mut self, tracer: &Tracer, header: Header) -> anyhow::Result<()> {
        if tracer.is_recorder() {
            self.agent.counted_by_kernel();
        }
        for line in header.hooks.iter().filter(|line| line.state == HookState::Missing) {
            let reason = line.reason.as_deref().unwrap_or_default();
            self.agent.log().warn("hooks", &format!("{} is not attached: {reason}", line.hook));
        }
        self.agent.ready(header);
        Ok(())
    }

    fn hook_changed(&mut self, text: &str) {
        self.agent.log().warn("hooks", text);
    }

    fn hooks_are(&mut self, header: Header) {
        self.agent.hooks_are(header);
    }

    fn show(&mut self, judgements: Judgements, _: &Pipeline, _: Timestamp) -> anyhow::Result<()> {
        Ok(self.agent.show(&judgements)?)
    }

    fn started(&mut self, pair: Option<Pair>, count: u64) {
        self.agent.started(pair, count);
    }

    fn uncounted(&mut self, count: u64) {
        self.agent.uncounted(count);
    }

    fn turned(
        &mut self,
        recorded: &mut Recorded,
        tracer: Option<&Tracer>,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        if std::mem::take(&mut self.reload) {
            self.agent.reload(recorded, now);
        }
        if let Some(tracer) = tracer
            && self.read_runs.is_none_or(|read| read.elapsed() >= READ_RUNS)
        {
            self.read_runs = Some(Instant::now());
            let shared = tracer.skipped_by_shared();
            let has_shared = shared.iter().any(|shared| !shared.hooks.is_empty());
            let skipped = shared.iter().map(|shared| shared.events).sum();
            let shared = (SHARED_PROGRAM, skipped, tracer.measured_runs_of_shared());
            let hooks = tracer.attached().iter();
            let runs =
                hooks.map(|hook| (hook.symbol(), tracer.skipped_events(*hook), tracer.measured_runs(*hook)));
            self.agent.kernel_runs(runs.chain(has_shared.then_some(shared)));
            self.agent.decisions_last(tracer.decision_retention());
        }
        self.agent.turned(recorded, now);
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.agent.deadline())
    }

    async fn wanted(&mut self) {
        if self.hangup.recv().await.is_some() {
            self.reload = true;
        } else {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_flag_replaces_the_configurations_way_to_reach_functions() {
        let attach = |yaml: &str, flag| options(&Config::parse(yaml).unwrap(), flag, None).attach;
        assert_eq!(attach("version: 1\n", None), Attach::Auto);
        assert_eq!(attach("version: 1\nattach: kprobe\n", None), Attach::Kprobe);
        assert_eq!(attach("version: 1\nattach: kprobe\n", Some(Attach::Fentry)), Attach::Fentry);
    }

    #[test]
    fn the_agent_does_not_run_without_a_capability_that_only_costs_a_trace_evidence() {
        let check = |capabilities: &str| {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("proc/self")).unwrap();
            fs::write(root.path().join("proc/self/status"), format!("CapEff:\t{capabilities}\n")).unwrap();
            check_capabilities(&Environment::inspect_at(root.path()))
        };
        // BPF and PERFMON, with and without NET_ADMIN.
        check("000000c000001000").unwrap();
        let error = format!("{:#}", check("000000c000000000").unwrap_err());
        assert!(error.contains("CAP_NET_ADMIN is missing"), "{error}");
    }
}
