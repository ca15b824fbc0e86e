//! The recorder of an agent: it keeps NAT's decisions in the kernel, counts connections, and reports failures only.
//!
//! A healthy connection costs one update of a map and one of a counter, and no record. A decision leaves the kernel when
//! a failure meets its connection, just before the failure's own record, or when the connection is one of the sample.
//! Failures of one client at one Service share a token bucket, so that a client in a loop leaves the others their room,
//! and so do those of all clients at one Service, because a client can invent addresses.
//!
//! A decision is found by the client's address and port, which every kind of event has: the conntrack entry, the packet,
//! and the socket at either side. Where the source is translated too, the server meets another address and port, by which
//! the decision is kept a second time.

use core::mem::MaybeUninit;

use aya_ebpf::{
    Global,
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{HashMap, LruHashMap, PerCpuArray},
};
use tracer_ebpf::{
    Bucket, BucketKey, COMM_BYTES, CT_HEAD_BYTES, ConntrackRecord, CountKey, Decision, End, Header, Hook,
    IP_CT_NEW, Kind, MISSING, SUPPRESSED_EVENTS, SUPPRESSED_SLOTS, UNCOUNTED,
};

use crate::{choices, conntrack, filter::AF_INET6, globals, output};

/// Resized by user space, as all maps here: without a recorder they have room for one entry.
#[map]
static DECISIONS: LruHashMap<End, Decision> = LruHashMap::with_max_entries(1, 0);

/// Not per CPU: its size would depend on their number, and two of them rarely count for one endpoint at the same time.
#[map]
static COUNTS: HashMap<CountKey, u64> = HashMap::with_max_entries(1, 0);

#[map]
static SERVICES: HashMap<End, u8> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

#[map]
static BUCKETS: LruHashMap<BucketKey, Bucket> = LruHashMap::with_max_entries(1, 0);

#[map]
static SUPPRESSED: PerCpuArray<u64> = PerCpuArray::with_max_entries(SUPPRESSED_SLOTS, 0);

/// Not 0 where an agent records.
#[unsafe(no_mangle)]
static RECORDER: Global<u32> = Global::new(0);
/// A connection whose hash is below is reported although it is healthy.
#[unsafe(no_mangle)]
static SAMPLE_BELOW: Global<u32> = Global::new(0);
/// What one event costs in a bucket, nanoseconds.
#[unsafe(no_mangle)]
static BUCKET_EVENT_NS: Global<u64> = Global::new(0);
/// The most that a bucket holds, nanoseconds.
#[unsafe(no_mangle)]
static BUCKET_FULL_NS: Global<u64> = Global::new(0);

/// `BPF_F_NO_PREALLOC` (`include/uapi/linux/bpf.h`): memory for the entries that there are.
const BPF_F_NO_PREALLOC: u32 = 1;
/// `BPF_NOEXIST`: only a new entry.
const BPF_NOEXIST: u64 = 1;

/// All clients at one Service together may cause this many times the failures of one.
const SHARE_OF_CLIENT: u64 = 10;

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_SCTP: u8 = 132;

#[inline(always)]
pub(crate) fn on() -> bool {
    RECORDER.load() != 0
}

/// The words copied from an entry.
type Head = [u32; CT_HEAD_BYTES / 4];

/// An entry's tuples, in those bytes.
struct Tuples {
    client: End,
    service: End,
    endpoint: End,
    /// The client as the endpoint meets it.
    seen_client: End,
    /// `AF_INET` or `AF_INET6`.
    family: u16,
}

/// The words of a tuple from the source's address to the destination's (`struct nf_conntrack_tuple`).
const TUPLE_DST: usize = 5;
/// The words from an address to its port, behind which is the family (source) or the protocol (destination).
const PORT: usize = 4;

impl Tuples {
    /// Writes all of `tuples`, or returns false. Out of line, for the sake of the caller's stack.
    #[inline(never)]
    fn read(tuples: &mut MaybeUninit<Self>, head: &Head) -> bool {
        let Some(read) = Self::of(head) else { return false };
        tuples.write(read);
        true
    }

    #[inline(always)]
    fn of(head: &Head) -> Option<Self> {
        let (orig, reply) = (globals::OFF_CT_ORIG_SRC.load(), globals::OFF_CT_REPLY_SRC.load());
        if orig == MISSING || reply == MISSING {
            return None;
        }
        let base = globals::OFF_CT_BASE.load();
        let (orig, reply) = (orig.wrapping_sub(base), reply.wrapping_sub(base));
        if !orig.is_multiple_of(4) || !reply.is_multiple_of(4) {
            return None;
        }
        let (orig, reply) = ((orig / 4) as usize, (reply / 4) as usize);
        let family = halves(*head.get(orig + PORT)?).1;
        let protocol = halves(*head.get(orig + TUPLE_DST + PORT)?).1 & 0xff;
        Some(Self {
            client: end(head, orig, protocol)?,
            service: end(head, orig + TUPLE_DST, protocol)?,
            endpoint: end(head, reply, protocol)?,
            seen_client: end(head, reply + TUPLE_DST, protocol)?,
            family,
        })
    }
}

/// The end whose address is at this word.
#[inline(always)]
fn end(head: &Head, at: usize, protocol: u16) -> Option<End> {
    let [a, b, c, d] = [*head.get(at)?, *head.get(at + 1)?, *head.get(at + 2)?, *head.get(at + 3)?];
    Some(End { address: [a, b, c, d], port: halves(*head.get(at + PORT)?).0, protocol })
}

/// The two halves of a word, in the order of their addresses.
#[inline(always)]
fn halves(word: u32) -> (u16, u16) {
    let [a, b, c, d] = word.to_ne_bytes();
    (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]))
}

/// Keeps and counts the decision of a confirmed entry. Returns whether it is to be reported now: it is of the sample, or
/// a connection to a Service's address was not translated, which is no healthy one.
#[inline(never)]
#[expect(clippy::needless_borrows_for_generic_args, reason = "by value, they would be copied on the stack")]
pub(crate) fn keep(ct: u64) -> bool {
    let tcp_state = conntrack::tcp_state(ct);
    // Zeros, which the next lines overwrite, would be written byte by byte.
    let mut decision = MaybeUninit::<Decision>::uninit();
    let (at, mut tuples) = (decision.as_mut_ptr(), MaybeUninit::uninit());
    // SAFETY: the pointer is the decision's own. All its fields are written before it is taken for one.
    let decision = unsafe {
        if !output::copy((&raw mut (*at).ct_head).cast::<[u8; CT_HEAD_BYTES]>(), conntrack::head(ct)) {
            return false;
        }
        (&raw mut (*at).time_ns).write(now());
        (&raw mut (*at).ct).write(ct);
        (&raw mut (*at).netns).write(0);
        (&raw mut (*at).tcp_state).write(tcp_state);
        (&raw mut (*at).is_reported).write(0);
        (&raw mut (*at).reserved).write(0);
        decision.assume_init_mut()
    };
    if !Tuples::read(&mut tuples, &decision.ct_head) {
        return false;
    }
    // SAFETY: it was written.
    let tuples = unsafe { tuples.assume_init_ref() };
    if !matches!(tuples.client.protocol as u8, IPPROTO_TCP | IPPROTO_UDP | IPPROTO_SCTP) {
        return false;
    }
    let translated = !same(&tuples.service, &tuples.endpoint);
    if !translated && !is_service(&tuples.service) {
        return false;
    }
    count(tuples);
    let netns = conntrack::netns(ct);
    let reported = if translated {
        is_sampled(&tuples.client)
    } else {
        has_token(Hook::Confirm, 0, netns, &tuples.client, &tuples.service)
    };
    (decision.netns, decision.is_reported) = (netns, u32::from(reported));
    // A full LRU map gives up its oldest entries; an update fails only where a CPU finds none that is free.
    let _ = DECISIONS.insert(&tuples.client, &*decision, 0);
    if !same(&tuples.client, &tuples.seen_client) {
        let _ = DECISIONS.insert(&tuples.seen_client, &*decision, 0);
    }
    reported
}

#[inline(always)]
fn same(a: &End, b: &End) -> bool {
    a.port == b.port && same_address(a.address, b.address)
}

/// Word by word: the comparison of arrays is a call.
#[inline(always)]
pub(crate) fn same_address([a0, a1, a2, a3]: [u32; 4], [b0, b1, b2, b3]: [u32; 4]) -> bool {
    a0 == b0 && a1 == b1 && a2 == b2 && a3 == b3
}

/// Whether a client's connection is one of the sample.
#[inline(always)]
pub(crate) fn is_sampled(client: &End) -> bool {
    hash(client) < SAMPLE_BELOW.load()
}

/// A number that depends on all of a client's address and port.
#[inline(always)]
fn hash(end: &End) -> u32 {
    let [a, b, c, d] = end.address;
    let mixed = a ^ b.rotate_left(8) ^ c.rotate_left(16) ^ d.rotate_left(24);
    let mixed = mixed ^ (u32::from(end.port) << 16) ^ u32::from(end.protocol);
    let mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x7feb_352d);
    let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x846c_a68b);
    mixed ^ (mixed >> 16)
}

#[inline(never)]
fn count(tuples: &Tuples) {
    let key = CountKey {
        service: tuples.service,
        endpoint: tuples.endpoint.address,
        endpoint_port: tuples.endpoint.port,
        family: tuples.family,
    };
    if add_one(COUNTS.get_ptr_mut(key)) || COUNTS.insert(key, 1, BPF_NOEXIST).is_ok() {
        return;
    }
    // Another CPU made the entry meanwhile, or the map is full.
    if !add_one(COUNTS.get_ptr_mut(key)) {
        add_one(SUPPRESSED.get_ptr_mut(UNCOUNTED));
    }
}

#[inline(always)]
fn add_one(counter: Option<*mut u64>) -> bool {
    let Some(counter) = counter else { return false };
    // SAFETY: a map's value: valid and aligned for as long as the program runs.
    unsafe { add_atomically(counter, 1) };
    true
}

/// `BPF_XADD`. The compiler has no atomic addition for a target without compare-and-swap.
///
/// # Safety
///
/// `counter` must be valid and aligned.
#[cfg(target_arch = "bpf")]
#[inline(always)]
unsafe fn add_atomically(counter: *mut u64, number: u64) {
    // SAFETY: the instruction writes `counter` only, which is valid, as the caller promises.
    unsafe {
        core::arch::asm!("lock *(u64 *)({counter} + 0) += {number}", counter = in(reg) counter, number = in(reg) number);
    }
}

/// The same where the programs are only checked.
///
/// # Safety
///
/// `counter` must be valid and aligned.
#[cfg(not(target_arch = "bpf"))]
unsafe fn add_atomically(counter: *mut u64, number: u64) {
    use core::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: the caller promises it.
    unsafe { AtomicU64::from_ptr(counter) }.fetch_add(number, Ordering::Relaxed);
}

/// Whether an end belongs to a Service: by all ports of its address, by this one, or by a node port of any address.
#[inline(never)]
fn is_service(end: &End) -> bool {
    let all_ports = End { address: end.address, port: 0, protocol: 0 };
    let all_addresses = End { address: [0; 4], ..*end };
    SERVICES.get_ptr(all_ports).is_some()
        || SERVICES.get_ptr(end).is_some()
        || SERVICES.get_ptr(all_addresses).is_some()
}

/// A failure, by the ends of its connection.
struct Failure {
    hook: Hook,
    /// 0 where there is none.
    reason: u32,
    netns: u32,
    /// The client where that is known, otherwise the packet's source or the socket's own end.
    first: End,
    second: End,
    /// The endpoint, where it is another than the second.
    third: End,
}

/// Whether a failure is to be reported: it concerns a Service, and its bucket has room. The decisions of its connection
/// are reported first, and stay where the failure does.
#[inline(never)]
fn admits(failure: &Failure) -> bool {
    let service = if is_service(&failure.second) {
        &failure.second
    } else if is_service(&failure.third) {
        &failure.third
    } else if is_service(&failure.first) {
        &failure.first
    } else if is_kept(&failure.first) || is_kept(&failure.second) {
        &failure.second
    } else {
        return false;
    };
    if !has_token(failure.hook, failure.reason, failure.netns, &failure.first, service) {
        return false;
    }
    // Each end may have a decision of its own. IPVS chooses before conntrack confirms.
    choices::hand_over(&failure.first);
    hand_over(&failure.first);
    choices::hand_over(&failure.second);
    hand_over(&failure.second);
    true
}

/// Whether a decision or choice for a client is kept. Out of line, as the compiler would otherwise join two results as
/// pointers, which the verifier refuses.
#[inline(never)]
fn is_kept(client: &End) -> bool {
    DECISIONS.get_ptr(client).is_some() || choices::is_kept(client)
}

/// Whether one more failure has room in the bucket of its client at this Service, and in that of all clients there:
/// a client can invent addresses.
#[inline(never)]
fn has_token(hook: Hook, reason: u32, netns: u32, client: &End, service: &End) -> bool {
    let mut key =
        BucketKey { client: client.address, service: service.address, netns, reason, hook: hook as u32 };
    let cost = BUCKET_EVENT_NS.load();
    if !take_token(&key, cost) {
        return false;
    }
    key.client = [0; 4];
    take_token(&key, cost / SHARE_OF_CLIENT)
}

/// Reports the decision that is kept for a client, unless it was reported before.
#[inline(never)]
fn hand_over(client: &End) {
    let Some(decision) = DECISIONS.get_ptr_mut(client) else { return };
    // SAFETY: a map's value: valid and aligned for as long as the program runs. Another CPU may replace it meanwhile by
    // the decision of a later connection of the same client; the record is then of either, or a mixture whose tuples
    // fit no flow.
    unsafe {
        if (*decision).is_reported == 0
            && let Some(mut entry) = output::reserve::<ConntrackRecord>(Hook::Confirm)
        {
            (*decision).is_reported = 1;
            let record = entry.as_mut_ptr();
            let header = output::header(Hook::Confirm, Kind::Conntrack, (*decision).netns);
            (*record).header = Header { time_ns: (*decision).time_ns, ..header };
            (*record).ct = (*decision).ct;
            (*record).ctinfo = IP_CT_NEW;
            (*record).detail = age_ms(header.time_ns, (*decision).time_ns);
            (*record).pid = 0;
            (*record).tcp_state = (*decision).tcp_state;
            (*record).comm = [0; COMM_BYTES];
            output::copy(
                &raw mut (*record).ct_head,
                (&raw const (*decision).ct_head).expose_provenance() as u64,
            );
            output::submit(entry);
        }
    }
}

/// The age of a decision, milliseconds: at least 1, and at most 49 days.
#[inline(always)]
fn age_ms(now_ns: u64, time_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(time_ns) / 1_000_000).unwrap_or(u32::MAX).max(1)
}

/// Takes the cost of one event out of a bucket. An event that it refuses is counted.
#[inline(always)]
fn take_token(key: &BucketKey, cost: u64) -> bool {
    let (full, now) = (BUCKET_FULL_NS.load(), now());
    let Some(bucket) = BUCKETS.get_ptr_mut(key) else {
        let new = Bucket { time_ns: now, credit_ns: full.saturating_sub(cost), suppressed: 0 };
        let _ = BUCKETS.insert(key, new, 0);
        return true;
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

#[inline(always)]
fn now() -> u64 {
    // SAFETY: the helper has no argument and may be called anywhere.
    unsafe { bpf_ktime_get_ns() }
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
#[inline(never)]
pub(crate) fn admits_entry(hook: Hook, reason: u32, ct: u64) -> bool {
    let (Some(first), Some(second), Some(third)) = (
        entry_end(ct, globals::OFF_CT_ORIG_SRC.load()),
        entry_end(ct, globals::OFF_CT_ORIG_DST.load()),
        entry_end(ct, globals::OFF_CT_REPLY_SRC.load()),
    ) else {
        return true;
    };
    admits(&Failure { hook, reason, netns: conntrack::netns(ct), first, second, third })
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
#[inline(never)]
pub(crate) fn admits_packet(hook: Hook, reason: u32, netns: u32, network: u64) -> bool {
    let Some((first, second)) = ends(network) else { return false };
    admits(&Failure { hook, reason, netns, first, second, third: second })
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
#[inline(never)]
pub(crate) fn admits_socket(hook: Hook, reason: u32, netns: u32, sk: u64) -> bool {
    let Some((first, second)) = socket_ends(sk) else { return false };
    admits(&Failure { hook, reason, netns, first, second, third: first })
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
