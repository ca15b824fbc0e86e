//! Branches that a trace's numbers decide: they go, with the code that no path reaches any more.
//!
//! The verifier removes such code too, range by range: for each it moves the rest of the program and all that it knows of it,
//! which on 7.2 took a tenth of the time to attach. Works on instructions as `Documentation/bpf/standardization` defines them,
//! before the kernel receives them.

use aya_obj::{
    Function,
    generated::{bpf_func_info, bpf_insn},
};

use super::stubs::{CALL, EXIT, instruction, target as called};

/// `BPF_LD | BPF_IMM | BPF_DW`, in the place of two instructions.
const LOAD_WIDE: u8 = 0x18;
/// `BPF_JMP | BPF_JA`, and with a long distance.
const GO: u8 = 0x05;
const GO_FAR: u8 = 0x06;
/// `BPF_PSEUDO_MAP_VALUE`: the address of a place in a map's value.
const MAP_VALUE: u8 = 2;
/// `BPF_PSEUDO_FUNC`: the address of a function of the program.
const FUNCTION: u8 = 4;

/// The map of a trace's numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) map: i32,
    pub(super) bytes: Vec<u8>,
}

impl Numbers {
    fn read(&self, place: u32, offset: i16, bytes: usize) -> Option<u64> {
        let start = usize::try_from(i64::from(place) + i64::from(offset)).ok()?;
        let mut number = [0; 8];
        number.get_mut(..bytes)?.copy_from_slice(self.bytes.get(start..start.checked_add(bytes)?)?);
        Some(u64::from_le_bytes(number))
    }
}

/// Removes the branches that the numbers decide from a linked program, and what no path reaches.
pub(super) fn fold(program: &mut Function, numbers: &Numbers) {
    let records = &mut program.func_info;
    fold_in(&mut program.instructions, &mut records.func_info, numbers);
    records.num_info = records.func_info.len() as u32;
}

/// `functions`: where each function begins.
fn fold_in(instructions: &mut Vec<bpf_insn>, functions: &mut Vec<bpf_func_info>, numbers: &Numbers) {
    let Some(flow) = Flow::of(instructions) else { return };
    let decided = flow.decided(instructions, numbers);
    let reached = flow.reached(&decided);
    let mut kept: Vec<bool> =
        reached.iter().zip(&decided).map(|(reached, decided)| *reached && *decided != Some(false)).collect();
    // Jumps to what follows them, which others that go may leave behind.
    loop {
        let is_idle = |at: &usize| {
            let target = match (flow.0.get(*at), decided.get(*at)) {
                (Some(Way::Go(target)), _) | (Some(Way::Jump(target)), Some(Some(true))) => *target as usize,
                _ => return false,
            };
            kept.get(*at) == Some(&true)
                && kept.get(at + 1..target).is_some_and(|between| !between.contains(&true))
        };
        let idle: Vec<usize> = (0..kept.len()).filter(is_idle).collect();
        for at in &idle {
            if let Some(kept) = kept.get_mut(*at) {
                *kept = false;
            }
        }
        if idle.is_empty() {
            break;
        }
    }
    // Where each instruction lies afterwards, or the next that remains.
    let mut count = 0_usize;
    let mut moved = Vec::with_capacity(kept.len());
    for is_kept in &kept {
        moved.push(count);
        count += usize::from(*is_kept);
    }
    let place = |at: usize| moved.get(at).copied().unwrap_or(count);
    // Shorter than before, in the same direction.
    let distance = |at: usize, target: u32| place(target as usize).wrapping_sub(place(at) + 1).cast_signed();
    let left =
        instructions.iter().enumerate().zip(&flow.0).filter(|((at, _), _)| kept.get(*at) == Some(&true));
    let left = left.map(|((at, own), way)| match *way {
        Way::Jump(target) if decided.get(at) == Some(&Some(true)) => {
            bpf_insn { off: distance(at, target) as i16, ..instruction(GO) }
        }
        Way::Jump(target) | Way::Go(target) => bpf_insn { off: distance(at, target) as i16, ..*own },
        Way::Call(function) => bpf_insn { imm: distance(at, function) as i32, ..*own },
        Way::Next | Way::Half | Way::End => *own,
    });
    let left = left.collect();
    functions.retain(|function| reached.get(function.insn_off as usize) == Some(&true));
    for function in functions {
        function.insn_off = place(function.insn_off as usize) as u32;
    }
    *instructions = left;
}

/// Where an instruction leads, by the places of others.
#[derive(Clone, Copy)]
enum Way {
    Next,
    /// The second half of a wide load, which is no instruction.
    Half,
    /// On one condition.
    Jump(u32),
    Go(u32),
    /// To a function of the program, and then on.
    Call(u32),
    End,
}

/// The ways through a program.
struct Flow(Vec<Way>);

/// The knowledge of a register at one place of the program.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Nothing,
    /// It is the address of this place among the numbers.
    Place(u32),
    Number(u64),
}

/// The registers, of which an instruction has room for 16.
type Registers = [Known; 16];

impl Flow {
    /// `None` for a program with instructions whose way is not followed here.
    fn of(instructions: &[bpf_insn]) -> Option<Self> {
        let mut ways = Vec::with_capacity(instructions.len());
        for (at, own) in instructions.iter().enumerate() {
            if own.code == GO_FAR || (own.code == LOAD_WIDE && own.src_reg() == FUNCTION) {
                return None;
            }
            let target = || {
                let target = at.checked_add(1)?.checked_add_signed(own.off.into())?;
                u32::try_from(target).ok().filter(|_| target < instructions.len())
            };
            let way = match own.code {
                // The code of the second half.
                0 => Way::Half,
                CALL => called(at, *own).map_or(Way::Next, |function| Way::Call(function as u32)),
                EXIT => Way::End,
                GO => Way::Go(target()?),
                code if matches!(code & 7, 5 | 6) => Way::Jump(target()?),
                _ => Way::Next,
            };
            ways.push(way);
        }
        Some(Self(ways))
    }

    /// The conditional jumps that the numbers decide: whether they are taken.
    fn decided(&self, instructions: &[bpf_insn], numbers: &Numbers) -> Vec<Option<bool>> {
        // Where other paths than from the instruction before may lead.
        let mut begins = vec![false; instructions.len()];
        for way in &self.0 {
            if let Way::Jump(to) | Way::Go(to) | Way::Call(to) = way
                && let Some(begins) = begins.get_mut(*to as usize)
            {
                *begins = true;
            }
        }
        let mut registers = [Known::Nothing; 16];
        let mut decided = Vec::with_capacity(instructions.len());
        let second = instructions.iter().skip(1).map(|own| own.imm).chain([0]);
        for (((own, second), way), begins) in instructions.iter().zip(second).zip(&self.0).zip(&begins) {
            if *begins {
                registers = [Known::Nothing; 16];
            }
            decided.push(match way {
                Way::Half => None,
                Way::Go(_) | Way::End => {
                    registers = [Known::Nothing; 16];
                    None
                }
                Way::Next | Way::Jump(_) | Way::Call(_) => step(&mut registers, *own, second, numbers),
            });
        }
        decided
    }

    /// The instructions that a path leads to.
    fn reached(&self, decided: &[Option<bool>]) -> Vec<bool> {
        let mut reached = vec![false; self.0.len()];
        let mut open = vec![0];
        while let Some(begin) = open.pop() {
            let mut at: usize = begin;
            while let (Some(reached), Some(way)) = (reached.get_mut(at), self.0.get(at)) {
                if std::mem::replace(reached, true) {
                    break;
                }
                at = match (*way, decided.get(at).copied().flatten()) {
                    (Way::End, _) => break,
                    (Way::Go(to), _) | (Way::Jump(to), Some(true)) => to as usize,
                    (Way::Jump(to), None) | (Way::Call(to), _) => {
                        open.push(to as usize);
                        at + 1
                    }
                    (Way::Next | Way::Half | Way::Jump(_), _) => at + 1,
                };
            }
        }
        reached
    }
}

/// Follows one instruction; whether it jumps, if it is a jump that the registers decide. `second`: the number of the next
/// instruction.
fn step(registers: &mut Registers, own: bpf_insn, second: i32, numbers: &Numbers) -> Option<bool> {
    let class = own.code & 7;
    let by_register = own.code & 8 != 0;
    let (to, from) = (usize::from(own.dst_reg() & 15), usize::from(own.src_reg() & 15));
    let get =
        |registers: &[Known; 16], register: usize| registers.get(register).copied().unwrap_or(Known::Nothing);
    let number = i64::from(own.imm).cast_unsigned();
    let is_32 = matches!(class, 4 | 6);
    let narrow = |number: u64| if is_32 { number & u64::from(u32::MAX) } else { number };
    let new = match class {
        0 if own.code == LOAD_WIDE && own.src_reg() == MAP_VALUE && own.imm == numbers.map => {
            Known::Place(second.cast_unsigned())
        }
        // `BPF_LDX | BPF_MEM`.
        1 if own.code & 0xe0 == 0x60 => {
            let bytes = match own.code & 0x18 {
                0x00 => 4,
                0x08 => 2,
                0x10 => 1,
                _ => 8,
            };
            match get(registers, from) {
                Known::Place(place) => {
                    numbers.read(place, own.off, bytes).map_or(Known::Nothing, Known::Number)
                }
                _ => Known::Nothing,
            }
        }
        // `BPF_MOV`, without an extension of its sign.
        4 | 7 if own.code & 0xf0 == 0xb0 && own.off == 0 => match (by_register, get(registers, from)) {
            (false, _) => Known::Number(narrow(number)),
            (true, Known::Number(number)) => Known::Number(narrow(number)),
            (true, other) if !is_32 => other,
            _ => Known::Nothing,
        },
        5 | 6 if own.code == CALL => {
            for register in registers.iter_mut().take(6) {
                *register = Known::Nothing;
            }
            return None;
        }
        5 | 6 => {
            let Known::Number(left) = get(registers, to) else { return None };
            let right = match (by_register, get(registers, from)) {
                (false, _) => number,
                (true, Known::Number(right)) => right,
                _ => return None,
            };
            return compare(own.code & 0xf0, narrow(left), narrow(right), is_32);
        }
        // A store. An atomic one may write its source, or register 0.
        2 => return None,
        3 => {
            if own.code & 0xe0 == 0xc0 {
                for register in [from, 0] {
                    if let Some(register) = registers.get_mut(register) {
                        *register = Known::Nothing;
                    }
                }
            }
            return None;
        }
        _ => Known::Nothing,
    };
    if let Some(register) = registers.get_mut(to) {
        *register = new;
    }
    None
}

/// The comparison of a conditional jump.
fn compare(operation: u8, left: u64, right: u64, is_32: bool) -> Option<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: u8 = 0x61;
    const JUMP_EQUAL: u8 = 0x16;
    const JUMP_ABOVE: u8 = 0x25;
    const MOVE: u8 = 0xb7;

    fn with(code: u8, to: u8, from: u8, off: i16, imm: i32) -> bpf_insn {
        bpf_insn { _bitfield_1: bpf_insn::new_bitfield_1(to, from), off, imm, ..instruction(code) }
    }

    /// Loads the number at `place` into register 1.
    fn number(place: i32) -> [bpf_insn; 3] {
        [with(LOAD_WIDE, 1, MAP_VALUE, 0, 9), with(0, 0, 0, 0, place), with(LOAD, 1, 1, 0, 0)]
    }

    /// The codes, distances and numbers that remain, and where functions begin.
    fn folded(
        mut program: Vec<bpf_insn>,
        begins: &[u32],
        numbers: &[u32],
    ) -> (Vec<(u8, i16, i32)>, Vec<u32>) {
        let mut functions = begins.iter().map(|at| bpf_func_info { insn_off: *at, type_id: 1 }).collect();
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        fold_in(&mut program, &mut functions, &Numbers { map: 9, bytes });
        let left = program.iter().map(|own| (own.code, own.off, own.imm)).collect();
        (left, functions.iter().map(|function| function.insn_off).collect())
    }

    const KEPT: [(u8, i16, i32); 3] = [(LOAD_WIDE, 0, 9), (0, 0, 4), (LOAD, 0, 0)];

    #[test]
    fn a_branch_that_is_never_taken_goes_with_its_function() {
        let program = [
            &number(4)[..],
            &[
                with(JUMP_EQUAL, 1, 0, 2, -1), // 3: to 6
                with(MOVE, 0, 0, 0, 1),
                instruction(EXIT),
                with(CALL, 0, 1, 0, 1), // 6: to 8
                instruction(EXIT),
                with(MOVE, 0, 0, 0, 2), // 8
                instruction(EXIT),
            ],
        ];
        let (left, functions) = folded(program.concat(), &[0, 8], &[u32::MAX, 5]);
        assert_eq!(left, [&KEPT[..], &[(MOVE, 0, 1), (EXIT, 0, 0)]].concat());
        assert_eq!(functions, [0]);
        // With the other number, the other way, and the jump leads to what follows it.
        let (left, functions) = folded(program.concat(), &[0, 8], &[5, u32::MAX]);
        let other = [(CALL, 0, 1), (EXIT, 0, 0), (MOVE, 0, 2), (EXIT, 0, 0)];
        assert_eq!(left, [&KEPT[..], &other].concat());
        assert_eq!(functions, [0, 5]);
    }

    #[test]
    fn a_branch_that_another_path_reaches_stays() {
        let program = [
            &[with(JUMP_ABOVE, 2, 0, 3, 7)][..], // 0: to 4
            &number(4),
            &[
                with(JUMP_EQUAL, 1, 0, 1, -1), // 4: to 6
                with(MOVE, 0, 0, 0, 1),
                instruction(EXIT),
            ],
        ]
        .concat();
        let before: Vec<_> = program.iter().map(|own| (own.code, own.off, own.imm)).collect();
        assert_eq!(folded(program, &[0], &[5, 5]).0, before);
    }

    #[test]
    fn jumps_across_what_goes_become_shorter_also_backwards() {
        let program = [
            &[with(MOVE, 3, 0, 0, 0)][..],
            &number(4), // 1
            &[
                with(JUMP_EQUAL, 1, 0, 1, 5), // 4: always, to 6
                with(MOVE, 0, 0, 0, 1),
                with(JUMP_ABOVE, 2, 0, -6, 7), // 6: to 1
                instruction(EXIT),
            ],
        ];
        let (left, _) = folded(program.concat(), &[0], &[0, 5]);
        let end = [(JUMP_ABOVE, -4, 7), (EXIT, 0, 0)];
        assert_eq!(left, [&[(MOVE, 0, 0)][..], &KEPT, &end].concat());
    }

    #[test]
    fn what_a_call_or_a_store_may_change_is_not_known() {
        let own = Numbers { map: 9, bytes: vec![0; 8] };
        let mut registers = [Known::Number(1); 16];
        step(&mut registers, with(CALL, 0, 0, 0, 5), 0, &own);
        assert!(registers[..6].iter().all(|known| *known == Known::Nothing));
        assert!(registers[6] == Known::Number(1));
        // An atomic addition that returns the old number, and one that is no number any more.
        step(&mut registers, with(0xdb, 1, 7, 0, 1), 0, &own);
        assert!(registers[7] == Known::Nothing);
        step(&mut registers, with(0x07, 8, 0, 0, 1), 0, &own);
        assert!(registers[8] == Known::Nothing);
        // Beyond the numbers.
        registers[1] = Known::Place(6);
        step(&mut registers, with(LOAD, 2, 1, 0, 0), 0, &own);
        assert!(registers[2] == Known::Nothing);
    }

    #[test]
    fn numbers_are_compared_as_the_kernel_does() {
        let large = u64::from(u32::MAX);
        assert_eq!(compare(0x60, large, 0, true), Some(false), "signed, -1");
        assert_eq!(compare(0x60, large, 0, false), Some(true));
        assert_eq!(compare(0x20, large, 0, true), Some(true));
        assert_eq!(compare(0x40, 6, 9, false), Some(false));
        assert_eq!(compare(0xe0, 6, 9, false), None, "no comparison");
        // A number of 32 bits is compared with the sign of the instruction's own number extended.
        let own = Numbers { map: 9, bytes: vec![0xff; 8] };
        let mut registers = [Known::Nothing; 16];
        registers[1] = Known::Number(large);
        assert_eq!(step(&mut registers, with(0x15, 1, 0, 1, -1), 0, &own), Some(false));
        assert_eq!(step(&mut registers, with(JUMP_EQUAL, 1, 0, 1, -1), 0, &own), Some(true));
    }
}
