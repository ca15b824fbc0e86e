//! `viptrace check` on a node of the lab: healthy, and with one fault at a time. The check must report that fault, and
//! nothing else except the faults that this cluster has by design.

pub(super) mod node;
pub(super) mod offline;
pub(super) mod proxy;
pub(super) mod virtual_servers;

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use viptrace_class::Class;

use crate::{
    console,
    invocation::Invocation,
    tool::Ended,
    world::{NODE, Stage},
};

/// The limit for a check on an emulated machine.
const LIMIT: Duration = Duration::from_mins(2);

/// The faults that this cluster has on this node by design: Services without an endpoint or without a local one.
const BY_DESIGN: [&str; 5] =
    ["C20 default/kubernetes", "C20 shop/checkout", "C20 shop/slow", "C21 shop/frontend", "C22 shop/cache"];

/// The fields of a finding that the lab compares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    /// `C20 shop/checkout`, or `C2` where the whole node is affected.
    pub(super) name: String,
    pub(super) level: String,
    pub(super) root_cause: String,
}

/// The result of a check.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) ended: Ended,
    pub(super) report: Value,
    pub(super) findings: Vec<Finding>,
}

impl Checked {
    fn of(ended: Ended) -> Result<Self> {
        let report: Value = serde_json::from_str(&ended.stdout.join("\n"))
            .with_context(|| format!("the check did not write JSON: {ended:?}"))?;
        let findings = report["findings"].as_array().context("the check has no findings")?;
        let findings = findings.iter().map(finding).collect();
        Ok(Self { ended, report, findings })
    }

    /// The names of faults and warnings that are not by design.
    pub(super) fn besides_the_design(&self) -> BTreeSet<&str> {
        let named = self.findings.iter().filter(|finding| finding.level != "note");
        named.map(|finding| finding.name.as_str()).filter(|name| !BY_DESIGN.contains(name)).collect()
    }

    /// The first finding with this name.
    pub(super) fn find(&self, name: &str) -> Result<&Finding> {
        let found = self.findings.iter().find(|finding| finding.name == name);
        found.with_context(|| format!("no finding {name} in {:#?}", self.findings))
    }
}

fn finding(value: &Value) -> Finding {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let service = &value["service"];
    let name = match (service["namespace"].as_str(), service["name"].as_str()) {
        (Some(namespace), Some(name)) => format!("{} {namespace}/{name}", text("class")),
        _ => text("class"),
    };
    Finding { name, level: text("level"), root_cause: text("root_cause") }
}

/// Runs `viptrace check -o json` against the stage's API server, with further arguments.
pub(super) fn check(stage: &Stage, arguments: &[&str]) -> Result<Checked> {
    let kubeconfig = stage.kubeconfig()?.display().to_string();
    let all = ["check", "-o", "json", "--node", NODE, "--kubeconfig", &kubeconfig];
    Checked::of(Invocation::start(&[&all[..], arguments].concat())?.end(LIMIT)?)
}

/// Checks a captured folder.
pub(super) fn check_from(folder: &Path) -> Result<Checked> {
    let folder = folder.display().to_string();
    Checked::of(Invocation::start(&["check", "-o", "json", "--from", &folder])?.end(LIMIT)?)
}

/// Captures the current state of the node.
pub(super) fn capture(stage: &Stage, folder: &Path) -> Result<Ended> {
    let (folder, kubeconfig) = (folder.display().to_string(), stage.kubeconfig()?.display().to_string());
    Invocation::start(&["capture", &folder, "--node", NODE, "--kubeconfig", &kubeconfig])?.end(LIMIT)
}

/// Counts these causes and what the check found.
pub(super) fn count(stage: &Stage, caused: &[&str], checked: &Checked) {
    let class = |name: &str| name.split(' ').next().and_then(|id| id.parse::<Class>().ok());
    let caused: BTreeSet<&str> = caused.iter().copied().collect();
    let named = checked.findings.iter().filter(|finding| finding.level != "note");
    let found: BTreeSet<&str> = named.map(|finding| finding.name.as_str()).collect();
    for cause in &caused {
        stage.count_finding(class(cause), class(cause).filter(|_| found.contains(cause)));
    }
    for uncaused in found.difference(&caused) {
        stage.count_finding(None, class(uncaused));
    }
}

/// Checks, and expects these findings besides those by design. The status is 3, because the faults by design exist.
pub(super) fn expect(stage: &Stage, expected: &[&str]) -> Result<Checked> {
    let checked = check(stage, &[])?;
    count(stage, &[expected, &BY_DESIGN].concat(), &checked);
    let found = checked.besides_the_design();
    if found != expected.iter().copied().collect() {
        console::file("check.json", &format!("{:#}", checked.report));
        bail!("found {found:?} besides the faults by design, expected {expected:?}: {:#?}", checked.findings);
    }
    for name in BY_DESIGN {
        checked.find(name)?;
    }
    ensure!(checked.ended.status == 3, "the exit status is {}, expected 3", checked.ended.status);
    Ok(checked)
}
