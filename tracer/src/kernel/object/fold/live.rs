//! The instructions whose results are needed.

use aya_obj::generated::bpf_insn;

use super::{BY_REGISTER, Flow, LOAD_WIDE, Way};

/// Registers, a bit each.
type Set = u16;

/// Register 0, and those of a call's arguments.
const RESULT: Set = 1;
const ARGUMENTS: Set = 0b11_1110;

/// Which instructions are needed: they write memory, call or jump, or others need the register that they write.
///
/// Passes against the order of the program, until one finds nothing new: as many as loops lie in each other, and one more.
pub(super) fn needed(instructions: &[bpf_insn], flow: &Flow) -> Vec<bool> {
    // The registers that are needed before each instruction, and behind the last one.
    let mut before: Vec<Set> = vec![0; instructions.len() + 1];
    let mut needed = vec![false; instructions.len()];
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for (at, (own, way)) in instructions.iter().zip(&flow.0).enumerate().rev() {
            let at_place = |place: usize| before.get(place).copied().unwrap_or(0);
            let next = at_place(at + 1);
            let behind = match *way {
                Way::End => 0,
                Way::Go(to) => at_place(to as usize),
                Way::Jump(to) => next | at_place(to as usize),
                Way::Next | Way::Half | Way::Skip | Way::Call(_) => next,
            };
            let effect = Effect::of(*own, *way);
            let is_needed = !effect.is_pure || behind & effect.writes != 0;
            let now = if is_needed { behind & !effect.writes | effect.reads } else { behind };
            if let (Some(before), Some(needed)) = (before.get_mut(at), needed.get_mut(at)) {
                has_changed |= *before != now || *needed != is_needed;
                (*before, *needed) = (now, is_needed);
            }
        }
    }
    needed
}

struct Effect {
    reads: Set,
    writes: Set,
    /// It does nothing but write these registers.
    is_pure: bool,
}

impl Effect {
    const CALL: Self = Self { reads: ARGUMENTS, writes: RESULT | ARGUMENTS, is_pure: false };

    fn of(own: bpf_insn, way: Way) -> Self {
        let bit = |register: u8| 1_u16.checked_shl(register.into()).unwrap_or(0);
        let (to, from) = (bit(own.dst_reg()), bit(own.src_reg()));
        let operand = if own.code & BY_REGISTER == 0 { 0 } else { from };
        let stays = |reads| Self { reads, writes: 0, is_pure: false };
        match way {
            Way::Half | Way::Skip | Way::Go(_) => stays(0),
            Way::End => stays(RESULT),
            Way::Jump(_) => stays(to | operand),
            Way::Call(_) => Self::CALL,
            Way::Next => match own.code & 7 {
                0 if own.code == LOAD_WIDE => Self { reads: 0, writes: to, is_pure: true },
                1 => Self { reads: from, writes: to, is_pure: true },
                // A move, whose result does not depend on the register's number before.
                4 | 7 if own.code & 0xf0 == 0xb0 => Self { reads: operand, writes: to, is_pure: true },
                4 | 7 => Self { reads: to | operand, writes: to, is_pure: true },
                // Loads of a packet's bytes are calls.
                0 | 5 | 6 => Self::CALL,
                // Stores: an atomic one may read register 0.
                _ => stays(to | from | RESULT),
            },
        }
    }
}
