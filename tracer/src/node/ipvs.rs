//! Reads IPVS: what the kernel says over generic netlink, what `ipvsadm -Sn` and `ipvsadm -Ln` print, and the kernel's
//! own list `/proc/net/ip_vs`.
//!
//! Parsers are pure and tolerant. The live read needs no `ipvsadm`.

mod kernel;

use std::path::Path;

use crate::node::{IpvsSettings, Limits, command, procfs};

pub use kernel::told;

/// A list of virtual and real servers, and where it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// As [`parse`] takes it.
    pub text: String,
    pub source: String,
    /// The list tells how long clients stay with their server, in seconds; `/proc/net/ip_vs` does not.
    pub with_times: bool,
}

/// Reads the servers of this network namespace: over generic netlink, else through `ipvsadm`, else from
/// `/proc/net/ip_vs`. Blocks shortly.
///
/// # Errors
///
/// All three failed; the text says how the last one did.
pub fn read(proc: &Path, limits: Limits) -> Result<List, String> {
    if let Ok(text) = kernel::saved(proc, limits) {
        return Ok(List { text, source: "generic netlink of IPVS".into(), with_times: true });
    }
    if let Ok(output) = command::run("ipvsadm", &["-Sn"], limits) {
        let text = String::from_utf8_lossy(&output).into_owned();
        return Ok(List { text, source: "ipvsadm -Sn".into(), with_times: true });
    }
    let path = proc.join("net/ip_vs");
    let source = path.display().to_string();
    let text = procfs::read_text(&path).map_err(|error| format!("{source}: {error}"))?;
    Ok(List { text, source, with_times: false })
}

/// `net.ipv4.vs`, as far as it can be read; `None` where IPVS is not in the kernel.
pub fn settings(proc: &Path) -> Option<IpvsSettings> {
    let folder = proc.join("sys/net/ipv4/vs");
    let number = |name: &str| procfs::read_text(&folder.join(name)).ok()?.trim().parse::<u8>().ok();
    folder.is_dir().then(|| IpvsSettings {
        conntrack: number("conntrack").map(|value| value != 0),
        expire_nodest_conn: number("expire_nodest_conn").map(|value| value != 0),
        conn_reuse_mode: number("conn_reuse_mode"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_where_ipvs_is() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(settings(proc.path()), None);
        let folder = proc.path().join("sys/net/ipv4/vs");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("conntrack"), "1\n").unwrap();
        std::fs::write(folder.join("conn_reuse_mode"), "2\n").unwrap();
        let read = settings(proc.path()).unwrap();
        assert_eq!(
            (read.conntrack, read.expire_nodest_conn, read.conn_reuse_mode),
            (Some(true), None, Some(2))
        );
    }
}
