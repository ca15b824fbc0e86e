//! Refusals of a Pod by the API server's admission, and the way around each.

/// The part of the API server that refused a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Pod Security admission.
    Level,
    /// A cluster's `SecurityContextConstraints` (`OpenShift`).
    Constraint,
    /// A policy of this cluster: a webhook's (Kyverno, Gatekeeper) or a `ValidatingAdmissionPolicy`.
    Policy,
}

impl Admission {
    /// Which one a refusal is of. Others, such as a missing permission or an exceeded quota, are none.
    pub(super) fn of(why: &str) -> Option<Self> {
        // The texts of k8s.io/pod-security-admission, of openshift/apiserver-library-go, and of k8s.io/apiserver's plugins
        // webhook and policy/validating.
        let has = |texts: &[&str]| texts.iter().any(|text| why.contains(text));
        if has(&["PodSecurity", "pod security"]) {
            Some(Self::Level)
        } else if has(&["security context constraint"]) {
            Some(Self::Constraint)
        } else if has(&["admission webhook", "ValidatingAdmissionPolicy"]) {
            Some(Self::Policy)
        } else {
            None
        }
    }

    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Level => {
                "the Pod needs the node's network and the capabilities BPF, PERFMON and NET_ADMIN, which the Pod Security \
                 levels `baseline` and `restricted` forbid: choose a namespace whose level is `privileged` with \
                 --pod-namespace NAME"
            }
            Self::Constraint => {
                "the Pod needs the node's network and the capabilities BPF, PERFMON and NET_ADMIN: an administrator can let \
                 you, or the account `default` of a namespace for --pod-namespace NAME, use a SecurityContextConstraints that \
                 allows them, such as `privileged`"
            }
            Self::Policy => {
                "--dry-run=client prints the Pod for the person who owns that policy; --pod-namespace NAME chooses another \
                 namespace, --image NAME another image"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_explained_by_the_admission_that_made_it() {
        for (why, expected) in [
            (
                r#"pods "x" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)"#,
                Some(Admission::Level),
            ),
            (
                r#"pods "x" is forbidden: unable to validate against any security context constraint: [provider "anyuid""#,
                Some(Admission::Constraint),
            ),
            (
                r#"admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod was blocked"#,
                Some(Admission::Policy),
            ),
            (
                r#"pods "x" is forbidden: ValidatingAdmissionPolicy 'host' with binding 'host' denied request: no"#,
                Some(Admission::Policy),
            ),
            (r#"pods "x" is forbidden: exceeded quota: compute, requested: pods=1"#, None),
            (r#"pods is forbidden: User "eve" cannot create resource "pods""#, None),
        ] {
            assert_eq!(Admission::of(why), expected, "{why}");
        }
    }
}
