//! The way of one packet through the node's rules as they are, without sending it: `viptrace path`.
//!
//! Asks the walk ([`crate::rules::walk`]) where the packet goes, and puts its notes into an operator's words: each rule
//! that matters, the endpoints with their shares, the reply's own way, and the conditions of the answer. Judges no class.
//! Pure.

mod ends;
mod predict;
mod record;
mod reply;
mod steps;
mod stops;
mod words;

use std::net::{IpAddr, SocketAddr};

pub use ends::{From, NoPacket, Question, To};
pub use predict::Prediction;
pub use record::{Condition, Destination, Journey, Outcome, Sender, Step, StepKind, Way};
pub(crate) use stops::{Crossing, Stop, Stops};
pub(crate) use words::percent;

use crate::{
    cluster::{History, model::Node},
    net::{Family, Protocol},
    node::{interfaces::Interfaces, routes::Routes, sysctl::Sysctls},
    rules::{
        End, Origin, Probe, Ruleset,
        walk::{Branch, Devices, Fate, Note, Notes, Place, Walker, Witness},
    },
    time::Timestamp,
};
use ends::Packet;
use steps::{Reader, translated};

/// The source port of a client whose port is not known: in the range that Linux uses by default
/// (`net.ipv4.ip_local_port_range`).
const CLIENT_PORT: u16 = 40_000;
/// The most ways of an answer: more than any Service has endpoints. Rules that branch without end have more.
const MAX_WAYS: usize = 4096;
/// The most conditions listed; an answer that depends on more is not an answer.
const MAX_CONDITIONS: usize = 12;

/// The facts about a node that the way of a packet needs.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The rules of every program.
    pub rules: &'a Ruleset,
    pub routes: &'a Routes,
    pub interfaces: Option<&'a Interfaces>,
    pub sysctls: Option<&'a Sysctls>,
    pub history: Option<&'a History>,
    /// The node's name in Kubernetes.
    pub node: Option<&'a str>,
    /// Whether IPVS hides its connections from conntrack.
    pub ipvs_is_untracked: bool,
    /// A program that serves Services here past these rules.
    pub dataplane: Option<&'a str>,
    /// Whether kube-proxy's rules were read, by family: IPv4, IPv6.
    pub knows_rules: [bool; 2],
}

impl<'a> Scene<'a> {
    /// A node of which only the rules and routes were read.
    pub fn new(rules: &'a Ruleset, routes: &'a Routes) -> Self {
        Self {
            rules,
            routes,
            interfaces: None,
            sysctls: None,
            history: None,
            node: None,
            ipvs_is_untracked: false,
            dataplane: None,
            knows_rules: [true; 2],
        }
    }
}

impl Devices for &Routes {
    fn device_to(&self, address: IpAddr) -> Option<&str> {
        (**self).device_to(address)
    }
}

impl<'a> Scene<'a> {
    /// The journey of the packet that the question means.
    pub fn journey(&self, question: &Question) -> Result<Journey, NoPacket> {
        let packet = self.packet(question)?;
        let fate = self.fate(&packet, CLIENT_PORT);
        let (real, assumed): (Vec<_>, Vec<_>) =
            fate.branches.iter().partition(|branch| branch.seen.assumed().is_none());
        let left_out = real.len().saturating_sub(MAX_WAYS);
        let real = real.get(..MAX_WAYS).unwrap_or(&real);
        let assumed = assumed.get(..MAX_WAYS).unwrap_or(&assumed);
        let reader = Reader { rules: self.rules };
        let notes: Vec<Vec<Note>> = real.iter().map(|branch| branch.seen.to_vec()).collect();
        let mut lists: Vec<Vec<Step>> = notes.iter().map(|notes| reader.steps(notes)).collect();
        let common = common(&lists);
        let steps: Vec<Step> =
            lists.first().map(|list| list.iter().take(common).cloned().collect()).unwrap_or_default();
        for list in &mut lists {
            list.drain(..common);
        }
        let mut ways: Vec<Way> = real
            .iter()
            .zip(&notes)
            .zip(lists)
            .map(|((branch, notes), steps)| self.way(&packet, branch, notes, steps))
            .collect();
        ways.sort_by_key(|way| way.endpoint.as_deref().and_then(|text| text.parse::<SocketAddr>().ok()));
        let (depends_on, more) = conditions(real, assumed, &reader);
        let reply = self.reply(&packet, &ways);
        let mut unjudged = Vec::new();
        if fate.cut {
            unjudged.push("the rules branch too often: the walk was given up".to_owned());
        }
        if left_out > 0 {
            unjudged.push(format!("{left_out} further ways are left out"));
        }
        if more > 0 {
            unjudged.push(format!("{more} further conditions cannot be judged"));
        }
        if real.iter().any(|branch| branch.seen.is_cut()) {
            unjudged.push("the way has more rules than are kept: the last ones are missing".to_owned());
        }
        let knows_rules = self.knows_rules.get(Family::of(packet.destination.ip()) as usize) == Some(&true);
        if !knows_rules && !ways.iter().any(|way| way.result == Outcome::Reaches) {
            unjudged.push("kube-proxy's rules were not read".to_owned());
        }
        if let Some(dataplane) = self.dataplane
            && !ways.iter().any(|way| way.result == Outcome::Reaches)
        {
            unjudged.push(format!("{dataplane} serves Services on this node past these rules"));
        }
        let summary = words::Summary::of(&packet, &steps, &ways, &depends_on, !unjudged.is_empty());
        Ok(Journey {
            node: self.node.map(ToOwned::to_owned),
            kube_proxy_mode: None,
            from: Sender {
                address: packet.source.to_string(),
                pod: packet.pod.as_ref().map(ToString::to_string),
                place: packet.place(),
            },
            to: Destination {
                address: packet.destination.to_string(),
                protocol: packet.protocol.to_string(),
                service: packet.service.clone(),
            },
            result: if reply.is_lost && summary.outcome == Outcome::Reaches {
                Outcome::ReplyLost
            } else {
                summary.outcome
            },
            verdict: summary.sentence + if reply.is_lost { "; the reply is lost" } else { "" },
            steps,
            ways,
            affinity: words::affinity(&fate.sticky),
            depends_on,
            reply: reply.lines,
            notes: words::notes(&packet),
            unjudged,
            unread: Vec::new(),
        })
    }

    fn fate(&self, packet: &Packet, source_port: u16) -> Fate<Notes> {
        let probe = Probe {
            origin: packet.origin,
            source: packet.source,
            interface: packet.interface.as_deref(),
            destination: packet.destination,
            protocol: packet.protocol,
            local: packet.local,
            hairpin: false,
        };
        let witness = self.witness(source_port, false);
        Walker::whole(self.rules, Family::of(packet.destination.ip())).observe(&probe, &witness)
    }

    fn witness(&self, source_port: u16, is_reply: bool) -> Witness<&'a Routes> {
        let ipvs_is_untracked = self.ipvs_is_untracked;
        Witness { devices: self.routes, source_port: Some(source_port), is_reply, ipvs_is_untracked }
    }

    fn own_node(&self) -> Option<&'a Node> {
        self.history?.node(self.node?, Timestamp::MAX).map(|node| &**node)
    }

    fn way(&self, packet: &Packet, branch: &Branch<Notes>, notes: &[Note], steps: Vec<Step>) -> Way {
        let result = match branch.end {
            _ if branch.seen.is_lost() => Outcome::Unknown,
            End::Endpoint(_) => Outcome::Reaches,
            End::Refused => Outcome::Refused,
            End::Dropped => Outcome::Dropped,
            End::Passed if packet.is_of_service => Outcome::NotTranslated,
            End::Passed => Outcome::Passes,
        };
        let endpoint = match branch.end {
            End::Endpoint(endpoint) => Some(endpoint),
            _ => translated(self.rules, notes),
        };
        let pod = endpoint
            .and_then(|endpoint| self.history?.pod_by_ip(endpoint.ip(), Timestamp::MAX))
            .map(|pod| &**pod);
        Way {
            share: branch.weight,
            result,
            endpoint: endpoint.map(|endpoint| endpoint.to_string()),
            pod: pod.map(|pod| pod.key.to_string()),
            node: pod.and_then(|pod| pod.node.as_deref()).map(ToOwned::to_owned),
            masqueraded: branch.masquerade,
            steps,
        }
    }
}

/// A rule that was assumed to match.
struct Assumption {
    /// Among the notes of its way.
    position: usize,
    place: Place,
    /// The ends after it: each with whether it is masqueraded, and whether its way is not known.
    ends: Vec<(End, bool, bool)>,
    condition: Condition,
}

/// The rules whose conditions cannot be judged and that would change the result, and the number of those left out.
fn conditions(
    real: &[&Branch<Notes>],
    assumed: &[&Branch<Notes>],
    reader: &Reader<'_>,
) -> (Vec<Condition>, usize) {
    let is_known = |other: &Branch<Notes>| {
        real.iter().any(|one| one.end == other.end && one.masquerade == other.masquerade)
    };
    let mut found: Vec<Assumption> = Vec::new();
    for branch in assumed {
        let Some(place) = branch.seen.assumed() else { continue };
        let is_lost = branch.seen.is_lost();
        if is_known(branch) && !is_lost {
            continue;
        }
        let end = (branch.end, branch.masquerade, is_lost);
        if let Some(known) = found.iter_mut().find(|known| known.place == place) {
            known.ends.push(end);
            continue;
        }
        let notes = branch.seen.to_vec();
        let position = notes.iter().position(|note| matches!(note, Note::Assumes { .. })).unwrap_or(0);
        let Some(rule) = reader.rule_at(&notes, position) else { continue };
        let condition = Condition { why: reader.why(place), rule, then: String::new() };
        found.push(Assumption { position, place, ends: vec![end], condition });
    }
    for one in &mut found {
        one.condition.then = words::then(&one.ends);
    }
    found.sort_by_key(|one| (one.position, one.place));
    let more = found.len().saturating_sub(MAX_CONDITIONS);
    (found.into_iter().take(MAX_CONDITIONS).map(|one| one.condition).collect(), more)
}

/// The number of steps that all ways have in common at their beginning.
fn common(lists: &[Vec<Step>]) -> usize {
    let Some((first, others)) = lists.split_first() else { return 0 };
    let same = |at: usize| others.iter().all(|other| other.get(at) == first.get(at));
    (0..first.len()).take_while(|at| same(*at)).count()
}

/// Where the packet of a reply comes from.
fn probe_of_reply(
    from: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
    interface: Option<&str>,
    own: bool,
) -> Probe<'_> {
    Probe {
        origin: if own { Origin::Node } else { Origin::Outside },
        source: from.ip(),
        interface,
        destination: to,
        protocol,
        local: false,
        hairpin: false,
    }
}
