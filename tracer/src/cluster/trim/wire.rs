//! The API's objects as they are written, with the metadata reduced to the used parts.
//!
//! Specs and states are `k8s-openapi`'s own types.

use std::collections::BTreeMap;

use k8s_openapi::{api::discovery::v1 as discovery, apimachinery::pkg::apis::meta::v1::Time};
use serde::{Deserialize, Deserializer};

/// Everything but an `EndpointSlice`, which has neither a spec nor a state.
#[derive(Deserialize)]
pub(super) struct Resource<Spec, Status> {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) metadata: Meta,
    pub(super) spec: Option<Spec>,
    pub(super) status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slice {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) metadata: Meta,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) address_type: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) endpoints: Vec<discovery::Endpoint>,
    pub(super) ports: Option<Vec<discovery::EndpointPort>>,
}

/// Leaves out `managedFields`, which are as large as the rest of an object.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) creation_timestamp: Option<Time>,
    pub(super) deletion_timestamp: Option<Time>,
    pub(super) deletion_grace_period_seconds: Option<i64>,
    pub(super) managed_fields: Option<Vec<Write>>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

/// One writer's entry in `managedFields`.
#[derive(Deserialize)]
pub(super) struct Write {
    pub(super) time: Option<Time>,
}

/// The API writes an empty value as null, too.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(json: D) -> Result<T, D::Error> {
    Option::deserialize(json).map(Option::unwrap_or_default)
}
