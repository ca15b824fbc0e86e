//! Where rules of kube-proxy were found, told by their names alone: the triage wants it even where nothing else is known.

use crate::node::capture::{Capture, Kind};

/// Where rules of kube-proxy were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesSeen {
    /// Chains KUBE-SVC-, KUBE-SEP- and the like of IPv4, by the list of each backend.
    pub iptables: Option<usize>,
    pub iptables_nft: Option<usize>,
    pub iptables_legacy: Option<usize>,
    /// Whether there is a table `ip kube-proxy` or `ip6 kube-proxy`.
    pub nftables: Option<bool>,
    /// Virtual servers.
    pub ipvs: Option<usize>,
}

impl RulesSeen {
    /// The larger count of any iptables list.
    pub fn iptables_chains(&self) -> Option<usize> {
        [self.iptables, self.iptables_nft, self.iptables_legacy].into_iter().flatten().max()
    }

    /// Whether any mode's rules are there; `None` where no list could be read.
    pub fn any(&self) -> Option<bool> {
        let found = [
            self.iptables_chains().map(|chains| chains > 0),
            self.nftables,
            self.ipvs.map(|servers| servers > 0),
        ];
        found.into_iter().flatten().reduce(|a, b| a || b)
    }
}

/// Which kinds of rules are there. What they say is read elsewhere.
pub(super) fn rules_seen(capture: &Capture) -> RulesSeen {
    let chains = |kind| capture.text(kind).map(kube_chains);
    let nft_json = capture
        .text(Kind::NftRulesetJson)
        .map(|text| text.contains("\"name\": \"kube-proxy\"") || text.contains("\"name\":\"kube-proxy\""));
    let nft_text = capture.text(Kind::NftRuleset).map(|text| {
        text.lines().any(|line| matches!(line.trim_end(), "table ip kube-proxy {" | "table ip6 kube-proxy {"))
    });
    let saved =
        capture.text(Kind::IpvsSave).map(|text| text.lines().filter(|line| line.starts_with("-A ")).count());
    let listed = capture.text(Kind::IpvsList).map(|text| {
        text.lines()
            .filter(|line| ["TCP ", "UDP ", "SCTP "].iter().any(|begin| line.starts_with(begin)))
            .count()
    });
    RulesSeen {
        iptables: chains(Kind::IptablesSave),
        iptables_nft: chains(Kind::IptablesNftSave),
        iptables_legacy: chains(Kind::IptablesLegacySave),
        nftables: nft_text.into_iter().chain(nft_json).reduce(|a, b| a || b),
        ipvs: saved.or(listed),
    }
}

/// Chains that kube-proxy makes for Services in iptables mode. In IPVS mode there are none of them.
pub(super) fn kube_chains(saved: &str) -> usize {
    let of_service = |name: &str| {
        ["KUBE-SVC-", "KUBE-SEP-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    saved.lines().filter_map(|line| line.strip_prefix(':')).filter(|name| of_service(name)).count()
}
