//! `bpf(2)` itself, for the requests that aya does not make: programs that are loaded with a module's BTF, links of kprobes,
//! the counts of what the kernel skipped, and all entries of a map at once; and `perf_event_open(2)` for kprobes.
//!
//! The unsafe code is the system calls and their results: each command has attributes of its own type. Every pointer in
//! them leads to a slice or a struct that is alive in the calling function.

#![expect(unsafe_code, reason = "neither aya nor libc has a safe call for these requests")]

mod attributes;

use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_long},
    fs, io,
    os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd},
};

use aya::maps::MapData;
use aya_obj::generated::{bpf_insn, bpf_prog_info};
use tracer_ebpf::{SYMBOL_BYTES, SymbolQuery};

use attributes::{
    Attributes, BatchAttributes, BtfAttributes, BtfInfo, ElementAttributes, EventAttributes,
    EventLinkAttributes, IdAttributes, InfoAttributes, KprobeMultiAttributes, LinkInfo, MapAttributes,
    ProgramAttributes, RawTracepointAttributes, RunAttributes,
};

use super::mapping::Mapping;

// Commands of bpf(2) and numbers of its program and attach types, as include/uapi/linux/bpf.h has them.
const BPF_MAP_UPDATE_ELEM: c_long = 2;
const BPF_PROG_LOAD: c_long = 5;
const BPF_PROG_TEST_RUN: c_long = 10;
const BPF_OBJ_GET_INFO_BY_FD: c_long = 15;
const BPF_RAW_TRACEPOINT_OPEN: c_long = 17;
const BPF_BTF_LOAD: c_long = 18;
const BPF_BTF_GET_FD_BY_ID: c_long = 19;
const BPF_MAP_FREEZE: c_long = 22;
const BPF_BTF_GET_NEXT_ID: c_long = 23;
const BPF_MAP_LOOKUP_BATCH: c_long = 24;
const BPF_LINK_CREATE: c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const BPF_PROG_TYPE_TRACING: u32 = 26;
const BPF_PROG_TYPE_SYSCALL: u32 = 31;
const BPF_TRACE_RAW_TP: u32 = 23;
const BPF_TRACE_FENTRY: u32 = 24;
const BPF_TRACE_FEXIT: u32 = 25;
const BPF_PERF_EVENT: u32 = 41;
const BPF_TRACE_KPROBE_MULTI: u32 = 42;
const BPF_LINK_TYPE_PERF_EVENT: u32 = 7;
const BPF_LINK_TYPE_KPROBE_MULTI: u32 = 8;
const BPF_F_KPROBE_MULTI_RETURN: u32 = 1;
const BPF_F_SLEEPABLE: u32 = 1 << 4;
// include/uapi/linux/perf_event.h; the second is `_IOW('$', 8, __u32)`.
const PERF_FLAG_FD_CLOEXEC: c_long = 1 << 3;
const PERF_EVENT_IOC_SET_BPF: libc::Ioctl = 0x4004_2408;
/// `MODULE_NAME_LEN` is 56 on 64-bit machines.
const MODULE_NAME_BYTES: usize = 64;

/// How often the kernel skipped this program because it was already running on that CPU (`recursion_misses`, since 5.12 for
/// fentry, 6.2 for tracepoints and 6.7 for kprobes).
pub(super) fn missed_runs(program: BorrowedFd<'_>) -> io::Result<u64> {
    info(program).map(|info| info.recursion_misses)
}

/// The time that this program ran, in nanoseconds, and the number of runs; zero unless the kernel measures them
/// (`kernel.bpf_stats_enabled`, or `BPF_ENABLE_STATS`).
pub(super) fn measured_runs(program: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    info(program).map(|info| (info.run_time_ns, info.run_cnt))
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

/// How often the kernel did not even try to run the program of a kprobe's link, because ftrace or another kprobe was busy on
/// that CPU (`missed`). `None` for other links, and before 6.7, which does not count it.
pub(super) fn missed_by_link(link: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let mut info = LinkInfo::default();
    let mut attributes = InfoAttributes {
        bpf_fd: u32::try_from(link.as_raw_fd()).map_err(io::Error::other)?,
        info_len: size_of::<LinkInfo>() as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: `info` outlives the call and has the length that is passed; its pointers and lengths are zero, so the kernel
    // writes to nothing else.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    // The kernel writes at most its own struct, which is this long since it counts (`struct bpf_link_info`, whose longest
    // part then is that of a kprobe).
    let counts = attributes.info_len as usize >= size_of::<LinkInfo>();
    Ok(match info.kind {
        BPF_LINK_TYPE_KPROBE_MULTI if counts => Some(info.missed_by_multi),
        BPF_LINK_TYPE_PERF_EVENT if counts => Some(info.missed_by_event),
        _ => None,
    })
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

/// The use for which a program is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// The entry, or the exit, of one function, by its id in the BTF of this descriptor; `None` for vmlinux.
    Function { id: u32, module: Option<i32>, place: Place },
    /// A tracepoint with typed arguments, by the id of its type in vmlinux's BTF.
    Tracepoint { id: u32 },
    /// A tracepoint that passes its arguments as they are.
    RawTracepoint,
    /// A perf event's kprobe.
    Kprobe,
    /// A kprobe.multi link.
    KprobeMulti,
    /// To be run by user space, with helpers that no other program may call (since 5.14).
    SystemCall,
}

/// Where on the function a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Entry,
    Exit,
}

/// A program about to be loaded.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'static str,
    pub(super) purpose: Purpose,
    pub(super) instructions: &'a [bpf_insn],
    pub(super) license: &'a CStr,
    pub(super) functions: Option<Functions<'a>>,
}

/// The program's functions in the object's BTF. With it, the verifier checks a global function by itself, once; without, on
/// every path that leads there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions<'a> {
    pub(super) btf: BorrowedFd<'a>,
    /// `struct bpf_func_info`s, one after the other.
    pub(super) records: &'a [u8],
    /// The size of each, bytes.
    pub(super) record_bytes: usize,
}

/// Loads the BTF of an object.
pub(super) fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = BtfAttributes {
        btf: btf.as_ptr().expose_provenance() as u64,
        size: u32::try_from(btf.len()).map_err(io::Error::other)?,
        ..BtfAttributes::default()
    };
    // SAFETY: the bytes outlive the call, and their length is the slice's own.
    unsafe { new_fd(BPF_BTF_LOAD, &mut attributes) }
}

/// Lifts this process's limit of locked memory, to which kernels before 5.11 charge programs, maps and BTF. Has no effect
/// without `CAP_SYS_RESOURCE`.
pub(super) fn lift_memory_limit() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the limit outlives the call, which only reads it.
    let _refused = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
}

impl Request<'_> {
    /// Loads it. The verifier's output goes into `log`, unless that is empty.
    pub(super) fn load(&self, log: &mut [u8]) -> io::Result<OwnedFd> {
        let (prog_type, expected_attach_type, function, module) = match self.purpose {
            Purpose::Function { id, module, place: Place::Entry } => {
                (BPF_PROG_TYPE_TRACING, BPF_TRACE_FENTRY, id, module)
            }
            Purpose::Function { id, module, place: Place::Exit } => {
                (BPF_PROG_TYPE_TRACING, BPF_TRACE_FEXIT, id, module)
            }
            Purpose::Tracepoint { id } => (BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, id, None),
            Purpose::RawTracepoint => (BPF_PROG_TYPE_RAW_TRACEPOINT, 0, 0, None),
            Purpose::Kprobe => (BPF_PROG_TYPE_KPROBE, 0, 0, None),
            Purpose::KprobeMulti => (BPF_PROG_TYPE_KPROBE, BPF_TRACE_KPROBE_MULTI, 0, None),
            Purpose::SystemCall => (BPF_PROG_TYPE_SYSCALL, 0, 0, None),
        };
        // The kernel takes no others of this kind.
        let prog_flags = if matches!(self.purpose, Purpose::SystemCall) { BPF_F_SLEEPABLE } else { 0 };
        let mut prog_name = [0; 16];
        // One byte less: the kernel requires a NUL byte at the end.
        for (to, from) in prog_name.iter_mut().take(15).zip(self.name.bytes()) {
            *to = from;
        }
        let mut attributes = ProgramAttributes {
            prog_type,
            insn_cnt: u32::try_from(self.instructions.len()).map_err(io::Error::other)?,
            insns: self.instructions.as_ptr().expose_provenance() as u64,
            license: self.license.as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: u32::try_from(log.len()).map_err(io::Error::other)?,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            prog_flags,
            prog_name,
            expected_attach_type,
            attach_btf_id: function,
            attach_btf_obj_fd: match module {
                Some(fd) => u32::try_from(fd).map_err(io::Error::other)?,
                None => 0,
            },
            ..ProgramAttributes::default()
        };
        if let Some(Functions { btf, records, record_bytes }) = self.functions {
            attributes.prog_btf_fd = u32::try_from(btf.as_raw_fd()).map_err(io::Error::other)?;
            attributes.func_info = records.as_ptr().expose_provenance() as u64;
            attributes.func_info_rec_size = u32::try_from(record_bytes).map_err(io::Error::other)?;
            let count = records.len().checked_div(record_bytes).unwrap_or_default();
            attributes.func_info_cnt = u32::try_from(count).map_err(io::Error::other)?;
        }
        // SAFETY: the instructions, the license, the functions and the log outlive the call, their lengths are the
        // slices' own, and the kernel writes to the log only.
        unsafe { new_fd(BPF_PROG_LOAD, &mut attributes) }
    }
}

/// Runs a loaded raw tracepoint program once, with this as its first argument (`BPF_PROG_TEST_RUN`, since 5.10).
pub(super) fn run_once(program: BorrowedFd<'_>, argument: u64) -> io::Result<()> {
    // As many as a tracepoint has at most (`MAX_BPF_FUNC_ARGS`).
    let mut context = [0_u64; 12];
    context[0] = argument;
    let mut attributes = RunAttributes {
        prog_fd: u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?,
        ctx_size_in: size_of_val(&context) as u32,
        ctx_in: context.as_ptr().expose_provenance() as u64,
        ..RunAttributes::default()
    };
    // SAFETY: the context outlives the call, which only reads it.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attributes) }.map(drop)
}

/// Where the function of this name begins, by the loaded program [`tracer_ebpf::function::FIND_SYMBOL`]; `None` if there is none.
/// The kernel shows addresses to those only that may also read them in `/proc/kallsyms` (`bpf_dump_raw_ok`).
pub(super) fn find_symbol(program: BorrowedFd<'_>, name: &str) -> io::Result<Option<u64>> {
    let mut bytes = [0; SYMBOL_BYTES];
    // One byte less: the kernel requires a NUL byte at the end.
    let place = bytes[..SYMBOL_BYTES - 1].get_mut(..name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    place.copy_from_slice(name.as_bytes());
    let mut query = SymbolQuery { name: [0; SYMBOL_BYTES / 8], address: 0 };
    for (word, bytes) in query.name.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    let mut attributes = RunAttributes {
        prog_fd: u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?,
        ctx_size_in: size_of::<SymbolQuery>() as u32,
        ctx_in: (&raw mut query).expose_provenance() as u64,
        ..RunAttributes::default()
    };
    // SAFETY: the query outlives the call, which reads and writes only that.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attributes) }?;
    match attributes.retval.cast_signed() {
        0 => Ok(Some(query.address)),
        refused if refused == -libc::ENOENT => Ok(None),
        refused => Err(io::Error::from_raw_os_error(-refused)),
    }
}

/// Attaches a loaded tracing program: for these programs `BPF_RAW_TRACEPOINT_OPEN` without a name does that.
pub(super) fn open_link(program: &OwnedFd) -> io::Result<OwnedFd> {
    let prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    let mut attributes = RawTracepointAttributes { name: 0, prog_fd, reserved: 0, cookie: 0 };
    // SAFETY: no pointer is passed.
    unsafe { new_fd(BPF_RAW_TRACEPOINT_OPEN, &mut attributes) }
}

/// Attaches a loaded program to the tracepoint of this name. The program gets the cookie (since 6.10), unless it is 0.
pub(super) fn open_raw_tracepoint(program: &OwnedFd, tracepoint: &str, cookie: u64) -> io::Result<OwnedFd> {
    let tracepoint = CString::new(tracepoint).map_err(io::Error::other)?;
    let prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    let name = tracepoint.as_ptr().expose_provenance() as u64;
    let mut attributes = RawTracepointAttributes { name, prog_fd, reserved: 0, cookie };
    // SAFETY: the name outlives the call, which only reads it.
    unsafe { new_fd(BPF_RAW_TRACEPOINT_OPEN, &mut attributes) }
}

/// Attaches a loaded program to functions by a kprobe.multi link (since 5.18), which needs no perf event. The program gets the
/// number beside a function as the cookie there. All of them must exist. For more than one name the kernel goes through all its
/// symbols.
pub(super) fn open_kprobe_multi(
    program: &OwnedFd,
    functions: &[(&str, u64)],
    place: Place,
) -> io::Result<OwnedFd> {
    let names: Vec<CString> = functions
        .iter()
        .map(|(symbol, _)| CString::new(*symbol).map_err(io::Error::other))
        .collect::<Result<_, _>>()?;
    let symbols: Vec<u64> = names.iter().map(|name| name.as_ptr().expose_provenance() as u64).collect();
    let cookies: Vec<u64> = functions.iter().map(|(_, cookie)| *cookie).collect();
    let symbols = symbols.as_ptr().expose_provenance() as u64;
    link_kprobes(
        program,
        KprobeMultiAttributes { symbols, ..KprobeMultiAttributes::default() },
        &cookies,
        place,
    )
}

/// The same for functions by their addresses.
pub(super) fn open_kprobe_multi_at(
    program: &OwnedFd,
    functions: &[(u64, u64)],
    place: Place,
) -> io::Result<OwnedFd> {
    let (addresses, cookies): (Vec<u64>, Vec<u64>) = functions.iter().copied().unzip();
    let addresses = addresses.as_ptr().expose_provenance() as u64;
    link_kprobes(
        program,
        KprobeMultiAttributes { addresses, ..KprobeMultiAttributes::default() },
        &cookies,
        place,
    )
}

/// Makes a kprobe.multi link of the functions whose names or addresses the attributes have, each with its cookie.
fn link_kprobes(
    program: &OwnedFd,
    mut attributes: KprobeMultiAttributes,
    cookies: &[u64],
    place: Place,
) -> io::Result<OwnedFd> {
    attributes.prog_fd = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    attributes.attach_type = BPF_TRACE_KPROBE_MULTI;
    if place == Place::Exit {
        attributes.link_flags = BPF_F_KPROBE_MULTI_RETURN;
    }
    attributes.count = u32::try_from(cookies.len()).map_err(io::Error::other)?;
    attributes.cookies = cookies.as_ptr().expose_provenance() as u64;
    // SAFETY: the arrays, of one length, and the names are alive in the callers, and the kernel only reads them.
    unsafe { new_fd(BPF_LINK_CREATE, &mut attributes) }
}

/// Makes a perf event of a function, at which a program is to run. The kernel finds the function at once; for a kprobe.multi
/// link 6.12 goes through all its symbols, 0.1 s of an emulated CPU. Where `kernel.perf_event_paranoid` is above 2 (a patch of
/// Debian and Ubuntu), it needs `CAP_SYS_ADMIN`.
pub(super) fn open_kprobe_event(symbol: &str, place: Place) -> io::Result<OwnedFd> {
    const OF_ANY_PROCESS: c_long = -1;
    // The kernel runs a kprobe's program on every CPU.
    const CPU: c_long = 0;
    const NO_GROUP: c_long = -1;
    // The number of this kind of event is the kernel's choice (Documentation/ABI/testing/sysfs-bus-event_source-devices-*).
    let kind = fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")
        .map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))?;
    let symbol = CString::new(symbol).map_err(io::Error::other)?;
    let mut attributes = EventAttributes {
        kind: kind.trim().parse().map_err(io::Error::other)?,
        size: size_of::<EventAttributes>() as u32,
        // `format/retprobe`.
        config: u64::from(place == Place::Exit),
        function: symbol.as_ptr().expose_provenance() as u64,
        ..EventAttributes::default()
    };
    // SAFETY: the attributes and the name outlive the call, which only reads them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw mut attributes,
            OF_ANY_PROCESS,
            CPU,
            NO_GROUP,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created it and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?) })
}

/// Attaches a loaded program to the function of a perf event. The result owns the event. The program gets the cookie (since
/// 5.15), unless it is 0.
pub(super) fn open_event_link(program: &OwnedFd, event: OwnedFd, cookie: u64) -> io::Result<OwnedFd> {
    let mut attributes = EventLinkAttributes {
        prog_fd: u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?,
        target_fd: u32::try_from(event.as_raw_fd()).map_err(io::Error::other)?,
        attach_type: BPF_PERF_EVENT,
        cookie,
        ..EventLinkAttributes::default()
    };
    // SAFETY: no pointer is passed.
    match unsafe { new_fd(BPF_LINK_CREATE, &mut attributes) } {
        Ok(link) => Ok(link),
        // Before 5.15 there is no such link, and the event itself holds the program.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && cookie == 0 => {
            // SAFETY: the request takes a descriptor, which is open.
            let answer =
                unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) };
            if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(event) }
        }
        Err(error) => Err(error),
    }
}

/// Every module's BTF by the module's name. Needs `CAP_SYS_ADMIN`.
pub(super) fn modules() -> io::Result<HashMap<String, OwnedFd>> {
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

/// All entries of a hash map with keys and values of these sizes (`BPF_MAP_LOOKUP_BATCH`, since 5.6). An entry that a
/// program replaces meanwhile may be missing or come twice.
pub(super) fn entries<const KEY: usize, const VALUE: usize>(
    map: &MapData,
) -> io::Result<Vec<([u8; KEY], [u8; VALUE])>> {
    /// Entries of one request. The kernel refuses fewer than one of its buckets holds, which are a few.
    const BATCH: usize = 1024;
    let info = map.info().map_err(io::Error::other)?;
    if (info.key_size() as usize, info.value_size() as usize) != (KEY, VALUE) {
        return Err(io::Error::other("the map's entries have another size"));
    }
    let (mut keys, mut values) = (vec![[0; KEY]; BATCH], vec![[0; VALUE]; BATCH]);
    let mut found = Vec::new();
    // The place to go on from: 4 bytes for a hash map, whatever its key.
    let mut place = 0_u32;
    let mut is_first = true;
    loop {
        let place_at = (&raw mut place).expose_provenance() as u64;
        let mut attributes = BatchAttributes {
            in_batch: if is_first { 0 } else { place_at },
            out_batch: place_at,
            keys: keys.as_mut_ptr().expose_provenance() as u64,
            values: values.as_mut_ptr().expose_provenance() as u64,
            count: BATCH as u32,
            map_fd: u32::try_from(map.fd().as_fd().as_raw_fd()).map_err(io::Error::other)?,
            elem_flags: 0,
            flags: 0,
        };
        is_first = false;
        // SAFETY: `keys` and `values` outlive the call and have room for `count` entries of the map's sizes, which
        // were compared; `place` outlives it too.
        let answer = unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
        let is_last = match answer {
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        };
        let count = (attributes.count as usize).min(BATCH);
        found.extend(keys.iter().copied().zip(values.iter().copied()).take(count));
        if is_last {
            return Ok(found);
        }
    }
}

/// Writes the only value of an array, whose size is that of `value`; of an array of programs it is a descriptor.
pub(super) fn fill(map: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    let key = 0_u32;
    let mut attributes = ElementAttributes {
        map_fd: u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?,
        key: (&raw const key).expose_provenance() as u64,
        value: value.as_ptr().expose_provenance() as u64,
        ..ElementAttributes::default()
    };
    // SAFETY: the key and the value outlive the call, which only reads them; the map was made for values of this size.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Makes a map constant for this process: the verifier then knows its numbers (since 5.2).
pub(super) fn freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    let map_fd = u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?;
    let mut attributes = MapAttributes { map_fd };
    // SAFETY: no pointer is passed.
    unsafe { bpf(BPF_MAP_FREEZE, &mut attributes) }.map(drop)
}

/// The size of a page, bytes.
pub(super) fn page_bytes() -> u32 {
    // SAFETY: it reads a number of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(bytes).unwrap_or(4096)
}

/// The values of an array that was made with `BPF_F_MMAPABLE` (since 5.5), in this process's memory: read without system
/// calls while programs write them.
#[derive(Debug)]
pub(super) struct MappedArray {
    mapping: Mapping,
    /// The bytes of a value, and from one value to the next.
    value_bytes: usize,
}

impl MappedArray {
    /// Maps the values, whose size must be a multiple of 8 bytes.
    pub(super) fn map(map: &MapData) -> io::Result<Self> {
        let info = map.info().map_err(io::Error::other)?;
        let value_bytes = info.value_size() as usize;
        let bytes = value_bytes * info.max_entries() as usize;
        if bytes == 0 || !value_bytes.is_multiple_of(8) {
            return Err(io::Error::other("the map's values have no whole words"));
        }
        Ok(Self { mapping: Mapping::of(map.fd().as_fd(), bytes, libc::MAP_SHARED)?, value_bytes })
    }

    /// The places of all values whose word `at` is not 0.
    pub(super) fn places(&self, at: usize) -> impl Iterator<Item = u32> {
        let places = self.mapping.bytes() / self.value_bytes;
        (0_u32..).take(places).filter(move |place| self.word(*place, at) != 0)
    }

    /// A word of a value as it is now; 0 for one that does not exist.
    pub(super) fn word(&self, place: u32, at: usize) -> u64 {
        if at >= self.value_bytes / size_of::<u64>() {
            return 0;
        }
        self.mapping.word(place as usize * self.value_bytes + at * size_of::<u64>()).unwrap_or_default()
    }
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
