//! The destination of a connection: endpoints with their shares, refused, or dropped.

use super::{Comparison, Fault, SHARE_TOLERANCE, Tried, lacks_set, lacks_target};
use crate::{
    cluster::Via,
    diagnosis::audit::{Aspect, Audit, Expectation, ExpectedFrontend, Kind},
    rules::{End, Name, Writer, frontends},
    text::count,
};

impl Comparison<'_> {
    pub(super) fn judge(&mut self, tried: Tried<'_>, wanted: &Expectation, audit: &mut Audit) {
        let refused = matches!(wanted, Expectation::Refused | Expectation::Dropped);
        if refused && lacks_set(tried.fate, audit) {
            return;
        }
        let (forwarded, faults) = self.settle(tried, wanted);
        if !faults.is_empty() && lacks_target(tried.fate, wanted, audit) {
            return;
        }
        if self.is_contested(tried.known) && (faults.is_empty() || self.is_anothers(tried)) {
            return;
        }
        for fault in faults {
            self.found.add(fault, tried.known.frontend, tried.probe.origin);
        }
        if forwarded {
            self.found.forwarded.insert(tried.index);
            self.masquerade(tried, audit);
            self.affinity(tried);
        }
    }

    /// Whether several Service ports have this address and port, or this node port.
    pub(super) fn is_contested(&self, known: &ExpectedFrontend) -> bool {
        self.expected.owners(self.family, known.frontend).len() > 1
    }

    /// Whether the result is the expected one of another Service port with the same frontend.
    fn is_anothers(&self, tried: Tried<'_>) -> bool {
        let owners = self.expected.owners(self.family, tried.known.frontend);
        owners.iter().filter(|index| **index != tried.index).any(|index| {
            let Some(port) = self.expected.ports.get(*index) else { return false };
            let Some(known) = port.frontends.iter().find(|known| known.frontend == tried.known.frontend)
            else {
                return false;
            };
            let wanted = self.wanted(port, known, tried.probe.origin, tried.probe.source);
            self.settle(Tried { index: *index, port, known, ..tried }, &wanted).1.is_empty()
        })
    }

    /// Compares the result with the expected one, and where it differs, with those of the other releases that kube-proxy
    /// may have. Returns whether the connection is forwarded, and the faults.
    pub(super) fn settle(&self, tried: Tried<'_>, wanted: &Expectation) -> (bool, Vec<Fault>) {
        let mut faults = Vec::new();
        let forwarded = self.reach(tried, wanted, &mut faults);
        if faults.is_empty() {
            return (forwarded, faults);
        }
        let as_of = |other: &Expectation| {
            let mut faults = Vec::new();
            let forwarded = self.reach(tried, other, &mut faults);
            faults.is_empty().then_some((forwarded, faults))
        };
        self.of_other_releases(tried, wanted).iter().find_map(as_of).unwrap_or((forwarded, faults))
    }

    /// Whether the result is as expected. Returns whether the connection is forwarded, so that more can be checked.
    fn reach(&self, tried: Tried<'_>, wanted: &Expectation, faults: &mut Vec<Fault>) -> bool {
        let Tried { index, port, known, probe, fate } = tried;
        let at = probe.destination.ip();
        let weight_of =
            |end: End| fate.branches.iter().filter(|b| b.end == end).map(|b| b.weight).sum::<f64>();
        let marked = self.marked_for_drop(tried);
        let (refused, dropped) = (weight_of(End::Refused), weight_of(End::Dropped) + marked);
        let passed = weight_of(End::Passed) - marked;
        let endpoints = fate.endpoints();
        let place = fate.chain().cloned();
        let note = fate.unknown.first().map(|what| format!(" ({what})")).unwrap_or_default();
        let mut fault = |kind, aspect, endpoint, place: Name, text: String| {
            faults.push(Fault { port: index, kind, aspect, endpoint, place, text });
        };
        match wanted {
            Expectation::Any => {}
            Expectation::Endpoints(set) => {
                if endpoints.is_empty() {
                    let untranslated = passed > refused && passed >= dropped;
                    let what = if untranslated {
                        "not translated"
                    } else if refused >= dropped {
                        "refused"
                    } else {
                        "dropped"
                    };
                    let kind = if untranslated { Kind::Missing } else { Kind::Wrong };
                    let aspect = if known.ranges.is_empty() || untranslated {
                        Aspect::Reach
                    } else {
                        Aspect::SourceRanges
                    };
                    let place = place.unwrap_or_else(|| self.place_of(port, known, at));
                    let text = format!(
                        "new connections are {what}, although there {}{note}",
                        are_endpoints(set.len())
                    );
                    fault(kind, aspect, None, place, text);
                    return false;
                }
                let mut same = true;
                for endpoint in set.iter().filter(|wanted| !endpoints.iter().any(|(e, _)| e == *wanted)) {
                    same = false;
                    let place = self.endpoint_place(port, known, probe.origin, *endpoint);
                    let text = format!("no new connection goes to the endpoint {endpoint}{note}");
                    fault(Kind::Missing, Aspect::Endpoint, Some(*endpoint), place, text);
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
                    let place = place.unwrap_or_else(|| self.place_of(port, known, at));
                    fault(Kind::Stale, Aspect::Endpoint, Some(*endpoint), place, text);
                }
                let lost = passed + refused + dropped;
                let even = 1.0 / u32::try_from(set.len()).map_or(f64::INFINITY, f64::from);
                let odd = |share: f64| (share - even).abs() > even * SHARE_TOLERANCE;
                if same && (lost > SHARE_TOLERANCE * even || endpoints.iter().any(|(_, share)| odd(*share))) {
                    let shares = endpoints.iter().map(|(e, share)| format!("{e} {:.1} %", share * 100.0));
                    let shares = shares.take(12).collect::<Vec<_>>().join(", ");
                    let rest =
                        if lost > 1e-6 { format!(", nowhere {:.1} %", lost * 100.0) } else { String::new() };
                    let text = format!("new connections are not distributed evenly: {shares}{rest}{note}");
                    let place = place.clone().unwrap_or_else(|| self.place_of(port, known, at));
                    fault(Kind::Wrong, Aspect::Share, None, place, text);
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
                        self.refusal_place(port, known, at, false)
                    };
                    let text =
                        "new connections are refused as those to a port that the Service does not have"
                            .to_owned();
                    fault(Kind::Missing, Aspect::Frontend, None, place, text);
                    return false;
                }
                if has > 1.0 - 1e-6 || self.frame.unfiltered.contains(&probe.origin) && endpoints.is_empty() {
                    return false;
                }
                // Of a client that the ranges admit, the traffic policy decides.
                let ranges = !known.admits(probe.source);
                for (endpoint, share) in endpoints.iter().filter(|_| !ranges) {
                    let branch = fate.branches.iter().find(|b| b.end == End::Endpoint(*endpoint));
                    let place = branch.and_then(|b| b.trail.last().cloned());
                    let place = place.unwrap_or_else(|| self.place_of(port, known, at));
                    let text = format!(
                        "{:.0} % of new connections go to {endpoint}, which {}; they should be {wants}",
                        share * 100.0,
                        port.what_is(*endpoint)
                    );
                    fault(Kind::Stale, Aspect::Endpoint, Some(*endpoint), place, text);
                }
                if ranges && !endpoints.is_empty() {
                    let place = self.firewall_place(port);
                    let text = format!(
                        "connections from {} are accepted, although no source range admits them{}",
                        probe.source,
                        self.why_ranges_fail()
                    );
                    fault(Kind::Missing, Aspect::SourceRanges, None, place, text);
                } else if endpoints.is_empty() {
                    let is = if passed > 0.5 {
                        "continue untranslated"
                    } else if refused > 0.5 {
                        "are refused"
                    } else {
                        "are dropped"
                    };
                    let kind = if passed > 0.5 { Kind::Missing } else { Kind::Wrong };
                    let aspect = match (ranges, wanted, known.via) {
                        (true, ..) => Aspect::SourceRanges,
                        (_, Expectation::Refused, _) => Aspect::Refusal,
                        (_, _, Via::ClusterIp) => Aspect::InternalPolicy,
                        _ => Aspect::ExternalPolicy,
                    };
                    let place = place.unwrap_or_else(|| {
                        self.refusal_place(port, known, at, *wanted == Expectation::Dropped)
                    });
                    let text = format!("new connections {is}, and should be {wants}{note}");
                    fault(kind, aspect, None, place, text);
                }
                return false;
            }
        }
        true
    }
}

/// `is 1 endpoint`, `are 3 endpoints`.
fn are_endpoints(number: usize) -> String {
    format!("{} {}", if number == 1 { "is" } else { "are" }, count(number, "endpoint"))
}
