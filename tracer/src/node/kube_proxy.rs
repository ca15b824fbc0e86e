//! What kube-proxy says of itself: `/proxyMode` and `/metrics` at one port, `/healthz` at another.
//!
//! Parsers only. A healthy `/healthz` proves little: it turns 503 only when an update was queued and not written,
//! so a kube-proxy that has lost the API server stays at 200.

pub mod config;
pub mod log;
pub mod metrics;
pub mod process;
pub mod servers;

use std::fmt;

use serde::{Deserialize, Serialize};

/// How kube-proxy programs the kernel on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProxyMode {
    Iptables,
    Nftables,
    Ipvs,
}

impl ProxyMode {
    /// As kube-proxy writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }

    /// The answer to `/proxyMode`; `None` for anything but a mode of the Linux kube-proxy.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Iptables, Self::Nftables, Self::Ipvs].into_iter().find(|mode| mode.as_str() == text.trim())
    }
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What `/healthz` answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The HTTP status: 200 healthy, 503 an update waits unwritten or the node is being deleted.
    pub status: u16,
    /// `lastUpdated` of the answer, as kube-proxy wrote it.
    pub last_updated: Option<String>,
}

impl Health {
    /// Reads the answer's JSON; a body of another shape leaves only the status.
    pub fn parse(status: u16, body: &[u8]) -> Self {
        let last_updated = serde_json::from_slice::<serde_json::Value>(body)
            .ok()
            .and_then(|value| value.get("lastUpdated")?.as_str().map(|text| text.chars().take(80).collect()));
        Self { status, last_updated }
    }

    /// Reads a saved answer: the body, and on a line of its own the status that `curl -w '\n%{http_code}'` adds. Without
    /// a status the body must say it (`"healthy":false`, newer releases); else there is none to be had.
    pub fn parse_saved(text: &str) -> Option<Self> {
        let text = text.trim_end();
        let (body, last) = text.rsplit_once('\n').unwrap_or((text, ""));
        if let Some(status) = last.trim().parse::<u16>().ok().filter(|status| (100..600).contains(status)) {
            return Some(Self::parse(status, body.as_bytes()));
        }
        let healthy = serde_json::from_str::<serde_json::Value>(text).ok()?.get("healthy")?.as_bool()?;
        Some(Self::parse(if healthy { 200 } else { 503 }, text.as_bytes()))
    }

    pub const fn is_healthy(&self) -> bool {
        self.status == 200
    }
}

/// `git_version` of the metric `kubernetes_build_info`, bounded to 80 characters.
pub fn version(metrics: &str) -> Option<String> {
    let line = metrics.lines().find(|line| line.starts_with("kubernetes_build_info{"))?;
    let (_, rest) = line.split_once("git_version=\"")?;
    let (version, _) = rest.split_once('"')?;
    (!version.is_empty()).then(|| version.chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_answer_is_read_as_it_was_saved(status in 100..600_u16, body in "(\\{\"lastUpdated\": \"[ -!#-\\[\\]-~]{0,30}\"\\}|[ -~\n]{0,40})") {
            let body = body.trim();
            let saved = format!("{body}\n{status}");
            prop_assert_eq!(Health::parse_saved(&saved), Some(Health::parse(status, body.as_bytes())));
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = (Health::parse_saved(&text), ProxyMode::parse(&text), version(&text));
        }
    }

    #[test]
    fn modes() {
        assert_eq!(ProxyMode::parse("iptables"), Some(ProxyMode::Iptables));
        assert_eq!(ProxyMode::parse(" ipvs\n"), Some(ProxyMode::Ipvs));
        assert_eq!(ProxyMode::parse("userspace"), None);
        assert_eq!(ProxyMode::parse("<html>"), None);
    }

    #[test]
    fn version_comes_from_the_build_info() {
        let metrics = "# TYPE kubernetes_build_info gauge\n\
            kubernetes_build_info{build_date=\"2024\",git_version=\"v1.30.5\",go_version=\"go1.22\"} 1\n";
        assert_eq!(version(metrics).as_deref(), Some("v1.30.5"));
        assert_eq!(version("kubernetes_build_info{git_version=\""), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn health_survives_any_body() {
        let body = br#"{"lastUpdated": "2026-11-20 23:25:05 +0000 UTC","nodeEligible": true}"#;
        let health = Health::parse(200, body);
        assert_eq!(health.last_updated.as_deref(), Some("2026-11-20 23:25:05 +0000 UTC"));
        assert!(health.is_healthy());
        assert_eq!(Health::parse(503, b"\xff\xfe"), Health { status: 503, last_updated: None });
        assert_eq!(Health::parse(503, b"{\"lastUpdated\": 3}").last_updated, None);
    }
}
