//! What the Service itself says: C20 to C27.

use crate::{
    Domain::{NoEndpoints, ServiceConfig},
    Entry,
    Severity::{High, Low, Medium},
};

pub(super) const C20: Entry = Entry::fault("Service has no endpoints", &[NoEndpoints], High);
pub(super) const C21: Entry =
    Entry::fault("no local endpoint (external policy Local)", &[ServiceConfig], High);
pub(super) const C22: Entry =
    Entry::fault("no local endpoint (internal policy Local)", &[ServiceConfig], High);
pub(super) const C23: Entry = Entry::fault("source not in loadBalancerSourceRanges", &[ServiceConfig], Low);
pub(super) const C24: Entry = Entry::fault("session affinity to a dead endpoint", &[ServiceConfig], Medium);
pub(super) const C25: Entry = Entry::fault("topology hints exclude the endpoint", &[ServiceConfig], Low);
pub(super) const C26: Entry = Entry::fault("node port unreachable", &[ServiceConfig], Low);
pub(super) const C27: Entry = Entry::fault("no virtual IP by design", &[ServiceConfig], Low);
