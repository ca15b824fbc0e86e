//! The checks that other programs read viptrace's exports: tshark the packets, `DuckDB` the tables.
//!
//! The queries are those of docs/records.md, so that they stay true. A program that cannot be fetched skips its check.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::apt;
use crate::call::Call;
use crate::deploy::tools::{self, Tool};
use crate::place::{Place, make_empty};
use crate::printer::{Outcome, Printer};
use crate::tally::Tally;

/// MIT.
const DUCKDB: &str = "duckdb==2.0.0";
/// A recording with changes before its failures.
const RECORDING: &str = "tests/fixtures/recordings/debian-6.12-c6-stale-endpoint-answers.viptrace";
/// One whose packets are dropped and refused.
const PACKETS: &str = "tests/fixtures/recordings/debian-6.12-c20-no-endpoints.viptrace";

/// Those of two nodes, whose clocks are 90 s apart.
const NODES: [&str; 2] =
    ["tests/fixtures/two-nodes/node1.viptrace", "tests/fixtures/two-nodes/node2.viptrace"];

/// Runs each query. All but the definition of a view have to return a row.
const QUERY: &str = "\
import sys, duckdb
for query in open(sys.argv[1]).read().split('\\0'):
    rows = duckdb.sql(query)
    if query.startswith('CREATE'):
        continue
    if len(rows) == 0:
        sys.exit('no row: ' + query)
";

/// The checks. Run them after cargo's tests, which build viptrace.
pub(crate) fn checks(place: &Place, printer: &Printer) -> Result<Tally> {
    let viptrace = tools::agent(place);
    let python = tools::fetch(printer, "DuckDB", || tools::environment(place, "duckdb", DUCKDB));
    let tshark = tools::fetch(printer, "tshark", tshark);
    let folder = place.target.join("exports");
    make_empty(&folder)?;
    let mut tally = Tally::default();
    let mut check = |name: &str, tools: [&Tool; 2], run: &dyn Fn(&Path, &Path) -> Result<()>| {
        let checked = match tools {
            [Ok(viptrace), Ok(tool)] => run(viptrace, tool).map(|()| Outcome::Done(String::new())),
            [Err(why), _] | [_, Err(why)] => Ok(Outcome::Skipped(format!("{why:#}"))),
        };
        tally.check(printer, name, checked);
    };
    check(
        "exports: tshark reads the packets without a warning",
        [&viptrace, &tshark],
        &|viptrace, tshark| packets(place, viptrace, tshark, &folder.join("packets.pcapng")),
    );
    check(
        "exports: tshark reads the packets of two nodes as one capture",
        [&viptrace, &tshark],
        &|viptrace, tshark| nodes(place, viptrace, tshark, &folder.join("nodes.pcapng")),
    );
    check(
        "exports: DuckDB runs the queries of docs/records.md",
        [&viptrace, &python],
        &|viptrace, python| queries(place, viptrace, python, &folder),
    );
    Ok(tally)
}

/// tshark, from the path or from Debian's package.
fn tshark() -> Tool {
    let tshark = PathBuf::from("tshark");
    if !tools::works(&tshark, &["--version"]) {
        apt::ensure(apt::EXPORTS)?;
    }
    Ok(tshark)
}

fn packets(place: &Place, viptrace: &Path, tshark: &Path, file: &Path) -> Result<()> {
    let exported = Call::new("export packets", viptrace)
        .arg("replay")
        .arg(place.repository.join(PACKETS))
        .args(["-o", "pcapng"])
        .output()?;
    fs::write(file, exported.stdout).with_context(|| format!("could not write {}", file.display()))?;
    let output = Call::new("read the packets", tshark)
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-e", "ip.src", "-e", "tcp.flags.syn", "-e", "frame.comment"])
        .output()?;
    // tshark dislikes root, and warns of it on a line of its own.
    let stderr = String::from_utf8_lossy(&output.stderr);
    let warnings: Vec<&str> = stderr.lines().filter(|line| !line.starts_with("Running as user")).collect();
    if !output.status.success() || !warnings.is_empty() {
        bail!("tshark: {}", warnings.join("\n"));
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    let is_whole = |line: &str| line.split('\t').count() == 3 && line.contains("FAULT C20");
    if stdout.is_empty() || !stdout.lines().all(is_whole) {
        bail!("tshark finds other packets:\n{stdout}");
    }
    Ok(())
}

/// Each packet is on an interface of its node, and the file needs no other options than a capture of one node.
fn nodes(place: &Place, viptrace: &Path, tshark: &Path, file: &Path) -> Result<()> {
    // The recordings have no end, which is exit status 4.
    let exported = Call::new("export the packets of two nodes", viptrace)
        .arg("replay")
        .args(NODES.map(|node| place.repository.join(node)))
        .args(["-o", "pcapng"])
        .output()?;
    fs::write(file, exported.stdout).with_context(|| format!("could not write {}", file.display()))?;
    let output = Call::new("read the packets of two nodes", tshark)
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-e", "frame.interface_name"])
        .output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let has = |node: &str| stdout.lines().any(|name| name.starts_with(node));
    if !output.status.success() || !has("node1/netns-") || !has("node2/netns-") {
        bail!("tshark finds other interfaces:\n{stdout}");
    }
    Ok(())
}

fn queries(place: &Place, viptrace: &Path, python: &Path, folder: &Path) -> Result<()> {
    let tables = folder.join("tables");
    Call::new("export tables", viptrace)
        .arg("replay")
        .arg(place.repository.join(RECORDING))
        .args(["-o", "parquet", "--out"])
        .arg(&tables)
        .read()?;
    let page = fs::read_to_string(place.repository.join("docs/records.md"))?;
    let queries = sql(&page);
    if queries.len() < 4 {
        bail!("docs/records.md has {} queries", queries.len());
    }
    let file = folder.join("queries.sql");
    fs::write(&file, queries.join("\0"))?;
    let call = Call::new("run the queries", python).args(["-c", QUERY]).arg(&file);
    call.directory(&tables).read().map(drop)
}

/// The blocks of SQL in a page.
fn sql(page: &str) -> Vec<&str> {
    page.split("```sql\n").skip(1).filter_map(|rest| rest.split_once("```").map(|(block, _)| block)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_found_in_a_page() {
        assert_eq!(
            sql("a\n```sql\nSELECT 1;\n```\nb\n```sql\nSELECT 2;\n```\n"),
            ["SELECT 1;\n", "SELECT 2;\n"]
        );
        assert!(sql("no query\n```\nSELECT\n```\n").is_empty());
    }
}
