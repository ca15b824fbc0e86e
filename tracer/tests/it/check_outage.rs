//! kube-proxy and the API server: an outage that lasts is a fault, one that is over is not.
//!
//! In this capture kube-proxy's clock is 23:25:05.7, and it last queued an update at 23:24:58.1.
use viptrace::{
    class::{Class, Confidence},
    diagnosis::triage::{FindingRecord, Level},
};

use crate::{
    check_faults::{besides, node},
    check_support::{Gathered, only, says},
};

const REFUSED: &str = "failed to list *v1.EndpointSlice: Get \"https://192.0.2.1:6443\": dial tcp 192.0.2.1:6443: connect: connection refused";

/// The node with these lines, of the form `E1120 TIME MESSAGE`, at the end of kube-proxy's log.
fn logs(lines: &[(&str, &str)]) -> Gathered {
    let node = node();
    node.edit("node/kube-proxy.log", |text| {
        lines.iter().fold(text, |text, (time, message)| {
            format!(
                "{text}E1120 {time}.000000   27071 reflector.go:205] \"Failed to watch\" err=\"{message}\"\n"
            )
        })
    });
    node
}

/// As a kube-proxy that runs without `-v=2` writes it.
fn terse(node: &Gathered) {
    node.edit("node/kube-proxy.log", |text| {
        let lines = text.lines().filter(|line| !line.contains("Caches ") && !line.contains("Syncing"));
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
}

fn outage(node: &Gathered) -> Option<FindingRecord> {
    node.check().findings.into_iter().find(|finding| finding.class == Class::C2)
}

#[test]
fn an_outage_that_kube_proxy_has_heard_after_is_over() {
    let node = logs(&[("20:10:00", REFUSED), ("20:14:00", REFUSED)]);
    terse(&node);
    assert_eq!(outage(&node), None);
    assert_eq!(besides(&node.check()), [""; 0]);
}

#[test]
fn errors_that_go_on_are_a_fault_whatever_the_verbosity() {
    let node = logs(&[("23:23:10", REFUSED), ("23:23:55", REFUSED), ("23:24:50", REFUSED)]);
    terse(&node);
    let found = outage(&node).unwrap();
    assert_eq!((found.level, found.confidence), (Level::Fault, Confidence::Medium), "{found:#?}");
    assert!(found.root_cause.contains("cannot be reached"), "{found:#?}");
}

#[test]
fn a_blip_of_seconds_ago_is_a_warning_that_names_what_decides() {
    let found = outage(&logs(&[("23:24:59", REFUSED)])).unwrap();
    assert_eq!(found.level, Level::Warning, "{found:#?}");
    assert!(
        found.against.iter().any(|against| against.content.contains("the last error is 6")),
        "{found:#?}"
    );
}

#[test]
fn silence_since_an_old_error_proves_nothing() {
    let node = logs(&[("23:20:00", REFUSED)]);
    terse(&node);
    node.edit("node/metrics.txt", |text| {
        text.replace(
            "last_queued_timestamp_seconds 1.79521709812791e+09",
            "last_queued_timestamp_seconds 1.795210e+09",
        )
        .replace("last_timestamp_seconds 1.7952170983640833e+09", "last_timestamp_seconds 1.795210001e+09")
    });
    let found = outage(&node).unwrap();
    assert_eq!((found.level, found.confidence), (Level::Note, Confidence::Low), "{found:#?}");
}

#[test]
fn the_recovery_is_read_in_every_form_and_for_each_kind() {
    let again = "I1120 23:25:02.000000   27071 reflector.go:507] ";
    for (recovery, ends) in [
        ("Caches populated for *v1.EndpointSlice from k8s.io/client-go/informers/factory.go:160", true),
        (
            "\"Caches populated\" type=\"*v1.EndpointSlice\" reflector=\"k8s.io/client-go/informers/factory.go:177\"",
            true,
        ),
        ("Caches populated for *v1.Service from k8s.io/client-go/informers/factory.go:160", false),
        (
            "\"Caches populated\" type=\"*v1.Service\" reflector=\"k8s.io/client-go/informers/factory.go:177\"",
            false,
        ),
    ] {
        let node = logs(&[("23:23:10", REFUSED), ("23:23:55", REFUSED), ("23:24:50", REFUSED)]);
        node.edit("node/kube-proxy.log", |text| format!("{text}{again}{recovery}\n"));
        assert_eq!(outage(&node).is_none(), ends, "{recovery}");
    }
}

#[test]
fn an_event_that_cannot_be_written_is_no_lost_api() {
    let node = node();
    node.edit("node/kube-proxy.log", |text| {
        format!("{text}E1120 23:25:00.000000   27071 event_broadcaster.go:270] \"Server rejected event (will not retry!)\" err=\"events is forbidden: User \\\"x\\\" cannot create resource\"\n")
    });
    assert_eq!(outage(&node), None);
}

#[test]
fn metrics_alone_show_that_no_request_ever_succeeded() {
    let rejected = |text: String| {
        let lines = text.lines().filter(|line| !line.starts_with("rest_client_requests_total"));
        let kept = lines.collect::<Vec<_>>().join("\n");
        kept + "\nrest_client_requests_total{code=\"401\",host=\"192.0.2.1:6443\",method=\"GET\"} 18\n"
    };
    let node = node();
    node.remove("node/kube-proxy.log");
    assert_eq!(outage(&node), None);
    node.edit("node/metrics.txt", rejected);
    let report = node.check();
    let found = only(&report, Class::C2);
    assert_eq!(found.level, Level::Fault, "{found:#?}");
    assert!(says(found, "18 with 401") && found.root_cause.contains("Unauthorized"), "{found:#?}");
}

/// Each kind is read on its own, and the rules need Services and their slices only. A role that somebody wrote for an older
/// release lacks `servicecidrs`, which 1.33 reads.
#[test]
fn a_kind_that_no_rule_needs_is_a_warning() {
    for (kind, effect) in [("ServiceCIDR", "nftables mode"), ("Node", "topology hints")] {
        let message = format!("failed to list *v1.{kind}: {kind} is forbidden: User cannot list resource");
        let times = ["23:05:00", "23:10:00", "23:20:00", "23:24:50"];
        let found = outage(&logs(&times.map(|time| (time, message.as_str())))).unwrap();
        assert_eq!(found.level, Level::Warning, "{found:#?}");
        let says = format!("cannot read {kind} objects");
        assert!(found.root_cause.contains(&says) && found.root_cause.contains(effect), "{found:#?}");
        // With the Services it is the whole API.
        let services = message.replace(kind, "Service");
        let both = times.iter().flat_map(|time| [(*time, message.as_str()), (*time, services.as_str())]);
        let found = outage(&logs(&both.collect::<Vec<_>>())).unwrap();
        assert_eq!(found.level, Level::Fault, "{found:#?}");
    }
}

/// The warning about a kind that no rule needs is no cause of rules that kube-proxy does not write.
#[test]
fn a_kind_that_no_rule_needs_hides_no_outage() {
    const NODE: &str = "failed to list *v1.Node: nodes is forbidden: User cannot list resource";
    let without_nodes = || logs(&["23:05:00", "23:10:00", "23:20:00", "23:24:50"].map(|time| (time, NODE)));
    let never_wrote = without_nodes();
    never_wrote.edit("node/metrics.txt", |text| {
        text.replace("last_timestamp_seconds 1.7952170983640833e+09", "last_timestamp_seconds 0")
            .replace("process_start_time_seconds 1.7952170969e+09", "process_start_time_seconds 1.795216e+09")
    });
    let report = never_wrote.check();
    let found = |finding: &&FindingRecord| {
        finding.level == Level::Fault && finding.root_cause.contains("never written its rules")
    };
    assert!(report.findings.iter().any(|finding| found(&finding)), "{:#?}", report.findings);
    // It has queued nothing since long before an endpoint became ready that its rules lack.
    let unheard = without_nodes();
    unheard.edit("node/metrics.txt", |text| {
        text.replace(
            "last_queued_timestamp_seconds 1.79521709812791e+09",
            "last_queued_timestamp_seconds 1.795210e+09",
        )
    });
    unheard.edit("node/iptables-save.txt", |text| {
        let mut lines: Vec<&str> = text.lines().collect();
        let of_cart =
            |line: &&str| line.contains("-A KUBE-SVC-I5LIAMPLWKMBJ54B") && line.contains("-j KUBE-SEP-");
        let at = lines.iter().position(of_cart).unwrap();
        lines.remove(at);
        lines.join("\n") + "\n"
    });
    let report = unheard.check();
    let of_node =
        report.findings.iter().filter(|finding| finding.class == Class::C2 && finding.service.is_none());
    let of_node: Vec<_> = of_node
        .map(|finding| (finding.level, finding.root_cause.contains("does not receive changes")))
        .collect();
    assert_eq!(of_node, [(Level::Fault, true), (Level::Warning, false)], "{:#?}", report.findings);
}
