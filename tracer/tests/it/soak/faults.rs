//! Broken flows that break by themselves, and the scripts of failures.

use viptrace::{
    class::Class,
    net::{Netns, Protocol},
    sighting::{ConntrackFact, EntryNote, Fact, Hook, PacketFact, Sighting, Status, TcpState},
};

use super::{
    cluster::Phase,
    services::{Backend, CALM, Condition, Service},
    traffic::{Traffic, masquerade},
    wire::{Client, Draft, Planned, Truth, has_sockets},
};
use crate::flow_support::{NODE, Script, at};

/// Why conntrack calls a segment invalid.
const WHY: &str = "SEQ is over upper bound %u (over the window of the receiver)";
const ESTABLISHED: TcpState = TcpState::Established;

impl<'a> Traffic<'a> {
    /// A flow that breaks although nothing is wrong with the Service.
    pub(super) fn broken(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let Some(backend) = service.ready(&mut self.random, ms) else { return vec![] };
        if matches!(service.condition, Condition::Ranges | Condition::OneWay) {
            return vec![];
        }
        let client = self.client(service);
        let draft = self.to(service, client, Some(backend));
        let planned = match (has_sockets(service.protocol), self.below(14)) {
            (true, 0..3) => Some(self.backend_refuses(draft, ms)),
            (true, 3..5) => Some(self.backend_is_silent(draft, ms)),
            (true, 5..7) => Some(self.policy(draft, ms)),
            (true, 7) => self.hairpin(service, backend, ms),
            (true, 8) => self.answered_directly(draft, ms),
            (true, 9) => self.invalid(draft, ms),
            (true, 10) => self.entry_lost(service, draft, ms),
            (true, 11) => self.kernel_drops(draft, ms),
            (true, 12) => Some(self.not_inserted(draft, ms)),
            (true, _) => self.older_than_rule(service, ms),
            (false, 0..5) => self.datagram_refused(service, draft, ms),
            (false, 5..9) => self.datagram_clash(service, draft, ms),
            (false, _) => self.datagram_too_big(service, draft, ms),
        };
        planned.into_iter().collect()
    }

    fn truth(&mut self, draft: Draft, cause: &'static str, classes: &'static [Class]) -> Planned {
        self.done(draft, Truth::of(cause, classes))
    }

    fn backend_refuses(&mut self, draft: Draft, ms: u64) -> Planned {
        let draft = draft.with(|script| refused(script, ms));
        self.truth(draft, "the endpoint refuses", &[Class::C28])
    }

    fn backend_is_silent(&mut self, draft: Draft, ms: u64) -> Planned {
        let draft = if draft.here && self.chance(60) {
            self.unreachable(draft, ms)
        } else {
            draft.with(|script| silent(script, ms))
        };
        self.truth(draft, "the endpoint is silent", &[Class::C29])
    }

    /// The endpoint's link address is not resolved. IPVS confirms the entry before.
    pub(super) fn unreachable(&self, draft: Draft, ms: u64) -> Draft {
        let confirms = self.is_ipvs();
        draft.with(|script| {
            let script = if confirms { script.confirm(ms) } else { script };
            script.dead_pod(ms)
        })
    }

    fn policy(&mut self, draft: Draft, ms: u64) -> Planned {
        let reason = ["NETFILTER_DROP", "TC_EGRESS", "BPF_CGROUP_EGRESS"][self.below(3) as usize];
        let refuses = self.chance(30);
        let draft = draft.with(|script| {
            if refuses {
                return script.unreach(ms, 13).connect_failed(ms + 1);
            }
            [0, 1_000, 3_000].iter().fold(script, |script, wait| {
                let script = if *wait > 0 { script.retransmit(ms + wait, TcpState::SynSent) } else { script };
                script.drop_syn(ms + wait, reason)
            })
        });
        self.truth(draft, "a policy stops it", &[Class::C30])
    }

    fn hairpin(&mut self, service: &'a Service, backend: &'a Backend, ms: u64) -> Option<Planned> {
        if !backend.is_here() {
            return None;
        }
        let mut from = self.address_of(Client::Pod, service.vip.is_ipv6());
        from.set_ip(backend.addr.ip());
        let draft = self.at(service.protocol, Client::Pod, from, service.vip, Some(backend));
        let draft = draft.with(|script| silent(script, ms));
        Some(self.truth(draft, "a Pod reaches itself", &[Class::C31]))
    }

    fn answered_directly(&mut self, draft: Draft, ms: u64) -> Option<Planned> {
        if draft.client != Client::Pod || draft.script.masquerade.is_some() {
            return None;
        }
        let endpoint = draft.script.endpoint?;
        let draft = draft.with(|script| {
            script
                .confirm(ms)
                .client_has_no_socket(ms + 1, endpoint)
                .retransmit(ms + 1_000, TcpState::SynSent)
                .client_has_no_socket(ms + 1_001, endpoint)
                .retransmit(ms + 2_000, TcpState::SynSent)
                .connect_failed(ms + 4_000)
        });
        Some(self.truth(draft, "the answer bypasses NAT", &[Class::C31]))
    }

    fn invalid(&mut self, draft: Draft, ms: u64) -> Option<Planned> {
        if draft.client == Client::Outside || draft.script.masquerade.is_some() {
            return None;
        }
        let endpoint = draft.script.endpoint?;
        if self.chance(50) {
            let draft = draft.with(|script| {
                script
                    .established(ms)
                    .invalid_answer(ms + 2_000, WHY)
                    .client_has_no_socket(ms + 2_001, endpoint)
                    .endpoint_has_no_connection(ms + 3_000)
                    .receive_reset(ms + 3_001, ESTABLISHED)
                    .state(ms + 3_001, false, ESTABLISHED, TcpState::Close)
            });
            return Some(self.truth(draft, "an answer out of window", &[Class::C18]));
        }
        let draft = draft.with(|script| {
            let script = script.established(ms).invalid_answer(ms + 2_000, WHY).drop_invalid(ms + 2_000);
            falls_silent(script, ms + 2_200)
        });
        Some(self.truth(draft, "dropped as invalid", &[Class::C18b]))
    }

    /// The entry is deleted, and the connection goes on.
    fn entry_lost(&mut self, service: &'a Service, draft: Draft, ms: u64) -> Option<Planned> {
        let endpoint = draft.script.endpoint?;
        if draft.client == Client::Outside {
            return None;
        }
        if self.is_ipvs() {
            let draft = draft.with(|script| {
                let script = script.established(ms).delete(ms + 3_000, Status::SEEN_REPLY | Status::ASSURED);
                reset_by_the_node(script, ms + 6_000)
            });
            return Some(self.truth(draft, "IPVS lost its entry", &[Class::C15]));
        }
        let other = service.ready(&mut self.random, ms).filter(|other| other.addr != endpoint)?;
        let draft = draft.with(|script| {
            let ct = script.ct;
            script
                .established(ms)
                .delete_by_hand(ms + 2_000)
                .with_ct(ct + 160)
                .with_endpoint(&other.addr.to_string())
                .confirm_midstream(ms + 3_000)
                .endpoint_has_no_connection(ms + 3_001)
                .receive_reset(ms + 3_002, ESTABLISHED)
                .state(ms + 3_002, false, ESTABLISHED, TcpState::Close)
        });
        Some(self.truth(draft, "the entry was flushed", &[Class::C19]))
    }

    fn kernel_drops(&mut self, mut draft: Draft, ms: u64) -> Option<Planned> {
        match self.below(4) {
            kind @ 0..2 => {
                let reason = ["IP_RPFILTER", "IP_INADDRERRORS"][kind as usize];
                let draft = draft.with(|script| {
                    [0, 1_000, 3_000].iter().fold(script, |script, wait| {
                        let script =
                            if *wait > 0 { script.retransmit(ms + wait, TcpState::SynSent) } else { script };
                        script.drop_syn(ms + wait, reason)
                    })
                });
                Some(self.truth(draft, "the node's kernel drops it", &[Class::C32]))
            }
            2 if draft.client != Client::Outside => {
                let draft = draft.with(|script| {
                    falls_silent(script.established(ms).drop_later(ms + 1_000, "PKT_TOO_BIG"), ms + 1_200)
                });
                Some(self.truth(draft, "packets too big", &[Class::C33]))
            }
            _ if draft.client != Client::Outside => {
                masquerade(&mut draft);
                let draft = draft.with(|script| {
                    let script = script.established(ms).kill_answered(ms + 2_000);
                    falls_silent(script.drop_later(ms + 2_000, "NETFILTER_DROP"), ms + 2_200)
                });
                Some(self.truth(draft, "the route changed", &[Class::C34]))
            }
            _ => None,
        }
    }

    fn not_inserted(&mut self, draft: Draft, ms: u64) -> Planned {
        let raced = self.chance(50);
        let draft = draft.with(|script| {
            let script = script.confirm(ms);
            let script = if raced { script.clash(ms) } else { script };
            let script = script.drop_syn(ms, "NETFILTER_DROP").retransmit(ms + 1_000, TcpState::SynSent);
            script.retransmit(ms + 3_000, TcpState::SynSent)
        });
        self.truth(draft, "the entry was not inserted", &[Class::C17])
    }

    /// NAT decided before the rule was written.
    fn older_than_rule(&mut self, service: &'a Service, ms: u64) -> Option<Planned> {
        let has_rules = matches!(service.condition, Condition::Healthy | Condition::Rolling);
        let calm = [ms, ms + CALM].map(|ms| self.soaked.phase(ms)) == [Phase::Normal; 2];
        if !has_rules || !calm {
            return None;
        }
        Some(self.untranslated(service, ms, Truth::of("older than the rule", &[Class::C5b])))
    }

    fn datagram_refused(&mut self, service: &Service, draft: Draft, ms: u64) -> Option<Planned> {
        let endpoint = draft.script.endpoint?;
        if service.protocol != Protocol::UDP {
            let draft = draft.with(|script| script.confirm(ms).delete(ms + 1_500, Status::SEEN_REPLY));
            return Some(self.truth(draft, "an association is refused", &[Class::C28]));
        }
        let here = draft.here;
        let draft = draft.with(|script| {
            let script = script.confirm(ms);
            if here {
                script.no_socket(ms + 1)
            } else {
                script.icmp_error(
                    ms + 2,
                    &std::net::SocketAddr::new(endpoint.ip(), 0).to_string(),
                    if endpoint.is_ipv4() { 3 } else { 4 },
                )
            }
        });
        Some(self.truth(draft, "a datagram is refused", &[Class::C28]))
    }

    fn datagram_clash(&mut self, service: &Service, draft: Draft, ms: u64) -> Option<Planned> {
        if service.protocol != Protocol::UDP {
            return None;
        }
        let draft = draft.with(|script| script.confirm(ms).clash(ms).drop_syn(ms, "NETFILTER_DROP"));
        Some(self.truth(draft, "a datagram lost its race", &[Class::C17a]))
    }

    fn datagram_too_big(&mut self, service: &Service, draft: Draft, ms: u64) -> Option<Planned> {
        if service.protocol != Protocol::UDP {
            return None;
        }
        let draft = draft.with(|script| script.confirm(ms).drop_syn(ms + 1, "PKT_TOO_BIG"));
        Some(self.truth(draft, "a datagram is too big", &[Class::C33]))
    }

    pub(super) fn untranslated(&mut self, service: &'a Service, ms: u64, truth: Truth) -> Planned {
        let mut draft = self.to(service, Client::Pod, None);
        // Outer addresses are the node's own or another host's: the cluster IP is no host's.
        draft.script.vip = service.vip;
        let draft =
            draft.with(
                |script| {
                    if has_sockets(script.protocol) { silent(script, ms) } else { script.confirm(ms) }
                },
            );
        self.done(draft, truth)
    }
}

/// The endpoint's stack has no socket; its RST passes this node.
pub(super) fn refused(script: Script, ms: u64) -> Script {
    script
        .confirm(ms)
        .no_socket(ms + 1)
        .transit_reset(ms + 2, false, 0)
        .kill(ms + 2)
        .receive_reset(ms + 3, TcpState::SynSent)
        .connect_failed(ms + 3)
}

pub(super) fn silent(script: Script, ms: u64) -> Script {
    script
        .confirm(ms)
        .retransmit(ms + 1_000, TcpState::SynSent)
        .retransmit(ms + 3_000, TcpState::SynSent)
        .retransmit(ms + 7_000, TcpState::SynSent)
        .connect_failed(ms + 10_000)
}

/// An end receives nothing more, and gives up.
pub(super) fn falls_silent(script: Script, ms: u64) -> Script {
    let silent = [0, 400, 1_200, 2_800, 6_000]
        .iter()
        .fold(script, |script, wait| script.retransmit(ms + wait, ESTABLISHED));
    silent.state(ms + 12_400, false, ESTABLISHED, TcpState::Close)
}

/// A rule drops each SYN before an endpoint is chosen.
pub(super) fn dropped(script: Script, ms: u64) -> Script {
    [0, 1_000, 3_000].iter().fold(script, |script, wait| {
        let script = if *wait > 0 { script.retransmit(ms + wait, TcpState::SynSent) } else { script };
        script.drop_syn(ms + wait, "NETFILTER_DROP")
    })
}

fn packet(script: &Script, flags: u8, status: u32) -> PacketFact {
    PacketFact {
        tuple: Some(script.orig()),
        tcp_flags: if has_sockets(script.protocol) { flags } else { 0 },
        ct: Some(script.entry(status)),
        original_direction: Some(true),
        reason: None,
        icmp_code: None,
        nf_hook: None,
        site: None,
        table_full: false,
    }
}

fn push(mut script: Script, ms: u64, hook: Hook, netns: Netns, fact: Fact) -> Script {
    script.out.push(Sighting { time: at(ms), cpu: 0, hook, netns, fact });
    script
}

const SYN: u8 = 2;
const PSH_ACK: u8 = 24;

/// `ip_vs_leave` answers with ICMP, and the packet is dropped.
pub(super) fn left_by_ipvs(script: Script, ms: u64) -> Script {
    let left = packet(&script, SYN, 0);
    let dropped = PacketFact { reason: Some("NETFILTER_DROP".into()), ..left.clone() };
    let script = push(script, ms, Hook::IpVsLeave, NODE, Fact::Packet(left));
    push(script, ms, Hook::KfreeSkb, NODE, Fact::Packet(dropped))
}

/// The address is the node's own, and nothing listens there.
pub(super) fn refused_by_node(script: Script, ms: u64) -> Script {
    let script = script.confirm(ms);
    let mut reset = packet(&script, SYN, Status::CONFIRMED);
    reset.reason = Some("NO_SOCKET".into());
    let script = push(script, ms, Hook::TcpSendReset, NODE, Fact::Packet(reset.clone()));
    let script = push(script, ms, Hook::KfreeSkb, NODE, Fact::Packet(reset));
    script.kill(ms + 1).receive_reset(ms + 2, TcpState::SynSent).connect_failed(ms + 2)
}

/// A packet of an established connection without IPVS entry reaches the node's own stack.
fn reset_by_the_node(script: Script, ms: u64) -> Script {
    let endpoint = script.endpoint;
    let ct = script.ct;
    let script = Script { endpoint: None, masquerade: None, ..script }.with_ct(ct + 160);
    let note = EntryNote { tcp_state: Some(3), ..EntryNote::default() };
    let entry = ConntrackFact { ct: script.entry(0), task: None, note };
    let script = push(script, ms, Hook::Confirm, NODE, Fact::Conntrack(entry));
    let mut reset = packet(&script, PSH_ACK, Status::CONFIRMED);
    reset.reason = Some("NO_SOCKET".into());
    let script = push(script, ms, Hook::TcpSendReset, NODE, Fact::Packet(reset.clone()));
    let script = push(script, ms, Hook::KfreeSkb, NODE, Fact::Packet(reset));
    let script = script.receive_reset(ms + 1, ESTABLISHED).state(ms + 1, false, ESTABLISHED, TcpState::Close);
    Script { endpoint, ..script }
}
