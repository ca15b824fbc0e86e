//! The agent starts on a node whose kernel tracks no connection yet: kube-proxy's first rules load `nf_conntrack`. Until then
//! it waits and says so, and afterwards it judges.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use viptrace_class::Class;

use super::{REFUSED, expect_faults, fresh, refused, stop};
use crate::{agent::Agent, command, matrix::Skip, wait, world::Stage};

/// The limit from the start to the answer that names the module, on an emulated machine.
const WAITS: Duration = Duration::from_mins(1);
/// How the names of modules begin that hold `nf_conntrack`.
const ABOVE_CONNTRACK: [&str; 7] = ["nf_", "nft_", "xt_", "ipt_", "ip6t_", "ip_vs", "nfnetlink"];

pub(in crate::scenarios) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let rules = stage.rules()?.clone();
    stage.break_rules(&rules.without_kube_proxy())?;
    let cleared = rules.clone();
    stage.break_with(move |world| cleared.clear(&world.topology.host), |_| Ok(()))?;
    unload_conntrack()?;

    let agent = Agent::begin(&stage.kubeconfig()?, &fresh("/tmp/segments")?, "")?;
    wait::until("the agent to name the module that it waits for", WAITS, || {
        Agent::readiness().is_ok_and(|answer| answer.contains("module nf_conntrack")).then_some(())
    })?;
    ensure!(!Agent::is_ready(), "the agent is ready without nf_conntrack");

    stage.break_rules(&rules)?;
    let agent = agent.wait_until_ready()?;
    refused(stage, REFUSED)?;
    expect_faults("api", Class::C28, REFUSED)?;
    let ended = stop(agent)?;
    ensure!(ended.stderr.contains("waiting for the kernel's module nf_conntrack"), "{}", ended.stderr);
    Ok(())
}

/// Unloads `nf_conntrack` and every module above it.
fn unload_conntrack() -> Result<()> {
    loop {
        let listed = fs::read_to_string("/proc/modules").context("reading the modules")?;
        let modules: Vec<(&str, &str)> = listed
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?, words.nth(1)?))
            })
            .collect();
        if !modules.iter().any(|(name, _)| *name == "nf_conntrack") {
            return Ok(());
        }
        let is_above = |name: &str| ABOVE_CONNTRACK.iter().any(|start| name.starts_with(start));
        let unused = modules.iter().filter(|(name, uses)| *uses == "0" && is_above(name));
        let unloaded = unused.filter(|(name, _)| command::run("rmmod", &[name]).is_ok()).count();
        if unloaded == 0 {
            return Err(Skip(format!("nf_conntrack stays loaded:\n{listed}")).into());
        }
    }
}
