//! Runs one packet through the chains of a hook: its states, and the stack of chains.

use std::net::SocketAddr;

use super::{
    super::{Chain, Datum, NFTABLES_TABLE, Rule, Step, Table, Verdict, Writer, chains},
    Entry, Fate, MAX_STEPS, Note, Observer, Place, Probe, Unknown, Walker, is_own,
};
pub(super) use way::{MAX_DEPTH, MAX_TRAIL};
use way::{State, Way};

mod conditions;
mod hooks;
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
    /// The base chain has no verdict: its policy decides.
    Policy,
    Drop,
    Reject,
    /// Its further way is unknown; only for an observer.
    Lost,
}

/// A stopped packet, with the chains that stopped it.
fn decide<T>(mut state: State<T>) -> State<T> {
    state.decided.clone_from(&state.trail);
    state
}

/// The effect of a verdict on a way.
enum After {
    /// It continues with the next rule, or in another chain.
    On,
    Stopped(Stop),
}

pub(super) struct Run<'w, 'a, 'p, O: Observer> {
    walker: &'w Walker<'a>,
    probe: &'p Probe<'p>,
    observer: &'p O,
    fate: Fate<O::Trail>,
    budget: u32,
    /// The number of ways that may still branch off.
    room: u32,
    key: Vec<Datum>,
}

impl<'w, 'a, 'p, O: Observer> Run<'w, 'a, 'p, O> {
    pub(super) fn new(walker: &'w Walker<'a>, probe: &'p Probe<'p>, observer: &'p O) -> Self {
        Self {
            walker,
            probe,
            observer,
            fate: Fate { branches: Vec::new(), sticky: Vec::new(), unknown: Vec::new(), cut: false },
            budget: MAX_STEPS,
            room: MAX_WAYS,
            key: Vec::with_capacity(4),
        }
    }

    pub(super) fn into_fate(self) -> Fate<O::Trail> {
        self.fate
    }

    /// Runs one base chain and every chain that it calls.
    fn chain(&mut self, entry: Entry, state: State<O::Trail>) -> Vec<(State<O::Trail>, Stop)> {
        let mut done = Vec::new();
        let Some(table) = self.walker.rules.table_at(entry.table) else { return vec![(state, Stop::Pass)] };
        let mut ways = vec![Way::new(state, entry.table, entry.chain)];
        while let Some(mut way) = ways.pop() {
            if let Some(stop) = self.follow(table, &mut way, &mut ways) {
                done.push((way.state, stop));
            }
        }
        done
    }

    /// Follows one way to its end and adds branches to `ways`. `None` if no weight is left.
    fn follow(
        &mut self,
        table: &Table,
        way: &mut Way<O::Trail>,
        ways: &mut Vec<Way<O::Trail>>,
    ) -> Option<Stop> {
        if way.stopped.is_some() {
            return way.stopped;
        }
        'rules: loop {
            if self.budget == 0 {
                self.fate.cut = true;
                return Some(Stop::Pass);
            }
            self.budget -= 1;
            let (port, address) = (way.state.destination.port(), way.state.destination.ip());
            let resume = way.resume.take();
            let Some(frame) = way.top() else { return Some(Stop::Policy) };
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
            let chain_at = frame.chain;
            frame.rule = position + 1;
            if !O::WHOLE && !is_own(table, chain, rule) {
                continue;
            }
            let place = Place { table: way.table, chain: chain_at, rule: position };
            let mut is_noted = false;
            while let Some(step) = rule.steps.get(at) {
                at += 1;
                if step.is_effect() && !is_noted {
                    is_noted = true;
                    let marks = way.state.marks;
                    O::note(&mut way.state.seen, || Note::Matches { place, marks });
                }
                match step {
                    Step::Harmless => {}
                    Step::NoTrack
                    | Step::SetMark { .. }
                    | Step::SetConnMark { .. }
                    | Step::SaveMark { .. }
                    | Step::RestoreMark { .. } => way.state.marks.apply(step),
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
                    Step::Sticky(_) if O::WHOLE && !is_of_kube_proxy(table, chain) => {
                        self.assume(rule, way, ways, place, at);
                        continue 'rules;
                    }
                    Step::Sticky(of) => {
                        if way.state.sticky.is_none() && self.branches_off() {
                            let mut side = way.clone();
                            let of_set = || table.set(&of.list).and_then(|set| set.timeout);
                            side.state.sticky = Some((of.list.clone(), of.seconds.or_else(of_set)));
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
                            let taken = || Note::Chooses { place, verdict: verdict.clone() };
                            O::note(&mut other.state.seen, taken);
                            match self.apply(table, verdict, &mut other) {
                                After::On => ways.push(other),
                                // It ends when it is continued.
                                After::Stopped(stop) => {
                                    other.stopped = Some(stop);
                                    ways.push(other);
                                }
                            }
                        }
                        if left <= WEIGHT_MIN {
                            return None;
                        }
                        way.state.weight = left;
                    }
                    Step::Look(of) => {
                        let Some(set) = table.set(&of.map) else {
                            self.lose_aside(Unknown::Map(of.map.clone()), way, ways, place);
                            continue 'rules;
                        };
                        self.fill(&way.state, &of.fields);
                        let Some(Some(verdict)) = set.find(&self.key) else {
                            if set.partial {
                                // One of the elements that were not understood may have a verdict.
                                self.lose_aside(Unknown::PartOfSet(of.map.clone()), way, ways, place);
                            }
                            continue 'rules;
                        };
                        O::note(&mut way.state.seen, || Note::Chooses { place, verdict: verdict.clone() });
                        if !way.pass(&set.name, table.writer, way.depth + 1) {
                            return Some(self.lose(Unknown::Endless(of.map.clone()), way));
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
                    Step::ByState(of) => {
                        let verdict = if way.state.is_untracked() {
                            &of.untracked
                        } else if self.observer.is_reply() {
                            &of.established
                        } else {
                            &of.new
                        };
                        let Some(verdict) = verdict else { continue 'rules };
                        O::note(&mut way.state.seen, || Note::Chooses { place, verdict: verdict.clone() });
                        match self.apply(table, verdict, way) {
                            After::On => continue 'rules,
                            After::Stopped(stop) => return Some(stop),
                        }
                    }
                    condition => match self.holds(table, condition, &way.state) {
                        Some(true) => {}
                        Some(false) => {
                            own_mark(table, rule, at, condition, &mut way.state);
                            continue 'rules;
                        }
                        None if O::assumed(&way.state.seen) == Some(place) => {}
                        None => {
                            self.assume(rule, way, ways, place, at);
                            continue 'rules;
                        }
                    },
                }
            }
        }
    }

    /// Adds the way on which a rule's conditions that cannot be judged hold, if an observer follows it and the rule has
    /// an effect.
    fn assume(
        &mut self,
        rule: &Rule,
        way: &Way<O::Trail>,
        ways: &mut Vec<Way<O::Trail>>,
        place: Place,
        at: usize,
    ) {
        let mut rest = rule.steps.iter().skip(at);
        if !O::WHOLE || way.state.sticky.is_some() || !rest.any(|step| step.is_effect() || step.is_choice()) {
            return;
        }
        let mut other = way.clone();
        if O::assume(&mut other.state.seen, place) && self.branches_off() {
            other.resume = Some((place.rule, at));
            ways.push(other);
        }
    }

    /// Adds the way on which nothing is known any more, if an observer follows it.
    fn lose_aside(&mut self, why: Unknown, way: &Way<O::Trail>, ways: &mut Vec<Way<O::Trail>>, place: Place) {
        if !O::WHOLE || way.state.sticky.is_some() {
            self.note(why);
            return;
        }
        let mut other = way.clone();
        if O::assume(&mut other.state.seen, place) && self.branches_off() {
            other.stopped = Some(self.lose(why, &mut other));
            ways.push(other);
        }
    }

    fn apply(&mut self, table: &Table, verdict: &Verdict, way: &mut Way<O::Trail>) -> After {
        match verdict {
            Verdict::Accept => After::Stopped(Stop::Pass),
            Verdict::Drop => After::Stopped(Stop::Drop),
            Verdict::Reject => After::Stopped(Stop::Reject),
            Verdict::Return => {
                way.leave();
                if way.depth == 0 { After::Stopped(Stop::Policy) } else { After::On }
            }
            Verdict::Masquerade => {
                way.state.masquerade = true;
                After::Stopped(Stop::Pass)
            }
            Verdict::Dnat(to) => {
                let to = to.get();
                let port = if to.port() == 0 { way.state.destination.port() } else { to.port() };
                way.state.destination = SocketAddr::new(to.ip(), port);
                way.state.translated = true;
                way.state.decided = way.state.trail.clone();
                After::Stopped(Stop::Pass)
            }
            Verdict::Jump(to) | Verdict::Goto(to) => {
                let Some(chain) = table.position(to) else {
                    // The kernel has no rule without its chain: another program's is the target of an extension.
                    let why = Unknown::Chain(to.clone());
                    let is_own = &*table.name == NFTABLES_TABLE || chains::is_kube_proxys(to);
                    if O::WHOLE && !is_own {
                        return After::Stopped(self.lose(why, way));
                    }
                    self.note(why);
                    return After::On;
                };
                if matches!(verdict, Verdict::Goto(_)) {
                    way.depth = way.depth.saturating_sub(1);
                }
                if !way.call(chain) {
                    return After::Stopped(self.lose(Unknown::TooDeep(to.clone()), way));
                }
                // KUBE-MARK-MASQ and similar chains return at once and are not part of the trail.
                let is_listed =
                    table.chains.get(chain).is_some_and(|chain| marks(chain.rules.as_slice()).is_none());
                if is_listed && !way.pass(to, table.writer, way.depth) {
                    return After::Stopped(self.lose(Unknown::Endless(to.clone()), way));
                }
                After::On
            }
            Verdict::Unknown(target) if O::WHOLE => {
                After::Stopped(self.lose(Unknown::Target(target.clone()), way))
            }
            Verdict::Unknown(target) => {
                self.note(Unknown::Target(target.clone()));
                After::On
            }
        }
    }

    /// Stops a packet whose further way is unknown. An audit lets it pass.
    fn lose(&mut self, why: Unknown, way: &mut Way<O::Trail>) -> Stop {
        self.note(why.clone());
        if !O::WHOLE {
            return Stop::Pass;
        }
        let table = way.table;
        let frame = way.top().copied().unwrap_or_default();
        let place = Place { table, chain: frame.chain, rule: frame.rule.saturating_sub(1) };
        O::note(&mut way.state.seen, || Note::Lost { place, why });
        Stop::Lost
    }

    fn note(&mut self, what: Unknown) {
        if self.fate.unknown.len() < MAX_UNKNOWN && !self.fate.unknown.contains(&what) {
            self.fate.unknown.push(what);
        }
    }
}

/// Whether a list of clients in this chain is session affinity. In another program's chain, nothing is known about it.
fn is_of_kube_proxy(table: &Table, chain: &Chain) -> bool {
    match table.writer {
        Writer::Nftables => table.name.as_ref() == NFTABLES_TABLE,
        _ => chain.name.starts_with("KUBE-"),
    }
}

/// Records a rule that would mark the packet if the packet had another source.
fn own_mark<T>(table: &Table, rule: &Rule, at: usize, condition: &Step, state: &mut State<T>) {
    let Step::Source(from) = condition else { return };
    let Some(host) = from.host() else { return };
    let mark = match rule.steps.get(at) {
        Some(Step::SetMark { clear, toggle }) => Some((*clear, *toggle)),
        Some(Step::Do(Verdict::Jump(to))) => table.chain(to).and_then(|chain| marks(&chain.rules)),
        _ => None,
    };
    if let Some((clear, toggle)) = mark {
        let mut own = state.marks.packet;
        own.set(clear, toggle);
        state.own = Some((host, own.bits));
    }
}

/// The mark of a chain that only sets a mark.
fn marks(rules: &[Rule]) -> Option<(u32, u32)> {
    let [rule] = rules else { return None };
    match &*rule.steps {
        [Step::SetMark { clear, toggle }] => Some((*clear, *toggle)),
        _ => None,
    }
}
