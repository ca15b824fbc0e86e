//! The short names of verdict classes, for headings and counts. The failure catalogue has the whole story.

/// The class of a healthy flow.
pub const OK: &str = "ok";
/// The class of a broken flow that nothing seen explains.
pub const UNKNOWN: &str = "unknown";

/// What kind of outcome a class is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Fault,
    Unknown,
    Normal,
    Ok,
}

/// The kind of a class, by its spelling: `C…`, `N…`, `ok`, and everything else unknown.
pub fn kind(class: &str) -> Kind {
    match class {
        OK => Kind::Ok,
        class if class.starts_with('C') => Kind::Fault,
        class if class.starts_with('N') => Kind::Normal,
        _ => Kind::Unknown,
    }
}

/// The short name of a class; sub-classes (`C5b`) share the name of their class unless they have their own.
pub fn name(class: &str) -> &'static str {
    let parent = class.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    exact_name(class).or_else(|| exact_name(parent)).unwrap_or(match kind(class) {
        Kind::Fault => "fault",
        Kind::Unknown => "not explained",
        Kind::Normal => "normal",
        Kind::Ok => "healthy",
    })
}

fn exact_name(class: &str) -> Option<&'static str> {
    Some(match class {
        "ok" => "healthy",
        "unknown" => "not explained",
        "C1" => "kube-proxy absent or crashing",
        "C2" => "kube-proxy cannot read the API",
        "C3" => "rules in the other iptables backend",
        "C4" => "rule sync failing",
        "C5" => "rule sync slow, or rule missing",
        "C5b" => "connection older than its rule",
        "C5c" => "port not in the Service",
        "C5d" => "Service left to another proxy",
        "C5e" => "rules flushed by someone else",
        "C6" => "stale endpoint in the rules",
        "C7" => "old connection to a removed endpoint",
        "C8" => "stale UDP entry",
        "C9" => "version skew",
        "C10" => "leftovers of another proxy mode",
        "C11" => "IPVS unusable",
        "C12" => "IPVS without destination",
        "C13" => "IPVS destination dead",
        "C14" => "IPVS port reuse delay",
        "C15" => "IPVS idle expiry",
        "C16" => "conntrack table full",
        "C17" => "conntrack insertion failed",
        "C18" => "reset after an invalid packet",
        "C18b" => "legitimate traffic dropped as invalid",
        "C19" => "connection picked up midway",
        "C20" => "Service has no endpoints",
        "C21" => "no local endpoint (external policy Local)",
        "C22" => "no local endpoint (internal policy Local)",
        "C23" => "source not in loadBalancerSourceRanges",
        "C24" => "session affinity to a dead endpoint",
        "C25" => "topology hints exclude the endpoint",
        "C26" => "node port unreachable",
        "C27" => "no virtual IP by design",
        "C28" => "backend refuses",
        "C29" => "backend silent",
        "C30" => "dropped by network policy",
        "C31" => "hairpin",
        "C32" => "reverse path filter",
        "C33" => "MTU",
        "C34" => "masquerade interface changed",
        "C35" => "DNS",
        "N1" => "kubelet probe",
        "N2" => "load balancer health check",
        "N3" => "same packet before and after NAT",
        "N4" => "client aborted",
        "N5" => "idle timeout",
        "N6" => "port reused",
        "N7" => "conntrack pressure, packet accepted",
        "N8" => "terminating endpoint still serving",
        "N9" => "endpoint draining",
        "N10" => "clash resolved",
        "N11" => "untracked VIP",
        "N12" => "offloaded flow",
        "N13" => "NAT of another owner",
        "N14" => "masqueraded source",
        "N15" => "kube-proxy draining",
        "N16" => "background noise",
        "N17" => "losing attempt of a racing client",
        "N18" => "kernel timer",
        "N19" => "refused by design",
        "N20" => "sent, answer not seen",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_back_to_the_parent_and_to_the_kind() {
        assert_eq!(name("C20"), "Service has no endpoints");
        assert_eq!(name("C17a"), "conntrack insertion failed");
        assert_eq!(name("C99"), "fault");
        assert_eq!(name("N99"), "normal");
        assert_eq!(name("\u{1b}[2J"), "not explained");
    }
}
