//! The record of a journey, as `viptrace path FROM TO -o json` writes it.
//!
//! The names of the fields are a promise (`viptrace schema path`): they stay.

use schemars::JsonSchema;
use serde::Serialize;

/// The way of one packet through the rules of a node. Absent facts are `null`, never left out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Journey {
    /// The node whose rules were walked.
    pub node: Option<String>,
    /// `iptables`, `nftables`, `ipvs`; `null` if unknown.
    pub kube_proxy_mode: Option<String>,
    pub from: Sender,
    pub to: Destination,
    pub result: Outcome,
    /// The result in words.
    pub verdict: String,
    /// The steps that every way begins with.
    pub steps: Vec<Step>,
    /// The ways after these steps, one for each random choice. Their shares add up to 1.
    pub ways: Vec<Way>,
    /// How a client returns to its endpoint (session affinity).
    pub affinity: Option<String>,
    /// Conditions that cannot be judged and would change the result. The ways are those on which none of them holds.
    pub depends_on: Vec<Condition>,
    /// The rules and translations that the reply meets.
    pub reply: Vec<String>,
    /// Further facts that the reader needs.
    pub notes: Vec<String>,
    /// Why the walk itself is incomplete.
    pub unjudged: Vec<String>,
    /// Lists that were not read; their rules are not part of the ways.
    pub unread: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sender {
    pub address: String,
    pub pod: Option<String>,
    /// `this node`, `a Pod of this node`, `a Pod on NODE`, `outside`, or the assumed owner of the address.
    pub place: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Destination {
    /// Address and port.
    pub address: String,
    pub protocol: String,
    /// The Service port that owns the address.
    pub service: Option<String>,
}

/// The end of a way, or of all ways if they end alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It reaches an endpoint of the Service.
    Reaches,
    /// It reaches an endpoint whose reply does not come back.
    ReplyLost,
    /// The sender gets an ICMP error or a reset.
    Refused,
    Dropped,
    /// No rule translates the address of the Service.
    NotTranslated,
    /// It goes on unchanged to an address that belongs to no Service.
    Passes,
    /// A rule hands it to something that cannot be judged.
    Unknown,
    /// The ways end differently.
    Mixed,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Way {
    /// 0 to 1.
    pub share: f64,
    pub result: Outcome,
    /// To which it is translated, also where it is dropped or refused after that.
    pub endpoint: Option<String>,
    pub pod: Option<String>,
    /// The node of the Pod.
    pub node: Option<String>,
    /// Whether the endpoint sees an address of the node as the client.
    pub masqueraded: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Rule,
    /// The policy of a base chain.
    Policy,
    Routing,
    /// IPVS's choice of a real server.
    Ipvs,
    /// The way is not known after this.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Step {
    pub kind: StepKind,
    /// `PREROUTING`, `INPUT`, `FORWARD`, `OUTPUT`, `POSTROUTING`.
    pub hook: String,
    /// The program or backend and its table: `iptables-nft nat`.
    pub table: Option<String>,
    pub chain: Option<String>,
    /// The number of the rule in its chain; the first is 1.
    pub rule: Option<u32>,
    /// The rule, as its program lists it.
    pub text: String,
    pub comment: Option<String>,
    /// The effect on the packet, if the text does not show it.
    pub effect: Option<String>,
}

/// A rule whose conditions cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Condition {
    pub rule: Step,
    pub why: String,
    /// The packet's fate if the rule matches.
    pub then: String,
}
