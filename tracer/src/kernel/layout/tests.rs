//! Layouts of kernels that are written here: the copies in records hold what the decoder reads, or a gap says so.

use std::sync::Arc;

use crate::{
    kernel::{
        btf::{Btf, writer::Writer},
        decode::Decoder,
        layout::{COPIED_OF_ENTRY, Kept, Layout},
    },
    net::{Netns, Protocol, Tuple},
    sighting::{Conntrack, Fact, ListedEntry, Status},
    time::Timestamp,
};

/// `struct nf_conn` behind a spinlock of `lock` bytes, with more bytes in front of the tuples and of the status.
fn kernel(lock: u32, before_tuples: u32, before_status: u32) -> Layout {
    let mut w = Writer::new();
    let (u8_, u16_, u32_) = (w.int("unsigned char", 1), w.int("unsigned short", 2), w.int("unsigned int", 4));
    let u64_ = w.int("unsigned long", 8);
    let address = w.union("nf_inet_addr", 16, &[("ip", u32_, 0, 0)]);
    let source = w.structure(
        "nf_conntrack_man",
        20,
        &[("u3", address, 0, 0), ("u", u16_, 128, 0), ("l3num", u16_, 144, 0)],
    );
    let target =
        w.structure("", 20, &[("u3", address, 0, 0), ("u", u16_, 128, 0), ("protonum", u8_, 144, 0)]);
    let tuple = w.structure("nf_conntrack_tuple", 40, &[("src", source, 0, 0), ("dst", target, 160, 0)]);
    let hash = w.structure("nf_conntrack_tuple_hash", 56, &[("tuple", tuple, 16 * 8, 0)]);
    let hashes = w.array(hash, 2);
    let zone = w.structure("nf_conntrack_zone", 4, &[("id", u16_, 0, 0)]);
    // include/net/netfilter/nf_conntrack.h: the reference count, the lock, the timeout, the zone, the tuples, the status.
    let timeout = 8 + lock.next_multiple_of(4);
    let tuples = (timeout + 8).next_multiple_of(8) + before_tuples;
    let status = tuples + 112 + before_status;
    w.structure(
        "nf_conn",
        status + 64,
        &[
            ("timeout", u32_, timeout * 8, 0),
            ("zone", zone, (timeout + 4) * 8, 0),
            ("tuplehash", hashes, tuples * 8, 0),
            ("status", u64_, status * 8, 0),
        ],
    );
    Layout::resolve(&Btf::parse(w.finish()).unwrap())
}

/// The gaps of fields that exist and are not copied.
fn not_copied(layout: &Layout) -> Vec<(&'static str, &str)> {
    let gaps = layout.gaps().iter().filter(|gap| gap.reason.contains("records carry"));
    gaps.map(|gap| (gap.field.name, gap.reason.as_str())).collect()
}

fn entry() -> ListedEntry {
    let address = |text: &str| text.parse().unwrap();
    let (client, vip, endpoint) =
        (address("10.244.1.100:40000"), address("10.96.10.10:80"), address("10.244.1.11:8080"));
    let ct = Conntrack {
        id: 0,
        zone: 7,
        status: Status(0x1a8),
        orig: Tuple::new(Protocol::TCP, client, vip),
        reply: Tuple::new(Protocol::TCP, endpoint, client),
    };
    ListedEntry { ct, read_at: Timestamp::from_unix_ns(1), last_packet: None }
}

/// The entry, written into a record as the kernel half copies it, and read again.
fn read_again(layout: Layout) -> Option<Conntrack> {
    let (sighting, _) = Decoder::new(Arc::new(layout), 0).listed(&entry(), Netns(1))?;
    match sighting.fact {
        Fact::Conntrack(fact) => Some(fact.ct),
        _ => None,
    }
}

/// `spinlock_t` has 4 bytes, 32 on `PREEMPT_RT` (`struct rt_mutex_base`), and about 70 with lock debugging.
#[test]
fn an_entry_is_read_behind_a_lock_of_any_length() {
    for (lock, base) in [(4, 0), (32, 40), (64, 72), (72, 80), (144, 152)] {
        let layout = kernel(lock, 0, 0);
        assert_eq!((layout.entry_base(), not_copied(&layout)), (base, vec![]), "{lock}");
        assert_eq!(read_again(layout), Some(entry().ct), "{lock}");
    }
}

/// The lists of the table, between the tuples, and the lock are not kept.
#[test]
fn a_decision_keeps_the_words_that_are_read() {
    for (lock, zone, from) in [(4, 16, 16), (32, 44, 0)] {
        let layout = kernel(lock, 0, 0);
        let Kept { from: begin, bytes, words } = layout.kept_of_entry();
        assert_eq!((begin, words.count_ones()), (from, 12), "{lock}: {words:b}");
        let copied = (begin as usize)..(begin + bytes) as usize;
        for (name, length, _) in COPIED_OF_ENTRY {
            let at = layout.offset_in_entry(name).unwrap();
            assert!(copied.contains(&at) && copied.contains(&(at + *length as usize - 1)), "{lock}: {name}");
            let kept = (at..at + *length as usize).all(|byte| words >> (byte / 8) & 1 == 1);
            assert!(kept, "{lock}: {name} at {at}, {words:b}");
        }
        assert_eq!(layout.offset("CT_ZONE"), Some(zone));
    }
    assert_eq!(Layout::default().kept_of_entry(), Kept { from: 0, bytes: 0, words: 0 });
}

#[test]
fn a_field_outside_the_copy_is_a_gap() {
    // An entry is of use without its zone.
    let layout = kernel(4, 64, 0);
    let Some((name, reason)) = not_copied(&layout).first().copied() else { panic!("no gap") };
    assert_eq!((name, not_copied(&layout).len()), ("CT_ZONE", 1));
    assert_eq!(reason, "lies at offset 16, and records carry the bytes 104 to 256");
    let zone = read_again(layout).map(|ct| ct.zone);
    assert_eq!(zone, Some(0));
    // It is of no use without its status: the hooks that need it are missing.
    let layout = kernel(4, 0, 64);
    assert!(!layout.has("OFF_CT_STATUS"), "{:?}", not_copied(&layout));
    assert_eq!(read_again(layout), None);
}

/// 7.2 has the subsystems of its queues and of Open vSwitch; the reasons of other subsystems are not reported.
#[test]
fn the_reasons_of_subsystems_have_names() {
    let mut w = Writer::new();
    let core = [("SKB_DROP_REASON_NO_SOCKET", 3), ("SKB_DROP_REASON_QUEUE_PURGE", 5)];
    w.enumeration("skb_drop_reason", false, &core);
    let subsystems = [("CORE", 0), ("MAC80211_UNUSABLE", 1), ("OPENVSWITCH", 2), ("QDISC", 3)]
        .map(|(name, number)| (format!("SKB_DROP_REASON_SUBSYS_{name}"), number));
    let subsystems: Vec<_> = subsystems.iter().map(|(name, number)| (name.as_str(), *number)).collect();
    w.enumeration("skb_drop_reason_subsys", false, &subsystems);
    w.enumeration("qdisc_drop_reason", false, &[("QDISC_DROP_OVERLIMIT", 3 << 16 | 2)]);
    let mut module = w.split();
    module.enumeration("ovs_drop_reason", false, &[("OVS_DROP_LAST_ACTION", 2 << 16 | 1)]);
    let vmlinux = Arc::new(Btf::parse(w.finish()).unwrap());
    let mut layout = Layout::resolve(&vmlinux);
    layout.add_subsystem_reasons(Some("openvswitch"), &Btf::parse_split(&vmlinux, module.finish()).unwrap());
    let name = |number| layout.drop_reason(number).map(ToString::to_string);
    assert_eq!(name(3 << 16 | 2).as_deref(), Some("QDISC_DROP_OVERLIMIT"));
    assert_eq!(name(2 << 16 | 1).as_deref(), Some("OVS_DROP_LAST_ACTION"));
    assert_eq!(layout.wanted_subsystems(), 1 << 2 | 1 << 3);
    assert_eq!(layout.wanted_reasons(), [1 << 3, 0, 0, 0]);
}
