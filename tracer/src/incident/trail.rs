//! The way of one flow's packets: every sighting of it, on every recorded node, in the order of time.
//!
//! Owns which sightings belong to the flow, whatever addresses it has there, which of them are one packet seen twice (N3),
//! and the gaps between them. The rules that decided are walked as the node last read them. Judges nothing.

use std::{collections::BTreeSet, net::SocketAddr, path::Path};

use super::{
    absence::Post,
    clock::Compared,
    story::Beside,
    timeline::{Timeline, Track},
};
use crate::{
    cluster::{Address, Key, Membership},
    diagnosis::path::{self, Journey, Question, Scene, To},
    net::{Netns, Protocol, TransportAddr, Tuple},
    node::{Snapshot, routes::Routes},
    recording::{Missing, Player, Sightings, UnusableFile},
    session::{
        Pipeline,
        why::{self, Ends},
    },
    sighting::{Conntrack, ConntrackFact, Fact, Hook, PacketFact, Sighting, SocketEvent, SocketFact},
    text::count,
    time::Timestamp,
    verdict::Verdict,
};

/// The most sightings of one flow; further ones are counted.
const MAX_STEPS: usize = 512;
/// The most addresses that one flow can have.
const MAX_KEYS: usize = 32;
/// How long before a flow's first event, and after its verdict, its sightings are looked for.
pub(super) const AROUND: std::time::Duration = std::time::Duration::from_secs(2);
/// Two sightings of one packet are no farther apart on one node: the kernel reuses a packet's memory quickly.
const ONE_PACKET: std::time::Duration = std::time::Duration::from_millis(5);

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client.
    Request,
    /// To the client.
    Answer,
    /// An event of a socket or an entry.
    Neither,
}

/// One sighting of the flow.
#[derive(Clone, Debug)]
pub struct TrailStep {
    /// On the common clock.
    pub time: Timestamp,
    pub node: String,
    pub netns: Netns,
    pub hook: &'static str,
    pub way: Way,
    /// The addresses that the packet had; for an entry those of the client.
    pub tuple: Tuple,
    /// The addresses that it has afterwards, if NAT changes them.
    pub after: Option<Tuple>,
    /// What was observed, in words.
    pub what: String,
    /// The earlier step that is the same packet.
    pub same_as: Option<usize>,
    /// The packet's address in the kernel, for finding the other sightings of it.
    skb: u64,
}

impl TrailStep {
    /// Whether the packet's memory is free after it.
    fn frees_packet(&self) -> bool {
        self.hook == Hook::KfreeSkb.symbol()
    }
}

/// The way of one flow.
#[derive(Clone, Debug)]
pub struct Trail {
    pub verdict: Verdict,
    pub steps: Vec<TrailStep>,
    /// Sightings beyond those kept.
    pub more: u64,
    /// The state of the endpoint in the API when NAT decided, in words.
    pub endpoint: Option<String>,
    endpoint_node: Option<String>,
    /// The walk of the rules, or why there is none.
    pub rules: Result<Box<RulesThen>, String>,
    /// What was not seen, and why.
    pub gaps: Vec<String>,
    /// The trace that judged it, as an index of the timeline's.
    track: usize,
}

/// The rules that decided.
#[derive(Clone, Debug)]
pub struct RulesThen {
    pub journey: Journey,
    /// When they were read, on the common clock.
    pub read_at: Option<Timestamp>,
}

/// The sightings of the flow of `verdict`, whose times are on the common clock, in all traces.
fn steps(timeline: &Timeline, verdict: &Verdict) -> Result<(Vec<TrailStep>, u64), UnusableFile> {
    let mut addresses = Addresses::of(verdict);
    // A node that was read first may have addresses that another one shows.
    let mut found = Vec::new();
    for round in 0..2 {
        let known = addresses.keys.len();
        found.clear();
        for (index, track) in timeline.tracks().iter().enumerate() {
            for path in track.tape().paths() {
                read(timeline, index, path, verdict, &mut addresses, &mut found)?;
            }
        }
        if round > 0 || addresses.keys.len() == known || timeline.tracks().len() == 1 {
            break;
        }
    }
    Ok(in_order(found))
}

/// The steps in the order of time, and the number of those beyond [`MAX_STEPS`].
pub(super) fn in_order(mut found: Vec<TrailStep>) -> (Vec<TrailStep>, u64) {
    found.sort_by_key(|step| step.time);
    let more = found.len().saturating_sub(MAX_STEPS) as u64;
    found.truncate(MAX_STEPS);
    find_same(&mut found);
    (found, more)
}

/// The times between which the sightings of the flow are looked for.
pub(super) fn span(verdict: &Verdict) -> (Timestamp, Timestamp) {
    (verdict.flow.started.saturating_sub(AROUND), verdict.time.saturating_add(AROUND))
}

impl Trail {
    /// Everything but the sightings, while the trace that judged the flow is played: its rules are those of that time.
    pub(crate) fn around(Beside { pipeline, timeline, track }: Beside<'_>, verdict: Verdict) -> Self {
        let mut own = verdict.clone();
        own.map_times(|time| timeline.own(track, time));
        Self { track, ..Self::new(pipeline, &own, verdict, |time| timeline.common(track, time)) }
    }

    /// The same in a running trace, whose clock is the only one.
    pub(super) fn live(pipeline: &Pipeline, verdict: Verdict) -> Self {
        let mut own = verdict.clone();
        own.map_times(|time| pipeline.own_time(time));
        Self::new(pipeline, &own, verdict, |time| pipeline.unix_then(time))
    }

    /// `own` is the verdict with the times of its trace.
    fn new(
        pipeline: &Pipeline,
        own: &Verdict,
        verdict: Verdict,
        common: impl Fn(Timestamp) -> Timestamp,
    ) -> Self {
        let rules = rules(pipeline, own).map(|journey| {
            let read_at = pipeline.node().rules_time.map(common);
            Box::new(RulesThen { journey, read_at })
        });
        let mut gaps = Vec::new();
        if verdict.lost_events > 0 {
            gaps.push(format!(
                "{} were lost or suppressed while it lasted",
                count(verdict.lost_events, "event")
            ));
        }
        Self {
            endpoint: endpoint(pipeline, own),
            endpoint_node: endpoint_node(pipeline, own),
            verdict,
            steps: Vec::new(),
            more: 0,
            rules,
            gaps,
            track: 0,
        }
    }

    /// The endpoint's node, if it is another one than that of the verdict and no sighting is from there.
    fn silent_node(&self) -> Option<&str> {
        let node = self.endpoint_node.as_deref()?;
        let is_silent = self.verdict.flow.node.as_deref() != Some(node)
            && !self.steps.iter().any(|step| step.node == node);
        is_silent.then_some(node)
    }
}

/// The name of the node that a trace runs on, for people.
pub(super) fn node_name(pipeline: &Pipeline) -> &str {
    pipeline.settings().node_name.as_deref().unwrap_or("an unnamed node")
}

/// The gap between the nodes in a trace of one node.
pub(super) fn beyond(trail: &Trail) -> Option<String> {
    trail.silent_node().map(not_observed)
}

fn not_observed(node: &str) -> String {
    format!(
        "between the nodes, and on {node}, the endpoint's node: it was not observed here, so whether the packets arrived is \
         not known"
    )
}

/// Adds the sightings of all traces, and the gaps that depend on them. The traces have been played to their end.
pub(crate) fn complete(timeline: &Timeline, trail: &mut Trail) -> Result<(), UnusableFile> {
    (trail.steps, trail.more) = steps(timeline, &trail.verdict)?;
    trail.gaps.splice(0..0, silent_node(timeline, trail));
    for (index, track) in timeline.tracks().iter().enumerate() {
        let node = track.header().node_name.as_deref().unwrap_or(track.name());
        if index != trail.track && !trail.steps.iter().any(|step| step.node == node) {
            continue;
        }
        let Some(player) = track.tape().player() else { continue };
        let mut own = trail.verdict.clone();
        own.map_times(|time| timeline.own(index, time));
        let post = Post { node, header: track.header(), pipeline: player.pipeline() };
        // The verdict has the losses of its own trace.
        let doubt = if index == trail.track { None } else { lost(track, &own) };
        trail.gaps.extend(post.gaps(&own, &trail.steps, doubt));
    }
    Ok(())
}

/// The gap between the nodes, if the endpoint's node saw nothing of the flow, or was not recorded.
fn silent_node(timeline: &Timeline, trail: &Trail) -> Option<String> {
    let node = trail.silent_node()?;
    let mut doubts = Vec::new();
    for (index, track) in timeline.tracks().iter().enumerate() {
        if track.header().node_name.as_deref() == Some(node) {
            doubts.push(doubt(timeline, index, trail));
        }
    }
    if doubts.is_empty() {
        return Some(not_observed(node));
    }
    let is_observed = doubts.iter().any(Option::is_none);
    if let Some(far) = Ends::default().of(&trail.verdict, node, is_observed) {
        return Some(far.in_words(why::was_sent(&trail.verdict.unseen)));
    }
    let why = doubts.into_iter().flatten().next();
    let why = why.unwrap_or_else(|| "a translated client has another address there".to_owned());
    Some(format!("on {node}, the endpoint's node: its recording has no sighting of this flow; {why}"))
}

/// Why the absence of the flow in this trace of the endpoint's node shows nothing; `None` if it was never there.
fn doubt(timeline: &Timeline, index: usize, trail: &Trail) -> Option<String> {
    let track = timeline.tracks().get(index)?;
    let header = track.header();
    let Some(player) = track.tape().player() else { return Some("it cannot be read".to_owned()) };
    let mut own = trail.verdict.clone();
    own.map_times(|time| timeline.own(index, time));
    let post = Post { node: track.name(), header, pipeline: player.pipeline() };
    if let Some(why) = post.doubt_about_arrivals(&own) {
        return Some(why);
    }
    let judged = timeline.tracks().get(trail.track).map(Track::header);
    if let Some(target) = header.target.as_deref()
        && judged.and_then(|judged| judged.target.as_deref()) != Some(target)
    {
        return Some(format!("it is of {target} only"));
    }
    let is_known = |index| matches!(timeline.compared(index), None | Some(Compared::Known(_)));
    if !is_known(index) || !is_known(trail.track) {
        return Some("the clocks cannot be compared".to_owned());
    }
    lost(track, &own).map(ToOwned::to_owned)
}

/// Why events of the flow may be missing from the trace. `own` has its times.
fn lost(track: &Track, own: &Verdict) -> Option<&'static str> {
    let tape = track.tape();
    let ended = tape.end().map_or(tape.now(), |end| end.ended);
    if track.header().started > own.flow.started || ended < own.time {
        return Some("it does not cover all of the flow's time");
    }
    let player = tape.player()?;
    let pipeline = player.pipeline();
    if pipeline.lost_events() > 0 || pipeline.suppressed_events() > 0 {
        return Some("events were lost or suppressed there");
    }
    let is_damaged = tape.damage().1 > 0 || !tape.skipped().is_empty() || !tape.uncovered().is_empty();
    (is_damaged || *player.missing() != Missing::default()).then_some("it is damaged")
}

/// The node of the endpoint, by its Pod or its address.
fn endpoint_node(pipeline: &Pipeline, own: &Verdict) -> Option<String> {
    let (history, at) = (&pipeline.cluster().history, own.flow.started);
    let endpoint = own.flow.endpoint?;
    let pod = own.flow.endpoint_pod.as_deref().and_then(|pod| pod.split_once('/'));
    let pod = pod.and_then(|(namespace, name)| history.pod(&Key::new(namespace, name), at)?.node.clone());
    let node = pod.or_else(|| Some(history.node_by_ip(endpoint.ip(), at)?.key.name.clone()))?;
    Some(node.to_string())
}

/// Both ends of a connection, in order.
pub(super) type Pair = (Protocol, TransportAddr, TransportAddr);

/// The addresses under which the flow is known.
#[derive(Debug)]
pub(super) struct Addresses {
    client: SocketAddr,
    keys: BTreeSet<Pair>,
}

impl Addresses {
    pub(super) fn of(verdict: &Verdict) -> Self {
        let flow = &verdict.flow;
        let protocol = protocol(verdict);
        let mut addresses = Self { client: flow.client, keys: BTreeSet::new() };
        for to in [flow.vip, flow.endpoint].into_iter().flatten() {
            addresses.learn(Tuple::new(protocol, flow.client, to));
        }
        addresses
    }

    fn learn(&mut self, tuple: Tuple) {
        if self.keys.len() < MAX_KEYS {
            self.keys.insert(key(&tuple));
        }
    }

    fn has(&self, tuple: &Tuple) -> bool {
        self.keys.contains(&key(tuple))
    }

    /// Whether the entry belongs to the flow; its other addresses are learned.
    fn has_entry(&mut self, ct: &Conntrack) -> bool {
        let is_own = self.has(&ct.orig) || self.has(&ct.reply);
        if is_own && !self.has(&ct.reply) {
            self.learn(ct.reply);
            // Between DNAT and masquerading the packet has the endpoint, and still the client.
            self.learn(Tuple { dst: ct.reply.src, ..ct.orig });
        }
        is_own
    }
}

pub(super) fn key(tuple: &Tuple) -> Pair {
    (tuple.protocol, tuple.src.min(tuple.dst), tuple.src.max(tuple.dst))
}

/// Adds the flow's sightings in one file.
fn read(
    timeline: &Timeline,
    index: usize,
    path: &Path,
    verdict: &Verdict,
    addresses: &mut Addresses,
    found: &mut Vec<TrailStep>,
) -> Result<(), UnusableFile> {
    let Some(track) = timeline.tracks().get(index) else { return Ok(()) };
    let file = std::fs::File::open(path).map_err(|error| UnusableFile::io(path, &error))?;
    let mut sightings = Sightings::open(file).map_err(|error| UnusableFile::open(path, &error))?;
    if let Some(wanted) = track.tape().player().and_then(Player::wanted) {
        sightings.narrow(wanted).map_err(|error| UnusableFile::io(path, &error))?;
    }
    let (from, to) = span(verdict);
    while let Some(observed) = sightings.next_sighting().map_err(|error| UnusableFile::io(path, &error))? {
        let time = timeline.shown(index, &observed);
        let sighting = observed.sighting;
        if time < from || time > to {
            continue;
        }
        let Some(mut step) = step(&sighting, addresses) else { continue };
        step.time = time;
        track.header().node_name.as_deref().unwrap_or(track.name()).clone_into(&mut step.node);
        found.push(step);
    }
    Ok(())
}

/// The step of a sighting, if it belongs to the flow.
pub(super) fn step(sighting: &Sighting, addresses: &mut Addresses) -> Option<TrailStep> {
    let (tuple, after, what, skb) = match &sighting.fact {
        Fact::Conntrack(fact) => {
            if !addresses.has_entry(&fact.ct) {
                return None;
            }
            let after = fact.ct.reply.reversed();
            let after = (after != fact.ct.orig).then_some(after);
            (fact.ct.orig, after, entry(sighting.hook, fact), 0)
        }
        Fact::Packet(fact) => {
            let by_entry = fact.ct.as_ref().is_some_and(|ct| addresses.has_entry(ct));
            let tuple = fact.tuple.or_else(|| fact.ct.map(|ct| ct.orig))?;
            if !by_entry && !addresses.has(&tuple) {
                return None;
            }
            (tuple, None, packet(sighting.hook, fact), fact.skb)
        }
        Fact::Socket(fact) => {
            if !addresses.has(&fact.tuple) {
                return None;
            }
            (fact.tuple, None, socket(fact, addresses.client), 0)
        }
        Fact::Ipvs(fact) => {
            if !addresses.has(&fact.tuple) {
                return None;
            }
            let after = Tuple { dst: fact.destination.into(), ..fact.tuple };
            addresses.learn(after);
            (fact.tuple, Some(after), format!("IPVS chose {} for {}", fact.destination, fact.tuple.dst), 0)
        }
        Fact::TableFull { .. } => return None,
    };
    let is_packet = matches!(sighting.fact, Fact::Packet(_) | Fact::Conntrack(_) | Fact::Ipvs(_));
    let from_client = tuple.src == addresses.client.into();
    let to_client = tuple.dst == addresses.client.into();
    let way = match (&sighting.fact, is_packet) {
        (Fact::Packet(fact), _) => match fact.original_direction {
            Some(true) => Way::Request,
            Some(false) => Way::Answer,
            None if from_client => Way::Request,
            None if to_client => Way::Answer,
            None => Way::Neither,
        },
        (_, true) if sighting.hook == Hook::Confirm || sighting.hook == Hook::IpVsConnNew => Way::Request,
        _ => Way::Neither,
    };
    Some(TrailStep {
        time: sighting.time,
        node: String::new(),
        netns: sighting.netns,
        hook: sighting.hook.symbol(),
        way,
        tuple,
        after,
        what,
        same_as: None,
        skb,
    })
}

fn entry(hook: Hook, ConntrackFact { ct, note, .. }: &ConntrackFact) -> String {
    let translated = match ct.endpoint() {
        Some(endpoint) => format!("NAT chose {endpoint} for {}", ct.orig.dst),
        None => format!("{} was not translated", ct.orig.dst),
    };
    let source = if ct.masqueraded() {
        format!("; the endpoint sees {} as the client", ct.reply.dst)
    } else {
        String::new()
    };
    match hook {
        Hook::Confirm => format!("{translated}{source}; the conntrack entry enters the table"),
        Hook::NatSetup => format!("{translated}{source} (a step of the decision)"),
        Hook::ResolveClash => "another packet has made the same conntrack entry meanwhile".to_owned(),
        Hook::KillAcct => "the conntrack entry is removed by a reset, or by a new connection".to_owned(),
        Hook::Delete => match note.deleted_by {
            Some(port) => format!("the conntrack entry is deleted by a process (netlink port {port})"),
            None => "the conntrack entry ends".to_owned(),
        },
        Hook::EntryReread => {
            let seen = ct.status.has(crate::sighting::Status::SEEN_REPLY);
            let seen = if seen { "it has seen an answer" } else { "it has seen no answer" };
            format!("viptrace read the conntrack entry: {translated}{source}; {seen}")
        }
        _ => format!("{translated}{source}"),
    }
}

fn packet(hook: Hook, fact: &PacketFact) -> String {
    let what = match fact.tcp_flags {
        flags if flags & 4 != 0 => "a RST",
        flags if flags & 2 != 0 && flags & 16 != 0 => "a SYN-ACK",
        flags if flags & 2 != 0 => "a SYN",
        flags if flags & 1 != 0 => "a FIN",
        _ => "a packet",
    };
    let reason = fact.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
    let at = match fact.nf_hook {
        Some(1) => " at INPUT",
        Some(2) => " at FORWARD",
        Some(3) => " at OUTPUT",
        _ => "",
    };
    match hook {
        Hook::KfreeSkb => {
            let site = fact.site.map_or_else(String::new, |site| format!(" in {site}"));
            let full = if fact.table_full { "; the conntrack table was full" } else { "" };
            format!("{what} is dropped{reason}{site}{full}")
        }
        Hook::SendUnreach | Hook::SendUnreach6 => {
            let code = fact.icmp_code.map_or_else(String::new, |code| format!(" code {code}"));
            format!("a rule refuses {what}{at} with ICMP unreachable{code}")
        }
        Hook::NfSendReset | Hook::NfSendReset6 => format!("a rule refuses {what}{at} with a RST"),
        Hook::TcpSendReset | Hook::TcpV4SendReset | Hook::TcpV6SendReset => {
            format!("the kernel answers {what} with a RST{reason}")
        }
        Hook::InvalidLog => format!("conntrack calls {what} invalid{reason}"),
        Hook::IcmpError | Hook::IcmpError6 => format!("an ICMP error about {what} passes{reason}"),
        Hook::TcpPacket => "a RST passes through this node".to_owned(),
        Hook::IpVsLeave => format!("IPVS has no real server for {what}"),
        Hook::IpVsSchedule => format!("IPVS scheduled {what} to no real server"),
        Hook::IpVsConnExpire => format!("IPVS drops {what}: it belongs to an expired connection"),
        _ => format!("{what}{reason}"),
    }
}

fn socket(fact: &SocketFact, client: SocketAddr) -> String {
    let whose = if fact.tuple.src == client.into() { "the client's" } else { "the endpoint's" };
    match &fact.event {
        SocketEvent::State { old, new } => format!("{whose} socket: {old:?} to {new:?}"),
        SocketEvent::Retransmit { state, bytes } => {
            let bytes = bytes.map_or_else(String::new, |bytes| format!(", {bytes} bytes"));
            format!("{whose} socket sends again ({state:?}{bytes})")
        }
        SocketEvent::SendReset { reason, .. } => {
            let reason = reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
            format!("{whose} socket sends a RST{reason}")
        }
        SocketEvent::ReceiveReset { .. } => format!("{whose} socket receives a RST"),
    }
}

/// Marks the sightings of one packet: the same memory on one node within [`ONE_PACKET`].
fn find_same(steps: &mut [TrailStep]) {
    let marks: Vec<Option<usize>> = steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let earlier = steps.get(..index).unwrap_or_default().iter().enumerate().rev();
            let same = |other: &TrailStep| {
                let apart = step.time.since(other.time);
                other.skb == step.skb && step.skb != 0 && other.node == step.node && apart <= ONE_PACKET
            };
            // The memory of a packet that was dropped is soon that of another one.
            let of_packet =
                earlier.filter(|(_, other)| same(other)).take_while(|(_, other)| !other.frees_packet());
            of_packet.map(|(at, _)| at).last()
        })
        .collect();
    for (step, mark) in steps.iter_mut().zip(marks) {
        step.same_as = mark;
    }
}

/// The endpoint's state when NAT decided, as the API listed it.
fn endpoint(pipeline: &Pipeline, own: &Verdict) -> Option<String> {
    let (vip, endpoint) = (own.flow.vip?, own.flow.endpoint?);
    let protocol = protocol(own);
    let history = &pipeline.cluster().history;
    let at = own.flow.started;
    let Address::Vip(vip) = history.address(vip, protocol, at) else { return None };
    let pod = own.flow.endpoint_pod.as_deref().map_or_else(String::new, |pod| format!(" (Pod {pod})"));
    let what = format!("{endpoint}{pod}");
    Some(match history.membership(&vip, endpoint, at) {
        Membership::Member { state, since } => {
            format!("{what} was {} since {}", state.conditions, since.beside(at))
        }
        Membership::Left { at: left, .. } => format!("{what} had left the Service at {}", left.beside(at)),
        Membership::NeverSeen { .. } => format!("{what} was never seen in the Service's EndpointSlices"),
        Membership::Unknown => format!("{what}: the EndpointSlices of that time are not known"),
    })
}

fn protocol(verdict: &Verdict) -> Protocol {
    Protocol::from_name(&verdict.flow.protocol).unwrap_or(Protocol::TCP)
}

/// The walk of the rules for the flow's first packet, as the node last read them.
fn rules(pipeline: &Pipeline, own: &Verdict) -> Result<Journey, String> {
    let to = own.flow.vip.or(own.flow.endpoint).ok_or("the flow's destination is not known")?;
    let node: &Snapshot = pipeline.node();
    if node.rules_time.is_none() {
        return Err("the node's rules were not read while it was traced".to_owned());
    }
    let no_routes = Routes::default();
    let mut scene = Scene::new(&node.rules, node.routes.as_ref().unwrap_or(&no_routes));
    scene.interfaces = node.interfaces.as_ref();
    scene.sysctls = node.sysctls.as_ref();
    scene.history = Some(&pipeline.cluster().history);
    scene.node = pipeline.settings().node_name.as_deref();
    let question = Question {
        from: path::From::Address(own.flow.client.ip()),
        to: To::Address(to),
        protocol: Some(protocol(own)),
        family: None,
    };
    scene.journey(&question).map_err(|error| error.to_string())
}
