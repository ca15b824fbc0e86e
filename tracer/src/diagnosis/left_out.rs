//! Services that kube-proxy's informers leave out because of a label (C5d): it writes no rules for them, whatever their
//! addresses are.

use crate::{cluster::model::Service, node::Release};

/// Which label it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut<'a> {
    /// `service.kubernetes.io/service-proxy-name`, with this value: another proxy serves the Service.
    ToProxy(&'a str),
    /// `service.kubernetes.io/headless`, though the Service has a `ClusterIP`. Newer releases serve it.
    Headless { is_certain: bool },
}

impl<'a> LeftOut<'a> {
    /// What kube-proxy of this release leaves the Service out for; `None` if it serves it. Of an unknown release it may.
    pub(super) fn of(service: &'a Service, release: Option<Release>) -> Option<Self> {
        if let Some(proxy) = &service.proxy_name {
            return Some(Self::ToProxy(proxy));
        }
        if !service.labelled_headless || service.without_address().is_some() {
            return None;
        }
        match Release::leaves_out_headless_label(release) {
            Some(false) => None,
            known => Some(Self::Headless { is_certain: known.is_some() }),
        }
    }

    /// What would decide whether kube-proxy leaves it out; `None` if that is known.
    pub(super) const fn unknown(self) -> Option<&'static str> {
        match self {
            Self::Headless { is_certain: false } => Some(
                "the release of kube-proxy: since 1.36 it serves a Service with this label, and up to 1.34 it does not",
            ),
            _ => None,
        }
    }
}
