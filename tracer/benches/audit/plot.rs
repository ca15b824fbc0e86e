//! A line plot as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 60.0;
const COLOURS: [&str; 3] = ["#1f6feb", "#d1242f", "#1a7f37"];

/// One line for each named list of points.
pub(crate) fn svg(title: &str, x: &str, y: &str, lines: &[(&str, Vec<(f64, f64)>)]) -> String {
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(1.0_f64, f64::max);
    let (max_x, max_y) = (most(&mut all().map(|p| p.0)), most(&mut all().map(|p| p.1)));
    let at = |(px, py): (f64, f64)| {
        (MARGIN + px / max_x * (WIDTH - 2.0 * MARGIN), HEIGHT - MARGIN - py / max_y * (HEIGHT - 2.0 * MARGIN))
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"24\" \
         text-anchor=\"middle\" font-size=\"15\">{title}</text>\n<text x=\"{}\" y=\"{}\" \
         text-anchor=\"middle\">{x}</text>\n<text x=\"14\" y=\"{}\">{y}</text>\n",
        WIDTH / 2.0,
        WIDTH / 2.0,
        HEIGHT - 16.0,
        MARGIN - 14.0
    );
    for tick in 0..=4 {
        let part = f64::from(tick) / 4.0;
        let (px, _) = at((max_x * part, 0.0));
        let (_, py) = at((0.0, max_y * part));
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" y1=\"{py:.1}\" x2=\"{}\" y2=\"{py:.1}\" stroke=\"#ddd\"/>\n<text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{:.0}</text>\n<text x=\"{px:.1}\" y=\"{}\" text-anchor=\"middle\">{:.0}</text>",
            WIDTH - MARGIN,
            MARGIN - 6.0,
            py + 4.0,
            max_y * part,
            HEIGHT - MARGIN + 18.0,
            max_x * part
        );
    }
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        let path = points.iter().map(|point| {
            let (px, py) = at(*point);
            format!("{px:.1},{py:.1}")
        });
        let path = path.collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        if let Some(last) = points.last() {
            let (px, py) = at(*last);
            let _ = writeln!(
                svg,
                "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"{colour}\">{name}</text>",
                py - 8.0
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
