//! Conntrack's counters as the kernel tells them: its file, or ctnetlink where the kernel was built without that file.

use std::{io, path::Path};

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Counters;
use crate::node::{
    Limits, entries,
    netlink::{self, Attributes, u32_be},
    procfs,
};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET_STATS_CPU`: the request, and what its answers come as.
const STATS_CPU: u16 = 0x0104;
/// `struct nfgenmsg`.
const FAMILY_BYTES: usize = 4;
/// The file's columns and `enum ctattr_stats_cpu` (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).
const COLUMNS: [(&str, u16); 10] = [
    ("found", 2),
    ("invalid", 4),
    ("insert", 8),
    ("insert_failed", 9),
    ("drop", 10),
    ("early_drop", 11),
    ("icmp_error", 12),
    ("search_restart", 13),
    ("clash_resolve", 14),
    ("chaintoolong", 15),
];

/// The table in the form of `/proc/net/stat/nf_conntrack`, and where it was read below `proc`. Blocks shortly.
///
/// # Errors
///
/// Neither the file nor ctnetlink tells; the error is the file's, as it is there on most nodes.
pub fn read(proc: &Path, limits: Limits) -> io::Result<(String, String)> {
    let path = proc.join("net/stat/nf_conntrack");
    let error = match procfs::read_text(&path) {
        Ok(text) => return Ok((text, path.display().to_string())),
        Err(error) => error,
    };
    match told(proc, limits) {
        Ok(counters) => Ok((counters.to_text(), "ctnetlink".to_owned())),
        Err(_) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

fn told(proc: &Path, limits: Limits) -> io::Result<Counters> {
    if !entries::is_ready(proc) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let entries = procfs::conntrack_use(proc)?.count;
    let request = netlink::message(STATS_CPU, netlink::DUMP, &[0; FAMILY_BYTES]);
    let mut rows = Vec::new();
    netlink::ask(NETLINK_NETFILTER, &request, limits, |datagram| parse(datagram, entries, &mut rows))?;
    if rows.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Counters { columns: names(), rows })
}

/// The counters in a datagram of ctnetlink, beside the number of `entries`; rows before damage are among them.
pub fn told_by_ctnetlink(datagram: &[u8], entries: u64) -> Counters {
    let mut rows = Vec::new();
    let _ = parse(datagram, entries, &mut rows);
    Counters { columns: names(), rows }
}

fn names() -> Vec<String> {
    std::iter::once("entries").chain(COLUMNS.map(|(name, _)| name)).map(str::to_owned).collect()
}

/// A row for each CPU that the datagram tells of; whether the dump ends with it.
fn parse(datagram: &[u8], entries: u64, rows: &mut Vec<Vec<u64>>) -> io::Result<bool> {
    netlink::messages(datagram, |kind, body| {
        let (STATS_CPU, Some(attributes)) = (kind, body.get(FAMILY_BYTES..)) else { return };
        if rows.len() >= super::CPUS_MAX {
            return;
        }
        let value = |wanted| {
            Attributes(attributes)
                .find_map(|(kind, value)| (kind == wanted).then(|| u32_be(value))?)
                .map_or(0, u64::from)
        };
        rows.push(std::iter::once(entries).chain(COLUMNS.map(|(_, kind)| value(kind))).collect());
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::netlink::{NLMSG_DONE, attribute};

    /// One CPU's message: each column has its place's number and more.
    fn cpu(more: u32) -> Vec<u8> {
        let mut body = vec![0; FAMILY_BYTES];
        for (_, kind) in COLUMNS {
            body.extend(attribute(kind, &(u32::from(kind) + more).to_be_bytes()));
        }
        netlink::message(STATS_CPU, 2, &body)
    }

    #[test]
    fn what_ctnetlink_tells_reads_as_the_file_does() {
        let dump = [cpu(0), cpu(100), netlink::message(NLMSG_DONE, 2, &[0; 4])].concat();
        assert!(parse(&dump, 7, &mut Vec::new()).unwrap());
        let counters = told_by_ctnetlink(&dump, 7);
        assert_eq!(counters.entries(), Some(7));
        assert_eq!(counters.cpus(), 2);
        let summed = procfs::parse_conntrack_counters(&counters.to_text()).unwrap();
        assert_eq!((summed.drop, summed.insert_failed), (10 + 110, 9 + 109));
        assert_eq!((summed.early_drop, summed.invalid), (11 + 111, 4 + 104));
        assert_eq!(Counters::parse(&counters.to_text()), Some(counters));
    }

    #[test]
    fn the_file_comes_first_and_its_absence_is_named() {
        let proc = tempfile::tempdir().unwrap();
        let limits = Limits { time: std::time::Duration::from_secs(1), bytes: 1 << 20 };
        // Loaded, but for ctnetlink: asking would load it.
        std::fs::write(proc.path().join("modules"), "nf_conntrack 1 0 - Live 0x0\n").unwrap();
        let error = read(proc.path(), limits).unwrap_err();
        assert!(error.to_string().contains("net/stat/nf_conntrack"), "{error}");
        std::fs::create_dir_all(proc.path().join("net/stat")).unwrap();
        std::fs::write(proc.path().join("net/stat/nf_conntrack"), "entries drop\n1 2\n").unwrap();
        let (text, from) = read(proc.path(), limits).unwrap();
        assert_eq!(text, "entries drop\n1 2\n");
        assert!(from.ends_with("net/stat/nf_conntrack"));
    }

    proptest! {
        #[test]
        fn a_damaged_dump_is_read_to_an_end(at in 0_usize..100, byte: u8) {
            let mut dump = cpu(0);
            if let Some(place) = dump.get_mut(at) {
                *place = byte;
            }
            let _ = parse(&dump, 0, &mut Vec::new());
        }
    }
}
