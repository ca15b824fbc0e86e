//! Any bytes as the kernel's netlink answers about IPVS and about conntrack's counters: read to their end, and the
//! result can be written and read back.
//!
//! The first byte selects one of the two. For IPVS, the next two bytes give the boundary between the datagram of the
//! virtual servers and that of their real servers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::{
    node::{
        conntrack::{self, Counters},
        ipvs,
    },
    rules,
};

/// `struct nlmsghdr`: no message is shorter.
const HEADER_BYTES: usize = 16;
/// `struct nlattr`: a server takes at least one.
const ATTRIBUTE_BYTES: usize = 4;
/// The family id of IPVS in the seeds.
const FAMILY: u16 = 0x1f;

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((0, rest)) => servers(rest),
        Some((_, datagram)) => counters(datagram),
        None => {}
    }
});

fn servers(input: &[u8]) {
    let Some((&length, datagrams)) = input.split_first_chunk() else { return };
    let (services, destinations) =
        datagrams.split_at_checked(u16::from_le_bytes(length).into()).unwrap_or((datagrams, &[]));
    let text = ipvs::to_text(FAMILY, services, destinations);
    let (servers, real) = (lines(&text, "-A "), lines(&text, "-a "));
    assert_eq!(servers + real, text.lines().count());
    assert!(servers <= services.len() / ATTRIBUTE_BYTES);
    assert!(real <= servers * (destinations.len() / ATTRIBUTE_BYTES));
    assert_eq!(rules::ipvs::parse(&text).len(), servers, "{text}");
}

fn lines(text: &str, beginning: &str) -> usize {
    text.lines().filter(|line| line.starts_with(beginning)).count()
}

fn counters(datagram: &[u8]) {
    let counters = conntrack::parse_ctnetlink(datagram, 7);
    assert!(counters.to_text().lines().count() <= 1 + datagram.len() / HEADER_BYTES);
    assert_eq!(Counters::parse(&counters.to_text()), Some(counters));
}
