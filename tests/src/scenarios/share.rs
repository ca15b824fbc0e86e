//! The kernels on which a scenario runs by default, so that a run takes minutes.
//!
//! Every scenario runs on one kernel, in its first variant. A second kernel runs the scenarios whose verdicts depend on
//! the dataplane, and every mode and family. The oldest and the newest kernel run the scenarios in which they differ.

use crate::dataplane::Variant;

/// Which of a scenario's variants run on a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// The first of its variants.
    First,
    /// iptables mode over IPv4, if it is a variant.
    Default,
    All,
}

/// A kernel's series, and the variants that it runs.
type Share = (&'static str, Which);

/// The kernels that run a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Shares(&'static [Share]);

const WHOLE: Share = ("6.12", Which::First);
const NEWEST: Share = ("7.2", Which::First);
const OLDEST: Share = ("5.10", Which::First);
const IPTABLES_6_1: Share = ("6.1", Which::Default);
const MODES_6_1: Share = ("6.1", Which::All);
/// Its structures have other offsets than any other kernel's.
const REAL_TIME: Share = ("6.12-rt", Which::Default);

/// Every scenario runs on this kernel.
pub(super) const ONE_KERNEL: Shares = Shares(&[WHOLE]);
/// For verdicts that depend on the dataplane.
pub(super) const TWO_KERNELS: Shares = Shares(&[WHOLE, IPTABLES_6_1]);
/// For kernels that preempt eBPF programs.
pub(super) const NEWER_KERNELS: Shares = Shares(&[WHOLE, NEWEST]);
/// For kernels that preempt eBPF programs, and for verdicts that depend on the dataplane.
pub(super) const NO_OLD_KERNEL: Shares = Shares(&[WHOLE, NEWEST, IPTABLES_6_1]);
/// For scenarios in which the oldest and the newest kernel differ.
pub(super) const ENDS: Shares = Shares(&[WHOLE, NEWEST, OLDEST]);
pub(super) const EVERY_KERNEL: Shares = Shares(&[WHOLE, NEWEST, OLDEST, IPTABLES_6_1]);
/// For scenarios that also differ between modes and families.
pub(super) const EVERY_KERNEL_AND_MODE: Shares = Shares(&[WHOLE, NEWEST, OLDEST, MODES_6_1]);
/// The same, and on a kernel with other structures.
pub(super) const EVERY_KIND_OF_KERNEL: Shares = Shares(&[WHOLE, NEWEST, OLDEST, MODES_6_1, REAL_TIME]);

impl Shares {
    /// The variants that this kernel runs.
    pub fn of(self, kernel: &str, variants: &'static [Variant]) -> Vec<Variant> {
        let which = self.0.iter().find(|(series, _)| *series == kernel).map(|(_, which)| *which);
        let is_run = |(number, variant): &(usize, &Variant)| match which {
            Some(Which::First) => *number == 0,
            Some(Which::Default) => **variant == Variant::DEFAULT,
            Some(Which::All) => true,
            None => false,
        };
        variants.iter().enumerate().filter(is_run).map(|(_, variant)| *variant).collect()
    }
}
