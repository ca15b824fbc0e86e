//! The permissions that a run of the plugin needs: asked of the API server before anything is created, and printed as RBAC
//! objects for an administrator where one is missing.

use std::fmt::Write as _;

use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};

/// One permission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Permission {
    /// `None`: in every namespace, or for objects without one.
    pub(crate) namespace: Option<String>,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) subresource: Option<&'static str>,
    pub(crate) verb: &'static str,
}

impl Permission {
    fn resource(&self) -> String {
        self.subresource.map_or_else(|| self.resource.to_owned(), |sub| format!("{}/{sub}", self.resource))
    }
}

/// To read the cluster's objects.
pub(crate) fn to_read() -> Vec<Permission> {
    let resources = [("", "services"), ("discovery.k8s.io", "endpointslices"), ("", "pods"), ("", "nodes")];
    let each = |(group, resource)| {
        ["list", "watch"].map(|verb| Permission { namespace: None, group, resource, subresource: None, verb })
    };
    resources.into_iter().flat_map(each).collect()
}

/// To run Pods in this namespace. A command over a WebSocket is a GET request, so the API server checks `get`; later releases
/// check `create` as well (feature gate `AuthorizePodWebsocketUpgradeCreatePermission`).
pub(crate) fn to_visit(namespace: &str) -> Vec<Permission> {
    on_pods(
        namespace,
        &[
            (None, "create"),
            (None, "get"),
            (None, "list"),
            (None, "delete"),
            (Some("attach"), "get"),
            (Some("attach"), "create"),
            (Some("exec"), "get"),
            (Some("exec"), "create"),
        ],
    )
}

/// To add an ephemeral container to a Pod of this namespace, and to read its result.
pub(crate) fn to_connect_from(namespace: &str) -> Vec<Permission> {
    on_pods(namespace, &[(None, "get"), (Some("ephemeralcontainers"), "patch")])
}

/// These subresources and verbs of the Pods of this namespace.
fn on_pods(namespace: &str, wanted: &[(Option<&'static str>, &'static str)]) -> Vec<Permission> {
    let each = |&(subresource, verb)| Permission {
        namespace: Some(namespace.to_owned()),
        group: "",
        resource: "pods",
        subresource,
        verb,
    };
    wanted.iter().map(each).collect()
}

/// To run commands in the Pods of this namespace.
pub(crate) fn to_exec(namespace: &str) -> Vec<Permission> {
    to_visit(namespace).into_iter().filter(|permission| permission.subresource == Some("exec")).collect()
}

/// The permissions that the user lacks, by the API server's own word.
pub(crate) async fn missing(client: &Client, needed: Vec<Permission>) -> kube::Result<Vec<Permission>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let reviews = &reviews;
    let answers = try_join_all(needed.into_iter().map(|permission| async move {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: permission.namespace.clone(),
                    group: Some(permission.group.to_owned()),
                    resource: Some(permission.resource.to_owned()),
                    subresource: permission.subresource.map(str::to_owned),
                    verb: Some(permission.verb.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let is_allowed = answer.status.is_some_and(|status| status.allowed);
        Ok::<_, kube::Error>((!is_allowed).then_some(permission))
    }))
    .await?;
    Ok(answers.into_iter().flatten().collect())
}

/// Roles with these permissions, as YAML. The binding is left to the administrator, who knows the user's name.
pub(crate) fn roles(missing: &[Permission]) -> String {
    let mut out = String::new();
    let mut sorted = missing.to_vec();
    sorted.sort();
    for of_namespace in sorted.chunk_by(|a, b| a.namespace == b.namespace) {
        let Some(first) = of_namespace.first() else { continue };
        let (kind, place) = match &first.namespace {
            None => ("ClusterRole", String::new()),
            Some(namespace) => ("Role", format!("\n  namespace: {namespace}")),
        };
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: kubectl-viptrace{place}\nrules:\n"
        );
        let mut rest: Vec<&Permission> = of_namespace.iter().collect();
        while let Some(next) = rest.first().copied() {
            let (same, others): (Vec<_>, Vec<_>) = rest
                .into_iter()
                .partition(|other| (other.group, other.resource()) == (next.group, next.resource()));
            let verbs: Vec<&str> = same.iter().map(|permission| permission.verb).collect();
            let _ = write!(
                out,
                "  - apiGroups: [\"{}\"]\n    resources: [{}]\n    verbs: [{}]\n",
                next.group,
                next.resource(),
                verbs.join(", ")
            );
            rest = others;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_permission_is_a_role_to_apply() {
        let mut missing = to_visit("kube-system");
        missing.retain(|permission| permission.verb == "create");
        missing.extend(to_read().into_iter().filter(|permission| permission.resource == "nodes"));
        insta::assert_snapshot!(roles(&missing), @r#"
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: ClusterRole
        metadata:
          name: kubectl-viptrace
        rules:
          - apiGroups: [""]
            resources: [nodes]
            verbs: [list, watch]
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: Role
        metadata:
          name: kubectl-viptrace
          namespace: kube-system
        rules:
          - apiGroups: [""]
            resources: [pods]
            verbs: [create]
          - apiGroups: [""]
            resources: [pods/attach]
            verbs: [create]
          - apiGroups: [""]
            resources: [pods/exec]
            verbs: [create]
        "#);
        assert_eq!(roles(&[]), "");
    }
}
