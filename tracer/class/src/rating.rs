//! The ratings of a class, a finding and an action: domain, severity, confidence, safety.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr, VariantArray};

/// The owner of a fault: the part of the cluster where a person has to act.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Domain {
    PodCrash,
    ApiConnectivity,
    // The rules of any proxy mode, not of iptables mode alone.
    IptablesSync,
    IpvsModules,
    StaleEndpoints,
    VersionSkew,
    ServiceConfig,
    Conntrack,
    NoEndpoints,
    BackendRefused,
    NetworkPath,
    NetworkPolicy,
    Hairpin,
    Mtu,
    HostKernel,
    Normal,
    Unknown,
}

impl Domain {
    /// Every domain, in its order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The spelling in records.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// How much of the chain from cause to failure was observed. This is the rule by which every level is given; a rule of
/// judgement starts with the level of its own evidence, and the record lowers it for what the trace missed: lost events,
/// old or missing metadata, an unknown namespace of kube-proxy's rules, another dataplane, a flow that began before the
/// trace. `docs/records.md` has the same for users.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Confidence {
    /// A plausible explanation; a deciding event was not observed. The record names the observation that would decide.
    Low,
    /// The deciding event was observed; a confounder is not excluded, and the record names it.
    Medium,
    /// The deciding events were observed and the confounders excluded.
    High,
}

impl Confidence {
    /// One step less; [`Low`](Self::Low) stays the same.
    #[must_use]
    pub const fn lower(self) -> Self {
        match self {
            Self::High => Self::Medium,
            Self::Medium | Self::Low => Self::Low,
        }
    }
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Severity {
    /// Nothing broke.
    None,
    /// Transient, or one flow only.
    Low,
    /// Some flows of this Service fail.
    Medium,
    /// Every new flow of this Service fails on this node.
    High,
    /// More than one Service fails on this node.
    Critical,
}

/// The effect of an action on running traffic.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Display,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Safety {
    ReadOnly,
    Disruptive,
    Dangerous,
}
