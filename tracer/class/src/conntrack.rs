//! IPVS and conntrack: C11 to C19.

use crate::{
    Domain::{Conntrack, HostKernel, IptablesSync, IpvsModules, NoEndpoints, StaleEndpoints},
    Entry,
    Severity::{Critical, High, Low, Medium},
};

pub(super) const C11: Entry = Entry::fault("IPVS unusable", &[IpvsModules], Critical);
// The rules where the API has endpoints, the Service where it has none, the kernel where IPVS dropped the packet without
// an answer: memory, or its defence strategy.
pub(super) const C12: Entry =
    Entry::fault("IPVS without destination", &[IptablesSync, NoEndpoints, HostKernel], High);
pub(super) const C13: Entry = Entry::fault("IPVS destination dead", &[StaleEndpoints], Medium);
pub(super) const C14: Entry = Entry::fault("IPVS port reuse delay", &[Conntrack], Low);
pub(super) const C15: Entry = Entry::fault("IPVS idle expiry", &[Conntrack], Medium);
pub(super) const C16: Entry = Entry::fault("conntrack table full", &[Conntrack], Critical);
pub(super) const C17: Entry = Entry::fault("conntrack insertion failed", &[Conntrack], Medium);
pub(super) const C17a: Entry = C17;
pub(super) const C18: Entry = Entry::fault("reset after an invalid packet", &[Conntrack], High);
pub(super) const C18b: Entry = Entry::fault("legitimate traffic dropped as invalid", &[Conntrack], Medium);
pub(super) const C19: Entry = Entry::fault("connection picked up midway", &[Conntrack], Medium);
