//! Step 1: endpoints whose Pod is gone (K9). The rules follow the `EndpointSlice`s, so that connections are sent to an
//! address that nobody has, and no comparison of rules shows it.
//!
//! Owns the comparison of the slices with the Pods. A slice that has just changed, and slices that a person writes, are
//! not judged.

use std::time::Duration;

use super::{Facts, Finding, Level};
use crate::{
    class::{Class, Confidence, Severity},
    cluster::{
        History, Kind,
        model::{Endpoint, Service},
    },
    text::count,
    time::Timestamp,
    verdict::EvidenceType,
};

/// The `EndpointSlice` controller removes a Pod within seconds, also in a large rollout.
const LATE: Duration = Duration::from_mins(1);
/// The most endpoints named in one finding.
const MAX_NAMED: usize = 5;
const AT: Timestamp = Timestamp::MAX;

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(history) = facts.services().filter(|history| history.knows(Kind::Pod)) else { return };
    let Some(taken) = facts.taken else { return };
    for service in history.services() {
        let changed = history.endpoints_changed(&service.key, AT);
        let is_late = changed.is_some_and(|changed| taken.since(changed.at_latest()) > LATE);
        if service.selector.is_empty() || service.without_address().is_some() || !is_late {
            continue;
        }
        let slices = history.slices_at(&service.key, AT);
        let gone: Vec<&Endpoint> = slices
            .flat_map(|slice| &slice.endpoints)
            .filter(|endpoint| endpoint.conditions.ready && is_gone(history, endpoint))
            .collect();
        findings.extend(finding(service, &gone, changed));
    }
}

/// The Pod of the endpoint does not exist, has ended, or is another one of the same name.
fn is_gone(history: &History, endpoint: &Endpoint) -> bool {
    let Some(reference) = &endpoint.pod else { return false };
    history.pod(&reference.key, AT).is_none_or(|pod| {
        !pod.holds_addresses() || !reference.uid.is_empty() && !pod.uid.is_empty() && reference.uid != pod.uid
    })
}

fn finding(service: &Service, gone: &[&Endpoint], since: Option<Timestamp>) -> Option<Finding> {
    let key = &service.key;
    let names = gone.iter().take(MAX_NAMED).filter_map(|endpoint| {
        Some(format!("{} of Pod {}", endpoint.addresses.first()?, endpoint.pod.as_ref()?.key))
    });
    let names: Vec<String> = names.collect();
    let address = gone.first()?.addresses.first()?;
    Some(
        Finding::new(
            Class::C29,
            format!(
                "{key} sends to {} whose Pod is gone: the EndpointSlice controller has not removed it",
                count(gone.len(), "endpoint")
            ),
        )
        .severity(Severity::High)
        .level(Level::Warning)
        .confidence(Confidence::Medium)
        .service(key, "*")
        .since(since)
        .api(None, format!("ready in its EndpointSlices: {}", names.join(", ")))
        .api(None, "the list of Pods has no such Pod, or one with another uid, or one that has ended")
        .against(EvidenceType::Api, None, "the two lists are read one after the other")
        .unobserved("the state of the EndpointSlice controller: its log in kube-controller-manager")
        .fill("ENDPOINT", address.to_string())
        .fill("ENDPOINT_IP", address.to_string()),
    )
}
