//! Step 2: the versions of kube-proxy, the kubelet and the API server against the skew policy (K4, C9).

use super::{Facts, Finding, Level};
use crate::{class::Class, node::Release, verdict::EvidenceType};

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(server_text) = facts.api_version.as_deref() else { return };
    let Some(server) = Release::parse(server_text) else { return };
    let kubelet = facts.own_node().map(|node| node.kubelet_version.to_string());
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
