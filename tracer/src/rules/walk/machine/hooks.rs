//! The order of the hooks: where a packet goes from one to the next, where IPVS takes it, and where it ends.

use std::{net::IpAddr, ops::RangeInclusive, rc::Rc};

use super::{Observer, Run, State, Stop, decide};
use crate::rules::{
    Destination, HookPoint, Name, VirtualServer, Writer,
    mark::{Mark, Marks},
    walk::{Branch, End, Entry, Link, Note, Origin, Sticky},
};

impl<'a, O: Observer> Run<'_, 'a, '_, O> {
    pub(in crate::rules::walk) fn go(&mut self) {
        let probe = self.probe;
        let start = State {
            weight: 1.0,
            source: probe.source,
            destination: probe.destination,
            translated: false,
            marks: Marks {
                packet: Mark::default(),
                // A new connection's entry has no mark; the marks of known ones are not listed.
                connection: Some(Mark {
                    bits: 0,
                    unknown: if self.observer.is_reply() { u32::MAX } else { 0 },
                }),
            },
            masquerade: false,
            own: None,
            remembers: None,
            sticky: None,
            trail: None,
            decided: None,
            hook: HookPoint::Prerouting,
            sent_to: probe.destination.ip(),
            seen: O::Trail::default(),
        };
        if O::WHOLE {
            self.travel(start);
            return;
        }
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
    fn schedule(&mut self, state: &State<O::Trail>, destinations: &[Destination], persistent: Option<u32>) {
        let sum: f64 = destinations.iter().map(|real| f64::from(real.weight)).sum();
        let link = |real: Option<&Destination>| {
            let name = match real {
                Some(real) => format!("real server {}", real.address),
                None => format!("virtual server {}", state.destination),
            };
            Some(Rc::new(Link { name: name.into(), writer: Writer::Ipvs, depth: 0, length: 1, before: None }))
        };
        let address = state.destination;
        if destinations.iter().all(|real| real.weight == 0) {
            // ip_vs_leave answers with ICMP port unreachable.
            let mut state = State { decided: link(None), ..state.clone() };
            O::note(&mut state.seen, || Note::Server { address, real: None, masquerade: false });
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
            if self.observer.ipvs_is_untracked() {
                state.marks.connection = None;
            }
            let masquerade = real.masquerade;
            O::note(&mut state.seen, || Note::Server { address, real: Some(real.address), masquerade });
            if masquerade {
                if O::WHOLE { self.resend(state) } else { self.leave(state, false) }
            } else {
                // Tunnelled or routed: the packet keeps the VIP as its destination, which no Pod accepts.
                self.end(state, End::Dropped, None);
            }
        }
    }

    /// Whether another way may branch off; otherwise the walk ends early.
    pub(super) fn branches_off(&mut self) -> bool {
        if self.room == 0 {
            self.budget = 0;
            self.fate.cut = true;
            return false;
        }
        self.room -= 1;
        true
    }

    /// Passes forwarded packets through the last hook. Packets to the node itself end here.
    fn leave(&mut self, state: State<O::Trail>, local: bool) {
        let end = end_of(&state);
        if local || !state.translated && !O::WHOLE {
            self.end(state, end, None);
            return;
        }
        let hairpin = (self.probe.hairpin && !O::WHOLE).then(|| {
            let own = state.destination.ip();
            let mut looped = State { source: own, ..state.clone() };
            if let Some((_, mark)) = state.own.filter(|(source, _)| *source == own) {
                looped.marks.packet.bits = mark;
            }
            // This packet is a supposition: if a rule stops it, that is no end of the probe.
            let (branches, sticky) = (self.fate.branches.len(), self.fate.sticky.len());
            let masquerades = self.hook(HookPoint::Postrouting, looped).iter().any(|state| state.masquerade);
            self.fate.branches.truncate(branches);
            self.fate.sticky.truncate(sticky);
            masquerades
        });
        for state in self.hook(HookPoint::Postrouting, state) {
            self.end(state, end, hairpin);
        }
    }

    fn end(&mut self, state: State<O::Trail>, end: End, hairpin: Option<bool>) {
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
            mark: state.marks.packet.bits,
            hairpin,
            remembers: state.remembers,
            trail: trail_of,
            writer,
            seen: state.seen,
        });
    }

    /// Runs all base chains of a hook. Packets that are stopped end there; the others are returned.
    fn hook(&mut self, hook: HookPoint, state: State<O::Trail>) -> Vec<State<O::Trail>> {
        self.part(hook, state, &ALL)
    }

    /// As [`Self::hook`], for these chains of it.
    fn part(&mut self, hook: HookPoint, state: State<O::Trail>, part: &Part) -> Vec<State<O::Trail>> {
        let sent_to = state.destination.ip();
        self.part_of((hook, sent_to), state, part)
    }

    /// As [`Self::part`], of a hook that the packet entered with this destination.
    fn part_of(
        &mut self,
        (hook, sent_to): (HookPoint, IpAddr),
        state: State<O::Trail>,
        part: &Part,
    ) -> Vec<State<O::Trail>> {
        let mut states = vec![State { hook, sent_to, ..state }];
        let walker = self.walker;
        let is_part = |entry: &&Entry| {
            part.priorities.contains(&entry.base.priority) && (part.with_nat || !entry.base.nat)
        };
        for entry in walker.entries(hook).iter().filter(is_part) {
            let mut next = Vec::with_capacity(states.len());
            for state in states {
                // The first translation holds: later NAT chains are skipped (nf_nat_inet_fn).
                let is_done = if hook == HookPoint::Postrouting {
                    O::WHOLE && state.masquerade
                } else {
                    state.translated
                };
                if entry.base.nat && (is_done || state.is_untracked() || self.observer.is_reply()) {
                    next.push(state);
                    continue;
                }
                for (mut state, stop) in self.chain(*entry, state) {
                    match stop {
                        Stop::Policy if O::WHOLE && entry.base.drops => {
                            let Entry { table, chain, .. } = *entry;
                            O::note(&mut state.seen, || Note::Policy { table, chain });
                            self.end(decide(state), End::Dropped, None);
                        }
                        Stop::Pass | Stop::Policy => next.push(state),
                        Stop::Drop => self.end(decide(state), End::Dropped, None),
                        Stop::Reject => self.end(decide(state), End::Refused, None),
                        Stop::Lost => self.end(state, End::Passed, None),
                    }
                }
            }
            states = next;
        }
        states
    }

    /// Takes the packet through every hook, for an observer.
    fn travel(&mut self, start: State<O::Trail>) {
        let probe = self.probe;
        if probe.origin == Origin::Node {
            self.past_ipvs(HookPoint::Output, IPVS_LOCAL_OUT, start, Self::depart);
            return;
        }
        for mut state in self.hook(HookPoint::Prerouting, start) {
            let local = self.walker.is_local(probe, state.destination);
            self.route(&mut state, local);
            if local {
                self.past_ipvs(HookPoint::Input, IPVS_LOCAL_IN, state, |run, state| run.leave(state, true));
            } else {
                for state in self.hook(HookPoint::Forward, state) {
                    self.leave(state, false);
                }
            }
        }
    }

    /// Through a hook in which IPVS has this priority, and on with `then` if IPVS does not take the packet.
    fn past_ipvs(
        &mut self,
        hook: HookPoint,
        ipvs: i32,
        state: State<O::Trail>,
        then: impl Fn(&mut Self, State<O::Trail>),
    ) {
        let before = Part { priorities: i32::MIN..=ipvs, with_nat: true };
        let after = Part { priorities: ipvs + 1..=i32::MAX, with_nat: true };
        let sent_to = state.destination.ip();
        for state in self.part(hook, state, &before) {
            if let Some(server) = self.server_of(&state) {
                self.schedule(&state, &server.destinations, server.persistent);
                continue;
            }
            for state in self.part_of((hook, sent_to), state, &after) {
                then(self, state);
            }
        }
    }

    fn server_of(&self, state: &State<O::Trail>) -> Option<&'a VirtualServer> {
        let server = self.walker.server(self.probe.protocol, state.destination)?;
        (!state.translated && self.walker.is_local(self.probe, state.destination)).then_some(server)
    }

    fn route(&self, state: &mut State<O::Trail>, local: bool) {
        let device = self.observer.device_to(state.destination.ip()).filter(|_| !local);
        O::note(&mut state.seen, || Note::Routed { local, device: device.map(Into::into) });
    }

    /// A packet that the node sent: out of a device, or over the loopback device to the node itself.
    fn depart(&mut self, mut state: State<O::Trail>) {
        let local = self.walker.is_local(self.probe, state.destination);
        self.route(&mut state, local);
        if !local {
            self.leave(state, false);
            return;
        }
        for state in self.hook(HookPoint::Postrouting, state) {
            for state in self.part(HookPoint::Prerouting, state, &WITHOUT_NAT) {
                for state in self.part(HookPoint::Input, state, &WITHOUT_NAT) {
                    self.leave(state, true);
                }
            }
        }
    }

    /// A packet that IPVS sends on. It passes OUTPUT, also if it came from another machine, and not FORWARD
    /// (`ip_vs_nat_send_or_cont` in `net/netfilter/ipvs/ip_vs_xmit.c`). A real server on the node gets it at once.
    fn resend(&mut self, mut state: State<O::Trail>) {
        let local = self.walker.is_local(self.probe, state.destination);
        self.route(&mut state, local);
        if local {
            self.leave(state, true);
            return;
        }
        for state in self.part(HookPoint::Output, state, &WITHOUT_NAT) {
            self.leave(state, false);
        }
    }
}

/// Some base chains of a hook.
#[derive(Debug)]
struct Part {
    priorities: RangeInclusive<i32>,
    /// Conntrack keeps the translation of a packet that passes a hook a second time.
    with_nat: bool,
}

const ALL: Part = Part { priorities: i32::MIN..=i32::MAX, with_nat: true };
const WITHOUT_NAT: Part = Part { priorities: i32::MIN..=i32::MAX, with_nat: false };

/// The priorities of IPVS's own hooks for requests: `ip_vs_ops4` and `ip_vs_ops6` in
/// `net/netfilter/ipvs/ip_vs_core.c`, `NF_IP_PRI_NAT_SRC - 1` and `NF_IP_PRI_NAT_DST + 2`.
const IPVS_LOCAL_IN: i32 = 99;
const IPVS_LOCAL_OUT: i32 = -98;

const fn end_of<T>(state: &State<T>) -> End {
    if state.translated { End::Endpoint(state.destination) } else { End::Passed }
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
