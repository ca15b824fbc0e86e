//! Functions of the object that a trace does not call: they become stubs, and linked programs lose these with their calls.
//!
//! Works on instructions as `Documentation/bpf/standardization` defines them, before the kernel receives them.

use std::collections::BTreeSet;

use aya_obj::{
    Function,
    generated::{bpf_func_info, bpf_insn},
};

/// `BPF_ALU64 | BPF_MOV | BPF_K`, `BPF_JMP | BPF_EXIT` and `BPF_JMP | BPF_CALL`.
pub(super) const MOVE: u8 = 0xb7;
pub(super) const EXIT: u8 = 0x95;
pub(super) const CALL: u8 = 0x85;
/// `BPF_PSEUDO_CALL`: the call of a function of the same program, by its distance from the next instruction.
const PSEUDO_CALL: u8 = 1;
/// The instructions of a stub: `return 0`.
const STUB: [u8; 2] = [MOVE, EXIT];

/// Leaves nothing of a function but `return 0`.
pub(super) fn make(function: &mut Function) {
    function.instructions = STUB.map(instruction).to_vec();
    // No relocation lies there.
    function.section_offset = usize::MAX / 2;
}

/// Removes the stubs from a linked program. Where one was called, the result is 0.
///
/// The verifier checks each function, and the compiler of machine code translates each by itself: an empty one takes nearly as
/// long as a short one.
pub(super) fn remove(program: &mut Function) {
    let records = &mut program.func_info;
    remove_from(&mut program.instructions, &mut records.func_info);
    records.num_info = records.func_info.len() as u32;
}

/// `functions`: where each function begins.
fn remove_from(instructions: &mut Vec<bpf_insn>, functions: &mut Vec<bpf_func_info>) {
    let is_stub = |at: usize| {
        let body = instructions.get(at..at + STUB.len());
        body.is_some_and(|body| body.iter().zip(STUB).all(|(own, code)| is_plain(*own, code)))
    };
    let called = instructions.iter().enumerate().filter_map(|(at, call)| target(at, *call));
    let stubs: BTreeSet<usize> = called.filter(|at| is_stub(*at)).collect();
    if stubs.is_empty() {
        return;
    }
    let is_of_stub = |at: usize| (0..STUB.len()).any(|place| at >= place && stubs.contains(&(at - place)));
    // Where each instruction lies afterwards.
    let moved = |at: usize| at - STUB.len() * stubs.range(..at).count();
    let kept = instructions.iter().enumerate().filter(|(at, _)| !is_of_stub(*at));
    let kept = kept.map(|(at, own)| match target(at, *own) {
        Some(stub) if stubs.contains(&stub) => instruction(MOVE),
        Some(other) => {
            // Less than before, in the same direction.
            let distance = moved(other).wrapping_sub(moved(at) + 1).cast_signed();
            bpf_insn { imm: distance as i32, ..*own }
        }
        None => *own,
    });
    *instructions = kept.collect();
    functions.retain(|function| !stubs.contains(&(function.insn_off as usize)));
    for function in functions {
        function.insn_off = moved(function.insn_off as usize) as u32;
    }
}

/// The function that an instruction calls, by the place of its first instruction.
pub(super) fn target(at: usize, call: bpf_insn) -> Option<usize> {
    let is_call = call.code == CALL && call.src_reg() == PSEUDO_CALL;
    is_call.then(|| at.checked_add(1)?.checked_add_signed(call.imm as isize)).flatten()
}

/// Whether it is this instruction with registers, offset and number 0.
fn is_plain(own: bpf_insn, code: u8) -> bool {
    own.code == code && own.dst_reg() == 0 && own.src_reg() == 0 && own.off == 0 && own.imm == 0
}

/// An instruction whose registers, offset and number are 0.
pub(super) fn instruction(code: u8) -> bpf_insn {
    bpf_insn { code, _bitfield_align_1: [], _bitfield_1: bpf_insn::new_bitfield_1(0, 0), off: 0, imm: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(distance: i32) -> bpf_insn {
        bpf_insn { _bitfield_1: bpf_insn::new_bitfield_1(0, PSEUDO_CALL), imm: distance, ..instruction(CALL) }
    }

    fn number(imm: i32) -> bpf_insn {
        bpf_insn { imm, ..instruction(MOVE) }
    }

    /// The codes and numbers of instructions.
    type Codes = Vec<(u8, i32)>;
    /// The functions, by place and type.
    type Functions = Vec<(u32, u32)>;

    /// The instructions and functions that remain.
    fn removed(mut instructions: Vec<bpf_insn>, functions: &[u32]) -> (Codes, Functions) {
        let function = |at: &u32| bpf_func_info { insn_off: *at, type_id: *at + 100 };
        let mut functions = functions.iter().map(function).collect();
        remove_from(&mut instructions, &mut functions);
        (
            instructions.iter().map(|own| (own.code, own.imm)).collect(),
            functions.iter().map(|function| (function.insn_off, function.type_id)).collect(),
        )
    }

    #[test]
    fn stubs_go_with_their_calls_and_the_others_keep_their_targets() {
        let linked = vec![
            call(3), // 0: the stub at 4
            call(5), // 1: the function at 7
            number(5),
            instruction(EXIT),
            instruction(MOVE), // 4: a stub
            instruction(EXIT),
            instruction(EXIT), // 6: not called
            call(-4),          // 7: the stub at 4
            call(1),           // 8: the function at 10
            instruction(EXIT),
            number(7), // 10
            instruction(EXIT),
        ];
        let left = [
            (MOVE, 0),
            (CALL, 3),
            (MOVE, 5),
            (EXIT, 0),
            (EXIT, 0),
            (MOVE, 0),
            (CALL, 1),
            (EXIT, 0),
            (MOVE, 7),
            (EXIT, 0),
        ];
        assert_eq!(removed(linked, &[0, 4, 7, 10]), (left.to_vec(), vec![(0, 100), (5, 107), (8, 110)]));
    }

    #[test]
    fn a_program_without_stubs_stays_as_it_is() {
        let linked = vec![call(1), instruction(EXIT), number(1), instruction(EXIT)];
        let left = [(CALL, 1), (EXIT, 0), (MOVE, 1), (EXIT, 0)];
        assert_eq!(removed(linked, &[0, 2]), (left.to_vec(), vec![(0, 100), (2, 102)]));
    }
}
