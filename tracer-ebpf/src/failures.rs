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
use tracer_ebpf::{Bucket, BucketKey, Hook, MISSING, SUPPRESSED_EVENTS};

use crate::{
    choices, conntrack,
    filter::AF_INET6,
    globals,
    lookup::{look_up, look_up_slot},
    output,
    recorder::{self, BPF_NOEXIST, IPPROTO_TCP, SUPPRESSED, Standing, add_one, now},
    turns::{opaque, turns},
    words::{self, Words},
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

/// Where a failure's connection is read.
#[derive(Clone, Copy)]
pub(crate) enum Failed {
    /// The conntrack entry at this address.
    Entry { ct: u64 },
    /// The packet whose network header is at this address. It has no entry.
    Packet { netns: u32, network: u64 },
    /// The TCP socket at this address.
    Socket { netns: u32, sk: u64 },
}

// The kinds of `Failed`, in the bits of a word above the hook's number.
const ENTRY: u32 = 0;
const PACKET: u32 = 1 << 8;
const SOCKET: u32 = 2 << 8;
const HOOK_MASK: u32 = 0xff;

/// The ends of a failure's connection.
#[derive(Clone, Copy)]
#[repr(C)]
struct Ends {
    /// The client where that is known, otherwise the packet's source or the socket's own end.
    first: Words,
    second: Words,
    /// The endpoint, where it is another than the second.
    third: Words,
}

// SAFETY: it consists of numbers, and any bytes are numbers.
unsafe impl output::Scalar for Ends {}

/// Whether a failure is to be reported: it concerns a Service, and its bucket has room. The decisions of its connection
/// are reported first, and stay where the failure does.
#[inline(always)]
pub(crate) fn admits(hook: Hook, reason: u32, failed: Failed) -> bool {
    admits_at(hook as u32, reason, failed)
}

/// The same for a hook by its number.
#[inline(always)]
pub(crate) fn admits_at(hook: u32, reason: u32, failed: Failed) -> bool {
    let (kind, netns, address) = match failed {
        Failed::Entry { ct } => (ENTRY, 0, output::number(ct)),
        Failed::Packet { netns, network } => (PACKET, netns, network),
        Failed::Socket { netns, sk } => (SOCKET, netns, sk),
    };
    // One place for all kinds: the compiler would copy the call for each that it knows.
    let kind = opaque(kind.into()) as u32;
    admits_failure(hook | kind, reason, netns, address) != 0
}

/// One for all kinds, and each function called at one place: since 7.2 the verifier examines a function once more for each
/// chain of calls that leads there with a pointer to the stack (`bpf_compute_subprog_arg_access`, kernel/bpf/liveness.c).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn admits_failure(hook_and_kind: u32, reason: u32, netns: u32, address: u64) -> u32 {
    let kind = hook_and_kind & !HOOK_MASK;
    let (mut ends, netns) = match kind {
        ENTRY => match entry_ends(address) {
            Some(ends) => (ends, conntrack::netns(address)),
            // Its layout is not known.
            None => return 1,
        },
        PACKET => match packet_ends(address) {
            Some(ends) => (ends, netns),
            None => return 0,
        },
        _ => match socket_ends(address) {
            Some(ends) => (ends, netns),
            None => return 0,
        },
    };
    // One way for each kind of connection ends here.
    if !output::forget(&mut ends) {
        return 0;
    }
    let Ends { first, second, third } = ends;
    let mut known = Standing::Unknown as u32;
    for turn in turns::<2>() {
        let client = if turn == 0 { first } else { second };
        known = standing(client.low, client.high, client.port);
        if known != Standing::Unknown as u32 {
            break;
        }
    }
    if known == Standing::Reported as u32 {
        return 1;
    }
    let mut service = None;
    for turn in turns::<3>() {
        let end = match turn {
            0 => second,
            1 => third,
            _ => first,
        };
        if concerns_service(end.low, end.high, end.port) != 0 {
            service = Some(end);
            break;
        }
    }
    let service = match service {
        Some(service) => service,
        None if known != Standing::Unknown as u32 => second,
        None => {
            let mut is_chosen = 0;
            for turn in turns::<2>() {
                let client = if turn == 0 { first } else { second };
                is_chosen |= self::is_chosen(client.low, client.high, client.port);
            }
            if is_chosen == 0 {
                return 0;
            }
            second
        }
    };
    let mut kind = kind_of(hook_and_kind & HOOK_MASK, reason, netns);
    if known == Standing::Sampled as u32 {
        kind |= SAMPLED;
    }
    if known == Standing::Suppressed as u32 {
        // Only counted: the time for which it is suppressed goes on.
        kind |= REFUSED;
    }
    let is_admitted = has_room(first.low, first.high, service.low, service.high, kind);
    if known != Standing::Suppressed as u32 {
        // Each end may have a decision of its own.
        for turn in turns::<2>() {
            let client = if turn == 0 { first } else { second };
            settle(client.low, client.high, client.port, is_admitted);
        }
    }
    is_admitted
}

/// Whether an end belongs to a Service.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn concerns_service(low: u64, high: u64, port: u64) -> u32 {
    recorder::is_service(&Words { low, high, port }.end()).into()
}

/// Whether a choice of IPVS for a client is kept.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_chosen(low: u64, high: u64, port: u64) -> u32 {
    choices::is_kept(&Words { low, high, port }.end()).into()
}

/// The [`Standing`] of a client's connection.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn standing(low: u64, high: u64, port: u64) -> u32 {
    recorder::standing(Words { low, high, port }) as u32
}

/// Reports what is kept for a client, or suppresses the other failures of its connection.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn settle(low: u64, high: u64, port: u64, is_admitted: u32) -> u32 {
    let client = Words { low, high, port };
    if is_admitted != 0 {
        // IPVS chooses before conntrack confirms.
        choices::hand_over(&client.end());
    }
    recorder::settle(client, is_admitted != 0);
    0
}

/// Hook, reason and namespace of a failure, in one word. It has the lower 23 bits of the reason, which are enough: the
/// subsystems that are reported have numbers below 64.
#[inline(always)]
fn kind_of(hook: u32, reason: u32, netns: u32) -> u64 {
    u64::from(netns) | u64::from(hook & 0x3f) << 32 | u64::from(reason) << REASON_SHIFT
}

/// In such a word, and so in the hook of a bucket's key: the connection is one of the sample. These have buckets of
/// their own, since their decisions are reported in any case: among many failures of one client, the sample would else be
/// reported without them, and could not be explained.
const SAMPLED: u64 = 1 << 38;
/// In such a word: there is no room for this failure, which is only counted.
const REFUSED: u64 = 1 << 39;
/// In such a word: the bucket of all clients at one Service.
const SHARED: u64 = 1 << 40;
/// The reason follows.
const REASON_SHIFT: u32 = 41;

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
    for turn in turns::<2>() {
        let (low, high, kind) =
            if turn == 0 { (client_low, client_high, kind) } else { (0, 0, kind | SHARED) };
        if take_token(low, high, service_low, service_high, kind) == 0 {
            return 0;
        }
    }
    1
}

/// Whether a connection to a Service's address that was not translated is to be reported.
#[inline(always)]
pub(crate) fn admits_untranslated(netns: u32, client: Words, service: Words) -> bool {
    has_room(client.low, client.high, service.low, service.high, kind_of(Hook::Confirm as u32, 0, netns)) != 0
}

/// Takes the cost of one event out of a bucket. An event that it refuses is counted.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn take_token(
    client_low: u64,
    client_high: u64,
    service_low: u64,
    service_high: u64,
    kind: u64,
) -> u32 {
    let key = BucketKey {
        client: words::address(client_low, client_high),
        service: words::address(service_low, service_high),
        netns: kind as u32,
        reason: (kind >> REASON_SHIFT) as u32,
        hook: (kind >> 32) as u32 & 0x7f,
    };
    let (full, now) = (BUCKET_FULL_NS.load(), now());
    let cost = match kind & (REFUSED | SHARED) {
        0 => BUCKET_EVENT_NS.load(),
        SHARED => BUCKET_EVENT_NS.load() / SHARE_OF_CLIENT,
        _ => u64::MAX,
    };
    let Some(bucket) = look_up(&BUCKETS, &key).or_else(|| make_bucket(&key, now, full)) else {
        let has_room = cost <= full;
        if !has_room {
            add_one(look_up_slot(&SUPPRESSED, SUPPRESSED_EVENTS));
        }
        return has_room.into();
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
            add_one(look_up_slot(&SUPPRESSED, SUPPRESSED_EVENTS));
            return 0;
        }
        (*bucket).credit_ns = credit - cost;
    }
    1
}

/// A full bucket, or the one that another CPU made meanwhile: to replace that one would lose the events that it counts.
#[inline(always)]
fn make_bucket(key: &BucketKey, time_ns: u64, credit_ns: u64) -> Option<*mut Bucket> {
    let _ = BUCKETS.insert(key, Bucket { time_ns, credit_ns, suppressed: 0 }, BPF_NOEXIST);
    look_up(&BUCKETS, key)
}

/// Whether an event that concerns a whole namespace is to be reported.
#[inline(always)]
pub(crate) fn admits_netns(hook: Hook, netns: u32) -> bool {
    take_token(0, 0, 0, 0, kind_of(hook as u32, 0, netns)) != 0
}

/// The ends of a conntrack entry; `None` where their places are not known.
#[inline(always)]
fn entry_ends(ct: u64) -> Option<Ends> {
    let (source, destination) = (globals::OFF_CT_ORIG_SRC.load(), globals::OFF_CT_ORIG_DST.load());
    let endpoint = globals::OFF_CT_REPLY_SRC.load();
    if source == MISSING || destination == MISSING || endpoint == MISSING {
        return None;
    }
    let at = |offset: u32| ct.wrapping_add(u64::from(offset));
    let end = |offset: u32, protocol: u8| {
        let [a, b, c, d, port] = output::read::<[u32; 5]>(at(offset))?.map(u64::from);
        Some(Words { low: a | b << 32, high: c | d << 32, port: port & 0xffff | u64::from(protocol) << 16 })
    };
    let protocol = output::read(at(destination + PROTOCOL))?;
    Some(Ends {
        first: end(source, protocol)?,
        second: end(destination, protocol)?,
        third: end(endpoint, protocol)?,
    })
}

/// The bytes from a tuple's destination, an address of 16 and a port, to its protocol.
const PROTOCOL: u32 = 18;

/// The ends of a packet by its headers: source and destination. `network` is the address of its network header.
#[inline(always)]
fn packet_ends(network: u64) -> Option<Ends> {
    let at = |offset: u64| network.wrapping_add(offset);
    let first_byte = output::read::<u8>(network)?;
    let (protocol, transport, source, destination) = match first_byte >> 4 {
        4 => {
            let [source, destination] = output::read::<[u32; 2]>(at(12))?;
            (9, u64::from(first_byte & 15) * 4, Words::v4(source), Words::v4(destination))
        }
        6 => {
            let [source, destination] = output::read::<[[u64; 2]; 2]>(at(8))?;
            (6, 40, Words::v6(source), Words::v6(destination))
        }
        _ => return None,
    };
    let protocol = output::read(at(protocol))?;
    let [from, to] = output::read::<[u16; 2]>(at(transport))?;
    let second = destination.with_port(to, protocol);
    Some(Ends { first: source.with_port(from, protocol), second, third: second })
}

/// The ends of a TCP socket. Its own end comes first: of a socket that repeats or gets a RST, that is mostly the client.
#[inline(always)]
fn socket_ends(sk: u64) -> Option<Ends> {
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
    let (mut local, mut remote) = (Words::v4(0), Words::v4(0));
    if is_v6 && saddr6 != MISSING && daddr6 != MISSING {
        local = Words::v6(output::read(at(saddr6))?);
        remote = Words::v6(output::read(at(daddr6))?);
    }
    // The peer of a dual-stack socket may be IPv4: the kernel then fills both kinds of fields.
    if !is_v6 || remote.low == 0 && remote.high as u32 == u32::from_be(0xffff) {
        local = Words::v4(output::read(at(saddr))?);
        remote = Words::v4(output::read(at(daddr))?);
    }
    let first = local.with_port(output::read::<u16>(at(num))?.to_be(), IPPROTO_TCP);
    let second = remote.with_port(output::read(at(dport))?, IPPROTO_TCP);
    Some(Ends { first, second, third: first })
}
