//! The errors of BTF bytes, and of queries on them.

use thiserror::Error;

/// Why bytes are not BTF that this reader can use. Offsets are in bytes from the start of the input.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BtfError {
    /// Something extends beyond its container: the input, or its section.
    #[error("BTF {what} at offset {offset} needs {need} bytes, but only {have} are there")]
    Truncated { what: &'static str, offset: usize, need: usize, have: usize },
    #[error("BTF written in the other byte order: read it on a machine like the one it comes from")]
    ByteOrder,
    #[error("not BTF: it starts with {found:#06x} instead of 0xeb9f")]
    Magic { found: u16 },
    #[error("BTF version {found} is not known, only version 1 is")]
    Version { found: u8 },
    #[error("BTF header says it is {found} bytes long, less than the 24 it needs")]
    HeaderLength { found: u32 },
    #[error("BTF strings at offset {offset} do not {rule}")]
    Strings { offset: usize, rule: &'static str },
    #[error(
        "BTF type {id} at offset {offset} has the unknown kind {kind}: the kernel is newer than this reader"
    )]
    UnknownKind { id: u32, offset: usize, kind: u8 },
    #[error("BTF type {id} at offset {offset} has its name at {name}, outside of the strings")]
    NameOutside { id: u32, offset: usize, name: u32 },
    #[error("BTF is {bytes} bytes long, more than the 4 GiB that it can address")]
    TooLarge { bytes: usize },
}

/// Why a name could not be resolved to one certain answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    #[error("the kernel's BTF has no {what} `{name}`")]
    NotFound { what: &'static str, name: String },
    #[error("`{root}` has no `{member}` (looking for `{path}`)")]
    NoMember { root: String, member: String, path: String },
    #[error("the kernel's BTF has {count} different answers for {what} `{name}`")]
    Ambiguous { what: &'static str, name: String, count: usize },
    #[error("`{path}` of `{root}` goes through `{member}`, a pointer: an offset ends there")]
    ThroughPointer { root: String, member: String, path: String },
    #[error("`{path}` of `{root}` goes into `{member}`, which has no members")]
    NoAggregate { root: String, member: String, path: String },
    #[error("`{path}` of `{root}` takes element {index} of `{member}`, which has {length}")]
    IndexOutside { root: String, member: String, path: String, index: u32, length: u32 },
    #[error("`{path}` is not a member path: names joined by dots, each with an optional [index]")]
    BadPath { path: String },
    /// A type refers to one that is missing, or to itself, or is absurdly large. Such BTF is damaged or hostile.
    #[error("the kernel's BTF contradicts itself at type {id}: {why}")]
    Malformed { id: u32, why: &'static str },
}
