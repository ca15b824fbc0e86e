//! Any bytes as a sequence of ctnetlink datagrams: read to their end, with at most one entry a message.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use viptrace::{node::entries, time::Timestamp};

/// `struct nlmsghdr`: no message is shorter.
const HEADER_BYTES: usize = 16;

fuzz_target!(|input: &[u8]| {
    let Some((&seconds, datagram)) = input.split_first() else { return };
    let single = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
    let timeouts = entries::Timeouts { single, stream: single.map(|single| single * 4) };
    let mut found = Vec::new();
    let _ = entries::parse(datagram, Timestamp::from_unix_secs(1_800_000_000), timeouts, &mut found);
    assert!(found.len() <= datagram.len() / HEADER_BYTES);
});
