//! This kernel's numbers, which user space writes into frozen `.rodata` before it loads the object.
//!
//! The verifier then sees constants: a guard on [`MISSING`] prunes the code behind it, so a kernel without a field
//! never has to accept a read of it. One scalar per field; user space overrides them by name.

use aya_ebpf::Global;
use tracer_ebpf::MISSING;

macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $($(#[$doc])* #[unsafe(no_mangle)] pub(crate) static $name: Global<u32> = Global::new(MISSING);)+
    };
}

offsets! {
    /// `sk_buff._nfct`
    OFF_SKB_NFCT,
    /// `sk_buff.head`
    OFF_SKB_HEAD,
    /// `sk_buff.network_header`
    OFF_SKB_NETWORK_HEADER,
    /// `sk_buff.dev`
    OFF_SKB_DEV,
    /// `sk_buff.len`
    OFF_SKB_LEN,
    /// `net_device.nd_net.net`
    OFF_DEV_NET,
    /// `nf_conn.ct_net.net`
    OFF_CT_NET,
    /// Where the copy of a `struct nf_conn` begins: 0, except where the spinlock at its beginning is long.
    OFF_CT_BASE,
    /// `nf_conn.status`
    OFF_CT_STATUS,
    /// `nf_conn.tuplehash[0].tuple.src.u3`
    OFF_CT_ORIG_SRC,
    /// `nf_conn.tuplehash[0].tuple.dst.u3`
    OFF_CT_ORIG_DST,
    /// `nf_conn.tuplehash[1].tuple.src.u3`
    OFF_CT_REPLY_SRC,
    /// `nf_conn.proto.tcp.state`
    OFF_CT_TCP_STATE,
    /// `net.ns.inum`
    OFF_NET_INUM,
    /// `sock_common.skc_net.net`
    OFF_SK_NET,
    /// `sock_common.skc_family`
    OFF_SK_FAMILY,
    /// `sock_common.skc_state`
    OFF_SK_STATE,
    /// `sock_common.skc_daddr`
    OFF_SK_DADDR,
    /// `sock_common.skc_rcv_saddr`
    OFF_SK_SADDR,
    /// `sock_common.skc_v6_daddr`
    OFF_SK_V6_DADDR,
    /// `sock_common.skc_v6_rcv_saddr`
    OFF_SK_V6_SADDR,
    /// `sock_common.skc_dport`
    SK_DPORT,
    /// `sock_common.skc_num`
    SK_NUM,
    /// `inet_sock.inet_sport`
    OFF_INET_SPORT,
    /// `tcp_sock.bytes_acked`
    OFF_TCP_BYTES_ACKED,
    /// `tcp_sock.bytes_received`
    OFF_TCP_BYTES_RECEIVED,
    /// `ip_vs_conn_param.ipvs`
    OFF_IPVS_PARAM_IPVS,
    /// `ip_vs_conn_param.caddr`
    OFF_IPVS_PARAM_CADDR,
    /// `ip_vs_conn_param.vaddr`
    OFF_IPVS_PARAM_VADDR,
    /// `ip_vs_conn_param.cport`
    OFF_IPVS_PARAM_CPORT,
    /// `ip_vs_conn_param.vport`
    OFF_IPVS_PARAM_VPORT,
    /// `ip_vs_conn_param.protocol`
    OFF_IPVS_PARAM_PROTOCOL,
    /// `ip_vs_conn_param.af`
    OFF_IPVS_PARAM_AF,
    /// `netns_ipvs.net`
    OFF_NETNS_IPVS_NET,
    /// Position of `reason` among the arguments of `skb:kfree_skb`, missing before 5.17.
    ARG_KFREE_REASON,
    /// Position of `reason` among the arguments of `tcp:tcp_send_reset`, missing before 6.10.
    ARG_SEND_RESET_REASON,
    /// Position of `err` among the arguments of `tcp:tcp_retransmit_skb`, missing before 6.17.
    ARG_RETRANSMIT_ERROR,
    /// `enum skb_drop_reason`: `SKB_DROP_REASON_NETFILTER_DROP`.
    REASON_NETFILTER_DROP,
}

macro_rules! sites {
    ($($number:literal: $start:ident, $end:ident;)+) => {
        $(
            /// The first address of a [`tracer_ebpf::DropSite`], by its number.
            #[unsafe(no_mangle)]
            pub(crate) static $start: Global<u64> = Global::new(0);
            /// The address behind it; 0 where it is not looked up.
            #[unsafe(no_mangle)]
            pub(crate) static $end: Global<u64> = Global::new(0);
        )+

        /// The number of the [`tracer_ebpf::DropSite`] that has this address, 0 if none has.
        #[inline(always)]
        pub(crate) fn site(address: u64) -> u32 {
            let mut site = 0;
            $(
                if address >= $start.load() && address < $end.load() {
                    site = $number;
                }
            )+
            site
        }
    };
}

sites! {
    1: SITE_1, SITE_1_END;
    2: SITE_2, SITE_2_END;
    3: SITE_3, SITE_3_END;
    4: SITE_4, SITE_4_END;
    5: SITE_5, SITE_5_END;
    6: SITE_6, SITE_6_END;
    7: SITE_7, SITE_7_END;
    8: SITE_8, SITE_8_END;
}

/// Bit set of the drop reasons that are always reported, by this kernel's numbers: those of the core, all below 256.
#[unsafe(no_mangle)]
pub(crate) static WANTED_REASONS: Global<[u64; 4]> = Global::new([0; 4]);

/// Bit set of the subsystems all of whose drop reasons are reported (`enum skb_drop_reason_subsys`).
#[unsafe(no_mangle)]
pub(crate) static WANTED_SUBSYSTEMS: Global<u64> = Global::new(0);

/// The bits of a drop reason below its subsystem (`SKB_DROP_REASON_SUBSYS_SHIFT`).
const SUBSYSTEM_SHIFT: u32 = 16;

/// A word of [`WANTED_REASONS`], by the last two bits of its index.
#[inline(always)]
fn wanted_word(index: u32) -> u64 {
    let index = last_two_bits(index);
    // SAFETY: an index below 4 stays within the array. The read is volatile, because user space sets the words.
    unsafe { (&raw const WANTED_REASONS).cast::<u64>().add(index).read_volatile() }
}

/// Inline assembly, because the compiler removes a mask that a comparison has made superfluous; the verifier does not
/// apply that comparison to the register that becomes the index.
#[cfg(target_arch = "bpf")]
#[inline(always)]
fn last_two_bits(index: u32) -> usize {
    let mut index = u64::from(index);
    // SAFETY: the instruction changes this register only.
    unsafe { core::arch::asm!("{index} &= 3", index = inout(reg) index, options(nostack, nomem, pure)) };
    index as usize
}

#[cfg(not(target_arch = "bpf"))]
fn last_two_bits(index: u32) -> usize {
    index as usize & 3
}

/// Whether a drop with this reason is always reported.
#[inline(always)]
pub(crate) fn is_wanted(reason: u32) -> bool {
    let subsystem = reason >> SUBSYSTEM_SHIFT;
    if subsystem == 0 {
        reason < 256 && wanted_word(reason >> 6) >> (reason & 63) & 1 == 1
    } else {
        subsystem < 64 && WANTED_SUBSYSTEMS.load() >> (subsystem & 63) & 1 == 1
    }
}

/// Not 0 if only flows with an address in `TARGETS` are reported.
#[unsafe(no_mangle)]
pub(crate) static TARGETED: Global<u32> = Global::new(0);

/// How many copies of `confirm_fentry` are attached.
#[unsafe(no_mangle)]
pub(crate) static CONFIRM_COPIES: Global<u32> = Global::new(1);
