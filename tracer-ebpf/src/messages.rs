//! Conditions that a healthy run never meets, in words for a developer (`-vv`): aya-log's debug lines.
//!
//! Each is a function of its own, so that the programs stay short, and begins with the hook's number, by which user space
//! names it: a table of names would need pointers in the object's data, which cannot be loaded. Their level is read-only
//! data: where they are not read it is 0.

use aya_log_ebpf::debug;

/// Functions with names of their own, by which user space takes them out of the programs where nothing reads them
/// ([`tracer_ebpf::function::MESSAGES`]), and out of line for the verifier, too, which checks each by itself.
macro_rules! messages {
    ($($name:ident($hook:ident $(, $value:ident)?): $text:literal;)+) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $name($hook: u32 $(, $value: u32)?) -> u32 {
                debug!((), $text, $hook as u8 $(, $value as u16)?);
                0
            }
        )+
    };
}

messages! {
    no_room(hook): "{} no room for a record in the ring buffer; this CPU counts the next ones silently";
    unreadable(hook): "{} the kernel's memory cannot be read at the address that the function was called with";
    unknown_family(hook, family): "{} address family {} is neither IPv4 nor IPv6";
    not_begun(hook): "{} a call returned on a CPU where it had not begun";
    moved(hook): "{} a call moved to another CPU before it returned";
}
