//! What a check finds and the catalogue has no class for, named after the check (K1 to K11), and what nothing explains.

use crate::{
    Domain::{self, HostKernel, NetworkPath, Normal},
    Entry, Kind,
    Severity::{High, Low, Medium, None},
};

pub(super) const K1: Entry = Entry {
    kind: Kind::Unknown,
    title: "Services left to another dataplane",
    domains: &[Domain::Unknown],
    severity: None,
};
pub(super) const K3: Entry =
    Entry { kind: Kind::Normal, title: "deprecated proxy mode", domains: &[Normal], severity: None };
// The path where the node is not Ready, the kernel where the node is short of something.
pub(super) const K10: Entry =
    Entry::fault("node not Ready, or under pressure", &[NetworkPath, HostKernel], High);
pub(super) const K11: Entry = Entry::fault("kernel setting that breaks a proxy mode", &[HostKernel], Medium);
pub(super) const Unknown: Entry =
    Entry { kind: Kind::Unknown, title: "not explained", domains: &[Domain::Unknown], severity: Low };
