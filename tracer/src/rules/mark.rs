//! The marks of a packet and of its connection, and the steps that change them.

use std::fmt;

use super::Step;

/// A mark of which some bits may not be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub bits: u32,
    /// The bits that are not known.
    pub unknown: u32,
}

impl Mark {
    /// Clears bits and toggles others.
    pub(crate) const fn set(&mut self, clear: u32, toggle: u32) {
        self.bits = (self.bits & !clear) ^ toggle;
        self.unknown &= !clear;
    }

    /// Clears bits, and toggles those that another mark has among the bits to keep.
    const fn take(&mut self, clear: u32, from: Self, keep: u32) {
        self.bits = (self.bits & !clear) ^ (from.bits & keep);
        self.unknown = (self.unknown & !clear) | (from.unknown & keep);
    }

    /// Whether it has this value in the bits of the mask. `None` if bits that decide are not known.
    pub(crate) const fn is(self, value: u32, mask: u32) -> Option<bool> {
        let known = mask & !self.unknown;
        if value & !mask != 0 || (self.bits ^ value) & known != 0 {
            Some(false)
        } else if known == mask {
            Some(true)
        } else {
            None
        }
    }
}

impl fmt::Display for Mark {
    /// The value, with a mask of its known bits if others are not known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (known, bits) = (!self.unknown, self.bits & !self.unknown);
        match known {
            u32::MAX => write!(f, "{bits:#x}"),
            0 => f.write_str("not known"),
            _ => write!(f, "{bits:#x}/{known:#x} (the other bits are not known)"),
        }
    }
}

/// The mark of a packet, and that of its conntrack entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub packet: Mark,
    /// `None`: conntrack ignores the packet, which has no entry.
    pub connection: Option<Mark>,
}

impl Marks {
    /// Applies a step that changes one of the two, or ends the tracking; others change none. Without an entry, the steps that
    /// write or read its mark do nothing (`connmark_tg` in `net/netfilter/xt_connmark.c`, `nft_ct_set_eval` in
    /// `net/netfilter/nft_ct.c`).
    pub(crate) const fn apply(&mut self, step: &Step) {
        match (step, &mut self.connection) {
            (&Step::SetMark { clear, toggle }, _) => self.packet.set(clear, toggle),
            (&Step::SetConnMark { clear, toggle }, Some(connection)) => connection.set(clear, toggle),
            (&Step::SaveMark { clear, keep }, Some(connection)) => connection.take(clear, self.packet, keep),
            (&Step::RestoreMark { clear, keep }, Some(connection)) => {
                self.packet.take(clear, *connection, keep);
            }
            (Step::NoTrack, connection) => *connection = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mark;

    #[test]
    fn a_mark_says_which_bits_are_known() {
        let mark = |bits, unknown| Mark { bits, unknown }.to_string();
        assert_eq!(mark(0x4000, 0), "0x4000");
        assert_eq!(mark(0x1, u32::MAX), "not known");
        assert_eq!(mark(0xff, 0xffff_ff0f), "0xf0/0xf0 (the other bits are not known)");
    }
}
