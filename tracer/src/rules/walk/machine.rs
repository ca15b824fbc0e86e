//! Runs one packet: its states, the stack of chains, the order of hooks.

use std::{net::SocketAddr, rc::Rc};

use super::{
    super::{Datum, Destination, HookPoint, Name, Rule, Step, Table, Verdict, Writer},
    Branch, End, Entry, Fate, Link, MAX_STEPS, Origin, Probe, Sticky, Unknown, Walker, is_own,
};
pub(super) use way::{MAX_DEPTH, MAX_TRAIL};
use way::{State, Way};

mod conditions;
mod way;

/// The most branches followed for one packet: a Service has one for each endpoint.
const MAX_WAYS: u32 = 65_536;
/// Branches with less weight are not followed.
const WEIGHT_MIN: f64 = 1e-9;
/// The most unknown conditions noted for one packet.
const MAX_UNKNOWN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Pass,
    Drop,
    Reject,
}

/// A stopped packet, with the chains that stopped it.
fn decide(state: State) -> State {
    State { decided: state.trail.clone(), ..state }
}

/// The effect of a verdict on a way.
enum After {
    /// It continues with the next rule, or in another chain.
    On,
    Stopped(Stop),
}

pub(super) struct Run<'w, 'a, 'p> {
    walker: &'w Walker<'a>,
    probe: &'p Probe<'p>,
    fate: Fate,
    budget: u32,
    /// The number of ways that may still branch off.
    room: u32,
    key: Vec<Datum>,
}

impl<'w, 'a, 'p> Run<'w, 'a, 'p> {
    pub(super) fn new(walker: &'w Walker<'a>, probe: &'p Probe<'p>) -> Self {
        Self {
            walker,
            probe,
            fate: Fate::default(),
            budget: MAX_STEPS,
            room: MAX_WAYS,
            key: Vec::with_capacity(4),
        }
    }

    pub(super) fn into_fate(self) -> Fate {
        self.fate
    }

    pub(super) fn go(&mut self) {
        let probe = self.probe;
        let start = State {
            weight: 1.0,
            source: probe.source,
            destination: probe.destination,
            translated: false,
            mark: 0,
            masquerade: false,
            own: None,
            remembers: None,
            sticky: None,
            trail: None,
            decided: None,
        };
        let first = if probe.origin == Origin::Node { HookPoint::Output } else { HookPoint::Prerouting };
        for state in self.hook(first, start) {
            let local = self.walker.is_local(probe, state.destination);
            let server = self.walker.server(probe.protocol, state.destination).filter(|_| local);
            // IPVS takes packets from the node on their way out (LOCAL_OUT), before any input chain.
            let second = match (probe.origin, local) {
                (Origin::Node, true) if server.is_none() => Some(HookPoint::Input),
                (Origin::Node, _) => None,
                (_, true) => Some(HookPoint::Input),
                (_, false) => Some(HookPoint::Forward),
            };
            let after = match second {
                Some(hook) => self.hook(hook, state),
                None => vec![state],
            };
            for state in after {
                match server {
                    Some(server) => self.schedule(&state, &server.destinations, server.persistent),
                    None => self.leave(state, local),
                }
            }
        }
    }

    /// IPVS chooses a real server.
    fn schedule(&mut self, state: &State, destinations: &[Destination], persistent: Option<u32>) {
        let sum: f64 = destinations.iter().map(|real| f64::from(real.weight)).sum();
        let link = |real: Option<&Destination>| {
            let name = match real {
                Some(real) => format!("real server {}", real.address),
                None => format!("virtual server {}", state.destination),
            };
            Some(Rc::new(Link { name: name.into(), writer: Writer::Ipvs, depth: 0, length: 1, before: None }))
        };
        if destinations.iter().all(|real| real.weight == 0) {
            // ip_vs_leave answers with ICMP port unreachable.
            let state = State { decided: link(None), ..state.clone() };
            self.end(state, End::Refused, None);
            return;
        }
        for real in destinations.iter().filter(|real| real.weight > 0) {
            if !self.branches_off() {
                return;
            }
            let mut state = State {
                weight: state.weight * f64::from(real.weight) / sum,
                destination: real.address,
                decided: link(Some(real)),
                ..state.clone()
            };
            if let Some(seconds) = persistent {
                let list: Name = format!("virtual server {}", self.probe.destination).into();
                state.remembers = Some(list.clone());
                let trail = trail(state.decided.as_ref());
                self.fate.sticky.push(Sticky {
                    list,
                    seconds: Some(seconds),
                    end: End::Endpoint(real.address),
                    trail,
                });
            }
            state.translated = true;
            if real.masquerade {
                self.leave(state, false);
            } else {
                // Tunnelled or routed: the packet keeps the VIP as its destination, which no Pod accepts.
                self.end(state, End::Dropped, None);
            }
        }
    }

    /// Whether another way may branch off; otherwise the walk ends early.
    fn branches_off(&mut self) -> bool {
        if self.room == 0 {
            self.budget = 0;
            self.fate.cut = true;
            return false;
        }
        self.room -= 1;
        true
    }

    /// Passes forwarded packets through the last hook. Packets to the node itself end here.
    fn leave(&mut self, state: State, local: bool) {
        let end = if state.translated { End::Endpoint(state.destination) } else { End::Passed };
        if local || !state.translated {
            self.end(state, end, None);
            return;
        }
        let hairpin = self.probe.hairpin.then(|| {
            let own = state.destination.ip();
            let mark = state.own.filter(|(source, _)| *source == own).map_or(state.mark, |(_, mark)| mark);
            let looped = State { source: own, mark, ..state.clone() };
            self.hook(HookPoint::Postrouting, looped).iter().any(|state| state.masquerade)
        });
        for state in self.hook(HookPoint::Postrouting, state) {
            self.end(state, end, hairpin);
        }
    }

    fn end(&mut self, state: State, end: End, hairpin: Option<bool>) {
        let trail_of = trail(state.decided.as_ref());
        if let Some((list, seconds)) = state.sticky {
            self.fate.sticky.push(Sticky { list, seconds, end, trail: trail_of });
            return;
        }
        let writer = state.decided.as_ref().map(|link| link.writer).filter(|_| end != End::Passed);
        self.fate.branches.push(Branch {
            weight: state.weight,
            end,
            masquerade: state.masquerade,
            hairpin,
            remembers: state.remembers,
            trail: trail_of,
            writer,
        });
    }

    /// Runs all base chains of a hook. Packets that are stopped end there; the others are returned.
    fn hook(&mut self, hook: HookPoint, state: State) -> Vec<State> {
        let mut states = vec![state];
        let walker = self.walker;
        for entry in walker.entries(hook) {
            let mut next = Vec::with_capacity(states.len());
            for state in states {
                // The first translation holds: later NAT chains are skipped (nf_nat_inet_fn).
                if entry.base.nat && state.translated && hook != HookPoint::Postrouting {
                    next.push(state);
                    continue;
                }
                for (state, stop) in self.chain(*entry, state) {
                    match stop {
                        Stop::Pass => next.push(state),
                        Stop::Drop => self.end(decide(state), End::Dropped, None),
                        Stop::Reject => self.end(decide(state), End::Refused, None),
                    }
                }
            }
            states = next;
        }
        states
    }

    /// Runs one base chain and every chain that it calls.
    fn chain(&mut self, entry: Entry, state: State) -> Vec<(State, Stop)> {
        let mut done = Vec::new();
        let Some(table) = self.walker.rules.tables.get(entry.table) else { return vec![(state, Stop::Pass)] };
        let mut first = Way { state, frames: Default::default(), depth: 0, resume: None };
        first.call(entry.chain);
        first.state.trail = None;
        let mut ways = vec![first];
        while let Some(mut way) = ways.pop() {
            if let Some(stop) = self.follow(table, &mut way, &mut ways) {
                done.push((way.state, stop));
            }
        }
        done
    }

    /// Follows one way to its end and adds branches to `ways`. `None` if no weight is left.
    fn follow(&mut self, table: &Table, way: &mut Way, ways: &mut Vec<Way>) -> Option<Stop> {
        'rules: loop {
            if self.budget == 0 {
                self.fate.cut = true;
                return Some(Stop::Pass);
            }
            self.budget -= 1;
            let (port, address) = (way.state.destination.port(), way.state.destination.ip());
            let resume = way.resume.take();
            let Some(frame) = way.top() else { return Some(Stop::Pass) };
            let Some(chain) = table.chains.get(frame.chain) else { return Some(Stop::Pass) };
            let (position, mut at) = match (resume, &chain.index) {
                (Some((position, step)), _) => (Some(position), step),
                (None, Some(index)) => (index.next(frame.rule, address, port), 0),
                (None, None) => (Some(frame.rule), 0),
            };
            let Some((position, rule)) = position.and_then(|at| Some((at, chain.rules.get(at)?))) else {
                // The end of a chain: returns to the caller.
                way.leave();
                continue;
            };
            frame.rule = position + 1;
            if !is_own(table, chain, rule) {
                continue;
            }
            while let Some(step) = rule.steps.get(at) {
                at += 1;
                match step {
                    Step::Harmless => {}
                    Step::SetMark { clear, toggle } => {
                        way.state.mark = (way.state.mark & !clear) ^ toggle;
                    }
                    Step::Remember(list) => way.state.remembers = Some(list.clone()),
                    Step::Chance(chance) => {
                        let rest = way.state.weight * (1.0 - chance);
                        if rest > WEIGHT_MIN && self.branches_off() {
                            let mut other = way.clone();
                            other.state.weight = rest;
                            ways.push(other);
                        }
                        way.state.weight *= chance;
                        if way.state.weight <= WEIGHT_MIN {
                            return None;
                        }
                    }
                    Step::Sticky { list, seconds } => {
                        if way.state.sticky.is_none() && self.branches_off() {
                            let mut side = way.clone();
                            let seconds = seconds.or_else(|| table.set(list).and_then(|set| set.timeout));
                            side.state.sticky = Some((list.clone(), seconds));
                            side.resume = Some((position, at));
                            ways.push(side);
                        }
                        continue 'rules;
                    }
                    Step::Spread { of, to } => {
                        let share = way.state.weight / f64::from((*of).max(1));
                        let mut left = way.state.weight;
                        for (_, verdict) in to.iter().filter(|(number, _)| number < of) {
                            // A number that occurs twice takes no more than the remaining weight.
                            if left < share * 0.5 || !self.branches_off() {
                                break;
                            }
                            left -= share;
                            let mut other = way.clone();
                            other.state.weight = share;
                            match self.apply(table, verdict, &mut other) {
                                After::On => ways.push(other),
                                // A stopped way has no frames left and ends when it is continued.
                                After::Stopped(Stop::Pass) => {
                                    other.depth = 0;
                                    ways.push(other);
                                }
                                After::Stopped(stop) => {
                                    let end = if stop == Stop::Drop { End::Dropped } else { End::Refused };
                                    self.end(decide(other.state), end, None);
                                }
                            }
                        }
                        if left <= WEIGHT_MIN {
                            return None;
                        }
                        way.state.weight = left;
                    }
                    Step::Look { fields, map } => {
                        let Some(set) = table.set(map) else {
                            self.note(Unknown::Map(map.clone()));
                            continue 'rules;
                        };
                        self.fill(&way.state, fields);
                        let Some(Some(verdict)) = set.find(&self.key) else { continue 'rules };
                        if !way.pass(&set.name, table.writer, way.depth + 1) {
                            return Some(self.endless(map));
                        }
                        match self.apply(table, verdict, way) {
                            After::On => continue 'rules,
                            After::Stopped(stop) => return Some(stop),
                        }
                    }
                    Step::Do(verdict) => match self.apply(table, verdict, way) {
                        After::On => continue 'rules,
                        After::Stopped(stop) => return Some(stop),
                    },
                    condition => {
                        if !self.holds(table, condition, &way.state) {
                            own_mark(table, rule, at, condition, &mut way.state);
                            continue 'rules;
                        }
                    }
                }
            }
        }
    }

    fn apply(&mut self, table: &Table, verdict: &Verdict, way: &mut Way) -> After {
        match verdict {
            Verdict::Accept => After::Stopped(Stop::Pass),
            Verdict::Drop => After::Stopped(Stop::Drop),
            Verdict::Reject => After::Stopped(Stop::Reject),
            Verdict::Return => {
                way.leave();
                if way.depth == 0 { After::Stopped(Stop::Pass) } else { After::On }
            }
            Verdict::Masquerade => {
                way.state.masquerade = true;
                After::Stopped(Stop::Pass)
            }
            Verdict::Dnat(to) => {
                let port = if to.port() == 0 { way.state.destination.port() } else { to.port() };
                way.state.destination = SocketAddr::new(to.ip(), port);
                way.state.translated = true;
                way.state.decided = way.state.trail.clone();
                After::Stopped(Stop::Pass)
            }
            Verdict::Jump(to) | Verdict::Goto(to) => {
                let Some(chain) = table.position(to) else {
                    self.note(Unknown::Chain(to.clone()));
                    return After::On;
                };
                if matches!(verdict, Verdict::Goto(_)) {
                    way.depth = way.depth.saturating_sub(1);
                }
                if !way.call(chain) {
                    self.note(Unknown::TooDeep(to.clone()));
                    return After::Stopped(Stop::Pass);
                }
                // KUBE-MARK-MASQ and similar chains return at once and are not part of the trail.
                let is_listed =
                    table.chains.get(chain).is_some_and(|chain| marks(chain.rules.as_slice()).is_none());
                if is_listed && !way.pass(to, table.writer, way.depth) {
                    return After::Stopped(self.endless(to));
                }
                After::On
            }
            Verdict::Unknown(target) => {
                self.note(Unknown::Target(target.clone()));
                After::On
            }
        }
    }

    /// Stops a packet that passes more than `MAX_TRAIL` chains and maps.
    fn endless(&mut self, name: &Name) -> Stop {
        self.note(Unknown::Endless(name.clone()));
        Stop::Pass
    }

    fn note(&mut self, what: Unknown) {
        if self.fate.unknown.len() < MAX_UNKNOWN && !self.fate.unknown.contains(&what) {
            self.fate.unknown.push(what);
        }
    }
}

/// Records a rule that would mark the packet if the packet had another source.
fn own_mark(table: &Table, rule: &Rule, at: usize, condition: &Step, state: &mut State) {
    let Step::Source { ranges, negated: false } = condition else { return };
    let [range] = ranges.as_ref() else { return };
    let Some(host) = range.as_host() else { return };
    let mark = match rule.steps.get(at) {
        Some(Step::SetMark { clear, toggle }) => Some((*clear, *toggle)),
        Some(Step::Do(Verdict::Jump(to))) => table.chain(to).and_then(|chain| marks(&chain.rules)),
        _ => None,
    };
    if let Some((clear, toggle)) = mark {
        state.own = Some((host, (state.mark & !clear) ^ toggle));
    }
}

/// The mark of a chain that only sets a mark.
fn marks(rules: &[Rule]) -> Option<(u32, u32)> {
    let [rule] = rules else { return None };
    match rule.steps.as_slice() {
        [Step::SetMark { clear, toggle }] => Some((*clear, *toggle)),
        _ => None,
    }
}

fn trail(last: Option<&Rc<Link>>) -> Vec<Name> {
    let mut names = Vec::new();
    let mut next = last;
    while let Some(link) = next {
        names.push(link.name.clone());
        next = link.before.as_ref();
    }
    names.reverse();
    names
}
