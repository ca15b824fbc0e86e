//! Conntrack's counters from the kernel's file, or from ctnetlink if the kernel was built without that file.

use std::{io, path::Path};

use super::Counters;
use crate::node::{
    Limits,
    gap::Reason,
    loaded::Part,
    netlink::{self, Attributes, u32_be},
    procfs,
};

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET_STATS_CPU`: the type of the request and of its answers.
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

/// The table in the form of `/proc/net/stat/nf_conntrack`, and its place below `root`. Blocks briefly.
///
/// # Errors
///
/// Neither the file nor ctnetlink is available; the reason is the file's, which exists on most nodes.
pub(crate) fn read(root: &Path, limits: Limits) -> Result<(String, String), Reason> {
    let path = root.join("proc/net/stat/nf_conntrack");
    let error = match procfs::read_text(&path) {
        Ok(text) => return Ok((text, path.display().to_string())),
        Err(error) => Reason::of_file(&path, &error),
    };
    Part::Ctnetlink.require(root).map_err(|_| error.clone())?;
    let counters = from_ctnetlink(root, limits).map_err(|_| error)?;
    Ok((counters.to_text(), "ctnetlink".to_owned()))
}

fn from_ctnetlink(root: &Path, limits: Limits) -> io::Result<Counters> {
    let count = procfs::read_text(&root.join("proc/sys/net/netfilter/nf_conntrack_count"))?;
    let entries = count.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let request = netlink::message(STATS_CPU, netlink::DUMP, &[0; FAMILY_BYTES]);
    let mut rows = Vec::new();
    netlink::ask(netlink::NETLINK_NETFILTER, &request, limits, |datagram| {
        parse(datagram, entries, &mut rows)
    })?;
    if rows.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Counters { columns: names(), rows })
}

/// The counters in a datagram of ctnetlink, with the number of `entries`; includes rows before damage.
pub fn parse_ctnetlink(datagram: &[u8], entries: u64) -> Counters {
    let mut rows = Vec::new();
    let _ = parse(datagram, entries, &mut rows);
    Counters { columns: names(), rows }
}

fn names() -> Vec<String> {
    std::iter::once("entries").chain(COLUMNS.map(|(name, _)| name)).map(str::to_owned).collect()
}

/// A row for each CPU in the datagram, and whether the dump ends with it.
fn parse(datagram: &[u8], entries: u64, rows: &mut Vec<Vec<u64>>) -> io::Result<bool> {
    netlink::messages(datagram, |kind, body| {
        let (STATS_CPU, Some(attributes)) = (kind, body.get(FAMILY_BYTES..)) else { return };
        if rows.len() >= super::MAX_CPUS {
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

    /// One CPU's message: the value of each column is its attribute's number plus `more`.
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
        let counters = parse_ctnetlink(&dump, 7);
        assert_eq!(counters.entries(), Some(7));
        assert_eq!(counters.rows.len(), 2);
        let summed = ["drop", "insert_failed", "early_drop", "invalid"].map(|name| {
            let at = counters.columns.iter().position(|column| column == name).unwrap();
            counters.rows.iter().map(|row| row[at]).sum::<u64>()
        });
        assert_eq!(summed, [10 + 110, 9 + 109, 11 + 111, 4 + 104]);
        assert_eq!(Counters::parse(&counters.to_text()), Some(counters));
    }

    #[test]
    fn the_file_comes_first_and_its_absence_is_named() {
        let root = tempfile::tempdir().unwrap();
        let limits = Limits { time: std::time::Duration::from_secs(1), bytes: 1 << 20 };
        let error = read(root.path(), limits).unwrap_err();
        assert!(
            matches!(&error, Reason::Unreadable { place, .. } if place.ends_with("stat/nf_conntrack")),
            "{error}"
        );
        let folder = root.path().join("proc/net/stat");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("nf_conntrack"), "entries drop\n1 2\n").unwrap();
        let (text, from) = read(root.path(), limits).unwrap();
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
