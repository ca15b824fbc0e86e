//! The scenarios on a real cluster: `cargo xtask test --cluster`. All run on one cluster, each in a namespace of its own,
//! which is deleted after it.
//!
//! A scenario is a function that gets the cluster and its namespace; an error is its failure.

mod capabilities;
mod check;
mod drain;
mod healthy;
mod incident;
mod kube_proxy_slow;
mod kube_proxy_stopped;
mod outages;
mod plugin;
mod probes;
mod rollout;
mod workload;

use std::time::Instant;

use anyhow::{Result, bail};

use crate::event::Verdict;
use crate::kernels::Series;
use crate::printer::{Printer, indented};
use crate::tally::Tally;

use super::{Cluster, Kind, control_plane};

/// One scenario.
struct Scenario {
    name: &'static str,
    run: fn(&mut Cluster, &str) -> Result<()>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "healthy", run: healthy::run },
    Scenario { name: "check-in-guest", run: check::in_guest },
    Scenario { name: "check-in-pod", run: check::in_pod },
    Scenario { name: "kube-proxy-stopped", run: kube_proxy_stopped::run },
    Scenario { name: "kube-proxy-slow", run: kube_proxy_slow::run },
    Scenario { name: "probes", run: probes::run },
    Scenario { name: "rollout", run: rollout::run },
    Scenario { name: "drain", run: drain::run },
    Scenario { name: "capabilities", run: capabilities::run },
    Scenario { name: "path-between-nodes", run: plugin::path },
    Scenario { name: "why", run: plugin::why },
    Scenario { name: "plugin-failures", run: plugin::failures },
    Scenario { name: "plugin-with-agent", run: outages::with_agent },
    Scenario { name: "incident", run: incident::run },
    Scenario { name: "check-every-mode", run: check::in_every_mode },
    // The last one: it leaves a node's kernel locked down.
    Scenario { name: "plugin-outages", run: outages::outages },
];

/// Runs the scenarios that `filter` selects, and prints a line for each.
pub(crate) fn run(printer: &Printer, kind: &Kind, series: &Series, filter: Option<&str>) -> Result<Tally> {
    let selected: Vec<&Scenario> =
        SCENARIOS.iter().filter(|scenario| is_selected(filter, scenario.name)).collect();
    if selected.is_empty() {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        bail!("no scenario on a cluster is selected; there are {}", names.join(", "));
    }
    let mut cluster = Cluster::start(printer, kind, series)?;
    let label = cluster.label();
    let mut tally = Tally::default();
    for scenario in selected {
        let namespace = format!("lab-{}", scenario.name);
        let started = Instant::now();
        let done = in_namespace(&mut cluster, &namespace, scenario);
        let took = started.elapsed().as_secs_f64();
        let taken = format!("{label}  {} ({took:.1} s)", scenario.name);
        let line = std::iter::once(taken).chain(cluster.notes.drain(..)).collect::<Vec<_>>().join("; ");
        match done {
            Ok(()) => {
                tally.count(Verdict::Passed);
                printer.data(&format!("passed   {line}"));
            }
            Err(error) => {
                tally.count(Verdict::Failed);
                let text = format!("{error:#}");
                let mut lines = text.lines();
                let first = lines.next().unwrap_or_default();
                printer.failed(&format!("{line}: {first}{}", indented(lines)));
            }
        }
        // After the end of a part, no later scenario can pass.
        cluster.check()?;
    }
    if tally.failed > 0 {
        printer.say(&format!("    logs of the cluster: {}", cluster.state.display()));
    }
    Ok(tally)
}

fn in_namespace(cluster: &mut Cluster, namespace: &str, scenario: &Scenario) -> Result<()> {
    cluster.kubectl(["create", "namespace", namespace])?;
    let done = (scenario.run)(cluster, namespace).or_else(|error| {
        let file = cluster.state.join(format!("{namespace}.txt"));
        let objects = "pods,services,endpointslices,events";
        let state = cluster.kubectl(["--namespace", namespace, "get", objects, "--output", "wide"])?;
        control_plane::write(&file, &state)?;
        bail!("{error:#}\nthe objects at that time are in {}", file.display())
    });
    // Nothing waits for the end of its objects.
    cluster.kubectl(["delete", "namespace", namespace, "--wait=false"])?;
    done
}

/// As for the scenarios in a guest: the name contains one of the parts between commas, or is `=NAME`.
fn is_selected(filter: Option<&str>, name: &str) -> bool {
    filter.is_none_or(|filter| {
        filter.split(',').any(|part| match part.strip_prefix('=') {
            Some(exact) => exact == name,
            None => name.contains(part),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_selects_by_part_or_by_name() {
        assert!(is_selected(None, "healthy"));
        assert!(is_selected(Some("c6,heal"), "healthy"));
        assert!(is_selected(Some("=healthy"), "healthy"));
        assert!(!is_selected(Some("=heal"), "healthy"));
    }

    #[test]
    fn names_are_unique_and_fit_a_namespace() {
        let mut names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SCENARIOS.len());
    }
}
