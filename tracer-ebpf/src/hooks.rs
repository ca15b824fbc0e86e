//! The facts about a hook. The table of all hooks, one row each, is in `hooks/table.rs`.
//!
//! Constant data for both halves: the programs name a hook in their records; user space plans, attaches, decodes and
//! reports by the row. Nothing here decides anything.

mod cookie;
mod table;

use crate::Kind;
pub use cookie::Cookie;
pub use table::Hook;

/// Every fact about one hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookSpec {
    pub hook: Hook,
    /// The kernel's own name of the function or tracepoint. Recordings store it.
    pub symbol: &'static str,
    pub attach: Attach,
    pub need: Need,
    /// The module that usually provides the function.
    pub module: Option<&'static str>,
    /// Parameters by name and position that the programs rely on, checked against BTF where it has the function.
    pub arguments: &'static [(&'static str, usize)],
    /// Fields of the kernel's structures, by the names of their offsets, without which the records could not be
    /// distinguished.
    pub fields: &'static [&'static [&'static str]],
    /// The kinds of records that the programs write.
    pub records: &'static [Kind],
    /// The cost of the hook's absence, in words for an operator.
    pub absence: &'static str,
    /// The events that are not observed where the kernel skips the programs, in the plural; `None` where most runs
    /// report nothing, so that a skipped one means little.
    pub skipped: Option<&'static str>,
}

/// How programs reach a hook, and their names in the BPF object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// At a function's entry: by fentry where the kernel allows it, else by kprobe.
    Entry {
        kprobe: &'static str,
        /// `None` for a function with a variable number of arguments, which fentry refuses.
        fentry: Option<Copies>,
        /// The part of the function that is entered instead where the compiler split it: callers in the same module
        /// then make the function's first test themselves. It has the function's arguments. Only a kprobe reaches it.
        split_part: Option<&'static str>,
        /// What the program that failing functions share does here; `None` for functions with programs of their own only.
        shared: Option<Cookie>,
    },
    /// At a function's return with its arguments: by fexit, else by a kprobe and a kretprobe joined by CPU and nesting
    /// depth.
    Return { kprobe: &'static str, kretprobe: &'static str, fexit: &'static str },
    /// A tracepoint's arguments as the kernel passes them; needs no tracefs.
    RawTracepoint(&'static str),
    /// Likewise; where BTF describes the tracepoint, its arguments have types that the verifier knows.
    TypedTracepoint { typed: &'static str, raw: &'static str },
    /// Loaded, attached to nothing and run at the request of user space.
    OnDemand(&'static str),
}

/// Programs that do the same on one hook. The kernel skips a program on a CPU that is running it already; a copy then
/// observes the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Attached where the kernel may preempt programs.
    pub programs: &'static [&'static str],
    /// How many of them are attached where only an interrupt can come between.
    pub unpreempted: usize,
    /// The program with which the first of them to run continues, by [`crate::map::CHOSEN`].
    pub chosen: Option<&'static str>,
}

impl Copies {
    /// The only program, of which there are no copies.
    const fn one(program: &'static [&'static str; 1]) -> Self {
        Self { programs: program, unpreempted: 1, chosen: None }
    }

    /// The copies to attach.
    pub fn attached(self, preempts_programs: bool) -> &'static [&'static str] {
        let count = if preempts_programs { self.programs.len() } else { self.unpreempted };
        self.programs.get(..count).unwrap_or(self.programs)
    }
}

impl Attach {
    const fn entry(kprobe: &'static str, fentry: &'static [&'static str; 1]) -> Self {
        Self::Entry { kprobe, fentry: Some(Copies::one(fentry)), split_part: None, shared: None }
    }

    /// Likewise, or by the program that such functions share.
    const fn shared(kprobe: &'static str, fentry: &'static [&'static str; 1], cookie: Cookie) -> Self {
        Self::Entry { kprobe, fentry: Some(Copies::one(fentry)), split_part: None, shared: Some(cookie) }
    }

    /// As [`Self::Entry::split_part`].
    pub const fn split_part(self) -> Option<&'static str> {
        match self {
            Self::Entry { split_part, .. } => split_part,
            _ => None,
        }
    }

    /// As [`Self::Entry::shared`].
    pub const fn cookie(self) -> Option<Cookie> {
        match self {
            Self::Entry { shared, .. } => shared,
            _ => None,
        }
    }

    /// In a word, for the cheaper way or for the other one.
    pub const fn as_str(self, is_by_fentry: bool) -> &'static str {
        match (self, is_by_fentry) {
            (Self::Entry { .. }, true) => "fentry",
            (Self::Entry { .. }, false) => "kprobe",
            (Self::Return { .. }, true) => "fexit",
            (Self::Return { .. }, false) => "kprobe+kretprobe",
            (Self::TypedTracepoint { .. }, true) => "typed tracepoint",
            (Self::RawTracepoint(_), _) | (Self::TypedTracepoint { .. }, false) => "raw tracepoint",
            (Self::OnDemand(_), _) => "on demand",
        }
    }
}

/// Which traces attach a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Tracing is pointless without it.
    Essential,
    /// On a path that only failures take, so in every trace.
    Failure,
    /// On the path of healthy connections, so not in a lean trace.
    Full,
    /// Each decision as it is taken: only where a target narrows the trace.
    Targeted,
}

/// Without this module there is no virtual server, and nothing to observe.
pub const IPVS: &str = "ip_vs";

impl Hook {
    /// The hook with this number, if there is one. The numbering has gaps.
    pub fn from_number(number: u8) -> Option<Self> {
        BY_NUMBER.get(usize::from(number)).copied().flatten()
    }

    /// The hook of this function or tracepoint, or the first of them.
    pub fn from_symbol(symbol: &str) -> Option<Self> {
        Self::ALL.iter().find(|hook| hook.has_name(symbol)).copied()
    }

    /// Whether recordings know the hook by this name.
    pub fn has_name(self, symbol: &str) -> bool {
        // In older ones a tracepoint is both of these.
        let is_older =
            symbol == "inet_sock_set_state" && matches!(self, Self::SockEstablished | Self::SockClosed);
        is_older || self.symbol() == symbol
    }

    /// The kernel's own name of the function or tracepoint.
    pub const fn symbol(self) -> &'static str {
        self.spec().symbol
    }

    /// Whether a netfilter rule rejects with an ICMP error here, in either family.
    pub const fn is_unreach(self) -> bool {
        matches!(self, Self::SendUnreach | Self::SendUnreach6)
    }

    /// Whether NAT forwards an ICMP error here, in either family.
    pub const fn is_icmp_error(self) -> bool {
        matches!(self, Self::IcmpError | Self::IcmpError6)
    }

    /// Whether a netfilter rule rejects with a RST of its own here, in either family.
    pub const fn is_forged_reset(self) -> bool {
        matches!(self, Self::NfSendReset | Self::NfSendReset6)
    }
}

/// Room for every hook's number in per-hook arrays.
pub const HOOK_SLOTS: usize = 32;
/// The slot of the sum of lost records over all hooks.
pub const LOST_ANY: usize = HOOK_SLOTS - 1;

/// Every number is below [`LOST_ANY`], or this does not build.
const BY_NUMBER: [Option<Hook>; LOST_ANY] = {
    let mut hooks = [None; LOST_ANY];
    let mut next = 0;
    while next < Hook::ALL.len() {
        hooks[Hook::ALL[next] as usize] = Some(Hook::ALL[next]);
        next += 1;
    }
    hooks
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_is_found_by_its_number_and_by_its_symbol() {
        for hook in Hook::ALL {
            assert_eq!(hook.spec().hook, *hook);
            assert_eq!(Hook::from_number(*hook as u8), Some(*hook));
            assert_eq!(Hook::from_symbol(hook.symbol()), Some(*hook));
        }
        assert_eq!(Hook::from_number(21), None);
        assert_eq!(Hook::from_number(u8::MAX), None);
    }

    #[test]
    fn a_cookie_names_its_hook_and_the_argument_that_btf_confirms() {
        for hook in Hook::ALL {
            let Some(cookie) = hook.spec().attach.cookie() else { continue };
            let number = cookie.at(*hook);
            assert_eq!(number & Cookie::HOOK_MASK, *hook as u64);
            let subject = number >> Cookie::SUBJECT_SHIFT & Cookie::WORD_MASK;
            let named = hook.spec().arguments.iter().find(|(_, position)| *position as u64 == subject);
            let (name, _) = named.unwrap();
            assert_eq!(*name == "ct", number & Cookie::OF_ENTRY != 0, "{hook:?}");
        }
    }
}
