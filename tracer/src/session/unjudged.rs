//! Flows that left a full table without a verdict: how many, and of which Service.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::wall_clock::WallClock;
use crate::{
    cluster::{Address, History},
    diagnosis,
    flow::Unjudged,
    net::Protocol,
    time::Timestamp,
    verdict::ServiceRef,
};

/// Flows of one Service port that have no verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotJudged {
    /// `None` for addresses of no Service, and for the flows that the table did not count apart.
    pub service: Option<ServiceRef>,
    pub count: u64,
    /// When the first and the last of them began.
    pub first: Timestamp,
    pub last: Timestamp,
}

impl NotJudged {
    pub(super) fn of(flows: Unjudged, history: &History, clock: &WallClock) -> Self {
        let Unjudged { to, count, first, last } = flows;
        let service = to.and_then(|(protocol, dst)| service_of(dst, protocol, last, history));
        Self { service, count, first: clock.unix_then(first), last: clock.unix_then(last) }
    }
}

/// The Service port that an address belongs to at a time.
pub(super) fn service_of(
    dst: SocketAddr,
    protocol: Protocol,
    at: Timestamp,
    history: &History,
) -> Option<ServiceRef> {
    let vip = match history.address(dst, protocol, at) {
        Address::Vip(vip) => vip,
        Address::Other => history.own_node_port(dst, protocol, at)?,
        Address::UnknownPort(_) | Address::Gone { .. } => return None,
    };
    Some(diagnosis::service_ref(&vip.service.key, vip.port.label()))
}
