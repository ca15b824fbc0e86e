//! Where this kernel keeps the fields that viptrace reads, resolved from BTF once at start-up.
//!
//! One table names every field in the kernel's own words. A missing field becomes a named gap in the hook plan, never a
//! guess, except in a module without BTF (`WITHOUT_BTF`). Nothing here depends on a kernel version.

#[cfg(test)]
mod tests;

use std::{ops::Range, sync::Arc};

use foldhash::HashMap;
use tracer_ebpf::{CT_HEAD_BYTES, DropSite, SOCK_HEAD_BYTES};

use super::btf::Btf;

/// A field that the kernel half reads through a global of the same name, or that the decoder reads from a
/// record's copy of the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldSpec {
    /// The kernel half's global, or the decoder's name for it.
    pub name: &'static str,
    pub structure: &'static str,
    pub path: &'static str,
    /// Accepted sizes in bytes; another size would be misread and counts as missing.
    pub sizes: &'static [u32],
    /// Whether the kernel half has a global of this name.
    pub global: bool,
    /// The module whose BTF has the structure; `None` for vmlinux.
    pub module: Option<&'static str>,
}

const fn global(
    name: &'static str,
    structure: &'static str,
    path: &'static str,
    sizes: &'static [u32],
) -> FieldSpec {
    FieldSpec { name, structure, path, sizes, global: true, module: None }
}

const fn decoded(
    name: &'static str,
    structure: &'static str,
    path: &'static str,
    sizes: &'static [u32],
) -> FieldSpec {
    FieldSpec { name, structure, path, sizes, global: false, module: None }
}

const fn in_module(
    module: &'static str,
    name: &'static str,
    structure: &'static str,
    path: &'static str,
    sizes: &'static [u32],
) -> FieldSpec {
    FieldSpec { name, structure, path, sizes, global: true, module: Some(module) }
}

/// Every field, in the order in which `check --kernel` prints them.
pub const FIELDS: &[FieldSpec] = &[
    global("OFF_SKB_NFCT", "sk_buff", "_nfct", &[8]),
    global("OFF_SKB_HEAD", "sk_buff", "head", &[8]),
    global("OFF_SKB_NETWORK_HEADER", "sk_buff", "network_header", &[2]),
    global("OFF_SKB_DEV", "sk_buff", "dev", &[8]),
    global("OFF_SKB_LEN", "sk_buff", "len", &[4]),
    global("OFF_DEV_NET", "net_device", "nd_net.net", &[8]),
    global("OFF_CT_NET", "nf_conn", "ct_net.net", &[8]),
    global("OFF_CT_STATUS", "nf_conn", "status", &[4, 8]),
    global("OFF_CT_ORIG_SRC", "nf_conn", "tuplehash[0].tuple.src.u3", &[16]),
    global("OFF_CT_ORIG_DST", "nf_conn", "tuplehash[0].tuple.dst.u3", &[16]),
    global("OFF_CT_REPLY_SRC", "nf_conn", "tuplehash[1].tuple.src.u3", &[16]),
    global("OFF_CT_TCP_STATE", "nf_conn", "proto.tcp.state", &[1]),
    decoded("CT_ORIG", "nf_conn", "tuplehash[0].tuple", &[40]),
    decoded("CT_REPLY", "nf_conn", "tuplehash[1].tuple", &[40]),
    decoded("CT_ZONE", "nf_conn", "zone.id", &[2]),
    decoded("TUPLE_SRC", "nf_conntrack_tuple", "src.u3", &[16]),
    decoded("TUPLE_SRC_PORT", "nf_conntrack_tuple", "src.u", &[2]),
    decoded("TUPLE_L3NUM", "nf_conntrack_tuple", "src.l3num", &[2]),
    decoded("TUPLE_DST", "nf_conntrack_tuple", "dst.u3", &[16]),
    decoded("TUPLE_DST_PORT", "nf_conntrack_tuple", "dst.u", &[2]),
    decoded("TUPLE_PROTONUM", "nf_conntrack_tuple", "dst.protonum", &[1]),
    global("OFF_NET_INUM", "net", "ns.inum", &[4]),
    global("OFF_SK_NET", "sock_common", "skc_net.net", &[8]),
    global("OFF_SK_FAMILY", "sock_common", "skc_family", &[2]),
    global("OFF_SK_STATE", "sock_common", "skc_state", &[1]),
    global("OFF_SK_DADDR", "sock_common", "skc_daddr", &[4]),
    global("OFF_SK_SADDR", "sock_common", "skc_rcv_saddr", &[4]),
    global("OFF_SK_V6_DADDR", "sock_common", "skc_v6_daddr", &[16]),
    global("OFF_SK_V6_SADDR", "sock_common", "skc_v6_rcv_saddr", &[16]),
    global("SK_DPORT", "sock_common", "skc_dport", &[2]),
    global("SK_NUM", "sock_common", "skc_num", &[2]),
    global("OFF_INET_SPORT", "inet_sock", "inet_sport", &[2]),
    global("OFF_TCP_BYTES_ACKED", "tcp_sock", "bytes_acked", &[8]),
    global("OFF_TCP_BYTES_RECEIVED", "tcp_sock", "bytes_received", &[8]),
    in_module("ip_vs", "OFF_IPVS_PARAM_IPVS", "ip_vs_conn_param", "ipvs", &[8]),
    in_module("ip_vs", "OFF_IPVS_PARAM_CADDR", "ip_vs_conn_param", "caddr", &[8]),
    in_module("ip_vs", "OFF_IPVS_PARAM_VADDR", "ip_vs_conn_param", "vaddr", &[8]),
    in_module("ip_vs", "OFF_IPVS_PARAM_CPORT", "ip_vs_conn_param", "cport", &[2]),
    in_module("ip_vs", "OFF_IPVS_PARAM_VPORT", "ip_vs_conn_param", "vport", &[2]),
    in_module("ip_vs", "OFF_IPVS_PARAM_PROTOCOL", "ip_vs_conn_param", "protocol", &[2]),
    in_module("ip_vs", "OFF_IPVS_PARAM_AF", "ip_vs_conn_param", "af", &[2]),
    in_module("ip_vs", "OFF_NETNS_IPVS_NET", "netns_ipvs", "net", &[8]),
];

/// The only place where offsets are assumed: a module without BTF (before 5.11 no module has any). They are the same in
/// every kernel whose BTF was read, 6.1 to 7.2, and correct on 5.10. Where the module has BTF they are not used.
const WITHOUT_BTF: &[(&str, u32)] = &[
    ("OFF_IPVS_PARAM_IPVS", 0),
    ("OFF_IPVS_PARAM_CADDR", 8),
    ("OFF_IPVS_PARAM_VADDR", 16),
    ("OFF_IPVS_PARAM_CPORT", 24),
    ("OFF_IPVS_PARAM_VPORT", 26),
    ("OFF_IPVS_PARAM_PROTOCOL", 28),
    ("OFF_IPVS_PARAM_AF", 30),
];

/// The fields that the decoder reads from a record's copy of `struct nf_conn`, with the number of bytes, and whether an
/// entry is of use without them.
const COPIED_OF_ENTRY: &[(&str, u32, bool)] =
    &[("CT_ZONE", 2, true), ("CT_ORIG", 40, false), ("CT_REPLY", 40, false), ("OFF_CT_STATUS", 4, false)];

/// The words in which a decision keeps its part of an entry.
const WORD_BYTES: usize = 8;

/// A part of a record's copy of `struct nf_conn`, in whole words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Where it begins, and its length, bytes.
    pub(super) from: u32,
    pub(super) bytes: u32,
    /// The words of the copy that it needs, a bit each.
    pub(super) words: u32,
}

/// The fields that the decoder reads from a record's copy of `struct sock_common`, with the number of bytes.
const COPIED_OF_SOCKET: &[(&str, u32)] = &[
    ("OFF_SK_FAMILY", 2),
    ("OFF_SK_DADDR", 4),
    ("OFF_SK_SADDR", 4),
    ("OFF_SK_V6_DADDR", 16),
    ("OFF_SK_V6_SADDR", 16),
    ("SK_DPORT", 2),
    ("SK_NUM", 2),
];

/// The drop reasons that are reported for every packet, by the kernel's names without their prefix
/// (`include/net/dropreason-core.h`, 5.17 to 7.2). All of them lie on failure paths; the noisy ones (`NOT_SPECIFIED`,
/// `QUEUE_PURGE`, most of TCP's own) are left out.
pub const WANTED_REASONS: &[&str] = &[
    "NETFILTER_DROP",
    "NO_SOCKET",
    "NEIGH_FAILED",
    "NEIGH_QUEUEFULL",
    "NEIGH_DEAD",
    "NEIGH_CREATEFAIL",
    "NEIGH_HH_FILLFAIL",
    "IP_RPFILTER",
    "IP_OUTNOROUTES",
    "IP_INNOROUTES",
    "IP_INADDRERRORS",
    "IP_LOCAL_SOURCE",
    "IP_INVALID_SOURCE",
    "IP_INVALID_DEST",
    "IP_LOCALNET",
    "IP_NOPROTO",
    "IPV6DISABLED",
    "XFRM_POLICY",
    "PKT_TOO_BIG",
    "UNICAST_IN_L2_MULTICAST",
    // The receiver's queues, and memory.
    "SOCKET_RCVBUFF",
    "SOCKET_BACKLOG",
    "TCP_LISTEN_OVERFLOW",
    "PROTO_MEM",
    "CPU_BACKLOG",
    "QDISC_DROP",
    "QDISC_BURST_DROP",
    "FULL_RING",
    "NOMEM",
    // A network card that computes a checksum wrongly, often of an encapsulated packet.
    "IP_CSUM",
    "TCP_CSUM",
    "UDP_CSUM",
    "SKB_CSUM",
    // The tunnel of a CNI.
    "TUNNEL_TXINFO",
    "IP_TUNNEL_ECN",
    "VXLAN_INVALID_HDR",
    "VXLAN_VNI_NOT_FOUND",
    "RECURSION_LIMIT",
    // An eBPF or tc program, or a security module, of a CNI or of the host.
    "BPF_CGROUP_EGRESS",
    "TC_EGRESS",
    "TC_INGRESS",
    "XDP",
    "SECURITY_HOOK",
];

/// The subsystems with drop reasons of their own whose reasons are all reported (`enum skb_drop_reason_subsys`): Open
/// vSwitch (OVN-Kubernetes, Antrea), and the queues of interfaces since 7.2.
const WANTED_SUBSYSTEMS: &[&str] = &["OPENVSWITCH", "QDISC"];
const SUBSYSTEMS: (&str, &str) = ("skb_drop_reason_subsys", "SKB_DROP_REASON_SUBSYS_");
/// Their reasons: the module, `None` for vmlinux, and the enumeration, whose names need no prefix.
const SUBSYSTEM_REASONS: &[(Option<&str>, &str)] =
    &[(None, "qdisc_drop_reason"), (Some(OPENVSWITCH), "ovs_drop_reason")];
pub(super) const OPENVSWITCH: &str = "openvswitch";

const DROP_REASONS: (&str, &str) = ("skb_drop_reason", "SKB_DROP_REASON_");
const RESET_REASONS: (&str, &str) = ("sk_rst_reason", "SK_RST_REASON_");

/// The structs and enumerations that a layout needs.
pub(super) fn names_of_types() -> impl Iterator<Item = &'static str> {
    let enumerations = [DROP_REASONS.0, RESET_REASONS.0, SUBSYSTEMS.0];
    let of_subsystems = SUBSYSTEM_REASONS.iter().map(|(_, enumeration)| *enumeration);
    FIELDS.iter().map(|field| field.structure).chain(enumerations).chain(of_subsystems)
}

/// This kernel's layout, as far as viptrace needs it.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    offsets: HashMap<&'static str, u32>,
    gaps: Vec<FieldGap>,
    drop_reasons: HashMap<u32, Arc<str>>,
    reset_reasons: HashMap<u32, Arc<str>>,
    /// The numbers of [`WANTED_SUBSYSTEMS`], as a bit set.
    subsystems: u64,
    /// Never printed or recorded: kernel addresses.
    drop_sites: Vec<(DropSite, Range<u64>)>,
}

/// A field that this kernel lacks, or has in an unexpected form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldGap {
    pub field: FieldSpec,
    pub reason: String,
}

impl Layout {
    /// Resolves vmlinux's fields of [`FIELDS`] and the reason names; a missing one is a gap, not an error.
    pub fn resolve(btf: &Btf) -> Self {
        let mut layout = Self::default();
        for spec in FIELDS.iter().filter(|spec| spec.module.is_none()) {
            layout.resolve_field(btf, spec);
        }
        layout.leave_out_what_is_not_copied();
        layout.drop_reasons = names(btf, DROP_REASONS);
        layout.add_subsystem_reasons(None, btf);
        for (number, _) in
            names(btf, SUBSYSTEMS).iter().filter(|(_, name)| WANTED_SUBSYSTEMS.contains(&&***name))
        {
            layout.subsystems |= 1_u64.checked_shl(*number).unwrap_or_default();
        }
        layout.reset_reasons = names(btf, RESET_REASONS);
        layout
    }

    /// Adds the names of the drop reasons of a subsystem in this BTF: of vmlinux, or of a module.
    pub(super) fn add_subsystem_reasons(&mut self, module: Option<&str>, btf: &Btf) {
        for (_, enumeration) in SUBSYSTEM_REASONS.iter().filter(|(of, _)| *of == module) {
            self.drop_reasons.extend(names(btf, (enumeration, "")));
        }
    }

    /// Resolves the fields of a module that is in the kernel, from its own BTF if it has any.
    pub fn resolve_module(&mut self, module: &str, btf: Option<&Btf>) {
        for spec in FIELDS.iter().filter(|spec| spec.module == Some(module)) {
            match (btf, WITHOUT_BTF.iter().find(|(name, _)| *name == spec.name)) {
                (Some(btf), _) => self.resolve_field(btf, spec),
                (None, Some((name, offset))) => {
                    self.offsets.insert(name, *offset);
                }
                (None, None) => {
                    let reason = format!("the module {module} carries no BTF");
                    self.gaps.push(FieldGap { field: *spec, reason });
                }
            }
        }
    }

    fn resolve_field(&mut self, btf: &Btf, spec: &FieldSpec) {
        match btf.member(spec.structure, spec.path) {
            Ok(field) if spec.sizes.contains(&field.size_bytes) && field.bits.is_none() => {
                self.offsets.insert(spec.name, field.offset_bytes);
            }
            Ok(field) => {
                let reason = format!("has {} bytes where {:?} were expected", field.size_bytes, spec.sizes);
                self.gaps.push(FieldGap { field: *spec, reason });
            }
            Err(error) => self.gaps.push(FieldGap { field: *spec, reason: error.to_string() }),
        }
    }

    /// A record carries a limited part of each structure: a field outside it is a gap.
    fn leave_out_what_is_not_copied(&mut self) {
        let base = self.entry_base();
        let of_entry = COPIED_OF_ENTRY.iter().map(|(name, bytes, _)| (*name, *bytes, base, CT_HEAD_BYTES));
        let of_socket = COPIED_OF_SOCKET.iter().map(|(name, bytes)| (*name, *bytes, 0, SOCK_HEAD_BYTES));
        for (name, bytes, base, copied) in of_entry.chain(of_socket) {
            let Some(offset) = self.offset(name) else { continue };
            let end = base.saturating_add(copied as u32);
            if offset >= base && offset.saturating_add(bytes) <= end {
                continue;
            }
            self.offsets.remove(name);
            let reason = format!("lies at offset {offset}, and records carry the bytes {base} to {end}");
            let field = FIELDS.iter().find(|field| field.name == name);
            self.gaps.extend(field.map(|field| FieldGap { field: *field, reason }));
        }
    }

    /// Where a record's copy of `struct nf_conn` begins, in bytes. 0, if all its fields are among the structure's first
    /// bytes. On `PREEMPT_RT` and with lock debugging they are not, because the spinlock before them is longer
    /// (`include/linux/spinlock_types.h`): the copy begins at the first field then. It follows from the offsets alone, so
    /// a recording needs no other fact.
    pub(super) fn entry_base(&self) -> u32 {
        let span = |with_optional: bool| {
            let fields = COPIED_OF_ENTRY.iter().filter(|(.., is_optional)| with_optional || !is_optional);
            let places =
                fields.filter_map(|(name, bytes, _)| Some((self.offset(name)?, *bytes))).collect::<Vec<_>>();
            let begin = places.iter().map(|(offset, _)| offset & !7).min().unwrap_or_default();
            let end = places.iter().map(|(offset, bytes)| offset.saturating_add(*bytes)).max();
            begin..end.unwrap_or_default()
        };
        let (all, needed) = (span(true), span(false));
        let copied = CT_HEAD_BYTES as u32;
        if all.end <= copied {
            0
        } else if all.end - all.start <= copied {
            all.start
        } else {
            needed.start
        }
    }

    /// The offset of a field in a record's copy of `struct nf_conn`, in bytes.
    pub(super) fn offset_in_entry(&self, name: &str) -> Option<usize> {
        self.offset(name)?.checked_sub(self.entry_base()).map(|offset| offset as usize)
    }

    /// The part of a copy of `struct nf_conn` that an agent's decision keeps: the fields that the decoder reads, and the namespace.
    pub(super) fn kept_of_entry(&self) -> Kept {
        let fields = COPIED_OF_ENTRY.iter().map(|(name, bytes, _)| (*name, *bytes));
        let places = fields.chain([("OFF_CT_NET", 8)]).filter_map(|(name, bytes)| {
            let begin = self.offset_in_entry(name)?;
            let end = begin.checked_add(bytes as usize).filter(|end| *end <= CT_HEAD_BYTES)?;
            Some(begin / WORD_BYTES..end.div_ceil(WORD_BYTES))
        });
        let words = places.flatten().fold(0_u32, |words, place| words | 1 << place);
        let end = u32::BITS - words.leading_zeros();
        let begin = words.trailing_zeros().min(end);
        let bytes_of = |words: u32| words * WORD_BYTES as u32;
        Kept { from: bytes_of(begin), bytes: bytes_of(end - begin), words }
    }

    /// A layout with these offsets, for tests and for recordings, which have their own.
    pub fn from_parts(
        offsets: impl IntoIterator<Item = (&'static str, u32)>,
        drop_reasons: impl IntoIterator<Item = (u32, Arc<str>)>,
        reset_reasons: impl IntoIterator<Item = (u32, Arc<str>)>,
    ) -> Self {
        Self {
            offsets: offsets.into_iter().collect(),
            gaps: Vec::new(),
            subsystems: 0,
            drop_sites: Vec::new(),
            drop_reasons: drop_reasons.into_iter().collect(),
            reset_reasons: reset_reasons.into_iter().collect(),
        }
    }

    /// The offset of a field of [`FIELDS`] in bytes.
    pub fn offset(&self, name: &str) -> Option<u32> {
        self.offsets.get(name).copied()
    }

    /// All offsets, in bytes.
    pub fn offsets(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.offsets.iter().map(|(name, offset)| (*name, *offset))
    }

    /// The functions that stand for a drop's reason where the kernel gives none; their addresses are for the kernel half.
    pub(crate) fn drop_sites(&self) -> &[(DropSite, Range<u64>)] {
        &self.drop_sites
    }

    pub(super) fn set_drop_sites(&mut self, sites: Vec<(DropSite, Range<u64>)>) {
        self.drop_sites = sites;
    }

    /// The numbers and names of this kernel's drop reasons.
    pub fn drop_reasons(&self) -> impl Iterator<Item = (u32, &Arc<str>)> {
        self.drop_reasons.iter().map(|(number, name)| (*number, name))
    }

    /// The numbers and names of this kernel's reset reasons.
    pub fn reset_reasons(&self) -> impl Iterator<Item = (u32, &Arc<str>)> {
        self.reset_reasons.iter().map(|(number, name)| (*number, name))
    }

    pub fn gaps(&self) -> &[FieldGap] {
        &self.gaps
    }

    pub fn has(&self, name: &str) -> bool {
        self.offsets.contains_key(name)
    }

    /// The kernel's name of a drop reason, without its prefix.
    pub fn drop_reason(&self, number: u32) -> Option<&Arc<str>> {
        self.drop_reasons.get(&number)
    }

    /// The kernel's name of a reset reason, without its prefix; kernels before 6.10 have none.
    pub fn reset_reason(&self, number: u32) -> Option<&Arc<str>> {
        self.reset_reasons.get(&number)
    }

    /// The number of a drop reason.
    pub fn drop_reason_number(&self, name: &str) -> Option<u32> {
        self.drop_reasons.iter().find_map(|(number, known)| (&**known == name).then_some(*number))
    }

    /// [`WANTED_SUBSYSTEMS`] as the kernel half's bit set.
    pub fn wanted_subsystems(&self) -> u64 {
        self.subsystems
    }

    /// [`WANTED_REASONS`] as the kernel half's bit set.
    pub fn wanted_reasons(&self) -> [u64; 4] {
        let mut set = [0_u64; 4];
        for number in WANTED_REASONS.iter().filter_map(|name| self.drop_reason_number(name)) {
            if let Some(word) = set.get_mut(number as usize / 64) {
                *word |= 1 << (number % 64);
            }
        }
        set
    }
}

fn names(btf: &Btf, (enumeration, prefix): (&str, &str)) -> HashMap<u32, Arc<str>> {
    btf.enum_variants(enumeration)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(name, value)| {
            let name = name.strip_prefix(prefix)?;
            Some((u32::try_from(value).ok()?, Arc::from(name)))
        })
        .collect()
}
