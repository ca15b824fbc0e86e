//! The flows that a person wants to see.

use std::{collections::BTreeSet, fmt, net::SocketAddr, sync::Arc};

use super::target::Target;
use crate::{
    class::Class,
    cluster::{History, Key, model::ServicePort},
    error::sentence,
    session::{Judged, Judgements},
    text::{list, safe, shortened},
    time::{Timestamp, when::When},
    verdict::{ServiceRef, Verdict},
};

/// Which flows are shown. Without a condition, all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub target: Option<Target>,
    /// Of a Service, the port's name or number.
    pub port: Option<String>,
    /// The names of the ports with this number, one for each protocol: verdicts have names.
    pub(crate) port_names: Vec<Arc<str>>,
    /// The client: a Pod or an address.
    pub client: Option<Target>,
    pub flow: Option<FlowAddresses>,
    /// Empty for all.
    pub classes: Vec<Class>,
    pub(crate) since: Option<When>,
    pub(crate) until: Option<When>,
}

/// The addresses of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAddresses {
    pub client: SocketAddr,
    /// The Service's address or the endpoint's.
    pub to: Option<SocketAddr>,
}

impl fmt::Display for FlowAddresses {
    /// In the form that [`Self::parse`] takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.client)?;
        self.to.map_or(Ok(()), |to| write!(f, ",{to}"))
    }
}

impl FlowAddresses {
    /// Parses `CLIENT` or `CLIENT,TO`, each as `IP:PORT` or `[IPv6]:PORT`; also `CLIENT -> TO -> ENDPOINT` as a story prints it,
    /// `POD (IP:PORT)` in the place of an address. The error says how to write it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (separator, most) = if text.contains("->") { ("->", 3) } else { (",", 2) };
        let ends: Vec<SocketAddr> = text.splitn(most, separator).map(end).collect::<Result<_, _>>()?;
        match *ends.as_slice() {
            [client] => Ok(Self { client, to: None }),
            [client, to, ..] => Ok(Self { client, to: Some(to) }),
            [] => Err(not_an_end(text)),
        }
    }

    pub(crate) fn matches(&self, verdict: &Verdict) -> bool {
        let flow = &verdict.flow;
        flow.client == self.client
            && self.to.is_none_or(|to| [flow.vip, flow.endpoint].into_iter().flatten().any(|it| it == to))
    }
}

/// One end of a flow: `IP:PORT`, or `POD (IP:PORT)`.
fn end(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim().strip_suffix(')').and_then(|named| Some(named.rsplit_once(" (")?.1));
    bare.unwrap_or(text.trim()).parse().map_err(|_| not_an_end(text))
}

fn not_an_end(text: &str) -> String {
    format!(
        "{text:?} is not an address with a port: write CLIENT or CLIENT,TO as 10.0.1.2:40000,10.96.0.10:80"
    )
}

/// A span of time: `from` and `to` included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

impl Span {
    pub(crate) const ALL: Self = Self { from: Timestamp::MIN, to: Timestamp::MAX };

    /// The times from `--since` to `--until`. The error says why there are none.
    pub(crate) fn new(from: Timestamp, to: Timestamp) -> Result<Self, String> {
        if to < from {
            let [from, to] = [from, to].map(Timestamp::to_the_millisecond);
            return Err(format!("--until is before --since: from {from} to {to} there is no time"));
        }
        Ok(Self { from, to })
    }

    /// Why nothing of the recorded time is in it, if that is so. The end of a damaged recording is taken as its beginning.
    pub(crate) fn misses(self, recorded: Self) -> Option<String> {
        let is_known = recorded.from < recorded.to;
        let is_missed = is_known && recorded.to < self.from || self.to < recorded.from;
        is_missed.then(|| format!("nothing of this time is recorded: the recording runs {recorded}"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from.to_the_millisecond(), self.to.to_the_millisecond());
        match (self.from, self.to) {
            (Timestamp::MIN, Timestamp::MAX) => f.write_str("at any time"),
            (Timestamp::MIN, _) => write!(f, "until {to}"),
            (_, Timestamp::MAX) => write!(f, "since {from}"),
            _ => write!(f, "from {from} to {to}"),
        }
    }
}

impl Selected {
    /// Whether a flow is of the wanted Service, client, addresses and time.
    pub(crate) fn has_any(&self) -> bool {
        [&self.wanted, &self.of_other_classes].iter().any(|it| !it.judged.is_empty() || !it.folded.is_empty())
    }
}

/// Judgements, sorted by what is wanted.
#[derive(Debug, Default)]
pub(crate) struct Selected {
    /// The wanted ones. Flows without a verdict stay: they may have been wanted.
    pub(crate) wanted: Judgements,
    /// Those that only their class keeps out.
    pub(crate) of_other_classes: Judgements,
    /// The number of flows that are not wanted, without those judged again.
    pub(crate) others: u64,
}

impl Selection {
    /// Every flow of the target, if there is one.
    pub(crate) fn of(target: Option<Target>) -> Self {
        Self { target, ..Self::default() }
    }

    /// Whether verdicts that flows share are too coarse for it: of these flows some are of another client or time.
    pub(crate) fn needs_each_flow(&self) -> bool {
        let is_end = |target: &Target| matches!(target, Target::Pod { .. } | Target::Address { .. });
        self.target.as_ref().is_some_and(is_end)
            || self.client.is_some()
            || self.flow.is_some()
            || self.has_times()
    }

    /// Whether it is of some Service, client or addresses.
    pub(crate) const fn names_flows(&self) -> bool {
        self.target.is_some() || self.client.is_some() || self.flow.is_some()
    }

    /// Whether it is of a part of the recorded time.
    pub(crate) const fn has_times(&self) -> bool {
        self.since.is_some() || self.until.is_some()
    }

    /// The wanted times in recordings that cover `recorded`. The error says why no time can be wanted.
    pub(crate) fn span(&self, recorded: Span) -> Result<Span, String> {
        let from = self.since.map(|since| since.in_recording(recorded.to));
        let to = self.until.map(|until| until.as_end(from.unwrap_or(recorded.from), recorded.to));
        Span::new(from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX))
    }

    /// Finds the names of the ports that were given by their number.
    pub(crate) fn name_ports(&mut self, history: &History) {
        let Some(Target::Service { namespace, name }) = &self.target else { return };
        let Some(number) = self.port.as_deref().and_then(|port| port.parse::<u16>().ok()) else { return };
        if self.port_names.is_empty()
            && let Some(service) = history.service(&Key::new(namespace, name), Timestamp::MAX)
        {
            let ports = service.ports.iter().filter(|port| port.port == number);
            self.port_names = ports.map(ServicePort::label).collect();
        }
    }

    /// Sorts judgements by what is wanted.
    pub(crate) fn select(&self, judgements: Judgements, span: Span) -> Selected {
        let Judgements { judged, folded, .. } = judgements;
        let mut selected = Selected {
            wanted: Judgements { judged: vec![], folded: vec![], ..judgements },
            ..Selected::default()
        };
        for judged in judged {
            let is_new = judged.before.is_none();
            if !self.wants_apart_from_class(&judged.verdict, judged.last_seen, span) {
                selected.others += u64::from(is_new);
            } else if self.wants_class(judged.verdict.class) {
                selected.wanted.judged.push(judged);
            } else {
                selected.others += u64::from(is_new);
                selected.of_other_classes.judged.push(judged);
            }
        }
        for folded in folded {
            // They are judged together, so that all are wanted or none. Where a time is wanted, they were last seen before it.
            if !self.has_ends(&folded.verdict) || span.from > Timestamp::MIN {
                selected.others += folded.count;
            } else if self.wants_class(folded.verdict.class) {
                selected.wanted.folded.push(folded);
            } else {
                selected.others += folded.count;
                selected.of_other_classes.folded.push(folded);
            }
        }
        selected
    }

    /// Whether the flow is wanted.
    #[cfg(test)]
    pub(crate) fn wants(&self, verdict: &Verdict, span: Span) -> bool {
        self.wants_apart_from_class(verdict, verdict.time, span) && self.wants_class(verdict.class)
    }

    /// The selection in words; `None` if it is of everything.
    pub(crate) fn in_words(&self, span: Span) -> Option<String> {
        let mut parts: Vec<String> = self.target_in_words().into_iter().collect();
        parts.extend(self.client.as_ref().map(|client| format!("from {client}")));
        parts.extend(self.flow.map(|flow| format!("the flow {flow}")));
        if !self.classes.is_empty() {
            let classes: Vec<String> = self.classes.iter().map(ToString::to_string).collect();
            parts.push(format!("class {}", list(&classes)));
        }
        parts.extend((span != Span::ALL).then(|| span.to_string()));
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// Why none of the wanted flows is there. An object that does not exist explains more than one without flows.
    pub(crate) fn nothing_meant(&self, span: Span, history: &History, now: Timestamp) -> Option<String> {
        let mut ends = [&self.client, &self.target].into_iter().flatten();
        let missing = ends.find_map(|end| Some((end, end.check(history, now).err()?)));
        if let Some((end, error)) = missing {
            return Some(format!("nothing of {end} is in the recording: {}", sentence(&*error)));
        }
        if let Some((why, of)) = self.unknown_port(history, now).zip(self.target_in_words()) {
            return Some(format!("nothing of {of} is in the recording: {why}"));
        }
        let ends = [
            self.flow.map(|flow| ("of", flow.to_string(), "no flow with these addresses")),
            self.client.as_ref().map(|client| ("from", client.to_string(), "no flow of it")),
            self.target_in_words().map(|target| ("to", target, "no flow of it")),
        ];
        let (of, none) = match ends.into_iter().flatten().collect::<Vec<_>>().as_slice() {
            [] => return None,
            [(_, end, none)] => (format!("of {end}"), *none),
            // Some of them alone may have flows.
            several => {
                let ends = several.iter().map(|(preposition, end, _)| format!("{preposition} {end}"));
                (ends.collect::<Vec<_>>().join(" "), "no such flow")
            }
        };
        let when = if span == Span::ALL { "" } else { " in this time" };
        Some(format!("nothing {of} is in the recording: {none} was observed{when}"))
    }

    /// The error for a port that the Service does not have, with those that it has.
    pub(crate) fn unknown_port(&self, history: &History, now: Timestamp) -> Option<String> {
        let (port, key) = (self.port.as_deref()?, self.target.as_ref()?.service()?);
        let service = history.service(&key, now)?;
        if service.ports.iter().any(|known| *known.name == *port || known.port.to_string() == port) {
            return None;
        }
        let known: Vec<String> = service.ports.iter().map(port_in_words).collect();
        let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
        let has = if known.is_empty() { "none".to_owned() } else { shortened(&known) };
        Some(format!("{key} has no port {}: it has {has}", safe(port)))
    }

    fn target_in_words(&self) -> Option<String> {
        let port = self.port.as_deref().map_or_else(String::new, |port| format!(":{}", safe(port)));
        self.target.as_ref().map(|target| format!("{target}{port}"))
    }

    /// Whether the earlier verdict of a flow was a failure of a wanted class, which no longer holds.
    pub(crate) fn wanted_before(&self, judged: &Judged) -> bool {
        judged.had_failed() && !self.was_beside(judged)
    }

    /// Whether the class of its earlier verdict kept the flow out.
    pub(crate) fn was_beside(&self, judged: &Judged) -> bool {
        judged.before.as_ref().is_some_and(|before| !self.wants_class(before.class))
    }

    fn wants_class(&self, class: Class) -> bool {
        self.classes.is_empty() || self.classes.contains(&class)
    }

    /// The verdict's own time is that of the judgement, which may be long after the flow's end.
    fn wants_apart_from_class(&self, verdict: &Verdict, last_seen: Timestamp, span: Span) -> bool {
        self.has_ends(verdict) && last_seen >= span.from && verdict.flow.started <= span.to
    }

    /// Whether it is the wanted port, or any if none is named.
    pub(crate) fn has_port(&self, service: &ServiceRef) -> bool {
        let is_named = || self.port_names.iter().any(|name| *service.port == **name);
        self.port.as_deref().is_none_or(|port| *service.port == *port || is_named())
    }

    /// Whether the flow is of the wanted Service, client and addresses.
    fn has_ends(&self, verdict: &Verdict) -> bool {
        let has_port = || verdict.service.as_ref().is_some_and(|service| self.has_port(service));
        self.target.as_ref().is_none_or(|target| target.matches(verdict))
            && (self.port.is_none() || has_port())
            && self.client.as_ref().is_none_or(|client| client.is_client(verdict))
            && self.flow.is_none_or(|flow| flow.matches(verdict))
    }
}

/// `http (80/TCP)`, or `80/TCP` without a name.
fn port_in_words(port: &ServicePort) -> String {
    let number = format!("{}/{}", port.port, port.protocol);
    if port.name.is_empty() { number } else { format!("{} ({number})", port.name) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_flow_that_was_over_before_is_not_wanted_however_late_it_was_judged() {
        let mut judged = fixture::judged(fixture::fault());
        let ended = judged.last_seen;
        judged.verdict.time = ended.saturating_add(Duration::from_mins(5));
        let selection = Selection::default();
        for (seconds, is_wanted) in [(0, true), (60, false), (600, false)] {
            let span = Span { from: ended.saturating_add(Duration::from_secs(seconds)), ..Span::ALL };
            let judgements = Judgements { judged: vec![judged.clone()], ..Judgements::default() };
            let selected = selection.select(judgements, span);
            assert_eq!(
                (selected.wanted.judged.len() == 1, selected.others == 0),
                (is_wanted, is_wanted),
                "{seconds}"
            );
        }
    }

    #[test]
    fn flows_of_several_conditions_are_not_said_to_be_missing_by_one_of_them() {
        let flow = FlowAddresses::parse("10.0.1.2:40000").ok();
        let client = Target::parse("10.0.9.9", None).ok();
        let nothing = |selection: Selection| {
            selection.nothing_meant(Span::ALL, &History::default(), Timestamp::MAX).unwrap()
        };
        let text = nothing(Selection { flow, ..Selection::default() });
        assert_eq!(
            text,
            "nothing of 10.0.1.2:40000 is in the recording: no flow with these addresses was observed"
        );
        let text = nothing(Selection { client, flow, ..Selection::default() });
        assert_eq!(
            text,
            "nothing of 10.0.1.2:40000 from 10.0.9.9 is in the recording: no such flow was observed"
        );
    }

    #[test]
    fn flows_by_their_addresses() {
        let flow = FlowAddresses::parse("10.0.1.2:40000,10.96.0.10:80").unwrap();
        assert_eq!(flow.to, Some("10.96.0.10:80".parse().unwrap()));
        assert_eq!(flow.to_string(), "10.0.1.2:40000,10.96.0.10:80");
        let v6 = FlowAddresses::parse("[fd00::1]:40000").unwrap();
        assert_eq!((v6.client.port(), v6.to), (40000, None));
        assert_eq!(v6.to_string(), "[fd00::1]:40000");
        for text in [
            "10.0.1.2:40000->10.96.0.10:80",
            "10.0.1.2:40000 -> 10.96.0.10:80",
            "shop/client (10.0.1.2:40000) -> 10.96.0.10:80 -> shop/web (10.244.1.7:8080)",
        ] {
            assert_eq!(FlowAddresses::parse(text), Ok(flow), "{text}");
        }
        for text in ["", "10.0.1.2", "10.0.1.2:40000,", "a,b,c", "10.0.1.2:40000->", "shop/client ()"] {
            assert!(FlowAddresses::parse(text).unwrap_err().contains("write CLIENT"), "{text}");
        }
    }
}
