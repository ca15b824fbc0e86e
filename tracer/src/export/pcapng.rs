//! Writes blocks of a pcapng file.
//!
//! Owns the container: one section, times in nanoseconds, raw IP packets. Must not know what a packet means.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use pcap_parser::{
    EnhancedPacketBlock, InterfaceDescriptionBlock, Linktype, OptionCode, PcapNGOption, SectionHeaderBlock,
    ToVec,
};

use crate::time::Timestamp;

/// The longest option, in bytes: its length has 16 bits.
const MAX_OPTION_BYTES: usize = 60_000;
/// The exponent of the times' resolution.
const NANOSECONDS: u8 = 9;

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Pcapng<W> {
    out: W,
    interfaces: u32,
    packets: u64,
}

/// One packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawPacket<'a> {
    pub(super) interface: u32,
    pub(super) time: Timestamp,
    /// The bytes from the IP header on.
    pub(super) head: &'a [u8],
    /// The packet's length on the wire, at least that of the head.
    pub(super) original_bytes: u32,
    pub(super) comment: &'a str,
}

fn option(code: OptionCode, value: &str) -> PcapNGOption<'_> {
    let mut end = value.len().min(MAX_OPTION_BYTES);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let value = value.get(..end).unwrap_or_default().as_bytes();
    PcapNGOption { code, len: value.len() as u16, value: Cow::Borrowed(value) }
}

impl<W: Write> Pcapng<W> {
    /// Begins the section.
    pub(super) fn begin(mut out: W, system: &str, program: &str, comment: &str) -> io::Result<Self> {
        let mut section = SectionHeaderBlock {
            block_type: 0,
            block_len1: 0,
            bom: 0,
            major_version: 1,
            minor_version: 0,
            section_len: -1,
            options: vec![
                option(OptionCode::ShbOs, system),
                option(OptionCode::ShbUserAppl, program),
                option(OptionCode::Comment, comment),
            ],
            block_len2: 0,
        };
        write(&mut out, &mut section)?;
        Ok(Self { out, interfaces: 0, packets: 0 })
    }

    /// Describes an interface. Returns its number.
    pub(super) fn interface(&mut self, name: &str, about: &str, snapped_bytes: u32) -> io::Result<u32> {
        let resolution =
            PcapNGOption { code: OptionCode::IfTsresol, len: 1, value: Cow::Borrowed(&[NANOSECONDS]) };
        let mut interface = InterfaceDescriptionBlock {
            block_type: 0,
            block_len1: 0,
            linktype: Linktype::RAW,
            reserved: 0,
            snaplen: snapped_bytes,
            options: vec![
                option(OptionCode::IfName, name),
                option(OptionCode::IfDescription, about),
                resolution,
            ],
            block_len2: 0,
            if_tsresol: NANOSECONDS,
            if_tsoffset: 0,
        };
        write(&mut self.out, &mut interface)?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Writes a packet. Returns its number, from 1, as Wireshark counts.
    pub(super) fn packet(&mut self, packet: &RawPacket<'_>) -> io::Result<u64> {
        let ns = packet.time.as_unix_ns();
        let mut block = EnhancedPacketBlock {
            block_type: 0,
            block_len1: 0,
            if_id: packet.interface,
            ts_high: (ns >> 32) as u32,
            ts_low: ns as u32,
            caplen: packet.head.len() as u32,
            origlen: packet.original_bytes.max(packet.head.len() as u32),
            data: packet.head,
            options: vec![option(OptionCode::Comment, packet.comment)],
            block_len2: 0,
        };
        write(&mut self.out, &mut block)?;
        self.packets += 1;
        Ok(self.packets)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write(out: &mut impl Write, block: &mut impl ToVec) -> io::Result<()> {
    let bytes = block.to_vec().map_err(|error| io::Error::other(error.to_string()))?;
    out.write_all(&bytes)
}
