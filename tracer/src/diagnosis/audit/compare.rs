//! Sends a new connection to each frontend from each side, and compares the result with the expected one.
//!
//! A fault of the rules that affects several frontends and sides is reported once, with all of them ([`found`]). A
//! fault that all Services share is reported for the frame.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    panic::resume_unwind,
    thread::{self, ScopedJoinHandle},
};

use super::{
    Aspect, Audit, Context, Expectation, Expected, ExpectedFrontend, ExpectedPort, Kind, frame::Frame,
    sources::Sources, topology::Endpoints,
};
use crate::{
    cluster::Via,
    net::Family,
    node::ProxyMode,
    rules::{
        Fate, Frontend, NFTABLES_TABLE, Origin, Probe, Ruleset, Writer,
        walk::{Unknown, Walker},
    },
};

mod found;
mod node_ports;
mod places;
mod ranges;
mod reach;
mod releases;
mod sessions;

use found::{Fault, Found};
pub(super) use ranges::{after, before};
use releases::Form;
pub(crate) use releases::drops_own_connections;

/// Shares that differ by less, relative to an even share, count as even: iptables writes probabilities with 31 bits.
const SHARE_TOLERANCE: f64 = 0.01;
/// The most threads that share the Service ports. The limit leaves the node's other processors free for its traffic.
const MAX_THREADS: usize = 4;
/// The fewest Service ports of one thread: fewer are not worth the thread's start.
const MIN_PORTS: usize = 64;
/// The most edges of source ranges tried for one frontend.
const MAX_EDGES: usize = 64;

/// One audit of one family.
pub(super) struct Comparison<'a> {
    expected: &'a Expected,
    rules: &'a Ruleset,
    context: &'a Context,
    family: Family,
    writer: Writer,
    frame: &'a Frame,
    sources: Sources,
    walker: Walker<'a>,
    /// The kernel masquerades the hairpins of local endpoints in nftables mode by this set (v1.35 and later).
    hairpin_set: bool,
    /// Rejects ports that a Service does not have.
    checks_ports: bool,
    /// The addresses at which node ports are tried.
    node_port_addresses: Vec<IpAddr>,
    /// `masqueradeAll`.
    masquerades_all: bool,
    form: Form,
    found: Found,
}

/// Compares all rules of one family.
pub(super) fn compare(
    expected: &Expected,
    rules: &Ruleset,
    context: &Context,
    family: Family,
    writer: Writer,
    frame: &Frame,
    audit: &mut Audit,
) {
    let table = rules.table(Writer::Nftables, family, NFTABLES_TABLE);
    let has_chain = |name: &str| rules.tables.iter().any(|t| t.family == family && t.chain(name).is_some());
    let new = || Comparison {
        expected,
        rules,
        context,
        family,
        writer,
        frame,
        sources: Sources::new(expected, rules, context, family),
        walker: Walker::new(rules, family),
        hairpin_set: table.is_some_and(|table| table.set("hairpin-connections").is_some()),
        checks_ports: match context.mode {
            ProxyMode::Iptables => false,
            ProxyMode::Nftables => has_chain("cluster-ips-check"),
            ProxyMode::Ipvs => has_chain("KUBE-IPVS-FILTER"),
        },
        node_port_addresses: node_ports::addresses(expected, rules, context, family),
        masquerades_all: context
            .settings
            .as_ref()
            .map_or_else(|| rules.masquerades_all(family), |settings| settings.masquerade_all),
        form: Form::of(rules, family),
        found: Found::default(),
    };
    let of_family = expected.ports.iter().enumerate().filter(|(_, port)| port.family == family);
    let ports = of_family.collect::<Vec<_>>();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let share = ports.len().div_ceil(threads).max(MIN_PORTS);
    let compare_share = |ports: &[(usize, &ExpectedPort)]| {
        let (mut comparison, mut audit) = (new(), Audit::default());
        for (index, port) in ports {
            comparison.port(*index, port, &mut audit);
        }
        (comparison.found, audit)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let shares: Vec<_> =
            ports.chunks(share).map(|ports| scope.spawn(move || compare_share(ports))).collect();
        let end = |share: ScopedJoinHandle<'_, _>| share.join().unwrap_or_else(|panic| resume_unwind(panic));
        shares.into_iter().map(end).collect()
    });
    let mut found = Found::default();
    for (part, of_part) in results {
        found.absorb(part);
        audit.checked.frontends += of_part.checked.frontends;
        audit.checked.walks += of_part.checked.walks;
        of_part.gaps.into_iter().for_each(|what| gap(audit, what));
    }
    found.report(&expected.ports, family, writer, rules, audit);
}

/// One tried connection: the Service port, the frontend, and the result of the rules.
#[derive(Clone, Copy, Debug)]
struct Tried<'t> {
    /// The index of the port among the expected ones.
    index: usize,
    port: &'t ExpectedPort,
    known: &'t ExpectedFrontend,
    probe: &'t Probe<'t>,
    fate: &'t Fate,
}

impl Comparison<'_> {
    fn port(&mut self, index: usize, port: &ExpectedPort, audit: &mut Audit) {
        self.found.checked += 1;
        for known in &port.frontends {
            audit.checked.frontends += 1;
            let addresses = self.addresses(known, audit);
            for address in addresses {
                let destination = SocketAddr::new(address, known.frontend.port);
                for origin in Origin::ALL {
                    if self.frame.blocked.contains(&origin) {
                        continue;
                    }
                    let (source, interface) = self.sources.of(origin);
                    let interface = interface.map(ToOwned::to_owned);
                    let probe = Probe {
                        origin,
                        source,
                        interface: interface.as_deref(),
                        destination,
                        protocol: known.frontend.protocol,
                        local: known.frontend.address.is_none(),
                        hairpin: origin == Origin::Pod && known.via == Via::ClusterIp,
                    };
                    let fate = self.walk(&probe, audit);
                    let wanted = self.wanted(port, known, origin, source);
                    self.judge(Tried { index, port, known, probe: &probe, fate: &fate }, &wanted, audit);
                }
                let contested = self.is_contested(known);
                if !known.ranges.is_empty() && !contested && !self.frame.blocked.contains(&Origin::Outside) {
                    self.edges(index, port, known, destination, audit);
                }
            }
        }
        if self.checks_ports && ranges::is_first(port) {
            self.unlisted_port(index, port, audit);
        }
    }

    fn walk(&self, probe: &Probe, audit: &mut Audit) -> Fate {
        audit.checked.walks += 1;
        let fate = self.walker.walk(probe);
        if fate.cut {
            gap(audit, format!("the path to {} is too long to follow to its end", probe.destination));
        }
        fate
    }

    /// The addresses at which the frontend is tried: a node port at the node's addresses.
    fn addresses(&self, known: &ExpectedFrontend, audit: &mut Audit) -> Vec<IpAddr> {
        if let Some(address) = known.frontend.address {
            return vec![address];
        }
        if self.node_port_addresses.is_empty() {
            gap(
                audit,
                format!("node ports of {}: no address of this node that serves them is known", self.family),
            );
        }
        // At an address that a Service has with this port, that Service's rule comes first, and IPVS has one server.
        let is_taken = |ip: &IpAddr| {
            let frontend = Frontend { address: Some(*ip), ..known.frontend };
            self.expected.has_frontend(self.family, frontend)
        };
        self.node_port_addresses.iter().copied().filter(|ip| !is_taken(ip)).collect()
    }

    /// The expected result of a connection from this source.
    fn wanted(
        &self,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        origin: Origin,
        source: IpAddr,
    ) -> Expectation {
        self.wanted_of(port, &port.endpoints, known, origin, source)
    }

    /// The expected result of a connection from this source if these are the endpoints of the port.
    fn wanted_of(
        &self,
        port: &ExpectedPort,
        endpoints: &Endpoints,
        known: &ExpectedFrontend,
        origin: Origin,
        source: IpAddr,
    ) -> Expectation {
        let seen_as = self.sources.seen_as(origin, source);
        let wanted = port.expectation_of(endpoints, known.via, origin, seen_as, self.context.mode);
        let is_balancer = || port.service.load_balancer_ips.contains(&source);
        let allowed = known.admits(source) || known.admits_itself == Some(true) && is_balancer();
        // IPVS mode filters only packets that are routed to the node.
        let filtered = !(self.context.mode == ProxyMode::Ipvs && origin == Origin::Node);
        match wanted {
            _ if !allowed && known.admits_itself.is_none() && is_balancer() => Expectation::Any,
            _ if !allowed && self.frame.is_unread => Expectation::Any,
            Expectation::Endpoints(_) if !allowed && filtered => Expectation::Dropped,
            // Refused or dropped, depending on which chain comes first.
            Expectation::Refused | Expectation::Dropped if !allowed => Expectation::Any,
            // Without a known Pod range, kube-proxy cannot distinguish Pods from other sources.
            _ if self.sources.are_indistinct()
                && origin == Origin::Pod
                && known.via != Via::ClusterIp
                && port.is_local(known.via) =>
            {
                Expectation::Any
            }
            wanted => wanted,
        }
    }
}

impl ExpectedPort {
    /// The relation of an address that should not receive connections to the Service.
    fn what_is(&self, endpoint: SocketAddr) -> String {
        if self.left.contains_key(&endpoint) {
            return "left the Service's EndpointSlices".to_owned();
        }
        let is_usable =
            |sorted: &Endpoints| [&sorted.cluster, &sorted.local].iter().any(|set| set.contains(&endpoint));
        if is_usable(&self.endpoints) || self.other_endpoints.iter().any(is_usable) {
            "is an endpoint, but not for these connections (traffic policy or topology)".to_owned()
        } else if self.endpoints.here.contains(&endpoint) {
            "is an endpoint of this node that is not ready".to_owned()
        } else {
            "is no usable endpoint of the Service".to_owned()
        }
    }
}

/// Notes a set that the packet was to be searched in and that was not read. Returns whether there is one.
fn lacks_set(fate: &Fate, audit: &mut Audit) -> bool {
    let unread = fate.unknown.iter().find(|what| matches!(what, Unknown::Ipset(_)));
    if let Some(unread) = unread {
        gap(audit, format!("masquerading and filtering: {unread}"));
    }
    unread.is_some()
}

/// Notes a target that could not be read where a connection should go to an endpoint. Returns whether there is one.
fn lacks_target(fate: &Fate, wanted: &Expectation, audit: &mut Audit) -> bool {
    if !matches!(wanted, Expectation::Endpoints(_)) {
        return false;
    }
    let unread = fate.unknown.iter().find(|what| matches!(what, Unknown::Target(_)));
    if let Some(unread) = unread {
        gap(audit, format!("the endpoints in the rules: {unread}"));
    }
    unread.is_some()
}

fn gap(audit: &mut Audit, what: String) {
    if audit.gaps.len() < 64 && !audit.gaps.contains(&what) {
        audit.gaps.push(what);
    }
}

/// Faults, sorted by subject.
type ByFault = BTreeMap<(usize, Kind, Aspect, Option<SocketAddr>), usize>;
