//! What a program that several functions share does at one of them.

use super::Hook;

/// The number that the kernel hands to the shared program at a function (`bpf_get_attach_cookie`): the hook, and where among
/// the function's arguments its facts are. So the program needs no code for each function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(u64);

impl Cookie {
    /// Bits of the hook's number.
    pub const HOOK_MASK: u64 = 0xff;
    /// Above these bits: which word is the packet or the entry, ...
    pub const SUBJECT_SHIFT: u32 = 8;
    /// ... which one is the packet's reason or the entry's detail, ...
    pub const REASON_SHIFT: u32 = 11;
    /// ... and which one the packet's netfilter hook or the entry's `enum ip_conntrack_info`.
    pub const PLACE_SHIFT: u32 = 14;
    /// The bits of a word's number.
    pub const WORD_MASK: u64 = 7;
    /// The words are the function's first five arguments, [`Self::ZERO`], [`Self::NONE`] and one that is not used.
    pub const WORDS: usize = 8;
    /// The word that is 0.
    pub const ZERO: u64 = 5;
    /// The word that is `u32::MAX`: [`crate::REASON_NONE`] and [`crate::CTINFO_NONE`].
    pub const NONE: u64 = 6;

    /// The subject is a conntrack entry, not a packet.
    pub const OF_ENTRY: u64 = 1 << 17;
    /// The record is of the conntrack entry.
    pub const REPORTS_ENTRY: u64 = 1 << 18;
    /// The packet is invalid: its entry is argument 1, and the message's format argument 3.
    pub const REPORTS_INVALID: u64 = 1 << 19;
    /// Only if argument 0 is no full socket.
    pub const WITHOUT_SOCKET: u64 = 1 << 20;
    /// The entry ends: an agent asks only for those that nobody answered.
    pub const OF_END: u64 = 1 << 21;
    /// The reason is a byte: the rest of its register is undefined.
    pub const REASON_IS_BYTE: u64 = 1 << 22;

    const fn new(flags: u64, subject: u64, reason: u64, place: u64) -> Self {
        Self(
            flags
                | subject << Self::SUBJECT_SHIFT
                | reason << Self::REASON_SHIFT
                | place << Self::PLACE_SHIFT,
        )
    }

    /// The packet in this argument.
    pub(super) const fn packet(subject: u64) -> Self {
        Self::new(0, subject, Self::NONE, Self::ZERO)
    }

    /// The packet in this argument, with its reason and netfilter hook in others.
    pub(super) const fn rejected(subject: u64, code: u64, nf_hook: u64) -> Self {
        Self::new(0, subject, code, nf_hook)
    }

    /// The conntrack entry of the packet in this argument.
    pub(super) const fn entry_of_packet(subject: u64) -> Self {
        Self::new(Self::REPORTS_ENTRY, subject, Self::ZERO, Self::ZERO)
    }

    /// The conntrack entry in this argument, with detail and `enum ip_conntrack_info` in others.
    pub(super) const fn entry(subject: u64, detail: u64, ctinfo: u64) -> Self {
        Self::new(Self::REPORTS_ENTRY | Self::OF_ENTRY, subject, detail, ctinfo)
    }

    pub(super) const fn with(self, flag: u64) -> Self {
        Self(self.0 | flag)
    }

    /// The cookie of the link to this hook's function.
    pub const fn at(self, hook: Hook) -> u64 {
        self.0 | hook as u64
    }
}
