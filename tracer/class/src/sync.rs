//! kube-proxy and the rules that it writes: C1 to C10.

use crate::{
    Domain::{ApiConnectivity, IptablesSync, PodCrash, ServiceConfig, StaleEndpoints, VersionSkew},
    Entry,
    Severity::{Critical, High, Low, Medium},
};

pub(super) const C1: Entry = Entry::fault("kube-proxy absent or crashing", &[PodCrash], Critical);
pub(super) const C2: Entry = Entry::fault("kube-proxy cannot read the API", &[ApiConnectivity], High);
pub(super) const C3: Entry = Entry::fault("rules in the other iptables backend", &[IptablesSync], Critical);
pub(super) const C4: Entry = Entry::fault("rule sync failing", &[IptablesSync], High);
pub(super) const C5: Entry = Entry::fault("rule sync slow, or rule missing", &[IptablesSync], High);
pub(super) const C5b: Entry = Entry::fault("connection older than its rule", &[IptablesSync], Low);
pub(super) const C5c: Entry = Entry::fault("port not in the Service", &[ServiceConfig], Medium);
pub(super) const C5d: Entry = Entry::fault("Service left to another proxy", &[ServiceConfig], Medium);
pub(super) const C5e: Entry = Entry::fault("rules flushed by someone else", &[IptablesSync], Critical);
pub(super) const C6: Entry = Entry::fault("stale endpoint in the rules", &[StaleEndpoints], High);
pub(super) const C7: Entry = Entry::fault("old connection to a removed endpoint", &[StaleEndpoints], Low);
pub(super) const C8: Entry = Entry::fault("stale UDP entry", &[StaleEndpoints], High);
pub(super) const C9: Entry = Entry::fault("version skew", &[VersionSkew], Medium);
pub(super) const C10: Entry = Entry::fault("leftovers of another proxy mode", &[IptablesSync], Critical);
