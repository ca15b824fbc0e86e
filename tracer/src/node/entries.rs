//! UDP entries of conntrack, as ctnetlink lists them: those older than the trace, and the use of those that it knows.
//!
//! Only reads, through a netlink socket of viptrace's network namespace, with a bound on bytes and time. The caller
//! selects entries. Message formats: `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

use crate::{
    net::{Protocol, Tuple},
    node::{
        Limits,
        loaded::Part,
        netlink::{self, Attributes, address, u16_be, u32_be},
        now, procfs,
    },
    sighting::{Conntrack, ListedEntry, Status},
    time::Timestamp,
};

/// The most bytes read: 64 MiB hold some 300,000 entries.
pub const LIMITS: Limits = Limits { time: Duration::from_secs(3), bytes: 64 << 20 };

/// `struct nfgenmsg`.
const FAMILY_BYTES: usize = 4;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const CT_GET: u16 = 0x0101;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`: the type of a dump's entries.
const CT_NEW: u16 = 0x0100;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_TIMEOUT: u16 = 7;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
/// Of a tuple: `CTA_TUPLE_PROTO`, and in it `CTA_PROTO_NUM`.
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
/// Of a filter: `CTA_FILTER_ORIG_FLAGS`, with `CTA_FILTER_F_CTA_PROTO_NUM` (`net/netfilter/nf_internals.h`).
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const BY_PROTOCOL: u32 = 1 << 3;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The lifetimes of UDP entries after their last packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeouts {
    /// `nf_conntrack_udp_timeout`: until packets have passed in both directions for two seconds.
    pub single: Option<Duration>,
    /// `nf_conntrack_udp_timeout_stream`: of an assured entry from then on (`nf_conntrack_udp_packet`).
    pub stream: Option<Duration>,
}

impl Timeouts {
    fn read(proc: &Path) -> Self {
        let seconds = |name: &str| {
            let text = procfs::read_text(&proc.join("sys/net/netfilter").join(name)).ok()?;
            text.trim().parse().ok().map(Duration::from_secs)
        };
        Self {
            single: seconds("nf_conntrack_udp_timeout"),
            stream: seconds("nf_conntrack_udp_timeout_stream"),
        }
    }

    /// The time since the last packet of an entry that lives for another `left`; `None` if it has another timeout.
    fn idle(self, status: Status, left: Duration) -> Option<Duration> {
        let whole = if status.has(Status::ASSURED) { self.stream } else { self.single };
        whole?.checked_sub(left)
    }
}

/// Lists the UDP entries of this namespace, both families. `root` contains `/proc` and `/sys`.
pub fn datagrams(root: &Path, limits: Limits) -> io::Result<Vec<ListedEntry>> {
    Part::Ctnetlink.require(root).map_err(|reason| io::Error::new(io::ErrorKind::Unsupported, reason))?;
    let timeouts = Timeouts::read(&root.join("proc"));
    let mut entries = Vec::new();
    for family in [AF_INET, AF_INET6] {
        // An incomplete list is better than none.
        let _whole = netlink::ask(netlink::NETLINK_NETFILTER, &request(family), limits, |datagram| {
            parse(datagram, now(), timeouts, &mut entries)
        })?;
    }
    Ok(entries)
}

/// Requests all UDP entries of the family. A kernel that cannot filter (before 5.8) sends all protocols.
fn request(family: u8) -> Vec<u8> {
    let nested = |kind: u16, body: &[u8]| netlink::attribute(kind | netlink::NESTED, body);
    let protocol = netlink::attribute(CTA_PROTO_NUM, &[Protocol::UDP.0]);
    // `struct nfgenmsg`: the family, version 0.
    let mut body = vec![family, 0, 0, 0];
    body.extend(nested(CTA_TUPLE_ORIG, &nested(CTA_TUPLE_PROTO, &protocol)));
    let flags = netlink::attribute(CTA_FILTER_ORIG_FLAGS, &BY_PROTOCOL.to_ne_bytes());
    body.extend(nested(CTA_FILTER, &flags));
    netlink::message(CT_GET, netlink::DUMP, &body)
}

/// Reads the messages of one datagram; returns whether the dump ends with it.
///
/// # Errors
///
/// The kernel answered with an error, or a message is truncated.
pub fn parse(
    datagram: &[u8],
    read_at: Timestamp,
    timeouts: Timeouts,
    into: &mut Vec<ListedEntry>,
) -> io::Result<bool> {
    netlink::messages(datagram, |kind, body| {
        if kind == CT_NEW {
            into.extend(body.get(FAMILY_BYTES..).and_then(|entry| listed(entry, read_at, timeouts)));
        }
    })
}

fn listed(entry: &[u8], read_at: Timestamp, timeouts: Timeouts) -> Option<ListedEntry> {
    let (mut orig, mut reply, mut status, mut left, mut zone) = (None, None, None, None, 0);
    for (kind, value) in Attributes(entry) {
        match kind {
            CTA_TUPLE_ORIG => orig = tuple(value),
            CTA_TUPLE_REPLY => reply = tuple(value),
            CTA_STATUS => status = u32_be(value),
            CTA_TIMEOUT => left = u32_be(value),
            CTA_ZONE => zone = u16_be(value).unwrap_or(0),
            _ => {}
        }
    }
    let (orig, status) = (orig?, Status(status?));
    if orig.protocol != Protocol::UDP {
        return None;
    }
    let idle = left.and_then(|left| timeouts.idle(status, Duration::from_secs(left.into())));
    let last_packet = idle.map(|idle| read_at.saturating_sub(idle));
    let ct = Conntrack { id: 0, zone, status, orig, reply: reply? };
    Some(ListedEntry { ct, read_at, last_packet })
}

fn tuple(attribute: &[u8]) -> Option<Tuple> {
    let (mut src, mut dst, mut protocol, mut ports) = (None, None, None, (None, None));
    for (kind, value) in Attributes(attribute) {
        for (inner, value) in Attributes(value) {
            match (kind, inner) {
                (1, 1 | 3) => src = address(value),
                (1, 2 | 4) => dst = address(value),
                (2, 1) => protocol = value.first().copied(),
                (2, 2) => ports.0 = u16_be(value),
                (2, 3) => ports.1 = u16_be(value),
                _ => {}
            }
        }
    }
    let end = |ip: Option<IpAddr>, port: Option<u16>| Some(SocketAddr::new(ip?, port?));
    Some(Tuple::new(Protocol(protocol?), end(src, ports.0)?, end(dst, ports.1)?))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        net::TransportAddr,
        node::netlink::{NLMSG_DONE, NLMSG_ERROR, attribute},
    };

    fn tuple_attribute(kind: u16, src: &str, dst: &str) -> Vec<u8> {
        let end = |text: &str| text.parse::<SocketAddrV4>().unwrap();
        let (src, dst) = (end(src), end(dst));
        let ip = [attribute(1, &src.ip().octets()), attribute(2, &dst.ip().octets())].concat();
        let proto = [
            attribute(1, &[17]),
            attribute(2, &src.port().to_be_bytes()),
            attribute(3, &dst.port().to_be_bytes()),
        ]
        .concat();
        attribute(kind | 0x8000, &[attribute(0x8001, &ip), attribute(0x8002, &proto)].concat())
    }

    const TIMEOUTS: Timeouts =
        Timeouts { single: Some(Duration::from_secs(30)), stream: Some(Duration::from_mins(2)) };

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        netlink::message(kind, 0, body)
    }

    fn entry(status: u32) -> Vec<u8> {
        let body = [
            vec![2, 0, 0, 0],
            tuple_attribute(1, "10.244.1.100:40000", "10.96.0.10:53"),
            tuple_attribute(2, "10.244.1.7:5353", "10.244.1.100:40000"),
            attribute(3, &status.to_be_bytes()),
            attribute(7, &28_u32.to_be_bytes()),
        ];
        message(CT_NEW, &body.concat())
    }

    fn read(datagram: &[u8]) -> (bool, Vec<ListedEntry>) {
        let mut entries = Vec::new();
        let at = Timestamp::from_unix_ns(100_000_000_000);
        let done = parse(datagram, at, TIMEOUTS, &mut entries).unwrap();
        (done, entries)
    }

    #[test]
    fn no_module_is_loaded() {
        let root = tempfile::tempdir().unwrap();
        let error = datagrams(root.path(), LIMITS).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("nf_conntrack_netlink"), "{error}");
    }

    #[test]
    fn the_time_left_shows_when_the_last_packet_came() {
        let (done, entries) = read(&[entry(0x1a8), message(NLMSG_DONE, &[0; 4])].concat());
        assert!(done);
        let [entry] = entries.as_slice() else { panic!("one entry: {entries:?}") };
        assert_eq!(entry.ct.orig.dst, "10.96.0.10:53".parse().unwrap());
        assert_eq!(entry.ct.endpoint(), Some("10.244.1.7:5353".parse().unwrap()));
        assert_eq!(entry.last_packet, Some(Timestamp::from_unix_ns(98_000_000_000)));
    }

    #[test]
    fn an_assured_entry_lives_longer() {
        // 28 s are left of 120 s.
        let (_, entries) = read(&entry(0x1ae));
        let [assured] = entries.as_slice() else { panic!("one entry: {entries:?}") };
        assert_eq!(assured.last_packet, Some(Timestamp::from_unix_ns(8_000_000_000)));
        // More than its timeout is left: it has another.
        let short = Timeouts { single: Some(Duration::from_secs(10)), stream: None };
        for status in [0x1a8, 0x1ae] {
            let mut entries = Vec::new();
            parse(&entry(status), Timestamp::from_unix_secs(100), short, &mut entries).unwrap();
            assert_eq!(entries[0].last_packet, None);
        }
    }

    #[test]
    fn errors_are_errors() {
        let refused = message(NLMSG_ERROR, &(-1_i32).to_ne_bytes());
        let error = parse(&refused, Timestamp::MIN, TIMEOUTS, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(1));
    }

    /// The fuzzer's seed is up to date; `VIPTRACE_BLESS=1` rewrites it.
    #[test]
    fn the_corpus_has_such_a_dump() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/datagrams.ctnetlink");
        let dump = [entry(0x1a8), entry(0x1aa), message(NLMSG_DONE, &[0; 4])].concat();
        if std::env::var_os("VIPTRACE_BLESS").is_some() {
            std::fs::write(&path, &dump).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), dump);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = parse(&bytes, Timestamp::MIN, TIMEOUTS, &mut Vec::new());
        }

        #[test]
        fn what_is_written_is_read(
            ends in proptest::collection::vec((any::<SocketAddrV4>(), any::<SocketAddrV4>(), any::<SocketAddrV4>(), any::<bool>(), 0..=30_u32), 0..6),
        ) {
            let mut dump = Vec::new();
            for (client, vip, endpoint, answered, left) in &ends {
                let status = 0x1a8 | u32::from(*answered) << 1;
                let body = [
                    vec![2, 0, 0, 0],
                    tuple_attribute(1, &client.to_string(), &vip.to_string()),
                    tuple_attribute(2, &endpoint.to_string(), &client.to_string()),
                    attribute(3, &status.to_be_bytes()),
                    attribute(7, &left.to_be_bytes()),
                ];
                dump.extend(message(CT_NEW, &body.concat()));
            }
            dump.extend(message(NLMSG_DONE, &[0; 4]));
            let (done, entries) = read(&dump);
            prop_assert!(done);
            let read: Vec<_> = entries
                .iter()
                .map(|entry| (entry.ct.orig.src, entry.ct.orig.dst, entry.ct.reply.src, entry.last_packet.unwrap()))
                .collect();
            let written: Vec<_> = ends
                .into_iter()
                .map(|(client, vip, endpoint, _, left)| {
                    let last = Timestamp::from_unix_secs(100 - 30 + u64::from(left));
                    let plain = |end: SocketAddrV4| TransportAddr::from(SocketAddr::from(end));
                    (plain(client), plain(vip), plain(endpoint), last)
                })
                .collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn a_damaged_dump_is_read_to_an_end(at in 0_usize..200, byte: u8) {
            let mut datagram = [entry(0x1a8), entry(0x1a8)].concat();
            let length = datagram.len();
            datagram[at % length] = byte;
            let _ = parse(&datagram, Timestamp::MIN, Timeouts::default(), &mut Vec::new());
        }
    }
}
