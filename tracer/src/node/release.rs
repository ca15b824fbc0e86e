//! Releases of Kubernetes: which minor version a component has, and with it which behaviour.

/// Major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release(pub(crate) u32, pub(crate) u32);

impl Release {
    /// Parses `v1.30.5`, `v1.29.6-eks-1552ad0` or `v1.30.5+k3s1`; `None` for builds without a version
    /// (`v0.0.0-master`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').split('.');
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next()?;
        (major > 0).then_some(Self(major, minor))
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
    }
}
