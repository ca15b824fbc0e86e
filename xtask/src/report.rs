//! Opens the page that `viptrace replay -o html` writes in a browser without a screen.
//!
//! The page has to arrive whole, to log nothing to the console, and to request nothing. `hostile` makes the recording
//! whose names try to do both. A page that does both shows first that the browser reports it. Debian's Chromium is installed
//! if it is missing; if that fails, the checks are skipped. It resolves no name, so that nothing leaves this machine.

mod hostile;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::apt;
use crate::call::Call;
use crate::place::Place;
use crate::printer::{Outcome, Printer};
use crate::tally::Tally;

const RECORDING: &str = "tests/fixtures/recordings/debian-6.12-api-server-away.viptrace";
/// Seconds; it takes two.
const LIMIT: &str = "25";

/// A page that logs, and requests an image.
const OPPOSITE: &str = "<!doctype html><title>x</title><script>console.error('x')</script>\
                        <img src='http://127.0.0.1:9/x.png' alt=''>";

/// Every check. Run it after cargo's tests, which build viptrace.
pub(crate) fn checks(place: &Place, printer: &Printer) -> Result<Tally> {
    let output = place.target.join("report");
    fs::create_dir_all(&output).with_context(|| format!("could not create {}", output.display()))?;
    let browser = apt::ensure(apt::BROWSER).map(drop);
    let mut tally = Tally::default();
    let mut check = |name: &str, run: &dyn Fn() -> Result<()>| {
        let checked = match &browser {
            Ok(()) => run().map(|()| Outcome::Done(String::new())),
            Err(why) => Ok(Outcome::Skipped(format!("{why:#}"))),
        };
        tally.check(printer, name, checked);
    };

    check("report: the browser reports what a page logs and requests", &|| {
        let page = output.join("opposite.html");
        fs::write(&page, OPPOSITE)?;
        let Seen { problems, .. } = open(&page)?;
        match problems.as_slice() {
            [logs, requests] if logs.starts_with("logs") && requests.starts_with("requests") => Ok(()),
            other => bail!("it reports {other:?}"),
        }
    });
    let recording = place.repository.join(RECORDING);
    check("report: of a recording", &|| {
        quiet(&write_page(place, &recording, &output.join("incident.html"))?)
    });
    check("report: of a hostile recording", &|| {
        let file = output.join("hostile.viptrace");
        fs::write(&file, hostile::spoil(&fs::read(&recording)?)?)?;
        let page = write_page(place, &file, &output.join("hostile.html"))?;
        for name in hostile::NAMES {
            if !fs::read_to_string(&page)?.contains(&name.replace('<', "&lt;").replace('>', "&gt;")) {
                bail!("{} does not contain {name:?}", page.display());
            }
        }
        quiet(&page)
    });
    Ok(tally)
}

/// Replays the recording into a page.
fn write_page(place: &Place, recording: &Path, page: &Path) -> Result<PathBuf> {
    let viptrace = place.target.join("debug/viptrace");
    let call = Call::new("write the page", viptrace).arg("replay").arg(recording);
    // Its status is that of the flows.
    let output = call.args(["-o", "html"]).hint("type: cargo build -p viptrace").output()?;
    if !output.stdout.trim_ascii_end().ends_with(b"</html>") {
        bail!("viptrace wrote no whole page:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(page, &output.stdout).with_context(|| format!("could not write {}", page.display()))?;
    Ok(page.to_owned())
}

/// Whether the browser shows the whole page, and reports nothing else.
fn quiet(page: &Path) -> Result<()> {
    let Seen { mut problems, document } = open(page)?;
    if !document.contains("</footer>") {
        problems.push("has no end".to_owned());
    }
    if document.contains("<script") || document.contains("<img") {
        problems.push("has an element from a name".to_owned());
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{} {}", page.display(), problems.join("\n"))
}

/// What the browser made of a page.
#[derive(Debug)]
struct Seen {
    problems: Vec<String>,
    document: String,
}

fn open(page: &Path) -> Result<Seen> {
    let network = page.with_extension("network.json");
    let profile = page.with_extension("profile");
    if profile.exists() {
        fs::remove_dir_all(&profile)?;
    }
    let call = Call::new("open the page", "timeout")
        .args([LIMIT, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--log-net-log={}", network.display()))
        .arg(format!("file://{}", page.display()));
    let output = call.output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("the browser ended with {}:\n{log}", output.status);
    }
    let mut problems: Vec<String> =
        log.lines().filter(|line| line.contains(":CONSOLE")).map(|line| format!("logs {line}")).collect();
    let text = fs::read_to_string(&network).context("the browser wrote no log of the network")?;
    problems.extend(requests(&text)?.into_iter().map(|url| format!("requests {url}")));
    fs::remove_dir_all(&profile)?;
    Ok(Seen { problems, document: String::from_utf8_lossy(&output.stdout).into_owned() })
}

/// The addresses that a page requests. The browser's own requests, for updates, come from no origin.
fn requests(log: &str) -> Result<Vec<String>> {
    let log: Value = serde_json::from_str(log).context("the browser's log of the network is not JSON")?;
    let start = &log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"];
    let events =
        log["events"].as_array().filter(|_| start.is_u64()).context("it has no events of requests")?;
    let started = events.iter().filter(|event| event["type"] == *start).map(|event| &event["params"]);
    let of_page = started.filter(|params| params["initiator"] != "not an origin");
    // The event at a request's end has no address.
    Ok(of_page.filter_map(|params| params["url"].as_str()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_s_own_requests_count() {
        let log = r#"{"constants": {"logEventTypes": {"URL_REQUEST_START_JOB": 7, "SOCKET_ALIVE": 8}}, "events": [
            {"type": 7, "params": {"initiator": "not an origin", "url": "https://update.example/"}},
            {"type": 7}, {"type": 8, "params": {}},
            {"type": 7, "params": {"initiator": "null", "url": "https://example.com/x.png"}}]}"#;
        assert_eq!(requests(log).unwrap(), ["https://example.com/x.png"]);
        assert!(requests("{}").is_err());
    }
}
