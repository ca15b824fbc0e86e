//! kube-proxy's own reports: `/proxyMode` and `/metrics` at one port, `/healthz` at another.
//!
//! Parsers only. A healthy `/healthz` proves little: it returns 503 only if an update was queued and not written, so a
//! kube-proxy that has lost the API server still returns 200.

pub(crate) mod config;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod process;
pub(crate) mod servers;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rules::Writer;

/// How kube-proxy programs the kernel on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProxyMode {
    Iptables,
    Nftables,
    Ipvs,
}

impl ProxyMode {
    pub const ALL: [Self; 3] = [Self::Iptables, Self::Nftables, Self::Ipvs];

    /// kube-proxy's spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }

    /// Whether this writer's rules belong to the mode.
    pub const fn writes(self, writer: Writer) -> bool {
        match self {
            Self::Iptables => writer.is_iptables(),
            Self::Nftables => matches!(writer, Writer::Nftables),
            Self::Ipvs => matches!(writer, Writer::Ipvs),
        }
    }

    /// The answer to `/proxyMode`; `None` for anything but a mode of kube-proxy on Linux.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text.trim())
    }
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The answer to `/healthz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The HTTP status: 200 healthy, 503 an update has not been written or the node is being deleted.
    pub status: u16,
    /// `lastUpdated` of the answer, as kube-proxy wrote it.
    pub last_updated: Option<String>,
    /// `nodeEligible`: false while the Node is being removed.
    pub node_eligible: Option<bool>,
}

impl Health {
    /// Parses the answer's JSON; from any other body only the status is kept.
    pub fn parse(status: u16, body: &[u8]) -> Self {
        let body = serde_json::from_slice::<serde_json::Value>(body).ok();
        let field = |name: &str| body.as_ref()?.get(name).cloned();
        let last_updated = field("lastUpdated");
        Self {
            status,
            last_updated: last_updated.and_then(|time| Some(time.as_str()?.chars().take(80).collect())),
            node_eligible: field("nodeEligible").and_then(|eligible| eligible.as_bool()),
        }
    }

    /// Parses a saved answer: the body, and on its own line the status that `curl -w '\n%{http_code}'` adds. Without a
    /// status line the body must contain it (`"healthy":false`, newer releases); otherwise it is unknown.
    pub fn parse_saved(text: &str) -> Option<Self> {
        let text = text.trim_end();
        let (body, last) = text.rsplit_once('\n').unwrap_or((text, ""));
        if let Some(status) = last.trim().parse::<u16>().ok().filter(|status| (100..600).contains(status)) {
            return Some(Self::parse(status, body.as_bytes()));
        }
        let healthy = serde_json::from_str::<serde_json::Value>(text).ok()?.get("healthy")?.as_bool()?;
        Some(Self::parse(if healthy { 200 } else { 503 }, text.as_bytes()))
    }

    /// `currentTime` of `/healthz`: Go's form of 1.30 (`2026-11-20 23:25:05.7 +0000 UTC m=+7.9`), or RFC 3339.
    pub fn clock(text: &str) -> Option<f64> {
        let body = text.trim_end();
        let body = body
            .rsplit_once('\n')
            .filter(|(_, last)| last.trim().parse::<u16>().is_ok())
            .map_or(body, |(body, _)| body);
        let value: serde_json::Value = serde_json::from_str(body).ok()?;
        let time = value.get("currentTime")?.as_str()?;
        let rfc = match time.split_whitespace().collect::<Vec<_>>().as_slice() {
            [day, hour, zone, ..] if zone.len() == 5 => {
                let (hours, minutes) = zone.split_at_checked(3)?;
                format!("{day}T{hour}{hours}:{minutes}")
            }
            _ => time.to_owned(),
        };
        let time: jiff::Timestamp = rfc.parse().ok()?;
        Some(time.as_duration().as_secs_f64())
    }

    /// The zone of `currentTime`, in seconds east of UTC.
    pub fn utc_offset(text: &str) -> Option<i32> {
        let (_, rest) = text.split_once("\"currentTime\"")?;
        let time = rest.trim_start_matches([':', ' ', '"']).split('"').next()?;
        let zone = match time.split_whitespace().collect::<Vec<_>>().as_slice() {
            [_, _, zone, ..] => zone,
            [time] => time.get(time.rfind(['+', '-', 'Z'])?..)?,
            _ => return None,
        };
        if zone == "Z" {
            return Some(0);
        }
        let (sign, digits) = zone.split_at_checked(1)?;
        let digits = digits.replace(':', "");
        let (hours, minutes) = digits.split_at_checked(2).filter(|_| digits.len() == 4)?;
        let seconds = hours.parse::<i32>().ok()? * 3600 + minutes.parse::<i32>().ok()? * 60;
        match sign {
            "+" => Some(seconds),
            "-" => Some(-seconds),
            _ => None,
        }
    }

    pub const fn is_healthy(&self) -> bool {
        self.status == 200
    }
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
            let _ = (Health::parse_saved(&text), ProxyMode::parse(&text));
            let answer = format!("{{\"currentTime\": \"2026-11-20T23:25:05{text}\"}}");
            let _ = (Health::clock(&answer), Health::utc_offset(&answer), Health::utc_offset(&text));
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
    fn both_forms_of_kube_proxys_clock() {
        let old = "{\"currentTime\": \"2026-11-20 23:25:05.5 +0000 UTC m=+7.9\"}\n200";
        assert_eq!(Health::clock(old), Some(1_795_217_105.5));
        let new = "{\"currentTime\":\"2026-11-20T23:25:05.5Z\"}";
        assert_eq!(Health::clock(new), Some(1_795_217_105.5));
        assert_eq!(Health::clock("ok"), None);
        assert_eq!((Health::utc_offset(old), Health::utc_offset(new)), (Some(0), Some(0)));
        let east = "{\"currentTime\":\"2026-11-20T23:25:05.5+05:30\"}";
        assert_eq!((Health::utc_offset(east), Health::utc_offset("ok")), (Some(19_800), None));
        let endless = "{\"currentTime\":\"2026-11-20T23:25:05.5+01:99999999\"}";
        assert_eq!(Health::utc_offset(endless), None);
    }

    #[test]
    fn health_survives_any_body() {
        let body = br#"{"lastUpdated": "2026-11-20 23:25:05 +0000 UTC","nodeEligible": true}"#;
        let health = Health::parse(200, body);
        assert_eq!(health.last_updated.as_deref(), Some("2026-11-20 23:25:05 +0000 UTC"));
        assert!(health.is_healthy());
        assert_eq!(
            Health::parse(503, b"\xff\xfe"),
            Health { status: 503, last_updated: None, node_eligible: None }
        );
        assert_eq!(Health::parse(503, b"{\"nodeEligible\": false}").node_eligible, Some(false));
        assert_eq!(Health::parse(503, b"{\"lastUpdated\": 3}").last_updated, None);
    }
}
