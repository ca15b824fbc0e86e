//! Reads pcap and pcapng files packet by packet.
//!
//! Owns the container: byte order, resolution and offset of the times, the interfaces. Must not read a packet's headers. A
//! damaged or cut file yields every whole packet before the damage, and a sentence about the rest.

use std::io::{self, ErrorKind, Read};

use pcap_parser::{
    Block, InterfaceDescriptionBlock, OptionCode, PcapBlockOwned, PcapError, PcapHeader, create_reader,
    traits::PcapNGPacketBlock as _,
};

use crate::{
    error::Hint,
    text::{clean, count},
    time::Timestamp,
};

/// The buffer in which a block must fit at first, and the largest block that is read, in bytes. The largest packet of
/// tcpdump has 256 KiB.
const BUFFER_BYTES: usize = 256 << 10;
const MAX_BLOCK_BYTES: usize = 16 << 20;
/// The most interfaces of a section, and the most that have a name and a number of their own in a capture.
const MAX_INTERFACES: usize = 4096;
/// The type of pcapng's obsolete Packet Block.
const PACKET_BLOCK: u32 = 2;
const NS: u128 = 1_000_000_000;

/// Why a file is not a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("it is empty")]
    Empty,
    #[error("it is compressed")]
    Compressed,
    #[error(
        "it is a pcap or pcapng file that was cut off: it ends within its first header, before any packet"
    )]
    Cut,
    #[error("it is neither a pcap nor a pcapng file")]
    Unknown,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Hint for CaptureError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Compressed => "uncompress it first, for example with `gunzip` or `zstd -d`".to_owned(),
            Self::Cut => "copy it again once the capture has ended".to_owned(),
            Self::Empty | Self::Unknown => "`tcpdump -i any -w FILE` makes one".to_owned(),
            Self::Io(_) => return None,
        })
    }
}

/// One packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// `None` if the file has no time for it.
    pub time: Option<Timestamp>,
    /// The interface's number in the file, from 0 over all sections.
    pub interface: usize,
    /// The link type (`LINKTYPE_…` of tcpdump.org).
    pub link: u16,
    /// The captured bytes, from the link layer's header on.
    pub data: &'a [u8],
}

/// What was read of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    pub packets: u64,
    /// The names of the interfaces by their number, where the file has them.
    pub interfaces: Vec<Option<String>>,
    /// The part that is missing, as a sentence.
    pub missing: Option<String>,
    /// Packets of interfaces that no interface block describes: without a link type their bytes mean nothing.
    pub without_interface: u64,
    /// Packets of interfaces beyond [`MAX_INTERFACES`].
    pub beyond_interfaces: u64,
    /// Packets in pcapng's Packet Blocks, which Enhanced Packet Blocks replaced.
    pub obsolete: u64,
}

impl Ending {
    /// What of the file could not be read, in words.
    pub(crate) fn lacks(&self) -> Vec<String> {
        let unread = [
            (self.without_interface, "of an interface that no interface block of the file describes"),
            (self.beyond_interfaces, "of an interface beyond the first 4,096"),
            (self.obsolete, "in an obsolete Packet Block, which viptrace does not read"),
        ];
        let unread = unread.iter().filter(|(packets, _)| *packets > 0);
        let unread = unread.map(|(packets, why)| format!("{} {why}", count(*packets, "packet")));
        self.missing.iter().cloned().chain(unread).collect()
    }

    fn add_interface(&mut self, name: Option<String>) {
        if self.interfaces.len() < MAX_INTERFACES {
            self.interfaces.push(name);
        }
    }
}

/// The interface of a packet.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u16,
    /// As pcapng's `if_tsresol`: the negative power of 10, or of 2 if the highest bit is set.
    resolution: u8,
    offset_secs: i64,
}

impl Interface {
    /// The time of so many units; `None` if it is before 1970 or after 2554.
    fn time(self, units: u64) -> Option<Timestamp> {
        let power = u32::from(self.resolution & 0x7f);
        let base: u128 = if self.resolution & 0x80 == 0 { 10 } else { 2 };
        let per_second = base.checked_pow(power)?;
        let ns = u128::from(units).checked_mul(NS)?.checked_div(per_second)?;
        let ns =
            i128::try_from(ns).ok()?.checked_add(i128::from(self.offset_secs).checked_mul(1_000_000_000)?)?;
        u64::try_from(ns).ok().map(Timestamp::from_unix_ns)
    }
}

/// Fills the whole buffer at each reading, so that the first one holds the file's header.
struct Full<R>(R);

impl<R: Read> Read for Full<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut at = 0;
        while let Some(rest) = buffer.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match self.0.read(rest) {
                Ok(0) => break,
                Ok(bytes) => at += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }
}

/// Reads a capture of `length` bytes and hands out its packets in the order of the file.
pub fn read<R: Read + Send>(
    source: R,
    length: u64,
    mut each: impl FnMut(&Packet<'_>),
) -> Result<Ending, CaptureError> {
    let mut source = Full(source);
    let mut start = [0; 12];
    let read = source.read(&mut start)?;
    let start = start.get(..read).unwrap_or_default();
    match start {
        [] => return Err(CaptureError::Empty),
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [0xfd, b'7', b'z', b'X', ..] => {
            return Err(CaptureError::Compressed);
        }
        _ => {}
    }
    let source = Full(start.chain(source));
    let mut reader = match create_reader(BUFFER_BYTES, source) {
        Ok(reader) => reader,
        Err(PcapError::ReadError) => return Err(io::Error::other("it cannot be read").into()),
        Err(_) => {
            return Err(if is_cut_at_once(start, length) {
                CaptureError::Cut
            } else {
                CaptureError::Unknown
            });
        }
    };
    let mut file = File::default();
    let mut capacity = BUFFER_BYTES;
    loop {
        let found = match reader.next() {
            Ok((bytes, block)) => {
                file.block(&block, &mut each);
                Found::Block(bytes)
            }
            Err(PcapError::Eof) => Found::End,
            Err(PcapError::Incomplete(_)) => Found::More,
            Err(PcapError::BufferTooSmall) => Found::Longer,
            Err(PcapError::UnexpectedEof) => Found::Cut,
            Err(PcapError::ReadError) => Found::Failed,
            Err(_) => Found::Broken,
        };
        let at = reader.consumed() as u64;
        let rest = length.saturating_sub(at);
        file.ending.missing = match found {
            Found::Block(bytes) => {
                reader.consume(bytes);
                continue;
            }
            Found::More => {
                let before = reader.data().len();
                let is_filled = reader.refill().is_ok();
                if is_filled && (reader.data().len() > before || reader.reader_exhausted()) {
                    continue;
                }
                Some(if is_filled { unreadable(at, rest) } else { failed(at) })
            }
            Found::Longer if capacity < MAX_BLOCK_BYTES => {
                capacity *= 2;
                if reader.grow(capacity) && reader.refill().is_ok() {
                    continue;
                }
                Some(failed(at))
            }
            Found::Cut if file.claims_too_much(reader.data()) => Some(unreadable(at, rest)),
            Found::Cut if !reader.data().is_empty() => Some(cut(rest.max(reader.data().len() as u64))),
            Found::End | Found::Cut => None,
            Found::Longer | Found::Broken => Some(unreadable(at, rest)),
            Found::Failed => Some(failed(at)),
        };
        return Ok(file.ending);
    }
}

/// Whether a file of `length` bytes, which begins with `start`, ends within pcap's header or within the first block of
/// pcapng, a section header: its type, its length and the number that shows the byte order, four bytes each.
fn is_cut_at_once(start: &[u8], length: u64) -> bool {
    const PCAP_HEADER_BYTES: u64 = 24;
    match start {
        [0xa1, 0xb2, 0xc3, 0xd4, ..]
        | [0xd4, 0xc3, 0xb2, 0xa1, ..]
        | [0xa1, 0xb2, 0x3c, 0x4d, ..]
        | [0x4d, 0x3c, 0xb2, 0xa1, ..] => length < PCAP_HEADER_BYTES,
        [0x0a, 0x0d, 0x0d, 0x0a, a, b, c, d, order @ ..] => match order {
            [0x4d, 0x3c, 0x2b, 0x1a] => length < u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
            [0x1a, 0x2b, 0x3c, 0x4d] => length < u64::from(u32::from_be_bytes([*a, *b, *c, *d])),
            _ => order.len() < 4,
        },
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => true,
        _ => false,
    }
}

/// The result of one attempt to read a block.
enum Found {
    Block(usize),
    End,
    More,
    Longer,
    Cut,
    Broken,
    Failed,
}

fn cut(bytes: u64) -> String {
    format!("the file ends within a packet: its last {} are not read", count(bytes, "byte"))
}

fn unreadable(at: u64, rest: u64) -> String {
    format!("no whole packet begins at byte {at}: the {} from there on are not read", count(rest, "byte"))
}

fn failed(at: u64) -> String {
    format!("the file cannot be read beyond byte {at}")
}

/// The parts of the file that later blocks depend on.
#[derive(Default)]
struct File {
    /// Where the length of a packet or block stands in its header, in bytes, and its byte order.
    length: Option<(usize, bool)>,
    interfaces: Vec<Interface>,
    /// The interfaces that this section describes, those beyond the limit as well.
    described: usize,
    /// The number of this section's first interface.
    base: usize,
    ending: Ending,
}

impl File {
    fn block(&mut self, block: &PcapBlockOwned<'_>, each: &mut impl FnMut(&Packet<'_>)) {
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.header(header),
            PcapBlockOwned::Legacy(packet) => {
                let Some(&interface) = self.interfaces.first() else { return };
                let fraction = u64::from(packet.ts_usec);
                let units = u64::from(packet.ts_sec)
                    .saturating_mul(if interface.resolution == 9 { 1_000_000_000 } else { 1_000_000 })
                    .saturating_add(fraction);
                self.packet(0, Some(units), packet.data, each);
            }
            PcapBlockOwned::NG(Block::SectionHeader(section)) => {
                self.length = Some((4, section.big_endian()));
                self.interfaces.clear();
                self.described = 0;
                self.base = self.ending.interfaces.len();
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => self.interface(interface),
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                self.packet(packet.if_id as usize, Some(units), packet.packet_data(), each);
            }
            PcapBlockOwned::NG(Block::SimplePacket(packet)) => {
                let data = packet.data.get(..packet.origlen as usize).unwrap_or(packet.data);
                self.packet(0, None, data, each);
            }
            PcapBlockOwned::NG(Block::Unknown(block)) if block.block_type == PACKET_BLOCK => {
                self.ending.packets += 1;
                self.ending.obsolete += 1;
            }
            PcapBlockOwned::NG(_) => {}
        }
    }

    /// Whether the packet or block that begins here claims to be longer than any is: its header is damaged.
    fn claims_too_much(&self, data: &[u8]) -> bool {
        let claimed = self.length.and_then(|(at, is_big)| {
            let bytes = data.get(at..)?.first_chunk::<4>()?;
            Some(if is_big { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) })
        });
        claimed.is_some_and(|claimed| claimed as usize > MAX_BLOCK_BYTES)
    }

    fn header(&mut self, header: &PcapHeader) {
        self.length = Some((8, header.is_bigendian()));
        let resolution = if header.is_nanosecond_precision() { 9 } else { 6 };
        // The upper half of the field can have the length of the frame check sequence.
        let link = header.network.0.cast_unsigned() as u16;
        self.interfaces.push(Interface { link, resolution, offset_secs: 0 });
        self.ending.add_interface(None);
    }

    fn interface(&mut self, block: &InterfaceDescriptionBlock<'_>) {
        self.described = self.described.saturating_add(1);
        if self.interfaces.len() >= MAX_INTERFACES {
            return;
        }
        let name = block.options.iter().find(|option| option.code == OptionCode::IfName);
        let name = name.map(|option| {
            let bytes = option.value.get(..usize::from(option.len)).unwrap_or(&option.value);
            clean(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned())
        });
        self.interfaces.push(Interface {
            link: block.linktype.0.cast_unsigned() as u16,
            resolution: block.if_tsresol,
            offset_secs: block.if_tsoffset,
        });
        self.ending.add_interface(name.filter(|name| !name.is_empty()));
    }

    fn packet(&mut self, number: usize, units: Option<u64>, data: &[u8], each: &mut impl FnMut(&Packet<'_>)) {
        self.ending.packets += 1;
        let Some(interface) = self.interfaces.get(number) else {
            let unread = if number < self.described {
                &mut self.ending.beyond_interfaces
            } else {
                &mut self.ending.without_interface
            };
            *unread += 1;
            return;
        };
        each(&Packet {
            time: units.and_then(|units| interface.time(units)),
            interface: self.base.saturating_add(number).min(MAX_INTERFACES),
            link: interface.link,
            data,
        });
    }
}
