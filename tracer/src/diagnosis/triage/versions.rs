//! Step 2: the versions of kube-proxy, the kubelet and the API server against the skew policy (K4, C9).
//!
//! The policy: neither may be newer than the API server; a kube-proxy or kubelet may be three minor versions older, and
//! two if it is itself older than 1.25 (kubernetes.io/releases/version-skew-policy).

use super::{Facts, Finding, Level};
use crate::{class::Class, node::Release, verdict::EvidenceType};

/// The number of minor versions by which this kube-proxy or kubelet may be older than the API server.
fn allowed_behind(release: Release) -> i64 {
    if release >= Release(1, 25) { 3 } else { 2 }
}

/// The number of minor versions by which `release` is older; negative if it is newer.
fn behind(release: Release, other: Release) -> Option<i64> {
    (release.0 == other.0).then(|| i64::from(other.1) - i64::from(release.1))
}

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(server_text) = facts.api_version.as_deref() else { return };
    let Some(server) = Release::parse(server_text) else { return };
    let kubelet = facts.own_node().map(|node| node.kubelet_version.to_string());
    for (name, version) in
        [("kube-proxy", facts.node.version.as_deref().map(str::to_owned)), ("the kubelet", kubelet)]
    {
        let Some(version) = version else { continue };
        let Some(release) = Release::parse(&version) else { continue };
        let Some(behind) = behind(release, server) else { continue };
        let allowed = allowed_behind(release);
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
    fn the_skew_and_its_limit() {
        assert_eq!(behind(Release(1, 30), Release(1, 33)), Some(3));
        assert_eq!(behind(Release(1, 34), Release(1, 33)), Some(-1));
        // The node's release decides, not the API server's.
        assert_eq!((allowed_behind(Release(1, 25)), allowed_behind(Release(1, 24))), (3, 2));
    }
}
