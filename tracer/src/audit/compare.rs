//! Sends a new connection to each frontend from each side, and compares where it goes with where it should.
//!
//! One fault of the rules shows at several frontends and from several sides: it is reported once, with all of them
//! ([`found`]). A fault that all Services share is one of the frame.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    Aspect, Audit, Context, Expectation, Expected, ExpectedFrontend, ExpectedPort, Kind, frame::Frame, names,
    sources::Sources,
};
use crate::{
    cluster::Via,
    node::{
        ProxyMode,
        ruleset::{
            AddressRange, Datum, End, Family, Fate, Frontend, LocalTraffic, NFTABLES_TABLE, Name, Origin,
            Probe, Ruleset, Step, Writer, frontends, walk::Walker,
        },
    },
    sighting::Protocol,
};

mod found;

use found::{Fault, Found};

/// Shares that differ by less, relative to an even one, are even: iptables writes probabilities with 31 bits.
const SHARE_TOLERANCE: f64 = 0.01;
/// Edges of source ranges tried for one frontend.
const EDGES_MAX: usize = 64;

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
    /// The kernel of nftables mode masquerades the hairpins of local endpoints by this set (v1.35 and later).
    hairpin_set: bool,
    /// Refuses ports that a Service does not have.
    checks_ports: bool,
    /// Addresses of IPVS servers of node ports.
    node_port_servers: BTreeSet<IpAddr>,
    found: Found,
}

/// Compares everything of one family.
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
    let mut comparison = Comparison {
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
        node_port_servers: node_port_servers(expected, rules, family),
        found: Found::default(),
    };
    for (index, port) in expected.ports.iter().enumerate().filter(|(_, port)| port.family == family) {
        comparison.port(index, port, audit);
    }
    comparison.found.report(&expected.ports, family, writer, rules, audit);
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
                    self.judge(index, port, known, &probe, &fate, &wanted, audit);
                }
                if !known.ranges.is_empty() && !self.frame.blocked.contains(&Origin::Outside) {
                    self.edges(index, port, known, destination, audit);
                }
            }
        }
        if self.checks_ports && self.is_first(port) {
            self.unlisted_port(index, port, audit);
        }
    }

    fn walk(&self, probe: &Probe, audit: &mut Audit) -> Fate {
        audit.checked.walks += 1;
        let fate = self.walker.walk(probe);
        if fate.cut {
            gap(audit, format!("the way to {} is too long to be followed to its end", probe.destination));
        }
        fate
    }

    /// Where the frontend is tried: a node port at the node's addresses.
    fn addresses(&self, known: &ExpectedFrontend, audit: &mut Audit) -> Vec<IpAddr> {
        if let Some(address) = known.frontend.address {
            return vec![address];
        }
        let allowed = &self.context.node_port_addresses;
        let of_family =
            self.expected.node_addresses.iter().copied().filter(|ip| Family::of(*ip) == self.family);
        let mut addresses = of_family
            .filter(|ip| allowed.is_empty() || allowed.iter().any(|cidr| cidr.contains(*ip)))
            .take(1)
            .collect::<Vec<_>>();
        // IPVS has a server for each address: where one node port has one, the others should.
        if self.context.mode == ProxyMode::Ipvs {
            addresses.extend(
                self.node_port_servers
                    .iter()
                    .copied()
                    .filter(|ip| !addresses.contains(ip))
                    .collect::<Vec<_>>(),
            );
        }
        if addresses.is_empty() {
            gap(
                audit,
                format!(
                    "node ports of {}: no address of this node is known at which they are reached",
                    self.family
                ),
            );
        }
        addresses
    }

    /// What should become of a connection from this source.
    fn wanted(
        &self,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        origin: Origin,
        source: IpAddr,
    ) -> Expectation {
        let wanted = port.expectation(known.via, origin, self.context.mode);
        let allowed = known.ranges.is_empty() || known.ranges.iter().any(|range| range.contains(source));
        // IPVS mode filters only what is routed to the node.
        let filtered = !(self.context.mode == ProxyMode::Ipvs && origin == Origin::Node);
        match wanted {
            Expectation::Endpoints(_) if !allowed && filtered => Expectation::Dropped,
            // Refused or dropped: whichever chain comes first.
            Expectation::Refused | Expectation::Dropped if !allowed => Expectation::Any,
            // Without a known mark of Pods, kube-proxy cannot tell them from others.
            _ if self.sources.traffic == LocalTraffic::Unmarked
                && origin == Origin::Pod
                && known.via != Via::ClusterIp
                && port.is_local(known.via) =>
            {
                Expectation::Any
            }
            wanted => wanted,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one question with all that it is about")]
    fn judge(
        &mut self,
        index: usize,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        probe: &Probe,
        fate: &Fate,
        wanted: &Expectation,
        audit: &mut Audit,
    ) {
        let mut faults = Vec::new();
        let forwarded = self.reach((index, port, known), probe, fate, wanted, &mut faults);
        for fault in faults {
            self.found.add(fault, known.frontend, probe.origin);
        }
        if forwarded {
            self.found.forwarded.insert(index);
            self.masquerade(index, port, known, probe, fate, audit);
            self.affinity(index, port, known, probe, fate);
        }
    }

    /// Whether it gets where it should. Answers whether it is forwarded at all, so that there is more to ask.
    fn reach(
        &self,
        (index, port, known): (usize, &ExpectedPort, &ExpectedFrontend),
        probe: &Probe,
        fate: &Fate,
        wanted: &Expectation,
        faults: &mut Vec<Fault>,
    ) -> bool {
        let weight_of =
            |end: End| fate.branches.iter().filter(|b| b.end == end).map(|b| b.weight).sum::<f64>();
        let (refused, dropped) = (weight_of(End::Refused), weight_of(End::Dropped));
        let passed = weight_of(End::Passed);
        let endpoints = fate.endpoints();
        let place = fate.chain().cloned();
        let note = fate.unknown.first().map(|what| format!(" ({what})")).unwrap_or_default();
        let mut fault = |kind, aspect, class, endpoint, place: Name, text: String| {
            faults.push(Fault { port: index, kind, aspect, class, endpoint, place, text });
        };
        match wanted {
            Expectation::Any => {}
            Expectation::Endpoints(set) => {
                if endpoints.is_empty() {
                    let what = if refused >= passed.max(dropped) {
                        "refused"
                    } else if dropped > passed {
                        "dropped"
                    } else {
                        "not translated"
                    };
                    let kind = if what == "not translated" { Kind::Missing } else { Kind::Wrong };
                    let (aspect, class) = if known.ranges.is_empty() || what == "not translated" {
                        (Aspect::Reach, "C5")
                    } else {
                        (Aspect::SourceRanges, "C23")
                    };
                    let place = place.unwrap_or_else(|| self.place_of(port, known));
                    let text = format!(
                        "new connections are {what}, although there are {} endpoints{note}",
                        set.len()
                    );
                    fault(kind, aspect, class, None, place, text);
                    return false;
                }
                let set = match &port.endpoints.unhinted {
                    Some(all)
                        if endpoints.len() == all.len() && endpoints.iter().all(|(e, _)| all.contains(e)) =>
                    {
                        all
                    }
                    _ => set,
                };
                let mut same = true;
                for endpoint in set.iter().filter(|wanted| !endpoints.iter().any(|(e, _)| e == *wanted)) {
                    same = false;
                    let place = self.endpoint_place(port, known, probe.origin, *endpoint);
                    let text = format!("no new connection goes to the endpoint {endpoint}{note}");
                    fault(Kind::Missing, Aspect::Endpoint, "C5", Some(*endpoint), place, text);
                }
                for (endpoint, share) in endpoints.iter().filter(|(e, _)| !set.contains(e)) {
                    same = false;
                    let branch = fate.branches.iter().find(|b| b.end == End::Endpoint(*endpoint));
                    let place = branch.and_then(|b| b.trail.last().cloned()).or_else(|| place.clone());
                    let text = format!(
                        "{:.0} % of new connections go to {endpoint}, which {}",
                        share * 100.0,
                        port.what_is(*endpoint)
                    );
                    let place = place.unwrap_or_else(|| self.place_of(port, known));
                    fault(Kind::Stale, Aspect::Endpoint, "C6", Some(*endpoint), place, text);
                }
                let lost = passed + refused + dropped;
                let even = 1.0 / set.len() as f64;
                let odd = |share: f64| (share - even).abs() > even * SHARE_TOLERANCE;
                if same && (lost > SHARE_TOLERANCE * even || endpoints.iter().any(|(_, share)| odd(*share))) {
                    let shares = endpoints.iter().map(|(e, share)| format!("{e} {:.1} %", share * 100.0));
                    let shares = shares.take(12).collect::<Vec<_>>().join(", ");
                    let rest =
                        if lost > 1e-6 { format!(", nowhere {:.1} %", lost * 100.0) } else { String::new() };
                    let text = format!("new connections are not shared out evenly: {shares}{rest}{note}");
                    let place = place.clone().unwrap_or_else(|| self.place_of(port, known));
                    fault(Kind::Wrong, Aspect::Share, "C5e", None, place, text);
                }
            }
            Expectation::Refused | Expectation::Dropped => {
                let (wants, has) =
                    if *wanted == Expectation::Refused { ("refused", refused) } else { ("dropped", dropped) };
                let common = fate.branches.iter().all(|branch| {
                    branch
                        .trail
                        .last()
                        .is_some_and(|name| matches!(&**name, "cluster-ips-check" | "KUBE-IPVS-FILTER"))
                });
                if has > 1.0 - 1e-6 && common && known.via == Via::ClusterIp {
                    let place = if self.writer == Writer::Ipvs {
                        frontends::ipset_name("CLUSTER-IP", self.family).into()
                    } else {
                        self.refusal_place(port, known, false)
                    };
                    let text =
                        "new connections are refused as those to a port that the Service does not have"
                            .to_owned();
                    fault(Kind::Missing, Aspect::Frontend, "C20", None, place, text);
                    return false;
                }
                if has > 1.0 - 1e-6 || self.frame.unfiltered.contains(&probe.origin) && endpoints.is_empty() {
                    return false;
                }
                let ranges = !known.ranges.is_empty();
                for (endpoint, share) in endpoints.iter().filter(|_| !ranges) {
                    let branch = fate.branches.iter().find(|b| b.end == End::Endpoint(*endpoint));
                    let place = branch.and_then(|b| b.trail.last().cloned());
                    let place = place.unwrap_or_else(|| self.place_of(port, known));
                    let text = format!(
                        "{:.0} % of new connections go to {endpoint}, which {}; they should be {wants}",
                        share * 100.0,
                        port.what_is(*endpoint)
                    );
                    fault(Kind::Stale, Aspect::Endpoint, "C6", Some(*endpoint), place, text);
                }
                if ranges && !endpoints.is_empty() {
                    let place = self.firewall_place(port);
                    let text =
                        format!("connections from {} get in, which no source range allows", probe.source);
                    fault(Kind::Missing, Aspect::SourceRanges, "C23", None, place, text);
                } else if endpoints.is_empty() {
                    let is = if passed > 0.5 {
                        "go on untranslated"
                    } else if refused > 0.5 {
                        "are refused"
                    } else {
                        "are dropped"
                    };
                    let kind = if passed > 0.5 { Kind::Missing } else { Kind::Wrong };
                    let class = match (ranges, wants, known.via) {
                        (true, ..) => "C23",
                        (_, "refused", _) if self.context.mode == ProxyMode::Ipvs => "C12",
                        (_, "refused", _) => "C20",
                        (_, _, Via::ClusterIp) => "C22",
                        _ => "C21",
                    };
                    let place = place.unwrap_or_else(|| self.refusal_place(port, known, wants == "dropped"));
                    let text = format!("new connections {is}, and should be {wants}{note}");
                    fault(kind, Aspect::Reach, class, None, place, text);
                }
                return false;
            }
        }
        true
    }

    fn masquerade(
        &mut self,
        index: usize,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        probe: &Probe,
        fate: &Fate,
        audit: &mut Audit,
    ) {
        if self.frame.no_masquerade {
            return;
        }
        if let Some(unread) = fate.unknown.iter().find(|what| what.starts_with("the ipset")) {
            gap(audit, format!("what is masqueraded: {unread}"));
            return;
        }
        let wanted = self.masqueraded(port, known, probe.origin);
        let first = match self.writer {
            Writer::Ipvs => self.marking_set(port, known),
            _ => fate.chain().cloned().unwrap_or_else(|| self.place_of(port, known)),
        };
        let forwarded = || fate.branches.iter().filter(|branch| matches!(branch.end, End::Endpoint(_)));
        if let Some(wanted) = wanted {
            let wrong = forwarded().filter(|branch| branch.masquerade != wanted).collect::<Vec<_>>();
            let all = wrong.len() == forwarded().count();
            let (kind, what) = if wanted {
                (
                    Kind::Missing,
                    "are not masqueraded: the answer does not come back this way, or with another address",
                )
            } else {
                (Kind::Wrong, "are masqueraded: the endpoint does not see who they are from")
            };
            let from = probe.origin.as_str();
            let mut add = |endpoint: Option<SocketAddr>, place: Name, text: String| {
                let fault = Fault {
                    port: index,
                    kind,
                    aspect: Aspect::Masquerade,
                    class: "C5e",
                    endpoint,
                    place,
                    text,
                };
                self.found.add(fault, known.frontend, probe.origin);
            };
            if all && !wrong.is_empty() {
                add(None, first, format!("new connections from {from} {what}"));
            } else {
                for branch in wrong {
                    let End::Endpoint(endpoint) = branch.end else { continue };
                    let place = branch.trail.last().cloned().unwrap_or_else(|| first.clone());
                    add(Some(endpoint), place, format!("new connections from {from} to {endpoint} {what}"));
                }
            }
        }
        for branch in forwarded().filter(|branch| branch.hairpin == Some(false)) {
            let End::Endpoint(endpoint) = branch.end else { continue };
            let needed = match self.context.mode {
                ProxyMode::Iptables => true,
                ProxyMode::Nftables => !self.hairpin_set || port.endpoints.here.contains(&endpoint),
                ProxyMode::Ipvs => port.endpoints.here.contains(&endpoint),
            };
            if needed {
                let place = match self.writer {
                    Writer::Ipvs => frontends::ipset_name("LOOP-BACK", self.family).into(),
                    _ if self.hairpin_set => "hairpin-connections".into(),
                    _ => branch.trail.last().cloned().unwrap_or_else(|| self.place_of(port, known)),
                };
                let text = format!(
                    "a connection of {endpoint} to its own Service is not masqueraded and gets no answer"
                );
                let fault = Fault {
                    port: index,
                    kind: Kind::Missing,
                    aspect: Aspect::Hairpin,
                    class: "C31",
                    endpoint: Some(endpoint),
                    place,
                    text,
                };
                self.found.add(fault, known.frontend, probe.origin);
            }
        }
    }

    /// Whether a connection should be masqueraded; `None` where that is not known.
    fn masqueraded(&self, port: &ExpectedPort, known: &ExpectedFrontend, origin: Origin) -> Option<bool> {
        let unmarked = self.sources.traffic == LocalTraffic::Unmarked;
        match (known.via, port.is_local(known.via), origin) {
            (Via::ClusterIp, ..) if self.context.masquerade_all => Some(true),
            (Via::ClusterIp, ..) if unmarked => (self.context.mode != ProxyMode::Ipvs).then_some(false),
            (Via::ClusterIp, _, origin) => Some(origin != Origin::Pod),
            (_, false, _) => Some(true),
            (_, true, _) if self.context.mode == ProxyMode::Ipvs => Some(false),
            (_, true, Origin::Pod) => (!unmarked).then_some(false),
            (_, true, origin) => Some(origin == Origin::Node),
        }
    }

    fn affinity(
        &mut self,
        index: usize,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        probe: &Probe,
        fate: &Fate,
    ) {
        let wanted = port.affinity().map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX));
        let add = |kind, endpoint, place: Option<Name>, text: String, expected: &Self| {
            let place = place.unwrap_or_else(|| expected.place_of(port, known));
            Fault { port: index, kind, aspect: Aspect::Affinity, class: "C24", endpoint, place, text }
        };
        let mut faults = Vec::new();
        for branch in &fate.branches {
            let End::Endpoint(endpoint) = branch.end else { continue };
            let place = branch.trail.last().cloned();
            let Some(wanted) = wanted else {
                if branch.remembers.is_some() || fate.sticky.iter().any(|sticky| sticky.end == branch.end) {
                    let text =
                        format!("clients stay with {endpoint}, although the Service has no session affinity");
                    faults.push(add(Kind::Wrong, Some(endpoint), place, text, self));
                }
                continue;
            };
            let Some(list) = &branch.remembers else {
                let text =
                    format!("a client of {endpoint} is not remembered: its next connection may go elsewhere");
                faults.push(add(Kind::Missing, Some(endpoint), place, text, self));
                continue;
            };
            match fate.sticky.iter().find(|sticky| sticky.list == *list && sticky.end == branch.end) {
                None => {
                    let text = format!("a client that {endpoint} served before is not sent there again");
                    let place = fate.chain().cloned();
                    faults.push(add(Kind::Missing, Some(endpoint), place, text, self));
                }
                // IPVS's own list gives the time in ticks of unknown length.
                Some(sticky) if sticky.seconds.is_some_and(|s| s != wanted && s != u32::MAX) => {
                    let text = format!(
                        "clients stay with {endpoint} for {} s, and should for {wanted} s",
                        sticky.seconds.unwrap_or_default()
                    );
                    faults.push(add(Kind::Wrong, Some(endpoint), fate.chain().cloned(), text, self));
                }
                Some(_) => {}
            }
        }
        // Clients that are sent to an endpoint to which new ones are not (C24).
        for sticky in &fate.sticky {
            let served = fate.branches.iter().any(|branch| branch.end == sticky.end);
            if let End::Endpoint(endpoint) = sticky.end
                && !served
            {
                let text = format!(
                    "clients that {endpoint} served before are still sent there, which {}",
                    port.what_is(endpoint)
                );
                let place = sticky.trail.last().cloned();
                faults.push(add(Kind::Stale, Some(endpoint), place, text, self));
            }
        }
        for fault in faults {
            self.found.add(fault, known.frontend, probe.origin);
        }
    }

    /// Tries both sides of each edge of the source ranges, and what else the rules let in.
    fn edges(
        &mut self,
        index: usize,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        destination: SocketAddr,
        audit: &mut Audit,
    ) {
        let mut tried = Vec::new();
        for range in known.ranges.iter().copied().chain(self.allowed(port, known)) {
            tried.extend(
                [Some(range.first), Some(range.last), before(range.first), after(range.last)]
                    .into_iter()
                    .flatten(),
            );
        }
        tried.sort_unstable();
        tried.dedup();
        for source in tried.into_iter().take(EDGES_MAX) {
            let probe = Probe {
                origin: Origin::Outside,
                source,
                interface: None,
                destination,
                protocol: known.frontend.protocol,
                local: false,
                hairpin: false,
            };
            let fate = self.walk(&probe, audit);
            let wanted = self.wanted(port, known, Origin::Outside, source);
            let allowed = known.ranges.iter().any(|range| range.contains(source));
            let gets_in = !fate.endpoints().is_empty();
            if allowed && gets_in {
                self.judge(index, port, known, &probe, &fate, &wanted, audit);
            }
            let aspect = Aspect::SourceRanges;
            let place = self.firewall_place(port);
            if allowed && !gets_in && matches!(wanted, Expectation::Endpoints(_)) {
                let text =
                    format!("connections from {source} are turned away, although a source range allows them");
                let fault = Fault {
                    port: index,
                    kind: Kind::Missing,
                    aspect,
                    class: "C23",
                    endpoint: None,
                    place,
                    text,
                };
                self.found.add(fault, known.frontend, Origin::Outside);
            } else if !allowed && gets_in {
                let text = format!("connections from {source} get in, which no source range allows");
                let fault = Fault {
                    port: index,
                    kind: Kind::Wrong,
                    aspect,
                    class: "C23",
                    endpoint: None,
                    place,
                    text,
                };
                self.found.add(fault, known.frontend, Origin::Outside);
            }
        }
    }

    /// The source ranges that the rules have for this Service port.
    fn allowed(&self, port: &ExpectedPort, known: &ExpectedFrontend) -> Vec<AddressRange> {
        let name = self.firewall_place(port);
        let chains =
            self.rules.tables.iter().filter(|t| t.family == self.family).filter_map(|t| t.chain(&name));
        let sources = chains.flat_map(|chain| chain.rules.iter()).flat_map(|rule| &rule.steps);
        let mut ranges = sources
            .filter_map(|step| match step {
                Step::Source { ranges, .. } => Some(ranges.iter().copied()),
                _ => None,
            })
            .flatten()
            .collect::<Vec<_>>();
        for (key, _) in self.rules.sets.iter().filter(|set| *set.name == *name).flat_map(|set| set.iter()) {
            if let [Datum::Address(ip), Datum::Protocol(_), Datum::Port(number), source] = key.as_ref()
                && Some(*ip) == known.frontend.address
                && *number == known.frontend.port
            {
                match source {
                    Datum::Range(range) => ranges.push(*range),
                    Datum::Address(ip) => ranges.push(AddressRange::host(*ip)),
                    _ => {}
                }
            }
        }
        ranges
    }

    /// Whether this is the first port of its Service: a Service's address is tried once.
    fn is_first(&self, port: &ExpectedPort) -> bool {
        port.service.ports.first() == Some(&port.port)
    }

    /// A ClusterIP refuses the ports that its Service does not have.
    fn unlisted_port(&mut self, index: usize, port: &ExpectedPort, audit: &mut Audit) {
        let Some(number) =
            (9..=u16::MAX).find(|number| !port.service.ports.iter().any(|p| p.port == *number))
        else {
            return;
        };
        // IPVS mode holds all of a Service's addresses on kube-ipvs0, and refuses what is not served there.
        let all = self.context.mode == ProxyMode::Ipvs;
        let frontends = port.frontends.iter().filter(|known| known.via == Via::ClusterIp || all);
        for known in frontends {
            let Some(ip) = known.frontend.address else { continue };
            for origin in [Origin::Pod, Origin::Outside] {
                if self.frame.unfiltered.contains(&origin) {
                    continue;
                }
                let (source, interface) = self.sources.of(origin);
                let probe = Probe {
                    origin,
                    source,
                    interface,
                    destination: SocketAddr::new(ip, number),
                    protocol: port.port.protocol,
                    // IPVS mode holds the address on kube-ipvs0.
                    local: self.context.mode == ProxyMode::Ipvs,
                    hairpin: false,
                };
                let fate = self.walk(&probe, audit);
                if fate.branches.iter().all(|branch| branch.end == End::Refused) {
                    continue;
                }
                let place: Name = match self.writer {
                    Writer::Nftables => "cluster-ips".into(),
                    _ => "KUBE-IPVS-FILTER".into(),
                };
                let text = format!(
                    "connections to {ip}, port {number}, which the Service does not have, are not refused"
                );
                let frontend = Frontend { port: number, ..known.frontend };
                let fault = Fault {
                    port: index,
                    kind: Kind::Missing,
                    aspect: Aspect::UnlistedPort,
                    class: "C5c",
                    endpoint: None,
                    place,
                    text,
                };
                self.found.add(fault, frontend, origin);
            }
        }
    }

    // Where kube-proxy would have written it.

    /// The rule or element that names the frontend.
    fn place_of(&self, port: &ExpectedPort, known: &ExpectedFrontend) -> Name {
        let node_port = known.frontend.address.is_none();
        match self.writer {
            Writer::Nftables if node_port => {
                let table = self.rules.table(Writer::Nftables, self.family, NFTABLES_TABLE);
                let first = self.expected.node_addresses.iter().find(|ip| Family::of(**ip) == self.family);
                let listed = table.zip(first).is_some_and(|(table, ip)| {
                    table.set("nodeport-ips").is_none_or(|set| set.find(&[Datum::Address(*ip)]).is_some())
                });
                if listed { "service-nodeports".into() } else { "nodeport-ips".into() }
            }
            Writer::Nftables => "service-ips".into(),
            Writer::Ipvs => {
                let address =
                    known.frontend.address.or_else(|| self.expected.node_addresses.first().copied());
                match address {
                    Some(ip) => format!("virtual server {}", SocketAddr::new(ip, known.frontend.port)).into(),
                    None => "IPVS".into(),
                }
            }
            _ => {
                let hash = names::iptables_hash(&port.service.key, &port.port);
                let kind = match known.via {
                    Via::ClusterIp if port.is_local(known.via) => "SVL",
                    Via::ClusterIp => "SVC",
                    Via::LoadBalancerIp if !known.ranges.is_empty() => "FW",
                    _ => "EXT",
                };
                format!("KUBE-{kind}-{hash}").into()
            }
        }
    }

    /// The ipset by which IPVS mode knows what to masquerade.
    fn marking_set(&self, port: &ExpectedPort, known: &ExpectedFrontend) -> Name {
        let local = if port.is_local(known.via) { "-LOCAL" } else { "" };
        let name = match (known.via, known.frontend.protocol) {
            (Via::ClusterIp, _) => "CLUSTER-IP".to_owned(),
            (Via::ExternalIp, _) => format!("EXTERNAL-IP{local}"),
            (Via::LoadBalancerIp, _) => format!("LOAD-BALANCER{local}"),
            (Via::NodePort, Protocol::UDP) => format!("NODE-PORT{local}-UDP"),
            (Via::NodePort, Protocol::SCTP) => format!("NODE-PORT{local}-SCTP-HASH"),
            (Via::NodePort, _) => format!("NODE-PORT{local}-TCP"),
        };
        frontends::ipset_name(&name, self.family).into()
    }

    fn endpoint_place(
        &self,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        origin: Origin,
        endpoint: SocketAddr,
    ) -> Name {
        let (key, of) = (&port.service.key, &port.port);
        match self.writer {
            Writer::Nftables => {
                let name = names::nftables_endpoint(key, of, endpoint);
                let table = self.rules.table(Writer::Nftables, self.family, NFTABLES_TABLE);
                if table.is_some_and(|table| table.chain(&name).is_some()) {
                    return name.into();
                }
                let local =
                    port.is_local(known.via) && (known.via == Via::ClusterIp || origin == Origin::Outside);
                format!("{}-{}", if local { "local" } else { "service" }, names::nftables_base(key, of))
                    .into()
            }
            Writer::Ipvs => format!("real server {endpoint}").into(),
            _ => names::iptables_endpoint(key, of, endpoint).into(),
        }
    }

    fn firewall_place(&self, port: &ExpectedPort) -> Name {
        let (key, of) = (&port.service.key, &port.port);
        match self.writer {
            Writer::Nftables => format!("firewall-{}", names::nftables_base(key, of)).into(),
            Writer::Ipvs => frontends::ipset_name("LOAD-BALANCER-SOURCE-CIDR", self.family).into(),
            _ => format!("KUBE-FW-{}", names::iptables_hash(key, of)).into(),
        }
    }

    fn refusal_place(&self, port: &ExpectedPort, known: &ExpectedFrontend, dropped: bool) -> Name {
        match (self.writer, known.via) {
            _ if !known.ranges.is_empty() && dropped => self.firewall_place(port),
            (Writer::Nftables, Via::NodePort) => "no-endpoint-nodeports".into(),
            (Writer::Nftables, _) => "no-endpoint-services".into(),
            (Writer::Ipvs, _) => self.place_of(port, known),
            (_, Via::ClusterIp) => "KUBE-SERVICES".into(),
            _ => "KUBE-EXTERNAL-SERVICES".into(),
        }
    }
}

impl ExpectedPort {
    /// What an address that should not be sent to is to the Service.
    fn what_is(&self, endpoint: SocketAddr) -> String {
        if self.left.contains_key(&endpoint) {
            return "left the Service's EndpointSlices".to_owned();
        }
        let usable = |set: &[SocketAddr]| set.contains(&endpoint);
        if usable(&self.endpoints.cluster) || usable(&self.endpoints.local) {
            "is an endpoint, but not for these connections (traffic policy or topology)".to_owned()
        } else if usable(&self.endpoints.here) {
            "is an endpoint of this node that is not ready".to_owned()
        } else {
            "is no usable endpoint of the Service".to_owned()
        }
    }
}

/// Addresses of the node at which IPVS serves at least one node port.
fn node_port_servers(expected: &Expected, rules: &Ruleset, family: Family) -> BTreeSet<IpAddr> {
    let frontends = || expected.ports.iter().flat_map(|port| &port.frontends).map(|known| known.frontend);
    let addresses = frontends().filter_map(|frontend| frontend.address).collect::<BTreeSet<_>>();
    let ports = frontends().filter(|frontend| frontend.address.is_none());
    let ports = ports.map(|frontend| (frontend.protocol, frontend.port)).collect::<BTreeSet<_>>();
    let servers = rules.servers.iter().flatten();
    let servers = servers.filter(|server| ports.contains(&(server.protocol, server.address.port())));
    let found = servers.map(|server| server.address.ip());
    found.filter(|ip| Family::of(*ip) == family && !addresses.contains(ip)).collect()
}

fn gap(audit: &mut Audit, what: String) {
    if audit.gaps.len() < 64 && !audit.gaps.contains(&what) {
        audit.gaps.push(what);
    }
}

fn before(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

fn after(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

/// Faults by what they are about.
type ByFault = BTreeMap<(usize, Kind, Aspect, Option<SocketAddr>), usize>;
