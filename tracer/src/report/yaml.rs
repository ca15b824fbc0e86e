//! One YAML document a verdict, in the order in which the runbooks' report has its fields (K18): root cause,
//! kube-proxy, evidence, severity, mitigation, cross references; then the rest. The names are those of the JSON.

use std::{fmt::Write as _, io};

use serde::Serialize;

use crate::{
    class::{Class, Confidence, Domain, Severity},
    text::is_unsafe,
    time::Timestamp,
    verdict::{Evidence, FlowRef, Mitigation, ServiceRef, Verdict},
};

#[derive(Serialize)]
struct Document<'a> {
    root_cause: &'a str,
    kube_proxy_mode: Option<&'a str>,
    kube_proxy_version: Option<&'a str>,
    evidence: &'a [Evidence],
    severity: Severity,
    mitigation: &'a Mitigation,
    cross_reference: &'a [String],
    time: Timestamp,
    class: Class,
    domain: Domain,
    confidence: Confidence,
    service: Option<&'a ServiceRef>,
    flow: &'a FlowRef,
    against: &'a [Evidence],
    unseen: &'a [String],
    lost_events: u64,
    metadata_age: Option<f64>,
}

/// The document, with its leading `---` and a line end.
pub(super) fn document(verdict: &Verdict) -> io::Result<String> {
    // Named one by one, so that a new field of the record cannot be forgotten here.
    let Verdict {
        time,
        class,
        root_cause,
        domain,
        confidence,
        severity,
        service,
        flow,
        evidence,
        against,
        unseen,
        lost_events,
        kube_proxy_mode,
        kube_proxy_version,
        metadata_age,
        mitigation,
        cross_reference,
    } = verdict;
    let document = Document {
        root_cause,
        kube_proxy_mode: kube_proxy_mode.as_deref(),
        kube_proxy_version: kube_proxy_version.as_deref(),
        evidence,
        severity: *severity,
        mitigation,
        cross_reference,
        time: *time,
        class: *class,
        domain: *domain,
        confidence: *confidence,
        service: service.as_ref(),
        flow,
        against,
        unseen,
        lost_events: *lost_events,
        metadata_age: *metadata_age,
    };
    let text = serde_saphyr::to_string(&document).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(guard(&text))
}

/// Escapes what the serializer left as it was but a terminal must not see. `\uXXXX` is read back inside double
/// quotes; elsewhere it stays readable text.
pub(super) fn guard(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    out.push_str("---\n");
    for character in text.chars() {
        if character == '\n' || !is_unsafe(character) {
            out.push(character);
            continue;
        }
        let code = u32::from(character);
        // Writing to a String cannot fail.
        let _ = if code > 0xffff { write!(out, "\\U{code:08x}") } else { write!(out, "\\u{code:04x}") };
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sink::fixture;

    #[test]
    fn a_document_reads_back_as_the_json_record() {
        let verdict = fixture::fault();
        let text = document(&verdict).unwrap();
        assert!(text.starts_with("---\nroot_cause: "), "{text}");
        let from_yaml: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(from_yaml, serde_json::to_value(&verdict).unwrap());
        let order: Vec<_> =
            text.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key).collect();
        let top =
            ["root_cause", "kube_proxy_mode", "kube_proxy_version", "evidence", "severity", "mitigation"];
        let positions: Vec<_> =
            top.iter().map(|key| order.iter().position(|found| found == key).unwrap()).collect();
        assert!(positions.is_sorted());
    }

    #[test]
    fn hostile_names_cannot_leave_their_field_or_reach_the_terminal() {
        let mut verdict = fixture::fault();
        verdict.root_cause = "no_endpoints — x\n---\nroot_cause: forged".into();
        verdict.flow.client_pod = Some("a\u{1b}[2J\u{202e}b".into());
        verdict.flow.node = Some("yes".into());
        let text = document(&verdict).unwrap();
        assert!(!text.replace('\n', "").contains(is_unsafe), "{text}");
        assert_eq!(text.matches("\n---").count(), 0, "{text}");
        let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(value["root_cause"], verdict.root_cause);
        assert_eq!(value["flow"]["node"], "yes");
    }
}
