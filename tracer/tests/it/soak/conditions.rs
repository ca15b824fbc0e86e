//! Broken flows of a Service in a faulty condition, and of a faulty node.

use viptrace::{class::Class, cluster::Via, sighting::TcpState};

use super::{
    cluster::Phase,
    faults::{dropped, left_by_ipvs, refused, refused_by_node, silent},
    services::{AFTER_GRACE, BEFORE_GRACE_ENDS, Condition, Fate, SECOND_IP, Service},
    traffic::Traffic,
    wire::{Client, Draft, Planned, Truth, has_sockets},
};
use crate::{cluster_support::TERMINATING, flow_support::addr};

impl<'a> Traffic<'a> {
    /// The flows that the Service's condition breaks, or at least affects; none if it does not at `ms`.
    pub(super) fn of_condition(&mut self, service: &'a Service, ms: u64, phase: Phase) -> Vec<Planned> {
        let tcp = has_sockets(service.protocol);
        let one = |planned: Planned| vec![planned];
        match service.condition {
            Condition::Rolling if self.chance(60) => self.rolling(service, ms),
            Condition::OnNode if !self.is_ipvs() => self.on_node(service, ms),
            Condition::Stale(_) | Condition::Pinned | Condition::Leftover if self.chance(60) => {
                self.stale(service, ms)
            }
            Condition::Empty | Condition::Zero
                if service.is_amiss(ms) || service.condition == Condition::Zero && ms >= service.from =>
            {
                let classes: &[Class] =
                    if service.condition == Condition::Zero { &[Class::N19] } else { &[Class::C20] };
                one(self.refused_by_rule(service, ms, Truth::of("a Service without endpoints", classes)))
            }
            Condition::Empty if service.is_late(ms) => one(self.refused_by_rule(
                service,
                ms,
                Truth::of("rules that refuse a moment longer", &[Class::C5]),
            )),
            Condition::Draining if service.is_amiss(ms) => self.draining(service, ms),
            Condition::Rejecting => {
                let classes: &[Class] = if self.is_ipvs() { &[Class::C12] } else { &[Class::C4] };
                one(self.refused_by_rule(
                    service,
                    ms,
                    Truth::of("rules that refuse despite endpoints", classes),
                ))
            }
            Condition::Missing => {
                let classes: &[Class] = if phase == Phase::Down { &[Class::C1] } else { &[Class::C5] };
                one(self.untranslated(service, ms, Truth::of("no rule for the Service", classes)))
            }
            Condition::OtherProxy => {
                one(self.untranslated(service, ms, Truth::of("a Service of another proxy", &[Class::C5d])))
            }
            Condition::Deleted if ms > service.from + AFTER_GRACE => self.deleted(service, ms),
            Condition::NoneLocal => self.none_local(service, ms),
            Condition::Ranges if self.chance(50) => one(self.not_admitted(service, ms)),
            Condition::OneAddress if self.chance(40) => one(self.other_address(service, ms)),
            Condition::OneWay if !tcp => self.normal(service, ms),
            _ => vec![],
        }
    }

    /// A rule refuses the packet before an endpoint is chosen.
    fn refused_by_rule(&mut self, service: &'a Service, ms: u64, truth: Truth) -> Planned {
        let client = self.client(service);
        let draft = self.to(service, client, None);
        let ipvs = self.is_ipvs();
        let draft = draft.with(|script| {
            let script = if ipvs { left_by_ipvs(script, ms) } else { script.unreach(ms, 3) };
            if has_sockets(script.protocol) { script.connect_failed(ms + 1) } else { script }
        });
        self.done(draft, truth)
    }

    /// An endpoint that left the Service and that the rules keep.
    fn stale(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let victim = service.victim();
        let gone_for = ms.saturating_sub(service.from);
        let fate = match service.condition {
            Condition::Stale(fate) => fate,
            _ => Fate::Gone,
        };
        if ms < service.from || (BEFORE_GRACE_ENDS..AFTER_GRACE).contains(&gone_for) || gone_for < 100 {
            return vec![];
        }
        let client = self.client(service);
        let tcp = has_sockets(service.protocol);
        if gone_for < BEFORE_GRACE_ENDS {
            // The first SYN is not observed, only its repeat a second later.
            let is_seen = client != Client::Outside;
            if !tcp || !is_seen || fate != Fate::Gone || gone_for + 1_000 > BEFORE_GRACE_ENDS {
                return vec![];
            }
            let draft = self.to(service, client, Some(victim));
            let draft = self.unreachable(draft, ms);
            return vec![self.done(draft, Truth::of("rules that are a moment late", &[Class::C5]))];
        }
        let classes: &'static [Class] = match service.condition {
            Condition::Leftover => &[Class::C10],
            Condition::Pinned if self.is_ipvs() => &[Class::C24],
            _ => &[Class::C6],
        };
        let mut draft = self.to(service, client, Some(victim));
        draft.by_rules = service.condition == Condition::Leftover;
        let draft = match fate {
            Fate::Serves => self.answered_flow(service.protocol, draft, ms, 300),
            Fate::Gone if !tcp => draft.with(|script| script.confirm(ms)),
            Fate::Gone if client != Client::Outside && !self.is_ipvs() && self.chance(30) => {
                self.second_choice(service, draft, ms)
            }
            Fate::Gone => self.unreachable(draft, ms),
            Fate::Other if self.chance(50) => self.answered_flow(service.protocol, draft, ms, 300),
            Fate::Other => draft.with(|script| refused(script, ms)),
        };
        vec![self.done(draft, Truth::of("a stale endpoint", classes))]
    }

    /// The first SYNs go to the stale endpoint, and a repeated one to a good one.
    fn second_choice(&mut self, service: &'a Service, draft: Draft, ms: u64) -> Draft {
        let Some(other) = service.ready(&mut self.random, ms) else { return self.unreachable(draft, ms) };
        let here = other.is_here();
        let mut draft = draft.with(|script| {
            let (ct, stale) = (script.ct, script.endpoint.unwrap().to_string());
            let script = script.retransmit(ms + 1_000, TcpState::SynSent);
            let script = script.retransmit(ms + 2_000, TcpState::SynSent);
            let script =
                script.with_ct(ct + 160).with_endpoint(&other.addr.to_string()).established(ms + 2_001);
            let closed = script.closed(ms + 2_400);
            let late = closed.with_ct(ct).with_endpoint(&stale).drop_syn(ms + 3_100, "NEIGH_FAILED");
            late.with_endpoint(&other.addr.to_string())
        });
        draft.here = here;
        draft
    }

    fn draining(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let backend = &service.backends[self.below(5) as usize];
        if !backend.is_calm(ms, Some(TERMINATING)) {
            return vec![];
        }
        let client = self.client(service);
        let draft = self.to(service, client, Some(backend));
        if self.chance(30) {
            let draft = draft.with(|script| refused(script, ms));
            return vec![self.done(draft, Truth::of("a terminating endpoint refuses", &[Class::C5]))];
        }
        let draft = self.answered_flow(service.protocol, draft, ms, 400);
        vec![self.done(draft, Truth::of("a terminating endpoint serves", &[Class::N8]))]
    }

    fn deleted(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        if self.chance(50) {
            return vec![self.untranslated(service, ms, Truth::of("a deleted Service", &[Class::C5c]))];
        }
        let draft = self.to(service, Client::Pod, Some(service.victim()));
        let draft = draft.with(|script| refused(script, ms));
        vec![self.done(draft, Truth::of("rules of a deleted Service", &[Class::C6]))]
    }

    fn none_local(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let outer = service.outer.filter(|_| self.chance(60));
        let client = if outer.is_some() { Client::Outside } else { Client::Pod };
        let cause = "a Local policy without local endpoint";
        let truth = Truth::of(cause, if outer.is_some() { &[Class::C21] } else { &[Class::C22] });
        let ipvs = self.is_ipvs();
        let to = service.victim();
        let mut draft = self.to(service, client, (ipvs && outer.is_some()).then_some(to));
        draft.script.masquerade = None;
        draft.script.vip = outer.map_or(service.vip, |(_, outer)| outer);
        let draft = draft.with(|script| match (ipvs, outer.is_some()) {
            (true, true) => silent(script, ms),
            (true, false) => left_by_ipvs(script, ms).connect_failed(ms + 1),
            (false, _) => dropped(script, ms),
        });
        vec![self.done(draft, truth)]
    }

    fn not_admitted(&mut self, service: &'a Service, ms: u64) -> Planned {
        let draft = self.to(service, Client::Outside, None);
        let draft = draft.with(|script| dropped(script, ms));
        self.done(draft, Truth::of("a source that is not admitted", &[Class::C23]))
    }

    /// The node port at an address that `nodePortAddresses` leaves out.
    fn other_address(&mut self, service: &'a Service, ms: u64) -> Planned {
        let Some((Via::NodePort, outer)) = service.outer else { panic!("it has a node port") };
        let from = self.address_of(Client::Outside, false);
        let asked = addr(&format!("{SECOND_IP}:{}", outer.port()));
        let draft = self.at(service.protocol, Client::Outside, from, asked, None);
        let draft = draft.with(|script| refused_by_node(script, ms));
        self.done(draft, Truth::of("a node port at another address", &[Class::C26]))
    }

    /// Another program removed the rules.
    pub(super) fn flushed(&mut self, service: &'a Service, ms: u64) -> Option<Planned> {
        let usable = matches!(service.condition, Condition::Healthy | Condition::Missing);
        if !usable || !has_sockets(service.protocol) {
            return None;
        }
        let truth = Truth::of("the rules were removed", &[Class::C5e]);
        if !self.is_ipvs() {
            return Some(self.untranslated(service, ms, truth));
        }
        let mut draft = self.to(service, Client::Pod, None);
        draft.script.vip = service.vip;
        let draft = draft.with(|script| refused_by_node(script, ms));
        Some(self.done(draft, truth))
    }

    pub(super) fn table_full(&mut self, service: &'a Service, ms: u64) -> Option<Planned> {
        if !matches!(service.condition, Condition::Healthy | Condition::Rolling) {
            return None;
        }
        let client = self.client(service);
        let draft = self.to(service, client, None);
        let draft = draft.with(|script| {
            if !has_sockets(script.protocol) {
                return script.drop_table_full(ms);
            }
            [0, 1_000, 3_000].iter().fold(script, |script, wait| {
                let script = if *wait > 0 { script.retransmit(ms + wait, TcpState::SynSent) } else { script };
                script.drop_table_full(ms + wait)
            })
        });
        Some(self.done(draft, Truth::of("conntrack's table is full", &[Class::C16])))
    }
}
