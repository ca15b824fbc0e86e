//! A Service whose connections all go to one Pod of this node, in either family.

use std::net::SocketAddr;

use anyhow::Result;

use crate::{dataplane::Family, rules::Rules, world::Stage};

#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) service: &'static str,
    pub(super) pod: &'static str,
    pub(super) vip: SocketAddr,
    pub(super) endpoint: SocketAddr,
}

impl Alone {
    /// `shop/api` has one endpoint, but no IPv6. For IPv6 this takes `shop/payments`, with rules that send to only one
    /// of its two endpoints.
    pub(super) fn new(stage: &mut Stage) -> Result<Self> {
        let at = |pod, port| Ok::<_, anyhow::Error>(SocketAddr::new(stage.place(pod)?.address, port));
        if stage.family() == Family::V4 {
            let (pod, vip) = ("shop/api-1", stage.vip("shop/api", "https")?);
            return Ok(Self { service: "shop/api", pod, vip, endpoint: at(pod, 8443)? });
        }
        let (pod, vip) = ("shop/payments-1", stage.vip("shop/payments", "grpc")?);
        let alone = Self { service: "shop/payments", pod, vip, endpoint: at(pod, 9090)? };
        let rules = alone.rules(stage)?;
        stage.break_rules(&rules)?;
        Ok(alone)
    }

    /// The node's rules, which send to no other Pod.
    pub(super) fn rules(&self, stage: &Stage) -> Result<Rules> {
        let rules = stage.rules()?;
        if stage.family() == Family::V4 {
            return Ok(rules.clone());
        }
        let other = stage.place("shop/payments-2")?.address;
        Ok(rules.with_endpoint_moved(other, self.endpoint.ip()))
    }
}
