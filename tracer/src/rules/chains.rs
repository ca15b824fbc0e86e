//! The chains of iptables that belong to kube-proxy, by their names.
//!
//! The prefix `KUBE-` proves nothing: kube-router's network policies (k3s and RKE2 contain it) are in `KUBE-ROUTER-…`,
//! `KUBE-POD-FW-…` and `KUBE-NWPLCY-…`, the kubelet writes `KUBE-KUBELET-CANARY` and `KUBE-IPTABLES-HINT`, and the
//! runtimes' host ports are in `KUBE-HOSTPORTS` and `KUBE-HP-…` (cri-o, internal/hostport). The list is the union of
//! all releases from 1.21 to 1.36: pkg/proxy/iptables/proxier.go and pkg/proxy/ipvs/proxier.go of
//! kubernetes/kubernetes.

/// Chains with a fixed name.
///
/// | chain | mode | source |
/// |---|---|---|
/// | `KUBE-SERVICES`, `KUBE-POSTROUTING`, `KUBE-MARK-MASQ`, `KUBE-FORWARD`, `KUBE-PROXY-CANARY` | iptables, ipvs | all releases |
/// | `KUBE-EXTERNAL-SERVICES`, `KUBE-NODEPORTS` | iptables | all releases |
/// | `KUBE-MARK-DROP`, `KUBE-FIREWALL` | iptables, ipvs | the drop of marked packets until kubernetes#110628; the guard of 127.0.0.0/8. The kubelet writes both too |
/// | `KUBE-PROXY-FIREWALL`, `KUBE-SOURCE-RANGES-FIREWALL` | iptables, ipvs | replace that drop |
/// | `KUBE-NODE-PORT`, `KUBE-LOAD-BALANCER` | ipvs | all releases |
/// | `KUBE-IPVS-FILTER`, `KUBE-IPVS-OUT-FILTER` | ipvs | kubernetes#108460, kubernetes#119656 |
const FIXED: [&str; 15] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-MARK-MASQ",
    "KUBE-MARK-DROP",
    "KUBE-FORWARD",
    "KUBE-FIREWALL",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

/// Chains of one Service port or endpoint in iptables mode: the prefix, and a hash in base32. `KUBE-XLB-` is the form
/// of `KUBE-SVL-` and `KUBE-EXT-` until 1.23.
const HASHED: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];

/// Whether kube-proxy writes a chain of this name in iptables or ipvs mode.
pub(crate) fn is_kube_proxys(name: &str) -> bool {
    FIXED.contains(&name) || is_of_service(name)
}

/// Whether kube-proxy writes a chain of this name for one Service port or endpoint, in iptables mode.
pub(crate) fn is_of_service(name: &str) -> bool {
    let is_hash =
        |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'));
    HASHED.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(is_hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kube_proxys_chains_in_both_modes() {
        for name in FIXED.into_iter().chain(["KUBE-SVC-NPX46M4PTMTKRN6Y", "KUBE-FW-ERIFXISQEP7F7OF4"]) {
            assert!(is_kube_proxys(name), "{name}");
        }
        assert!(is_of_service("KUBE-SEP-4O5AICOKW2EZK2IV") && !is_of_service("KUBE-SERVICES"));
    }

    #[test]
    fn chains_of_other_programs_are_not_kube_proxys() {
        for name in [
            // kube-router
            "KUBE-ROUTER-INPUT",
            "KUBE-ROUTER-SERVICES",
            "KUBE-ROUTER-HAIRPIN",
            "KUBE-POD-FW-4T2XYZUJHNSYVFOA",
            "KUBE-NWPLCY-DEFAULT",
            "KUBE-NWPLCY-3PGXU2N5ESM3PZEV",
            "KUBE-DST-3PGXU2N5ESM3PZEV",
            // the kubelet, the runtimes' host ports
            "KUBE-KUBELET-CANARY",
            "KUBE-IPTABLES-HINT",
            "KUBE-HOSTPORTS",
            "KUBE-HP-3PGXU2N5ESM3PZEV",
            // Calico, Flannel, portmap, Docker
            "cali-PREROUTING",
            "FLANNEL-FWD",
            "CNI-HOSTPORT-DNAT",
            "DOCKER",
            "KUBE-SVC-",
            "KUBE-SVC-lower",
        ] {
            assert!(!is_kube_proxys(name), "{name}");
        }
    }
}
