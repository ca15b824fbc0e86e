//! How a class, a finding and an action are rated: who has to act, how much breaks, how sure it is, what it risks.

use schemars::JsonSchema;
use serde::Serialize;
use strum::{Display, IntoStaticStr, VariantArray};

/// Who has to act.
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

    /// As it is written in records.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// How much of the chain from cause to failure was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Confidence {
    /// A plausible reading; something that would decide was not seen.
    Low,
    /// The deciding event was seen; a confounder is not excluded.
    Medium,
    /// The deciding events were seen and the confounders excluded.
    High,
}

impl Confidence {
    /// One step less; [`Low`](Self::Low) stays.
    #[must_use]
    pub const fn lower(self) -> Self {
        match self {
            Self::High => Self::Medium,
            Self::Medium | Self::Low => Self::Low,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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

/// What an action can do to running traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Safety {
    ReadOnly,
    Disruptive,
    Dangerous,
}
