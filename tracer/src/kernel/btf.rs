//! The kernel's own description of its types (BTF): the offset of a field, the value of an enumerator, the position of
//! a function's argument.
//!
//! Pure: it reads byte slices and never opens a file. Whatever the bytes are, it neither panics nor loops, and
//! allocates at most a small multiple of their length. Nothing is guessed: a name with several definitions is resolved
//! only if all of them give the same answer.
//!
//! One pass records where each type starts and its name; everything else is read on demand.

mod error;
mod field;
mod format;
mod names;
mod prototype;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(in crate::kernel) mod writer;

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
pub(crate) use error::{BtfError, LookupError};
pub(in crate::kernel) use names::Expected;
pub use prototype::{Parameter, Prototype};

use format::{ENUMERATOR_BYTES, ENUMERATOR64_BYTES, KIND_ENUM64, RECORD_BYTES, Record, word};
use names::Names;

/// The longest name a kernel symbol or type can have (`KSYM_NAME_LEN`, include/linux/kallsyms.h).
const MAX_NAME_BYTES: usize = 512;

/// How many types of one name are compared. Real kernels have a handful at most.
const MAX_NAMESAKES: usize = 256;

/// An index over one BTF blob: vmlinux's, or a module's on top of it.
#[derive(Debug)]
pub struct Btf {
    bytes: Bytes,
    strings: Range<usize>,
    /// The offset in `bytes` of each type's record, counted from the first id of this blob.
    offsets: Vec<u32>,
    names: Names,
    expected: Expected,
    base: Option<Arc<Self>>,
    /// The id of the first type described here: 1, or where the base ends. Id 0 is `void`.
    first_id: u32,
    /// Subtracted from a string's offset, this gives its offset in `strings`: the length of the base's strings.
    first_string: u32,
}

impl Btf {
    /// Reads `/sys/kernel/btf/vmlinux` or the `.BTF` section of an ELF file.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<Self, BtfError> {
        Self::parse_for(bytes.into(), Expected::ALL)
    }

    /// The same for somebody who looks up few of the names: to index them all takes three times as long.
    pub(in crate::kernel) fn parse_for(
        bytes: impl Into<Bytes>,
        expected: Expected,
    ) -> Result<Self, BtfError> {
        Self::index(bytes.into(), expected, None)
    }

    /// Reads a module's BTF (`/sys/kernel/btf/MODULE`), which continues the ids and strings of vmlinux's.
    ///
    /// A module's BTF is valid only on top of the exact vmlinux that it was built with. On another one it is refused
    /// where the mismatch shows, and gives wrong answers where it does not.
    pub fn parse_split(base: &Arc<Self>, bytes: impl Into<Bytes>) -> Result<Self, BtfError> {
        Self::index(bytes.into(), base.expected.clone(), Some(Arc::clone(base)))
    }

    fn index(bytes: Bytes, expected: Expected, base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        let sections = format::sections(&bytes)?;
        let strings = sections.strings.clone();
        match bytes.get(strings.clone()) {
            Some([]) | None if base.is_some() => {}
            Some([first, ..]) if *first != 0 && base.is_none() => {
                return Err(BtfError::Strings { offset: strings.start, rule: "begin with the empty string" });
            }
            Some([.., 0]) => {}
            _ => return Err(BtfError::Strings { offset: strings.start, rule: "end with a NUL byte" }),
        }
        let (first_id, first_string) =
            base.as_ref().map_or((1, 0), |base| (base.end_id(), base.end_string()));
        // Room for the shortest records, so that the lists never move; unused pages cost nothing.
        let most = sections.types.len() / RECORD_BYTES;
        let mut btf = Self {
            bytes,
            strings,
            offsets: Vec::with_capacity(most),
            names: Names::with_capacity(most, &expected),
            expected,
            base,
            first_id,
            first_string,
        };
        btf.scan(sections.types)?;
        Ok(btf)
    }

    /// The pass over all types.
    fn scan(&mut self, types: Range<usize>) -> Result<(), BtfError> {
        let all = self.bytes.get(..types.end).unwrap_or_default();
        let mut offset = types.start;
        while offset < types.end {
            let rest = all.get(offset..).unwrap_or_default();
            let truncated = |need| BtfError::Truncated { what: "type", offset, need, have: rest.len() };
            let record = Record::read(rest).ok_or_else(|| truncated(RECORD_BYTES))?;
            let number = self.offsets.len() as u32;
            let id = || self.first_id.saturating_add(number);
            let Some(shape) = record.shape() else {
                return Err(BtfError::UnknownKind { id: id(), offset, kind: record.kind });
            };
            let need = RECORD_BYTES + shape.tail_bytes(record.count);
            if need > rest.len() {
                return Err(truncated(need));
            }
            if shape.is_looked_up && record.name != 0 {
                let from = self.string_from(record.name);
                let from =
                    from.ok_or_else(|| BtfError::NameOutside { id: id(), offset, name: record.name })?;
                if self.expected.has(names::beginning(from)) {
                    self.names.add(number, names::hash(from));
                }
            }
            self.offsets.push(offset as u32);
            offset += need;
        }
        Ok(())
    }

    /// The size of a struct or union in bytes.
    pub fn struct_size(&self, name: &str) -> Result<u32, LookupError> {
        self.agree("struct", name, Record::is_aggregate, |_, record| Ok(record.size_or_type))
    }

    /// The id of a struct or union in the kernel's BTF. Several of one name give no answer.
    pub fn struct_id(&self, name: &str) -> Result<u32, LookupError> {
        self.agree("struct", name, Record::is_aggregate, |id, _| Ok(id))
    }

    /// The value of one enumerator, e.g. `SKB_DROP_REASON_NO_SOCKET` of `skb_drop_reason`.
    ///
    /// Each kernel numbers its own. A 64-bit unsigned value beyond `i64` is returned as negative. Kernels before 6.0 do
    /// not record which enums are signed: there, -1 is returned as `4_294_967_295`.
    pub fn enum_value(&self, enumeration: &str, variant: &str) -> Result<i64, LookupError> {
        self.agree("enum", enumeration, Record::is_enum, |id, _| {
            self.enumerators(id)?.find(|(name, _)| *name == Some(variant.as_bytes())).map_or_else(
                || {
                    let name = format!("{enumeration}::{variant}");
                    Err(LookupError::NotFound { what: "enumerator", name })
                },
                |(_, value)| Ok(value),
            )
        })
    }

    /// All enumerators of an enum with their values, in the order of the source. Names are ASCII in a real kernel.
    pub fn enum_variants(&self, enumeration: &str) -> Result<Vec<(&str, i64)>, LookupError> {
        self.agree("enum", enumeration, Record::is_enum, |id, _| {
            self.enumerators(id)?
                .map(|(name, value)| {
                    let name = name.and_then(|name| std::str::from_utf8(name).ok());
                    let why = "an enumerator has no readable name";
                    Ok((name.ok_or(LookupError::Malformed { id, why })?, value))
                })
                .collect()
        })
    }

    fn enumerators(&self, id: u32) -> Result<impl Iterator<Item = (Option<&[u8]>, i64)>, LookupError> {
        let (record, tail) = self.record(id)?;
        let wide = record.kind == KIND_ENUM64;
        let step = if wide { ENUMERATOR64_BYTES } else { ENUMERATOR_BYTES };
        Ok(tail.chunks_exact(step).map(move |entry| {
            let at = |offset| word(entry, offset).unwrap_or_default();
            let value = if wide {
                ((u64::from(at(8)) << 32) | u64::from(at(4))).cast_signed()
            } else if record.flag {
                i64::from(at(4).cast_signed())
            } else {
                i64::from(at(4))
            };
            (self.string(at(0)), value)
        }))
    }

    /// The answer that all types of this name and kind agree on.
    fn agree<T: PartialEq>(
        &self,
        what: &'static str,
        name: &str,
        of: impl Fn(&Record) -> bool,
        mut answer: impl FnMut(u32, &Record) -> Result<T, LookupError>,
    ) -> Result<T, LookupError> {
        let mut agreed = None;
        let mut count = 0;
        for id in self.named(name) {
            let (record, _) = self.record(id)?;
            if !of(&record) {
                continue;
            }
            count += 1;
            if count > MAX_NAMESAKES {
                return Err(LookupError::Malformed { id, why: "an absurd number of types share its name" });
            }
            let this = answer(id, &record);
            match &agreed {
                None => agreed = Some(this),
                Some(first) if *first == this => {}
                Some(_) => return Err(LookupError::Ambiguous { what, name: name.to_owned(), count }),
            }
        }
        agreed.unwrap_or_else(|| Err(LookupError::NotFound { what, name: name.to_owned() }))
    }

    /// The ids of all types with this name, the module's own before the base's.
    fn named(&self, name: &str) -> Box<dyn Iterator<Item = u32> + '_> {
        let wanted = name.as_bytes().to_vec();
        let candidates: Box<dyn Iterator<Item = u32> + '_> =
            if self.expected.has(names::beginning(name.as_bytes())) {
                Box::new(self.names.chain(names::hash(name.as_bytes())))
            } else {
                Box::new((0..self.offsets.len() as u32).rev())
            };
        let own = candidates.filter_map(move |number| {
            let record = Record::read(self.bytes.get(*self.offsets.get(number as usize)? as usize..)?)?;
            let is_looked_up = record.name != 0 && record.shape()?.is_looked_up;
            (is_looked_up && self.is_called(record.name, &wanted))
                .then(|| self.first_id.saturating_add(number))
        });
        match &self.base {
            Some(base) => Box::new(own.chain(base.named(name))),
            None => Box::new(own),
        }
    }

    /// A type's record and the bytes that follow it.
    fn record(&self, id: u32) -> Result<(Record, &[u8]), LookupError> {
        let missing = || LookupError::Malformed { id, why: "it is referred to but not there" };
        let Some(number) = id.checked_sub(self.first_id) else {
            return self.base.as_ref().ok_or_else(missing)?.record(id);
        };
        let offset = *self.offsets.get(number as usize).ok_or_else(missing)? as usize;
        let bytes = self.bytes.get(offset..).ok_or_else(missing)?;
        let record = Record::read(bytes).ok_or_else(missing)?;
        let end = RECORD_BYTES + record.tail_bytes().ok_or_else(missing)?;
        Ok((record, bytes.get(RECORD_BYTES..end).ok_or_else(missing)?))
    }

    /// One more than the last id.
    fn end_id(&self) -> u32 {
        self.first_id.saturating_add(self.offsets.len() as u32)
    }

    fn end_string(&self) -> u32 {
        self.first_string.saturating_add(self.strings.len() as u32)
    }

    /// The strings from `offset` on.
    fn string_from(&self, offset: u32) -> Option<&[u8]> {
        match offset.checked_sub(self.first_string) {
            Some(own) => {
                self.bytes.get(self.strings.clone())?.get(own as usize..).filter(|rest| !rest.is_empty())
            }
            None => self.base.as_ref()?.string_from(offset),
        }
    }

    /// The name at `offset`; none if it is empty, too long or missing.
    fn string(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.string_from(offset)?;
        let length = rest.iter().take(MAX_NAME_BYTES + 1).position(|byte| *byte == 0)?;
        rest.get(..length).filter(|name| !name.is_empty())
    }

    fn is_called(&self, offset: u32, name: &[u8]) -> bool {
        self.string_from(offset)
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|after| after.first() == Some(&0))
    }
}

/// The most steps of one query. The largest struct or enum of a kernel has a few thousand parts; hostile BTF can nest
/// parts without end.
#[derive(Debug)]
struct Budget(u32);

impl Budget {
    fn new() -> Self {
        Self(1 << 20)
    }

    fn spend(&mut self, id: u32) -> Result<(), LookupError> {
        let why = "it leads to an absurd number of others, or to itself";
        self.0 = self.0.checked_sub(1).ok_or(LookupError::Malformed { id, why })?;
        Ok(())
    }
}
