//! Notes beside a fault's own cause: names that do not resolve (C35), a kube-proxy that is too old (C9), and an endpoint that is
//! published before its Pod is ready.

use super::{Case, Finding};
use crate::{class::Class, node::Release, text::phrase};

/// The port of DNS.
const DNS: u16 = 53;

/// C35, as a note.
/// Mechanism: Pods resolve names at the cluster's DNS Service. While connections to it fail, every program that connects by
/// name fails too, whatever Service it wants.
/// For: the Service is the cluster's DNS, by its selector or its usual name.
pub(super) fn with_names(case: &Case<'_>, finding: Finding) -> Finding {
    if !finding.class.is_fault() || case.vip.port.port != DNS {
        return finding;
    }
    let service = &case.vip.service;
    let by_name = matches!(
        (&*service.key.namespace, &*service.key.name),
        ("kube-system", "kube-dns" | "coredns" | "rke2-coredns-rke2-coredns")
            | ("openshift-dns", "dns-default")
    );
    let by_selector = service.selector.get("k8s-app") == Some("kube-dns");
    if !(by_name || by_selector) {
        return finding;
    }
    let what = phrase!("{} is the cluster's DNS Service: names do not resolve where it fails", service.key);
    finding.api(None, what).related(&[Class::C35])
}

/// The classes of rules that kube-proxy did not write.
const OF_KUBE_PROXY: [Class; 7] =
    [Class::C1, Class::C2, Class::C4, Class::C5, Class::C5e, Class::C6, Class::C12];

/// C9, as a note.
/// Mechanism: a kube-proxy that is older than the API server by more minor versions than the policy allows may use APIs that
/// were removed, or miss permissions.
/// For: kube-proxy's version, and a node's kubelet, which is never newer than the API server. Against: a skew alone breaks
/// nothing.
pub(super) fn with_skew(case: &Case<'_>, finding: Finding) -> Finding {
    if !OF_KUBE_PROXY.contains(&finding.class) {
        return finding;
    }
    let node = case.ctx.node;
    let Some((text, own)) = node.version.as_deref().zip(node.release()) else { return finding };
    let releases = case.ctx.cluster.nodes().filter_map(|node| Release::parse(&node.kubelet_version));
    let Some(newest) = releases.max() else { return finding };
    let Some(behind) = own.behind(newest).filter(|behind| *behind > own.allowed_behind()) else {
        return finding;
    };
    finding
        .node(node.read_at(), format_args!("kube-proxy reports {text}"))
        .api(
            None,
            format_args!(
                "a kubelet of {}.{} shows that the API server is at least {behind} minor versions newer, {} are allowed",
                newest.0,
                newest.1,
                own.allowed_behind()
            ),
        )
        .related(&[Class::C9])
}

/// Mechanism: with `publishNotReadyAddresses` every endpoint counts as ready, whatever its Pod's condition is (`podToEndpoint` of
/// staging/src/k8s.io/endpointslice/utils.go), and kube-proxy sends there. The slice's `serving` is the Pod's condition.
/// For: an endpoint that refuses or is silent, is ready in its slice, and does not serve.
pub(super) fn with_early(case: &Case<'_>, finding: Finding) -> Finding {
    let is_early = case.member().is_some_and(|member| member.conditions.ready && !member.conditions.serving);
    if !matches!(finding.class, Class::C28 | Class::C29)
        || !is_early
        || !case.vip.service.publish_not_ready_addresses
    {
        return finding;
    }
    finding.api(
        None,
        format_args!(
            "its Pod is not ready: publishNotReadyAddresses of {} lists endpoints before they are",
            case.vip.service.key
        ),
    )
}
