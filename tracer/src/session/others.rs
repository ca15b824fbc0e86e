//! The ends of the flows of one cause that its sentence does not name.
//!
//! Owns how many are told apart, and the words about them: a cause is of one Service port, and its sentence is that of one
//! of its flows.

use std::collections::BTreeMap;

use super::folded::Clients;
use crate::{
    text::{count, mentions},
    verdict::{FlowRef, Verdict, VerdictKey},
};

/// The most endpoints, and the most clients, of one cause that are told apart.
const MAX_APART: usize = 32;
/// The most that are listed.
const MAX_LISTED: usize = 3;

/// The endpoints and the clients of the flows of one cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ends {
    endpoints: Names,
    clients: Names,
}

/// Names with their numbers of flows.
#[derive(Clone, Debug, Default, PartialEq)]
struct Names {
    flows: BTreeMap<String, u64>,
    /// The flows of others: whether of one or of several is not known.
    others: u64,
}

impl Names {
    fn add(&mut self, name: String, flows: u64) {
        if let Some(known) = self.flows.get_mut(&name) {
            *known += flows;
        } else if self.flows.len() < MAX_APART {
            self.flows.insert(name, flows);
        } else {
            self.others += flows;
        }
    }

    fn add_endpoint(&mut self, flow: &FlowRef, flows: u64) {
        if let Some(endpoint) = flow.endpoint {
            self.add(endpoint.to_string(), flows);
        }
    }

    fn take_back(&mut self, name: &str) {
        match self.flows.get_mut(name) {
            Some(flows) if *flows > 1 => *flows -= 1,
            Some(_) => {
                self.flows.remove(name);
            }
            None => self.others = self.others.saturating_sub(1),
        }
    }

    /// Those beside this one: `1 other endpoint: 10.244.2.7:53`.
    fn beside(&self, shown: &str, noun: &str) -> Option<String> {
        let others: Vec<&str> = self.flows.keys().map(String::as_str).filter(|name| *name != shown).collect();
        let noun = format!("other {noun}");
        match (others.len(), self.others) {
            (0, 0) => None,
            (0, _) => Some(format!("{noun}s")),
            (number, 0) if number <= MAX_LISTED => {
                Some(format!("{}: {}", count(number as u64, &noun), others.join(", ")))
            }
            (number, 0) => Some(count(number as u64, &noun)),
            (number, _) => Some(format!("at least {}", count(number as u64, &noun))),
        }
    }
}

impl Ends {
    pub(super) fn add(&mut self, flow: &FlowRef) {
        self.endpoints.add_endpoint(flow, 1);
        self.clients.add(flow.client_name(), 1);
    }

    /// Counts flows that share this one's verdict.
    pub(super) fn add_folded(&mut self, flow: &FlowRef, flows: u64, clients: &Clients) {
        self.endpoints.add_endpoint(flow, flows);
        if clients.is_one() {
            self.clients.add(flow.client_name(), flows);
        } else {
            self.clients.others += flows;
        }
    }

    /// No longer counts a flow that had this verdict.
    pub(super) fn take_back(&mut self, key: &VerdictKey, flow: &FlowRef) {
        if let Some(endpoint) = key.endpoint {
            self.endpoints.take_back(&endpoint.to_string());
        }
        self.clients.take_back(&flow.client_name());
    }

    /// The ends that the verdict's sentence stands for and does not name: `at 1 other endpoint: …`, `of 3 other clients: …`.
    pub(super) fn beside(&self, verdict: &Verdict) -> Vec<String> {
        let flow = &verdict.flow;
        let mut others = Vec::new();
        if let Some(endpoint) = flow.endpoint.map(|endpoint| endpoint.to_string())
            && mentions(&verdict.root_cause, &endpoint)
        {
            let beside = self.endpoints.beside(&endpoint, "endpoint");
            others.extend(beside.map(|beside| format!("at {beside}")));
        }
        if names_client(verdict) {
            let beside = self.clients.beside(&flow.client_name(), "client");
            others.extend(beside.map(|beside| format!("of {beside}")));
        }
        others
    }
}

/// Whether the verdict's sentence names the client.
pub(crate) fn names_client(verdict: &Verdict) -> bool {
    let FlowRef { client, client_pod, .. } = &verdict.flow;
    mentions(&verdict.root_cause, &client.ip().to_string())
        || client_pod.as_ref().is_some_and(|pod| mentions(&verdict.root_cause, pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixture::fault;

    fn refused(client: u8, endpoint: u8) -> Verdict {
        let mut verdict = fault();
        verdict.flow.client_pod = None;
        verdict.flow.client = ([192, 0, 2, client], 40_000).into();
        verdict.flow.endpoint = Some(([10, 244, 1, endpoint], 53).into());
        verdict.root_cause =
            format!("backend_refused — 10.244.1.{endpoint}:53 refuses 192.0.2.{client}").into();
        verdict
    }

    #[test]
    fn ends_that_the_sentence_does_not_name_are_counted_and_listed() {
        let mut ends = Ends::default();
        let one = refused(1, 1);
        ends.add(&one.flow);
        assert!(ends.beside(&one).is_empty());
        ends.add(&refused(1, 10).flow);
        ends.add(&refused(12, 1).flow);
        let both = ["at 1 other endpoint: 10.244.1.10:53", "of 1 other client: 192.0.2.12"];
        assert_eq!(ends.beside(&one), both);
        let silent =
            Verdict { root_cause: "no_endpoints — no endpoint for 192.0.2.100".into(), ..one.clone() };
        assert!(ends.beside(&silent).is_empty(), "it names neither");
        let other = refused(12, 1);
        ends.take_back(&other.key(), &other.flow);
        assert_eq!(ends.beside(&one), both[..1]);
        for number in 20..25 {
            ends.add(&refused(number, 1).flow);
        }
        assert_eq!(ends.beside(&one)[1], "of 5 other clients");
        for number in 30..=255 {
            ends.add(&refused(number, 1).flow);
        }
        assert_eq!(ends.beside(&one)[1], "of at least 31 other clients");
    }

    #[test]
    fn of_folded_flows_only_what_is_known_is_said() {
        let one = refused(1, 1);
        let mut ends = Ends::default();
        ends.add(&one.flow);
        let mut clients = Clients::of(&one);
        clients.one_address = false;
        ends.add_folded(&one.flow, 7, &clients);
        assert!(ends.beside(&one).is_empty(), "other ports of one client");
        clients.one_ip = false;
        ends.add_folded(&one.flow, 7, &clients);
        assert_eq!(ends.beside(&one), ["of other clients"]);
    }
}
