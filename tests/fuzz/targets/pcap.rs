//! Any bytes as a packet capture, up to its connections.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::pcap::{Assembly, Recorded, explain, read, tuples};

fuzz_target!(|bytes: &[u8]| {
    let length = bytes.len() as u64;
    let Ok(found) = tuples(bytes, length) else { return };
    let recorded = Recorded::default();
    let mut assembly = Assembly::default();
    let mut packets = 0;
    let ending = read(bytes, length, |packet| {
        packets += 1;
        assembly.add(packet, &recorded);
    })
    .unwrap();
    assert!(packets <= ending.packets);
    let flows = explain(&assembly, &recorded, &ending);
    assert_eq!(flows.is_empty(), found.is_empty());
    for flow in flows {
        assert!(flow.packets <= flow.sightings && flow.retransmits <= flow.packets);
        assert!(flow.packet_list.len() as u64 <= flow.packets);
        assert!(flow.first <= flow.last);
    }
});
