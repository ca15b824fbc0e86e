//! Folds the facts of one sighting into its flow.
//!
//! Owns the mapping of facts to fields and the bounds on what is kept. `table.rs` finds the flow of a sighting.

use std::{net::SocketAddr, time::Duration};

use super::{
    Closed, Decision, Dropped, End, Ended, Flow, IcmpError, IcmpMeaning, Invalid, Occurrences, Refusal,
    RefusalKind, ResetEvent, SocketEnd, StackReset, Stage, Stuck, TransitReset,
    evidence::{MAX_DECISIONS, MAX_DROPS, MAX_ICMP_ERRORS, MAX_INVALID, MAX_STACK_RESETS, follows_fin},
};
use crate::{
    net::{Netns, Tuple, flag},
    sighting::{Conntrack, EntryNote, Hook, PacketFact, SocketEvent, SocketFact, Status, TcpState},
    time::Timestamp,
};

/// Place and time of a fact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) time: Timestamp,
    pub(super) netns: Netns,
    pub(super) hook: Hook,
}

impl Flow {
    /// Records a sighting of any kind.
    pub(super) fn touch(&mut self, time: Timestamp) {
        self.sightings = self.sightings.saturating_add(1);
        self.first_seen = self.first_seen.min(time);
        self.last_seen = self.last_seen.max(time);
    }

    pub(super) fn fold_decision(&mut self, ct: Conntrack, place: Place) {
        let is_handshake = self.is_handshake();
        self.fold_attempt(ct, place, is_handshake);
    }

    /// Like [`Self::fold_decision`], for a packet that is known to be of the handshake or not.
    pub(super) fn fold_attempt(&mut self, ct: Conntrack, place: Place, is_handshake: bool) {
        let confirmed = (place.hook == Hook::Confirm).then_some(place.time);
        let room = self.decisions.len() < MAX_DECISIONS;
        let known = self.decisions.iter_mut().find(|decision| {
            let differ = decision.endpoint().is_some()
                && ct.endpoint().is_some()
                && decision.endpoint() != ct.endpoint();
            decision.is_for(&ct, place.netns) && !(is_handshake && differ)
        });
        match known {
            Some(decision) => {
                if decision.ct.id != ct.id {
                    decision.attempts = decision.attempts.saturating_add(1);
                }
                // The confirmed entry's tuples are final; those of an attempt are the latest.
                if confirmed.is_some() || decision.confirmed.is_none() {
                    decision.ct = ct;
                }
                decision.confirmed = match (decision.confirmed, confirmed) {
                    (Some(known), Some(new)) => Some(known.min(new)),
                    (known, new) => known.or(new),
                };
                decision.time = decision.time.min(place.time);
            }
            None if room => {
                self.decisions.push(Decision {
                    time: place.time,
                    netns: place.netns,
                    ct,
                    confirmed,
                    attempts: 1,
                    midstream: None,
                });
            }
            None => {}
        }
    }

    /// Facts of the hook about an entry that is being confirmed.
    pub(super) fn fold_note(&mut self, ct: &Conntrack, note: EntryNote, place: Place) {
        if !self.is_tcp() {
            return;
        }
        let known =
            self.decisions.iter_mut().find(|known| known.netns == place.netns && known.ct.id == ct.id);
        if let (Some(decision), Some(midstream)) = (known, note.is_midstream()) {
            decision.midstream = Some(midstream);
        }
    }

    pub(super) fn fold_end_of_entry(&mut self, ct: &Conntrack, note: EntryNote, place: Place) {
        let ended = Ended { time: place.time, status: ct.status, deleted_by: note.deleted_by };
        match place.hook {
            Hook::KillAcct => {
                self.trouble_mut().killed.get_or_insert(ended);
            }
            Hook::ResolveClash => self.trouble_mut().clashes.hit(place.time),
            Hook::Delete => {
                self.deleted.get_or_insert(ended);
            }
            _ => {}
        }
    }

    pub(super) fn fold_packet(&mut self, packet: &PacketFact, place: Place) {
        let stage = self.stage(packet);
        let endpoint = endpoint_of(packet, stage);
        let opening = packet.tcp_flags & (flag::SYN | flag::ACK) == flag::SYN || packet.tcp_flags == 0;
        match place.hook {
            Hook::SendUnreach | Hook::SendUnreach6 => {
                let kind = RefusalKind::Unreachable { code: packet.icmp_code };
                self.fold_refusal(kind, stage, endpoint, packet, place);
            }
            Hook::NfSendReset | Hook::NfSendReset6 => {
                self.fold_refusal(RefusalKind::Reset, stage, endpoint, packet, place);
            }
            Hook::IpVsLeave => self.fold_refusal(RefusalKind::NoDestination, stage, endpoint, packet, place),
            Hook::IpVsSchedule => self.ipvs_mut().unscheduled.hit(place.time),
            Hook::TcpSendReset | Hook::TcpV4SendReset | Hook::TcpV6SendReset => {
                let by = match stage {
                    Stage::Reply => End::Client,
                    Stage::After => End::Endpoint,
                    Stage::Before => End::Vip,
                };
                self.fold_stack_reset(by, opening, endpoint, packet, place);
            }
            Hook::InvalidLog => self.fold_invalid(stage, packet, place),
            Hook::IcmpError | Hook::IcmpError6 => self.fold_icmp_error(packet, endpoint, place),
            Hook::TcpPacket => self.fold_transit_reset(packet, place),
            _ => {
                if place.hook == Hook::IpVsConnExpire {
                    let ipvs = self.ipvs_mut();
                    ipvs.expired.hit(place.time);
                    ipvs.reused = packet.tcp_flags & (flag::SYN | flag::ACK) == flag::SYN;
                }
                if packet.table_full {
                    let trouble = self.trouble_mut();
                    trouble.table_full.hit(place.time);
                    trouble.full_netns = place.netns;
                } else {
                    self.fold_drop(stage, opening, endpoint, packet, place);
                }
            }
        }
    }

    /// The packet's stage, from its own addresses, or else from its entry.
    fn stage(&self, packet: &PacketFact) -> Stage {
        if packet.original_direction == Some(false) {
            return Stage::Reply;
        }
        let Some(tuple) = packet.tuple else {
            return if packet.ct.is_some_and(|ct| ct.endpoint().is_some()) {
                Stage::After
            } else {
                Stage::Before
            };
        };
        if tuple.src == self.orig.dst && tuple.dst == self.orig.src {
            return Stage::Reply;
        }
        if let Some(chosen) = self.chosen_by_ipvs(None) {
            if tuple == chosen.reply() {
                return Stage::Reply;
            }
            if tuple.dst == chosen.destination.into() {
                return Stage::After;
            }
        }
        let picked_up = self.trouble.as_ref().and_then(|trouble| trouble.picked_up.as_ref());
        let entries = self.decisions.iter().map(|decision| &decision.ct);
        for ct in entries.chain(picked_up.map(|picked_up| &picked_up.ct)) {
            let reply = &ct.reply;
            if tuple.src == reply.src && tuple.dst == reply.dst {
                return Stage::Reply;
            }
            if ct.leads_to(tuple.dst) {
                return Stage::After;
            }
        }
        Stage::Before
    }

    fn fold_refusal(
        &mut self,
        kind: RefusalKind,
        stage: Stage,
        endpoint: Option<SocketAddr>,
        packet: &PacketFact,
        place: Place,
    ) {
        let refusal = Refusal {
            kind,
            stage,
            netns: place.netns,
            nf_hook: packet.nf_hook,
            endpoint,
            occurrences: Occurrences::default(),
        };
        self.trouble_mut().refusal.get_or_insert(refusal).occurrences.hit(place.time);
    }

    fn fold_stack_reset(
        &mut self,
        by: End,
        to_syn: bool,
        endpoint: Option<SocketAddr>,
        packet: &PacketFact,
        place: Place,
    ) {
        // The RST answers this packet, which came from the endpoint. The question is under which address.
        let untranslated = by == End::Client && self.is_untranslated_answer(packet);
        // A stack sets PSH on data that it sends with a FIN (`tcp_mark_push`, net/ipv4/tcp.c).
        let to_fin = packet.tcp_flags & (flag::FIN | flag::SYN | flag::PSH) == flag::FIN;
        let reason = packet.reason.clone();
        let resets = &mut self.trouble_mut().stack_resets;
        let same = |known: &&mut StackReset| {
            known.by == by
                && (known.to_syn, known.to_fin) == (to_syn, to_fin)
                && known.untranslated == untranslated
                && known.endpoint == endpoint
        };
        if let Some(known) = resets.iter_mut().find(same) {
            known.occurrences.hit(place.time);
            known.reason = known.reason.take().or(reason);
        } else if resets.len() < MAX_STACK_RESETS {
            let occurrences = Occurrences::once(place.time);
            let netns = place.netns;
            resets.push(StackReset {
                by,
                netns,
                reason,
                to_syn,
                to_fin,
                untranslated,
                endpoint,
                occurrences,
            });
        }
    }

    /// Whether the packet came from the endpoint's own address, and not from that to which the client connected.
    fn is_untranslated_answer(&self, packet: &PacketFact) -> bool {
        let translated = self.decisions.iter().any(|decision| decision.endpoint().is_some());
        translated
            && packet.tuple.is_some_and(|tuple| {
                tuple.src != self.orig.dst && self.decisions.iter().any(|known| known.ct.leads_to(tuple.src))
            })
    }

    fn fold_invalid(&mut self, stage: Stage, packet: &PacketFact, place: Place) {
        let reply = stage == Stage::Reply;
        let invalid = &mut self.trouble_mut().invalid;
        let same = |known: &&mut Invalid| {
            known.reply == reply && known.why == packet.reason && known.netns == place.netns
        };
        if let Some(known) = invalid.iter_mut().find(same) {
            known.occurrences.hit(place.time);
        } else if invalid.len() < MAX_INVALID {
            let occurrences = Occurrences::once(place.time);
            add(invalid, Invalid { why: packet.reason.clone(), reply, netns: place.netns, occurrences });
        }
    }

    /// One error passes several NAT hooks, with the sender's own or a translated address. It counts as one kind.
    fn fold_icmp_error(&mut self, packet: &PacketFact, endpoint: Option<SocketAddr>, place: Place) {
        let Some(kind) = packet.reason.clone() else { return };
        // An error travels in the direction opposite to its packet.
        let about_request = packet.original_direction == Some(false);
        let from = packet.tuple.map(|tuple| tuple.src.ip());
        let meaning = IcmpMeaning::of(place.hook, &kind, packet.icmp_code);
        let errors = &mut self.trouble_mut().icmp_errors;
        let same = |known: &&mut IcmpError| {
            known.kind == kind
                && known.code == packet.icmp_code
                && known.about_request == about_request
                && known.endpoint == endpoint
        };
        if let Some(known) = errors.iter_mut().find(same) {
            known.occurrences.hit(place.time);
        } else if errors.len() < MAX_ICMP_ERRORS {
            let occurrences = Occurrences::once(place.time);
            add(
                errors,
                IcmpError {
                    kind,
                    code: packet.icmp_code,
                    meaning,
                    from,
                    about_request,
                    endpoint,
                    occurrences,
                },
            );
        }
    }

    fn fold_transit_reset(&mut self, packet: &PacketFact, place: Place) {
        let Some(original) = packet.original_direction else { return };
        let by = if original { End::Client } else { End::Endpoint };
        let to_syn = !original && packet.ct.is_some_and(|ct| !ct.status.has(Status::SEEN_REPLY));
        let resets = &mut self.trouble_mut().transit_resets;
        if let Some(known) = resets.iter_mut().find(|known| known.by == by) {
            known.occurrences.hit(place.time);
        } else if resets.len() < 2 {
            add(
                resets,
                TransitReset { by, netns: place.netns, to_syn, occurrences: Occurrences::once(place.time) },
            );
        }
    }

    fn fold_drop(
        &mut self,
        stage: Stage,
        opening: bool,
        endpoint: Option<SocketAddr>,
        packet: &PacketFact,
        place: Place,
    ) {
        let unconfirmed = packet.ct.is_some_and(|ct| !ct.status.has(Status::CONFIRMED));
        // With the flow's own entry it is yet to be translated.
        let is_to_be = packet.ct.is_some_and(|ct| ct.orig == self.orig);
        let untranslated = stage == Stage::Reply && !is_to_be && self.is_untranslated_answer(packet);
        let drops = &mut self.trouble_mut().drops;
        let same = |known: &&mut Dropped| {
            known.stage == stage
                && (known.reason == packet.reason && known.site == packet.site)
                && (known.opening, known.untranslated) == (opening, untranslated)
                && known.endpoint == endpoint
                && known.netns == place.netns
        };
        if let Some(known) = drops.iter_mut().find(same) {
            known.occurrences.hit(place.time);
            known.unconfirmed |= unconfirmed;
        } else if drops.len() < MAX_DROPS {
            drops.push(Dropped {
                reason: packet.reason.clone(),
                site: packet.site,
                stage,
                netns: place.netns,
                unconfirmed,
                opening,
                untranslated,
                endpoint,
                occurrences: Occurrences::once(place.time),
            });
        }
    }

    /// The socket of the flow that has these addresses, if any.
    pub(super) fn end_of(&self, tuple: &Tuple) -> Option<End> {
        if *tuple == self.orig {
            return Some(End::Client);
        }
        let accepts = |ct: &Conntrack| tuple.src == ct.reply.src && tuple.dst == ct.reply.dst;
        let is_of_chosen = || self.chosen_by_ipvs(None).is_some_and(|chosen| chosen.reply() == *tuple);
        let is_of_endpoint = self.decisions.iter().any(|decision| accepts(&decision.ct))
            || *tuple == self.orig.reversed()
            || is_of_chosen();
        is_of_endpoint.then_some(End::Endpoint)
    }

    /// Whether the fact belonged to one of the flow's two sockets.
    pub(super) fn fold_socket(&mut self, socket: &SocketFact, place: Place) -> bool {
        let Some(side) = self.end_of(&socket.tuple) else { return false };
        let end = if side == End::Client { &mut self.client } else { &mut self.server };
        if !end.is_seen() {
            end.sk = socket.sk;
            end.netns = place.netns;
        }
        if end.task.is_none() && matches!(socket.event, SocketEvent::State { .. }) {
            // The hook runs in the socket's task only on the way down; in softirq it runs in any task.
            end.task = socket.task;
        }
        end.bytes_acked = end.bytes_acked.max(socket.bytes_acked);
        end.bytes_received = end.bytes_received.max(socket.bytes_received);
        fold_event(end, socket, place.time);
        true
    }
}

/// The endpoint that NAT chose for this packet: by its own entry, or else by its addresses.
fn endpoint_of(packet: &PacketFact, stage: Stage) -> Option<SocketAddr> {
    let by_entry = packet.ct.and_then(|ct| ct.endpoint());
    by_entry.or_else(|| packet.tuple.filter(|_| stage == Stage::After).map(|tuple| tuple.dst.socket()))
}

fn fold_event(end: &mut SocketEnd, socket: &SocketFact, time: Timestamp) {
    match &socket.event {
        // An established socket cannot close from this state: this is another socket for the same handshake.
        SocketEvent::State { old, new: TcpState::Close } if is_embryo(*old) && end.established.is_some() => {}
        SocketEvent::State { old, new: TcpState::Close } => {
            let closed = Closed { time, from: *old };
            if end.closed.is_none_or(|known| known.time > time) {
                end.closed = Some(closed);
            }
        }
        SocketEvent::State { new: TcpState::Established, .. } => {
            end.established = Some(end.established.map_or(time, |known| known.min(time)));
            if end.closed.is_some_and(|closed| is_embryo(closed.from)) {
                end.closed = None;
                end.sk = socket.sk;
            }
        }
        SocketEvent::State { .. } => {}
        SocketEvent::Retransmit { state, bytes } => {
            let trouble = end.trouble.get_or_insert_default();
            if matches!(state, TcpState::SynSent | TcpState::SynRecv | TcpState::NewSynRecv) {
                if trouble.syn_retransmits.last != time {
                    trouble.syn_retransmits.hit(time);
                }
                return;
            }
            if trouble.retransmits.is_seen() {
                let gap = time.since(trouble.retransmits.last);
                if gap == Duration::ZERO {
                    return;
                }
                // The timer doubles. The measure does not apply to losses far apart.
                let last = trouble.last_gap;
                // Losses far apart can have such intervals too: in between, more was acknowledged.
                let is_unanswered = socket.bytes_acked == trouble.last_acked;
                let grew = is_unanswered
                    && last > Duration::ZERO
                    && gap > last + last / 2
                    && gap < last.saturating_mul(3);
                trouble.backoff = if grew { trouble.backoff.saturating_add(1) } else { 0 };
                trouble.last_gap = gap;
            }
            trouble.retransmits.hit(time);
            trouble.last_acked = socket.bytes_acked;
            trouble.stuck = bytes.filter(|bytes| *bytes > 0).map(|bytes| {
                let (acked, received) = (socket.bytes_acked, socket.bytes_received);
                match trouble.stuck {
                    Some(known) if known.acked == acked => Stuck {
                        bytes: known.bytes.min(bytes),
                        received,
                        repeats: known.repeats.saturating_add(1),
                        acked,
                    },
                    _ => Stuck { bytes, acked, received, repeats: 1 },
                }
            });
            if follows_fin(*state) {
                trouble.after_fin = trouble.after_fin.saturating_add(1);
            } else {
                trouble.before_fin = trouble.before_fin.max(Some(time));
            }
            let closing = matches!(state, TcpState::FinWait1 | TcpState::Closing | TcpState::LastAck);
            trouble.while_closing = trouble.while_closing.saturating_add(u32::from(closing));
        }
        SocketEvent::SendReset { state, reason } => {
            let reset = ResetEvent { time, state: *state, reason: reason.clone() };
            end.trouble.get_or_insert_default().reset_sent.get_or_insert(reset);
        }
        SocketEvent::ReceiveReset { state } => {
            let reset = ResetEvent { time, state: *state, reason: None };
            end.trouble.get_or_insert_default().reset_received.get_or_insert(reset);
        }
    }
}

/// Whether a socket in this state is not yet accepted. Two packets of a client that are handled at the same time each
/// create one, and the kernel drops the later one (`inet_csk_complete_hashdance`). A client that retransmits gets a new
/// one.
pub(super) const fn is_embryo(state: TcpState) -> bool {
    matches!(state, TcpState::SynRecv | TcpState::NewSynRecv)
}

/// Whether the fact is the beginning of a socket, not its continuation or end.
pub(super) const fn begins(event: &SocketEvent) -> bool {
    matches!(
        event,
        SocketEvent::State { old: TcpState::SynSent | TcpState::SynRecv, new: TcpState::Established }
            | SocketEvent::Retransmit { state: TcpState::SynSent, .. }
    )
}

/// Whether only the accepting socket can cause the fact.
pub(super) const fn accepts(event: &SocketEvent) -> bool {
    matches!(
        event,
        SocketEvent::State { old: TcpState::SynRecv | TcpState::NewSynRecv, .. }
            | SocketEvent::Retransmit { state: TcpState::SynRecv | TcpState::NewSynRecv, .. }
    )
}

/// Whether the packet can be the first of a connection.
pub(super) const fn may_open(packet: &PacketFact) -> bool {
    packet.tcp_flags & (flag::SYN | flag::ACK) == flag::SYN || packet.tcp_flags == 0
}

/// Whether a dropped packet can have waited for its next hop's address: then it belongs to the connection of that time.
/// Without a reason that rules it out this is every packet that was translated and whose entry was not confirmed: IPv6
/// gives none (`ndisc_error_report`, observed on 6.12 and 7.2), nor does a kernel without drop reasons.
pub(super) fn waited(packet: &PacketFact) -> bool {
    let unconfirmed =
        || packet.ct.is_some_and(|ct| ct.endpoint().is_some() && !ct.status.has(Status::CONFIRMED));
    match packet.reason.as_deref() {
        Some("NOT_SPECIFIED") | None => unconfirmed(),
        Some(reason) => reason.starts_with("NEIGH_"),
    }
}

/// Adds a kind of evidence of which a flow rarely has another: the room that a vector begins with, for four, would be the
/// larger part of a failed flow.
fn add<T>(kinds: &mut Vec<T>, kind: T) {
    kinds.reserve_exact(1);
    kinds.push(kind);
}
