//! The verbs that observe the node on which they run, on a system that is not Linux: each names the verb that does its
//! work from here.

use anyhow::anyhow;

use crate::cli::{Outcome, ResultExt as _, args::Verb};

/// Ends such a verb.
pub(super) fn refuse(verb: &Verb) -> anyhow::Result<Outcome> {
    let (name, hint) = match verb {
        Verb::Trace(_) => ("trace", "`kubectl viptrace trace` watches the nodes from this machine"),
        Verb::Top(_) => (
            "top",
            "`kubectl viptrace top` watches the nodes from this machine, `--recording FILE` needs none",
        ),
        Verb::Check(args) if args.kernel => (
            "check --kernel",
            "run it on the node; `kubectl viptrace check` checks the nodes from this machine",
        ),
        Verb::Check(_) => (
            "check",
            "`kubectl viptrace check` checks the nodes from this machine, `viptrace check --from DIR` a \
             captured folder",
        ),
        Verb::Capture(_) => {
            ("capture", "`kubectl viptrace capture DIR` captures the nodes from this machine")
        }
        Verb::Path(_) => (
            "path",
            "`kubectl viptrace capture DIR` saves the rules of the nodes, and `viptrace path --from DIR FROM TO` \
             follows a packet through them",
        ),
        Verb::Agent(_) => {
            ("agent", "it runs in a Pod on each node; `kubectl viptrace trace` watches the nodes without it")
        }
        // Only `node` remains, which the plugin starts: the others run on every system.
        _ => ("node", "`kubectl viptrace trace` starts it on the nodes"),
    };
    Err(anyhow!("viptrace {name} observes the node on which it runs, and this system is not Linux"))
        .hint(|| hint.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{args::Cli, hint};

    #[test]
    fn a_verb_of_a_node_names_the_plugins_verb() {
        let refused = |words: &str| {
            let words = ["viptrace"].into_iter().chain(words.split(' '));
            let error = refuse(&Cli::try_parse_from(words).unwrap().verb).unwrap_err();
            (error.to_string(), hint::hint(&error).unwrap())
        };
        let (error, hint) = refused("trace shop/cart");
        assert_eq!(error, "viptrace trace observes the node on which it runs, and this system is not Linux");
        assert_eq!(hint, "`kubectl viptrace trace` watches the nodes from this machine");
        let (error, hint) = refused("path pod/shop/web-0 shop/cart");
        assert!(error.starts_with("viptrace path ") && hint.contains("`kubectl viptrace capture DIR`"));
        for words in ["agent", "top", "capture worker-1", "check", "check --kernel", "node"] {
            let (error, hint) = refused(words);
            assert!(
                error.starts_with(&format!("viptrace {} ", words.trim_end_matches(" worker-1"))),
                "{error}"
            );
            assert!(hint.contains("kubectl viptrace"), "{hint}");
        }
    }
}
