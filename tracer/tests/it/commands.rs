//! The commands that viptrace prints can be typed: each `kubectl` is parsed with kubectl's own flags, each `viptrace`
//! with this one's, and the options of other programs are compared with a list from their manual pages.
//!
//! The commands come from the knowledge base (actions and pages), from the hints and help texts in the sources, and
//! from the advice in the records of the test suite's captures and recordings.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write as _},
    path::Path,
    process::Command,
    sync::LazyLock,
};

use clap::{Parser as _, error::ErrorKind};
use proc_macro2::{TokenStream, TokenTree};
use viptrace::{
    class::Class,
    cli::{args::Cli, kubectl::args::Plugin},
};

use crate::{check_support::Gathered, recording_corpus, terminal_support::fixture};

/// The options in use of other programs, from their manual pages (Debian 13). `list` and similar words are nft's
/// verbs.
const OPTIONS: [(&str, &[&str]); 7] = [
    (
        "conntrack",
        &[
            "-L",
            "-D",
            "-E",
            "-F",
            "-S",
            "-p",
            "-s",
            "-d",
            "-e",
            "-f",
            "-o",
            "--sport",
            "--dport",
            "--state",
            "--orig-src",
            "--orig-dst",
            "--reply-src",
            "--reply-dst",
        ],
    ),
    ("ipvsadm", &["-L", "-l", "-n", "-c", "-t", "-u", "-S", "-C", "--timeout", "--sctp-service"]),
    ("nft", &["list", "monitor", "delete", "flush", "add", "-a", "-f", "-j", "--version"]),
    ("sysctl", &["-w", "-a", "-r", "-n", "-p"]),
    ("iptables-save", &["-c", "-t"]),
    ("iptables-nft-save", &["-c", "-t"]),
    ("iptables-legacy-save", &["-c", "-t"]),
];

/// Words that never occur inside a command.
const PROSE: [&str; 12] = ["of", "the", "this", "its", "a", "an", "to", "and", "or", "with", "that", "for"];

/// Every text with advice.
static TEXTS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut texts = BTreeSet::new();
    for class in Class::ALL {
        // In a page, which has the class's actions, commands are code.
        texts.extend(class.page().split('`').skip(1).step_by(2).map(ToOwned::to_owned));
    }
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |literal| {
        // Two words are a part of a command that a test asserts.
        if literal.starts_with("kubectl ") && literal.split(' ').count() > 2 {
            texts.insert(literal.to_owned());
        }
        texts.extend(literal.split('`').skip(1).step_by(2).map(ToOwned::to_owned));
    });
    for verdict in recording_corpus::verdicts() {
        texts.extend([verdict.mitigation.immediate, verdict.mitigation.long_term].map(String::from));
    }
    for capture in captures() {
        for finding in capture.check().findings {
            texts.extend([finding.mitigation.immediate, finding.mitigation.long_term].map(String::from));
        }
    }
    texts
});

/// The string literals of the sources, without line breaks.
fn sources(folder: &Path, literal: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, literal);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            literals(fs::read_to_string(&path).unwrap().parse().unwrap(), literal);
        }
    }
}

fn literals(tokens: TokenStream, literal: &mut impl FnMut(&str)) {
    let mut is_doc = false;
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => literals(group.stream(), literal),
            TokenTree::Literal(text) if !is_doc => {
                let text = text.to_string();
                if let Some(text) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
                    let lines: Vec<&str> = text.split("\\\n").collect();
                    let (first, rest) = lines.split_first().unwrap();
                    let rest: String = rest.iter().map(|line| line.trim_start()).collect();
                    literal(&format!("{first}{rest}").replace("\\\"", "\""));
                }
            }
            TokenTree::Ident(name) => is_doc = name == "doc",
            _ => {}
        }
    }
}

/// Captures of nodes, healthy and broken.
pub(crate) fn captures() -> Vec<Gathered> {
    let mut all: Vec<Gathered> = ["iptables", "nftables", "ipvs"]
        .iter()
        .flat_map(|mode| [format!("kube-proxy/worker-1/{mode}"), format!("kube-proxy/worker-2/{mode}")])
        .filter(|capture| fixture(capture).is_dir())
        .map(|capture| Gathered::new(&[capture.as_str()]))
        .collect();
    for incident in fs::read_dir(fixture("incidents")).unwrap() {
        let name = incident.unwrap().file_name().into_string().unwrap();
        if fixture(&format!("incidents/{name}")).is_dir() {
            all.push(Gathered::new(&[format!("incidents/{name}").as_str()]));
        }
    }
    assert!(all.len() > 6, "the captures were not found");
    all
}

/// Shell words up to the end of the command in its sentence. `$(…)` is one word, which is parsed separately.
fn words(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (mut word, mut depth, mut quote) = (String::new(), 0, None);
        let mut end = rest.len();
        for (at, c) in rest.char_indices() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, '(') => depth += 1,
                (None, ')') if depth > 0 => depth -= 1,
                (None, c) if c.is_whitespace() && depth == 0 => {
                    end = at;
                    break;
                }
                _ => {}
            }
            word.push(c);
        }
        rest = rest.get(end..).unwrap_or_default().trim_start();
        if matches!(word.as_str(), "|" | "&&" | ">" | "2>/dev/null") {
            break;
        }
        let bare = word.trim_end_matches([';', ',', ':', '.', ')']);
        let ends = bare.len() < word.len() && !word.starts_with("$(");
        out.push(if ends { bare.to_owned() } else { word });
        if ends {
            break;
        }
    }
    out
}

/// The commands of this program in a text, without its name.
fn commands(text: &str, program: &str) -> Vec<Vec<String>> {
    let begins = text.match_indices(program).filter(|(at, _)| {
        let before = text.get(..*at).unwrap_or_default();
        let behind = text.get(at + program.len()..).unwrap_or_default();
        // `-m conntrack` is a match of iptables.
        let is_name = before.chars().next_back().is_none_or(|c| c.is_whitespace() || c == '(');
        is_name && !before.ends_with("-m ") && behind.starts_with(' ')
    });
    begins.map(|(at, _)| words(text.get(at + program.len()..).unwrap_or_default())).collect()
}

/// kubectl's own flags, and whether each takes a value.
struct Kubectl {
    global: BTreeMap<String, bool>,
    verbs: BTreeMap<String, Option<BTreeMap<String, bool>>>,
}

impl Kubectl {
    /// `None` if kubectl is not installed.
    fn new() -> Option<Self> {
        let options = Command::new("kubectl").arg("options").output().ok()?;
        Some(Self { global: flags(&String::from_utf8_lossy(&options.stdout)), verbs: BTreeMap::new() })
    }

    /// The flags of a verb; `None` for an unknown verb.
    fn verb(&mut self, verb: &str) -> Option<&BTreeMap<String, bool>> {
        let help = || {
            let output = Command::new("kubectl").args(verb.split(' ')).arg("--help").output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let own = text.contains(&format!("kubectl {verb}"));
            (output.status.success() && own).then(|| flags(&text))
        };
        self.verbs.entry(verb.to_owned()).or_insert_with(help).as_ref()
    }

    /// Returns the error in the command.
    fn judge(&mut self, words: &[String]) -> Result<(), String> {
        let global = self.global.clone();
        let takes_value = |flags: &BTreeMap<String, bool>, flag: &str| flags.get(flag).copied();
        let mut at = 0;
        // Flags before the verb are global.
        while let Some(flag) = words.get(at).filter(|word| word.starts_with('-')) {
            let name = flag.split('=').next().unwrap_or_default();
            let value = takes_value(&global, name).ok_or_else(|| format!("no global flag {name}"))?;
            at += 1 + usize::from(value && !flag.contains('='));
        }
        let first = words.get(at).ok_or("no verb")?.clone();
        if first == "viptrace" {
            // The plugin: this program.
            return Ok(());
        }
        at += 1;
        let mut verb = first.clone();
        if matches!(
            &*first,
            "auth" | "rollout" | "set" | "config" | "create" | "certificate" | "cluster-info"
        ) {
            let second = words.get(at).ok_or("half a verb")?;
            verb = format!("{first} {second}");
            at += 1;
        }
        let own = self.verb(&verb).ok_or_else(|| format!("no verb {verb:?}"))?;
        let known = |name: &str| takes_value(own, name).or_else(|| takes_value(&global, name));
        let mut names = 0;
        while let Some(word) = words.get(at) {
            at += 1;
            if word == "--" {
                break;
            }
            if !word.starts_with('-') || word.len() < 2 {
                if PROSE.contains(&word.as_str()) {
                    return Err(format!("{word:?} is prose"));
                }
                names += 1;
                continue;
            }
            let name = word.split('=').next().unwrap_or_default();
            let value = known(name).ok_or_else(|| format!("kubectl {verb} has no flag {name}"))?;
            at += usize::from(value && !word.contains('='));
        }
        let needs_name =
            matches!(&*first, "get" | "describe" | "delete" | "edit" | "label" | "patch" | "exec");
        if needs_name && names == 0 { Err(format!("kubectl {verb} needs a name")) } else { Ok(()) }
    }
}

/// Flags in a help text, `-o, --output='':`, and whether each takes a value.
fn flags(help: &str) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
        let Some((names, default)) = line.split_once('=') else { continue };
        let value = !default.starts_with("true:") && !default.starts_with("false:");
        for name in names.split(", ") {
            found.insert(name.to_owned(), value);
        }
    }
    found
}

#[test]
fn every_kubectl_that_is_printed_can_be_typed() {
    let all: BTreeSet<Vec<String>> = TEXTS.iter().flat_map(|text| commands(text, "kubectl")).collect();
    assert!(all.len() > 60, "only {} commands were found", all.len());
    let Some(mut kubectl) = Kubectl::new() else {
        // Not with `eprintln!`, whose output the test harness hides when a test passes.
        let why = "kubectl is not installed; hint: apt-get install kubernetes-client, or cargo xtask test";
        writeln!(io::stderr(), "skipped: {} kubectl commands were not checked: {why}", all.len()).unwrap();
        return;
    };
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|words| Some(format!("kubectl {}: {}", words.join(" "), kubectl.judge(words).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} commands:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn every_viptrace_that_is_printed_can_be_typed() {
    let all: BTreeSet<Vec<String>> = TEXTS.iter().flat_map(|text| commands(text, "viptrace")).collect();
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|words| {
            // One word is the name of a verb.
            let typed = words.iter().map(|word| word.replace("CLASS", "C6"));
            let typed: Vec<String> = ["viptrace".to_owned()].into_iter().chain(typed).collect();
            let error = Cli::try_parse_from(&typed).err()?;
            // As `kubectl viptrace`.
            if Plugin::try_parse_from(&typed).is_ok() {
                return None;
            }
            let is_name = words.len() == 1 && error.kind() == ErrorKind::MissingRequiredArgument;
            if is_name || !error.use_stderr() {
                return None;
            }
            Some(format!("viptrace {}: {error}", words.join(" ")))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} commands:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert!(all.len() > 5, "only {} commands were found", all.len());
}

#[test]
fn commands_that_cannot_be_typed_are_found() {
    let Some(mut kubectl) = Kubectl::new() else { return };
    for (text, why) in [
        (
            "kubectl -n kube-system logs -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE",
            "--field-selector",
        ),
        ("kubectl -n kube-system delete pod of this node's kube-proxy", "prose"),
        ("kubectl look POD", "no verb"),
        ("kubectl --namespaces x get pods", "no global flag"),
        ("kubectl get -o wide", "needs a name"),
    ] {
        let commands = commands(text, "kubectl");
        assert!(kubectl.judge(&commands[0]).unwrap_err().contains(why), "{text}");
    }
    let nested = "read it: kubectl logs $(kubectl get pods -o name) --tail=5; then rest";
    let found = commands(nested, "kubectl");
    assert_eq!(
        found,
        [vec!["logs", "$(kubectl get pods -o name)", "--tail=5"], vec!["get", "pods", "-o", "name"]]
    );
}

#[test]
fn options_of_other_programs_exist() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for text in TEXTS.iter() {
        for (program, options) in OPTIONS {
            for words in commands(text, program) {
                let Some(first) = words.first() else { continue };
                // "conntrack entry" is prose.
                let is_command = first.starts_with('-') || options.contains(&first.as_str());
                for word in words.iter().filter(|word| is_command && word.starts_with('-')) {
                    checked += 1;
                    let letters = word.trim_start_matches('-');
                    let known = options.contains(&word.as_str())
                        || !word.starts_with("--")
                            && letters.chars().all(|letter| options.contains(&&*format!("-{letter}")));
                    if !known {
                        wrong.push(format!("{program} {}: {word}", words.join(" ")));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 30, "only {checked} options were found");
}
