//! fentry and fexit programs on functions of vmlinux and of modules.
//!
//! aya loads them for functions of vmlinux only. Conntrack, NAT and IPVS are modules in distributions' kernels: there
//! the program must be loaded with a file descriptor of the module's BTF (`attach_btf_obj_fd` of `bpf(2)`, since 5.11).
//! This file does only that: maps, globals and all other programs stay aya's, and the instructions come from the same
//! object, into which aya-obj puts aya's maps. The plan decides which program goes to which function.
//!
//! The unsafe code is `bpf(2)` itself and its results: four commands, each with attributes of its own type. Every
//! pointer in them leads to a slice or a struct that is alive in the calling function.

#![expect(
    unsafe_code,
    reason = "aya has no call that loads a program with a module's BTF, and neither has libc"
)]

use std::{
    collections::{HashMap, HashSet},
    ffi::{CStr, CString, c_long},
    io,
    os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd},
};

use aya::{
    Ebpf,
    maps::{Map, MapData},
};
use aya_obj::{
    Object,
    generated::{bpf_insn, bpf_prog_info},
};

use super::plan::FentryTarget;
use crate::error::sentence;

/// Where on the function a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Entry,
    Exit,
}

/// Why a program could not be attached this way.
#[derive(Debug, thiserror::Error)]
pub(super) enum FentryError {
    #[error("the eBPF object cannot be prepared for fentry: {0}")]
    Object(String),
    #[error("the eBPF object has no program {0}")]
    NoProgram(&'static str),
    #[error("cannot find the BTF of the module {module}: {error}")]
    Modules { module: &'static str, error: io::Error },
    #[error("the kernel lists no BTF of the module {0}")]
    NoModule(&'static str),
    #[error("the kernel refused to load {program}: {error}{log}")]
    Load { program: &'static str, error: io::Error, log: String },
    #[error("the kernel refused to attach {program}: {error}")]
    Attach { program: &'static str, error: io::Error },
}

/// An attached program; dropping it detaches it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) program: OwnedFd,
    _link: OwnedFd,
}

/// How often the kernel skipped this program because it was already running on that CPU (`recursion_misses`, since
/// 5.12).
pub(super) fn missed_runs(program: BorrowedFd<'_>) -> io::Result<u64> {
    info(program).map(|info| info.recursion_misses)
}

/// The size of a loaded program, in instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    /// The instructions that the verifier left for the kernel to run.
    pub(super) instructions: u32,
    /// The instructions that the verifier walked through, a loop's once per iteration; 0 before 5.16, which does not
    /// count them.
    pub(super) verified: u32,
}

pub(super) fn size(program: BorrowedFd<'_>) -> io::Result<Size> {
    let info = info(program)?;
    let instructions = info.xlated_prog_len / size_of::<bpf_insn>() as u32;
    Ok(Size { instructions, verified: info.verified_insns })
}

fn info(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    // SAFETY: it consists of numbers and arrays of numbers, for which zeroes are valid values.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attributes = InfoAttributes {
        bpf_fd: u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?,
        info_len: size_of::<bpf_prog_info>() as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` outlives the call and has the length that is passed; with all its pointers and lengths zero the
    // kernel writes to nothing else.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info)
}

/// The object's fentry and fexit programs, ready to be loaded.
#[derive(Debug)]
pub(super) struct Loader {
    object: Object,
    /// The BTF of modules by name, once they are listed.
    modules: Option<HashMap<String, OwnedFd>>,
}

impl Loader {
    /// Takes the programs out of `object` and puts the maps of `ebpf`, which was loaded from the same bytes, into them.
    pub(super) fn new(object: &[u8], ebpf: &Ebpf) -> Result<Self, FentryError> {
        let unusable = |error: &(dyn std::error::Error + 'static)| FentryError::Object(sentence(error));
        let mut object = Object::parse(object).map_err(|error| unusable(&error))?;
        let maps: Vec<_> = object
            .maps
            .iter()
            .filter_map(|(name, map)| {
                let fd = data(ebpf.map(name)?)?.fd().as_fd().as_raw_fd();
                Some((name.clone(), fd, map.clone()))
            })
            .collect();
        let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        object
            .relocate_maps(maps.iter().map(|(name, fd, map)| (name.as_str(), *fd, map)), &sections)
            .map_err(|error| unusable(&error))?;
        object.relocate_calls(&sections).map_err(|error| unusable(&error))?;
        Ok(Self { object, modules: None })
    }

    /// Loads the program for the function and attaches it.
    pub(super) fn attach(
        &mut self,
        name: &'static str,
        place: Place,
        target: &FentryTarget,
    ) -> Result<Link, FentryError> {
        let module = match target.module {
            Some(module) => Some(self.module(module)?),
            None => None,
        };
        let missing = || FentryError::NoProgram(name);
        let program = self.object.programs.get(name).ok_or_else(missing)?;
        let function = self.object.functions.get(&program.function_key()).ok_or_else(missing)?;
        let request =
            Request { name, place, instructions: &function.instructions, license: &program.license, module };
        let loaded = request.load(target.function, &mut []).or_else(|_| {
            // A second attempt, for the verifier's reasons.
            let mut log = vec![0; LOG_BYTES];
            request.load(target.function, &mut log).map_err(|error| {
                let log = last_line(&log).map(|line| format!(" ({line})")).unwrap_or_default();
                FentryError::Load { program: name, error, log }
            })
        })?;
        let link = open_link(&loaded).map_err(|error| FentryError::Attach { program: name, error })?;
        Ok(Link { program: loaded, _link: link })
    }

    /// The BTF of a loaded module.
    fn module(&mut self, name: &'static str) -> Result<i32, FentryError> {
        if self.modules.is_none() {
            let listed = modules().map_err(|error| FentryError::Modules { module: name, error })?;
            self.modules = Some(listed);
        }
        let known = self.modules.as_ref().and_then(|modules| modules.get(name));
        known.map(AsRawFd::as_raw_fd).ok_or(FentryError::NoModule(name))
    }
}

/// The map's own handle, for the kinds of map in the object.
fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::PerCpuHashMap(data)
        | Map::PerCpuLruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::RingBuf(data) => Some(data),
        _ => None,
    }
}

/// Enough for the end of the verifier's log.
const LOG_BYTES: usize = 1 << 20;

fn last_line(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next()?).into_owned();
    let mut lines = text.lines().map(str::trim);
    lines.rfind(|line| !line.is_empty() && !line.starts_with("processed ")).map(str::to_owned)
}

// Commands of bpf(2) and numbers of its program and attach types, as include/uapi/linux/bpf.h has them.
const BPF_PROG_LOAD: c_long = 5;
const BPF_OBJ_GET_INFO_BY_FD: c_long = 15;
const BPF_RAW_TRACEPOINT_OPEN: c_long = 17;
const BPF_BTF_GET_FD_BY_ID: c_long = 19;
const BPF_BTF_GET_NEXT_ID: c_long = 23;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_TRACE_FENTRY: u32 = 24;
const BPF_TRACE_FEXIT: u32 = 25;
/// `MODULE_NAME_LEN` is 56 on 64-bit machines.
const MODULE_NAME_BYTES: usize = 64;

/// A program about to be loaded.
struct Request<'a> {
    name: &'static str,
    place: Place,
    instructions: &'a [bpf_insn],
    license: &'a CStr,
    module: Option<i32>,
}

impl Request<'_> {
    /// Loads it for the function with this BTF id. The verifier's output goes into `log`, unless that is empty.
    fn load(&self, function: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
        let mut prog_name = [0; 16];
        // One byte less: the kernel requires a NUL byte at the end.
        for (to, from) in prog_name.iter_mut().take(15).zip(self.name.bytes()) {
            *to = from;
        }
        let mut attributes = ProgramAttributes {
            prog_type: BPF_PROG_TYPE_TRACING,
            insn_cnt: u32::try_from(self.instructions.len()).map_err(io::Error::other)?,
            insns: self.instructions.as_ptr().expose_provenance() as u64,
            license: self.license.as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: u32::try_from(log.len()).map_err(io::Error::other)?,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            prog_name,
            expected_attach_type: match self.place {
                Place::Entry => BPF_TRACE_FENTRY,
                Place::Exit => BPF_TRACE_FEXIT,
            },
            attach_btf_id: function,
            attach_btf_obj_fd: match self.module {
                Some(fd) => u32::try_from(fd).map_err(io::Error::other)?,
                None => 0,
            },
            ..ProgramAttributes::default()
        };
        // SAFETY: the instructions, the license and the log outlive the call, their lengths are the slices' own, and
        // the kernel writes to the log only.
        unsafe { new_fd(BPF_PROG_LOAD, &mut attributes) }
    }
}

/// Attaches a loaded tracing program: for these programs `BPF_RAW_TRACEPOINT_OPEN` without a name does that.
fn open_link(program: &OwnedFd) -> io::Result<OwnedFd> {
    let prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    let mut attributes = RawTracepointAttributes { name: 0, prog_fd, reserved: 0 };
    // SAFETY: no pointer is passed.
    unsafe { new_fd(BPF_RAW_TRACEPOINT_OPEN, &mut attributes) }
}

/// Every module's BTF by the module's name. Needs `CAP_SYS_ADMIN`.
fn modules() -> io::Result<HashMap<String, OwnedFd>> {
    let mut modules = HashMap::new();
    let mut id = 0;
    loop {
        let mut next = IdAttributes { id, next_id: 0, open_flags: 0 };
        // SAFETY: no pointer is passed.
        match unsafe { bpf(BPF_BTF_GET_NEXT_ID, &mut next) } {
            Ok(_) if next.next_id > id => id = next.next_id,
            Ok(_) => return Ok(modules),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(modules),
            Err(error) => return Err(error),
        }
        let mut by_id = IdAttributes { id, next_id: 0, open_flags: 0 };
        // SAFETY: no pointer is passed.
        let fd = match unsafe { new_fd(BPF_BTF_GET_FD_BY_ID, &mut by_id) } {
            Ok(fd) => fd,
            // It was unloaded between the two calls.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) => return Err(error),
        };
        if let Some(name) = module_name(&fd)? {
            modules.insert(name, fd);
        }
    }
}

/// The name of the kernel's own BTF; none if a program loaded it.
fn module_name(btf: &OwnedFd) -> io::Result<Option<String>> {
    let mut name = [0_u8; MODULE_NAME_BYTES];
    let mut info = BtfInfo {
        name: name.as_mut_ptr().expose_provenance() as u64,
        name_len: MODULE_NAME_BYTES as u32,
        ..BtfInfo::default()
    };
    let mut attributes = InfoAttributes {
        bpf_fd: u32::try_from(btf.as_raw_fd()).map_err(io::Error::other)?,
        info_len: size_of::<BtfInfo>() as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` and `name` outlive the call and have the lengths that are passed; the kernel writes to both.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    if info.kernel_btf == 0 {
        return Ok(None);
    }
    let name = CStr::from_bytes_until_nul(&name).map_or_else(|_| CString::default(), CStr::to_owned);
    Ok(name.into_string().ok())
}

/// `bpf(2)` with attributes of one of the types below, for a command that returns a new descriptor.
///
/// # Safety
///
/// As for [`bpf`]; the command must be one that returns a file descriptor.
unsafe fn new_fd<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: promised by the caller.
    let fd = unsafe { bpf(command, attributes) }?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created it and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `bpf(2)`.
///
/// # Safety
///
/// Every pointer in `attributes` must be valid for the length it states, for as long as the call lasts.
unsafe fn bpf<A: Attributes>(command: c_long, attributes: &mut A) -> io::Result<c_long> {
    // SAFETY: the attributes are valid for reads and writes of their size; the rest is promised by the caller.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<A>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A part of `union bpf_attr`: plain numbers without padding, and no longer than the kernel's. A kernel extends a
/// shorter one with zeroes.
trait Attributes {}

/// The part of `union bpf_attr` for `BPF_PROG_LOAD`, up to the last field that is used.
#[derive(Default)]
#[repr(C)]
struct ProgramAttributes {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_btf_obj_fd: u32,
    reserved: u32,
}

#[repr(C)]
struct RawTracepointAttributes {
    name: u64,
    prog_fd: u32,
    reserved: u32,
}

#[repr(C)]
struct IdAttributes {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct InfoAttributes {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// `struct bpf_btf_info`; its last three fields exist since 5.11, as module BTF does.
#[derive(Default)]
#[repr(C)]
struct BtfInfo {
    btf: u64,
    btf_size: u32,
    id: u32,
    name: u64,
    name_len: u32,
    kernel_btf: u32,
}

impl Attributes for ProgramAttributes {}
impl Attributes for RawTracepointAttributes {}
impl Attributes for IdAttributes {}
impl Attributes for InfoAttributes {}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use aya_obj::generated::bpf_attr;

    use super::*;

    #[test]
    fn attributes_lie_where_the_kernel_reads_them() {
        // include/uapi/linux/bpf.h, `union bpf_attr`.
        assert_eq!(offset_of!(ProgramAttributes, prog_name), 48);
        assert_eq!(offset_of!(ProgramAttributes, expected_attach_type), 68);
        assert_eq!(offset_of!(ProgramAttributes, attach_btf_id), 108);
        assert_eq!(offset_of!(ProgramAttributes, attach_btf_obj_fd), 112);
        assert!(size_of::<ProgramAttributes>() <= size_of::<bpf_attr>());
        assert_eq!(offset_of!(BtfInfo, kernel_btf), 28);
    }

    #[test]
    fn of_the_verifiers_log_the_last_word_is_kept() {
        assert_eq!(
            last_line(b"0: (95)\nR0 !read_ok\nprocessed 1 insns\n\0\0").as_deref(),
            Some("R0 !read_ok")
        );
        assert_eq!(last_line(&[0; 8]), None);
        assert_eq!(last_line(b""), None);
    }
}
