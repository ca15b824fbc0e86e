//! Memory of the kernel's that this process reads in place.

#![expect(unsafe_code, reason = "std has no mappings")]

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    path::Path,
    ptr::NonNull,
};

use bytes::Bytes;

/// A mapping for reads.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: it owns the mapping and only reads it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `sharing`: `MAP_SHARED` or `MAP_PRIVATE`. `bytes` is not 0.
    pub(super) fn of(fd: BorrowedFd<'_>, bytes: usize, sharing: libc::c_int) -> io::Result<Self> {
        let fd = fd.as_raw_fd();
        // SAFETY: the kernel chooses the place, and the descriptor is open.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, sharing, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("the mapping lies at 0"))?;
        Ok(Self { start, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A word as it is now; none beyond the end, or at an offset that is no multiple of its size.
    pub(super) fn word(&self, offset: usize) -> Option<u64> {
        if !offset.is_multiple_of(size_of::<u64>()) || offset.checked_add(size_of::<u64>())? > self.bytes {
            return None;
        }
        // SAFETY: the word lies within the mapping, which lives as long as `self` and is aligned to a page. The read is
        // volatile because others may write it meanwhile.
        Some(unsafe { self.start.byte_add(offset).cast::<u64>().read_volatile() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// A part of the kernel that never changes.
struct Immutable(Mapping);

impl AsRef<[u8]> for Immutable {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the bytes lie within the mapping, which lives as long as `self`, and nothing writes them.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().cast(), self.0.bytes) }
    }
}

/// A file of sysfs whose content never changes, in place; `None` elsewhere, and where the kernel does not allow it.
///
/// It allows vmlinux's BTF since 6.16 (`btf_sysfs_vmlinux_mmap`, `kernel/bpf/sysfs_btf.c`), which saves a copy of 5 MB.
pub(super) fn immutable(path: &Path, size: usize) -> Option<Bytes> {
    let file = File::open(path).ok()?;
    // Elsewhere, others could write or truncate the file.
    let mapping = is_on_sysfs(&file).then(|| Mapping::of(file.as_fd(), size, libc::MAP_PRIVATE));
    Some(Bytes::from_owner(Immutable(mapping?.ok()?)))
}

fn is_on_sysfs(file: &File) -> bool {
    // SAFETY: any bytes are a value of this type, which consists of numbers.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the answer has room.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut answer) };
    status == 0 && answer.f_type == libc::SYSFS_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_the_words_of_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("btf");
        std::fs::write(&path, b"0123456789abcdef").unwrap();
        assert!(immutable(&path, 16).is_none(), "a file that others can write");
        let file = File::open(&path).unwrap();
        let mapping = Mapping::of(file.as_fd(), 16, libc::MAP_PRIVATE).unwrap();
        assert_eq!(mapping.word(8), Some(u64::from_ne_bytes(*b"89abcdef")));
        assert_eq!([mapping.word(4), mapping.word(16), mapping.word(usize::MAX - 7)], [None; 3]);
        assert_eq!(*Immutable(mapping).as_ref(), *b"0123456789abcdef");
    }
}
