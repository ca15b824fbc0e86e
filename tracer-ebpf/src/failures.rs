//! An agent's failures: those that concern a Service are reported, within limits, after the decisions of their connection.
//!
//! Failures of one client at one Service share a token bucket, so that a client in a loop leaves the others their room,
//! and so do those of all clients at one Service, because a client can invent addresses. A connection whose decision is
//! kept takes one token for all its failures: one half of them would explain nothing.
//!
//! The verifier checks the functions with a C name by themselves, once for each program that calls them, where the object's
//! BTF is loaded: it would otherwise walk through them on each of the many paths that lead there, a hundred thousand
//! instructions for one program. They take numbers, as every kernel since 5.6 allows, so an end is passed in three words.

use aya_ebpf::{Global, macros::map, maps::LruHashMap};
use tracer_ebpf::{Bucket, BucketKey, End, Hook, MISSING, SUPPRESSED_EVENTS};

use crate::{
    choices, conntrack,
    filter::AF_INET6,
    globals, output,
    recorder::{self, IPPROTO_TCP, SUPPRESSED, Standing, add_one, now},
};

/// Resized by user space: without a recorder it has room for one entry.
#[map]
static BUCKETS: LruHashMap<BucketKey, Bucket> = LruHashMap::with_max_entries(1, 0);

/// What one event costs in a bucket, nanoseconds.
#[unsafe(no_mangle)]
static BUCKET_EVENT_NS: Global<u64> = Global::new(0);
/// The most that a bucket holds, nanoseconds.
#[unsafe(no_mangle)]
static BUCKET_FULL_NS: Global<u64> = Global::new(0);

/// All clients at one Service together may cause this many times the failures of one.
const SHARE_OF_CLIENT: u64 = 10;

/// A failure, by the ends of its connection.
struct Failure {
    /// A [`Hook`]'s number.
    hook: u32,
    /// 0 where there is none.
    reason: u32,
    netns: u32,
    /// The client where that is known, otherwise the packet's source or the socket's own end.
    first: End,
    second: End,
    /// The endpoint, where it is another than the second.
    third: End,
}

/// An address in two words, and a port with its protocol in a third.
type Words = (u64, u64, u32);

#[inline(always)]
fn words(end: &End) -> Words {
    let [a, b, c, d] = end.address.map(u64::from);
    (a | b << 32, c | d << 32, u32::from(end.port) | u32::from(end.protocol) << 16)
}

#[inline(always)]
fn address(low: u64, high: u64) -> [u32; 4] {
    [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
}

#[inline(always)]
fn end((low, high, port): Words) -> End {
    End { address: address(low, high), port: port as u16, protocol: (port >> 16) as u16 }
}

/// Whether a failure is to be reported: it concerns a Service, and its bucket has room. The decisions of its connection
/// are reported first, and stay where the failure does.
#[inline(always)]
fn admits(failure: &Failure) -> bool {
    let (first, second, third) = (words(&failure.first), words(&failure.second), words(&failure.third));
    let mut known = standing(first.0, first.1, first.2);
    if known == Standing::Unknown as u32 {
        known = standing(second.0, second.1, second.2);
    }
    if known == Standing::Reported as u32 {
        return true;
    }
    let service = if concerns_service(second.0, second.1, second.2) != 0 {
        second
    } else if concerns_service(third.0, third.1, third.2) != 0 {
        third
    } else if concerns_service(first.0, first.1, first.2) != 0 {
        first
    } else if known != Standing::Unknown as u32
        || is_chosen(first.0, first.1, first.2) != 0
        || is_chosen(second.0, second.1, second.2) != 0
    {
        second
    } else {
        return false;
    };
    let sampled = if known == Standing::Sampled as u32 { SAMPLED } else { 0 };
    let kind = kind(failure.hook, failure.reason, failure.netns) | sampled;
    if known == Standing::Suppressed as u32 {
        // Only counted: the time for which it is suppressed goes on.
        has_room(first.0, first.1, service.0, service.1, kind | REFUSED);
        return false;
    }
    let is_admitted = has_room(first.0, first.1, service.0, service.1, kind);
    // Each end may have a decision of its own.
    settle(first.0, first.1, first.2, is_admitted);
    settle(second.0, second.1, second.2, is_admitted);
    is_admitted != 0
}

/// Whether an end belongs to a Service.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn concerns_service(low: u64, high: u64, port: u32) -> u32 {
    recorder::is_service(&end((low, high, port))).into()
}

/// Whether a choice of IPVS for a client is kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_chosen(low: u64, high: u64, port: u32) -> u32 {
    choices::is_kept(&end((low, high, port))).into()
}

/// The [`Standing`] of a client's connection.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn standing(low: u64, high: u64, port: u32) -> u32 {
    recorder::standing(&end((low, high, port))) as u32
}

/// Reports what is kept for a client, or suppresses the other failures of its connection.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn settle(low: u64, high: u64, port: u32, is_admitted: u32) -> u32 {
    let client = end((low, high, port));
    if is_admitted != 0 {
        // IPVS chooses before conntrack confirms.
        choices::hand_over(&client);
    }
    recorder::settle(&client, is_admitted != 0);
    0
}

/// Hook, reason and namespace of a failure, in one word. It has the lower 24 bits of the reason, which are enough: the
/// subsystems that are reported have numbers below 64.
#[inline(always)]
fn kind(hook: u32, reason: u32, netns: u32) -> u64 {
    u64::from(netns) | u64::from(hook & 0x3f) << 32 | u64::from(reason & 0xff_ffff) << 40
}

/// In such a word, and so in the hook of a bucket's key: the connection is one of the sample. These have buckets of
/// their own, since their decisions are reported in any case: among many failures of one client, the sample would else be
/// reported without them, and could not be explained.
const SAMPLED: u64 = 1 << 38;
/// In such a word: there is no room for this failure, which is only counted.
const REFUSED: u64 = 1 << 39;

/// Whether one more failure has room in the bucket of its client at this Service, and in that of all clients there:
/// a client can invent addresses.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn has_room(
    client_low: u64,
    client_high: u64,
    service_low: u64,
    service_high: u64,
    kind: u64,
) -> u32 {
    let mut key = BucketKey {
        client: address(client_low, client_high),
        service: address(service_low, service_high),
        netns: kind as u32,
        reason: (kind >> 40) as u32,
        hook: (kind >> 32) as u32 & 0x7f,
    };
    let cost = BUCKET_EVENT_NS.load();
    if !take_token(&key, if kind & REFUSED == 0 { cost } else { u64::MAX }) {
        return 0;
    }
    key.client = [0; 4];
    take_token(&key, cost / SHARE_OF_CLIENT).into()
}

/// Whether a connection to a Service's address that was not translated is to be reported.
#[inline(always)]
pub(crate) fn admits_untranslated(netns: u32, client: &End, service: &End) -> bool {
    let (client, service) = (words(client), words(service));
    has_room(client.0, client.1, service.0, service.1, kind(Hook::Confirm as u32, 0, netns)) != 0
}

/// Takes the cost of one event out of a bucket. An event that it refuses is counted.
#[inline(never)]
fn take_token(key: &BucketKey, cost: u64) -> bool {
    let (full, now) = (BUCKET_FULL_NS.load(), now());
    let Some(bucket) = BUCKETS.get_ptr_mut(key) else {
        let is_refused = cost > full;
        let credit_ns = if is_refused { full } else { full - cost };
        let _ = BUCKETS.insert(key, Bucket { time_ns: now, credit_ns, suppressed: u64::from(is_refused) }, 0);
        if is_refused {
            add_one(SUPPRESSED.get_ptr_mut(SUPPRESSED_EVENTS));
        }
        return !is_refused;
    };
    // SAFETY: a map's value: valid and aligned for as long as the program runs. CPUs that write it at the same time may
    // let through a few events more; the suppressed ones are counted by atomic additions.
    unsafe {
        let passed = now.saturating_sub((*bucket).time_ns);
        let credit = (*bucket).credit_ns.saturating_add(passed);
        let credit = if credit > full { full } else { credit };
        (*bucket).time_ns = now;
        if credit < cost {
            (*bucket).credit_ns = credit;
            add_one(Some(&raw mut (*bucket).suppressed));
            add_one(SUPPRESSED.get_ptr_mut(SUPPRESSED_EVENTS));
            return false;
        }
        (*bucket).credit_ns = credit - cost;
    }
    true
}

/// Whether an event that concerns a whole namespace is to be reported.
#[inline(always)]
pub(crate) fn admits_netns(hook: Hook, netns: u32) -> bool {
    take_token(
        &BucketKey { client: [0; 4], service: [0; 4], netns, reason: 0, hook: hook as u32 },
        BUCKET_EVENT_NS.load(),
    )
}

/// Whether an event on a conntrack entry is to be reported.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn admits_entry(hook: u32, reason: u32, ct: u64) -> u32 {
    let (Some(first), Some(second), Some(third)) = (
        entry_end(ct, globals::OFF_CT_ORIG_SRC.load()),
        entry_end(ct, globals::OFF_CT_ORIG_DST.load()),
        entry_end(ct, globals::OFF_CT_REPLY_SRC.load()),
    ) else {
        return 1;
    };
    admits(&Failure { hook, reason, netns: conntrack::netns(ct), first, second, third }).into()
}

/// The end at this offset of an entry. Read by itself: beside the entry's words there is no room on the stack for the
/// calls that follow.
#[inline(always)]
fn entry_end(ct: u64, offset: u32) -> Option<End> {
    let protocol = globals::OFF_CT_ORIG_DST.load();
    if offset == MISSING || protocol == MISSING {
        return None;
    }
    let at = |offset: u32| ct.wrapping_add(u64::from(offset));
    Some(End {
        address: output::read(at(offset))?,
        port: output::read(at(offset + PORT_BYTES))?,
        protocol: u16::from(output::read::<u8>(at(protocol + PORT_BYTES + 2))?),
    })
}

/// The bytes from an address to its port, which the protocol follows in a destination.
const PORT_BYTES: u32 = 16;

/// Whether an event on a packet without an entry is to be reported. `network` is the address of its network header.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn admits_packet(hook: u32, reason: u32, netns: u32, network: u64) -> u32 {
    let Some((first, second)) = ends(network) else { return 0 };
    admits(&Failure { hook, reason, netns, first, second, third: second }).into()
}

/// The ends of a packet by its headers: source and destination.
#[inline(always)]
fn ends(network: u64) -> Option<(End, End)> {
    let first_byte = output::read::<u8>(network)?;
    let (protocol, transport, source, destination) = match first_byte >> 4 {
        4 => (
            output::read::<u8>(network.wrapping_add(9))?,
            u64::from(first_byte & 15) * 4,
            v4(output::read(network.wrapping_add(12))?),
            v4(output::read(network.wrapping_add(16))?),
        ),
        6 => (
            output::read::<u8>(network.wrapping_add(6))?,
            40,
            output::read(network.wrapping_add(8))?,
            output::read(network.wrapping_add(24))?,
        ),
        _ => return None,
    };
    let [a, b, c, d] = output::read::<[u8; 4]>(network.wrapping_add(transport))?;
    let (from, to) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    let protocol = u16::from(protocol);
    Some((End { address: source, port: from, protocol }, End { address: destination, port: to, protocol }))
}

/// An IPv4 address as a key has it.
#[inline(always)]
fn v4(address: u32) -> [u32; 4] {
    [address, 0, 0, 0]
}

/// Whether an event on a TCP socket is to be reported. Its own end comes first: of a socket that repeats or gets a RST,
/// that is mostly the client.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn admits_socket(hook: u32, reason: u32, netns: u32, sk: u64) -> u32 {
    let Some((first, second)) = socket_ends(sk) else { return 0 };
    admits(&Failure { hook, reason, netns, first, second, third: first }).into()
}

#[inline(always)]
fn socket_ends(sk: u64) -> Option<(End, End)> {
    let at = |offset: u32| sk.wrapping_add(u64::from(offset));
    let (num, dport) = (globals::SK_NUM.load(), globals::SK_DPORT.load());
    let (saddr, daddr) = (globals::OFF_SK_SADDR.load(), globals::OFF_SK_DADDR.load());
    let (saddr6, daddr6) = (globals::OFF_SK_V6_SADDR.load(), globals::OFF_SK_V6_DADDR.load());
    if num == MISSING || dport == MISSING || saddr == MISSING || daddr == MISSING {
        return None;
    }
    let is_v6 = match globals::OFF_SK_FAMILY.load() {
        MISSING => false,
        family => output::read::<u16>(at(family))? == AF_INET6,
    };
    let (mut local, mut remote) = ([0; 4], [0; 4]);
    // The peer of a dual-stack socket may be IPv4: the kernel then fills both kinds of fields.
    let is_mapped = |[a, b, c, _]: [u32; 4]| a == 0 && b == 0 && c == u32::from_be(0xffff);
    if is_v6 && saddr6 != MISSING && daddr6 != MISSING {
        local = output::read(at(saddr6))?;
        remote = output::read(at(daddr6))?;
    }
    if !is_v6 || is_mapped(remote) {
        local = v4(output::read(at(saddr))?);
        remote = v4(output::read(at(daddr))?);
    }
    let protocol = u16::from(IPPROTO_TCP);
    let local = End { address: local, port: output::read::<u16>(at(num))?.to_be(), protocol };
    Some((local, End { address: remote, port: output::read(at(dport))?, protocol }))
}
