//! On which kernels a scenario runs where nothing else is asked for, so that a run takes minutes.
//!
//! Every scenario runs on one kernel, in the first of its variants; on another the verdicts that the dataplane gives rise
//! to, and every mode and family; on the others what they do otherwise than the kernels between them.

use crate::dataplane::Variant;

/// Which of a scenario's variants run on a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// The first that it names.
    First,
    /// iptables mode over IPv4, if it names that.
    Default,
    All,
}

/// A kernel's series, and what it runs.
type Share = (&'static str, Which);

/// The kernels that run a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Shares(&'static [Share]);

const WHOLE: Share = ("6.12", Which::First);
const NEWEST: Share = ("7.2", Which::First);
const OLDEST: Share = ("5.10", Which::First);
const IPTABLES_6_1: Share = ("6.1", Which::Default);
const MODES_6_1: Share = ("6.1", Which::All);

/// As every scenario does.
pub(super) const ONE_KERNEL: Shares = Shares(&[WHOLE]);
/// What the dataplane gives rise to.
pub(super) const TWO_KERNELS: Shares = Shares(&[WHOLE, IPTABLES_6_1]);
/// What kernels that preempt programs do otherwise.
pub(super) const NEWER_KERNELS: Shares = Shares(&[WHOLE, NEWEST]);
/// The same, and what the dataplane gives rise to.
pub(super) const NO_OLD_KERNEL: Shares = Shares(&[WHOLE, NEWEST, IPTABLES_6_1]);
/// What the oldest and the newest kernel do otherwise.
pub(super) const ENDS: Shares = Shares(&[WHOLE, NEWEST, OLDEST]);
pub(super) const EVERY_KERNEL: Shares = Shares(&[WHOLE, NEWEST, OLDEST, IPTABLES_6_1]);
/// Also what each mode and family does otherwise.
pub(super) const EVERY_KERNEL_AND_MODE: Shares = Shares(&[WHOLE, NEWEST, OLDEST, MODES_6_1]);

impl Shares {
    /// Those of the variants that this kernel runs.
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
