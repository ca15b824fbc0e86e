//! Other failures with an agent's hooks, each of which meets a function that shares a program with others where kprobes reach
//! it. The verdicts are those of a full trace, and the event is reported under its own function's name.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    matrix::{Family, Skip},
    replay,
    scenarios::{few_capabilities, firewall, ipvs, no_endpoints, resets},
    world::Stage,
};

/// The most programs of a trace whose hooks share them, one of IPVS included, and the one with which the copies of the
/// confirmation continue. Without, it has 16 and more.
const PROGRAMS: usize = 10;
/// Debian's kernels since this one preempt what fentry runs, so that kprobes reach the functions, and their tracepoints have
/// cookies.
const SHARES_SINCE: (u32, u32) = (7, 0);
/// The hook of invalid packets needs `fmt` as argument 3 of `nf_ct_l4proto_log_invalid`.
const LOGS_BY_ARGUMENT_SINCE: (u32, u32) = (5, 14);

/// The story, and the functions that it meets.
fn meets(
    stage: &mut Stage,
    story: fn(&mut Stage) -> Result<()>,
    functions: &'static [&'static str],
) -> Result<()> {
    stage.with_hooks_of_failures();
    story(stage)?;
    if let Some(tool) = stage.tool()
        && kernel_version()? >= SHARES_SINCE
    {
        let programs = tool.programs()?;
        ensure!(programs <= PROGRAMS, "the trace has {programs} programs, {PROGRAMS} are enough");
    }
    expect_events(stage, functions);
    Ok(())
}

pub(super) fn kernel_version() -> Result<(u32, u32)> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("reading the kernel's release")?;
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => bail!("{release:?} is no kernel's release"),
    }
}

/// Expects the trace to have an event of each of these functions or tracepoints.
pub(super) fn expect_events(stage: &mut Stage, functions: &[&'static str]) {
    let functions = functions.to_vec();
    stage.check(move |_, _| {
        let counts = replay::run(replay::RECORDING, &["-o", "counts"])?.stdout;
        for function in &functions {
            let is_of = |line: &&String| line.split_whitespace().nth(1) == Some(*function);
            ensure!(counts.iter().any(|line| is_of(&line)), "no event of {function}: {}", counts.join("\n"));
        }
        Ok(())
    });
}

fn by_family(
    stage: &Stage,
    v4: &'static [&'static str],
    v6: &'static [&'static str],
) -> &'static [&'static str] {
    if stage.family() == Family::V4 { v4 } else { v6 }
}

pub(in crate::scenarios) fn reset_by_rule(stage: &mut Stage) -> Result<()> {
    let functions = by_family(stage, &["nf_send_reset"], &["nf_send_reset6"]);
    meets(stage, firewall::reset, functions)
}

pub(in crate::scenarios) fn icmp_error(stage: &mut Stage) -> Result<()> {
    let functions =
        by_family(stage, &["nf_nat_icmp_reply_translation"], &["nf_nat_icmpv6_reply_translation"]);
    meets(stage, resets::datagrams::refused, functions)
}

/// Here the functions are found by their names: the kernel shows a Pod no addresses.
pub(in crate::scenarios) fn few_capabilities(stage: &mut Stage) -> Result<()> {
    meets(stage, few_capabilities::story, &["nf_send_unreach", "nf_ct_kill_acct"])
}

pub(in crate::scenarios) fn no_endpoints(stage: &mut Stage) -> Result<()> {
    meets(stage, no_endpoints::story, by_family(stage, &["nf_send_unreach"], &["nf_send_unreach6"]))
}

pub(in crate::scenarios) fn invalid_packet(stage: &mut Stage) -> Result<()> {
    let since = LOGS_BY_ARGUMENT_SINCE;
    if kernel_version()? < since {
        let missing =
            format!("`fmt` is another argument of nf_ct_l4proto_log_invalid before {}.{}", since.0, since.1);
        return Err(Skip(missing).into());
    }
    meets(stage, resets::conntrack::dropped, &["nf_ct_l4proto_log_invalid"])
}

pub(in crate::scenarios) fn race(stage: &mut Stage) -> Result<()> {
    meets(stage, resets::datagrams::race, &["nf_ct_resolve_clash"])
}

pub(in crate::scenarios) fn without_servers(stage: &mut Stage) -> Result<()> {
    meets(stage, ipvs::without_servers, &["ip_vs_leave"])
}
