//! Whether this kernel may preempt kernel code, and thus the programs that fentry and tracepoints run. BTF does not
//! record it, so it is read from where the kernel reports it.

use std::{fs, path::Path};

use super::read_line;

/// The models without preemption, of a kernel that lets the build, a parameter or root choose.
const NEVER: [&str; 2] = ["none", "voluntary"];

/// Whether programs may be preempted. Without evidence the result is true, because that costs little and loses no
/// event. A kprobe's programs are never preempted.
pub(super) fn preempts_programs(root: &Path, release: &str) -> bool {
    // The kernel's build records it there (init/Makefile: UTS_VERSION).
    let built = read_line(&root.join("proc/sys/kernel/version"));
    let built = built.as_deref().map(|text| text.split_whitespace().find(|word| word.starts_with("PREEMPT")));
    match built {
        Some(None) => false,
        Some(Some("PREEMPT_DYNAMIC")) => in_force(root)
            .or_else(|| parameter(root))
            .or_else(|| default(root, release))
            .is_none_or(|chosen| !NEVER.contains(&chosen.as_str())),
        Some(Some(_)) | None => true,
    }
}

/// The one in brackets: `none (voluntary) full`. Only root can read it, where debugfs is mounted.
fn in_force(root: &Path) -> Option<String> {
    let line = read_line(&root.join("sys/kernel/debug/sched/preempt"))?;
    let (_, rest) = line.split_once('(')?;
    Some(rest.split_once(')')?.0.to_owned())
}

/// `preempt=`: the last one counts.
fn parameter(root: &Path) -> Option<String> {
    let line = read_line(&root.join("proc/cmdline"))?;
    line.split_whitespace().filter_map(|word| word.strip_prefix("preempt=")).next_back().map(str::to_owned)
}

/// The choice of the build, where the distribution keeps its configuration.
fn default(root: &Path, release: &str) -> Option<String> {
    let config = fs::read_to_string(root.join(format!("boot/config-{release}"))).ok()?;
    let chosen = |name: &&&str| config.lines().any(|line| line == format!("CONFIG_PREEMPT_{name}=y"));
    ["NONE", "VOLUNTARY", "LAZY"].iter().find(chosen).map(|name| name.to_lowercase())
}
