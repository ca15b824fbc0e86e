//! Whether this kernel may take the CPU away from kernel code in its middle, and so from programs that fentry and
//! tracepoints run. What programs cannot learn from BTF is read from where the kernel says it.

use std::{fs, path::Path};

use super::read_line;

/// What was chosen in a kernel that can do either, at its build, by its parameter or later.
const NEVER: [&str; 2] = ["none", "voluntary"];

/// Whether programs may be preempted; so it is taken to be where nothing says otherwise, for that costs a little and loses
/// no event. A kprobe's programs never are.
pub(super) fn preempts_programs(root: &Path, release: &str) -> bool {
    // The kernel's build writes it there (init/Makefile: UTS_VERSION).
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

/// The one in brackets: `none (voluntary) full`. Root alone can read it, where debugfs is mounted.
fn in_force(root: &Path) -> Option<String> {
    let line = read_line(&root.join("sys/kernel/debug/sched/preempt"))?;
    let (_, rest) = line.split_once('(')?;
    Some(rest.split_once(')')?.0.to_owned())
}

/// `preempt=`, the last one counts.
fn parameter(root: &Path) -> Option<String> {
    let line = read_line(&root.join("proc/cmdline"))?;
    line.split_whitespace().filter_map(|word| word.strip_prefix("preempt=")).next_back().map(str::to_owned)
}

/// As it was built, where the distribution keeps that.
fn default(root: &Path, release: &str) -> Option<String> {
    let config = fs::read_to_string(root.join(format!("boot/config-{release}"))).ok()?;
    let chosen = |name: &&&str| config.lines().any(|line| line == format!("CONFIG_PREEMPT_{name}=y"));
    ["NONE", "VOLUNTARY", "LAZY"].iter().find(chosen).map(|name| name.to_lowercase())
}
