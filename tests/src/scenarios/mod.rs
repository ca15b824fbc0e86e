//! The scenarios, one file a fault. Each reads as a story: who serves, what breaks, what traffic goes, what the
//! clients live to see, what verdict each flow must get. The judging itself is the stage's.

mod api_away;
mod check_kernel;
mod exit_status;
mod flood;
mod healthy;
mod lean;
mod mixed;
mod no_endpoints;
mod no_rules;
mod old_flow;
mod probes;
mod recording;
mod refused;
pub(crate) mod silent;
mod stale;
mod table_full;
mod targeted;
mod terminal;
mod translated_twice;

use anyhow::Result;

use crate::world::Stage;

/// One fault, or its absence.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub story: fn(&mut Stage) -> Result<()>,
}

const fn scenario(name: &'static str, story: fn(&mut Stage) -> Result<()>) -> Scenario {
    Scenario { name, story }
}

/// All of them, in the order in which they run.
pub const ALL: &[Scenario] = &[
    scenario("healthy-tcp", healthy::tcp),
    scenario("healthy-udp", healthy::udp),
    scenario("c6-stale-endpoint-answers", stale::answers),
    scenario("c6-stale-endpoint-gone", stale::gone),
    scenario("c20-no-endpoints", no_endpoints::story),
    scenario("c1-rules-flushed", no_rules::all),
    scenario("c5-one-service-without-rules", no_rules::one),
    scenario("c16-conntrack-table-full", table_full::story),
    scenario("c28-refused-same-node", refused::same_node),
    scenario("c28-refused-other-node", refused::other_node),
    scenario("c29-silent-same-node", silent::same_node),
    scenario("c29-silent-other-node", silent::other_node),
    scenario("c29-host-unreachable", silent::unreachable),
    scenario("n1-probes", probes::story),
    scenario("n3-one-record-per-connection", translated_twice::story),
    scenario("n9-old-flow-reset", old_flow::reset),
    scenario("n9-old-flow-stalls", old_flow::stalls),
    scenario("api-server-away", api_away::story),
    scenario("targeted-service", targeted::service),
    scenario("targeted-pod", targeted::pod),
    scenario("targeted-address", targeted::address),
    scenario("lean", lean::story),
    scenario("terminal", terminal::story),
    scenario("check-kernel", check_kernel::story),
    scenario("exit-status", exit_status::story),
    scenario("recording-cut-off", recording::cut_off),
    scenario("recording-disk-full", recording::disk_full),
    scenario("recording-losses", recording::losses),
    scenario("flood", flood::story),
    scenario("mixed-5000", mixed::story),
];

/// One that needs nothing of the node and mostly waits.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub name: &'static str,
    pub story: fn() -> Result<()>,
}

/// Those that run beside the others, to be told of at the end.
pub const BESIDE: &[Beside] = &[Beside { name: "exit-status-unanswered", story: exit_status::unanswered }];
