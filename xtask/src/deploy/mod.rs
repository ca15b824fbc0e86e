//! The checks of `deploy/`, and `cargo xtask render`, which writes the plain manifests from the chart.
//!
//! Helm renders the chart, a validator with the API's schemas reads each object, promtool reads and runs the alerts, and
//! the agent reads its configuration. `tools` fetches these programs. One that cannot be fetched skips its checks, which
//! count as skipped. `manifest` owns the rules that every rendering holds. The rest needs no other program and is tested
//! here, by `cargo test`.

mod manifest;
#[cfg(test)]
mod tests;
pub(crate) mod tools;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::call::Call;
use crate::place::{Place, listing};
use crate::printer::{Outcome, Printer};
use crate::tally::Tally;
use manifest::Rendering;
use tools::{Tool, Tools};

/// The chart's `kubeVersion`: the default rendering has to fit its schemas.
const OLDEST_API: &str = "1.25.0";
/// Every rendering has to fit these.
const NEWEST_API: &str = "1.37.0";

/// The folder `deploy/` of the repository and the files in it.
#[derive(Debug)]
struct Folder {
    root: PathBuf,
}

impl Folder {
    fn of(repository: &Path) -> Self {
        Self { root: repository.join("deploy") }
    }

    fn chart(&self) -> PathBuf {
        self.root.join("chart/viptrace")
    }

    /// The chart's default rendering.
    fn plain(&self) -> PathBuf {
        self.root.join("viptrace.yaml")
    }

    fn alerts(&self) -> PathBuf {
        self.chart().join("files/alerts.yaml")
    }

    fn dashboard(&self) -> PathBuf {
        self.chart().join("files/dashboard.json")
    }

    /// The files of values that the chart has to accept, or to refuse.
    fn values(&self, name: &str) -> Result<Vec<PathBuf>> {
        listing(&self.root.join("tests").join(name))
    }
}

/// The dashboard's queries as rules, which its unit tests name.
const QUERIES: &str = "dashboard-queries.yaml";

/// The first lines of the plain manifests.
const HEAD: &str = "\
# The chart's default rendering, with its namespace: `cargo xtask render` writes this file.
# kubectl apply -f viptrace.yaml
";

/// Renders the chart with these files of values, into the namespace that the plain manifests use.
fn render(helm: &Path, folder: &Folder, values: &[&Path], settings: &[&str]) -> Result<String> {
    let call = Call::new("render the chart", helm)
        .args(["template", "viptrace"])
        .arg(folder.chart())
        .args(["--namespace", "viptrace"]);
    let call = values.iter().fold(call, |call, file| call.arg("--values").arg(file));
    settings.iter().fold(call, |call, setting| call.args(["--set", setting])).read()
}

fn plain(helm: &Path, folder: &Folder) -> Result<String> {
    Ok(HEAD.to_owned() + &render(helm, folder, &[], &["namespace.create=true"])?)
}

/// `cargo xtask render`.
pub(crate) fn write_plain(printer: &Printer) -> Result<()> {
    let place = Place::find()?;
    let helm = tools::fetch(printer, "Helm", || tools::helm(&place))?;
    printer.step("plain manifests", || {
        let folder = Folder::of(&place.repository);
        let file = folder.plain();
        fs::write(&file, plain(&helm, &folder)?)
            .with_context(|| format!("could not write {}", file.display()))?;
        Ok(Outcome::Done(format!("wrote {}", file.display())))
    })
}

/// Runs a check with its tool. Without the tool the check is skipped.
fn with(tool: &Tool, run: impl FnOnce(&Path) -> Result<()>) -> Result<Outcome> {
    match tool {
        Ok(program) => run(program).map(|()| Outcome::Done(String::new())),
        Err(why) => Ok(Outcome::Skipped(format!("{why:#}"))),
    }
}

/// Every check that needs another program. Run it after cargo's tests, which build the agent.
pub(crate) fn checks(place: &Place, printer: &Printer) -> Result<Tally> {
    let folder = Folder::of(&place.repository);
    let tools = Tools::fetch(place, printer);
    let output = place.target.join("deploy");
    fs::create_dir_all(&output).with_context(|| format!("could not create {}", output.display()))?;
    let mut tally = Tally::default();
    let mut check = |name: &str, checked| tally.check(printer, name, checked);

    check(
        "chart: helm's own lint",
        with(&tools.helm, |helm| {
            Call::new("check the chart", helm).args(["lint", "--strict"]).arg(folder.chart()).read().map(drop)
        }),
    );
    check(
        "chart: deploy/viptrace.yaml is its default rendering",
        with(&tools.helm, |helm| {
            if plain(helm, &folder)? == fs::read_to_string(folder.plain())? {
                return Ok(());
            }
            bail!("the chart renders to something else\nhint: type: cargo xtask render")
        }),
    );
    let mut rendered = vec![folder.plain()];
    for values in folder.values("values")? {
        let name = name_of(&values);
        check(
            &format!("chart: {name}"),
            with(&tools.helm, |helm| {
                let text = render(helm, &folder, &[&values], &[])?;
                Rendering::parse(&text)?.examine()?;
                let file = output.join(&name);
                fs::write(&file, text)?;
                rendered.push(file);
                Ok(())
            }),
        );
    }
    for values in folder.values("refused")? {
        check(
            &format!("chart: refuses {}", name_of(&values)),
            with(&tools.helm, |helm| refused(helm, &folder, &values)),
        );
    }
    let oldest = rendered.split_at(1).0;
    for (version, files) in [(OLDEST_API, oldest), (NEWEST_API, rendered.as_slice())] {
        check(
            &format!("manifests: schemas of Kubernetes {version}"),
            with(&tools.python, |python| valid(python, version, files)),
        );
    }
    check(
        "manifests: the agent accepts its configuration",
        with(&tools.agent, |agent| rendered.iter().try_for_each(|file| accepted(agent, file, &output))),
    );
    check(
        "alerts: promtool's check",
        with(&tools.promtool, |promtool| promtool_reads(promtool, &folder.alerts())),
    );
    check(
        "alerts: unit tests",
        with(&tools.promtool, |promtool| {
            let call =
                Call::new("run the alerts' unit tests", promtool).args(["test", "rules", "alerts.yaml"]);
            call.directory(&folder.root.join("tests")).read().map(drop)
        }),
    );
    check(
        "dashboard: promtool reads its queries",
        with(&tools.promtool, |promtool| {
            let file = output.join(QUERIES);
            fs::write(&file, as_rules(&queries(&fs::read_to_string(folder.dashboard())?)?)?)?;
            promtool_reads(promtool, &file)
        }),
    );
    check(
        "dashboard: unit tests",
        with(&tools.promtool, |promtool| {
            // promtool looks for the rules beside their tests.
            fs::copy(folder.root.join("tests/dashboard.yaml"), output.join("dashboard.yaml"))?;
            let call = Call::new("run the dashboard's unit tests", promtool).args([
                "test",
                "rules",
                "dashboard.yaml",
            ]);
            call.directory(&output).read().map(drop)
        }),
    );
    Ok(tally)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether Helm refuses these values with the message of their first line, `# error: MESSAGE`.
fn refused(helm: &Path, folder: &Folder, values: &Path) -> Result<()> {
    let text = fs::read_to_string(values)?;
    let expected = text.lines().next().and_then(|line| line.strip_prefix("# error: "));
    let expected = expected.context("its first line is not `# error: MESSAGE`")?;
    let Err(error) = render(helm, folder, &[values], &[]) else { bail!("the chart accepts it") };
    let message = error.to_string();
    if !message.contains(expected) {
        bail!("the chart refuses it for another reason than {expected:?}:\n{message}");
    }
    Ok(())
}

/// Whether the API's schemas accept every object; unknown fields are errors. Custom resources have no schema there:
/// `Rendering::examine` reads them.
fn valid(python: &Path, version: &str, files: &[PathBuf]) -> Result<()> {
    let text = Call::new("validate the manifests", python)
        .args(["-m", "kubernetes_validate", "--strict", "-k", version])
        .args(files)
        .read()?;
    let passed = text.lines().filter(|line| line.starts_with("INFO ") && line.contains(" passed ")).count();
    let objects: usize = files
        .iter()
        .map(|file| Rendering::parse(&fs::read_to_string(file)?).map(|it| it.core()))
        .sum::<Result<usize>>()?;
    if passed != objects {
        bail!("{passed} of {objects} objects were validated:\n{text}");
    }
    Ok(())
}

/// Whether the agent accepts the configuration in the `ConfigMap` of this file, if it has one.
fn accepted(agent: &Path, manifests: &Path, output: &Path) -> Result<()> {
    let rendering = Rendering::parse(&fs::read_to_string(manifests)?)?;
    let Some(text) = rendering.configuration() else { return Ok(()) };
    let file = output.join("agent.yaml");
    fs::write(&file, text)?;
    Call::new(format!("read the configuration of {}", name_of(manifests)), agent)
        .args(["agent", "--check-config", "--config"])
        .arg(&file)
        .read()
        .map(drop)
}

fn promtool_reads(promtool: &Path, file: &Path) -> Result<()> {
    Call::new("check the rules", promtool).args(["check", "rules"]).arg(file).read().map(drop)
}

/// A query of the dashboard.
#[derive(Debug, PartialEq)]
struct Query {
    /// Its panel's number and its letter there.
    name: String,
    expression: String,
}

/// The dashboard's queries, with values for Grafana's variables.
fn queries(dashboard: &str) -> Result<Vec<Query>> {
    let dashboard: serde_json::Value =
        serde_json::from_str(dashboard).context("the dashboard is not JSON")?;
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    let mut found = Vec::new();
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let Some(expression) = target["expr"].as_str() else { continue };
            let letter = target["refId"].as_str().unwrap_or_default();
            found.push(Query {
                name: format!("panel:{}:{letter}", panel["id"]),
                expression: filled(expression),
            });
        }
    }
    if found.is_empty() {
        bail!("the dashboard has no queries");
    }
    Ok(found)
}

/// The query with values for Grafana's variables: the last five minutes, of every Service.
fn filled(expression: &str) -> String {
    const VALUES: [(&str, &str); 5] = [
        ("$__rate_interval", "5m"),
        ("$__range_s", "300"),
        ("$__range", "5m"),
        ("$namespace", ".*"),
        ("$service", ".*"),
    ];
    VALUES.iter().fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value))
}

/// A rule file that records each query, so that promtool reads and runs it. JSON is YAML.
fn as_rules(queries: &[Query]) -> Result<String> {
    let rules: Vec<_> = queries
        .iter()
        .map(|query| serde_json::json!({"record": query.name, "expr": query.expression}))
        .collect();
    Ok(serde_json::to_string(&serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]}))?)
}
