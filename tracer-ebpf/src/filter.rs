//! A targeted trace's filter, decided in the kernel: which addresses concern it.
//!
//! User space matches Services and endpoints exactly; here an address set keeps all other traffic out of the ring
//! buffer. The filter runs before a record is reserved: a discarded record without a wake-up would suppress the
//! notification of the next one.

use core::ptr;

use aya_ebpf::{macros::map, maps::HashMap};
use tracer_ebpf::MISSING;

use crate::{
    globals::{self, TARGETED},
    output,
};

type Address = [u8; 16];

#[map]
static TARGETS: HashMap<Address, u8> = HashMap::with_max_entries(16384, 0);

pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;

#[inline(always)]
pub(crate) fn on() -> bool {
    TARGETED.load() != 0
}

#[inline(always)]
fn listed(address: &Address) -> bool {
    TARGETS.get_ptr(address).is_some()
}

#[inline(always)]
fn listed_at(base: u64, offset: u32) -> bool {
    if offset == MISSING {
        return false;
    }
    match output::read::<Address>(base.wrapping_add(u64::from(offset))) {
        Some(address) => listed(&address),
        None => false,
    }
}

#[inline(always)]
fn v4_listed_at(base: u64, offset: u32) -> bool {
    if offset == MISSING {
        return false;
    }
    let Some(word) = output::read::<u32>(base.wrapping_add(u64::from(offset))) else { return false };
    let [first, second, third] = output::zeros();
    let words = [word, first, second, third];
    // SAFETY: an address has the bytes of four words.
    listed(unsafe { &*ptr::from_ref(&words).cast::<Address>() })
}

/// Whether a trace wants the events of a conntrack entry.
#[inline(always)]
pub(crate) fn wants_ct(ct: u64) -> bool {
    !on() || is_target_ct(output::number(ct)) != 0
}

/// Whether a trace wants the packet whose network header lies at `network`.
#[inline(always)]
pub(crate) fn wants_packet(network: u64) -> bool {
    !on() || is_target_packet(network) != 0
}

/// Whether a trace wants the events of a socket.
#[inline(always)]
pub(crate) fn wants_socket(sk: u64) -> bool {
    !on() || is_target_socket(output::number(sk)) != 0
}

// Functions with names of their own, by which user space takes them out of the programs of a trace without targets
// (`tracer_ebpf::function::OF_FILTER`), and which the verifier checks by themselves.

/// Whether a conntrack entry's client, VIP or endpoint is a target. The kernel zeroes a tuple before it fills
/// it, so an IPv4 address is its four bytes and twelve zeros (`nf_ct_get_tuple`).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_target_ct(ct: u64) -> u32 {
    let is_target = listed_at(ct, globals::OFF_CT_ORIG_DST.load())
        || listed_at(ct, globals::OFF_CT_REPLY_SRC.load())
        || listed_at(ct, globals::OFF_CT_ORIG_SRC.load());
    is_target.into()
}

/// Whether the packet whose network header lies at `network` comes from or goes to a target.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_target_packet(network: u64) -> u32 {
    let is_target = match output::read::<u8>(network).unwrap_or(0) >> 4 {
        4 => v4_listed_at(network, 12) || v4_listed_at(network, 16),
        6 => listed_at(network, 8) || listed_at(network, 24),
        _ => false,
    };
    is_target.into()
}

/// Whether an address outside any kernel structure is a target.
#[inline(always)]
pub(crate) fn wants_address(address: &Address, family: u16) -> bool {
    let mut key = *address;
    if family != AF_INET6 {
        let mut i = 4;
        while i < 16 {
            key[i] = 0;
            i += 1;
        }
    }
    listed(&key)
}

/// Whether an end of a socket is a target.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_target_socket(sk: u64) -> u32 {
    let family = match globals::OFF_SK_FAMILY.load() {
        MISSING => 0,
        offset => output::read::<u16>(sk.wrapping_add(u64::from(offset))).unwrap_or(0),
    };
    // An IPv6 socket with an IPv4 peer (`::ffff:a.b.c.d`: a dual-stack server) has both forms, as `tcp_v4_syn_recv_sock`
    // and `tcp_v4_connect` fill in the IPv4 addresses. With an IPv6 peer these are 0 or 127.0.0.6 (`LOOPBACK4_IPV6`).
    let is_target = (family == AF_INET6
        && (listed_at(sk, globals::OFF_SK_V6_DADDR.load())
            || listed_at(sk, globals::OFF_SK_V6_SADDR.load())))
        || v4_listed_at(sk, globals::OFF_SK_DADDR.load())
        || v4_listed_at(sk, globals::OFF_SK_SADDR.load());
    is_target.into()
}
