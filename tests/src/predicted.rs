//! `viptrace path` beside the traffic: for the flows of a scenario, the way that it finds through the node's rules must
//! be the one that the packets took. It compares endpoints and ends, and not the words.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;
use viptrace_class::Class;

use crate::{
    expect::{Endpoint, Expected},
    invocation::Invocation,
    traffic::Transport,
    world::NODE,
};

/// The limit for one question on an emulated machine.
const LIMIT: Duration = Duration::from_mins(2);

/// The most questions of a scenario. The others differ by the client's port only, or repeat the Service.
const MAX_QUESTIONS: usize = 4;

/// The fate of the flows of one client and one Service address.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    endpoints: BTreeSet<SocketAddr>,
    /// Flows that got no endpoint.
    untranslated: bool,
    /// Flows that a rule stopped after their translation.
    stopped: bool,
    /// Flows that got past every rule.
    passed: bool,
}

/// Whether the rules alone decide about the first packet of such a flow. A table without room, a lost race for an
/// entry, and an entry from before stop packets that the rules let through.
const fn is_decided_by_rules(class: Class) -> bool {
    !matches!(
        class,
        Class::C7
            | Class::C8
            | Class::C13
            | Class::C15
            | Class::C16
            | Class::C17
            | Class::C17a
            | Class::C18
            | Class::C18b
            | Class::C19
            | Class::N9
    )
}

fn seen(expected: &[Expected]) -> BTreeMap<(IpAddr, SocketAddr, &'static str), Seen> {
    let mut all: BTreeMap<_, Seen> = BTreeMap::new();
    for flow in expected.iter().filter(|flow| is_decided_by_rules(flow.class)) {
        let Some(vip) = flow.vip else { continue };
        let protocol = match flow.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
            Transport::Sctp => "sctp",
        };
        let seen = all.entry((flow.client.ip(), vip, protocol)).or_default();
        match flow.endpoint {
            Endpoint::Is(endpoint) => {
                seen.endpoints.insert(endpoint);
                let is_stopped = flow.class == Class::C30;
                seen.stopped |= is_stopped;
                seen.passed |= !is_stopped;
            }
            Endpoint::Null => seen.untranslated = true,
        }
    }
    all
}

/// The differences between the ways of the flows and those that `viptrace path` finds now. The rules must be those that
/// the flows met.
pub fn differences(expected: &[Expected], kubeconfig: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let kubeconfig = kubeconfig.display().to_string();
    for ((client, vip, protocol), seen) in seen(expected).into_iter().take(MAX_QUESTIONS) {
        let (from, to) = (client.to_string(), vip.to_string());
        let asked = ["path", &from, &to, "-p", protocol, "-o", "json", "--node", NODE];
        let ended = Invocation::start(&[&asked[..], &["--kubeconfig", &kubeconfig]].concat())?.end(LIMIT)?;
        let journey: Value = serde_json::from_str(&ended.stdout.join("\n"))
            .with_context(|| format!("`viptrace path {from} {to}` did not write JSON: {ended:?}"))?;
        found.extend(compare(&seen, &journey).into_iter().map(|difference| {
            format!("viptrace path {from} {to} -p {protocol}: {difference}: {}", journey["verdict"])
        }));
    }
    Ok(found)
}

fn compare(seen: &Seen, journey: &Value) -> Vec<String> {
    let ways = journey["ways"].as_array().map(Vec::as_slice).unwrap_or_default();
    let endpoint_of = |way: &Value| way["endpoint"].as_str().and_then(|text| text.parse::<SocketAddr>().ok());
    let to = |endpoint| ways.iter().filter(move |way| endpoint_of(way) == Some(endpoint));
    let reaches = |way: &Value| matches!(way["result"].as_str(), Some("reaches" | "reply_lost"));
    let mut differences = Vec::new();
    for endpoint in &seen.endpoints {
        if to(*endpoint).next().is_none() {
            differences.push(format!("flows went to {endpoint}, and no way leads there"));
        }
    }
    let may_reach = |way: &Value| reaches(way) || way["result"] == "unknown";
    let known = |way: &&Value| endpoint_of(way).is_some_and(|endpoint| seen.endpoints.contains(&endpoint));
    if seen.passed && !ways.iter().filter(known).any(may_reach) {
        differences.push("flows reached an endpoint, and every way to it is stopped".to_owned());
    }
    if seen.stopped && ways.iter().filter(known).all(reaches) {
        differences
            .push("a rule stopped flows after their translation, and no way to them is stopped".to_owned());
    }
    if seen.untranslated && !ways.is_empty() && ways.iter().all(reaches) {
        differences.push("flows got no endpoint, and every way leads to one".to_owned());
    }
    differences
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn journey(ways: &[(&str, Option<&str>)]) -> Value {
        let ways: Vec<Value> =
            ways.iter().map(|(result, endpoint)| json!({"result": result, "endpoint": endpoint})).collect();
        json!({"ways": ways, "verdict": "x"})
    }

    fn to(endpoint: &str) -> Seen {
        Seen { endpoints: BTreeSet::from([endpoint.parse().unwrap()]), passed: true, ..Seen::default() }
    }

    const A: &str = "10.244.1.11:8080";
    const B: &str = "10.244.1.12:8080";

    #[test]
    fn a_way_that_the_flow_did_not_take_differs() {
        let both = journey(&[("reaches", Some(A)), ("dropped", Some(B))]);
        assert_eq!(compare(&to(A), &both), [""; 0]);
        assert_eq!(compare(&to(B), &both).len(), 1, "it is dropped");
        assert_eq!(compare(&to(A), &journey(&[("unknown", Some(A))])), [""; 0], "it may reach it");
        assert_eq!(compare(&to("10.244.1.13:8080"), &both).len(), 2, "no way leads there");
        let stopped = Seen { passed: false, stopped: true, ..to(B) };
        assert_eq!(compare(&stopped, &both), [""; 0]);
        assert_eq!(compare(&Seen { passed: false, stopped: true, ..to(A) }, &both).len(), 1);
        let lost = Seen { untranslated: true, ..Seen::default() };
        assert_eq!(compare(&lost, &journey(&[("not_translated", None)])), [""; 0]);
        assert_eq!(compare(&lost, &journey(&[("reaches", Some(A))])).len(), 1);
    }
}
