//! Marks that an old iptables does not print.
//!
//! In nft mode iptables writes `-m mark` in nftables' own form since 1.8.8. Older releases list such a rule without the mark, and
//! without a word (kubernetes/kubernetes#112477): with kube-proxy's image newer than the host's iptables, the host lists a
//! KUBE-POSTROUTING that masquerades nothing and a KUBE-FIREWALL that drops everything. kube-proxy and the kubelet write neither,
//! so the marks that they write are put back, and the list says so.

use crate::{
    net::Family,
    rules::{Rule, Ruleset, Step, Table, Verdict, Writer},
};

/// The first release that prints all marks.
const PRINTS_MARKS: [u32; 3] = [1, 8, 8];
/// The marks of kube-proxy (`--iptables-masquerade-bit`) and of the kubelet (`--iptables-drop-bit`) unless they are set otherwise.
const MASQUERADE: u32 = 1 << 14;
const DROP: u32 = 1 << 15;

/// Whether the program that wrote this header, `iptables-save v1.8.7 (nf_tables) on …`, leaves out marks.
pub(super) fn leaves_out(generated: &str) -> bool {
    let version = generated.split_ascii_whitespace().nth(1).and_then(|word| word.strip_prefix('v'));
    let Some(version) = version.filter(|_| generated.contains("(nf_tables)")) else { return false };
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let version = [(); 3].map(|()| numbers.next().unwrap_or(0));
    version < PRINTS_MARKS
}

/// Puts the marks back into the tables of each family that lack them.
pub(super) fn restore(ruleset: &mut Ruleset) {
    for family in Family::ALL {
        let is_its = |table: &&mut Table| table.family == family && table.writer == Writer::IptablesNft;
        let nat = ruleset.table(Writer::IptablesNft, family, "nat");
        let Some(nat) = nat.filter(|nat| lacks_marks(nat)) else { continue };
        let set_by = |chain: &str| nat.chain(chain)?.set_mark();
        let masquerade = set_by("KUBE-MARK-MASQ").unwrap_or(MASQUERADE);
        let drop = set_by("KUBE-MARK-DROP").unwrap_or(DROP);
        for table in ruleset.tables.iter_mut().filter(is_its) {
            for (chain, verdict, mark, negated) in [
                ("KUBE-POSTROUTING", Verdict::Return, masquerade, true),
                ("KUBE-FORWARD", Verdict::Accept, masquerade, false),
                ("KUBE-FIREWALL", Verdict::Drop, drop, false),
            ] {
                mark_rules(table, chain, &verdict, &Step::Mark { value: mark, mask: mark, negated });
            }
        }
        ruleset.odd(|| {
            "this iptables-save is older than 1.8.8, and leaves out marks in rules that a newer iptables wrote: those that \
             kube-proxy and the kubelet write are assumed"
                .to_owned()
        });
    }
}

/// Whether KUBE-POSTROUTING returns without a condition before it masquerades.
fn lacks_marks(nat: &Table) -> bool {
    let Some(chain) = nat.chain("KUBE-POSTROUTING") else { return false };
    let returns = chain.rules.iter().position(|rule| is_plain(rule, &Verdict::Return));
    let later = returns.and_then(|at| chain.rules.get(at..)).unwrap_or_default();
    later.iter().any(|rule| rule.steps.last() == Some(&Step::Do(Verdict::Masquerade)))
}

/// Whether the rule has this verdict and no condition.
fn is_plain(rule: &Rule, verdict: &Verdict) -> bool {
    matches!(&*rule.steps, [Step::Do(only)] if only == verdict)
}

/// Gives the rules of a chain that have this verdict and no condition the mark.
fn mark_rules(table: &mut Table, chain: &str, verdict: &Verdict, mark: &Step) {
    let chains = table.chains.iter_mut().filter(|known| *known.name == *chain);
    for rule in chains.flat_map(|chain| &mut chain.rules).filter(|rule| is_plain(rule, verdict)) {
        rule.steps = [mark.clone()].into_iter().chain(rule.steps.iter().cloned()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_in_nft_mode_before_1_8_8_leave_out_marks() {
        for (generated, is_lossy) in [
            ("iptables-save v1.8.7 (nf_tables) on Thu", true),
            ("ip6tables-save v1.8.4 (nf_tables) on Thu", true),
            ("iptables-save v1.8.8 (nf_tables) on Thu", false),
            ("iptables-save v1.8.10 (nf_tables) on Thu", false),
            ("iptables-save v1.9 (nf_tables) on Thu", false),
            ("iptables-save v1.8.7 on Thu", false),
            ("iptables-save (nf_tables)", false),
            ("", false),
        ] {
            assert_eq!(leaves_out(generated), is_lossy, "{generated}");
        }
    }
}
