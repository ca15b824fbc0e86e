//! Small programs, and arbitrary ones that are run before and after.

use proptest::prelude::*;

use super::{
    known::{Known, MAP_VALUE, compare},
    *,
};

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
fn folded(mut program: Vec<bpf_insn>, begins: &[u32], numbers: &[u32]) -> (Vec<(u8, i16, i32)>, Vec<u32>) {
    let mut functions = begins.iter().map(|at| bpf_func_info { insn_off: *at, type_id: 1 }).collect();
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    fold_in(&mut program, &mut functions, &Numbers { map: 9, bytes });
    let left = program.iter().map(|own| (own.code, own.off, own.imm)).collect();
    (left, functions.iter().map(|function| function.insn_off).collect())
}

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
    assert_eq!(left, [(MOVE, 0, 1), (EXIT, 0, 0)]);
    assert_eq!(functions, [0]);
    // With the other number, the other way. The call may need register 1.
    let (left, functions) = folded(program.concat(), &[0, 8], &[5, u32::MAX]);
    assert_eq!(left, [(MOVE_32, 0, -1), (CALL, 0, 1), (EXIT, 0, 0), (MOVE, 0, 2), (EXIT, 0, 0)]);
    assert_eq!(functions, [0, 3]);
}

#[test]
fn what_is_known_on_all_paths_is_known_where_they_meet() {
    let program = [
        &number(4)[..],
        &[
            with(JUMP_ABOVE, 2, 0, 1, 7), // 3: to 5
            with(MOVE, 3, 0, 0, 1),
            with(JUMP_EQUAL, 1, 0, 1, 5), // 5: always, to 7
            with(MOVE, 3, 0, 0, 2),
            with(COPY, 0, 3, 0, 0), // 7
            instruction(EXIT),
        ],
    ];
    let (left, _) = folded(program.concat(), &[0], &[0, 5]);
    assert_eq!(left, [(JUMP_ABOVE, 1, 7), (MOVE, 0, 1), (COPY, 0, 0), (EXIT, 0, 0)]);
}

#[test]
fn nothing_is_known_where_a_loop_begins() {
    let program = [
        &number(4)[..],
        &[
            with(JUMP_EQUAL, 1, 0, 3, 9), // 3: to 7, once the loop has changed the register
            with(ADD, 1, 0, 0, 1),
            with(JUMP_ABOVE, 2, 0, -3, 7), // 5: to 3
            with(MOVE, 0, 0, 0, 1),
            instruction(EXIT),
        ],
    ];
    let (left, _) = folded(program.concat(), &[0], &[5, 5]);
    let after: Vec<_> = program[1].iter().map(|own| (own.code, own.off, own.imm)).collect();
    assert_eq!(left, [&[(MOVE_32, 0, 5)][..], &after].concat());
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
    ];
    let (left, _) = folded(program.concat(), &[0], &[5, 5]);
    let end = [(JUMP_EQUAL, 1, -1), (MOVE, 0, 1), (EXIT, 0, 0)];
    assert_eq!(left, [&[(JUMP_ABOVE, 1, 7), (MOVE_32, 0, 5)][..], &end].concat());
}

#[test]
fn jumps_across_what_goes_become_shorter_also_backwards() {
    let program = [
        &[with(MOVE, 0, 0, 0, 0)][..],
        &number(4), // 1
        &[
            with(JUMP_EQUAL, 1, 0, 1, 5), // 4: always, to 6
            with(MOVE, 0, 0, 0, 1),
            with(ADD | BY_REGISTER, 0, 1, 0, 0), // 6
            with(JUMP_ABOVE, 2, 0, -7, 7),       // 7: to 1
            instruction(EXIT),
        ],
    ];
    let (left, _) = folded(program.concat(), &[0], &[0, 5]);
    assert_eq!(left, [(MOVE, 0, 0), (ADD, 0, 5), (JUMP_ABOVE, -2, 7), (EXIT, 0, 0)]);
}

/// Whether these instructions are needed in front of the end of a program.
fn needed<const N: usize>(own: [bpf_insn; N]) -> [bool; N] {
    let program = [&own[..], &[instruction(EXIT)]].concat();
    let needed = live::needed(&program, &Flow::of(&program).unwrap());
    std::array::from_fn(|at| needed[at])
}

#[test]
fn what_a_register_is_needed_for_stays() {
    const STORE: u8 = 0x7b;
    assert_eq!(
        needed([with(MOVE, 3, 0, 0, 1), with(COPY, 4, 3, 0, 0), with(MOVE, 0, 0, 0, 2)]),
        [false, false, true]
    );
    assert_eq!(needed([with(MOVE, 3, 0, 0, 1), with(STORE, 10, 3, -8, 0)]), [true, true]);
    assert_eq!(
        needed([with(MOVE, 5, 0, 0, 1), with(MOVE, 6, 0, 0, 1), with(CALL, 0, 0, 0, 1)]),
        [true, false, true]
    );
    // What a call leaves in its arguments is none of theirs.
    assert_eq!(needed([with(CALL, 0, 0, 0, 1), with(MOVE, 1, 0, 0, 1)]), [true, false]);
    // An addition needs the number before.
    assert_eq!(needed([with(MOVE, 0, 0, 0, 1), with(ADD, 0, 0, 0, 1), with(0x87, 0, 0, 0, 0)]), [true; 3]);
    // A turn of a loop needs the number of the one before.
    assert_eq!(needed([with(COPY, 0, 3, 0, 0), with(ADD, 3, 0, 0, 1), with(0x55, 2, 0, -3, 1)]), [true; 3]);
}

#[test]
fn a_known_operand_takes_the_place_of_its_register() {
    let own = Numbers { map: 9, bytes: Vec::new() };
    let of = |code, number: u64| {
        let mut registers = Registers::UNKNOWN;
        registers.0[2] = Known::Number(number);
        registers.step(with(code, 1, 2, 0, 0), 0, &own)
    };
    // A sum of two known numbers, and a shift.
    let mut registers = Registers::UNKNOWN;
    (registers.0[1], registers.0[2]) = (Known::Number(7), Known::Number(u64::MAX));
    assert_eq!(registers.step(with(ADDED, 1, 2, 0, 0), 0, &own), Finding::Result(6));
    assert_eq!(registers.step(with(0x67, 1, 0, 0, 4), 0, &own), Finding::Result(96));
    assert_eq!(registers.step(with(0x67, 1, 0, 0, 64), 0, &own), Finding::Nothing);
    assert!(registers.0[1] == Known::Nothing);
    let (largest, large) = (0x7fff_ffff, 0xffff_ffff);
    assert_eq!(of(ADD | BY_REGISTER, largest), Finding::Operand(i32::MAX));
    assert_eq!(of(ADD | BY_REGISTER, large), Finding::Nothing, "its sign would be extended");
    assert_eq!(of(ADD | BY_REGISTER, u64::MAX), Finding::Operand(-1));
    assert_eq!(of(0x0c, large), Finding::Operand(-1), "in 32 bits");
    for code in [0x3f, 0x9f, 0x6f, 0x7f, 0xcf] {
        assert_eq!(of(code, 64), Finding::Nothing, "{code:#x}: a division or a shift");
    }
    assert_eq!(of(0x1d, 5), Finding::Operand(5), "a comparison");
    assert_eq!(of(COPY, large), Finding::Result(u32::MAX));
    assert_eq!(of(COPY, large + 1), Finding::Nothing);
}

#[test]
fn what_a_call_or_a_store_may_change_is_not_known() {
    let own = Numbers { map: 9, bytes: vec![0; 8] };
    let mut registers = Registers([Known::Number(1); 11]);
    registers.step(with(CALL, 0, 0, 0, 5), 0, &own);
    assert!(registers.0[..6].iter().all(|known| *known == Known::Nothing));
    assert!(registers.0[6] == Known::Number(1));
    // An atomic addition that returns the old number, and a division.
    registers.step(with(0xdb, 1, 7, 0, 1), 0, &own);
    assert!(registers.0[7] == Known::Nothing);
    registers.step(with(0x37, 8, 0, 0, 1), 0, &own);
    assert!(registers.0[8] == Known::Nothing);
    // Beyond the numbers.
    registers.0[1] = Known::Place(6);
    registers.step(with(LOAD, 2, 1, 0, 0), 0, &own);
    assert!(registers.0[2] == Known::Nothing);
}

#[test]
fn a_wide_number_and_a_comparison_of_any_number_are_known() {
    let program = [
        &number(4)[..],
        &[
            with(LOAD_WIDE, 2, 0, 0, -1), // 3: 0xffffffff
            with(0, 0, 0, 0, 0),
            with(0x1d, 1, 2, 1, 0), // 5: always, to 7
            with(MOVE, 0, 0, 0, 1),
            with(0xa5, 3, 0, 1, 0), // 7: below 0, never
            with(0x35, 3, 0, 1, 0), // 8: 0 or above, always, to 10
            with(MOVE, 0, 0, 0, 2),
            with(0x25, 3, 0, 1, -1), // 10: above the greatest, never
            with(0xa6, 3, 0, 1, 1),  // 11: to 13
            with(MOVE, 0, 0, 0, 3),
            instruction(EXIT),
        ],
    ];
    let (left, _) = folded(program.concat(), &[0], &[0, u32::MAX]);
    assert_eq!(left, [(0xa6, 1, 1), (MOVE, 0, 3), (EXIT, 0, 0)]);
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
    let mut registers = Registers::UNKNOWN;
    registers.0[1] = Known::Number(large);
    assert_eq!(registers.step(with(0x15, 1, 0, 1, -1), 0, &own), Finding::Branch(false));
    assert_eq!(registers.step(with(JUMP_EQUAL, 1, 0, 1, -1), 0, &own), Finding::Branch(true));
}

/// Runs a program of the instructions below with these registers; register 0 at its end, and `None` if it does not end.
fn run(program: &[bpf_insn], mut registers: [u64; 4], numbers: &[u32]) -> Option<u64> {
    let mut at = 0_usize;
    for _ in 0..1_000 {
        let own = program[at];
        let (to, from) = (own.dst_reg() as usize, own.src_reg() as usize);
        at += 1;
        match own.code {
            LOAD_WIDE => {
                registers[to] = u64::from(program[at].imm.cast_unsigned());
                at += 1;
            }
            LOAD => registers[to] = numbers[registers[from] as usize / 4].into(),
            MOVE => registers[to] = i64::from(own.imm).cast_unsigned(),
            MOVE_32 => registers[to] = own.imm.cast_unsigned().into(),
            ADDED => registers[to] = registers[to].wrapping_add(registers[from]),
            COPY => registers[to] = registers[from],
            ADD => registers[to] = registers[to].wrapping_add(i64::from(own.imm).cast_unsigned()),
            EXIT => return Some(registers[0]),
            CALL => {
                // Its own registers are not kept apart: the function ends the program.
                at = at.checked_add_signed(own.imm as isize)?;
            }
            code => {
                let is_number = code & BY_REGISTER == 0;
                let right = if is_number { i64::from(own.imm).cast_unsigned() } else { registers[from] };
                if code == GO || compare(code & 0xf0, registers[to], right, false)? {
                    at = at.checked_add_signed(own.off.into())?;
                }
            }
        }
    }
    None
}

const COPY: u8 = 0xbf;
const ADD: u8 = 0x07;
const ADDED: u8 = ADD | BY_REGISTER;

/// A part of a program, with a distance for its jump.
fn part() -> impl Strategy<Value = (Vec<bpf_insn>, i16)> {
    let own = (0..4_u8, 0..4_u8, 0..3_i32, -6..6_i16);
    (0..11_u8, own).prop_map(|(kind, (to, from, small, far))| {
        let own = match kind {
            0 | 1 => vec![
                with(LOAD_WIDE, to, MAP_VALUE, 0, 9),
                with(0, 0, 0, 0, small * 4),
                with(LOAD, from, to, 0, 0),
            ],
            2 => vec![with(MOVE, to, 0, 0, small)],
            3 => vec![with(COPY, to, from, 0, 0)],
            4 => vec![with(ADD, to, 0, 0, small)],
            5 => vec![with(GO, 0, 0, 1, 0)],
            6 => vec![with(0x55, to, 0, 1, small)],
            7 => vec![with(JUMP_ABOVE, to, 0, 1, small)],
            8 => vec![with(ADDED, to, from, 0, 0)],
            9 => vec![with(0x1d, to, from, 1, 0)],
            _ => vec![with(0x15, to, 0, 1, small)],
        };
        (own, far)
    })
}

proptest! {
    #[test]
    fn a_program_does_the_same_without_what_goes(
        parts in proptest::collection::vec(part(), 1..24),
        registers in proptest::array::uniform4(0..3_u64),
        numbers in proptest::array::uniform3(0..3_u32),
    ) {
        let mut begins: Vec<usize> = vec![0];
        for (own, _) in &parts {
            begins.push(begins.last().unwrap() + own.len());
        }
        let mut program = Vec::new();
        for (number, (own, far)) in parts.iter().enumerate() {
            let mut own = own.clone();
            if let [jump] = &mut own[..] && jump.off == 1 {
                let to = number.saturating_add_signed((*far).into()).min(parts.len());
                jump.off = (begins[to].cast_signed() - begins[number].cast_signed() - 1) as i16;
            }
            program.extend(own);
        }
        program.push(instruction(EXIT));
        let mut less = program.clone();
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        fold_in(&mut less, &mut Vec::new(), &Numbers { map: 9, bytes });
        prop_assert!(less.len() <= program.len());
        prop_assert_eq!(run(&less, registers, &numbers), run(&program, registers, &numbers));
    }
}
