//! A trace's numbers put into its programs: branches that they decide go, with the code that no path reaches any more and the
//! loads that nothing needs.
//!
//! The verifier removes branches too, range by range: for each it moves the rest of the program and all that it knows of it.
//! And it examines every instruction that is left, at least once, on every way that leads there. Works on
//! instructions as `Documentation/bpf/standardization` defines them, before the kernel receives them.

mod known;
mod live;

use aya_obj::{
    Function,
    generated::{bpf_func_info, bpf_insn},
};

use super::stubs::{CALL, EXIT, instruction, target as called};
use known::{Finding, Registers};

/// `BPF_LD | BPF_IMM | BPF_DW`, in the place of two instructions.
const LOAD_WIDE: u8 = 0x18;
/// `BPF_JMP | BPF_JA`, and with a long distance.
const GO: u8 = 0x05;
const GO_FAR: u8 = 0x06;
/// `BPF_ALU | BPF_MOV | BPF_K`: a number of 32 bits, with zeros above it.
const MOVE_32: u8 = 0xb4;
/// `BPF_X`: the operand is a register, not a number.
const BY_REGISTER: u8 = 8;
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

/// Puts the numbers into a linked program.
pub(super) fn fold(program: &mut Function, numbers: &Numbers) {
    let records = &mut program.func_info;
    loop {
        let before = program.instructions.len();
        fold_in(&mut program.instructions, &mut records.func_info, numbers);
        // Where much goes, loops are gone that nothing was known behind.
        if program.instructions.len() * 8 >= before * 7 {
            break;
        }
    }
    records.num_info = records.func_info.len() as u32;
}

/// `functions`: where each function begins.
fn fold_in(instructions: &mut Vec<bpf_insn>, functions: &mut Vec<bpf_func_info>, numbers: &Numbers) {
    let Some(mut flow) = Flow::of(instructions) else { return };
    let findings = flow.follow(instructions, numbers);
    flow.decide(&findings);
    for (own, finding) in instructions.iter_mut().zip(findings) {
        finding.put_into(own);
    }
    let reached = flow.reached();
    let mut kept = live::needed(instructions, &flow);
    let mut is_wide = false;
    for (((kept, reached), way), own) in kept.iter_mut().zip(&reached).zip(&flow.0).zip(&*instructions) {
        *kept &= match way {
            Way::Half => is_wide,
            Way::Skip => false,
            _ => *reached,
        };
        is_wide = *kept && own.code == LOAD_WIDE;
    }
    flow.drop_idle(&mut kept);
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
    let mut left = Vec::with_capacity(count);
    for (at, ((own, way), is_kept)) in instructions.iter().zip(&flow.0).zip(&kept).enumerate() {
        if !is_kept {
            continue;
        }
        left.push(match *way {
            Way::Go(target) => bpf_insn { off: distance(at, target) as i16, ..instruction(GO) },
            Way::Jump(target) => bpf_insn { off: distance(at, target) as i16, ..*own },
            Way::Call(function) => bpf_insn { imm: distance(at, function) as i32, ..*own },
            Way::Next | Way::Half | Way::Skip | Way::End => *own,
        });
    }
    *instructions = left;
    functions.retain(|function| reached.get(function.insn_off as usize) == Some(&true));
    for function in functions {
        function.insn_off = place(function.insn_off as usize) as u32;
    }
}

/// Where an instruction leads, by the places of others.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Next,
    /// The second half of a wide load, which is no instruction.
    Half,
    /// On one condition.
    Jump(u32),
    /// A jump that is never taken: it goes.
    Skip,
    Go(u32),
    /// To a function of the program, and then on.
    Call(u32),
    End,
}

/// The ways through a program.
struct Flow(Vec<Way>);

/// The knowledge where jumps lead to.
#[derive(Clone, Default)]
struct Met {
    /// On the jumps that were followed.
    registers: Option<Box<Registers>>,
    /// Nothing: a loop or a function begins.
    is_any: bool,
}

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

    /// The knowledge of each instruction that the numbers give.
    ///
    /// One pass in the order of the program, since all paths to an instruction come from before it, except into a loop, at whose
    /// beginning nothing is known.
    fn follow(&self, instructions: &[bpf_insn], numbers: &Numbers) -> Vec<Finding> {
        let mut met = vec![Met::default(); instructions.len()];
        for (at, way) in self.0.iter().enumerate() {
            if let Way::Jump(to) | Way::Go(to) | Way::Call(to) = way
                && let Some(met) = met.get_mut(*to as usize)
            {
                met.is_any |= *to as usize <= at || matches!(way, Way::Call(_));
            }
        }
        let mut registers = Registers::UNKNOWN;
        let mut is_reached = true;
        let mut findings = Vec::with_capacity(instructions.len());
        let second = instructions.iter().skip(1).map(|own| own.imm).chain([0]);
        for (at, ((own, second), way)) in instructions.iter().zip(second).zip(&self.0).enumerate() {
            let from = met.get_mut(at).map(std::mem::take).unwrap_or_default();
            match from.registers {
                _ if from.is_any => registers = Registers::UNKNOWN,
                Some(others) if is_reached => registers.meet(&others),
                Some(others) => registers = *others,
                None if is_reached => {}
                None => {
                    findings.push(Finding::Nothing);
                    continue;
                }
            }
            let finding = match way {
                Way::Next | Way::Jump(_) | Way::Call(_) => registers.step(*own, second, numbers),
                Way::Half | Way::Skip | Way::Go(_) | Way::End => Finding::Nothing,
            };
            let leads_on = !matches!((way, finding), (Way::Go(_) | Way::End, _) | (_, Finding::Branch(true)));
            if let Way::Go(to) | Way::Jump(to) = way
                && finding != Finding::Branch(false)
                && let Some(there) = met.get_mut(*to as usize).filter(|there| !there.is_any)
            {
                match &mut there.registers {
                    Some(others) => others.meet(&registers),
                    none => *none = Some(Box::new(registers)),
                }
            }
            findings.push(finding);
            is_reached = leads_on;
        }
        findings
    }

    /// Turns jumps that are decided into ways that have no condition.
    fn decide(&mut self, findings: &[Finding]) {
        for (way, finding) in self.0.iter_mut().zip(findings) {
            if let (Way::Jump(to), Finding::Branch(is_taken)) = (*way, finding) {
                *way = if *is_taken { Way::Go(to) } else { Way::Skip };
            }
        }
    }

    /// The instructions that a path leads to.
    fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.0.len()];
        let mut open = vec![0];
        while let Some(begin) = open.pop() {
            let mut at: usize = begin;
            while let (Some(reached), Some(way)) = (reached.get_mut(at), self.0.get(at)) {
                if std::mem::replace(reached, true) {
                    break;
                }
                at = match *way {
                    Way::End => break,
                    Way::Go(to) => to as usize,
                    Way::Jump(to) | Way::Call(to) => {
                        open.push(to as usize);
                        at + 1
                    }
                    Way::Next | Way::Half | Way::Skip => at + 1,
                };
            }
        }
        reached
    }

    /// Drops jumps to what follows them, which others that go may leave behind.
    fn drop_idle(&self, kept: &mut [bool]) {
        let mut has_dropped = true;
        while has_dropped {
            has_dropped = false;
            for (at, way) in self.0.iter().enumerate() {
                let (Way::Go(target) | Way::Jump(target)) = *way else { continue };
                let between = kept.get(at + 1..target as usize);
                if kept.get(at) == Some(&true)
                    && between.is_some_and(|between| !between.contains(&true))
                    && let Some(kept) = kept.get_mut(at)
                {
                    *kept = false;
                    has_dropped = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
