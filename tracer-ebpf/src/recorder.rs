//! The recorder of an agent: it keeps NAT's decisions in the kernel, counts connections, and reports failures only.
//!
//! A healthy connection costs one write of a decision and one count, and no record. A decision leaves the kernel when
//! a failure meets its connection, just before the failure's own record, or when the connection is one of the sample.
//!
//! A decision is found by the client's address and port, which every kind of event has: the conntrack entry, the packet,
//! and the socket at either side. Where the source is translated too, the server meets another address and port, by which
//! the decision is kept a second time.

use core::{cell::UnsafeCell, mem::MaybeUninit, ptr};

use aya_ebpf::{
    Global,
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{Array, HashMap, PerCpuArray},
};
use tracer_ebpf::{
    ConntrackRecord, CountKey, DECISIONS_PER_SET, Decision, DecisionSet, End, Header, Hook, IP_CT_NEW, Kind,
    SUPPRESSED_SLOTS, Tally, UNCOUNTED,
};

use crate::{
    conntrack, failures, globals,
    kept::{HALF, Head, KEPT_WORDS, Tuple, copy_kept, copy_words, part_of},
    lookup::{look_up, look_up_slot},
    output,
    turns::{opaque, turns},
    words::Words,
};

/// Resized by user space, as all maps here: without a recorder they have room for one entry. An LRU map would cost a
/// connection three times as much.
#[map]
static DECISIONS: Array<DecisionSet> = Array::with_max_entries(1, 0);

/// Not per CPU: its size would depend on their number, and two of them rarely count for one endpoint at the same time.
#[map]
static COUNTS: HashMap<CountKey, u64> = HashMap::with_max_entries(1, 0);

/// By the hash of a pair: see [`Tally`]. User space maps it into its memory.
#[map]
static TALLIES: Array<Tally> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The places in [`TALLIES`] that are taken: only the first of several pairs can make an entry.
#[map]
static TALLY_OWNERS: HashMap<u32, u8> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

#[map]
static SERVICES: HashMap<End, u8> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Events that were not reported, and connections that were not counted.
#[map]
pub(crate) static SUPPRESSED: PerCpuArray<u64> = PerCpuArray::with_max_entries(SUPPRESSED_SLOTS, 0);

/// A word of the programs' own memory, which they reach without a lookup.
#[repr(transparent)]
struct Word(UnsafeCell<u64>);

// SAFETY: all CPUs read and write it as a whole.
unsafe impl Sync for Word {}

impl Word {
    #[inline(always)]
    fn get(&self) -> u64 {
        // SAFETY: it is valid, and aligned.
        unsafe { self.0.get().read_volatile() }
    }

    #[inline(always)]
    fn set(&self, word: u64) {
        // SAFETY: as in `get`.
        unsafe { self.0.get().write_volatile(word) };
    }
}

/// The address of [`RECORDED_NETNS`], once an entry has shown it: to compare it costs less than to read the number. It is no
/// other's as long as user space lives in that namespace.
#[unsafe(no_mangle)]
static RECORDED_NET: Word = Word(UnsafeCell::new(0));

/// Not 0 where an agent records.
#[unsafe(no_mangle)]
static RECORDER: Global<u32> = Global::new(0);
/// The only namespace whose connections are counted: that of kube-proxy's rules. 0 for all.
///
/// A decision of another one is kept for a client of which nothing is kept. Otherwise it would be found in place of the answer
/// to the question for a connection's Service and endpoint, being newer: a Pod's sidecar redirects what was translated
/// before, and another node on this kernel (kind) confirms the connections that arrive there.
#[unsafe(no_mangle)]
static RECORDED_NETNS: Global<u32> = Global::new(0);
/// A connection whose hash is below is reported although it is healthy.
#[unsafe(no_mangle)]
static SAMPLE_BELOW: Global<u32> = Global::new(0);
/// One less than the number of sets in [`DECISIONS`], a power of two.
#[unsafe(no_mangle)]
static DECISIONS_MASK: Global<u32> = Global::new(0);
/// One less than the number of places in [`TALLIES`], a power of two.
#[unsafe(no_mangle)]
static TALLIES_MASK: Global<u32> = Global::new(0);
/// `BPF_F_NO_PREALLOC` (`include/uapi/linux/bpf.h`): memory for the entries that there are.
const BPF_F_NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`: the array can be mapped into a process (since 5.5).
const BPF_F_MMAPABLE: u32 = 1 << 10;
/// `BPF_NOEXIST`: only a new entry.
pub(crate) const BPF_NOEXIST: u64 = 1;

pub(crate) const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_SCTP: u8 = 132;

#[inline(always)]
pub(crate) fn on() -> bool {
    RECORDER.load() != 0
}

/// Keeps and counts the decision of a confirmed entry. Returns whether it is to be reported now: it is of the sample, or
/// a connection to a Service's address was not translated, which is no healthy one. A connection to an endpoint itself is
/// kept, for its failures, but not counted: the node that translated it counts it.
#[inline(never)]
pub(crate) fn keep(ct: u64) -> bool {
    // Zeros, which the next lines overwrite, would be written byte by byte.
    let mut head = MaybeUninit::<Head>::uninit();
    // SAFETY: the kernel writes the words that are needed, and no others are read.
    let head = unsafe {
        if !copy_kept(head.as_mut_ptr(), ct) {
            return false;
        }
        &*head.as_ptr()
    };
    let tuples: [Option<&Tuple>; 2] =
        [globals::OFF_CT_ORIG_SRC.load(), globals::OFF_CT_REPLY_SRC.load()].map(|at| part_of(head, at));
    let [Some(orig), Some(reply)] = tuples else { return false };
    let protocol = orig.protocol();
    if !matches!(protocol as u8, IPPROTO_TCP | IPPROTO_UDP | IPPROTO_SCTP) {
        return false;
    }
    let translated = !reply.comes_from_destination(orig);
    let mut part = if translated { Part::Translated } else { part(&orig.destination().end()) };
    if part == Part::Nothing {
        return false;
    }
    let client = orig.source();
    let client = Words { port: client.port | protocol << 16, ..client };
    if is_recorded(part_of(head, globals::OFF_CT_NET.load()).copied().unwrap_or_else(|| conntrack::net(ct))) {
        if part != Part::Endpoint {
            count(orig, reply);
        }
    } else if has_decision(client.low, client.high, client.port) {
        return false;
    } else if part == Part::Address {
        // Only the node's own namespace has to translate it.
        part = Part::Endpoint;
    }
    let hash = hash(client);
    // A bit in the end, on every way: the verifier goes each way that it can tell from another.
    let reported = opaque(if part == Part::Address {
        failures::admits_untranslated(conntrack::netns(ct), client, orig.destination()).into()
    } else {
        // By the client, so that both nodes of a connection report it.
        opaque(u64::from(hash).wrapping_sub(SAMPLE_BELOW.load().into())) >> 63
    }) & 1;
    let (time_ns, tcp_state) = (now(), conntrack::tcp_state(ct));
    let Some(to) = next_place(hash) else { return reported != 0 };
    // SAFETY: a map's value: valid and aligned for as long as the program runs. All of a decision is written but the words of
    // its entry that nobody reads.
    unsafe {
        (*to).time_ns = time_ns;
        (*to).ct = ct;
        client.write(&raw mut (*to).client);
        (*to).tcp_state = tcp_state;
        (*to).standing = (reported as u32) << HANDED_OVER_SHIFT;
        copy_words(head, (&raw mut (*to).ct_head).cast(), KEPT_WORDS.load());
    }
    if !orig.comes_from_destination(reply) {
        let Words { low, high, port } = reply.destination();
        keep_again(to, low, high, port);
    }
    reported != 0
}

/// Keeps a decision a second time, for the client that the server meets.
#[inline(never)]
fn keep_again(decision: *const Decision, low: u64, high: u64, port: u64) {
    let client = Words { low, high, port };
    let Some(to) = next_place(hash(client)) else { return };
    // SAFETY: map's values: valid and aligned for as long as the program runs.
    unsafe {
        *to = *decision;
        client.write(&raw mut (*to).client);
    }
}

/// Whether the connections of the namespace at this address are counted.
#[inline(always)]
fn is_recorded(net: u64) -> bool {
    if RECORDED_NETNS.load() == 0 {
        return true;
    }
    RECORDED_NET.get() == net || is_recorded_by_number(net)
}

/// Until its address is known.
#[inline(never)]
fn is_recorded_by_number(net: u64) -> bool {
    let netns = output::netns_at(net);
    if netns == RECORDED_NETNS.load() {
        RECORDED_NET.set(net);
        return true;
    }
    netns == 0
}

/// Whether a decision of a client is kept.
#[inline(never)]
fn has_decision(low: u64, high: u64, port: u64) -> bool {
    !find(Words { low, high, port }).is_null()
}

/// The place of the oldest decision of a set, for the next one. Two CPUs that write one set at the same time may leave one of
/// the two, or a mixture.
#[inline(always)]
fn next_place(hash: u32) -> Option<*mut Decision> {
    let set = DECISIONS.get_ptr_mut(hash & DECISIONS_MASK.load())?;
    // SAFETY: a map's value: valid and aligned for as long as the program runs.
    unsafe {
        let kept = (*set).kept;
        (*set).kept = kept.wrapping_add(1);
        Some(&raw mut (*set).decisions[kept as usize % DECISIONS_PER_SET])
    }
}

/// The newest decision that is kept for a client, otherwise null.
#[inline(always)]
fn find(client: Words) -> *mut Decision {
    let found = place_of(client.low, client.high, client.port);
    if found == 0 {
        return ptr::null_mut();
    }
    let Some(set) = look_up_slot(&DECISIONS, (found >> SET_SHIFT) as u32) else {
        return ptr::null_mut();
    };
    // SAFETY: as in `next_place`.
    unsafe { &raw mut (*set).decisions[(found - 1) as usize % DECISIONS_PER_SET] }
}

/// In [`place_of`]'s result: the number of the set. The bits below have the place in it.
const SET_SHIFT: u32 = 8;

/// The set and the place of the newest decision that is kept for a client, and one more; 0 if there is none.
///
/// The verifier checks it by itself: it walks through each turn of the loop, and would do so wherever a decision is wanted.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn place_of(low: u64, high: u64, port: u64) -> u64 {
    let number = hash(Words { low, high, port }) & DECISIONS_MASK.load();
    let Some(set) = look_up_slot(&DECISIONS, number) else { return 0 };
    // SAFETY: as in `next_place`.
    unsafe {
        let newest = (*set).kept.wrapping_sub(1);
        for age in turns::<{ DECISIONS_PER_SET as u64 }>() {
            let place = newest.wrapping_sub(age) as usize % DECISIONS_PER_SET;
            let kept = Words::at(&raw const (*set).decisions[place].client);
            if opaque((kept.low ^ low) | (kept.high ^ high) | (kept.port ^ port)) == 0 {
                return u64::from(number) << SET_SHIFT | (place as u64 + 1);
            }
        }
    }
    0
}

/// Word by word, since the comparison of arrays is a call.
#[inline(always)]
fn difference_of_addresses([a0, a1, a2, a3]: [u32; 4], [b0, b1, b2, b3]: [u32; 4]) -> u32 {
    (a0 ^ b0) | (a1 ^ b1) | (a2 ^ b2) | (a3 ^ b3)
}

/// Whether two addresses are the same: with one branch, where the compiler would make one for each word.
#[inline(always)]
pub(crate) fn is_same_address(a: [u32; 4], b: [u32; 4]) -> bool {
    opaque(difference_of_addresses(a, b).into()) == 0
}

/// Whether a client's connection is one of the sample.
#[inline(always)]
pub(crate) fn is_sampled(client: Words) -> bool {
    hash(client) < SAMPLE_BELOW.load()
}

/// Odd numbers with bits everywhere, below 2^31: an instruction holds a factor of this size.
const FACTORS: [u64; 5] = [0x6a09_e667, 0x3b67_ae85, 0x3c6e_f373, 0x254f_f53b, 0x510e_527f];
const FINAL_FACTOR: u64 = 0x1b05_688d;

/// A number that depends on all of a client's address and port.
#[inline(always)]
fn hash(Words { low, high, port }: Words) -> u32 {
    mixed([low, high, port])
}

/// A number that depends on all words. Multiplications in 64 bits, since programs have no rotation.
#[inline(always)]
fn mixed<const N: usize>(words: [u64; N]) -> u32 {
    let mut sum = 0;
    for (word, factor) in words.iter().zip(FACTORS) {
        sum ^= word.wrapping_mul(factor);
    }
    let mixed = (sum ^ (sum >> 29)).wrapping_mul(FINAL_FACTOR);
    (mixed ^ (mixed >> 32)) as u32
}

/// Counts a connection of a Service's end, the destination of `orig`, with its endpoint, the source of `reply`.
#[inline(always)]
fn count(orig: &Tuple, reply: &Tuple) {
    let key = pair(orig, reply);
    let index = mixed(key) & TALLIES_MASK.load();
    if let Some(tally) = TALLIES.get_ptr_mut(index) {
        // SAFETY: a map's value: valid and aligned for as long as the program runs. The key is its first words.
        unsafe {
            let owner = tally.cast::<[u64; 5]>();
            let mut difference = 0;
            for (place, word) in key.iter().enumerate() {
                difference |= (*owner)[place] ^ word;
            }
            if opaque(difference) == 0 {
                add_atomically(&raw mut (*tally).count, 1);
                return;
            }
        }
    }
    count_by_key(orig, reply, index);
}

/// The words of the [`CountKey`] of two tuples. In that of the first packet the direction, behind the protocol, is 0.
#[inline(always)]
fn pair(Tuple(orig): &Tuple, Tuple(reply): &Tuple) -> [u64; 5] {
    let endpoint_port_and_family = reply[2] & u64::from(u32::MAX);
    [reply[0], reply[1], endpoint_port_and_family | orig[2] >> HALF << HALF, orig[3], orig[4]]
}

/// The first connection of a pair, or one whose place in [`TALLIES`] another pair owns.
#[inline(never)]
fn count_by_key(orig: &Tuple, reply: &Tuple, index: u32) {
    let words = pair(orig, reply);
    // SAFETY: any bytes are a key, and it has those of the words.
    let key = unsafe { &*ptr::from_ref(&words).cast::<CountKey>() };
    if add_one(look_up(&COUNTS, key)) {
        return;
    }
    if COUNTS.insert(key, 1, BPF_NOEXIST).is_ok() {
        own(&words, index);
        return;
    }
    // Another CPU made the entry meanwhile, or the map is full.
    if !add_one(look_up(&COUNTS, key)) {
        add_one(look_up_slot(&SUPPRESSED, UNCOUNTED));
    }
}

/// Gives a place in [`TALLIES`] to a pair, unless another one owns it.
#[inline(always)]
fn own(key: &[u64; 5], index: u32) {
    let Some(tally) = TALLIES.get_ptr_mut(index) else { return };
    if TALLY_OWNERS.insert(index, 1, BPF_NOEXIST).is_err() {
        return;
    }
    let to = tally.cast::<u64>();
    for (place, word) in key.iter().enumerate() {
        // SAFETY: a map's value: valid and aligned for as long as the program runs. Only the owner writes the key, its first
        // words. Until the last word is there, which is never 0, it is the key of no connection.
        unsafe { to.add(place).write_volatile(*word) };
    }
}

#[inline(always)]
pub(crate) fn add_one(counter: Option<*mut u64>) -> bool {
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

/// The part that the destination of a connection has in a Service.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Part {
    Nothing,
    /// kube-proxy translated it.
    Translated,
    /// An address of a Service, or a node port of any address: kube-proxy translates connections there.
    Address,
    /// An endpoint of this node, where connections that another node translated arrive.
    Endpoint,
}

/// The part of a destination that was not translated.
#[inline(never)]
fn part(end: &End) -> Part {
    let all_ports = End { address: end.address, port: 0, protocol: 0 };
    let all_addresses = End { address: output::zeros(), ..*end };
    if look_up(&SERVICES, &all_ports).is_some() || look_up(&SERVICES, &all_addresses).is_some() {
        Part::Address
    } else if look_up(&SERVICES, end).is_some() {
        Part::Endpoint
    } else {
        Part::Nothing
    }
}

/// Whether an end belongs to a Service.
#[inline(always)]
pub(crate) fn is_service(end: &End) -> bool {
    part(end) != Part::Nothing
}

/// So many failures of a connection are reported with the first of them, for which it took a token.
const FAILURES_OF_CONNECTION: u32 = 32;
/// [`Decision::standing`]: the connection's failures are suppressed, since the moment in the other bits. Otherwise these are
/// the number of its failures that were reported.
const SUPPRESSED_SINCE: u32 = 1 << 31;
/// [`Decision::standing`]: the decision was reported: with a failure, or because the connection is one of the sample.
const HANDED_OVER: u32 = 1 << HANDED_OVER_SHIFT;
const HANDED_OVER_SHIFT: u32 = 30;
/// The unit of [`moment`]: 2^30 nanoseconds, a little more than a second.
const MOMENT_SHIFT: u32 = 30;

/// The state of a connection for the limits of failures.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Standing {
    /// No decision of it is kept.
    Unknown,
    /// It needs a token.
    Open,
    /// It needs a token of the sample: its decision was reported without a failure.
    Sampled,
    /// Its first failure was reported, and so are the next ones.
    Reported,
    /// Its first failure was suppressed within the last two seconds, and so are the next ones.
    Suppressed,
}

/// The standing of a client's connection. A failure that is reported for its sake is counted.
#[inline(always)]
pub(crate) fn standing(client: Words) -> Standing {
    let decision = find(client);
    if decision.is_null() {
        return Standing::Unknown;
    }
    // SAFETY: a map's value: valid and aligned for as long as the program runs. CPUs that count at the same time may let
    // through a few failures more.
    unsafe {
        let standing = (*decision).standing & !HANDED_OVER;
        if standing & SUPPRESSED_SINCE != 0 && moment().wrapping_sub(standing) <= 1 {
            return Standing::Suppressed;
        }
        if standing == 0 || standing & SUPPRESSED_SINCE != 0 {
            return if (*decision).standing & HANDED_OVER != 0 { Standing::Sampled } else { Standing::Open };
        }
        if standing >= FAILURES_OF_CONNECTION {
            return Standing::Open;
        }
        (*decision).standing += 1;
    }
    Standing::Reported
}

/// The present as [`Decision::standing`] has it.
#[inline(always)]
fn moment() -> u32 {
    (now() >> MOMENT_SHIFT) as u32 & !HANDED_OVER | SUPPRESSED_SINCE
}

/// After a failure of a client's connection: reports the decision that is kept for it, unless it was reported before. If the
/// failure was not admitted, it suppresses the next ones for a time.
#[inline(always)]
pub(crate) fn settle(client: Words, is_admitted: bool) {
    let decision = find(client);
    if decision.is_null() {
        return;
    }
    // SAFETY: a map's value: valid and aligned for as long as the program runs. If it is the oldest of its set,
    // another program may replace it meanwhile by the decision of another connection, which then gets this standing; the
    // record is of either, or a mixture whose tuples fit no flow.
    unsafe {
        let handed_over = (*decision).standing & HANDED_OVER;
        let standing = (*decision).standing & !HANDED_OVER;
        if standing != 0 && standing & SUPPRESSED_SINCE == 0 {
            return;
        }
        if !is_admitted {
            (*decision).standing = handed_over | moment();
            return;
        }
        if handed_over != 0 {
            (*decision).standing = HANDED_OVER | 1;
            return;
        }
        let Some(mut entry) = output::reserve::<ConntrackRecord>(Hook::Confirm) else { return };
        (*decision).standing = HANDED_OVER | 1;
        let record = entry.as_mut_ptr();
        // Of the entry's words: a connection that fails still has its namespace.
        let head = (&raw const (*decision).ct_head).cast();
        let netns = conntrack::netns_in(head, (*decision).ct);
        let header = output::header(Hook::Confirm, Kind::Conntrack, netns);
        (*record).header = Header { time_ns: (*decision).time_ns, ..header };
        (*record).ct = (*decision).ct;
        (*record).ctinfo = IP_CT_NEW;
        (*record).detail = age_ms(header.time_ns, (*decision).time_ns);
        (*record).pid = 0;
        (*record).tcp_state = (*decision).tcp_state;
        output::command(&raw mut (*record).comm, false);
        output::copy(&raw mut (*record).ct_head, head.expose_provenance() as u64);
        output::submit(entry);
    }
}

/// The age of a decision, milliseconds: at least 1, and at most 49 days.
#[inline(always)]
fn age_ms(now_ns: u64, time_ns: u64) -> u32 {
    u32::try_from(now_ns.saturating_sub(time_ns) / 1_000_000).unwrap_or(u32::MAX).max(1)
}

#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper has no argument and may be called anywhere.
    unsafe { bpf_ktime_get_ns() }
}
