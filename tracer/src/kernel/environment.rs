//! The host: its privileges, kernel features, modules and symbols, and the remedy for each missing one.
//!
//! It only reads files below a root that tests replace by a made-up tree. It loads and attaches nothing: the plan
//! decides which hooks remain. Nothing depends on the kernel's version.

mod gaps;
mod preemption;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead, BufReader},
    ops::Range,
    path::{Path, PathBuf},
};

pub(crate) use gaps::{LOCKDOWN_REMEDY, Severity};

/// A capability that tracing may need, by its number (`include/uapi/linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Capability {
    NetAdmin = 12,
    SysAdmin = 21,
    Perfmon = 38,
    Bpf = 39,
}

/// Effective capabilities, as `CapEff` of `/proc/self/status` gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Whether the process has the capability itself.
    pub fn has(self, capability: Capability) -> bool {
        self.0 >> (capability as u8) & 1 == 1
    }

    /// Whether BPF programs and maps may be loaded: `CAP_BPF`, or `CAP_SYS_ADMIN`, which included it before 5.8.
    pub fn may_load_bpf(self) -> bool {
        self.has(Capability::Bpf) || self.has(Capability::SysAdmin)
    }

    /// Whether tracing programs may be attached: `CAP_PERFMON` or `CAP_SYS_ADMIN`.
    pub fn may_trace(self) -> bool {
        self.has(Capability::Perfmon) || self.has(Capability::SysAdmin)
    }
}

/// Whether a required file can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Readable,
    Absent,
    /// It exists, or may exist, but reading it was denied or failed.
    Unreadable(io::ErrorKind),
}

/// Kernel lockdown (`/sys/kernel/security/lockdown`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    None,
    /// BPF may trace.
    Integrity,
    /// BPF may not read kernel memory: no probe can work.
    Confidentiality,
    /// The file is absent, as without the lockdown module, or unreadable, as without securityfs.
    Unknown,
}

/// Whether a module's code is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Module {
    Loaded,
    BuiltIn,
    Absent,
}

/// The facts about this host that decide whether it can be traced; [`Environment::gaps`] gives the consequences.
#[derive(Clone, Debug)]
pub struct Environment {
    root: PathBuf,
    /// As `uname -r` prints it; empty if /proc is not readable. For display only: nothing depends on it.
    pub kernel_release: String,
    /// `/sys/kernel/btf/vmlinux`.
    pub vmlinux_btf: Presence,
    pub lockdown: Lockdown,
    /// None if `/proc/self/status` could not be read.
    pub capabilities: Option<Capabilities>,
    /// The type number for `perf_event_open` of kprobes; none without `CONFIG_KPROBE_EVENTS` or sysfs.
    pub kprobe_type: Option<u32>,
    /// `kernel.perf_event_paranoid`. From 3 on, some distributions deny perf events without `CAP_SYS_ADMIN`.
    pub perf_event_paranoid: Option<i32>,
    /// `kernel.unprivileged_bpf_disabled`: 0, 1 or 2.
    pub unprivileged_bpf_disabled: Option<i32>,
    /// Whether the kernel may preempt programs of fentry and of tracepoints.
    pub preempts_programs: bool,
    /// `PREEMPT_RT` (`/sys/kernel/realtime`).
    pub is_realtime: bool,
    /// Whether this process is in the network namespace of process 1; none if that cannot be compared. Process 1
    /// is the node's only if the PID namespace is the node's.
    pub in_init_netns: Option<bool>,
}

impl Environment {
    /// Inspects the running host.
    pub fn inspect() -> Self {
        Self::inspect_at(Path::new("/"))
    }

    /// Inspects the tree below `root`, which holds `boot`, `proc` and `sys`.
    pub fn inspect_at(root: &Path) -> Self {
        let number = |path: &str| read_line(&root.join(path)).and_then(|line| line.parse().ok());
        let kernel_release = read_line(&root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
        Self {
            preempts_programs: preemption::preempts_programs(root, &kernel_release),
            kernel_release,
            vmlinux_btf: presence(&root.join("sys/kernel/btf/vmlinux")),
            lockdown: lockdown(read_line(&root.join("sys/kernel/security/lockdown")).as_deref()),
            capabilities: capabilities(&root.join("proc/self/status")),
            kprobe_type: read_line(&root.join("sys/bus/event_source/devices/kprobe/type"))
                .and_then(|line| line.parse().ok()),
            perf_event_paranoid: number("proc/sys/kernel/perf_event_paranoid"),
            unprivileged_bpf_disabled: number("proc/sys/kernel/unprivileged_bpf_disabled"),
            is_realtime: read_line(&root.join("sys/kernel/realtime")).as_deref() == Some("1"),
            in_init_netns: same_link(&root.join("proc/self/ns/net"), &root.join("proc/1/ns/net")),
            root: root.to_owned(),
        }
    }

    /// Whether the module is in the kernel, under either spelling of its name.
    ///
    /// Built-in code without parameters leaves no trace in `/sys/module`: a feature of such a module is better judged
    /// by its symbols.
    pub fn module(&self, name: &str) -> Module {
        let name = name.replace('-', "_");
        // Loaded modules have this file, built-in ones do not.
        let folder = self.root.join("sys/module").join(&name);
        let listed = || {
            let modules = fs::read_to_string(self.root.join("proc/modules")).unwrap_or_default();
            modules.lines().any(|line| line.split(' ').next() == Some(name.as_str()))
        };
        if folder.join("initstate").exists() || listed() {
            Module::Loaded
        } else if folder.exists() {
            Module::BuiltIn
        } else {
            Module::Absent
        }
    }

    /// A sysctl by its path below `/proc/sys`, of this process's namespaces.
    pub fn sysctl(&self, path: &str) -> Option<String> {
        read_line(&self.root.join("proc/sys").join(path))
    }

    /// Where the BTF of a module, or of `vmlinux`, is read.
    pub fn btf_path(&self, name: &str) -> PathBuf {
        self.root.join("sys/kernel/btf").join(name.replace('-', "_"))
    }

    /// The names in `wanted` that the kernel has as symbols of exactly this name.
    ///
    /// `NAME.isra.0`, `NAME.constprop.0` and the like are other functions, with other arguments, and do not count.
    /// Addresses are not read, so this works under `kptr_restrict`.
    ///
    /// # Errors
    ///
    /// If `/proc/kallsyms` cannot be read.
    pub fn symbols<'a>(&self, wanted: &[&'a str]) -> io::Result<BTreeSet<&'a str>> {
        let wanted: BTreeSet<&'a str> = wanted.iter().copied().collect();
        let mut found = BTreeSet::new();
        let mut file = BufReader::with_capacity(64 << 10, File::open(self.root.join("proc/kallsyms"))?);
        let mut line = Vec::new();
        while found.len() < wanted.len() {
            line.clear();
            if file.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            // "ffffffff81000000 T name\t[module]"
            let name = line.splitn(3, |byte| *byte == b' ').nth(2).unwrap_or_default();
            let end = name.iter().position(|byte| matches!(byte, b'\t' | b' ' | b'\n')).unwrap_or(name.len());
            if let Some(name) = name.get(..end).and_then(|name| std::str::from_utf8(name).ok())
                && let Some(name) = wanted.get(name)
            {
                found.insert(*name);
            }
        }
        Ok(found)
    }

    /// Where these functions of vmlinux begin and end. Those whose address is hidden (`kptr_restrict`) are left out, and so
    /// are `NAME.cold` and other split-off parts; a copy for fixed arguments (`NAME.constprop.0`, `NAME.isra.0`) counts if
    /// there is no whole function.
    ///
    /// # Errors
    ///
    /// If `/proc/kallsyms` cannot be read.
    pub fn functions<T: Copy>(&self, wanted: &[(T, &str)]) -> io::Result<Vec<(T, Range<u64>)>> {
        let mut file = BufReader::with_capacity(64 << 10, File::open(self.root.join("proc/kallsyms"))?);
        let mut found: Vec<(usize, bool, Range<u64>)> = Vec::new();
        let mut open: Option<(usize, bool, u64)> = None;
        let mut line = String::new();
        // The kernel lists vmlinux's symbols by address; those of modules follow.
        while file.read_line(&mut line)? > 0 {
            let mut words = line.split_ascii_whitespace();
            let (address, name) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
            let Ok(address) = u64::from_str_radix(address, 16) else { break };
            if let Some((position, is_whole, begin)) = open.take_if(|(_, _, begin)| *begin < address) {
                found.push((position, is_whole, begin..address));
            }
            if words.next().is_some() {
                break;
            }
            let (base, suffix) = name.split_once('.').unwrap_or((name, ""));
            let is_part_of_copy = |part: &str| {
                ["constprop", "isra"].contains(&part) || part.bytes().all(|byte| byte.is_ascii_digit())
            };
            let is_copy = suffix.split('.').all(is_part_of_copy);
            let position = wanted.iter().position(|(_, known)| *known == base);
            if let (Some(position), true, true) = (position, is_copy, address > 0) {
                open = Some((position, suffix.is_empty(), address));
            }
            line.clear();
        }
        found.sort_by_key(|(position, is_whole, _)| (*position, !*is_whole));
        found.dedup_by_key(|(position, ..)| *position);
        Ok(found.into_iter().filter_map(|(at, _, range)| Some((wanted.get(at)?.0, range))).collect())
    }
}

fn read_line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Opens the file: permissions alone do not show whether policy allows reading it.
fn presence(path: &Path) -> Presence {
    match File::open(path) {
        Ok(_) => Presence::Readable,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Presence::Absent,
        Err(error) => Presence::Unreadable(error.kind()),
    }
}

/// The file lists all levels, with the active one in brackets.
fn lockdown(line: Option<&str>) -> Lockdown {
    let in_force = line.and_then(|line| line.split_once('[')).and_then(|(_, rest)| rest.split_once(']'));
    match in_force {
        Some(("none", _)) => Lockdown::None,
        Some(("integrity", _)) => Lockdown::Integrity,
        Some(("confidentiality", _)) => Lockdown::Confidentiality,
        _ => Lockdown::Unknown,
    }
}

/// The effective capabilities in `/proc/self/status`, here at `status`.
pub(crate) fn capabilities(status: &Path) -> Option<Capabilities> {
    let status = fs::read_to_string(status).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok().map(Capabilities)
}

fn same_link(one: &Path, other: &Path) -> Option<bool> {
    Some(fs::read_link(one).ok()? == fs::read_link(other).ok()?)
}
