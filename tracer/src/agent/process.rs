//! The agent's own process, as the kernel accounts it.

use std::fs;

use crate::{kernel, time::Timestamp};

/// `USER_HZ`, the unit of `/proc/PID/stat` on every architecture that viptrace supports
/// (`include/asm-generic/param.h`, Linux 6.12).
const USER_HZ: f64 = 100.0;

/// Figures of this process; zero where `/proc` cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Process {
    /// User and system time of all threads.
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
    pub(crate) open_files: u64,
}

impl Process {
    pub(crate) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        // The directory that is being read is one of them.
        let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
        Self {
            cpu_seconds: cpu_ticks(&stat).unwrap_or_default() / USER_HZ,
            resident_bytes: resident_bytes(&status).unwrap_or_default(),
            open_files: open as u64,
        }
    }
}

/// utime and stime: fields 14 and 15 of `proc_pid_stat(5)`, of which the second, the name, is in parentheses and may
/// contain anything.
fn cpu_ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(f64::from(user) + f64::from(system))
}

/// `VmRSS`, in KiB although it says kB (`proc_pid_status(5)`).
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The wall clock, for people and for other programs: the trace has a clock of its own.
pub(crate) fn wall_clock() -> Timestamp {
    Timestamp::from_unix_ns(kernel::unix_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_changes_no_figure() {
        let stat = "7 (a) b ) R 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 100 1 1";
        assert_eq!(cpu_ticks(stat), Some(300.0));
        assert_eq!(cpu_ticks("7 (a"), None);
        assert_eq!(resident_bytes("Name:\tVmRSS\nVmRSS:\t  1234 kB\n"), Some(1234 * 1024));
        assert_eq!(resident_bytes("VmRSS: many\n"), None);
    }

    #[test]
    fn this_process_has_figures() {
        let process = Process::read();
        assert!(process.resident_bytes > 1 << 20 && process.open_files >= 3, "{process:?}");
    }
}
