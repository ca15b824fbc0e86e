//! Releases of Kubernetes: which minor version a component has, and with it which behaviour.

use std::ops::Deref;

/// The version that a component reports, as `v1.30.5`, and its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    text: String,
    release: Option<Release>,
}

impl Version {
    /// `None` for a build without a version.
    pub(crate) const fn release(&self) -> Option<Release> {
        self.release
    }
}

impl From<String> for Version {
    fn from(text: String) -> Self {
        Self { release: Release::parse(&text), text }
    }
}

impl Deref for Version {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// Major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// Parses `v1.30.5`, `v1.29.6-eks-1552ad0` or `v1.30.5+k3s1`; `None` for builds without a version
    /// (`v0.0.0-master`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').split('.');
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next()?;
        (major > 0).then_some(Self(major, minor))
    }

    /// Whether kube-proxy leaves out every Service with the label `service.kubernetes.io/headless`, whatever its `ClusterIP`
    /// is: its informers of Services and of `EndpointSlice`s shared one label selector until kubernetes/kubernetes#134623,
    /// written after 1.34. `None` if the release is unknown or may be on either side.
    pub(crate) fn leaves_out_headless_label(release: Option<Self>) -> Option<bool> {
        let release = release?;
        if release <= Self(1, 34) {
            Some(true)
        } else if release >= Self(1, 36) {
            Some(false)
        } else {
            None
        }
    }

    /// Whether kube-proxy follows topology hints for nodes without a gate that was set: by `PreferSameTrafficDistribution`, on since
    /// 1.34 (`pkg/features/kube_features.go`). An unknown release counts as a current one.
    pub(crate) fn follows_node_hints(release: Option<Self>) -> bool {
        release.is_none_or(|release| release >= Self(1, 34))
    }

    /// The number of minor versions by which a kube-proxy or kubelet of this release may be older than the API server; it
    /// may never be newer (kubernetes.io/releases/version-skew-policy).
    pub(crate) fn allowed_behind(self) -> i64 {
        if self >= Self(1, 25) { 3 } else { 2 }
    }

    /// The number of minor versions by which it is older than the other; negative if it is newer.
    pub(crate) fn behind(self, other: Self) -> Option<i64> {
        (self.0 == other.0).then(|| i64::from(other.1) - i64::from(self.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_text_and_has_a_release() {
        let version = Version::from("v1.29.6-eks-1552ad0".to_owned());
        assert_eq!((&*version, version.release()), ("v1.29.6-eks-1552ad0", Some(Release(1, 29))));
    }

    #[test]
    fn releases_and_builds() {
        assert_eq!(Release::parse("v1.30.5"), Some(Release(1, 30)));
        assert_eq!(Release::parse("v1.29.6-eks-1552ad0"), Some(Release(1, 29)));
        assert_eq!(Release::parse("v0.0.0-master+$Format:%H$"), None);
        assert_eq!(Release::parse("latest"), None);
    }

    #[test]
    fn the_skew_and_its_limit() {
        assert_eq!(Release(1, 30).behind(Release(1, 33)), Some(3));
        assert_eq!(Release(1, 34).behind(Release(1, 33)), Some(-1));
        // The node's release decides, not the API server's.
        assert_eq!((Release(1, 25).allowed_behind(), Release(1, 24).allowed_behind()), (3, 2));
    }
}
