//! Step 2: the versions of kube-proxy, the kubelet and the API server against the skew policy (K4, C9).
//!
//! The policy: neither may be newer than the API server; a kube-proxy or kubelet may be three minor versions older, and
//! two if it is itself older than 1.25 (kubernetes.io/releases/version-skew-policy).

use super::{Facts, Finding, Level};
use crate::{class::Class, time::Timestamp, verdict::EvidenceType};

/// Major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Release(u32, u32);

impl Release {
    /// Parses `v1.30.5`, `v1.29.6-eks-1552ad0` or `v1.30.5+k3s1`; `None` for builds without a version
    /// (`v0.0.0-master`).
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').split('.');
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next()?;
        (major > 0).then_some(Self(major, minor))
    }

    /// The number of minor versions by which this kube-proxy or kubelet may be older than the API server.
    fn allowed_behind(self) -> i64 {
        if self >= Self(1, 25) { 3 } else { 2 }
    }

    /// The number of minor versions by which `self` is older; negative if it is newer.
    fn behind(self, other: Self) -> Option<i64> {
        (self.0 == other.0).then(|| i64::from(other.1) - i64::from(self.1))
    }
}

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(server_text) = facts.api_version.as_deref() else { return };
    let Some(server) = Release::parse(server_text) else { return };
    let node = facts.known_node().and_then(|node| facts.history.as_ref()?.node(node, Timestamp::MAX));
    let kubelet = node.map(|node| node.kubelet_version.to_string());
    for (name, version) in
        [("kube-proxy", facts.node.version.as_deref().map(str::to_owned)), ("the kubelet", kubelet)]
    {
        let Some(version) = version else { continue };
        let Some(release) = Release::parse(&version) else { continue };
        let Some(behind) = release.behind(server) else { continue };
        let allowed = release.allowed_behind();
        let what = match behind {
            0.. if behind <= allowed => continue,
            0.. => format!("{behind} minor versions older than the API server, {allowed} are allowed"),
            _ => "newer than the API server, which is not allowed".to_owned(),
        };
        findings.push(
            Finding::new(Class::C9, format!("{name} {version} is {what} ({server_text})"))
                .level(Level::Warning)
                .node(None, format!("{name} reports {version}"))
                .api(None, format!("the API server reports {server_text}"))
                .against(
                    EvidenceType::Node,
                    None,
                    "a skew alone breaks nothing: removed API versions and old RBAC do",
                ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_and_builds() {
        assert_eq!(Release::parse("v1.30.5"), Some(Release(1, 30)));
        assert_eq!(Release::parse("v1.29.6-eks-1552ad0"), Some(Release(1, 29)));
        assert_eq!(Release::parse("v0.0.0-master+$Format:%H$"), None);
        assert_eq!(Release::parse("latest"), None);
        assert_eq!(Release(1, 30).behind(Release(1, 33)), Some(3));
        assert_eq!(Release(1, 34).behind(Release(1, 33)), Some(-1));
        // The node's release decides, not the API server's.
        assert_eq!((Release(1, 25).allowed_behind(), Release(1, 24).allowed_behind()), (3, 2));
    }
}
