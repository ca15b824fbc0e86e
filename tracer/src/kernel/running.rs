//! The running kernel as the hook plan sees it: vmlinux BTF, the modules' BTF, and the symbols where BTF has none.

use std::{
    cell::{OnceCell, RefCell},
    collections::{BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tracer_ebpf::{DropSite, Hook, IPVS};

use super::{
    btf::{Btf, BtfError, Expected, Prototype},
    environment::{Capability, Environment, Module},
    layout::{self, Layout, OPENVSWITCH},
    plan::{Cast, FentryTarget, KernelFacts},
};
use crate::error::Hint;

/// The most bytes of BTF that are read: six times the size of a distribution kernel's BTF.
const MAX_BTF_BYTES: u64 = 64 << 20;

/// Why the running kernel cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot use {path}: {error}")]
    Btf { path: PathBuf, error: BtfError },
    #[error(
        "the ring buffer of this PREEMPT_RT kernel takes a lock that sleeps, where tracepoints must not sleep"
    )]
    SleepingRingBuffer,
}

/// A structure that every kernel has, and its array of bytes: the first 256 of an executable file (include/linux/binfmts.h).
const ROOMY_TYPE: (&str, &str) = ("linux_binprm", "buf");

/// The bytes of `spinlock_t` on `PREEMPT_RT`, where it sleeps (`struct rt_mutex_base`). A `raw_spinlock_t`, which the ring
/// buffer has since 6.12 (kernel commit "bpf: Use `raw_spinlock_t` in ringbuf"), has 4.
const SLEEPING_SPINLOCK_BYTES: u32 = 32;

impl Hint for KernelError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Read { .. } => {
                "run as root, on a kernel with CONFIG_DEBUG_INFO_BTF=y (any distribution's since 2021)"
            }
            Self::Btf { .. } => "use a later viptrace: the kernel may be newer than this one",
            Self::SleepingRingBuffer => "use Linux 6.12 or later with PREEMPT_RT, or a kernel without it",
        };
        Some(hint.to_owned())
    }
}

/// The running kernel. Module BTF and symbols are read on first use, and only once.
#[derive(Debug)]
pub struct RunningKernel {
    environment: Environment,
    vmlinux: Arc<Btf>,
    modules: RefCell<HashMap<&'static str, Option<Arc<Btf>>>>,
    symbols: OnceCell<BTreeSet<&'static str>>,
}

impl RunningKernel {
    /// Reads vmlinux BTF, which every decision needs.
    pub fn open(environment: Environment) -> Result<Self, KernelError> {
        let path = environment.btf_path("vmlinux");
        let bytes = read_bounded(&path).map_err(|error| KernelError::Read { path: path.clone(), error })?;
        let vmlinux =
            Btf::parse_for(bytes, expected_names()).map_err(|error| KernelError::Btf { path, error })?;
        let lock = vmlinux.member("bpf_ringbuf", "spinlock").map(|lock| lock.size_bytes);
        if environment.is_realtime && lock == Ok(SLEEPING_SPINLOCK_BYTES) {
            return Err(KernelError::SleepingRingBuffer);
        }
        Ok(Self {
            environment,
            vmlinux: Arc::new(vmlinux),
            modules: RefCell::default(),
            symbols: OnceCell::new(),
        })
    }

    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    pub fn vmlinux(&self) -> &Btf {
        &self.vmlinux
    }

    /// A module's BTF; `None` where the module is not loaded, is built in, or carries none.
    fn module(&self, name: &'static str) -> Option<Arc<Btf>> {
        if let Some(known) = self.modules.borrow().get(name) {
            return known.clone();
        }
        let path = self.environment.btf_path(name);
        let btf = read_bounded(&path).ok().and_then(|bytes| match Btf::parse_split(&self.vmlinux, bytes) {
            Ok(btf) => Some(Arc::new(btf)),
            Err(error) => {
                tracing::warn!("skipping {}: {error}", path.display());
                None
            }
        });
        self.modules.borrow_mut().insert(name, btf.clone());
        btf
    }

    /// This kernel's layout, as far as viptrace needs it.
    pub fn layout(&self) -> Layout {
        let mut layout = Layout::resolve(&self.vmlinux);
        match self.environment.module(IPVS) {
            Module::Loaded => layout.resolve_module(IPVS, self.module(IPVS).as_deref()),
            // Built-in code may leave no trace in /sys/module.
            Module::BuiltIn | Module::Absent if self.is_built_in(Hook::IpVsConnNew.symbol()) => {
                layout.resolve_module(IPVS, Some(&self.vmlinux));
            }
            Module::BuiltIn | Module::Absent => {}
        }
        if let Some(btf) = self.module(OPENVSWITCH) {
            layout.add_subsystem_reasons(Some(OPENVSWITCH), &btf);
        }
        let reason = self.tracepoint("kfree_skb").and_then(|tracepoint| tracepoint.position("reason"));
        if reason.is_none() {
            let wanted = DropSite::ALL.map(|site| (site, site.symbol()));
            let found = self.environment.functions(&wanted).unwrap_or_else(|error| {
                tracing::warn!("/proc/kallsyms cannot be read, so drops have no reason: {error}");
                Vec::new()
            });
            layout.set_drop_sites(found);
        }
        layout
    }

    /// Whether vmlinux has the function.
    fn is_built_in(&self, function: &str) -> bool {
        self.vmlinux.function(function).is_ok()
    }

    fn in_kallsyms(&self, name: &str) -> bool {
        let symbols = self.symbols.get_or_init(|| {
            let names =
                Hook::ALL.iter().flat_map(|hook| [Some(hook.symbol()), hook.spec().attach.split_part()]);
            let wanted: Vec<&'static str> = names.flatten().collect();
            self.environment.symbols(&wanted).unwrap_or_else(|error| {
                tracing::warn!(
                    "/proc/kallsyms cannot be read, so functions without BTF count as missing: {error}"
                );
                BTreeSet::new()
            })
        });
        symbols.contains(name)
    }
}

impl KernelFacts for RunningKernel {
    /// A function that BTF describes has a symbol. Without BTF (a kernel before 5.11 has none for modules) kallsyms
    /// decides; reading it first would cost a few hundred million instructions.
    fn has_symbol(&self, name: &str) -> bool {
        if self.function(name).is_some() {
            return true;
        }
        let module = module_of(name);
        // BTF lacks the functions of a loaded module only if the module has none.
        let may_be_there = match module {
            Some(module) => {
                self.environment.module(module) == Module::Loaded && self.module(module).is_none()
            }
            None => true,
        };
        may_be_there && self.in_kallsyms(name)
    }

    fn has_part(&self, part: &str) -> bool {
        self.in_kallsyms(part)
    }

    fn function(&self, name: &str) -> Option<Prototype> {
        let module = module_of(name);
        if let Some(btf) = module.and_then(|module| self.module(module)) {
            return btf.function(name).ok();
        }
        self.vmlinux.function(name).ok()
    }

    fn tracepoint(&self, name: &str) -> Option<Prototype> {
        self.vmlinux.raw_tracepoint(name).ok()
    }

    fn has_module(&self, name: &str) -> bool {
        self.environment.module(name) != Module::Absent
    }

    fn has_kprobe_multi(&self) -> bool {
        // Only CONFIG_FPROBE defines it (kernel/trace/bpf_trace.c). Debian's 6.1 is without.
        self.vmlinux.member("bpf_kprobe_multi_link", "link").is_ok()
    }

    fn has_quick_links(&self) -> bool {
        // Since 6.14, links are made on the function-graph tracer (kernel/trace/fprobe.c).
        self.has_kprobe_multi() && self.vmlinux.struct_size("fprobe_hlist").is_ok()
    }

    fn has_event_cookies(&self) -> bool {
        self.vmlinux.member("perf_event", "bpf_cookie").is_ok()
    }

    fn has_tracepoint_cookies(&self) -> bool {
        self.vmlinux.member("bpf_raw_tp_link", "cookie").is_ok()
    }

    fn counts_skipped_kprobes(&self) -> bool {
        self.vmlinux.member("bpf_link_info", "kprobe_multi.missed").is_ok()
    }

    fn preempts_programs(&self) -> bool {
        self.environment.preempts_programs
    }

    fn cast(&self) -> Option<Cast> {
        let function = self.vmlinux.function_id("bpf_rdonly_cast").ok()?;
        let (structure, array) = ROOMY_TYPE;
        let place = self.vmlinux.member(structure, array).ok()?;
        let structure = self.vmlinux.struct_id(structure).ok()?;
        Some(Cast { function, structure, from: place.offset_bytes, bytes: place.size_bytes })
    }

    fn typed_tracepoint(&self, name: &str) -> Result<FentryTarget, String> {
        let function = self.vmlinux.tracepoint_id(name).map_err(|error| error.to_string())?;
        Ok(FentryTarget { module: None, function })
    }

    /// Static functions can share a name, and the compiler may have changed them: BTF describes neither.
    fn fentry(&self, name: &str) -> Result<FentryTarget, String> {
        // Built-in code without parameters has no folder in /sys/module, so a module that is not loaded may be built in.
        let in_module = module_of(name).filter(|module| self.environment.module(module) == Module::Loaded);
        let Some(module) = in_module else {
            let function = self.vmlinux.function_id(name).map_err(|error| match module_of(name) {
                Some(module) if self.environment.module(module) == Module::Absent => {
                    format!("the module {module} is not loaded")
                }
                _ => error.to_string(),
            })?;
            return Ok(FentryTarget { module: None, function });
        };
        let Some(btf) = self.module(module) else {
            return Err(format!(
                "the module {module} has no BTF on this kernel (modules have it since 5.11)"
            ));
        };
        let function = btf.function_id(name).map_err(|error| error.to_string())?;
        // BPF_BTF_GET_FD_BY_ID requires it (kernel/bpf/syscall.c), and nothing else names a module's BTF.
        if self.environment.capabilities.is_some_and(|held| !held.has(Capability::SysAdmin)) {
            return Err(format!(
                "fentry in a module needs CAP_SYS_ADMIN, to open the BTF of {module}; kprobes do not"
            ));
        }
        Ok(FentryTarget { module: Some(module), function })
    }

    fn kprobes(&self) -> Result<(), String> {
        match self.environment.kprobe_type {
            Some(_) => Ok(()),
            None => {
                Err("this kernel has no kprobes (CONFIG_KPROBE_EVENTS is off, or /sys is not mounted)"
                    .to_owned())
            }
        }
    }

    fn ipvs_conntrack(&self) -> Option<bool> {
        self.environment.sysctl("net/ipv4/vs/conntrack").map(|value| value != "0")
    }
}

/// The module that usually provides the function of a hook.
fn module_of(name: &str) -> Option<&'static str> {
    Hook::from_symbol(name).and_then(|hook| hook.spec().module)
}

fn read_bounded(path: &Path) -> io::Result<Bytes> {
    let size = fs::metadata(path)?.len();
    if size > MAX_BTF_BYTES {
        return Err(io::Error::other(format!("{size} bytes are more than {MAX_BTF_BYTES}")));
    }
    #[cfg(target_os = "linux")]
    if let Some(bytes) = super::mapping::immutable(path, size as usize) {
        return Ok(bytes);
    }
    fs::read(path).map(Bytes::from)
}

/// The names that are looked up in the kernel's types.
fn expected_names() -> Expected {
    let own = [
        "bpf_ringbuf",
        "bpf_kprobe_multi_link",
        "bpf_link_info",
        "bpf_raw_tp_link",
        "bpf_rdonly_cast",
        ROOMY_TYPE.0,
        "fprobe_hlist",
        "perf_event",
        // Of tracepoints: see `Btf::raw_tracepoint`.
        "btf_trace_",
        "__traceiter_",
        "__probestub_",
        "__bpf_trace_",
    ];
    let functions = Hook::ALL.iter().map(|hook| hook.symbol());
    Expected::beginning(own.into_iter().chain(functions).chain(layout::names_of_types()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::btf::writer::Writer;

    /// A host whose ring buffer has a lock of this many bytes.
    fn open(lock: u32, realtime: &str) -> Result<RunningKernel, KernelError> {
        let mut w = Writer::new();
        let byte = w.int("unsigned char", 1);
        let lock = w.array(byte, lock);
        w.structure("bpf_ringbuf", 256, &[("spinlock", lock, 0, 0)]);
        let root = tempfile::tempdir().unwrap();
        for (path, bytes) in
            [("sys/kernel/btf/vmlinux", w.finish()), ("sys/kernel/realtime", realtime.into())]
        {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        RunningKernel::open(Environment::inspect_at(root.path()))
    }

    /// `nf_nat` in vmlinux leaves no trace in /sys/module, because it has no parameters.
    #[test]
    fn built_in_code_is_found_in_the_btf_of_vmlinux() {
        let mut w = Writer::new();
        let int = w.int("int", 4);
        let prototype = w.prototype(int, &[("ct", int), ("range", int), ("maniptype", int)]);
        w.function("nf_nat_setup_info", prototype);
        let pointer = w.pointer(prototype);
        let tracepoint = w.typedef("btf_trace_kfree_skb", pointer);
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/kernel/btf")).unwrap();
        fs::write(root.path().join("sys/kernel/btf/vmlinux"), w.finish()).unwrap();
        let kernel = RunningKernel::open(Environment::inspect_at(root.path())).unwrap();
        assert!(matches!(kernel.fentry("nf_nat_setup_info"), Ok(FentryTarget { module: None, .. })));
        assert!(kernel.has_symbol("nf_nat_setup_info"));
        let typed = FentryTarget { module: None, function: tracepoint };
        assert_eq!(kernel.typed_tracepoint("kfree_skb"), Ok(typed));
        assert!(kernel.typed_tracepoint("tcp_send_reset").is_err());
        let absent = kernel.fentry("nf_send_unreach").unwrap_err();
        assert_eq!(absent, "the module nf_reject_ipv4 is not loaded");
    }

    #[test]
    fn the_cast_is_found_with_a_type_for_any_memory() {
        let kernel = |with_cast: bool| {
            let mut w = Writer::new();
            let byte = w.int("char", 1);
            let bytes = w.array(byte, 256);
            let structure = w.structure("linux_binprm", 352, &[("buf", bytes, 96 * 8, 0)]);
            let prototype = w.prototype(byte, &[("obj__ign", byte), ("btf_id__k", byte)]);
            let function = with_cast.then(|| w.function("bpf_rdonly_cast", prototype));
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("sys/kernel/btf")).unwrap();
            fs::write(root.path().join("sys/kernel/btf/vmlinux"), w.finish()).unwrap();
            let kernel = RunningKernel::open(Environment::inspect_at(root.path())).unwrap();
            (kernel.cast(), function.map(|function| Cast { function, structure, from: 96, bytes: 256 }))
        };
        for with_cast in [true, false] {
            let (found, expected) = kernel(with_cast);
            assert_eq!((found, found.is_some()), (expected, with_cast));
        }
    }

    #[test]
    fn a_ring_buffer_that_sleeps_is_refused() {
        assert!(matches!(open(32, "1\n"), Err(KernelError::SleepingRingBuffer)));
        assert!(open(4, "1\n").is_ok() && open(32, "0\n").is_ok() && open(4, "").is_ok());
    }
}
