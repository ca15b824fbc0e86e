//! Kernel modules: the list of `/proc/modules` or `lsmod`, and the modules built into the kernel (K7).
//!
//! Owns the texts. A module that is not listed may be built in: only with both lists is its absence known.

use std::collections::BTreeSet;

/// The most names kept; a kernel has a few thousand.
const MAX_MODULES: usize = 100_000;

/// Modules by the kernel's names: with `_`, never `-`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules {
    loaded: BTreeSet<String>,
    /// From `modules.builtin`; `None` if it was not read.
    built_in: Option<BTreeSet<String>>,
}

impl Modules {
    /// Parses `/proc/modules` (`nf_nat 65536 2 nft_chain_nat,xt_MASQUERADE, Live 0x0`) or `lsmod`
    /// (`nf_nat  65536  2 nft_chain_nat,xt_MASQUERADE`). A line `kernel/net/…/nf_nat.ko` of `modules.builtin`, which a
    /// capture appends, counts as built in.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines().take(MAX_MODULES) {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            if let Some(stem) = first.strip_suffix(".ko") {
                let name = stem.rsplit('/').next().unwrap_or(stem);
                found.built_in.get_or_insert_default().insert(normal(name));
            } else if words.next().is_some_and(|size| size.bytes().all(|byte| byte.is_ascii_digit()))
                && words.next().is_some()
            {
                found.loaded.insert(normal(first));
            }
        }
        found
    }

    pub fn is_empty(&self) -> bool {
        self.loaded.is_empty() && self.built_in.is_none()
    }

    /// Whether the kernel has this module's code now; `None` if it may be built in.
    pub fn has(&self, name: &str) -> Option<bool> {
        let name = normal(name);
        if self.loaded.contains(&name) {
            return Some(true);
        }
        self.built_in.as_ref().map(|built_in| built_in.contains(&name))
    }
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_set, prelude::*};

    use super::*;

    #[test]
    fn both_lists_and_what_is_built_in() {
        let proc =
            "ip_vs_rr 12288 16 - Live 0xffffffffc04fb000\nnf_nat 65536 2 a,b, Live 0xffffffffc050d000\n";
        let modules = Modules::parse(proc);
        assert_eq!(modules.has("ip-vs-rr"), Some(true));
        assert_eq!(modules.has("ip_vs"), None, "it may be built in");
        let whole = format!("{proc}kernel/net/bridge/br_netfilter.ko\n");
        let modules = Modules::parse(&whole);
        assert_eq!(modules.has("ip_vs"), Some(false));
        assert_eq!(modules.has("br_netfilter"), Some(true));
        let lsmod = "Module                  Size  Used by\nip_vs                 225280  23 xt_ipvs\n";
        assert_eq!(Modules::parse(lsmod).has("ip_vs"), Some(true));
    }

    proptest! {
        #[test]
        fn every_listed_module_is_found(names in btree_set("[a-z][a-z0-9_]{0,20}", 0..30)) {
            let text = names.iter().fold(String::new(), |text, name| text + name + " 4096 0 - Live 0x0\n");
            let modules = Modules::parse(&text);
            prop_assert!(names.iter().all(|name| modules.has(name) == Some(true)));
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = Modules::parse(&text);
        }
    }
}
