//! The words of a conntrack entry that an agent's decisions keep, and its tuples in them.

use aya_ebpf::Global;
use tracer_ebpf::CT_HEAD_BYTES;

use crate::{
    cast, conntrack,
    filter::AF_INET,
    globals,
    output::{self, Scalar},
    turns::opaque,
    words::Words,
};

/// Where the part of an entry's head begins that decisions keep, and its length, bytes: multiples of 8.
#[unsafe(no_mangle)]
static KEPT_FROM: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static KEPT_BYTES: Global<u32> = Global::new(0);
/// Its words of 8 bytes that are needed, a bit each.
#[unsafe(no_mangle)]
pub(crate) static KEPT_WORDS: Global<u32> = Global::new(0);

/// The words of an entry's beginning. Those of a tuple are aligned, since it follows two pointers.
pub(crate) type Head = [u64; HEAD_WORDS];
const HEAD_WORDS: usize = CT_HEAD_BYTES / 8;

/// The words of a tuple (`struct nf_conntrack_tuple`): the source's address, its port and the family with the first quarter of the
/// destination's address, and the other quarters with its port, the protocol and the direction.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Tuple(pub(crate) [u64; 5]);

/// The port and the protocol of an end: [`Words::port`].
const PORT_AND_PROTOCOL: u64 = 0xff_ffff;
const PORT: u64 = 0xffff;
/// In the words of a tuple, where the destination begins.
pub(crate) const HALF: u32 = 32;

// SAFETY: any bytes are words.
unsafe impl Scalar for Tuple {}

/// The words of an entry's beginning at this offset of the entry. The verifier knows the offsets, and removes the comparison.
#[inline(always)]
pub(crate) fn part_of<T: Scalar>(head: &Head, offset: u32) -> Option<&T> {
    let from = u64::from(offset).wrapping_sub(u64::from(globals::OFF_CT_BASE.load()));
    if from > (size_of::<Head>() - size_of::<T>()) as u64 || !from.is_multiple_of(8) {
        return None;
    }
    // SAFETY: the part lies within the words, as was compared, and is aligned like them.
    Some(unsafe { &*head.as_ptr().byte_add(from as usize).cast::<T>() })
}

impl Tuple {
    #[inline(always)]
    pub(crate) fn protocol(&self) -> u64 {
        self.0[4] >> 48 & 0xff
    }

    #[inline(always)]
    fn family(&self) -> u16 {
        (self.0[2] >> 16) as u16
    }

    /// The source, without its protocol, which the destination has.
    #[inline(always)]
    pub(crate) fn source(&self) -> Words {
        Words { low: self.0[0], high: self.0[1], port: self.0[2] & PORT }
    }

    #[inline(always)]
    pub(crate) fn destination(&self) -> Words {
        Words {
            low: self.0[2] >> HALF | self.0[3] << HALF,
            high: self.0[3] >> HALF | self.0[4] << HALF,
            port: self.0[4] >> HALF & PORT_AND_PROTOCOL,
        }
    }

    /// Whether this one's source is the other's destination.
    #[inline(always)]
    pub(crate) fn comes_from_destination(&self, other: &Self) -> bool {
        let (source, destination) = (self.source(), other.destination());
        // With one branch, where the compiler would make one for each word.
        opaque(
            (source.low ^ destination.low)
                | (source.high ^ destination.high)
                | (source.port ^ destination.port & PORT),
        ) == 0
    }
}

/// Copies the words of an entry that a decision keeps to their places.
///
/// # Safety
///
/// `head` must be valid for the write.
#[inline(always)]
pub(crate) unsafe fn copy_kept(head: *mut Head, ct: u64) -> bool {
    if let Some(entry) = cast::typed(conntrack::head(ct)) {
        // SAFETY: as the caller promises, and loads from there are volatile.
        unsafe { load_kept(entry, head) };
        return true;
    }
    let (from, bytes) = (KEPT_FROM.load(), KEPT_BYTES.load());
    if from as usize >= size_of::<Head>() || bytes as usize > size_of::<Head>() - from as usize {
        return false;
    }
    let address = conntrack::head(ct).wrapping_add(u64::from(from));
    // SAFETY: the bytes lie within `head`, as was compared.
    unsafe { output::copy_bytes(head.byte_add(from as usize).cast(), bytes, address) }
}

/// The same by loads, of which an entry of IPv4 needs fewer.
///
/// # Safety
///
/// `entry` must be valid for volatile reads, and `head` for the write.
#[inline(always)]
unsafe fn load_kept(entry: *const Head, head: *mut Head) {
    let (kept, wide) = (KEPT_WORDS.load(), wide_words());
    // SAFETY: as the caller promises. The family is in none of the wide words.
    unsafe {
        copy_words(entry, head, kept & !wide);
        let orig: Option<&Tuple> = part_of(&*head, globals::OFF_CT_ORIG_SRC.load());
        if orig.is_some_and(|orig| orig.family() == AF_INET) {
            clear_words(head, kept & wide);
        } else {
            copy_words(entry, head, kept & wide);
        }
    }
}

/// The words of both tuples that only addresses of IPv6 reach, a bit each. In others they are 0, because the kernel begins with a
/// tuple of zeros (`nf_ct_get_tuple` and `nf_ct_invert_tuple`, `net/netfilter/nf_conntrack_core.c`).
#[inline(always)]
fn wide_words() -> u32 {
    /// The last half of the source's address, and all but the first and the last quarter of the destination's.
    const OF_TUPLE: u32 = 1 << 1 | 1 << 3;
    let place = |offset: u32| offset.wrapping_sub(globals::OFF_CT_BASE.load()) / 8;
    let [orig, reply] = [globals::OFF_CT_ORIG_SRC.load(), globals::OFF_CT_REPLY_SRC.load()].map(place);
    OF_TUPLE.wrapping_shl(orig) | OF_TUPLE.wrapping_shl(reply)
}

/// Copies these words, a bit each. The verifier knows which, and removes the comparisons.
///
/// # Safety
///
/// `head` must be valid for volatile reads, and `to` for the write.
#[inline(always)]
pub(crate) unsafe fn copy_words(head: *const Head, to: *mut Head, words: u32) {
    let (head, to): (*const u64, *mut u64) = (head.cast(), to.cast());
    for place in 0..HEAD_WORDS {
        if words >> place & 1 != 0 {
            // SAFETY: the caller promises it.
            unsafe { to.add(place).write(head.add(place).read_volatile()) };
        }
    }
}

/// Makes these words 0.
///
/// # Safety
///
/// `to` must be valid for the write.
#[inline(always)]
unsafe fn clear_words(to: *mut Head, words: u32) {
    let to: *mut u64 = to.cast();
    for place in 0..HEAD_WORDS {
        if words >> place & 1 != 0 {
            // SAFETY: the caller promises it.
            unsafe { to.add(place).write(0) };
        }
    }
}
