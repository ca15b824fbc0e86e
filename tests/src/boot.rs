//! Process 1 of the guest: mounts what a node has mounted, starts the lab as a child, reaps processes, reports how the
//! lab ended and switches the machine off. It must survive every failure of the lab.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result};

use crate::{console, sys};

/// The argument with which init starts the lab.
pub const RUN: &str = "run";

/// The search path of a node's root user.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const MOUNTS: [(&str, &str); 10] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("tracefs", "/sys/kernel/tracing"),
    ("debugfs", "/sys/kernel/debug"),
];

/// Returns only on a machine that cannot be switched off.
pub fn as_init() -> ExitCode {
    for (kind, target) in MOUNTS {
        let target = Path::new(target);
        let mounted = fs::create_dir_all(target).and_then(|()| sys::mount(kind, target));
        if let Err(error) = mounted {
            console::print(format!("init: cannot mount {kind} on {}: {error}", target.display()));
        }
    }
    // iptables keeps its lock in this folder.
    let _exists = fs::create_dir_all("/run/lock");
    // tcpdump looks up the user that it runs as.
    let passwd = Path::new("/etc/passwd");
    if !passwd.exists() {
        let _tcpdump_reports =
            fs::create_dir_all("/etc").and_then(|()| fs::write(passwd, "root:x:0:0::/root:/bin/sh\n"));
    }
    let exit = match start_lab() {
        Ok(pid) => wait_for(pid),
        Err(error) => {
            console::print(format!("init: cannot start the lab: {error}"));
            1
        }
    };
    console::done(exit);
    if let Err(error) = sys::power_off() {
        console::print(format!("init: cannot switch the machine off: {error}"));
    }
    ExitCode::FAILURE
}

/// Starts this program again, on the console.
fn start_lab() -> io::Result<u32> {
    let output = OpenOptions::new().write(true).open("/dev/console")?;
    let child = Command::new("/proc/self/exe")
        .arg(RUN)
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::from(File::open("/dev/console")?))
        .stdout(Stdio::from(output.try_clone()?))
        .stderr(Stdio::from(output))
        .spawn()?;
    Ok(child.id())
}

/// Reaps every orphan until the lab ends.
fn wait_for(lab: u32) -> i32 {
    loop {
        match sys::reap() {
            Ok((pid, status)) if pid == lab => return sys::exit_code(status),
            Ok(_orphan) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                console::print(format!("init: waiting for the lab failed: {error}"));
                return 1;
            }
        }
    }
}

/// A `key=value` of the kernel's command line.
pub fn kernel_argument(key: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    argument(&line, key).map(str::to_owned)
}

/// A number in a `key=value` of the kernel's command line.
pub fn kernel_number(key: &str) -> Result<Option<u64>> {
    let parse = |text: String| text.parse().with_context(|| format!("{key}={text} is not a number"));
    kernel_argument(key).map(parse).transpose()
}

fn argument<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(name, _)| *name == key)
        .map(|(_, value)| value)
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::argument;

    #[test]
    fn an_argument_is_found_by_its_whole_name() {
        let line = "console=ttyS0 lab.mode=test xlab.filter=no lab.filter=c6\n";
        assert_eq!(argument(line, "lab.mode"), Some("test"));
        assert_eq!(argument(line, "lab.filter"), Some("c6"));
        assert_eq!(argument(line, "mode"), None);
    }

    #[test]
    fn an_empty_argument_is_none() {
        assert_eq!(argument("lab.filter= quiet", "lab.filter"), None);
    }
}
