//! Completion in the form of kubectl: `kubectl_complete-viptrace` prints one candidate a line, and a last line with a directive
//! (<https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>).

use std::{process::ExitCode, time::Duration};

use clap::{Command, CommandFactory as _, Parser as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use kube::{Api, Client, api::ListParams};

use super::args::{Plugin, ServerArgs};
use crate::{report::write_record, text::safe};

/// The name under which kubectl runs the completer.
pub(in crate::cli) const COMPLETER: &str = "kubectl_complete-viptrace";
/// A shell waits for the answer.
const LIMIT: Duration = Duration::from_secs(3);
/// `ShellCompDirectiveNoFileComp` of spf13/cobra.
const NO_FILES: &str = ":4";

/// Where candidates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted<'w> {
    /// The verbs.
    Verbs,
    /// The flags of a verb.
    Flags(&'w str),
    /// Services, Pods and nodes.
    Targets,
    Nodes,
    Namespaces,
    Nothing,
}

/// Prints the candidates for the last of these words.
pub(super) fn run(words: &[String]) -> ExitCode {
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let candidates = match wanted(before, last) {
        Wanted::Verbs => verbs(),
        Wanted::Flags(verb) => flags(verb),
        Wanted::Nothing => Vec::new(),
        of_cluster => super::block_on(async {
            let found = tokio::time::timeout(LIMIT, from_cluster(of_cluster, before, last)).await;
            anyhow::Ok(found.unwrap_or_default())
        })
        .unwrap_or_default(),
    };
    let mut lines: Vec<String> = candidates
        .iter()
        .filter(|candidate| candidate.starts_with(last))
        .map(|candidate| safe(candidate).into_owned())
        .collect();
    lines.push(NO_FILES.to_owned());
    let lines = lines.join("\n") + "\n";
    if write_record(&lines).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the word after these ones can be.
fn wanted<'w>(before: &'w [String], last: &str) -> Wanted<'w> {
    match before.last().map(String::as_str) {
        Some("-n" | "--namespace" | "--pod-namespace") => return Wanted::Namespaces,
        Some("--node") => return Wanted::Nodes,
        Some("--client" | "--service") => return Wanted::Targets,
        _ => {}
    }
    let verb = before.iter().find(|word| verbs().contains(word));
    match verb {
        Some(verb) if last.starts_with('-') => Wanted::Flags(verb),
        None if last.starts_with('-') => Wanted::Nothing,
        None => Wanted::Verbs,
        Some(verb) if matches!(verb.as_str(), "trace" | "top" | "check" | "why") => Wanted::Targets,
        Some(_) => Wanted::Nothing,
    }
}

fn definition() -> Command {
    let mut command = Plugin::command();
    command.build();
    command
}

fn verbs() -> Vec<String> {
    let command = definition();
    command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| verb.get_name().to_owned())
        .collect()
}

fn flags(verb: &str) -> Vec<String> {
    let command = definition();
    let Some(verb) = command.find_subcommand(verb) else { return Vec::new() };
    let visible = verb.get_arguments().filter(|argument| !argument.is_hide_set());
    visible.filter_map(|argument| argument.get_long().map(|long| format!("--{long}"))).collect()
}

/// The names in the cluster. An unreachable one has none.
async fn from_cluster(wanted: Wanted<'_>, before: &[String], last: &str) -> Vec<String> {
    let server = server(before);
    let Ok((client, _, default)) = server.access().client_and_namespace().await else { return Vec::new() };
    let named = server.namespace.unwrap_or(default);
    match wanted {
        Wanted::Nodes => names::<Node>(Api::all(client)).await,
        Wanted::Namespaces => names::<Namespace>(Api::all(client)).await,
        _ => targets(client, &named, last).await,
    }
}

/// The flags about the server in an unfinished line.
fn server(before: &[String]) -> ServerArgs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        server: ServerArgs,
    }
    let flags = ["--kubeconfig", "--context", "--namespace", "-n", "--as", "--as-group"];
    let mut words = vec!["viptrace".to_owned()];
    let mut rest = before.iter();
    while let Some(word) = rest.next() {
        if flags.contains(&word.as_str()) {
            words.push(word.clone());
            words.extend(rest.next().cloned());
        } else if flags.iter().any(|flag| word.starts_with(&format!("{flag}="))) {
            words.push(word.clone());
        }
    }
    Line::try_parse_from(words).map(|line| line.server).unwrap_or_default()
}

async fn targets(client: Client, namespace: &str, last: &str) -> Vec<String> {
    let of =
        |kind: &str, names: Vec<String>| names.into_iter().map(|name| format!("{kind}/{name}")).collect();
    match last.split_once('/') {
        Some(("node" | "nodes", _)) => of("node", names::<Node>(Api::all(client)).await),
        Some((kind @ ("pod" | "pods" | "po"), _)) => {
            of(kind, names::<Pod>(Api::namespaced(client, namespace)).await)
        }
        Some((kind @ ("svc" | "service" | "services"), _)) => {
            of(kind, names::<Service>(Api::namespaced(client, namespace)).await)
        }
        Some((other, _)) => of(other, names::<Service>(Api::namespaced(client, other)).await),
        None => names::<Service>(Api::namespaced(client, namespace)).await,
    }
}

async fn names<K>(api: Api<K>) -> Vec<String>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let listed = api.list_metadata(&ListParams::default()).await;
    let items = listed.map(|list| list.items).unwrap_or_default();
    items.into_iter().filter_map(|item| item.metadata.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_place_in_the_line_decides() {
        assert_eq!(wanted(&[], "tr"), Wanted::Verbs);
        assert_eq!(wanted(&words("-n shop"), ""), Wanted::Verbs);
        assert_eq!(wanted(&words("trace"), "car"), Wanted::Targets);
        assert_eq!(wanted(&words("trace"), "--no"), Wanted::Flags("trace"));
        assert_eq!(wanted(&words("trace cart --node"), "w"), Wanted::Nodes);
        assert_eq!(wanted(&words("trace -n"), ""), Wanted::Namespaces);
        assert_eq!(wanted(&words("explain"), "C"), Wanted::Nothing);
    }

    #[test]
    fn verbs_and_flags_come_from_the_definition() {
        assert!(
            ["trace", "check", "why", "cleanup"].iter().all(|verb| verbs().contains(&(*verb).to_owned()))
        );
        assert!(flags("trace").contains(&"--all-nodes".to_owned()));
        assert!(flags("trace").contains(&"--context".to_owned()));
    }

    #[test]
    fn the_servers_flags_are_found_in_an_unfinished_line() {
        let found = server(&words("trace --context lab --node x -n shop --all --as=eve"));
        assert_eq!(found.namespace.as_deref(), Some("shop"));
        let access = found.access();
        assert_eq!((access.context.as_deref(), access.user.as_deref()), (Some("lab"), Some("eve")));
    }
}
