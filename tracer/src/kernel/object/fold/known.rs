//! The knowledge of registers on a path through a program.

use aya_obj::generated::bpf_insn;

use super::{super::stubs::CALL, BY_REGISTER, LOAD_WIDE, MOVE_32, Numbers};

/// `BPF_PSEUDO_MAP_VALUE`: the address of a place in a map's value.
pub(super) const MAP_VALUE: u8 = 2;

/// The knowledge of a register at one place of the program.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Known {
    Nothing,
    /// It is the address of this place among the numbers.
    Place(u32),
    Number(u64),
}

/// The knowledge of an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finding {
    Nothing,
    /// It is a jump that is always taken, or never.
    Branch(bool),
    /// Its result.
    Result(u32),
    /// The number in the register that is its operand.
    Operand(i32),
}

impl Finding {
    /// Puts a number in the place of a register.
    pub(super) fn put_into(self, own: &mut bpf_insn) {
        match self {
            Self::Nothing | Self::Branch(_) => {}
            Self::Result(number) => {
                (own.code, own.imm, own.off) = (MOVE_32, number.cast_signed(), 0);
                own.set_src_reg(0);
            }
            Self::Operand(number) => {
                (own.code, own.imm) = (own.code & !BY_REGISTER, number);
                own.set_src_reg(0);
            }
        }
    }
}

/// The registers.
#[derive(Clone, Copy)]
pub(super) struct Registers(pub(super) [Known; 11]);

impl Registers {
    pub(super) const UNKNOWN: Self = Self([Known::Nothing; 11]);

    fn get(&self, register: u8) -> Known {
        self.0.get(usize::from(register)).copied().unwrap_or(Known::Nothing)
    }

    fn set(&mut self, register: u8, known: Known) {
        if let Some(register) = self.0.get_mut(usize::from(register)) {
            *register = known;
        }
    }

    /// Keeps the knowledge that another path has too.
    pub(super) fn meet(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            if own != other {
                *own = Known::Nothing;
            }
        }
    }

    /// Follows one instruction. `second`: the number of the next one.
    pub(super) fn step(&mut self, own: bpf_insn, second: i32, numbers: &Numbers) -> Finding {
        let (to, from) = (own.dst_reg(), own.src_reg());
        match own.code & 7 {
            0 => self.load_wide(own, second, numbers),
            // `BPF_LDX | BPF_MEM`.
            1 if own.code & 0xe0 == 0x60 => {
                let read = match self.get(from) {
                    Known::Place(place) => numbers.read(place, own.off, width(own.code)),
                    _ => None,
                };
                self.put(to, read)
            }
            4 | 7 => self.compute(own),
            5 | 6 if own.code == CALL => {
                for register in 0..6 {
                    self.set(register, Known::Nothing);
                }
                Finding::Nothing
            }
            5 | 6 => self.branch(own),
            // A store. An atomic one may write its source, or register 0.
            2 => Finding::Nothing,
            3 => {
                if own.code & 0xe0 == 0xc0 {
                    self.set(from, Known::Nothing);
                    self.set(0, Known::Nothing);
                }
                Finding::Nothing
            }
            _ => self.put(to, None),
        }
    }

    /// Notes the number that an instruction results in, if it is known.
    fn put(&mut self, to: u8, number: Option<u64>) -> Finding {
        self.set(to, number.map_or(Known::Nothing, Known::Number));
        number.and_then(|number| u32::try_from(number).ok()).map_or(Finding::Nothing, Finding::Result)
    }

    fn load_wide(&mut self, own: bpf_insn, second: i32, numbers: &Numbers) -> Finding {
        if own.code == LOAD_WIDE && own.src_reg() == MAP_VALUE && own.imm == numbers.map {
            self.set(own.dst_reg(), Known::Place(second.cast_unsigned()));
            return Finding::Nothing;
        }
        let [low, high] = [own.imm, second].map(|half| u64::from(half.cast_unsigned()));
        self.put(own.dst_reg(), (own.code == LOAD_WIDE && own.src_reg() == 0).then_some(low | high << 32))
    }

    /// An instruction that computes.
    fn compute(&mut self, own: bpf_insn) -> Finding {
        let (to, operation) = (own.dst_reg(), own.code & 0xf0);
        let is_32 = own.code & 7 == 4;
        let operand = self.operand(own);
        // Others extend the sign of a part, or divide with signs.
        if operation == 0xb0 && own.off == 0 {
            if let (None, Known::Place(_), false) = (operand, self.get(own.src_reg()), is_32) {
                self.set(to, self.get(own.src_reg()));
                return Finding::Nothing;
            }
            let finding = self.put(to, operand.map(|number| narrow(number, is_32)));
            return if own.code & BY_REGISTER == 0 { Finding::Nothing } else { finding };
        }
        if let (Known::Number(left), Some(right), 0) = (self.get(to), operand, own.off) {
            return self.put(to, result(operation, left, right, is_32));
        }
        self.set(to, Known::Nothing);
        // Divisions and shifts have limits that the verifier checks, and the sign and the order of bytes have no operand.
        let has_limits = matches!(operation, 0x30 | 0x60 | 0x70 | 0x80 | 0x90 | 0xc0 | 0xd0);
        let takes = own.off == 0 && own.code & BY_REGISTER != 0 && !has_limits;
        immediate(operand.filter(|_| takes), is_32)
    }

    fn branch(&self, own: bpf_insn) -> Finding {
        let is_32 = own.code & 7 == 6;
        let Some(right) = self.operand(own) else { return Finding::Nothing };
        let operation = own.code & 0xf0;
        let decided = match self.get(own.dst_reg()) {
            Known::Number(left) => compare(operation, narrow(left, is_32), narrow(right, is_32), is_32),
            _ => compare_any(operation, narrow(right, is_32), narrow(u64::MAX, is_32)),
        };
        match decided {
            Some(is_taken) => Finding::Branch(is_taken),
            None if own.code & BY_REGISTER != 0 => immediate(Some(right), is_32),
            None => Finding::Nothing,
        }
    }

    /// The number that an instruction takes besides its result's register.
    fn operand(&self, own: bpf_insn) -> Option<u64> {
        if own.code & BY_REGISTER == 0 {
            return Some(i64::from(own.imm).cast_unsigned());
        }
        match self.get(own.src_reg()) {
            Known::Number(number) => Some(number),
            _ => None,
        }
    }
}

/// A number as an instruction reads or writes it.
fn narrow(number: u64, is_32: bool) -> u64 {
    if is_32 { number & u64::from(u32::MAX) } else { number }
}

/// The result of an operation on two numbers, except of divisions.
fn result(operation: u8, left: u64, right: u64, is_32: bool) -> Option<u64> {
    let bits = if is_32 { 32 } else { 64 };
    let [left, right] = [left, right].map(|number| narrow(number, is_32));
    let result = match operation {
        0x00 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x20 => left.wrapping_mul(right),
        0x40 => left | right,
        0x50 => left & right,
        0x60 if right < bits => left << right,
        0x70 if right < bits => left >> right,
        0xa0 => left ^ right,
        _ => return None,
    };
    Some(narrow(result, is_32))
}

/// An operand as an instruction has it, whose sign is extended to 64 bits.
fn immediate(operand: Option<u64>, is_32: bool) -> Finding {
    let number = operand.and_then(|number| {
        if is_32 { Some((number as u32).cast_signed()) } else { i32::try_from(number.cast_signed()).ok() }
    });
    number.map_or(Finding::Nothing, Finding::Operand)
}

/// The bytes that a load reads.
fn width(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

/// The comparison of any number, where it is the same for each. `greatest`: of all numbers.
fn compare_any(operation: u8, right: u64, greatest: u64) -> Option<bool> {
    match operation {
        0x20 if right == greatest => Some(false),
        0x30 if right == 0 => Some(true),
        0x40 | 0xa0 if right == 0 => Some(false),
        0xb0 if right == greatest => Some(true),
        _ => None,
    }
}

/// The comparison of a conditional jump.
pub(super) fn compare(operation: u8, left: u64, right: u64, is_32: bool) -> Option<bool> {
    let signed = |number: u64| {
        if is_32 { i64::from((number as u32).cast_signed()) } else { number.cast_signed() }
    };
    Some(match operation {
        0x10 => left == right,
        0x20 => left > right,
        0x30 => left >= right,
        0x40 => left & right != 0,
        0x50 => left != right,
        0x60 => signed(left) > signed(right),
        0x70 => signed(left) >= signed(right),
        0xa0 => left < right,
        0xb0 => left <= right,
        0xc0 => signed(left) < signed(right),
        0xd0 => signed(left) <= signed(right),
        _ => return None,
    })
}
