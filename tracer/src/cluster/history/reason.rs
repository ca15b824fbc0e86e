//! Why a Service port has no endpoint that kube-proxy could send to (C20, K9).
//!
//! Owns the order of the reasons, from the most specific to the most general. Must not judge a flow.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use super::{History, Vip};
use crate::{
    cluster::model::{AddressType, Key, Kind, Phase, Pod, Service, ServicePort, TargetPort},
    time::Timestamp,
};

/// The maximum number of names in a reason; the others are counted.
const MAX_NAMED: usize = 5;

/// Why there is no usable endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEndpointsReason {
    /// Usable endpoints exist, but in slices of the other address family.
    AddressFamily { wanted: AddressType, offered: AddressType },
    /// Endpoints exist, but their slices have no port of the Service port's name and protocol.
    PortName { wanted: Arc<str>, target: TargetPort, offered: Vec<String> },
    /// The Service has no selector and no slice with endpoints.
    NoSelector,
    /// Pods match, but none is ready.
    PodsNotReady { pods: Vec<UnreadyPod>, more: usize },
    /// Pods match and are ready, but no slice lists them: the `EndpointSlice` controller is behind or down.
    NotInSlices { pods: Vec<Key>, more: usize },
    /// No Pod matches, but there were endpoints until this time within the look-back: scaled to zero, or deleted.
    ScaledToZero { last_endpoint: Timestamp },
    /// No Pod matches the selector, and none did in the known time.
    SelectorMatchesNothing { selector: String },
    /// The slices list endpoints that are not ready, and viptrace does not know the Pods.
    EndpointsNotReady { count: usize },
    /// Every endpoint that serves terminates, and kube-proxy is one that sends to none of those.
    OnlyTerminating { count: usize },
    /// No endpoints, and viptrace does not know the Pods, which would show the reason.
    Unexplained,
}

/// Within this time of a Service's creation or change the controller has written its slices.
const PLACEHOLDER: Duration = Duration::from_secs(30);

/// A Pod that matches but does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadyPod {
    pub key: Key,
    /// `CrashLoopBackOff`, `Pending`, `terminating`, `not ready`…
    pub why: Arc<str>,
}

impl fmt::Display for NoEndpointsReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressFamily { wanted, offered } => {
                write!(f, "its endpoints are {offered} only, not {wanted}")
            }
            Self::PortName { wanted, target, offered } if offered.is_empty() => {
                write!(
                    f,
                    "no endpoint offers its port {wanted:?} (targetPort {target}): no container port of that name"
                )
            }
            Self::PortName { wanted, offered, .. } => {
                write!(f, "no EndpointSlice has its port {wanted:?}; they have {}", offered.join(", "))
            }
            Self::NoSelector => f.write_str("it has no selector and no EndpointSlice with endpoints"),
            Self::PodsNotReady { pods, more } => {
                f.write_str("its Pods are not ready: ")?;
                list(f, pods.iter().map(|pod| format!("{} ({})", pod.key, pod.why)), *more)
            }
            Self::NotInSlices { pods, more } => {
                f.write_str("ready Pods match, but no EndpointSlice lists them: ")?;
                list(f, pods.iter().map(Key::to_string), *more)
            }
            Self::ScaledToZero { last_endpoint } => {
                write!(
                    f,
                    "no Pod matches its selector any more; the last endpoint left at {}",
                    last_endpoint.to_the_millisecond()
                )
            }
            Self::SelectorMatchesNothing { selector } => write!(f, "its selector {selector} matches no Pod"),
            Self::EndpointsNotReady { count: 1 } => f.write_str("its endpoint is not ready"),
            Self::EndpointsNotReady { count } => write!(f, "none of its {count} endpoints is ready"),
            Self::OnlyTerminating { count } => {
                let which =
                    if *count == 1 { "its endpoint terminates" } else { "all of its endpoints terminate" };
                write!(
                    f,
                    "{which}, and this kube-proxy does not send to them (ProxyTerminatingEndpoints, on since v1.26)"
                )
            }
            Self::Unexplained => f.write_str("no endpoints; the reason is unknown without the Pods"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, names: impl Iterator<Item = String>, more: usize) -> fmt::Result {
    f.write_str(&names.collect::<Vec<_>>().join(", "))?;
    if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
}

impl History {
    /// Why the VIP had no usable endpoint; `None` if it had one, or if that is unknown.
    pub fn why_no_endpoints(&self, vip: &Vip<'_>, at: Timestamp) -> Option<Arc<NoEndpointsReason>> {
        let find = || self.find_why_no_endpoints(vip, at).map(Arc::new);
        self.remembered(|known| &mut known.reasons, vip, (), None, at, find)
    }

    pub(super) fn find_why_no_endpoints(&self, vip: &Vip<'_>, at: Timestamp) -> Option<NoEndpointsReason> {
        let Vip { service, port, .. } = self.vip_at(vip, at)?;
        let reason = self.no_endpoints_reason(service, port, vip.family(), at);
        reason.filter(|reason| *reason != NoEndpointsReason::Unexplained)
    }

    /// Why no endpoint can serve `port` of `service` in this family at `at`; `None` if one can.
    pub fn no_endpoints_reason(
        &self,
        service: &Service,
        port: &ServicePort,
        family: AddressType,
        at: Timestamp,
    ) -> Option<NoEndpointsReason> {
        let key = &service.key;
        if !self.usable_endpoints(key, port, family, None, at).is_empty() {
            return None;
        }
        Some(
            self.other_family(key, port, family, at)
                .or_else(|| self.other_port(key, port, family, at))
                .unwrap_or_else(|| self.missing_pods(service, family, at)),
        )
    }

    /// The reason for a kube-proxy that does not send to terminating endpoints, if there are no others.
    pub(crate) fn only_terminating(
        &self,
        service: &Service,
        port: &ServicePort,
        family: AddressType,
        at: Timestamp,
    ) -> Option<NoEndpointsReason> {
        let usable = self.usable_endpoints(&service.key, port, family, None, at);
        let count = usable.len();
        let is_any_ready = usable.iter().any(|endpoint| endpoint.conditions.ready);
        (count > 0 && !is_any_ready).then_some(NoEndpointsReason::OnlyTerminating { count })
    }

    fn other_family(
        &self,
        key: &Key,
        port: &ServicePort,
        wanted: AddressType,
        at: Timestamp,
    ) -> Option<NoEndpointsReason> {
        let offered = match wanted {
            AddressType::Ipv4 => AddressType::Ipv6,
            AddressType::Ipv6 | AddressType::Fqdn => AddressType::Ipv4,
        };
        // Endpoints of the wanted family that are not ready explain more.
        let wanted_exist =
            self.endpoints(key, port, at).iter().any(|e| AddressType::of(e.addr.ip()) == wanted);
        let exist = !wanted_exist && !self.usable_endpoints(key, port, offered, None, at).is_empty();
        exist.then_some(NoEndpointsReason::AddressFamily { wanted, offered })
    }

    fn other_port(
        &self,
        key: &Key,
        port: &ServicePort,
        family: AddressType,
        at: Timestamp,
    ) -> Option<NoEndpointsReason> {
        let slices = || self.slices_at(key, at).filter(|slice| slice.address_type == family);
        let populated = || slices().filter(|slice| slice.endpoints.iter().any(|e| e.conditions.serving));
        if populated().next().is_none() || populated().any(|slice| slice.port_for(port).is_some()) {
            return None;
        }
        let offered: BTreeSet<_> = populated()
            .flat_map(|slice| &slice.ports)
            .map(|p| {
                if p.name.is_empty() {
                    format!("{}/{}", p.port, p.protocol)
                } else {
                    format!("{}/{}", p.name, p.protocol)
                }
            })
            .collect();
        let offered = offered.into_iter().take(MAX_NAMED).collect();
        Some(NoEndpointsReason::PortName { wanted: port.label(), target: port.target.clone(), offered })
    }

    fn missing_pods(&self, service: &Service, family: AddressType, at: Timestamp) -> NoEndpointsReason {
        let slices = self.slices_at(&service.key, at).filter(|slice| slice.address_type == family);
        let listed: usize = slices.map(|slice| slice.endpoints.len()).sum();
        if service.selector.is_empty() {
            return match listed {
                0 => NoEndpointsReason::NoSelector,
                count => NoEndpointsReason::EndpointsNotReady { count },
            };
        }
        if !self.knows(Kind::Pod) {
            return match listed {
                0 => NoEndpointsReason::Unexplained,
                count => NoEndpointsReason::EndpointsNotReady { count },
            };
        }
        let pods: Vec<_> = self.pods_matching(service, at).collect();
        let (ready, unready): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|pod| pod.ready && pod.deletion.is_none());
        if !ready.is_empty() {
            let more = ready.len().saturating_sub(MAX_NAMED);
            let pods = ready.into_iter().take(MAX_NAMED).map(|pod| pod.key.clone()).collect();
            return NoEndpointsReason::NotInSlices { pods, more };
        }
        if !unready.is_empty() {
            let more = unready.len().saturating_sub(MAX_NAMED);
            let named = unready.into_iter().take(MAX_NAMED);
            let pods = named.map(|pod| UnreadyPod { key: pod.key.clone(), why: why_unready(pod) }).collect();
            return NoEndpointsReason::PodsNotReady { pods, more };
        }
        if let Some(last_endpoint) = self.scaled_to_zero(service, at) {
            NoEndpointsReason::ScaledToZero { last_endpoint }
        } else {
            let terms = service.selector.iter().map(|(label, value)| format!("{label}={value}"));
            let selector = terms.collect::<Vec<_>>().join(",").chars().filter(|c| !c.is_control()).collect();
            NoEndpointsReason::SelectorMatchesNothing { selector }
        }
    }

    /// Whether the Service has ever had endpoints, by the generation of its slices: the controller gives a new Service
    /// an empty slice, and later reuses it (`endpointslice/reconciler.go`, `finalize`). `None` if that is unknown.
    pub fn has_had_endpoints(&self, service: &Key, at: Timestamp) -> Option<bool> {
        let mut generations = self.slices_at(service, at).map(|slice| slice.generation).peekable();
        generations.peek()?;
        generations.try_fold(false, |had, generation| Some(had || generation? > 1))
    }

    /// A Pod that the selector was probably meant for: no Service selects it, and one of its labels differs from the
    /// selector's by a slip of the pen while the others match. With the label in question.
    pub fn nearly_selected<'a>(&'a self, service: &'a Service, at: Timestamp) -> Option<(&'a Key, String)> {
        let selected = |pod: &Pod| {
            self.services().any(|other| {
                other.key.namespace == pod.key.namespace
                    && !other.selector.is_empty()
                    && pod.matches(&other.selector)
            })
        };
        self.pods_of_namespace(&service.key.namespace, at).find_map(|pod| {
            let mut wrong =
                service.selector.iter().filter(|(label, value)| pod.labels.get(label) != Some(value));
            let (Some((label, wanted)), None) = (wrong.next(), wrong.next()) else { return None };
            let value = pod.labels.get(label).filter(|value| is_slip(wanted, value))?;
            (!selected(pod)).then(|| (&pod.key, format!("{label}={value}")))
        })
    }

    /// When the Service's last endpoint left, if its workload was scaled to zero or deleted: every slice is empty, no Pod
    /// matches, and the reason is not that the selector or the Pods' labels changed.
    ///
    /// Without a history that is as long, the slice shows it: the `EndpointSlice` controller makes the last slice an
    /// empty one, or replaces it (`staging/src/k8s.io/endpointslice/reconciler.go`, `placeholderSlice`), which for a Service that never had an
    /// endpoint is as old as the Service.
    fn scaled_to_zero(&self, service: &Service, at: Timestamp) -> Option<Timestamp> {
        let key = &service.key;
        let listed = self.slices_at(key, at).any(|slice| !slice.endpoints.is_empty());
        if listed || self.nearly_selected(service, at).is_some() {
            return None;
        }
        if let Some(last) = self.last_endpoint(key, at) {
            let before = last.saturating_sub(Duration::from_nanos(1));
            // A changed selector empties the slices a moment later.
            let earlier = self.service(key, last.saturating_sub(PLACEHOLDER));
            let same_selector = earlier.is_none_or(|then| then.selector == service.selector);
            let mut pods = self
                .slices_at(key, before)
                .flat_map(|slice| &slice.endpoints)
                .filter_map(|it| it.pod.as_ref());
            let relabelled = pods.any(|pod| {
                self.pod(&pod.key, at).is_some_and(|pod| pod.deletion.is_none() && pod.holds_addresses())
            });
            return (same_selector && !relabelled).then_some(last);
        }
        if self.has_had_endpoints(key, at) == Some(false) {
            return None;
        }
        let emptied = self.slice_lines(key).filter_map(|line| {
            line.versions.first().map(|first| first.from.max(line.created().unwrap_or_default()))
        });
        let emptied = emptied.max().filter(|emptied| *emptied > Timestamp::MIN && *emptied <= at)?;
        let line = self.services.get(key)?;
        let created = line.created().filter(|created| created.saturating_add(PLACEHOLDER) < emptied)?;
        let changed = line.versions.first().map_or(created, |first| first.from);
        (changed.saturating_add(PLACEHOLDER) < emptied).then_some(emptied)
    }

    /// The unfinished Pods in the Service's namespace that match its selector.
    fn pods_matching<'a>(
        &'a self,
        service: &'a Service,
        at: Timestamp,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.pods_of_namespace(&service.key.namespace, at).filter(|pod| pod.matches(&service.selector))
    }

    /// The unfinished Pods in a namespace.
    fn pods_of_namespace<'a>(
        &'a self,
        namespace: &'a Arc<str>,
        at: Timestamp,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        let in_namespace = self.pods.of_namespace(namespace);
        in_namespace.filter_map(move |line| line.at(at).value()).filter(|pod| pod.holds_addresses())
    }
}

/// Whether one text is the other after at most two insertions, deletions or replacements, and they are not both short. By
/// bytes: labels are ASCII (`validation.IsValidLabelValue`). Copies nothing, because the diagnosis of one refused flow
/// compares the label of every Pod of the namespace.
fn is_slip(wanted: &str, found: &str) -> bool {
    const MAX_SLIPS: usize = 2;
    const MAX_LENGTH: usize = 64;
    let longest = wanted.len().max(found.len());
    (2 * MAX_SLIPS..=MAX_LENGTH).contains(&longest)
        && is_within(MAX_SLIPS, wanted.as_bytes(), found.as_bytes())
}

/// Whether so many insertions, deletions or replacements suffice (Levenshtein's distance).
fn is_within(slips: usize, one: &[u8], other: &[u8]) -> bool {
    if one.len().abs_diff(other.len()) > slips {
        return false;
    }
    let alike = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    match (one.get(alike..).unwrap_or_default(), other.get(alike..).unwrap_or_default()) {
        ([], rest) | (rest, []) => rest.len() <= slips,
        _ if slips == 0 => false,
        (one @ [_, one_after @ ..], other @ [_, other_after @ ..]) => {
            is_within(slips - 1, one_after, other_after)
                || is_within(slips - 1, one_after, other)
                || is_within(slips - 1, one, other_after)
        }
    }
}

fn why_unready(pod: &Pod) -> Arc<str> {
    match &pod.trouble {
        _ if pod.deletion.is_some() => "terminating".into(),
        Some(trouble) => Arc::clone(trouble),
        None if pod.phase == Phase::Pending && pod.node.is_none() => "Pending, not scheduled".into(),
        None if pod.phase == Phase::Pending => "Pending".into(),
        None => "not ready".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slips_are_counted_and_short_words_have_none() {
        for (wanted, found) in [("frontend", "frontned"), ("cart", "cart-v"), ("cart", "xcarty")] {
            assert!(is_slip(wanted, found), "{wanted} {found}");
        }
        assert!(!is_slip("cart", "cart-v1"));
        assert!(!is_slip("web", "wep"));
        assert!(!is_slip("", ""));
        assert!(!is_slip(&"x".repeat(65), &"x".repeat(64)));
    }

    proptest! {
        #[test]
        fn the_distance_is_levenshteins(one in "[ab]{0,9}", other in "[ab]{0,9}", slips in 0..4_usize) {
            let expected = strsim::levenshtein(&one, &other) <= slips;
            prop_assert_eq!(is_within(slips, one.as_bytes(), other.as_bytes()), expected);
        }
    }
}
