//! The reader against BTF that is written here, BTF that is damaged here, and the running kernel's BTF.
use std::{env, fmt::Write as _, fs, path::Path, sync::Arc};

use proptest::prelude::*;

use super::{
    Btf, BtfError, Expected, LookupError,
    field::{Bits, Field},
    format::{KIND_CONST, KIND_VOLATILE},
    writer::Writer,
};

/// A kernel in miniature: the shapes of the real structs.
fn kernel() -> Writer {
    let mut w = Writer::new();
    let (u8_, u16_, u32_) = (w.int("unsigned char", 1), w.int("unsigned short", 2), w.int("unsigned int", 4));
    let u64_ = w.int("unsigned long", 8);
    let be16 = w.typedef("__be16", u16_);
    let net = w.structure("net", 8, &[("inum", u32_, 32, 0)]);
    let net_pointer = w.pointer(net);
    let possible_net = w.structure("", 8, &[("net", net_pointer, 0, 0)]);
    let possible_net_t = w.typedef("possible_net_t", possible_net);
    let four = w.array(u32_, 4);
    let addr = w.union("nf_inet_addr", 16, &[("ip", u32_, 0, 0), ("all", four, 0, 0)]);
    let tuple = w.structure("nf_conntrack_tuple", 20, &[("src", addr, 0, 0), ("port", be16, 128, 0)]);
    let hash = w.structure("nf_conntrack_tuple_hash", 24, &[("hash", u32_, 0, 0), ("tuple", tuple, 32, 0)]);
    let two = w.array(hash, 2);
    let status = w.alias(KIND_VOLATILE, "", u64_);
    w.structure(
        "nf_conn",
        72,
        &[("tuplehash", two, 64, 0), ("status", status, 448, 0), ("ct_net", possible_net_t, 512, 0)],
    );
    let inner = w.union("", 8, &[("_sk_redir", u64_, 0, 0), ("_nfct", u64_, 0, 0)]);
    let bits =
        w.structure("", 4, &[("pkt_type", u8_, 0, 3), ("ip_summed", u8_, 5, 2), ("crossing", u32_, 7, 12)]);
    let outer = w.structure("", 12, &[("", inner, 0, 0), ("", bits, 64, 0)]);
    let qualified = w.alias(KIND_CONST, "", outer);
    let skb = w.structure("sk_buff", 24, &[("len", u32_, 0, 0), ("", qualified, 64, 0)]);
    w.enumeration(
        "skb_drop_reason",
        false,
        &[("SKB_NOT_DROPPED_YET", 0), ("SKB_DROP_REASON_NETFILTER_DROP", 11)],
    );
    w.enumeration("verdict", true, &[("STOLEN", -1)]);
    w.enumeration64("wide", &[("BIG", 1 << 40), ("SMALL", -2)]);

    let const_skb = w.alias(KIND_CONST, "", skb);
    let (skb_pointer, const_skb_pointer, void_pointer) = (w.pointer(skb), w.pointer(const_skb), w.pointer(0));
    let confirm = w.prototype(u32_, &[("skb", skb_pointer), ("hooknum", u32_)]);
    w.function("nf_confirm", confirm);
    // A tracepoint as the kernel describes it: types without names here, names in the caller of the probes.
    let unnamed = w.prototype(0, &[("", void_pointer), ("", const_skb_pointer), ("", u32_)]);
    let unnamed_pointer = w.pointer(unnamed);
    w.typedef("btf_trace_kfree_skb", unnamed_pointer);
    w.typedef("btf_trace_lonely", unnamed_pointer);
    let other = w.prototype(0, &[("__data", void_pointer), ("wrong", skb_pointer)]);
    w.function("__traceiter_lonely", other);
    let named = w
        .prototype(u32_, &[("__data", void_pointer), ("skb__nullable", const_skb_pointer), ("reason", u32_)]);
    w.function("__traceiter_kfree_skb", named);
    w
}

fn btf() -> Btf {
    Btf::parse(kernel().finish()).unwrap()
}

fn whole(offset_bytes: u32, size_bytes: u32) -> Field {
    Field { offset_bytes, size_bytes, bits: None }
}

#[test]
fn a_path_leads_through_arrays_unions_typedefs_and_anonymous_members() {
    let btf = btf();
    assert_eq!(btf.member("nf_conn", "tuplehash"), Ok(whole(8, 48)));
    assert_eq!(btf.member("nf_conn", "tuplehash[1].tuple.port"), Ok(whole(8 + 24 + 4 + 16, 2)));
    assert_eq!(btf.member("nf_conn", "tuplehash[0].tuple.src.all[3]"), Ok(whole(8 + 4 + 12, 4)));
    assert_eq!(btf.member("nf_conn", "status"), Ok(whole(56, 8)));
    assert_eq!(btf.member("nf_conn", "ct_net.net"), Ok(whole(64, 8)));
    assert_eq!(btf.member("possible_net_t", "net"), Ok(whole(0, 8)));
    assert_eq!(btf.member("sk_buff", "_nfct"), Ok(whole(8, 8)));
    assert_eq!(btf.struct_size("nf_conn"), Ok(72));
}

#[test]
fn a_bit_field_names_the_word_that_holds_it() {
    let btf = btf();
    let field = |path| btf.member("sk_buff", path).unwrap();
    let bits = |offset, size| Some(Bits { offset, size });
    assert_eq!(field("ip_summed"), Field { offset_bytes: 16, size_bytes: 1, bits: bits(5, 2) });
    assert_eq!(field("crossing"), Field { offset_bytes: 16, size_bytes: 4, bits: bits(7, 12) });

    let mut w = Writer::new();
    let narrow = w.narrow_int("unsigned int", 4, 2, 4);
    w.structure("old", 16, &[("flags", narrow, 100, 0)]);
    let old = Btf::parse(w.finish()).unwrap();
    let found = old.member("old", "flags").unwrap();
    assert_eq!(found, Field { offset_bytes: 12, size_bytes: 4, bits: bits(6, 4) });
}

#[test]
fn what_is_not_there_is_said_by_name() {
    let btf = btf();
    let said = |root, path| btf.member(root, path).unwrap_err().to_string();
    assert_eq!(said("nf_conn2", "x"), "the kernel's BTF has no struct `nf_conn2`");
    assert_eq!(said("nf_conn", "mark"), "`nf_conn` has no `mark` (looking for `mark`)");
    assert!(said("nf_conn", "ct_net.net.inum").contains("goes through `net`, a pointer"));
    assert!(said("nf_conn", "status.low").contains("goes into `status`, which has no members"));
    assert!(said("nf_conn", "tuplehash[2].tuple").contains("element 2 of `tuplehash`, which has 2"));
    for path in
        ["", ".", "a..b", "tuplehash[", "tuplehash]", "tuplehash[]", "tuplehash[x]", "tuplehash[0]x", "[0]"]
    {
        assert!(btf.member("nf_conn", path).is_err(), "{path}");
    }
    assert!(btf.enum_value("skb_drop_reason", "SKB_DROP_REASON_NO_SOCKET").is_err());
    assert!(btf.function("sk_buff").is_err(), "a struct is not a function");
    assert!(btf.raw_tracepoint("absent").unwrap_err().to_string().contains("no tracepoint `absent`"));
}

#[test]
fn enumerators_have_the_sign_and_the_width_that_the_kernel_records() {
    let btf = btf();
    assert_eq!(btf.enum_value("skb_drop_reason", "SKB_DROP_REASON_NETFILTER_DROP"), Ok(11));
    assert_eq!(btf.enum_value("verdict", "STOLEN"), Ok(-1));
    assert_eq!(btf.enum_variants("wide").unwrap(), [("BIG", 1 << 40), ("SMALL", -2)]);
}

#[test]
fn a_tracepoint_takes_its_names_from_the_function_that_calls_its_probes() {
    let btf = btf();
    let traced = btf.raw_tracepoint("kfree_skb").unwrap();
    assert_eq!(traced.position("skb"), Some(0), "the verifier's suffix is not part of a name");
    assert_eq!(traced.position("reason"), Some(1));
    assert_eq!(traced.parameters[0].type_name, "const struct sk_buff *");
    // Another function's names are not borrowed.
    let lonely = btf.raw_tracepoint("lonely").unwrap();
    assert!(lonely.parameters.iter().all(|parameter| parameter.name.is_none()));

    assert_eq!(btf.parameter("nf_confirm", "hooknum"), Ok(1));
    assert_eq!(btf.function("nf_confirm").unwrap().returns, "unsigned int");
}

#[test]
fn namesakes_are_an_answer_only_if_they_agree() {
    let mut w = kernel();
    let u32_ = w.int("u32", 4);
    w.structure("twin", 8, &[("same", u32_, 0, 0), ("moved", u32_, 32, 0)]);
    w.structure("twin", 12, &[("same", u32_, 0, 0), ("moved", u32_, 64, 0)]);
    let btf = Btf::parse(w.finish()).unwrap();
    assert_eq!(btf.member("twin", "same"), Ok(whole(0, 4)));
    let ambiguous = LookupError::Ambiguous { what: "struct", name: "twin".to_owned(), count: 2 };
    assert_eq!(btf.member("twin", "moved"), Err(ambiguous.clone()));
    assert_eq!(btf.struct_size("twin"), Err(ambiguous));
}

#[test]
fn a_module_continues_the_ids_and_names_of_vmlinux() {
    let base = kernel();
    let mut module = base.split();
    // Id 3 is the base's `unsigned int`.
    let service = module.structure("ip_vs_service", 8, &[("fwmark", 3, 32, 0)]);
    let pointer = module.pointer(service);
    let prototype = module.prototype(3, &[("svc", pointer)]);
    module.function("ip_vs_schedule", prototype);

    let base = Arc::new(Btf::parse(base.finish()).unwrap());
    let split = Btf::parse_split(&base, module.finish()).unwrap();
    assert_eq!(split.member("ip_vs_service", "fwmark"), Ok(whole(4, 4)));
    assert_eq!(split.function("ip_vs_schedule").unwrap().parameters[0].type_name, "struct ip_vs_service *");
    assert_eq!(
        split.member("nf_conn", "status"),
        Ok(whole(56, 8)),
        "vmlinux's types are seen through a module's"
    );
    assert!(base.function("ip_vs_schedule").is_err());
}

#[test]
fn bytes_that_are_not_btf_are_refused_with_what_is_wrong() {
    let good = kernel().finish();
    let broken = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        Btf::parse(bytes).unwrap_err()
    };
    assert_eq!(
        Btf::parse([]).unwrap_err(),
        BtfError::Truncated { what: "header", offset: 0, need: 24, have: 0 }
    );
    assert_eq!(broken(0, b"\x7fE"), BtfError::Magic { found: u16::from_ne_bytes(*b"\x7fE") });
    assert_eq!(broken(0, &0x9feb_u16.to_ne_bytes()), BtfError::ByteOrder);
    assert_eq!(broken(2, &[2]), BtfError::Version { found: 2 });
    assert_eq!(broken(4, &[8]), BtfError::HeaderLength { found: 8 });
    assert!(matches!(broken(12, &[0xff; 4]), BtfError::Truncated { what: "type section", offset: 24, .. }));
    assert_eq!(broken(31, &[0x7e]), BtfError::UnknownKind { id: 1, offset: 24, kind: 0x7e });
    let mut unended = good.clone();
    *unended.last_mut().unwrap() = b'x';
    let error = Btf::parse(unended).unwrap_err();
    assert!(matches!(error, BtfError::Strings { rule: "end with a NUL byte", .. }), "{error}");
}

/// A type may lead to itself, or to so many others that no walk ends: both end here.
#[test]
fn types_that_lead_to_themselves_end_in_an_error() {
    let mut w = Writer::new();
    let itself = w.typedef("loop", 1);
    w.structure("s", 8, &[("m", itself, 0, 0)]);
    let mut level = w.structure("", 8, &[]);
    for _ in 0..40 {
        level =
            w.structure("", 8, &[("", level, 0, 0), ("", level, 0, 0), ("", level, 0, 0), ("", level, 0, 0)]);
    }
    w.structure("wide", 8, &[("", level, 0, 0)]);
    let mut array = w.int("byte", 1);
    for _ in 0..10 {
        array = w.array(array, u32::MAX);
    }
    w.structure("huge", 8, &[("m", array, 0, 0)]);
    let btf = Btf::parse(w.finish()).unwrap();
    for (root, path) in
        [("s", "m"), ("s", "m.x"), ("wide", "x"), ("huge", "m"), ("huge", "m[4]"), ("loop", "x")]
    {
        let error = btf.member(root, path).unwrap_err();
        assert!(!matches!(error, LookupError::Ambiguous { .. }), "{root}.{path}: {error}");
    }
}

/// All queries at once, for arbitrary BTF.
fn ask_everything(btf: &Btf) -> String {
    let mut answers = String::new();
    for name in ["nf_conn", "sk_buff", "net", "possible_net_t", "nf_conntrack_tuple", "absent", ""] {
        for path in ["tuplehash[1].tuple.src.all[2]", "_nfct", "crossing", "ct_net.net", "inum", "absent"] {
            let _ = write!(answers, "{:?}", btf.member(name, path));
        }
        let _ = write!(answers, "{:?}{:?}", btf.struct_size(name), btf.function(name));
    }
    for name in ["skb_drop_reason", "verdict", "wide"] {
        let _ = write!(answers, "{:?}{:?}", btf.enum_variants(name), btf.enum_value(name, "BIG"));
    }
    for name in ["nf_confirm", "__traceiter_kfree_skb", "ip_vs_schedule"] {
        let _ = write!(answers, "{:?}", btf.parameter(name, "skb"));
    }
    for name in ["kfree_skb", "lonely"] {
        let _ = write!(answers, "{:?}", btf.raw_tracepoint(name));
    }
    answers
}

/// Reads and queries arbitrary bytes. Returning is one property, and the other that the answers do not depend on the names that
/// are expected.
fn survive(bytes: &[u8]) {
    let few = |names: &[&str]| Expected::beginning(names.iter().copied());
    if let Ok(btf) = Btf::parse(bytes) {
        let answers = ask_everything(&btf);
        for expected in [few(&[]), few(&["nf_conn", "btf_trace_", "skb_drop_reason"])] {
            let own = Btf::parse_for(bytes.to_vec(), expected).unwrap();
            assert_eq!(ask_everything(&own), answers);
        }
    }
    let base = Arc::new(btf());
    if let Ok(btf) = Btf::parse_split(&base, bytes.to_vec()) {
        let answers = ask_everything(&btf);
        let base = Arc::new(Btf::parse_for(kernel().finish(), few(&["sk_buff"])).unwrap());
        assert_eq!(ask_everything(&Btf::parse_split(&base, bytes.to_vec()).unwrap()), answers);
    }
}

#[test]
fn a_name_that_nobody_expected_has_the_same_answer() {
    survive(&kernel().finish());
}

fn name() -> impl Strategy<Value = String> {
    "[a-z_][a-z0-9_]{0,20}"
}

/// The seeds of fuzzing; `VIPTRACE_BLESS=1` writes them again.
#[test]
fn the_corpus_has_this_small_kernel() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/small-kernel.btf");
    let bytes = kernel().finish();
    if env::var_os("VIPTRACE_BLESS").is_some() {
        fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        structs in prop::collection::btree_map(name(), prop::collection::btree_set(name(), 0..12), 1..12),
        variants in prop::collection::btree_map(name(), any::<i32>(), 0..12),
        nesting in 0_usize..10,
    ) {
        let mut w = Writer::new();
        let int = w.int("int", 4);
        for (name, members) in &structs {
            let listed: Vec<_> =
                members.iter().zip(0..).map(|(member, n)| (member.as_str(), int, n * 32, 0)).collect();
            let mut id = w.structure(if nesting == 0 { name } else { "" }, 64, &listed);
            for level in 1..=nesting {
                // Each level of anonymity moves the members by four bytes.
                id = w.structure(if level == nesting { name } else { "" }, 64, &[("", id, 32, 0)]);
            }
        }
        let listed: Vec<_> = variants.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        w.enumeration("e", true, &listed);
        let btf = Btf::parse(w.finish()).unwrap();
        for (name, members) in &structs {
            for (member, n) in members.iter().zip(0..) {
                prop_assert_eq!(btf.member(name, member), Ok(whole((nesting as u32 + n) * 4, 4)));
            }
            prop_assert!(btf.member(name, "NONE").is_err());
        }
        for (name, value) in &variants {
            prop_assert_eq!(btf.enum_value("e", name), Ok(i64::from(*value)));
        }
    }

    #[test]
    fn a_blob_cut_short_is_survived(length in 0_usize..4096) {
        let bytes = kernel().finish();
        survive(&bytes[..length.min(bytes.len())]);
    }

    #[test]
    fn damage_is_survived(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = kernel().finish();
        for (place, with) in damage {
            let place = place.index(bytes.len());
            bytes[place] = with;
        }
        survive(&bytes);
    }

    /// Damage that keeps the header, and so reaches the types: words become small ids, counts and kinds.
    #[test]
    fn types_that_contradict_each_other_are_survived(
        damage in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![0_u32..64, any::<u32>()]), 1..24),
    ) {
        let mut bytes = kernel().finish();
        for (place, with) in damage {
            let place = 24 + place.index((bytes.len() - 24) / 4) * 4;
            bytes[place..place + 4].copy_from_slice(&with.to_ne_bytes());
        }
        survive(&bytes);
    }

    #[test]
    fn noise_is_survived(noise in prop::collection::vec(any::<u8>(), 0..512)) {
        survive(&noise);
    }
}

/// The running kernel's own BTF, where it has one: what every kernel since 5.10 has in common.
#[test]
fn the_running_kernel_is_read() {
    let Ok(bytes) = fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: this kernel has no readable /sys/kernel/btf/vmlinux");
        return;
    };
    let btf = Btf::parse(bytes).unwrap();
    assert_eq!(btf.member("sk_buff", "len").unwrap().size_bytes, 4);
    assert_eq!(btf.member("net", "ns.inum").unwrap().size_bytes, 4);
    assert_eq!(btf.member("sock", "__sk_common.skc_net.net").unwrap().size_bytes, 8);
    let drops = btf.raw_tracepoint("kfree_skb").unwrap();
    assert_eq!((drops.position("skb"), drops.position("location")), (Some(0), Some(1)));
    assert_eq!(btf.enum_value("nf_inet_hooks", "NF_INET_LOCAL_IN"), Ok(1));
    assert!(btf.function("tcp_v4_rcv").is_ok());
}
