//! The memory of a process, as `/proc/PID/status` has it.

use std::fs;

use anyhow::{Context, Result};

/// One reading.
#[derive(Clone, Debug)]
pub struct Status {
    path: String,
    text: String,
}

impl Status {
    pub fn read(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        Ok(Self { path, text })
    }

    /// A value in KiB, by its name (`VmRSS`).
    pub fn kib(&self, name: &str) -> Result<u64> {
        let line = self.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
        kib.with_context(|| format!("{} has no {name}", self.path))
    }
}
