//! The marks of a packet and of its connection, and the steps that change them.

use super::Step;

/// A mark of which some bits may not be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) bits: u32,
    /// The bits that are not known.
    pub(crate) unknown: u32,
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

/// The mark of a packet, and that of its conntrack entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) packet: Mark,
    pub(crate) connection: Mark,
}

impl Marks {
    /// Applies a step that changes one of the two; others change none.
    pub(crate) const fn apply(&mut self, step: &Step) {
        match *step {
            Step::SetMark { clear, toggle } => self.packet.set(clear, toggle),
            Step::SetConnMark { clear, toggle } => self.connection.set(clear, toggle),
            Step::SaveMark { clear, keep } => self.connection.take(clear, self.packet, keep),
            Step::RestoreMark { clear, keep } => self.packet.take(clear, self.connection, keep),
            _ => {}
        }
    }
}
