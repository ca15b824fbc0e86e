//! The plot of the memory by size of cluster, as SVG that is legible on a light and on a dark page.

use super::{Bound, Point};
use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// The area of the plot: its left, right, upper and lower edge.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 684.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 356.0;
/// The distance of two marks of the vertical axis.
const STEP_MIB: u32 = 50;

const STYLE: &str = "\
    svg{--ink:#1f2328;--faint:#d1d9e0;--now:#0969da;--rules:#1a7f37;--peak:#8250df;--limit:#cf222e;background:#fff}\
    @media(prefers-color-scheme:dark){svg{--ink:#e6edf3;--faint:#3d444d;--now:#58a6ff;--rules:#3fb950;--peak:#bc8cff;--limit:#ff7b72;\
    background:#0d1117}}\
    text{fill:var(--ink);font:13px sans-serif}.middle{text-anchor:middle}.end{text-anchor:end}\
    .grid{stroke:var(--faint)}.now{stroke:var(--now);fill:none;stroke-width:2}.rules{stroke:var(--rules);fill:none;stroke-width:2}.peak{stroke:var(--peak);fill:none;\
    stroke-width:2;stroke-dasharray:2 4}circle.now{fill:var(--now)}circle.rules{fill:var(--rules)}circle.peak{fill:var(--peak);stroke-dasharray:none}\
    .limit{stroke:var(--limit);stroke-width:2;stroke-dasharray:8 4}text.limit{fill:var(--limit);stroke:none}";

/// The lines: `resident_bytes` and `resident_with_rules_bytes`, and the peak of all.
pub(super) fn svg(points: &[Point], limits: &[Bound]) -> String {
    let most =
        points.iter().flat_map(|point| point.values.iter().filter(|(name, _)| name.starts_with("peak")));
    let most = most.map(|(_, bytes)| bytes / super::MIB).fold(0.0, f64::max);
    let most = limits.iter().map(|limit| f64::from(limit.mib)).fold(most, f64::max);
    let steps = (most / f64::from(STEP_MIB)).ceil().max(1.0);
    let (widest, highest) =
        (points.iter().map(|point| point.endpoints).max().unwrap_or(0).max(1), steps * f64::from(STEP_MIB));
    let x = |endpoints: u32| LEFT + (RIGHT - LEFT) * f64::from(endpoints) / f64::from(widest);
    let y = |mib: f64| BOTTOM - (BOTTOM - TOP) * mib / highest;

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <title>Memory of the agent by size of cluster</title><style>{STYLE}</style>\n"
    );
    let mut mib = 0;
    while f64::from(mib) <= highest {
        let at = y(f64::from(mib));
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{mib}</text>",
            LEFT - 8.0,
            at + 4.0
        );
        mib += STEP_MIB;
    }
    for part in 0..=5 {
        let endpoints = widest / 5 * part;
        let _ = writeln!(
            out,
            "<text class=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(endpoints),
            BOTTOM + 20.0,
            grouped(endpoints)
        );
    }
    let middle = f64::midpoint(LEFT, RIGHT);
    let _ = writeln!(
        out,
        "<text class=\"middle\" x=\"{middle}\" y=\"{:.1}\">endpoints, ten of each Service, each a Pod</text>\
         <text x=\"8\" y=\"24\">MiB resident</text>",
        BOTTOM + 46.0
    );
    for limit in limits {
        let (end, at) = (x((limit.services * 10).min(widest)), y(f64::from(limit.mib)));
        let _ = writeln!(
            out,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <line class=\"limit\" x1=\"{end:.1}\" x2=\"{end:.1}\" y1=\"{at:.1}\" y2=\"{BOTTOM}\"/>\
             <text class=\"limit\" x=\"{:.1}\" y=\"{:.1}\">limit {} MiB</text>",
            LEFT + 6.0,
            at - 6.0,
            limit.mib
        );
    }
    let lines = [
        ("peak_with_rules_bytes", "peak"),
        ("resident_with_rules_bytes", "rules"),
        ("resident_bytes", "now"),
    ];
    for (name, class) in lines {
        let places: Vec<(f64, f64)> =
            points.iter().filter_map(|point| Some((x(point.endpoints), y(point.mib(name)?)))).collect();
        let line: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{}\"/>", line.join(" "));
        for (x, y) in places {
            let _ = writeln!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
        }
    }
    let keys = [
        (170.0, "now", "steady"),
        (270.0, "rules", "once it has read the rules"),
        (490.0, "peak", "peak, while it reads them"),
    ];
    for (at, class, text) in keys {
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{at}\" x2=\"{:.1}\" y1=\"20\" y2=\"20\"/><text x=\"{:.1}\" y=\"24\">{text}</text>",
            at + 28.0,
            at + 36.0
        );
    }
    out.push_str("</svg>\n");
    out
}

/// With its thousands grouped.
fn grouped(number: u32) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}
