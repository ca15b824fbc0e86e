//! Ends of connections in numbers.
//!
//! The verifier checks a function with a C name by itself, and such a function takes numbers, not pointers, on every kernel. Two long
//! words also compare in fewer instructions than four short ones. The object is built for little-endian machines.

use tracer_ebpf::End;

/// An [`End`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Words {
    /// The first half of the address.
    pub(crate) low: u64,
    pub(crate) high: u64,
    /// The port, and in the next 16 bits the protocol.
    pub(crate) port: u64,
}

impl Words {
    #[inline(always)]
    pub(crate) fn v4(address: u32) -> Self {
        Self { low: address.into(), high: 0, port: 0 }
    }

    #[inline(always)]
    pub(crate) fn v6([low, high]: [u64; 2]) -> Self {
        Self { low, high, port: 0 }
    }

    #[inline(always)]
    pub(crate) fn with_port(self, port: u16, protocol: u8) -> Self {
        Self { port: u64::from(port) | u64::from(protocol) << 16, ..self }
    }

    #[inline(always)]
    pub(crate) fn of(end: &End) -> Self {
        let [a, b, c, d] = end.address.map(u64::from);
        Self { low: a | b << 32, high: c | d << 32, port: port_of(end) }
    }

    /// The same of an end whose memory is aligned as words are.
    ///
    /// # Safety
    ///
    /// `end` must be valid for reads, and aligned to 8.
    #[expect(clippy::cast_ptr_alignment, reason = "the caller promises it")]
    #[inline(always)]
    pub(crate) unsafe fn at(end: *const End) -> Self {
        // SAFETY: as the caller promises. The address comes first.
        let ([low, high], port) = unsafe { (*end.cast::<[u64; 2]>(), port_of(&*end)) };
        Self { low, high, port }
    }

    /// Writes the end into memory that is aligned as words are.
    ///
    /// # Safety
    ///
    /// `to` must be valid for the write, and aligned to 8.
    #[expect(clippy::cast_ptr_alignment, reason = "the caller promises it")]
    #[inline(always)]
    pub(crate) unsafe fn write(self, to: *mut End) {
        // SAFETY: as the caller promises. The address comes first.
        unsafe {
            to.cast::<[u64; 2]>().write([self.low, self.high]);
            (&raw mut (*to).port).cast::<u32>().write(self.port as u32);
        }
    }

    #[inline(always)]
    pub(crate) fn end(self) -> End {
        End {
            address: address(self.low, self.high),
            port: self.port as u16,
            protocol: (self.port >> 16) as u16,
        }
    }
}

#[inline(always)]
fn port_of(end: &End) -> u64 {
    u64::from(end.port) | u64::from(end.protocol) << 16
}

#[inline(always)]
pub(crate) fn address(low: u64, high: u64) -> [u32; 4] {
    [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
}
