//! Sightings of whole connections as kernels report them, and the world in which they are judged.

use std::{net::SocketAddr, time::Duration};

use crate::cluster_support::Shop;
use viptrace::{
    cluster::History,
    diagnosis::{Context, HookGap, Outline, Translations, Words, judge, outline},
    flow::{Flow, FlowTable, Limits, Reread},
    net::{Netns, Protocol, Tuple},
    node::Snapshot,
    sighting::{
        Conntrack, ConntrackFact, EntryNote, Fact, Hook, PacketFact, Sighting, SocketEvent, SocketFact,
        Status, Task, TcpState,
    },
    time::Timestamp,
    verdict::Verdict,
};

use crate::node_support::Node;

/// The initial network namespace, also of every recording in the corpus (`PROC_NET_INIT_INO` less one).
pub(crate) const NODE: Netns = Netns(4_026_531_840);
pub(crate) const CLIENT_NS: Netns = Netns(4_026_532_100);
pub(crate) const SERVER_NS: Netns = Netns(4_026_532_200);

/// The default address of a script's entry.
pub(crate) const CT: u64 = 0xffff_8880_1000_0000;

/// Milliseconds after the start of the test's day.
pub(crate) fn at(ms: u64) -> Timestamp {
    Timestamp::from_unix_ns(1_700_000_000_000_000_000 + ms * 1_000_000)
}

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Observes the sightings in steps of half a second, and returns what is handed out meanwhile.
pub(crate) fn in_steps(table: &mut FlowTable, script: Script, until: u64) -> Vec<Flow> {
    let mut flows = Vec::new();
    let mut sightings = script.in_order().out.into_iter().peekable();
    for ms in (0..=until).step_by(500) {
        while let Some(sighting) = sightings.next_if(|sighting| sighting.time <= at(ms)) {
            table.observe(sighting);
        }
        table.advance(at(ms));
        flows.extend(table.drain_settled());
    }
    flows
}

/// One connection and the sightings of it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) protocol: Protocol,
    pub(crate) client: SocketAddr,
    pub(crate) vip: SocketAddr,
    /// `None`: the address is not translated.
    pub(crate) endpoint: Option<SocketAddr>,
    /// The source that the endpoint sees, if it is masqueraded.
    pub(crate) masquerade: Option<SocketAddr>,
    pub(crate) ct: u64,
    pub(crate) out: Vec<Sighting>,
}

impl Script {
    /// With the events of the node's namespace in this one.
    pub(crate) fn in_netns(mut self, netns: Netns) -> Self {
        for sighting in self.out.iter_mut().filter(|sighting| sighting.netns == NODE) {
            sighting.netns = netns;
        }
        self
    }

    pub(crate) fn new(client: &str, vip: &str, endpoint: Option<&str>) -> Self {
        Self {
            protocol: Protocol::TCP,
            client: addr(client),
            vip: addr(vip),
            endpoint: endpoint.map(addr),
            masquerade: None,
            ct: CT,
            out: Vec::new(),
        }
    }

    pub(crate) fn udp(mut self) -> Self {
        self.protocol = Protocol::UDP;
        self
    }

    pub(crate) fn orig(&self) -> Tuple {
        Tuple::new(self.protocol, self.client, self.vip)
    }

    pub(crate) fn reply(&self) -> Tuple {
        Tuple::new(self.protocol, self.endpoint.unwrap_or(self.vip), self.masquerade.unwrap_or(self.client))
    }

    pub(crate) fn entry(&self, status: u32) -> Conntrack {
        let nat = if self.endpoint.is_some() { Status::DST_NAT } else { 0 };
        Conntrack {
            id: self.ct,
            zone: 0,
            status: Status(status | nat | Status::DST_NAT_DONE | Status::SRC_NAT_DONE),
            orig: self.orig(),
            reply: self.reply(),
        }
    }

    fn push(mut self, ms: u64, hook: Hook, netns: Netns, fact: Fact) -> Self {
        let cpu = (self.out.len() % 4) as u16;
        self.out.push(Sighting { time: at(ms), cpu, hook, netns, fact });
        self
    }

    fn entry_event(self, ms: u64, hook: Hook, status: u32) -> Self {
        let ct = self.entry(status);
        self.push(
            ms,
            hook,
            NODE,
            Fact::Conntrack(ConntrackFact { ct, task: None, note: EntryNote::default() }),
        )
    }

    pub(crate) fn confirm(self, ms: u64) -> Self {
        self.entry_event(ms, Hook::Confirm, 0)
    }

    /// The kernel kept the decision and handed it over when a failure met its flow.
    pub(crate) fn confirm_handed_over(self, decided: u64, handed_over: u64) -> Self {
        let note = EntryNote { handed_over: Some(at(handed_over)), ..EntryNote::default() };
        let ct = self.entry(0);
        self.push(decided, Hook::Confirm, NODE, Fact::Conntrack(ConntrackFact { ct, task: None, note }))
    }

    pub(crate) fn confirm_by(self, ms: u64, pid: u32, comm: &str) -> Self {
        let ct = self.entry(0);
        let task = Some(Task { pid, comm: comm.into() });
        self.push(
            ms,
            Hook::Confirm,
            NODE,
            Fact::Conntrack(ConntrackFact { ct, task, note: EntryNote::default() }),
        )
    }

    pub(crate) fn clash(self, ms: u64) -> Self {
        self.entry_event(ms, Hook::ResolveClash, 0)
    }

    pub(crate) fn kill(self, ms: u64) -> Self {
        self.entry_event(ms, Hook::KillAcct, Status::CONFIRMED)
    }

    /// The kernel ends an entry that has seen an answer.
    pub(crate) fn kill_answered(self, ms: u64) -> Self {
        self.entry_event(ms, Hook::KillAcct, Status::CONFIRMED | Status::SEEN_REPLY | Status::ASSURED)
    }

    /// A segment of an established connection is dropped on its way to the endpoint.
    pub(crate) fn drop_later(self, ms: u64, reason: &str) -> Self {
        let entry = self.entry(Status::CONFIRMED | Status::SEEN_REPLY | Status::ASSURED);
        let mut packet = self.packet(self.behind(), 24, Some(entry));
        packet.reason = Some(reason.into());
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    pub(crate) fn delete(self, ms: u64, status: u32) -> Self {
        self.entry_event(ms, Hook::Delete, Status::CONFIRMED | status)
    }

    /// The current state of the entry, read because the table requested it.
    pub(crate) fn reread(self, ms: u64, status: u32) -> Self {
        self.entry_event(ms, Hook::EntryReread, Status::CONFIRMED | status)
    }

    /// An entry that is older than the trace, as ctnetlink lists it.
    pub(crate) fn listed(self, ms: u64, last_packet_ms: u64) -> Self {
        self.listed_as(ms, last_packet_ms, 0)
    }

    /// The listed entry has seen an answer.
    pub(crate) fn listed_answered(self, ms: u64, last_packet_ms: u64) -> Self {
        self.listed_as(ms, last_packet_ms, Status::SEEN_REPLY | Status::ASSURED)
    }

    fn listed_as(mut self, ms: u64, last_packet_ms: u64, status: u32) -> Self {
        let ct = Conntrack { id: 0, ..self.entry(Status::CONFIRMED | status) };
        let note = EntryNote { last_packet: Some(at(last_packet_ms)), ..EntryNote::default() };
        self =
            self.push(ms, Hook::EntryReread, NODE, Fact::Conntrack(ConntrackFact { ct, task: None, note }));
        self
    }

    /// The entry was created for a segment without SYN.
    pub(crate) fn confirm_midstream(self, ms: u64) -> Self {
        let note = EntryNote { tcp_state: Some(3), ..EntryNote::default() };
        let ct = self.entry(0);
        self.push(ms, Hook::Confirm, NODE, Fact::Conntrack(ConntrackFact { ct, task: None, note }))
    }

    /// The entry was created for a SYN.
    pub(crate) fn confirm_syn(self, ms: u64) -> Self {
        let note = EntryNote { tcp_state: Some(1), ..EntryNote::default() };
        let ct = self.entry(0);
        self.push(ms, Hook::Confirm, NODE, Fact::Conntrack(ConntrackFact { ct, task: None, note }))
    }

    /// A process deleted the entry through netlink.
    pub(crate) fn delete_by_hand(self, ms: u64) -> Self {
        let note = EntryNote { tcp_state: Some(3), deleted_by: Some(4242), ..EntryNote::default() };
        let ct = self.entry(Status::CONFIRMED | Status::SEEN_REPLY | Status::ASSURED);
        self.push(ms, Hook::Delete, NODE, Fact::Conntrack(ConntrackFact { ct, task: None, note }))
    }

    /// conntrack classifies an answer of the endpoint as invalid.
    pub(crate) fn invalid_answer(self, ms: u64, why: &str) -> Self {
        let mut packet = self.packet(self.reply(), 24, Some(self.entry(Status::CONFIRMED)));
        packet.original_direction = Some(false);
        packet.reason = Some(why.into());
        self.push(ms, Hook::InvalidLog, NODE, Fact::Packet(packet))
    }

    /// The client's stack receives an answer from this address, has no connection with it, and sends it a RST.
    pub(crate) fn client_has_no_socket(self, ms: u64, from: SocketAddr) -> Self {
        let mut packet = self.packet(Tuple::new(self.protocol, from, self.client), 24, None);
        packet.reason = Some("NO_SOCKET".into());
        self.push(ms, Hook::TcpSendReset, CLIENT_NS, Fact::Packet(packet))
    }

    /// The endpoint's stack receives a segment of a connection that it does not have.
    pub(crate) fn endpoint_has_no_connection(self, ms: u64) -> Self {
        let mut packet = self.packet(self.behind(), 24, None);
        packet.reason = Some("NO_SOCKET".into());
        self.push(ms, Hook::TcpSendReset, SERVER_NS, Fact::Packet(packet))
    }

    /// A RST passes through the node.
    pub(crate) fn transit_reset(self, ms: u64, by_client: bool, status: u32) -> Self {
        let tuple = if by_client { self.orig() } else { self.reply() };
        let mut packet = self.packet(tuple, 20, Some(self.entry(Status::CONFIRMED | status)));
        packet.original_direction = Some(by_client);
        self.push(ms, Hook::TcpPacket, NODE, Fact::Packet(packet))
    }

    /// The node gives up a SYN that waited for its endpoint's link address: it sends an ICMP error, then drops the SYN.
    pub(crate) fn neighbour_failed(self, ms: u64) -> Self {
        let tuple = Tuple::new(Protocol::ICMP, addr("10.244.1.1:0"), SocketAddr::new(self.client.ip(), 0));
        let mut packet = self.packet(tuple, 0, Some(self.entry(0)));
        packet.original_direction = Some(false);
        packet.reason = Some("DEST_UNREACH".into());
        packet.icmp_code = Some(1);
        self.push(ms, Hook::IcmpError, NODE, Fact::Packet(packet)).drop_syn(ms, "NEIGH_FAILED")
    }

    /// A host answers a packet to the endpoint with "unreachable" of ICMP or `ICMPv6`.
    pub(crate) fn icmp_error(self, ms: u64, from: &str, code: u8) -> Self {
        let hook = if addr(from).is_ipv6() { Hook::IcmpError6 } else { Hook::IcmpError };
        let tuple = Tuple::new(Protocol::ICMP, addr(from), SocketAddr::new(self.client.ip(), 0));
        let mut packet = self.packet(tuple, 0, Some(self.entry(Status::CONFIRMED)));
        packet.original_direction = Some(false);
        packet.reason = Some("DEST_UNREACH".into());
        packet.icmp_code = Some(code);
        self.push(ms, hook, NODE, Fact::Packet(packet))
    }

    /// A segment to the address that the client connected to is dropped without a conntrack entry.
    pub(crate) fn drop_untranslated(self, ms: u64, reason: &str) -> Self {
        let mut packet = self.packet(self.orig(), 17, None);
        packet.reason = Some(reason.into());
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    /// A segment without a conntrack entry is dropped.
    pub(crate) fn drop_invalid(self, ms: u64) -> Self {
        let mut packet = self.packet(self.reply(), 24, None);
        packet.reason = Some("NETFILTER_DROP".into());
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    pub(crate) fn sctp(mut self) -> Self {
        self.protocol = Protocol::SCTP;
        self
    }

    /// Later events are of an entry for another endpoint.
    pub(crate) fn with_endpoint(mut self, endpoint: &str) -> Self {
        self.endpoint = Some(addr(endpoint));
        self
    }

    pub(crate) fn with_ct(mut self, ct: u64) -> Self {
        self.ct = ct;
        self
    }

    fn packet(&self, tuple: Tuple, flags: u8, ct: Option<Conntrack>) -> PacketFact {
        PacketFact {
            skb: 0xffff_8881_0000_0000,
            tuple: Some(tuple),
            tcp_flags: if self.protocol == Protocol::TCP { flags } else { 0 },
            ct,
            original_direction: ct.map(|_| true),
            reason: None,
            site: None,
            icmp_code: None,
            nf_hook: None,
            table_full: false,
        }
    }

    /// The sightings in the order of their times.
    pub(crate) fn in_order(mut self) -> Self {
        self.out.sort_by_key(|sighting| sighting.time);
        self
    }

    /// The SYN's tuple after NAT.
    pub(crate) fn behind(&self) -> Tuple {
        self.reply().reversed()
    }

    /// A SYN is dropped on the node before its entry is confirmed.
    pub(crate) fn drop_syn(self, ms: u64, reason: &str) -> Self {
        let mut packet = self.packet(self.behind(), 2, Some(self.entry(0)));
        packet.reason = Some(reason).filter(|reason| !reason.is_empty()).map(Into::into);
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    /// An answer under the endpoint's own address, which NAT did not translate back, is dropped with an entry of its own.
    pub(crate) fn drop_answer(self, ms: u64) -> Self {
        let mut packet = self.packet(self.reply(), 18, Some(self.entry(0)));
        packet.reason = Some("NETFILTER_DROP".into());
        packet.original_direction = Some(false);
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    /// A rule drops an answer whose entry would have translated it back.
    pub(crate) fn drop_known_answer(self, ms: u64) -> Self {
        let mut packet =
            self.packet(self.reply(), 18, Some(self.entry(Status::CONFIRMED | Status::SEEN_REPLY)));
        packet.reason = Some("NETFILTER_DROP".into());
        packet.original_direction = Some(false);
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    pub(crate) fn drop_table_full(self, ms: u64) -> Self {
        let mut packet = self.packet(self.orig(), 2, None);
        packet.reason = Some("NETFILTER_DROP".into());
        packet.table_full = true;
        self.push(ms, Hook::EarlyDrop, NODE, Fact::TableFull { freed: false }).push(
            ms,
            Hook::KfreeSkb,
            NODE,
            Fact::Packet(packet),
        )
    }

    /// A rule rejects the SYN with an ICMP error.
    pub(crate) fn unreach(self, ms: u64, code: u8) -> Self {
        let mut packet = self.packet(self.behind(), 2, Some(self.entry(0)));
        packet.icmp_code = Some(code);
        packet.nf_hook = Some(2);
        self.push(ms, Hook::SendUnreach, NODE, Fact::Packet(packet)).drop_syn(ms, "NETFILTER_DROP")
    }

    /// nftables mode drops the SYN before NAT: there is no decision.
    pub(crate) fn drop_before_nat(self, ms: u64) -> Self {
        let mut ct = self.entry(0);
        (ct.status, ct.reply) = (Status(0), self.orig().reversed());
        let mut packet = self.packet(self.orig(), 2, Some(ct));
        packet.reason = Some("NETFILTER_DROP".into());
        self.push(ms, Hook::KfreeSkb, NODE, Fact::Packet(packet))
    }

    /// The client's stack resets the SYN-ACK that came directly from the endpoint.
    pub(crate) fn client_resets_answer(self, ms: u64) -> Self {
        let tuple = Tuple::new(self.protocol, self.endpoint.unwrap(), self.client);
        let mut packet = self.packet(tuple, 0x12, None);
        packet.reason = Some("NO_SOCKET".into());
        self.push(ms, Hook::TcpSendReset, CLIENT_NS, Fact::Packet(packet))
    }

    /// The endpoint's stack has no socket: as 6.12 reports it (tracepoint and function), in the endpoint's namespace.
    pub(crate) fn no_socket(self, ms: u64) -> Self {
        let mut packet = self.packet(self.behind(), 2, None);
        packet.reason = Some("NO_SOCKET".into());
        let script = if self.protocol == Protocol::TCP {
            self.push(ms, Hook::TcpSendReset, SERVER_NS, Fact::Packet(packet.clone()))
        } else {
            self
        };
        script.push(ms, Hook::KfreeSkb, SERVER_NS, Fact::Packet(packet))
    }

    fn socket(self, ms: u64, hook: Hook, server: bool, event: SocketEvent) -> Self {
        let tuple = if server { self.reply() } else { self.orig() };
        let fact = SocketFact {
            sk: if server { 0xffff_8882_0000_0000 } else { 0xffff_8883_0000_0000 }
                + u64::from(self.client.port()) * 4096,
            tuple,
            event,
            bytes_acked: 100,
            bytes_received: 200,
            task: None,
        };
        self.push(ms, hook, if server { SERVER_NS } else { CLIENT_NS }, Fact::Socket(fact))
    }

    pub(crate) fn state(self, ms: u64, server: bool, old: TcpState, new: TcpState) -> Self {
        let hook = if new == TcpState::Established { Hook::SockEstablished } else { Hook::SockClosed };
        self.socket(ms, hook, server, SocketEvent::State { old, new })
    }

    pub(crate) fn retransmit(self, ms: u64, state: TcpState) -> Self {
        self.socket(ms, Hook::TcpRetransmit, false, SocketEvent::Retransmit { state, bytes: None })
    }

    pub(crate) fn server_retransmits(self, ms: u64, state: TcpState) -> Self {
        self.socket(ms, Hook::TcpRetransmit, true, SocketEvent::Retransmit { state, bytes: None })
    }

    /// An end repeats a segment of so many bytes, after these numbers of bytes were acknowledged and received.
    pub(crate) fn repeats_segment(self, ms: u64, server: bool, bytes: u32, counts: (u64, u64)) -> Self {
        self.repeats_segment_in(ms, server, TcpState::Established, bytes, counts)
    }

    pub(crate) fn repeats_segment_in(
        mut self,
        ms: u64,
        server: bool,
        state: TcpState,
        bytes: u32,
        counts: (u64, u64),
    ) -> Self {
        let event = SocketEvent::Retransmit { state, bytes: Some(bytes) };
        self = self.socket(ms, Hook::TcpRetransmit, server, event);
        if let Some(Fact::Socket(socket)) = self.out.last_mut().map(|sighting| &mut sighting.fact) {
            (socket.bytes_acked, socket.bytes_received) = counts;
        }
        self
    }

    pub(crate) fn receive_reset(self, ms: u64, state: TcpState) -> Self {
        self.socket(ms, Hook::TcpReceiveReset, false, SocketEvent::ReceiveReset { state })
    }

    pub(crate) fn send_reset(self, ms: u64, server: bool, state: TcpState, reason: &str) -> Self {
        self.socket(
            ms,
            Hook::TcpSendReset,
            server,
            SocketEvent::SendReset { state, reason: Some(reason.into()) },
        )
    }

    /// A second socket that the endpoint's stack created for the same handshake and dropped before it was accepted.
    pub(crate) fn embryo_dropped(self, ms: u64) -> Self {
        let mut script = self.state(ms, true, TcpState::SynRecv, TcpState::Close);
        if let Some(Sighting { fact: Fact::Socket(socket), .. }) = script.out.last_mut() {
            socket.sk += 64;
            (socket.bytes_acked, socket.bytes_received) = (0, 0);
        }
        script
    }

    pub(crate) fn connect_failed(self, ms: u64) -> Self {
        self.state(ms, false, TcpState::SynSent, TcpState::Close)
    }

    pub(crate) fn established(self, ms: u64) -> Self {
        self.confirm(ms).state(ms + 1, false, TcpState::SynSent, TcpState::Established).state(
            ms + 2,
            true,
            TcpState::SynRecv,
            TcpState::Established,
        )
    }

    pub(crate) fn closed(self, ms: u64) -> Self {
        self.state(ms, false, TcpState::FinWait2, TcpState::Close).state(
            ms + 1,
            true,
            TcpState::LastAck,
            TcpState::Close,
        )
    }

    /// A connection of a client elsewhere, which the endpoint ends.
    pub(crate) fn ended_by_server(self, ms: u64) -> Self {
        self.confirm(ms).state(ms + 1, true, TcpState::SynRecv, TcpState::Established).state(
            ms + 3,
            true,
            TcpState::Established,
            TcpState::Close,
        )
    }

    /// Connect, exchange, close by FIN.
    pub(crate) fn healthy(self, ms: u64) -> Self {
        self.established(ms).closed(ms + 20)
    }

    /// Confirm, RST without a socket, kill, RST at the client.
    pub(crate) fn refused(self, ms: u64) -> Self {
        self.confirm(ms)
            .no_socket(ms + 1)
            .kill(ms + 2)
            .receive_reset(ms + 3, TcpState::SynSent)
            .connect_failed(ms + 3)
    }

    /// A dead Pod on this node's bridge, Linux 6.12: no confirm, SYNs after 1 s and 2 s, at 3 s all fail at once.
    pub(crate) fn dead_pod(self, ms: u64) -> Self {
        let ct = self.ct;
        self.retransmit(ms + 1000, TcpState::SynSent)
            .retransmit(ms + 2000, TcpState::SynSent)
            .drop_syn(ms + 3100, "NEIGH_FAILED")
            .with_ct(ct + 4096)
            .drop_syn(ms + 3101, "NEIGH_FAILED")
            .with_ct(ct)
            .drop_syn(ms + 3102, "NEIGH_FAILED")
            .connect_failed(ms + 3105)
    }

    /// A silent endpoint, Linux 6.1: SYNs after 1 s and 3 s.
    pub(crate) fn silent(self, ms: u64) -> Self {
        self.confirm(ms).retransmit(ms + 1000, TcpState::SynSent).retransmit(ms + 3000, TcpState::SynSent)
    }
}

/// As in a trace, flows of datagrams wait for what their entries say.
pub(crate) fn fold(sightings: impl IntoIterator<Item = Sighting>, until_ms: u64) -> (Vec<Flow>, FlowTable) {
    let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
    for sighting in sightings {
        table.observe(sighting);
    }
    table.advance(at(until_ms));
    let mut flows: Vec<_> = table.drain_settled().collect();
    table.finish(at(until_ms));
    flows.extend(table.drain_settled());
    (flows, table)
}

/// The last revision of each flow.
pub(crate) fn last_revisions(flows: Vec<Flow>) -> Vec<Flow> {
    let mut by_id = std::collections::BTreeMap::new();
    for flow in flows {
        by_id.insert(flow.id, flow);
    }
    by_id.into_values().collect()
}

/// A cluster, and a node made by hand.
pub(crate) struct World {
    pub(crate) shop: Shop,
    pub(crate) node: Node,
    pub(crate) missing: Vec<Hook>,
    pub(crate) hook_gaps: Vec<HookGap>,
    pub(crate) drop_reasons: bool,
    pub(crate) translations: Translations,
    pub(crate) metadata_age: Option<f64>,
    /// The time of the judgement.
    pub(crate) now: Timestamp,
    pub(crate) node_netns: Option<Netns>,
}

pub(crate) const VIP: &str = "10.96.0.10:80";
pub(crate) const EP: &str = "10.244.1.7:8080";
pub(crate) const CLIENT: &str = "10.244.1.100:40000";

impl World {
    /// The shop, traced on worker-1.
    pub(crate) fn new() -> Self {
        Self::of(Shop::new())
    }

    pub(crate) fn of(shop: Shop) -> Self {
        Self {
            shop,
            node: Node::new(),
            missing: Vec::new(),
            hook_gaps: Vec::new(),
            drop_reasons: true,
            translations: Translations::new(),
            metadata_age: Some(0.5),
            now: at(86_400_000),
            node_netns: Some(NODE),
        }
    }

    pub(crate) fn judge(&self, flow: &Flow) -> Option<Verdict> {
        let (history, snapshot) = (self.shop.history(), self.snapshot());
        let context = self.context(&history, &snapshot);
        let verdict = judge(flow, &context);
        assert_eq!(outline(flow, &context), verdict.as_ref().map(Outline::of), "without words");
        verdict
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.node.snapshot(&self.shop.cart)
    }

    /// Adds a flow that the trace observed before.
    pub(crate) fn note(&mut self, flow: &Flow) {
        let mut translations = std::mem::take(&mut self.translations);
        translations.note(flow, &self.context(&self.shop.history(), &self.snapshot()).surroundings());
        self.translations = translations;
    }

    pub(crate) fn context<'a>(&'a self, cluster: &'a History, node: &'a Snapshot) -> Context<'a> {
        Context {
            cluster,
            node,
            node_name: Some("worker-1"),
            node_netns: self.node_netns,
            missing_hooks: &self.missing,
            hook_gaps: &self.hook_gaps,
            drop_reasons: self.drop_reasons,
            translations: &self.translations,
            grace: Duration::from_secs(5),
            now: self.now,
            metadata_age: self.metadata_age,
            words: Words::Written,
        }
    }

    /// The only verdict of a script's only flow.
    pub(crate) fn verdict(&self, script: Script, until_ms: u64) -> Verdict {
        let flows = last_revisions(fold(script.out, until_ms).0);
        let [flow] = flows.as_slice() else { panic!("one flow expected: {flows:#?}") };
        self.judge(flow).unwrap_or_else(|| panic!("a verdict expected for {flow:#?}"))
    }
}
