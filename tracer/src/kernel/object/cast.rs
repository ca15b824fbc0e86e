//! The kernel's cast of an address to a type (`bpf_rdonly_cast`), which the object calls by a number that no helper has.

use aya_obj::generated::bpf_insn;
use tracer_ebpf::CAST_CALL;
use tracing::debug;

use super::stubs::{CALL, EXIT, MOVE, instruction};
use crate::kernel::{
    bpf::{Purpose, Request},
    plan::Cast,
};

/// `BPF_PSEUDO_KFUNC_CALL`: the call of a function of the kernel, by its id in vmlinux's BTF.
const KERNEL_FUNCTION: u8 = 2;
/// `BPF_ALU64 | BPF_ADD | BPF_K`.
const ADD: u8 = 0x07;
/// `BPF_LDX | BPF_MEM`, of 8 bytes and of one.
const LOAD_WORD: u8 = 0x79;
const LOAD_BYTE: u8 = 0x71;

/// Puts the calls into a linked program.
pub(super) fn put_into(instructions: &mut [bpf_insn], cast: &Cast) {
    let is_call =
        |own: &bpf_insn| own.code == CALL && own.src_reg() == 0 && own.imm.cast_unsigned() == CAST_CALL;
    for own in instructions.iter_mut().filter(|own| is_call(own)) {
        *own = call(cast);
    }
}

fn call(cast: &Cast) -> bpf_insn {
    let kind = bpf_insn::new_bitfield_1(0, KERNEL_FUNCTION);
    bpf_insn { _bitfield_1: kind, imm: cast.function.cast_signed(), ..instruction(CALL) }
}

/// Whether the kernel accepts a program that casts an address and loads from there, as the object's programs do. A kernel that
/// interprets programs (`net.core.bpf_jit_enable` is 0) does not.
pub(in crate::kernel) fn is_accepted(cast: &Cast) -> bool {
    let of =
        |code, to, from| bpf_insn { _bitfield_1: bpf_insn::new_bitfield_1(to, from), ..instruction(code) };
    let with = |code, register, number: u32| bpf_insn { imm: number.cast_signed(), ..of(code, register, 0) };
    let instructions = [
        with(MOVE, 1, 0),
        with(MOVE, 2, cast.structure),
        call(cast),
        with(ADD, 0, cast.from),
        bpf_insn { off: 8, ..of(LOAD_WORD, 1, 0) },
        bpf_insn { off: 8, ..of(LOAD_BYTE, 1, 0) },
        with(MOVE, 0, 0),
        instruction(EXIT),
    ];
    let request = Request {
        name: "cast",
        purpose: Purpose::RawTracepoint,
        instructions: &instructions,
        license: c"GPL",
        functions: None,
    };
    request.load(&mut []).inspect_err(|error| debug!(%error, "the kernel refused a cast")).is_ok()
}
