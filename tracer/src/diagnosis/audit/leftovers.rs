//! Unwanted rules: those of another mode or backend, those of deleted Services, and unreachable chains.

use std::collections::{BTreeSet, HashSet};

use super::{Aspect, Audit, Context, Discrepancy, Expected, Harmless, Kind, SyncState};
use crate::{
    net::Family,
    node::ProxyMode,
    rules::{
        Datum, Frontend, Name, Named, Ruleset, Step, Table, Verdict, Writer, chains, frontends::ipset_name,
    },
};

/// The most chains listed as harmless; further ones are only counted in a gap.
const MAX_HARMLESS: usize = 4096;

/// Rules of a writer that does not belong to kube-proxy's mode (C3, C10).
pub(super) fn other_writers(
    expected: &Expected,
    rules: &Ruleset,
    context: &Context,
    family: Family,
    (writers, own): (&[Writer], Option<Writer>),
    audit: &mut Audit,
) {
    let known = expected.ports.iter().flat_map(|port| port.frontends.iter().map(|known| known.frontend));
    let known = known.collect::<BTreeSet<_>>();
    for writer in writers.iter().copied().filter(|writer| Some(*writer) != own) {
        // IPVS mode has a few rules in iptables: only those that name Services belong to another mode.
        let named = rules.of(writer).frontends(family);
        let named = named.into_iter().filter(|(_, places)| places.iter().any(|named| named.writer == writer));
        let named = named.map(|(frontend, _)| frontend).collect::<Vec<_>>();
        let place: Name = match writer {
            Writer::Nftables => "table kube-proxy".into(),
            Writer::Ipvs => "IPVS".into(),
            _ => "KUBE-SERVICES".into(),
        };
        if named.is_empty() {
            let ipvs_own = context.mode == ProxyMode::Ipvs && writer.is_iptables();
            if !ipvs_own {
                let why =
                    "another mode or backend of kube-proxy was in use here; it names no Service any more";
                audit.harmless.push(Harmless { place, writer, why });
            }
            continue;
        }
        let backends = writer.is_iptables() && context.mode == ProxyMode::Iptables;
        let still = named.iter().filter(|frontend| known.contains(frontend)).count();
        let what = if backends { "the other backend of iptables" } else { "another mode than kube-proxy's" };
        audit.discrepancies.push(Discrepancy {
            kind: Kind::Surplus,
            aspect: Aspect::Writer,
            family,
            service: None,
            port: None,
            frontends: Vec::new(),
            origins: Vec::new(),
            endpoint: None,
            place,
            writer: Some(writer),
            text: format!(
                "rules of {writer} name {} addresses and ports ({still} of them of Services that exist), but that is \
                 {what}: whichever rule comes first translates",
                named.len()
            ),
            since: None,
            sync: SyncState::Unknown,
        });
    }
}

/// Frontends without a Service.
pub(super) fn surplus(
    expected: &Expected,
    rules: &Ruleset,
    context: &Context,
    family: Family,
    writer: Writer,
    audit: &mut Audit,
) {
    let mut wanted = BTreeSet::new();
    let mut node_ports = BTreeSet::new();
    let mut cluster_ips = BTreeSet::new();
    for known in expected.ports.iter().flat_map(|port| &port.frontends) {
        wanted.insert(known.frontend);
        match known.frontend.address {
            None => {
                node_ports.insert((known.frontend.protocol, known.frontend.port));
            }
            Some(ip) => {
                cluster_ips.insert(ip);
            }
        }
    }
    let own = |ip| {
        expected.node_addresses.contains(&ip)
            || rules.addresses.as_ref().is_some_and(|addresses| addresses.contains(&ip))
            || !cluster_ips.contains(&ip)
    };
    for (frontend, places) in rules.frontends(family) {
        // No Service can have port 0, but kube-proxy writes it for an object that does.
        if wanted.contains(&frontend) || expected.others.contains(&frontend) || frontend.port == 0 {
            continue;
        }
        // IPVS mode lists a node port once for each of the node's addresses.
        let node_port =
            frontend.address.is_some_and(own) && node_ports.contains(&(frontend.protocol, frontend.port));
        if context.mode == ProxyMode::Ipvs && node_port {
            continue;
        }
        if writer == Writer::Ipvs && is_of_another_program(frontend, &places, rules, context) {
            continue;
        }
        let Some(named) = places.into_iter().find(|named| named.writer == writer || writer == Writer::Ipvs)
        else {
            continue;
        };
        audit.discrepancies.push(of_frontend(expected, family, writer, frontend, &named));
    }
    surplus_addresses(expected, rules, family, writer, audit);
}

/// Whether a virtual server belongs to another program, such as keepalived or kube-vip. kube-proxy keeps it if its address
/// is in `ipvs.excludeCIDRs` (`isIPInExcludeCIDRs` in `pkg/proxy/ipvs/proxier.go`). Without a configuration it is
/// kube-proxy's if the address is on kube-ipvs0.
fn is_of_another_program(frontend: Frontend, places: &[Named], rules: &Ruleset, context: &Context) -> bool {
    let Some(ip) = frontend.address.filter(|_| places.iter().all(|named| *named.place == *"IPVS")) else {
        return false;
    };
    match (&context.settings, &rules.addresses, &context.own_addresses) {
        (Some(settings), ..) => settings.excluded.iter().any(|range| range.contains(ip)),
        (None, Some(all), Some(own)) => !all.contains(&ip) || own.contains(&ip),
        (None, ..) => false,
    }
}

fn of_frontend(
    expected: &Expected,
    family: Family,
    writer: Writer,
    frontend: Frontend,
    named: &Named,
) -> Discrepancy {
    let gone = expected.gone.get(&frontend);
    let whose = match (gone, &named.service) {
        (Some((service, _)), _) => format!("it belonged to {service} until then"),
        (None, Some(service)) => format!("no Service has it; the rule says {service}"),
        (None, None) => "no Service has it".to_owned(),
    };
    let service = gone.map(|(service, _)| service.clone()).or_else(|| {
        let named = named.service.as_deref()?;
        Some(named.split_once(':').map_or(named, |(service, _)| service).into())
    });
    Discrepancy {
        kind: if gone.is_some() { Kind::Stale } else { Kind::Surplus },
        aspect: Aspect::Frontend,
        family,
        service,
        port: None,
        frontends: vec![frontend],
        origins: Vec::new(),
        endpoint: None,
        place: match (writer, frontend.address) {
            (Writer::Ipvs, Some(ip)) if *named.place == *"IPVS" => {
                format!("virtual server {}", std::net::SocketAddr::new(ip, frontend.port)).into()
            }
            _ => named.place.clone(),
        },
        writer: Some(writer),
        text: format!("{} names {frontend}: {whose}", named.place),
        since: gone.map(|(_, since)| *since),
        sync: SyncState::Unknown,
    }
}

/// Addresses that the rules treat as a Service's but no Service has: connections to them are refused.
fn surplus_addresses(
    expected: &Expected,
    rules: &Ruleset,
    family: Family,
    writer: Writer,
    audit: &mut Audit,
) {
    let set = match writer {
        Writer::Nftables => {
            let table = rules.table(writer, family, crate::rules::NFTABLES_TABLE);
            table.and_then(|table| table.set("cluster-ips"))
        }
        Writer::Ipvs => rules.ipset(&ipset_name("IPVS-IPS", family)),
        _ => None,
    };
    let others = expected.others.iter().filter_map(|frontend| frontend.address).collect::<HashSet<_>>();
    for (key, _) in set.iter().flat_map(|set| set.iter()) {
        let [Datum::Address(ip)] = key.as_ref() else { continue };
        if expected.addresses.contains(ip) || others.contains(ip) {
            continue;
        }
        let place = set.map_or_else(|| "cluster-ips".into(), |set| set.name.clone());
        audit.discrepancies.push(Discrepancy {
            kind: Kind::Surplus,
            aspect: Aspect::Frontend,
            family,
            service: None,
            port: None,
            frontends: Vec::new(),
            origins: Vec::new(),
            endpoint: None,
            text: format!("{place} holds {ip}, which no Service has: connections to it are refused"),
            place,
            writer: Some(writer),
            since: None,
            sync: SyncState::Unknown,
        });
    }
}

/// Unreachable chains of Services and endpoints: leftovers of a partial sync (iptables' large-cluster mode keeps unused
/// KUBE-SEP chains for a while; nftables mode flushes them at once and deletes them later).
pub(super) fn unreached(rules: &Ruleset, family: Family, writer: Writer, audit: &mut Audit) {
    for table in rules.tables.iter().filter(|table| table.family == family && table.writer == writer) {
        let mut reached = HashSet::<&str>::new();
        let mut next = table
            .chains
            .iter()
            .filter(|chain| chain.base.is_some())
            .map(|chain| &*chain.name)
            .collect::<Vec<_>>();
        while let Some(name) = next.pop() {
            if reached.insert(name)
                && let Some(chain) = table.chain(name)
            {
                next.extend(
                    chain
                        .rules
                        .iter()
                        .flat_map(|rule| rule.steps.iter())
                        .flat_map(|step| targets(table, step)),
                );
            }
        }
        for chain in table
            .chains
            .iter()
            .filter(|chain| is_service_chain(&chain.name) && !reached.contains(&*chain.name))
        {
            if audit.harmless.len() < MAX_HARMLESS {
                let why = "nothing leads to this chain";
                audit.harmless.push(Harmless { place: chain.name.clone(), writer, why });
            }
        }
    }
}

fn targets<'a>(table: &'a Table, step: &'a Step) -> Vec<&'a str> {
    let of = |verdict: &'a Verdict| match verdict {
        Verdict::Jump(to) | Verdict::Goto(to) => Some(&**to),
        _ => None,
    };
    match step {
        Step::Do(verdict) => of(verdict).into_iter().collect(),
        Step::Spread { to, .. } => to.iter().filter_map(|(_, verdict)| of(verdict)).collect(),
        Step::Look(look) => table
            .set(&look.map)
            .map(|map| map.iter().filter_map(|(_, verdict)| of(verdict?)).collect())
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn is_service_chain(name: &str) -> bool {
    chains::is_of_service(name)
        || ["service-", "local-", "external-", "firewall-", "endpoint-"]
            .iter()
            .any(|start| name.strip_prefix(start).is_some_and(|rest| rest.contains('/')))
}
