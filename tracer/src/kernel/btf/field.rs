//! The offset of a member in a struct: paths through nested, anonymous and repeated members.

use std::cell::RefCell;

use crate::kernel::btf::{
    Btf, Budget,
    error::LookupError,
    format::{
        KIND_ARRAY, KIND_ENUM, KIND_ENUM64, KIND_FLOAT, KIND_INT, KIND_PTR, MEMBER_BYTES, Record, word,
    },
};

/// viptrace runs only where pointers have 64 bits; BTF does not record their size.
const POINTER_BYTES: u64 = 8;

/// How deep anonymous structs and unions may nest. `sk_buff` has three levels.
const MAX_ANONYMOUS_DEPTH: u8 = 16;

/// Where a member lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// From the start of the struct that the path began with. Of a bit-field: of the word that holds it.
    pub offset_bytes: u32,
    /// Of a whole array if the path ends in one without an index. Of a bit-field: of the word that holds it,
    /// 1, 2, 4 or 8.
    pub size_bytes: u32,
    /// Set if the member is a bit-field.
    pub bits: Option<Bits>,
}

/// Which bits of a word are a bit-field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// From the word's first bit: the least significant on little-endian machines, the most on others.
    pub offset: u8,
    /// How many; at least 1.
    pub size: u8,
}

/// A member as its struct lists it.
#[derive(Clone, Copy)]
struct Member {
    type_id: u32,
    /// From the start of the struct that was searched.
    bit_offset: u64,
    /// Of a bit-field; 0 for others.
    bit_size: u8,
}

impl Btf {
    /// Finds `path` in the struct, union or typedef `root`.
    ///
    /// A path is names joined by dots. Members of anonymous structs and unions are named directly, as in C; an
    /// element of an array has its index in brackets: `tuplehash[1].tuple.src.u3`.
    pub fn member(&self, root: &str, path: &str) -> Result<Field, LookupError> {
        let budget = RefCell::new(Budget::new());
        let walk = |id| Walk { btf: self, root, path, budget: &mut budget.borrow_mut() }.run(id);
        match self.agree("struct", root, Record::is_aggregate, |id, _| walk(id)) {
            Err(LookupError::NotFound { what: "struct", name }) => {
                self.agree("struct", root, Record::is_alias, |id, _| walk(id)).map_err(|error| match error {
                    LookupError::NotFound { .. } => LookupError::NotFound { what: "struct", name },
                    other => other,
                })
            }
            found => found,
        }
    }

    /// The type behind typedefs and qualifiers: its id and record; none for `void`.
    pub(super) fn resolve(&self, id: u32, budget: &mut Budget) -> Result<Option<(u32, Record)>, LookupError> {
        let mut id = id;
        while id != 0 {
            budget.spend(id)?;
            let (record, _) = self.record(id)?;
            if !record.is_alias() {
                return Ok(Some((id, record)));
            }
            id = record.size_or_type;
        }
        Ok(None)
    }

    /// The element type and the length, if `id` is an array.
    pub(super) fn array(&self, id: u32, budget: &mut Budget) -> Result<Option<(u32, u32)>, LookupError> {
        let Some((id, Record { kind: KIND_ARRAY, .. })) = self.resolve(id, budget)? else { return Ok(None) };
        let (_, tail) = self.record(id)?;
        Ok(Some((word(tail, 0).unwrap_or_default(), word(tail, 8).unwrap_or_default())))
    }

    fn size_bytes(&self, id: u32, budget: &mut Budget) -> Result<u64, LookupError> {
        let malformed = |why| LookupError::Malformed { id, why };
        let mut count = 1u64;
        let mut element = id;
        while let Some((next, length)) = self.array(element, budget)? {
            count = count.checked_mul(u64::from(length)).ok_or(malformed("its size is absurd"))?;
            element = next;
        }
        let size = match self.resolve(element, budget)? {
            Some((_, Record { kind: KIND_PTR, .. })) => POINTER_BYTES,
            Some((_, record))
                if record.is_aggregate()
                    || matches!(record.kind, KIND_INT | KIND_ENUM | KIND_ENUM64 | KIND_FLOAT) =>
            {
                u64::from(record.size_or_type)
            }
            _ => return Err(malformed("it has no size")),
        };
        count.checked_mul(size).ok_or(malformed("its size is absurd"))
    }
}

/// One walk along a path.
struct Walk<'a> {
    btf: &'a Btf,
    root: &'a str,
    path: &'a str,
    budget: &'a mut Budget,
}

impl Walk<'_> {
    fn run(&mut self, id: u32) -> Result<Field, LookupError> {
        let mut at = Member { type_id: id, bit_offset: 0, bit_size: 0 };
        let mut name_before = self.root;
        for step in self.path.split('.') {
            let (name, indexes) = self.step(step)?;
            let aggregate = self.aggregate(at.type_id, name_before)?;
            let member = self.find(aggregate, name.as_bytes(), 0)?.ok_or_else(|| LookupError::NoMember {
                root: self.root.to_owned(),
                member: name.to_owned(),
                path: self.path.to_owned(),
            })?;
            at = Member { bit_offset: plus(id, at.bit_offset, member.bit_offset)?, ..member };
            for index in indexes {
                at = self.element(at, name, index)?;
            }
            name_before = name;
        }
        self.field(at)
    }

    /// `name[1][2]` as the name and its indexes.
    fn step<'s>(&self, step: &'s str) -> Result<(&'s str, Vec<u32>), LookupError> {
        let bad = || LookupError::BadPath { path: self.path.to_owned() };
        let (name, rest) = step.split_once('[').unwrap_or((step, ""));
        if name.is_empty() {
            return Err(bad());
        }
        let indexes = match rest {
            "" if step.len() == name.len() => Vec::new(),
            rest => rest
                .strip_suffix(']')
                .ok_or_else(bad)?
                .split("][")
                .map(|index| index.parse().map_err(|_| bad()))
                .collect::<Result<_, _>>()?,
        };
        Ok((name, indexes))
    }

    /// The struct or union behind a type, for a step into it.
    fn aggregate(&mut self, id: u32, member: &str) -> Result<u32, LookupError> {
        let (root, member, path) = (self.root.to_owned(), member.to_owned(), self.path.to_owned());
        match self.btf.resolve(id, self.budget)? {
            Some((id, record)) if record.is_aggregate() => Ok(id),
            Some((_, Record { kind: KIND_PTR, .. })) => {
                Err(LookupError::ThroughPointer { root, member, path })
            }
            _ => Err(LookupError::NoAggregate { root, member, path }),
        }
    }

    /// Searches for `name` in the struct or union `id`, and in its anonymous members.
    fn find(&mut self, id: u32, name: &[u8], depth: u8) -> Result<Option<Member>, LookupError> {
        let (record, tail) = self.btf.record(id)?;
        for entry in tail.chunks_exact(MEMBER_BYTES) {
            self.budget.spend(id)?;
            let at = |offset| word(entry, offset).unwrap_or_default();
            let (called, type_id, place) = (at(0), at(4), at(8));
            let (bit_offset, bit_size) =
                if record.flag { (place & 0x00ff_ffff, (place >> 24) as u8) } else { (place, 0) };
            let member = Member { type_id, bit_offset: u64::from(bit_offset), bit_size };
            if called != 0 {
                if self.btf.is_called(called, name) {
                    return Ok(Some(member));
                }
            } else if depth < MAX_ANONYMOUS_DEPTH
                && let Some((inner, record)) = self.btf.resolve(type_id, self.budget)?
                && record.is_aggregate()
                && let Some(found) = self.find(inner, name, depth + 1)?
            {
                let bit_offset = plus(id, member.bit_offset, found.bit_offset)?;
                return Ok(Some(Member { bit_offset, ..found }));
            }
        }
        Ok(None)
    }

    fn element(&mut self, at: Member, member: &str, index: u32) -> Result<Member, LookupError> {
        let (root, member, path) = (self.root.to_owned(), member.to_owned(), self.path.to_owned());
        let Some((type_id, length)) = self.btf.array(at.type_id, self.budget)? else {
            return Err(LookupError::NoAggregate { root, member, path });
        };
        // A length of 0 is a flexible array, whose length only the kernel knows.
        if length != 0 && index >= length {
            return Err(LookupError::IndexOutside { root, member, path, index, length });
        }
        let size = self.btf.size_bytes(type_id, self.budget)?;
        let bits = size.checked_mul(8).and_then(|bits| bits.checked_mul(u64::from(index)));
        let bits = bits.ok_or(LookupError::Malformed { id: type_id, why: "its size is absurd" })?;
        Ok(Member { type_id, bit_offset: plus(type_id, at.bit_offset, bits)?, bit_size: 0 })
    }

    fn field(&mut self, at: Member) -> Result<Field, LookupError> {
        let malformed = |why| LookupError::Malformed { id: at.type_id, why };
        let narrow =
            |number: u64| u32::try_from(number).map_err(|_| malformed("its offset or size is absurd"));
        let size = self.btf.size_bytes(at.type_id, self.budget)?;
        let (first_bit, bit_size) = self.bit_field(at, size)?;
        if bit_size == 0 {
            if !first_bit.is_multiple_of(8) {
                return Err(malformed("a member that is not a bit-field starts within a byte"));
            }
            return Ok(Field { offset_bytes: narrow(first_bit / 8)?, size_bytes: narrow(size)?, bits: None });
        }
        // The smallest aligned word that holds all bits, of the declared type's size at least.
        let mut word_bits = size.clamp(1, 8).next_power_of_two() * 8;
        loop {
            let start = first_bit - first_bit % word_bits;
            if first_bit + u64::from(bit_size) <= start + word_bits {
                return Ok(Field {
                    offset_bytes: narrow(start / 8)?,
                    size_bytes: narrow(word_bits / 8)?,
                    bits: Some(Bits { offset: (first_bit - start) as u8, size: bit_size }),
                });
            }
            if word_bits == 64 {
                return Err(malformed("a bit-field crosses 64-bit words"));
            }
            word_bits *= 2;
        }
    }

    /// The first bit, and the number of bits if it is a bit-field (else 0).
    ///
    /// Structs without the kind flag, from before Linux 5.0, keep that in the integer's own type.
    fn bit_field(&mut self, at: Member, size: u64) -> Result<(u64, u8), LookupError> {
        if at.bit_size != 0 {
            return Ok((at.bit_offset, at.bit_size));
        }
        if let Some((id, Record { kind: KIND_INT, .. })) = self.btf.resolve(at.type_id, self.budget)? {
            let (_, tail) = self.btf.record(id)?;
            let encoding = word(tail, 0).unwrap_or_default();
            let (shift, bits) = (((encoding >> 16) & 0xff) as u8, encoding as u8);
            let whole =
                shift == 0 && u64::from(bits) == size.saturating_mul(8) && at.bit_offset.is_multiple_of(8);
            if !whole && bits != 0 {
                return Ok((plus(id, at.bit_offset, u64::from(shift))?, bits));
            }
        }
        Ok((at.bit_offset, 0))
    }
}

/// The sum of two offsets in bits, far below where later sums could overflow.
fn plus(id: u32, one: u64, other: u64) -> Result<u64, LookupError> {
    one.checked_add(other)
        .filter(|sum| *sum < 1 << 40)
        .ok_or(LookupError::Malformed { id, why: "its offset is absurd" })
}
