//! Behind NAT's choice, where the rules did their work: C28 to C35.

use crate::{
    Domain::{
        BackendRefused, Conntrack, Hairpin, HostKernel, Mtu, NetworkPath, NetworkPolicy, ServiceConfig,
    },
    Entry,
    Severity::{High, Low, Medium},
};

pub(super) const C28: Entry = Entry::fault("backend refuses", &[BackendRefused], Medium);
pub(super) const C29: Entry = Entry::fault("backend silent", &[NetworkPath], Medium);
pub(super) const C30: Entry = Entry::fault("dropped by network policy", &[NetworkPolicy], Medium);
pub(super) const C31: Entry = Entry::fault("hairpin", &[Hairpin], Medium);
pub(super) const C32: Entry = Entry::fault("reverse path filter", &[HostKernel], High);
pub(super) const C33: Entry = Entry::fault("MTU", &[Mtu], Medium);
pub(super) const C34: Entry = Entry::fault("masquerade interface changed", &[Conntrack], Low);
pub(super) const C35: Entry = Entry::fault("DNS", &[ServiceConfig], Medium);
