//! The errors of the Kubernetes client as one sentence each.
//!
//! The client's own texts name each of its layers and end with the API's whole `Status`. Its YAML parser quotes lines
//! of the kubeconfig, which contains tokens and keys. None of this may reach a terminal.

use http::StatusCode;
use kube::config::{InferConfigError, KubeconfigError};

use crate::{
    error::{root_cause, sentence},
    text::safe,
};

/// The maximum number of characters of a server's message.
const MAX_MESSAGE: usize = 300;

/// Why a request failed: `HTTP 403 Forbidden: …`, `no connection: …`.
pub(crate) fn of_request(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            let known = StatusCode::from_u16(status.code).ok().and_then(|code| code.canonical_reason());
            let (code, name) = (status.code, known.map(|name| format!(" {name}")).unwrap_or_default());
            match message(&status.message) {
                text if text.is_empty() || known == Some(&text) => format!("HTTP {code}{name}"),
                text => format!("HTTP {code}{name}: {text}"),
            }
        }
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            format!("no connection: {}", root_cause(error))
        }
        kube::Error::SerdeError(error) => format!("the answer is not the expected JSON: {error}"),
        // The outermost text names only the client's layer.
        other => std::error::Error::source(other).map_or_else(|| sentence(other), sentence),
    }
}

/// A server's message on one line of bounded length.
fn message(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(MAX_MESSAGE).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    safe(&short).into_owned()
}

/// The error in a kubeconfig.
pub(super) fn of_kubeconfig(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        KubeconfigError::FindPath => "there is none".to_owned(),
        KubeconfigError::CurrentContextNotSet => "it has no current context".to_owned(),
        KubeconfigError::LoadContext(name) => format!("it has no context {name:?}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("it has no cluster {name:?}"),
        KubeconfigError::MissingClusterUrl => "its cluster has no server address".to_owned(),
        KubeconfigError::ParseNoProxy(_) => {
            "the environment's NO_PROXY cannot be read: leave out empty entries, such as one after a last comma"
                .to_owned()
        }
        KubeconfigError::Parse(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("it is not valid YAML: {}", message(first.trim_start_matches("error: ")))
        }
        other => message(other.to_string().lines().next().unwrap_or_default()),
    }
}

/// Why neither a kubeconfig nor a service account gives the API server's address.
pub(super) fn of_inference(error: &InferConfigError) -> String {
    let kubeconfig =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<KubeconfigError>());
    let no_kubeconfig = match kubeconfig {
        Some(KubeconfigError::FindPath) | None => "there is no kubeconfig".to_owned(),
        Some(KubeconfigError::ReadConfig(error, path)) => format!("cannot read {}: {error}", path.display()),
        Some(other) => format!("the kubeconfig cannot be used: {}", of_kubeconfig(other)),
    };
    // A missing service account matters only in a Pod.
    match std::env::var_os("KUBERNETES_SERVICE_HOST") {
        None => no_kubeconfig,
        Some(_) => {
            format!("{no_kubeconfig}; the Pod's service account cannot be used: {}", in_cluster(error))
        }
    }
}

/// The part of the text that the error does not expose in another way.
fn in_cluster(error: &InferConfigError) -> String {
    let text = error.to_string();
    let begun = text.split_once("in-cluster: (").map_or(text.as_str(), |(_, rest)| rest);
    message(begun.split_once("), kubeconfig:").map_or(begun, |(reason, _)| reason))
}

#[cfg(test)]
mod tests {
    use std::io;

    use kube::core::Status;

    use super::*;

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Status::failure(message, "Reason").with_code(code).boxed())
    }

    #[test]
    fn a_status_is_one_sentence() {
        let forbidden = r#"services is forbidden: User "me" cannot list resource "services" in API group """#;
        assert_eq!(of_request(&api(403, forbidden)), format!("HTTP 403 Forbidden: {forbidden}"));
        assert_eq!(of_request(&api(401, "Unauthorized")), "HTTP 401 Unauthorized");
        let page = format!("<html>\n{}\u{1b}[2J", "x".repeat(5000));
        let text = of_request(&api(502, &page));
        assert!(text.starts_with("HTTP 502 Bad Gateway: <html> xxx"), "{text}");
        assert!(text.len() < 400 && !text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn layers_of_the_client_are_left_out() {
        let refused = io::Error::from_raw_os_error(111);
        let error = kube::Error::Service(Box::new(refused));
        assert_eq!(of_request(&error), "no connection: Connection refused");
    }
}
