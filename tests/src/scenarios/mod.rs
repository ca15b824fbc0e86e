//! The scenarios, one file for each fault. Each states the servers, the fault, the traffic, the clients' outcomes and
//! the expected verdict of each flow. The stage compares.

mod agent;
mod alone;
mod api_away;
mod attach_tiers;
mod check;
mod check_kernel;
mod clock;
mod every_kind;
mod exit_status;
mod explain_pcap;
mod failures;
mod few_capabilities;
mod firewall;
mod flood;
mod hairpin;
mod healthy;
mod ipvs;
mod kinds;
mod late_module;
mod lean;
mod leftovers;
mod load;
mod mixed;
mod neighbours;
mod newer;
mod no_endpoints;
mod no_rules;
mod old_flow;
mod path_live;
mod probes;
mod recording;
mod refused;
mod resets;
mod share;
mod sidecar;
pub(crate) mod silent;
mod soak;
mod stale;
mod table_full;
mod targeted;
mod terminal;
mod translated_twice;

use anyhow::Result;

pub use share::Shares;
use share::{
    ENDS, EVERY_KERNEL, EVERY_KERNEL_AND_MODE, EVERY_KIND_OF_KERNEL, NEWER_KERNELS, NO_OLD_KERNEL,
    ONE_KERNEL, TWO_KERNELS,
};

use crate::{
    dataplane::{
        BESIDE_OTHERS, BOTH_FAMILIES, DEFAULT, EVERY, IPV6_ONLY, IPVS_ONLY, NETFILTER, NETFILTER_4, NEWER,
        NFTABLES_ONLY, OF_ONE_TIME, Variant, WHOLE, WIDE, WITH_IPVS,
    },
    matrix::{Cell, Covers, Family, Kind, Protocol, TCP4, UDP4},
    world::Stage,
};

/// One fault, or its absence.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub story: fn(&mut Stage) -> Result<()>,
    /// The cells of the matrix that it covers.
    pub covers: &'static [Covers],
    /// The modes and families that it runs in.
    pub variants: &'static [Variant],
    /// The kernels that run it by default.
    pub shares: Shares,
}

const fn scenario(name: &'static str, story: fn(&mut Stage) -> Result<()>) -> Scenario {
    Scenario { name, story, covers: &[], variants: DEFAULT, shares: ONE_KERNEL }
}

impl Scenario {
    const fn covers(self, covers: &'static [Covers]) -> Self {
        Self { covers, ..self }
    }

    const fn on(self, variants: &'static [Variant]) -> Self {
        Self { variants, ..self }
    }

    const fn runs(self, shares: Shares) -> Self {
        Self { shares, ..self }
    }

    /// The cells that it covers in this variant.
    pub fn cells(&self, variant: Variant) -> Vec<Cell> {
        let cells = self.covers.iter().flat_map(|covers| covers.cells(variant.mode));
        let mut cells: Vec<Cell> = if self.variants.iter().any(|other| other.family == Family::V6) {
            cells.map(|cell| Cell { family: variant.family, ..cell }).collect()
        } else {
            cells.collect()
        };
        cells.sort_unstable();
        cells.dedup();
        cells
    }

    /// Its name in this variant. The default variant adds nothing to the name.
    pub fn name_in(&self, variant: Variant) -> String {
        if variant == Variant::DEFAULT { self.name.to_owned() } else { format!("{}@{variant}", self.name) }
    }
}

/// Every cell of the mode that it runs in.
const EVERY_KIND: &[Covers] = &[Covers {
    kinds: &Kind::ALL,
    families: &Family::ALL,
    protocols: &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
}];
/// TCP over IPv4 through a node port.
const NODE_PORT4: &[Covers] =
    &[Covers { kinds: &[Kind::NodePort], families: &[Family::V4], protocols: &[Protocol::Tcp] }];

/// TCP over IPv4 through a load balancer's IP.
const LOAD_BALANCER4: &[Covers] =
    &[Covers { kinds: &[Kind::LoadBalancer], families: &[Family::V4], protocols: &[Protocol::Tcp] }];
/// TCP over IPv4 through every address that is not a cluster IP.
const OTHER_KINDS4: &[Covers] = &[Covers {
    kinds: &[Kind::NodePort, Kind::LoadBalancer, Kind::ExternalIps],
    families: &[Family::V4],
    protocols: &[Protocol::Tcp],
}];
/// TCP over IPv4 through a node port and an external IP.
const FROM_OUTSIDE4: &[Covers] = &[Covers {
    kinds: &[Kind::NodePort, Kind::ExternalIps],
    families: &[Family::V4],
    protocols: &[Protocol::Tcp],
}];

/// All scenarios, in the order in which they run.
pub const ALL: &[Scenario] = &[
    scenario("healthy-tcp", healthy::tcp).covers(TCP4).on(EVERY).runs(EVERY_KIND_OF_KERNEL),
    scenario("healthy-udp", healthy::udp).covers(UDP4).on(EVERY).runs(EVERY_KERNEL_AND_MODE),
    scenario("c6-stale-endpoint-answers", stale::answers).covers(TCP4).on(EVERY).runs(TWO_KERNELS),
    scenario("c6-stale-endpoint-gone", stale::gone).covers(TCP4).on(WIDE).runs(TWO_KERNELS),
    scenario("c20-no-endpoints", no_endpoints::story).covers(TCP4).on(EVERY).runs(EVERY_KERNEL_AND_MODE),
    scenario("c1-rules-flushed", no_rules::all).covers(TCP4).on(EVERY).runs(TWO_KERNELS),
    scenario("c1-nothing-tracked", no_rules::nothing_tracked).covers(TCP4).on(NETFILTER),
    scenario("c5e-rules-removed", no_rules::removed).covers(TCP4).on(EVERY),
    scenario("c5-one-service-without-rules", no_rules::one).covers(TCP4).on(NETFILTER).runs(TWO_KERNELS),
    scenario("c16-conntrack-table-full", table_full::story).covers(TCP4).runs(EVERY_KERNEL),
    scenario("c28-refused-same-node", refused::same_node).covers(TCP4).on(EVERY).runs(EVERY_KIND_OF_KERNEL),
    scenario("c28-refused-other-node", refused::other_node).covers(TCP4).on(WIDE).runs(EVERY_KERNEL),
    scenario("c29-silent-same-node", silent::same_node).covers(TCP4).on(EVERY).runs(EVERY_KERNEL),
    scenario("c29-silent-other-node", silent::other_node).covers(TCP4).on(WIDE).runs(EVERY_KERNEL),
    scenario("c29-host-unreachable", silent::unreachable).covers(TCP4).on(WIDE).runs(TWO_KERNELS),
    scenario("kinds-addresses", kinds::addresses).covers(OTHER_KINDS4).on(NETFILTER_4),
    scenario("every-kind", every_kind::story).covers(EVERY_KIND).on(WHOLE),
    scenario("c23-source-ranges", kinds::source_ranges).covers(LOAD_BALANCER4).on(NETFILTER_4),
    scenario("c21-no-local-endpoint", kinds::no_local_endpoint_external).covers(NODE_PORT4).on(NETFILTER),
    scenario("c22-no-local-endpoint-inside", kinds::no_local_endpoint_internal).covers(TCP4).on(NETFILTER),
    scenario("c5c-wrong-port", kinds::wrong_port).covers(TCP4).on(NETFILTER),
    scenario("affinity", kinds::affinity).covers(TCP4).on(NETFILTER),
    scenario("n8-terminating", kinds::terminating).covers(TCP4).on(WIDE),
    scenario("leftover-rules", leftovers::story).covers(TCP4).on(BESIDE_OTHERS),
    scenario("c31-to-itself", hairpin::to_itself).covers(TCP4).on(BESIDE_OTHERS),
    scenario("c31-past-nat", hairpin::past_nat).covers(TCP4).on(BESIDE_OTHERS),
    scenario("kube-proxy-1.36", newer::story).covers(TCP4).on(NEWER),
    scenario("n1-probes", probes::story).on(WIDE).runs(EVERY_KERNEL),
    scenario("n3-one-record-per-connection", translated_twice::story).on(WIDE).runs(TWO_KERNELS),
    scenario("several-nodes", neighbours::traced).covers(TCP4).on(WITH_IPVS),
    scenario("several-nodes-recorded", neighbours::recorded).covers(TCP4).on(WITH_IPVS),
    scenario("sidecar", sidecar::traced).covers(TCP4),
    scenario("sidecar-recorded", sidecar::recorded).covers(TCP4),
    scenario("n9-old-flow-reset", old_flow::reset).runs(EVERY_KERNEL),
    scenario("n9-old-flow-stalls", old_flow::stalls).runs(EVERY_KERNEL),
    scenario("udp-answered", resets::datagrams::answered),
    scenario("c30-dropped-by-firewall", firewall::dropped).covers(TCP4).on(EVERY),
    scenario("c30-datagrams-dropped", firewall::dropped_datagrams).covers(UDP4),
    scenario("c30-reset-by-firewall", firewall::reset).covers(TCP4).on(NETFILTER),
    scenario("c29-udp-unanswered", resets::datagrams::unanswered),
    scenario("c28-udp-refused", resets::datagrams::refused).on(BOTH_FAMILIES).runs(EVERY_KERNEL_AND_MODE),
    scenario("c8-stale-udp-entry", resets::datagrams::stale_entry),
    scenario("c8-stale-udp-entry-answered", resets::datagrams::stale_answered_entry),
    scenario("n10-udp-race", resets::datagrams::race),
    scenario("c17-insertion-failed", resets::datagrams::lost_race),
    scenario("c18-out-of-window", resets::conntrack::out_of_window),
    scenario("c18-dropped-as-invalid", resets::conntrack::dropped),
    scenario("c19-table-flushed", resets::conntrack::flushed),
    scenario("n4-reset-by-client", resets::senders::client),
    scenario("reset-by-endpoint", resets::senders::endpoint),
    scenario("reset-in-transit", resets::senders::transit),
    scenario("sctp-healthy", resets::sctp::healthy),
    scenario("c28-sctp-refused", resets::sctp::refused).runs(ENDS),
    scenario("c20-sctp-no-endpoints", resets::sctp::no_endpoints).runs(ENDS),
    scenario("api-server-away", api_away::story),
    scenario("ipvs-affinity", ipvs::affinity).covers(TCP4).on(IPVS_ONLY),
    scenario("c24-pinned-by-affinity", ipvs::pinned).covers(TCP4).on(IPVS_ONLY),
    scenario("ipvs-without-conntrack", ipvs::untracked).on(IPVS_ONLY),
    scenario("failures-ipvs-without-conntrack", ipvs::untracked_failures)
        .on(IPVS_ONLY)
        .runs(EVERY_KERNEL_AND_MODE),
    scenario("ipvs-from-outside", ipvs::from_outside).covers(FROM_OUTSIDE4).on(IPVS_ONLY),
    scenario("c12-without-servers", ipvs::without_servers).covers(TCP4).on(IPVS_ONLY),
    scenario("c13-server-removed", ipvs::server_removed).on(IPVS_ONLY),
    scenario("c13-server-removed-in-silence", ipvs::server_removed_in_silence).on(IPVS_ONLY),
    scenario("c14-port-reused", ipvs::port_reused).on(IPVS_ONLY),
    scenario("c15-entry-expires", ipvs::entry_expires).on(IPVS_ONLY),
    scenario("c21-reply-elsewhere", ipvs::reply_elsewhere).covers(NODE_PORT4).on(IPVS_ONLY),
    scenario("c22-no-local-endpoint", ipvs::no_local_endpoint).covers(TCP4).on(IPVS_ONLY),
    scenario("targeted-service", targeted::service),
    scenario("targeted-pod", targeted::pod),
    scenario("targeted-address", targeted::address),
    scenario("targeted-dual-stack", targeted::dual_stack).runs(ENDS),
    scenario("lean", lean::story),
    scenario("failures", failures::story).on(WITH_IPVS).runs(EVERY_KERNEL),
    scenario("failures-reset-by-rule", failures::shared::reset_by_rule).on(BOTH_FAMILIES).runs(NEWER_KERNELS),
    scenario("failures-icmp-error", failures::shared::icmp_error).on(BOTH_FAMILIES).runs(NEWER_KERNELS),
    scenario("failures-no-endpoints", failures::shared::no_endpoints).on(IPV6_ONLY).runs(NEWER_KERNELS),
    scenario("failures-invalid-packet", failures::shared::invalid_packet).runs(NEWER_KERNELS),
    scenario("failures-few-capabilities", failures::shared::few_capabilities).runs(NEWER_KERNELS),
    scenario("failures-race", failures::shared::race),
    scenario("failures-without-servers", failures::shared::without_servers).on(IPVS_ONLY).runs(NEWER_KERNELS),
    scenario("agent", agent::story).runs(EVERY_KERNEL),
    scenario("agent-soak", soak::story),
    scenario("agent-before-conntrack", agent::early::story).runs(TWO_KERNELS),
    scenario("agent-full-disk", agent::disk::full),
    scenario("agent-read-only-disk", agent::disk::read_only),
    scenario("agent-killed", agent::kills::story).runs(ENDS),
    scenario("agent-api-away", agent::outage::story),
    scenario("agent-late-module", agent::rules::late_module),
    scenario("agent-tables-deleted", agent::rules::tables_deleted).on(NFTABLES_ONLY),
    scenario("clock-steps", clock::story).runs(ENDS),
    scenario("failures-noisy", failures::noisy).runs(ENDS),
    scenario("failures-small-buffer", failures::small_buffer::story).runs(ENDS),
    scenario("terminal", terminal::story),
    scenario("check-kernel", check_kernel::story).runs(EVERY_KERNEL),
    scenario("check-kernel-without-reject", check_kernel::without_reject_module).runs(EVERY_KERNEL),
    scenario("few-capabilities", few_capabilities::story).runs(NO_OLD_KERNEL),
    scenario("late-module", late_module::story).runs(EVERY_KERNEL),
    scenario("attach-tiers", attach_tiers::story).runs(NEWER_KERNELS),
    scenario("check-healthy", check::node::healthy).on(OF_ONE_TIME),
    scenario("check-rules-flushed", check::node::flushed).on(WIDE),
    scenario("check-conntrack-full", check::node::table_full),
    scenario("check-settings", check::node::settings),
    scenario("check-leftovers", check::node::leftovers),
    scenario("check-other-backend", check::node::other_backend),
    scenario("check-kube-proxy-gone", check::proxy::gone),
    scenario("check-stale-endpoint", check::proxy::stale).on(WIDE),
    scenario("check-offline", check::offline::story),
    scenario("check-virtual-servers", check::virtual_servers::story).on(IPVS_ONLY),
    scenario("exit-status", exit_status::story),
    scenario("path-live", path_live::story),
    scenario("explain-pcap", explain_pcap::story),
    scenario("recording-cut-off", recording::cut_off),
    scenario("recording-disk-full", recording::disk_full),
    scenario("recording-losses", recording::losses),
    scenario("flood", flood::story),
    scenario("mixed-5000", mixed::story).covers(TCP4).on(WIDE).runs(NEWER_KERNELS),
];

/// A scenario that needs no node and mostly waits.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    pub name: &'static str,
    pub story: fn() -> Result<()>,
    pub shares: Shares,
}

/// The scenarios that run in parallel with the others. Their results are reported at the end.
pub const BESIDE: &[Beside] =
    &[Beside { name: "exit-status-unanswered", story: exit_status::unanswered, shares: ONE_KERNEL }];

#[cfg(test)]
mod tests {
    use viptrace_class::{Class, Scenario as Proof};

    use super::*;

    #[test]
    fn the_knowledge_base_names_scenarios_that_exist() {
        let known: Vec<&str> = ALL.iter().map(|scenario| scenario.name).collect();
        for class in Class::ALL {
            if let Proof::Lab(names) = class.entry().scenario {
                let missing: Vec<_> = names.iter().filter(|name| !known.contains(name)).collect();
                assert!(missing.is_empty(), "{class}: no scenario {missing:?}");
            }
        }
    }

    #[test]
    fn a_scenario_covers_every_cell_of_the_matrix() {
        let declared: Vec<Cell> = ALL
            .iter()
            .flat_map(|scenario| scenario.variants.iter().flat_map(|variant| scenario.cells(*variant)))
            .collect();
        let missing: Vec<Cell> = Cell::all().into_iter().filter(|cell| !declared.contains(cell)).collect();
        assert!(missing.is_empty(), "no scenario covers {} cells: {missing:?}", missing.len());
    }

    #[test]
    fn a_scenario_covers_only_the_family_that_it_runs_in() {
        for scenario in ALL {
            for variant in scenario.variants {
                let cells = scenario.cells(*variant);
                let foreign = cells.iter().find(|cell| cell.family != variant.family);
                assert!(foreign.is_none(), "{} in {variant}: {foreign:?}", scenario.name);
            }
        }
    }
}
