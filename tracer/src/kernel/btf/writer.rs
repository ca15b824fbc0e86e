//! Writes BTF, for tests: what this writes, the reader must read.

use super::format::{
    KIND_ARRAY, KIND_ENUM, KIND_ENUM64, KIND_FUNC, KIND_FUNC_PROTO, KIND_INT, KIND_PTR, KIND_STRUCT,
    KIND_TYPEDEF, KIND_UNION,
};

/// A BTF blob being written. Each method that adds a type returns its id.
#[derive(Debug)]
pub(in crate::kernel) struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    next_id: u32,
    first_string: u32,
}

/// A member to write: name ("" for anonymous), type id, offset in bits, size in bits if it is a bit-field.
pub(in crate::kernel) type Member<'a> = (&'a str, u32, u32, u8);

impl Writer {
    pub(in crate::kernel) fn new() -> Self {
        Self { types: Vec::new(), strings: vec![0], next_id: 1, first_string: 0 }
    }

    /// A module's BTF on top of this one, as it is now.
    pub(in crate::kernel) fn split(&self) -> Self {
        let first_string = self.first_string + self.strings.len() as u32;
        Self { types: Vec::new(), strings: Vec::new(), next_id: self.next_id, first_string }
    }

    pub(in crate::kernel) fn finish(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(0xeb9f_u16.to_ne_bytes());
        bytes.extend([1, 0]);
        let types = self.types.len() as u32;
        for word in [24, 0, types, types, self.strings.len() as u32] {
            bytes.extend(u32::to_ne_bytes(word));
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }

    pub(in crate::kernel) fn int(&mut self, name: &str, size: u32) -> u32 {
        self.add(name, KIND_INT, 0, false, size, &[size * 8])
    }

    /// An integer that is itself a bit-field, as written before Linux 5.0.
    pub(in crate::kernel) fn narrow_int(&mut self, name: &str, size: u32, shift: u32, bits: u32) -> u32 {
        self.add(name, KIND_INT, 0, false, size, &[shift << 16 | bits])
    }

    pub(in crate::kernel) fn pointer(&mut self, to: u32) -> u32 {
        self.add("", KIND_PTR, 0, false, to, &[])
    }

    pub(in crate::kernel) fn array(&mut self, of: u32, length: u32) -> u32 {
        self.add("", KIND_ARRAY, 0, false, 0, &[of, of, length])
    }

    /// A typedef, or with the kind given another alias.
    pub(in crate::kernel) fn typedef(&mut self, name: &str, to: u32) -> u32 {
        self.alias(KIND_TYPEDEF, name, to)
    }

    pub(in crate::kernel) fn alias(&mut self, kind: u8, name: &str, to: u32) -> u32 {
        self.add(name, kind, 0, false, to, &[])
    }

    pub(in crate::kernel) fn structure(&mut self, name: &str, size: u32, members: &[Member<'_>]) -> u32 {
        self.aggregate(KIND_STRUCT, name, size, members)
    }

    pub(in crate::kernel) fn union(&mut self, name: &str, size: u32, members: &[Member<'_>]) -> u32 {
        self.aggregate(KIND_UNION, name, size, members)
    }

    fn aggregate(&mut self, kind: u8, name: &str, size: u32, members: &[Member<'_>]) -> u32 {
        let flag = members.iter().any(|(.., bits)| *bits != 0);
        let mut words = Vec::new();
        for (name, type_id, offset, bits) in members {
            words.extend([self.string(name), *type_id, u32::from(*bits) << 24 | offset]);
        }
        self.add(name, kind, members.len() as u32, flag, size, &words)
    }

    pub(in crate::kernel) fn enumeration(
        &mut self,
        name: &str,
        signed: bool,
        variants: &[(&str, i32)],
    ) -> u32 {
        let words: Vec<u32> =
            variants.iter().flat_map(|(name, value)| [self.string(name), value.cast_unsigned()]).collect();
        self.add(name, KIND_ENUM, variants.len() as u32, signed, 4, &words)
    }

    pub(in crate::kernel) fn enumeration64(&mut self, name: &str, variants: &[(&str, i64)]) -> u32 {
        let mut words = Vec::new();
        for (name, value) in variants {
            let value = value.cast_unsigned();
            words.extend([self.string(name), value as u32, (value >> 32) as u32]);
        }
        self.add(name, KIND_ENUM64, variants.len() as u32, true, 8, &words)
    }

    pub(in crate::kernel) fn prototype(&mut self, returns: u32, parameters: &[(&str, u32)]) -> u32 {
        let words: Vec<u32> =
            parameters.iter().flat_map(|(name, type_id)| [self.string(name), *type_id]).collect();
        self.add("", KIND_FUNC_PROTO, parameters.len() as u32, false, returns, &words)
    }

    pub(in crate::kernel) fn function(&mut self, name: &str, prototype: u32) -> u32 {
        self.add(name, KIND_FUNC, 1, false, prototype, &[])
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let offset = self.first_string + self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        offset
    }

    fn add(&mut self, name: &str, kind: u8, count: u32, flag: bool, size_or_type: u32, words: &[u32]) -> u32 {
        let name = self.string(name);
        let info = u32::from(flag) << 31 | u32::from(kind) << 24 | count;
        for word in [name, info, size_or_type].iter().chain(words) {
            self.types.extend(word.to_ne_bytes());
        }
        self.next_id += 1;
        self.next_id - 1
    }
}
