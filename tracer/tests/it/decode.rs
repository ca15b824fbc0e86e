//! The decoder's input: records in the form of the kernel half, and invalid records.

#![expect(clippy::unreachable, reason = "tests")]

use std::{
    net::{Ipv6Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

use proptest::prelude::*;
use tracer_ebpf::{
    CT_HEAD_BYTES, DropSite, MISSING, PACKET_HEAD_BYTES, SITE_SHIFT, SOCK_HEAD_BYTES, WHY_BYTES,
};
use viptrace::{
    kernel::{
        decode::{DecodeError, Decoder},
        layout::Layout,
    },
    net::{Netns, Protocol, Tuple},
    sighting::{Conntrack, EntryNote, Fact, Hook, IpvsFlags, ListedEntry, SocketEvent, Status, TcpState},
    time::Timestamp,
};

/// Debian 6.1 to 7.2, amd64.
const OFFSETS: &[(&str, u32)] = &[
    ("OFF_CT_STATUS", 128),
    ("CT_ORIG", 32),
    ("CT_REPLY", 88),
    ("CT_ZONE", 12),
    ("TUPLE_SRC", 0),
    ("TUPLE_SRC_PORT", 16),
    ("TUPLE_L3NUM", 18),
    ("TUPLE_DST", 20),
    ("TUPLE_DST_PORT", 36),
    ("TUPLE_PROTONUM", 38),
    ("OFF_SK_DADDR", 0),
    ("OFF_SK_SADDR", 4),
    ("SK_DPORT", 12),
    ("SK_NUM", 14),
    ("OFF_SK_FAMILY", 16),
    ("OFF_SK_STATE", 18),
    ("OFF_SK_V6_DADDR", 56),
    ("OFF_SK_V6_SADDR", 72),
];

fn decoder() -> Decoder {
    let layout = Layout::from_parts(
        OFFSETS.iter().copied(),
        [(7, Arc::from("NETFILTER_DROP")), (2, Arc::from("NO_SOCKET"))],
        [(3, Arc::from("NO_SOCKET"))],
    );
    Decoder::new(Arc::new(layout), 1_000)
}

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn client_to_vip() -> Tuple {
    Tuple::new(Protocol::TCP, addr("10.244.1.100:40000"), addr("10.96.10.10:80"))
}

fn header(hook: Hook, kind: u8) -> Vec<u8> {
    let mut record = 5_000_u64.to_ne_bytes().to_vec();
    record.extend(4_026_531_840_u32.to_ne_bytes());
    record.extend(1_u16.to_ne_bytes());
    record.extend([hook as u8, kind]);
    record
}

fn put_tuple(head: &mut [u8], at: usize, src: &str, dst: &str) {
    let (src, dst): (SocketAddrV4, SocketAddrV4) = (src.parse().unwrap(), dst.parse().unwrap());
    head[at..at + 4].copy_from_slice(&src.ip().octets());
    head[at + 16..at + 18].copy_from_slice(&src.port().to_be_bytes());
    head[at + 18..at + 20].copy_from_slice(&2_u16.to_ne_bytes());
    head[at + 20..at + 24].copy_from_slice(&dst.ip().octets());
    head[at + 36..at + 38].copy_from_slice(&dst.port().to_be_bytes());
    head[at + 38] = 6;
}

fn confirm() -> Vec<u8> {
    let mut head = [0; CT_HEAD_BYTES];
    head[12..14].copy_from_slice(&5_u16.to_ne_bytes());
    put_tuple(&mut head, 32, "10.244.1.100:40000", "10.96.10.10:80");
    put_tuple(&mut head, 88, "10.244.1.11:8080", "10.244.1.100:40000");
    head[128..132].copy_from_slice(&0x1a0_u32.to_ne_bytes());
    let mut record = header(Hook::Confirm, 1);
    record.extend(0xff11_0000_dead_beef_u64.to_ne_bytes());
    record.extend([2, 0, 77, 0].map(u32::to_ne_bytes).as_flattened());
    record.extend(b"kubelet\0\0\0\0\0\0\0\0\0");
    record.extend(head);
    record
}

#[test]
fn a_confirmed_entry_has_vip_endpoint_and_sender() {
    let sighting = decoder().decode(&confirm()).unwrap();
    assert_eq!(sighting.time, Timestamp::from_unix_ns(6_000));
    assert_eq!((sighting.cpu, sighting.hook, sighting.netns), (1, Hook::Confirm, Netns(4_026_531_840)));
    let Fact::Conntrack(fact) = sighting.fact else { unreachable!() };
    assert_eq!(fact.ct.orig, client_to_vip());
    assert_eq!(fact.ct.endpoint(), Some(addr("10.244.1.11:8080")));
    assert_eq!(fact.ct.zone, 5);
    assert!(!fact.ct.masqueraded());
    let task = fact.task.unwrap();
    assert_eq!((task.pid, task.comm), (77, "kubelet".into()));
}

/// The note of the same record with another hook, detail and TCP state.
fn entry(hook: Hook, detail: u32, tcp_state: u32) -> EntryNote {
    let mut record = confirm();
    record[14] = hook as u8;
    record[28..32].copy_from_slice(&detail.to_ne_bytes());
    record[36..40].copy_from_slice(&tcp_state.to_ne_bytes());
    let Fact::Conntrack(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    fact.note
}

#[test]
fn an_entry_records_a_pickup_and_its_deleter() {
    assert_eq!(entry(Hook::Confirm, 0, 1).is_midstream(), Some(false));
    assert_eq!(entry(Hook::Confirm, 0, 3).is_midstream(), Some(true));
    assert_eq!(entry(Hook::Confirm, 0, MISSING).is_midstream(), None);
    assert_eq!(entry(Hook::Delete, 4242, 3).deleted_by, Some(4242));
    assert_eq!(entry(Hook::Delete, 0, 3).deleted_by, None);
    assert_eq!(entry(Hook::NatSetup, 1, 3), EntryNote::default());
}

/// A packet record of an entry's packet in the reply direction (`IP_CT_ESTABLISHED_REPLY`).
fn reply(hook: Hook, kind: u8, packet: &[u8; PACKET_HEAD_BYTES]) -> Vec<u8> {
    let mut record = header(hook, kind);
    record.extend([1_u64, 0xff11_0000_dead_beef].map(u64::to_ne_bytes).as_flattened());
    record.extend([3, MISSING, 0, 0].map(u32::to_ne_bytes).as_flattened());
    record.extend(packet);
    let confirmed = confirm();
    record.extend(&confirmed[confirmed.len() - CT_HEAD_BYTES..]);
    record
}

const INVALID: &str = "SEQ is over upper bound %u (over the window of the receiver)";

#[test]
fn an_invalid_packet_has_a_reason() {
    let mut record = reply(Hook::InvalidLog, 5, &[0; PACKET_HEAD_BYTES]);
    let mut why = [0; WHY_BYTES];
    why[..INVALID.len()].copy_from_slice(INVALID.as_bytes());
    // The bytes after the NUL belong to another string.
    why[WHY_BYTES - 1] = b'x';
    record.extend(why);
    let Fact::Packet(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    assert_eq!(fact.reason.as_deref(), Some(INVALID));
    assert_eq!(fact.original_direction, Some(false));
    assert_eq!(fact.ct.unwrap().orig, client_to_vip());
    record.pop();
    assert!(matches!(decoder().decode(&record), Err(DecodeError::WrongLength { kind: 5, .. })));
}

#[test]
fn an_icmp_error_has_its_type_code_and_sender() {
    let mut packet = [0_u8; PACKET_HEAD_BYTES];
    packet[0] = 0x45;
    packet[9] = 1;
    packet[12..16].copy_from_slice(&[10, 244, 2, 53]);
    packet[16..20].copy_from_slice(&[10, 244, 1, 100]);
    packet[20..22].copy_from_slice(&[3, 3]);
    let record = reply(Hook::IcmpError, 2, &packet);
    let Fact::Packet(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    assert_eq!((fact.reason.as_deref(), fact.icmp_code), (Some("DEST_UNREACH"), Some(3)));
    assert_eq!(fact.tuple.unwrap().src.ip(), addr("10.244.2.53:0").ip());
}

#[test]
fn an_icmpv6_error_has_the_same_in_its_own_numbers() {
    let mut packet = [0_u8; PACKET_HEAD_BYTES];
    packet[0] = 0x60;
    packet[6] = 58;
    packet[8..24].copy_from_slice(&"fd00:244:2::35".parse::<Ipv6Addr>().unwrap().octets());
    packet[24..40].copy_from_slice(&"fd00:244:1::64".parse::<Ipv6Addr>().unwrap().octets());
    for (kind, code, name) in
        [(1, 4, "DEST_UNREACH"), (3, 0, "TIME_EXCEED"), (2, 0, "PKT_TOOBIG"), (200, 9, "other")]
    {
        packet[40..42].copy_from_slice(&[kind, code]);
        let record = reply(Hook::IcmpError6, 2, &packet);
        let Fact::Packet(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
        assert_eq!((fact.reason.as_deref(), fact.icmp_code), (Some(name), Some(code)));
        assert_eq!(fact.tuple.unwrap().src.ip(), addr("[fd00:244:2::35]:0").ip());
    }
    // An error after an extension header is not decoded.
    packet[6] = 0;
    let record = reply(Hook::IcmpError6, 2, &packet);
    let Fact::Packet(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    assert_eq!((fact.reason, fact.icmp_code), (None, None));
}

#[test]
fn a_listed_entry_has_its_own_record() {
    let orig = Tuple::new(Protocol::UDP, addr("10.244.1.100:40000"), addr("10.96.0.10:53"));
    let reply = Tuple::new(Protocol::UDP, addr("10.244.1.53:53"), addr("10.244.1.100:40000"));
    let read_at = Timestamp::from_unix_secs(1_000);
    let last_packet = Some(Timestamp::from_unix_secs(988));
    let ct = Conntrack { id: 0, zone: 7, status: Status(0x1a8), orig, reply };
    let listed = ListedEntry { ct, read_at, last_packet };
    let (sighting, record) = decoder().listed(&listed, Netns(4)).unwrap();
    assert_eq!(decoder().decode(record.as_ref()).unwrap(), sighting);
    assert_eq!((sighting.time, sighting.hook, sighting.netns), (read_at, Hook::EntryReread, Netns(4)));
    let Fact::Conntrack(fact) = sighting.fact else { unreachable!() };
    assert_eq!((fact.ct, fact.note.last_packet), (ct, last_packet));
}

#[test]
fn a_dropped_packet_has_its_reason_its_addresses_and_the_full_table() {
    let mut packet = [0_u8; PACKET_HEAD_BYTES];
    packet[0] = 0x45;
    packet[9] = 6;
    packet[12..16].copy_from_slice(&[10, 244, 1, 100]);
    packet[16..20].copy_from_slice(&[10, 96, 10, 10]);
    packet[20..22].copy_from_slice(&40_000_u16.to_be_bytes());
    packet[22..24].copy_from_slice(&80_u16.to_be_bytes());
    packet[33] = 2;
    let mut record = header(Hook::KfreeSkb, 2);
    record.extend([1_u64, 0].map(u64::to_ne_bytes).as_flattened());
    record.extend([u32::MAX, 7, 0, 1].map(u32::to_ne_bytes).as_flattened());
    record.extend(packet);
    record.extend([0; CT_HEAD_BYTES]);
    let Fact::Packet(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    assert_eq!(fact.tuple, Some(client_to_vip()));
    assert_eq!((fact.tcp_flags, fact.table_full, fact.original_direction), (2, true, None));
    assert_eq!(fact.reason.as_deref(), Some("NETFILTER_DROP"));
    assert_eq!((fact.ct, fact.site), (None, None));
    // Where the kernel gives no reason, the function that dropped the packet stands for one.
    let at = |site: u32| {
        let mut record = record.clone();
        record[36..40].copy_from_slice(&u32::MAX.to_ne_bytes());
        record[44..48].copy_from_slice(&(site << SITE_SHIFT).to_ne_bytes());
        let Fact::Packet(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
        (fact.reason, fact.site)
    };
    assert_eq!(at(DropSite::NfHookSlow as u32), (Some("NETFILTER_DROP".into()), Some("nf_hook_slow")));
    assert_eq!(at(DropSite::IpForward as u32), (None, Some("ip_forward")));
    assert_eq!((at(0), at(200)), ((None, None), (None, None)));
    for (position, site) in DropSite::ALL.into_iter().enumerate() {
        assert_eq!(site as usize, position + 1, "a recording's number changed");
    }
}

#[test]
fn a_client_socket_names_the_vip_as_its_peer() {
    let mut head = [0_u8; SOCK_HEAD_BYTES];
    head[0..4].copy_from_slice(&[10, 96, 10, 10]);
    head[4..8].copy_from_slice(&[10, 244, 1, 100]);
    head[12..14].copy_from_slice(&80_u16.to_be_bytes());
    head[14..16].copy_from_slice(&40_000_u16.to_ne_bytes());
    head[16..18].copy_from_slice(&2_u16.to_ne_bytes());
    let mut record = header(Hook::SockEstablished, 3);
    record.extend(9_u64.to_ne_bytes());
    record.extend([2, 1]);
    record.extend(6_u16.to_ne_bytes());
    record.extend(u32::MAX.to_ne_bytes());
    record.extend([0; 40]);
    record.extend(head);
    let Fact::Socket(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    assert_eq!(fact.tuple, client_to_vip());
    assert_eq!(fact.event, SocketEvent::State { old: TcpState::SynSent, new: TcpState::Established });
    assert_eq!(fact.task, None);
}

#[test]
fn a_closed_socket_has_its_counts() {
    let mut head = [0_u8; SOCK_HEAD_BYTES];
    head[0..4].copy_from_slice(&[10, 96, 10, 10]);
    head[4..8].copy_from_slice(&[10, 244, 1, 100]);
    head[12..14].copy_from_slice(&80_u16.to_be_bytes());
    head[14..16].copy_from_slice(&40_000_u16.to_ne_bytes());
    head[16..18].copy_from_slice(&2_u16.to_ne_bytes());
    let mut record = header(Hook::SockClosed, 3);
    record.extend(9_u64.to_ne_bytes());
    record.extend([5, 7]);
    record.extend(6_u16.to_ne_bytes());
    record.extend(u32::MAX.to_ne_bytes());
    record.extend([120_u64, 456].map(u64::to_ne_bytes).as_flattened());
    record.extend([0; 24]);
    record.extend(head);
    let mut older = record.clone();
    older[72 + 14..72 + 16].fill(0);
    older[52..54].copy_from_slice(&40_000_u16.to_be_bytes());
    let Fact::Socket(fact) = decoder().decode(&older).unwrap().fact else { unreachable!() };
    assert_eq!(fact.tuple, client_to_vip(), "the socket has given its port back");
    let Fact::Socket(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
    assert_eq!(fact.tuple, client_to_vip());
    assert_eq!(fact.event, SocketEvent::State { old: TcpState::FinWait2, new: TcpState::Close });
    assert_eq!((fact.bytes_acked, fact.bytes_received), (120, 456));
    // A retransmit has the length of its segment, if the kernel half read it.
    record[14] = Hook::TcpRetransmit as u8;
    for (reason, bytes) in [(u32::MAX, None), (1398, Some(1398))] {
        record[28..32].copy_from_slice(&reason.to_ne_bytes());
        let Fact::Socket(fact) = decoder().decode(&record).unwrap().fact else { unreachable!() };
        assert_eq!(fact.event, SocketEvent::Retransmit { state: TcpState::Close, bytes });
    }
}

#[test]
fn a_real_server_that_ipvs_chose() {
    let mut record = header(Hook::IpVsConnNew, 8);
    record.extend(0x1000_u32.to_ne_bytes());
    record.extend([2_u16, 2].map(u16::to_ne_bytes).as_flattened());
    for ip in [[10, 244, 1, 100], [10, 96, 10, 10], [10, 244, 1, 11]] {
        record.extend(ip);
        // The bytes after an IPv4 address in the kernel's union are undefined.
        record.extend([0x5a; 12]);
    }
    record.extend([40_000_u16, 80, 8080].map(u16::to_be_bytes).as_flattened());
    record.extend(6_u16.to_ne_bytes());
    let sighting = decoder().decode(&record).unwrap();
    let Fact::Ipvs(fact) = sighting.fact else { unreachable!() };
    assert_eq!((sighting.hook, fact.tuple), (Hook::IpVsConnNew, client_to_vip()));
    assert_eq!(fact.destination, addr("10.244.1.11:8080"));
    assert!(fact.flags.has(IpvsFlags::TEMPLATE));
    record[20] = 7;
    assert_eq!(decoder().decode(&record), Err(DecodeError::Unreadable));
}

#[test]
fn a_short_record_or_an_unknown_kind_is_an_error() {
    let whole = confirm();
    assert_eq!(decoder().decode(&whole[..9]), Err(DecodeError::NoHeader { length: 9 }));
    assert_eq!(
        decoder().decode(&whole[..100]),
        Err(DecodeError::WrongLength { kind: 1, length: 100, expected: whole.len() })
    );
    let mut other = whole;
    other[15] = 9;
    assert_eq!(decoder().decode(&other), Err(DecodeError::UnknownKind { kind: 9 }));
}

#[test]
fn a_layout_without_a_needed_field_reads_nothing() {
    let decoder = Decoder::new(Arc::new(Layout::from_parts([("CT_ORIG", 32)], [], [])), 0);
    assert_eq!(decoder.decode(&confirm()), Err(DecodeError::Unreadable));
}

/// The addresses of a record are those of its sighting, and are missing for the same reason.
pub(crate) fn agrees_with_its_addresses(decoder: &Decoder, record: &[u8]) {
    let addresses = decoder.addresses(record);
    match decoder.decode(record) {
        Ok(sighting) => {
            let tuples = match sighting.fact {
                Fact::Conntrack(fact) => Some([Some(fact.ct.orig), Some(fact.ct.reply)]),
                Fact::Socket(fact) => Some([Some(fact.tuple), None]),
                Fact::Packet(_) | Fact::Ipvs(_) | Fact::TableFull { .. } => None,
            };
            assert_eq!(addresses, Ok(tuples.map(|tuples| (sighting.time, tuples))));
        }
        Err(error) => assert!(addresses == Err(error) || addresses == Ok(None), "{error}: {addresses:?}"),
    }
}

proptest! {
    #[test]
    fn a_listed_entry_reads_back(
        (client, vip, endpoint) in any::<(SocketAddr, SocketAddr, SocketAddr)>(),
        (zone, status, protocol, netns) in any::<(u16, u32, u8, u32)>(),
        read_at in 10_000..4_000_000_000_u64,
        idle in proptest::option::of(0..9_000_u64),
    ) {
        // One family and no scope: a tuple can have only these.
        let of_client = |end: SocketAddr| match (client, end) {
            (SocketAddr::V4(_), SocketAddr::V6(v6)) => {
                let [.., a, b, c, d] = v6.ip().octets();
                SocketAddr::from(([a, b, c, d], v6.port()))
            }
            (SocketAddr::V6(_), SocketAddr::V4(v4)) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            (_, end) => SocketAddr::new(end.ip(), end.port()),
        };
        let (client, vip, endpoint) = (of_client(client), of_client(vip), of_client(endpoint));
        let orig = Tuple::new(Protocol(protocol), client, vip);
        let reply = Tuple::new(Protocol(protocol), endpoint, client);
        let ct = Conntrack { id: 0, zone, status: Status(status), orig, reply };
        let read_at = Timestamp::from_unix_secs(read_at);
        let last_packet = idle.map(|idle| read_at.saturating_sub(std::time::Duration::from_secs(idle)));
        let written = ListedEntry { ct, read_at, last_packet };
        let (told, record) = decoder().listed(&written, Netns(netns)).unwrap();
        let read = decoder().decode(record.as_ref()).unwrap();
        prop_assert_eq!(&read, &told);
        prop_assert_eq!((read.time, read.netns, read.hook), (read_at, Netns(netns), Hook::EntryReread));
        let Fact::Conntrack(fact) = read.fact else { unreachable!() };
        prop_assert_eq!(fact.ct, ct);
        prop_assert_eq!(fact.note.last_packet, last_packet);
    }

    /// For any bytes and any hostile layout, decoding returns a sighting or an error.
    #[test]
    fn no_record_and_no_layout_can_panic_the_decoder(
        mut record in proptest::collection::vec(any::<u8>(), 0..320),
        kind in 0_u8..10,
        hook in 0_u8..32,
        length in prop_oneof![Just(208_usize), Just(264), Just(160), Just(80), Just(24), 0_usize..320],
        offsets in proptest::collection::vec(any::<u32>(), OFFSETS.len()),
    ) {
        record.resize(length, 0x5a);
        if record.len() > 15 {
            record[14] = hook;
            record[15] = kind;
        }
        let names = OFFSETS.iter().map(|(name, _)| *name);
        let wild = Layout::from_parts(names.zip(offsets), [], []);
        agrees_with_its_addresses(&Decoder::new(Arc::new(wild), u64::MAX), &record);
        agrees_with_its_addresses(&decoder(), &record);
    }
}
