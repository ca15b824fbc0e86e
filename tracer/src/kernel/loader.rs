//! Loads and attaches the programs of hooks.
//!
//! aya loads fentry programs for functions of vmlinux only. Conntrack, NAT and IPVS are modules in distributions' kernels:
//! there the program must be loaded with a file descriptor of the module's BTF (`attach_btf_obj_fd` of `bpf(2)`, since 5.11).
//! It has no kprobe.multi links (since 5.18), which need no perf event, and does not show the links of its kprobes, which count
//! missed runs. The plan decides which program goes to which function, `object` has made them ready, and `bpf` makes the
//! system calls.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, AsRawFd, OwnedFd},
};

use aya_obj::relocation::EbpfRelocationError;
use tracer_ebpf::{Hook, function};

use super::{
    bpf::{self, Functions, Place, Purpose, Request},
    environment::LOCKDOWN_REMEDY,
    object::Programs,
    plan::FentryTarget,
};
use crate::error::sentence;

/// The beginning of an error where the kernel refuses perf events.
pub(super) const PERF_EVENTS_REFUSED: &str = "perf events are refused";

/// Why a program could not be attached this way.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("the eBPF object has no program {0}")]
    NoProgram(&'static str),
    #[error("the program {program} of the eBPF object cannot be linked: {}", sentence(.error))]
    Link { program: &'static str, error: EbpfRelocationError },
    #[error("cannot find the BTF of the module {module}: {error}")]
    Modules { module: &'static str, error: io::Error },
    #[error("the kernel lists no BTF of the module {0}")]
    NoModule(&'static str),
    #[error("the kernel refused to load {program}: {error}{log}")]
    Load { program: &'static str, error: io::Error, log: String },
    #[error("the kernel refused to attach {program}: {error}")]
    Attach { program: &'static str, error: io::Error },
    #[error("this kernel has no function {0}")]
    NoSymbol(&'static str),
    #[error("this kernel has no kprobe.multi links (CONFIG_FPROBE, since 5.18)")]
    NoKprobeMulti,
    #[error("no thread attaches it: {0}")]
    Thread(io::Error),
    #[error("no perf event for {symbol}: {error}")]
    Event { symbol: String, error: io::Error },
    #[error("{PERF_EVENTS_REFUSED}: {0}")]
    EventsRefused(io::Error),
}

/// An attached program; dropping it detaches it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) program: OwnedFd,
    pub(super) link: OwnedFd,
}

/// Attaches a loaded program that knows its place.
pub(super) fn open(name: &'static str, program: OwnedFd) -> Result<Link, LoadError> {
    let link = bpf::open_link(&program).map_err(|error| LoadError::Attach { program: name, error })?;
    Ok(Link { program, link })
}

/// Loads the object's programs.
#[derive(Debug)]
pub(super) struct Loader {
    programs: Programs,
    /// The object's BTF in the kernel; `None` where the kernel takes none.
    btf: Option<OwnedFd>,
    /// The BTF of modules by name, as they were last listed.
    modules: HashMap<String, OwnedFd>,
    /// The programs that hooks share, once they are loaded: of kprobe.multi links, of tracepoints, of perf events.
    shared: [Option<OwnedFd>; 3],
}

impl Loader {
    pub(super) fn new(programs: Programs, btf: Option<OwnedFd>) -> Self {
        Self { programs, btf, modules: HashMap::new(), shared: [const { None }; 3] }
    }

    /// Loads the program for the entry or the exit of the function.
    pub(super) fn load_function(
        &mut self,
        name: &'static str,
        place: Place,
        target: &FentryTarget,
    ) -> Result<OwnedFd, LoadError> {
        let module = match target.module {
            Some(module) => Some(self.module(module)?),
            None => None,
        };
        self.load(name, Purpose::Function { id: target.function, module, place })
    }

    /// Loads the program for the tracepoint, by the id of its type in vmlinux's BTF.
    pub(super) fn load_tracepoint(&mut self, name: &'static str, id: u32) -> Result<OwnedFd, LoadError> {
        self.load(name, Purpose::Tracepoint { id })
    }

    /// Loads the program for the tracepoint, which passes its arguments as they are, and attaches it.
    pub(super) fn attach_raw_tracepoint(
        &mut self,
        name: &'static str,
        tracepoint: &str,
    ) -> Result<Link, LoadError> {
        let program = self.load(name, Purpose::RawTracepoint)?;
        let link = bpf::open_raw_tracepoint(&program, tracepoint, 0)
            .map_err(|error| LoadError::Attach { program: name, error })?;
        Ok(Link { program, link })
    }

    /// Loads the program and attaches it to the function by a kprobe.multi link.
    pub(super) fn attach_kprobe_multi(
        &mut self,
        name: &'static str,
        place: Place,
        symbol: &str,
    ) -> Result<Link, LoadError> {
        let program = self.load(name, Purpose::KprobeMulti)?;
        let link = bpf::open_kprobe_multi(&program, &[(symbol, 0)], place)
            .map_err(|error| LoadError::Attach { program: name, error })?;
        Ok(Link { program, link })
    }

    /// Loads the program and attaches it to the function by a perf event, which is made first: it shows at once whether there is
    /// such a function, and whether this process may.
    pub(super) fn attach_kprobe(
        &mut self,
        name: &'static str,
        place: Place,
        symbol: &str,
    ) -> Result<Link, LoadError> {
        let event = self.event(name, place, symbol)?;
        let program = self.load(name, Purpose::Kprobe)?;
        let link = bpf::open_event_link(&program, event, 0)
            .map_err(|error| LoadError::Attach { program: name, error })?;
        Ok(Link { program, link })
    }

    fn event(&mut self, name: &'static str, place: Place, symbol: &str) -> Result<OwnedFd, LoadError> {
        match bpf::open_kprobe_event(symbol, place) {
            Ok(event) => Ok(event),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Err(LoadError::EventsRefused(error)),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                // Under lockdown the verifier has the better reason.
                self.load(name, Purpose::Kprobe)?;
                Err(LoadError::EventsRefused(error))
            }
            Err(error) => Err(LoadError::Event { symbol: symbol.to_owned(), error }),
        }
    }

    /// Attaches the program that functions share to one of them by a perf event, with this cookie. It is loaded for the first.
    pub(super) fn attach_shared_kprobe(&mut self, symbol: &str, cookie: u64) -> Result<OwnedFd, LoadError> {
        let event = self.event(function::SHARED, Place::Entry, symbol)?;
        let program = self.shared(Purpose::Kprobe)?;
        bpf::open_event_link(program, event, cookie)
            .map_err(|error| LoadError::Attach { program: function::SHARED, error })
    }

    /// Attaches it to all these functions by one kprobe.multi link, each with its cookie.
    pub(super) fn attach_shared_kprobe_multi(
        &mut self,
        functions: &[(&str, u64)],
    ) -> Result<OwnedFd, LoadError> {
        let program = self.shared(Purpose::KprobeMulti)?;
        bpf::open_kprobe_multi(program, functions, Place::Entry)
            .map_err(|error| LoadError::Attach { program: function::SHARED, error })
    }

    /// The same by the functions' addresses: a hundredth of the time that the kernel takes to find several names.
    pub(super) fn attach_shared_kprobe_multi_at(
        &mut self,
        functions: &[(u64, u64)],
    ) -> Result<OwnedFd, LoadError> {
        let program = self.shared(Purpose::KprobeMulti)?;
        bpf::open_kprobe_multi_at(program, functions, Place::Entry)
            .map_err(|error| LoadError::Attach { program: function::SHARED, error })
    }

    /// Where each of these functions begins: of those with several names, the first that exists. `None` for one that does
    /// not exist.
    ///
    /// # Errors
    ///
    /// Before 5.16, and where the kernel shows this process no addresses (`kernel.kptr_restrict`, or without `CAP_SYSLOG`).
    pub(super) fn addresses<'n>(
        &mut self,
        functions: impl IntoIterator<Item = impl IntoIterator<Item = &'n str>>,
    ) -> Result<Vec<Option<u64>>, LoadError> {
        let program = self.load(function::FIND_SYMBOL, Purpose::SystemCall)?;
        let find = |name| {
            bpf::find_symbol(program.as_fd(), name)
                .map_err(|error| LoadError::Attach { program: function::FIND_SYMBOL, error })
        };
        functions
            .into_iter()
            .map(|names| names.into_iter().find_map(|name| find(name).transpose()).transpose())
            .collect()
    }

    /// Attaches the program that tracepoints share to one of them, with this cookie.
    pub(super) fn attach_shared_tracepoint(
        &mut self,
        tracepoint: &str,
        cookie: u64,
    ) -> Result<OwnedFd, LoadError> {
        let program = self.shared(Purpose::RawTracepoint)?;
        bpf::open_raw_tracepoint(program, tracepoint, cookie)
            .map_err(|error| LoadError::Attach { program: function::SHARED_TRACEPOINT, error })
    }

    /// The loaded program that hooks of this kind share.
    fn shared(&mut self, purpose: Purpose) -> Result<&OwnedFd, LoadError> {
        let (kind, name) = match purpose {
            Purpose::KprobeMulti => (0, function::SHARED),
            Purpose::RawTracepoint => (1, function::SHARED_TRACEPOINT),
            _ => (2, function::SHARED),
        };
        if self.shared[kind].is_none() {
            self.shared[kind] = Some(self.load(name, purpose)?);
        }
        self.shared[kind].as_ref().ok_or(LoadError::NoProgram(name))
    }

    /// The loaded programs that functions share.
    pub(super) fn shared_by_functions(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.shared[0], &self.shared[2]].into_iter().flatten()
    }

    /// The loaded program that tracepoints share.
    pub(super) fn shared_by_tracepoints(&self) -> Option<&OwnedFd> {
        self.shared[1].as_ref()
    }

    /// Loads the program, and attaches it to nothing.
    pub(super) fn load_on_demand(&mut self, name: &'static str) -> Result<OwnedFd, LoadError> {
        self.load(name, Purpose::RawTracepoint)
    }

    fn load(&mut self, name: &'static str, purpose: Purpose) -> Result<OwnedFd, LoadError> {
        let linked = self.programs.linked(name).map_err(|error| LoadError::Link { program: name, error })?;
        let (program, function) = linked.ok_or(LoadError::NoProgram(name))?;
        let (instructions, license) = (&function.instructions, &program.license);
        let records = function.func_info.func_info_bytes();
        let functions = self.btf.as_ref().map(|btf| Functions {
            btf: btf.as_fd(),
            records: &records,
            record_bytes: function.func_info_rec_size,
        });
        let request = Request { name, purpose, instructions, license, functions };
        request.load(&mut []).or_else(|_| {
            // A second attempt, for the verifier's reasons.
            let mut log = vec![0; LOG_BYTES];
            request.load(&mut log).map_err(|error| {
                let log = last_line(&log).map(|line| format!(" ({line})")).unwrap_or_default();
                LoadError::Load { program: name, error, log }
            })
        })
    }

    /// Forgets the BTF of a module that is gone.
    pub(super) fn forget(&mut self, module: &str) {
        self.modules.remove(module);
    }

    /// The BTF of a loaded module.
    fn module(&mut self, name: &'static str) -> Result<i32, LoadError> {
        if !self.modules.contains_key(name) {
            self.modules = bpf::modules().map_err(|error| LoadError::Modules { module: name, error })?;
            // The loader lives as long as the trace, and a distribution's kernel has a hundred modules.
            self.modules.retain(|module, _| Hook::ALL.iter().any(|hook| hook.spec().module == Some(module)));
        }
        self.modules.get(name).map(AsRawFd::as_raw_fd).ok_or(LoadError::NoModule(name))
    }
}

/// Enough for the end of the verifier's log.
const LOG_BYTES: usize = 1 << 20;

/// How the lines begin that the verifier prints after its reason.
const STATISTICS: [&str; 3] = ["verification time ", "stack depth ", "processed "];

/// The verifier's reason under lockdown's mode `confidentiality` (`bpf_tracing_func_proto` in
/// `kernel/trace/bpf_trace.c`). A Pod does not see the file that names the mode.
const LOCKED_DOWN: &str = "cannot use helper bpf_probe_read";

/// The last line of the verifier's log that is not a count, and its meaning where that is known.
fn last_line(log: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next()?).into_owned();
    let is_statistics = |line: &str| STATISTICS.iter().any(|start| line.starts_with(start));
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_statistics(line))?;
    Some(if line.contains(LOCKED_DOWN) {
        format!("{line}: kernel lockdown forbids programs to read the kernel: {LOCKDOWN_REMEDY}")
    } else {
        line.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_verifiers_log_the_last_word_is_kept() {
        assert_eq!(
            last_line(
                b"0: (95)\nR0 !read_ok\nverification time 7 usec\nstack depth 8\nprocessed 1 insns\n\0\0"
            )
            .as_deref(),
            Some("R0 !read_ok")
        );
        assert_eq!(last_line(&[0; 8]), None);
        let locked = last_line(
            b"program of this type cannot use helper bpf_probe_read_kernel#113\nprocessed 5 insns\n",
        );
        assert!(locked.is_some_and(|line| line.contains("#113: kernel lockdown forbids")));
        assert_eq!(last_line(b""), None);
    }
}
