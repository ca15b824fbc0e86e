//! Conntrack entries that are older than the trace, as ctnetlink lists them: UDP without an answer.
//!
//! Reads only, through a netlink socket of the namespace that viptrace runs in, with a bound on bytes and on time. Which
//! of them matter is not decided here. Message formats: `include/uapi/linux/netfilter/nfnetlink_conntrack.h`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

use crate::{
    node::{Limits, now, procfs},
    sighting::{Conntrack, Protocol, Status, Tuple},
    time::Timestamp,
};

/// One entry without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldEntry {
    /// Its kernel address is not told: `id` is 0.
    pub ct: Conntrack,
    pub read_at: Timestamp,
    /// When its last packet came, to the second: its timeout begins anew with each. `None` where the timeout is not known.
    pub last_packet: Option<Timestamp>,
}

/// What is read at most: 64 MiB hold some 300,000 entries.
pub const LIMITS: Limits = Limits { time: Duration::from_secs(3), bytes: 64 << 20 };

const HEADER_BYTES: usize = 16;
/// `struct nfgenmsg`.
const FAMILY_BYTES: usize = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`.
const CT_GET: u16 = 0x0101;
/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW`: what a dump's entries come as.
const CT_NEW: u16 = 0x0100;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x0301;
/// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` are no part of an attribute's type.
const TYPE_MASK: u16 = 0x3fff;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_TIMEOUT: u16 = 7;
const CTA_ZONE: u16 = 18;
const CTA_STATUS_MASK: u16 = 26;

/// Lists the UDP entries of this namespace, both families, that have seen no answer.
pub fn unanswered_datagrams(proc: &Path, limits: Limits) -> io::Result<Vec<OldEntry>> {
    if !is_ready(proc) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the module nf_conntrack_netlink is not loaded, and asking would load it",
        ));
    }
    let timeout = udp_timeout(proc);
    let begun = Instant::now();
    let socket = Socket::new(NETLINK_NETFILTER)?;
    socket.send(&request(), 0)?;
    let mut entries = Vec::new();
    let mut bytes = 0_usize;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        bytes = bytes.saturating_add(datagram.len());
        if parse(&datagram, now(), timeout, &mut entries)? {
            return Ok(entries);
        }
        if datagram.is_empty() || bytes > limits.bytes || begun.elapsed() > limits.time {
            // The first ones are better than none.
            return Ok(entries);
        }
    }
}

/// Whether ctnetlink answers without a module being loaded for it: it is loaded, or conntrack is built in, and ctnetlink
/// with it. Nothing is changed on the node.
fn is_ready(proc: &Path) -> bool {
    let modules = procfs::read_text(&proc.join("modules")).unwrap_or_default();
    let loaded = |name| modules.lines().any(|line| line.split_whitespace().next() == Some(name));
    loaded("nf_conntrack_netlink") || !loaded("nf_conntrack")
}

/// `nf_conntrack_udp_timeout`: how long an entry without an answer lives after its last packet.
fn udp_timeout(proc: &Path) -> Option<Duration> {
    let text = procfs::read_text(&proc.join("sys/net/netfilter/nf_conntrack_udp_timeout")).ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// Asks for all entries without `IPS_SEEN_REPLY`; a kernel that does not know the mask sends all.
fn request() -> Vec<u8> {
    let mut message = Vec::with_capacity(64);
    let attributes = [(CTA_STATUS, 0_u32), (CTA_STATUS_MASK, Status::SEEN_REPLY)];
    let length = HEADER_BYTES + FAMILY_BYTES + attributes.len() * 8;
    message.extend((length as u32).to_ne_bytes());
    message.extend(CT_GET.to_ne_bytes());
    message.extend(DUMP.to_ne_bytes());
    message.extend([0; 8]); // sequence number and port
    message.extend([0; FAMILY_BYTES]); // both families, version 0
    for (kind, value) in attributes {
        message.extend(8_u16.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value.to_be_bytes());
    }
    message
}

/// Reads the messages of one datagram; whether the dump ends with it. `timeout` is how long an entry without an answer
/// lives after its last packet, where that is known.
///
/// # Errors
///
/// What the kernel answered instead of entries, or a message that is cut off.
pub fn parse(
    mut rest: &[u8],
    read_at: Timestamp,
    timeout: Option<Duration>,
    into: &mut Vec<OldEntry>,
) -> io::Result<bool> {
    while let Some(length) = u32_ne(rest, 0) {
        // Less than a header would never end.
        let length = (length as usize).max(HEADER_BYTES);
        let (Some(kind), Some(body)) = (u16_ne(rest, 4), rest.get(HEADER_BYTES..length)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a netlink message is cut off"));
        };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = u32_ne(body, 0).map_or(0, u32::cast_signed);
                return if code == 0 {
                    Ok(true)
                } else {
                    Err(io::Error::from_raw_os_error(code.saturating_neg()))
                };
            }
            CT_NEW => {
                into.extend(body.get(FAMILY_BYTES..).and_then(|entry| old_entry(entry, read_at, timeout)));
            }
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

fn old_entry(entry: &[u8], read_at: Timestamp, timeout: Option<Duration>) -> Option<OldEntry> {
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
    if orig.protocol != Protocol::UDP || status.has(Status::SEEN_REPLY) {
        return None;
    }
    let last_packet = match (timeout, left) {
        (Some(timeout), Some(left)) => {
            timeout.checked_sub(Duration::from_secs(left.into())).map(|idle| read_at.saturating_sub(idle))
        }
        _ => None,
    };
    let ct = Conntrack { id: 0, zone, status, orig, reply: reply? };
    Some(OldEntry { ct, read_at, last_packet })
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

fn address(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|v6| Ipv6Addr::from(v6).into())
}

/// Type and value of each attribute, as long as they are whole.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_ne(self.0, 0)?);
        let kind = u16_ne(self.0, 2)? & TYPE_MASK;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_ne(from: &[u8], at: usize) -> Option<u16> {
    bytes(from, at).map(u16::from_ne_bytes)
}

fn u32_ne(from: &[u8], at: usize) -> Option<u32> {
    bytes(from, at).map(u32::from_ne_bytes)
}

fn u16_be(from: &[u8]) -> Option<u16> {
    bytes(from, 0).map(u16::from_be_bytes)
}

fn u32_be(from: &[u8]) -> Option<u32> {
    bytes(from, 0).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

    use std::net::SocketAddrV4;

    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(((value.len() + 4) as u16).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(aligned(out.len()), 0);
        out
    }

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

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend([0; 10]);
        out.extend(body);
        out
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

    fn read(datagram: &[u8]) -> (bool, Vec<OldEntry>) {
        let mut entries = Vec::new();
        let at = Timestamp::from_unix_ns(100_000_000_000);
        let done = parse(datagram, at, Some(Duration::from_secs(30)), &mut entries).unwrap();
        (done, entries)
    }

    #[test]
    fn no_module_is_loaded_for_the_asking() {
        let proc = tempfile::tempdir().unwrap();
        let modules = |text: &str| std::fs::write(proc.path().join("modules"), text).unwrap();
        assert!(is_ready(proc.path()));
        modules("nf_conntrack 200704 3 nf_nat,xt_conntrack, Live 0x0\n");
        assert!(!is_ready(proc.path()));
        let error = unanswered_datagrams(proc.path(), LIMITS).unwrap_err();
        assert!(error.to_string().contains("nf_conntrack_netlink"));
        modules("nf_conntrack_netlink 61440 0 - Live 0x0\nnf_conntrack 200704 4 nf_nat, Live 0x0\n");
        assert!(is_ready(proc.path()));
    }

    #[test]
    fn an_entry_without_an_answer_tells_when_its_last_packet_came() {
        let (done, entries) = read(&[entry(0x1a8), message(NLMSG_DONE, &[0; 4])].concat());
        assert!(done);
        let [entry] = entries.as_slice() else { panic!("one entry: {entries:?}") };
        assert_eq!(entry.ct.orig.dst, "10.96.0.10:53".parse().unwrap());
        assert_eq!(entry.ct.endpoint(), Some("10.244.1.7:5353".parse().unwrap()));
        assert_eq!(entry.last_packet, Some(Timestamp::from_unix_ns(98_000_000_000)));
    }

    #[test]
    fn answered_entries_are_left_out_and_errors_are_errors() {
        assert_eq!(read(&entry(0x1aa)), (false, Vec::new()));
        let refused = message(NLMSG_ERROR, &(-1_i32).to_ne_bytes());
        let error = parse(&refused, Timestamp::MIN, None, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(1));
    }

    /// What fuzzing begins with; `VIPTRACE_BLESS=1` writes it anew.
    #[test]
    fn the_corpus_has_such_a_dump() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/unanswered-datagrams.ctnetlink");
        let dump = [entry(0x1a8), entry(0x1aa), message(NLMSG_DONE, &[0; 4])].concat();
        if std::env::var_os("VIPTRACE_BLESS").is_some() {
            std::fs::write(&path, &dump).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), dump);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = parse(&bytes, Timestamp::MIN, Some(Duration::from_secs(30)), &mut Vec::new());
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
                .filter(|(.., answered, _)| !answered)
                .map(|(client, vip, endpoint, _, left)| {
                    let last = Timestamp::from_unix_secs(100 - 30 + u64::from(left));
                    (client.into(), vip.into(), endpoint.into(), last)
                })
                .collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn a_damaged_dump_is_read_to_an_end(at in 0_usize..200, byte: u8) {
            let mut datagram = [entry(0x1a8), entry(0x1a8)].concat();
            let length = datagram.len();
            datagram[at % length] = byte;
            let _ = parse(&datagram, Timestamp::MIN, None, &mut Vec::new());
        }
    }
}
