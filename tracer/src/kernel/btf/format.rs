//! The bytes of BTF: header and type records. Knows layouts and bounds, not what types mean.
//!
//! Source: Documentation/bpf/btf.rst and include/uapi/linux/btf.h. The format has only grown since Linux 4.18.

use std::ops::Range;

use super::error::BtfError;

pub(super) const KIND_INT: u8 = 1;
pub(super) const KIND_PTR: u8 = 2;
pub(super) const KIND_ARRAY: u8 = 3;
pub(super) const KIND_STRUCT: u8 = 4;
pub(super) const KIND_UNION: u8 = 5;
pub(super) const KIND_ENUM: u8 = 6;
pub(super) const KIND_FWD: u8 = 7;
pub(super) const KIND_TYPEDEF: u8 = 8;
pub(super) const KIND_VOLATILE: u8 = 9;
pub(super) const KIND_CONST: u8 = 10;
pub(super) const KIND_RESTRICT: u8 = 11;
pub(super) const KIND_FUNC: u8 = 12;
pub(super) const KIND_FUNC_PROTO: u8 = 13;
pub(super) const KIND_VAR: u8 = 14;
pub(super) const KIND_DATASEC: u8 = 15;
pub(super) const KIND_FLOAT: u8 = 16;
pub(super) const KIND_DECL_TAG: u8 = 17;
pub(super) const KIND_TYPE_TAG: u8 = 18;
pub(super) const KIND_ENUM64: u8 = 19;
/// The numbers that a kind can have.
const KINDS: usize = 128;

/// Bytes of a record before its kind's own part: `name_off`, `info`, `size` or `type`.
pub(super) const RECORD_BYTES: usize = 12;
/// Bytes of one member of a struct or union: name, type, offset.
pub(super) const MEMBER_BYTES: usize = 12;
/// Bytes of one enumerator: name, value.
pub(super) const ENUMERATOR_BYTES: usize = 8;
/// Bytes of one 64-bit enumerator: name, low half, high half.
pub(super) const ENUMERATOR64_BYTES: usize = 12;
/// Bytes of one parameter of a prototype: name, type.
pub(super) const PARAMETER_BYTES: usize = 8;

const HEADER_BYTES: usize = 24;
const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;

/// The native-endian word at `offset`, if it lies within `bytes`.
pub(super) fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let four = bytes.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

/// Where the two sections lie in the input.
#[derive(Debug)]
pub(super) struct Sections {
    pub(super) types: Range<usize>,
    pub(super) strings: Range<usize>,
}

/// Reads the header. A longer header than ours is accepted, as the format requires.
pub(super) fn sections(bytes: &[u8]) -> Result<Sections, BtfError> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(BtfError::TooLarge { bytes: bytes.len() });
    }
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(BtfError::Truncated { what: "header", offset: 0, need: HEADER_BYTES, have: bytes.len() });
    };
    let [low, high, version, ..] = *header;
    let magic = u16::from_ne_bytes([low, high]);
    if magic.swap_bytes() == MAGIC {
        return Err(BtfError::ByteOrder);
    }
    if magic != MAGIC {
        return Err(BtfError::Magic { found: magic });
    }
    if version != VERSION {
        return Err(BtfError::Version { found: version });
    }
    let field = |offset| word(header, offset).unwrap_or_default();
    let length = field(4);
    if (length as usize) < HEADER_BYTES {
        return Err(BtfError::HeaderLength { found: length });
    }
    Ok(Sections {
        types: section(bytes, "type section", length, field(8), field(12))?,
        strings: section(bytes, "string section", length, field(16), field(20))?,
    })
}

fn section(
    bytes: &[u8],
    what: &'static str,
    header: u32,
    offset: u32,
    length: u32,
) -> Result<Range<usize>, BtfError> {
    let start = (header as usize).saturating_add(offset as usize);
    let end = start.saturating_add(length as usize);
    if end > bytes.len() {
        let have = bytes.len().saturating_sub(start);
        return Err(BtfError::Truncated { what, offset: start, need: length as usize, have });
    }
    Ok(start..end)
}

/// The part of a record after the shared one, for one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    fixed_bytes: u8,
    /// For each member, enumerator or parameter.
    each_bytes: u8,
    /// Whether types of this kind are looked up by name.
    pub(super) is_looked_up: bool,
}

impl Shape {
    pub(super) fn tail_bytes(self, count: u32) -> usize {
        usize::from(self.fixed_bytes) + usize::from(self.each_bytes) * count as usize
    }
}

/// By kind. A table, because a kernel has 130,000 types.
const SHAPES: [Option<Shape>; KINDS] = {
    let mut shapes = [None; KINDS];
    let mut kind = 1;
    while kind <= KIND_ENUM64 {
        let (fixed, each) = match kind {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => (4, 0),
            KIND_ARRAY => (12, 0),
            KIND_STRUCT | KIND_UNION => (0, MEMBER_BYTES),
            KIND_ENUM => (0, ENUMERATOR_BYTES),
            KIND_ENUM64 => (0, ENUMERATOR64_BYTES),
            KIND_FUNC_PROTO => (0, PARAMETER_BYTES),
            KIND_DATASEC => (0, 12),
            KIND_PTR..=KIND_TYPE_TAG => (0, 0),
            _ => break,
        };
        let is_looked_up =
            matches!(kind, KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64 | KIND_FUNC | KIND_TYPEDEF);
        shapes[kind as usize] = Some(Shape { fixed_bytes: fixed, each_bytes: each as u8, is_looked_up });
        kind += 1;
    }
    shapes
};

/// The part that all type records share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Into the strings; of a split BTF, into the base's strings followed by its own.
    pub(super) name: u32,
    pub(super) kind: u8,
    /// How many members, enumerators or parameters follow.
    pub(super) count: u32,
    pub(super) flag: bool,
    /// A size in bytes or the id of another type, by kind.
    pub(super) size_or_type: u32,
}

impl Record {
    /// The record at the start of `bytes`.
    ///
    /// Kinds have 7 bits and counts 24 since libbpf f7a6b9eaff3e (2026); the added bits were zero before.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let record = bytes.first_chunk::<RECORD_BYTES>()?;
        let [n0, n1, n2, n3, i0, i1, i2, i3, s0, s1, s2, s3] = *record;
        let info = u32::from_ne_bytes([i0, i1, i2, i3]);
        Some(Self {
            name: u32::from_ne_bytes([n0, n1, n2, n3]),
            kind: (info >> 24) as u8 & (KINDS - 1) as u8,
            count: info & 0x00ff_ffff,
            flag: info >> 31 == 1,
            size_or_type: u32::from_ne_bytes([s0, s1, s2, s3]),
        })
    }

    /// How many bytes of its own follow the shared part; none for an unknown kind.
    pub(super) fn tail_bytes(&self) -> Option<usize> {
        Some(self.shape()?.tail_bytes(self.count))
    }

    /// None for an unknown kind.
    pub(super) fn shape(&self) -> Option<Shape> {
        SHAPES.get(usize::from(self.kind) & (KINDS - 1)).copied().flatten()
    }

    pub(super) fn is_aggregate(&self) -> bool {
        matches!(self.kind, KIND_STRUCT | KIND_UNION)
    }

    pub(super) fn is_enum(&self) -> bool {
        matches!(self.kind, KIND_ENUM | KIND_ENUM64)
    }

    /// A name for, or a qualifier of, another type: no layout of its own.
    pub(super) fn is_alias(&self) -> bool {
        matches!(self.kind, KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG)
    }
}
