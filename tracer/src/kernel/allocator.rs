//! Bounds the freed memory that the C library's allocator keeps. The page of a list or the rules of a node are megabytes
//! for a moment, between objects that stay for months.
//!
//! The unsafe code is two calls without pointers.

#![expect(unsafe_code, reason = "the standard library cannot configure its allocator")]

/// Larger blocks are mapped on their own, and returned when they are freed. Without a fixed value the allocator raises
/// its own to the size of the largest freed block (up to 32 MiB), and keeps such blocks between small ones.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 256 << 10;
/// The heaps that threads share. By default each thread gets its own, up to eight for each CPU of the node, and keeps its
/// free memory there.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Makes the allocator return large blocks, and keep free memory in two places only. Call it before the first thread
/// starts. Does nothing with another C library than glibc.
pub(crate) fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_MMAP_THRESHOLD, LARGE_BYTES), (libc::M_ARENA_MAX, HEAPS)] {
        // SAFETY: mallopt takes numbers, and may be called at any time. If it refuses, the default stays.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns the free pages to the kernel. Takes some milliseconds with 100 MB.
pub(crate) fn return_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, locks each heap, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// Set in the process that measures.
    const CHILD: &str = "VIPTRACE_TEST_ALLOCATOR";

    fn resident_kib() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    }

    /// The memory of a process that other tests do not share.
    #[test]
    #[cfg_attr(not(target_env = "gnu"), ignore = "the bounds are those of glibc")]
    fn freed_memory_between_objects_that_stay_is_returned() {
        let name = "kernel::allocator::tests::freed_memory_between_objects_that_stay_is_returned";
        if std::env::var_os(CHILD).is_none() {
            let program = std::env::current_exe().unwrap();
            let output = Command::new(program).args(["--exact", name]).env(CHILD, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        keep_little();
        let before = resident_kib();
        let mut kept = Vec::new();
        for _ in 0..8 {
            // A page of a list in a buffer that grows, and small blocks around it.
            let mut page = Vec::new();
            for _ in 0..1024 {
                page.extend([1_u8; 4096]);
                kept.push(vec![1_u8; 100]);
            }
        }
        // 18 MiB of small blocks below one that stays.
        let small: Vec<Vec<u8>> = (0..160_000).map(|_| vec![1; 100]).collect();
        kept.push(vec![1; 100]);
        drop(small);
        return_free_pages();
        let more = resident_kib().saturating_sub(before);
        assert!(more < 8192, "{more} KiB more");
        assert!(kept.iter().all(|block| block.len() == 100));
    }
}
