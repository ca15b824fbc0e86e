//! The eBPF object made ready for a trace: its numbers set, its maps made, and its programs linked to them when they are loaded.
//!
//! It takes the place of aya's loader, which first parses all of vmlinux's BTF (a third of the instructions of a trace's start)
//! and probes for features that every kernel with ring buffers has. The maps are aya's, and so are the parser and the linker
//! (aya-obj).

pub(super) mod cast;
mod fold;
mod stubs;

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{Map, MapData, MapError},
};
use aya_obj::{
    EbpfSectionKind, Function, Object, ParseError, Program, btf::BtfFeatures,
    generated::bpf_map_type as Kind, relocation::EbpfRelocationError,
};
use tracer_ebpf::map;
use tracing::debug;

use fold::Numbers;

use super::{bpf, plan::Cast};
use crate::error::sentence;

/// The map of the kernel half's numbers.
const NUMBERS: &str = ".rodata";

/// What a trace sets in the object before it is loaded.
#[derive(Debug)]
pub(super) struct Settings {
    globals: Vec<(&'static str, Vec<u8>)>,
    sizes: HashMap<&'static str, u32>,
    with_messages: bool,
    uncalled: Vec<&'static str>,
    cast: Option<Cast>,
}

/// Why the object cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    #[error("{0}")]
    Unusable(String),
    #[error("its map {name} cannot be made: {error}")]
    Map { name: String, error: MapError },
    #[error("its map {name} cannot be filled: {error}")]
    Fill { name: String, error: io::Error },
    #[error("its debug lines cannot be read: {}", sentence(.0))]
    Messages(Box<EbpfError>),
}

/// The object, ready to be loaded program by program.
pub(super) struct Prepared {
    pub(super) programs: Programs,
    /// The object's BTF in the kernel; `None` where the kernel takes none.
    pub(super) btf: Option<OwnedFd>,
    pub(super) maps: HashMap<String, Map>,
    /// Has the map of the debug lines, for the library that reads it.
    pub(super) messages: Option<Ebpf>,
}

/// The object's programs. Each is linked with the functions that it calls when it is first wanted: a trace attaches a quarter of
/// them.
#[derive(Debug)]
pub(super) struct Programs {
    /// Its functions, and as its programs at most the one that is being linked.
    object: Object,
    by_name: HashMap<String, Program>,
    sections: HashSet<usize>,
    linked: HashSet<String>,
    numbers: Option<Numbers>,
    cast: Option<Cast>,
}

impl Programs {
    /// Takes the object, whose functions have their maps. Branches on the numbers are decided before the kernel sees them.
    fn new(mut object: Object, numbers: Option<Numbers>, cast: Option<Cast>) -> Self {
        let sections = sections(&object);
        let by_name = std::mem::take(&mut object.programs);
        Self { object, by_name, sections, linked: HashSet::new(), numbers, cast }
    }

    /// The program of this name, and its instructions with those of the functions that it calls. `None` if there is none.
    ///
    /// # Errors
    ///
    /// The object cannot be linked: it calls a function that it does not have.
    pub(super) fn linked(
        &mut self,
        name: &str,
    ) -> Result<Option<(&Program, &Function)>, EbpfRelocationError> {
        let Some(program) = self.by_name.get(name) else { return Ok(None) };
        let key = program.function_key();
        if !self.linked.contains(name) {
            self.object.programs = HashMap::from([(name.to_owned(), program.clone())]);
            self.object.relocate_calls(&self.sections)?;
            if let Some(function) = self.object.functions.get_mut(&key) {
                stubs::remove(function);
                if let Some(numbers) = &self.numbers {
                    fold::fold(function, numbers);
                }
                if let Some(cast) = &self.cast {
                    cast::put_into(&mut function.instructions, cast);
                }
            }
            self.linked.insert(name.to_owned());
        }
        Ok(self.object.functions.get(&key).map(|function| (program, function)))
    }
}

/// The sections that have functions.
fn sections(object: &Object) -> HashSet<usize> {
    object.functions.keys().map(|(section, _)| *section).collect()
}

impl Settings {
    /// `with_messages`: the programs' debug lines are read. `uncalled`: functions that the programs do not call with the numbers
    /// that follow. The verifier would remove them too, but only after it has looked at them: on 7.2
    /// (`bpf_compute_subprog_arg_access`) that took most of the time to attach.
    pub(super) fn new(with_messages: bool, uncalled: Vec<&'static str>) -> Self {
        Self { globals: Vec::new(), sizes: HashMap::new(), with_messages, uncalled, cast: None }
    }

    /// Sets a number of the kernel half's.
    pub(super) fn set(&mut self, name: &'static str, value: impl Number) {
        self.globals.push((name, value.bytes()));
    }

    /// Lets the programs say of which type an address is.
    pub(super) fn set_cast(&mut self, cast: Cast) {
        self.set("CAST_TYPE", cast.structure);
        self.set("CAST_FROM", cast.from);
        self.set("CAST_BYTES", cast.bytes);
        self.cast = Some(cast);
    }

    /// Puts the numbers into the object.
    fn put_numbers(&self, object: &mut Object) -> Result<(), ParseError> {
        let globals = self.globals.iter().map(|(name, value)| (*name, (value.as_slice(), true)));
        object.patch_map_data(globals.collect())
    }

    /// Sets how many entries a map has room for, or a ring buffer's bytes.
    pub(super) fn size(&mut self, map: &'static str, size: u32) {
        self.sizes.insert(map, size);
    }
}

/// A number, or a list of them, as the kernel half has it.
pub(super) trait Number {
    fn bytes(self) -> Vec<u8>;
}

impl Number for u8 {
    fn bytes(self) -> Vec<u8> {
        vec![self]
    }
}

impl Number for u32 {
    fn bytes(self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}

impl Number for u64 {
    fn bytes(self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}

impl Number for [u64; 4] {
    fn bytes(self) -> Vec<u8> {
        self.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// Makes the object ready.
pub(super) fn prepare(bytes: &[u8], settings: &Settings) -> Result<Prepared, ObjectError> {
    let unusable = |error: &(dyn std::error::Error + 'static)| ObjectError::Unusable(sentence(error));
    let mut object = Object::parse(bytes).map_err(|error| unusable(&error))?;
    settings.put_numbers(&mut object).map_err(|error| unusable(&error))?;
    // What every kernel since 5.10 knows: functions, those checked by themselves, and sections.
    let features = BtfFeatures::new(true, true, true, false, false, false, false, false);
    let btf = object.fixup_and_sanitize_btf(&features).map_err(|error| unusable(&error))?;
    let btf = btf.and_then(|btf| {
        let refused = |error: &io::Error| debug!(%error, "the kernel refused the object's BTF");
        let bytes = btf.to_bytes();
        let lifted = |error: io::Error| {
            if error.kind() != io::ErrorKind::PermissionDenied {
                return Err(error);
            }
            bpf::lift_memory_limit();
            bpf::load_btf(&bytes)
        };
        bpf::load_btf(&bytes).or_else(lifted).inspect_err(refused).ok()
    });
    let messages = settings.with_messages.then(|| read_messages(bytes, settings)).transpose()?;
    let mut maps = HashMap::new();
    let mut linked = Vec::new();
    for (name, mut map) in object.maps.drain() {
        let is_ring = map.map_type() == Kind::BPF_MAP_TYPE_RINGBUF as u32;
        let wanted = settings.sizes.get(name.as_str()).copied();
        let size = wanted.unwrap_or_else(|| map.max_entries());
        map.set_max_entries(if is_ring { size.max(bpf::page_bytes()).next_power_of_two() } else { size });
        let shared = messages.as_ref().filter(|_| name == map::MESSAGES);
        let fd = if let Some(Map::RingBuf(shared)) = shared.and_then(|ebpf| ebpf.map(map::MESSAGES)) {
            shared.fd().as_fd().as_raw_fd()
        } else {
            let (fd, made) = make(&name, map.clone(), btf.as_ref())?;
            maps.insert(name.clone(), made);
            fd
        };
        linked.push((name, fd, map));
    }
    put_maps(&mut object, &linked, &settings.uncalled).map_err(|error| unusable(&error))?;
    let numbers = linked.iter().find(|(name, ..)| name == NUMBERS);
    let numbers = numbers.map(|(_, fd, map)| Numbers { map: *fd, bytes: map.data().to_vec() });
    Ok(Prepared { programs: Programs::new(object, numbers, settings.cast), btf, maps, messages })
}

/// Puts the maps, each with its descriptor, into the functions, and leaves nothing of the uncalled ones.
fn put_maps(
    object: &mut Object,
    maps: &[(String, RawFd, aya_obj::Map)],
    uncalled: &[&str],
) -> Result<(), EbpfRelocationError> {
    let sections = sections(object);
    object.relocate_maps(maps.iter().map(|(name, fd, map)| (name.as_str(), *fd, map)), &sections)?;
    for function in object.functions.values_mut() {
        if uncalled.iter().any(|name| is_named(&function.name, name)) {
            stubs::make(function);
        }
    }
    Ok(())
}

/// Whether a symbol is of a function with this name: it has it alone, or at the end of its path, where the compiler writes the
/// length before it (`<undisambiguated-identifier>` of Rust's RFC 2603).
pub(super) fn is_named(symbol: &str, name: &str) -> bool {
    symbol.strip_suffix(name).is_some_and(|path| path.is_empty() || path.ends_with(&name.len().to_string()))
}

/// Makes a map, with its numbers if it is a section of them. Returns it with its descriptor.
fn make(name: &str, map: aya_obj::Map, btf: Option<&OwnedFd>) -> Result<(RawFd, Map), ObjectError> {
    let (numbers, kind) = (map.data().to_vec(), map.map_type());
    let is_constant = map.section_kind() == EbpfSectionKind::Rodata;
    let made = MapData::create(map, name, btf.map(|btf| btf.as_fd()));
    let made = made.map_err(|error| ObjectError::Map { name: name.to_owned(), error })?;
    let failed = |error| ObjectError::Fill { name: name.to_owned(), error };
    if !numbers.is_empty() {
        bpf::fill(made.fd().as_fd(), &numbers).map_err(failed)?;
    }
    if is_constant {
        bpf::freeze(made.fd().as_fd()).map_err(failed)?;
    }
    let fd = made.fd().as_fd().as_raw_fd();
    let made = match Kind::try_from(kind) {
        Ok(Kind::BPF_MAP_TYPE_HASH) => Map::HashMap(made),
        Ok(Kind::BPF_MAP_TYPE_LRU_HASH) => Map::LruHashMap(made),
        Ok(Kind::BPF_MAP_TYPE_ARRAY) => Map::Array(made),
        Ok(Kind::BPF_MAP_TYPE_PERCPU_ARRAY) => Map::PerCpuArray(made),
        Ok(Kind::BPF_MAP_TYPE_PROG_ARRAY) => Map::ProgramArray(made),
        Ok(Kind::BPF_MAP_TYPE_RINGBUF) => Map::RingBuf(made),
        _ => return Err(ObjectError::Unusable(format!("its map {name} is of another kind"))),
    };
    Ok((fd, made))
}

/// The object as aya loads it: the reader of debug lines takes its map from there.
fn read_messages(bytes: &[u8], settings: &Settings) -> Result<Ebpf, ObjectError> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    for (map, size) in &settings.sizes {
        // Only the map of the debug lines is used.
        loader.map_max_entries(map, if *map == map::MESSAGES { *size } else { 1 });
    }
    loader.load(bytes).map_err(|error| ObjectError::Messages(Box::new(error)))
}

#[cfg(test)]
mod tests {
    #[cfg(not(viptrace_without_bpf))]
    mod linked {
        use std::collections::BTreeMap;

        use tracer_ebpf::{Attach, CAST_CALL, Hook, function};

        use aya_obj::generated::bpf_insn;

        use super::super::*;
        use crate::kernel::attach::OBJECT;

        const CALL: u8 = 0x85;
        const PSEUDO_CALL: u8 = 1;

        /// The programs by name, linked without these functions.
        fn linked(uncalled: &[&str]) -> BTreeMap<String, Function> {
            linked_for(uncalled, |_| None)
        }

        /// The same for these numbers, of the object's own.
        fn linked_for(
            uncalled: &[&str],
            numbers: impl Fn(&Object) -> Option<Numbers>,
        ) -> BTreeMap<String, Function> {
            linked_with(uncalled, numbers, &Settings::new(false, Vec::new()))
        }

        /// The same with a trace's settings.
        fn linked_with(
            uncalled: &[&str],
            numbers: impl Fn(&Object) -> Option<Numbers>,
            settings: &Settings,
        ) -> BTreeMap<String, Function> {
            let mut object = Object::parse(OBJECT).unwrap();
            settings.put_numbers(&mut object).unwrap();
            let numbers = numbers(&object);
            let maps: Vec<_> = object.maps.drain().map(|(name, map)| (name, 7, map)).collect();
            put_maps(&mut object, &maps, uncalled).unwrap();
            let mut programs = Programs::new(object, numbers, settings.cast);
            let names: Vec<String> = programs.by_name.keys().cloned().collect();
            let of = |name: String| {
                let function = programs.linked(&name).unwrap().unwrap().1.clone();
                // A second time, it is the same.
                let (_, again) = programs.linked(&name).unwrap().unwrap();
                assert_eq!(again.instructions.len(), function.instructions.len(), "{name}");
                (name, function)
            };
            names.into_iter().map(of).collect()
        }

        /// The functions of a linked program: where each begins, its length, and those that it calls, by number.
        struct Functions {
            begins: Vec<usize>,
            lengths: Vec<usize>,
            calls: Vec<Vec<usize>>,
            /// The bytes of stack that each one uses.
            stacks: Vec<usize>,
        }

        impl Functions {
            fn of(program: &Function) -> Self {
                let records = program.func_info.func_info.iter();
                let mut begins: Vec<usize> = records.map(|function| function.insn_off as usize).collect();
                begins.sort_unstable();
                begins.dedup();
                let ends = begins.iter().skip(1).copied().chain([program.instructions.len()]);
                let lengths: Vec<usize> = ends.zip(&begins).map(|(end, begin)| end - begin).collect();
                let calls = begins.iter().zip(&lengths).map(|(begin, length)| {
                    let own = program.instructions.iter().enumerate().skip(*begin).take(*length);
                    let called = own.filter_map(|(at, call)| {
                        let to = (at + 1).wrapping_add_signed(call.imm as isize);
                        let is_call = call.code == CALL && call.src_reg() == PSEUDO_CALL;
                        is_call.then(|| begins.binary_search(&to).expect("a function's beginning"))
                    });
                    called.collect()
                });
                let calls = calls.collect();
                let own = |(begin, length): (&usize, &usize)| {
                    stack_bytes(&program.instructions[*begin..begin + length])
                };
                let stacks = begins.iter().zip(&lengths).map(own).collect();
                Self { begins, lengths, calls, stacks }
            }

            /// The most stack that a function and those on any chain of calls from it use together, each in steps of so many
            /// bytes (`check_max_stack_depth`, kernel/bpf/verifier.c).
            fn stack_of_chains(&self, function: usize, step: usize) -> usize {
                let called =
                    self.calls[function].iter().map(|called| self.stack_of_chains(*called, step)).max();
                self.stacks[function].max(1).next_multiple_of(step) + called.unwrap_or(0)
            }

            /// The instructions of a function and of those that it calls, once for each chain of calls.
            fn by_chains(&self, function: usize) -> usize {
                let called: usize = self.calls[function].iter().map(|called| self.by_chains(*called)).sum();
                self.lengths[function] + called
            }
        }

        /// The lowest place below the frame pointer that a function reaches, directly or by a pointer that it makes from it,
        /// with its instructions read in their order.
        fn stack_bytes(instructions: &[bpf_insn]) -> usize {
            const MOVE: u8 = 0xbf;
            const ADD: u8 = 0x07;
            let mut places = [None; 16];
            places[10] = Some(0_i32);
            let mut lowest = 0;
            for own in instructions {
                let [to, from] = [own.dst_reg(), own.src_reg()].map(usize::from);
                // The classes of instructions: a load, two stores, two kinds of jumps, and others, which write a register.
                match own.code & 7 {
                    1 => {
                        lowest = lowest.min(places[from].map_or(0, |place| place + i32::from(own.off)));
                        places[to] = None;
                    }
                    2 | 3 => lowest = lowest.min(places[to].map_or(0, |place| place + i32::from(own.off))),
                    5 | 6 => {}
                    _ => {
                        places[to] = match own.code {
                            MOVE => places[from],
                            ADD => places[to].map(|place| place + own.imm),
                            _ => None,
                        };
                        lowest = lowest.min(places[to].unwrap_or(0));
                    }
                }
            }
            lowest.unsigned_abs() as usize
        }

        /// With a recorder, with a filter, and with neither; with and without the debug lines.
        #[test]
        fn no_chain_of_calls_exceeds_the_stack() {
            const MAX_BPF_STACK: usize = 512;
            let (of_recorder, of_filter) = (&function::OF_RECORDER[..], &function::OF_FILTER[..]);
            let traces = [of_filter.to_vec(), of_recorder.to_vec(), [of_filter, of_recorder].concat()];
            let without_messages = traces.clone().map(|trace| [&function::MESSAGES[..], &trace].concat());
            let mut exceeding = Vec::new();
            for uncalled in traces.iter().chain(&without_messages) {
                for (name, own) in linked(uncalled) {
                    // The kernels since 6.10, whose tracepoints have cookies, take it in smaller steps.
                    let step = if name == function::SHARED_TRACEPOINT { 16 } else { 32 };
                    let bytes = Functions::of(&own).stack_of_chains(0, step);
                    if bytes > MAX_BPF_STACK {
                        exceeding.push(format!("{name} without {uncalled:?}: {bytes} bytes"));
                    }
                }
            }
            assert_eq!(exceeding, [""; 0]);
        }

        #[test]
        fn a_linked_program_calls_only_its_own_functions() {
            let uncalled = [&function::MESSAGES[..], &function::OF_RECORDER, &function::OF_FILTER].concat();
            let (whole, less) = (linked(&[]), linked(&uncalled));
            for (name, own) in &less {
                let functions = Functions::of(own);
                let begins = &functions.begins;
                assert_eq!((begins[0], own.func_info.num_info as usize), (0, begins.len()), "{name}");
                for called in functions.calls.iter().flatten() {
                    let [first, second] = [0, 1].map(|at| own.instructions[begins[*called] + at].code);
                    assert!(first != 0xb7 || second != 0x95, "{name} calls a stub");
                }
                assert!(own.instructions.len() <= whole[name].instructions.len(), "{name}");
            }
            let sizes = |linked: &BTreeMap<String, Function>| {
                linked.values().map(|function| function.instructions.len()).sum::<usize>()
            };
            assert!(sizes(&less) * 4 < sizes(&whole), "{} of {}", sizes(&less), sizes(&whole));
        }

        // Nothing reads them, and most of the time in which an object is read was theirs.
        #[test]
        fn a_linked_program_has_no_lines_of_the_source() {
            for (name, own) in linked(&[]) {
                assert_eq!(own.line_info.line_info.len(), 0, "{name}");
                assert!(own.func_info.num_info > 0, "{name}");
            }
        }

        // Some kernels refuse functions in a program that continues with another one.
        #[test]
        fn a_copy_only_chooses_and_has_no_functions() {
            let programs = linked(&[]);
            let copies = Hook::ALL.iter().filter_map(|hook| match hook.spec().attach {
                Attach::Entry { fentry: Some(copies), .. } => copies.chosen.map(|chosen| (copies, chosen)),
                _ => None,
            });
            for (copies, chosen) in copies {
                let whole = programs[chosen].instructions.len();
                for name in copies.programs {
                    let copy = &programs[*name];
                    assert_eq!(Functions::of(copy).begins, [0], "{name}");
                    assert!(copy.instructions.len() * 10 < whole, "{name}: {}", copy.instructions.len());
                }
            }
        }

        // The compiler merges a constant with a number of the same value, which a trace then changes.
        #[test]
        fn no_key_is_a_number_of_a_trace() {
            const LOOK_UP: i32 = 1;
            for (name, own) in linked(&[]) {
                let is_look_up = |at: usize, call: &bpf_insn| match (call.code, call.src_reg()) {
                    (CALL, 0) => call.imm == LOOK_UP,
                    (CALL, PSEUDO_CALL) => {
                        let body = &own.instructions[(at + 1).checked_add_signed(call.imm as isize).unwrap()];
                        body.code == CALL && body.src_reg() == 0 && body.imm == LOOK_UP
                    }
                    _ => false,
                };
                let calls = own.instructions.iter().enumerate().filter(|(at, call)| is_look_up(*at, call));
                for (at, _) in calls {
                    let before = own.instructions[..at].iter().rev();
                    // The second half of a wide load has no register.
                    let key = before.take_while(|own| own.code & 7 < 5 || own.code & 7 == 7).find(|own| {
                        own.code != 0 && own.dst_reg() == 2 && matches!(own.code & 7, 0 | 1 | 4 | 7)
                    });
                    assert!(key.is_none_or(|key| key.code != 0x18), "{name}: at {at}");
                }
            }
        }

        /// The numbers that the object has.
        fn numbers_of(object: &Object) -> Numbers {
            Numbers { map: 7, bytes: object.maps[NUMBERS].data().to_vec() }
        }

        // No kernel has a helper of that number.
        #[test]
        fn the_cast_is_called_where_the_kernel_has_it_and_nowhere_else() {
            const PROBE_READ: i32 = 113;
            const KERNEL_FUNCTION: u8 = 2;
            let calls = |cast: Option<Cast>| {
                let mut settings = Settings::new(false, Vec::new());
                settings.set("RECORDER", 1_u32);
                settings.set("OFF_SKB_NFCT", 0x68_u32);
                settings.set("OFF_CT_ORIG_SRC", 0x20_u32);
                settings.set("OFF_CT_REPLY_SRC", 0x58_u32);
                settings.set("OFF_CT_BASE", 0_u32);
                settings.set("OFF_CT_TCP_STATE", 0xe0_u32);
                settings.set("KEPT_FROM", 0x20_u32);
                settings.set("KEPT_BYTES", 0x60_u32);
                settings.set("KEPT_WORDS", 0xfff0_u32);
                if let Some(cast) = cast {
                    settings.set_cast(cast);
                }
                let programs = linked_with(&[], |object| Some(numbers_of(object)), &settings);
                let called = |own: &bpf_insn| {
                    assert_ne!(own.imm.cast_unsigned(), CAST_CALL);
                    (own.code == CALL).then_some((own.src_reg(), own.imm))
                };
                let calls: Vec<_> =
                    programs.values().flat_map(|own| own.instructions.iter().filter_map(called)).collect();
                let reads = programs["confirm"].instructions.iter().filter_map(called);
                (
                    reads.filter(|call| *call == (0, PROBE_READ)).count(),
                    calls
                        .iter()
                        .filter(|(kind, _)| *kind == KERNEL_FUNCTION)
                        .map(|(_, id)| *id)
                        .collect::<Vec<_>>(),
                )
            };
            let (all_reads, none) = calls(None);
            assert!(none.is_empty(), "{none:?}");
            let (reads, casts) =
                calls(Some(Cast { function: 70_000, structure: 7_000, from: 96, bytes: 256 }));
            assert!(!casts.is_empty() && casts.iter().all(|id| *id == 70_000), "{casts:?}");
            // Of the packet, of the entry's kept words, and of its TCP state, which a sampled connection's record has too.
            assert_eq!(all_reads - reads, 4);
        }

        #[test]
        fn branches_on_numbers_are_gone_with_what_they_hid() {
            let of_agent = [&function::MESSAGES[..], &function::OF_FILTER].concat();
            let (whole, folded) =
                (linked(&of_agent), linked_for(&of_agent, |object| Some(numbers_of(object))));
            let mut twice = BTreeMap::new();
            for (name, own) in &folded {
                let functions = Functions::of(own);
                assert_eq!(functions.begins.len(), own.func_info.num_info as usize, "{name}");
                assert!(own.instructions.len() <= whole[name].instructions.len(), "{name}");
                let mut again = own.clone();
                fold::fold(&mut again, &numbers_of(&Object::parse(OBJECT).unwrap()));
                twice.insert(name.clone(), again);
            }
            // Without numbers, no field is there and nothing is recorded.
            let sizes = |linked: &BTreeMap<String, Function>| {
                linked.values().map(|function| function.instructions.len()).sum::<usize>()
            };
            assert!(sizes(&folded) * 2 < sizes(&whole), "{} of {}", sizes(&folded), sizes(&whole));
            // A second time, little more goes: loops that code led to which went.
            assert!(sizes(&twice) * 100 >= sizes(&folded) * 97, "{} of {}", sizes(&twice), sizes(&folded));
        }

        // The verifier writes code in the place of each, and copies what it knows of the program each time.
        #[test]
        fn a_program_has_few_calls_that_the_verifier_replaces() {
            const LOOK_UP: i32 = 1;
            const CPU: i32 = 8;
            for (name, own) in linked(&[&function::MESSAGES[..], &function::OF_FILTER].concat()) {
                let calls = |helper: i32| {
                    let is_call =
                        |own: &&bpf_insn| own.code == CALL && own.src_reg() == 0 && own.imm == helper;
                    own.instructions.iter().filter(is_call).count()
                };
                // The confirmation looks up what each healthy connection needs in place.
                let most = if name.starts_with("confirm") { 7 } else { 5 };
                assert!(calls(LOOK_UP) <= most, "{name}: {}", calls(LOOK_UP));
                assert!(calls(CPU) <= 1, "{name}: {}", calls(CPU));
            }
        }

        // Since 7.2 the verifier examines a function for each chain of calls that leads there with a pointer to the
        // stack, before it follows any path; here each chain counts.
        #[test]
        fn no_program_is_long_for_the_verifier() {
            let of_trace = [&function::MESSAGES[..], &function::OF_RECORDER, &function::OF_FILTER].concat();
            let of_agent = [&function::MESSAGES[..], &function::OF_FILTER].concat();
            for (uncalled, most) in [(of_trace, 1_020), (of_agent, 2_500)] {
                for (name, own) in linked(&uncalled) {
                    // Its tracepoint has a program of its own on kernels before 6.10 only.
                    let most = if name == "tcp_send_reset" { most + 1_200 } else { most };
                    let instructions = Functions::of(&own).by_chains(0);
                    assert!(instructions <= most, "{name}: {instructions}, and {most} were enough");
                }
            }
        }
    }
}
