//! What an old iptables does not print.
//!
//! In nft mode newer releases write `-m mark`, and the ports of `-m tcp` and `-m udp`, in nftables' own form.
//! Those before 1.8.8 list such a rule without the mark and the port, and without a word (kubernetes/kubernetes#112477): with
//! kube-proxy's image newer than the host's iptables, the host lists a KUBE-POSTROUTING that masquerades nothing, a KUBE-FIREWALL
//! that drops everything, and Services without ports. The ports cannot be restored, so such a list is refused.

use crate::{
    net::Family,
    rules::{Rule, Ruleset, Step, Table, Verdict},
};

/// The releases in nft mode that do not print all conditions: from 1.8.0, the first with this mode, until before 1.8.8.
const FIRST_IN_NFT_MODE: [u32; 3] = [1, 8, 0];
const PRINTS_MARKS: [u32; 3] = [1, 8, 8];

/// The release that wrote this header, `iptables-save v1.8.7 on …`, if in nft mode it does not print every condition. Before 1.8.8
/// the header does not name the mode.
pub(super) fn leaves_out(generated: &str) -> Option<&str> {
    let version = generated.split_ascii_whitespace().nth(1)?.strip_prefix('v')?;
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let numbers = [(); 3].map(|()| numbers.next().unwrap_or(0));
    (FIRST_IN_NFT_MODE..PRINTS_MARKS).contains(&numbers).then_some(version)
}

/// The table, of those that kube-proxy uses, that this comment says is left out.
/// One rule that iptables cannot express, which another program wrote with nft, keeps it from printing the whole table
/// (`nft_is_table_compatible`, iptables/nft.c).
pub(super) fn table(comment: &str) -> Option<&'static str> {
    let named = comment.strip_prefix("Table `")?.strip_suffix("' is incompatible, use 'nft' tool.")?;
    ["nat", "filter"].into_iter().find(|table| *table == named)
}

/// Why the table is not in the list.
pub(super) fn why(table: &str, family: Family) -> String {
    format!(
        "iptables cannot print the table {table}, in which another program has rules of its own: `nft list table {family} \
         {table}` lists it",
        family = if family == Family::Ipv4 { "ip" } else { "ip6" }
    )
}

/// Whether conditions are missing: KUBE-POSTROUTING returns without one before it masquerades, which kube-proxy never writes.
pub(super) fn are_missing(ruleset: &Ruleset) -> bool {
    ruleset.tables.iter().filter(|table| &*table.name == "nat").any(lacks_marks)
}

fn lacks_marks(nat: &Table) -> bool {
    let Some(chain) = nat.chain("KUBE-POSTROUTING") else { return false };
    let returns = chain.rules.iter().position(returns_always);
    let later = returns.and_then(|at| chain.rules.get(at..)).unwrap_or_default();
    later.iter().any(|rule| rule.steps.last() == Some(&Step::Do(Verdict::Masquerade)))
}

fn returns_always(rule: &Rule) -> bool {
    matches!(&*rule.steps, [Step::Do(Verdict::Return)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_left_out_is_known() {
        assert_eq!(table("Table `filter' is incompatible, use 'nft' tool."), Some("filter"));
        assert_eq!(table("Table `raw' is incompatible, use 'nft' tool."), None);
        assert_eq!(
            table("Table `nat' contains incompatible base-chains, use 'nft' tool to list them."),
            None
        );
    }

    #[test]
    fn releases_with_nft_mode_before_1_8_8_leave_out_marks() {
        for (generated, release) in [
            ("iptables-save v1.8.7 on Thu", Some("1.8.7")),
            ("ip6tables-save v1.8.4 on Thu", Some("1.8.4")),
            ("xtables-save v1.8.2 on Thu", Some("1.8.2")),
            ("iptables-save v1.8.8 (nf_tables) on Thu", None),
            ("iptables-save v1.8.10 (nf_tables) on Thu", None),
            ("iptables-save v1.9 (nf_tables) on Thu", None),
            ("iptables-save v1.6.1 on Thu", None),
            ("iptables-save (nf_tables)", None),
            ("", None),
        ] {
            assert_eq!(leaves_out(generated), release, "{generated}");
        }
    }
}
