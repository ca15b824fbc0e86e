//! The records of a cause's failed flows, as a table.

use super::{Page, table, time, writer::Html};
use crate::{called, incident::Chapter, report::record_line, text::count, verdict::Verdict};

/// The page has no further records once it has so many bytes.
const MAX_BYTES: usize = 16 << 20;

/// The records, and how many are left out.
pub(super) fn write(html: &mut Html, page: Page<'_>, chapter: &Chapter) {
    let mut records: Vec<&Verdict> = chapter.records.iter().collect();
    records.sort_by_key(|record| record.flow.started);
    let mut shown: u64 = 0;
    if !records.is_empty() && html.len() < MAX_BYTES {
        html.block("details", &[("class", &"records")], |html| {
            html.leaf("summary", &[], format!("The records of {}", count(records.len(), "failed flow")));
            let heads = ["Time", "Class", "Client", "Service address", "Endpoint", "Node", "Record"];
            table(html, "Failed flows in the order of time", &heads, |html| {
                for record in records {
                    if html.len() < MAX_BYTES {
                        html.block("tr", &[], |html| row(html, page, record));
                        shown += 1;
                    }
                }
            });
        });
    }
    let left_out = chapter.flows.saturating_sub(shown);
    if left_out > 0 {
        let left_out = count(left_out, "further record");
        let name = called::name();
        html.leaf("p", &[], format!("{left_out} left out here: {name} replay -o json prints all"));
    }
}

fn row(html: &mut Html, page: Page<'_>, record: &Verdict) {
    let flow = &record.flow;
    html.element("th", &[("scope", &"row")], |html| time(html, flow.started, page.ending.started));
    html.leaf("td", &[], record.class);
    pod(html, flow.client_pod.as_deref(), Some(&flow.client.to_string()));
    pod(html, None, flow.vip.map(|vip| vip.to_string()).as_deref());
    pod(html, flow.endpoint_pod.as_deref(), flow.endpoint.map(|endpoint| endpoint.to_string()).as_deref());
    html.leaf("td", &[], flow.node.as_deref().unwrap_or("-"));
    html.element("td", &[], |html| {
        html.element("details", &[("class", &"json")], |html| {
            html.leaf("summary", &[], "JSON");
            html.element("pre", &[], |html| {
                let json = record_line(record).unwrap_or_default();
                html.element("code", &[], |html| html.text(json.trim_end()));
            });
        });
    });
}

fn pod(html: &mut Html, pod: Option<&str>, address: Option<&str>) {
    html.element("td", &[], |html| {
        if let Some(pod) = pod {
            html.text(pod);
            html.text(" ");
        }
        html.element("span", &[("class", &"address")], |html| html.text(address.unwrap_or("-")));
    });
}
