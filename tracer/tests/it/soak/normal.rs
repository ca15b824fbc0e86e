//! Healthy flows, and look-alikes of faults.

use viptrace::{
    class::Class,
    cluster::Via,
    net::Protocol,
    sighting::{Fact, Sighting, Status, TcpState},
};

use super::{
    faults::falls_silent,
    services::{AFTER_GRACE, BEFORE_GRACE_ENDS, Backend, Condition, Service},
    traffic::Traffic,
    wire::{Client, Draft, Planned, Truth, has_sockets},
};
use crate::flow_support::{CLIENT_NS, Script, addr};

const OK: &[Class] = &[Class::Ok];
/// Its endpoint leaves before the flow ends.
const OR_DRAINED: &[Class] = &[Class::Ok, Class::N9];
const SEEN: u32 = Status::SEEN_REPLY | Status::ASSURED;
/// How long conntrack keeps a closed connection (`nf_conntrack_tcp_timeout_time_wait`).
const TIME_WAIT: u64 = 120_000;

impl<'a> Traffic<'a> {
    /// A flow in which nothing is wrong.
    pub(super) fn normal(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let Some(backend) = service.ready(&mut self.random, ms) else { return vec![] };
        if service.condition == Condition::SomeLocal && backend.is_here() && self.chance(40) {
            return self.serve(service, Client::Outside, backend, ms, "a Local policy with a local endpoint");
        }
        let client = self.client(service);
        if service.condition == Condition::Ranges && client != Client::Outside {
            return self.serve(service, Client::Pod, backend, ms, "healthy");
        }
        if !has_sockets(service.protocol) {
            return self.datagrams(service, client, backend, ms);
        }
        let kind = self.below(100);
        let draft = self.to(service, client, Some(backend));
        let open = ms + 1;
        let life = self.between(5, 8_000);
        let one =
            |this: &mut Self, cause, classes, draft: Draft| vec![this.done(draft, Truth::of(cause, classes))];
        let seen = client != Client::Outside;
        match kind {
            0..50 => {
                let draft = self.healthy(draft, ms, life);
                one(self, "healthy", OK, draft)
            }
            50..54 if seen => {
                let draft = draft.with(|script| script.retransmit(ms, TcpState::SynSent));
                let draft = self.healthy(draft, ms + 20, life);
                one(self, "a SYN repeated once", OK, draft)
            }
            54..58 if seen => {
                let draft = draft.with(|script| {
                    let script = script.established(ms);
                    let script = [210, 640, 800]
                        .iter()
                        .fold(script, |script, wait| script.retransmit(ms + wait, TcpState::Established));
                    script.closed(ms + 1_000 + life)
                });
                one(self, "data repeated", OK, draft)
            }
            58..62 if seen => {
                let draft = draft.with(|script| {
                    let script = script.established(ms);
                    let script =
                        script.send_reset(ms + life, false, TcpState::Established, "TCP_ABORT_ON_CLOSE");
                    script.state(ms + life, false, TcpState::Established, TcpState::Close)
                });
                one(self, "the client aborts", &[Class::N4], draft)
            }
            62..65 if seen => {
                let draft = draft.with(|script| {
                    let script = script.established(ms);
                    let script =
                        script.send_reset(ms + life, false, TcpState::Established, "TCP_KEEPALIVE_TIMEOUT");
                    script.state(ms + life, false, TcpState::Established, TcpState::Close)
                });
                one(self, "keepalive gives up", &[Class::N5], draft)
            }
            65..68 if seen => {
                let draft = draft.with(|script| {
                    let script = script.established(ms);
                    let script =
                        script.send_reset(ms + 60, false, TcpState::Established, "TCP_ABORT_ON_LINGER");
                    let mut script = script.state(ms + 60, false, TcpState::Established, TcpState::Close);
                    wordless(&mut script.out);
                    script
                });
                one(self, "a lost race", &[Class::N17], draft)
            }
            68..72 => self.port_reuse(service, backend, draft, ms),
            72..75 => {
                let draft = draft.answered(open).with(|script| {
                    let script = script.established(ms);
                    let script = script.transit_reset(ms + life, false, SEEN);
                    let script = script.send_reset(ms + life, true, TcpState::Established, "NOT_SPECIFIED");
                    script.receive_reset(ms + life, TcpState::Established).state(
                        ms + life,
                        false,
                        TcpState::Established,
                        TcpState::Close,
                    )
                });
                one(self, "the server resets an answered connection", OK, draft)
            }
            75..77 if seen => {
                let wait = self.between(5, 250);
                let draft = draft.with(|script| script.confirm(ms).connect_failed(ms + wait));
                one(self, "the client gives up at once", &[Class::N4], draft)
            }
            77..79 if seen => {
                let draft = draft.with(|script| {
                    let script = script.established(ms).invalid_answer(ms + 30, "invalid rst ");
                    script.drop_invalid(ms + 30).closed(ms + 30 + life)
                });
                one(self, "an invalid packet is dropped", OK, draft)
            }
            79..81 if client == Client::Pod => {
                let draft = draft.with(|script| untranslated_in_pod(script, ms));
                let draft = self.healthy(draft, ms, life);
                one(self, "a Pod's own conntrack", OK, draft)
            }
            81..83 if client == Client::Pod => self.stray(draft, ms),
            83..86 if seen => {
                let reason = ["IP_RPFILTER", "NETFILTER_DROP", "NEIGH_FAILED"][self.below(3) as usize];
                let draft = draft.with(|script| {
                    let with_error = reason == "NEIGH_FAILED" && script.vip.is_ipv4();
                    let script =
                        if with_error { script.neighbour_failed(ms) } else { script.drop_syn(ms, reason) };
                    script.retransmit(ms + 1_000, TcpState::SynSent)
                });
                let draft = self.healthy(draft, ms + 1_001, life);
                let truth = Truth::of("the first SYN is dropped", OK);
                vec![self.done(draft, Truth { meanwhile: &[Class::C29, Class::C30, Class::C32], ..truth })]
            }
            86..89 => {
                let draft = draft.answered(open).with(|script| script.established(ms));
                one(self, "stays open", OR_DRAINED, draft)
            }
            89..91 if seen => {
                let draft =
                    draft.answered(open).with(|script| script.confirm_midstream(ms).closed(ms + life));
                one(self, "picked up by the same endpoint", OK, draft)
            }
            91..93 if seen => self.lost_close(draft, ms),
            93..96 => self.probe(ms),
            96..98 => self.other_nodes_port(service, ms),
            98..100 => self.no_service(ms),
            _ => vec![],
        }
    }

    /// Connect, exchange, close; the entry goes later.
    fn healthy(&mut self, draft: Draft, ms: u64, life: u64) -> Draft {
        let answer = ms + self.below(40);
        draft.answered(answer).with(|script| {
            let script = script.established(ms).closed(ms + 3 + life);
            script.delete(ms + 3 + life + TIME_WAIT, SEEN)
        })
    }

    pub(super) fn serve(
        &mut self,
        service: &'a Service,
        client: Client,
        backend: &'a Backend,
        ms: u64,
        cause: &'static str,
    ) -> Vec<Planned> {
        let draft = self.to(service, client, Some(backend));
        let life = self.between(5, 6_000);
        let draft = self.answered_flow(service.protocol, draft, ms, life);
        vec![self.done(draft, Truth::of(cause, OK))]
    }

    /// A flow of any protocol that is answered.
    pub(super) fn answered_flow(&mut self, protocol: Protocol, draft: Draft, ms: u64, life: u64) -> Draft {
        if has_sockets(protocol) {
            return self.healthy(draft, ms, life);
        }
        let (answer, gone) = (ms + self.below(300), ms + self.between(30_000, 120_000));
        draft.answered(answer).with(|script| script.confirm(ms).delete(gone, SEEN))
    }

    fn datagrams(
        &mut self,
        service: &'a Service,
        client: Client,
        backend: &'a Backend,
        ms: u64,
    ) -> Vec<Planned> {
        let draft = self.to(service, client, Some(backend));
        if service.condition == Condition::OneWay {
            let draft = if self.chance(50) {
                draft.with(|script| script.confirm(ms).delete(ms + 30_000, 0))
            } else {
                draft.with(|script| script.confirm(ms))
            };
            return vec![self.done(draft, Truth::of("one-way datagrams", &[Class::N20]))];
        }
        let protocol = service.protocol;
        if protocol == Protocol::UDP && self.chance(6) {
            let draft = draft.answered(ms + 3).with(|script| {
                let ct = script.ct;
                let script = script.confirm(ms).with_ct(ct + 160).confirm(ms).clash(ms);
                script.with_ct(ct).delete(ms + 40_000, SEEN)
            });
            return vec![self.done(draft, Truth::of("a clash that is resolved", &[Class::N10]))];
        }
        let draft = self.answered_flow(protocol, draft, ms, 0);
        vec![self.done(draft, Truth::of("healthy datagrams", OK))]
    }

    /// The client uses the port of an ended connection.
    fn port_reuse(
        &mut self,
        service: &'a Service,
        backend: &'a Backend,
        draft: Draft,
        ms: u64,
    ) -> Vec<Planned> {
        let again = Draft { number: draft.number + (1 << 20), ..draft.clone() };
        let first = healthy_until_reuse(draft, ms);
        let other = service.ready(&mut self.random, ms).unwrap_or(backend);
        let mut again = again.with(|script| {
            let ct = script.ct + 160;
            script.with_ct(ct).with_endpoint(&other.addr.to_string())
        });
        again.here = other.is_here();
        let pause = self.between(1_200, 2_500);
        let second = self.healthy(again, ms + 60 + pause, 500);
        let truth = Truth::of("a port used again", OK);
        vec![self.done(first, truth), self.done(second, truth)]
    }

    /// A late segment of an ended connection finds no entry.
    fn stray(&mut self, draft: Draft, ms: u64) -> Vec<Planned> {
        let late = Draft { number: draft.number + (1 << 20), ..draft.clone() };
        let first = healthy_until_reuse(draft, ms);
        let late = late.with(|script| {
            let ct = script.ct + 160;
            let script = script.with_ct(ct).confirm_midstream(ms + 8_000);
            script.endpoint_has_no_connection(ms + 8_001).transit_reset(ms + 8_002, false, 0)
        });
        vec![
            self.done(first, Truth::of("ended before a late segment", OK)),
            self.done(late, Truth::of("a late segment", &[Class::N16])),
        ]
    }

    /// The entry of an idle connection is gone when it closes.
    fn lost_close(&mut self, draft: Draft, ms: u64) -> Vec<Planned> {
        let draft = draft.answered(ms + 1).with(|script| {
            let script = script.established(ms).delete(ms + 3_000, SEEN);
            [200, 600, 1_400, 3_000]
                .iter()
                .fold(script, |script, wait| script.retransmit(ms + 4_000 + wait, TcpState::FinWait1))
        });
        vec![self.done(draft, Truth::of("only the close is lost", &[Class::N5]))]
    }

    /// The kubelet connects to a Pod on this node.
    fn probe(&mut self, ms: u64) -> Vec<Planned> {
        let services = &self.soaked.services;
        let service = &services[self.below(services.len() as u64) as usize];
        let Some(backend) = self.ready_here(service, ms).filter(|it| it.addr.is_ipv4()) else {
            return vec![];
        };
        let mut from = self.address_of(Client::Host, false);
        from.set_ip("10.244.1.1".parse().unwrap());
        let mut draft = self.at(Protocol::TCP, Client::Host, from, backend.addr, None);
        draft.here = true;
        let draft = if self.chance(70) {
            self.healthy(draft, ms, 3)
        } else {
            draft.with(|script| script.refused(ms))
        };
        vec![self.done(draft, Truth::of("a probe", &[Class::N1]))]
    }

    /// Another node's kube-proxy translates it.
    fn other_nodes_port(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let Some((Via::NodePort, outer)) = service.outer else { return vec![] };
        let asked = addr(&format!("192.168.1.3:{}", outer.port()));
        let from = self.address_of(Client::Pod, false);
        let draft = self.at(service.protocol, Client::Pod, from, asked, None);
        let draft = self.healthy(draft, ms, 100);
        vec![self.done(draft, Truth { or_none: true, ..Truth::of("another node's port", OK) })]
    }

    /// Between addresses that no Service has.
    fn no_service(&mut self, ms: u64) -> Vec<Planned> {
        let from = self.address_of(Client::Pod, false);
        let asked = ["192.0.2.80:443", "10.244.2.250:9000", "192.168.1.2:22"][self.below(3) as usize];
        let draft = self.at(Protocol::TCP, Client::Pod, from, addr(asked), None);
        let draft = match self.below(3) {
            0 => self.healthy(draft, ms, 100),
            1 => draft.with(|script| script.refused(ms)),
            _ => draft.with(|script| script.silent(ms)),
        };
        vec![self.done(draft, Truth { or_none: true, ..Truth::of("no Service", &[]) })]
    }

    /// A Pod that is replaced: its successor is used before the watch reports it, it serves on while rules change, and
    /// its connections end with it.
    pub(super) fn rolling(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let backend = &service.backends[self.below(5) as usize];
        let client = self.client(service);
        if let Some(ready) = backend.next_ready(ms).filter(|ready| ready - ms < BEFORE_GRACE_ENDS) {
            if ready - ms < 100 {
                return vec![];
            }
            return self.serve(service, client, backend, ms, "an endpoint that the watch has not reported");
        }
        let state = backend.since(ms);
        let terminates = state > 0 && !backend.is_ready(ms);
        if terminates && ms > state + 50 && ms - state < BEFORE_GRACE_ENDS {
            let truth = Truth::of("an endpoint that just left still serves", OR_DRAINED);
            let draft = self.to(service, client, Some(backend));
            let draft = self.answered_flow(service.protocol, draft, ms, 40);
            return vec![self.done(draft, truth)];
        }
        let leaves = backend.next_change(ms).filter(|leaves| leaves - ms < 20_000 && backend.is_ready(ms));
        let Some(leaves) = leaves.filter(|_| has_sockets(service.protocol) && client == Client::Pod) else {
            return vec![];
        };
        self.drained(service, backend, ms, leaves)
    }

    /// A connection that is older than its endpoint's removal.
    fn drained(&mut self, service: &'a Service, backend: &'a Backend, ms: u64, leaves: u64) -> Vec<Planned> {
        let draft = self.to(service, Client::Pod, Some(backend));
        let removed = backend.next_change(leaves).unwrap_or(leaves);
        let (draft, truth) = match self.below(3) {
            0 => {
                let draft = draft.with(|script| script.established(ms).closed(removed + 5_000));
                (draft, Truth::of("drained after the removal", &[Class::N9]))
            }
            1 => {
                let draft = draft.with(|script| falls_silent(script.established(ms), removed + 8_000));
                (draft, Truth::of("broke soon after the removal", &[Class::N9]))
            }
            _ => {
                let at = removed + 30_000 + AFTER_GRACE;
                let draft = draft.with(|script| falls_silent(script.established(ms), at));
                (draft, Truth::of("broke long after the removal", &[Class::C7]))
            }
        };
        vec![self.done(draft.answered(ms + 1), truth)]
    }

    /// The node serves the address itself, without conntrack.
    pub(super) fn on_node(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let mut draft = self.to(service, Client::Pod, None);
        draft = draft.with(|script| script.retransmit(ms, TcpState::SynSent)).with(|script| {
            script.state(ms + 1, false, TcpState::SynSent, TcpState::Established).state(
                ms + 20,
                false,
                TcpState::FinWait2,
                TcpState::Close,
            )
        });
        vec![self.done(draft, Truth::of("served on the node itself", &[Class::N11]))]
    }
}

/// No byte was exchanged.
fn wordless(sightings: &mut [Sighting]) {
    for sighting in sightings {
        if let Fact::Socket(socket) = &mut sighting.fact {
            (socket.bytes_acked, socket.bytes_received) = (1, 0);
        }
    }
}

/// The Pod's own conntrack has an untranslated entry first.
fn untranslated_in_pod(script: Script, ms: u64) -> Script {
    let (endpoint, masquerade) = (script.endpoint, script.masquerade);
    let mut own = Script { endpoint: None, masquerade: None, ..script };
    let ct = own.ct;
    own = own.with_ct(ct + 80).confirm(ms).with_ct(ct);
    for sighting in &mut own.out {
        sighting.netns = CLIENT_NS;
    }
    Script { endpoint, masquerade, ..own }
}

/// A connection whose entry goes before its port is used again.
fn healthy_until_reuse(draft: Draft, ms: u64) -> Draft {
    draft.answered(ms + 1).with(|script| script.established(ms).closed(ms + 50).delete(ms + 1_000, SEEN))
}
