//! The kernel's structures that the system calls pass: numbers, at the kernel's own places.

/// A part of `union bpf_attr`: plain numbers without padding, and no longer than the kernel's. A kernel extends a
/// shorter one with zeroes.
pub(super) trait Attributes {}

/// The part of `union bpf_attr` for `BPF_PROG_LOAD`, up to the last field that is used.
#[derive(Default)]
#[repr(C)]
pub(super) struct ProgramAttributes {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; 16],
    pub(super) prog_ifindex: u32,
    pub(super) expected_attach_type: u32,
    pub(super) prog_btf_fd: u32,
    pub(super) func_info_rec_size: u32,
    pub(super) func_info: u64,
    pub(super) func_info_cnt: u32,
    pub(super) line_info_rec_size: u32,
    pub(super) line_info: u64,
    pub(super) line_info_cnt: u32,
    pub(super) attach_btf_id: u32,
    pub(super) attach_btf_obj_fd: u32,
    pub(super) reserved: u32,
}

/// The part of `union bpf_attr` for `BPF_BTF_LOAD`.
#[derive(Default)]
#[repr(C)]
pub(super) struct BtfAttributes {
    pub(super) btf: u64,
    pub(super) log_buf: u64,
    pub(super) size: u32,
    pub(super) log_size: u32,
    pub(super) log_level: u32,
    pub(super) reserved: u32,
}

/// The part of `union bpf_attr` for `BPF_MAP_UPDATE_ELEM`.
#[derive(Default)]
#[repr(C)]
pub(super) struct ElementAttributes {
    pub(super) map_fd: u32,
    pub(super) reserved: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct MapAttributes {
    pub(super) map_fd: u32,
}

/// The part of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[derive(Default)]
#[repr(C)]
pub(super) struct RunAttributes {
    pub(super) prog_fd: u32,
    pub(super) retval: u32,
    pub(super) data_size_in: u32,
    pub(super) data_size_out: u32,
    pub(super) data_in: u64,
    pub(super) data_out: u64,
    pub(super) repeat: u32,
    pub(super) duration: u32,
    pub(super) ctx_size_in: u32,
    pub(super) ctx_size_out: u32,
    pub(super) ctx_in: u64,
    pub(super) ctx_out: u64,
    pub(super) flags: u32,
    pub(super) cpu: u32,
}

#[repr(C)]
pub(super) struct RawTracepointAttributes {
    pub(super) name: u64,
    pub(super) prog_fd: u32,
    pub(super) reserved: u32,
    pub(super) cookie: u64,
}

#[repr(C)]
pub(super) struct IdAttributes {
    pub(super) id: u32,
    pub(super) next_id: u32,
    pub(super) open_flags: u32,
}

#[repr(C)]
pub(super) struct InfoAttributes {
    pub(super) bpf_fd: u32,
    pub(super) info_len: u32,
    pub(super) info: u64,
}

#[repr(C)]
pub(super) struct BatchAttributes {
    pub(super) in_batch: u64,
    pub(super) out_batch: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) count: u32,
    pub(super) map_fd: u32,
    pub(super) elem_flags: u64,
    pub(super) flags: u64,
}

/// `struct bpf_btf_info`; its last three fields exist since 5.11, as module BTF does.
#[derive(Default)]
#[repr(C)]
pub(super) struct BtfInfo {
    pub(super) btf: u64,
    pub(super) btf_size: u32,
    pub(super) id: u32,
    pub(super) name: u64,
    pub(super) name_len: u32,
    pub(super) kernel_btf: u32,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE` with a kprobe.multi program.
#[derive(Default)]
#[repr(C)]
pub(super) struct KprobeMultiAttributes {
    pub(super) prog_fd: u32,
    pub(super) target_fd: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) link_flags: u32,
    pub(super) count: u32,
    pub(super) symbols: u64,
    pub(super) addresses: u64,
    pub(super) cookies: u64,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE` with a perf event.
#[derive(Default)]
#[repr(C)]
pub(super) struct EventLinkAttributes {
    pub(super) prog_fd: u32,
    pub(super) target_fd: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) cookie: u64,
}

/// `struct perf_event_attr` (`include/uapi/linux/perf_event.h`) up to `PERF_ATTR_SIZE_VER1`, for a kprobe.
#[derive(Default)]
#[repr(C)]
pub(super) struct EventAttributes {
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) config: u64,
    pub(super) sample_period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) wakeup_events: u32,
    pub(super) bp_type: u32,
    /// Where the function's name is.
    pub(super) function: u64,
    pub(super) offset: u64,
}

/// `struct bpf_link_info` of a kprobe's link, as long as the struct is since 6.7.
#[derive(Default)]
#[repr(C)]
pub(super) struct LinkInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) prog_id: u32,
    pub(super) reserved: u32,
    pub(super) addresses_or_type: u64,
    pub(super) count: u32,
    pub(super) flags: u32,
    pub(super) missed_by_multi: u64,
    pub(super) address: u64,
    pub(super) missed_by_event: u64,
}

impl Attributes for ProgramAttributes {}
impl Attributes for BtfAttributes {}
impl Attributes for ElementAttributes {}
impl Attributes for MapAttributes {}
impl Attributes for RunAttributes {}
impl Attributes for KprobeMultiAttributes {}
impl Attributes for EventLinkAttributes {}
impl Attributes for RawTracepointAttributes {}
impl Attributes for IdAttributes {}
impl Attributes for InfoAttributes {}
impl Attributes for BatchAttributes {}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use aya_obj::generated::{bpf_attr, bpf_link_info};

    use super::*;

    #[test]
    fn attributes_lie_where_the_kernel_reads_them() {
        // include/uapi/linux/bpf.h, `union bpf_attr`.
        assert_eq!(offset_of!(ProgramAttributes, prog_name), 48);
        assert_eq!(offset_of!(ProgramAttributes, expected_attach_type), 68);
        assert_eq!(offset_of!(ProgramAttributes, attach_btf_id), 108);
        assert_eq!(offset_of!(ProgramAttributes, attach_btf_obj_fd), 112);
        assert!(size_of::<ProgramAttributes>() <= size_of::<bpf_attr>());
        assert_eq!(offset_of!(BtfAttributes, size), offset_of!(bpf_attr, __bindgen_anon_7.btf_size));
        assert_eq!(
            offset_of!(BtfAttributes, log_level),
            offset_of!(bpf_attr, __bindgen_anon_7.btf_log_level)
        );
        assert_eq!(offset_of!(RunAttributes, ctx_in), offset_of!(bpf_attr, test.ctx_in));
        assert_eq!(offset_of!(RunAttributes, cpu), offset_of!(bpf_attr, test.cpu));
        assert_eq!(offset_of!(ElementAttributes, flags), offset_of!(bpf_attr, __bindgen_anon_2.flags));
        assert_eq!(offset_of!(BatchAttributes, map_fd), offset_of!(bpf_attr, batch.map_fd));
        assert_eq!(offset_of!(BatchAttributes, flags), offset_of!(bpf_attr, batch.flags));
        assert_eq!(offset_of!(BtfInfo, kernel_btf), 28);
        assert_eq!(
            offset_of!(KprobeMultiAttributes, link_flags),
            offset_of!(bpf_attr, link_create.__bindgen_anon_3)
        );
        assert_eq!(offset_of!(KprobeMultiAttributes, symbols), 24);
        let info = offset_of!(bpf_link_info, __bindgen_anon_1);
        let multi = offset_of!(LinkInfo, missed_by_multi);
        assert_eq!((offset_of!(LinkInfo, addresses_or_type), multi), (info, info + 16));
        // The longest part since 6.7, which counts; later ones are longer.
        let kprobe = offset_of!(bpf_link_info, __bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe.missed);
        assert_eq!(offset_of!(LinkInfo, missed_by_event), kprobe);
        assert_eq!(size_of::<LinkInfo>(), kprobe + size_of::<u64>());
        assert_eq!(
            offset_of!(EventLinkAttributes, cookie),
            offset_of!(bpf_attr, link_create.__bindgen_anon_3)
        );
        // `PERF_ATTR_SIZE_VER1`, with `config1` and `config2` at its end.
        assert_eq!((offset_of!(EventAttributes, function), size_of::<EventAttributes>()), (56, 72));
    }
}
