//! Lays out the way of a flow's packets: one line for each sighting, with the time since the one before.

use std::fmt::Write as _;

use crate::{
    called,
    incident::{Found, Trail, TrailStep, Way},
    report::{
        path,
        printer::{Paint, Style},
        row::{detail, end},
    },
    text::{count, measured, safe},
    verdict::Verdict,
};

/// The text of what a running trace found.
pub fn render_found(found: &Found, paint: Paint) -> String {
    match found {
        Found::Way(trail) => render(trail, paint),
        Found::Changed(verdict) => {
            let mut out = String::new();
            heading(&mut out, paint, &ends(verdict));
            let text = format!("the verdict is {} now: {}", verdict.class, detail(&verdict.root_cause));
            line(&mut out, &text);
            let later = called::unless_by_plugin(
                ": `viptrace replay` shows the later steps of a trace with --record",
            );
            line(&mut out, &format!("its way is printed once{later}"));
            out
        }
    }
}

/// The text, with a line end after each line and every name safe for a terminal.
pub fn render(trail: &Trail, paint: Paint) -> String {
    let mut out = String::new();
    let Trail { verdict, steps, more, endpoint, rules, gaps, .. } = trail;
    let flow = &verdict.flow;
    heading(&mut out, paint, &ends(verdict));
    line(&mut out, &format!("{}: {}", verdict.class, detail(&verdict.root_cause)));
    let mut before: Option<&TrailStep> = None;
    for (number, step) in steps.iter().enumerate() {
        if before.is_none_or(|before| before.node != step.node || before.netns != step.netns) {
            let place = format!("on {}, network namespace {}", safe(&step.node), step.netns.0);
            let _ = writeln!(out, "  {}", paint.text(Style::Heading, &place));
        }
        let since =
            before.map_or_else(String::new, |before| format!(" +{}", measured(step.time.since(before.time))));
        let arrow = match step.way {
            Way::Request => "->",
            Way::Answer => "<-",
            Way::Neither => "--",
        };
        line(
            &mut out,
            &format!("{:>3} {}{since} {arrow} {}", number + 1, step.time.clock(), safe(&step.what)),
        );
        let after =
            step.after.map_or_else(String::new, |after| format!(", then {} -> {}", after.src, after.dst));
        let same =
            step.same_as.map_or_else(String::new, |at| format!("; the same packet as in {} (N3)", at + 1));
        line(
            &mut out,
            &format!("      {} -> {}{after}, at {}{same}", step.tuple.src, step.tuple.dst, step.hook),
        );
        before = Some(step);
    }
    if steps.is_empty() {
        line(&mut out, "no sighting of this flow is in the recordings");
    }
    if *more > 0 {
        line(&mut out, &format!("and {}", count(*more, "further sighting")));
    }
    if let Some(endpoint) = endpoint {
        heading(&mut out, paint, "The endpoint in the API when NAT decided");
        line(&mut out, &safe(endpoint));
    }
    match rules {
        Ok(then) => {
            let read = then
                .read_at
                .map_or_else(String::new, |time| format!(", as read at {}", time.beside(flow.started)));
            heading(&mut out, paint, &format!("The rules for its first packet{read}"));
            let chosen = flow.endpoint.map(|endpoint| endpoint.to_string());
            let mut journey = then.journey.clone();
            let has_way = journey.ways.iter().any(|way| way.endpoint == chosen);
            if has_way {
                journey.ways.retain(|way| way.endpoint == chosen);
            } else if let Some(chosen) = chosen {
                line(
                    &mut out,
                    &format!("no rule led to {chosen} then: the rules have changed since the decision"),
                );
            }
            for text in path::text(&journey, paint).lines() {
                line(&mut out, text);
            }
        }
        Err(why) => {
            heading(&mut out, paint, "The rules for its first packet");
            line(&mut out, &safe(why));
        }
    }
    if !gaps.is_empty() {
        heading(&mut out, paint, "Not seen");
        for gap in gaps {
            line(&mut out, &safe(gap));
        }
    }
    out
}

/// The flow from end to end.
fn ends(verdict: &Verdict) -> String {
    let flow = &verdict.flow;
    let client = end(flow.client_pod.as_deref(), Some(flow.client), true);
    let hops = [
        flow.vip.map(|vip| vip.to_string()),
        flow.endpoint.map(|it| end(flow.endpoint_pod.as_deref(), Some(it), true)),
    ];
    let hops: Vec<String> = [client].into_iter().chain(hops.into_iter().flatten()).collect();
    format!("{} {}", safe(&flow.protocol), hops.join(" -> "))
}

fn heading(out: &mut String, paint: Paint, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(Style::Heading, text));
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "  {}", text.trim_end());
}
