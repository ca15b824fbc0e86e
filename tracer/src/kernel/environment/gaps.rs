//! The gaps of this host, in words: the missing part, its purpose, the remedy.

use std::fmt;

use crate::kernel::environment::{Capability, Environment, Lockdown, Presence};

/// How to trace in spite of lockdown's mode `confidentiality`.
pub(crate) const LOCKDOWN_REMEDY: &str = "boot with lockdown=integrity, or trace from another node";

/// How much a gap takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something may be missing or less exact.
    Degraded,
    /// Nothing can be traced here.
    Fatal,
}

/// Something that tracing needs and this host does not provide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub severity: Severity,
    /// The missing part.
    pub what: String,
    /// Its purpose.
    pub why: &'static str,
    /// How to fix it.
    pub remedy: &'static str,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.remedy)
    }
}

impl Environment {
    /// All gaps, the fatal ones first.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps: Vec<Gap> = [
            self.btf_gap(),
            self.lockdown_gap(),
            self.bpf_gap(),
            self.tracing_gap(),
            self.kprobe_gap(),
            self.perf_gap(),
            self.netns_gap(),
            self.net_admin_gap(),
        ]
        .into_iter()
        .flatten()
        .collect();
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.severity));
        gaps
    }

    fn btf_gap(&self) -> Option<Gap> {
        let why = "offsets of kernel fields are read from it and never guessed";
        let (what, remedy) = match self.vmlinux_btf {
            Presence::Readable => return None,
            Presence::Absent => (
                "no kernel type information (/sys/kernel/btf/vmlinux)".to_owned(),
                "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (those of the usual distributions are); in a \
                 container, mount the node's /sys",
            ),
            Presence::Unreadable(error) => (
                format!("kernel type information (/sys/kernel/btf/vmlinux) is not readable: {error}"),
                "run as root, and in a container let its policy read /sys/kernel/btf",
            ),
        };
        Some(Gap { severity: Severity::Fatal, what, why, remedy })
    }

    fn lockdown_gap(&self) -> Option<Gap> {
        (self.lockdown == Lockdown::Confidentiality).then(|| Gap {
            severity: Severity::Fatal,
            what: "the kernel is locked down in confidentiality mode".to_owned(),
            why: "BPF programs may not read kernel memory there",
            remedy: LOCKDOWN_REMEDY,
        })
    }

    fn bpf_gap(&self) -> Option<Gap> {
        let what = match self.capabilities {
            Some(held) if held.may_load_bpf() => return None,
            Some(_) => "CAP_BPF is missing".to_owned(),
            None => {
                return Some(Gap {
                    severity: Severity::Degraded,
                    what: "capabilities cannot be read from /proc/self/status".to_owned(),
                    why: "only an attempt shows whether BPF programs may be loaded",
                    remedy: "mount /proc",
                });
            }
        };
        Some(Gap {
            severity: Severity::Fatal,
            what,
            why: if self.unprivileged_bpf_disabled == Some(0) {
                "unprivileged processes may not load programs that trace the kernel"
            } else {
                "the kernel refuses BPF programs of unprivileged processes"
            },
            remedy: "run as root, or in a Pod add BPF and PERFMON (SYS_ADMIN before Linux 5.8) to its capabilities",
        })
    }

    fn tracing_gap(&self) -> Option<Gap> {
        self.capabilities.filter(|held| !held.may_trace()).map(|_| Gap {
            severity: Severity::Fatal,
            what: "CAP_PERFMON is missing".to_owned(),
            why: "programs may not be attached to kernel functions or read kernel memory without it",
            remedy: "run as root, or in a Pod add BPF and PERFMON (SYS_ADMIN before Linux 5.8) to its capabilities",
        })
    }

    /// Without it the kernel shows neither its rules nor conntrack's entries. A trace by hand goes on; an agent would call
    /// faults unexplained for months.
    pub fn net_admin_gap(&self) -> Option<Gap> {
        self.capabilities.filter(|held| !held.has(Capability::NetAdmin)).map(|_| Gap {
            severity: Severity::Degraded,
            what: "CAP_NET_ADMIN is missing".to_owned(),
            why: "the node's rules, IPVS's tables and conntrack's entries cannot be read, and faults that they prove are not \
                  named (C3, C5, C8, C30)",
            remedy: "run as root, or in a Pod add NET_ADMIN to its capabilities",
        })
    }

    fn kprobe_gap(&self) -> Option<Gap> {
        self.kprobe_type.is_none().then(|| Gap {
            severity: Severity::Degraded,
            what: "kprobes are not available (/sys/bus/event_source/devices/kprobe/type)".to_owned(),
            why: "only kprobes reach functions in modules, such as conntrack's",
            remedy: "use a kernel with CONFIG_KPROBE_EVENTS=y; in a container, mount the node's /sys",
        })
    }

    fn perf_gap(&self) -> Option<Gap> {
        let admin = self.capabilities.is_none_or(|held| held.has(Capability::SysAdmin));
        let paranoid = self.perf_event_paranoid.filter(|level| *level > 2 && !admin)?;
        Some(Gap {
            severity: Severity::Degraded,
            what: format!("kernel.perf_event_paranoid is {paranoid}"),
            why: "some distributions' kernels then deny perf events to processes that have only CAP_PERFMON: kprobes need \
                  kprobe.multi links instead (CONFIG_FPROBE, since 5.18)",
            remedy: "if hooks are missing, add SYS_ADMIN, or set kernel.perf_event_paranoid to 2",
        })
    }

    fn netns_gap(&self) -> Option<Gap> {
        (self.in_init_netns == Some(false)).then(|| Gap {
            severity: Severity::Degraded,
            what: "this process is not in the network namespace of process 1".to_owned(),
            why: "rules, conntrack limits and interfaces read here are not the node's",
            remedy: "in a Pod set hostNetwork: true and hostPID: true",
        })
    }
}
